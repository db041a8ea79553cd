//! Running ranges of seeds: over suites, engines, threads and shards.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::{FAILURES, Seeds, Shard, cores, exit_code, unusable};
use crate::canary::Lie;
use crate::explore::RunOptions;
use crate::invariants;
use crate::plan::{Plan, Suite};
use crate::replay::Bundle;
use crate::report::{Canary, Part, Summary};
use crate::run::{Engine, run_on};
use crate::tally::Tally;

/// The seeds of a run without arguments.
const DEFAULT_SEEDS: Seeds = Seeds(0..30_000);
/// A run without arguments ends by itself after this long, whatever the machine.
const DEFAULT_LIMIT: Duration = Duration::from_secs(45);
/// How many seeds a thread takes at a time.
const BLOCK: u64 = 16;
/// How many seeds a canary may live.
const CANARY_SEEDS: u64 = 200;

/// What `sim run` is told.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// The suites; `everything` without one.
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Which seeds, as FIRST..END; without it, a run that ends by itself in under a minute.
    #[arg(long)]
    seeds: Option<Seeds>,
    /// Which engines; by default all of them. The world engine, where every plan has a network,
    /// takes the first tenth of the seeds unless it is named.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Run one part of the seeds: INDEX/COUNT, counted from 0.
    #[arg(long)]
    shard: Option<Shard>,
    /// Threads; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Print one JSON object a line for each suite and engine, for `sim merge`.
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    /// Where the bundles of failures go.
    #[arg(long, default_value = FAILURES)]
    bundle_dir: PathBuf,
}

/// Runs what was asked for.
pub(super) fn run(arguments: &RunArguments) -> ExitCode {
    let limit = arguments.seeds.is_none().then_some(DEFAULT_LIMIT);
    let Seeds(all) = arguments.seeds.clone().unwrap_or(DEFAULT_SEEDS);
    let jobs = arguments.jobs.unwrap_or_else(cores).max(1);
    let suites = match arguments.suites.as_slice() {
        [] => &[Suite::Everything][..],
        suites => suites,
    };
    let engines = arguments.engine.as_ref().map_or(Engine::ALL, std::slice::from_ref);
    let mut batches = Vec::new();
    for suite in suites {
        for engine in engines {
            let seeds = if arguments.engine.is_none() { engine.share(&all) } else { all.clone() };
            let (whole, shard) = (seeds.clone(), arguments.shard);
            let seeds = shard.map_or(seeds, |shard| shard.part(&whole));
            batches.push(Batch { engine: *engine, suite: *suite, seeds, whole });
        }
    }
    let summary = run_batches(&batches, jobs, limit);
    let kept = keep_bundles(&summary, &arguments.bundle_dir);
    if arguments.json {
        println!("{:#}", summary.json());
    } else if arguments.json_lines {
        print!("{}", summary.json_lines());
    } else {
        print!("{}{kept}", summary.text());
    }
    exit_code(&summary)
}

/// Adds up what shards printed.
pub(super) fn merge(files: &[PathBuf]) -> ExitCode {
    let mut summary = Summary { merged: true, ..Summary::default() };
    for file in files {
        if let Err(error) = read_lines(file, &mut summary) {
            return unusable(&error);
        }
    }
    print!("{}", summary.text());
    exit_code(&summary)
}

/// Why a file of a shard was not read.
#[derive(Debug, thiserror::Error)]
enum MergeError {
    #[error("{path}: it cannot be read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}:{line}: it is no line of `sim run --json-lines`: {source}")]
    Malformed { path: PathBuf, line: usize, source: serde_json::Error },
}

