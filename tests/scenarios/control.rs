//! §10.1 and the end of §10.2: starting continuable children, settling runs, closing the service.

use std::sync::Arc;

use continuable::agent::AgentHandle;
use continuable::agent::hooks::AgentEvent;
use continuable::control::{
    ContinuableStart, ContinuableStartSpec, ControlError, SubagentControlService, settle_run,
};
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::model::script::Step;
use continuable::provider::{StartRequest, SubagentProvider};
use continuable::session::EventBody;
use continuable::session::descriptor::ToolFilter;
use continuable::store::DiskOperation;
use continuable::task::{TaskService, TaskServiceConfig};
use continuable::vocabulary::{CancelCause, KillAnswer, StopReason, TaskOutcome, TaskStatus};
use serde_json::json;

use super::fake_child::FakeChild;
use super::fake_provider::{FakeProvider, Play};
use super::kit::{Kit, TestHooks, story, wait_until};
use super::world::World;
use crate::support::Fault;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (1, "a_started_child_answers_under_both_ids"),
    (2, "the_descriptor_is_written_once_before_the_first_request"),
    (3, "without_a_store_nothing_starts"),
    (4, "a_refused_task_leaves_no_association"),
    (5, "a_composition_that_cannot_be_kept_is_refused_before_any_task"),
    (6, "a_child_too_deep_fails_its_task_and_stays_unavailable"),
    (7, "a_kill_of_a_running_child_ends_killed"),
    (8, "a_kill_during_the_final_flush_owns_the_outcome"),
    (27, "closing_the_service_cancels_a_pending_start"),
    (28, "every_stop_reason_has_its_outcome"),
    (29, "a_run_is_disposed_before_its_outcome_is_known"),
    (30, "a_lost_result_is_a_failure_with_its_words"),
    (31, "a_failed_checkpoint_is_told_without_a_prefix"),
    (32, "a_failed_disposal_is_a_failure"),
    (33, "a_lost_result_and_a_failed_disposal_are_both_told"),
];

/// A spawned child with that prompt.
pub fn spec(prompt: &str) -> ContinuableStartSpec {
    ContinuableStartSpec::text("spawn", "look it up", prompt)
}

/// Starts a child of `parent`.
pub fn start(
    world: &World,
    parent: &AgentHandle,
    spec: ContinuableStartSpec,
) -> Result<ContinuableStart, ControlError> {
    world.control.start_continuable(parent.agent(), spec)
}

/// A world with a provider of the test's own.
pub fn with_provider(steps: Vec<Step>, provider: Arc<dyn SubagentProvider>) -> World {
    let mut world = World::new(steps);
    world.providers.push(world.subagents.register(provider).expect("the name is free"));
    world
}

/// Scenario 1.
#[tokio::test]
async fn a_started_child_answers_under_both_ids() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("question")).expect("started");
    assert_eq!(started.task.as_str(), "subagent-1");
    let child = uuid::Uuid::parse_str(started.child.as_str()).expect("a UUID");
    assert_eq!(child.get_version_num(), 4);
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    let read = world.tasks.read(&started.task, Some(parent.agent().id())).await;
    assert_eq!(read.expect("its own").text, "the answer");
    assert!(world.kit.host.get(&started.child).is_none(), "a terminal Task leaves no live child");
    assert_eq!(world.control.activations(), 0);
}

/// Scenario 2.
#[tokio::test]
async fn the_descriptor_is_written_once_before_the_first_request() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("question")).expect("started");
    world.wait(parent.agent(), &started.task).await;

    let stored = world.kit.shelf.another_store().inspect(&started.child).await.expect("stored");
    assert_eq!(stored.header.id, started.child);
    assert_eq!(stored.header.parent_session.as_ref(), Some(parent.agent().id()));
    let place = |what: fn(&EventBody) -> bool| {
        let found = stored.events.iter().position(|event| what(&event.body));
        found.expect("it is in the log")
    };
    let descriptor = place(|body| matches!(body, EventBody::Descriptor(_)));
    assert!(place(|body| matches!(body, EventBody::TurnStart { .. })) < descriptor);
    assert!(descriptor < place(|body| matches!(body, EventBody::StepStart { .. })));
    assert!(descriptor < place(|body| matches!(body, EventBody::AssistantMessage { .. })));

    let text = world.kit.shelf.text(started.child.as_str());
    let lines: Vec<_> = text.lines().filter(|l| l.contains("subagent/descriptor")).collect();
    let [line] = lines[..] else { panic!("not one descriptor: {lines:?}") };
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let expected =
        json!({"version": 1, "provider": "spawn", "agentProvider": "mock", "agentModel": "mock"});
    assert_eq!(line["data"], expected);
    assert!(line.get("surfaceOp").is_none());
}

