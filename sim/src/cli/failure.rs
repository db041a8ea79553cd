//! Showing one run, and cutting one failure down.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{EXIT_ARGUMENTS, unusable};
use crate::plan::{Plan, Swarm};
use crate::replay::{Bundle, Verdict};
use crate::run::RunReport;
use crate::shrink::{Progress, Shrunk, shrink};
use crate::trace::LEGEND;

/// How many entries a shrunk failure shows.
const SHOWN: usize = 40;
/// How many runs of a shrink pass between two lines of progress.
const PROGRESS_RUNS: u64 = 500;

/// Everything a replay prints; for a `drawn` plan also what it was drawn from.
pub(super) fn replayed(plan: &Plan, report: &RunReport, drawn: bool, jsonl: bool) -> String {
    if jsonl {
        return report.trace.jsonl();
    }
    let swarm = if drawn { Swarm::of(plan.suite, plan.seed).to_string() } else { String::new() };
    let json = serde_json::to_string(plan).expect("a plan is plain data");
    let mut text = format!("{swarm}plan {json}\n{LEGEND}\n{}", report.trace.columns());
    for (invariant, finding) in report.judge() {
        for violation in finding.violations {
            text += &format!(
                "broke {} at entry {}: {}\n  {}\n",
                invariant.id, violation.at, violation.text, invariant.sentence
            );
        }
    }
    text + &format!(
        "{} entries, digest {:016x}\n",
        report.trace.entries.len(),
        report.trace.digest()
    )
}

/// Shrinks the bundle at `path`.
pub(super) fn shrunk(path: &Path, output: Option<PathBuf>, max_runs: u64) -> ExitCode {
    let bundle = match Bundle::load(path) {
        Ok(bundle) => bundle,
        Err(error) => return unusable(&error),
    };
    let mut told = 0;
    let mut tell = |progress: Progress| {
        if progress.runs >= told {
            told = progress.runs + PROGRESS_RUNS;
            let Progress { runs, operations, choices, .. } = progress;
            eprintln!("{runs} runs: {operations} operations, {choices} choices left");
        }
    };
    let Some(small) = shrink(&bundle, max_runs, &mut tell) else {
        eprintln!(
            "error: {} does not show {} any more: the code or the simulator has changed",
            path.display(),
            bundle.invariant
        );
        return ExitCode::from(EXIT_ARGUMENTS);
    };
    let output = output.unwrap_or_else(|| path.with_extension("shrunk.json"));
    if let Err(error) = small.bundle.save(&output) {
        return unusable(&error);
    }
    print!("{}", shrink_report(&bundle, &small, &output));
    ExitCode::SUCCESS
}

/// The failure, for somebody who has only this text: the invariant and its sentence, where, what
/// was seen, the last entries about it, the sizes, and how to replay it.
fn shrink_report(before: &Bundle, after: &Shrunk, path: &Path) -> String {
    let Verdict { invariant, sentence, violation, .. } = &after.verdict;
    let report = after.bundle.run();
    let operations: String = after
        .bundle
        .plan
        .clients
        .iter()
        .enumerate()
        .flat_map(|(client, operations)| operations.iter().map(move |planned| (client, planned)))
        .map(|(client, planned)| {
            let json = serde_json::to_string(&planned.operation).expect("plain data");
            format!("  client {client}, after {} ms: {json}\n", planned.after_ms)
        })
        .collect();
    let faults: String = after
        .bundle
        .plan
        .faults
        .iter()
        .map(|fault| format!("  {}\n", serde_json::to_string(fault).expect("plain data")))
        .collect();
    let faults = if faults.is_empty() { faults } else { format!("faults:\n{faults}") };
    format!(
        "{invariant}: {sentence}\nwhere: entry {}, engine {}\nseen: {}\noperations:\n{operations}\
         {faults}{LEGEND}\n{}{} operations and {} choices before, {} and {} after, in {} runs\n\
         replay it: cargo sim replay {}\n",
        violation.at,
        after.bundle.engine,
        violation.text,
        report.trace.story(violation.at, SHOWN),
        before.plan.size(),
        before.choices(),
        after.progress.operations,
        after.progress.choices,
        after.progress.runs,
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::RunOptions;
    use crate::run::run;

    #[test]
    fn a_replay_is_the_same_text_every_time_and_says_what_its_plan_was_drawn_from() {
        for seed in [0, 7, 1_076] {
            let once = || {
                let plan = Plan::of_seed(seed);
                replayed(&plan, &run(&plan, None, RunOptions::default()), true, false)
            };
            assert_eq!(once(), once());
            assert!(once().starts_with("suite everything\noperations "));
        }
    }
}
