//! The agent registry: publications of one id against each other and against a cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use crate::agent::registry::Registry;
use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId};
use crate::kit::{Facts, SharedSlot, Verdict, explore, is_accepted};
use crate::sections::publication::{self, Publication};
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::{LockClass, Mutex};
use crate::vocabulary::CancelCause;

/// Two creations of one session id.
#[derive(Clone)]
struct World {
    facts: Facts,
    slot: SharedSlot,
    registry: Arc<Mutex<Registry<()>>>,
    attached: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let facts = Facts::default();
        let slot = SharedSlot::new(&facts);
        let mut registry = Registry::default();
        for instance in [1, 2] {
            let session = SessionId::new("child");
            registry.begin(OwnerId(instance), session, None, ()).expect("no parent is needed");
        }
        let registry = Arc::new(Mutex::new(LockClass::Registry, registry));
        Self { facts, slot, registry, attached: Arc::default() }
    }

    fn publication(instance: u64) -> Publication {
        Publication {
            agent: OwnerId(instance),
            session: SessionId::new("child"),
            parent: None,
            depth: 1,
            seed_length: None,
            resumed: false,
        }
    }

    /// Attaches the session to its store, as the section does under a leaf lock.
    fn attach(&self) -> Result<(), ()> {
        self.attached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn publish(&self, instance: u64) -> bool {
        let what = Self::publication(instance);
        let (facts, slot) = (&self.facts, Some(&self.slot));
        publication::publish(facts, slot, &self.registry, &what, || self.attach()).is_ok()
    }
}

/// Invariant I14's ground: one live agent per id, and only its session is attached.
fn collide(publish: fn(&World, u64) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let other = thread::spawn({
            let world = world.clone();
            move || publish(&world, 2)
        });
        let first = publish(&world, 1);
        let second = other.join().expect("no panic");
        let attached = world.attached.load(Ordering::Relaxed);
        match (first, second, attached) {
            (true, false, 1) => Ok("the first"),
            (false, true, 1) => Ok("the second"),
            other => Err(format!("{other:?}: published, published, attached")),
        }
    }
}

#[test]
fn of_two_publications_of_one_id_one_loses_and_attaches_nothing() {
    explore(collide(World::publish)).is_sound(&["the first", "the second"], 6);
}

#[test]
fn a_session_attached_before_its_publication_is_caught() {
    let broken = |world: &World, instance: u64| {
        let free = world.registry.lock().instance_of(&SessionId::new("child")).is_none();
        if !free || world.attach().is_err() {
            return false;
        }
        let what = World::publication(instance);
        let (facts, slot) = (&world.facts, Some(&world.slot));
        publication::publish(facts, slot, &world.registry, &what, || Ok::<_, ()>(())).is_ok()
    };
    explore(collide(broken)).is_caught("attached");
}

/// A creation that was cancelled publishes nothing (design note, "Task and cancellation").
fn publish_and_cancel(publish: fn(&World, u64) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let creation = thread::spawn({
            let world = world.clone();
            move || publish(&world, 1)
        });
        world.slot.lock().accept(CancelCause::Kill);
        let published = creation.join().expect("no panic");
        let appeared = |fact: &Fact| matches!(fact, Fact::AgentPublished { .. });
        if world.facts.is_after(appeared, is_accepted) {
            return Err("published after its cancellation was accepted".to_owned());
        }
        Ok(if published { "published, then cancelled" } else { "rolled back" })
    }
}

#[test]
fn a_cancelled_creation_publishes_nothing() {
    explore(publish_and_cancel(World::publish))
        .is_sound(&["published, then cancelled", "rolled back"], 4);
}

#[test]
fn a_publication_that_reads_the_slot_first_is_caught() {
    let broken = |world: &World, instance: u64| {
        if world.slot.lock().cause().is_some() {
            return false;
        }
        let what = World::publication(instance);
        let none = None::<&SharedSlot>;
        let attach = || world.attach();
        publication::publish(&world.facts, none, &world.registry, &what, attach).is_ok()
    };
    explore(publish_and_cancel(broken)).is_caught("after its cancellation");
}

/// Contract P16: a disposal marks the instance first, so nothing is created through it any more.
fn create_and_close(create: fn(&World) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        world.publish(1);
        let creation = thread::spawn({
            let world = world.clone();
            move || create(&world)
        });
        let children = {
            let mut registry = world.registry.lock();
            registry.close(OwnerId(1));
            registry.children(OwnerId(1)).len()
        };
        match (creation.join().expect("no panic"), children) {
            (true, 1) => Ok("found by the disposal"),
            (false, 0) => Ok("refused"),
            other => Err(format!("{other:?}: created, found")),
        }
    }
}

#[test]
fn a_child_is_created_before_its_parent_closes_or_not_at_all() {
    let sound = |world: &World| {
        let mut registry = world.registry.lock();
        registry.begin(OwnerId(3), SessionId::new("leaf"), Some(OwnerId(1)), ()).is_ok()
    };
    explore(create_and_close(sound)).is_sound(&["found by the disposal", "refused"], 4);
}

#[test]
fn a_creation_that_looks_at_its_parent_first_is_caught() {
    let broken = |world: &World| {
        let open = world.registry.lock().is_current(OwnerId(1));
        let mut registry = world.registry.lock();
        open && registry.begin(OwnerId(3), SessionId::new("leaf"), None, ()).is_ok()
    };
    explore(create_and_close(broken)).is_caught("created, found");
}
