//! Cancellation as a signal followed by quiescence (contract P3, architecture §4 rule 3).

use std::fmt;
use std::sync::Arc;

use crate::channel::Latch;
use crate::facts::{CancelScope, Fact};
use crate::runtime::Runtime;
use crate::sync::{Access, LockClass, Mutex, MutexGuard, ObjectKind, fresh_key, touch};
use crate::vocabulary::CancelCause;

pub mod slot;

pub use slot::{CancelDecision, CancelSlot};

struct Inner {
    scope: CancelScope,
    key: u64,
    slot: Mutex<CancelSlot>,
    fired: Latch<CancelCause>,
    runtime: Arc<dyn Runtime>,
}

/// A cancellation authority: a slot that the first cause wins, and its waiters. Cloning shares it.
#[derive(Clone)]
pub struct CancelSignal {
    inner: Arc<Inner>,
}

impl CancelSignal {
    /// A fresh signal of `scope`.
    pub fn new(runtime: Arc<dyn Runtime>, scope: CancelScope) -> Self {
        let slot = Mutex::new(LockClass::Cancel, CancelSlot::default());
        let inner = Inner { scope, key: fresh_key(), slot, fired: Latch::new(), runtime };
        Self { inner: Arc::new(inner) }
    }

    /// What the signal cancels, as facts name it.
    pub fn scope(&self) -> &CancelScope {
        &self.inner.scope
    }

    /// Locks the slot, for the sections that need it together with other locks. Writes through it
    /// must be followed by [`CancelSignal::fire`] after every lock is released.
    pub fn lock(&self) -> SlotGuard<'_> {
        SlotGuard { signal: self, slot: self.inner.slot.lock() }
    }

    /// Accepts `cause` in a section of its own, then wakes whoever waits.
    pub fn cancel(&self, cause: CancelCause) -> CancelDecision {
        let decision = self.lock().accept(cause);
        self.wake(decision, cause);
        decision
    }

    /// Wakes the waiters after a `decision` about `cause` that was made through
    /// [`CancelSignal::lock`]. Runs with no lock held and takes none of ours.
    pub fn wake(&self, decision: CancelDecision, cause: CancelCause) {
        match decision {
            CancelDecision::Accepted => {
                self.inner.fired.set(cause);
            }
            CancelDecision::Already(first) => {
                self.inner.fired.set(first);
            }
            CancelDecision::AfterPublication => {}
        }
    }

    /// Whether the waiters were woken. Takes no lock of ours, so it may be asked under any.
    pub fn has_fired(&self) -> bool {
        self.inner.fired.get().is_some()
    }

    /// Wakes the waiters if a cause was accepted. Runs with no lock held.
    pub fn fire(&self) {
        if let Some(cause) = self.cause() {
            self.inner.fired.set(cause);
        }
    }

    /// The accepted cause, if any.
    pub fn cause(&self) -> Option<CancelCause> {
        self.lock().cause()
    }

    /// Whether a cancellation was accepted.
    pub fn is_cancelled(&self) -> bool {
        self.cause().is_some()
    }

    /// Waits until a cancellation is accepted; ready at once if one was.
    pub async fn cancelled(&self) -> CancelCause {
        self.inner.fired.wait().await
    }

    /// Whether both are one signal.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for CancelSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelSignal({:?})", self.inner.scope)
    }
}

/// A locked [`CancelSlot`] that records what was read and written.
pub struct SlotGuard<'a> {
    signal: &'a CancelSignal,
    slot: MutexGuard<'a, CancelSlot>,
}

impl SlotGuard<'_> {
    /// [`CancelSlot::accept`], recorded as a fact when it is the first.
    pub fn accept(&mut self, cause: CancelCause) -> CancelDecision {
        touch(ObjectKind::Cancel, self.signal.inner.key, Access::Write);
        let decision = self.slot.accept(cause);
        let scope = self.signal.inner.scope.clone();
        match decision {
            CancelDecision::Accepted => {
                self.signal.inner.runtime.fact(Fact::CancelAccepted { scope, cause });
            }
            CancelDecision::Already(first) => {
                self.signal.inner.runtime.fact(Fact::CancelRepeated { scope, first });
            }
            CancelDecision::AfterPublication => {
                self.signal.inner.runtime.fact(Fact::CancelTooLate { scope, cause });
            }
        }
        decision
    }

    /// [`CancelSlot::publish`].
    pub fn publish(&mut self) -> Option<CancelCause> {
        touch(ObjectKind::Cancel, self.signal.inner.key, Access::Write);
        self.slot.publish()
    }

    /// The accepted cause.
    pub fn cause(&self) -> Option<CancelCause> {
        touch(ObjectKind::Cancel, self.signal.inner.key, Access::Read);
        self.slot.cause()
    }

    /// Whether the result was published.
    pub fn is_published(&self) -> bool {
        touch(ObjectKind::Cancel, self.signal.inner.key, Access::Read);
        self.slot.is_published()
    }
}
