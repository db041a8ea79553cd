//! What can go wrong in a run, as data (contract §5), and the injector that makes it so.
//!
//! A fault names its place (the n-th disk operation of a kind, the n-th arrival at a named point)
//! and its effect, once or from then on. Network faults are timed instead and belong to the world
//! engine. What clients and the model do wrong is part of the workload.

use std::sync::{Arc, Weak};
use std::time::Duration;

use continuable::points::Point;
use continuable::runtime::{PointFuture, Runtime};
use continuable::store::disk::{DiskOperation, DiskPath};
use continuable::sync::{LockClass, Mutex};
use serde::{Deserialize, Serialize};

use crate::disk::{DiskError, DiskFault, DiskFaults, Freezer};
use crate::explore::{PointFaults, SimRuntime};
use crate::trace::{Event, Note};

/// Where a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Disk operations of one kind, in the order in which they are asked for.
    Disk(DiskOperation),
    /// Arrivals at one point.
    Point(Point),
}

/// What a fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The disk operation fails and changes nothing; a failed sync drops the dirty bytes (P6).
    Fail(DiskError),
    /// The write leaves its first bytes and fails.
    Torn {
        /// How many bytes it leaves at most.
        keep: u64,
        /// How it fails.
        error: DiskError,
    },
    /// The read returns at most so many bytes.
    Short {
        /// How many, at least one.
        bytes: u64,
    },
    /// The operation, or the task at the point, takes so many virtual milliseconds longer.
    Slow {
        /// How many.
        ms: u64,
    },
    /// The process dies here, before the operation.
    Crash,
}

/// One fault of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    /// What it strikes.
    pub place: Place,
    /// How many of them pass first.
    pub skip: u64,
    /// Once, or from then on until the run heals.
    pub once: bool,
    /// What happens.
    pub effect: Effect,
}

impl PlannedFault {
    /// Its kind, as the summary counts it; one of [`KINDS`] for every fault that makes sense.
    pub fn kind(&self) -> String {
        match (self.place, self.effect) {
            (Place::Disk(operation), Effect::Fail(_)) => format!("{} fails", word(operation)),
            (Place::Disk(operation), Effect::Torn { .. }) => format!("{} torn", word(operation)),
            (Place::Disk(_), Effect::Short { .. }) => "short read".to_owned(),
            (Place::Disk(_), Effect::Slow { .. }) => "slow disk".to_owned(),
            (Place::Disk(_), Effect::Crash) => "crash at a disk operation".to_owned(),
            (Place::Point(_), Effect::Crash) => "crash at a point".to_owned(),
            (Place::Point(_), _) => "slow task".to_owned(),
        }
    }
}

/// The word of a disk operation.
pub fn word(operation: DiskOperation) -> &'static str {
    match operation {
        DiskOperation::List => "list",
        DiskOperation::Length => "length",
        DiskOperation::Read => "read",
        DiskOperation::CreateDirectory => "create directory",
        DiskOperation::WriteNew => "write new",
        DiskOperation::Append => "append",
        DiskOperation::Overwrite => "overwrite",
        DiskOperation::Truncate => "truncate",
        DiskOperation::Sync => "sync",
        DiskOperation::Link => "link",
        DiskOperation::Remove => "remove",
        DiskOperation::SyncDirectory => "sync directory",
        DiskOperation::Lease => "lease",
    }
}

/// Every kind of fault that plans of the explore engine inject, the users' damage included.
pub const KINDS: &[&str] = &[
    "append fails",
    "append torn",
    "clock jump",
    "crash at a disk operation",
    "crash at a point",
    "crash by a client",
    "create directory fails",
    "damage: flip",
    "damage: foreign",
    "damage: tear",
    "damage: unlink",
    "damage: zero",
    "full disk",
    "lease fails",
    "length fails",
    "link fails",
    "list fails",
    "overwrite fails",
    "overwrite torn",
    "read fails",
    "remove fails",
    "short read",
    "slow disk",
    "slow task",
    "store detached",
    "sync directory fails",
    "sync fails",
    "truncate fails",
    "write new fails",
    "write new torn",
];

/// A host of the world engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The runtime under test.
    Runtime,
    /// The model server.
    Model,
    /// The person's side.
    Human,
}

impl Host {
    /// Its name in the simulated network.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Model => "model",
            Self::Human => "human",
        }
    }
}

/// What a network fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkEffect {
    /// Nothing passes between the two.
    Partition(Host, Host),
    /// Nothing passes from the first to the second.
    OneWay(Host, Host),
    /// What is sent between the two is held, then released in order.
    Hold(Host, Host),
    /// Every message between the two takes so many milliseconds.
    Latency(Host, Host, u64),
    /// The host's process dies, and is started again when the fault ends.
    Crash(Host),
    /// Responses of the model that begin meanwhile break after so many chunks.
    Stream {
        /// How many chunks pass.
        after_chunks: u64,
        /// How it breaks.
        how: StreamFault,
    },
}

/// How a response of the model breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFault {
    /// It ends early, in an orderly way.
    Truncate,
    /// Bytes that are no response.
    Garbage,
    /// The connection is reset.
    Reset,
    /// Nothing comes any more.
    Stall,
}

/// One fault of the network, timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkFault {
    /// When it begins, in virtual milliseconds.
    pub at_ms: u64,
    /// How long it lasts.
    pub for_ms: u64,
    /// What it does.
    pub effect: NetworkEffect,
}

