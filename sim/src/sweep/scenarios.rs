//! The named plans of the single-fault sweep: every operation and every route at least once, each
//! as small as its sentence allows.

use crate::explore::Sampler;
use crate::plan::{
    BadId, BadStart, By, Damage, Ending, GiveUp, Hook, ModelStep, Odd, Operation, PLAN_VERSION,
    Part, Plan, Planned, Provider, Suite,
};

/// One named plan.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name: what happens in it.
    pub name: &'static str,
    /// The plan; first in, first out, and without a fault of its own.
    pub plan: Plan,
}

fn plan(script: &[ModelStep], clients: &[&[Planned]]) -> Plan {
    Plan {
        version: PLAN_VERSION,
        suite: Suite::Everything,
        seed: 0,
        sampler: Sampler::Fifo,
        parents: 1,
        scripts: vec![script.to_vec()],
        parent_script: Vec::new(),
        clients: clients.iter().map(|operations| operations.to_vec()).collect(),
        faults: Vec::new(),
        network: Vec::new(),
        visits: Vec::new(),
        panicking_listener: false,
        hook: Hook::Absent,
        wakes: 0,
        lease: false,
        capacity: None,
        ending: Ending::Patience,
    }
}

fn at(after_ms: u64, operation: Operation) -> Planned {
    Planned { after_ms, operation }
}

fn start() -> Planned {
    at(0, Operation::Start { parent: 0, provider: Provider::Spawn, structured: false })
}

fn fork() -> Planned {
    at(0, Operation::Start { parent: 0, provider: Provider::Fork, structured: false })
}

fn send(after_ms: u64, by: By) -> Planned {
    at(after_ms, Operation::Send { parent: 0, child: 0, by, give_up: None })
}

fn wait() -> Planned {
    at(0, Operation::Wait { task: 0, timeout_ms: 1_000, give_up: None })
}

fn kill(after_ms: u64) -> Planned {
    at(after_ms, Operation::Kill { task: 0, by: By::Parent })
}

fn prompt() -> Planned {
    at(0, Operation::Prompt { parent: 0 })
}

/// Every scenario, in the order of a first reading.
pub fn scenarios() -> Vec<Scenario> {
    let all = [activations(), messages(), endings(), owners(), refusals(), recoveries()];
    all.into_iter().flatten().map(|(name, plan)| Scenario { name, plan }).collect()
}

