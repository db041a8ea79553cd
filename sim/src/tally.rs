//! What many runs add up to.

use std::collections::{BTreeMap, BTreeSet};

use continuable::facts::Fact;
use continuable::points::Point;
use serde::{Deserialize, Serialize};

use crate::invariants::{self, Finding, Kind, Violation};
use crate::plan::{Plan, Suite};
use crate::run::{Engine, RunReport};
use crate::trace::{Contested, Event, Note};

/// How many entries of a failing trace are kept.
const TAIL: usize = 25;

/// How many failures are kept with their traces; the rest are counted.
const FAILURES_KEPT: usize = 20;

/// What kind of failure it is; the exit code follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// A broken invariant of ours panicked.
    Crash,
    /// Something never came to rest.
    Liveness,
    /// A sentence did not hold.
    Correctness,
}

impl FailureClass {
    /// The class of a broken invariant.
    pub fn of(invariant: &invariants::Invariant) -> Self {
        match (invariant.id, invariant.kind) {
            ("I29", _) => Self::Crash,
            (_, Kind::Eventually) => Self::Liveness,
            (_, Kind::Always) => Self::Correctness,
        }
    }

    /// The exit code of the class, as in other simulators: 127 crash, 128 liveness, 129 correctness.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Crash => 127,
            Self::Liveness => 128,
            Self::Correctness => 129,
        }
    }
}

/// One failing run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// The engine.
    pub engine: Engine,
    /// The suite.
    pub suite: Suite,
    /// The seed.
    pub seed: u64,
    /// The invariant's id.
    pub invariant: String,
    /// Its sentence.
    pub sentence: String,
    /// Its class.
    pub class: FailureClass,
    /// The first violation.
    pub violation: Violation,
    /// The entries up to it.
    pub trace: String,
}

/// How one invariant fared.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Fared {
    /// How often it was put to the test.
    pub tested: u64,
    /// How many runs broke it.
    pub broken: u64,
    /// How many runs met each of its dangers.
    pub dangers: BTreeMap<String, u64>,
}

/// The longest runs of one size class against the estimate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Longest {
    /// Choices of a task.
    pub choices: u64,
    /// What PCT assumed.
    pub choices_estimated: u64,
    /// Tasks.
    pub tasks: u64,
    /// What starvation assumed.
    pub tasks_estimated: u64,
}

