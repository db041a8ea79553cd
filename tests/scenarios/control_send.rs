//! §10.2: the routes of messages to children, and cold resumes.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use continuable::agent::hooks::AgentEvent;
use continuable::agent::{AgentHandle, AgentHost, AgentHostConfig, AgentOptions, CreateAgent};
use continuable::channel::Latch;
use continuable::control::{
    ContinuableStart, ContinuableStartSpec, ControlError, Delivery, SubagentControlService,
};
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId, TaskId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::model::script::Step;
use continuable::session::descriptor::ToolFilter;
use continuable::session::{Event, EventBody};
use continuable::store::DiskOperation;
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};
use serde_json::json;

use super::control::{spec, start, with_provider};
use super::fake_child::FakeChild;
use super::kit::{Kit, TestHooks, hook, settle, wait_until};
use super::world::World;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (9, "a_descriptor_omits_what_its_parent_does_not_have"),
    (10, "a_run_without_live_delivery_takes_no_message"),
    (11, "a_send_from_inside_the_terminal_listener_names_the_status"),
    (12, "another_agent_than_the_runs_is_an_ownership_conflict"),
    (13, "a_message_to_a_running_child_joins_its_task"),
    (14, "a_structured_result_refuses_what_it_did_not_see"),
    (15, "a_message_to_a_settled_child_starts_its_next_task"),
    (16, "persona_and_filter_are_rebuilt_on_resume"),
    (17, "a_fork_is_resumed_from_its_own_log"),
    (18, "a_resumed_child_keeps_its_depth"),
    (19, "a_child_of_another_parent_is_refused_inside_the_task"),
    (20, "a_child_without_a_descriptor_cannot_be_continued"),
    (21, "a_follow_up_is_labelled_by_its_text"),
    (22, "an_agent_outside_control_is_an_ownership_conflict"),
    (23, "a_send_during_disposal_is_not_delivered_and_a_retry_starts"),
    (24, "a_follow_ups_task_is_its_owners"),
    (25, "a_kill_during_the_lookup_publishes_nothing"),
    (26, "a_second_send_during_the_lookup_is_not_delivered"),
];

/// Sends as `parent`, as a model would.
pub async fn send(
    world: &World,
    parent: &AgentHandle,
    child: &SessionId,
    text: &str,
) -> Result<Delivery, ControlError> {
    let agent = parent.agent();
    let source = MessageSource::Coordinator { sender_session_id: agent.id().clone() };
    let content = vec![ContentBlock::text(text)];
    world.control.send_message(agent, child.as_str(), content, source, None).await
}

/// Starts a child and waits until its first Task is terminal.
async fn settled(
    world: &World,
    parent: &AgentHandle,
    spec: ContinuableStartSpec,
) -> ContinuableStart {
    let started = start(world, parent, spec).expect("started");
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed, "{done:?}");
    started
}

async fn read(world: &World, parent: &AgentHandle, task: &TaskId) -> String {
    let read = world.tasks.read(task, Some(parent.agent().id())).await;
    read.expect("its own").text
}

fn tasks(world: &World, parent: &AgentHandle) -> Vec<String> {
    let listed = world.tasks.list(Some(parent.agent().id()));
    listed.into_iter().map(|task| task.id.to_string()).collect()
}

/// The texts and source kinds of the person's and coordinators' messages in a log.
fn said(events: &[Arc<Event>]) -> Vec<(String, String)> {
    let said = events.iter().filter_map(|event| match &event.body {
        EventBody::UserMessage(message) | EventBody::SteeringMessage { message, .. } => {
            Some((message.text(), message.source.kind().to_owned()))
        }
        _ => None,
    });
    said.collect()
}

fn steered(events: &[Arc<Event>]) -> usize {
    events.iter().filter(|e| matches!(e.body, EventBody::SteeringMessage { .. })).count()
}

/// A failed send was not delivered and says so.
fn undelivered(sent: Result<Delivery, ControlError>) -> ControlError {
    let error = sent.expect_err("not delivered");
    assert!(error.to_string().contains("not delivered"), "{error}");
    error
}

