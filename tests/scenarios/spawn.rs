//! §10.7: the spawn provider.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use continuable::agent::hooks::AgentEvent;
use continuable::agent::{AgentHandle, AgentHost, AgentHostConfig, AgentOptions};
use continuable::cancel::CancelSignal;
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::model::script::Step;
use continuable::provider::in_process::InProcess;
use continuable::provider::{Capabilities, StartRequest, SubagentError, SubagentProvider};
use continuable::session::EventBody;
use continuable::session::descriptor::ToolFilter;
use continuable::vocabulary::{CancelCause, StopReason};
use serde_json::json;

use super::in_process::{asks, foreground};
use super::kit::{Kit, TestHooks, asked, reasons, settle, story, wait_until};
use super::seam::{Heard, Listener};
use super::world::World;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (92, "a_run_starts_once_its_child_is_registered"),
    (93, "a_spawned_child_starts_without_a_history"),
    (94, "a_disposed_child_leaves_the_registry"),
    (95, "a_depth_error_names_both_depths"),
    (96, "a_token_limit_and_an_error_keep_their_reasons"),
    (97, "an_abort_before_publication_publishes_nothing"),
    (98, "an_abort_while_the_prompt_is_queued_opens_no_turn"),
    (99, "an_abort_and_a_disposal_mid_stream_end_aborted"),
    (100, "a_run_can_be_steered_and_not_resumed"),
    (101, "directory_and_model_are_the_parents_or_the_requests"),
    (102, "an_unloaded_provider_revokes_no_run"),
    (103, "nothing_starts_after_unload"),
    (104, "persona_and_filter_are_the_childs_alone"),
    (105, "a_disposed_parent_starts_nothing"),
    (106, "a_parent_disposed_during_the_setup_gets_no_child"),
];

/// Scenario 92.
#[tokio::test]
async fn a_run_starts_once_its_child_is_registered() {
    let world = World::new([Step::say("the answer")]);
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    let [Heard::Started(started, child), Heard::Ended(ended, stop, output)] = &listener.heard()[..]
    else {
        panic!("not one start and one end")
    };
    assert_eq!((started, ended), (run.info(), run.info()));
    assert_eq!(child.map(|(instance, _)| instance), run.local_agent());
    assert_eq!((stop, output.as_deref()), (&StopReason::Completed, Some("the answer")));
}

/// Scenario 93.
#[tokio::test]
async fn a_spawned_child_starts_without_a_history() {
    let world = World::new(["parent answer", "child answer"].map(Step::say));
    let parent = world.parent().await;
    assert!(parent.agent().followup(world.kit.user("parent question")));
    parent.agent().when_idle().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_ne!(child.id(), parent.agent().id());
    let header = child.session().header();
    assert_eq!(header.parent_session.as_ref(), Some(parent.agent().id()));
    assert_eq!(header.seed_length, None);
    let request = world.kit.model.requests_of(run.child()).pop().expect("a request");
    assert_eq!(asked(&request).last().map(String::as_str), Some("q"));
    assert!(!asked(&request).contains(&"parent question".to_owned()));
}

/// Scenario 94.
#[tokio::test]
async fn a_disposed_child_leaves_the_registry() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!((child.depth(), child.session().header().delegation_depth), (1, 1));
    run.result().await.expect("no fault");
    run.dispose().await.expect("disposed");
    assert!(world.kit.host.get(run.child()).is_none());
}

/// Scenario 95.
#[tokio::test]
async fn a_depth_error_names_both_depths() {
    let world = World::new([]);
    let parent = world.parent().await;
    let request = StartRequest { max_depth: Some(0), ..asks(&parent, &world.signal(), "q") };
    let refused = foreground(&world, "spawn", request).await.expect_err("too deep");
    assert_eq!(refused.to_string(), "subagent depth 1 exceeds maxDepth 0");
}

/// Scenario 96.
#[tokio::test]
async fn a_token_limit_and_an_error_keep_their_reasons() {
    let world = World::new([Step::MaxTokens("cut".to_owned()), Step::Err("overloaded".to_owned())]);
    let parent = world.parent().await;
    for (stop, text) in [(StopReason::MaxTokens, "cut"), (StopReason::Error, "")] {
        let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
        let result = run.expect("started").result().await.expect("no fault");
        assert_eq!((&result.stop, result.text().as_str()), (&stop, text));
    }
}

