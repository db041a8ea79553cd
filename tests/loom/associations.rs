//! Section (a): association, Task table and agent registry together.

use std::sync::Arc;

use loom::thread;

use crate::agent::registry::Registry;
use crate::control::association::{AssociationTable, Filled};
use crate::control::route::Route;
use crate::facts::{Fact, FactSink};
use crate::ids::{ActivationId, MessageId, OwnerId, RunId, SessionId, TaskId};
use crate::kit::{Facts, SharedSlot, Verdict, explore};
use crate::message::MessageSource;
use crate::sections::admission::{self, Admitted, Locks, Wish};
use crate::sections::settlement;
use crate::sync::{LockClass, Mutex};
use crate::task::record::{OwnerRef, TaskLinks, TaskSpec, WaitStep, WaitWake};
use crate::task::table::{OwnerGone, TaskTable};
use crate::tasks::{Caller, Parts};
use crate::vocabulary::TaskOutcome;

const OWNER: OwnerId = OwnerId(1);
const BYPASS: OwnerId = OwnerId(2);

/// A parent that is registered, and a stopped child.
#[derive(Clone)]
struct World {
    facts: Facts,
    associations: Arc<Mutex<AssociationTable<&'static str, SharedSlot>>>,
    table: Arc<Mutex<TaskTable<Parts>>>,
    registry: Arc<Mutex<Registry<()>>>,
}

fn child() -> SessionId {
    SessionId::new("child")
}

fn parent() -> OwnerRef {
    OwnerRef { instance: OWNER, session: SessionId::new("parent") }
}

fn spec(activation: u64) -> TaskSpec {
    TaskSpec {
        kind: "subagent".to_owned(),
        label: "x".to_owned(),
        output_limit_bytes: None,
        owner: Some(parent()),
        activation: Some(ActivationId(activation)),
        child: Some(child()),
    }
}

/// How a send ended.
type Sent = Admitted<Parts, &'static str>;

impl World {
    fn new() -> Self {
        let facts = Facts::default();
        let mut table = TaskTable::default();
        table.attach_surface(&facts);
        let mut registry = Registry::default();
        registry.begin(OWNER, parent().session, None, ()).expect("no parent is needed");
        registry.publish(OWNER).expect("nobody else");
        registry.begin(BYPASS, child(), None, ()).expect("no parent is needed");
        Self {
            facts,
            associations: Arc::new(Mutex::new(LockClass::Association, AssociationTable::default())),
            table: Arc::new(Mutex::new(LockClass::Task, table)),
            registry: Arc::new(Mutex::new(LockClass::Registry, registry)),
        }
    }

    fn locks(&self) -> Locks<'_, Parts, (), &'static str, SharedSlot> {
        Locks { associations: &self.associations, tasks: &self.table, registry: &self.registry }
    }

    /// Sends to the child, asking `admits` about the owner.
    fn send_if(
        &self,
        activation: u64,
        admits: impl FnOnce(&Registry<()>) -> Result<(), OwnerGone>,
    ) -> Sent {
        let signal = SharedSlot::new(&self.facts);
        let links = TaskLinks { cancel: signal.clone(), reader: None, owner: Some(()), latch: () };
        let wish = Wish {
            child: child(),
            owner: parent(),
            activation: ActivationId(activation),
            signal,
            spec: spec(activation),
            message: Some((MessageId::new("m"), MessageSource::User)),
            persistent: true,
            now: 0,
        };
        let admits = |registry: &Registry<()>, _cleanup: bool| admits(registry);
        admission::admit(&self.facts, &self.locks(), wish, links, admits)
    }

    fn send(&self, activation: u64) -> Sent {
        self.send_if(activation, owner_is_open)
    }

    fn installed(&self) -> usize {
        self.facts.count(|fact| matches!(fact, Fact::AssociationInstalled { .. }))
    }
}

fn owner_is_open(registry: &Registry<()>) -> Result<(), OwnerGone> {
    if registry.is_current(OWNER) { Ok(()) } else { Err(OwnerGone::Closing) }
}

/// What a send came to, in a word.
fn word(sent: &Sent) -> &'static str {
    match sent {
        Admitted::Installed(_) => "started",
        Admitted::Refused(..) | Admitted::Closing(_) => "refused",
        Admitted::Routed(Route::Starting { .. }, _) => "starting",
        Admitted::Routed(Route::Conflict(_), _) => "conflict",
        Admitted::Routed(Route::NotRunning { .. }, _) => "not running",
        Admitted::Routed(Route::Steer { .. }, _) => "steered",
        Admitted::Routed(..) => "elsewhere",
    }
}

