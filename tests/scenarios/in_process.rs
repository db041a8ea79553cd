//! §10.4: the in-process driver. Live delivery is in `in_process_steer.rs`.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use continuable::agent::hooks::{AgentEvent, AgentStatus};
use continuable::agent::{
    Agent, AgentHandle, AgentHost, AgentHostConfig, AgentOptions, CreateAgent, PromptDecision,
};
use continuable::cancel::CancelSignal;
use continuable::channel::Latch;
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::model::script::Step;
use continuable::provider::in_process::child_depth;
use continuable::provider::{
    ContinuableRequest, ResumeRequest, Run, StartRequest, SubagentError, SubagentResult,
};
use continuable::runtime::{fresh_message_id, fresh_session_id, spawn};
use continuable::session::descriptor::{Descriptor, ToolFilter};
use continuable::session::{EventBody, TurnTrigger};
use continuable::store::DiskOperation;
use continuable::vocabulary::{CancelCause, StopReason};

use super::control::turn_flush_fails;
use super::kit::{Kit, TestHooks, hook, prompt_hook, reasons, settle, story, wait_until};
use super::world::World;
use crate::support::Fault;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (41, "a_run_is_there_after_its_childs_publication_and_gone_after_disposal"),
    (42, "a_permanent_flush_failure_is_the_results_failure"),
    (43, "a_final_flush_repairs_a_failed_first_one"),
    (44, "an_abort_during_a_final_flush_that_works_is_aborted"),
    (45, "an_abort_during_a_final_flush_that_fails_is_aborted"),
    (46, "a_foreground_run_is_best_effort"),
    (47, "an_injected_turn_overrides_no_message_turns_end"),
    (48, "a_forks_output_is_its_own"),
    (49, "a_childs_depth_is_in_its_header"),
    (50, "the_token_limit_is_inherited_or_overridden"),
    (51, "the_header_is_a_floor_of_the_depth"),
    (52, "the_deeper_of_header_and_runtime_counts"),
    (53, "a_depth_out_of_range_is_refused"),
    (54, "an_aborted_start_creates_nothing"),
    (55, "an_aborted_resume_creates_nothing"),
    (56, "a_resume_takes_its_options_from_the_descriptor_alone"),
    (57, "aborting_and_disposing_a_run_end_it_aborted"),
    (58, "an_unknown_tool_in_the_filter_fails_the_start"),
    (59, "an_abort_at_the_hand_over_leaves_nothing"),
];

/// What a foreground run of `parent` asks.
pub fn asks(parent: &AgentHandle, signal: &CancelSignal, prompt: &str) -> StartRequest {
    StartRequest::text(parent.agent().clone(), signal.clone(), prompt)
}

/// Starts a foreground run.
pub async fn foreground(
    world: &World,
    provider: &str,
    request: StartRequest,
) -> Result<Run, SubagentError> {
    world.subagents.start(provider, request).await
}

fn message(world: &World, text: &str) -> Message {
    Message::user(fresh_message_id(&*world.kit.runtime), text, MessageSource::User)
}

/// Starts a run as the control service does, without one.
async fn continuable(world: &World, request: StartRequest) -> Run {
    let request = ContinuableRequest {
        message: message(world, "q"),
        child: fresh_session_id(&*world.kit.runtime),
        descriptor: Descriptor::new("spawn"),
        request,
    };
    world.subagents.start_continuable("spawn", request).await.expect("started")
}

/// How often `child` was flushed, by the facts since the last look.
fn flushes(world: &World, child: &SessionId) -> usize {
    let of_child =
        |fact: &Fact| matches!(fact, Fact::FlushStarted { session, .. } if session == child);
    world.kit.facts().iter().filter(|fact| of_child(fact)).count()
}

fn is_stopped(result: &Result<SubagentResult, SubagentError>, stop: &StopReason) -> bool {
    result.as_ref().is_ok_and(|result| result.stop == *stop)
}

/// Every flush fails from now on.
fn break_disk(disk: &crate::support::FaultyDisk) {
    let fault = Fault::FailSaying(std::io::ErrorKind::StorageFull, "disk full");
    disk.fail(DiskOperation::Sync, 0, usize::MAX, fault);
}

