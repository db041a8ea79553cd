//! Publication: observers run in log order from a queue that is drained outside the session lock
//! (contract P20).
//!
//! The queue is filled inside the session's section and drained by one call at a time; that call
//! marks its thread, which is the token by which an append from inside an observer is known. An
//! append from another task only queues: the draining call takes it over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::Session;
use super::event::Event;
use crate::ids::SessionId;
use crate::runtime::{Runtime, contain_call};
use crate::sync::{LockClass, Mutex};

/// What is called with each event, in log order, under no lock. Its panic is contained.
pub type Observer = dyn Fn(&Arc<Event>) + Send + Sync;

thread_local! {
    /// The publications that this thread is inside of, outermost first, by address: a publication
    /// does not move or die while it drains.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone)]
struct Registered {
    id: u64,
    /// The first event it gets.
    from: u64,
    observer: Arc<Observer>,
}

#[derive(Default)]
struct Queue {
    /// Appended, not yet published.
    events: VecDeque<Arc<Event>>,
    /// The log's length.
    length: u64,
    draining: bool,
    observers: Vec<Registered>,
    next_id: u64,
    deferred: Vec<Box<dyn FnOnce() + Send>>,
}

pub(super) struct Publication {
    queue: Mutex<Queue>,
}

/// Marks the thread as inside a publication.
struct Inside;

impl Inside {
    fn enter(token: usize) -> Self {
        INSIDE.with_borrow_mut(|inside| inside.push(token));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(Vec::pop);
    }
}

impl Publication {
    pub(super) fn new(length: u64) -> Self {
        let queue = Queue { length, ..Queue::default() };
        Self { queue: Mutex::new(LockClass::Leaf, queue) }
    }

    fn token(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether the caller is an observer of this publication.
    pub(super) fn is_mine(&self) -> bool {
        INSIDE.with_borrow(|inside| inside.contains(&self.token()))
    }

    /// Queues what was just appended; called inside the session's section.
    pub(super) fn push(&self, appended: &[Arc<Event>]) {
        let mut queue = self.queue.lock();
        queue.length += appended.len() as u64;
        if !queue.observers.is_empty() {
            queue.events.extend(appended.iter().cloned());
        }
    }

    pub(super) fn add(&self, observer: Arc<Observer>) -> u64 {
        let mut queue = self.queue.lock();
        let id = queue.next_id;
        queue.next_id += 1;
        let from = queue.length;
        queue.observers.push(Registered { id, from, observer });
        id
    }

    fn remove(&self, id: u64) {
        let removed = {
            let mut queue = self.queue.lock();
            let at = queue.observers.iter().position(|registered| registered.id == id);
            at.map(|at| queue.observers.remove(at))
        };
        // An observer is foreign: it is dropped after the lock.
        drop(removed);
    }

    /// Keeps `action` for the end of the publication; gives it back if there is none.
    pub(super) fn defer(
        &self,
        action: Box<dyn FnOnce() + Send>,
    ) -> Option<Box<dyn FnOnce() + Send>> {
        let mut queue = self.queue.lock();
        if !queue.draining {
            return Some(action);
        }
        queue.deferred.push(action);
        None
    }

    pub(super) fn drain(&self, runtime: &Arc<dyn Runtime>, session: &SessionId) {
        {
            let mut queue = self.queue.lock();
            if queue.draining || (queue.events.is_empty() && queue.deferred.is_empty()) {
                return;
            }
            queue.draining = true;
        }
        let name = format!("observer of session {session}");
        loop {
            let (event, observers, deferred) = {
                let mut queue = self.queue.lock();
                let event = queue.events.pop_front();
                let deferred = match event {
                    None => std::mem::take(&mut queue.deferred),
                    Some(_) => Vec::new(),
                };
                queue.draining = event.is_some();
                (event, queue.observers.clone(), deferred)
            };
            let Some(event) = event else {
                deferred.into_iter().for_each(|action| action());
                return;
            };
            for Registered { from, observer, .. } in observers {
                if event.seq < from {
                    continue;
                }
                let inside = Inside::enter(self.token());
                // Its failure is recorded as a caught panic and changes nothing else.
                drop(contain_call(runtime, &name, || observer(&event)));
                drop(inside);
            }
        }
    }
}

/// Ends an observation when dropped.
#[must_use = "dropping the guard ends the observation"]
pub struct ObserverGuard {
    session: Weak<Session>,
    id: u64,
}

impl ObserverGuard {
    pub(super) fn new(session: Weak<Session>, id: u64) -> Self {
        Self { session, id }
    }
}

impl Drop for ObserverGuard {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            session.publication.remove(self.id);
        }
    }
}
