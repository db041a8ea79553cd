//! The bytes of a fuzzer as a run: a header that draws the plan, then one byte for each choice.
//!
//! | bytes | mean |
//! |---|---|
//! | 0 | the engine (top bit) and the suite (the rest, modulo their number) |
//! | 1 to 8 | the plan's seed, least significant byte first |
//! | 9 and on | the answers of the choices, one each; those that run out are 0, the quiet one |
//!
//! Every byte string is a run, and bytes that are missing are zeros, so that a fuzzer's mutations
//! are never lost on a format. An answer wider than its choice wraps around. An input is for today,
//! as a seed is: tomorrow's generator draws another plan of it. What one of them breaks is kept as a
//! [`Bundle`].

use continuable::points::Point;

use crate::explore::{RunOptions, Sampler};
use crate::plan::{Plan, Suite};
use crate::replay::{Bundle, Verdict};
use crate::run::{Engine, RunReport, run_on};
use crate::trace::LEGEND;

/// The bytes before the choices.
pub const HEADER_BYTES: usize = 9;
/// How many choices are read; far more than the longest run asks for.
pub const CHOICES_MAX: usize = 16_384;
/// The bit of the first byte that picks the world engine.
const WORLD: u8 = 0x80;
/// How many entries of a failing trace are shown.
const SHOWN: usize = 40;

/// One input of the fuzz target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The engine.
    pub engine: Engine,
    /// The suite that the plan is drawn from.
    pub suite: Suite,
    /// The seed of the plan.
    pub seed: u64,
    /// The answers of its choices, at most [`CHOICES_MAX`].
    pub choices: Vec<u8>,
}

/// Why a run is no input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// An answer is wider than a byte.
    #[error("the answer of choice {choice} is {answer}, which is no byte")]
    Wide {
        /// Which choice, counted from 0.
        choice: usize,
        /// Its answer.
        answer: u64,
    },
    /// It made more choices than an input holds.
    #[error("the run made {0} choices; an input holds {CHOICES_MAX}")]
    Long(usize),
}

/// What an input broke.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// An invariant.
    #[error(
        "{}: {}\nseen: {} (entry {}, engine {}, suite {}, seed {})\n{LEGEND}\n{story}",
        .verdict.invariant, .verdict.sentence, .verdict.violation.text, .verdict.violation.at,
        .bundle.engine, .bundle.plan.suite, .bundle.plan.seed
    )]
    Invariant {
        /// Which, and how.
        verdict: Verdict,
        /// The last entries about it.
        story: String,
        /// The run, to be kept.
        bundle: Box<Bundle>,
    },
    /// Something outlived its run: a reference cycle.
    #[error("something outlived its run (engine {engine}, suite {suite}, seed {seed})")]
    Leaked {
        /// The engine.
        engine: Engine,
        /// The suite.
        suite: Suite,
        /// The seed.
        seed: u64,
    },
}

impl Input {
    /// The input that `bytes` are; every byte string is one.
    pub fn decode(bytes: &[u8]) -> Self {
        let (header, choices) = bytes.split_at(bytes.len().min(HEADER_BYTES));
        let first = header.first().copied().unwrap_or(0);
        let mut seed = [0; 8];
        for (to, from) in seed.iter_mut().zip(header.iter().skip(1)) {
            *to = *from;
        }
        Self {
            engine: if first & WORLD == 0 { Engine::Explore } else { Engine::World },
            suite: Suite::ALL[usize::from(first & !WORLD) % Suite::ALL.len()],
            seed: u64::from_le_bytes(seed),
            choices: choices[..choices.len().min(CHOICES_MAX)].to_vec(),
        }
    }

    /// The bytes that decode to it.
    pub fn encode(&self) -> Vec<u8> {
        let suite = Suite::ALL.iter().position(|suite| *suite == self.suite);
        let suite = suite.and_then(|place| u8::try_from(place).ok());
        let suite = suite.expect("every suite is listed, and there are few");
        let engine = match self.engine {
            Engine::Explore => 0,
            Engine::World => WORLD,
        };
        let mut bytes = vec![engine | suite];
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(&self.choices);
        bytes
    }

    /// The input that makes the choices of `report` again, a run of the plan of `seed` in `suite`.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: the choices do not fit an input.
    pub fn recorded(suite: Suite, seed: u64, report: &RunReport) -> Result<Self, RecordError> {
        let quiet = report.answers.iter().rev().take_while(|answer| **answer == 0).count();
        let answers = &report.answers[..report.answers.len() - quiet];
        if answers.len() > CHOICES_MAX {
            return Err(RecordError::Long(answers.len()));
        }
        let byte = |(choice, answer): (usize, &u64)| {
            u8::try_from(*answer).map_err(|_| RecordError::Wide { choice, answer: *answer })
        };
        let choices = answers.iter().enumerate().map(byte).collect::<Result<_, _>>()?;
        Ok(Self { engine: report.engine, suite, seed, choices })
    }

    /// Its plan: the seed's, with the input's choices.
    pub fn plan(&self) -> Plan {
        let sampler = Sampler::Bytes(self.choices.clone());
        Plan { sampler, ..Plan::of(self.suite, self.seed) }
    }

    /// Runs it and judges the run by every invariant.
    ///
    /// # Errors
    ///
    /// [`Broken`]: what did not hold first.
    pub fn judge(&self) -> Result<RunReport, Broken> {
        let plan = self.plan();
        let report = run_on(self.engine, &plan, None, RunOptions::default());
        match Verdict::first(&report) {
            Some(verdict) => Err(Broken::of(&plan, &report, verdict)),
            None if report.leaked => {
                Err(Broken::Leaked { engine: self.engine, suite: self.suite, seed: self.seed })
            }
            None => Ok(report),
        }
    }
}

