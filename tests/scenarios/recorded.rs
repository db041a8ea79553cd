//! §10.17: the recorded end-to-end scenario `subagent-continuable`: one parent, whose model calls
//! the tools.

use std::io::ErrorKind;
use std::sync::Arc;

use continuable::agent::AgentHandle;
use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::facts::Fact;
use continuable::ids::{MessageId, SessionId};
use continuable::message::{ContentBlock, Message, MessageSource};
use continuable::model::script::{ScriptedModel, Step};
use continuable::session::{Event, EventBody};
use continuable::store::DiskOperation;
use continuable::tools::delegate::DelegateConfig;
use serde_json::json;

use super::kit::{asked, wait_until};
use super::world::{World, delegation};
use crate::support::{Fault, Shelf};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (299, "an_unconfirmed_child_fails_its_task_and_shows_no_output"),
    (300, "a_send_to_an_unknown_child_fails_its_task_and_is_noticed"),
    (301, "a_childs_log_has_its_descriptor_before_its_first_step"),
];

/// The texts of the parent's tool results, in order.
fn results(events: &[Arc<Event>]) -> Vec<String> {
    let text = |block: &ContentBlock| match block {
        ContentBlock::ToolResult { content, .. } => {
            content.iter().filter_map(ContentBlock::as_text).collect::<String>()
        }
        other => panic!("no result: {other:?}"),
    };
    let results = events.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult { message, .. } => Some(message.content.iter().map(text).collect()),
        _ => None,
    });
    results.collect()
}

/// A parent whose model follows `steps`, told to begin.
async fn coordinating(world: &World, steps: Vec<Step>) -> AgentHandle {
    world.kit.model.push(&SessionId::new("parent"), steps);
    let parent = world.parent().await;
    parent.agent().followup(world.kit.user("delegate it"));
    parent
}

fn read(task: &str) -> Step {
    Step::tool("task_output", json!({ "task_id": task, "wait": true }))
}

fn started_child(world: &World) -> SessionId {
    let started = world.kit.facts().into_iter().find_map(|fact| match fact {
        Fact::RunStarted { child, .. } => Some(child),
        _ => None,
    });
    started.expect("a run")
}

/// Scenario 299.
#[tokio::test]
async fn an_unconfirmed_child_fails_its_task_and_shows_no_output() {
    let world = World::new([Step::gate("child"), Step::say("child answer")]);
    let _mount = world.mount(DelegateConfig::new("spawn"));
    let steps = vec![Step::tool("subagent", delegation(true)), read("subagent-1"), Step::Final];
    let parent = coordinating(&world, steps).await;
    world.kit.model.reached("child").await;
    let child = started_child(&world);
    for operation in [
        DiskOperation::WriteNew,
        DiskOperation::Link,
        DiskOperation::Append,
        DiskOperation::Overwrite,
        DiskOperation::Sync,
    ] {
        let full = Fault::FailSaying(ErrorKind::StorageFull, "snapshot disk full");
        world.kit.shelf.disk.fail_inside(child.as_str(), operation, full);
    }
    world.kit.model.release("child");
    parent.agent().when_idle().await;

    let results = results(&parent.agent().session().snapshot_from(0));
    assert_eq!(results[0], format!("started subagent {child} as task subagent-1"));
    let failed = format!(
        "(no new output)\n[status: failed, subagent \"{child}\" durability checkpoint failed; "
    );
    assert!(results[1].starts_with(&failed), "{}", results[1]);
    assert!(results[1].ends_with(": snapshot disk full]"), "{}", results[1]);
    assert!(!results[1].contains("child answer"));
}

