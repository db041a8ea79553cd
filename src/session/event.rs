//! Session events: what a log is made of (fact-sheet 1.1, 2.3).
//!
//! An [`Event`] is immutable and shared by `Arc`; a [`Draft`] is an event before the log gave it
//! its sequence number and time. Reading and writing lines is in `codec`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::raw::RawJson;
use crate::ids::{MessageId, SessionId};
use crate::message::{Message, MessageSource};
use crate::vocabulary::TurnEndKind;

/// The format version of session logs (fact-sheet §12).
pub const SESSION_FORMAT_VERSION: u64 = 0;

/// What a session is, fixed at its creation and outside its log (fact-sheet 1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionHeader {
    /// Pinned to [`SESSION_FORMAT_VERSION`].
    pub version: u64,
    /// The session's id, which is its agent's id too.
    pub id: SessionId,
    /// Milliseconds since the Unix epoch.
    pub created_at: u64,
    /// The absolute working directory.
    pub cwd: Option<String>,
    /// The session that created this one.
    pub parent_session: Option<SessionId>,
    /// How many leading events were inherited from a parent at fork time. Never recomputed.
    pub seed_length: Option<u64>,
    /// How deep in a tree of delegations the session is; roots are 0.
    pub delegation_depth: u64,
}

impl SessionHeader {
    /// A root session's header without a working directory.
    pub fn new(id: SessionId, created_at: u64) -> Self {
        Self {
            version: SESSION_FORMAT_VERSION,
            id,
            created_at,
            cwd: None,
            parent_session: None,
            seed_length: None,
            delegation_depth: 0,
        }
    }
}

/// What a message-producing event does to the surface (fact-sheet 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurfaceOp {
    /// Adds itself at the tail.
    Append,
    /// Takes the place of the nodes from `start` to `end`, both included.
    Replace {
        /// Sequence number of the first node shadowed.
        start: u64,
        /// Sequence number of the last node shadowed.
        end: u64,
    },
}

/// What opened a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TurnTrigger {
    /// A prompt.
    Message {
        /// The prompt's source.
        source: MessageSource,
    },
    /// The recovery of a failed turn.
    Retry,
    /// Injected context alone.
    Injection {
        /// The context's source.
        source: MessageSource,
    },
}

impl TurnTrigger {
    /// The kind's word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Retry => "retry",
            Self::Injection { .. } => "injection",
        }
    }
}

/// Why a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEndReason {
    /// The model finished.
    Completed,
    /// Cancelled.
    Aborted,
    /// A step failed: `failure` when the model's own facts are known, else `message` and `code`.
    Error {
        /// The step that failed.
        step: u64,
        /// What went wrong; read from `failure` where that is given, and then not written.
        message: String,
        /// The error's code.
        code: Option<String>,
        /// The model failure's facts.
        failure: Option<Value>,
    },
    /// The agent was disposed.
    Disposed,
    /// A response hit its token limit.
    MaxTokens,
    /// Written by crash repair only.
    Interrupted,
}

impl TurnEndReason {
    /// The kind alone, as facts name it.
    pub fn kind(&self) -> TurnEndKind {
        match self {
            Self::Completed => TurnEndKind::Completed,
            Self::Aborted => TurnEndKind::Aborted,
            Self::Error { .. } => TurnEndKind::Error,
            Self::Disposed => TurnEndKind::Disposed,
            Self::MaxTokens => TurnEndKind::MaxTokens,
            Self::Interrupted => TurnEndKind::Interrupted,
        }
    }
}

/// Why a `request/header` was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderReason {
    /// The session's first request.
    Initial,
    /// The first request after a resume.
    Resume,
    /// Model, system text or tools changed.
    Change,
}

/// The machine-readable part of a tool's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolErrorInfo {
    /// The error's name.
    pub name: String,
    /// Its stable code.
    #[serde(default)]
    pub code: String,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of fact-sheet 1.2 and 2.3")]
pub enum EventBody {
    /// `turn/start`.
    TurnStart { turn: u64, trigger: TurnTrigger },
    /// `turn/end`: the loader's commit boundary.
    TurnEnd { turn: u64, reason: TurnEndReason },
    /// `step/start`.
    StepStart { turn: u64, step: u64 },
    /// `step/end`.
    StepEnd { turn: u64, step: u64 },
    /// `user/message`: a prompt or injected context.
    UserMessage(Arc<Message>),
    /// `steering/message`: steering that joined an open turn.
    SteeringMessage { turn: u64, message: Arc<Message> },
    /// `assistant/chunk`: one chunk of the stream, not interpreted here.
    AssistantChunk { turn: u64, step: u64, chunk: RawJson },
    /// `assistant/message`.
    AssistantMessage { turn: u64, step: u64, message: Arc<Message>, usage: Option<RawJson> },
    /// `tool/call`; `arguments` is the model's raw string.
    ToolCall { turn: u64, step: u64, call_id: String, name: String, arguments: String },
    /// `tool/result`.
    ToolResult {
        turn: u64,
        step: u64,
        message: Arc<Message>,
        error: Option<ToolErrorInfo>,
        meta: Option<RawJson>,
    },
    /// `request/header`: model, system text and tools of the requests that follow.
    RequestHeader { header: RawJson, reason: HeaderReason },
    /// `request/context`.
    RequestContext { provider: String, model: String, context_window: Option<u64> },
    /// `session/end-seed`.
    EndSeed,
    /// `subagent/descriptor`: not read until a resume folds it.
    Descriptor(RawJson),
    /// Any other type, its data kept byte for byte.
    Other { kind: Arc<str>, data: RawJson },
}

