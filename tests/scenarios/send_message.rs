//! §10.3: the `send_message` tool.

use std::sync::Arc;

use continuable::agent::Agent;
use continuable::agent::tools::ToolRegistry;
use continuable::control::SubagentControlService;
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::model::script::Step;
use continuable::session::{Event, EventBody};
use continuable::tools::delegate::{DelegateConfig, DelegateMount};
use continuable::tools::send_message::{SEND_MESSAGE, SendMessageTool};
use continuable::vocabulary::{CancelCause, TaskStatus};
use serde_json::{Value, json};

use super::kit::{settle, wait_until};
use super::world::{World, delegation, error_code, text, word};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (34, "the_tool_is_registered_once_with_two_arguments"),
    (35, "a_settled_child_is_continued_in_a_fresh_task"),
    (36, "a_running_child_takes_the_message_into_its_task"),
    (37, "an_unknown_id_starts_a_task_that_fails"),
    (38, "a_send_needs_a_caller"),
    (39, "unloading_takes_the_tool_away"),
    (40, "the_tool_needs_the_registry_and_the_control_service_alone"),
];

/// Starts a continuable child of `parent` with the tool; answers its id.
async fn started(world: &World, parent: &Agent) -> (DelegateMount, SessionId) {
    let mount = world.mount(DelegateConfig::new("spawn"));
    let started = world.call(parent, "subagent", delegation(true)).await;
    let child = SessionId::new(word(&started, "subagentId"));
    (mount, child)
}

fn message(child: &str, text: &str) -> Value {
    json!({ "subagent_id": child, "message": text })
}

fn coordinator(sender: &Agent) -> MessageSource {
    MessageSource::Coordinator { sender_session_id: sender.id().clone() }
}

fn steered(events: &[Arc<Event>]) -> Vec<Arc<Message>> {
    let steering = events.iter().filter_map(|event| match &event.body {
        EventBody::SteeringMessage { message, .. } => Some(Arc::clone(message)),
        _ => None,
    });
    steering.collect()
}

/// Scenario 34.
#[tokio::test]
async fn the_tool_is_registered_once_with_two_arguments() {
    let world = World::new([]);
    let parent = world.parent().await;
    let tools = parent.agent().tools().definitions();
    let mut sends = tools.iter().filter(|tool| tool.name == SEND_MESSAGE);
    let tool = sends.next().expect("it is there");
    assert!(sends.next().is_none());
    let properties = tool.parameters["properties"].as_object().expect("an object");
    let mut names: Vec<_> = properties.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["message", "subagent_id"]);
    assert_eq!(tool.parameters["required"], json!(["subagent_id", "message"]));
    assert!(tool.description.contains("task_output"));
    let again = SendMessageTool::new(Arc::clone(&world.control)).load(&world.kit.tools);
    assert!(again.is_err(), "the name is taken");
}

/// Scenario 35.
#[tokio::test]
async fn a_settled_child_is_continued_in_a_fresh_task() {
    let world = World::new([Step::say("first answer"), Step::say("second answer")]);
    let parent = world.parent().await;
    let (_mount, child) = started(&world, parent.agent()).await;
    world.output(parent.agent(), "subagent-1").await;
    let arguments = message(child.as_str(), "and then?");
    let sent = world.call(parent.agent(), SEND_MESSAGE, arguments).await;
    let words = format!("message started task subagent-2 continuing subagent {child}");
    assert_eq!(text(&sent), words);
    assert_eq!(sent.value, Some(json!({ "route": "started", "taskId": "subagent-2" })));
    let read = world.output(parent.agent(), "subagent-2").await;
    assert_eq!(read, "second answer\n[status: completed]");
    let stored = world.stored(&child).await;
    let last = stored.iter().rev().find_map(|event| match &event.body {
        EventBody::UserMessage(message) => Some(Arc::clone(message)),
        _ => None,
    });
    let last = last.expect("a prompt");
    assert_eq!((last.text(), &last.source), ("and then?".into(), &coordinator(parent.agent())));
}

/// Scenario 36.
#[tokio::test]
async fn a_running_child_takes_the_message_into_its_task() {
    let world =
        World::new([Step::gate("go"), Step::say("first answer"), Step::say("second answer")]);
    world.tasks.raise_counter("subagent", 8);
    let parent = world.parent().await;
    let (_mount, child) = started(&world, parent.agent()).await;
    world.kit.model.reached("go").await;
    let send =
        world.call(parent.agent(), SEND_MESSAGE, message(child.as_str(), "also the margins"));
    let release = async {
        settle().await;
        world.kit.model.release("go");
    };
    let (sent, ()) = tokio::join!(send, release);
    assert_eq!(text(&sent), "message delivered to running task subagent-9");
    assert_eq!(sent.value, Some(json!({ "route": "steered", "taskId": "subagent-9" })));
    let read = world.output(parent.agent(), "subagent-9").await;
    assert_eq!(read, "second answer\n[status: completed]");
    assert_eq!(world.tasks.list(Some(parent.agent().id())).len(), 1, "no new Task");
    let steered = steered(&world.stored(&child).await);
    assert_eq!(steered.len(), 1);
    assert_eq!(steered[0].text(), "also the margins");
    assert_eq!(steered[0].source, coordinator(parent.agent()));
}

