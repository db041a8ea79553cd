//! The command line: parse, call, print, exit code.
//!
//! The one place in the simulator with threads and a wall clock: a sweep deals seeds to as many
//! threads as there are cores, each with executors of its own, and measures its rate. No run can
//! tell which thread it is on.

use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use crate::canary::Lie;
use crate::explore::RunOptions;
use crate::invariants;
use crate::plan::Plan;
use crate::report::{Canary, Summary};
use crate::run::{RunReport, run};
use crate::tally::Tally;
use crate::trace::LEGEND;

/// The seeds of a sweep without arguments.
const DEFAULT_SEEDS: Seeds = Seeds(0..30_000);
/// A sweep without arguments ends by itself after this long, whatever the machine.
const DEFAULT_LIMIT: Duration = Duration::from_secs(45);
/// How many seeds a thread takes at a time.
const BLOCK: u64 = 32;
/// How many seeds a canary may live.
const CANARY_SEEDS: u64 = 200;
/// The exit code of a sweep that missed a canary: it says nothing.
const EXIT_VOID: u8 = 3;
/// The exit code of a large sweep that met too little: it says less than it seems to.
const EXIT_VACUOUS: u8 = 4;

/// Deterministic simulation of continuable.
#[derive(Debug, Parser)]
#[command(name = "sim", version, about, long_about = None, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 passed, 2 bad arguments, 3 a canary lived (the sweep is \
                          void), 4 a large sweep met some danger never (it is vacuous), 127 a panic of ours, 128 something never came to rest, 129 an \
                          invariant was broken.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run plans and judge them by every invariant.
    Run {
        /// Which seeds, as FIRST..END; without it, a sweep that ends by itself in under a minute.
        #[arg(long)]
        seeds: Option<Seeds>,
        /// Threads; by default as many as there are cores.
        #[arg(long)]
        jobs: Option<usize>,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Print the trace of one seed: the same bytes in every process.
    Replay {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Print JSONL instead of columns.
        #[arg(long)]
        jsonl: bool,
        /// Show every point that was reached, too.
        #[arg(long)]
        points: bool,
    },
}

/// A range of seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, end) =
            text.split_once("..").ok_or_else(|| format!("{text:?} is not FIRST..END"))?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
        let (first, end) = (number(first)?, number(end)?);
        if first >= end {
            return Err(format!("{first}..{end} is empty"));
        }
        Ok(Self(first..end))
    }
}

/// Runs the command line.
pub fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { seeds, jobs, json } => {
            let limit = seeds.is_none().then_some(DEFAULT_LIMIT);
            let Seeds(seeds) = seeds.unwrap_or(DEFAULT_SEEDS);
            let summary = sweep(seeds, jobs.unwrap_or_else(cores).max(1), limit);
            if json {
                println!("{:#}", summary.json());
            } else {
                print!("{}", summary.text());
            }
            exit_code(&summary)
        }
        Command::Replay { seed, jsonl, points } => {
            let options = RunOptions { trace_points: points, ..RunOptions::default() };
            let plan = Plan::of_seed(seed);
            let report = run(&plan, None, options);
            print!("{}", replayed(&plan, &report, jsonl));
            let mut tally = Tally::default();
            tally.add(&plan, &report);
            tally.worst().map_or(ExitCode::SUCCESS, |class| ExitCode::from(class.exit_code()))
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn exit_code(summary: &Summary) -> ExitCode {
    if !summary.canary_caught() {
        return ExitCode::from(EXIT_VOID);
    }
    match summary.tally.worst() {
        Some(class) => ExitCode::from(class.exit_code()),
        None if summary.vacuous() => ExitCode::from(EXIT_VACUOUS),
        None => ExitCode::SUCCESS,
    }
}

fn sweep(seeds: Range<u64>, jobs: usize, limit: Option<Duration>) -> Summary {
    let began = Instant::now();
    let canaries: Vec<_> = Lie::ALL.iter().map(|lie| (*lie, canary(*lie, seeds.start))).collect();
    let next = AtomicU64::new(seeds.start);
    let cut_short = AtomicBool::new(false);
    let worker = || {
        let mut tally = Tally::default();
        loop {
            let first = next.fetch_add(BLOCK, Ordering::Relaxed);
            if first >= seeds.end {
                return tally;
            }
            if limit.is_some_and(|limit| began.elapsed() > limit) {
                cut_short.store(true, Ordering::Relaxed);
                return tally;
            }
            for seed in first..seeds.end.min(first + BLOCK) {
                let plan = Plan::of_seed(seed);
                tally.add(&plan, &run(&plan, None, RunOptions::default()));
            }
        }
    };
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            tally.merge(worker.join().expect("a sweep's thread does not panic"));
        }
    });
    Summary {
        seeds: (seeds.start, seeds.end),
        tally,
        canaries,
        seconds: began.elapsed().as_secs_f64(),
        jobs,
        cut_short: cut_short.into_inner(),
    }
}

/// Runs plans with one lying part until its invariant catches it.
fn canary(lie: Lie, first: u64) -> Canary {
    let invariant = invariants::named(lie.caught_by()).expect("a lie names a listed invariant");
    let caught_at = (first..first.saturating_add(CANARY_SEEDS)).find(|seed| {
        let report = run(&Plan::of_seed(*seed), Some(lie), RunOptions::default());
        let history = invariants::History::of(&report.trace);
        !invariant.check(&history).violations.is_empty()
    });
    Canary { invariant: invariant.id, caught_at }
}

/// Everything a replay prints.
fn replayed(plan: &Plan, report: &RunReport, jsonl: bool) -> String {
    if jsonl {
        return report.trace.jsonl();
    }
    let plan = serde_json::to_string(plan).expect("a plan is plain data");
    let mut text = format!("plan {plan}\n{LEGEND}\n{}", report.trace.columns());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_ranges_are_checked() {
        assert_eq!("3..7".parse(), Ok(Seeds(3..7)));
        for bad in ["", "3", "7..3", "3..3", "a..b", "-1..4", "1..99999999999999999999"] {
            assert!(bad.parse::<Seeds>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_lie_is_caught_at_once() {
        for lie in Lie::ALL {
            let caught = canary(*lie, 0).caught_at;
            assert!(caught.is_some_and(|seed| seed < 20), "{lie:?} lived until {caught:?}");
        }
    }

    #[test]
    fn a_replay_is_the_same_text_every_time() {
        for seed in [0, 7, 1_076] {
            let once = || {
                let plan = Plan::of_seed(seed);
                replayed(&plan, &run(&plan, None, RunOptions::default()), false)
            };
            assert_eq!(once(), once());
        }
    }

    #[test]
    fn the_sum_does_not_depend_on_the_number_of_threads() {
        let text = |jobs| {
            let mut json = sweep(0..120, jobs, None).json();
            json["seconds"] = 0.into();
            json["jobs"] = 0.into();
            json.to_string()
        };
        assert_eq!(text(1), text(3));
    }

    #[test]
    fn the_first_seeds_pass() {
        let summary = sweep(0..300, 1, None);
        assert_eq!(summary.tally.failed, 0, "{}", summary.text());
        assert!(summary.canary_caught());
    }
}