/// Invariant I7: of two sends to a stopped child one starts.
fn two_sends(send: fn(&World, u64) -> &'static str) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let other = thread::spawn({
            let world = world.clone();
            move || send(&world, 2)
        });
        let first = send(&world, 1);
        let second = other.join().expect("no panic");
        let tasks = world.table.lock().list(Some(&parent().session)).len();
        match (first, second, tasks) {
            ("started", "starting", 1) => Ok("the first"),
            ("starting", "started", 1) => Ok("the second"),
            other => Err(format!("{other:?}")),
        }
    }
}

#[test]
fn of_two_sends_to_a_stopped_child_one_starts() {
    let sound = |world: &World, activation| word(&world.send(activation));
    explore(two_sends(sound)).is_sound(&["the first", "the second"], 6);
}

#[test]
fn a_send_that_looks_before_it_installs_is_caught() {
    let broken = |world: &World, activation| {
        if world.associations.lock().find(&child(), &parent().session).is_some() {
            return "starting";
        }
        let mut table = world.table.lock();
        let slot = SharedSlot::new(&world.facts);
        let links = TaskLinks { cancel: slot, reader: None, owner: Some(()), latch: () };
        table.register(spec(activation), links, 0, &world.facts);
        "started"
    };
    explore(two_sends(broken)).is_caught("started");
}

/// Invariant I14: a live agent without an association is a conflict, never joined by a fresh
/// activation that did not see it. A publication after the installation loses later, at the
/// registry.
fn send_and_bypass(send: fn(&World) -> &'static str) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let bypass = thread::spawn({
            let world = world.clone();
            move || {
                let mut registry = world.registry.lock();
                registry.publish(BYPASS).expect("nobody else");
                let (parent, seed_length) = (None, None);
                let (agent, session, depth, resumed) = (BYPASS, child(), 0, false);
                world.facts.record(Fact::AgentPublished {
                    agent,
                    session,
                    parent,
                    depth,
                    seed_length,
                    resumed,
                });
            }
        });
        let sent = send(&world);
        bypass.join().expect("no panic");
        let installed = |fact: &Fact| matches!(fact, Fact::AssociationInstalled { .. });
        let published = |fact: &Fact| matches!(fact, Fact::AgentPublished { .. });
        if world.facts.is_after(installed, published) {
            return Err("installed beside a live agent".to_owned());
        }
        match sent {
            "started" | "conflict" => Ok(sent),
            other => Err(other.to_owned()),
        }
    }
}

#[test]
fn an_activation_is_never_installed_beside_a_live_agent() {
    let sound = |world: &World| word(&world.send(1));
    explore(send_and_bypass(sound)).is_sound(&["conflict", "started"], 5);
}

#[test]
fn a_send_that_asks_the_registry_first_is_caught() {
    let broken = |world: &World| {
        if world.registry.lock().instance_of(&child()).is_some() {
            return "conflict";
        }
        // The section, with a registry that it does not look at again.
        let elsewhere = World { registry: World::new().registry, ..world.clone() };
        word(&elsewhere.send(1))
    };
    explore(send_and_bypass(broken)).is_caught("installed beside a live agent");
}

/// Contract P16: what a closing service does not cancel was refused.
fn send_and_close(send: fn(&World) -> &'static str) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let sender = thread::spawn({
            let world = world.clone();
            move || send(&world)
        });
        let open = world.associations.lock().close().expect("the first closing").len();
        match (sender.join().expect("no panic"), open) {
            ("started", 1) => Ok("started, and cancelled"),
            ("refused", 0) => Ok("refused"),
            other => Err(format!("{other:?}: sent, cancelled")),
        }
    }
}

#[test]
fn a_closing_control_service_cancels_or_refuses_every_activation() {
    let sound = |world: &World| word(&world.send(1));
    explore(send_and_close(sound)).is_sound(&["refused", "started, and cancelled"], 4);
}

