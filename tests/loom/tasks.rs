//! The Task record: settlement against kill, wait, dropped wait, read, and a closing owner.

use std::sync::Arc;

use loom::thread;

use crate::cancel::CancelDecision;
use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId, TaskId};
use crate::kit::{Facts, SharedSlot, Verdict, explore};
use crate::sections::settlement::{self, Kill};
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::{LockClass, Mutex};
use crate::task::record::{OwnerRef, TaskLinks, TaskParts, TaskSpec, WaitStep, WaitWake, Waiter};
use crate::task::table::TaskTable;
use crate::vocabulary::{CancelCause, KillAnswer, TaskOutcome, TaskStatus};

pub struct Parts;

pub struct Caller;

impl Waiter for Caller {
    fn gave_up(&self) -> bool {
        false
    }
}

impl TaskParts for Parts {
    type Cancel = SharedSlot;
    type Reader = ();
    type Owner = ();
    type Latch = ();
    type Waiter = Caller;
}

/// One owned Task, running.
#[derive(Clone)]
struct World {
    table: Arc<Mutex<TaskTable<Parts>>>,
    facts: Facts,
    slot: SharedSlot,
    id: TaskId,
    caller: SessionId,
}

const OWNER: OwnerId = OwnerId(1);

fn spec() -> TaskSpec {
    TaskSpec {
        kind: "subagent".to_owned(),
        label: "x".to_owned(),
        output_limit_bytes: None,
        owner: Some(OwnerRef { instance: OWNER, session: SessionId::new("parent") }),
        activation: None,
        child: None,
    }
}

impl World {
    fn new() -> Self {
        let facts = Facts::default();
        let slot = SharedSlot::new(&facts);
        let mut table = TaskTable::default();
        table.attach_surface(&facts);
        let id = table.register(spec(), Self::links(&slot), 0, &facts);
        let table = Arc::new(Mutex::new(LockClass::Task, table));
        Self { table, facts, slot, id, caller: SessionId::new("parent") }
    }

    fn links(slot: &SharedSlot) -> TaskLinks<Parts> {
        TaskLinks { cancel: slot.clone(), reader: None, owner: Some(()), latch: () }
    }

    fn settle(&self, outcome: TaskOutcome) {
        drop(settlement::settle(&self.table, &self.id, outcome, 1, &self.facts));
    }

    fn claim(&self) -> u32 {
        let claimed = self.table.lock().claim_notice(&self.id, &self.facts);
        u32::from(claimed.is_some())
    }

    fn release(&self) {
        let released = self.table.lock().release(&self.id, &self.facts);
        drop(released);
    }

    /// The driver's part of contract P8; answers how many notices it claimed.
    fn end(&self) -> u32 {
        self.settle(TaskOutcome::completed("text"));
        let notices = self.claim();
        self.release();
        notices
    }

    fn join(&self) -> (u64, WaitStep) {
        let mut table = self.table.lock();
        let joined = table.join(&self.id, Some(&self.caller), Caller, &self.facts);
        let (key, step, _, _) = joined.expect("the owner's own Task");
        (key, step)
    }

    fn leave(&self, key: u64) -> bool {
        self.table.lock().leave(&self.id, key, &self.facts).0
    }

    fn status(&self) -> TaskStatus {
        self.table.lock().record(&self.id).expect("still there").status()
    }
}

/// Contract P7: a counted waiter that goes away empty-handed gives the notice back, once.
fn dropped_wait(leave: fn(&World, u64) -> u32) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let (key, _) = world.join();
        let driver = thread::spawn({
            let world = world.clone();
            move || world.end()
        });
        let given_back = leave(&world, key);
        let notices = driver.join().expect("no panic");
        match (notices, given_back) {
            (1, 0) => Ok("uncounted"),
            (0, 1) => Ok("given back"),
            (0, 0) => Err("the result reaches nobody".to_owned()),
            _ => Err(format!("{} notices", notices + given_back)),
        }
    }
}

#[test]
fn a_dropped_waiter_never_takes_the_result_with_it() {
    let sound = dropped_wait(|world, key| if world.leave(key) { world.claim() } else { 0 });
    explore(sound).is_sound(&["given back", "uncounted"], 12);
}

#[test]
fn a_dropped_waiter_that_looks_before_it_leaves_is_caught() {
    let broken = dropped_wait(|world, key| {
        let terminal = world.status().is_terminal();
        let due = world.leave(key);
        if terminal && due { world.claim() } else { 0 }
    });
    explore(broken).is_caught("reaches nobody");
}

