//! §10.14: steering, admission, flush (cancellation is in `agent_cancel`).

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use continuable::agent::hooks::{AgentEvent, AgentStatus, HookError};
use continuable::agent::inbox::{InboxEdit, Placement};
use continuable::agent::tools::ToolOutput;
use continuable::agent::{Agent, InjectError, PromptDecision, Receipt, ReceiptOutcome};
use continuable::channel::Latch;
use continuable::facts::Fact;
use continuable::message::{ContentBlock, Message, MessageSource, Role};
use continuable::model::script::Step;
use continuable::runtime::fresh_message_id;
use continuable::session::EventBody;
use continuable::store::DiskOperation;
use serde_json::json;

use crate::kit::{
    Kit, TestHooks, asked, hook, plugin, prompt_hook, reasons, settle, story, wait_until,
};
use crate::support::Fault;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (225, "each_idle_steer_is_admitted_with_its_own_turn"),
    (226, "an_idle_inject_is_one_message_and_nothing_else"),
    (227, "an_invalid_inject_is_refused_before_anything_is_stored"),
    (228, "an_idle_steer_opens_a_turn_as_a_user_message"),
    (229, "consecutive_turns_share_one_running_interval"),
    (230, "a_panicking_status_listener_is_contained"),
    (231, "the_second_turn_waits_for_the_flush_of_the_first"),
    (232, "when_idle_waits_for_the_final_flush"),
    (233, "a_failed_flush_is_told_and_the_next_turn_runs"),
    (234, "steering_during_a_tool_joins_the_next_step"),
    (235, "two_idle_steers_of_one_tick_are_two_turns"),
    (236, "steering_staged_before_a_failing_step_enters_the_next_turn"),
    (237, "injects_during_a_tool_wait_for_its_result"),
    (238, "steering_while_the_turn_stops_continues_it"),
    (239, "a_concluding_tool_ends_the_turn"),
    (240, "concluding_beats_steering"),
    (241, "a_steer_from_an_observer_joins_the_turn_until_it_has_ended"),
    (242, "a_failing_hook_ends_the_turn_and_not_the_loop"),
    (243, "a_blocked_prompt_leaves_no_trace"),
    (244, "what_arrives_during_admission_follows_the_prompt"),
    (245, "steering_left_by_a_blocked_prompt_precedes_the_next_one"),
    (246, "steering_left_by_a_blocked_prompt_precedes_the_next_one"),
    (247, "context_left_alone_by_a_blocked_prompt_is_logged"),
    (248, "context_whose_append_fails_is_kept"),
    (249, "neighbours_of_a_blocked_prompt_run"),
    (250, "a_queued_prompt_can_be_changed_until_it_is_claimed"),
];

/// Steers and lets go of the receipt.
fn steer(kit: &Kit, agent: &Agent, text: &str) {
    agent.steer(kit.user(text)).detach();
}

fn admitted(turn: u64, step: u64) -> ReceiptOutcome {
    ReceiptOutcome::Admitted { turn, step }
}

/// Scenario 225. Prompts answer whether they were taken, which the reference does not say.
#[tokio::test]
async fn each_idle_steer_is_admitted_with_its_own_turn() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::say("3")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    assert!(agent.followup(kit.user("a")));
    assert!(agent.followup(kit.user("b")));
    assert_eq!(agent.steer(kit.user("c")).await, admitted(3, 1));
}

/// Scenario 226.
#[tokio::test]
async fn an_idle_inject_is_one_message_and_nothing_else() {
    let kit = Kit::new([]);
    let handle = kit.create("s").await;
    handle.agent().inject(plugin(handle.agent(), "note")).expect("idle");
    settle().await;
    assert_eq!(story(handle.agent().session()), ["user note"]);
    assert_eq!(kit.model.request_count(), 0);
    let flushed = |fact: &Fact| matches!(fact, Fact::FlushStarted { .. });
    assert!(!kit.facts().iter().any(flushed));
}

fn lossy(agent: &Agent) -> Message {
    let block = ContentBlock::Other(json!({"type": "image", "scale": -0.0}));
    let id = fresh_message_id(&**agent.runtime());
    Message::new(id, Role::User, vec![block], MessageSource::User)
}

