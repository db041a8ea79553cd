//! Every observable transition, typed: the only thing invariants read.
//!
//! A fact is recorded inside the critical section that makes it true, so the order of facts is a
//! linearisation of the sections also on many threads (architecture §4 rule 8).

use serde::{Deserialize, Serialize};

use crate::error::ErrorCode;
use crate::ids::{ActivationId, MessageId, OwnerId, RunId, SessionId, TaskId};
use crate::message::MessageSource;
use crate::points::Point;
use crate::vocabulary::{
    CancelCause, KillAnswer, RouteCode, StopReason, TaskStatus, TurnEndKind, WaitEnd,
};

/// Where a fact goes. Called inside critical sections: it must not block, wait or take a lock of
/// ours other than a leaf.
pub trait FactSink {
    /// Records `fact`.
    fn record(&self, fact: Fact);
}

/// What a cancel signal cancels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "snake_case")]
pub enum CancelScope {
    /// One activation of a child.
    Activation {
        /// The activation.
        activation: ActivationId,
        /// The child.
        child: SessionId,
    },
    /// One admission or turn of an agent.
    Turn {
        /// The agent.
        agent: OwnerId,
        /// Counts the agent's admissions.
        admission: u64,
    },
    /// One call of a caller.
    Call {
        /// The call's name.
        call: String,
    },
}

/// Whether a caught panic was somebody else's code or ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PanicKind {
    /// A producer, tool, model client, hook or listener (contract P18).
    Foreign,
    /// A broken invariant of this crate: the run is red.
    Ours,
}

/// One observable transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields repeat the names of their types")]
pub enum Fact {
    // --- the runtime -------------------------------------------------------------------------
    /// A named point was reached.
    PointReached { point: Point },
    /// A panic was caught.
    PanicCaught { kind: PanicKind, task: String, text: String },

    // --- cancellation ------------------------------------------------------------------------
    /// The first cancellation of its scope.
    CancelAccepted { scope: CancelScope, cause: CancelCause },
    /// A later cancellation; `first` stands.
    CancelRepeated { scope: CancelScope, first: CancelCause },
    /// A cancellation after the result was published.
    CancelTooLate { scope: CancelScope, cause: CancelCause },
    /// The run of an activation saw its cancellation: from here on no request and no tool starts.
    CancelObserved { child: SessionId, agent: OwnerId },

    // --- Tasks -------------------------------------------------------------------------------
    /// A control surface was attached; `count` are attached now.
    SurfaceAttached { count: u64 },
    /// A control surface was detached; `count` are attached now.
    SurfaceDetached { count: u64 },
    /// A writer of notices was attached; `count` are attached now.
    NoticesAttached { count: u64 },
    /// A writer of notices was detached; `count` are attached now.
    NoticesDetached { count: u64 },
    /// A Task was registered, running.
    TaskStarted {
        task: TaskId,
        kind: String,
        owner: Option<OwnerId>,
        owner_session: Option<SessionId>,
        activation: Option<ActivationId>,
        child: Option<SessionId>,
    },
    /// A start was refused; nothing was created.
    TaskStartRefused { code: ErrorCode, owner: Option<OwnerId> },
    /// A kill was answered.
    TaskKillAnswered { task: TaskId, owner: Option<OwnerId>, answer: KillAnswer },
    /// The Task is stopping.
    TaskStopping { task: TaskId, owner: Option<OwnerId> },
    /// The outcome was recorded.
    TaskSettled {
        task: TaskId,
        owner: Option<OwnerId>,
        status: TaskStatus,
        code: Option<ErrorCode>,
        output: bool,
        waiters: u64,
        reported: bool,
    },
    /// A second settlement was attempted and ignored.
    TaskSettlementIgnored { task: TaskId, owner: Option<OwnerId>, status: TaskStatus },
    /// Waiters were released.
    TaskReleased { task: TaskId, owner: Option<OwnerId> },
    /// A terminal Task was read.
    TaskReadTerminal { task: TaskId, owner: Option<OwnerId> },
    /// A waiter joined.
    TaskWaitJoined { task: TaskId, owner: Option<OwnerId>, waiter: u64 },
    /// A waiter left.
    TaskWaitEnded { task: TaskId, owner: Option<OwnerId>, waiter: u64, end: WaitEnd },
    /// The unsolicited notice of a Task was claimed for its owner.
    NoticeClaimed { task: TaskId, owner: OwnerId },
    /// The notice entered the owner's queue or log.
    NoticeInjected { task: TaskId, owner: OwnerId, message: MessageId },
    /// The owner was gone or closing; the notice was dropped.
    NoticeDropped { task: TaskId, owner: OwnerId },
    /// An owner instance started to close; nothing starts after this (contract P16).
    OwnerClosing { owner: OwnerId },
    /// An owner's Tasks are settled and removed.
    OwnerTasksRemoved { owner: OwnerId, count: u64 },
    /// The Task service is closing.
    TasksClosing,

