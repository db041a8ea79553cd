//! Stable error codes. Nothing in this crate ever decides by a message's text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stable code of an error that a caller or the world can cause. The words are the wire
/// contract (fact-sheet §12 and contract).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// No session store is configured.
    PersistenceUnavailable,
    /// A live agent exists that the control service does not own (contract I14).
    OwnershipConflict,
    /// The message is in no log and in no request, and will not be.
    NotDelivered,
    /// The id names nothing that can be continued.
    NotResumable,
    /// The child belongs to another parent session.
    Unauthorized,
    /// The operation was cancelled before it took effect.
    Cancelled,
    /// The final state was not confirmed durable.
    DurabilityFailed,
    /// A provider of that name is registered already.
    DuplicateProvider,
    /// No provider of that name.
    NoProvider,
    /// The provider lacks a capability the request needs.
    UnsupportedCapability,
    /// A tool call was never started.
    ToolNotStarted,
    /// A tool call was started and its outcome was lost.
    ToolOutcomeUnknown,
    /// No tool of that name.
    UnknownTool,
    /// A tool's arguments do not fit its schema.
    InvalidArgs,
    /// A tool call was not run because its turn was cancelled first.
    AbortedBeforeDispatch,
    /// No session of that id.
    SessionNotFound,
    /// The session has no live owner.
    SessionNotLive,
    /// A session of that id exists.
    SessionAlreadyExists,
    /// A fork boundary outside the log.
    InvalidBoundary,
    /// The session's turn is open.
    OpenTurn,
    /// The store file was changed by somebody else (contract P15).
    StoreConflict,
    /// Another runtime holds the session's lease (contract P15).
    LeaseHeld,
    /// A log of an unsupported legacy shape (contract §1).
    UnsupportedLog,
    /// A log is damaged at or before its last `turn/end` (contract P12).
    DamagedLog,
    /// A disk operation failed.
    StoreFailed,
    /// A value that is not losslessly JSON, or an argument out of its range.
    InvalidInput,
    /// Delegation would be deeper than allowed.
    DepthExceeded,
    /// No control surface is attached (contract I21).
    NoControlSurface,
    /// No Task of that id.
    UnknownTask,
    /// The Task belongs to another session.
    ForeignTask,
    /// The owner is not the registered instance, or is closing.
    OwnerUnavailable,
    /// The service is closing.
    Closing,
    /// The wait's signal fired.
    WaitAborted,
    /// Foreign code panicked (contract P18).
    Panicked,
    /// A Task's producer failed in an operation of its own: its cancel hook, its reader.
    ProducerFailed,
    /// A provider's own machinery failed.
    ProviderFailed,
    /// The run's disposal failed.
    DisposeFailed,
    /// The model failed.
    ModelFailed,
    /// A foreground subagent ended without success.
    SubagentFailed,
    /// The operation needs a service that is not loaded.
    ServiceUnavailable,
}

impl ErrorCode {
    /// The wire word, such as `NOT_DELIVERED`.
    pub fn word(self) -> &'static str {
        match self {
            Self::PersistenceUnavailable => "PERSISTENCE_UNAVAILABLE",
            Self::OwnershipConflict => "OWNERSHIP_CONFLICT",
            Self::NotDelivered => "NOT_DELIVERED",
            Self::NotResumable => "NOT_RESUMABLE",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::Cancelled => "CANCELLED",
            Self::DurabilityFailed => "DURABILITY_FAILED",
            Self::DuplicateProvider => "DUPLICATE_PROVIDER",
            Self::NoProvider => "NO_PROVIDER",
            Self::UnsupportedCapability => "UNSUPPORTED_CAPABILITY",
            Self::ToolNotStarted => "TOOL_NOT_STARTED",
            Self::ToolOutcomeUnknown => "TOOL_OUTCOME_UNKNOWN",
            Self::UnknownTool => "UNKNOWN_TOOL",
            Self::InvalidArgs => "INVALID_ARGS",
            Self::AbortedBeforeDispatch => "ABORTED_BEFORE_DISPATCH",
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::SessionNotLive => "SESSION_NOT_LIVE",
            Self::SessionAlreadyExists => "SESSION_ALREADY_EXISTS",
            Self::InvalidBoundary => "INVALID_BOUNDARY",
            Self::OpenTurn => "OPEN_TURN",
            Self::StoreConflict => "STORE_CONFLICT",
            Self::LeaseHeld => "LEASE_HELD",
            Self::UnsupportedLog => "UNSUPPORTED_LOG",
            Self::DamagedLog => "DAMAGED_LOG",
            Self::StoreFailed => "STORE_FAILED",
            Self::InvalidInput => "INVALID_INPUT",
            Self::DepthExceeded => "DEPTH_EXCEEDED",
            Self::NoControlSurface => "NO_CONTROL_SURFACE",
            Self::UnknownTask => "UNKNOWN_TASK",
            Self::ForeignTask => "FOREIGN_TASK",
            Self::OwnerUnavailable => "OWNER_UNAVAILABLE",
            Self::Closing => "CLOSING",
            Self::WaitAborted => "WAIT_ABORTED",
            Self::Panicked => "PANICKED",
            Self::ProducerFailed => "PRODUCER_FAILED",
            Self::ProviderFailed => "PROVIDER_FAILED",
            Self::DisposeFailed => "DISPOSE_FAILED",
            Self::ModelFailed => "MODEL_FAILED",
            Self::SubagentFailed => "SUBAGENT_FAILED",
            Self::ServiceUnavailable => "SERVICE_UNAVAILABLE",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_word_is_what_serde_writes() {
        for code in [ErrorCode::DurabilityFailed, ErrorCode::NotDelivered, ErrorCode::InvalidArgs] {
            let json = serde_json::to_string(&code).expect("a code serialises");
            assert_eq!(json, format!("\"{}\"", code.word()));
        }
    }
}
