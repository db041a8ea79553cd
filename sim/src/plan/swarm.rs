//! Swarm testing: a seed first draws which operations, answers and faults exist at all in its plan,
//! and how often. A plan that lacks most things finds what a plan with everything hides.

use std::fmt;

use super::suite::Suite;
use super::{ModelStep, Part};
use crate::explore::Rng;

/// A kind of operation, as weights name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of the operations")]
pub enum Kind {
    Start,
    StartUnder,
    StartBadly,
    Foreground,
    Job,
    Send,
    SendOdd,
    SendBadly,
    Kill,
    Wait,
    Read,
    List,
    Prompt,
    DisposeOwner,
    ReopenOwner,
    ReplaceOwner,
    Bypass,
    Damage,
    Unload,
    Load,
    Compact,
    ClockJump,
    Crash,
}

/// Every kind with its weight in `everything`, before the swarm's draw.
pub const KINDS: [(Kind, u64); 23] = [
    (Kind::Start, 14),
    (Kind::StartUnder, 3),
    (Kind::StartBadly, 2),
    (Kind::Foreground, 2),
    (Kind::Job, 2),
    (Kind::Send, 34),
    (Kind::SendOdd, 1),
    (Kind::SendBadly, 3),
    (Kind::Kill, 14),
    (Kind::Wait, 12),
    (Kind::Read, 9),
    (Kind::List, 1),
    (Kind::Prompt, 4),
    (Kind::DisposeOwner, 2),
    (Kind::ReopenOwner, 3),
    (Kind::ReplaceOwner, 2),
    (Kind::Bypass, 3),
    (Kind::Damage, 2),
    (Kind::Unload, 2),
    (Kind::Load, 3),
    (Kind::Compact, 1),
    (Kind::ClockJump, 1),
    (Kind::Crash, 1),
];

/// Every answer of a child's model with its weight, before the swarm's draw.
pub const STEPS: [(ModelStep, u64); 21] = [
    (ModelStep::Say, 20),
    (ModelStep::Slow(15), 12),
    (ModelStep::Empty, 4),
    (ModelStep::Tool, 12),
    (ModelStep::SlowTool(12), 6),
    (ModelStep::Conclude(9), 4),
    (ModelStep::PanickingTool, 2),
    (ModelStep::Malformed, 2),
    (ModelStep::Hang, 4),
    (ModelStep::Error, 2),
    (ModelStep::MaxTokens, 2),
    (ModelStep::Refuse, 2),
    (ModelStep::Panic, 2),
    (ModelStep::Delegate, 2),
    (ModelStep::Background, 2),
    (ModelStep::Structured, 4),
    (ModelStep::RateLimit, 1),
    (ModelStep::Break, 1),
    (ModelStep::Cut, 1),
    (ModelStep::Endless(900), 1),
    (ModelStep::PanicMidStream, 1),
];

/// Families of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Flushes fail.
    Sync,
    /// Writes fail or are torn.
    Write,
    /// Reads, listings and lookups fail or are short.
    Read,
    /// Names cannot be made, linked, removed or synced.
    Name,
    /// The disk or a task is slow.
    Slow,
    /// The process dies at a point or a disk operation.
    Crash,
}

/// Every family with its weight, before the swarm's draw.
pub const FAMILIES: [(Family, u64); 6] = [
    (Family::Sync, 8),
    (Family::Write, 5),
    (Family::Read, 3),
    (Family::Name, 3),
    (Family::Slow, 5),
    (Family::Crash, 3),
];

/// The parts that can be unloaded.
pub const PARTS: [Part; 5] = [Part::Spawn, Part::Fork, Part::Control, Part::Surface, Part::Store];

/// What a plan may contain, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swarm {
    /// The profile.
    pub suite: Suite,
    /// Weights of operations.
    pub operations: Vec<(Kind, u64)>,
    /// Weights of a child's answers.
    pub steps: Vec<(ModelStep, u64)>,
    /// Weights of families of faults.
    pub families: Vec<(Family, u64)>,
    /// How many faults there are.
    pub faults: u64,
}

