//! §10.11: the Task service.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId, TaskId};
use continuable::task::{
    TaskCancel, TaskHooks, TaskOwner, TaskService, TaskSnapshot, TaskStart, wait_timeout,
};
use continuable::vocabulary::{CancelCause, KillAnswer, TaskOutcome, TaskStatus};

use super::task_kit::{FakeOwner, World, Writer, code, hooked, settle};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (151, "a_start_without_a_surface_is_refused"),
    (152, "an_invalid_kind_label_or_limit_is_refused"),
    (153, "ids_count_per_kind"),
    (154, "a_stream_is_read_delta_by_delta_and_its_end_once"),
    (155, "the_output_limit_is_in_every_snapshot"),
    (156, "a_final_output_is_empty_while_live_and_the_same_every_time_after"),
    (157, "a_failure_without_output_reads_empty_and_keeps_its_detail"),
    (158, "an_unknown_id_is_refused_everywhere"),
    (159, "a_panicking_listener_does_not_starve_the_next"),
    (160, "a_listener_whose_work_panics_does_not_starve_the_next"),
    (161, "a_producer_that_breaks_its_contract_fails_its_task"),
    (162, "a_detached_listener_hears_nothing"),
    (163, "a_kill_asks_the_producer_and_reports"),
    (164, "a_kill_of_a_terminal_task_says_so"),
    (165, "a_failing_cancel_changes_nothing"),
    (166, "a_wait_ends_terminal_and_listeners_saw_it_reported"),
    (167, "a_timed_out_wait_returns_the_live_task_unreported"),
    (168, "no_waiter_is_left_counted_after_a_timeout_or_an_abort"),
    (169, "a_wait_for_a_terminal_task_ends_at_once"),
    (170, "a_timeout_must_be_finite_and_positive"),
    (171, "an_aborted_wait_leaves_the_task_alone"),
    (172, "an_abort_before_the_outcome_is_recorded_is_not_counted"),
    (173, "an_abort_after_the_outcome_is_recorded_is_too_late"),
    (174, "only_the_owning_session_reaches_an_owned_task"),
    (175, "each_owner_lists_its_own_and_the_unowned"),
    (176, "an_owner_without_a_registry_is_refused_and_burns_no_id"),
    (177, "an_unregistered_owner_is_refused_until_it_registers"),
    (178, "a_stale_instance_starts_nothing"),
    (179, "a_closing_owner_cancels_and_removes_its_tasks"),
    (180, "an_owner_gets_one_cleanup"),
    (181, "closing_an_old_instance_leaves_its_replacement_alone"),
    (182, "the_cleanup_belongs_to_the_owner_not_to_the_surface"),
    (183, "a_cancel_that_fails_in_a_closing_owner_does_not_hold_it_up"),
    (184, "disposal_cancels_and_waits_in_silence"),
    (185, "disposal_does_not_wait_for_a_producer_whose_cancel_fails"),
    (186, "disposal_leaves_nothing_with_live_owners"),
    (187, "surfaces_are_counted"),
    (188, "incoherent_snapshots_are_told_apart"),
];

const LONG: Option<Duration> = Some(Duration::from_secs(3_600));

/// Scenario 151.
#[tokio::test]
async fn a_start_without_a_surface_is_refused() {
    let mut world = World::new();
    world.surface = None;
    let refused = world.tasks.start(TaskStart::new("bash", "x"), || panic!("never run"));
    let error = refused.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::NoControlSurface);
    let text = error.to_string();
    assert!(text.starts_with("background tasks unavailable: no control surface is attached"));
    assert!(world.tasks.list(None).is_empty());
}