/// Waits for the failure of a started follow-up; its detail names the id unavailable.
async fn unavailable(world: &World, parent: &AgentHandle, sent: &Delivery) -> (ErrorCode, String) {
    assert_eq!(sent.route, RouteCode::Started);
    let failed = world.wait(parent.agent(), &sent.task).await;
    assert_eq!(failed.status, TaskStatus::Failed);
    let detail = failed.detail.expect("a detail");
    assert!(detail.starts_with("SubagentControlError: subagent \""), "{detail}");
    assert!(detail.contains("unavailable"), "{detail}");
    (failed.code.expect("a code"), detail)
}

/// Scenario 9.
#[tokio::test]
async fn a_descriptor_omits_what_its_parent_does_not_have() {
    let world = World::new([Step::say("the answer")]);
    let plain = AgentHost::new(AgentHostConfig {
        runtime: Arc::clone(&world.kit.runtime),
        store: Some(Arc::clone(&world.kit.shelf.store)),
        model: Arc::new(world.kit.model.clone()),
        tools: Arc::clone(&world.kit.tools),
        system_prompt: String::new(),
        defaults: AgentOptions::default(),
        hooks: Vec::new(),
    });
    let (tasks, subagents) = (Arc::clone(&world.tasks), Arc::clone(&world.subagents));
    let store = Some(Arc::clone(&world.kit.shelf.store));
    let control = SubagentControlService::new(Arc::clone(&plain), tasks, subagents, store);
    let parent = plain.create(world.kit.request("parent")).await.expect("created");
    let started = control.start_continuable(parent.agent(), spec("q")).expect("started");
    world.wait(parent.agent(), &started.task).await;
    let text = world.kit.shelf.text(started.child.as_str());
    let line = text.lines().find(|line| line.contains("subagent/descriptor")).expect("one");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["data"], json!({"version": 1, "provider": "spawn"}));
}

fn remote() -> ContinuableStartSpec {
    ContinuableStartSpec { provider: "remote".to_owned(), ..spec("q") }
}

/// A world with a running child of a provider without agents.
async fn remote_child(provider: FakeChild) -> (World, AgentHandle, ContinuableStart) {
    let provider = Arc::new(provider);
    let world = with_provider(Vec::new(), provider.clone());
    let parent = world.parent().await;
    let started = start(&world, &parent, remote()).expect("started");
    provider.busy().await;
    let filled = Mutex::new(false);
    wait_until("the run is filled in", || {
        let facts = world.kit.facts();
        let mut filled = filled.lock().expect("no panic inside");
        *filled |= facts.iter().any(|fact| matches!(fact, Fact::AssociationFilled { .. }));
        *filled
    })
    .await;
    (world, parent, started)
}

/// Scenario 10.
#[tokio::test]
async fn a_run_without_live_delivery_takes_no_message() {
    let (world, parent, started) = remote_child(FakeChild::default()).await;
    let refused = undelivered(send(&world, &parent, &started.child, "more").await);
    assert_eq!(refused.code(), ErrorCode::NotDelivered);
    assert!(refused.to_string().contains("does not accept live delivery"));
    assert_eq!(tasks(&world, &parent), ["subagent-1"]);
}

/// Scenario 11.
#[tokio::test]
async fn a_send_from_inside_the_terminal_listener_names_the_status() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let child: Arc<Mutex<Option<SessionId>>> = Arc::default();
    let _listening = world.tasks.on_done({
        let (told, child) = (Arc::clone(&told), Arc::clone(&child));
        let (control, agent) = (Arc::clone(&world.control), parent.agent().clone());
        Arc::new(move |_task, _owner| {
            let child = child.lock().expect("no panic inside").clone().expect("started");
            let content = vec![ContentBlock::text("more")];
            let source = MessageSource::User;
            let sending = control.send_message(&agent, child.as_str(), content, source, None);
            // The route is decided in the first poll.
            match pin!(sending).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => told.lock().expect("no panic inside").push(answer),
                Poll::Pending => panic!("it waits for something"),
            }
            None
        })
    });
    let started = start(&world, &parent, spec("q")).expect("started");
    *child.lock().expect("no panic inside") = Some(started.child.clone());
    world.wait(parent.agent(), &started.task).await;
    let answer = told.lock().expect("no panic inside").pop().expect("told once");
    let refused = undelivered(answer);
    assert!(refused.to_string().contains("is completed"), "{refused}");
    let sent = send(&world, &parent, &started.child, "more").await.expect("the wait is over");
    assert_eq!(sent.route, RouteCode::Started, "after the wait the association is gone");
}