/// Contract P3: the first write of the slot decides, and a kill answers in one section.
fn kill_and_publish(
    publish: fn(&World) -> Option<CancelCause>,
    kill: fn(&World) -> (KillAnswer, Option<CancelDecision>),
) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let driver = thread::spawn({
            let world = world.clone();
            move || {
                let outcome = match publish(&world) {
                    Some(_) => TaskOutcome::killed(),
                    None => TaskOutcome::completed("text"),
                };
                world.settle(outcome);
            }
        });
        let (answer, decision) = kill(&world);
        driver.join().expect("no panic");
        let stopping = world.facts.count(|fact| matches!(fact, Fact::TaskStopping { .. })) == 1;
        if stopping != (answer == KillAnswer::Requested) {
            return Err(format!("{answer:?} does not fit the record"));
        }
        match (decision, world.status()) {
            (Some(CancelDecision::Accepted), TaskStatus::Killed) => Ok("killed"),
            (Some(CancelDecision::AfterPublication), TaskStatus::Completed) => Ok("too late"),
            (None, TaskStatus::Completed) => Ok("finished"),
            other => Err(format!("{other:?}: the outcome is not the slot's")),
        }
    }
}

fn publish(world: &World) -> Option<CancelCause> {
    world.slot.lock().publish()
}

fn kill(world: &World) -> (KillAnswer, Option<CancelDecision>) {
    let (cause, facts) = (CancelCause::Kill, &world.facts);
    let killed = settlement::kill(&world.table, &world.id, Some(&world.caller), cause, facts);
    match killed.expect("the owner's own Task") {
        Kill::Answered { answer, wake, .. } => (answer, wake.map(|(_, decision)| decision)),
        Kill::Hook(_) => unreachable!("the producer has a slot"),
    }
}

#[test]
fn a_kill_and_a_result_agree_on_who_came_first() {
    explore(kill_and_publish(publish, kill)).is_sound(&["finished", "killed", "too late"], 11);
}

#[test]
fn a_result_that_reads_the_cause_before_it_publishes_is_caught() {
    let broken = |world: &World| {
        let cause = world.slot.lock().cause();
        world.slot.lock().publish();
        cause
    };
    explore(kill_and_publish(broken, kill)).is_caught("not the slot's");
}

#[test]
fn a_kill_that_answers_from_an_earlier_look_is_caught() {
    let broken = |world: &World| {
        let live = !world.status().is_terminal();
        let (answer, decision) = kill(world);
        (if live { KillAnswer::Requested } else { answer }, decision)
    };
    explore(kill_and_publish(publish, broken)).is_caught("does not fit the record");
}

/// Invariant I9: a wait that is counted suppresses the notice; one that is not gets the end all
/// the same.
fn wait_and_settle(join: fn(&World) -> (u64, WaitStep, bool)) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let driver = thread::spawn({
            let world = world.clone();
            move || world.end()
        });
        let (key, step, believes_live) = join(&world);
        let notices = driver.join().expect("no panic");
        let step = match step {
            WaitStep::KeepWaiting => {
                let mut table = world.table.lock();
                let resumed = table.resume(&world.id, key, WaitWake::Released, &world.facts);
                resumed.expect("still there").0
            }
            step => step,
        };
        let WaitStep::Terminal(snapshot) = step else { return Err(format!("{step:?}")) };
        if !snapshot.reported {
            return Err("a waiter has it, yet it is unreported".to_owned());
        }
        match (believes_live, notices) {
            (true, 0) => Ok("counted"),
            (false, 1) => Ok("joined after the settlement"),
            (live, notices) => Err(format!("joined live: {live}, {notices} notices")),
        }
    }
}

/// Joins, and tells from the same section whether the Task was live.
fn join(world: &World) -> (u64, WaitStep, bool) {
    let mut table = world.table.lock();
    let live = !table.record(&world.id).expect("still there").is_terminal();
    let joined = table.join(&world.id, Some(&world.caller), Caller, &world.facts);
    let (key, step, _, _) = joined.expect("the owner's own Task");
    (key, step, live)
}

#[test]
fn a_wait_always_ends_terminal_and_is_counted_if_it_joined_in_time() {
    let outcomes = ["counted", "joined after the settlement"];
    explore(wait_and_settle(join)).is_sound(&outcomes, 7);
}

#[test]
fn a_wait_that_joins_after_an_earlier_look_is_caught() {
    let broken = |world: &World| {
        let live = !world.status().is_terminal();
        let (key, step) = world.join();
        (key, step, live)
    };
    explore(wait_and_settle(broken)).is_caught("joined live: true, 1 notices");
}