/// Scenario 152.
#[tokio::test]
async fn an_invalid_kind_label_or_limit_is_refused() {
    let world = World::new();
    let bad = [
        (TaskStart::new("", "x"), "invalid task kind"),
        (TaskStart::new("bash", ""), "invalid task label"),
        (TaskStart::new("bash", "x").limited_to(0), "outputLimitBytes"),
        (TaskStart::new("bash", "x").limited_to(1 << 53), "outputLimitBytes"),
    ];
    for (start, says) in bad {
        let error = world.tasks.start(start, || panic!("never run")).expect_err("refused");
        assert_eq!(error.code(), ErrorCode::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(world.bash().0.as_str(), "bash-1");
}

/// Scenario 153.
#[tokio::test]
async fn ids_count_per_kind() {
    let world = World::new();
    let ids: Vec<_> = ["bash", "bash", "subagent", "workflow"]
        .map(|kind| world.start(TaskStart::new(kind, "x")).0.to_string())
        .into();
    assert_eq!(ids, ["bash-1", "bash-2", "subagent-1", "workflow-1"]);
    // Contract P13: an owner's resume raises the counter above what its log names.
    world.tasks.raise_counter("subagent", 7);
    world.tasks.raise_counter("bash", 1);
    assert_eq!(world.start(TaskStart::new("subagent", "x")).0.as_str(), "subagent-8");
    assert_eq!(world.start(TaskStart::new("bash", "x")).0.as_str(), "bash-3");
}

/// Scenario 154.
#[tokio::test]
async fn a_stream_is_read_delta_by_delta_and_its_end_once() {
    let world = World::new();
    let (hooks, mut work) = hooked();
    let buffer = Arc::new(Mutex::new("first".to_owned()));
    let reader = Arc::clone(&buffer);
    let read = move || Ok(std::mem::take(&mut *reader.lock().expect("lock")));
    let hooks = hooks.streaming(Arc::new(read));
    let id = world.tasks.start(TaskStart::new("pty", "x"), || hooks).expect("started");
    let read = world.tasks.read(&id, None).await.expect("read");
    assert_eq!((read.text.as_str(), read.snapshot.reported), ("first", false));
    assert_eq!(world.tasks.read(&id, None).await.expect("read").text, "");
    *buffer.lock().expect("lock") = "rest".to_owned();
    work.complete("");
    settle().await;
    let read = world.tasks.read(&id, None).await.expect("read");
    assert_eq!((read.text.as_str(), read.snapshot.reported), ("rest", true));
    assert!(read.snapshot.finished_at.is_some());
}

/// Scenario 155.
#[tokio::test]
async fn the_output_limit_is_in_every_snapshot() {
    let world = World::new();
    let (id, mut work) = world.start(TaskStart::new("bash", "x").limited_to(64));
    assert_eq!(world.tasks.get(&id, None).expect("there").output_limit_bytes, Some(64));
    work.complete(&"x".repeat(1_000));
    settle().await;
    let read = world.tasks.read(&id, None).await.expect("read");
    assert_eq!(read.snapshot.output_limit_bytes, Some(64));
    assert!(read.text.len() > 64 && read.text.len() < 100, "the record keeps what can be shown");
}

/// Scenario 156.
#[tokio::test]
async fn a_final_output_is_empty_while_live_and_the_same_every_time_after() {
    let world = World::new();
    let (id, mut work) = world.bash();
    let read = world.tasks.read(&id, None).await.expect("read");
    assert_eq!((read.text.as_str(), read.snapshot.reported), ("", false));
    work.complete("all of it");
    settle().await;
    for _ in 0..2 {
        let read = world.tasks.read(&id, None).await.expect("read");
        assert_eq!((read.text.as_str(), read.snapshot.reported), ("all of it", true));
    }
}

/// Scenario 157.
#[tokio::test]
async fn a_failure_without_output_reads_empty_and_keeps_its_detail() {
    let world = World::new();
    let (id, mut work) = world.bash();
    work.finish(TaskOutcome::failed(None, "exit 3"));
    settle().await;
    let read = world.tasks.read(&id, None).await.expect("read");
    assert_eq!(read.text, "");
    assert_eq!(read.snapshot.status, TaskStatus::Failed);
    assert_eq!(read.snapshot.detail.as_deref(), Some("exit 3"));
}

/// Scenario 158.
#[tokio::test]
async fn an_unknown_id_is_refused_everywhere() {
    let world = World::new();
    let id = TaskId::new("bash-9");
    assert_eq!(code(world.tasks.get(&id, None)), ErrorCode::UnknownTask);
    assert_eq!(code(world.tasks.read(&id, None).await), ErrorCode::UnknownTask);
    assert_eq!(code(world.tasks.kill(&id, None, None).await), ErrorCode::UnknownTask);
    let error = world.tasks.wait(&id, None, LONG, None).await.expect_err("refused");
    assert_eq!(error.to_string(), "unknown task bash-9");
}

/// Scenario 159.
#[tokio::test]
async fn a_panicking_listener_does_not_starve_the_next() {
    let mut world = World::new();
    let _broken = world.tasks.on_done(Arc::new(|_, _| panic!("broken listener")));
    let (seen, _attached) = world.seen();
    let (_, mut work) = world.bash();
    work.complete("x");
    settle().await;
    let seen = seen.lock().expect("lock").clone();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].0.reported);
    let facts = world.facts();
    let caught =
        |fact: &Fact| matches!(fact, Fact::PanicCaught { text, .. } if text == "broken listener");
    assert_eq!(facts.iter().filter(|fact| caught(fact)).count(), 1);
}

