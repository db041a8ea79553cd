//! Tasks: background work with one terminal result that its owner can wait for, read and kill
//! (fact-sheet 1.4 and 4; contract P3, P7, P8, P16).
//!
//! [`record`] and [`table`] decide; [`TaskService`] locks, asks them, and does what they answer.
//! A *producer* is the work behind a Task: here an activation of a child, elsewhere a shell. An
//! *owner* is an exact agent instance; access follows its session id, lifecycle and notices follow
//! the instance (contract I12).

use std::sync::Arc;

use crate::cancel::{CancelDecision, CancelSignal};
use crate::channel::Latch;
use crate::error::ErrorCode;
use crate::ids::{ActivationId, OwnerId, SessionId, TaskId};
use crate::message::Message;
use crate::runtime::{BoxFuture, Panicked};
use crate::sections::settlement::Authority;
use crate::vocabulary::{CancelCause, TaskOutcome};

mod close;
mod drive;
pub mod record;
mod service;
pub mod table;
mod wait;

pub use record::{
    KillState, Left, Notice, OUTPUT_LIMIT_MAX, OwnerRef, Settlement, TaskLinks, TaskParts,
    TaskRecord, TaskSnapshot, TaskSpec, WaitStep, WaitWake, Waiter,
};
pub use service::{Attachment, TaskRead, TaskService, TaskServiceConfig};
pub use table::{Open, OwnerGone, Preflight, TaskRefusal, TaskTable};
pub use wait::wait_timeout;

/// Work to run when an owner closes.
pub type BoxedEffect = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// An exact agent instance that owns Tasks. The methods are called with the Task lock held where
/// they say so; they may take locks that stand after it in the lock order, and must be quick.
pub trait TaskOwner: Send + Sync {
    /// The instance.
    fn instance(&self) -> OwnerId;

    /// Its session id, which grants access.
    fn session(&self) -> SessionId;

    /// Checks that this exact instance is registered under its id and not closing, and attaches
    /// `cleanup` to its scope if one is given, all in one section. Called under the Task lock.
    fn admit(&self, cleanup: Option<BoxedEffect>) -> Result<(), OwnerGone>;

    /// Puts `notice` into this instance without waking it, or as `policy` says (contract P7);
    /// false if it takes nothing any more. Called with no lock held.
    fn notify(&self, notice: Message, policy: WakePolicy) -> bool;
}

/// Whether a notice may wake an idle owner (contract P7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakePolicy {
    /// Never: the owner sees it in its next turn.
    #[default]
    Quiet,
    /// At most this many notice-started turns in a row; a user's or coordinator's message starts
    /// the count anew.
    Wake(u32),
}

/// What a Task is, for [`TaskService::start`].
#[derive(Clone)]
pub struct TaskStart {
    /// The kind, such as `subagent`; part of the id.
    pub kind: String,
    /// What people and models read.
    pub label: String,
    /// Bounds every rendered result, in bytes; at least 1.
    pub output_limit_bytes: Option<u64>,
    /// The exact owner instance; `None` opens the Task to every caller.
    pub owner: Option<Arc<dyn TaskOwner>>,
    /// The child whose activation it carries, for facts.
    pub child: Option<SessionId>,
    /// That activation, for facts.
    pub activation: Option<ActivationId>,
}

impl TaskStart {
    /// An unowned Task of `kind` with `label` and nothing else.
    pub fn new(kind: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            label: label.into(),
            output_limit_bytes: None,
            owner: None,
            child: None,
            activation: None,
        }
    }

    /// The same, owned.
    #[must_use]
    pub fn owned_by(mut self, owner: Arc<dyn TaskOwner>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The same, limited to `bytes` per rendered result.
    #[must_use]
    pub fn limited_to(mut self, bytes: u64) -> Self {
        self.output_limit_bytes = Some(bytes);
        self
    }

    /// What the table is told.
    pub fn spec(&self) -> TaskSpec {
        TaskSpec {
            kind: self.kind.clone(),
            label: self.label.clone(),
            output_limit_bytes: self.output_limit_bytes,
            owner: self
                .owner
                .as_ref()
                .map(|owner| OwnerRef { instance: owner.instance(), session: owner.session() }),
            activation: self.activation,
            child: self.child.clone(),
        }
    }
}

/// A producer's cancel hook: synchronous, idempotent, may fail. It is told the reason.
pub type CancelHook = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Reads the next delta of a stream kind. It may hold a buffer, nothing of the live producer.
pub type ReadOutput = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// Runs once the producer is quiescent, also when listeners are closed (contract P8): it drops the
/// association. Called with no lock held.
pub type SettledHook = Box<dyn FnOnce() + Send>;

