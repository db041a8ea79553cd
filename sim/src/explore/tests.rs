//! The executor, judged on toy programs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use continuable::channel::oneshot;
use continuable::facts::Fact;
use continuable::ids::OwnerId;
use continuable::points::Point;
use continuable::runtime::{Runtime, fresh_session_id, spawn};
use continuable::sync::{Access, ObjectKind, touch};

use super::*;
use crate::trace::Trace;

const ESTIMATE: Estimate = Estimate { choices: 40, tasks: 6 };

fn executor(sampler: &Sampler, seed: u64) -> Executor {
    Executor::new(sampler.choices(seed, ESTIMATE), RunOptions::default())
}

fn shared(executor: &Executor) -> Arc<dyn Runtime> {
    Arc::clone(executor.runtime()) as Arc<dyn Runtime>
}

/// Three tasks that each say their number before and after a point.
fn chatter(executor: &mut Executor) -> (Vec<u64>, Outcome) {
    let runtime = shared(executor);
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let (_, outcome) = executor.run(async move {
        for number in 0..3 {
            let runtime_inside = Arc::clone(&runtime);
            let said = Arc::clone(&said);
            let body = async move {
                said.lock().expect("one thread").push(number);
                runtime_inside.fact(Fact::AgentIdle { agent: OwnerId(number) });
                runtime_inside.point(Point::LoopNext).await;
                said.lock().expect("one thread").push(number);
                runtime_inside.fact(Fact::AgentIdle { agent: OwnerId(number) });
            };
            spawn(&runtime, "chatter", body).detach();
        }
    });
    let order = heard.lock().expect("one thread").clone();
    (order, outcome)
}

#[test]
fn the_same_choices_give_the_same_bytes() {
    for seed in 0..30 {
        let sampler = Sampler::draw(&mut Rng::new(seed));
        let run = || {
            let mut executor = executor(&sampler, seed);
            chatter(&mut executor);
            (executor.runtime().run_record().take_trace().jsonl(), executor.answers())
        };
        let (first, answers) = run();
        assert_eq!(run().0, first);
        let mut replay = executor(&Sampler::Recorded(answers), 99);
        chatter(&mut replay);
        assert_eq!(
            replay.runtime().run_record().take_trace().jsonl(),
            first,
            "the recorded list replays it"
        );
    }
}

#[test]
fn first_in_first_out_is_choice_zero() {
    let (order, outcome) = chatter(&mut executor(&Sampler::Fifo, 0));
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    assert_eq!(outcome.end, RunEnd::Quiescent { pending: Vec::new() });
    // The main task's poll, then two polls for each of three.
    assert_eq!(outcome.polls, 7);
}

#[test]
fn exhaustive_search_reaches_every_order_exactly_once() {
    let mut search = Exhaustive::default();
    let mut orders = BTreeSet::new();
    loop {
        let mut executor = Executor::new(search.choices(), RunOptions::default());
        let (order, _) = chatter(&mut executor);
        assert!(orders.insert(order), "an order came twice");
        if !search.advance() {
            break;
        }
    }
    // 6! / (2! 2! 2!): every merge of three tasks of two polls.
    assert_eq!(orders.len(), 90);
}

/// A counter read, a pause, a counter write: two of them lose an update in few orders. Pauses of
/// many points make the order rare for a random walk.
fn loses_an_update(sampler: &Sampler, seed: u64) -> bool {
    let mut executor = executor(sampler, seed);
    let runtime = shared(&executor);
    let counter = Arc::new(Mutex::new(0));
    let total = Arc::clone(&counter);
    executor.run(async move {
        for _ in 0..2 {
            let inside = Arc::clone(&runtime);
            let counter = Arc::clone(&counter);
            let body = async move {
                for _ in 0..8 {
                    inside.point(Point::LoopNext).await;
                }
                let seen = *counter.lock().expect("one thread");
                inside.point(Point::StoreSync).await;
                *counter.lock().expect("one thread") = seen + 1;
            };
            spawn(&runtime, "adder", body).detach();
        }
    });
    let total = *total.lock().expect("one thread");
    total != 2
}

#[test]
fn pct_finds_a_planted_ordering_bug_once_its_depth_allows_it() {
    // Depth 1 runs one adder after the other and never meets the bug; depth 2 meets it when its one
    // change point falls into the gap between read and write.
    assert!(!(0..200).any(|seed| loses_an_update(&Sampler::Pct { depth: 1 }, seed)));
    let found = (0..400).filter(|seed| loses_an_update(&Sampler::Pct { depth: 2 }, *seed)).count();
    assert!(found > 3, "found in {found} of 400");
}

#[test]
fn footprints_of_independent_tasks_are_disjoint_and_of_dependent_ones_are_not() {
    let options = RunOptions { footprints: true, ..RunOptions::default() };
    let mut executor = Executor::new(Sampler::Fifo.choices(0, ESTIMATE), options);
    let runtime = shared(&executor);
    executor.run(async move {
        for key in [1, 2, 2] {
            let body = async move { touch(ObjectKind::Task, key, Access::Write) };
            runtime.spawn("toucher".to_owned(), Box::pin(body));
        }
    });
    let steps = executor.steps();
    assert_eq!(steps.len(), 4);
    assert!(!steps[1].conflicts_with(&steps[2]), "different objects");
    assert!(steps[2].conflicts_with(&steps[3]), "the same object");
    assert!(steps[0].conflicts_with(&steps[1]), "the spawn enables the poll");
    assert_eq!(steps[1].ready, [1, 2, 3]);
}

