//! What a person is shown, as it goes over the wire.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::protocol::RpcError;
use crate::error::ErrorCode;
use crate::ids::{SessionId, TaskId};
use crate::session::SessionHeader;
use crate::store::{Listed, StoredSession};
use crate::task::TaskSnapshot;
use crate::vocabulary::{KillAnswer, RouteCode, TaskStatus};

/// A page of a transcript holds at least one event, and then no more than this many bytes.
pub const PAGE_BYTES: usize = 1 << 20;

/// A result, ready for the wire.
pub(super) fn value(result: &impl Serialize) -> Result<Box<RawValue>, RpcError> {
    to_raw_value(result).map_err(|error| RpcError::refused(ErrorCode::InvalidInput, error))
}

/// A Task at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Its kind, such as `subagent`.
    pub kind: String,
    /// What people read.
    pub label: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// A failure's stable code, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// What a reader is told beside the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When it was registered, in milliseconds since the Unix epoch.
    pub started_at: u64,
    /// When its outcome was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<u64>,
}

impl From<TaskSnapshot> for Task {
    fn from(task: TaskSnapshot) -> Self {
        let TaskSnapshot { id, kind, label, status, code, detail, started_at, finished_at, .. } =
            task;
        Self { id, kind, label, status, code, detail, started_at, finished_at }
    }
}

/// The result of `children`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Children {
    /// In the order of their ids; those that are not stored yet come last.
    pub children: Vec<Child>,
}

/// One child of a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Child {
    /// Names it for ever.
    pub id: SessionId,
    /// When it was created, in milliseconds since the Unix epoch; absent while it is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<u64>,
    /// How many events a load would keep.
    pub events: u64,
    /// The Task of its running activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Why its log cannot be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ChildError>,
}

/// Why a child's log cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildError {
    /// The stable code.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Child {
    pub(super) fn stored(listed: Listed, task: Option<Task>) -> Self {
        let Listed { id, header, events, error, .. } = listed;
        let error =
            error.map(|error| ChildError { code: error.code(), message: error.to_string() });
        Self { id, created_at: header.map(|header| header.created_at), events, task, error }
    }

    pub(super) fn starting(id: SessionId, task: Option<Task>) -> Self {
        Self { id, created_at: None, events: 0, task, error: None }
    }
}

/// The result of `transcript`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transcript {
    /// What the session is.
    pub header: Header,
    /// Its events, as its log has them.
    pub events: Vec<Box<RawValue>>,
    /// Where to read on; `None` at the end.
    pub next: Option<u64>,
}

/// What a session is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The session.
    pub id: SessionId,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_at: u64,
    /// Its working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The session that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_session: Option<SessionId>,
    /// How many leading events came from its parent by a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_length: Option<u64>,
    /// How deep in a tree of delegations it is.
    pub delegation_depth: u64,
}

impl From<&SessionHeader> for Header {
    fn from(header: &SessionHeader) -> Self {
        Self {
            id: header.id.clone(),
            created_at: header.created_at,
            cwd: header.cwd.clone(),
            parent_session: header.parent_session.clone(),
            seed_length: header.seed_length,
            delegation_depth: header.delegation_depth,
        }
    }
}

impl Transcript {
    /// The page of `stored` that begins at event `from`.
    pub(super) fn page(stored: &StoredSession, from: u64) -> Result<Self, RpcError> {
        let (mut events, mut bytes, mut next) = (Vec::new(), 0, None);
        let first = usize::try_from(from).unwrap_or(usize::MAX);
        for (place, event) in stored.events.iter().enumerate().skip(first) {
            let line = event.to_line();
            bytes += line.len();
            if bytes > PAGE_BYTES && !events.is_empty() {
                next = Some(place as u64);
                break;
            }
            let event = RawValue::from_string(line);
            events.push(event.map_err(|error| RpcError::refused(ErrorCode::DamagedLog, error))?);
        }
        Ok(Self { header: (&stored.header).into(), events, next })
    }
}

/// The result of `send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The route the message took.
    pub route: RouteCode,
    /// The Task whose result it is part of.
    pub task: TaskId,
}

/// The result of `wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waited {
    /// The Task: terminal, unless the timeout came first.
    pub task: Task,
}

/// The result of `output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The whole output; empty while the Task is live.
    pub text: String,
    /// The Task after the read.
    pub task: Task,
}

/// The result of `kill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    /// What was done.
    pub answer: KillAnswer,
}
