//! Why a delegation failed.

use crate::control::ControlError;
use crate::error::ErrorCode;
use crate::provider::{DisposeError, SubagentError};
use crate::runtime::Panicked;
use crate::task::TaskError;
use crate::vocabulary::StopReason;

/// A delegation that was refused or that failed. Partial output is never part of it: it must not
/// pass for a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DelegateError {
    /// Nobody to delegate for.
    #[error("the {0} tool requires a calling agent")]
    NoCaller(String),
    /// An argument is missing or no string.
    #[error("the argument {0} must be a string")]
    Argument(&'static str),
    /// The instance only runs in the foreground.
    #[error("run_in_background is disabled for this tool instance")]
    BackgroundDisabled,
    /// The call was cancelled before it did anything.
    #[error("tool call aborted before dispatch")]
    Aborted,
    /// The provider is gone.
    #[error("no subagent provider {0:?} is registered")]
    NoProvider(String),
    /// Continuable children need the control service.
    #[error(
        "continuable subagents are unavailable: load the subagent-control package \
         (`control::SubagentControlService`)"
    )]
    NoControl,
    /// The caller could not continue the child, so it is not started.
    #[error(
        "continuable subagents are unavailable: the calling agent has no send_message tool; load \
         the tool-subagent-control package (`tools::send_message`) and allow it to the agent"
    )]
    NoSendMessage,
    /// One-shot background runs need the Task service.
    #[error("background tasks unavailable: load the tasks package (`task::TaskService`)")]
    NoTasks,
    /// The control service refused the start.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The Task service refused the start.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The run could not be started, or its result was lost.
    #[error("the subagent could not run: {0}")]
    Run(#[from] SubagentError),
    /// The run ended without success.
    #[error("{}", stopped(stop, detail.as_deref()))]
    Stopped {
        /// Why it stopped.
        stop: StopReason,
        /// What else there is to say.
        detail: Option<String>,
    },
    /// The run's resources may be orphaned. What else went wrong is not hidden by that, nor that by
    /// it (reference bug 19).
    #[error("{}dispose failed: Error: {cause}", .run.as_ref().map(|e| format!("{e}; ")).unwrap_or_default())]
    Undisposed {
        /// How the run itself failed, if it did.
        run: Option<Box<DelegateError>>,
        /// Why it was not disposed.
        cause: DisposeError,
    },
    /// A broken invariant of ours.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

fn stopped(stop: &StopReason, detail: Option<&str>) -> String {
    let text = match stop {
        StopReason::Aborted => "the subagent was cancelled".to_owned(),
        StopReason::MaxTokens => "the subagent reached its token limit".to_owned(),
        StopReason::Refusal => "the subagent declined the task".to_owned(),
        StopReason::Other(word) => format!("the subagent stopped abnormally ({word})"),
        StopReason::Error | StopReason::Completed => "the subagent failed".to_owned(),
    };
    match detail {
        Some(detail) => format!("{text}: {detail}"),
        None => text,
    }
}

impl DelegateError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoCaller(_) | Self::BackgroundDisabled => ErrorCode::InvalidInput,
            Self::Argument(_) => ErrorCode::InvalidArgs,
            Self::Aborted => ErrorCode::AbortedBeforeDispatch,
            Self::NoProvider(_) => ErrorCode::NoProvider,
            Self::NoControl | Self::NoSendMessage | Self::NoTasks => ErrorCode::ServiceUnavailable,
            Self::Control(error) => error.code(),
            Self::Task(error) => error.code(),
            Self::Run(error) => error.code(),
            Self::Stopped { stop: StopReason::Aborted, .. } => ErrorCode::Cancelled,
            Self::Stopped { .. } => ErrorCode::SubagentFailed,
            Self::Undisposed { run, .. } => {
                run.as_ref().map_or(ErrorCode::DisposeFailed, |error| error.code())
            }
            Self::Panicked(_) => ErrorCode::Panicked,
        }
    }
}
