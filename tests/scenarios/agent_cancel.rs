//! §10.14: cancellation, limits, reservations, retries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use continuable::agent::hooks::{AgentEvent, AgentStatus, HookContext, HookError, Recovery};
use continuable::agent::tools::ToolOutput;
use continuable::agent::{Agent, CancelOptions, PromptDecision, ReceiptOutcome};
use continuable::channel::Latch;
use continuable::facts::{CancelScope, Fact};
use continuable::model::FinishReason;
use continuable::model::script::{Step, chunks_of_call, chunks_of_text, finish};
use continuable::session::{EventBody, Session};
use continuable::vocabulary::CancelCause;
use serde_json::json;

use crate::kit::{
    Kit, TestHooks, asked, hook, plugin, prompt_hook, reasons, settle, story, wait_until,
};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (251, "observers_of_a_cancellation_run_before_anything_is_cleared"),
    (252, "cancelling_an_idle_agent_changes_nothing"),
    (253, "cancelling_an_idle_agent_changes_nothing"),
    (254, "a_quiet_prompt_waits_for_a_waking_one_and_goes_first"),
    (255, "cancelling_a_parked_prompt_leaves_the_agent_idle"),
    (256, "a_cancellation_before_the_first_claim_drops_everything"),
    (257, "a_disposal_from_the_running_notification_opens_no_turn"),
    (258, "when_idle_waits_for_the_work_that_replaces_a_cancelled_turn"),
    (259, "a_cancellation_mid_stream_drops_what_is_queued"),
    (260, "a_cancellation_that_keeps_the_inbox_runs_it_in_order"),
    (261, "calls_of_a_cancelled_turn_are_answered_unrun"),
    (262, "a_cancellation_from_any_observer_leaves_a_balanced_log"),
    (263, "a_cancellation_clears_steering"),
    (264, "work_queued_when_the_signal_fires_survives"),
    (265, "the_first_cause_wins"),
    (266, "whoever_waits_on_the_signal_settles_at_every_boundary"),
    (267, "contexts_staged_before_a_cancellation_are_dropped_and_finalised_ones_kept"),
    (268, "a_limit_sticks_to_its_turn_and_drops_its_calls"),
    (269, "a_reservation_holds_turns_back"),
    (270, "a_recovery_may_ask_for_another_turn"),
];

pub const KEEP: CancelOptions = CancelOptions { keep_inbox: true };
const PLAIN: CancelOptions = CancelOptions { keep_inbox: false };

pub fn cancel(agent: &Agent) {
    agent.cancel(CancelCause::User, PLAIN);
}

/// Sends `text` and waits until its response hangs. The script's next step must be a hang behind
/// the gate `gate`.
async fn hanging(kit: &Kit, agent: &Agent, text: &str) {
    let before = kit.model.request_count();
    agent.followup(kit.user(text));
    wait_until("the response began", || kit.model.request_count() > before).await;
    settle().await;
}

fn requested(hooks: &TestHooks) -> usize {
    let asked = |event: &&AgentEvent| matches!(event, AgentEvent::CancelRequested { .. });
    hooks.events().iter().filter(asked).count()
}

/// Scenario 251.
#[tokio::test]
async fn observers_of_a_cancellation_run_before_anything_is_cleared() {
    let kit = Kit::new([Step::Hang]);
    let queueing = || {
        TestHooks::listening(|agent, event| {
            if matches!(event, AgentEvent::CancelRequested { .. }) {
                assert_eq!(agent.status(), AgentStatus::Running);
                agent.followup(plugin(agent, "dropped"));
            }
        })
    };
    let second = Arc::new(queueing());
    let (handle, first) = kit.create_with("s", queueing()).await;
    let agent = handle.agent();
    agent.add_hooks(second.clone());
    hanging(&kit, agent, "a").await;
    cancel(agent);
    agent.when_idle().await;
    cancel(agent);
    assert_eq!((requested(&first), requested(&second)), (1, 1));
    assert_eq!(reasons(agent.session()), ["aborted"]);
    let discarded: Vec<_> = first
        .events()
        .into_iter()
        .filter_map(|event| match event {
            AgentEvent::Discarded { messages } => Some(messages.len()),
            _ => None,
        })
        .collect();
    assert_eq!(discarded, [2], "one notification for all items");
}

