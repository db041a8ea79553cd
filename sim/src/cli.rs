//! The command line: parse, call, print, exit code.
//!
//! Here and in its parts alone are threads and a wall clock. Reading order: this file (what can be
//! asked), [`seeds`] (running ranges of seeds), [`failure`] (showing one failure).

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Parser, Subcommand};

use crate::determinism;
use crate::explore::RunOptions;
use crate::plan::{Plan, Suite};
use crate::replay::Bundle;
use crate::report::Summary;
use crate::run::{Engine, run_on};
use crate::tally::Tally;

mod check;
mod failure;
mod seeds;
mod single;

/// The exit code of a sweep that missed a canary, or that a shard is missing of: it says nothing.
const EXIT_VOID: u8 = 3;
/// The exit code of arguments that cannot be used.
const EXIT_ARGUMENTS: u8 = 2;
/// The exit code of two runs of one plan that differ.
const EXIT_NONDETERMINISM: u8 = 130;
/// The exit code of a large sweep that met too little: it says less than it seems to.
const EXIT_VACUOUS: u8 = 4;
/// Where failures are left, if nobody says otherwise.
const FAILURES: &str = "target/sim-failures";

/// Deterministic simulation of continuable.
#[derive(Debug, Parser)]
#[command(name = "sim", version, about, long_about = None, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 passed, 2 bad arguments, 3 a canary lived or a shard is \
                          missing (the sweep is void), 4 a large sweep met some danger, point or fault never (it is \
                          vacuous), 127 a panic of ours, 128 something never came to rest, 129 an \
                          invariant was broken, 130 two runs of one plan differ.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run seeded plans of property suites and judge them by every invariant.
    #[command(
        after_help = "Examples:\n  cargo sim run\n  cargo sim run steering durability --seeds \
                            0..10000\n  cargo sim run --seeds 0..1000000 --shard 3/16 \
                            --json-lines > part-3.jsonl"
    )]
    Run(seeds::RunArguments),
    /// Add up the JSON lines of several shards, as if one process had run them all.
    #[command(after_help = "Example:\n  cargo sim merge part-*.jsonl")]
    Merge {
        /// Files that `sim run --json-lines` wrote.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Strike every scenario with every single fault at every place it can strike.
    #[command(after_help = "Examples:\n  cargo sim sweep --all\n  cargo sim sweep \"a kill at \
                            once\"\n  cargo sim sweep --list")]
    Sweep(single::SweepArguments),
    /// Explore every schedule of the races of contract §4.
    #[command(after_help = "Examples:\n  cargo sim check --all\n  cargo sim check L3 \
                            --explain\n  cargo sim check L9 --bound 3")]
    Check(check::CheckArguments),
    /// Run one plan and print its trace.
    #[command(after_help = "Examples:\n  cargo sim replay --seed 7\n  cargo sim replay \
                            target/sim-failures/seed-7-I4.json")]
    Replay {
        /// The bundle of a failure.
        #[arg(required_unless_present = "seed", conflicts_with = "seed")]
        bundle: Option<PathBuf>,
        /// The seed of a plan.
        #[arg(long)]
        seed: Option<u64>,
        /// The suite that the seed's plan is drawn from.
        #[arg(long, default_value_t = Suite::Everything, requires = "seed")]
        suite: Suite,
        /// The engine that runs the seed's plan.
        #[arg(long, value_enum, default_value_t = Engine::Explore, requires = "seed")]
        engine: Engine,
        /// Print one JSON object a line instead of columns.
        #[arg(long)]
        jsonl: bool,
        /// Show the points that were reached, too.
        #[arg(long)]
        points: bool,
    },
    /// Cut a failure down to the few steps that matter.
    #[command(after_help = "Example:\n  cargo sim shrink target/sim-failures/seed-7-I4.json")]
    Shrink {
        /// The bundle of the failure.
        bundle: PathBuf,
        /// Where the smaller bundle goes; by default beside the first, as `NAME.shrunk.json`.
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
        /// The engine.
        #[arg(long, value_enum)]
        engine: Engine,
        /// Each seed on a thread of its own.
        #[arg(long)]
        alone: bool,
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

/// One part of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shard {
    /// Counted from 0.
    index: u64,
    /// How many there are.
    count: u64,
}

