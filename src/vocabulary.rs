//! The words that facts, cores and answers share.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ErrorCode;

/// Where a Task stands. The last three are terminal and final (contract I3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// The producer is working.
    Running,
    /// Cancellation was accepted; the producer is winding down.
    Stopping,
    /// The producer finished and its result is confirmed.
    Completed,
    /// The producer was cancelled and is quiescent.
    Killed,
    /// The producer failed.
    Failed,
}

impl TaskStatus {
    /// Whether the status is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Killed | Self::Failed)
    }

    /// The word models and people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Killed => "killed",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The one outcome of a Task (fact-sheet 1.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// A terminal status.
    pub status: TaskStatus,
    /// The stable code of the failure, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// What a reader is told beside the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The result's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl TaskOutcome {
    /// Completed with `output`.
    pub fn completed(output: impl Into<String>) -> Self {
        Self {
            status: TaskStatus::Completed,
            code: None,
            detail: None,
            output: Some(output.into()),
        }
    }

    /// Killed; no output and no detail.
    pub fn killed() -> Self {
        Self { status: TaskStatus::Killed, code: None, detail: None, output: None }
    }

    /// Failed, with what went wrong.
    pub fn failed(code: Option<ErrorCode>, detail: impl Into<String>) -> Self {
        Self { status: TaskStatus::Failed, code, detail: Some(detail.into()), output: None }
    }
}

/// Why an activation was cancelled. The first cause wins (contract P3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelCause {
    /// `task_kill`, by the parent's model or by a person.
    Kill,
    /// The owning agent instance is closing.
    OwnerDisposed,
    /// The control service is closing.
    ControlDisposed,
    /// The Task service is closing.
    TasksDisposed,
    /// A person pressed stop.
    User,
    /// The parent cancelled its run (a foreground call, or the run's own signal).
    Parent,
    /// The call that owned the work was dropped, or its signal fired.
    CallerGone,
    /// The agent itself is being disposed.
    Disposed,
}

impl CancelCause {
    /// The default reason text of the cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Kill => "subagent activation killed",
            Self::OwnerDisposed => "owner disposed",
            Self::ControlDisposed => "subagent control service disposed",
            Self::TasksDisposed => "tasks service disposed",
            Self::User => "cancelled by the user",
            Self::Parent => "cancelled by the parent",
            Self::CallerGone => "the caller is gone",
            Self::Disposed => "agent disposed",
        }
    }
}

/// Why a turn ended, as facts name it; the session event carries the details (fact-sheet 1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnEndKind {
    /// The model finished.
    Completed,
    /// Cancelled.
    Aborted,
    /// A step failed.
    Error,
    /// The agent was disposed.
    Disposed,
    /// A response hit its token limit.
    MaxTokens,
    /// Written by crash repair only.
    Interrupted,
}

/// Why a provider's run stopped. An unknown word is never success (fact-sheet 1.5).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// Finished.
    Completed,
    /// Cancelled.
    Aborted,
    /// Failed.
    Error,
    /// Token limit.
    MaxTokens,
    /// The model declined.
    Refusal,
    /// A provider's own word.
    #[serde(untagged)]
    Other(String),
}

impl StopReason {
    /// The word for it.
    pub fn word(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::Error => "error",
            Self::MaxTokens => "max-tokens",
            Self::Refusal => "refusal",
            Self::Other(word) => word,
        }
    }
}

/// Which way a message took (design note, "Model-facing send_message").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteCode {
    /// Joined the running activation; no new Task.
    Steered,
    /// Started a fresh Task.
    Started,
}

/// The answer of a kill (fact-sheet 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KillAnswer {
    /// Cancellation was requested; the Task is stopping.
    Requested,
    /// The Task was terminal already.
    AlreadyFinished,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitEnd {
    /// With the terminal snapshot.
    Terminal,
    /// With a live snapshot, after the timeout.
    TimedOut,
    /// The caller's signal fired, or the call was dropped.
    Aborted,
}
