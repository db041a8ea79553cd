//! The command line: parse, call, print, exit code.
//!
//! The one place in the simulator with threads and a wall clock: a sweep deals seeds to as many
//! threads as there are cores, each with executors of its own, and measures its rate. No run can
//! tell which thread it is on.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use crate::canary::Lie;
use crate::determinism;
use crate::explore::RunOptions;
use crate::invariants;
use crate::plan::Plan;
use crate::replay::{Bundle, Verdict};
use crate::report::{Canary, Summary};
use crate::run::{RunReport, run};
use crate::shrink::{Shrunk, shrink};
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
/// The exit code of arguments that cannot be used.
const EXIT_ARGUMENTS: u8 = 2;
/// The exit code of two runs of one plan that differ.
const EXIT_NONDETERMINISM: u8 = 130;
/// Where failing sweeps leave their bundles.
const FAILURES: &str = "target/sim-failures";
/// How many entries a shrunk failure shows.
const SHOWN: usize = 40;
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
                          void), 4 a large sweep met some danger never (it is vacuous), 127 a panic \
                          of ours, 128 something never came to rest, 129 an invariant was broken, \
                          130 two runs of one plan differ.";

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
    /// Print the trace of a bundle or a seed: the same bytes in every process.
    #[command(after_help = "Examples:\n  cargo sim replay --seed 7\n  \
                            cargo sim replay target/sim-failures/seed-7-I4.json")]
    Replay {
        /// A bundle that a failing run, or `sim shrink`, wrote.
        #[arg(required_unless_present = "seed", conflicts_with = "seed")]
        bundle: Option<PathBuf>,
        /// The seed.
        #[arg(long)]
        seed: Option<u64>,
        /// Print JSONL instead of columns.
        #[arg(long)]
        jsonl: bool,
        /// Show every point that was reached, too.
        #[arg(long)]
        points: bool,
    },
    /// Cut a bundle down to the few steps that matter: same invariant, same class of failure.
    #[command(after_help = "Example:\n  \
                            cargo sim shrink target/sim-failures/seed-7-I4.json -o small.json")]
    Shrink {
        /// The bundle.
        bundle: PathBuf,
        /// Where to write the smaller one; by default beside it, as NAME.shrunk.json.
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// The most runs it may take.
        #[arg(long, default_value_t = 20_000)]
        max_runs: u64,
    },
    /// Run each plan in two processes and compare the traces, byte for byte.
    #[command(after_help = "Example:\n  cargo sim determinism --seeds 0..500")]
    Determinism {
        /// Which seeds, as FIRST..END.
        #[arg(long)]
        seeds: Seeds,
    },
    /// What the second process of `determinism` prints.
    #[command(hide = true)]
    Digests {
        /// Which seeds.
        #[arg(long)]
        seeds: Seeds,
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
                print!("{}{}", summary.text(), bundled(&summary));
            }
            exit_code(&summary)
        }
        Command::Replay { bundle, seed, jsonl, points } => {
            let options = RunOptions { trace_points: points, ..RunOptions::default() };
            let (plan, lie) = match bundle.as_deref().map(Bundle::load).transpose() {
                Ok(Some(bundle)) => (bundle.plan, bundle.lie),
                Ok(None) => (Plan::of_seed(seed.unwrap_or_default()), None),
                Err(error) => return unusable(&error),
            };
            let report = run(&plan, lie, options);
            print!("{}", replayed(&plan, &report, jsonl));
            let mut tally = Tally::default();
            tally.add(&plan, &report);
            tally.worst().map_or(ExitCode::SUCCESS, |class| ExitCode::from(class.exit_code()))
        }
        Command::Shrink { bundle, output, max_runs } => shrunk(&bundle, output, max_runs),
        Command::Determinism { seeds: Seeds(seeds) } => determined(seeds),
        Command::Digests { seeds: Seeds(seeds) } => {
            print!("{}", determinism::digests(seeds));
            ExitCode::SUCCESS
        }
    }
}

fn unusable(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(EXIT_ARGUMENTS)
}

/// Writes the bundle of a sweep's first failure, and says how to replay it.
fn bundled(summary: &Summary) -> String {
    let Some(failure) = summary.tally.failures.first() else { return String::new() };
    let plan = Plan::of_seed(failure.seed);
    let report = run(&plan, None, RunOptions::default());
    let Some(bundle) = Bundle::of(&plan, None, &report) else { return String::new() };
    let name = format!("seed-{}-{}.json", failure.seed, bundle.invariant);
    let path = Path::new(FAILURES).join(name);
    match bundle.save(&path) {
        Ok(()) => format!(
            "cut it down: cargo sim shrink {0}\nreplay it: cargo sim replay {0}\n",
            path.display()
        ),
        Err(error) => format!("{error}\nreplay it: cargo sim replay --seed {}\n", failure.seed),
    }
}

fn shrunk(path: &Path, output: Option<PathBuf>, max_runs: u64) -> ExitCode {
    let bundle = match Bundle::load(path) {
        Ok(bundle) => bundle,
        Err(error) => return unusable(&error),
    };
    let mut told = 0;
    let mut tell = |progress: crate::shrink::Progress| {
        if progress.runs >= told {
            told = progress.runs + 500;
            let crate::shrink::Progress { runs, operations, choices, .. } = progress;
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

/// The failure, for somebody who has only this text.
fn shrink_report(before: &Bundle, after: &Shrunk, path: &Path) -> String {
    let Verdict { invariant, sentence, violation, .. } = &after.verdict;
    let report = after.bundle.run();
    let end = usize::try_from(violation.at).unwrap_or(usize::MAX).saturating_add(1);
    let entries = &report.trace.entries[..end.min(report.trace.entries.len())];
    let shown = &entries[entries.len().saturating_sub(SHOWN)..];
    let columns: String = shown.iter().map(crate::trace::Entry::columns).collect();
    format!(
        "{invariant}: {sentence}\nat entry {}: {}\n{LEGEND}\n{columns}{} operations and {} choices \
         before, {} and {} after, in {} runs\nreplay it: cargo sim replay {}\n",
        violation.at,
        violation.text,
        before.plan.size(),
        before.choices(),
        after.progress.operations,
        after.progress.choices,
        after.progress.runs,
        path.display()
    )
}

fn determined(seeds: Range<u64>) -> ExitCode {
    let count = seeds.end - seeds.start;
    match determinism::compare(seeds) {
        Ok(None) => {
            println!("identical: {count} plans, each in two processes");
            ExitCode::SUCCESS
        }
        Ok(Some(parting)) => {
            let determinism::Parting { seed, entry, here, there } = parting;
            println!("seed {seed} parts at entry {entry}:\n  here:  {here}\n  there: {there}");
            println!("replay it: cargo sim replay --seed {seed}");
            ExitCode::from(EXIT_NONDETERMINISM)
        }
        Err(error) => unusable(&error),
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
        !invariant.check(&report.trace).violations.is_empty()
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