/// The sum.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Plans run.
    pub plans: u64,
    /// Operations carried out.
    pub operations: u64,
    /// Activations installed.
    pub activations: u64,
    /// Tasks by terminal status.
    pub tasks: BTreeMap<String, u64>,
    /// Polls made.
    pub polls: u64,
    /// Facts recorded.
    pub facts: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// How often the process died and was started again.
    pub restarts: u64,
    /// How many runs met each kind of fault.
    pub faults: BTreeMap<String, u64>,
    /// What people were told whose operations crossed a network.
    #[serde(default)]
    pub people: BTreeMap<String, u64>,
    /// What became of sessions that two runtimes wrote: confirmed events kept, lost with a report
    /// on load, and lost in the gap that only a lease closes (contract P15, race L25).
    pub shared: BTreeMap<String, u64>,
    /// Plans by sampler.
    pub samplers: BTreeMap<String, u64>,
    /// How often each point was reached, as in `Point::ALL`.
    pub points: Vec<u64>,
    /// By invariant id.
    pub invariants: BTreeMap<String, Fared>,
    /// By size class.
    pub longest: BTreeMap<u64, Longest>,
    /// Runs whose objects outlived them: a reference cycle.
    pub leaked: u64,
    /// Runs that failed.
    pub failed: u64,
    /// The first of them, in the order of their seeds.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Adds one run.
    pub fn add(&mut self, plan: &Plan, report: &RunReport) {
        self.plans += 1;
        self.operations += plan.size();
        self.polls += report.outcome.polls;
        self.virtual_ms += report.outcome.elapsed_ms;
        *self.samplers.entry(plan.sampler.name().to_owned()).or_default() += 1;
        self.points.resize(Point::ALL.len(), 0);
        for (sum, more) in self.points.iter_mut().zip(&report.points) {
            *sum += more;
        }
        let estimate = plan.estimate();
        let longest = self.longest.entry(plan.size_class().0).or_default();
        longest.choices = longest.choices.max(report.outcome.task_choices);
        longest.tasks = longest.tasks.max(report.outcome.tasks);
        (longest.choices_estimated, longest.tasks_estimated) = (estimate.choices, estimate.tasks);
        self.count(report);
        let judged = report.judge();
        let mut failed = report.leaked;
        self.leaked += u64::from(report.leaked);
        for (invariant, finding) in judged {
            failed |= !finding.violations.is_empty();
            self.fared(invariant, &finding, plan, report);
        }
        self.failed += u64::from(failed);
    }

    fn count(&mut self, report: &RunReport) {
        let mut struck = BTreeSet::new();
        let mut people = BTreeSet::new();
        for entry in &report.trace.entries {
            let fact = match &entry.event {
                Event::Fact(fact) => fact,
                Event::Note(Note::Struck { kind, .. }) => {
                    struck.insert(kind.as_str());
                    continue;
                }
                Event::Note(Note::Restarted { .. }) => {
                    self.restarts += 1;
                    continue;
                }
                Event::Note(Note::Asked { op, operation }) => {
                    if operation.is_human() && report.engine == Engine::World {
                        people.insert(*op);
                    }
                    continue;
                }
                Event::Note(Note::Answered { op, answer }) => {
                    if people.remove(op) {
                        *self.people.entry(answer.word().to_owned()).or_default() += 1;
                    }
                    continue;
                }
                Event::Note(Note::Ended(end)) => {
                    self.share(&end.contested);
                    continue;
                }
                Event::Note(_) => continue,
            };
            self.facts += 1;
            match fact {
                Fact::AssociationInstalled { .. } => self.activations += 1,
                Fact::TaskSettled { status, .. } => {
                    *self.tasks.entry(status.word().to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        for kind in struck {
            *self.faults.entry(kind.to_owned()).or_default() += 1;
        }
    }

    fn share(&mut self, sessions: &[Contested]) {
        for session in sessions {
            let how = if session.report.is_some() { "lost aloud" } else { "lost in the gap" };
            let kept = session.claimed - session.lost;
            for (word, count) in [("sessions", 1), ("events kept", kept), (how, session.lost)] {
                *self.shared.entry(word.to_owned()).or_default() += count;
            }
        }
    }

    fn fared(
        &mut self,
        invariant: &'static invariants::Invariant,
        finding: &Finding,
        plan: &Plan,
        report: &RunReport,
    ) {
        let fared = self.invariants.entry(invariant.id.to_owned()).or_default();
        fared.tested += finding.tested;
        for danger in invariant.dangers {
            let met = u64::from(finding.met.contains(danger));
            *fared.dangers.entry((*danger).to_owned()).or_default() += met;
        }
        let Some(violation) = finding.violations.first() else { return };
        fared.broken += 1;
        let class = FailureClass::of(invariant);
        let shown = report.trace.story(violation.at, TAIL);
        self.failures.push(Failure {
            seed: plan.seed,
            suite: plan.suite,
            engine: report.engine,
            invariant: invariant.id.to_owned(),
            sentence: invariant.sentence.to_owned(),
            class,
            violation: violation.clone(),
            trace: shown,
        });
        self.trim();
    }

    /// Adds another sum; the result does not depend on who ran which seeds.
    pub fn merge(&mut self, other: Self) {
        self.plans += other.plans;
        self.operations += other.operations;
        self.activations += other.activations;
        self.polls += other.polls;
        self.facts += other.facts;
        self.virtual_ms += other.virtual_ms;
        self.restarts += other.restarts;
        self.leaked += other.leaked;
        self.failed += other.failed;
        self.points.resize(Point::ALL.len(), 0);
        for (sum, more) in self.points.iter_mut().zip(&other.points) {
            *sum += more;
        }
        for (status, count) in other.tasks {
            *self.tasks.entry(status).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (word, count) in other.shared {
            *self.shared.entry(word).or_default() += count;
        }
        for (word, count) in other.people {
            *self.people.entry(word).or_default() += count;
        }
        for (sampler, count) in other.samplers {
            *self.samplers.entry(sampler).or_default() += count;
        }
        for (id, theirs) in other.invariants {
            let ours = self.invariants.entry(id).or_default();
            ours.tested += theirs.tested;
            ours.broken += theirs.broken;
            for (danger, count) in theirs.dangers {
                *ours.dangers.entry(danger).or_default() += count;
            }
        }
        for (class, theirs) in other.longest {
            let ours = self.longest.entry(class).or_default();
            ours.choices = ours.choices.max(theirs.choices);
            ours.tasks = ours.tasks.max(theirs.tasks);
            ours.choices_estimated = theirs.choices_estimated;
            ours.tasks_estimated = theirs.tasks_estimated;
        }
        self.failures.extend(other.failures);
        self.trim();
    }

    fn trim(&mut self) {
        self.failures.sort_by_key(|failure| (failure.seed, failure.class));
        self.failures.truncate(FAILURES_KEPT);
    }

    /// How many points were reached at all.
    pub fn points_hit(&self) -> usize {
        self.points.iter().filter(|count| **count > 0).count()
    }

    /// The points that were never reached.
    pub fn points_missed(&self) -> Vec<Point> {
        let all = Point::ALL.iter().zip(&self.points);
        all.filter(|(_, count)| **count == 0).map(|(point, _)| *point).collect()
    }

    /// The kinds of faults that no run met.
    pub fn faults_missed(&self, kinds: &[&'static str]) -> Vec<&'static str> {
        kinds.iter().filter(|kind| !self.faults.contains_key(**kind)).copied().collect()
    }

    /// The dangers that no run met, with their invariants.
    pub fn dangers_missed(&self) -> Vec<(&str, &str)> {
        let all = self.invariants.iter();
        all.flat_map(|(id, fared)| {
            let missed = fared.dangers.iter().filter(|(_, met)| **met == 0);
            missed.map(|(danger, _)| (id.as_str(), danger.as_str()))
        })
        .collect()
    }

    /// The worst class of failure: a crash explains everything after it.
    pub fn worst(&self) -> Option<FailureClass> {
        let leak = (self.leaked > 0).then_some(FailureClass::Liveness);
        self.failures.iter().map(|failure| failure.class).chain(leak).min()
    }
}
