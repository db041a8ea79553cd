//! §10.15: create, resume, dispose.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use continuable::agent::create::BeforePublish;
use continuable::agent::hooks::AgentEvent;
use continuable::agent::host::HostListener;
use continuable::agent::registry::BeginRefusal;
use continuable::agent::{Agent, AgentHost, CreateAgent, CreateError, ResumeAgent, SetupError};
use continuable::cancel::CancelSignal;
use continuable::channel::Latch;
use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::ids::SessionId;
use continuable::model::script::Step;
use continuable::store::DiskOperation;
use continuable::vocabulary::CancelCause;

use crate::kit::{Kit, TestHooks, asked, hook, plugin, reasons, settle, story, wait_until};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (271, "nothing_is_visible_before_the_setup_has_ended"),
    (272, "of_two_creations_of_one_id_one_wins"),
    (273, "the_signal_governs_the_creation_only"),
    (274, "a_closing_owner_ends_a_creation_and_the_id_is_free_again"),
    (275, "a_failed_setup_unwinds_and_may_be_tried_again"),
    (276, "a_duplicate_id_leaves_the_live_session_alone"),
    (277, "a_live_session_inside_its_turn_is_not_resumed"),
    (278, "a_resumed_session_keeps_its_lineage_and_goes_on_counting"),
    (279, "an_idle_inject_survives_a_restart_without_a_turn"),
    (280, "a_veto_rolls_back_with_paired_announcements"),
    (281, "every_disposer_awaits_the_same_quiescence"),
];

fn id(text: &str) -> SessionId {
    SessionId::new(text)
}

/// A setup that says it began, then waits for `go`.
fn held(began: &Latch<()>, go: &Latch<()>) -> Option<BeforePublish> {
    let (began, go) = (began.clone(), go.clone());
    Some(Box::new(move |_| {
        Box::pin(async move {
            began.set(());
            go.wait().await;
            Ok(())
        })
    }))
}

fn signal(kit: &Kit) -> CancelSignal {
    CancelSignal::new(Arc::clone(&kit.runtime), CancelScope::Call { call: "test".to_owned() })
}

fn resume(text: &str) -> ResumeAgent {
    ResumeAgent::new(id(text))
}

fn none_is_left(kit: &Kit) {
    assert!(kit.host.registry().lock().is_empty());
}

/// Writes down what it hears.
#[derive(Default)]
struct Diary {
    told: Mutex<Vec<String>>,
    vetoes: bool,
}

impl Diary {
    fn write(&self, line: String) {
        self.told.lock().expect("no panic inside").push(line);
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().expect("no panic inside").clone()
    }
}

impl HostListener for Diary {
    fn created(&self, agent: &Agent) -> Result<(), String> {
        assert!(agent.host().get(agent.id()).is_some(), "both are visible by now");
        self.write(format!("created {}", agent.id()));
        if self.vetoes { Err("not here".to_owned()) } else { Ok(()) }
    }

    fn disposed(&self, agent: &Agent) {
        self.write(format!("disposed {}", agent.id()));
    }
}

/// Scenario 271. Session and agent are one publication here (contract P1 f), so there is one
/// announcement for both.
#[tokio::test]
async fn nothing_is_visible_before_the_setup_has_ended() {
    let kit = Kit::new([]);
    let diary = Arc::new(Diary::default());
    let _listening = kit.host.listen(diary.clone());
    let (began, go) = (Latch::new(), Latch::new());
    let mut request = kit.request("s");
    request.setup.before_publish = held(&began, &go);
    let started = Arc::clone(&diary);
    request.setup.hooks.push(Arc::new(TestHooks::listening(move |_, event| {
        if let AgentEvent::SessionStart { resumed: false } = event {
            started.write("session start".to_owned());
        }
    })));
    let creation = kit.host.create(request);
    began.wait().await;
    diary.write("setup".to_owned());
    settle().await;
    assert!(kit.host.get(&id("s")).is_none());
    assert!(kit.host.list().is_empty());
    go.set(());
    let handle = creation.await.expect("nothing refuses it");
    assert!(kit.host.get(&id("s")).is_some_and(|agent| agent.same(handle.agent())));
    assert_eq!(diary.told(), ["setup", "created s", "session start"]);
}

