//! A plan of a seed.

use continuable::points::Point;
use continuable::store::disk::DiskOperation;

use super::suite::Suite;
use super::swarm::{Family, Kind, PARTS, Swarm};
use super::{
    BadId, BadStart, By, Damage, Ending, GiveUp, Hook, ModelStep, Odd, Operation, PLAN_VERSION,
    Plan, Planned, Provider, Visit,
};
use crate::disk::DiskError;
use crate::explore::{Rng, Sampler};
use crate::faults::{Effect, Host, NetworkEffect, NetworkFault, Place, PlannedFault, StreamFault};

/// The stream of numbers that a plan is drawn from.
const STREAM: u64 = 0x9_1a9;

const PARENT_STEPS: [ModelStep; 6] = [
    ModelStep::Say,
    ModelStep::Slow(10),
    ModelStep::Delegate,
    ModelStep::Background,
    ModelStep::TaskOutput,
    ModelStep::TaskKill,
];

impl Plan {
    /// The plan of `seed` in the suite `everything`.
    pub fn of_seed(seed: u64) -> Self {
        Self::of(Suite::Everything, seed)
    }

    /// The plan of `seed` in `suite`.
    pub fn of(suite: Suite, seed: u64) -> Self {
        let (mut rng, sampler, swarm) = begin(suite, seed);
        let rng = &mut rng;
        let parents = 1 + rng.below(2);
        let scripts = (0..4).map(|_| script(rng, &swarm)).collect();
        let clients = clients(rng, &swarm, parents);
        let faults = (0..swarm.faults).filter_map(|_| fault(rng, &swarm)).collect();
        let parent_script = (0..rng.below(4)).map(|_| pick(rng, &PARENT_STEPS)).collect();
        let panicking_listener = rng.chance(1, 12);
        let hook = match rng.below(12) {
            0..6 => Hook::Absent,
            6..10 => Hook::Idle,
            10 => Hook::Blocks,
            _ => Hook::Panics,
        };
        let wakes = if rng.chance(1, 4) { 1 + u32::try_from(rng.below(3)).unwrap_or(0) } else { 0 };
        let lease = rng.chance(1, 3);
        let capacity = rng.chance(1, 24).then(|| 500 + rng.below(12_000));
        let ending = ending(rng, suite);
        Self {
            version: PLAN_VERSION,
            suite,
            seed,
            sampler,
            parents,
            scripts,
            parent_script,
            clients,
            faults,
            network: network(rng, suite),
            visits: visits(rng, suite),
            panicking_listener,
            hook,
            wakes,
            lease,
            capacity,
            ending,
        }
    }
}

impl Swarm {
    /// What the plan of `seed` in `suite` is drawn from.
    pub fn of(suite: Suite, seed: u64) -> Self {
        begin(suite, seed).2
    }
}

fn begin(suite: Suite, seed: u64) -> (Rng, Sampler, Swarm) {
    let mut rng = Rng::split(seed, STREAM + suite as u64);
    let sampler = Sampler::draw(&mut rng);
    let swarm = Swarm::draw(&mut rng, suite);
    (rng, sampler, swarm)
}

fn clients(rng: &mut Rng, swarm: &Swarm, parents: u64) -> Vec<Vec<Planned>> {
    let operations = 2 + rng.below(5) + rng.below(5) * rng.below(3);
    let count = 1 + rng.below(3);
    let mut clients: Vec<Vec<Planned>> = (0..count).map(|_| Vec::new()).collect();
    // The first operation is a start: a plan without a child tests little.
    let first = start(rng, 0);
    clients[0].push(Planned { after_ms: 0, operation: first });
    for _ in 1..operations {
        let client = rng.below(count);
        let after_ms = if rng.chance(1, 2) { 0 } else { rng.below(40) };
        let operation = operation(rng, swarm, parents);
        let client = usize::try_from(client).expect("a handful of clients");
        clients[client].push(Planned { after_ms, operation });
    }
    clients
}

