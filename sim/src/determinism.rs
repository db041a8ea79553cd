//! Is the same plan the same run? Each seed is run twice: in another process, one after the other,
//! and here, on a thread of another age and in the opposite order, so that nothing a process or a
//! thread accumulates can hide. Traces must be equal byte for byte (invariant I28).

use std::io;
use std::ops::Range;
use std::process::Command;

use crate::explore::RunOptions;
use crate::plan::Plan;
use crate::run::run;

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
    /// The seed.
    pub seed: u64,
    /// The number of the first entry that differs.
    pub entry: usize,
    /// That entry here.
    pub here: String,
    /// That entry in the other process.
    pub there: String,
}

/// The digest of each seed's trace, one line a seed: what the second process prints.
pub fn digests(seeds: Range<u64>) -> String {
    seeds.map(|seed| format!("{seed} {:016x}\n", digest(seed))).collect()
}

fn digest(seed: u64) -> u64 {
    run(&Plan::of_seed(seed), None, RunOptions::default()).trace.digest()
}

/// Compares every seed of the range; the first parting, if there is one.
///
/// # Errors
///
/// [`DeterminismError`]: the second process could not be used.
pub fn compare(seeds: Range<u64>) -> Result<Option<Parting>, DeterminismError> {
    let range = format!("{}..{}", seeds.start, seeds.end);
    let there = second_process(&["digests", "--seeds", &range])?;
    let here = std::thread::scope(|scope| {
        let opposite = seeds.clone().rev();
        let work = scope.spawn(move || opposite.map(|seed| (seed, digest(seed))).collect());
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
            return parting(seed).map(Some);
        }
    }
    Ok(None)
}

fn parting(seed: u64) -> Result<Parting, DeterminismError> {
    let there = second_process(&["replay", "--seed", &seed.to_string(), "--jsonl"])?;
    let here = run(&Plan::of_seed(seed), None, RunOptions::default()).trace.jsonl();
    let mut pairs = here.lines().zip(there.lines()).enumerate();
    let (entry, (here, there)) =
        pairs.find(|(_, (here, there))| here != there).unwrap_or((0, ("(the end)", "(the end)")));
    Ok(Parting { seed, entry, here: here.to_owned(), there: there.to_owned() })
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