/// Scenario 272.
#[tokio::test]
async fn of_two_creations_of_one_id_one_wins() {
    let kit = Kit::new([Step::say("1")]);
    let go = Latch::new();
    let began = [Latch::new(), Latch::new()];
    let creations = began.each_ref().map(|began| {
        let mut request = kit.request("s");
        request.setup.before_publish = held(began, &go);
        kit.host.create(request)
    });
    for began in &began {
        began.wait().await;
    }
    go.set(());
    let [first, second] = creations;
    let (first, second) = (first.await, second.await);
    assert!(first.is_ok() != second.is_ok(), "exactly one wins");
    let (winner, loser) = match (first, second) {
        (Ok(winner), Err(loser)) | (Err(loser), Ok(winner)) => (winner, loser),
        _ => panic!("exactly one wins"),
    };
    assert_eq!(loser.code(), ErrorCode::SessionAlreadyExists);
    assert_eq!(kit.host.registry().lock().len(), 1);
    winner.agent().followup(kit.user("a"));
    winner.agent().when_idle().await;
    winner.agent().flush().await.expect("its session is attached");
    winner.dispose().await;
    none_is_left(&kit);
    let collided = |fact: &Fact| matches!(fact, Fact::AgentCollided { .. });
    assert_eq!(kit.facts().into_iter().filter(collided).count(), 1);
}

/// Scenario 273.
#[tokio::test]
async fn the_signal_governs_the_creation_only() {
    let kit = Kit::new([Step::say("1")]);
    let (began, go) = (Latch::new(), Latch::new());
    let first = signal(&kit);
    let mut request = kit.request("s");
    request.signal = Some(first.clone());
    request.setup.before_publish = held(&began, &go);
    let creation = kit.host.create(request);
    began.wait().await;
    first.cancel(CancelCause::Parent);
    let error = creation.await.expect_err("cancelled");
    assert!(matches!(error, CreateError::Cancelled(CancelCause::Parent)), "{error}");
    none_is_left(&kit);

    let second = signal(&kit);
    let request = CreateAgent { signal: Some(second.clone()), ..kit.request("s") };
    let handle = kit.host.create(request).await.expect("nothing refuses it");
    second.cancel(CancelCause::Parent);
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    assert_eq!(reasons(handle.agent().session()), ["completed"]);

    let request = CreateAgent { signal: Some(second), ..kit.request("t") };
    let error = kit.host.create(request).await.expect_err("cancelled before it began");
    assert_eq!(error.code(), ErrorCode::Cancelled);
}

/// Scenario 274.
#[tokio::test]
async fn a_closing_owner_ends_a_creation_and_the_id_is_free_again() {
    let kit = Kit::new([]);
    let parent = kit.create("parent").await;
    let (began, go) = (Latch::new(), Latch::new());
    let child = |parent: Option<&Agent>| {
        let mut request = kit.request("child");
        request.parent = parent.cloned();
        request.setup.before_publish = held(&began, &go);
        kit.host.create(request)
    };
    let creation = child(Some(parent.agent()));
    began.wait().await;
    parent.dispose().await;
    assert!(matches!(creation.await, Err(CreateError::Disposed)));
    none_is_left(&kit);
    go.set(());
    let handle = child(None).await.expect("the id is free");
    handle.agent().inject(kit.user("so that there is something to load")).expect("idle");
    handle.dispose().await;

    let parent = kit.create("parent").await;
    let (reading, gate) = kit.shelf.disk.hold(DiskOperation::Read);
    let resumption = ResumeAgent { parent: Some(parent.agent().clone()), ..resume("child") };
    let creation = kit.host.resume(resumption);
    reading.wait().await;
    parent.dispose().await;
    let error = creation.await.expect_err("its parent is gone");
    assert!(matches!(error, CreateError::Refused(BeginRefusal::ParentUnavailable)), "{error}");
    none_is_left(&kit);
    gate.set(());
    wait_until("the late load gave its reservation back", || {
        kit.facts().iter().any(|fact| matches!(fact, Fact::SessionLoaded { .. }))
    })
    .await;
    let handle = kit.host.resume(resume("child")).await.expect("the id is free");
    handle.dispose().await;

    let (began, never) = (Latch::new(), Latch::new());
    let mut request = kit.request("late");
    request.setup.before_publish = held(&began, &never);
    let creation = kit.host.create(request);
    began.wait().await;
    kit.host.dispose().await;
    assert!(matches!(creation.await, Err(CreateError::Disposed)));
    let error = kit.host.create(kit.request("late")).await.expect_err("closed");
    assert_eq!(error.code(), ErrorCode::Closing);
    none_is_left(&kit);
}