#[test]
fn a_send_that_asks_whether_the_service_closes_first_is_caught() {
    let broken = |world: &World| {
        if world.associations.lock().is_closing() {
            return "refused";
        }
        let mut table = world.table.lock();
        let signal = SharedSlot::new(&world.facts);
        let links = TaskLinks { cancel: signal.clone(), reader: None, owner: Some(()), latch: () };
        let task = table.register(spec(1), links, 0, &world.facts);
        drop(table);
        let installed = crate::control::association::Activation {
            id: ActivationId(1),
            task,
            owner: OWNER,
            owner_session: parent().session,
        };
        world.associations.lock().install(child(), installed, signal, false);
        "started"
    };
    explore(send_and_close(broken)).is_caught("(\"started\", 0)");
}

/// Invariant I13: an owner's disposal marks it in the registry, then closes its Tasks: every Task
/// that was started is among them.
fn send_and_dispose_owner(send: fn(&World) -> &'static str) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let sender = thread::spawn({
            let world = world.clone();
            move || send(&world)
        });
        world.registry.lock().close(OWNER);
        let open = world.table.lock().close_owner(OWNER, &world.facts).len();
        match (sender.join().expect("no panic"), open) {
            ("started", 1) => Ok("started, and closed"),
            ("refused", 0) => Ok("refused"),
            other => Err(format!("{other:?}: sent, closed")),
        }
    }
}

#[test]
fn a_send_races_its_owners_disposal_and_leaves_nothing_behind() {
    let sound = |world: &World| word(&world.send(1));
    explore(send_and_dispose_owner(sound)).is_sound(&["refused", "started, and closed"], 11);
}

#[test]
fn a_send_that_asks_about_its_owner_first_is_caught() {
    let broken = |world: &World| {
        let open = owner_is_open(&world.registry.lock());
        word(&world.send_if(1, |_| open))
    };
    explore(send_and_dispose_owner(broken)).is_caught("(\"started\", 0)");
}

/// Contract P8: whoever learned from a wait that the Task is terminal finds the association gone.
fn end_and_send_again(end: fn(&World, &TaskId)) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let Admitted::Installed(task) = world.send(1) else { return Err("not started".to_owned()) };
        let filled = Filled { run: "run", agent: None };
        let place = (&child(), ActivationId(1));
        let uncancelled = SharedSlot::new(&world.facts);
        admission::authorise(&world.facts, &world.associations, &uncancelled, place)
            .expect("nobody else");
        admission::fill(&world.facts, &world.associations, place, RunId(1), filled);
        let key = {
            let caller = parent().session;
            let mut table = world.table.lock();
            let joined = table.join(&task, Some(&caller), Caller, &world.facts);
            joined.expect("its own Task").0
        };
        let driver = thread::spawn({
            let (world, task) = (world.clone(), task.clone());
            move || end(&world, &task)
        });
        let woken = {
            let mut table = world.table.lock();
            let resumed = table.resume(&task, key, WaitWake::Released, &world.facts);
            resumed.expect("still there").0
        };
        let sent = word(&world.send(2));
        driver.join().expect("no panic");
        match (woken, sent) {
            (WaitStep::Terminal(_), "started") => Ok("terminal, then started"),
            (WaitStep::Terminal(_), other) => Err(format!("terminal, yet {other}")),
            (_, "steered") => Ok("steered"),
            (_, "not running") => Ok("not running"),
            (_, "started") => Ok("started"),
            (_, other) => Err(other.to_owned()),
        }
    }
}

fn settle(world: &World, task: &TaskId) {
    let outcome = TaskOutcome::completed("text");
    drop(settlement::settle(&world.table, task, outcome, 1, &world.facts));
}

fn remove(world: &World) {
    drop(admission::remove(&world.facts, &world.associations, &child(), ActivationId(1)));
}

fn release(world: &World, task: &TaskId) {
    let released = world.table.lock().release(task, &world.facts);
    drop(released);
}

#[test]
fn a_terminal_wait_finds_the_association_gone() {
    let outcomes = ["not running", "started", "steered", "terminal, then started"];
    let sound = |world: &World, task: &TaskId| {
        settle(world, task);
        remove(world);
        release(world, task);
    };
    explore(end_and_send_again(sound)).is_sound(&outcomes, 44);
}

#[test]
fn waiters_released_before_the_association_is_gone_are_caught() {
    let broken = |world: &World, task: &TaskId| {
        settle(world, task);
        release(world, task);
        remove(world);
    };
    explore(end_and_send_again(broken)).is_caught("terminal, yet not running");
}