/// Scenario 41.
#[tokio::test]
async fn a_run_is_there_after_its_childs_publication_and_gone_after_disposal() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    let child = world.kit.host.get(run.child()).expect("it is published");
    assert_eq!(Some(child.instance()), run.local_agent());
    assert_eq!(child.depth(), 1);
    let result = run.result().await.expect("no fault");
    assert_eq!((&result.stop, result.text().as_str()), (&StopReason::Completed, "the answer"));
    let (first, second) = tokio::join!(run.dispose(), run.dispose());
    assert!(first.is_ok() && second.is_ok());
    run.dispose().await.expect("again is fine");
    assert!(world.kit.host.get(run.child()).is_none());
}

/// Scenario 42.
#[tokio::test]
async fn a_permanent_flush_failure_is_the_results_failure() {
    let world = turn_flush_fails(vec![Step::say("the answer")], break_disk);
    let parent = world.parent().await;
    let run = continuable(&world, asks(&parent, &world.signal(), "q")).await;
    let error = run.result().await.expect_err("unconfirmed");
    assert_eq!(error.code(), ErrorCode::DurabilityFailed);
    let text = error.to_string();
    let words = "was not confirmed persisted and may be unavailable or stale on resume: ";
    assert!(text.contains(run.child().as_str()) && text.contains(words), "{text}");
    assert!(text.ends_with("disk full"), "{text}");
    let cause = error.source().expect("the store's error");
    assert!(text.ends_with(&cause.to_string()));
    assert_eq!(flushes(&world, run.child()), 2);
    run.dispose().await.expect("disposed");
}

/// Scenario 43.
#[tokio::test]
async fn a_final_flush_repairs_a_failed_first_one() {
    let world = turn_flush_fails(vec![Step::say("the answer")], |_disk| {});
    let parent = world.parent().await;
    let run = continuable(&world, asks(&parent, &world.signal(), "q")).await;
    let result = run.result().await.expect("confirmed in the end");
    assert_eq!(result.stop, StopReason::Completed);
    assert_eq!(flushes(&world, run.child()), 2);
    assert_eq!(world.stored(run.child()).await.len() as u64, {
        let child = world.kit.host.get(run.child()).expect("alive");
        child.session().len()
    });
}

/// Aborts a run during its final flush, which then works or fails.
async fn abort_during_final_flush(flush_fails: bool) {
    let held: Arc<std::sync::OnceLock<(Latch<()>, Latch<()>)>> = Arc::default();
    let world = turn_flush_fails(vec![Step::say("the answer")], {
        let held = Arc::clone(&held);
        move |disk| {
            assert!(held.set(disk.hold(DiskOperation::Sync)).is_ok());
            if flush_fails {
                break_disk(disk);
            }
        }
    });
    let parent = world.parent().await;
    let signal = world.signal();
    let run = continuable(&world, asks(&parent, &signal, "q")).await;
    wait_until("the final flush", || held.get().is_some_and(|(began, _)| began.get().is_some()))
        .await;
    signal.cancel(CancelCause::Kill);
    held.get().expect("held").1.set(());
    let result = run.result().await;
    assert!(is_stopped(&result, &StopReason::Aborted), "{result:?}");
    assert_eq!(flushes(&world, run.child()), 2);
}

/// Scenario 44.
#[tokio::test]
async fn an_abort_during_a_final_flush_that_works_is_aborted() {
    abort_during_final_flush(false).await;
}

/// Scenario 45.
#[tokio::test]
async fn an_abort_during_a_final_flush_that_fails_is_aborted() {
    abort_during_final_flush(true).await;
}

/// Scenario 46.
#[tokio::test]
async fn a_foreground_run_is_best_effort() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    break_disk(&world.kit.shelf.disk);
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    let result = run.result().await.expect("no fault");
    assert_eq!((&result.stop, result.text().as_str()), (&StopReason::Completed, "the answer"));
    assert_eq!(flushes(&world, run.child()), 1);
}