/// Scenarios 252, 253.
#[tokio::test]
async fn cancelling_an_idle_agent_changes_nothing() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let (handle, hooks) = kit.create_with("s", TestHooks::default()).await;
    let agent = handle.agent();
    cancel(agent);
    agent.queue_quietly(kit.user("quiet"));
    agent.cancel(CancelCause::User, KEEP);
    assert_eq!(requested(&hooks), 0);
    agent.followup(kit.user("loud"));
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["completed", "completed"]);
}

/// Scenario 254.
#[tokio::test]
async fn a_quiet_prompt_waits_for_a_waking_one_and_goes_first() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.queue_quietly(kit.user("quiet"));
    settle().await;
    assert!(agent.session().is_empty());
    agent.followup(kit.user("loud"));
    agent.when_idle().await;
    let users = story(agent.session()).into_iter().filter(|line| line.starts_with("user"));
    assert_eq!(users.collect::<Vec<_>>(), ["user quiet", "user loud"]);
}

/// Scenario 255.
#[tokio::test]
async fn cancelling_a_parked_prompt_leaves_the_agent_idle() {
    let kit = Kit::new([]);
    let (handle, hooks) = kit.create_with("s", TestHooks::default()).await;
    let agent = handle.agent();
    agent.queue_quietly(kit.user("quiet"));
    cancel(agent);
    agent.when_idle().await;
    assert_eq!(requested(&hooks), 1);
    assert!(agent.session().is_empty());
}