/// Scenario 227.
#[tokio::test]
async fn an_invalid_inject_is_refused_before_anything_is_stored() {
    let kit = Kit::new([Step::tool("t", json!({})), Step::say("done")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let refused = |agent: &Agent| {
        assert!(matches!(agent.inject(lossy(agent)), Err(InjectError::Append(_))));
    };
    refused(agent);
    assert!(agent.session().is_empty());
    let _tool = kit.tool("t", move |call| async move {
        refused(&call.agent);
        ToolOutput::text("ok")
    });
    agent.followup(kit.user("go"));
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["completed"]);
    assert_eq!(agent.steer(lossy(agent)).await, ReceiptOutcome::Rejected);
    assert!(!agent.followup(lossy(agent)));
}

/// Scenario 228.
#[tokio::test]
async fn an_idle_steer_opens_a_turn_as_a_user_message() {
    let kit = Kit::new([Step::say("hi")]);
    let handle = kit.create("s").await;
    assert_eq!(handle.agent().steer(kit.user("hello")).await, admitted(1, 1));
    handle.agent().when_idle().await;
    let told = ["turn 1", "user hello", "step 1", "assistant hi", "end 1 completed"];
    assert_eq!(story(handle.agent().session()), told);
}

/// Scenario 229.
#[tokio::test]
async fn consecutive_turns_share_one_running_interval() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::say("3")]);
    let (handle, hooks) = kit.create_with("s", TestHooks::default()).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().followup(kit.user("b"));
    handle.agent().when_idle().await;
    assert_eq!(hooks.statuses(), ["running", "idle"]);
    handle.agent().followup(kit.user("c"));
    handle.agent().when_idle().await;
    assert_eq!(hooks.statuses(), ["running", "idle", "running", "idle"]);
}

/// Scenario 230.
#[tokio::test]
async fn a_panicking_status_listener_is_contained() {
    let kit = Kit::new([Step::say("1")]);
    let hooks = TestHooks::listening(|_, event| {
        assert!(!matches!(event, AgentEvent::Status(_)), "the listener fails");
    });
    let (handle, hooks) = kit.create_with("s", hooks).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["completed"]);
    assert_eq!(hooks.statuses(), ["running", "idle"]);
}

/// Scenario 231.
#[tokio::test]
async fn the_second_turn_waits_for_the_flush_of_the_first() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.inject(plugin(agent, "so that the file exists")).expect("idle");
    agent.flush().await.expect("a working disk");
    let (began, gate) = kit.shelf.disk.hold(DiskOperation::Sync);
    agent.followup(kit.user("a"));
    agent.followup(kit.user("b"));
    began.wait().await;
    settle().await;
    assert_eq!(kit.model.request_count(), 1);
    assert_eq!(reasons(agent.session()), ["completed"]);
    gate.set(());
    agent.when_idle().await;
    assert_eq!(kit.model.request_count(), 2);
    assert_eq!(reasons(agent.session()), ["completed", "completed"]);
}

/// Scenario 232.
#[tokio::test]
async fn when_idle_waits_for_the_final_flush() {
    let kit = Kit::new([Step::say("1")]);
    let handle = kit.create("s").await;
    let agent = handle.agent().clone();
    agent.inject(plugin(&agent, "so that the file exists")).expect("idle");
    agent.flush().await.expect("a working disk");
    let (began, gate) = kit.shelf.disk.hold(DiskOperation::Sync);
    agent.followup(kit.user("a"));
    let idle = Latch::new();
    let waiter = tokio::spawn({
        let (agent, idle) = (agent.clone(), idle.clone());
        async move {
            agent.when_idle().await;
            idle.set(());
        }
    });
    began.wait().await;
    settle().await;
    assert_eq!(idle.get(), None);
    assert_eq!(agent.status(), AgentStatus::Running);
    gate.set(());
    waiter.await.expect("no panic");
    assert_eq!(idle.get(), Some(()));
}