fn read_lines(path: &Path, summary: &mut Summary) -> Result<(), MergeError> {
    let text = fs::read_to_string(path)
        .map_err(|source| MergeError::Read { path: path.to_owned(), source })?;
    for (number, line) in (1..).zip(text.lines()) {
        let part: Part = serde_json::from_str(line).map_err(|source| MergeError::Malformed {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        summary.add(part);
    }
    Ok(())
}

/// One suite on one engine.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// The engine.
    pub engine: Engine,
    /// The suite.
    pub suite: Suite,
    /// The seeds.
    pub seeds: Range<u64>,
    /// The seeds of all shards together.
    pub whole: Range<u64>,
}

fn run_batches(batches: &[Batch], jobs: usize, limit: Option<Duration>) -> Summary {
    let began = Instant::now();
    let mut summary = Summary::default();
    for (number, batch) in (1_u32..).zip(batches) {
        // Each batch has its share of the time.
        let count = u32::try_from(batches.len()).unwrap_or(u32::MAX);
        let until = limit.map(|limit| began + limit / count * number);
        summary.add(run_batch(batch, jobs, until));
    }
    summary
}

/// Runs one batch on `jobs` threads.
pub(super) fn run_batch(batch: &Batch, jobs: usize, until: Option<Instant>) -> Part {
    let began = Instant::now();
    let Batch { engine, suite, seeds, whole } = batch;
    let lies = Lie::ALL.iter();
    let canaries = lies.map(|lie| (*lie, canary(*lie, *engine, *suite, seeds.start))).collect();
    let next = AtomicU64::new(seeds.start);
    let cut_short = AtomicBool::new(false);
    let worker = || {
        let mut tally = Tally::default();
        loop {
            let first = next.fetch_add(BLOCK, Ordering::Relaxed);
            if first >= seeds.end {
                return tally;
            }
            if until.is_some_and(|until| Instant::now() > until) {
                cut_short.store(true, Ordering::Relaxed);
                return tally;
            }
            for seed in first..seeds.end.min(first.saturating_add(BLOCK)) {
                let plan = Plan::of(*suite, seed);
                tally.add(&plan, &run_on(*engine, &plan, None, RunOptions::default()));
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
    Part {
        engine: *engine,
        suite: *suite,
        seeds: (seeds.start, seeds.end),
        whole: (whole.start, whole.end),
        tally,
        canaries,
        seconds: began.elapsed().as_secs_f64(),
        jobs,
        cut_short: cut_short.into_inner(),
    }
}

/// Runs plans with one lying part until its invariant catches it.
fn canary(lie: Lie, engine: Engine, suite: Suite, first: u64) -> Canary {
    let invariant = invariants::named(lie.caught_by()).expect("a lie names a listed invariant");
    let caught_at = (first..first.saturating_add(CANARY_SEEDS)).find(|seed| {
        let plan = Plan::of(suite, *seed);
        let report = run_on(engine, &plan, Some(lie), RunOptions::default());
        !invariant.check(&report.trace).violations.is_empty()
    });
    Canary { invariant: invariant.id.to_owned(), caught_at }
}

/// Writes a bundle for the first failure of each invariant, and says how to go on.
fn keep_bundles(summary: &Summary, directory: &Path) -> String {
    let mut text = String::new();
    let mut kept: Vec<&str> = Vec::new();
    for failure in &summary.tally.failures {
        if kept.contains(&failure.invariant.as_str()) {
            continue;
        }
        kept.push(&failure.invariant);
        let plan = Plan::of(failure.suite, failure.seed);
        let report = run_on(failure.engine, &plan, None, RunOptions::default());
        let Some(bundle) = Bundle::on(&failure.invariant, &plan, &report) else { continue };
        let (suite, engine) = (failure.suite.name(), failure.engine.name());
        let name = format!("{engine}-{suite}-{}-{}.json", failure.seed, failure.invariant);
        let path = directory.join(name);
        let _ = match bundle.save(&path) {
            Ok(()) => writeln!(
                text,
                "cut it down: cargo sim shrink {0}\nreplay it: cargo sim replay {0}",
                path.display()
            ),
            Err(error) => writeln!(
                text,
                "{error}\nreplay it: cargo sim replay --seed {} --suite {suite} --engine {engine}",
                failure.seed
            ),
        };
    }
    text
}

impl Engine {
    /// Every engine that a run uses by default.
    pub const ALL: &'static [Self] = &[Self::Explore, Self::World];

    /// Its share of `seeds` where both engines take part.
    fn share(self, seeds: &Range<u64>) -> Range<u64> {
        match self {
            Self::Explore => seeds.clone(),
            Self::World => seeds.start..seeds.start + (seeds.end - seeds.start).div_ceil(10),
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().map_or("", |value| {
            debug_assert_eq!(value.get_name(), self.name());
            self.name()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seeds: Range<u64>) -> Batch {
        let (engine, suite, whole) = (Engine::Explore, Suite::Everything, seeds.clone());
        Batch { engine, suite, seeds, whole }
    }

    #[test]
    fn every_lie_is_caught_at_once() {
        for lie in Lie::ALL {
            let caught = canary(*lie, Engine::Explore, Suite::Everything, 0).caught_at;
            assert!(caught.is_some_and(|seed| seed < 20), "{lie:?} lived until {caught:?}");
        }
    }

    #[test]
    fn the_sum_does_not_depend_on_the_number_of_threads() {
        let text = |jobs| {
            let mut part = run_batch(&batch(0..120), jobs, None);
            (part.seconds, part.jobs) = (0.0, 0);
            serde_json::to_string(&part).expect("plain data")
        };
        assert_eq!(text(1), text(3));
    }

    #[test]
    fn merged_shards_are_the_whole() {
        let mut whole = Summary::default();
        whole.add(run_batch(&batch(0..90), 1, None));
        let mut merged = Summary { merged: true, ..Summary::default() };
        for index in 0..3 {
            let seeds = Shard { index, count: 3 }.part(&(0..90));
            let shard = Batch { whole: 0..90, ..batch(seeds) };
            let line = serde_json::to_string(&run_batch(&shard, 1, None));
            let line = line.expect("plain data");
            merged.add(serde_json::from_str(&line).expect("it parses back"));
        }
        let plain = |summary: &Summary| serde_json::to_value(&summary.tally).expect("plain data");
        assert_eq!(plain(&merged), plain(&whole));
        assert_eq!(merged.gaps(), Vec::<String>::new());
    }

    #[test]
    fn a_sum_knows_which_shards_are_missing_or_twice_in_it() {
        let part = run_batch(&Batch { whole: 0..5, ..batch(0..1) }, 1, None);
        let gaps = |shards: &[(u64, u64)]| {
            let mut summary = Summary { merged: true, ..Summary::default() };
            shards.iter().for_each(|seeds| summary.add(Part { seeds: *seeds, ..part.clone() }));
            summary.gaps()
        };
        assert!(gaps(&[(2, 5), (0, 2)]).is_empty());
        // Eight shards of five seeds.
        let part_of = |index| Shard { index, count: 8 }.part(&(0..5));
        let eight: Vec<_> = (0..8).map(part_of).map(|seeds| (seeds.start, seeds.end)).collect();
        assert!(gaps(&eight).is_empty(), "{eight:?}");
        assert_eq!(gaps(&[(0, 2)]), ["seeds 2..5 of everything on explore ran in no part"]);
        assert_eq!(gaps(&[(2, 5)]), ["seeds 0..2 of everything on explore ran in no part"]);
        assert_eq!(
            gaps(&[(4, 5), (0, 3), (1, 2)]),
            [
                "seeds 1..2 of everything on explore ran in two parts",
                "seeds 3..4 of everything on explore ran in no part"
            ]
        );
    }

    #[test]
    fn the_first_seeds_of_every_suite_pass() {
        for suite in Suite::ALL {
            let mut summary = Summary::default();
            summary.add(run_batch(&Batch { suite: *suite, ..batch(0..100) }, 1, None));
            assert_eq!(summary.tally.failed, 0, "{}", summary.text());
            assert!(summary.canary_caught(), "{suite}");
        }
    }
}