type Named = Vec<(&'static str, Plan)>;

fn activations() -> Named {
    use ModelStep::{Background, Conclude, Delegate, Empty, Say, Slow, Structured, Tool};
    let structured =
        at(0, Operation::Start { parent: 0, provider: Provider::Spawn, structured: true });
    let under = at(5, Operation::StartUnder { child: 0, provider: Provider::Spawn });
    let foreground =
        |give_up| at(0, Operation::Foreground { parent: 0, provider: Provider::Spawn, give_up });
    let dropped = Some(GiveUp { after_ms: 5, dropped: true });
    let woken = Plan { wakes: 2, ..plan(&[Say], &[&[start(), wait()], &[prompt()]]) };
    let delegating = Plan {
        parent_script: vec![Delegate, ModelStep::TaskOutput, Say],
        ..plan(&[Say], &[&[prompt()]])
    };
    vec![
        ("a child completes", plan(&[Say], &[&[start(), wait()]])),
        ("a child works with tools", plan(&[Tool, Tool, Say], &[&[start(), wait()]])),
        ("a fork of a parent with turns", plan(&[Say], &[&[prompt(), fork(), wait()]])),
        ("a structured result", plan(&[Structured], &[&[structured, wait()]])),
        ("a concluding tool", plan(&[Conclude(9)], &[&[start(), wait()]])),
        ("an empty answer", plan(&[Empty], &[&[start(), wait()]])),
        ("a foreground run", plan(&[Say], &[&[foreground(None)]])),
        ("a dropped foreground run", plan(&[Slow(15)], &[&[foreground(dropped)]])),
        ("a child of a child", plan(&[Slow(15), Say], &[&[start(), under, wait()]])),
        ("a model delegates in the foreground", delegating),
        ("a model delegates in the background", plan(&[Background, Say], &[&[start(), wait()]])),
        ("a notice wakes its owner", woken),
    ]
}

fn messages() -> Named {
    use ModelStep::{Say, Slow, SlowTool, Tool};
    let give_up = |dropped| {
        let give_up = Some(GiveUp { after_ms: 5, dropped });
        at(2, Operation::Send { parent: 0, child: 0, by: By::Parent, give_up })
    };
    let odd = |what| at(0, Operation::SendOdd { parent: 0, child: 0, what });
    vec![
        (
            "a message is steered",
            plan(&[Slow(15), Say], &[&[start(), send(5, By::Parent), wait()]]),
        ),
        (
            "parent and person join one turn",
            plan(
                &[SlowTool(12), Tool, Say],
                &[&[start(), send(5, By::Parent)], &[send(6, By::Human)]],
            ),
        ),
        ("a message continues", plan(&[Say], &[&[start(), wait(), send(0, By::Parent), wait()]])),
        ("a person continues", plan(&[Say], &[&[start(), wait(), send(0, By::Human), wait()]])),
        (
            "two messages race to continue",
            plan(&[Say], &[&[start(), wait(), send(0, By::Parent)], &[send(1, By::Human)]]),
        ),
        (
            "a sender's signal fires",
            plan(&[SlowTool(30), Say], &[&[start(), give_up(false), wait()]]),
        ),
        ("a sender is dropped", plan(&[SlowTool(30), Say], &[&[start(), give_up(true), wait()]])),
        (
            "odd messages",
            plan(&[Say], &[&[start(), wait(), odd(Odd::Empty), odd(Odd::Huge), odd(Odd::Control)]]),
        ),
    ]
}

fn endings() -> Named {
    use ModelStep::{
        Error, Hang, Malformed, MaxTokens, Panic, PanickingTool, Refuse, Say, SlowTool,
    };
    let job = |stubborn| at(0, Operation::Job { parent: 0, ms: 20, stubborn });
    let read = || at(0, Operation::Read { task: 0 });
    let impatient = Some(GiveUp { after_ms: 4, dropped: true });
    let wait_dropped = at(0, Operation::Wait { task: 0, timeout_ms: 50, give_up: impatient });
    vec![
        ("a kill in a step", plan(&[SlowTool(30), Say], &[&[start(), kill(5), wait()]])),
        ("a kill of what hangs", plan(&[Hang], &[&[start(), kill(5), wait()]])),
        ("a kill at once", plan(&[Say], &[&[start(), kill(0), wait()]])),
        (
            "a kill of a cold resume",
            plan(&[Say], &[&[start(), wait(), send(0, By::Parent), kill(0), wait()]]),
        ),
        ("a kill too late", plan(&[Say], &[&[start(), wait(), kill(0)]])),
        ("a model fails", plan(&[Error, MaxTokens, Refuse], &[&[start(), wait()]])),
        ("foreign code panics", plan(&[PanickingTool, Malformed, Panic], &[&[start(), wait()]])),
        ("a job is killed", plan(&[], &[&[job(true), kill(2), kill(2), wait()]])),
        ("a reader and a waiter", plan(&[Say], &[&[start(), wait_dropped, wait()], &[read()]])),
    ]
}

fn owners() -> Named {
    use ModelStep::{Background, Say, Slow, SlowTool};
    let dispose = |after| at(after, Operation::DisposeOwner { parent: 0 });
    let reopen = || at(0, Operation::ReopenOwner { parent: 0 });
    let replace = at(5, Operation::ReplaceOwner { parent: 0 });
    let bypass = at(0, Operation::Bypass { child: 0, hold_ms: 20 });
    let ending = |ending| Plan {
        ending,
        ..plan(&[SlowTool(70_000), Say], &[&[start()], &[at(0, Operation::List { parent: 0 })]])
    };
    let tree = plan(&[Background, Slow(40), Say], &[&[start(), kill(20), wait()]]);
    vec![
        ("an owner is disposed", plan(&[SlowTool(30), Say], &[&[start(), dispose(5)]])),
        (
            "an owner comes back",
            plan(
                &[Say],
                &[&[prompt(), start(), wait(), dispose(0), reopen(), send(0, By::Parent), wait()]],
            ),
        ),
        ("an owner is replaced", plan(&[SlowTool(30), Say], &[&[prompt(), start(), replace]])),
        (
            "a child is loaded past the service",
            plan(&[Say], &[&[start(), wait(), bypass], &[send(8, By::Parent)]]),
        ),
        ("a middle is killed over its leaf", tree),
        ("owners end the run", ending(Ending::Owners)),
        ("the control service ends the run", ending(Ending::Control)),
        ("the Task service ends the run", ending(Ending::Tasks)),
    ]
}

fn refusals() -> Named {
    use ModelStep::{Say, SlowTool};
    let badly = |wrong| at(0, Operation::StartBadly { parent: 0, wrong });
    let bad = |id| at(0, Operation::SendBadly { parent: 0, id });
    let unload = |part| at(0, Operation::Unload { part });
    let load = |part| at(0, Operation::Load { part });
    let foreign = at(0, Operation::Send { parent: 1, child: 0, by: By::Parent, give_up: None });
    let without = |part| {
        plan(
            &[Say],
            &[&[start(), wait(), unload(part), send(0, By::Parent), wait(), load(part), start()]],
        )
    };
    vec![
        (
            "starts that must not work",
            plan(
                &[],
                &[&[badly(BadStart::Label), badly(BadStart::NoProvider), badly(BadStart::Depth)]],
            ),
        ),
        (
            "ids that no send accepts",
            plan(
                &[],
                &[&[bad(BadId::Empty), bad(BadId::Long), bad(BadId::Unknown), bad(BadId::Escape)]],
            ),
        ),
        (
            "a foreign sender",
            Plan {
                parents: 2,
                ..plan(&[Say], &[&[start(), wait(), foreign, send(0, By::Parent)]])
            },
        ),
        ("the provider is gone", without(Part::Spawn)),
        ("the surface is gone", without(Part::Surface)),
        ("the control service is replaced", without(Part::Control)),
        (
            "the store is detached",
            plan(
                &[SlowTool(20), Say],
                &[&[start()], &[at(5, Operation::Unload { part: Part::Store })]],
            ),
        ),
    ]
}

fn recoveries() -> Named {
    use ModelStep::{Say, Slow, Tool};
    let compact = at(0, Operation::Compact { parent: 0 });
    let damage = |how| at(0, Operation::Damage { child: 0, how });
    let damaged =
        |how| plan(&[Say], &[&[start(), wait(), damage(how), send(0, By::Parent), wait()]]);
    let crash = at(8, Operation::Crash);
    let jump = at(3, Operation::ClockJump { ms: 86_400_000 });
    vec![
        ("a compacted parent is forked", plan(&[Say], &[&[prompt(), compact, fork(), wait()]])),
        ("a torn log is continued", damaged(Damage::Tear)),
        ("a log with a foreign line", damaged(Damage::Foreign)),
        ("a log with NUL bytes", damaged(Damage::Zero)),
        (
            "a crash and a restart",
            plan(&[Slow(15), Tool, Say], &[&[start(), crash, send(0, By::Parent), wait()]]),
        ),
        (
            "every child is continued after a restart",
            Plan { ending: Ending::Restart, ..plan(&[Tool, Say], &[&[start(), wait(), start()]]) },
        ),
        (
            "a leased store, and a clock that jumps",
            Plan { lease: true, ..plan(&[Say], &[&[start(), jump, wait(), send(0, By::Parent)]]) },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::swarm::KINDS;

    #[test]
    fn there_are_enough_scenarios_and_every_operation_occurs() {
        let all = scenarios();
        assert!(all.len() >= 30, "{}", all.len());
        let names: BTreeSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len());
        let operations = all.iter().flat_map(|scenario| scenario.plan.clients.iter().flatten());
        let kinds: BTreeSet<_> = operations
            .map(|planned| {
                let json = serde_json::to_value(&planned.operation).expect("plain data");
                json["do"].to_string()
            })
            .collect();
        assert_eq!(kinds.len(), KINDS.len(), "{kinds:?}");
    }
}