/// Scenario 233.
#[tokio::test]
async fn a_failed_flush_is_told_and_the_next_turn_runs() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let (handle, hooks) = kit.create_with("s", TestHooks::default()).await;
    let agent = handle.agent();
    agent.inject(plugin(agent, "so that the file exists")).expect("idle");
    agent.flush().await.expect("a working disk");
    kit.facts();
    kit.shelf.disk.fail(DiskOperation::Sync, 0, 1, Fault::Fail(ErrorKind::Other));
    agent.followup(kit.user("a"));
    agent.followup(kit.user("b"));
    agent.when_idle().await;
    let errors: Vec<_> = hooks
        .events()
        .into_iter()
        .filter_map(|event| match event {
            AgentEvent::Error { turn, step, .. } => Some((turn, step)),
            _ => None,
        })
        .collect();
    assert_eq!(errors, [(1, 1)]);
    assert_eq!(reasons(agent.session()), ["completed", "completed"]);
    let flushes = kit.facts();
    let count = |wanted: fn(&Fact) -> bool| flushes.iter().filter(|fact| wanted(fact)).count();
    assert_eq!(count(|fact| matches!(fact, Fact::FlushStarted { .. })), 2);
    assert_eq!(count(|fact| matches!(fact, Fact::FlushFailed { .. })), 1);
}

/// Scenario 234.
#[tokio::test]
async fn steering_during_a_tool_joins_the_next_step() {
    let kit = Kit::new([Step::tool("t", json!({})), Step::say("done")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let receipt: Arc<Mutex<Option<Receipt>>> = Arc::default();
    let keep = Arc::clone(&receipt);
    let _tool = kit.tool("t", move |call| {
        let steering = plugin(&call.agent, "also this");
        *keep.lock().expect("no panic inside") = Some(call.agent.steer(steering));
        async { ToolOutput::text("ok") }
    });
    agent.followup(kit.user("go"));
    agent.when_idle().await;
    let told = [
        "turn 1",
        "user go",
        "step 1",
        "assistant ",
        "call t",
        "result ok",
        "steering also this",
        "step 2",
        "assistant done",
        "end 1 completed",
    ];
    assert_eq!(story(agent.session()), told);
    assert_eq!(asked(&kit.model.requests()[1]), ["go", "also this"]);
    let receipt = receipt.lock().expect("no panic inside").take().expect("steered");
    assert_eq!(receipt.await, admitted(1, 2));
}

/// Scenario 235.
#[tokio::test]
async fn two_idle_steers_of_one_tick_are_two_turns() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let (first, second) = (agent.steer(kit.user("a")), agent.steer(kit.user("b")));
    assert_eq!((first.await, second.await), (admitted(1, 1), admitted(2, 1)));
    agent.when_idle().await;
    assert!(!story(agent.session()).iter().any(|line| line.starts_with("steering")));
}

/// Scenario 236. The contract (P11) keeps steering out of the log until its step opens; so the next
/// prompt, which stands behind it, enters in that section too.
#[tokio::test]
async fn steering_staged_before_a_failing_step_enters_the_next_turn() {
    let kit = Kit::new([Step::say("fine")]);
    let failures = AtomicUsize::new(0);
    let pre_step = hook(move |context| {
        let fails = failures.fetch_add(1, Ordering::Relaxed) == 0;
        if fails {
            context.agent.steer(plugin(&context.agent, "staged")).detach();
        }
        async move { if fails { Err(HookError("no".to_owned())) } else { Ok(()) } }
    });
    let hooks = TestHooks { pre_step, ..TestHooks::default() };
    let (handle, _) = kit.create_with("s", hooks).await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    assert_eq!(kit.model.request_count(), 0);
    assert_eq!(reasons(agent.session()), ["error"]);
    agent.followup(kit.user("b"));
    agent.when_idle().await;
    let told = [
        "turn 1",
        "user a",
        "end 1 error",
        "turn 2",
        "steering staged",
        "user b",
        "step 1",
        "assistant fine",
        "end 2 completed",
    ];
    assert_eq!(story(agent.session()), told);
    assert_eq!(asked(&kit.model.requests()[0]), ["a", "staged", "b"]);
}

/// Scenario 237. That a caller changes a message afterwards cannot be written in Rust.
#[tokio::test]
async fn injects_during_a_tool_wait_for_its_result() {
    let kit = Kit::new([Step::tool("t", json!({})), Step::say("done")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let _tool = kit.tool("t", |call| async move {
        call.agent.inject(plugin(&call.agent, "note")).expect("open");
        let last = story(call.agent.session()).pop();
        ToolOutput::text(last.expect("a log"))
    });
    agent.followup(kit.user("go"));
    agent.when_idle().await;
    let told = story(agent.session());
    assert_eq!(told[4..7], ["call t", "result ok", "user note"]);
    assert_eq!(reasons(agent.session()), ["completed"]);
}

/// Scenario 238.
#[tokio::test]
async fn steering_while_the_turn_stops_continues_it() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::say("3")]);
    let turn_stopping = hook(|context| {
        if context.step < 3 {
            context.agent.steer(plugin(&context.agent, "go on")).detach();
        }
        async { Ok(()) }
    });
    let hooks = TestHooks { turn_stopping, ..TestHooks::default() };
    let (handle, _) = kit.create_with("s", hooks).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["completed"]);
    assert_eq!(kit.model.request_count(), 3);
}