fn publications(world: &World) -> usize {
    let published = |fact: &Fact| matches!(fact, Fact::AgentPublished { .. });
    world.kit.facts().iter().filter(|fact| published(fact)).count()
}

/// Scenario 97.
#[tokio::test]
async fn an_abort_before_publication_publishes_nothing() {
    let world = World::new([]);
    let parent = world.parent().await;
    publications(&world);
    for polled_first in [false, true] {
        let signal = world.signal();
        let mut start = Box::pin(foreground(&world, "spawn", asks(&parent, &signal, "q")));
        if polled_first {
            let begun = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(begun.is_pending());
        }
        signal.cancel(CancelCause::Parent);
        let refused = start.await.expect_err("aborted");
        assert!(refused.to_string().contains("aborted before child publication"));
        assert_eq!(publications(&world), 0);
        assert_eq!(world.kit.host.list().len(), 1);
    }
}

/// Scenario 98.
#[tokio::test]
async fn an_abort_while_the_prompt_is_queued_opens_no_turn() {
    let signal: Arc<OnceLock<CancelSignal>> = Arc::default();
    let hooks = TestHooks::listening({
        let signal = Arc::clone(&signal);
        move |agent, event| {
            if agent.parent().is_some() && matches!(event, AgentEvent::Enqueued { .. }) {
                signal.get().expect("set").cancel(CancelCause::Parent);
            }
        }
    });
    let world = World::on(Kit::with_hooks([], vec![Arc::new(hooks)]));
    signal.set(world.signal()).expect("set once");
    let parent = world.parent().await;
    let request = asks(&parent, signal.get().expect("set"), "q");
    let run = foreground(&world, "spawn", request).await.expect("published already");
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.output.len()), (StopReason::Aborted, 0));
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(reasons(child.session()), Vec::<&str>::new());
    assert_eq!(world.kit.model.request_count(), 0);
}

/// Scenario 99.
#[tokio::test]
async fn an_abort_and_a_disposal_mid_stream_end_aborted() {
    for disposes in [false, true] {
        let world = World::new([Step::Hang]);
        let parent = world.parent().await;
        let signal = world.signal();
        let run = foreground(&world, "spawn", asks(&parent, &signal, "q")).await.expect("started");
        wait_until("the stream", || world.kit.model.active() == 1).await;
        if disposes {
            run.dispose().await.expect("disposed");
        } else {
            signal.cancel(CancelCause::Parent);
        }
        assert_eq!(run.result().await.expect("no fault").stop, StopReason::Aborted);
        assert_eq!(world.kit.model.active(), 0);
    }
}

/// Scenario 100. That a run has no resume is its type's; that a settled one takes nothing is not.
#[tokio::test]
async fn a_run_can_be_steered_and_not_resumed() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    let steered = run.steer(world.kit.user("late")).expect("it accepts live delivery");
    assert!(steered.is_err());
}

/// A world whose host has no default model.
fn without_a_model(steps: Vec<Step>) -> World {
    let mut kit = Kit::new(steps);
    kit.host = AgentHost::new(AgentHostConfig {
        runtime: Arc::clone(&kit.runtime),
        store: Some(Arc::clone(&kit.shelf.store)),
        model: Arc::new(kit.model.clone()),
        tools: Arc::clone(&kit.tools),
        system_prompt: String::new(),
        defaults: AgentOptions::default(),
        hooks: Vec::new(),
    });
    World::on(kit)
}

/// Scenario 101.
#[tokio::test]
async fn directory_and_model_are_the_parents_or_the_requests() {
    let world = without_a_model(vec![Step::say("the answer")]);
    let parent = world.parent().await;
    assert_eq!(parent.agent().options().model, None);
    let agent_options = AgentOptions { model: Some("own".to_owned()), ..AgentOptions::default() };
    let request = StartRequest { agent_options, ..asks(&parent, &world.signal(), "q") };
    let run = foreground(&world, "spawn", request).await.expect("started");
    run.result().await.expect("no fault");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(child.session().header().cwd.as_deref(), Some("/project"));
    let request = world.kit.model.requests_of(run.child()).pop().expect("a request");
    assert_eq!(request.model, "own");
}