impl Swarm {
    /// Draws one for `suite`. Each kind is left out with one chance in five; starts, sends and
    /// plain answers always stay.
    pub fn draw(rng: &mut Rng, suite: Suite) -> Self {
        let mut thin = |weight: u64, keep: bool| {
            if !keep && rng.chance(1, 5) { 0 } else { weight }
        };
        let keep = |kind: &Kind| matches!(kind, Kind::Start | Kind::Send);
        let operations = KINDS
            .iter()
            .map(|(kind, weight)| (*kind, thin(weight * boost(suite, *kind), keep(kind))))
            .collect();
        let steps = STEPS
            .iter()
            .map(|(step, weight)| (*step, thin(*weight, *step == ModelStep::Say)))
            .collect();
        let mut families: Vec<_> = FAMILIES
            .iter()
            .map(|(family, weight)| (*family, thin(weight * stress(suite, *family), false)))
            .collect();
        let (some, of) = match suite {
            Suite::Durability | Suite::Recovery => (3, 4),
            Suite::Everything | Suite::Network => (1, 3),
            _ => (1, 6),
        };
        let mut faults = if rng.chance(some, of) { 1 + rng.below(2) } else { 0 };
        if families.iter().all(|(_, weight)| *weight == 0) {
            faults = 0;
            families.clear();
        }
        Self { suite, operations, steps, families, faults }
    }
}

/// How much more often a suite does something.
fn boost(suite: Suite, kind: Kind) -> u64 {
    use Kind::{
        Bypass, Crash, Damage, DisposeOwner, Foreground, Kill, List, Load, Prompt, Read,
        ReopenOwner, ReplaceOwner, Send, SendBadly, SendOdd, Start, StartBadly, StartUnder, Unload,
        Wait,
    };
    let favoured: &[Kind] = match suite {
        Suite::Activation => &[Start, StartUnder, Foreground, Send, SendOdd],
        Suite::Steering => &[Send, Wait],
        Suite::Cancellation => &[Kill, Wait],
        Suite::Durability => &[Send, Start, Prompt],
        Suite::Recovery => &[Crash, Damage, Send],
        Suite::Ownership => &[DisposeOwner, ReopenOwner, ReplaceOwner, Bypass, StartUnder],
        Suite::Authority => &[SendBadly, StartBadly, Unload, Load],
        Suite::Notices => &[Wait, Read, Prompt, List],
        Suite::Network | Suite::Everything => &[],
    };
    let rare = matches!(kind, Crash | Damage | Bypass | ReplaceOwner | SendBadly | StartBadly);
    match (favoured.contains(&kind), rare) {
        (true, true) => 6,
        (true, false) => 3,
        (false, _) => 1,
    }
}

/// How much more often a suite meets faults of a family.
fn stress(suite: Suite, family: Family) -> u64 {
    match (suite, family) {
        (Suite::Durability, Family::Sync | Family::Write) => 4,
        (Suite::Recovery, Family::Crash) => 8,
        (Suite::Recovery, Family::Read | Family::Name) => 3,
        _ => 1,
    }
}

fn list<T: fmt::Debug>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    weights: &[(T, u64)],
) -> fmt::Result {
    write!(f, "{name}")?;
    for (thing, weight) in weights.iter().filter(|(_, weight)| *weight > 0) {
        write!(f, " {thing:?}:{weight}")?;
    }
    writeln!(f)
}

/// One line a subject: what exists in the plan, with its weight.
impl fmt::Display for Swarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "suite {}", self.suite)?;
        list(f, "operations", &self.operations)?;
        list(f, "answers   ", &self.steps)?;
        let families = if self.faults == 0 { &[][..] } else { &self.families };
        list(f, "faults    ", families)
    }
}