fn concluding() -> ToolOutput {
    ToolOutput { concludes: true, ..ToolOutput::text("that is all") }
}

/// Scenario 239.
#[tokio::test]
async fn a_concluding_tool_ends_the_turn() {
    let kit = Kit::new([Step::tool("t", json!({})), Step::say("never asked for")]);
    let _tool = kit.tool("t", |_| async { concluding() });
    let handle = kit.create("s").await;
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert_eq!(kit.model.request_count(), 1);
    assert_eq!(reasons(handle.agent().session()), ["completed"]);
}

/// Scenario 240.
#[tokio::test]
async fn concluding_beats_steering() {
    let kit = Kit::new([Step::tool("t", json!({})), Step::say("next")]);
    let receipt: Arc<Mutex<Option<Receipt>>> = Arc::default();
    let keep = Arc::clone(&receipt);
    let _tool = kit.tool("t", move |call| {
        let steering = plugin(&call.agent, "too late");
        *keep.lock().expect("no panic inside") = Some(call.agent.steer(steering));
        async { concluding() }
    });
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    let receipt = receipt.lock().expect("no panic inside").take().expect("steered");
    assert_eq!(receipt.await, ReceiptOutcome::Rejected);
    agent.followup(kit.user("b"));
    agent.when_idle().await;
    assert!(!story(agent.session()).iter().any(|line| line.contains("too late")));
    assert_eq!(asked(&kit.model.requests()[1]), ["a", "b"]);
}

/// Scenario 241.
#[tokio::test]
async fn a_steer_from_an_observer_joins_the_turn_until_it_has_ended() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::say("3")]);
    let handle = kit.create("s").await;
    let agent = handle.agent().clone();
    let _observer = agent.session().observe(Arc::new({
        let agent = agent.clone();
        move |event| {
            let text = match event.body {
                EventBody::StepEnd { turn: 1, step: 1 } => "same turn",
                EventBody::TurnEnd { turn: 1, .. } => "next turn",
                _ => return,
            };
            agent.steer(plugin(&agent, text)).detach();
        }
    }));
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    let told = story(agent.session());
    assert_eq!(told[4..6], ["steering same turn", "step 2"]);
    assert_eq!(told[8..10], ["turn 2", "user next turn"]);
    assert_eq!(reasons(agent.session()), ["completed", "completed"]);
}

/// Scenario 242.
#[tokio::test]
async fn a_failing_hook_ends_the_turn_and_not_the_loop() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let failing = |turn: u64| {
        hook(move |context| async move {
            assert!(context.turn != turn, "a panic counts as a failure");
            if context.turn == turn + 1 { Err(HookError("no".to_owned())) } else { Ok(()) }
        })
    };
    let hooks =
        TestHooks { pre_step: failing(1), turn_stopping: failing(3), ..TestHooks::default() };
    let (handle, _) = kit.create_with("s", hooks).await;
    for text in ["a", "b", "c", "d"] {
        handle.agent().followup(kit.user(text));
    }
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["error"; 4]);
    assert_eq!(kit.model.request_count(), 2);
}