/// Scenario 3.
#[tokio::test]
async fn without_a_store_nothing_starts() {
    let world = World::new([]);
    let control = SubagentControlService::new(
        Arc::clone(&world.kit.host),
        Arc::clone(&world.tasks),
        Arc::clone(&world.subagents),
        None,
    );
    let parent = world.parent().await;
    let refused = control.start_continuable(parent.agent(), spec("q")).expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::PersistenceUnavailable);
    assert!(refused.to_string().contains("require session persistence"));
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
}

/// Scenario 4.
#[tokio::test]
async fn a_refused_task_leaves_no_association() {
    let world = World::new([]);
    let runtime = Arc::clone(&world.kit.runtime);
    let tasks = TaskService::new(runtime, TaskServiceConfig::default());
    let control = SubagentControlService::new(
        Arc::clone(&world.kit.host),
        Arc::clone(&tasks),
        Arc::clone(&world.subagents),
        Some(Arc::clone(&world.kit.shelf.store)),
    );
    let parent = world.parent().await;
    let refused = control.start_continuable(parent.agent(), spec("q")).expect_err("no surface");
    assert_eq!(refused.code(), ErrorCode::NoControlSurface);
    assert_eq!(control.activations(), 0);
    let _surface = tasks.attach_surface("test");
    let unnamed = ContinuableStartSpec { label: String::new(), ..spec("q") };
    let refused = control.start_continuable(parent.agent(), unnamed).expect_err("no label");
    assert_eq!(refused.code(), ErrorCode::InvalidInput);
    assert_eq!(control.activations(), 0);
    assert!(tasks.list(Some(parent.agent().id())).is_empty());
    assert!(!world.kit.shelf.disk.wrote());
}

/// Scenario 5. A value that is not JSON cannot be built here; a filter that no reader would accept
/// is the same mistake.
#[tokio::test]
async fn a_composition_that_cannot_be_kept_is_refused_before_any_task() {
    let world = World::new([]);
    let parent = world.parent().await;
    let spec = ContinuableStartSpec { tool_filter: Some(ToolFilter::default()), ..spec("q") };
    let refused = start(&world, &parent, spec).expect_err("an empty filter");
    assert!(refused.to_string().contains("not losslessly JSON-serializable"), "{refused}");
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
    assert_eq!(world.control.activations(), 0);
}

/// Scenario 6.
#[tokio::test]
async fn a_child_too_deep_fails_its_task_and_stays_unavailable() {
    let world = World::new([]);
    let parent = world.parent().await;
    let spec = ContinuableStartSpec { max_depth: Some(0), ..spec("q") };
    let started = start(&world, &parent, spec).expect("the Task is started");
    let failed = world.wait(parent.agent(), &started.task).await;
    assert_eq!(failed.status, TaskStatus::Failed);
    assert_eq!(failed.code, Some(ErrorCode::DepthExceeded));
    assert!(failed.detail.expect("a detail").contains("maxDepth"));

    let sent = super::control_send::send(&world, &parent, &started.child, "again").await;
    let sent = sent.expect("started");
    let failed = world.wait(parent.agent(), &sent.task).await;
    assert_eq!((failed.status, failed.code), (TaskStatus::Failed, Some(ErrorCode::NotResumable)));
    assert!(failed.detail.expect("a detail").contains("unavailable"));
}

