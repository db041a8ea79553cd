//! A poll runs at most one critical section; a second needs a point before it (architecture §4
//! rule 4). That is what makes the schedules of the explorer all schedules of sections.
//!
//! Method: count the sections of every poll over seeded plans, with footprints on.

use std::collections::BTreeMap;
use std::sync::Arc;

use continuable_sim::deployment::{Deployment, Ground};
use continuable_sim::explore::{Executor, RunOptions};
use continuable_sim::plan::Plan;
use continuable_sim::workload::{SharedSaga, Workload};

/// Tasks of the harness itself, whose polls are the caller's.
const HARNESS: &[&str] = &["main", "client"];

/// Where a second section is known: a cancelled turn's own signal fires right after the section
/// that cancelled the queues, in the watcher of a run and in the loop. Both are wakes of that
/// section in all but name; a slot that is a leaf would take them off this list.
const KNOWN: &[&str] = &["cancellation", "loop"];

#[test]
fn a_poll_runs_at_most_one_section() {
    let mut polls = 0;
    let mut broken: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..60 {
        let plan = Plan::of_seed(seed);
        let options = RunOptions { names: seed, footprints: true, ..RunOptions::default() };
        let choices = plan.sampler.choices(seed, plan.estimate());
        let mut executor = Executor::new(choices, options);
        let ground = Ground::new(executor.runtime(), None);
        let deployment = Deployment::new(executor.runtime(), &plan, ground);
        let workload = Workload::new(deployment, Arc::new(plan), SharedSaga::default());
        executor.run(Arc::clone(&workload).run());
        for step in executor.steps() {
            polls += 1;
            let Some(task) = step.task.filter(|_| step.record.sections > 1) else { continue };
            let name = executor.task_name(task);
            let name = name.split_once(": ").map_or(&*name, |(_, name)| name);
            let kind = name.split_whitespace().next().unwrap_or_default();
            if !HARNESS.contains(&kind) && !KNOWN.contains(&kind) {
                *broken.entry(format!("{kind}: {:?}", step.record.touches)).or_default() += 1;
            }
        }
    }
    assert!(polls > 5_000, "only {polls} polls");
    assert!(broken.is_empty(), "{broken:#?}");
}