/// Scenario 275.
#[tokio::test]
async fn a_failed_setup_unwinds_and_may_be_tried_again() {
    let kit = Kit::new([]);
    let undone = Arc::new(AtomicUsize::new(0));
    for panics in [false, true] {
        let mut request = kit.request("s");
        let undone = Arc::clone(&undone);
        request.setup.before_publish = Some(Box::new(move |agent| {
            Box::pin(async move {
                let effect = Box::new(move || {
                    undone.fetch_add(1, Ordering::Relaxed);
                    Box::pin(async {}) as continuable::runtime::BoxFuture<'static, ()>
                });
                agent.add_effect("undo", effect).expect("not closing");
                assert!(!panics, "the setup panics");
                let message = "no".to_owned();
                Err(SetupError { message, code: ErrorCode::InvalidInput })
            })
        }));
        let error = kit.host.create(request).await.expect_err("its setup fails");
        let expected = if panics { ErrorCode::Panicked } else { ErrorCode::InvalidInput };
        assert_eq!(error.code(), expected);
        none_is_left(&kit);
    }
    assert_eq!(undone.load(Ordering::Relaxed), 2, "what a setup did is undone");
    kit.create("s").await.dispose().await;
}

/// Scenario 276.
#[tokio::test]
async fn a_duplicate_id_leaves_the_live_session_alone() {
    let kit = Kit::new([Step::say("1")]);
    let handle = kit.create("s").await;
    let error = kit.host.create(kit.request("s")).await.expect_err("taken");
    assert!(matches!(error, CreateError::AlreadyRegistered { .. }), "{error}");
    handle.agent().followup(kit.user("a"));
    handle.agent().when_idle().await;
    let length = handle.agent().session().len();
    assert_eq!(handle.agent().flush().await.expect("still attached"), length);
}

/// Scenario 277.
#[tokio::test]
async fn a_live_session_inside_its_turn_is_not_resumed() {
    let kit = Kit::new([Step::gate("open"), Step::say("1")]);
    let handle = kit.create("s").await;
    let agent = handle.agent();
    agent.followup(kit.user("a"));
    wait_until("the request left", || kit.model.was_reached("open")).await;
    let error = kit.host.resume(resume("s")).await.expect_err("its turn is open");
    assert_eq!(error.code(), ErrorCode::OpenTurn);
    kit.model.release("open");
    agent.when_idle().await;
    assert_eq!(reasons(agent.session()), ["completed"]);
    let error = kit.host.resume(resume("s")).await.expect_err("it is live");
    assert!(matches!(error, CreateError::AlreadyRegistered { .. }), "{error}");
}