impl Broken {
    /// How `report`, a run of `plan`, broke what `verdict` says.
    fn of(plan: &Plan, report: &RunReport, verdict: Verdict) -> Self {
        let story = report.trace.story(verdict.violation.at, SHOWN);
        let bundle = Box::new(Bundle::with(plan, None, report, &verdict));
        Self::Invariant { verdict, story, bundle }
    }
}

/// What a run reached that a corpus can name: the points, and the dangers of the invariants.
pub fn reached(report: &RunReport) -> Vec<&'static str> {
    let points = Point::ALL.iter().zip(&report.points);
    let points = points.filter(|(_, count)| **count > 0).map(|(point, _)| point.name());
    let dangers = report.judge().into_iter().flat_map(|(_, finding)| finding.met);
    points.chain(dangers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::Lie;

    fn input(engine: Engine, choices: &[u8]) -> Input {
        Input { engine, suite: Suite::Recovery, seed: 0x0102_0304, choices: choices.to_vec() }
    }

    #[test]
    fn every_length_of_bytes_is_an_input_and_missing_bytes_are_zeros() {
        let nothing = Input::decode(&[]);
        assert_eq!(nothing, Input::decode(&[0; HEADER_BYTES]));
        assert_eq!((nothing.suite, nothing.seed), (Suite::ALL[0], 0));
        for length in 0..2 * HEADER_BYTES {
            let bytes = vec![0xff; length];
            let decoded = Input::decode(&bytes);
            assert_eq!(decoded.choices.len(), length.saturating_sub(HEADER_BYTES));
            let mut padded = bytes;
            padded.resize(length.max(HEADER_BYTES), 0);
            assert_eq!(decoded, Input::decode(&padded));
        }
        let huge = Input::decode(&vec![7; 1 << 20]);
        assert_eq!(huge.choices.len(), CHOICES_MAX);
    }

    #[test]
    fn the_first_byte_reaches_every_suite_on_both_engines() {
        let all: std::collections::BTreeSet<_> = (0..=u8::MAX)
            .map(|first| Input::decode(&[first]))
            .map(|input| (input.engine, input.suite))
            .collect();
        assert_eq!(all.len(), 2 * Suite::ALL.len());
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        for suite in Suite::ALL {
            for engine in Engine::ALL {
                for choices in [&[][..], &[0], &[1, 0, 255], &[3; CHOICES_MAX]] {
                    let input = Input { suite: *suite, ..input(*engine, choices) };
                    assert_eq!(Input::decode(&input.encode()), input);
                }
            }
        }
        let bytes = input(Engine::World, &[9]).encode();
        assert_eq!(bytes, [0x84, 4, 3, 2, 1, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn odd_bytes_run_and_run_the_same_again() {
        for bytes in [&[][..], &[0xff], &[0xff; 40], &[5; 9], &[2; 3_000], &[0x89; 200]] {
            let once = || Input::decode(bytes).judge().map_err(|broken| broken.to_string());
            let (first, second) = (once().expect("it holds"), once().expect("it holds"));
            assert_eq!(first.trace.digest(), second.trace.digest());
            assert!(!reached(&first).is_empty());
        }
    }

    #[test]
    fn a_recorded_run_is_made_again_by_its_input() {
        let mut made = 0;
        for engine in Engine::ALL {
            for seed in 0..12 {
                let plan = Plan::of(Suite::Steering, seed);
                let report = run_on(*engine, &plan, None, RunOptions::default());
                let Ok(input) = Input::recorded(Suite::Steering, seed, &report) else { continue };
                let again = Input::decode(&input.encode()).judge().expect("it holds");
                assert_eq!(again.trace.digest(), report.trace.digest(), "{engine} {seed}");
                made += 1;
            }
        }
        assert!(made > 6, "only {made} runs fit an input");
    }

    #[test]
    fn choices_that_do_not_fit_are_refused() {
        let mut report = Input::decode(&[]).judge().expect("it holds");
        report.answers = vec![0, 256, 0];
        let refused = |report: &RunReport| Input::recorded(Suite::Steering, 1, report);
        assert_eq!(refused(&report), Err(RecordError::Wide { choice: 1, answer: 256 }));
        report.answers = vec![1; CHOICES_MAX + 1];
        assert_eq!(refused(&report), Err(RecordError::Long(CHOICES_MAX + 1)));
        report.answers = vec![1, 0, 0];
        assert_eq!(refused(&report).map(|input| input.choices), Ok(vec![1]));
    }

    #[test]
    fn a_failure_says_what_broke_and_carries_a_bundle_that_shows_it() {
        let lie = Lie::Dispose;
        let (verdict, plan, report) = (0..50)
            .find_map(|seed| {
                let plan = Input { seed, ..input(Engine::Explore, &[]) }.plan();
                let report = run_on(Engine::Explore, &plan, Some(lie), RunOptions::default());
                Some((Verdict::first(&report)?, plan, report))
            })
            .expect("a canary is caught");
        let broken = Broken::of(&plan, &report, verdict.clone());
        let text = broken.to_string();
        assert!(
            text.starts_with(&format!("{}: {}", verdict.invariant, verdict.sentence)),
            "{text}"
        );
        assert!(
            text.contains(&verdict.violation.text) && text.contains("suite recovery"),
            "{text}"
        );
        let Broken::Invariant { bundle, .. } = broken else { panic!("{text}") };
        let lying = Bundle { lie: Some(lie), ..*bundle };
        assert!(lying.shows(&lying.run()).is_some());
    }
}