/// Scenario 256.
#[tokio::test]
async fn a_cancellation_before_the_first_claim_drops_everything() {
    let kit = Kit::new([]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    let receipt = agent.steer(kit.user("b"));
    cancel(agent);
    agent.when_idle().await;
    assert_eq!(receipt.await, ReceiptOutcome::Rejected);
    assert!(agent.session().is_empty());
}

/// Scenario 257.
#[tokio::test]
async fn a_disposal_from_the_running_notification_opens_no_turn() {
    let kit = Kit::new([]);
    let mine: Arc<Mutex<Option<continuable::agent::AgentHandle>>> = Arc::default();
    let taken = Arc::clone(&mine);
    let hooks = TestHooks::listening(move |_, event| {
        if *event == AgentEvent::Status(AgentStatus::Running) {
            drop(taken.lock().expect("no panic inside").take());
        }
    });
    let (handle, _) = kit.create_with("s", hooks).await;
    let agent = handle.agent().clone();
    *mine.lock().expect("no panic inside") = Some(handle);
    agent.followup(kit.user("a"));
    agent.disposed().await;
    assert!(agent.session().is_empty());
    assert!(kit.host.list().is_empty());
}

/// A pre-step hook of the first turn that waits for its cancellation and then queues work.
fn replacing() -> TestHooks {
    let pre_step = hook(|context: HookContext| async move {
        if context.turn == 1 {
            context.signal.cancelled().await;
            context.agent.followup(plugin(&context.agent, "instead"));
        }
        Ok(())
    });
    TestHooks { pre_step, ..TestHooks::default() }
}

/// Scenario 258.
#[tokio::test]
async fn when_idle_waits_for_the_work_that_replaces_a_cancelled_turn() {
    let kit = Kit::new([Step::gate("open"), Step::say("1")]);
    let (handle, _) = kit.create_with("s", replacing()).await;
    let agent = handle.agent().clone();
    agent.followup(kit.user("a"));
    wait_until("the turn is open", || !agent.session().is_empty()).await;
    let idle = Latch::new();
    let waiter = tokio::spawn({
        let (agent, idle) = (agent.clone(), idle.clone());
        async move {
            agent.when_idle().await;
            idle.set(());
        }
    });
    settle().await;
    cancel(&agent);
    wait_until("the replacement runs", || kit.model.was_reached("open")).await;
    assert_eq!(idle.get(), None);
    kit.model.release("open");
    waiter.await.expect("no panic");
    assert_eq!(reasons(agent.session()), ["aborted", "completed"]);
}

/// Scenario 259.
#[tokio::test]
async fn a_cancellation_mid_stream_drops_what_is_queued() {
    let kit = Kit::new([Step::Hang]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    hanging(&kit, agent, "a").await;
    agent.followup(kit.user("b"));
    cancel(agent);
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["aborted"]);
    assert_eq!(kit.model.active(), 0, "the response was given up");
}

/// Scenario 260.
#[tokio::test]
async fn a_cancellation_that_keeps_the_inbox_runs_it_in_order() {
    let kit = Kit::new([Step::Hang, Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    hanging(&kit, agent, "a").await;
    agent.followup(kit.user("b"));
    agent.followup(kit.user("c"));
    let receipt = agent.steer(kit.user("s"));
    agent.cancel(CancelCause::User, KEEP);
    assert_eq!(receipt.await, ReceiptOutcome::Admitted { turn: 2, step: 1 });
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["aborted", "completed", "completed"]);
    assert_eq!(asked(&kit.model.requests()[2]), ["a", "s", "b", "c"]);
}

/// Calls `then` once, at the first event that `at` picks.
pub fn once_at(
    agent: &Agent,
    at: fn(&EventBody) -> bool,
    then: impl Fn(&Agent) + Send + Sync + 'static,
) -> continuable::session::ObserverGuard {
    let (agent, done) = (agent.clone(), AtomicUsize::new(0));
    let session = Arc::clone(agent.session());
    session.observe(Arc::new(move |event| {
        if at(&event.body) && done.fetch_add(1, Ordering::Relaxed) == 0 {
            then(&agent);
        }
    }))
}

/// Scenario 261.
#[tokio::test]
async fn calls_of_a_cancelled_turn_are_answered_unrun() {
    let two = vec![("t".to_owned(), json!({})), ("t".to_owned(), json!({}))];
    let kit = Kit::new([Step::Tools(two), Step::say("next")]);
    let _tool = kit.tool("t", |_| async { panic!("it must not run") });
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let at = |body: &EventBody| matches!(body, EventBody::AssistantMessage { .. });
    let _observer = once_at(agent, at, cancel);
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    let unrun = ["call t", "result ABORTED_BEFORE_DISPATCH"];
    let told = story(agent.session());
    assert_eq!(told[4..6], unrun);
    assert_eq!(told[6..8], unrun);
    assert_eq!(reasons(agent.session()), ["aborted"]);
    agent.followup(kit.user("b"));
    agent.when_idle().await;
    let answers = kit.model.requests()[1].messages.len();
    assert_eq!(answers, 5, "prompt, calls, two answers, prompt");
    let started = |fact: &Fact| matches!(fact, Fact::ToolStarted { .. });
    assert!(!kit.facts().iter().any(started));
}

pub fn is_balanced(session: &Session) -> bool {
    let log = session.lock();
    log.open_turn().is_none() && log.open_step().is_none()
}

/// Scenario 262.
#[tokio::test]
async fn a_cancellation_from_any_observer_leaves_a_balanced_log() {
    let points: [fn(&EventBody) -> bool; 2] = [
        |body| matches!(body, EventBody::TurnStart { .. }),
        |body| matches!(body, EventBody::StepStart { .. }),
    ];
    for at in points {
        let kit = Kit::new([]);
        let handle = kit.create("s").await;
        let _observer = once_at(handle.agent(), at, cancel);
        handle.agent().followup(kit.user("a"));
        handle.agent().when_idle().await;
        assert_eq!(reasons(handle.agent().session()), ["aborted"]);
        assert!(is_balanced(handle.agent().session()));
        assert_eq!(kit.model.request_count(), 0);
    }
    let kit = Kit::new([Step::say("1")]);
    let turn_stopping = hook(|context: HookContext| async move {
        cancel(&context.agent);
        Ok(())
    });
    let hooks = TestHooks { turn_stopping, ..TestHooks::default() };
    let (handle, _) = kit.create_with("stopping", hooks).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["aborted"]);

    let hooks = TestHooks::listening(|agent, event| {
        if *event == AgentEvent::Status(AgentStatus::Running) {
            cancel(agent);
        }
    });
    let (handle, _) = kit.create_with("running", hooks).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert!(handle.agent().session().is_empty());

    let handle = kit.create("disposed").await;
    let agent = handle.agent().clone();
    let handle = Mutex::new(Some(handle));
    let at = |body: &EventBody| matches!(body, EventBody::StepStart { .. });
    let _observer = once_at(&agent, at, move |_| {
        drop(handle.lock().expect("no panic inside").take());
    });
    agent.followup(kit.user("a"));
    agent.disposed().await;
    assert_eq!(reasons(agent.session()), ["disposed"]);
    assert!(is_balanced(agent.session()));
}

/// Scenario 263.
#[tokio::test]
async fn a_cancellation_clears_steering() {
    let kit = Kit::new([Step::Hang]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    hanging(&kit, agent, "a").await;
    let receipt = agent.steer(kit.user("never"));
    cancel(agent);
    assert_eq!(receipt.await, ReceiptOutcome::Rejected);
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["aborted"]);
    assert!(!story(agent.session()).iter().any(|line| line.contains("never")));
}

/// Scenario 264.
#[tokio::test]
async fn work_queued_when_the_signal_fires_survives() {
    let kit = Kit::new([Step::say("1")]);
    let (handle, _) = kit.create_with("s", replacing()).await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the turn is open", || !agent.session().is_empty()).await;
    settle().await;
    cancel(agent);
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["aborted", "completed"]);
}

