//! The one lock of this crate, and the recorder of what a step touches.
//!
//! [`Mutex`] is std's: it never poisons (contract P18), knows its place in the lock order of
//! contract P1, and checks on every acquisition that the section it belongs to is two-phase and in
//! that order. Cores say which object they read or wrote with [`touch`]; the explorer asks for the
//! list after each poll. Outside a recorded step a touch costs one thread-local read.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};

/// The lock order of contract P1: a lock may be taken only while all held ones stand before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockClass {
    /// The control service's association table.
    Association,
    /// The Task service's records.
    Task,
    /// One cancel slot.
    Cancel,
    /// The agent registry: sessions and agents.
    Registry,
    /// One agent's queues.
    Queue,
    /// One session's log.
    Session,
    /// A lock under which no section's lock is ever taken: tables of the store, provider names.
    Leaf,
    /// The fact stream's own lock: taken under any other, takes none.
    Facts,
}

impl LockClass {
    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Whether the lock is part of a section; leaves are not.
    fn in_section(self) -> bool {
        self < Self::Leaf
    }
}

/// What kind of shared object a step touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A task's ready flag.
    Ready,
    /// The clock.
    Clock,
    /// One id in the agent registry.
    Registry,
    /// One child's association.
    Association,
    /// One Task record.
    Task,
    /// One owner's Task-id counter, or its closing flag.
    Owner,
    /// One cancel slot.
    Cancel,
    /// One agent's queues.
    Queue,
    /// One receipt.
    Receipt,
    /// One session's log.
    Log,
    /// One file.
    File,
    /// One directory.
    Directory,
    /// One item, or the tail, of a channel.
    Channel,
    /// One registered name: a provider, a tool, a control surface.
    Name,
}

/// One shared object, as fine as the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its key within the kind: a number, or [`key_of`] a name.
    pub key: u64,
}

/// How an object was touched. A failed check is a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Looked at.
    Read,
    /// Changed.
    Write,
}

/// A stable key of a name (FNV-1a), the same in every process.
pub fn key_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What one poll of one task did, for the explorer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct StepRecord {
    /// Objects in the order they were first touched with that access.
    pub touches: Vec<(Object, Access)>,
    /// Critical sections entered (leaf locks are not sections).
    pub sections: u32,
}

struct Recorder {
    record: StepRecord,
    task: u64,
    fresh: u64,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
    static HELD: Cell<u8> = const { Cell::new(0) };
    static SHRINKING: Cell<bool> = const { Cell::new(false) };
}

/// Starts recording on this thread. `task` names the polled task (the same in every schedule) and
/// `fresh` is how many fresh objects it has named so far.
pub fn begin_step(task: u64, fresh: u64) {
    RECORDER.with_borrow_mut(|slot| {
        *slot = Some(Recorder { record: StepRecord::default(), task, fresh });
    });
}

/// Stops recording and returns what the step did, with the task's new count of fresh objects.
pub fn end_step() -> (StepRecord, u64) {
    RECORDER
        .with_borrow_mut(Option::take)
        .map_or_else(|| (StepRecord::default(), 0), |recorder| (recorder.record, recorder.fresh))
}

/// Notes that the current step touched `key` of `kind`.
pub fn touch(kind: ObjectKind, key: u64, access: Access) {
    RECORDER.with_borrow_mut(|slot| {
        if let Some(recorder) = slot {
            let touched = (Object { kind, key }, access);
            if !recorder.record.touches.contains(&touched) {
                recorder.record.touches.push(touched);
            }
        }
    });
}

/// A fresh object key from the current task's own stream, so that creation order between tasks is
/// not part of anybody's footprint. Zero outside a recorded step.
pub fn fresh_key() -> u64 {
    RECORDER.with_borrow_mut(|slot| {
        slot.as_mut().map_or(0, |recorder| {
            recorder.fresh += 1;
            (recorder.task ^ recorder.fresh.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_mul(0xff51_afd7_ed55_8ccd)
        })
    })
}

/// A mutual exclusion lock with a place in the lock order.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    class: LockClass,
    inner: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock of `class` around `value`.
    pub const fn new(class: LockClass, value: T) -> Self {
        Self { class, inner: std::sync::Mutex::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock.
    ///
    /// # Panics
    ///
    /// When the caller holds a lock that stands at or after this one, or has already released one
    /// of the section's locks: a broken invariant of ours, never a condition a caller can cause.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = HELD.get();
        assert!(
            held < self.class.bit(),
            "lock order: {:?} taken while holding {held:#09b}",
            self.class
        );
        assert!(
            !(SHRINKING.get() && self.class.in_section()),
            "two-phase: {:?} taken after a release",
            self.class
        );
        if held == 0 && self.class.in_section() {
            RECORDER.with_borrow_mut(|slot| {
                if let Some(recorder) = slot {
                    recorder.record.sections += 1;
                }
            });
        }
        let guard = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        HELD.set(held | self.class.bit());
        MutexGuard { class: self.class, inner: guard }
    }
}

/// The right to use a [`Mutex`]'s value.
pub struct MutexGuard<'a, T: ?Sized> {
    class: LockClass,
    inner: std::sync::MutexGuard<'a, T>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        let left = HELD.get() & !self.class.bit();
        HELD.set(left);
        // A leaf is no part of the section's growing or shrinking phase.
        if self.class.in_section() || left == 0 {
            SHRINKING.set(left != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lock_out_of_order_is_a_bug() {
        let session = Mutex::new(LockClass::Session, ());
        let task = Mutex::new(LockClass::Task, ());
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _late = session.lock();
            let _early = task.lock();
        }));
        assert!(caught.is_err());
        drop(task.lock());
    }

    #[test]
    fn an_acquisition_after_a_release_is_a_bug() {
        let task = Mutex::new(LockClass::Task, ());
        let registry = Mutex::new(LockClass::Registry, ());
        let session = Mutex::new(LockClass::Session, ());
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _first = task.lock();
            drop(registry.lock());
            let _third = session.lock();
        }));
        assert!(caught.is_err());
        drop(session.lock());
    }

    #[test]
    fn a_step_records_each_touch_once_and_counts_sections() {
        let task = Mutex::new(LockClass::Task, 0);
        let leaf = Mutex::new(LockClass::Leaf, 0);
        begin_step(7, 0);
        *task.lock() += 1;
        *leaf.lock() += 1;
        touch(ObjectKind::Task, 1, Access::Write);
        touch(ObjectKind::Task, 1, Access::Write);
        let first = fresh_key();
        let (record, fresh) = end_step();
        assert_eq!(record.sections, 1);
        assert_eq!(record.touches.len(), 1);
        assert_eq!(fresh, 1);
        begin_step(7, 0);
        assert_eq!(fresh_key(), first, "the same task names the same objects");
        end_step();
    }
}