    // --- associations and routes -------------------------------------------------------------
    /// The control service is closing.
    ControlClosing,
    /// An activation was installed, in the section that registered its Task.
    AssociationInstalled {
        activation: ActivationId,
        child: SessionId,
        task: TaskId,
        owner: OwnerId,
        resumed: bool,
    },
    /// The persisted header authorised the activation (contract P5).
    AssociationAuthorised { activation: ActivationId, child: SessionId },
    /// The run was filled in.
    AssociationFilled {
        activation: ActivationId,
        child: SessionId,
        run: RunId,
        agent: Option<OwnerId>,
    },
    /// The association was dropped.
    AssociationRemoved { activation: ActivationId, child: SessionId },
    /// A send was routed.
    SendRouted {
        message: MessageId,
        child: SessionId,
        sender: OwnerId,
        source: MessageSource,
        route: RouteCode,
        task: TaskId,
    },
    /// A send was answered with success.
    SendAnswered { message: MessageId, child: SessionId, route: RouteCode, task: TaskId },
    /// A send failed; the message was not delivered.
    SendFailed { message: MessageId, child: SessionId, code: ErrorCode },

    // --- runs --------------------------------------------------------------------------------
    /// A published run started.
    RunStarted { run: RunId, provider: String, child: SessionId, agent: Option<OwnerId> },
    /// A run's result settled.
    RunEnded { run: RunId, provider: String, child: SessionId, stop: StopReason },
    /// The child was closed for settlement at `length` events (contract P6).
    SettlementClosed { child: SessionId, agent: OwnerId, length: u64 },
    /// The final flush began.
    FinalFlushStarted { child: SessionId, agent: OwnerId, length: u64 },
    /// The final flush answered; `mark` is the durable high-water mark it returned.
    FinalFlushEnded { child: SessionId, agent: OwnerId, length: u64, mark: Option<u64> },
    /// The result of an activation was published under its cancel slot.
    ResultPublished {
        child: SessionId,
        agent: Option<OwnerId>,
        stop: StopReason,
        code: Option<ErrorCode>,
        cancelled: Option<CancelCause>,
    },
    /// A run's disposal began.
    RunDisposeStarted { run: RunId, child: SessionId },
    /// A run's disposal is complete.
    RunDisposed { run: RunId, child: SessionId, failed: bool },

    // --- agents ------------------------------------------------------------------------------
    /// A session and its agent were published.
    AgentPublished {
        agent: OwnerId,
        session: SessionId,
        parent: Option<OwnerId>,
        depth: u64,
        seed_length: Option<u64>,
        resumed: bool,
    },
    /// A publication lost against a live one of the same id.
    AgentCollided { session: SessionId, live: OwnerId },
    /// An agent and its session left the registry.
    AgentRemoved { agent: OwnerId, session: SessionId },
    /// Disposal of an agent began.
    AgentDisposing { agent: OwnerId, session: SessionId },
    /// An agent's queues were closed for good.
    InboxClosed { agent: OwnerId },
    /// A message was accepted into an agent's queues.
    MessageQueued { agent: OwnerId, message: MessageId, steering: bool, receipt: bool },
    /// A message was refused by an agent's queues.
    MessageRefused { agent: OwnerId, message: MessageId },
    /// A receipt settled: admitted at that turn and step, or rejected.
    ReceiptSettled { agent: OwnerId, message: MessageId, admitted: Option<(u64, u64)> },
    /// A message entered the session log.
    MessageLogged { agent: OwnerId, message: MessageId, seq: u64, source: MessageSource },
    /// A turn opened.
    TurnStarted { agent: OwnerId, turn: u64, trigger: String },
    /// A turn closed.
    TurnEnded { agent: OwnerId, turn: u64, reason: TurnEndKind },
    /// A step opened; `messages` are those of its request snapshot that carry new input.
    StepStarted { agent: OwnerId, turn: u64, step: u64 },
    /// A step closed.
    StepEnded { agent: OwnerId, turn: u64, step: u64 },
    /// A request left for the model, with the ids of the messages in it.
    RequestSent { agent: OwnerId, turn: u64, step: u64, messages: Vec<MessageId> },
    /// A tool's body started.
    ToolStarted { agent: OwnerId, call: String, tool: String },
    /// A tool's result was appended.
    ToolFinished { agent: OwnerId, call: String, error: bool },
    /// A structured result was captured and the turn concluded.
    StructuredCaptured { agent: OwnerId },
    /// The agent went idle.
    AgentIdle { agent: OwnerId },

    // --- the store ---------------------------------------------------------------------------
    /// Events were appended to a session's log in memory: `seq` is the first, `count` how many.
    EventsAppended { session: SessionId, agent: Option<OwnerId>, seq: u64, count: u64 },
    /// A flush of `length` events began.
    FlushStarted { session: SessionId, length: u64 },
    /// The first `mark` events are confirmed durable.
    FlushConfirmed { session: SessionId, mark: u64 },
    /// A flush failed.
    FlushFailed { session: SessionId, code: ErrorCode },
    /// A batch was written, not yet confirmed.
    BatchWritten { session: SessionId, seq: u64, count: u64, repair: bool },
    /// A session was loaded from disk with `length` events after repair.
    SessionLoaded { session: SessionId, length: u64, closers: u64, cut: u64 },
    /// A load or header read was refused.
    LoadRefused { session: SessionId, code: ErrorCode },
    /// A retired session was forgotten.
    SessionRetired { session: SessionId, failed: bool },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_one_flat_json_object() {
        let fact =
            Fact::AssociationRemoved { activation: ActivationId(1), child: SessionId::new("c") };
        let json = serde_json::to_string(&fact).expect("serialises");
        assert_eq!(json, r#"{"fact":"association_removed","activation":1,"child":"c"}"#);
    }
}