impl EventBody {
    /// The event type's word.
    pub fn kind(&self) -> &str {
        match self {
            Self::TurnStart { .. } => "turn/start",
            Self::TurnEnd { .. } => "turn/end",
            Self::StepStart { .. } => "step/start",
            Self::StepEnd { .. } => "step/end",
            Self::UserMessage(_) => "user/message",
            Self::SteeringMessage { .. } => "steering/message",
            Self::AssistantChunk { .. } => "assistant/chunk",
            Self::AssistantMessage { .. } => "assistant/message",
            Self::ToolCall { .. } => "tool/call",
            Self::ToolResult { .. } => "tool/result",
            Self::RequestHeader { .. } => "request/header",
            Self::RequestContext { .. } => "request/context",
            Self::EndSeed => "session/end-seed",
            Self::Descriptor(_) => "subagent/descriptor",
            Self::Other { kind, .. } => kind,
        }
    }

    /// The turn and the step that the event names.
    pub fn place(&self) -> (Option<u64>, Option<u64>) {
        match *self {
            Self::TurnStart { turn, .. }
            | Self::TurnEnd { turn, .. }
            | Self::SteeringMessage { turn, .. } => (Some(turn), None),
            Self::StepStart { turn, step }
            | Self::StepEnd { turn, step }
            | Self::AssistantChunk { turn, step, .. }
            | Self::AssistantMessage { turn, step, .. }
            | Self::ToolCall { turn, step, .. }
            | Self::ToolResult { turn, step, .. } => (Some(turn), Some(step)),
            _ => (None, None),
        }
    }

    /// Whether the type derives model messages and so must say what it does to the surface.
    pub fn is_surface(&self) -> bool {
        self.message().is_some()
    }

    /// The message inside, if the type carries one.
    pub fn message(&self) -> Option<&Arc<Message>> {
        match self {
            Self::UserMessage(message)
            | Self::SteeringMessage { message, .. }
            | Self::AssistantMessage { message, .. }
            | Self::ToolResult { message, .. } => Some(message),
            _ => None,
        }
    }
}

/// One entry of a log.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its place in the log, from 0 without gaps.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub time: u64,
    /// What happened.
    pub body: EventBody,
    /// What it does to the surface; on message-producing types, and only there.
    pub surface: Option<SurfaceOp>,
    /// The earlier events it was made from.
    pub sources: Option<Vec<u64>>,
    /// The line it was read from, without its newline; written back as it is. A migrated event
    /// carries its line with the message id added.
    pub raw: Option<Arc<str>>,
}

/// Equal in what they say; the stored line is not compared.
impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
            && self.time == other.time
            && self.body == other.body
            && self.surface == other.surface
            && self.sources == other.sources
    }
}

impl Event {
    /// The event that `draft` becomes at `seq` and `time`.
    pub fn new(seq: u64, time: u64, draft: Draft) -> Self {
        let Draft { body, surface, sources } = draft;
        Self { seq, time, body, surface, sources, raw: None }
    }

    /// The event type's word.
    pub fn kind(&self) -> &str {
        self.body.kind()
    }

    /// The message inside, if the type carries one.
    pub fn message(&self) -> Option<&Arc<Message>> {
        self.body.message()
    }

    /// The message that a model sees of this event; an empty assistant message derives to nothing.
    pub fn derived(&self) -> Option<&Arc<Message>> {
        let message = self.body.message()?;
        let empty =
            matches!(self.body, EventBody::AssistantMessage { .. }) && message.content.is_empty();
        (!empty).then_some(message)
    }

    /// Whether this is a `turn/end`.
    pub fn is_turn_end(&self) -> bool {
        matches!(self.body, EventBody::TurnEnd { .. })
    }
}

/// An event before it has a place in a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// What happened.
    pub body: EventBody,
    /// What it does to the surface.
    pub surface: Option<SurfaceOp>,
    /// The earlier events it is made from.
    pub sources: Option<Vec<u64>>,
}

