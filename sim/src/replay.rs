//! Bundles: a failure as a file. A seed is for today, since tomorrow's generator makes another plan
//! of it; a bundle holds the plan and the choices themselves, and loads for ever (architecture §4
//! rule 11).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::canary::Lie;
use crate::explore::{RunOptions, Sampler};
use crate::invariants::{Invariant, Violation};
use crate::plan::{PLAN_VERSION, Plan};
use crate::run::{Engine, RunReport, run_on};
use crate::tally::FailureClass;

/// The format of a bundle file.
pub const BUNDLE_VERSION: u32 = 1;

/// A failure that can be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// [`BUNDLE_VERSION`].
    pub version: u32,
    /// The engine.
    pub engine: Engine,
    /// The commit it was found at, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The broken invariant's id.
    pub invariant: String,
    /// What kind of failure it is.
    pub class: FailureClass,
    /// What was wrong.
    pub violation: String,
    /// Which part of the deployment lied, if one did: a canary's bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lie: Option<Lie>,
    /// The plan; its sampler is the recorded choices.
    pub plan: Plan,
}

/// Why a bundle was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file could not be read.
    #[error("{path}: it cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("{path}: it cannot be written: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a bundle.
    #[error("{path}: it is not a bundle: {source}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line and column, and what is wrong there.
        source: serde_json::Error,
    },
    /// It is of another format.
    #[error("{path}: {what} version {found} is not supported; this simulator reads {supported}")]
    Version {
        /// The file.
        path: PathBuf,
        /// The bundle's or the plan's.
        what: &'static str,
        /// What it says.
        found: u32,
        /// What is read.
        supported: u32,
    },
}

/// What a run broke first, in the order of the invariants' list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The invariant's id.
    pub invariant: &'static str,
    /// Its sentence.
    pub sentence: &'static str,
    /// What kind of failure it is.
    pub class: FailureClass,
    /// The first place where it broke.
    pub violation: Violation,
}

impl Verdict {
    /// The verdict on `invariant` alone; `None` if it held.
    pub fn on(invariant: &'static Invariant, report: &RunReport) -> Option<Self> {
        let violation = invariant.check(&report.trace).violations.into_iter().next()?;
        Some(Self {
            invariant: invariant.id,
            sentence: invariant.sentence,
            class: FailureClass::of(invariant),
            violation,
        })
    }

    /// The first invariant that `report` broke.
    pub fn first(report: &RunReport) -> Option<Self> {
        crate::invariants::ALL.iter().find_map(|invariant| Self::on(invariant, report))
    }
}

impl Bundle {
    /// The failure of `report`, a run of `plan`; `None` if it held everything.
    pub fn of(plan: &Plan, lie: Option<Lie>, report: &RunReport) -> Option<Self> {
        Verdict::first(report).map(|verdict| Self::with(plan, lie, report, &verdict))
    }

    /// How `report` broke the invariant of that id; `None` if it held.
    pub fn on(invariant: &str, plan: &Plan, report: &RunReport) -> Option<Self> {
        let verdict = Verdict::on(crate::invariants::named(invariant)?, report)?;
        Some(Self::with(plan, None, report, &verdict))
    }

    /// The failure `verdict` of `report`.
    pub fn with(plan: &Plan, lie: Option<Lie>, report: &RunReport, verdict: &Verdict) -> Self {
        let mut answers = report.answers.clone();
        // Answers that run out are zeros.
        while answers.last() == Some(&0) {
            answers.pop();
        }
        Self {
            version: BUNDLE_VERSION,
            engine: report.engine,
            commit: option_env!("CONTINUABLE_COMMIT").map(str::to_owned),
            invariant: verdict.invariant.to_owned(),
            class: verdict.class,
            violation: verdict.violation.text.clone(),
            lie,
            plan: Plan { sampler: Sampler::Recorded(answers), ..plan.clone() },
        }
    }

    /// Runs it.
    pub fn run(&self) -> RunReport {
        run_on(self.engine, &self.plan, self.lie, RunOptions::default())
    }

    /// Whether `report` shows the same failure: the same invariant, the same class.
    pub fn shows(&self, report: &RunReport) -> Option<Verdict> {
        let invariant = crate::invariants::named(&self.invariant)?;
        Verdict::on(invariant, report).filter(|verdict| verdict.class == self.class)
    }

    /// How many recorded choices are not the quiet one.
    pub fn choices(&self) -> usize {
        match &self.plan.sampler {
            Sampler::Recorded(answers) => answers.iter().filter(|answer| **answer != 0).count(),
            _ => 0,
        }
    }

    /// Reads a bundle.
    ///
    /// # Errors
    ///
    /// [`BundleError`], naming the file and what is wrong with it.
    pub fn load(path: &Path) -> Result<Self, BundleError> {
        let text = fs::read_to_string(path)
            .map_err(|source| BundleError::Read { path: path.to_owned(), source })?;
        let malformed = |source| BundleError::Malformed { path: path.to_owned(), source };
        let version = |what, found, supported| {
            let path = path.to_owned();
            Err(BundleError::Version { path, what, found, supported })
        };
        // The versions first: another version's fields are not expected to fit.
        let raw: serde_json::Value = serde_json::from_str(&text).map_err(malformed)?;
        let number = |value: &serde_json::Value| {
            value["version"].as_u64().and_then(|version| u32::try_from(version).ok())
        };
        match (number(&raw), number(&raw["plan"])) {
            (Some(found), _) if found != BUNDLE_VERSION => {
                return version("bundle", found, BUNDLE_VERSION);
            }
            (_, Some(found)) if found != PLAN_VERSION => {
                return version("plan", found, PLAN_VERSION);
            }
            _ => {}
        }
        serde_json::from_str(&text).map_err(malformed)
    }

    /// Writes it, and the directories above it.
    ///
    /// # Errors
    ///
    /// [`BundleError::Write`].
    pub fn save(&self, path: &Path) -> Result<(), BundleError> {
        let failed = |source| BundleError::Write { path: path.to_owned(), source };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let text = serde_json::to_string_pretty(self).expect("a bundle is plain data");
        fs::write(path, text + "\n").map_err(failed)
    }
}