fn ending(rng: &mut Rng, suite: Suite) -> Ending {
    if suite == Suite::Recovery && rng.chance(1, 2) {
        return Ending::Restart;
    }
    match rng.below(16) {
        0..7 => Ending::Patience,
        7..10 => Ending::Owners,
        10 | 11 => Ending::Control,
        12 | 13 => Ending::Tasks,
        _ => Ending::Restart,
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    *rng.pick(from).expect("the list is not empty")
}

/// One of `weights`, by its weight; the first if all are 0.
fn weighted<T: Copy>(rng: &mut Rng, weights: &[(T, u64)]) -> T {
    let mut left = rng.below(weights.iter().map(|(_, weight)| weight).sum::<u64>().max(1));
    for (thing, weight) in weights {
        if left < *weight {
            return *thing;
        }
        left -= weight;
    }
    weights[0].0
}

fn provider(rng: &mut Rng) -> Provider {
    if rng.chance(1, 3) { Provider::Fork } else { Provider::Spawn }
}

fn by(rng: &mut Rng) -> By {
    if rng.chance(1, 3) { By::Human } else { By::Parent }
}

fn give_up(rng: &mut Rng, some: u64, of: u64) -> Option<GiveUp> {
    rng.chance(some, of).then(|| GiveUp { after_ms: rng.below(20), dropped: rng.chance(1, 2) })
}

fn script(rng: &mut Rng, swarm: &Swarm) -> Vec<ModelStep> {
    (0..3 + rng.below(4)).map(|_| weighted(rng, &swarm.steps)).collect()
}

fn start(rng: &mut Rng, parent: u64) -> Operation {
    Operation::Start { parent, provider: provider(rng), structured: rng.chance(1, 8) }
}

fn operation(rng: &mut Rng, swarm: &Swarm, parents: u64) -> Operation {
    // Mostly the first parent, so that children meet their own.
    let parent = if rng.chance(1, 5) { rng.below(parents) } else { 0 };
    let near = rng.below(3);
    match weighted(rng, &swarm.operations) {
        Kind::Start => start(rng, parent),
        Kind::StartUnder => Operation::StartUnder { child: near, provider: provider(rng) },
        Kind::StartBadly => {
            let all = [BadStart::Label, BadStart::NoProvider, BadStart::Depth];
            Operation::StartBadly { parent, wrong: pick(rng, &all) }
        }
        Kind::Foreground => {
            let provider = provider(rng);
            Operation::Foreground { parent, provider, give_up: give_up(rng, 1, 3) }
        }
        Kind::Job => {
            let (ms, stubborn) = (rng.below(60), rng.chance(1, 3));
            Operation::Job { parent, ms, stubborn }
        }
        Kind::Send => {
            let (by, give_up) = (by(rng), give_up(rng, 1, 6));
            Operation::Send { parent, child: near, by, give_up }
        }
        Kind::SendOdd => {
            let all = [Odd::Empty, Odd::Huge, Odd::Control, Odd::Exotic];
            Operation::SendOdd { parent, child: near, what: pick(rng, &all) }
        }
        Kind::SendBadly => {
            let all = [BadId::Empty, BadId::Long, BadId::Unknown, BadId::Escape];
            Operation::SendBadly { parent, id: pick(rng, &all) }
        }
        Kind::Kill => Operation::Kill { task: near, by: by(rng) },
        Kind::Wait => {
            let timeout_ms = 1 + rng.below(200);
            Operation::Wait { task: near, timeout_ms, give_up: give_up(rng, 1, 2) }
        }
        Kind::Read => Operation::Read { task: near },
        Kind::List => Operation::List { parent },
        Kind::Prompt => Operation::Prompt { parent },
        Kind::DisposeOwner => Operation::DisposeOwner { parent },
        Kind::ReopenOwner => Operation::ReopenOwner { parent },
        Kind::ReplaceOwner => Operation::ReplaceOwner { parent },
        Kind::Bypass => Operation::Bypass { child: near, hold_ms: rng.below(30) },
        Kind::Damage => {
            let all = [Damage::Tear, Damage::Foreign, Damage::Flip, Damage::Zero, Damage::Unlink];
            Operation::Damage { child: near, how: pick(rng, &all) }
        }
        Kind::Unload => Operation::Unload { part: pick(rng, &PARTS) },
        Kind::Load => Operation::Load { part: pick(rng, &PARTS) },
        Kind::Compact => Operation::Compact { parent },
        Kind::ClockJump => Operation::ClockJump { ms: 1 + rng.below(86_400_000) },
        Kind::Crash => Operation::Crash,
    }
}

fn fault(rng: &mut Rng, swarm: &Swarm) -> Option<PlannedFault> {
    use DiskOperation as D;
    let families: Vec<_> =
        swarm.families.iter().copied().filter(|(_, weight)| *weight > 0).collect();
    if families.is_empty() {
        return None;
    }
    let error = pick(rng, &[DiskError::Io, DiskError::Io, DiskError::Full]);
    let skip = rng.below(8);
    let once = rng.chance(1, 2);
    let fail = Effect::Fail(error);
    let torn = Effect::Torn { keep: rng.below(600), error };
    let on = |operation, effect| (Place::Disk(operation), effect);
    let (place, effect) = match weighted(rng, &families) {
        Family::Sync => on(D::Sync, Effect::Fail(DiskError::Io)),
        Family::Write => match rng.below(8) {
            0 | 1 => on(D::Append, fail),
            2 | 3 => on(D::Append, torn),
            4 => on(D::WriteNew, fail),
            5 => on(D::WriteNew, torn),
            6 => on(D::Overwrite, if rng.chance(1, 2) { fail } else { torn }),
            _ => on(D::Truncate, fail),
        },
        Family::Read => match rng.below(5) {
            0 => on(D::Read, Effect::Fail(DiskError::Io)),
            1 | 2 => on(D::Read, Effect::Short { bytes: 1 + rng.below(64) }),
            3 => on(D::Length, Effect::Fail(DiskError::Io)),
            _ => on(D::List, Effect::Fail(DiskError::Io)),
        },
        Family::Name => match rng.below(5) {
            0 => on(D::CreateDirectory, fail),
            1 => on(D::Link, fail),
            2 => on(D::Remove, Effect::Fail(DiskError::Io)),
            3 => on(D::Lease, Effect::Fail(DiskError::Io)),
            _ => on(D::SyncDirectory, Effect::Fail(DiskError::Io)),
        },
        Family::Slow => slow(rng),
        Family::Crash => {
            if rng.chance(1, 2) {
                let all = [D::Append, D::Sync, D::WriteNew, D::SyncDirectory, D::Link, D::Truncate];
                on(pick(rng, &all), Effect::Crash)
            } else {
                (Place::Point(pick(rng, Point::ALL)), Effect::Crash)
            }
        }
    };
    // A crash strikes once; a slow or short disk may stay so.
    let once = once || effect == Effect::Crash;
    // What is rare must not be skipped.
    let common = matches!(place, Place::Disk(D::Append | D::Sync | D::Read | D::Length));
    let skip = if common { skip } else { skip / 4 };
    Some(PlannedFault { place, skip, once, effect })
}

/// A disk operation, or a task at a point, that takes longer.
fn slow(rng: &mut Rng) -> (Place, Effect) {
    use DiskOperation as D;
    let slow = Effect::Slow { ms: 1 + rng.below(30) };
    if rng.chance(1, 2) {
        let all = [D::Sync, D::Append, D::Read, D::List, D::WriteNew, D::SyncDirectory];
        return (Place::Disk(pick(rng, &all)), slow);
    }
    // The end of a Task is where most parties meet; it takes no time unless made to.
    let ends = [
        Point::TaskSettle,
        Point::TaskListeners,
        Point::NoticeClaim,
        Point::NoticeInject,
        Point::AssociationDrop,
        Point::TaskRelease,
        Point::RunDispose,
        Point::FinalFlush,
    ];
    let from = if rng.chance(1, 2) { &ends[..] } else { Point::ALL };
    (Place::Point(pick(rng, from)), slow)
}

fn network(rng: &mut Rng, suite: Suite) -> Vec<NetworkFault> {
    let count = match suite {
        Suite::Network => 1 + rng.below(3),
        Suite::Everything | Suite::Recovery if rng.chance(1, 2) => 1 + rng.below(2),
        _ => 0,
    };
    (0..count).map(|_| network_fault(rng)).collect()
}

fn network_fault(rng: &mut Rng) -> NetworkFault {
    let (at_ms, for_ms) = (rng.below(120), 5 + rng.below(150));
    let peer = pick(rng, &[Host::Model, Host::Human]);
    let effect = match rng.below(8) {
        0 => NetworkEffect::Partition(Host::Runtime, peer),
        1 if rng.chance(1, 2) => NetworkEffect::OneWay(peer, Host::Runtime),
        1 => NetworkEffect::OneWay(Host::Runtime, peer),
        2 => NetworkEffect::Hold(Host::Runtime, peer),
        3 => NetworkEffect::Latency(Host::Runtime, peer, 2 + rng.below(40)),
        4 => NetworkEffect::Crash(peer),
        5 => NetworkEffect::Crash(Host::Runtime),
        _ => {
            let all = [
                StreamFault::Truncate,
                StreamFault::Garbage,
                StreamFault::Reset,
                StreamFault::Stall,
            ];
            NetworkEffect::Stream { after_chunks: rng.below(4), how: pick(rng, &all) }
        }
    };
    NetworkFault { at_ms, for_ms, effect }
}

fn visits(rng: &mut Rng, suite: Suite) -> Vec<Visit> {
    let count = match suite {
        Suite::Network | Suite::Durability | Suite::Everything if rng.chance(1, 5) => {
            1 + rng.below(3)
        }
        _ => 0,
    };
    let visit = |rng: &mut Rng| Visit {
        at_ms: 10 + rng.below(250),
        child: rng.below(3),
        hold_ms: rng.below(60),
        disk_ms: rng.below(4),
    };
    (0..count).map(|_| visit(rng)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::swarm::{KINDS, STEPS};
    use super::*;

    #[test]
    fn a_plan_survives_its_json_form_and_a_seed_always_makes_the_same_one() {
        for seed in 0..200 {
            for suite in Suite::ALL {
                let plan = Plan::of(*suite, seed);
                let json = serde_json::to_string(&plan).expect("a plan is plain data");
                assert_eq!(serde_json::from_str::<Plan>(&json).expect("it parses"), plan);
                assert_eq!(Plan::of(*suite, seed), plan);
                assert!(plan.size() >= 2);
            }
        }
    }

    #[test]
    fn plans_differ_and_every_kind_of_operation_answer_and_fault_occurs() {
        let plans: Vec<_> = (0..4_000).map(Plan::of_seed).collect();
        let mut kinds = BTreeSet::new();
        let mut steps = BTreeSet::new();
        let mut faults = BTreeSet::new();
        for plan in &plans {
            steps.extend(plan.scripts.iter().flatten().copied());
            faults.extend(plan.faults.iter().map(PlannedFault::kind));
            faults.extend(plan.network.iter().map(NetworkFault::kind));
            faults.extend(plan.visits.iter().map(|_| crate::faults::SECOND_RUNTIME.to_owned()));
            for planned in plan.clients.iter().flatten() {
                let json = serde_json::to_value(&planned.operation).expect("plain data");
                kinds.insert(json["do"].to_string());
            }
        }
        assert_eq!(kinds.len(), KINDS.len(), "{kinds:?}");
        assert_eq!(steps.len(), STEPS.len());
        for kind in crate::faults::NETWORK_KINDS {
            assert!(faults.contains(*kind), "{kind}");
        }
        assert!(plans.windows(2).all(|pair| pair[0].clients != pair[1].clients));
    }

    #[test]
    fn a_suite_does_more_of_what_it_is_after() {
        let crashes = |suite| {
            let plans = (0..400).map(|seed| Plan::of(suite, seed));
            plans.filter(|plan| plan.ending == Ending::Restart).count()
        };
        assert!(crashes(Suite::Recovery) > 2 * crashes(Suite::Steering));
        let shown = Swarm::of(Suite::Recovery, 7).to_string();
        assert!(shown.starts_with("suite recovery\noperations Start:"), "{shown}");
    }
}