/// Scenario 12.
#[tokio::test]
async fn another_agent_than_the_runs_is_an_ownership_conflict() {
    let provider = FakeChild { steers: true, local: Some(OwnerId(999)), ..FakeChild::default() };
    let (world, parent, started) = remote_child(provider).await;
    let bypass = CreateAgent::new(started.child.clone());
    let _bypass = world.kit.host.create(bypass).await.expect("the id is free");
    let refused = undelivered(send(&world, &parent, &started.child, "more").await);
    assert_eq!(refused.code(), ErrorCode::OwnershipConflict);
    let words = "registry agent is not the associated activation's agent";
    assert!(refused.to_string().contains(words), "{refused}");
}

/// Scenario 13.
#[tokio::test]
async fn a_message_to_a_running_child_joins_its_task() {
    let steps = [Step::gate("first"), Step::say("first answer"), Step::say("second answer")];
    let world = World::new(steps);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    world.kit.model.reached("first").await;
    let mut sending = pin!(send(&world, &parent, &started.child, "and more"));
    tokio::select! {
        biased;
        answer = &mut sending => panic!("answered before the admission: {answer:?}"),
        () = settle() => {}
    }
    world.kit.model.release("first");
    let sent = sending.await.expect("admitted");
    assert_eq!(sent, Delivery { route: RouteCode::Steered, task: started.task.clone() });
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(tasks(&world, &parent), ["subagent-1"]);
    assert_eq!(read(&world, &parent, &started.task).await, "second answer");
    let stored = world.stored(&started.child).await;
    assert_eq!(steered(&stored), 1);
    let expected = [("q", "user"), ("and more", "coordinator")];
    let expected = expected.map(|(text, kind)| (text.to_owned(), kind.to_owned()));
    assert_eq!(said(&stored), expected);
}

/// Scenario 14.
#[tokio::test]
async fn a_structured_result_refuses_what_it_did_not_see() {
    let (asked, open) = (Latch::new(), Latch::new());
    let hooks = TestHooks {
        pre_tool: hook({
            let (asked, open) = (asked.clone(), open.clone());
            move |_context| {
                let (asked, open) = (asked.clone(), open.clone());
                async move {
                    asked.set(());
                    open.wait().await;
                    Ok(None)
                }
            }
        }),
        ..TestHooks::default()
    };
    let kit = Kit::with_hooks([Step::Structured(json!({"n": 1}))], vec![Arc::new(hooks)]);
    let world = World::on(kit);
    let parent = world.parent().await;
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let spec = ContinuableStartSpec { output_schema: Some(schema), ..spec("q") };
    let started = start(&world, &parent, spec).expect("started");
    asked.wait().await;
    let sending = send(&world, &parent, &started.child, "and more");
    let (sent, ()) = tokio::join!(sending, async {
        settle().await;
        open.set(());
    });
    let refused = undelivered(sent);
    assert_eq!(refused.code(), ErrorCode::NotDelivered);
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(world.kit.model.request_count(), 1);
    assert_eq!(steered(&world.stored(&started.child).await), 0);
}

