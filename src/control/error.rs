//! What the control service answers when it cannot do what it was asked.

use std::sync::Arc;

use crate::error::ErrorCode;
use crate::ids::{IdError, SessionId, TaskId};
use crate::provider::{SteerError, SubagentError};
use crate::session::descriptor::DescriptorError;
use crate::store::StoreError;
use crate::task::TaskRefusal;
use crate::vocabulary::TaskStatus;

/// A refused start or send, or the reason of a failed activation. A refused send was not delivered:
/// the message is in no log and in no request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ControlError {
    /// No session store: nothing could ever be continued.
    #[error("continuable subagents require session persistence; the message was not delivered")]
    PersistenceUnavailable,
    /// The child's id cannot name a session.
    #[error("invalid subagent id: {0}; the message was not delivered")]
    InvalidId(#[from] IdError),
    /// The composition cannot be kept durably.
    #[error("the subagent's composition is not losslessly JSON-serializable: {0}")]
    Composition(#[from] DescriptorError),
    /// The control service is closing.
    #[error("the subagent control service is closing; the message was not delivered")]
    Closing,
    /// The Task service refused the Task.
    #[error("{0}")]
    Task(#[from] TaskRefusal),
    /// A live agent of that id has no activation here (contract I14).
    #[error(
        "subagent \"{child}\" has a live agent outside control-service ownership; the message was \
         not delivered"
    )]
    OutsideOwnership {
        /// The child.
        child: SessionId,
    },
    /// The live agent of that id is not the activation's.
    #[error(
        "subagent \"{child}\": the registry agent is not the associated activation's agent; the \
         message was not delivered"
    )]
    NotAssociated {
        /// The child.
        child: SessionId,
    },
    /// The activation's Task takes nothing any more.
    #[error(
        "task {task} of subagent \"{child}\" is {status}; the message was not delivered, retry \
         after it settles"
    )]
    NotRunning {
        /// The child.
        child: SessionId,
        /// Its Task.
        task: TaskId,
        /// Where it stands.
        status: TaskStatus,
    },
    /// The activation has no run yet.
    #[error(
        "subagent \"{child}\": its activation is starting in task {task}; the message was not \
         delivered"
    )]
    Starting {
        /// The child.
        child: SessionId,
        /// Its Task.
        task: TaskId,
    },
    /// The run takes no messages.
    #[error(
        "the provider of subagent \"{child}\" does not accept live delivery; the message was not \
         delivered"
    )]
    NoLiveDelivery {
        /// The child.
        child: SessionId,
    },
    /// The run stopped, or was cancelled, before the message was admitted.
    #[error("subagent \"{child}\" stopped before delivery: {cause}")]
    Stopped {
        /// The child.
        child: SessionId,
        /// What the run said.
        cause: SteerError,
    },
    /// The caller gave up before the message was admitted (contract P4).
    #[error("the send to subagent \"{child}\" was cancelled; the message was not delivered")]
    Cancelled {
        /// The child.
        child: SessionId,
    },
    /// The id names nothing that can be loaded.
    #[error("subagent \"{child}\" is unavailable: {cause}")]
    Unavailable {
        /// The child.
        child: SessionId,
        /// What the store said.
        cause: Arc<StoreError>,
    },
    /// Another session is the child's parent.
    #[error("subagent \"{child}\" is unavailable: it belongs to another parent session")]
    Unauthorized {
        /// The child.
        child: SessionId,
    },
    /// Another activation was authorised first (contract P5).
    #[error(
        "subagent \"{child}\" is unavailable: task {task} holds it; the message was not delivered"
    )]
    Held {
        /// The child.
        child: SessionId,
        /// The Task of the activation that holds it.
        task: TaskId,
    },
    /// The child's log has no usable descriptor.
    #[error(
        "subagent \"{child}\" is unavailable: it has no supported continuation state and cannot be \
         resumed{}; do not retry send_message with this id", .cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default()
    )]
    NoContinuation {
        /// The child.
        child: SessionId,
        /// Why the descriptor cannot be used, if there is one.
        cause: Option<DescriptorError>,
    },
    /// The provider could not start, resume or finish the run.
    #[error(transparent)]
    Subagent(#[from] SubagentError),
}

impl ControlError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::PersistenceUnavailable => ErrorCode::PersistenceUnavailable,
            Self::InvalidId(_) | Self::Composition(_) => ErrorCode::InvalidInput,
            Self::Closing => ErrorCode::Closing,
            Self::Task(refusal) => refusal.code(),
            Self::OutsideOwnership { .. } | Self::NotAssociated { .. } => {
                ErrorCode::OwnershipConflict
            }
            Self::NotRunning { .. }
            | Self::Starting { .. }
            | Self::NoLiveDelivery { .. }
            | Self::Stopped { .. }
            | Self::Held { .. } => ErrorCode::NotDelivered,
            Self::Cancelled { .. } => ErrorCode::Cancelled,
            // Another runtime has the session: that is worth a word of its own (contract P15).
            Self::Unavailable { cause, .. } => match cause.code() {
                code @ (ErrorCode::StoreConflict | ErrorCode::LeaseHeld) => code,
                _ => ErrorCode::NotResumable,
            },
            Self::NoContinuation { .. } => ErrorCode::NotResumable,
            Self::Unauthorized { .. } => ErrorCode::Unauthorized,
            Self::Subagent(error) => error.code(),
        }
    }

    /// How a failed Task tells it: the bare message of a durability failure, else the error's name
    /// and its message (fact-sheet 7.2, 7.5).
    pub fn detail(&self) -> String {
        match self {
            Self::Subagent(error) => subagent_detail(error),
            error => format!("SubagentControlError: {error}"),
        }
    }
}

/// How a failed Task tells a provider's error.
pub fn subagent_detail(error: &SubagentError) -> String {
    match error {
        SubagentError::Durability { .. } => error.to_string(),
        SubagentError::Infrastructure(text) => format!("Error: {text}"),
        SubagentError::Depth { .. } => format!("SubagentDepthError: {error}"),
        error => format!("SubagentError: {error}"),
    }
}
