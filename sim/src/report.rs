//! The terminal summary of a sweep, and its JSON form.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use continuable::points::Point;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canary::Lie;
use crate::faults::{KINDS, NETWORK_KINDS};
use crate::invariants;
use crate::plan::Suite;
use crate::run::Engine;
use crate::tally::{Failure, Tally};

/// From so many plans on every danger must have been met. The rarest is met in one of 7,000.
pub const DANGERS_DUE_PLANS: u64 = 80_000;

/// From so many plans of the world engine on, every fault of the network must have been met, and
/// every way in which a person's operation can end.
const WORLD_DUE_PLANS: u64 = 8_000;

/// Invariants whose dangers only the world engine meets.
const WORLD_INVARIANTS: &[&str] = &["P15"];

/// The ways in which a person's operation can end.
const PEOPLE: &[&str] = &["sent", "killed", "refused", "gave up", "lost"];

/// How a canary fared.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Canary {
    /// The invariant that had to catch it.
    pub invariant: String,
    /// The seed whose run caught it; `None` if it lived.
    pub caught_at: Option<u64>,
}

/// What one suite on one engine says; one line of `sim run --json-lines`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// The engine.
    pub engine: Engine,
    /// The suite.
    pub suite: Suite,
    /// The first seed and the one after the last.
    pub seeds: (u64, u64),
    /// The same of all shards together; its own seeds if it is no shard.
    pub whole: (u64, u64),
    /// The sum of the runs.
    pub tally: Tally,
    /// Each lie and how it fared.
    pub canaries: Vec<(Lie, Canary)>,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Threads.
    pub jobs: usize,
    /// Whether it ended at its time limit, before its last seed.
    pub cut_short: bool,
}

/// Everything a run says: the sum of its parts.
#[derive(Debug, Default)]
pub struct Summary {
    /// The parts, without their tallies' failures.
    pub parts: Vec<Part>,
    /// The sum of all runs.
    pub tally: Tally,
    /// Whether it is the sum of shards, which must be all there.
    pub merged: bool,
}

impl Summary {
    /// Adds a part.
    pub fn add(&mut self, part: Part) {
        self.tally.merge(part.tally.clone());
        self.parts.push(part);
    }

    /// Whether every lie was caught in every part that ran; a sweep that missed one is void.
    pub fn canary_caught(&self) -> bool {
        let mut canaries = self.parts.iter().flat_map(|part| &part.canaries);
        canaries.all(|(_, canary)| canary.caught_at.is_some())
    }

    /// Whether the run was large enough to meet everything its suites are after and did not: its
    /// green tests less than it says.
    pub fn vacuous(&self) -> bool {
        !self.missed().is_empty()
    }

    /// What keeps merged shards from being whole sweeps: the seeds that none ran, since the shard is
    /// missing, and those that two ran.
    pub fn gaps(&self) -> Vec<String> {
        if !self.merged {
            return Vec::new();
        }
        let mut sweeps: BTreeMap<_, Vec<(u64, u64)>> = BTreeMap::new();
        for Part { engine, suite, whole, seeds, .. } in &self.parts {
            sweeps.entry((*engine, *suite, *whole)).or_default().push(*seeds);
        }
        let mut gaps = Vec::new();
        for ((engine, suite, (first, end)), mut parts) in sweeps {
            // Where there are more shards than seeds, some are empty.
            parts.retain(|(start, stop)| start < stop);
            parts.sort_unstable();
            let mut next = first;
            for (start, stop) in parts.into_iter().chain([(end, end)]) {
                let (low, high, times) = match start.cmp(&next) {
                    Ordering::Greater => (next, start, "in no part"),
                    Ordering::Less => (start, next.min(stop), "in two parts"),
                    Ordering::Equal => (next, next, ""),
                };
                if low < high {
                    gaps.push(format!("seeds {low}..{high} of {suite} on {engine} ran {times}"));
                }
                next = next.max(stop);
            }
        }
        gaps
    }