/// Scenario 15.
#[tokio::test]
async fn a_message_to_a_settled_child_starts_its_next_task() {
    let world = World::new([Step::say("first answer"), Step::say("second answer")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("first prompt")).await;
    let sent = send(&world, &parent, &started.child, "follow-up").await.expect("started");
    assert_eq!((sent.route, sent.task.as_str()), (RouteCode::Started, "subagent-2"));
    let done = world.wait(parent.agent(), &sent.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(read(&world, &parent, &sent.task).await, "second answer");
    assert!(world.kit.host.get(&started.child).is_none());
    let stored = world.stored(&started.child).await;
    let expected = [("first prompt", "user"), ("follow-up", "coordinator")];
    let expected = expected.map(|(text, kind)| (text.to_owned(), kind.to_owned()));
    assert_eq!(said(&stored), expected);
}

/// Scenario 16.
#[tokio::test]
async fn persona_and_filter_are_rebuilt_on_resume() {
    let world = World::new([Step::say("one"), Step::say("two")]);
    let parent = world.parent().await;
    let spec = ContinuableStartSpec {
        persona: Some("You are a terse librarian.".to_owned()),
        tool_filter: Some(ToolFilter { allow: None, deny: Some(Vec::new()) }),
        ..spec("q")
    };
    let started = settled(&world, &parent, spec).await;
    let text = world.kit.shelf.text(started.child.as_str());
    let line = text.lines().find(|line| line.contains("subagent/descriptor")).expect("one");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["data"]["persona"], "You are a terse librarian.");
    assert_eq!(line["data"]["toolFilter"], json!({"deny": []}));
    let sent = send(&world, &parent, &started.child, "more").await.expect("started");
    world.wait(parent.agent(), &sent.task).await;
    let request = world.kit.model.requests().pop().expect("a request");
    assert!(request.system.contains("You are a terse librarian."));
    let text = world.kit.shelf.text(started.child.as_str());
    assert_eq!(text.matches("subagent/descriptor").count(), 1, "no second descriptor");
}

/// Scenario 17.
#[tokio::test]
async fn a_fork_is_resumed_from_its_own_log() {
    let world = World::new(["p1", "c1", "p2", "c2"].map(Step::say));
    let parent = world.parent().await;
    assert!(parent.agent().followup(world.kit.user("parent question one")));
    parent.agent().when_idle().await;
    let fork = ContinuableStartSpec { provider: "fork".to_owned(), ..spec("child question") };
    let started = settled(&world, &parent, fork).await;
    let seeded = || async {
        let store = world.kit.shelf.another_store();
        store.inspect(&started.child).await.expect("stored").header.seed_length
    };
    let before = seeded().await;
    assert!(before.expect("a fork") > 0);
    assert!(parent.agent().followup(world.kit.user("parent question two")));
    parent.agent().when_idle().await;
    let sent = send(&world, &parent, &started.child, "follow-up").await.expect("started");
    let done = world.wait(parent.agent(), &sent.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(seeded().await, before);
    let texts: Vec<_> =
        said(&world.stored(&started.child).await).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["parent question one", "child question", "follow-up"]);
}

/// Scenario 18.
#[tokio::test]
async fn a_resumed_child_keeps_its_depth() {
    let world = World::new([Step::say("one"), Step::say("two")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let sent = send(&world, &parent, &started.child, "more").await.expect("started");
    world.wait(parent.agent(), &sent.task).await;
    let depths: Vec<_> = world
        .kit
        .facts()
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::AgentPublished { session, depth, .. } if session == started.child => Some(depth),
            _ => None,
        })
        .collect();
    assert_eq!(depths, [1, 1]);
    let stored = world.kit.shelf.another_store().inspect(&started.child).await.expect("stored");
    assert_eq!(stored.header.delegation_depth, 1);
}

/// Scenario 19.
#[tokio::test]
async fn a_child_of_another_parent_is_refused_inside_the_task() {
    let world = World::new([Step::say("one")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let stranger = world.kit.create("stranger").await;
    world.kit.shelf.disk.wrote();
    let sent = send(&world, &stranger, &started.child, "mine?").await.expect("started");
    let (code, detail) = unavailable(&world, &stranger, &sent).await;
    assert_eq!(code, ErrorCode::Unauthorized);
    assert!(detail.contains("another parent session"), "{detail}");
    assert!(!world.kit.shelf.disk.wrote(), "a refusal writes nothing");
    assert_eq!(world.kit.model.request_count(), 1);
}

/// Scenario 20.
#[tokio::test]
async fn a_child_without_a_descriptor_cannot_be_continued() {
    let world = World::new([Step::say("one")]);
    let parent = world.parent().await;
    let plain = CreateAgent {
        parent_session: Some(parent.agent().id().clone()),
        ..world.kit.request("plain")
    };
    let plain = world.kit.host.create(plain).await.expect("created");
    assert!(plain.agent().followup(world.kit.user("hello")));
    plain.agent().when_idle().await;
    plain.dispose().await;
    world.kit.shelf.disk.wrote();
    let sent = send(&world, &parent, &SessionId::new("plain"), "go on").await.expect("started");
    let (code, detail) = unavailable(&world, &parent, &sent).await;
    assert_eq!(code, ErrorCode::NotResumable);
    let words = "has no supported continuation state and cannot be resumed; do not retry \
                 send_message with this id";
    assert!(detail.contains(words), "{detail}");
    assert!(!world.kit.shelf.disk.wrote(), "a refusal writes nothing");
}

/// Contract P5: a child without a usable descriptor is refused before its open turn is closed.
#[tokio::test]
async fn a_refused_child_is_not_repaired() {
    let world = World::new([Step::say("one")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let text = world.kit.shelf.text(started.child.as_str());
    let open: Vec<_> = text.lines().filter(|line| !line.contains("turn/end")).collect();
    let open = open.join("\n").replace("\"version\":1,\"provider\"", "\"version\":7,\"provider\"");
    assert_ne!(open, text);
    let path = world.kit.shelf.path(started.child.as_str());
    std::fs::write(&path, format!("{open}\n")).expect("a file");
    let before = world.kit.shelf.files();
    let sent = send(&world, &parent, &started.child, "go on").await.expect("started");
    let (code, _) = unavailable(&world, &parent, &sent).await;
    assert_eq!(code, ErrorCode::NotResumable);
    assert_eq!(world.kit.shelf.files(), before);
}

/// Scenario 21.
#[tokio::test]
async fn a_follow_up_is_labelled_by_its_text() {
    let world = World::new([]);
    let parent = world.parent().await;
    let mut labels = Vec::new();
    for text in [" \n\t ", &"x".repeat(100), " two \n words "] {
        let sent = send(&world, &parent, &SessionId::new("nobody"), text).await.expect("started");
        labels.push(world.wait(parent.agent(), &sent.task).await.label);
    }
    assert_eq!(labels, ["subagent follow-up", &format!("{}…", "x".repeat(79)), "two words"]);
}

/// Scenario 22.
#[tokio::test]
async fn an_agent_outside_control_is_an_ownership_conflict() {
    let world = World::new([]);
    let parent = world.parent().await;
    let bypass = world.kit.create("bypass").await;
    let refused = undelivered(send(&world, &parent, bypass.agent().id(), "hello").await);
    assert_eq!(refused.code(), ErrorCode::OwnershipConflict);
    assert!(refused.to_string().contains("outside control-service ownership"), "{refused}");
    assert!(tasks(&world, &parent).is_empty());
    let own = undelivered(send(&world, &parent, parent.agent().id(), "hello").await);
    assert_eq!(own.code(), ErrorCode::OwnershipConflict, "a parent is no child of its own");
}

/// Scenario 23.
#[tokio::test]
async fn a_send_during_disposal_is_not_delivered_and_a_retry_starts() {
    let (disposing, open) = (Latch::new(), Latch::<()>::new());
    let hooks = TestHooks::listening({
        let (disposing, open) = (disposing.clone(), open.clone());
        move |agent, event| {
            let is_child = agent.parent().is_some();
            if is_child && matches!(event, AgentEvent::SessionStart { .. }) {
                let (disposing, open) = (disposing.clone(), open.clone());
                let effect = Box::new(move || -> continuable::runtime::BoxFuture<'static, ()> {
                    Box::pin(async move {
                        disposing.set(());
                        open.wait().await;
                    })
                });
                agent.add_effect("hold", effect).expect("it is alive");
            }
        }
    });
    let steps = [Step::say("one"), Step::say("two")];
    let world = World::on(Kit::with_hooks(steps, vec![Arc::new(hooks)]));
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    disposing.wait().await;
    let refused = undelivered(send(&world, &parent, &started.child, "more").await);
    assert_eq!(refused.code(), ErrorCode::NotDelivered);
    assert_eq!(tasks(&world, &parent), ["subagent-1"]);
    open.set(());
    world.wait(parent.agent(), &started.task).await;
    let sent = send(&world, &parent, &started.child, "more").await.expect("a retry starts");
    assert_eq!(sent.route, RouteCode::Started);
    assert_eq!(world.wait(parent.agent(), &sent.task).await.status, TaskStatus::Completed);
}

/// Scenario 24.
#[tokio::test]
async fn a_follow_ups_task_is_its_owners() {
    let world = World::new([Step::say("one"), Step::say("two")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let sent = send(&world, &parent, &started.child, "more").await.expect("started");
    let stranger = world.kit.create("stranger").await;
    let refused = world.tasks.read(&sent.task, Some(stranger.agent().id())).await;
    let refused = refused.expect_err("foreign");
    assert!(refused.to_string().contains("belongs to another session"), "{refused}");
    world.wait(parent.agent(), &sent.task).await;
}

/// Scenario 25. Held at each read of the lookup: the header's, and the log's.
#[tokio::test]
async fn a_kill_during_the_lookup_publishes_nothing() {
    for skip in [0, 1] {
        let world = World::new([Step::say("one"), Step::say("never said")]);
        let parent = world.parent().await;
        let started = settled(&world, &parent, spec("q")).await;
        let (began, gate) = (Latch::new(), Latch::new());
        let fault = crate::support::Fault::Hold(began.clone(), gate.clone());
        world.kit.shelf.disk.fail(DiskOperation::Read, skip, 1, fault);
        let sent = send(&world, &parent, &started.child, "more").await.expect("started");
        began.wait().await;
        world.kit.facts();
        let killed = world.tasks.kill(&sent.task, Some(parent.agent().id()), None).await;
        assert_eq!(killed.expect("its own"), KillAnswer::Requested);
        gate.set(());
        let done = world.wait(parent.agent(), &sent.task).await;
        assert_eq!((done.status, done.detail), (TaskStatus::Killed, None), "read {skip}");
        let published = |fact: &Fact| matches!(fact, Fact::AgentPublished { .. });
        assert!(!world.kit.facts().iter().any(published));
        assert_eq!(world.kit.model.request_count(), 1);
        assert_eq!(world.control.activations(), 0);
    }
}

/// Scenario 26.
#[tokio::test]
async fn a_second_send_during_the_lookup_is_not_delivered() {
    let world = World::new([Step::say("one"), Step::say("two")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let (began, gate) = world.kit.shelf.disk.hold(DiskOperation::Read);
    let first = send(&world, &parent, &started.child, "first").await.expect("started");
    began.wait().await;
    let refused = undelivered(send(&world, &parent, &started.child, "second").await);
    assert_eq!(refused.code(), ErrorCode::NotDelivered);
    assert!(refused.to_string().contains("starting"), "{refused}");
    gate.set(());
    let done = world.wait(parent.agent(), &first.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(tasks(&world, &parent), ["subagent-1", "subagent-2"]);
    let texts: Vec<_> =
        said(&world.stored(&started.child).await).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["q", "first"]);
}

/// Contract P5: a foreign sender whose lookup is slow delays nobody.
#[tokio::test]
async fn a_foreign_send_never_delays_the_real_parent() {
    let world = World::new([Step::say("one"), Step::say("two")]);
    let parent = world.parent().await;
    let started = settled(&world, &parent, spec("q")).await;
    let stranger = world.kit.create("stranger").await;
    let (began, gate) = world.kit.shelf.disk.hold(DiskOperation::Read);
    let foreign = send(&world, &stranger, &started.child, "mine?").await.expect("started");
    began.wait().await;
    let sent = send(&world, &parent, &started.child, "more").await.expect("not refused");
    assert_eq!(sent.route, RouteCode::Started);
    gate.set(());
    assert_eq!(world.wait(parent.agent(), &sent.task).await.status, TaskStatus::Completed);
    let (code, _) = unavailable(&world, &stranger, &foreign).await;
    assert_eq!(code, ErrorCode::Unauthorized);
}

/// Contract P4: a caller who gives up before the admission withdraws the message.
#[tokio::test]
async fn a_caller_who_gives_up_withdraws_an_undrained_message() {
    let world = World::new([Step::gate("first"), Step::say("first answer"), Step::say("extra")]);
    let parent = world.parent().await;
    let started = start(&world, &parent, spec("q")).expect("started");
    world.kit.model.reached("first").await;
    let (agent, signal) = (parent.agent(), world.signal());
    let content = || vec![ContentBlock::text("and more")];
    let child = started.child.as_str();
    {
        let source = MessageSource::User;
        let sending = world.control.send_message(agent, child, content(), source, Some(&signal));
        let (sent, ()) = tokio::join!(sending, async {
            settle().await;
            signal.cancel(continuable::vocabulary::CancelCause::CallerGone);
        });
        assert_eq!(undelivered(sent).code(), ErrorCode::Cancelled);
        let again =
            world.control.send_message(agent, child, content(), MessageSource::User, Some(&signal));
        assert_eq!(undelivered(again.await).code(), ErrorCode::Cancelled);
    }
    {
        let source = MessageSource::User;
        let mut dropped =
            Box::pin(world.control.send_message(agent, child, content(), source, None));
        tokio::select! {
            biased;
            answer = &mut dropped => panic!("answered: {answer:?}"),
            () = settle() => {}
        }
    }
    world.kit.model.release("first");
    let done = world.wait(parent.agent(), &started.task).await;
    assert_eq!(done.status, TaskStatus::Completed);
    assert_eq!(read(&world, &parent, &started.task).await, "first answer");
    assert_eq!(world.kit.model.request_count(), 1);
    assert_eq!(said(&world.stored(&started.child).await).len(), 1);
}

/// Contract P5: hostile ids are refused before any Task exists.
#[tokio::test]
async fn empty_and_oversize_ids_are_refused_without_a_task() {
    let world = World::new([]);
    let parent = world.parent().await;
    for id in [String::new(), "x".repeat(1_025)] {
        let refused = undelivered(send(&world, &parent, &SessionId::new(id), "hello").await);
        assert_eq!(refused.code(), ErrorCode::InvalidInput);
    }
    assert!(tasks(&world, &parent).is_empty());
    for id in ["../../etc", "..", "a/b\0c", "nobody"] {
        let sent = send(&world, &parent, &SessionId::new(id), "hello").await.expect("started");
        let (code, _) = unavailable(&world, &parent, &sent).await;
        assert_eq!(code, ErrorCode::NotResumable, "{id}");
    }
}

/// Contract P16: an owner that is closing sends nothing, into no route.
#[tokio::test]
async fn a_closing_owner_sends_nothing() {
    let provider = FakeChild { steers: true, ..FakeChild::default() };
    let steered = Arc::clone(&provider.steered);
    let (world, parent, started) = remote_child(provider).await;
    send(&world, &parent, &started.child, "in time").await.expect("steered");
    parent.request_dispose();
    let refused = send(&world, &parent, &started.child, "too late").await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::OwnerUnavailable);
    parent.dispose().await;
    let texts: Vec<_> = steered.lock().expect("no panic inside").iter().map(|m| m.text()).collect();
    assert_eq!(texts, ["in time"]);
}
