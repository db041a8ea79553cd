//! Cutting a failure down to the few steps that matter.
//!
//! Plan and choices are shrunk in turn until neither gives way. A step counts only if the same
//! invariant breaks in the same way; which schedule shows it may change, so each smaller plan is
//! tried with the recorded choices, with none, and with a few seeds of every sampler.

use crate::explore::Sampler;
use crate::plan::Plan;
use crate::plan::strategy::reductions;
use crate::replay::{Bundle, Verdict};

/// Seeds tried per sampler when the recorded choices do not show the failure in a smaller plan.
const SEEDS_PER_SAMPLER: u64 = 6;

/// How far a shrink came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Runs made.
    pub runs: u64,
    /// Steps accepted.
    pub accepted: u64,
    /// Operations left.
    pub operations: u64,
    /// Choices left that are not the quiet one.
    pub choices: usize,
}

/// What a shrink made.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The smaller failure.
    pub bundle: Bundle,
    /// How it breaks.
    pub verdict: Verdict,
    /// What it took.
    pub progress: Progress,
}

struct Shrinker<'a> {
    best: Bundle,
    verdict: Verdict,
    progress: Progress,
    runs_max: u64,
    told: &'a mut dyn FnMut(Progress),
}

/// Shrinks `bundle` with at most `runs_max` runs; `None` if it does not show its failure.
pub fn shrink(bundle: &Bundle, runs_max: u64, told: &mut dyn FnMut(Progress)) -> Option<Shrunk> {
    let report = bundle.run();
    let verdict = bundle.shows(&report)?;
    let mut shrinker = Shrinker {
        best: Bundle::with(&bundle.plan, bundle.lie, &report, &verdict),
        verdict,
        progress: Progress { runs: 1, accepted: 0, operations: 0, choices: 0 },
        runs_max,
        told,
    };
    shrinker.measure();
    loop {
        let before = shrinker.progress.accepted;
        shrinker.plan();
        shrinker.choices();
        if shrinker.progress.accepted == before || shrinker.spent() {
            break;
        }
    }
    let Shrinker { best, verdict, progress, .. } = shrinker;
    Some(Shrunk { bundle: best, verdict, progress })
}

impl Shrinker<'_> {
    fn spent(&self) -> bool {
        self.progress.runs >= self.runs_max
    }

    fn measure(&mut self) {
        self.progress.operations = self.best.plan.size();
        self.progress.choices = self.best.choices();
        (self.told)(self.progress);
    }

    /// Whether exactly this plan, choices included, shows the failure; then it is the best.
    fn accept(&mut self, plan: &Plan) -> bool {
        if self.spent() {
            return false;
        }
        self.progress.runs += 1;
        let candidate = Bundle { plan: plan.clone(), ..self.best.clone() };
        let report = candidate.run();
        let Some(verdict) = candidate.shows(&report) else { return false };
        self.best = Bundle::with(plan, candidate.lie, &report, &verdict);
        self.verdict = verdict;
        self.progress.accepted += 1;
        self.measure();
        true
    }

    /// The same with any schedule that can be found.
    fn accept_somehow(&mut self, plan: &Plan) -> bool {
        if self.accept(plan) || self.accept(&Plan { sampler: Sampler::Fifo, ..plan.clone() }) {
            return true;
        }
        let samplers = [
            Sampler::Random,
            Sampler::Pct { depth: 2 },
            Sampler::Pct { depth: 3 },
            Sampler::Starve,
        ];
        for seed in 0..SEEDS_PER_SAMPLER {
            for sampler in &samplers {
                let tried = Plan { sampler: sampler.clone(), seed, ..plan.clone() };
                if self.accept(&tried) {
                    return true;
                }
            }
        }
        false
    }

    /// Tries every reduction; after one that is accepted, goes on at its place of the new list.
    fn plan(&mut self) {
        let mut candidates = reductions(&self.best.plan);
        let mut next = 0;
        while let Some(plan) = candidates.get(next) {
            if self.spent() {
                return;
            }
            if self.accept_somehow(plan) {
                candidates = reductions(&self.best.plan);
            } else {
                next += 1;
            }
        }
    }

    fn answers(&self) -> Vec<u64> {
        match &self.best.plan.sampler {
            Sampler::Recorded(answers) => answers.clone(),
            _ => Vec::new(),
        }
    }

    fn try_answers(&mut self, answers: Vec<u64>) -> bool {
        let changed = answers != self.answers();
        let sampler = Sampler::Recorded(answers);
        changed && self.accept(&Plan { sampler, ..self.best.plan.clone() })
    }

    fn choices(&mut self) {
        if self.try_answers(Vec::new()) {
            return;
        }
        let mut length = self.answers().len().div_ceil(2);
        while length > 0 {
            let mut start = 0;
            while start < self.answers().len() {
                let mut answers = self.answers();
                let end = (start + length).min(answers.len());
                answers[start..end].fill(0);
                if !self.try_answers(answers) {
                    let mut answers = self.answers();
                    let end = (start + length).min(answers.len());
                    answers.drain(start..end);
                    if self.try_answers(answers) {
                        continue;
                    }
                }
                start += length;
            }
            length /= 2;
        }
        for place in 0..self.answers().len() {
            let mut answers = self.answers();
            if answers.get(place).is_some_and(|answer| *answer > 1) {
                answers[place] = 1;
                self.try_answers(answers);
            }
        }
    }
}