/// Scenario 265. That the cause is a frozen copy goes without saying in Rust.
#[tokio::test]
async fn the_first_cause_wins() {
    let kit = Kit::new([Step::Hang]);
    let handle = kit.create("s").await;
    let agent = handle.agent().clone();
    hanging(&kit, &agent, "a").await;
    cancel(&agent);
    agent.cancel(CancelCause::Parent, PLAIN);
    handle.dispose().await;
    assert_eq!(reasons(agent.session()), ["aborted"]);
    let causes: Vec<_> = kit
        .facts()
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::CancelAccepted { scope: CancelScope::Turn { .. }, cause } => Some(cause),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [CancelCause::User]);
}

/// Waits for the cancellation, in whatever hook it is put.
fn waiting<T: Default + Send + 'static>(
    reached: &Latch<()>,
) -> impl Fn(HookContext) -> continuable::runtime::BoxFuture<'static, Result<T, HookError>>
+ Send
+ Sync
+ use<T> {
    let reached = reached.clone();
    move |context: HookContext| {
        let reached = reached.clone();
        Box::pin(async move {
            reached.set(());
            context.signal.cancelled().await;
            Ok(T::default())
        })
    }
}

/// Scenario 266. Prompt assembly waits for nothing here; the tool's hook takes its place.
#[tokio::test]
async fn whoever_waits_on_the_signal_settles_at_every_boundary() {
    for boundary in 0..6 {
        let kit = Kit::new([match boundary {
            2 => Step::Hang,
            3 | 4 => Step::tool("t", json!({})),
            _ => Step::say("1"),
        }]);
        let reached = Latch::new();
        let in_tool = reached.clone();
        let _tool = kit.tool("t", move |call| {
            let reached = in_tool.clone();
            async move {
                reached.set(());
                call.signal.cancelled().await;
                ToolOutput::text("gave up")
            }
        });
        let mut hooks = TestHooks::default();
        let first = reached.clone();
        match boundary {
            0 => {
                hooks.prompt_submit = prompt_hook(move |context, _| {
                    first.set(());
                    async move {
                        context.signal.cancelled().await;
                        Ok(PromptDecision::allow())
                    }
                });
            }
            1 => hooks.pre_step = hook(waiting(&reached)),
            4 => hooks.pre_tool = hook(waiting(&reached)),
            5 => hooks.turn_stopping = hook(waiting(&reached)),
            _ => {}
        }
        let (handle, _) = kit.create_with("s", hooks).await;
        let agent = handle.agent();
        agent.followup(kit.user("a"));
        match boundary {
            2 => wait_until("the stream", || kit.model.active() > 0).await,
            _ => reached.wait().await,
        }
        settle().await;
        cancel(agent);
        agent.when_idle().await;
        let expected: &[&str] = if boundary == 0 { &[] } else { &["aborted"] };
        assert_eq!(reasons(agent.session()), expected, "boundary {boundary}");
        assert!(is_balanced(agent.session()));
    }
}

fn with_context(agent: &Agent, text: &str) -> ToolOutput {
    ToolOutput { contexts: vec![plugin(agent, text)], ..ToolOutput::text("ok") }
}

/// Scenario 267.
#[tokio::test]
async fn contexts_staged_before_a_cancellation_are_dropped_and_finalised_ones_kept() {
    for disposes in [false, true] {
        let calls = ["first", "second"].map(|name| (name.to_owned(), json!({})));
        let kit = Kit::new([Step::Tools(calls.to_vec())]);
        let reached = Latch::new();
        let _first = kit.exclusive_tool("first", |call| async move {
            call.agent.inject(plugin(&call.agent, "injected")).expect("open");
            with_context(&call.agent, "of the first")
        });
        let in_tool = reached.clone();
        let _second = kit.exclusive_tool("second", move |call| {
            let reached = in_tool.clone();
            async move {
                reached.set(());
                call.signal.cancelled().await;
                with_context(&call.agent, "of the second")
            }
        });
        let handle = kit.create("s").await;
        let agent = handle.agent().clone();
        agent.followup(kit.user("a"));
        reached.wait().await;
        if disposes {
            handle.dispose().await;
        } else {
            cancel(&agent);
            agent.when_idle().await;
        }
        let told = story(agent.session());
        assert_eq!(told[6..9], ["call second", "result ok", "user of the second"]);
        assert!(!told.iter().any(|line| line.contains("first") && line.starts_with("user")));
        assert!(!told.iter().any(|line| line.contains("injected")));
        let reason = if disposes { "disposed" } else { "aborted" };
        assert_eq!(reasons(agent.session()), [reason]);
    }
}