/// Scenario 278.
#[tokio::test]
async fn a_resumed_session_keeps_its_lineage_and_goes_on_counting() {
    let kit = Kit::new([Step::say("1"), Step::say("2"), Step::say("3")]);
    let parent = kit.create("parent").await;
    parent.agent().followup(kit.user("before the fork"));
    parent.agent().when_idle().await;
    let seed = continuable::session::fork_seed(&parent.agent().session().snapshot_from(0));
    let length = seed.len() as u64;
    let handle = kit
        .host
        .create(CreateAgent {
            parent_session: Some(id("parent")),
            seed: Some(seed),
            seed_length: Some(length),
            delegation_depth: 2,
            ..kit.request("child")
        })
        .await
        .expect("nothing refuses it");
    handle.agent().followup(kit.user("first"));
    handle.agent().when_idle().await;
    let header = Arc::clone(handle.agent().session().header());
    handle.dispose().await;

    let hooks = Arc::new(TestHooks::default());
    let mut resumption = resume("child");
    resumption.options.subagent_depth = Some(1);
    resumption.setup.hooks.push(hooks.clone());
    let handle = kit.host.resume(resumption).await.expect("it is stored");
    let agent = handle.agent();
    assert_eq!(agent.session().header(), &header);
    assert_eq!(agent.depth(), 2, "the header is the floor (invariant I16)");
    assert!(hooks.events().contains(&AgentEvent::SessionStart { resumed: true }));
    agent.followup(kit.user("second"));
    agent.when_idle().await;
    let turns = story(agent.session()).into_iter().filter(|line| line.starts_with("turn"));
    assert_eq!(turns.collect::<Vec<_>>(), ["turn 1", "turn 2", "turn 3"]);
    for (seq, event) in (0..).zip(agent.session().snapshot_from(0)) {
        assert_eq!(event.seq, seq);
    }
    let last = kit.model.requests().pop().expect("asked");
    assert_eq!(asked(&last), ["before the fork", "first", "second"]);
}

/// Scenario 279.
#[tokio::test]
async fn an_idle_inject_survives_a_restart_without_a_turn() {
    let kit = Kit::new([]);
    let handle = kit.create("s").await;
    handle.agent().inject(plugin(handle.agent(), "note")).expect("idle");
    handle.dispose().await;
    let handle = kit.host.resume(resume("s")).await.expect("it is stored");
    assert_eq!(story(handle.agent().session()), ["user note"]);
    assert_eq!(kit.model.request_count(), 0);
}

/// Scenario 280.
#[tokio::test]
async fn a_veto_rolls_back_with_paired_announcements() {
    let kit = Kit::new([]);
    let (calm, fussy) =
        (Arc::new(Diary::default()), Arc::new(Diary { vetoes: true, ..Diary::default() }));
    let unheard = Arc::new(Diary::default());
    let _calm = kit.host.listen(calm.clone());
    let listening = kit.host.listen(fussy.clone());
    let _unheard = kit.host.listen(unheard.clone());
    let error = kit.host.create(kit.request("s")).await.expect_err("vetoed");
    assert!(matches!(error, CreateError::Vetoed(_)), "{error}");
    for diary in [&calm, &fussy] {
        assert_eq!(diary.told(), ["created s", "disposed s"]);
    }
    assert!(unheard.told().is_empty());
    none_is_left(&kit);
    drop(listening);
    kit.create("s").await.dispose().await;
    assert_eq!(unheard.told(), ["created s", "disposed s"]);
}

/// Scenario 281.
#[tokio::test]
async fn every_disposer_awaits_the_same_quiescence() {
    let kit = Kit::new([Step::Hang]);
    let parent = kit.create("parent").await;
    let pre_step = hook(|context: continuable::agent::hooks::HookContext| async move {
        context.signal.cancelled().await;
        // Too late: the inbox is closed, so nothing re-enters.
        assert!(!context.agent.followup(plugin(&context.agent, "again")));
        Ok(())
    });
    let mut request = CreateAgent { parent: Some(parent.agent().clone()), ..kit.request("child") };
    request.setup.hooks.push(Arc::new(TestHooks { pre_step, ..TestHooks::default() }));
    let child = Arc::new(kit.host.create(request).await.expect("nothing refuses it"));
    let agent = child.agent().clone();
    let (began, go) = (Latch::new(), Latch::new());
    let (at, until) = (began.clone(), go.clone());
    let effect = Box::new(move || {
        Box::pin(async move {
            at.set(());
            until.wait().await;
        }) as continuable::runtime::BoxFuture<'static, ()>
    });
    agent.add_effect("held", effect).expect("not closing");
    agent.followup(kit.user("a"));
    wait_until("the turn is open", || !agent.session().is_empty()).await;

    let unloading = tokio::spawn(async move { parent.dispose().await });
    began.wait().await;
    assert_eq!(reasons(agent.session()), ["disposed"], "the loop is quiescent before effects run");
    let disposals: Vec<_> = (0..2)
        .map(|_| {
            let child = Arc::clone(&child);
            tokio::spawn(async move { child.dispose().await })
        })
        .collect();
    settle().await;
    assert!(!unloading.is_finished());
    assert!(!disposals.iter().any(tokio::task::JoinHandle::is_finished));
    go.set(());
    for disposal in disposals {
        disposal.await.expect("no panic");
    }
    assert!(kit.host.get(&id("child")).is_none());
    unloading.await.expect("no panic");
    none_is_left(&kit);
}

