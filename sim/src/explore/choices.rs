//! Who decides: every choice of a run (next task, fault, random value) comes from one [`Choices`].
//!
//! A choice of a task is asked only when two or more are ready, and answer 0 is first in, first out,
//! so a recorded list is short and a shrunk one mostly zeros.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::rng::Rng;

/// The deepest ordering bug that a PCT run of the default mix aims at.
const PCT_DEPTH_MAX: u64 = 4;

/// Answers the choices of one run.
pub trait Choices: fmt::Debug + Send {
    /// Which of `ready` (task indices in order of arrival, at least two) runs next: an index into
    /// `ready`.
    fn task(&mut self, ready: &[u32]) -> usize;

    /// A value below `width`; 0 is the quiet one (no fault).
    fn value(&mut self, width: u64) -> u64;
}

/// How long a run of this plan size may get. PCT spreads its change points over it, and is blind
/// beyond it, so it is the longest run ever seen, not the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Choices of a task in the longest run.
    pub choices: u64,
    /// Tasks in the longest run.
    pub tasks: u64,
}

/// A way to make choices, as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// First in, first out; no fault.
    Fifo,
    /// Every ready task with the same chance.
    Random,
    /// Probabilistic concurrency testing: random priorities, and `depth - 1` places where the task
    /// that would run falls below all others. A `Point` never demotes.
    Pct {
        /// How many ordering constraints it can meet; at least 1.
        depth: u64,
    },
    /// One task runs only when nothing else can; the others at random.
    Starve,
    /// These answers, then first in, first out.
    Recorded(Vec<u64>),
    /// These bytes, one an answer, then first in, first out.
    Bytes(Vec<u8>),
}

impl Sampler {
    /// Draws from the default mix: 60 % PCT of depth 1 to 4, 20 % random, 20 % starvation
    /// (architecture §2: a random walk collapses as points get finer, PCT does not).
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0..6 => Self::Pct { depth: 1 + rng.below(PCT_DEPTH_MAX) },
            6..8 => Self::Random,
            _ => Self::Starve,
        }
    }

    /// Its name without parameters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Random => "random",
            Self::Pct { .. } => "pct",
            Self::Starve => "starve",
            Self::Recorded(_) => "recorded",
            Self::Bytes(_) => "bytes",
        }
    }

    /// The choices of one run.
    pub fn choices(&self, seed: u64, estimate: Estimate) -> Box<dyn Choices> {
        let mut rng = Rng::split(seed, 0x5c4e_d01e);
        match self {
            Self::Fifo => Box::new(Recorded::default()),
            Self::Random => Box::new(Random { rng }),
            Self::Pct { depth } => {
                // Runs of one size differ tenfold. The longest one ever seen bounds the change
                // points; half of the runs look for them in a shorter, and likelier, part of it.
                let length = estimate.choices >> rng.below(6).saturating_sub(2);
                Box::new(Pct::new(rng, *depth, length))
            }
            Self::Starve => {
                let victim = rng.below(estimate.tasks.max(1));
                Box::new(Starve { rng, victim })
            }
            Self::Recorded(answers) => Box::new(Recorded { answers: answers.clone(), next: 0 }),
            Self::Bytes(bytes) => Box::new(Recorded {
                answers: bytes.iter().map(|byte| u64::from(*byte)).collect(),
                next: 0,
            }),
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index below a length fits")
}

/// Uniform.
#[derive(Debug)]
struct Random {
    rng: Rng,
}

impl Choices for Random {
    fn task(&mut self, ready: &[u32]) -> usize {
        index(self.rng.below(ready.len() as u64))
    }

    fn value(&mut self, width: u64) -> u64 {
        self.rng.below(width)
    }
}

/// Priorities with change points.
#[derive(Debug)]
struct Pct {
    rng: Rng,
    /// By task index; higher runs first. Initial ones have the top bit set.
    priorities: Vec<u64>,
    /// The choices at which the task that would run is demoted, highest first.
    changes: Vec<u64>,
    taken: u64,
}

impl Pct {
    fn new(mut rng: Rng, depth: u64, length: u64) -> Self {
        let mut changes: Vec<_> = (1..depth).map(|_| rng.below(length.max(1))).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        Self { rng, priorities: Vec::new(), changes, taken: 0 }
    }

    fn priority(&mut self, task: u32) -> u64 {
        let task = index(u64::from(task));
        while self.priorities.len() <= task {
            self.priorities.push(self.rng.number() | 1 << 63);
        }
        self.priorities[task]
    }

    fn highest(&mut self, ready: &[u32]) -> usize {
        let mut best = 0;
        for candidate in 1..ready.len() {
            if self.priority(ready[candidate]) > self.priority(ready[best]) {
                best = candidate;
            }
        }
        best
    }
}

impl Choices for Pct {
    fn task(&mut self, ready: &[u32]) -> usize {
        let now = self.taken;
        self.taken += 1;
        while self.changes.last() == Some(&now) {
            self.changes.pop();
            let demoted = self.highest(ready);
            self.priority(ready[demoted]);
            // Later demotions fall below earlier ones.
            self.priorities[index(u64::from(ready[demoted]))] = self.changes.len() as u64;
        }
        self.highest(ready)
    }

    fn value(&mut self, width: u64) -> u64 {
        self.rng.below(width)
    }
}

/// One victim waits for everybody else.
#[derive(Debug)]
struct Starve {
    rng: Rng,
    victim: u64,
}

impl Choices for Starve {
    fn task(&mut self, ready: &[u32]) -> usize {
        let picked = index(self.rng.below(ready.len() as u64));
        if u64::from(ready[picked]) != self.victim {
            return picked;
        }
        (picked + 1) % ready.len()
    }

    fn value(&mut self, width: u64) -> u64 {
        self.rng.below(width)
    }
}

/// A list of answers; an answer that does not fit wraps around the width.
#[derive(Debug, Default)]
struct Recorded {
    answers: Vec<u64>,
    next: usize,
}

impl Choices for Recorded {
    fn task(&mut self, ready: &[u32]) -> usize {
        index(self.value(ready.len() as u64))
    }

    fn value(&mut self, width: u64) -> u64 {
        let answer = self.answers.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        answer.checked_rem(width).unwrap_or(0)
    }
}

/// Depth-first search over every answer of every choice: an odometer of (answer, width).
#[derive(Debug, Default)]
pub struct Exhaustive {
    path: Arc<Mutex<Path>>,
}

#[derive(Debug, Default)]
struct Path {
    digits: Vec<(u64, u64)>,
    depth: usize,
}

impl Exhaustive {
    /// The choices of the next run.
    pub fn choices(&self) -> Box<dyn Choices> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner).depth = 0;
        Box::new(Walk { path: Arc::clone(&self.path) })
    }

    /// Moves on to the next unexplored path; false when there is none left.
    pub fn advance(&mut self) -> bool {
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((answer, width)) = path.digits.pop() {
            if answer + 1 < width {
                path.digits.push((answer + 1, width));
                return true;
            }
        }
        false
    }
}

