//! The single-fault sweep: every scenario, with every occurrence of every point and every disk
//! operation, struck by every fault, once and from then on. It is complete for single faults, and
//! linear in the length of a run.
//!
//! A run whose fault struck nothing, or changed nothing but the note of it, is counted apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use continuable::points::Point;
use continuable::store::disk::DiskOperation;
use serde::Serialize;

use crate::disk::DiskError;
use crate::explore::RunOptions;
use crate::faults::{Effect, Place, PlannedFault};
use crate::plan::Plan;
use crate::replay::Verdict;
use crate::run::{RunReport, run};
use crate::trace::{Event, Note};

mod scenarios;

pub use scenarios::{Scenario, scenarios};

/// A disk operation or task that is slow is so for this long, in virtual milliseconds: longer than
/// the scenarios' own pauses.
const SLOW_MS: u64 = 45;

/// One failing run.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The scenario.
    pub scenario: &'static str,
    /// Its plan, with the fault.
    pub plan: Plan,
    /// What broke.
    pub verdict: Verdict,
}

/// What a sweep says.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Swept {
    /// Scenarios swept.
    pub scenarios: u64,
    /// Runs with a fault.
    pub runs: u64,
    /// Of these, runs in which it struck.
    pub struck: u64,
    /// Of these, runs in which it changed something.
    pub changed: u64,
    /// Runs that broke an invariant, or leaked.
    pub failed: u64,
    /// The first of them.
    #[serde(skip)]
    pub failures: Vec<Failure>,
}

impl Swept {
    /// Adds another sum.
    pub fn merge(&mut self, other: Self) {
        self.scenarios += other.scenarios;
        self.runs += other.runs;
        self.struck += other.struck;
        self.changed += other.changed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(20);
    }
}

/// Every fault that makes sense at a disk operation.
fn disk_effects(operation: DiskOperation) -> Vec<Effect> {
    use DiskOperation as D;
    let mut effects =
        vec![Effect::Fail(DiskError::Io), Effect::Slow { ms: SLOW_MS }, Effect::Crash];
    let (io, full) = (DiskError::Io, DiskError::Full);
    match operation {
        D::Append | D::WriteNew | D::Overwrite => {
            effects.push(Effect::Fail(full));
            effects.extend([0, 1, 100].map(|keep| Effect::Torn { keep, error: full }));
            effects.push(Effect::Torn { keep: u64::MAX, error: io });
        }
        D::Read => effects.push(Effect::Short { bytes: 7 }),
        D::CreateDirectory | D::Link => effects.push(Effect::Fail(full)),
        _ => {}
    }
    effects
}

/// Every single fault of a run that reached these places so often.
fn faults(report: &RunReport) -> Vec<PlannedFault> {
    let mut faults = Vec::new();
    let mut add = |place, count: u64, effects: &[Effect]| {
        for effect in effects {
            for skip in 0..count {
                for once in [true, false] {
                    // A crash strikes once; from the last occurrence on is once.
                    let twice = *effect == Effect::Crash || skip + 1 == count;
                    if once || !twice {
                        faults.push(PlannedFault { place, skip, once, effect: *effect });
                    }
                }
            }
        }
    };
    for (point, count) in Point::ALL.iter().zip(&report.points) {
        add(Place::Point(*point), *count, &[Effect::Slow { ms: SLOW_MS }, Effect::Crash]);
    }
    for (operation, count) in &report.disk {
        add(Place::Disk(*operation), *count, &disk_effects(*operation));
    }
    faults
}

/// The trace without the notes of the fault itself.
fn changes(report: &RunReport) -> u64 {
    let entries = report.trace.entries.iter();
    let bare = entries.filter(|entry| !matches!(entry.event, Event::Note(Note::Struck { .. })));
    let text: String = bare
        .map(|entry| {
            let entry = crate::trace::Entry { n: 0, ..entry.clone() };
            serde_json::to_string(&entry).expect("an entry is plain data")
        })
        .collect();
    continuable::sync::key_of(&text)
}

fn swept(scenario: &Scenario, fault: Option<PlannedFault>, unharmed: u64) -> Swept {
    let plan = Plan { faults: fault.into_iter().collect(), ..scenario.plan.clone() };
    let report = run(&plan, None, RunOptions::default());
    let notes = report.trace.entries.iter();
    let struck = notes
        .filter(|entry| matches!(entry.event, Event::Note(Note::Struck { fault: Some(_), .. })))
        .count()
        > 0;
    let verdict = Verdict::first(&report);
    let failed = verdict.is_some() || report.leaked;
    let failures = verdict
        .map(|verdict| Failure { scenario: scenario.name, plan: plan.clone(), verdict })
        .into_iter()
        .collect();
    Swept {
        scenarios: 0,
        runs: u64::from(fault.is_some()),
        struck: u64::from(struck),
        changed: u64::from(struck && changes(&report) != unharmed),
        failed: u64::from(failed),
        failures,
    }
}

/// Sweeps `all` on `jobs` threads; `told` hears of each scenario when its runs are dealt out.
pub fn sweep(all: &[Scenario], jobs: usize, told: &(dyn Fn(&str, usize) + Sync)) -> Swept {
    let mut sum = Swept::default();
    for scenario in all {
        let base = run(&scenario.plan, None, RunOptions::default());
        let unharmed = changes(&base);
        let faults = faults(&base);
        told(scenario.name, faults.len());
        sum.merge(Swept { scenarios: 1, ..swept(scenario, None, unharmed) });
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut part = Swept::default();
            while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                part.merge(swept(scenario, Some(*fault), unharmed));
            }
            part
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
            for worker in workers {
                sum.merge(worker.join().expect("a sweep's thread does not panic"));
            }
        });
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_swept_whole_and_says_what_its_faults_changed() {
        let all = scenarios();
        let swept = sweep(&all[..1], 2, &|_, _| {});
        assert_eq!(swept.failed, 0, "{:?}", swept.failures);
        assert!(swept.runs > 200, "{swept:?}");
        assert!(swept.struck * 10 > swept.runs * 9, "{swept:?}");
        assert!(swept.changed * 2 > swept.struck, "{swept:?}");
    }

    #[test]
    fn every_scenario_passes_without_a_fault() {
        for scenario in scenarios() {
            let report = run(&scenario.plan, None, RunOptions::default());
            assert_eq!(Verdict::first(&report), None, "{}", scenario.name);
        }
    }
}