/// Makes the first turn's flush of a child wait, from the hook before its `turn/end` on; answers
/// the world and the latch that lets it go on.
pub fn turn_flush_held(steps: Vec<Step>) -> (World, Latch<()>) {
    let open = Latch::new();
    let disk: Arc<std::sync::OnceLock<Arc<crate::support::FaultyDisk>>> = Arc::default();
    let once = Arc::new(Mutex::new(true));
    let hooks = TestHooks {
        turn_stopping: hook({
            let (disk, open) = (Arc::clone(&disk), open.clone());
            move |_context| {
                if std::mem::take(&mut *once.lock().expect("no panic inside")) {
                    let fault = Fault::Hold(Latch::new(), open.clone());
                    disk.get().expect("set").fail(DiskOperation::Sync, 0, 1, fault);
                }
                async { Ok(()) }
            }
        }),
        ..TestHooks::default()
    };
    let kit = Kit::with_hooks(steps, vec![Arc::new(hooks)]);
    disk.set(Arc::clone(&kit.shelf.disk)).expect("set once");
    (World::on(kit), open)
}

/// The child of a run whose first turn has ended and is being flushed.
pub async fn flushing(world: &World, run: &Run) -> Agent {
    let child = world.kit.host.get(run.child()).expect("it is published");
    wait_until("the turn's end", || !reasons(child.session()).is_empty()).await;
    child
}

/// Scenario 47. Here a context wakes only an agent that rests, so its turn follows the message's
/// flush, between idle and the closing for settlement; the message's own end decides all the same.
#[tokio::test]
async fn an_injected_turn_overrides_no_message_turns_end() {
    let once = Mutex::new(true);
    let hooks = TestHooks::listening(move |agent, event| {
        let settled = matches!(event, AgentEvent::Settled { .. });
        if settled && std::mem::take(&mut *once.lock().expect("no panic inside")) {
            let agent = agent.clone();
            let runtime = Arc::clone(agent.runtime());
            // Queued before the run's driver is woken, and polled again until the child rests.
            spawn(&runtime, "news", async move {
                while agent.status() == AgentStatus::Running {
                    requeued().await;
                }
                let source = MessageSource::Plugin { plugin: "news".to_owned() };
                let news = Message::user(fresh_message_id(&**agent.runtime()), "news", source);
                agent.inject_waking(news, |_log| true).expect("taken");
            })
            .detach();
        }
    });
    let steps = [Step::MaxTokens("cut".to_owned()), Step::say("noted")];
    let world = World::on(Kit::with_hooks(steps, vec![Arc::new(hooks)]));
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    let result = run.result().await.expect("no fault");
    assert_eq!(result.stop, StopReason::MaxTokens);
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(reasons(child.session()), ["max-tokens", "completed"]);
    let events = child.session().snapshot_from(0);
    let injected = events.iter().any(|event| {
        matches!(&event.body, EventBody::TurnStart { trigger: TurnTrigger::Injection { .. }, .. })
    });
    assert!(injected, "the second turn is the context's");
}

