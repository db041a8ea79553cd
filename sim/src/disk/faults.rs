//! Which disk operation fails, and how.

use std::fmt;
use std::io::{self, ErrorKind};

use continuable::channel::Latch;
use continuable::store::disk::{DiskOperation, DiskPath};
use continuable::sync::{LockClass, Mutex};
use serde::{Deserialize, Serialize};

/// The errors that a disk answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskError {
    /// EIO.
    Io,
    /// ENOSPC.
    Full,
    /// EROFS.
    ReadOnly,
    /// EACCES.
    Denied,
}

impl From<DiskError> for io::Error {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::Io => Self::other("input/output error"),
            DiskError::Full => Self::new(ErrorKind::StorageFull, "snapshot disk full"),
            DiskError::ReadOnly => {
                Self::new(ErrorKind::ReadOnlyFilesystem, "read-only file system")
            }
            DiskError::Denied => Self::new(ErrorKind::PermissionDenied, "permission denied"),
        }
    }
}

/// What happens to one operation.
#[derive(Debug, Clone)]
pub enum DiskFault {
    /// It fails and changes nothing; a failed sync drops the dirty bytes (contract P6).
    Fail(DiskError),
    /// A write leaves its first bytes and fails.
    Torn {
        /// How many bytes it leaves.
        keep: u64,
        /// How it fails.
        error: DiskError,
    },
    /// A read returns at most so many bytes, and at least one if there is one.
    Short {
        /// How many.
        bytes: u64,
    },
    /// It takes so long, then works. Needs a disk with a runtime.
    Slow {
        /// How long.
        milliseconds: u64,
    },
    /// It waits until somebody sets the latch, then works.
    Hold(Latch<()>),
    /// It never answers: the process has died.
    Never,
}

/// Decides each operation's fate. Called with no lock held.
pub trait DiskFaults: Send + Sync {
    /// The fault that strikes `operation` on `path`, the `ordinal`-th operation of the disk.
    fn decide(&self, operation: DiskOperation, path: &DiskPath, ordinal: u64) -> Option<DiskFault>;
}

impl<F> DiskFaults for F
where
    F: Fn(DiskOperation, &DiskPath, u64) -> Option<DiskFault> + Send + Sync,
{
    fn decide(&self, operation: DiskOperation, path: &DiskPath, ordinal: u64) -> Option<DiskFault> {
        self(operation, path, ordinal)
    }
}

/// One fault of a plan.
#[derive(Debug, Clone)]
pub struct FaultRule {
    /// Which operation it strikes.
    pub operation: DiskOperation,
    /// Only paths that contain this text.
    pub path_contains: String,
    /// How many matching operations pass first.
    pub skip: u64,
    /// How many it strikes; `None` means all from then on.
    pub times: Option<u64>,
    /// What happens to them.
    pub fault: DiskFault,
}

impl FaultRule {
    /// Strikes the next `operation`, once.
    pub fn once(operation: DiskOperation, fault: DiskFault) -> Self {
        Self { operation, path_contains: String::new(), skip: 0, times: Some(1), fault }
    }

    /// Strikes every `operation` from now on.
    pub fn from_now_on(operation: DiskOperation, fault: DiskFault) -> Self {
        Self { times: None, ..Self::once(operation, fault) }
    }

    /// The same after `skip` matching operations passed.
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// The same, only on paths that contain `text`.
    pub fn on(mut self, text: impl Into<String>) -> Self {
        self.path_contains = text.into();
        self
    }

    fn strike(&mut self, operation: DiskOperation, path: &DiskPath) -> Option<DiskFault> {
        if self.operation != operation || !path.as_str().contains(&self.path_contains) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        match &mut self.times {
            Some(0) => return None,
            Some(times) => *times -= 1,
            None => {}
        }
        Some(self.fault.clone())
    }
}

/// A list of rules; the first that strikes decides.
pub struct FaultRules(Mutex<Vec<FaultRule>>);

impl FaultRules {
    /// These rules.
    pub fn new(rules: impl IntoIterator<Item = FaultRule>) -> Self {
        Self(Mutex::new(LockClass::Leaf, rules.into_iter().collect()))
    }
}

impl fmt::Debug for FaultRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultRules").field(&*self.0.lock()).finish()
    }
}

impl DiskFaults for FaultRules {
    fn decide(&self, operation: DiskOperation, path: &DiskPath, _: u64) -> Option<DiskFault> {
        self.0.lock().iter_mut().find_map(|rule| rule.strike(operation, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_strikes_after_its_skips_and_as_often_as_it_says() {
        let fault = DiskFault::Fail(DiskError::Full);
        let rules =
            FaultRules::new([FaultRule::once(DiskOperation::Append, fault).after(1).on("a")]);
        let (a, b) = (DiskPath::root().child("a"), DiskPath::root().child("b"));
        let strikes = |operation, path| rules.decide(operation, path, 0).is_some();
        assert!(!strikes(DiskOperation::Append, &a));
        assert!(!strikes(DiskOperation::Append, &b));
        assert!(!strikes(DiskOperation::Sync, &a));
        assert!(strikes(DiskOperation::Append, &a));
        assert!(!strikes(DiskOperation::Append, &a));
    }
}