impl NetworkFault {
    /// Its kind, as the summary counts it; one of [`NETWORK_KINDS`].
    pub fn kind(&self) -> String {
        match self.effect {
            NetworkEffect::Partition(..) => "partition".to_owned(),
            NetworkEffect::OneWay(..) => "one-way partition".to_owned(),
            NetworkEffect::Hold(..) => "hold and release".to_owned(),
            NetworkEffect::Latency(..) => "latency".to_owned(),
            NetworkEffect::Crash(host) => format!("crash of {}", host.name()),
            NetworkEffect::Stream { how, .. } => match how {
                StreamFault::Truncate => "stream truncated".to_owned(),
                StreamFault::Garbage => "stream garbage".to_owned(),
                StreamFault::Reset => "stream reset".to_owned(),
                StreamFault::Stall => "stream stalled".to_owned(),
            },
        }
    }
}

/// The kind of a visit of the second runtime.
pub const SECOND_RUNTIME: &str = "second runtime";

/// Every kind of fault that only the world engine injects, the second runtime included.
pub const NETWORK_KINDS: &[&str] = &[
    "crash of human",
    "crash of model",
    "crash of runtime",
    "hold and release",
    "latency",
    "one-way partition",
    "partition",
    SECOND_RUNTIME,
    "stream garbage",
    "stream reset",
    "stream stalled",
    "stream truncated",
];

/// One fault with what it did so far.
#[derive(Debug)]
struct Armed {
    fault: PlannedFault,
    passed: u64,
    struck: u64,
}

impl Armed {
    fn strikes(&mut self) -> bool {
        if self.passed < self.fault.skip {
            self.passed += 1;
            return false;
        }
        if self.fault.once && self.struck > 0 {
            return false;
        }
        self.struck += 1;
        true
    }
}

/// Makes the faults of a plan happen in one life. A fault counts anew in every life, but for a
/// crash, which strikes once in a run.
pub struct Injector {
    runtime: Weak<SimRuntime>,
    freezer: Freezer,
    armed: Mutex<Vec<(u64, Armed)>>,
}

impl Injector {
    /// The injector of `faults`; crashes are left out unless `crashes`.
    pub fn new(
        runtime: &Arc<SimRuntime>,
        freezer: Freezer,
        faults: &[PlannedFault],
        crashes: bool,
    ) -> Arc<Self> {
        let armed = (0..).zip(faults).filter(|(_, fault)| crashes || fault.effect != Effect::Crash);
        let armed = armed.map(|(n, fault)| (n, Armed { fault: *fault, passed: 0, struck: 0 }));
        let armed = Mutex::new(LockClass::Leaf, armed.collect());
        Arc::new(Self { runtime: Arc::downgrade(runtime), freezer, armed })
    }

    /// The fault that strikes at `place`, noted in the trace when it first does.
    fn strike(&self, place: Place) -> Option<Effect> {
        let (number, fault, first) = {
            let mut armed = self.armed.lock();
            let mut here = armed.iter_mut().filter(|(_, armed)| armed.fault.place == place);
            let (number, armed) =
                here.find_map(|(n, armed)| armed.strikes().then_some((n, armed)))?;
            (*number, armed.fault, armed.struck == 1)
        };
        let runtime = self.runtime.upgrade()?;
        if first {
            let at = match place {
                Place::Disk(operation) => word(operation).to_owned(),
                Place::Point(point) => point.name().to_owned(),
            };
            runtime.record(Event::Note(Note::Struck {
                fault: Some(number),
                kind: fault.kind(),
                at,
            }));
        }
        if fault.effect == Effect::Crash {
            self.freezer.freeze();
            runtime.request_crash(fault.kind());
        }
        Some(fault.effect)
    }
}

impl DiskFaults for Injector {
    fn decide(&self, operation: DiskOperation, _: &DiskPath, _: u64) -> Option<DiskFault> {
        Some(match self.strike(Place::Disk(operation))? {
            Effect::Fail(error) => DiskFault::Fail(error),
            Effect::Torn { keep, error } => DiskFault::Torn { keep, error },
            Effect::Short { bytes } => DiskFault::Short { bytes },
            Effect::Slow { ms } => DiskFault::Slow { milliseconds: ms },
            Effect::Crash => DiskFault::Never,
        })
    }
}

impl PointFaults for Injector {
    fn reach(&self, point: Point) -> Option<PointFuture> {
        match self.strike(Place::Point(point))? {
            Effect::Crash => Some(PointFuture::hold(Box::pin(std::future::pending()))),
            Effect::Slow { ms } => {
                let runtime = self.runtime.upgrade()?;
                Some(PointFuture::hold(runtime.sleep(Duration::from_millis(ms))))
            }
            Effect::Fail(_) | Effect::Torn { .. } | Effect::Short { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_after_its_skips_once_or_from_then_on() {
        let place = Place::Disk(DiskOperation::Sync);
        let effect = Effect::Fail(DiskError::Io);
        for (once, want) in [(true, [false, true, false]), (false, [false, true, true])] {
            let fault = PlannedFault { place, skip: 1, once, effect };
            let mut armed = Armed { fault, passed: 0, struck: 0 };
            assert_eq!([(); 3].map(|()| armed.strikes()), want);
        }
    }

    #[test]
    fn the_kinds_are_sorted_and_each_is_named_once() {
        for kinds in [KINDS, NETWORK_KINDS] {
            assert!(kinds.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