/// Scenario 102.
#[tokio::test]
async fn an_unloaded_provider_revokes_no_run() {
    assert_eq!(InProcess::spawn().capabilities(), Capabilities::ALL);
    assert!(InProcess::spawn().resume().is_some());
    let mut world = World::new([Step::Hang]);
    let parent = world.parent().await;
    let signal = world.signal();
    let run = foreground(&world, "spawn", asks(&parent, &signal, "q")).await.expect("started");
    wait_until("the stream", || world.kit.model.active() == 1).await;
    world.providers.clear();
    assert!(world.subagents.provider("spawn").is_none());
    settle().await;
    assert_eq!(world.kit.model.active(), 1, "it goes on");
    signal.cancel(CancelCause::Parent);
    assert_eq!(run.result().await.expect("no fault").stop, StopReason::Aborted);
}

/// Scenario 103.
#[tokio::test]
async fn nothing_starts_after_unload() {
    let mut world = World::new([]);
    let parent = world.parent().await;
    world.providers.clear();
    let refused = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let refused = refused.expect_err("unloaded");
    assert!(refused.to_string().contains("no subagent provider"), "{refused}");
    assert_eq!(world.kit.host.list().len(), 1);
}

/// Scenario 104. An unknown name in the filter is scenario 58's.
#[tokio::test]
async fn persona_and_filter_are_the_childs_alone() {
    let steps = [Step::tool("task_list", json!({})), Step::say("gave up"), Step::say("parent")];
    let world = World::new(steps);
    let parent = world.parent().await;
    let filter = ToolFilter { allow: None, deny: Some(vec!["task_list".to_owned()]) };
    let request = StartRequest {
        persona: Some("You are a terse librarian.".to_owned()),
        tool_filter: Some(filter),
        ..asks(&parent, &world.signal(), "q")
    };
    let run = foreground(&world, "spawn", request).await.expect("started");
    run.result().await.expect("no fault");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert!(story(child.session()).contains(&"result UNKNOWN_TOOL".to_owned()));
    assert!(parent.agent().followup(world.kit.user("hi")));
    parent.agent().when_idle().await;
    let of = |id| world.kit.model.requests_of(id).remove(0);
    let (childs, parents) = (of(run.child()), of(parent.agent().id()));
    let offers = |request: &continuable::model::ModelRequest| {
        request.tools.iter().any(|tool| tool.name == "task_list")
    };
    assert!(!offers(&childs) && offers(&parents));
    assert!(childs.system.contains("terse librarian"));
    assert!(!parents.system.contains("terse librarian"));
}

fn is_without_parent(refused: &SubagentError) -> bool {
    refused.code() == ErrorCode::OwnerUnavailable
}

/// Scenario 105.
#[tokio::test]
async fn a_disposed_parent_starts_nothing() {
    let world = World::new([]);
    let parent: AgentHandle = world.parent().await;
    parent.dispose().await;
    publications(&world);
    let refused = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    assert!(is_without_parent(&refused.expect_err("refused")));
    assert_eq!((publications(&world), world.kit.host.list().len()), (0, 0));
}

/// Scenario 106.
#[tokio::test]
async fn a_parent_disposed_during_the_setup_gets_no_child() {
    let world = World::new([]);
    let parent = world.parent().await;
    publications(&world);
    let mut start = Box::pin(foreground(&world, "spawn", asks(&parent, &world.signal(), "q")));
    let begun = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(begun.is_pending());
    parent.request_dispose();
    let refused = start.await.expect_err("refused");
    assert!(is_without_parent(&refused), "{refused:?}");
    parent.dispose().await;
    assert_eq!((publications(&world), world.kit.host.list().len()), (0, 0));
}

/// A child's first event is its own turn: a spawn has no seed.
#[tokio::test]
async fn a_spawned_log_begins_with_its_own_turn() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    let child = world.kit.host.get(run.child()).expect("alive");
    let first = &child.session().snapshot_from(0)[0];
    assert!(matches!(first.body, EventBody::TurnStart { turn: 1, .. }));
}