/// Scenario 160.
#[tokio::test]
async fn a_listener_whose_work_panics_does_not_starve_the_next() {
    let world = World::new();
    let _broken =
        world.tasks.on_done(Arc::new(|_, _| Some(Box::pin(async { panic!("broken work") }))));
    let _stuck = world.tasks.on_done(Arc::new(|_, _| Some(Box::pin(std::future::pending()))));
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.bash();
    work.complete("x");
    let end = world.tasks.wait(&id, None, LONG, None).await.expect("not held up");
    assert_eq!(end.status, TaskStatus::Completed);
    assert_eq!(seen.lock().expect("lock").len(), 1);
}

/// Scenario 161. Here a `done` cannot fail; it can panic, or end without a terminal status.
#[tokio::test]
async fn a_producer_that_breaks_its_contract_fails_its_task() {
    let world = World::new();
    let cancel = || TaskCancel::Signal(world.signal());
    let panics = TaskHooks::new(cancel(), async { panic!("producer broke") });
    let running = TaskOutcome { status: TaskStatus::Running, ..TaskOutcome::killed() };
    let lies = TaskHooks::new(cancel(), std::future::ready(running));
    for hooks in [panics, lies] {
        let id = world.tasks.start_prepared(TaskStart::new("bash", "x"), hooks).expect("started");
        let end = world.tasks.wait(&id, None, LONG, None).await.expect("settled");
        assert_eq!((end.status, end.code), (TaskStatus::Failed, Some(ErrorCode::Panicked)));
        assert!(end.detail.is_some_and(|detail| detail.starts_with("Error: ")));
    }
    let refused = world.tasks.start(TaskStart::new("bash", "x"), || panic!("cannot be built"));
    assert_eq!(code(refused), ErrorCode::Panicked);
    assert_eq!(world.bash().0.as_str(), "bash-3", "a producer that cannot be built burns no id");
}

/// Scenario 162.
#[tokio::test]
async fn a_detached_listener_hears_nothing() {
    let world = World::new();
    let (seen, attached) = world.seen();
    let (_, mut first) = world.bash();
    first.complete("x");
    settle().await;
    drop(attached);
    let (_, mut second) = world.bash();
    second.complete("x");
    settle().await;
    assert_eq!(seen.lock().expect("lock").len(), 1);
}

/// Scenario 163.
#[tokio::test]
async fn a_kill_asks_the_producer_and_reports() {
    let world = World::new();
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.bash();
    let answer = world.tasks.kill(&id, None, Some("enough")).await.expect("killed");
    assert_eq!(answer, KillAnswer::Requested);
    assert_eq!(work.reasons(), ["enough"]);
    let stopping = world.tasks.get(&id, None).expect("there");
    assert_eq!((stopping.status, stopping.reported), (TaskStatus::Stopping, true));
    work.finish(TaskOutcome::killed());
    settle().await;
    assert_eq!(world.status(&id), TaskStatus::Killed);
    let seen = seen.lock().expect("lock").clone();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].0.reported);
}

