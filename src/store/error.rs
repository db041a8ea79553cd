//! What can go wrong with stored sessions.

use std::io;
use std::sync::Arc;

use super::disk::{DiskOperation, DiskPath};
use super::fence::FenceError;
use super::path::PathError;
use crate::error::ErrorCode;
use crate::ids::SessionId;
use crate::vocabulary::CancelCause;

/// One disk operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("could not {} {path}: {source}", .operation.word())]
pub struct DiskFailure {
    /// What was tried.
    pub operation: DiskOperation,
    /// On which file or directory.
    pub path: DiskPath,
    /// What the disk said.
    pub source: Arc<io::Error>,
}

/// Why the store refused or failed. Every variant that concerns a file names it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No session of that id is stored.
    #[error("no stored session {id}")]
    NotFound {
        /// The id.
        id: SessionId,
    },
    /// The caller's own check refused the session as it was read. Nothing was written.
    #[error("session {id} was refused before anything was written")]
    Refused {
        /// The id.
        id: SessionId,
    },
    /// The id cannot name a stored session.
    #[error("unusable session id: {0}")]
    InvalidId(#[from] PathError),
    /// The log is damaged at or before its last `turn/end` (contract P12). Nothing was written.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The log.
        file: DiskPath,
        /// Where the damage begins.
        offset: u64,
        /// What it is.
        what: String,
    },
    /// The log is of a shape that is not read (contract §1). Nothing was written.
    #[error("{file} is not supported, byte {offset}: {what}")]
    UnsupportedLog {
        /// The log.
        file: DiskPath,
        /// Where the unsupported shape stands.
        offset: u64,
        /// What it is.
        what: String,
    },
    /// The header does not belong where the file is. Nothing was written.
    #[error("the header of {file} does not belong there: {what}")]
    HeaderMismatch {
        /// The log.
        file: DiskPath,
        /// What does not fit.
        what: String,
    },
    /// The id is stored under two project directories.
    #[error("session {id} is stored twice: {first} and {second}")]
    Duplicate {
        /// The id.
        id: SessionId,
        /// One of the logs.
        first: DiskPath,
        /// Another.
        second: DiskPath,
    },
    /// The file is not as long as this store left it: somebody else writes it (contract P15).
    /// Nothing was written.
    #[error("{file} was changed by somebody else: expected {expected} bytes, found {found:?}")]
    Conflict {
        /// The log.
        file: DiskPath,
        /// The length this store left.
        expected: u64,
        /// The length now; `None` if the file is gone.
        found: Option<u64>,
    },
    /// Another runtime has the store's lease (contract P15). Nothing was written.
    #[error("another runtime holds the lease of this store")]
    LeaseHeld,
    /// The lease file has no next fencing number. Nothing was written.
    #[error("the lease file {file} cannot be used: {source}")]
    LeaseUnusable {
        /// The lease file.
        file: DiskPath,
        /// What is wrong with it.
        source: FenceError,
    },
    /// Another session of that id is live, or stored with other content.
    #[error("session {id} exists already: {what}")]
    Collision {
        /// The id.
        id: SessionId,
        /// What differs.
        what: &'static str,
    },
    /// The id's persisted history is being loaded.
    #[error("the persisted history of session {id} is loading")]
    Reserved {
        /// The id.
        id: SessionId,
    },
    /// The session's live owner is inside a turn.
    #[error("session {id} is live and its turn {turn} is open")]
    OpenTurn {
        /// The id.
        id: SessionId,
        /// The open turn.
        turn: u64,
    },
    /// The session is not attached to this store.
    #[error("session {id} is not attached to this store")]
    NotAttached {
        /// The id.
        id: SessionId,
    },
    /// An event does not follow the last one written.
    #[error("session {id}: event {found} cannot follow {expected} stored events")]
    Sequence {
        /// The id.
        id: SessionId,
        /// How many events are stored.
        expected: u64,
        /// The sequence number of the event.
        found: u64,
    },
    /// A disk operation failed.
    #[error(transparent)]
    Disk(#[from] DiskFailure),
    /// An append failed and so did taking its torn bytes back.
    #[error("{append}; and then the torn bytes could not be cut: {rollback}")]
    Rollback {
        /// Why the append failed.
        #[source]
        append: Box<StoreError>,
        /// Why the cut failed.
        rollback: Box<StoreError>,
    },
    /// The caller gave up.
    #[error("the call was given up: {}", .cause.reason())]
    Cancelled {
        /// Why.
        cause: CancelCause,
    },
    /// The store is closing.
    #[error("the session store is closing")]
    Closing,
    /// The operation's task went away.
    #[error("a store operation stopped: {what}")]
    Stopped {
        /// How.
        what: String,
    },
}

impl StoreError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::SessionNotFound,
            Self::Refused { .. } => ErrorCode::Unauthorized,
            Self::InvalidId(_) => ErrorCode::InvalidInput,
            Self::Damaged { .. } | Self::HeaderMismatch { .. } | Self::Duplicate { .. } => {
                ErrorCode::DamagedLog
            }
            Self::UnsupportedLog { .. } => ErrorCode::UnsupportedLog,
            Self::Conflict { .. } => ErrorCode::StoreConflict,
            Self::LeaseHeld => ErrorCode::LeaseHeld,
            Self::Collision { .. } | Self::Reserved { .. } => ErrorCode::SessionAlreadyExists,
            Self::OpenTurn { .. } => ErrorCode::OpenTurn,
            Self::NotAttached { .. } => ErrorCode::SessionNotLive,
            Self::Sequence { .. } => ErrorCode::InvalidInput,
            Self::Disk(_) | Self::Rollback { .. } | Self::LeaseUnusable { .. } => {
                ErrorCode::StoreFailed
            }
            Self::Cancelled { .. } => ErrorCode::Cancelled,
            Self::Closing => ErrorCode::Closing,
            Self::Stopped { .. } => ErrorCode::Panicked,
        }
    }
}

/// One session that a closing store could not confirm.
#[derive(Debug, Clone)]
pub struct CloseFailure {
    /// The session; `None` if closing itself stopped.
    pub session: Option<SessionId>,
    /// Why.
    pub error: StoreError,
}

/// Closing the store left sessions unconfirmed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{} sessions were not confirmed durable, the first because {}", .failures.len(), .failures[0].error)]
pub struct CloseError {
    /// At least one.
    pub failures: Vec<CloseFailure>,
}