/// Contract P4: the tool's own signal is the caller's.
#[tokio::test]
async fn a_cancelled_call_withdraws_its_message() {
    let world = World::new([Step::gate("go"), Step::say("first answer"), Step::say("never")]);
    let parent = world.parent().await;
    let (_mount, child) = started(&world, parent.agent()).await;
    world.kit.model.reached("go").await;
    let signal = world.signal();
    let arguments = message(child.as_str(), "too late");
    let send = world.call_under(parent.agent(), SEND_MESSAGE, arguments.clone(), signal.clone());
    let cancel = async {
        settle().await;
        signal.cancel(CancelCause::User);
    };
    let (sent, ()) = tokio::join!(send, cancel);
    assert_eq!(error_code(&sent), "CANCELLED");
    assert!(text(&sent).contains("not delivered"));
    let again = world.call_under(parent.agent(), SEND_MESSAGE, arguments, signal).await;
    assert_eq!(error_code(&again), "CANCELLED", "a signal that fired before sends nothing");
    world.kit.model.release("go");
    let read = world.output(parent.agent(), "subagent-1").await;
    assert_eq!(read, "first answer\n[status: completed]", "the activation is not cancelled");
    assert_eq!(steered(&world.stored(&child).await), []);
    assert_eq!(world.kit.model.request_count(), 1);
}

/// Every refusal of the control service says that the message is nowhere.
#[tokio::test]
async fn a_refused_send_says_that_nothing_was_delivered() {
    let world = World::new([Step::gate("go"), Step::say("answer")]);
    let parent = world.parent().await;
    let other = world.kit.create("other").await;
    let (_mount, child) = started(&world, parent.agent()).await;
    world.kit.model.reached("go").await;
    let foreign = world.call(other.agent(), SEND_MESSAGE, message(child.as_str(), "hi")).await;
    assert_eq!(error_code(&foreign), "FOREIGN_TASK");
    let outside = world.call(parent.agent(), SEND_MESSAGE, message("other", "hi")).await;
    assert_eq!(error_code(&outside), "OWNERSHIP_CONFLICT");
    let empty = world.call(parent.agent(), SEND_MESSAGE, message("", "hi")).await;
    assert_eq!(error_code(&empty), "INVALID_INPUT");
    let long = message(&"x".repeat(1_025), "hi");
    let long = world.call(parent.agent(), SEND_MESSAGE, long).await;
    assert_eq!(error_code(&long), "INVALID_INPUT");
    for refused in [foreign, outside, empty, long] {
        assert!(text(&refused).contains("not delivered"), "{refused:?}");
    }
    assert_eq!(world.tasks.list(Some(parent.agent().id())).len(), 1);
    assert!(world.tasks.list(Some(other.agent().id())).is_empty());
    world.kit.model.release("go");
    world.output(parent.agent(), "subagent-1").await;
}

/// Scenario 37. Of the two outcomes it allows, ours is the Task.
#[tokio::test]
async fn an_unknown_id_starts_a_task_that_fails() {
    let world = World::new([]);
    let parent = world.parent().await;
    let sent = world.call(parent.agent(), SEND_MESSAGE, message("nobody", "hello")).await;
    assert_eq!(text(&sent), "message started task subagent-1 continuing subagent nobody");
    let read = world.output(parent.agent(), "subagent-1").await;
    assert!(read.contains("[status: failed, SubagentControlError: subagent \"nobody\""), "{read}");
    assert!(read.contains("unavailable"));
    assert!(world.kit.shelf.files().is_empty(), "nothing was written");
}

/// Scenario 38. A tool call always has an agent here; other surfaces of the operation may not.
#[tokio::test]
async fn a_send_needs_a_caller() {
    let world = World::new([]);
    let tool = SendMessageTool::new(Arc::clone(&world.control));
    let output = tool.send(None, &message("child", "hello"), None).await;
    assert!(text(&output).contains("requires a calling agent"));
    assert!(!output.is_success());
}

/// Scenario 39.
#[tokio::test]
async fn unloading_takes_the_tool_away() {
    let mut world = World::new([]);
    let parent = world.parent().await;
    assert!(parent.agent().tools().contains(SEND_MESSAGE));
    world.send_message = None;
    assert!(!parent.agent().tools().contains(SEND_MESSAGE));
    let output = world.call(parent.agent(), SEND_MESSAGE, message("child", "hello")).await;
    assert_eq!(error_code(&output), "UNKNOWN_TOOL");
}

/// Scenario 40. A constructor's parameters stand for a plugin's declared dependencies.
#[tokio::test]
async fn the_tool_needs_the_registry_and_the_control_service_alone() {
    let world = World::new([]);
    let bare = SubagentControlService::new(
        Arc::clone(&world.kit.host),
        Arc::clone(&world.tasks),
        Arc::clone(&world.subagents),
        None,
    );
    let registry = Arc::new(ToolRegistry::default());
    let tool = SendMessageTool::new(bare);
    let _loaded = tool.load(&registry).expect("nothing else is asked for");
    let parent = world.parent().await;
    let output = tool.send(Some(parent.agent()), &message("child", "hello"), None).await;
    assert_eq!(error_code(&output), "PERSISTENCE_UNAVAILABLE");
    assert!(text(&output).contains("not delivered"));
}

/// Contract P8: from inside the wait's answer on, a send finds the association gone.
#[tokio::test]
async fn a_send_after_a_terminal_wait_starts_a_task() {
    let world = World::new([Step::say("one"), Step::say("two"), Step::say("three")]);
    let parent = world.parent().await;
    let (_mount, child) = started(&world, parent.agent()).await;
    for n in 1..=2_u64 {
        let task = format!("subagent-{n}").as_str().into();
        assert_eq!(world.wait(parent.agent(), &task).await.status, TaskStatus::Completed);
        let arguments = message(child.as_str(), "more");
        let sent = world.call(parent.agent(), SEND_MESSAGE, arguments).await;
        assert_eq!(word(&sent, "route"), "started");
    }
    world.output(parent.agent(), "subagent-3").await;
    wait_until("the activations are gone", || world.control.activations() == 0).await;
}