/// Scenario 164.
#[tokio::test]
async fn a_kill_of_a_terminal_task_says_so() {
    let world = World::new();
    let (id, mut work) = world.bash();
    work.complete("x");
    settle().await;
    let answer = world.tasks.kill(&id, None, None).await.expect("answered");
    assert_eq!(answer, KillAnswer::AlreadyFinished);
    assert!(world.tasks.get(&id, None).expect("there").reported);
    assert!(work.reasons().is_empty());
    assert_eq!(world.status(&id), TaskStatus::Completed);
}

/// Scenario 165.
#[tokio::test]
async fn a_failing_cancel_changes_nothing() {
    let world = World::new();
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.bash();
    *work.fails.lock().expect("lock") = true;
    let error = world.tasks.kill(&id, None, None).await.expect_err("the hook failed");
    assert_eq!(error.code(), ErrorCode::ProducerFailed);
    assert_eq!(error.to_string(), "Error: cannot stop");
    let running = world.tasks.get(&id, None).expect("there");
    assert_eq!((running.status, running.reported), (TaskStatus::Running, false));
    work.complete("x");
    settle().await;
    assert!(!seen.lock().expect("lock")[0].0.reported);
    let answer = world.tasks.kill(&id, None, None).await.expect("answered");
    assert_eq!(answer, KillAnswer::AlreadyFinished);
}

/// Scenario 166.
#[tokio::test]
async fn a_wait_ends_terminal_and_listeners_saw_it_reported() {
    let world = World::new();
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.bash();
    let wait = tokio::spawn(world.tasks.wait(&id, None, LONG, None));
    settle().await;
    work.complete("x");
    let end = wait.await.expect("joined").expect("settled");
    assert_eq!((end.status, end.reported), (TaskStatus::Completed, true));
    assert!(seen.lock().expect("lock")[0].0.reported);
}

/// Scenario 167.
#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_returns_the_live_task_unreported() {
    let world = World::new();
    let (id, _work) = world.bash();
    let soon = Some(Duration::from_millis(5));
    let live = world.tasks.wait(&id, None, soon, None).await.expect("timed out");
    assert_eq!((live.status, live.reported), (TaskStatus::Running, false));
}

/// Scenario 168.
#[tokio::test(start_paused = true)]
async fn no_waiter_is_left_counted_after_a_timeout_or_an_abort() {
    let world = World::new();
    let (id, _work) = world.bash();
    for _ in 0..3 {
        let soon = Some(Duration::from_millis(5));
        world.tasks.wait(&id, None, soon, None).await.expect("timed out");
        assert_eq!(world.tasks.waiting(&id), 0);
    }
    let signal = world.signal();
    let wait = tokio::spawn(world.tasks.wait(&id, None, LONG, Some(signal.clone())));
    settle().await;
    assert_eq!(world.tasks.waiting(&id), 1);
    signal.cancel(CancelCause::CallerGone);
    assert_eq!(code(wait.await.expect("joined")), ErrorCode::WaitAborted);
    assert_eq!(world.tasks.waiting(&id), 0);
    // Contract P17: dropping the wait uncounts at once.
    let mut wait = Box::pin(world.tasks.wait(&id, None, LONG, None));
    tokio::select! {
        biased;
        _ = &mut wait => panic!("nothing settled"),
        () = settle() => {}
    }
    assert_eq!(world.tasks.waiting(&id), 1);
    drop(wait);
    assert_eq!(world.tasks.waiting(&id), 0);
}

