//! The world engine (contract §5, network): small plans whose every message crosses the simulated
//! network, with the weather that each test names. All invariants hold in all of them.

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};
use continuable_sim::explore::{RunEnd, RunOptions, Sampler};
use continuable_sim::faults::{Host, NetworkEffect, NetworkFault, StreamFault};
use continuable_sim::plan::{
    By, Ending, GiveUp, Hook, ModelStep, Operation, PLAN_VERSION, Part, Plan, Planned, Provider,
    Suite,
};
use continuable_sim::run::{Engine, RunReport, run_on};
use continuable_sim::trace::{Answer, Event, Note};

fn at(after_ms: u64, operation: Operation) -> Planned {
    Planned { after_ms, operation }
}

fn start() -> Planned {
    at(0, Operation::Start { parent: 0, provider: Provider::Spawn, structured: false })
}

fn send(after_ms: u64, give_up: Option<GiveUp>) -> Planned {
    at(after_ms, Operation::Send { parent: 0, child: 0, by: By::Human, give_up })
}

fn kill(after_ms: u64) -> Planned {
    at(after_ms, Operation::Kill { task: 0, by: By::Human })
}

fn weather(at_ms: u64, for_ms: u64, effect: NetworkEffect) -> NetworkFault {
    NetworkFault { at_ms, for_ms, effect }
}

fn plan(script: &[ModelStep], operations: Vec<Planned>, network: Vec<NetworkFault>) -> Plan {
    Plan {
        version: PLAN_VERSION,
        suite: Suite::Network,
        seed: 7,
        sampler: Sampler::Fifo,
        parents: 1,
        scripts: vec![script.to_vec()],
        parent_script: Vec::new(),
        clients: vec![operations],
        faults: Vec::new(),
        network,
        panicking_listener: false,
        hook: Hook::Absent,
        wakes: 0,
        lease: false,
        capacity: None,
        ending: Ending::Patience,
    }
}

/// The world with every invariant held, and the answers in the order of the operations.
fn run(plan: &Plan) -> (RunReport, Vec<Answer>) {
    let report = run_on(Engine::World, plan, None, RunOptions::default());
    for (invariant, finding) in report.judge() {
        let broken = finding.violations.first();
        assert!(broken.is_none(), "{}: {broken:?}\n{}", invariant.id, report.trace.columns());
    }
    assert!(!report.leaked, "something outlived the run");
    assert_eq!(
        report.outcome.end,
        RunEnd::Quiescent { pending: Vec::new() },
        "{}",
        report.trace.columns()
    );
    let mut answers: Vec<_> = report
        .trace
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Note(Note::Answered { op, answer }) => Some((*op, answer.clone())),
            _ => None,
        })
        .collect();
    answers.sort_by_key(|(op, _)| *op);
    let answers = answers.into_iter().map(|(_, answer)| answer).collect();
    (report, answers)
}

fn settled(report: &RunReport) -> Vec<TaskStatus> {
    let facts = report.trace.entries.iter().filter_map(|entry| match &entry.event {
        Event::Fact(Fact::TaskSettled { status, .. }) => Some(*status),
        _ => None,
    });
    facts.collect()
}

fn struck(report: &RunReport) -> Vec<&str> {
    let notes = report.trace.entries.iter().filter_map(|entry| match &entry.event {
        Event::Note(Note::Struck { kind, .. }) => Some(kind.as_str()),
        _ => None,
    });
    notes.collect()
}

fn route(answer: &Answer) -> Option<RouteCode> {
    match answer {
        Answer::Sent { route, .. } => Some(*route),
        _ => None,
    }
}

#[test]
fn a_person_joins_continues_and_kills_across_the_network() {
    use ModelStep::{Hang, Say, SlowTool};
    let operations = vec![start(), send(20, None), send(400, None), kill(20)];
    let (report, answers) = run(&plan(&[SlowTool(60), Say, Hang], operations, Vec::new()));
    let routes: Vec<_> = answers[1..3].iter().map(route).collect();
    assert_eq!(routes, [Some(RouteCode::Steered), Some(RouteCode::Started)]);
    assert_eq!(answers[3], Answer::Killed { answer: KillAnswer::Requested });
    assert_eq!(settled(&report), [TaskStatus::Completed, TaskStatus::Killed]);
    let served = report.trace.entries.iter().any(|entry| entry.actor.contains("human send"));
    assert!(served, "the person's message came through the adapter");
}

#[test]
fn a_person_who_gives_up_withdraws_across_the_network() {
    use ModelStep::{Say, SlowTool};
    for dropped in [false, true] {
        let operations = vec![start(), send(20, Some(GiveUp { after_ms: 30, dropped }))];
        let (report, answers) = run(&plan(&[SlowTool(300), Say, Say], operations, Vec::new()));
        let expected =
            if dropped { Answer::GaveUp } else { Answer::Refused { code: ErrorCode::Cancelled } };
        assert_eq!(answers[1], expected);
        let withdrawn = report.trace.entries.iter().any(|entry| {
            let failed = matches!(&entry.event, Event::Fact(Fact::SendFailed { code, .. })
                if *code == ErrorCode::Cancelled);
            failed && entry.actor.contains("human send")
        });
        assert!(withdrawn, "{}", report.trace.columns());
        assert_eq!(settled(&report), [TaskStatus::Completed]);
    }
}

