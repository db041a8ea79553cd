//! Names: sessions, Tasks, messages, exact agent instances, runs and activations.
//!
//! A [`SessionId`] is shared by an agent and its session and is opaque text; the store escapes it
//! before it ever becomes a path. An [`OwnerId`] names one exact agent *instance*: a replacement
//! with the same session id has another `OwnerId` (contract P13, I12).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest session id accepted from a caller, in UTF-16 units (contract P5).
pub const SESSION_ID_MAX_UNITS: usize = 1_024;

/// Why an id was refused before anything was created (contract P5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The id is the empty string.
    #[error("the session id is empty")]
    Empty,
    /// The id is longer than [`SESSION_ID_MAX_UNITS`].
    #[error("the session id has {units} UTF-16 units; at most {SESSION_ID_MAX_UNITS} are allowed")]
    TooLong {
        /// Its length, in UTF-16 units.
        units: usize,
    },
}

macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps `text` unchecked.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
    };
}

text_id! {
    /// The id of a session and of the agent that lives in it; for a child also the child id.
    SessionId
}
text_id! {
    /// The id of a Task: `<kind>-<n>`, counted from 1 per kind (contract P13). Predictable, so never a
    /// secret.
    TaskId
}
text_id! {
    /// The id of one message; a random UUID minted when the message is created.
    MessageId
}

impl SessionId {
    /// Accepts an id that a caller supplied, or says why it cannot name a session.
    pub fn checked(text: &str) -> Result<Self, IdError> {
        let units = text.encode_utf16().count();
        match units {
            0 => Err(IdError::Empty),
            units if units > SESSION_ID_MAX_UNITS => Err(IdError::TooLong { units }),
            _ => Ok(Self::new(text)),
        }
    }
}

impl TaskId {
    /// The id of the `ordinal`-th Task of `kind`.
    pub fn of(kind: &str, ordinal: u64) -> Self {
        Self::new(format!("{kind}-{ordinal}"))
    }

    /// Splits the id into its kind and its ordinal; `None` if it is not of that form.
    pub fn parts(&self) -> Option<(&str, u64)> {
        let (kind, ordinal) = self.0.rsplit_once('-')?;
        Some((kind, ordinal.parse().ok()?))
    }
}

macro_rules! number_id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id! {
    /// One exact agent instance: a number never reused in the process (contract P13).
    OwnerId, "agent#"
}
number_id! {
    /// One activation of a child: from the association's installation to its removal.
    ActivationId, "activation#"
}
number_id! {
    /// One run of a provider; shared by its start and end events.
    RunId, "run#"
}

/// Renders 16 random bytes as a version 4 UUID. The bytes come from the runtime's random source.
pub fn uuid_text(random: [u64; 2]) -> String {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random[0].to_be_bytes());
    bytes[8..].copy_from_slice(&random[1].to_be_bytes());
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_splits_at_its_last_dash() {
        assert_eq!(TaskId::of("pty-send", 3).parts(), Some(("pty-send", 3)));
        assert_eq!(TaskId::new("subagent").parts(), None);
        assert_eq!(TaskId::new("subagent-x").parts(), None);
    }

    #[test]
    fn empty_and_oversize_session_ids_are_refused() {
        assert_eq!(SessionId::checked(""), Err(IdError::Empty));
        let long = "𝄞".repeat(513);
        assert_eq!(SessionId::checked(&long), Err(IdError::TooLong { units: 1_026 }));
        assert!(SessionId::checked(&"a".repeat(SESSION_ID_MAX_UNITS)).is_ok());
    }

    #[test]
    fn uuids_are_version_four() {
        let text = uuid_text([u64::MAX, u64::MAX]);
        assert_eq!(text, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
