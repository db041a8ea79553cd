//! A plan: everything that a run is told to do, as data. A seed makes a plan; a plan loads for ever.
//!
//! Operations name their targets by "the k-th child so far" and "the k-th newest Task", so that a
//! shortened plan still means something. Reading order: this file (the data), [`suite`] (what a
//! suite is after), [`swarm`] (which things exist at all in a plan), [`generate`] (a plan of a
//! seed), [`strategy`] (the same for proptest, with shrinking).

use serde::{Deserialize, Serialize};

use crate::explore::{Estimate, Sampler};
use crate::faults::{NetworkFault, PlannedFault};

pub mod generate;
pub mod strategy;
pub mod suite;
pub mod swarm;

pub use suite::Suite;
pub use swarm::Swarm;

/// The format of a saved plan.
pub const PLAN_VERSION: u32 = 2;

/// One run, as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The suite whose profile it was drawn from.
    pub suite: Suite,
    /// The seed it was made from; also seeds the sampler and the fresh names.
    pub seed: u64,
    /// Who makes the choices.
    pub sampler: Sampler,
    /// How many parents there are, at least one.
    pub parents: u64,
    /// What the model answers, by the child's ordinal, then by its request.
    pub scripts: Vec<Vec<ModelStep>>,
    /// What the model answers to the parents' own turns.
    pub parent_script: Vec<ModelStep>,
    /// Concurrent clients, each with its operations in order.
    pub clients: Vec<Vec<Planned>>,
    /// What goes wrong until the run heals.
    pub faults: Vec<PlannedFault>,
    /// What the network does; only the world engine has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetworkFault>,
    /// When a second runtime works on the same disk (P15); only the world engine has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visits: Vec<Visit>,
    /// Whether a listener of the Task service panics at everything it hears.
    pub panicking_listener: bool,
    /// What every agent's hook does.
    pub hook: Hook,
    /// How many notice-started turns in a row a parent may have; 0 is the quiet policy (P7).
    pub wakes: u32,
    /// Whether the store takes its lease (P15).
    pub lease: bool,
    /// The disk's size in bytes, until the run heals; `None` is without bound.
    pub capacity: Option<u64>,
    /// How the run comes to its end.
    pub ending: Ending,
}

/// A second runtime starts, opens a child as an agent of its own, talks to it, and exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Visit {
    /// When it starts, in virtual milliseconds.
    pub at_ms: u64,
    /// The k-th child so far.
    pub child: u64,
    /// How long it stays at most once the child is open.
    pub hold_ms: u64,
    /// How long each of its disk operations takes: the wider the gap between a check of the log's
    /// length and the write after it.
    pub disk_ms: u64,
}

/// What the deployment's hook of every agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// There is none.
    Absent,
    /// It lets everything pass.
    Idle,
    /// It blocks every third prompt.
    Blocks,
    /// It panics before every fifth step.
    Panics,
}

/// What stops the work that is still under way when the clients are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Nothing, as long as it ends by itself; what hangs is killed.
    Patience,
    /// The disposal of its owners.
    Owners,
    /// The disposal of the control service.
    Control,
    /// The disposal of the Task service.
    Tasks,
    /// The process dies; in its next life every child is continued once.
    Restart,
}

/// One operation of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Virtual milliseconds to wait first.
    pub after_ms: u64,
    /// What to do.
    pub operation: Operation,
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The parent's model.
    Parent,
    /// A person, with the parent loaded.
    Human,
}

/// Which provider a child starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// A fresh child.
    Spawn,
    /// A child that inherits the parent's completed turns.
    Fork,
}

/// What is wrong with a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadStart {
    /// An empty label: refused before a Task exists.
    Label,
    /// No provider of that name: the Task fails.
    NoProvider,
    /// Deeper than allowed: the Task fails.
    Depth,
}

/// An id that no send may accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadId {
    /// The empty string.
    Empty,
    /// Longer than any id may be.
    Long,
    /// Well formed, and unknown.
    Unknown,
    /// Tries to leave the root.
    Escape,
}

/// A message that is not plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Odd {
    /// No content block at all.
    Empty,
    /// Far longer than any page.
    Huge,
    /// Control characters, NUL among them.
    Control,
    /// The far corners of Unicode.
    Exotic,
}

/// How a caller gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GiveUp {
    /// After so many virtual milliseconds.
    pub after_ms: u64,
    /// Whether the call's future is dropped; else its signal fires.
    pub dropped: bool,
}

/// What somebody else does to a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// Half a line at its end.
    Tear,
    /// A whole line of its own at its end.
    Foreign,
    /// One bit of it is flipped.
    Flip,
    /// A run of NUL bytes over its end.
    Zero,
    /// Its name is gone.
    Unlink,
}

/// A part of the deployment that can be unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The spawn provider.
    Spawn,
    /// The fork provider.
    Fork,
    /// The control service.
    Control,
    /// The control surface.
    Surface,
    /// The store: detached from everything that lives.
    Store,
}