/// Goes to the end of the ready queue, ahead of whatever is woken after.
async fn requeued() {
    let mut polled = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Scenario 48.
#[tokio::test]
async fn a_forks_output_is_its_own() {
    let world = World::new(["parent answer", "child answer"].map(Step::say));
    let parent = world.parent().await;
    assert!(parent.agent().followup(world.kit.user("parent question")));
    parent.agent().when_idle().await;
    let seed = parent.agent().session().snapshot_from(0);
    let run = foreground(&world, "fork", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    assert_eq!(run.result().await.expect("no fault").text(), "child answer");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(child.session().header().seed_length, Some(seed.len() as u64));
    assert_eq!(child.session().snapshot_from(0)[..seed.len()], seed[..]);
}

/// Scenario 49.
#[tokio::test]
async fn a_childs_depth_is_in_its_header() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    run.dispose().await.expect("disposed");
    let stored = world.kit.shelf.another_store().inspect(run.child()).await.expect("stored");
    assert_eq!(stored.header.delegation_depth, 1);
}

/// Scenario 50.
#[tokio::test]
async fn the_token_limit_is_inherited_or_overridden() {
    let world = World::new(["one", "two"].map(Step::say));
    let options = AgentOptions { max_tokens: Some(111), ..AgentOptions::default() };
    let request = CreateAgent { options, ..world.kit.request("parent") };
    let parent = world.kit.host.create(request).await.expect("created");
    for (own, expected) in [(None, 111), (Some(222), 222)] {
        let agent_options = AgentOptions { max_tokens: own, ..AgentOptions::default() };
        let request = StartRequest { agent_options, ..asks(&parent, &world.signal(), "q") };
        let run = foreground(&world, "spawn", request).await.expect("started");
        let child = world.kit.host.get(run.child()).expect("alive");
        assert_eq!(child.options().max_tokens, Some(expected));
        run.result().await.expect("no fault");
        let requests = world.kit.model.requests_of(run.child());
        assert_eq!(requests[0].max_tokens, Some(expected));
    }
}

/// A parent at that depth, by header and by runtime.
async fn at_depth(world: &World, header: u64, runtime: Option<u64>) -> AgentHandle {
    let options = AgentOptions { subagent_depth: runtime, ..AgentOptions::default() };
    let request = CreateAgent { delegation_depth: header, options, ..world.kit.request("parent") };
    world.kit.host.create(request).await.expect("created")
}

async fn too_deep(world: &World, parent: &AgentHandle, max: u64) -> (u64, u64) {
    let request = StartRequest { max_depth: Some(max), ..asks(parent, &world.signal(), "q") };
    match foreground(world, "spawn", request).await {
        Err(SubagentError::Depth { attempted, max }) => (attempted, max),
        other => panic!("{other:?}"),
    }
}

/// Scenario 51.
#[tokio::test]
async fn the_header_is_a_floor_of_the_depth() {
    let world = World::new([Step::say("hello")]);
    let parent = at_depth(&world, 1, None).await;
    assert!(parent.agent().followup(world.kit.user("hi")));
    parent.agent().when_idle().await;
    parent.dispose().await;
    let resume = continuable::agent::ResumeAgent::new(SessionId::new("parent"));
    let parent = world.kit.host.resume(resume).await.expect("resumed");
    assert_eq!(too_deep(&world, &parent, 1).await, (2, 1));
}

/// Scenario 52.
#[tokio::test]
async fn the_deeper_of_header_and_runtime_counts() {
    let world = World::new([]);
    let parent = at_depth(&world, 2, Some(1)).await;
    assert_eq!(too_deep(&world, &parent, 2).await, (3, 2));
    parent.dispose().await;
    let parent = at_depth(&world, 1, Some(2)).await;
    assert_eq!(too_deep(&world, &parent, 2).await, (3, 2));
}

/// Scenario 53. Negative, fractional and non-numeric depths cannot be built here.
#[tokio::test]
async fn a_depth_out_of_range_is_refused() {
    const SAFE_MAX: u64 = (1 << 53) - 1;
    let world = World::new([]);
    let parent = at_depth(&world, 0, None).await;
    assert_eq!(too_deep(&world, &parent, 0).await, (1, 0));
    let request =
        StartRequest { max_depth: Some(SAFE_MAX + 1), ..asks(&parent, &world.signal(), "q") };
    let refused = foreground(&world, "spawn", request).await.expect_err("unsafe");
    assert_eq!(refused.code(), ErrorCode::InvalidInput);
    parent.dispose().await;

    let options = AgentOptions { subagent_depth: Some(SAFE_MAX + 1), ..AgentOptions::default() };
    let unsafe_runtime = CreateAgent { options, ..world.kit.request("parent") };
    let refused = world.kit.host.create(unsafe_runtime).await.expect_err("unsafe");
    assert_eq!(refused.code(), ErrorCode::InvalidInput);

    let deepest = at_depth(&world, 0, Some(SAFE_MAX)).await;
    let beyond = child_depth(deepest.agent(), None).expect_err("beyond");
    assert!(matches!(beyond, SubagentError::DepthRange(_)), "{beyond:?}");
}

fn is_before_publication(outcome: Result<Run, SubagentError>) -> bool {
    let error = outcome.expect_err("refused");
    error.to_string().contains("aborted before child publication")
}

/// Scenario 54.
#[tokio::test]
async fn an_aborted_start_creates_nothing() {
    let world = World::new([]);
    let parent = world.parent().await;
    let signal = world.signal();
    signal.cancel(CancelCause::Parent);
    assert!(is_before_publication(foreground(&world, "spawn", asks(&parent, &signal, "q")).await));
    assert_eq!(world.kit.host.list().len(), 1);
    assert!(!world.kit.shelf.disk.wrote());
}

/// A stored child of `parent`.
async fn stored_child(world: &World, parent: &AgentHandle) -> SessionId {
    let run = continuable(world, asks(parent, &world.signal(), "q")).await;
    run.result().await.expect("no fault");
    run.dispose().await.expect("disposed");
    run.child().clone()
}

async fn resumes(
    world: &World,
    parent: &AgentHandle,
    child: &SessionId,
    signal: &CancelSignal,
) -> Result<Run, SubagentError> {
    let loaded = world.kit.shelf.store.load(child).await.expect("stored");
    let request = ResumeRequest {
        child: child.clone(),
        message: message(world, "more"),
        parent: parent.agent().clone(),
        signal: signal.clone(),
        descriptor: Descriptor::new("spawn"),
        loaded,
    };
    world.subagents.resume("spawn", request).await
}

/// Scenario 55.
#[tokio::test]
async fn an_aborted_resume_creates_nothing() {
    let world = World::new([Step::say("one")]);
    let parent = world.parent().await;
    let child = stored_child(&world, &parent).await;
    let signal = world.signal();
    signal.cancel(CancelCause::Kill);
    assert!(is_before_publication(resumes(&world, &parent, &child, &signal).await));
    assert_eq!(world.kit.host.list().len(), 1);
    let again = world.kit.shelf.store.load(&child).await.expect("the id is free again");
    assert!(again.reservation.is_some());
}

/// Scenario 56. The second prompt is blocked, so the resumed run has no turn.
#[tokio::test]
async fn a_resume_takes_its_options_from_the_descriptor_alone() {
    let blocks = TestHooks {
        prompt_submit: prompt_hook(|_context, message| async move {
            Ok(match message.text().as_str() {
                "more" => PromptDecision::Block { reason: "no more".to_owned() },
                _ => PromptDecision::allow(),
            })
        }),
        ..TestHooks::default()
    };
    let mut kit = Kit::new([Step::say("one")]);
    kit.host = AgentHost::new(AgentHostConfig {
        runtime: Arc::clone(&kit.runtime),
        store: Some(Arc::clone(&kit.shelf.store)),
        model: Arc::new(kit.model.clone()),
        tools: Arc::clone(&kit.tools),
        system_prompt: String::new(),
        defaults: AgentOptions::default(),
        hooks: vec![Arc::new(blocks)],
    });
    let world = World::on(kit);
    let options = AgentOptions {
        provider: Some("p".to_owned()),
        model: Some("m".to_owned()),
        max_tokens: Some(9),
        ..AgentOptions::default()
    };
    let request = CreateAgent { options, ..world.kit.request("parent") };
    let parent = world.kit.host.create(request).await.expect("created");
    let child = stored_child(&world, &parent).await;
    world.kit.facts();
    let run = resumes(&world, &parent, &child, &world.signal()).await.expect("resumed");
    let agent = world.kit.host.get(&child).expect("alive");
    assert_eq!(*agent.options(), AgentOptions::default());
    assert_eq!(agent.depth(), 1, "the header alone keeps the depth");
    let result = run.result().await;
    assert!(is_stopped(&result, &StopReason::Error), "{result:?}");
    assert!(result.expect("no fault").output.is_empty(), "no text of an earlier activation");
    assert_eq!(flushes(&world, &child), 1);
}

/// Scenario 57.
#[tokio::test]
async fn aborting_and_disposing_a_run_end_it_aborted() {
    let world = World::new([Step::Hang, Step::Hang]);
    let parent = world.parent().await;
    let signal = world.signal();
    let run = foreground(&world, "spawn", asks(&parent, &signal, "q")).await.expect("started");
    wait_until("the request", || world.kit.model.active() == 1).await;
    signal.cancel(CancelCause::CallerGone);
    assert!(is_stopped(&run.result().await, &StopReason::Aborted));
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(reasons(child.session()), ["aborted"]);
    let request = world.kit.model.requests_of(run.child()).pop().expect("a request");
    assert_eq!(request.signal.cause(), Some(CancelCause::Parent));
    run.dispose().await.expect("disposed");

    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    wait_until("the request", || world.kit.model.active() == 1).await;
    run.dispose().await.expect("disposed");
    assert!(is_stopped(&run.result().await, &StopReason::Aborted));
    assert_eq!(world.kit.host.list().len(), 1);
}

/// Scenario 58.
#[tokio::test]
async fn an_unknown_tool_in_the_filter_fails_the_start() {
    let world = World::new([]);
    let parent = world.parent().await;
    let filter = ToolFilter { allow: None, deny: Some(vec!["no_such_tool".to_owned()]) };
    let request = StartRequest { tool_filter: Some(filter), ..asks(&parent, &world.signal(), "q") };
    let refused = foreground(&world, "spawn", request).await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::UnknownTool);
    assert!(refused.to_string().contains("no_such_tool"));
    assert_eq!(world.kit.host.list().len(), 1);
}

