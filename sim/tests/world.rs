//! The world engine (contract §5, network): small plans whose every message crosses the simulated
//! network, with the weather that each test names. All invariants hold in all of them.

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::store::DiskOperation;
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};
use continuable_sim::explore::{RunEnd, RunOptions, Sampler};
use continuable_sim::faults::{
    Effect, Host, NetworkEffect, NetworkFault, Place, PlannedFault, StreamFault,
};
use continuable_sim::plan::{
    By, Ending, GiveUp, Hook, ModelStep, Operation, PLAN_VERSION, Part, Plan, Planned, Provider,
    Suite, Visit,
};
use continuable_sim::run::{Engine, RunReport, run_on};
use continuable_sim::trace::{Answer, Contested, Event, Note};

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
        visits: Vec::new(),
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

fn visited(report: &RunReport) -> Vec<(bool, u64, Answer)> {
    let notes = report.trace.entries.iter().filter_map(|entry| match &entry.event {
        Event::Note(Note::Visited { leased, writes, answer, .. }) => {
            Some((*leased, *writes, answer.clone()))
        }
        _ => None,
    });
    notes.collect()
}

fn contested(report: &RunReport) -> Vec<Contested> {
    let ends = report.trace.entries.iter().filter_map(|entry| match &entry.event {
        Event::Note(Note::Ended(end)) => Some(end.contested.clone()),
        _ => None,
    });
    ends.flatten().collect()
}

fn visit(at_ms: u64, disk_ms: u64) -> Visit {
    Visit { at_ms, child: 0, hold_ms: 100, disk_ms }
}

/// The loser is refused once and writes nothing, however often it comes; the winner works on.
#[test]
fn a_second_runtime_without_the_lease_is_refused_before_any_write() {
    use ModelStep::{Say, SlowTool};
    for disk_ms in [0, 3] {
        let operations = vec![start(), send(150, None)];
        let mut plan = plan(&[SlowTool(60), Say, Say], operations, Vec::new());
        plan.lease = true;
        plan.visits = vec![visit(20, disk_ms), visit(120, disk_ms)];
        let (report, answers) = run(&plan);
        let refused = Answer::Refused { code: ErrorCode::LeaseHeld };
        assert_eq!(visited(&report), [(true, 0, refused.clone()), (true, 0, refused)]);
        assert_eq!(contested(&report), []);
        assert_eq!(route(&answers[1]), Some(RouteCode::Started));
        assert_eq!(settled(&report), [TaskStatus::Completed, TaskStatus::Completed]);
    }
}

/// Between the activations of a child the second runtime writes its log and leaves it whole.
/// A writer that lives meanwhile is told of the other's bytes, and overwrites none.
#[test]
fn without_a_lease_one_of_two_runtimes_meets_the_others_bytes() {
    use ModelStep::{Say, SlowTool};
    let mut plan = plan(&[Say; 4], vec![start(), send(300, None)], Vec::new());
    plan.visits = vec![visit(100, 0)];
    let (report, answers) = run(&plan);
    assert!(
        matches!(visited(&report)[..], [(false, 1.., Answer::Done)]),
        "{}",
        visited(&report).len()
    );
    assert_eq!(route(&answers[1]), Some(RouteCode::Started), "it goes on from what it finds");
    assert_eq!(settled(&report), [TaskStatus::Completed, TaskStatus::Completed]);
    let whole = contested(&report);
    assert!(whole[0].claimed > 10 && whole[0].lost == 0 && whole[0].report.is_none(), "{whole:?}");

    plan.scripts = vec![vec![SlowTool(150), Say, Say]];
    plan.visits = vec![visit(30, 0)];
    let (report, _) = run(&plan);
    let conflicts = report.trace.entries.iter().filter(|entry| {
        matches!(&entry.event, Event::Fact(Fact::FlushFailed { code, .. })
            if *code == ErrorCode::StoreConflict)
    });
    assert!(conflicts.count() > 0, "{}", report.trace.columns());
    assert_eq!(settled(&report)[0], TaskStatus::Failed, "what was not saved is not called done");
    let whole = contested(&report);
    assert!(whole[0].lost == 0 && whole[0].report.is_none(), "{whole:?}");
}

/// Whether a load cut a tail, or refused a damaged log.
fn is_report_of_damage(fact: &Fact) -> bool {
    match fact {
        Fact::SessionLoaded { cut, .. } => *cut > 0,
        Fact::LoadRefused { code, .. } => *code == ErrorCode::DamagedLog,
        _ => false,
    }
}

/// In the gap between the check of the length and the append both may write: the load says so.
#[test]
fn damage_in_the_gap_is_reported_on_load() {
    use ModelStep::{Say, SlowTool};
    let place = Place::Disk(DiskOperation::Append);
    let slow = PlannedFault { place, skip: 0, once: false, effect: Effect::Slow { ms: 6 } };
    let mut aloud = 0;
    // While the child's tool works its turn is open: the second runtime closes it in the log, at
    // about the time at which the first appends what the tool said.
    for at_ms in 30..80 {
        let operations = vec![start(), send(300, None)];
        let mut plan = plan(&[SlowTool(60), Say, Say], operations, Vec::new());
        plan.visits = vec![visit(at_ms, 3)];
        plan.faults = vec![slow];
        let (report, _) = run(&plan);
        aloud += report.trace.facts().filter(|fact| is_report_of_damage(fact)).count();
        plan.lease = true;
        let (report, _) = run(&plan);
        assert_eq!(report.trace.facts().filter(|fact| is_report_of_damage(fact)).count(), 0);
        assert!(contested(&report).iter().all(|log| log.report.is_none() && log.lost == 0));
    }
    assert!(aloud > 0, "no visit met the gap");
}

/// The machine dies while the second runtime works: it is there again after the restart.
#[test]
fn a_visitor_dies_with_the_machine_and_comes_back() {
    use ModelStep::Say;
    let network = vec![weather(100, 30, NetworkEffect::Crash(Host::Runtime))];
    let mut plan = plan(&[Say; 5], vec![start(), send(250, None)], network);
    plan.visits = vec![visit(98, 3), visit(180, 0)];
    let (report, _) = run(&plan);
    let crashed = report.trace.entries.iter().filter(|entry| {
        entry.life >= 12 && matches!(&entry.event, Event::Note(Note::Crashed { .. }))
    });
    assert_eq!(crashed.count(), 1);
    assert_eq!(visited(&report).len(), 2, "{}", report.trace.columns());
}