/// Scenario 169.
#[tokio::test]
async fn a_wait_for_a_terminal_task_ends_at_once() {
    let world = World::new();
    let (id, mut work) = world.bash();
    work.complete("x");
    settle().await;
    assert!(!world.tasks.get(&id, None).expect("there").reported);
    let end = world.tasks.wait(&id, None, LONG, None).await.expect("settled");
    assert_eq!((end.status, end.reported), (TaskStatus::Completed, true));
}

/// Scenario 170.
#[tokio::test]
async fn a_timeout_must_be_finite_and_positive() {
    let world = World::new();
    let (id, _work) = world.bash();
    let zero = Some(Duration::ZERO);
    let error = world.tasks.wait(&id, None, zero, None).await.expect_err("refused");
    assert_eq!(error.to_string(), "invalid wait timeout");
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX] {
        assert_eq!(code(wait_timeout(bad)), ErrorCode::InvalidInput, "{bad}");
    }
    assert_eq!(wait_timeout(1.5).expect("fine"), Duration::from_micros(1_500));
}

/// Scenario 171.
#[tokio::test]
async fn an_aborted_wait_leaves_the_task_alone() {
    let world = World::new();
    let (id, mut work) = world.bash();
    let signal = world.signal();
    signal.cancel(CancelCause::CallerGone);
    let wait = world.tasks.wait(&id, None, LONG, Some(signal.clone())).await;
    assert_eq!(wait.expect_err("aborted").to_string(), "wait aborted");
    assert_eq!(world.status(&id), TaskStatus::Running);
    assert!(work.reasons().is_empty());
    work.complete("x");
    settle().await;
    let end = world.tasks.wait(&id, None, LONG, Some(signal)).await.expect("terminal already");
    assert_eq!(end.status, TaskStatus::Completed);
}

/// Scenario 172.
#[tokio::test]
async fn an_abort_before_the_outcome_is_recorded_is_not_counted() {
    let world = World::new();
    let owner = world.owner(1, "s");
    let _notices = world.tasks.attach_notices(Arc::new(Writer(Arc::clone(&world.runtime))));
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.owned(&owner);
    let (signal, session) = (world.signal(), SessionId::new("s"));
    let wait = tokio::spawn(world.tasks.wait(&id, Some(&session), LONG, Some(signal.clone())));
    settle().await;
    work.complete("x");
    signal.cancel(CancelCause::CallerGone);
    assert_eq!(code(wait.await.expect("joined")), ErrorCode::WaitAborted);
    settle().await;
    assert!(!seen.lock().expect("lock")[0].0.reported);
    assert_eq!(owner.notices.lock().expect("lock").len(), 1, "the result reaches somebody");
}

/// Scenario 173.
#[tokio::test]
async fn an_abort_after_the_outcome_is_recorded_is_too_late() {
    let world = World::new();
    let (id, mut work) = world.bash();
    let signal = world.signal();
    let fired = signal.clone();
    let _aborts = world.tasks.on_done(Arc::new(move |_, _| {
        fired.cancel(CancelCause::CallerGone);
        None
    }));
    let wait = tokio::spawn(world.tasks.wait(&id, None, LONG, Some(signal)));
    settle().await;
    work.complete("x");
    let end = wait.await.expect("joined").expect("the outcome was recorded first");
    assert_eq!((end.status, end.reported), (TaskStatus::Completed, true));
}

/// Scenario 174.
#[tokio::test]
async fn only_the_owning_session_reaches_an_owned_task() {
    let world = World::new();
    let owner = world.owner(1, "mine");
    let (id, _work) = world.owned(&owner);
    for caller in [None, Some(SessionId::new("other"))] {
        let caller = caller.as_ref();
        let foreign = ErrorCode::ForeignTask;
        assert_eq!(code(world.tasks.get(&id, caller)), foreign);
        assert_eq!(code(world.tasks.read(&id, caller).await), foreign);
        assert_eq!(code(world.tasks.kill(&id, caller, None).await), foreign);
        let error = world.tasks.wait(&id, caller, LONG, None).await.expect_err("refused");
        assert_eq!(error.to_string(), "task bash-1 belongs to another session");
    }
    let mine = SessionId::new("mine");
    assert!(world.tasks.read(&id, Some(&mine)).await.is_ok());
    let (open, _work) = world.bash();
    for caller in [None, Some(&mine), Some(&SessionId::new("other"))] {
        assert!(world.tasks.read(&open, caller).await.is_ok());
    }
}

