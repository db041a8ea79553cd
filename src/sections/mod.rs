//! The critical sections of contract P1: locks in order, calls to cores, and what is left to do
//! after unlocking (wakes, receipts, observers) returned to the caller.
//!
//! Sections are generic over what they hold and name only the cores, so that `tests/loom.rs` can
//! include them by path with its own lock.

pub mod admission;
pub mod publication;
pub mod settlement;
pub mod slot;
pub mod steering;

use crate::cancel::{CancelDecision, CancelSignal, SlotGuard};
use crate::vocabulary::CancelCause;

pub use slot::{Slot, SlotLock};

impl Slot for SlotGuard<'_> {
    fn accept(&mut self, cause: CancelCause) -> CancelDecision {
        SlotGuard::accept(self, cause)
    }

    fn publish(&mut self) -> Option<CancelCause> {
        SlotGuard::publish(self)
    }

    fn cause(&self) -> Option<CancelCause> {
        SlotGuard::cause(self)
    }

    fn is_published(&self) -> bool {
        SlotGuard::is_published(self)
    }
}

impl SlotLock for CancelSignal {
    type Guard<'a> = SlotGuard<'a>;

    fn lock(&self) -> SlotGuard<'_> {
        CancelSignal::lock(self)
    }
}