    /// How many plans of each suite ran on `engine`.
    fn plans_on(&self, engine: Engine) -> BTreeMap<Suite, u64> {
        let mut plans: BTreeMap<Suite, u64> = BTreeMap::new();
        for part in self.parts.iter().filter(|part| part.engine == engine) {
            *plans.entry(part.suite).or_default() += part.tally.plans;
        }
        plans
    }

    /// What runs of these suites had to meet and did not, once they are large enough.
    fn missed(&self) -> Vec<String> {
        let plans = self.plans_on(Engine::Explore);
        let large = plans.iter().filter(|(_, plans)| **plans >= DANGERS_DUE_PLANS);
        let large: Vec<_> = large.map(|(suite, _)| *suite).collect();
        let whole = large.contains(&Suite::Everything);
        let world = self.plans_on(Engine::World).get(&Suite::Everything).copied();
        let world = world.is_some_and(|plans| plans >= WORLD_DUE_PLANS);
        let due = |id: &str| {
            if WORLD_INVARIANTS.contains(&id) {
                return world;
            }
            whole || large.iter().any(|suite| suite.after().contains(&id))
        };
        let dangers = self.tally.dangers_missed().into_iter().filter(|(id, _)| due(id));
        let mut missed: Vec<_> =
            dangers.map(|(id, danger)| format!("never met: {id}: {danger}")).collect();
        let faults = |kinds| {
            let kinds = self.tally.faults_missed(kinds).into_iter();
            kinds.map(|kind| format!("never injected: {kind}"))
        };
        if whole {
            missed.extend(faults(KINDS));
            let points = self.tally.points_missed().into_iter();
            missed.extend(points.map(|point| format!("never reached: {point}")));
        }
        if world {
            missed.extend(faults(NETWORK_KINDS));
            let words = PEOPLE.iter().filter(|word| !self.tally.people.contains_key(**word));
            missed.extend(words.map(|word| format!("never told to a person: {word}")));
        }
        missed
    }

    fn seconds(&self) -> f64 {
        self.parts.iter().map(|part| part.seconds).sum()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.figures(&mut text);
        self.invariants(&mut text);
        self.warnings(&mut text);
        for failure in &self.tally.failures {
            failed(&mut text, failure);
        }
        self.verdict(&mut text);
        text
    }

