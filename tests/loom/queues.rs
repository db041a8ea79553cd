//! One agent's queues: a steer against the end of its turn, and against a cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;

use crate::agent::steering::SteeringQueue;
use crate::facts::Fact;
use crate::ids::{MessageId, OwnerId, SessionId};
use crate::kit::{Facts, SharedSlot, Verdict, explore, is_accepted};
use crate::message::{Message, MessageSource};
use crate::sections::slot::{Slot, SlotLock};
use crate::sections::steering::{Inbox, StepOpening};
use crate::sync::{LockClass, Mutex};
use crate::vocabulary::CancelCause;

/// Receipts and signals are just names here.
type Queue = SteeringQueue<&'static str, ()>;

/// A child in its first turn, whose prompt was drained.
#[derive(Clone)]
struct World {
    facts: Facts,
    slot: SharedSlot,
    queue: Arc<Mutex<Queue>>,
    session: SessionId,
}

fn message(id: &str) -> Arc<Message> {
    Arc::new(Message::user(MessageId::new(id), "x", MessageSource::User))
}

impl World {
    fn new() -> Self {
        let facts = Facts::default();
        let slot = SharedSlot::new(&facts);
        let queue = Arc::new(Mutex::new(LockClass::Queue, Queue::new(1)));
        let world = Self { facts, slot, queue, session: SessionId::new("child") };
        {
            let mut queue = world.queue.lock();
            queue.prompt(message("prompt"), true, None).expect("open");
            queue.claim(|_| ()).expect("a prompt");
            queue.admit(None, Vec::new());
            drop(queue.drain_step());
        }
        world
    }

    fn inbox(&self) -> Inbox<'_, Facts, SharedSlot, &'static str, ()> {
        Inbox {
            facts: &self.facts,
            agent: OwnerId(1),
            session: &self.session,
            slot: Some(&self.slot),
            queue: &self.queue,
        }
    }

    fn steer(&self) -> bool {
        self.inbox().steer_running(|| false, message("steer"), "receipt").is_ok()
    }

    /// Opens one more step; whether it drained the steered message.
    fn step(&self) -> bool {
        match self.inbox().open_step((1, 2), false, |_| Ok::<_, ()>(())) {
            StepOpening::Opened((), receipts) => !receipts.is_empty(),
            _ => false,
        }
    }

    /// Ends the turn under terminal policy; whether it rejected the steered message.
    fn end(&self) -> bool {
        let mut queue = self.queue.lock();
        let (rejected, _) = queue.reject_steering();
        queue.end_turn();
        queue.settle_turn();
        queue.rest();
        !rejected.is_empty()
    }
}

/// Contract P10, P11: a steer is admitted or rejected, once, or refused.
fn steer_and_end(steer: fn(&World) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let sender = thread::spawn({
            let world = world.clone();
            move || steer(&world)
        });
        let admitted = world.step();
        let rejected = world.end();
        let accepted = sender.join().expect("no panic");
        match (accepted, admitted, rejected) {
            (true, true, false) => Ok("admitted"),
            (true, false, true) => Ok("rejected"),
            (false, false, false) => Ok("refused"),
            other => Err(format!("{other:?}: accepted, admitted, rejected")),
        }
    }
}

#[test]
fn a_steer_is_admitted_or_rejected_or_refused() {
    explore(steer_and_end(World::steer)).is_sound(&["admitted", "refused", "rejected"], 14);
}

#[test]
fn a_steer_that_looks_before_it_queues_is_caught() {
    let broken = |world: &World| {
        let running = world.queue.lock().is_busy();
        running && world.inbox().steer(message("steer"), "receipt").is_ok()
    };
    explore(steer_and_end(broken)).is_caught("(true, false, false)");
}

/// Contract P10: the first accepted cancellation closes the inbox in the section that accepts it.
fn steer_and_cancel(steer: fn(&World) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let sender = thread::spawn({
            let world = world.clone();
            move || steer(&world)
        });
        world.slot.lock().accept(CancelCause::Kill);
        let accepted = sender.join().expect("no panic");
        let queued = |fact: &Fact| matches!(fact, Fact::MessageQueued { .. });
        if world.facts.is_after(queued, is_accepted) {
            return Err("queued after the cancellation was accepted".to_owned());
        }
        let opened = world.step();
        match (accepted, opened) {
            (_, true) => Err("a step opened after the cancellation".to_owned()),
            (true, false) => Ok("queued first, never admitted"),
            (false, false) => Ok("refused"),
        }
    }
}

#[test]
fn nothing_is_queued_after_an_accepted_cancellation() {
    explore(steer_and_cancel(World::steer))
        .is_sound(&["queued first, never admitted", "refused"], 5);
}

#[test]
fn a_steer_that_reads_the_slot_before_it_queues_is_caught() {
    let broken = |world: &World| {
        if world.slot.lock().cause().is_some() {
            return false;
        }
        let unslotted = Inbox { slot: None::<&SharedSlot>, ..world.inbox() };
        unslotted.steer_running(|| false, message("steer"), "receipt").is_ok()
    };
    explore(steer_and_cancel(broken)).is_caught("queued after the cancellation");
}

/// Contract P6: closing for settlement takes the log's length in the section that refuses what
/// could still grow it.
fn inject_and_close(close: fn(&World, &AtomicU64) -> u64) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        world.end();
        world.queue.lock().end_activity();
        // The session's lock is taken inside the queue's; an atomic stands for its log.
        let log = Arc::new(AtomicU64::new(7));
        let injector = thread::spawn({
            let (world, log) = (world.clone(), Arc::clone(&log));
            move || {
                let append = || log.fetch_add(1, Ordering::Relaxed);
                world.inbox().inject(&message("notice"), append).is_some()
            }
        });
        let length = close(&world, &log);
        let injected = injector.join().expect("no panic");
        match (injected, length, log.load(Ordering::Relaxed)) {
            (true, 8, 8) => Ok("logged and covered"),
            (false, 7, 7) => Ok("dropped"),
            other => Err(format!("{other:?}: the flush does not cover the log")),
        }
    }
}

#[test]
fn a_final_flush_covers_every_injected_notice() {
    let sound = |world: &World, log: &AtomicU64| {
        let closed = world.inbox().close_for_settlement(|| log.load(Ordering::Relaxed));
        closed.expect("idle").0
    };
    explore(inject_and_close(sound)).is_sound(&["dropped", "logged and covered"], 6);
}

#[test]
fn a_length_taken_before_the_inbox_closes_is_caught() {
    let broken = |world: &World, log: &AtomicU64| {
        let idle = world.queue.lock().is_settled();
        assert!(idle, "the model starts idle");
        let length = log.load(Ordering::Relaxed);
        drop(world.inbox().close_for_settlement(|| 0));
        length
    };
    explore(inject_and_close(broken)).is_caught("does not cover the log");
}