/// Scenario 7.
#[tokio::test]
async fn a_kill_of_a_running_child_ends_killed() {
    let world = World::new([Step::Hang]);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    wait_until("the child asks the model", || world.kit.model.active() == 1).await;
    let killed = world.tasks.kill(&started.task, Some(parent.agent().id()), Some("enough")).await;
    assert_eq!(killed.expect("its own"), KillAnswer::Requested);
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!((done.status, done.detail), (TaskStatus::Killed, None));
    assert!(world.kit.host.get(&started.child).is_none());
    assert_eq!(world.kit.model.active(), 0);
}

/// A kit whose disk confirms nothing until a child's turn is over. What then happens is `then`'s
/// choice: it is called between the turn's own flush and the final one.
pub fn turn_flush_fails(
    steps: Vec<Step>,
    then: impl Fn(&crate::support::FaultyDisk) + Send + Sync + 'static,
) -> World {
    let disk: Arc<std::sync::OnceLock<Arc<crate::support::FaultyDisk>>> = Arc::default();
    let hooks = TestHooks::listening({
        let disk = Arc::clone(&disk);
        move |_agent, event| {
            if matches!(event, AgentEvent::Settled { .. }) {
                let disk = disk.get().expect("the kit is made");
                disk.heal();
                then(disk);
            }
        }
    });
    let kit = Kit::with_hooks(steps, vec![Arc::new(hooks)]);
    let fault = Fault::FailSaying(std::io::ErrorKind::StorageFull, "disk full");
    kit.shelf.disk.fail(DiskOperation::Sync, 0, usize::MAX, fault);
    disk.set(Arc::clone(&kit.shelf.disk)).expect("set once");
    World::on(kit)
}

/// Scenario 8.
#[tokio::test]
async fn a_kill_during_the_final_flush_owns_the_outcome() {
    for flush_fails in [false, true] {
        let held: Arc<std::sync::OnceLock<_>> = Arc::default();
        let world = turn_flush_fails(vec![Step::say("the answer")], {
            let held = Arc::clone(&held);
            move |disk| {
                assert!(held.set(disk.hold(DiskOperation::Sync)).is_ok());
                if flush_fails {
                    let fault = Fault::Fail(std::io::ErrorKind::StorageFull);
                    disk.fail(DiskOperation::Sync, 0, usize::MAX, fault);
                }
            }
        });
        let parent = world.parent().await;
        let started = start(&world, &parent, spec("q")).expect("started");
        wait_until("the final flush", || {
            held.get().is_some_and(|(began, _)| began.get().is_some())
        })
        .await;
        let killed = world.tasks.kill(&started.task, Some(parent.agent().id()), None).await;
        assert_eq!(killed.expect("its own"), KillAnswer::Requested);
        held.get().expect("held").1.set(());
        let done = world.wait(parent.agent(), &started.task).await;
        assert_eq!((done.status, done.code), (TaskStatus::Killed, None), "fails: {flush_fails}");
        assert!(world.kit.host.get(&started.child).is_none());
    }
}

/// Contract P6: a transient failure of the turn's flush is repaired by the final one, and a
/// permanent one fails the Task without its output.
#[tokio::test]
async fn only_a_confirmed_final_flush_completes_an_activation() {
    let world = turn_flush_fails(vec![Step::say("the answer")], |_disk| {});
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed);

    let world = turn_flush_fails(vec![Step::say("the answer")], |disk| {
        let fault = Fault::FailSaying(std::io::ErrorKind::StorageFull, "disk full");
        disk.fail(DiskOperation::Sync, 0, usize::MAX, fault);
    });
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!((done.status, done.code), (TaskStatus::Failed, Some(ErrorCode::DurabilityFailed)));
    let read = world.tasks.read(&started.task, Some(parent.agent().id())).await;
    assert_eq!(read.expect("its own").text, "", "unconfirmed output is not told");
}