/// The message arrived, its reply did not: the person knows nothing, and the child worked.
#[test]
fn a_reply_that_is_lost_leaves_its_effect() {
    use ModelStep::{Hang, Say};
    let cut = NetworkEffect::OneWay(Host::Runtime, Host::Human);
    // The first message opens the connection; the weather turns before the second one.
    let operations = vec![start(), send(150, None), send(150, None)];
    let network = vec![weather(190, 2_000, cut)];
    let (report, answers) = run(&plan(&[Say, Say, Say, Hang], operations, network));
    assert_eq!(route(&answers[1]), Some(RouteCode::Started));
    assert_eq!(answers[2], Answer::Lost);
    assert_eq!(settled(&report).len(), 3, "the message was acted on: {}", report.trace.columns());
    assert_eq!(struck(&report), ["one-way partition"]);
}

/// Nothing reaches the runtime: the person tries again until they can connect, or gives up.
#[test]
fn a_partition_between_person_and_runtime_heals() {
    use ModelStep::Say;
    let cut = NetworkEffect::Partition(Host::Human, Host::Runtime);
    let operations = |after| vec![start(), send(after, None), send(100, None)];
    let (_, answers) = run(&plan(&[Say; 4], operations(60), vec![weather(30, 350, cut)]));
    assert_eq!(answers[1], Answer::Lost);
    assert_eq!(route(&answers[2]), Some(RouteCode::Started), "it healed");
}

#[test]
fn every_host_may_die_and_come_back() {
    use ModelStep::{Say, SlowTool};
    for (host, kind) in [
        (Host::Human, "crash of human"),
        (Host::Model, "crash of model"),
        (Host::Runtime, "crash of runtime"),
    ] {
        let operations = vec![start(), send(40, None), send(150, None), send(100, None)];
        let network = vec![weather(50, 100, NetworkEffect::Crash(host))];
        let (report, answers) = run(&plan(&[SlowTool(60), Say, Say, Say], operations, network));
        assert_eq!(struck(&report), [kind]);
        assert_eq!(
            route(&answers[3]),
            Some(RouteCode::Started),
            "{kind}: {}",
            report.trace.columns()
        );
        let restarts = report
            .trace
            .entries
            .iter()
            .filter(|entry| matches!(&entry.event, Event::Note(Note::Restarted { .. })));
        assert_eq!(restarts.count(), usize::from(host == Host::Runtime), "{kind}");
        if host == Host::Model {
            assert_eq!(settled(&report)[0], TaskStatus::Failed, "its request was cut off");
        }
    }
}

/// A broken response fails its own Task; the next activation finds a model that works.
#[test]
fn a_broken_response_costs_one_task() {
    use ModelStep::Say;
    for how in [StreamFault::Truncate, StreamFault::Garbage, StreamFault::Reset] {
        let breaks = NetworkEffect::Stream { after_chunks: 1, how };
        let operations = vec![start(), send(200, None)];
        let (report, _) = run(&plan(&[Say; 3], operations, vec![weather(0, 100, breaks)]));
        assert_eq!(settled(&report), [TaskStatus::Failed, TaskStatus::Completed], "{how:?}");
    }
}

/// The service behind an open connection is unloaded and loaded again: a person meets the new one.
#[test]
fn a_person_outlives_the_control_service() {
    use ModelStep::Say;
    let operations = vec![
        start(),
        send(100, None),
        at(100, Operation::Unload { part: Part::Control }),
        send(50, None),
        at(0, Operation::Load { part: Part::Control }),
        send(50, None),
    ];
    let (_, answers) = run(&plan(&[Say; 5], operations, Vec::new()));
    assert_eq!(route(&answers[1]), Some(RouteCode::Started));
    assert_eq!(answers[3], Answer::Refused { code: ErrorCode::Closing });
    assert_eq!(route(&answers[5]), Some(RouteCode::Started));
}

#[test]
fn the_same_plan_is_the_same_trace() {
    let cut = NetworkEffect::Hold(Host::Human, Host::Runtime);
    let crash = NetworkEffect::Crash(Host::Runtime);
    let network = vec![weather(40, 100, cut), weather(200, 30, crash)];
    let operations = vec![start(), send(30, None), kill(20), send(100, None)];
    let mut plan = plan(&[ModelStep::SlowTool(60), ModelStep::Say], operations, network);
    for sampler in [Sampler::Fifo, Sampler::Random, Sampler::Pct { depth: 3 }, Sampler::Starve] {
        plan.sampler = sampler;
        let (first, second) = (run(&plan).0, run(&plan).0);
        assert_eq!(first.trace.jsonl(), second.trace.jsonl());
        // Its choices, recorded, are the same run again.
        plan.sampler = Sampler::Recorded(first.answers.clone());
        assert_eq!(run(&plan).0.trace.jsonl(), first.trace.jsonl());
    }
}