/// The contract's P16: an agent's effects, its Tasks' cleanup among them, run before its children
/// are disposed, and it stays registered until all of that is done.
#[tokio::test]
async fn effects_run_before_children_are_disposed_and_the_agent_leaves_last() {
    let kit = Kit::new([]);
    let parent = kit.create("parent").await;
    let request = CreateAgent { parent: Some(parent.agent().clone()), ..kit.request("child") };
    let child = kit.host.create(request).await.expect("nothing refuses it");
    let (host, live) = (Arc::clone(&kit.host), Latch::new());
    let seen = live.clone();
    let effect = Box::new(move || {
        seen.set((host.get(&id("parent")).is_some(), host.get(&id("child")).is_some()));
        Box::pin(async {}) as continuable::runtime::BoxFuture<'static, ()>
    });
    parent.agent().add_effect("look", effect).expect("not closing");
    kit.facts();
    parent.dispose().await;
    assert_eq!(live.get(), Some((true, true)));
    let removed: Vec<_> = kit
        .facts()
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::AgentRemoved { session, .. } => Some(session),
            _ => None,
        })
        .collect();
    assert_eq!(removed, [id("child"), id("parent")]);
    assert!(parent.agent().add_effect("late", Box::new(|| Box::pin(async {}))).is_err());
    drop(child);
}

/// The contract's P17: dropping the handle disposes, and nothing keeps a dead agent alive.
#[tokio::test]
async fn a_dropped_handle_disposes_and_no_cycle_keeps_the_agent() {
    let kit = Kit::new([Step::Hang]);
    let handle = kit.create("s").await;
    let agent = handle.agent().clone();
    agent.add_hooks(Arc::new(TestHooks::listening({
        let agent = agent.clone();
        move |_, _| assert_eq!(agent.id(), &id("s"))
    })));
    agent.followup(kit.user("a"));
    wait_until("the response began", || kit.model.active() > 0).await;
    drop(handle);
    agent.disposed().await;
    assert_eq!(reasons(agent.session()), ["disposed"]);
    let session = Arc::downgrade(agent.session());
    drop(agent);
    wait_until("the session is freed", || session.upgrade().is_none()).await;
}

/// The contract's P17: dropping a creation cancels it and rolls it back, detached.
#[tokio::test]
async fn a_dropped_creation_is_rolled_back() {
    let kit = Kit::new([]);
    let (began, never) = (Latch::new(), Latch::new());
    let mut request = kit.request("s");
    request.setup.before_publish = held(&began, &never);
    let creation = kit.host.create(request);
    began.wait().await;
    drop(creation);
    wait_until("it is rolled back", || kit.host.registry().lock().is_empty()).await;
    drop(kit.host.create(kit.request("s")));
    settle().await;
    none_is_left(&kit);
    kit.create("s").await.dispose().await;
}

/// A panic in a setup, an effect or a listener fails at most its own agent (invariant I29).
#[tokio::test]
async fn a_panicking_effect_does_not_stop_the_disposal() {
    let kit = Kit::new([]);
    let handle = kit.create("s").await;
    handle.agent().add_effect("broken", Box::new(|| panic!("broken"))).expect("not closing");
    handle.dispose().await;
    none_is_left(&kit);
    let host: &AgentHost = &kit.host;
    assert!(host.list().is_empty());
}