/// Contract P2: a prompt that a hook blocks opens no turn; the Task says so and the id is
/// unavailable.
#[tokio::test]
async fn a_blocked_prompt_fails_its_task_and_leaves_no_child() {
    let hooks = TestHooks {
        prompt_submit: super::kit::prompt_hook(|_context, _message| async {
            Ok(continuable::agent::PromptDecision::Block { reason: "not today".to_owned() })
        }),
        ..TestHooks::default()
    };
    let world = World::on(Kit::with_hooks([], vec![Arc::new(hooks)]));
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    let failed = world.wait(parent.agent(), &started.task).await;
    assert_eq!(failed.status, TaskStatus::Failed);
    assert!(failed.detail.expect("a detail").contains("blocked"));
    assert_eq!(world.kit.model.request_count(), 0);
    let sent = super::control_send::send(&world, &parent, &started.child, "again").await;
    let failed = world.wait(parent.agent(), &sent.expect("started").task).await;
    assert!(failed.detail.expect("a detail").contains("unavailable"));
}

/// Scenario 27.
#[tokio::test]
async fn closing_the_service_cancels_a_pending_start() {
    let provider = Arc::new(FakeChild { pending: true, ..FakeChild::default() });
    let world = with_provider(Vec::new(), provider.clone());
    let parent = world.parent().await;
    let remote = ContinuableStartSpec { provider: "remote".to_owned(), ..spec("q") };
    let started = start(&world, &parent, remote).expect("started");
    provider.busy().await;
    world.control.dispose().await;
    assert_eq!(provider.cancelled.get(), Some(CancelCause::ControlDisposed));
    let task = world.tasks.get(&started.task, Some(parent.agent().id())).expect("it stays");
    assert_eq!(task.status, TaskStatus::Killed);
    assert_eq!(world.control.activations(), 0);

    let refused = start(&world, &parent, spec("q")).expect_err("closed");
    assert_eq!(refused.code(), ErrorCode::Closing);
    let sent = super::control_send::send(&world, &parent, &started.child, "again").await;
    assert_eq!(sent.expect_err("closed").code(), ErrorCode::Closing);
    world.control.dispose().await;
}

/// Contract P17: dropping the service requests its disposal; a Task under way ends killed.
#[tokio::test]
async fn dropping_the_service_kills_what_runs() {
    let world = World::new([Step::Hang]);
    let parent = world.parent().await;
    let tasks = Arc::clone(&world.tasks);
    let control = SubagentControlService::new(
        Arc::clone(&world.kit.host),
        Arc::clone(&tasks),
        Arc::clone(&world.subagents),
        Some(Arc::clone(&world.kit.shelf.store)),
    );
    let started = control.start_continuable(parent.agent(), spec("q")).expect("started");
    wait_until("the child asks the model", || world.kit.model.active() == 1).await;
    drop(control);
    // Bounded, so that a Task that nobody cancels is a failure here and not a hang.
    let bound = Some(std::time::Duration::from_secs(5));
    let done = tasks.wait(&started.task, Some(parent.agent().id()), bound, None).await;
    assert_eq!(done.expect("its own").status, TaskStatus::Killed);
    assert!(world.kit.host.get(&started.child).is_none());
}