/// What a client does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Operation {
    /// Start a continuable child.
    Start {
        /// The parent.
        parent: u64,
        /// With which provider.
        provider: Provider,
        /// Whether it must report a structured result.
        #[serde(default, skip_serializing_if = "is_false")]
        structured: bool,
    },
    /// Start a continuable child of a child that is live.
    StartUnder {
        /// The k-th child so far.
        child: u64,
        /// With which provider.
        provider: Provider,
    },
    /// Run a child in the foreground, and dispose it.
    Foreground {
        /// The parent.
        parent: u64,
        /// With which provider.
        provider: Provider,
        /// How the caller gives up, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<GiveUp>,
    },
    /// Start one in a way that must not work.
    StartBadly {
        /// The parent.
        parent: u64,
        /// What is wrong.
        wrong: BadStart,
    },
    /// Send a message to a child.
    Send {
        /// The parent that sends, or that the person sends through.
        parent: u64,
        /// The k-th child so far, of any parent: a foreign one is refused.
        child: u64,
        /// Who sends.
        by: By,
        /// How the caller gives up, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<GiveUp>,
    },
    /// Send something odd to a child.
    SendOdd {
        /// The parent that sends.
        parent: u64,
        /// The k-th child so far.
        child: u64,
        /// What.
        what: Odd,
    },
    /// Send to an id that is no child.
    SendBadly {
        /// The parent that sends.
        parent: u64,
        /// The id.
        id: BadId,
    },
    /// Kill a Task.
    Kill {
        /// The k-th newest Task.
        task: u64,
        /// Who kills.
        by: By,
    },
    /// Wait for a Task.
    Wait {
        /// The k-th newest Task.
        task: u64,
        /// For how long.
        timeout_ms: u64,
        /// How the caller gives up, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up: Option<GiveUp>,
    },
    /// List the Tasks of a parent.
    List {
        /// The parent.
        parent: u64,
    },
    /// Read a Task's output.
    Read {
        /// The k-th newest Task.
        task: u64,
    },
    /// Prompt a parent, so that it has turns of its own to fork from.
    Prompt {
        /// The parent.
        parent: u64,
    },
    /// Dispose a parent.
    DisposeOwner {
        /// The parent.
        parent: u64,
    },
    /// Load a disposed parent again, as a new instance with the same id.
    ReopenOwner {
        /// The parent.
        parent: u64,
    },
    /// Both at once: dispose a parent, and load it again as soon as its id is free.
    ReplaceOwner {
        /// The parent.
        parent: u64,
    },
    /// Somebody loads a child without the control service, and lets it go again.
    Bypass {
        /// The k-th child so far.
        child: u64,
        /// For how many virtual milliseconds it is held.
        hold_ms: u64,
    },
    /// Somebody else changes the log of a child.
    Damage {
        /// The k-th child so far.
        child: u64,
        /// How.
        how: Damage,
    },
    /// Unload a part of the deployment.
    Unload {
        /// Which.
        part: Part,
    },
    /// Load it again.
    Load {
        /// Which.
        part: Part,
    },
    /// Start a Task of another kind, with a cancel hook of its own.
    Job {
        /// The parent.
        parent: u64,
        /// For how many virtual milliseconds it works.
        ms: u64,
        /// Whether its hook refuses the first cancellation.
        stubborn: bool,
    },
    /// Compact a parent's history down to its last message.
    Compact {
        /// The parent.
        parent: u64,
    },
    /// The wall clock jumps forward.
    ClockJump {
        /// By so many milliseconds.
        ms: u64,
    },
    /// The process dies, and is started again.
    Crash,
}

impl Operation {
    /// Whether a person does it; in the world engine it crosses a network.
    pub fn is_human(&self) -> bool {
        matches!(self, Self::Send { by: By::Human, .. } | Self::Kill { by: By::Human, .. })
    }
}

/// One answer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStep {
    /// Text, and the turn ends.
    Say,
    /// Text after so many milliseconds.
    Slow(u64),
    /// Nothing at all, and the turn ends.
    Empty,
    /// A call of the tool that works.
    Tool,
    /// A call of the tool that takes so many milliseconds.
    SlowTool(u64),
    /// A call of the tool that takes so many milliseconds and concludes the turn.
    Conclude(u64),
    /// A call of the tool that panics.
    PanickingTool,
    /// A call with malformed arguments.
    Malformed,
    /// One chunk, then nothing until it is cancelled.
    Hang,
    /// A failure of the model.
    Error,
    /// The token limit.
    MaxTokens,
    /// A refusal.
    Refuse,
    /// The model client panics.
    Panic,
    /// Delegates in the foreground.
    Delegate,
    /// Delegates in the background, to a child that the clients do not know.
    Background,
    /// Waits for the first Task and reads it.
    TaskOutput,
    /// Kills the first Task.
    TaskKill,
    /// Reports the structured result, where one is wanted.
    Structured,
    /// The rate limit.
    RateLimit,
    /// The response breaks off with a failure.
    Break,
    /// The response ends without its finish.
    Cut,
    /// Text without end, a chunk in so many milliseconds.
    Endless(u64),
    /// The model client panics in the middle of its response.
    PanicMidStream,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A class of plans of one size: PCT's length estimate belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(pub u64);

/// The longest runs ever seen, by size class: choices of a task, and tasks. A longer run is
/// reported by every sweep; then the table is raised. It is fixed, not learned, because a seed must
/// mean the same run alone and in a sweep.
const LONGEST: [Estimate; 4] = [
    Estimate { choices: 2_600, tasks: 240 },
    Estimate { choices: 6_500, tasks: 480 },
    Estimate { choices: 6_500, tasks: 480 },
    Estimate { choices: 3_000, tasks: 500 },
];

impl Plan {
    /// How many operations it has.
    pub fn size(&self) -> u64 {
        self.clients.iter().map(|client| client.len() as u64).sum()
    }

    /// Its size class.
    pub fn size_class(&self) -> SizeClass {
        SizeClass(match self.size() {
            0..=3 => 0,
            4..=7 => 1,
            8..=15 => 2,
            _ => 3,
        })
    }

    /// How long it may get.
    pub fn estimate(&self) -> Estimate {
        let class = usize::try_from(self.size_class().0).unwrap_or(usize::MAX);
        LONGEST[class.min(LONGEST.len() - 1)]
    }
}
