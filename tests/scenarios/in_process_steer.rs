//! §10.4: live delivery to an in-process run.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use continuable::agent::hooks::AgentStatus;
use continuable::agent::tools::ToolOutput;
use continuable::channel::Latch;
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::model::script::Step;
use continuable::provider::{BoxAdmission, SteerError};
use continuable::runtime::fresh_message_id;
use continuable::session::{EventBody, Session};
use serde_json::json;

use super::in_process::{asks, flushing, foreground, turn_flush_held};
use super::kit::{Kit, TestHooks, asked, hook, reasons, settle};
use super::world::World;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (60, "a_settled_run_takes_no_message"),
    (61, "a_concluding_tool_rejects_what_is_staged"),
    (62, "a_message_at_the_turns_last_moment_continues_it"),
    (63, "a_message_in_the_flush_window_is_the_next_turn"),
];

fn coordinator() -> MessageSource {
    MessageSource::Coordinator { sender_session_id: SessionId::new("parent") }
}

fn message(world: &World, text: &str) -> Message {
    Message::user(fresh_message_id(&*world.kit.runtime), text, coordinator())
}

fn steers(
    world: &World,
    run: &continuable::provider::Run,
    text: &str,
) -> Result<BoxAdmission, SteerError> {
    run.steer(message(world, text)).expect("it accepts live delivery")
}

fn steered(session: &Session) -> usize {
    let events = session.snapshot_from(0);
    events.iter().filter(|e| matches!(e.body, EventBody::SteeringMessage { .. })).count()
}

/// Scenario 60.
#[tokio::test]
async fn a_settled_run_takes_no_message() {
    let world = World::new([Step::say("the answer")]);
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    run.result().await.expect("no fault");
    let refused = steers(&world, &run, "late").err().expect("refused");
    assert!(refused.to_string().contains("is not running; the message was not delivered"));
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(steered(child.session()), 0);
    assert_eq!(world.kit.model.request_count(), 1);
}

/// Scenario 61.
#[tokio::test]
async fn a_concluding_tool_rejects_what_is_staged() {
    let world = World::new([Step::tool("conclude", json!({}))]);
    let (began, open) = (Latch::new(), Latch::new());
    let _tool = world.kit.tool("conclude", {
        let (began, open) = (began.clone(), open.clone());
        move |_invocation| {
            let (began, open) = (began.clone(), open.clone());
            async move {
                began.set(());
                open.wait().await;
                ToolOutput { concludes: true, ..ToolOutput::text("done") }
            }
        }
    });
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    began.wait().await;
    let admission = steers(&world, &run, "late").expect("staged");
    open.set(());
    let rejected = admission.await.expect_err("rejected");
    let words = "stopped before steering admission; the message was not delivered";
    assert!(rejected.to_string().contains(words), "{rejected}");
    run.result().await.expect("no fault");
    let child = world.kit.host.get(run.child()).expect("alive");
    assert_eq!(steered(child.session()), 0);
}

/// Scenario 62.
#[tokio::test]
async fn a_message_at_the_turns_last_moment_continues_it() {
    let (stopping, open) = (Latch::new(), Latch::new());
    let once = Mutex::new(true);
    let hooks = TestHooks {
        turn_stopping: hook({
            let (stopping, open) = (stopping.clone(), open.clone());
            move |_context| {
                let first = std::mem::take(&mut *once.lock().expect("no panic inside"));
                let (stopping, open) = (stopping.clone(), open.clone());
                async move {
                    if first {
                        stopping.set(());
                        open.wait().await;
                    }
                    Ok(())
                }
            }
        }),
        ..TestHooks::default()
    };
    let steps = ["first", "second"].map(Step::say);
    let world = World::on(Kit::with_hooks(steps, vec![Arc::new(hooks)]));
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    stopping.wait().await;
    let mut admission = pin!(steers(&world, &run, "one more").expect("staged"));
    tokio::select! {
        biased;
        outcome = &mut admission => panic!("settled before its step: {outcome:?}"),
        () = settle() => {}
    }
    open.set(());
    admission.await.expect("admitted");
    assert_eq!(run.result().await.expect("no fault").text(), "second");
    let requests = world.kit.model.requests_of(run.child());
    assert_eq!(requests.len(), 2);
    assert!(asked(&requests[1]).contains(&"one more".to_owned()));
    let child = world.kit.host.get(run.child()).expect("alive");
    let events = child.session().snapshot_from(0);
    let source = events.iter().find_map(|event| match &event.body {
        EventBody::SteeringMessage { message, .. } => Some(message.source.clone()),
        _ => None,
    });
    assert_eq!(source, Some(coordinator()));
}

/// Scenario 63.
#[tokio::test]
async fn a_message_in_the_flush_window_is_the_next_turn() {
    let (world, open) = turn_flush_held(["first", "second"].map(Step::say).into());
    let parent = world.parent().await;
    let run = foreground(&world, "spawn", asks(&parent, &world.signal(), "q")).await;
    let run = run.expect("started");
    let child = flushing(&world, &run).await;
    assert_eq!(child.status(), AgentStatus::Running);
    let admission = steers(&world, &run, "one more").expect("queued");
    open.set(());
    admission.await.expect("admitted");
    assert_eq!(run.result().await.expect("no fault").text(), "second");
    assert_eq!(world.kit.model.requests_of(run.child()).len(), 2);
    assert_eq!(reasons(child.session()), ["completed", "completed"]);
    assert_eq!(steered(child.session()), 0, "it opened a turn of its own");
}