/// Blocks prompts whose text begins with `no`; `staged` is called with each of them first.
fn blocking(staged: impl Fn(&Agent, &Message) + Send + Sync + 'static) -> TestHooks {
    let prompt_submit = prompt_hook(move |context, message| {
        let blocks = message.text().starts_with("no");
        staged(&context.agent, &message);
        async move {
            if blocks {
                Ok(PromptDecision::Block { reason: "not today".to_owned() })
            } else {
                Ok(PromptDecision::allow())
            }
        }
    });
    TestHooks { prompt_submit, ..TestHooks::default() }
}

/// Scenario 243.
#[tokio::test]
async fn a_blocked_prompt_leaves_no_trace() {
    let kit = Kit::new([]);
    let (handle, hooks) = kit.create_with("s", blocking(|_, _| {})).await;
    let agent = handle.agent();
    let receipt = agent.steer(kit.user("no"));
    agent.followup(kit.user("no again"));
    agent.when_idle().await;
    assert_eq!(receipt.await, ReceiptOutcome::Rejected);
    assert!(agent.session().is_empty());
    assert_eq!(kit.model.request_count(), 0);
    let settled = |event: &AgentEvent| matches!(event, AgentEvent::Settled { .. });
    assert!(!hooks.events().iter().any(settled));
}

/// Scenario 244.
#[tokio::test]
async fn what_arrives_during_admission_follows_the_prompt() {
    let kit = Kit::new([Step::say("1")]);
    let hooks = blocking(|agent, _| {
        agent.inject(plugin(agent, "context")).expect("open");
        agent.steer(plugin(agent, "steered")).detach();
    });
    let (handle, hooks) = kit.create_with("s", hooks).await;
    handle.agent().followup(kit.user("go"));
    handle.agent().when_idle().await;
    let told = story(handle.agent().session());
    assert_eq!(told[..5], ["turn 1", "user go", "user context", "steering steered", "step 1"]);
    let placements: Vec<_> = hooks
        .events()
        .into_iter()
        .filter_map(|event| match event {
            AgentEvent::Enqueued { placement, .. } => Some(placement),
            _ => None,
        })
        .collect();
    assert_eq!(placements, [Placement::Queued, Placement::Steering]);
}

fn stage_both(agent: &Agent, message: &Message) {
    if message.text() == "no" {
        agent.inject(plugin(agent, "context")).expect("open");
        agent.steer(plugin(agent, "steered")).detach();
    }
}

/// Scenarios 245, 246.
#[tokio::test]
async fn steering_left_by_a_blocked_prompt_precedes_the_next_one() {
    for burst in [false, true] {
        let kit = Kit::new([Step::say("1")]);
        let (handle, _) = kit.create_with("s", blocking(stage_both)).await;
        let agent = handle.agent();
        agent.followup(kit.user("no"));
        if !burst {
            agent.when_idle().await;
            assert!(agent.session().is_empty());
        }
        agent.followup(kit.user("yes"));
        agent.when_idle().await;
        let told = story(agent.session());
        let expected = ["turn 1", "user context", "steering steered", "user yes", "step 1"];
        assert_eq!(told[..5], expected, "burst: {burst}");
    }
}

/// Scenario 247.
#[tokio::test]
async fn context_left_alone_by_a_blocked_prompt_is_logged() {
    let kit = Kit::new([]);
    let hooks = blocking(|agent, _| agent.inject(plugin(agent, "context")).expect("open"));
    let (handle, _) = kit.create_with("s", hooks).await;
    handle.agent().followup(kit.user("no"));
    handle.agent().when_idle().await;
    assert_eq!(story(handle.agent().session()), ["user context"]);
}

/// Scenario 248.
#[tokio::test]
async fn context_whose_append_fails_is_kept() {
    let kit = Kit::new([Step::say("1")]);
    let hooks = blocking(|agent, message| {
        if message.text() == "no" {
            agent.inject(plugin(agent, "context")).expect("open");
        }
    });
    let (handle, hooks) = kit.create_with("s", hooks).await;
    let agent = handle.agent();
    let vetoes = AtomicUsize::new(0);
    agent.session().add_validator(Arc::new(move |_, _| {
        match vetoes.fetch_add(1, Ordering::Relaxed) {
            0 => Err("not now".to_owned()),
            _ => Ok(()),
        }
    }));
    agent.followup(kit.user("no"));
    agent.when_idle().await;
    assert!(agent.session().is_empty());
    let failed = |event: &AgentEvent| matches!(event, AgentEvent::Error { .. });
    assert!(hooks.events().iter().any(failed));
    agent.followup(kit.user("yes"));
    agent.when_idle().await;
    assert_eq!(story(agent.session())[..4], ["turn 1", "user context", "user yes", "step 1"]);
}

