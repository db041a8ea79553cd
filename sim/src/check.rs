//! The model checker: every schedule of small closed races on the real stack (contract §4).
//!
//! A race passes when the set of outcomes that its schedules reach *equals* the set that it allows:
//! an outcome that cannot be reached is as much a failure as one outside. Reading order: [`races`]
//! (what is checked), [`stage`] (what a race's script stands on), [`tree`] (which schedules are
//! left out, and why that is sound), [`search`] (one schedule, and all of them).

use std::fmt;
use std::pin::Pin;

pub mod races;
pub mod search;
pub mod stage;
pub mod tree;

pub use search::{Broken, Reached, SearchOptions, Searched, Searcher};
pub use stage::{Racer, Stage};
pub use tree::{Reduction, Tree};

/// What a race came to: the fields that it judges, with their values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome(pub Vec<(&'static str, String)>);

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (field, value)) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}{field}: {value}")?;
        }
        Ok(())
    }
}

/// The future of a race's script.
pub type Script = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A race of contract §4.
#[derive(Debug)]
pub struct Race {
    /// Its id in the contract.
    pub id: &'static str,
    /// Who races whom.
    pub sentence: &'static str,
    /// Fields of the whole outcome that are not judged, each with its reason.
    pub dropped: &'static [(&'static str, &'static str)],
    /// Its forms: each a closed scenario with the outcomes that it allows.
    pub variants: &'static [Variant],
}

/// One closed scenario.
pub struct Variant {
    /// What is special in it; empty if it is the only one.
    pub name: &'static str,
    /// The script: sets up, lets the racers go, and says what came of it.
    pub script: fn(Stage) -> Script,
    /// Every outcome that may be reached, and must be, as [`Outcome`] shows it.
    pub allowed: &'static [&'static str],
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variant {:?}", self.name)
    }
}

/// What is wrong with a search's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// An outcome that is not allowed.
    Forbidden(Outcome),
    /// An allowed outcome that no schedule reached.
    Unreached(&'static str),
    /// A schedule broke an invariant, or did not end.
    Broken(Broken),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(outcome) => write!(f, "not allowed: {outcome}"),
            Self::Unreached(outcome) => write!(f, "allowed and never reached: {outcome}"),
            Self::Broken(broken) => write!(f, "broken: {}", broken.what),
        }
    }
}

impl Variant {
    /// What is wrong with `searched`; nothing if it reached exactly what is allowed.
    pub fn faults(&self, searched: &Searched) -> Vec<Fault> {
        let broken = searched.broken.iter().cloned().map(Fault::Broken);
        let shown: Vec<_> = searched.outcomes.keys().map(ToString::to_string).collect();
        let forbidden = searched.outcomes.keys().zip(&shown);
        let forbidden = forbidden
            .filter(|(_, shown)| !self.allowed.contains(&shown.as_str()))
            .map(|(outcome, _)| Fault::Forbidden(outcome.clone()));
        // What a walk that was cut short did not reach, it may have reached later.
        let unreached = self.allowed.iter().filter(|_| searched.exhausted);
        let unreached = unreached
            .filter(|allowed| !shown.iter().any(|shown| shown == *allowed))
            .map(|allowed| Fault::Unreached(allowed));
        broken.chain(forbidden).chain(unreached).collect()
    }
}
