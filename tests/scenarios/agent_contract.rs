//! What the contract adds to §10.14: P4, P6, P10, P18, and real threads.

use std::sync::Arc;

use continuable::agent::tools::ToolOutput;
use continuable::agent::{InjectError, Receipt, ReceiptOutcome};
use continuable::cancel::CancelSignal;
use continuable::channel::Latch;
use continuable::facts::{CancelScope, Fact};
use continuable::ids::{ActivationId, SessionId};
use continuable::message::{ContentBlock, Message};
use continuable::model::script::Step;
use continuable::sections::steering::SteerRefusal;
use continuable::session::EventBody;
use continuable::store::DiskOperation;
use continuable::vocabulary::CancelCause;
use serde_json::json;

use crate::agent_cancel::{KEEP, cancel, is_balanced, once_at};
use crate::kit::{Kit, TestHooks, hook, reasons, story, wait_until};

fn activation(kit: &Kit, child: &str) -> CancelSignal {
    let scope =
        CancelScope::Activation { activation: ActivationId(1), child: SessionId::new(child) };
    CancelSignal::new(Arc::clone(&kit.runtime), scope)
}

/// The contract's P10, and its invariant I10.
#[tokio::test]
async fn an_accepted_cancellation_of_the_activation_closes_the_inbox_at_once() {
    let kit = Kit::new([Step::gate("open"), Step::tool("t", json!({}))]);
    let _tool = kit.tool("t", |_| async { panic!("it must not run") });
    let signal = activation(&kit, "s");
    let mut request = kit.request("s");
    request.activation = Some(signal.clone());
    let handle = kit.host.create(request).await.expect("nothing refuses it");
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the request left", || kit.model.was_reached("open")).await;
    let staged = agent.steer(kit.user("staged"));
    signal.cancel(CancelCause::Kill);
    assert_eq!(agent.steer(kit.user("late")).await, ReceiptOutcome::Rejected);
    assert!(!agent.followup(kit.user("late")));
    assert_eq!(agent.inject(kit.user("late")), Err(InjectError::Closed));
    let refused = agent.steer_running(kit.user("late"), || false);
    assert_eq!(refused.map(drop), Err(SteerRefusal::Cancelled));
    // Nobody tells the agent: its own next section meets the cancellation.
    kit.model.release("open");
    assert_eq!(staged.await, ReceiptOutcome::Rejected);
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["aborted"]);
    let observed = |fact: &Fact| matches!(fact, Fact::CancelObserved { .. });
    assert_eq!(kit.facts().into_iter().filter(observed).count(), 1);
}

