//! The provider seam: who can start and resume subagents (fact-sheet 1.5 and 5; design note).
//!
//! The seam knows no Task and no store. It registers providers, checks a request against the
//! provider's capabilities, dispatches it, and watches the lifecycle of the run that comes back,
//! which its holder owns.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use crate::agent::{Agent, AgentOptions, LoadedSession};
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::ids::{OwnerId, RunId, SessionId};
use crate::message::{ContentBlock, Message, MessageSource};
use crate::runtime::{BoxFuture, Panicked};
use crate::session::descriptor::{Descriptor, ToolFilter};
use crate::vocabulary::StopReason;

pub mod in_process;
mod run;
mod service;

pub use run::{Run, publish_result};
pub use service::{Registration, SubagentListener, SubagentService};

/// What a provider can do beyond starting a child. `depth_limit` gates the request's `max_depth`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Structured results.
    pub output_schema: bool,
    /// A cap on the delegation depth.
    pub depth_limit: bool,
    /// Restricting the child's tools.
    pub tool_filter: bool,
    /// A persona.
    pub persona: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self =
        Self { output_schema: true, depth_limit: true, tool_filter: true, persona: true };
}

/// What a caller asks of a provider. It carries no identity and no descriptor: only the control
/// service mints those ([`ContinuableRequest`]).
#[derive(Debug, Clone)]
pub struct StartRequest {
    /// The child's first message.
    pub prompt: Vec<ContentBlock>,
    /// Where it came from.
    pub source: MessageSource,
    /// The agent that delegates.
    pub parent: Agent,
    /// Cancels the start, and afterwards the run.
    pub signal: CancelSignal,
    /// Overrides of the parent's options.
    pub agent_options: AgentOptions,
    /// The shape of a structured result.
    pub output_schema: Option<Value>,
    /// The deepest delegation depth the child may have; 0 forbids any child of a top-level agent.
    pub max_depth: Option<u64>,
    /// Restricts the child's tools.
    pub tool_filter: Option<ToolFilter>,
    /// The child's persona.
    pub persona: Option<String>,
}

impl StartRequest {
    /// A plain text prompt from a person, with nothing else set.
    pub fn text(parent: Agent, signal: CancelSignal, prompt: impl Into<String>) -> Self {
        Self {
            prompt: vec![ContentBlock::text(prompt)],
            source: MessageSource::User,
            parent,
            signal,
            agent_options: AgentOptions::default(),
            output_schema: None,
            max_depth: None,
            tool_filter: None,
            persona: None,
        }
    }
}

/// A start that the control service resolved: the stable child id and the descriptor of the
/// composition are already decided.
#[derive(Debug, Clone)]
pub struct ContinuableRequest {
    /// What the caller asked.
    pub request: StartRequest,
    /// The first message, with its id.
    pub message: Message,
    /// The child's durable id.
    pub child: SessionId,
    /// The child's durable composition.
    pub descriptor: Descriptor,
}

/// A cold resume of an authorised child.
#[derive(Debug)]
pub struct ResumeRequest {
    /// The child.
    pub child: SessionId,
    /// The message that continues it.
    pub message: Message,
    /// The agent that continues it.
    pub parent: Agent,
    /// Cancels the resume, and afterwards the run.
    pub signal: CancelSignal,
    /// The child's composition, from its own log.
    pub descriptor: Descriptor,
    /// The child's log as it was loaded and authorised: what was authorised is what is used.
    pub loaded: LoadedSession,
}

/// How an activation's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubagentResult {
    /// The child's last visible output (contract P9).
    pub output: Vec<ContentBlock>,
    /// The structured result, if one was asked for and captured.
    pub structured: Option<Value>,
    /// Why it stopped.
    pub stop: StopReason,
    /// What to say of a stop that is neither success nor cancellation, beyond its word.
    pub detail: Option<String>,
}

impl SubagentResult {
    /// The output's text blocks, joined.
    pub fn text(&self) -> String {
        self.output.iter().filter_map(ContentBlock::as_text).collect()
    }
}