/// Scenario 175.
#[tokio::test]
async fn each_owner_lists_its_own_and_the_unowned() {
    let world = World::new();
    let (one, two) = (world.owner(1, "one"), world.owner(2, "two"));
    let _work = [world.owned(&one), world.bash(), world.owned(&two), world.owned(&one)];
    let list = |caller: Option<&str>| {
        let caller = caller.map(SessionId::new);
        let listed = world.tasks.list(caller.as_ref()).into_iter();
        listed.map(|task| task.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(Some("one")), ["bash-1", "bash-2", "bash-4"]);
    assert_eq!(list(Some("two")), ["bash-2", "bash-3"]);
    assert_eq!(list(Some("three")), ["bash-2"]);
    assert_eq!(list(None), ["bash-2"]);
}

/// Scenario 176.
#[tokio::test]
async fn an_owner_without_a_registry_is_refused_and_burns_no_id() {
    let world = World::new();
    let owner: Arc<dyn TaskOwner> = FakeOwner::new(1, "s", None);
    let start = TaskStart::new("bash", "x").owned_by(owner);
    assert_eq!(code(world.tasks.start(start, || panic!("never run"))), ErrorCode::OwnerUnavailable);
    assert!(world.tasks.list(Some(&SessionId::new("s"))).is_empty());
    assert_eq!(world.bash().0.as_str(), "bash-1");
}

/// Scenario 177.
#[tokio::test]
async fn an_unregistered_owner_is_refused_until_it_registers() {
    let world = World::new();
    let owner = FakeOwner::new(1, "s", Some(&world.registry));
    let start = TaskStart::new("bash", "x").owned_by(Arc::clone(&owner) as Arc<dyn TaskOwner>);
    let error = world.tasks.start(start, || panic!("never run")).expect_err("refused");
    assert!(error.to_string().contains("is not the registered agent instance"));
    assert_eq!(owner.cleanups(), 0);
    owner.register();
    let (id, mut work) = world.owned(&owner);
    assert_eq!(id.as_str(), "bash-1");
    let reasons = Arc::clone(&work.reasons);
    tokio::join!(owner.dispose(), async {
        settle().await;
        work.finish(TaskOutcome::killed());
    });
    assert_eq!(*reasons.lock().expect("lock"), ["owner disposed"]);
}

/// Scenario 178.
#[tokio::test]
async fn a_stale_instance_starts_nothing() {
    let world = World::new();
    let stale = world.owner(1, "s");
    let fresh = world.owner(2, "s");
    let start = TaskStart::new("bash", "x").owned_by(Arc::clone(&stale) as Arc<dyn TaskOwner>);
    let refused = world.tasks.start(start, || panic!("never run"));
    assert_eq!(code(refused), ErrorCode::OwnerUnavailable);
    let _work = world.owned(&fresh);
    assert_eq!(world.tasks.list(Some(&SessionId::new("s"))).len(), 1);
}

/// Scenario 179.
#[tokio::test]
async fn a_closing_owner_cancels_and_removes_its_tasks() {
    let mut world = World::new();
    let (owner, other) = (world.owner(1, "mine"), world.owner(2, "other"));
    let (done, mut finished) = world.owned(&owner);
    finished.complete("x");
    settle().await;
    let (live, mut work) = world.owned(&owner);
    let (kept, _kept) = world.owned(&other);
    let wait = tokio::spawn(world.tasks.wait(&live, Some(&SessionId::new("mine")), LONG, None));
    settle().await;
    let disposal = tokio::spawn({
        let owner = Arc::clone(&owner);
        async move { owner.dispose().await }
    });
    settle().await;
    assert_eq!(work.reasons(), ["owner disposed"]);
    assert!(!disposal.is_finished(), "it waits for its Tasks");
    let start = TaskStart::new("bash", "x").owned_by(Arc::clone(&owner) as Arc<dyn TaskOwner>);
    let refused = world.tasks.start(start, || panic!("never run"));
    assert_eq!(code(refused), ErrorCode::OwnerUnavailable);
    work.finish(TaskOutcome::killed());
    disposal.await.expect("joined");
    let end = wait.await.expect("joined").expect("a waiter gets its end");
    assert_eq!(end.status, TaskStatus::Killed);
    for gone in [done, live] {
        let caller = SessionId::new("mine");
        assert_eq!(code(world.tasks.get(&gone, Some(&caller))), ErrorCode::UnknownTask);
    }
    let kept = world.tasks.get(&kept, Some(&SessionId::new("other"))).expect("there");
    assert_eq!(kept.status, TaskStatus::Running);
    let removed = Fact::OwnerTasksRemoved { owner: OwnerId(1), count: 2 };
    assert!(world.facts().contains(&removed));
}

/// Scenario 180.
#[tokio::test]
async fn an_owner_gets_one_cleanup() {
    let world = World::new();
    let owner = world.owner(1, "s");
    let _work = [world.owned(&owner), world.owned(&owner), world.owned(&owner)];
    assert_eq!(owner.cleanups(), 1);
}

/// Scenario 181.
#[tokio::test]
async fn closing_an_old_instance_leaves_its_replacement_alone() {
    let world = World::new();
    let old = world.owner(1, "s");
    let (_, mut stale) = world.owned(&old);
    let new = world.owner(2, "s");
    let (id, work) = world.owned(&new);
    tokio::join!(old.dispose(), async {
        settle().await;
        stale.finish(TaskOutcome::killed());
    });
    assert_eq!(stale.reasons(), ["owner disposed"]);
    assert!(work.reasons().is_empty());
    let current = world.tasks.list(Some(&SessionId::new("s")));
    assert_eq!(current.len(), 1);
    assert_eq!((&current[0].id, current[0].status), (&id, TaskStatus::Running));
}

/// Scenario 182.
#[tokio::test]
async fn the_cleanup_belongs_to_the_owner_not_to_the_surface() {
    let mut world = World::new();
    let owner = world.owner(1, "s");
    let (_, mut work) = world.owned(&owner);
    world.surface = None;
    settle().await;
    assert!(work.reasons().is_empty(), "the surface's end closes nobody");
    tokio::join!(owner.dispose(), async {
        settle().await;
        work.finish(TaskOutcome::killed());
    });
    assert_eq!(work.reasons(), ["owner disposed"]);
}

/// Scenario 183.
#[tokio::test]
async fn a_cancel_that_fails_in_a_closing_owner_does_not_hold_it_up() {
    let mut world = World::new();
    let owner = world.owner(1, "s");
    let _notices = world.tasks.attach_notices(Arc::new(Writer(Arc::clone(&world.runtime))));
    let (seen, _attached) = world.seen();
    let (id, mut work) = world.owned(&owner);
    *work.fails.lock().expect("lock") = true;
    owner.dispose().await;
    {
        let seen = seen.lock().expect("lock");
        assert_eq!((seen.len(), seen[0].0.status), (1, TaskStatus::Failed));
        let detail = seen[0].0.detail.clone().expect("a detail");
        assert!(detail.contains("cancel threw during teardown; work may be orphaned"), "{detail}");
    }
    let caller = SessionId::new("s");
    assert_eq!(code(world.tasks.get(&id, Some(&caller))), ErrorCode::UnknownTask);
    work.complete("too late");
    settle().await;
    assert_eq!(seen.lock().expect("lock").len(), 1);
    let ignored = |fact: &Fact| matches!(fact, Fact::TaskSettlementIgnored { .. });
    assert!(world.facts().iter().any(ignored));
    // A closing owner takes no notice (contract P16).
    assert!(owner.notices.lock().expect("lock").is_empty());
}

/// Scenario 184.
#[tokio::test]
async fn disposal_cancels_and_waits_in_silence() {
    let world = World::new();
    let (seen, _attached) = world.seen();
    let (_, mut work) = world.bash();
    let disposal = tokio::spawn(world.tasks.dispose());
    settle().await;
    assert_eq!(work.reasons(), ["tasks service disposed"]);
    assert!(!disposal.is_finished());
    let refused = world.tasks.start(TaskStart::new("bash", "x"), || panic!("never run"));
    assert_eq!(code(refused), ErrorCode::Closing);
    work.finish(TaskOutcome::killed());
    disposal.await.expect("joined");
    world.tasks.dispose().await;
    assert!(seen.lock().expect("lock").is_empty());
    assert!(world.tasks.list(None).is_empty());
}

/// Scenario 185.
#[tokio::test]
async fn disposal_does_not_wait_for_a_producer_whose_cancel_fails() {
    let world = World::new();
    let (seen, _attached) = world.seen();
    let (_, work) = world.bash();
    *work.fails.lock().expect("lock") = true;
    world.tasks.dispose().await;
    assert_eq!(work.reasons(), ["tasks service disposed"]);
    assert!(seen.lock().expect("lock").is_empty());
    assert!(world.tasks.list(None).is_empty());
}

/// Scenario 186. The effect stays with its owner, but holds nothing and does nothing.
#[tokio::test]
async fn disposal_leaves_nothing_with_live_owners() {
    let world = World::new();
    let owner = world.owner(1, "s");
    let (_, mut work) = world.owned(&owner);
    work.complete("x");
    settle().await;
    let World { tasks, surface, .. } = world;
    tasks.dispose().await;
    drop(surface);
    let service: Weak<TaskService> = Arc::downgrade(&tasks);
    drop(tasks);
    settle().await;
    assert!(service.upgrade().is_none());
    owner.dispose().await;
}

/// Scenario 187.
#[tokio::test]
async fn surfaces_are_counted() {
    let mut world = World::new();
    let (one, two) = (world.tasks.attach_surface("same"), world.tasks.attach_surface("same"));
    world.surface = None;
    drop(one);
    let _work = world.bash();
    drop(two);
    let refused = world.tasks.start(TaskStart::new("bash", "x"), || panic!("never run"));
    assert_eq!(code(refused), ErrorCode::NoControlSurface);
    let _again = world.tasks.attach_surface("again");
    let _work = world.bash();
}

/// Scenario 188. That the seam's base class cannot be mounted twice has no meaning here.
#[test]
fn incoherent_snapshots_are_told_apart() {
    let good = TaskSnapshot {
        id: TaskId::new("bash-1"),
        kind: "bash".to_owned(),
        label: "x".to_owned(),
        output_limit_bytes: Some(1),
        owner_session: Some(SessionId::new("s")),
        owner: Some(OwnerId(1)),
        status: TaskStatus::Failed,
        code: None,
        detail: Some("d".to_owned()),
        started_at: 5,
        finished_at: Some(5),
        reported: false,
    };
    assert_eq!(good.incoherence(), None);
    let breaks: [fn(&mut TaskSnapshot); 13] = [
        |task| task.id = TaskId::new("bash"),
        |task| task.id = TaskId::new("bash-"),
        |task| task.id = TaskId::new("bash-0"),
        |task| task.id = TaskId::new("bash-x"),
        |task| task.id = TaskId::new("pty-1"),
        |task| task.kind = String::new(),
        |task| task.label = String::new(),
        |task| task.output_limit_bytes = Some(0),
        |task| task.owner_session = None,
        |task| task.owner = None,
        |task| task.finished_at = None,
        |task| task.finished_at = Some(4),
        |task| task.status = TaskStatus::Stopping,
    ];
    for (number, spoil) in breaks.into_iter().enumerate() {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(bad.incoherence().is_some(), "break {number}: {bad:?}");
    }
}