impl Shard {
    /// Its part of `seeds`: all parts together are all of them.
    fn part(self, seeds: &Range<u64>) -> Range<u64> {
        let length = u128::from(seeds.end - seeds.start);
        let bound = |index: u64| {
            let offset = length * u128::from(index) / u128::from(self.count);
            seeds.start + u64::try_from(offset).expect("a part of a range of u64")
        };
        bound(self.index)..bound(self.index + 1)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (index, count) =
            text.split_once('/').ok_or_else(|| format!("{text:?} is not INDEX/COUNT"))?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
        let (index, count) = (number(index)?, number(count)?);
        if index >= count {
            return Err(format!("shards are counted from 0: {index} is not below {count}"));
        }
        Ok(Self { index, count })
    }
}

/// Runs the command line.
pub fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => seeds::run(&arguments),
        Command::Merge { files } => seeds::merge(&files),
        Command::Sweep(arguments) => single::sweep(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Replay { bundle, seed, suite, engine, jsonl, points } => {
            let options = RunOptions { trace_points: points, ..RunOptions::default() };
            let (engine, plan, lie) = match bundle.as_deref().map(Bundle::load).transpose() {
                Ok(Some(bundle)) => (bundle.engine, bundle.plan, bundle.lie),
                Ok(None) => (engine, Plan::of(suite, seed.unwrap_or_default()), None),
                Err(error) => return unusable(&error),
            };
            let report = run_on(engine, &plan, lie, options);
            let drawn = bundle.is_none();
            print!("{}", failure::replayed(&plan, &report, drawn, jsonl));
            let mut tally = Tally::default();
            tally.add(&plan, &report);
            tally.worst().map_or(ExitCode::SUCCESS, |class| ExitCode::from(class.exit_code()))
        }
        Command::Shrink { bundle, output, max_runs } => failure::shrunk(&bundle, output, max_runs),
        Command::Determinism { seeds: Seeds(seeds) } => determined(&seeds),
        Command::Digests { seeds: Seeds(seeds), engine, alone } => {
            print!("{}", determinism::digests(engine, seeds, alone));
            ExitCode::SUCCESS
        }
    }
}

fn unusable(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(EXIT_ARGUMENTS)
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
        None if !summary.gaps().is_empty() => ExitCode::from(EXIT_VOID),
        None if summary.vacuous() => ExitCode::from(EXIT_VACUOUS),
        None => ExitCode::SUCCESS,
    }
}

fn determined(seeds: &Range<u64>) -> ExitCode {
    for engine in Engine::ALL {
        let count = seeds.end - seeds.start;
        match determinism::compare(*engine, seeds.clone()) {
            Ok(None) => println!(
                "identical on {}: {count} plans, each alone on a thread of its own and in a batch \
                 in another process",
                engine.name()
            ),
            Ok(Some(parting)) => {
                print!("{parting}");
                return ExitCode::from(EXIT_NONDETERMINISM);
            }
            Err(error) => return unusable(&error),
        }
    }
    ExitCode::SUCCESS
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
    fn shards_are_checked_and_together_are_the_whole() {
        for bad in ["", "3", "3/3", "4/3", "a/b", "0/0", "-1/2"] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
        for (seeds, count) in [(3..1_000, 7), (0..5, 8), (0..u64::MAX, 3)] {
            let part = |index| Shard { index, count }.part(&seeds);
            assert_eq!(part(0).start, seeds.start);
            assert_eq!(part(count - 1).end, seeds.end);
            assert!((1..count).all(|index| part(index).start == part(index - 1).end));
        }
    }
}
