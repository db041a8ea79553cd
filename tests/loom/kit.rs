//! What every model needs: the runner, a fact recorder, a cancel slot behind loom's lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cancel::{CancelDecision, CancelSlot};
use crate::facts::{CancelScope, Fact, FactSink};
use crate::sections::settlement::Authority;
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::{LockClass, Mutex, MutexGuard};
use crate::vocabulary::CancelCause;

/// A model's verdict on one schedule: what it saw, in a word, or what is wrong.
pub type Verdict = Result<&'static str, String>;

/// What all schedules of a model came to.
#[derive(Debug, Default)]
pub struct Explored {
    /// How many schedules there are.
    pub schedules: usize,
    /// Every word that some schedule ended with.
    pub outcomes: BTreeSet<&'static str>,
    /// Every way in which some schedule went wrong.
    pub violations: BTreeSet<String>,
}

impl Explored {
    /// The sound version: nothing wrong, and exactly these outcomes and this many schedules.
    pub fn is_sound(&self, outcomes: &[&'static str], schedules: usize) {
        assert!(self.violations.is_empty(), "{:?}", self.violations);
        assert_eq!(self.outcomes, outcomes.iter().copied().collect::<BTreeSet<_>>());
        assert_eq!(self.schedules, schedules, "lost or gained coverage");
    }

    /// The broken twin: some schedule goes wrong, and it says so in these words.
    pub fn is_caught(&self, violation: &str) {
        assert!(
            self.violations.iter().any(|found| found.contains(violation)),
            "not caught in {} schedules: {:?}",
            self.schedules,
            self.violations
        );
    }
}

/// Runs `model` in every schedule.
pub fn explore(model: impl Fn() -> Verdict + Send + Sync + 'static) -> Explored {
    let seen = Arc::new(std::sync::Mutex::new(Explored::default()));
    let judge = Arc::clone(&seen);
    loom::model(move || {
        let verdict = model();
        let mut seen = judge.lock().expect("nobody panics with it");
        seen.schedules += 1;
        match verdict {
            Ok(outcome) => drop(seen.outcomes.insert(outcome)),
            Err(violation) => drop(seen.violations.insert(violation)),
        }
    });
    Arc::into_inner(seen).expect("the model is over").into_inner().expect("nobody panicked")
}

/// Records facts in the order of the sections that made them. Its lock is loom's, too: sections
/// without a lock in common depend on each other through the order of their facts.
#[derive(Debug, Clone)]
pub struct Facts(Arc<Mutex<Vec<Fact>>>);

impl Default for Facts {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(LockClass::Facts, Vec::new())))
    }
}

impl FactSink for Facts {
    fn record(&self, fact: Fact) {
        self.0.lock().push(fact);
    }
}

impl Facts {
    /// The place of the first fact that fits.
    pub fn place(&self, fits: impl Fn(&Fact) -> bool) -> Option<usize> {
        self.0.lock().iter().position(fits)
    }

    /// How many facts fit.
    pub fn count(&self, fits: impl Fn(&Fact) -> bool) -> usize {
        self.0.lock().iter().filter(|fact| fits(fact)).count()
    }

    /// Whether `late` was recorded although `first` was before.
    pub fn is_after(&self, late: impl Fn(&Fact) -> bool, first: impl Fn(&Fact) -> bool) -> bool {
        match (self.place(late), self.place(first)) {
            (Some(late), Some(first)) => late > first,
            _ => false,
        }
    }
}

/// A cancel slot that records what it accepts, as production's does.
#[derive(Debug, Clone)]
pub struct SharedSlot {
    slot: Arc<Mutex<CancelSlot>>,
    facts: Facts,
}

impl SharedSlot {
    pub fn new(facts: &Facts) -> Self {
        let slot = Arc::new(Mutex::new(LockClass::Cancel, CancelSlot::default()));
        Self { slot, facts: facts.clone() }
    }
}

#[derive(Debug)]
pub struct LockedSlot<'a>(MutexGuard<'a, CancelSlot>, &'a Facts);

impl Slot for LockedSlot<'_> {
    fn accept(&mut self, cause: CancelCause) -> CancelDecision {
        let decision = self.0.accept(cause);
        if decision == CancelDecision::Accepted {
            let scope = CancelScope::Call { call: "model".to_owned() };
            self.1.record(Fact::CancelAccepted { scope, cause });
        }
        decision
    }

    fn publish(&mut self) -> Option<CancelCause> {
        self.0.publish()
    }

    fn cause(&self) -> Option<CancelCause> {
        self.0.cause()
    }

    fn is_published(&self) -> bool {
        self.0.is_published()
    }
}

impl SlotLock for SharedSlot {
    type Guard<'a> = LockedSlot<'a>;

    fn lock(&self) -> LockedSlot<'_> {
        LockedSlot(self.slot.lock(), &self.facts)
    }
}

impl Authority for SharedSlot {
    fn accept(&self, cause: CancelCause) -> Option<CancelDecision> {
        Some(self.lock().accept(cause))
    }
}

/// Whether `fact` is an accepted cancellation.
pub fn is_accepted(fact: &Fact) -> bool {
    matches!(fact, Fact::CancelAccepted { .. })
}