/// Scenario 59.
#[tokio::test]
async fn an_abort_at_the_hand_over_leaves_nothing() {
    let signal: Arc<std::sync::OnceLock<CancelSignal>> = Arc::default();
    let hooks = TestHooks::listening({
        let signal = Arc::clone(&signal);
        move |agent, event| {
            let is_child = agent.parent().is_some();
            if is_child && matches!(event, AgentEvent::SessionStart { .. }) {
                signal.get().expect("set").cancel(CancelCause::Parent);
            }
        }
    });
    let world = World::on(Kit::with_hooks([], vec![Arc::new(hooks)]));
    signal.set(world.signal()).expect("set once");
    let parent = world.parent().await;
    let request = asks(&parent, signal.get().expect("set"), "q");
    assert!(is_before_publication(foreground(&world, "spawn", request).await));
    assert_eq!(world.kit.host.list().len(), 1);
    let facts = world.kit.facts();
    let started = |fact: &Fact| matches!(fact, Fact::RunStarted { .. } | Fact::RunEnded { .. });
    assert!(!facts.iter().any(started), "an unpublished run has no events");
    assert_eq!(world.kit.model.request_count(), 0);
}

/// Contract P9: the last text counts, not an empty message after it.
#[tokio::test]
async fn the_last_message_that_says_something_is_the_output() {
    let steps = [
        Step::Calls {
            text: "so far".to_owned(),
            calls: vec![continuable::model::script::ScriptedCall::new(
                "task_list",
                &serde_json::json!({}),
            )],
        },
        Step::Empty,
    ];
    let world = World::new(steps);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let result = run.expect("started").result().await.expect("no fault");
    assert_eq!(result.text(), "so far");
}