/// Race L12: a read against settlement and notice.
fn read_and_notice(claim: fn(&World) -> u32) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let driver = thread::spawn({
            let world = world.clone();
            move || {
                world.settle(TaskOutcome::completed("text"));
                claim(&world)
            }
        });
        let mut table = world.table.lock();
        let record = table.reachable(&world.id, Some(&world.caller)).expect("the owner's own");
        let noticed_before =
            world.facts.count(|fact| matches!(fact, Fact::NoticeClaimed { .. })) == 1;
        let (text, _) = record.read_final(&world.facts);
        drop(table);
        let notices = driver.join().expect("no panic");
        match (text.as_str(), notices, noticed_before) {
            ("text", 0, false) => Ok("read"),
            ("", 1, false) => Ok("empty, then noticed"),
            ("text", 1, true) => Ok("noticed, then read"),
            other => Err(format!("{other:?}: a notice of what was read already")),
        }
    }
}

#[test]
fn a_notice_is_claimed_only_while_nobody_has_read_the_end() {
    let outcomes = ["empty, then noticed", "noticed, then read", "read"];
    explore(read_and_notice(World::claim)).is_sound(&outcomes, 6);
}

#[test]
fn a_notice_that_is_decided_before_it_is_claimed_is_caught() {
    let broken = |world: &World| {
        let due = world.table.lock().record(&world.id).is_some_and(|task| task.notice_is_due());
        if due {
            world.claim();
            return 1;
        }
        0
    };
    explore(read_and_notice(broken)).is_caught("what was read already");
}

/// Invariant I13: nothing starts after the owner began to close, and what started is cancelled.
fn start_and_close(start: fn(&World) -> bool) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let starter = thread::spawn({
            let world = world.clone();
            move || start(&world)
        });
        let open = world.table.lock().close_owner(OWNER, &world.facts);
        let started = starter.join().expect("no panic");
        match (started, open.len()) {
            (true, 2) => Ok("started, and closed with its owner"),
            (false, 1) => Ok("refused"),
            (started, open) => Err(format!("started: {started}, yet {open} Tasks are closed")),
        }
    }
}

#[test]
fn a_start_is_closed_with_its_owner_or_refused() {
    let sound = |world: &World| {
        let mut table = world.table.lock();
        let spec = spec();
        if table.preflight(&spec, &world.facts).is_err() {
            return false;
        }
        table.register(spec, World::links(&world.slot), 0, &world.facts);
        true
    };
    explore(start_and_close(sound)).is_sound(&["refused", "started, and closed with its owner"], 5);
}

#[test]
fn a_start_that_registers_after_its_preflight_is_caught() {
    let broken = |world: &World| {
        let passed = world.table.lock().preflight(&spec(), &world.facts).is_ok();
        if passed {
            let mut table = world.table.lock();
            table.register(spec(), World::links(&world.slot), 0, &world.facts);
        }
        passed
    };
    explore(start_and_close(broken)).is_caught("started: true, yet 1 Tasks are closed");
}

/// Race L13 with a second settlement: each kill is answered, the slot's decision is the outcome,
/// and it never changes.
fn two_kills(publish: fn(&World) -> Option<CancelCause>) -> impl Fn() -> Verdict {
    move || {
        let world = World::new();
        let killer = thread::spawn({
            let world = world.clone();
            move || kill(&world)
        });
        let driver = thread::spawn({
            let world = world.clone();
            move || {
                let outcome = match publish(&world) {
                    Some(_) => TaskOutcome::killed(),
                    None => TaskOutcome::completed("text"),
                };
                world.settle(outcome);
                world.settle(TaskOutcome::failed(None, "a second settlement"));
            }
        });
        let kills = [kill(&world), killer.join().expect("no panic")];
        driver.join().expect("no panic");
        let accepted = |(_, decision): &_| *decision == Some(CancelDecision::Accepted);
        let expected = match kills.iter().filter(|kill| accepted(kill)).count() {
            0 => TaskStatus::Completed,
            1 => TaskStatus::Killed,
            several => return Err(format!("{several} first cancellations")),
        };
        if world.status() != expected {
            return Err(format!("{} instead of {expected}", world.status()));
        }
        if world.claim() == 1 {
            return Err("a notice after a kill".to_owned());
        }
        let requested = kills.iter().filter(|(a, _)| *a == KillAnswer::Requested).count();
        Ok(["both finished", "one requested", "both requested"][requested])
    }
}

#[test]
fn two_kills_and_two_settlements_make_one_outcome() {
    let outcomes = ["both finished", "both requested", "one requested"];
    explore(two_kills(publish)).is_sound(&outcomes, 1_287);
}

#[test]
fn a_result_that_ignores_a_kill_between_look_and_publication_is_caught() {
    let broken = |world: &World| {
        let cause = world.slot.lock().cause();
        world.slot.lock().publish();
        cause
    };
    explore(two_kills(broken)).is_caught("completed instead of killed");
}
