//! §10.8: the fork provider.

use std::sync::Arc;

use continuable::agent::{Agent, AgentHandle};
use continuable::model::script::Step;
use continuable::provider::{Run, StartRequest};
use continuable::session::{Event, audit};
use continuable::vocabulary::StopReason;
use serde_json::json;

use super::in_process::{asks, foreground};
use super::kit::reasons;
use super::seam::{Heard, Listener};
use super::world::World;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (107, "a_forks_run_starts_once_the_seeded_child_is_registered"),
    (108, "a_fork_of_a_parent_without_a_turn_is_fresh"),
    (109, "a_fork_inherits_every_completed_turn"),
    (110, "a_fork_adds_its_own_turn_to_what_it_inherits"),
    (111, "a_fork_in_mid_turn_leaves_the_open_turn_out"),
    (112, "a_fork_reports_a_structured_result"),
    (113, "a_silent_fork_has_no_output"),
    (114, "spawned_and_forked_children_leave_their_parents_log_alone"),
];

/// Has `parent` complete a turn.
async fn turn(world: &World, parent: &AgentHandle, question: &str) {
    assert!(parent.agent().followup(world.kit.user(question)));
    parent.agent().when_idle().await;
}

async fn fork(world: &World, parent: &AgentHandle) -> Run {
    let request = asks(parent, &world.signal(), "child question");
    foreground(world, "fork", request).await.expect("started")
}

fn child_of(world: &World, run: &Run) -> Agent {
    world.kit.host.get(run.child()).expect("alive")
}

fn events(agent: &Agent) -> Vec<Arc<Event>> {
    agent.session().snapshot_from(0)
}

/// Scenario 107.
#[tokio::test]
async fn a_forks_run_starts_once_the_seeded_child_is_registered() {
    let world = World::new(["parent answer", "child answer"].map(Step::say));
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let parent = world.parent().await;
    turn(&world, &parent, "parent question").await;
    let length = parent.agent().session().len();
    let run = fork(&world, &parent).await;
    let Some(Heard::Started(info, Some((instance, seed)))) = listener.heard().into_iter().next()
    else {
        panic!("not a start of a registered child")
    };
    assert_eq!(&info, run.info());
    assert_eq!((Some(instance), seed), (run.local_agent(), Some(length)));
}

/// Scenario 108.
#[tokio::test]
async fn a_fork_of_a_parent_without_a_turn_is_fresh() {
    let world = World::new([Step::say("child answer")]);
    let parent = world.parent().await;
    let run = fork(&world, &parent).await;
    run.result().await.expect("no fault");
    let child = child_of(&world, &run);
    assert_eq!(child.session().header().seed_length, None);
    assert_eq!(reasons(child.session()), ["completed"]);
}

/// Scenario 109.
#[tokio::test]
async fn a_fork_inherits_every_completed_turn() {
    let world = World::new(["one", "two", "child answer"].map(Step::say));
    let parent = world.parent().await;
    turn(&world, &parent, "first").await;
    turn(&world, &parent, "second").await;
    let inherited = events(parent.agent());
    let run = fork(&world, &parent).await;
    let child = child_of(&world, &run);
    assert_eq!(child.session().header().seed_length, Some(inherited.len() as u64));
    let seed = &events(&child)[..inherited.len()];
    assert_eq!(seed, inherited);
    assert!(seed.last().expect("not empty").is_turn_end());
    assert_eq!(seed.iter().filter(|event| event.is_turn_end()).count(), 2);
}

/// Scenario 110.
#[tokio::test]
async fn a_fork_adds_its_own_turn_to_what_it_inherits() {
    let world = World::new(["parent answer", "child answer"].map(Step::say));
    let parent = world.parent().await;
    turn(&world, &parent, "parent question").await;
    let inherited = events(parent.agent());
    let run = fork(&world, &parent).await;
    run.result().await.expect("no fault");
    let child = child_of(&world, &run);
    let header = child.session().header();
    assert_eq!(header.parent_session.as_ref(), Some(parent.agent().id()));
    assert_eq!(header.seed_length, Some(inherited.len() as u64));
    assert_eq!(events(&child)[..inherited.len()], inherited[..]);
    assert_eq!(reasons(child.session()), ["completed", "completed"]);
}

/// Scenario 111.
#[tokio::test]
async fn a_fork_in_mid_turn_leaves_the_open_turn_out() {
    let world = World::new([Step::say("parent answer")]);
    let parent = world.parent().await;
    turn(&world, &parent, "first").await;
    world.kit.model.push(parent.agent().id(), [Step::gate("open"), Step::say("second answer")]);
    world.kit.model.push_shared([Step::say("child answer")]);
    assert!(parent.agent().followup(world.kit.user("second")));
    world.kit.model.reached("open").await;
    let run = fork(&world, &parent).await;
    run.result().await.expect("no fault");
    let child = child_of(&world, &run);
    assert_eq!(reasons(child.session()), ["completed", "completed"]);
    audit(&events(&child)).expect("a well-formed log");
    world.kit.model.release("open");
    parent.agent().when_idle().await;
    audit(&events(parent.agent())).expect("a well-formed log");
}

/// Scenario 112.
#[tokio::test]
async fn a_fork_reports_a_structured_result() {
    let steps = [Step::say("parent answer"), Step::Structured(json!({"n": 7}))];
    let world = World::new(steps);
    let parent = world.parent().await;
    turn(&world, &parent, "parent question").await;
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let request =
        StartRequest { output_schema: Some(schema), ..asks(&parent, &world.signal(), "count") };
    let run = foreground(&world, "fork", request).await.expect("started");
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.structured), (StopReason::Completed, Some(json!({"n": 7}))));
}

/// Scenario 113.
#[tokio::test]
async fn a_silent_fork_has_no_output() {
    let world = World::new([Step::say("parent answer"), Step::Empty]);
    let parent = world.parent().await;
    turn(&world, &parent, "parent question").await;
    let run = fork(&world, &parent).await;
    let result = run.result().await.expect("no fault");
    assert_eq!((&result.stop, result.text().as_str()), (&StopReason::Completed, ""));
}

/// Scenario 114.
#[tokio::test]
async fn spawned_and_forked_children_leave_their_parents_log_alone() {
    let world = World::new(["one", "child", "child", "two"].map(Step::say));
    let parent = world.parent().await;
    turn(&world, &parent, "first").await;
    let spawned = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let (spawned, forked) = (spawned.expect("started"), fork(&world, &parent).await);
    assert_eq!(world.kit.host.list().len(), 3);
    for run in [&spawned, &forked] {
        assert_eq!(run.result().await.expect("no fault").text(), "child");
    }
    turn(&world, &parent, "second").await;
    assert_eq!(reasons(parent.agent().session()), ["completed", "completed"]);
    for run in [spawned, forked] {
        run.dispose().await.expect("disposed");
    }
    assert_eq!(world.kit.host.list().len(), 1);
}