/// The contract's P10: the loop's flush window is not the end of the activation.
#[tokio::test]
async fn a_steer_in_the_flush_window_is_the_next_turn() {
    let kit = Kit::new([Step::say("1"), Step::say("2")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.inject(kit.user("so that the file exists")).expect("idle");
    agent.flush().await.expect("a working disk");
    let (began, gate) = kit.shelf.disk.hold(DiskOperation::Sync);
    agent.followup(kit.user("a"));
    began.wait().await;
    let receipt = agent.steer_running(kit.user("b"), || false).expect("still running");
    let withdrawn = agent.steer(kit.user("c"));
    drop(withdrawn);
    gate.set(());
    assert_eq!(receipt.await, ReceiptOutcome::Admitted { turn: 2, step: 1 });
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["completed", "completed"]);
}

/// The contract's P4: a claimed prompt can be withdrawn, and then opens no turn.
#[tokio::test]
async fn a_claimed_prompt_that_is_withdrawn_opens_no_turn() {
    let kit = Kit::new([]);
    let (reached, go) = (Latch::new(), Latch::new());
    let (at, until) = (reached.clone(), go.clone());
    let pre_step = hook(move |_| {
        let (at, until) = (at.clone(), until.clone());
        async move {
            at.set(());
            until.wait().await;
            Ok(())
        }
    });
    let (handle, _) = kit.create_with("s", TestHooks { pre_step, ..TestHooks::default() }).await;
    let agent = handle.agent();
    let mut receipt: Receipt = agent.steer(kit.user("a"));
    reached.wait().await;
    assert!(receipt.withdraw());
    go.set(());
    assert_eq!(receipt.await, ReceiptOutcome::Rejected);
    agent.when_idle().await;
    assert!(agent.session().is_empty());
}

/// The contract's P6.
#[tokio::test]
async fn closing_for_settlement_takes_the_length_that_the_flush_must_cover() {
    let kit = Kit::new([Step::gate("open"), Step::say("1")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the request left", || kit.model.was_reached("open")).await;
    assert!(agent.close_for_settlement().is_err());
    kit.model.release("open");
    agent.when_idle().await;
    let length = agent.close_for_settlement().expect("idle");
    assert_eq!(length, agent.session().len());
    let refused: Message = kit.user("dropped");
    assert_eq!(agent.inject(refused), Err(InjectError::Closed));
    assert_eq!(agent.flush().await.expect("a working disk"), length);
}

/// Results stand in the model's order also when a cancellation comes between two dispatches, and a
/// result that no log takes is answered by one that every log takes.
#[tokio::test]
async fn every_call_is_answered_in_order_whatever_happens() {
    let both = ["first", "second"].map(|name| (name.to_owned(), json!({})));
    let kit = Kit::new([Step::Tools(both.to_vec()), Step::Tools(both.to_vec()), Step::Final]);
    let lossy = json!({"type": "image", "scale": -0.0});
    let _first = kit.tool("first", move |call| {
        let content = vec![ContentBlock::Other(lossy.clone())];
        async move {
            if call.turn == 1 {
                call.signal.cancelled().await;
            }
            ToolOutput { content, ..ToolOutput::default() }
        }
    });
    let _second = kit.tool("second", |_| async { ToolOutput::text("ok") });
    let handle = kit.create("s").await;
    let agent = handle.agent();
    let at = |body: &EventBody| matches!(body, EventBody::ToolCall { .. });
    let observer = once_at(agent, at, cancel);
    agent.followup(kit.user("a"));
    agent.when_idle().await;
    drop(observer);
    agent.followup(kit.user("b"));
    agent.when_idle().await;
    let calls: Vec<_> = story(agent.session())
        .into_iter()
        .filter(|line| line.starts_with("call") || line.starts_with("result"))
        .collect();
    let invalid = "result INVALID_INPUT";
    assert_eq!(
        calls[..4],
        ["call first", "call second", calls[2].as_str(), "result ABORTED_BEFORE_DISPATCH"]
    );
    assert_eq!(calls[4..], ["call first", "call second", invalid, "result ok"]);
    assert_eq!(reasons(agent.session()), ["aborted", "completed"]);
}

/// The contract's P18: a client that panics fails its turn, and nothing else.
#[tokio::test]
async fn a_panicking_model_fails_its_turn_only() {
    let panics = [Step::Panic("early".to_owned()), Step::PanicMidStream("late".to_owned())];
    let kit = Kit::new(panics.into_iter().chain([Step::say("fine")]));
    let handle = kit.create("s").await;
    for text in ["a", "b", "c"] {
        handle.agent().followup(kit.user(text));
    }
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["error", "error", "completed"]);
    assert!(is_balanced(handle.agent().session()));
}

/// The sections hold their order, and every receipt settles, on real threads too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_settle_every_receipt_and_balance_every_log() {
    let kit = Arc::new(Kit::new([Step::Always(Box::new(Step::say("ok")))]));
    for round in 0..20_u64 {
        let handle = kit.create(&format!("s{round}")).await;
        let agent = handle.agent().clone();
        let senders: Vec<_> = (0..8_u64)
            .map(|sender| {
                let (kit, agent) = (Arc::clone(&kit), agent.clone());
                tokio::spawn(async move {
                    for n in 0..6_u64 {
                        match (sender + n) % 6 {
                            0 => drop(agent.followup(kit.user("p"))),
                            1 => drop(agent.inject(kit.user("c"))),
                            2 => agent.cancel(CancelCause::User, KEEP),
                            3 if n > 3 => cancel(&agent),
                            4 => drop(agent.steer(kit.user("dropped"))),
                            _ => {
                                let mut receipt = agent.steer(kit.user("s"));
                                tokio::task::yield_now().await;
                                if !receipt.withdraw() {
                                    receipt.await;
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await.expect("no panic");
        }
        if round % 2 == 0 {
            agent.when_idle().await;
        }
        handle.dispose().await;
        assert!(is_balanced(agent.session()));
    }
    let panicked = |fact: &Fact| matches!(fact, Fact::PanicCaught { .. });
    assert!(!kit.facts().iter().any(panicked));
}