/// Contract P18: a panic of a provider fails its Task and nothing else.
#[tokio::test]
async fn a_panicking_provider_fails_its_task() {
    let provider = Arc::new(FakeChild { panics: true, ..FakeChild::default() });
    let world = with_provider(vec![Step::say("the answer")], provider);
    let parent = world.parent().await;
    let remote = ContinuableStartSpec { provider: "remote".to_owned(), ..spec("q") };
    let started = start(&world, &parent, remote).expect("started");
    let failed = world.wait(parent.agent(), &started.task).await;
    assert_eq!((failed.status, failed.code), (TaskStatus::Failed, Some(ErrorCode::Panicked)));
    let other = start(&world, &parent, spec("q")).expect("started");
    let done = world.wait(parent.agent(), &other.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
}

/// What a run of a provider that plays `play` settles as, and how often it was disposed by then.
async fn settled(play: Play, dispose_error: Option<&'static str>) -> (TaskOutcome, usize) {
    let provider = Arc::new(FakeProvider { dispose_error, ..FakeProvider::new("fake", play) });
    let world = with_provider(Vec::new(), provider.clone());
    let parent = world.parent().await;
    let signal = world.signal();
    let request = StartRequest::text(parent.agent().clone(), signal.clone(), "q");
    let run = world.subagents.start("fake", request).await.expect("started");
    let outcome = settle_run(&world.kit.runtime, &signal, &run).await;
    let facts = world.kit.facts();
    let published = facts.iter().position(|fact| matches!(fact, Fact::ResultPublished { .. }));
    let disposed = facts.iter().position(|fact| matches!(fact, Fact::RunDisposed { .. }));
    assert!(published.expect("published") < disposed.expect("disposed"));
    (outcome, provider.disposals())
}

/// Scenario 28.
#[tokio::test]
async fn every_stop_reason_has_its_outcome() {
    let stop = |stop| settled(Play::Stop(stop), None);
    let (completed, _) = stop(StopReason::Completed).await;
    assert_eq!(completed, TaskOutcome::completed("partial answer"));
    assert_eq!(stop(StopReason::Aborted).await.0, TaskOutcome::killed());
    for reason in [
        StopReason::Error,
        StopReason::MaxTokens,
        StopReason::Refusal,
        StopReason::Other("evicted".to_owned()),
    ] {
        let word = reason.word().to_owned();
        assert_eq!(stop(reason).await.0, TaskOutcome::failed(None, word));
    }
}

/// Scenario 29.
#[tokio::test]
async fn a_run_is_disposed_before_its_outcome_is_known() {
    let (outcome, disposals) = settled(Play::Stop(StopReason::Completed), None).await;
    assert_eq!((outcome.status, disposals), (TaskStatus::Completed, 1));
}

/// Scenario 30.
#[tokio::test]
async fn a_lost_result_is_a_failure_with_its_words() {
    let (outcome, disposals) = settled(Play::Lose("transport gone"), None).await;
    assert_eq!(outcome.status, TaskStatus::Failed);
    assert_eq!(outcome.detail.as_deref(), Some("Error: transport gone"));
    assert_eq!(disposals, 1);
}

/// Scenario 31.
#[tokio::test]
async fn a_failed_checkpoint_is_told_without_a_prefix() {
    let world = turn_flush_fails(vec![Step::say("the answer")], |disk| {
        let fault = Fault::FailSaying(std::io::ErrorKind::StorageFull, "disk full");
        disk.fail(DiskOperation::Sync, 0, usize::MAX, fault);
    });
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    let failed = world.wait(parent.agent(), &started.task).await;
    let detail = failed.detail.expect("a detail");
    let beginning = format!(
        "subagent \"{}\" durability checkpoint failed; the latest state was not confirmed \
         persisted and may be unavailable or stale on resume: ",
        started.child
    );
    assert!(detail.starts_with(&beginning), "{detail}");
    assert!(detail.ends_with("disk full"), "{detail}");
}

/// Scenario 32.
#[tokio::test]
async fn a_failed_disposal_is_a_failure() {
    let (outcome, _) = settled(Play::Stop(StopReason::Completed), Some("reap failed")).await;
    let expected = "dispose failed: Error: reap failed";
    assert_eq!(outcome, TaskOutcome::failed(Some(ErrorCode::DisposeFailed), expected));
}

/// Scenario 33.
#[tokio::test]
async fn a_lost_result_and_a_failed_disposal_are_both_told() {
    let (outcome, _) = settled(Play::Lose("result failed"), Some("reap failed")).await;
    let expected = "Error: result failed; dispose failed: Error: reap failed";
    assert_eq!(outcome.detail.as_deref(), Some(expected));
}

/// Contract P2: the descriptor stands in the section of the prompt, also when the first step fails.
#[tokio::test]
async fn a_child_whose_first_request_fails_can_be_continued() {
    let world = World::new([Step::Err("overloaded".to_owned()), Step::say("now it works")]);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    let failed = world.wait(parent.agent(), &started.task).await;
    assert_eq!((failed.status, failed.detail.as_deref()), (TaskStatus::Failed, Some("error")));
    let sent = super::control_send::send(&world, &parent, &started.child, "again").await;
    let done = world.wait(parent.agent(), &sent.expect("started").task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert!(story(parent.agent().session()).is_empty(), "the parent's own log is untouched");
}