/// A start, resume or result that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SubagentError {
    /// The provider's name is taken.
    #[error("subagent provider {0:?} is already registered")]
    DuplicateProvider(String),
    /// An empty provider name.
    #[error("a subagent provider needs a name")]
    EmptyName,
    /// A listener refused a registration by panicking; it was undone.
    #[error("subagent provider {provider:?} was not registered: {cause}")]
    RegistrationVetoed {
        /// The provider.
        provider: String,
        /// The listener's panic.
        cause: Panicked,
    },
    /// No such provider.
    #[error("no subagent provider {0:?} is registered")]
    NoProvider(String),
    /// The request needs more than the provider can do.
    #[error("subagent provider {provider:?} does not support {capability}")]
    UnsupportedCapability {
        /// The provider.
        provider: String,
        /// The capability's name, as in a request.
        capability: &'static str,
    },
    /// The output schema is not an object-rooted schema of the supported kind.
    #[error("invalid output schema: {0}")]
    InvalidSchema(String),
    /// Delegation would go too deep.
    #[error("subagent depth {attempted} exceeds maxDepth {max}")]
    Depth {
        /// The child's depth.
        attempted: u64,
        /// The cap.
        max: u64,
    },
    /// The depth is beyond the largest integer JSON keeps exact.
    #[error("subagent depth {0} is out of range")]
    DepthRange(u64),
    /// Cancelled before the child was published; everything is rolled back.
    #[error("the subagent was aborted before child publication")]
    AbortedBeforePublication,
    /// The child could not be created or resumed; everything is rolled back.
    #[error("{text}")]
    Creation {
        /// The stable code.
        code: ErrorCode,
        /// What went wrong.
        text: String,
    },
    /// The final state was not confirmed durable (contract P6).
    #[error(
        "subagent \"{child}\" durability checkpoint failed; the latest state was not confirmed \
         persisted and may be unavailable or stale on resume: {cause}"
    )]
    Durability {
        /// The child.
        child: SessionId,
        /// What the store said.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The transport or the provider's own machinery failed.
    #[error("{0}")]
    Infrastructure(String),
    /// Foreign code panicked (contract P18).
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl SubagentError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::DuplicateProvider(_) => ErrorCode::DuplicateProvider,
            Self::EmptyName | Self::InvalidSchema(_) | Self::DepthRange(_) => {
                ErrorCode::InvalidInput
            }
            Self::RegistrationVetoed { .. } | Self::Panicked(_) => ErrorCode::Panicked,
            Self::NoProvider(_) => ErrorCode::NoProvider,
            Self::UnsupportedCapability { .. } => ErrorCode::UnsupportedCapability,
            Self::Depth { .. } => ErrorCode::DepthExceeded,
            Self::AbortedBeforePublication => ErrorCode::Cancelled,
            Self::Creation { code, .. } => *code,
            Self::Durability { .. } => ErrorCode::DurabilityFailed,
            Self::Infrastructure(_) => ErrorCode::ProviderFailed,
        }
    }
}

/// Why a live delivery failed. The message is in no log and in no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// The child is not running.
    #[error("the subagent is not running; the message was not delivered")]
    NotRunning,
    /// The child reported its structured result.
    #[error("the subagent already reported its structured result; the message was not delivered")]
    Captured,
    /// The turn ended, or was cancelled, before the message was admitted.
    #[error("the subagent stopped before steering admission; the message was not delivered")]
    Stopped,
    /// A provider's own reason.
    #[error("{0}; the message was not delivered")]
    Other(String),
}

/// A disposal that failed: the run's resources may be orphaned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DisposeError(pub String);

/// A future of a started or resumed run.
pub type StartFuture = BoxFuture<'static, Result<Arc<dyn SubagentRun>, SubagentError>>;

/// The admission of a steered message: ready once the message is in the log and in a request
/// snapshot. Dropping it withdraws the message if it is undrained (contract P4).
pub trait Admission: Future<Output = Result<(), SteerError>> + Send {
    /// Withdraws the message. False if it is drained already: then the admission decides.
    fn withdraw(self: Pin<&mut Self>) -> bool;
}

/// An admission under way.
pub type BoxAdmission = Pin<Box<dyn Admission>>;

/// Something that runs subagents.
///
/// Contract of `start` and `resume`: fulfil only after publication; on failure or cancellation
/// before that, clean everything up first. Afterwards the holder owns the run and disposes it, and
/// the same signal cancels the run.
pub trait SubagentProvider: Send + Sync {
    /// Its unique name.
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether a child sees its parent's conversation.
    fn inherits_parent_context(&self) -> bool;

    /// Starts a one-shot child.
    fn start(&self, request: StartRequest) -> StartFuture;

    /// Continuation. Its presence *is* the capability (contract P19).
    fn resume(&self) -> Option<&dyn ContinuableProvider> {
        None
    }
}

/// The continuation half of a provider.
pub trait ContinuableProvider: Send + Sync {
    /// Starts a child that can be continued, under the given id.
    fn start(&self, request: ContinuableRequest) -> StartFuture;

    /// Continues a persisted child.
    fn resume(&self, request: ResumeRequest) -> StartFuture;
}

/// One disposable activation of a child.
pub trait SubagentRun: Send + Sync {
    /// The child's id.
    fn child(&self) -> &SessionId;

    /// The exact agent it drives in this process, if it does.
    fn local_agent(&self) -> Option<OwnerId>;

    /// The result; may be awaited more than once. It fails only for infrastructure faults and for
    /// a required durability checkpoint, not for what the child did.
    fn result(&self) -> BoxFuture<'static, Result<SubagentResult, SubagentError>>;

    /// Disposes the run; every caller awaits the same completion.
    fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>>;

    /// Live delivery. Its presence *is* the capability (contract P19).
    fn steer(&self) -> Option<&dyn Steer> {
        None
    }
}

/// The live delivery half of a run.
pub trait Steer: Send + Sync {
    /// Pushes the message in one section, or refuses; the admission is awaited after.
    fn steer(&self, message: Message) -> Result<BoxAdmission, SteerError>;
}

/// What a lifecycle listener learns of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInfo {
    /// Unique per run; shared by its start and end.
    pub run: RunId,
    /// The provider's name.
    pub provider: String,
    /// The child.
    pub child: SessionId,
    /// Whether the child's agent lives in this process.
    pub local: bool,
    /// The delegating agent.
    pub parent: OwnerId,
}
