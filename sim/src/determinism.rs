//! Is the same plan the same run? Each seed is run twice: in another process, alone on a thread of
//! its own, and here, in a batch on one thread and in the opposite order, so that nothing a process
//! or a thread accumulates can hide. Traces must be equal byte for byte (invariant I28).

use std::fmt;
use std::io;
use std::ops::Range;
use std::process::Command;

use continuable::facts::Fact;
use continuable::points::Point;

use crate::explore::RunOptions;
use crate::plan::Plan;
use crate::run::{Engine, run_on};
use crate::trace::{Entry, Event};

/// Why the comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeterminismError {
    /// The other process could not be run.
    #[error("the second process could not be run: {0}")]
    Spawn(#[from] io::Error),
    /// The other process failed or said something else than digests.
    #[error("the second process answered {0:?}")]
    Answer(String),
}

/// Where two runs of one plan parted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// The engine.
    pub engine: Engine,
    /// The seed.
    pub seed: u64,
    /// The number of the first entry that differs.
    pub entry: usize,
    /// The entry here, as columns.
    pub here: String,
    /// The entry in the other process.
    pub there: String,
    /// The last point that the task of the entry here reached before it.
    pub point: Option<Point>,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, seed, entry, here, there, point } = self;
        let point = point.map_or("before any point", Point::name);
        writeln!(f, "seed {seed} on {engine} parts at entry {entry}, after {point}")?;
        writeln!(f, "  here:  {}\n  there: {}", here.trim_end(), there.trim_end())?;
        writeln!(f, "replay it: cargo sim replay --seed {seed} --engine {engine} --points")
    }
}

/// The digest of each seed's trace, one line a seed: what the second process prints. `alone` runs
/// each on a thread of its own.
pub fn digests(engine: Engine, seeds: Range<u64>, alone: bool) -> String {
    let line = |seed| {
        let digest = if alone {
            std::thread::scope(|scope| {
                scope.spawn(move || digest(engine, seed)).join().expect("a run does not panic")
            })
        } else {
            digest(engine, seed)
        };
        format!("{seed} {digest:016x}\n")
    };
    seeds.map(line).collect()
}

fn digest(engine: Engine, seed: u64) -> u64 {
    run_on(engine, &Plan::of_seed(seed), None, RunOptions::default()).trace.digest()
}

/// Compares every seed of the range; the first parting, if there is one.
///
/// # Errors
///
/// [`DeterminismError`]: the second process could not be used.
pub fn compare(engine: Engine, seeds: Range<u64>) -> Result<Option<Parting>, DeterminismError> {
    let range = format!("{}..{}", seeds.start, seeds.end);
    let arguments = ["digests", "--engine", engine.name(), "--seeds", &range, "--alone"];
    let there = second_process(&arguments)?;
    // Here every run is one of a batch, on a thread that has done all the later ones before.
    let here = std::thread::scope(|scope| {
        let opposite = seeds.clone().rev();
        let work = scope.spawn(move || opposite.map(|seed| (seed, digest(engine, seed))).collect());
        let mut here: Vec<(u64, u64)> = work.join().expect("a run does not panic");
        here.reverse();
        here
    });
    let mut lines = there.lines();
    for (seed, digest) in here {
        let line = lines.next().unwrap_or_default();
        if line != format!("{seed} {digest:016x}") {
            if line.split(' ').next() != Some(&seed.to_string()) {
                return Err(DeterminismError::Answer(line.to_owned()));
            }
            return parting(engine, seed).map(Some);
        }
    }
    Ok(None)
}

fn parting(engine: Engine, seed: u64) -> Result<Parting, DeterminismError> {
    let seed_text = seed.to_string();
    let arguments =
        ["replay", "--seed", &seed_text, "--engine", engine.name(), "--jsonl", "--points"];
    let there = second_process(&arguments)?;
    let options = RunOptions { trace_points: true, ..RunOptions::default() };
    let trace = run_on(engine, &Plan::of_seed(seed), None, options).trace;
    let text = trace.jsonl();
    let pairs = text.lines().zip(there.lines()).enumerate();
    let parted = pairs.clone().find(|(_, (here, there))| here != there);
    let (entry, (_, there)) = parted.unwrap_or((pairs.count(), ("", "(the end)")));
    let here = trace.entries.get(entry);
    let actor = here.map(|entry| &entry.actor);
    let point =
        trace.entries[..entry.min(trace.entries.len())].iter().rev().find_map(|entry| match &entry
            .event
        {
            Event::Fact(Fact::PointReached { point }) if Some(&entry.actor) == actor => {
                Some(*point)
            }
            _ => None,
        });
    let here = here.map_or_else(|| "(the end)".to_owned(), Entry::columns);
    Ok(Parting { engine, seed, entry, here, there: there.to_owned(), point })
}

fn second_process(arguments: &[&str]) -> Result<String, DeterminismError> {
    let output = Command::new(std::env::current_exe()?).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(DeterminismError::Answer(said));
    }
    Ok(text)
}