impl Draft {
    /// A draft of `body`: message-producing types append to the surface.
    pub fn new(body: EventBody) -> Self {
        let surface = body.is_surface().then_some(SurfaceOp::Append);
        Self { body, surface, sources: None }
    }

    /// The same, made from the events `sources`.
    #[must_use]
    pub fn from_sources(mut self, sources: Vec<u64>) -> Self {
        self.sources = Some(sources);
        self
    }

    /// The same, taking the place of the surface nodes from `start` to `end`.
    #[must_use]
    pub fn replacing(mut self, start: u64, end: u64) -> Self {
        self.surface = Some(SurfaceOp::Replace { start, end });
        self
    }

    /// Whether the data is lossless JSON, whatever log it may be appended to (fact-sheet 2.1).
    ///
    /// # Errors
    ///
    /// [`AppendError::Lossy`](super::AppendError::Lossy).
    pub fn check(&self) -> Result<(), super::AppendError> {
        super::lossless::check(&self.body)
    }

    /// `turn/start`.
    pub fn turn_start(turn: u64, trigger: TurnTrigger) -> Self {
        Self::new(EventBody::TurnStart { turn, trigger })
    }

    /// `turn/end`.
    pub fn turn_end(turn: u64, reason: TurnEndReason) -> Self {
        Self::new(EventBody::TurnEnd { turn, reason })
    }

    /// `step/start`.
    pub fn step_start(turn: u64, step: u64) -> Self {
        Self::new(EventBody::StepStart { turn, step })
    }

    /// `step/end`.
    pub fn step_end(turn: u64, step: u64) -> Self {
        Self::new(EventBody::StepEnd { turn, step })
    }

    /// `user/message`, appended to the surface.
    pub fn user_message(message: impl Into<Arc<Message>>) -> Self {
        Self::new(EventBody::UserMessage(message.into()))
    }

    /// `steering/message`, appended to the surface.
    pub fn steering_message(turn: u64, message: impl Into<Arc<Message>>) -> Self {
        Self::new(EventBody::SteeringMessage { turn, message: message.into() })
    }

    /// `assistant/chunk`.
    pub fn assistant_chunk(turn: u64, step: u64, chunk: RawJson) -> Self {
        Self::new(EventBody::AssistantChunk { turn, step, chunk })
    }

    /// `assistant/message` made from the chunks `chunks` (which may be none).
    pub fn assistant_message(
        turn: u64,
        step: u64,
        message: impl Into<Arc<Message>>,
        usage: Option<RawJson>,
        chunks: Vec<u64>,
    ) -> Self {
        let message = message.into();
        Self::new(EventBody::AssistantMessage { turn, step, message, usage }).from_sources(chunks)
    }

    /// `tool/call`.
    pub fn tool_call(
        turn: u64,
        step: u64,
        call_id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        let (call_id, name, arguments) = (call_id.into(), name.into(), arguments.into());
        Self::new(EventBody::ToolCall { turn, step, call_id, name, arguments })
    }

    /// `tool/result` of the `tool/call` at `call`, if one was logged.
    pub fn tool_result(
        turn: u64,
        step: u64,
        message: impl Into<Arc<Message>>,
        error: Option<ToolErrorInfo>,
        call: Option<u64>,
    ) -> Self {
        let body = EventBody::ToolResult { turn, step, message: message.into(), error, meta: None };
        let mut draft = Self::new(body);
        draft.sources = call.map(|seq| vec![seq]);
        draft
    }

    /// `request/header`.
    pub fn request_header(header: RawJson, reason: HeaderReason) -> Self {
        Self::new(EventBody::RequestHeader { header, reason })
    }

    /// `request/context`.
    pub fn request_context(
        provider: impl Into<String>,
        model: impl Into<String>,
        context_window: Option<u64>,
    ) -> Self {
        let (provider, model) = (provider.into(), model.into());
        Self::new(EventBody::RequestContext { provider, model, context_window })
    }

    /// `session/end-seed`: only [`SessionLog::new`](super::SessionLog::new) may append it.
    pub(super) fn end_seed() -> Self {
        Self::new(EventBody::EndSeed)
    }

    /// An event of a type that this layer does not interpret.
    pub fn other(kind: impl Into<Arc<str>>, data: RawJson) -> Self {
        Self::new(EventBody::Other { kind: kind.into(), data })
    }
}

/// The message of a `tool/result`: one tool-result block of one text (fact-sheet 1.2).
pub fn tool_result_message(
    id: MessageId,
    call_id: &str,
    content: Vec<crate::message::ContentBlock>,
    is_error: bool,
) -> Message {
    let block = crate::message::ContentBlock::ToolResult {
        tool_call_id: call_id.to_owned(),
        content,
        is_error,
    };
    let source = MessageSource::Tool { call_id: call_id.to_owned() };
    Message::new(id, crate::message::Role::User, vec![block], source)
}