/// How a producer is cancelled.
#[derive(Clone)]
pub enum TaskCancel {
    /// By a signal it observes: accepted inside the kill's section, cannot fail.
    Signal(CancelSignal),
    /// By a call of its own, which may fail; a failed kill changes nothing.
    Hook(CancelHook),
}

impl Authority for TaskCancel {
    fn accept(&self, cause: CancelCause) -> Option<CancelDecision> {
        match self {
            Self::Signal(signal) => Some(signal.lock().accept(cause)),
            Self::Hook(_) => None,
        }
    }
}

impl TaskCancel {
    /// Wakes whoever waits for the signal, after a decision made under a lock.
    pub(crate) fn wake(&self, decision: CancelDecision, cause: CancelCause) {
        self.wake_saying(decision, cause, None);
    }

    /// The same, with the canceller's own words.
    pub(crate) fn wake_saying(
        &self,
        decision: CancelDecision,
        cause: CancelCause,
        words: Option<&str>,
    ) {
        if let Self::Signal(signal) = self {
            signal.wake_saying(decision, cause, words);
        }
    }
}

/// A producer, as its Task sees it (fact-sheet 1.4). Built without side effects: nothing runs
/// before the Task is registered.
pub struct TaskHooks {
    /// How to cancel it.
    pub cancel: TaskCancel,
    /// Its outcome, once it is quiescent. A panic, or an outcome that is not terminal, fails the
    /// Task.
    pub done: BoxFuture<'static, TaskOutcome>,
    /// Makes it a stream kind.
    pub read_output: Option<ReadOutput>,
    /// Runs after listeners and before waiters are released.
    pub settled: Option<SettledHook>,
}

impl TaskHooks {
    /// A final-output producer with nothing to do after settlement.
    pub fn new(
        cancel: TaskCancel,
        done: impl Future<Output = TaskOutcome> + Send + 'static,
    ) -> Self {
        Self { cancel, done: Box::pin(done), read_output: None, settled: None }
    }

    /// The same, as a stream kind.
    #[must_use]
    pub fn streaming(mut self, read: ReadOutput) -> Self {
        self.read_output = Some(read);
        self
    }
}

/// Told of each Task's terminal state once, with the exact owner instance. Called with no lock
/// held; a panic is contained. A returned future runs on its own and is not awaited.
pub type TaskListener = Arc<
    dyn Fn(&TaskSnapshot, Option<&Arc<dyn TaskOwner>>) -> Option<BoxFuture<'static, ()>>
        + Send
        + Sync,
>;

/// Writes a Task's one unsolicited notice (fact-sheet 4.5).
pub trait NoticeWriter: Send + Sync {
    /// The message for the owner.
    fn notice(&self, task: &TaskSnapshot) -> Message;
}

/// The parts of production's Tasks.
pub struct Live;

impl TaskParts for Live {
    type Cancel = TaskCancel;
    type Reader = ReadOutput;
    type Owner = Arc<dyn TaskOwner>;
    type Latch = Latch<TaskSnapshot>;
    type Waiter = WaitSignal;
}

/// The signal of a waiting caller, if it has one.
#[derive(Debug, Clone, Default)]
pub struct WaitSignal(pub Option<CancelSignal>);

impl Waiter for WaitSignal {
    fn gave_up(&self) -> bool {
        self.0.as_ref().is_some_and(CancelSignal::has_fired)
    }
}

/// Why a Task operation failed. It changed nothing, except as its variant says.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TaskError {
    /// Refused by the table.
    #[error(transparent)]
    Refused(#[from] TaskRefusal),
    /// A wait's timeout is zero or not a finite number.
    #[error("invalid wait timeout")]
    InvalidTimeout,
    /// The wait's signal fired while the Task was live. The Task runs on.
    #[error("wait aborted")]
    WaitAborted,
    /// The producer's cancel hook or reader failed.
    #[error("{text}")]
    Producer {
        /// The Task.
        task: TaskId,
        /// What the producer said.
        text: String,
    },
    /// The producer panicked while it was built or called.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl TaskError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::InvalidTimeout => ErrorCode::InvalidInput,
            Self::WaitAborted => ErrorCode::WaitAborted,
            Self::Producer { .. } => ErrorCode::ProducerFailed,
            Self::Panicked(_) => ErrorCode::Panicked,
        }
    }
}