#[test]
fn a_wake_commutes_with_a_wake_and_not_with_a_poll() {
    let options = RunOptions { footprints: true, ..RunOptions::default() };
    let mut executor = Executor::new(Sampler::Fifo.choices(0, ESTIMATE), options);
    let runtime = shared(&executor);
    executor.run(async move {
        let (sender, receiver) = oneshot();
        let sleeper = async move {
            let _ = receiver.await;
        };
        runtime.spawn("sleeper".to_owned(), Box::pin(sleeper));
        let waker = async move {
            sender.send(()).expect("the sleeper waits");
        };
        runtime.spawn("waker".to_owned(), Box::pin(waker));
    });
    let steps = executor.steps();
    let wake = &steps[2];
    let poll = &steps[3];
    assert_eq!((wake.task, poll.task), (Some(2), Some(1)));
    let ready = |step: &Step, access| {
        step.touched(access).filter(|object| object.kind == ObjectKind::Ready).count()
    };
    assert_eq!((ready(wake, Access::Read), ready(wake, Access::Write)), (1, 1));
    assert_eq!(ready(poll, Access::Write), 1);
    assert!(wake.conflicts_with(poll));
}

#[test]
fn the_clock_jumps_to_the_next_timer_and_time_costs_nothing() {
    let mut executor = executor(&Sampler::Fifo, 0);
    let runtime = shared(&executor);
    let began = runtime.now();
    let (woken, outcome) = executor.run(async move {
        let mut woken = Vec::new();
        for hours in [3, 1] {
            runtime.sleep(Duration::from_secs(hours * 3_600)).await;
            woken.push(runtime.now() - began);
        }
        woken
    });
    assert_eq!(woken, Some(vec![10_800_000, 14_400_000]));
    assert_eq!(outcome.elapsed_ms, 14_400_000);
}

#[test]
fn a_deadlock_is_reported_with_its_tasks_by_name() {
    let mut executor = executor(&Sampler::Fifo, 0);
    let runtime = shared(&executor);
    let (_, outcome) = executor.run(async move {
        let body = async { std::future::pending::<()>().await };
        spawn(&runtime, "waits for ever", body).detach();
    });
    assert_eq!(outcome.end, RunEnd::Quiescent { pending: vec!["0.0: waits for ever".into()] });
}

#[test]
fn a_livelock_ends_at_the_poll_bound_and_names_its_task() {
    let options = RunOptions { polls_max: 500, ..RunOptions::default() };
    let mut executor = Executor::new(Sampler::Random.choices(0, ESTIMATE), options);
    let runtime = shared(&executor);
    let (_, outcome) = executor.run(async move {
        let inside = Arc::clone(&runtime);
        let body = async move {
            loop {
                inside.point(Point::LoopNext).await;
            }
        };
        spawn(&runtime, "spins", body).detach();
    });
    let RunEnd::Livelock { task, polls } = outcome.end else { unreachable!("{outcome:?}") };
    assert_eq!((&*task, polls), ("0.0: spins", 499));
}

/// Says its number when it is dropped.
struct Grave(u64, Arc<Mutex<Vec<u64>>>, Arc<dyn Runtime>);

impl Drop for Grave {
    fn drop(&mut self) {
        self.1.lock().expect("one thread").push(self.0);
        // A destructor that spawns must neither deadlock nor keep the pool alive.
        self.2.spawn("from the grave".to_owned(), Box::pin(async {}));
    }
}

#[test]
fn dropping_the_pool_drops_tasks_in_their_order_and_breaks_every_cycle() {
    let mut executor = executor(&Sampler::Random, 4);
    let runtime = shared(&executor);
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let graves = Arc::clone(&dropped);
    executor.run(async move {
        for number in 0..5 {
            let grave = Grave(number, Arc::clone(&graves), Arc::clone(&runtime));
            let body = async move {
                std::future::pending::<()>().await;
                drop(grave);
            };
            spawn(&runtime, "grave", body).detach();
        }
    });
    let weak = Arc::downgrade(executor.runtime());
    drop(executor);
    assert_eq!(*dropped.lock().expect("one thread"), [0, 1, 2, 3, 4]);
    assert_eq!(weak.strong_count(), 0, "nothing keeps the runtime alive");
}

#[test]
fn fresh_names_do_not_depend_on_the_schedule() {
    let ids = |sampler: &Sampler, seed| {
        let mut executor = executor(sampler, seed);
        let runtime = shared(&executor);
        let ids = Arc::new(Mutex::new(BTreeSet::new()));
        let made = Arc::clone(&ids);
        executor.run(async move {
            for number in 0..4 {
                let made = Arc::clone(&made);
                let inside = Arc::clone(&runtime);
                let body = async move {
                    inside.point(Point::TurnOpen).await;
                    let id = fresh_session_id(&*inside);
                    made.lock().expect("one thread").insert((number, id));
                };
                spawn(&runtime, "namer", body).detach();
            }
        });
        ids.lock().expect("one thread").clone()
    };
    let fifo = ids(&Sampler::Fifo, 0);
    assert_eq!(fifo.len(), 4);
    for seed in 0..20 {
        assert_eq!(ids(&Sampler::Random, seed), fifo);
    }
}

#[test]
fn actors_are_named_by_spawner_and_ordinal() {
    let mut executor = executor(&Sampler::Fifo, 0);
    chatter(&mut executor);
    let trace: Trace = executor.runtime().run_record().take_trace();
    assert_eq!(&*trace.entries[1].actor, "0.1: chatter");
}