/// Invariant I15: an earlier activation's text is never this one's.
#[tokio::test]
async fn a_resumed_run_borrows_no_text() {
    let world = World::new([Step::say("one"), Step::Empty]);
    let parent = world.parent().await;
    let child = stored_child(&world, &parent).await;
    let run = resumes(&world, &parent, &child, &world.signal()).await.expect("resumed");
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.output.len()), (StopReason::Completed, 0));
    let agent = world.kit.host.get(&child).expect("alive");
    let descriptors = agent.session().snapshot_from(0);
    let is_descriptor = |body: &EventBody| matches!(body, EventBody::Descriptor(_));
    assert_eq!(descriptors.iter().filter(|e| is_descriptor(&e.body)).count(), 1);
    assert!(story(agent.session()).contains(&"user more".to_owned()));
}

/// Contract P17: dropping a start cancels it, and dropping a run disposes it.
#[tokio::test]
async fn what_is_dropped_is_disposed() {
    let world = World::new([Step::Hang]);
    let parent = world.parent().await;
    let mut start = Box::pin(foreground(&world, "spawn", asks(&parent, &world.signal(), "q")));
    let begun = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(begun.is_pending(), "its creation is under way");
    drop(start);
    settle().await;
    assert_eq!((world.kit.host.list().len(), world.kit.model.request_count()), (1, 0));
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    wait_until("the request", || world.kit.model.active() == 1).await;
    drop(run);
    wait_until("the child is gone", || world.kit.host.list().len() == 1).await;
    assert_eq!(world.kit.model.active(), 0);
}