/// Scenario 300.
#[tokio::test]
async fn a_send_to_an_unknown_child_fails_its_task_and_is_noticed() {
    let world = World::new([Step::say("child answer")]);
    let _mount = world.mount(DelegateConfig::new("spawn"));
    let send = json!({ "subagent_id": "no-such-child", "message": "go on" });
    let steps = vec![
        Step::tool("subagent", delegation(true)),
        read("subagent-1"),
        Step::tool("send_message", send),
        Step::gate("noticed"),
        read("subagent-2"),
        Step::Final,
    ];
    let parent = coordinating(&world, steps).await;
    world.kit.model.reached("noticed").await;
    wait_until("the notice", || {
        let injected = |fact: &Fact| {
            matches!(fact, Fact::NoticeInjected { task, .. } if task.as_str() == "subagent-2")
        };
        world.kit.facts().iter().any(injected)
    })
    .await;
    world.kit.model.release("noticed");
    parent.agent().when_idle().await;

    let results = results(&parent.agent().session().snapshot_from(0));
    assert_eq!(results[2], "message started task subagent-2 continuing subagent no-such-child");
    let failed = "[status: failed, SubagentControlError: subagent \"no-such-child\" is unavailable";
    assert!(results[3].contains(failed), "{}", results[3]);
    let requests = world.kit.model.requests_of(parent.agent().id());
    let notice = "background task subagent-2 (subagent: go on) finished [status: failed, ";
    let noticed: Vec<_> = requests
        .iter()
        .map(|request| asked(request).iter().filter(|text| text.starts_with(notice)).count())
        .collect();
    assert_eq!(noticed, [0, 0, 0, 0, 1], "at the next step after it was injected, once");
}

/// Scenario 301. Titles and the runtime-context message belong to parts that are out of scope
/// (contract §1): their places, after the prompt and after the descriptor, stay empty. The request's
/// context follows its header, as in the reference's own logs.
#[tokio::test]
async fn a_childs_log_has_its_descriptor_before_its_first_step() {
    let world = World::new([Step::say("child answer")]);
    let _mount = world.mount(DelegateConfig::new("spawn"));
    let steps = vec![Step::tool("subagent", delegation(true)), read("subagent-1"), Step::Final];
    let parent = coordinating(&world, steps).await;
    parent.agent().when_idle().await;
    let child = started_child(&world);
    let stored = world.stored(&child).await;
    let mut kinds: Vec<_> = stored.iter().map(|event| event.kind()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "turn/start",
            "user/message",
            "subagent/descriptor",
            "step/start",
            "request/header",
            "request/context",
            "assistant/chunk",
            "assistant/message",
            "step/end",
            "turn/end",
        ]
    );
}

/// Reference bug 12: every part is there in the assembly that products are made of, and nothing of
/// it outlives the assembly.
#[tokio::test]
async fn a_model_in_an_assembly_starts_reads_and_continues_a_child() {
    let shelf = Shelf::new();
    let model = ScriptedModel::shared(Arc::clone(&shelf.runtime), ["one", "two"].map(Step::say));
    let config =
        AssemblyConfig::new(shelf.runtime.clone(), shelf.disk.clone(), Arc::new(model.clone()));
    let assembly = Assembly::new(config).expect("the defaults are valid");
    let continued = Step::func(|request| {
        let start = request.messages.iter().find_map(|message| match &message.content[..] {
            [ContentBlock::ToolResult { content, .. }] => content[0].as_text(),
            _ => None,
        });
        let child = start.and_then(|text| text.split(' ').nth(2)).expect("the child's id");
        Step::tool("send_message", json!({ "subagent_id": child, "message": "go on" }))
    });
    let steps = [
        Step::tool("subagent", delegation(true)),
        read("subagent-1"),
        continued,
        read("subagent-2"),
        Step::Final,
    ];
    model.push(&SessionId::new("parent"), steps);
    let parent = assembly.create_parent(SessionId::new("parent")).await.expect("the id is free");
    let id = MessageId::new("m");
    assert!(parent.agent().followup(Message::user(id, "delegate it", MessageSource::User)));
    parent.agent().when_idle().await;
    let results = results(&parent.agent().session().snapshot_from(0));
    assert_eq!(results[1], "one\n[status: completed]");
    assert_eq!(results[3], "two\n[status: completed]");
    assembly.shutdown().await.expect("everything is durable");
    drop(parent);
    let registry = Arc::downgrade(&assembly.tools);
    drop(assembly);
    wait_until("no cycle keeps the layers", || registry.upgrade().is_none()).await;
}