/// Scenario 249.
#[tokio::test]
async fn neighbours_of_a_blocked_prompt_run() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let prompt_submit = prompt_hook(|_, message| async move {
        match message.text().as_str() {
            "no" => Ok(PromptDecision::Block { reason: "not today".to_owned() }),
            "fail" => Err(HookError("broken".to_owned())),
            _ => Ok(PromptDecision::allow()),
        }
    });
    let hooks = TestHooks { prompt_submit, ..TestHooks::default() };
    let (handle, hooks) = kit.create_with("s", hooks).await;
    for text in ["no", "a", "fail", "b"] {
        handle.agent().followup(kit.user(text));
    }
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["completed", "completed"]);
    assert_eq!(hooks.statuses(), ["running", "idle"]);
    assert_eq!(asked(&kit.model.requests()[1]), ["a", "b"]);
}

/// Scenario 250.
#[tokio::test]
async fn a_queued_prompt_can_be_changed_until_it_is_claimed() {
    let kit = Kit::new([Step::gate("open"), Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the first turn runs", || kit.model.was_reached("open")).await;
    let (edited, removed) = (kit.user("b"), kit.user("c"));
    let (edited_id, removed_id) = (edited.id.clone(), removed.id.clone());
    agent.followup(edited);
    agent.followup(removed);
    let steering = kit.user("s");
    let steering_id = steering.id.clone();
    agent.steer(steering).detach();
    let change = InboxEdit::Replace(vec![ContentBlock::text("b, edited")]);
    assert!(agent.update_inbox(&edited_id, change.clone()));
    assert!(agent.update_inbox(&removed_id, InboxEdit::Remove));
    assert!(!agent.update_inbox(&steering_id, InboxEdit::Remove));
    kit.model.push_shared([Step::say("3")]);
    kit.model.release("open");
    agent.when_idle().await;
    assert!(!agent.update_inbox(&edited_id, change));
    assert_eq!(asked(&kit.model.requests()[2]), ["a", "s", "b, edited"]);
}

#[tokio::test]
async fn a_dropped_receipt_withdraws_its_message() {
    let kit = Kit::new([Step::gate("open"), Step::say("1")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the turn runs", || kit.model.was_reached("open")).await;
    drop(agent.steer(kit.user("withdrawn")));
    steer(&kit, agent, "kept");
    kit.model.push_shared([Step::say("2")]);
    kit.model.release("open");
    agent.when_idle().await;
    let steered = story(agent.session()).into_iter().filter(|line| line.starts_with("steering"));
    assert_eq!(steered.collect::<Vec<_>>(), ["steering kept"]);
}

/// The contract's P7: a context may wake an idle agent, and its turn is nobody's message.
#[tokio::test]
async fn a_waking_context_opens_an_injection_turn_when_its_log_allows_it() {
    let kit = Kit::new([Step::say("1")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.inject_waking(plugin(agent, "wakes"), |log| log.is_empty()).expect("open");
    agent.inject_waking(plugin(agent, "queued behind"), |_| true).expect("open");
    agent.when_idle().await;
    agent.inject_waking(plugin(agent, "too many"), |log| log.is_empty()).expect("open");
    settle().await;
    let told = story(agent.session());
    assert_eq!(told[..3], ["user queued behind", "turn 1", "user wakes"]);
    assert_eq!(told.last().map(String::as_str), Some("user too many"));
    let trigger = agent.session().snapshot_from(0).iter().find_map(|event| match &event.body {
        EventBody::TurnStart { trigger, .. } => Some(trigger.word()),
        _ => None,
    });
    assert_eq!(trigger, Some("injection"));
    assert_eq!(kit.model.request_count(), 1);
}