    fn figures(&self, text: &mut String) {
        let tally = &self.tally;
        let each = |counts: &BTreeMap<String, u64>| {
            let parts: Vec<_> = counts.iter().map(|(word, n)| format!("{n} {word}")).collect();
            parts.join(", ")
        };
        let rate = tally.plans as f64 / self.seconds().max(0.001);
        let hours = tally.virtual_ms / 3_600_000;
        let minutes = tally.virtual_ms / 60_000 % 60;
        for part in &self.parts {
            let Part { engine, suite, seeds: (first, end), seconds, jobs, tally, .. } = part;
            let _ = writeln!(
                text,
                "{:<18}{} plans of seeds {first}..{end} on {engine}, {seconds:.1} s on {jobs} threads",
                suite.name(),
                tally.plans,
            );
        }
        let rows = [
            ("plans", tally.plans.to_string()),
            ("operations", tally.operations.to_string()),
            ("activations", tally.activations.to_string()),
            ("tasks", each(&tally.tasks)),
            ("restarts", tally.restarts.to_string()),
            ("people", each(&tally.people)),
            ("shared by two", each(&tally.shared)),
            ("samplers", each(&tally.samplers)),
            ("points hit", format!("{} of {}", tally.points_hit(), Point::ALL.len())),
            ("facts", tally.facts.to_string()),
            ("polls", tally.polls.to_string()),
            ("virtual time", format!("{hours} h {minutes:02} min")),
            ("wall time", format!("{:.1} s", self.seconds())),
            ("plans per second", format!("{rate:.0}")),
            ("longest runs", self.longest()),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<18}{value}");
        }
    }

    fn longest(&self) -> String {
        let classes = self.tally.longest.iter().map(|(class, longest)| {
            format!("size {class}: {} choices, {} tasks", longest.choices, longest.tasks)
        });
        classes.collect::<Vec<_>>().join("; ")
    }

    fn invariants(&self, text: &mut String) {
        let _ = writeln!(text, "\ninvariant   tested  broken  dangers met (in how many runs)");
        for invariant in invariants::ALL {
            let Some(fared) = self.tally.invariants.get(invariant.id) else { continue };
            let dangers: Vec<_> = invariant
                .dangers
                .iter()
                .map(|danger| format!("{danger}: {}", fared.dangers.get(*danger).unwrap_or(&0)))
                .collect();
            let _ = writeln!(
                text,
                "{:<8}{:>10}{:>8}  {}",
                invariant.id,
                fared.tested,
                fared.broken,
                dangers.join("; ")
            );
        }
        let faults: Vec<_> =
            self.tally.faults.iter().map(|(kind, runs)| format!("{kind}: {runs}")).collect();
        let _ = writeln!(text, "faults met (in how many runs): {}\n", faults.join("; "));
    }

    fn warnings(&self, text: &mut String) {
        for gap in self.gaps() {
            let _ = writeln!(text, "INCOMPLETE: {gap}");
        }
        for missed in self.missed() {
            let _ = writeln!(text, "{missed}");
        }
        for (class, longest) in &self.tally.longest {
            if longest.choices > longest.choices_estimated
                || longest.tasks > longest.tasks_estimated
            {
                let _ = writeln!(
                    text,
                    "size class {class} outgrew its estimate of {} choices and {} tasks: raise \
                     plan::LONGEST",
                    longest.choices_estimated, longest.tasks_estimated
                );
            }
        }
        if self.parts.iter().any(|part| part.cut_short) {
            let _ = writeln!(text, "stopped at the time limit, before the last seed");
        }
    }

    fn verdict(&self, text: &mut String) {
        for part in &self.parts {
            for (lie, canary) in &part.canaries {
                let place = format!("{} on {}", part.suite, part.engine);
                let _ = match canary.caught_at {
                    Some(seed) => writeln!(
                        text,
                        "canary caught: {lie:?} lie, by {} at seed {seed} of {place}",
                        canary.invariant
                    ),
                    None => writeln!(text, "CANARY MISSED: {lie:?} lie in {place}: it is void"),
                };
            }
        }
        let tally = &self.tally;
        let _ = if tally.failed == 0 && !self.gaps().is_empty() {
            writeln!(text, "INCOMPLETE ({} plans are not the whole sweep)", tally.plans)
        } else if self.vacuous() && tally.failed == 0 {
            writeln!(text, "VACUOUS ({} plans met too little: see \"never met\")", tally.plans)
        } else if tally.failed == 0 {
            writeln!(text, "PASSED ({} plans)", tally.plans)
        } else {
            writeln!(
                text,
                "FAILED ({} of {} plans, {} of them leaked)",
                tally.failed, tally.plans, tally.leaked
            )
        };
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let points: serde_json::Map<_, _> = Point::ALL
            .iter()
            .zip(&self.tally.points)
            .map(|(point, count)| (point.name().to_owned(), json!(count)))
            .collect();
        json!({
            "canaryCaught": self.canary_caught(),
            "gaps": self.gaps(),
            "missed": self.missed(),
            "points": points,
            "seconds": self.seconds(),
            "parts": self.parts,
            "tally": self.tally,
        })
    }

    /// One line a part, for `sim merge`.
    pub fn json_lines(&self) -> String {
        let line = |part| serde_json::to_string(part).expect("a part is plain data") + "\n";
        self.parts.iter().map(line).collect()
    }
}

/// One failure: the invariant and its sentence, where, what was seen, the last entries about it,
/// and how to replay it.
fn failed(text: &mut String, failure: &Failure) {
    let Failure { engine, suite, seed, invariant, sentence, violation, trace, .. } = failure;
    let _ = writeln!(text, "{invariant}: {sentence}");
    let _ = writeln!(text, "  where: seed {seed} of {suite} on {engine}, entry {}", violation.at);
    let _ = writeln!(text, "  seen: {}", violation.text);
    let _ = writeln!(text, "  the last entries about it:");
    for line in trace.lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(
        text,
        "  replay: cargo sim replay --seed {seed} --suite {suite} --engine {engine}\n"
    );
}
