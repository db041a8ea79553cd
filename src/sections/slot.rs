//! A cancel slot as sections see it, so that they name no lock but their own.

use crate::cancel::slot::CancelDecision;
use crate::vocabulary::CancelCause;

/// A locked cancel slot.
pub trait Slot {
    /// Writes `cause` if nothing was written and no result was published.
    fn accept(&mut self, cause: CancelCause) -> CancelDecision;
    /// Publishes the result and returns the cancellation accepted before it.
    fn publish(&mut self) -> Option<CancelCause>;
    /// The accepted cause.
    fn cause(&self) -> Option<CancelCause>;
    /// Whether the result was published.
    fn is_published(&self) -> bool;
}

/// A lock of class `Cancel` around a cancel slot.
pub trait SlotLock {
    /// The locked slot.
    type Guard<'a>: Slot
    where
        Self: 'a;

    /// Takes the lock.
    fn lock(&self) -> Self::Guard<'_>;
}
