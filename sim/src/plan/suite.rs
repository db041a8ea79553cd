//! The property suites: named workload profiles, each with the invariants it is after.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A workload profile.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Suite {
    /// Starts, cold resumes and their ends.
    Activation,
    /// Messages to running children, against every way a turn can end.
    Steering,
    /// Kills and givings-up, against everything.
    Cancellation,
    /// Flushes that fail, disks that are full.
    Durability,
    /// Crashes, damage and restarts.
    Recovery,
    /// Owners that are disposed, replaced and bypassed.
    Ownership,
    /// Foreign senders, bad ids, missing surfaces.
    Authority,
    /// Waiters, readers and notices.
    Notices,
    /// Model and person across a network that fails; mostly for the world engine.
    Network,
    /// All of it.
    #[default]
    Everything,
}

impl Suite {
    /// Every suite, in the order of `sim run --help`.
    pub const ALL: &'static [Self] = &[
        Self::Activation,
        Self::Steering,
        Self::Cancellation,
        Self::Durability,
        Self::Recovery,
        Self::Ownership,
        Self::Authority,
        Self::Notices,
        Self::Network,
        Self::Everything,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activation => "activation",
            Self::Steering => "steering",
            Self::Cancellation => "cancellation",
            Self::Durability => "durability",
            Self::Recovery => "recovery",
            Self::Ownership => "ownership",
            Self::Authority => "authority",
            Self::Notices => "notices",
            Self::Network => "network",
            Self::Everything => "everything",
        }
    }

    /// The invariants whose dangers it must meet, by id. All are judged in every run; `everything`
    /// must meet the dangers of each.
    pub fn after(self) -> &'static [&'static str] {
        match self {
            Self::Activation => &["I1", "I3", "I6", "I7", "I8", "I23"],
            Self::Steering => &["I1", "I5", "I6", "I20"],
            Self::Cancellation => &["I10", "I20", "I26"],
            Self::Durability => &["I4", "I25"],
            Self::Recovery => &["I17", "I18", "I25"],
            Self::Ownership => &["I12", "I13", "I14", "I30"],
            Self::Authority => &["I11", "I21", "I22"],
            Self::Notices => &["I9a"],
            Self::Network => &["I1", "I24"],
            Self::Everything => &[],
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