#[derive(Debug)]
struct Walk {
    path: Arc<Mutex<Path>>,
}

impl Choices for Walk {
    fn task(&mut self, ready: &[u32]) -> usize {
        index(self.value(ready.len() as u64))
    }

    fn value(&mut self, width: u64) -> u64 {
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let depth = path.depth;
        path.depth += 1;
        if let Some((answer, known)) = path.digits.get(depth) {
            assert_eq!(*known, width, "choice {depth} changed its width: not deterministic");
            return *answer;
        }
        path.digits.push((0, width));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTIMATE: Estimate = Estimate { choices: 10, tasks: 3 };

    #[test]
    fn the_default_mix_is_six_two_two() {
        let mut rng = Rng::new(3);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            match Sampler::draw(&mut rng) {
                Sampler::Pct { depth } => {
                    assert!((1..=PCT_DEPTH_MAX).contains(&depth));
                    counts[0] += 1;
                }
                Sampler::Random => counts[1] += 1,
                _ => counts[2] += 1,
            }
        }
        assert!((5_800..6_200).contains(&counts[0]), "{counts:?}");
        assert!((1_800..2_200).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn pct_of_depth_one_never_switches_between_ready_tasks() {
        let mut pct = Sampler::Pct { depth: 1 }.choices(9, ESTIMATE);
        let first = pct.task(&[0, 1, 2]);
        for _ in 0..50 {
            assert_eq!(pct.task(&[0, 1, 2]), first);
        }
    }

    #[test]
    fn pct_of_depth_two_demotes_exactly_once() {
        for seed in 0..20 {
            let mut pct = Sampler::Pct { depth: 2 }.choices(seed, ESTIMATE);
            let picks: Vec<_> = (0..40).map(|_| pct.task(&[0, 1, 2])).collect();
            let changes = picks.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(changes <= 1, "{picks:?}");
        }
    }

    #[test]
    fn a_starved_task_runs_only_when_nothing_else_can() {
        for seed in 0..20 {
            let mut rng = Rng::split(seed, 0x5c4e_d01e);
            let victim = u32::try_from(rng.below(ESTIMATE.tasks)).expect("small");
            let mut starve = Sampler::Starve.choices(seed, ESTIMATE);
            for _ in 0..50 {
                assert_ne!([0, 1, 2][starve.task(&[0, 1, 2])], victim);
            }
        }
    }

    #[test]
    fn a_recorded_list_is_followed_and_then_first_in_first_out() {
        let mut recorded = Sampler::Recorded(vec![2, 7, 1]).choices(0, ESTIMATE);
        assert_eq!(recorded.task(&[0, 1, 2]), 2);
        assert_eq!(recorded.task(&[0, 1, 2]), 1);
        assert_eq!(recorded.value(5), 1);
        assert_eq!(recorded.task(&[0, 1]), 0);
    }

    #[test]
    fn the_odometer_walks_every_path_once() {
        let mut search = Exhaustive::default();
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let mut choices = search.choices();
            let first = choices.value(3);
            let second = choices.value(first + 1);
            assert!(seen.insert((first, second)));
            if !search.advance() {
                break;
            }
        }
        assert_eq!(seen.len(), 6);
    }
}
