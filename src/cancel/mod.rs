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
    /// The cause, and what the canceller said of it.
    fired: Latch<(CancelCause, Option<Arc<str>>)>,
    kill_words: &'static str,
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
        Self::killed_as(runtime, scope, CancelCause::Kill.reason())
    }

    /// A fresh signal of `scope` whose kills, unless they say more, are called `kill_words`.
    pub fn killed_as(
        runtime: Arc<dyn Runtime>,
        scope: CancelScope,
        kill_words: &'static str,
    ) -> Self {
        let slot = Mutex::new(LockClass::Cancel, CancelSlot::default());
        let (key, fired) = (fresh_key(), Latch::new());
        Self { inner: Arc::new(Inner { scope, key, slot, fired, kill_words, runtime }) }
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
        self.wake_saying(decision, cause, None);
    }

    /// [`CancelSignal::wake`], with the canceller's own words for [`CancelSignal::reason`].
    pub fn wake_saying(&self, decision: CancelDecision, cause: CancelCause, words: Option<&str>) {
        match decision {
            CancelDecision::Accepted => {
                self.inner.fired.set((cause, words.map(Arc::from)));
            }
            CancelDecision::Already(first) => {
                self.inner.fired.set((first, None));
            }
            CancelDecision::AfterPublication => {}
        }
    }

    /// Why it fired, in words: the canceller's, else those of the cause. `None` until it fired.
    pub fn reason(&self) -> Option<String> {
        let (cause, words) = self.inner.fired.get()?;
        let default = match cause {
            CancelCause::Kill => self.inner.kill_words,
            cause => cause.reason(),
        };
        Some(words.map_or_else(|| default.to_owned(), |words| words.to_string()))
    }

    /// Whether the waiters were woken. Takes no lock of ours, so it may be asked under any.
    pub fn has_fired(&self) -> bool {
        self.inner.fired.get().is_some()
    }

    /// Wakes the waiters if a cause was accepted. Runs with no lock held.
    pub fn fire(&self) {
        if let Some(cause) = self.cause() {
            self.inner.fired.set((cause, None));
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
        self.inner.fired.wait().await.0
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
