//! The invariants of contract §3: what must hold in every run, judged from its trace alone.
//!
//! Each is data: an id, a kind, one sentence, the dangers that prove it was put to the test, and a
//! check. A check reads facts and the simulator's notes, never an engine, so one check judges every
//! engine, saved traces, and logs from elsewhere. Reading order: [`history`] (the trace, indexed),
//! then the checks by subject: [`tasks`], [`delivery`], [`durability`], [`lifecycle`],
//! [`ownership`], [`authority`], [`recovery`], [`sharing`], [`replies`].

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::trace::{Entry, Trace};

pub mod authority;
pub mod delivery;
pub mod durability;
pub mod history;
pub mod lifecycle;
pub mod log;
pub mod ownership;
pub mod recovery;
pub mod replies;
pub mod sharing;
pub mod tasks;

pub use history::History;

/// When a sentence must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// At every moment of every run.
    Always,
    /// Once faults are healed and everything came to rest.
    Eventually,
}

/// One invariant.
pub struct Invariant {
    /// Its id in the contract.
    pub id: &'static str,
    /// When it must hold.
    pub kind: Kind,
    /// What must hold.
    pub sentence: &'static str,
    /// The dangers it guards against; each must be met sometimes, or the sweep tested nothing.
    pub dangers: &'static [&'static str],
    check: Check,
}

/// How a sentence is judged. Instance numbers and Task ids are unique within one life of a process,
/// so most sentences are judged life by life.
enum Check {
    /// In each life alone. What a crash left open is no violation, and an [`Kind::Eventually`] is
    /// not judged in a life that crashed.
    Life(fn(&History<'_>, &mut Finding)),
    /// Over all lives together; places are those of the whole trace ([`History::n`]).
    Whole(fn(&[History<'_>], &mut Finding)),
    /// By another command.
    Elsewhere,
}

impl fmt::Debug for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.sentence)
    }
}

/// A place where an invariant did not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The ordinal of the trace entry that shows it.
    pub at: u64,
    /// What is wrong there.
    pub text: String,
}

/// What one check found in one trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// How often the sentence was put to the test.
    pub tested: u64,
    /// Where it did not hold.
    pub violations: Vec<Violation>,
    /// Which of its dangers were met.
    pub met: Vec<&'static str>,
}

impl Finding {
    /// One test of the sentence.
    fn demand(&mut self, holds: bool, at: usize, text: impl FnOnce() -> String) {
        self.tested += 1;
        if !holds {
            self.violations.push(Violation { at: at as u64, text: text() });
        }
    }

    /// What `check` finds in one life, its places counted in the whole trace.
    fn add(&mut self, life: &History<'_>, check: fn(&History<'_>, &mut Self)) {
        let mut found = Self::default();
        check(life, &mut found);
        self.tested += found.tested;
        self.violations.extend(found.violations.into_iter().map(|violation| {
            let at = usize::try_from(violation.at).unwrap_or(usize::MAX);
            Violation {
                at: life.entries.get(at).map_or(violation.at, |entry| entry.n),
                ..violation
            }
        }));
        found.met.into_iter().for_each(|danger| self.meet(danger));
    }

    /// A danger was met.
    fn meet(&mut self, danger: &'static str) {
        if !self.met.contains(&danger) {
            self.met.push(danger);
        }
    }

    fn meet_if(&mut self, condition: bool, danger: &'static str) {
        if condition {
            self.meet(danger);
        }
    }
}

impl Invariant {
    /// Judges one trace.
    pub fn check(&self, trace: &Trace) -> Finding {
        self.check_lives(&histories(&trace.lives()))
    }

    fn check_lives(&self, lives: &[History<'_>]) -> Finding {
        let mut finding = Finding::default();
        match self.check {
            Check::Life(check) => {
                for life in lives {
                    if !(self.kind == Kind::Eventually && life.crashed.is_some()) {
                        finding.add(life, check);
                    }
                }
            }
            Check::Whole(check) => check(lives, &mut finding),
            Check::Elsewhere => {}
        }
        debug_assert!(finding.met.iter().all(|danger| self.dangers.contains(danger)), "{self:?}");
        finding
    }
}

fn histories<'a>(lives: &'a [Cow<'_, [Entry]>]) -> Vec<History<'a>> {
    lives.iter().map(|life| History::of(life)).collect()
}

/// Judges `trace` by every invariant, in the order of [`ALL`].
pub fn judge(trace: &Trace) -> Vec<(&'static Invariant, Finding)> {
    let lives = trace.lives();
    let histories = histories(&lives);
    ALL.iter().map(|invariant| (invariant, invariant.check_lives(&histories))).collect()
}

/// The invariant of that id.
pub fn named(id: &str) -> Option<&'static Invariant> {
    ALL.iter().find(|invariant| invariant.id == id)
}

/// Every invariant that is checked.
pub const ALL: &[Invariant] = &[
    tasks::I1,
    tasks::I2,
    tasks::I3,
    durability::I4,
    delivery::I5,
    delivery::I6,
    lifecycle::I7,
    lifecycle::I8,
    ownership::I9A,
    ownership::I9B,
    lifecycle::I10,
    authority::I11,
    ownership::I12,
    ownership::I13,
    ownership::I14,
    recovery::I15,
    recovery::I16,
    recovery::I17,
    recovery::I18,
    ownership::I19,
    tasks::I20,
    tasks::I21,
    tasks::I22,
    durability::I23,
    lifecycle::I24,
    durability::I25,
    ownership::I26,
    authority::I27,
    recovery::I28,
    lifecycle::I29,
    authority::I30,
    sharing::P15,
    replies::ORACLE,
];

#[cfg(test)]
mod kit;
#[cfg(test)]
mod tests;