/// Scenario 268.
#[tokio::test]
async fn a_limit_sticks_to_its_turn_and_drops_its_calls() {
    let mut cut_short = chunks_of_text(0, &["so far"]);
    cut_short.extend(chunks_of_call(1, "k".to_owned(), "t".to_owned(), "{\"a".to_owned()));
    cut_short.extend(finish(FinishReason::MaxTokens));
    let kit = Kit::new([Step::Parts(cut_short), Step::say("2"), Step::say("3")]);
    let _tool = kit.tool("t", |_| async { panic!("it must not run") });
    let turn_stopping = hook(|context: HookContext| async move {
        if (context.turn, context.step) == (1, 1) {
            context.agent.steer(plugin(&context.agent, "go on")).detach();
        }
        Ok(())
    });
    let hooks = TestHooks { turn_stopping, ..TestHooks::default() };
    let (handle, _) = kit.create_with("s", hooks).await;
    handle.agent().followup(kit.user("a"));
    handle.agent().followup(kit.user("b"));
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["max-tokens", "completed"]);
    assert!(!story(handle.agent().session()).iter().any(|line| line.starts_with("call")));
    assert_eq!(kit.model.request_count(), 3);
}

/// Scenario 269.
#[tokio::test]
async fn a_reservation_holds_turns_back() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::Hang]);
    let handle = kit.create("s").await;
    let agent = handle.agent().clone();
    let held = agent.reserve_turn_admission().expect("idle");
    assert!(agent.reserve_turn_admission().is_none());
    agent.followup(kit.user("a"));
    agent.followup(kit.user("b"));
    settle().await;
    assert!(agent.session().is_empty());
    let idle = tokio::spawn({
        let agent = agent.clone();
        async move { agent.when_idle().await }
    });
    settle().await;
    assert!(!idle.is_finished());
    held.release();
    assert!(agent.reserve_turn_admission().is_none(), "a wake is pending");
    held.release();
    idle.await.expect("no panic");
    assert_eq!(asked(&kit.model.requests()[1]), ["a", "b"]);

    let second = agent.reserve_turn_admission().expect("idle");
    held.release();
    agent.followup(kit.user("discarded"));
    cancel(&agent);
    drop(second);
    agent.when_idle().await;
    assert_eq!(kit.model.request_count(), 2);

    let _third = agent.reserve_turn_admission().expect("idle");
    agent.followup(kit.user("never"));
    handle.dispose().await;
    assert_eq!(kit.model.request_count(), 2);
}

type Answer = fn(&Agent) -> Result<Recovery, HookError>;

fn recovering(answer: Answer) -> TestHooks {
    let recover = hook(move |context: HookContext| async move { answer(&context.agent) });
    TestHooks { recover, ..TestHooks::default() }
}

/// Scenario 270.
#[tokio::test]
async fn a_recovery_may_ask_for_another_turn() {
    let failing = || [Step::Err("overloaded".to_owned()), Step::say("better")];
    let kit = Kit::new(failing());
    let (handle, hooks) = kit.create_with("s", recovering(|_| Ok(Recovery::Retry))).await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["error", "completed"]);
    let retried = |event: &Arc<continuable::session::Event>| matches!(&event.body, EventBody::TurnStart { trigger, .. } if trigger.word() == "retry");
    assert!(agent.session().snapshot_from(0).iter().any(retried));
    let settled = |event: &&AgentEvent| matches!(event, AgentEvent::Settled { .. });
    assert_eq!(hooks.events().iter().filter(settled).count(), 1);

    let refusals: [Answer; 3] = [
        |_| Err(HookError("no".to_owned())),
        |agent| {
            cancel(agent);
            Ok(Recovery::Retry)
        },
        |_| panic!("a panic is a failure"),
    ];
    for (index, answer) in refusals.into_iter().enumerate() {
        let kit = Kit::new(failing());
        let (handle, _) = kit.create_with("s", recovering(answer)).await;
        handle.agent().followup(kit.user("a"));
        handle.agent().when_idle().await;
        let reason = if index == 1 { "aborted" } else { "error" };
        assert_eq!(reasons(handle.agent().session()), [reason]);
    }
}
