//! The terminal summary of a sweep, and its JSON form.

use std::fmt::Write as _;

use continuable::points::Point;
use serde::Serialize;
use serde_json::{Value, json};

use crate::canary::Lie;
use crate::faults::KINDS;
use crate::invariants;
use crate::tally::{Failure, Tally};

/// From so many plans on every danger must have been met. The rarest is met in one of 7,000.
pub const DANGERS_DUE_PLANS: u64 = 80_000;

/// How a canary fared.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Canary {
    /// The invariant that had to catch it.
    pub invariant: &'static str,
    /// The seed whose run caught it; `None` if it lived.
    pub caught_at: Option<u64>,
}

/// Everything a sweep says.
#[derive(Debug)]
pub struct Summary {
    /// The first seed and the one after the last.
    pub seeds: (u64, u64),
    /// The sum of the runs.
    pub tally: Tally,
    /// Each lie and how it fared.
    pub canaries: Vec<(Lie, Canary)>,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Threads.
    pub jobs: usize,
    /// Whether the sweep ended at its time limit, before its last seed.
    pub cut_short: bool,
}

impl Summary {
    /// Whether every lie was caught; a sweep that missed one is void.
    pub fn canary_caught(&self) -> bool {
        self.canaries.iter().all(|(_, canary)| canary.caught_at.is_some())
    }

    /// Whether the sweep was large enough to meet every danger and did not: its green tests less
    /// than it says.
    pub fn vacuous(&self) -> bool {
        self.tally.plans >= DANGERS_DUE_PLANS && !self.tally.dangers_missed().is_empty()
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
        let each = |counts: &std::collections::BTreeMap<&str, u64>| {
            let parts: Vec<_> = counts.iter().map(|(word, n)| format!("{n} {word}")).collect();
            parts.join(", ")
        };
        let rate = tally.plans as f64 / self.seconds.max(0.001);
        let hours = tally.virtual_ms / 3_600_000;
        let minutes = tally.virtual_ms / 60_000 % 60;
        let rows = [
            ("plans", format!("{} of seeds {}..{}", tally.plans, self.seeds.0, self.seeds.1)),
            ("operations", tally.operations.to_string()),
            ("activations", tally.activations.to_string()),
            ("tasks", each(&tally.tasks)),
            ("restarts", tally.restarts.to_string()),
            ("samplers", each(&tally.samplers)),
            ("points hit", format!("{} of {}", tally.points_hit(), Point::ALL.len())),
            ("facts", tally.facts.to_string()),
            ("polls", tally.polls.to_string()),
            ("virtual time", format!("{hours} h {minutes:02} min")),
            ("wall time", format!("{:.1} s on {} threads", self.seconds, self.jobs)),
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
                .map(|danger| format!("{danger}: {}", fared.dangers.get(danger).unwrap_or(&0)))
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
        for (id, danger) in self.tally.dangers_missed() {
            let _ = writeln!(text, "never met: {id}: {danger}");
        }
        for kind in self.tally.faults_missed(KINDS) {
            let _ = writeln!(text, "never injected: {kind}");
        }
        let missed = self.tally.points_missed();
        if !missed.is_empty() {
            let names: Vec<_> = missed.iter().map(|point| point.name()).collect();
            let _ = writeln!(text, "points never reached: {}", names.join(", "));
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
        if self.cut_short {
            let _ = writeln!(text, "stopped at the time limit, before the last seed");
        }
    }

    fn verdict(&self, text: &mut String) {
        for (lie, canary) in &self.canaries {
            let _ = match canary.caught_at {
                Some(seed) => writeln!(
                    text,
                    "canary caught: {lie:?} lie, by {} at seed {seed}",
                    canary.invariant
                ),
                None => writeln!(text, "CANARY MISSED: {lie:?} lie: this sweep is void"),
            };
        }
        let tally = &self.tally;
        let _ = if self.vacuous() && tally.failed == 0 {
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
            "seeds": [self.seeds.0, self.seeds.1],
            "seconds": self.seconds,
            "jobs": self.jobs,
            "cutShort": self.cut_short,
            "canaryCaught": self.canary_caught(),
            "canaries": self.canaries.iter().map(|(lie, canary)| {
                json!({ "lie": format!("{lie:?}"), "invariant": canary.invariant,
                        "caughtAt": canary.caught_at })
            }).collect::<Vec<_>>(),
            "points": points,
            "tally": self.tally,
        })
    }
}

fn failed(text: &mut String, failure: &Failure) {
    let Failure { seed, invariant, sentence, violation, trace, .. } = failure;
    let _ = writeln!(text, "seed {seed} broke {invariant}: {sentence}");
    let _ = writeln!(text, "  entry {}: {}", violation.at, violation.text);
    let _ = writeln!(text, "  the trace up to there:");
    for line in trace.lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "  replay: cargo sim replay --seed {seed}\n");
}
