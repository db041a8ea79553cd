//! §10.9: the provider seam.

use std::sync::{Arc, Mutex};

use continuable::agent::AgentHost;
use continuable::channel::Latch;
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, RunId, SessionId};
use continuable::message::ContentBlock;
use continuable::provider::{
    Capabilities, ContinuableRequest, ResumeRequest, RunInfo, StartRequest, SubagentError,
    SubagentListener,
};
use continuable::session::SessionHeader;
use continuable::session::descriptor::{Descriptor, ToolFilter};
use continuable::store::Loaded;
use continuable::vocabulary::StopReason;
use serde_json::json;

use super::fake_child::FakeChild;
use super::fake_provider::{FakeProvider, Play};
use super::in_process::asks;
use super::kit::settle;
use super::world::World;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (115, "a_provider_is_there_from_registration_to_removal"),
    (116, "a_listener_that_breaks_on_a_provider_undoes_its_registration"),
    (117, "names_are_unique_and_known"),
    (118, "a_provider_without_continuation_starts_and_resumes_none"),
    (119, "a_missing_capability_is_refused_before_the_provider"),
    (120, "a_bad_cap_or_schema_is_refused_before_the_provider"),
    (121, "a_run_has_one_start_and_one_end_under_one_id"),
    (122, "two_runs_of_one_child_have_two_ids"),
    (123, "a_refused_start_has_no_events"),
    (124, "an_end_carries_the_output_or_its_absence"),
    (125, "a_listener_that_breaks_on_a_removal_is_contained"),
    (128, "every_end_has_its_start_and_every_run_its_own_id"),
];

/// What a [`Listener`] heard.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    Added(String),
    Removed(String),
    /// With whether the registry held the child at that moment, and its seed's length.
    Started(RunInfo, Option<(OwnerId, Option<u64>)>),
    Ended(RunInfo, StopReason, Option<String>),
}

/// Remembers everything, and breaks on what it is told to.
#[derive(Default)]
pub struct Listener {
    pub host: Option<Arc<AgentHost>>,
    pub breaks_on_added: bool,
    pub breaks_on_removed: bool,
    heard: Mutex<Vec<Heard>>,
}

impl Listener {
    /// A listener that looks children up in the world's registry.
    pub fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { host: Some(Arc::clone(&world.kit.host)), ..Self::default() })
    }

    pub fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.heard.lock().expect("no panic inside"))
    }

    fn hear(&self, heard: Heard) {
        self.heard.lock().expect("no panic inside").push(heard);
    }
}

impl SubagentListener for Listener {
    fn provider_added(&self, name: &str) {
        self.hear(Heard::Added(name.to_owned()));
        assert!(!self.breaks_on_added, "this listener breaks");
    }

    fn provider_removed(&self, name: &str) {
        self.hear(Heard::Removed(name.to_owned()));
        assert!(!self.breaks_on_removed, "this listener breaks");
    }

    fn run_started(&self, run: &RunInfo) {
        let child = self.host.as_ref().and_then(|host| host.get(&run.child));
        let child = child.map(|agent| (agent.instance(), agent.session().header().seed_length));
        self.hear(Heard::Started(run.clone(), child));
    }

    fn run_ended(&self, run: &RunInfo, stop: &StopReason, output: Option<&[ContentBlock]>) {
        let text =
            |blocks: &[ContentBlock]| blocks.iter().filter_map(ContentBlock::as_text).collect();
        self.hear(Heard::Ended(run.clone(), stop.clone(), output.map(text)));
    }
}

fn fake(play: Play) -> Arc<FakeProvider> {
    Arc::new(FakeProvider::new("fake", play))
}

/// Scenario 115.
#[tokio::test]
async fn a_provider_is_there_from_registration_to_removal() {
    let world = World::new([]);
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let registration = world.subagents.register(fake(Play::Stop(StopReason::Completed)));
    let registration = registration.expect("the name is free");
    assert_eq!(world.subagents.providers(), ["fake", "fork", "spawn"]);
    assert!(world.subagents.provider("fake").is_some());
    let parent = world.parent().await;
    let run = world.subagents.start("fake", asks(&parent, &world.signal(), "q")).await;
    assert_eq!(run.expect("started").result().await.expect("no fault").text(), "partial answer");
    drop(registration);
    assert_eq!(world.subagents.providers(), ["fork", "spawn"]);
    assert!(world.subagents.provider("fake").is_none());
    let heard = listener.heard();
    let named = |wanted: &Heard| heard.iter().filter(|heard| *heard == wanted).count();
    assert_eq!(named(&Heard::Added("fake".to_owned())), 1);
    assert_eq!(named(&Heard::Removed("fake".to_owned())), 1);
}

/// Scenario 116.
#[tokio::test]
async fn a_listener_that_breaks_on_a_provider_undoes_its_registration() {
    let world = World::new([]);
    let breaks = Arc::new(Listener { breaks_on_added: true, ..Listener::default() });
    let listening = world.subagents.listen(breaks);
    let refused = world.subagents.register(fake(Play::Hang)).err().expect("undone");
    assert_eq!(refused.code(), ErrorCode::Panicked);
    assert!(world.subagents.provider("fake").is_none());
    drop(listening);
    let _again = world.subagents.register(fake(Play::Hang)).expect("the name is free again");
}

/// Scenario 117.
#[tokio::test]
async fn names_are_unique_and_known() {
    let world = World::new([]);
    let first = world.subagents.register(fake(Play::Hang)).expect("the name is free");
    let second = world.subagents.register(fake(Play::Hang)).err().expect("taken");
    assert_eq!(second.code(), ErrorCode::DuplicateProvider);
    assert!(world.subagents.provider("fake").is_some(), "the loser takes nothing along");
    drop(first);
    let parent = world.parent().await;
    let refused = world.subagents.start("fake", asks(&parent, &world.signal(), "q")).await;
    assert_eq!(refused.expect_err("unknown").code(), ErrorCode::NoProvider);
}

/// Scenario 118.
#[tokio::test]
async fn a_provider_without_continuation_starts_and_resumes_none() {
    let world = World::new([]);
    let provider = fake(Play::Hang);
    let _registered = world.subagents.register(provider.clone()).expect("the name is free");
    let parent = world.parent().await;
    let signal = world.signal();
    let child = SessionId::new("child");
    let descriptor = Descriptor::new("fake");
    let message = world.kit.user("q");
    let start = ContinuableRequest {
        request: asks(&parent, &signal, "q"),
        message: message.clone(),
        child: child.clone(),
        descriptor: descriptor.clone(),
    };
    let started = world.subagents.start_continuable("fake", start).await;
    let loaded = Loaded {
        header: SessionHeader::new(child.clone(), 0),
        events: Vec::new(),
        tail_cut: None,
        closers: 0,
        reservation: None,
    };
    let parent = parent.agent().clone();
    let resume = ResumeRequest { child, message, parent, signal, descriptor, loaded };
    let resumed = world.subagents.resume("fake", resume).await;
    for refused in [started, resumed] {
        let refused = refused.expect_err("no continuation");
        assert_eq!(refused.code(), ErrorCode::UnsupportedCapability);
    }
    assert_eq!(provider.starts(), 0);
}

/// Scenario 119.
#[tokio::test]
async fn a_missing_capability_is_refused_before_the_provider() {
    let world = World::new([]);
    let provider = Arc::new(FakeProvider::incapable("fake", Play::Hang));
    assert_eq!(provider.capabilities, Capabilities::default());
    let _registered = world.subagents.register(provider.clone()).expect("the name is free");
    let parent = world.parent().await;
    let plain = || asks(&parent, &world.signal(), "q");
    let filter = ToolFilter { allow: Some(Vec::new()), deny: None };
    let schema = json!({"type": "object"});
    let everything = StartRequest {
        output_schema: Some(schema.clone()),
        max_depth: Some(1),
        tool_filter: Some(filter.clone()),
        persona: Some("p".to_owned()),
        ..plain()
    };
    let wishes = [
        ("outputSchema", everything),
        ("outputSchema", StartRequest { output_schema: Some(schema), ..plain() }),
        ("maxDepth", StartRequest { max_depth: Some(1), ..plain() }),
        ("toolFilter", StartRequest { tool_filter: Some(filter), ..plain() }),
        ("persona", StartRequest { persona: Some("p".to_owned()), ..plain() }),
    ];
    for (capability, request) in wishes {
        let refused = world.subagents.start("fake", request).await.expect_err("unsupported");
        assert_eq!(refused.code(), ErrorCode::UnsupportedCapability);
        assert!(refused.to_string().contains(capability), "{refused}");
    }
    assert_eq!(provider.starts(), 0);
}

/// Scenario 120.
#[tokio::test]
async fn a_bad_cap_or_schema_is_refused_before_the_provider() {
    let world = World::new([]);
    let provider = fake(Play::Stop(StopReason::Completed));
    let _registered = world.subagents.register(provider.clone()).expect("the name is free");
    let parent = world.parent().await;
    let plain = || asks(&parent, &world.signal(), "q");
    let bad = [
        StartRequest { max_depth: Some(1 << 53), ..plain() },
        StartRequest { output_schema: Some(json!({"type": "string"})), ..plain() },
        StartRequest { output_schema: Some(json!(7)), ..plain() },
    ];
    for request in bad {
        let refused = world.subagents.start("fake", request).await.expect_err("invalid");
        assert_eq!(refused.code(), ErrorCode::InvalidInput);
    }
    assert_eq!(provider.starts(), 0);
    world.subagents.start("fake", plain()).await.expect("no cap is fine");
    assert_eq!(provider.starts(), 1);
}

/// Scenario 121.
#[tokio::test]
async fn a_run_has_one_start_and_one_end_under_one_id() {
    let world = World::new([]);
    let gate = Latch::new();
    let provider = Arc::new(FakeChild { gate: Some(gate.clone()), ..FakeChild::default() });
    let _registered = world.subagents.register(provider.clone()).expect("the name is free");
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let parent = world.parent().await;
    let starting = world.subagents.start("remote", asks(&parent, &world.signal(), "q"));
    let (run, ()) = tokio::join!(starting, async {
        provider.busy().await;
        settle().await;
        assert_eq!(listener.heard(), [], "nothing is published yet");
        gate.set(());
    });
    let run = run.expect("started");
    let info = run.info().clone();
    assert_eq!(info.parent, parent.agent().instance());
    assert!(!info.local);
    assert_eq!(listener.heard(), [Heard::Started(info.clone(), None)]);
    settle().await;
    assert_eq!(listener.heard(), [], "it goes on");
    provider.finish.set(());
    run.result().await.expect("no fault");
    let ended = Heard::Ended(info, StopReason::Completed, Some("remote answer".to_owned()));
    assert_eq!(listener.heard(), [ended]);
}

/// Scenario 122.
#[tokio::test]
async fn two_runs_of_one_child_have_two_ids() {
    let world = World::new([]);
    let provider = Arc::new(FakeChild::default());
    let _registered = world.subagents.register(provider).expect("the name is free");
    let parent = world.parent().await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let run = world.subagents.start("remote", asks(&parent, &world.signal(), "q")).await;
        runs.push(run.expect("started"));
    }
    assert_eq!(runs[0].child(), runs[1].child());
    assert_ne!(runs[0].id(), runs[1].id());
}

/// Scenario 123.
#[tokio::test]
async fn a_refused_start_has_no_events() {
    let world = World::new([]);
    let _registered = world.subagents.register(fake(Play::Fail("setup failed")));
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let parent = world.parent().await;
    let refused = world.subagents.start("fake", asks(&parent, &world.signal(), "q")).await;
    assert_eq!(refused.expect_err("failed").to_string(), "setup failed");
    settle().await;
    assert_eq!(listener.heard(), []);
}

/// Scenario 124.
#[tokio::test]
async fn an_end_carries_the_output_or_its_absence() {
    let world = World::new([]);
    let provider = fake(Play::Stop(StopReason::MaxTokens));
    let _registered = world.subagents.register(provider.clone()).expect("the name is free");
    let listener = Listener::of(&world);
    let _listening = world.subagents.listen(listener.clone());
    let parent = world.parent().await;
    let asks = || asks(&parent, &world.signal(), "q");
    let run = world.subagents.start("fake", asks()).await.expect("started");
    run.result().await.expect("no fault");
    let ended = |run: &continuable::provider::Run, stop, output: Option<&str>| {
        Heard::Ended(run.info().clone(), stop, output.map(ToOwned::to_owned))
    };
    let expected = ended(&run, StopReason::MaxTokens, Some("partial answer"));
    assert_eq!(listener.heard().pop(), Some(expected));
    provider.set(Play::Lose("transport gone"));
    let run = world.subagents.start("fake", asks()).await.expect("started");
    let lost = run.result().await.expect_err("lost");
    assert!(matches!(&lost, SubagentError::Infrastructure(words) if words == "transport gone"));
    assert_eq!(listener.heard().pop(), Some(ended(&run, StopReason::Error, None)));
}

/// Scenario 125. A listener fails here by panicking only, whatever it panics with.
#[tokio::test]
async fn a_listener_that_breaks_on_a_removal_is_contained() {
    let world = World::new([]);
    let registered = world.subagents.register(fake(Play::Hang)).expect("the name is free");
    let breaks = Arc::new(Listener { breaks_on_removed: true, ..Listener::default() });
    let _breaking = world.subagents.listen(breaks.clone());
    let hears = Listener::of(&world);
    let _listening = world.subagents.listen(hears.clone());
    world.kit.facts();
    drop(registered);
    let removed = [Heard::Removed("fake".to_owned())];
    assert_eq!(breaks.heard(), removed);
    assert_eq!(hears.heard(), removed, "the other one hears all the same");
    let caught = |fact: &Fact| matches!(fact, Fact::PanicCaught { .. });
    assert_eq!(world.kit.facts().iter().filter(|fact| caught(fact)).count(), 1);
    assert!(world.subagents.provider("fake").is_none());
}

/// Scenario 128. Removing what is not there cannot be said here: a registration is its own proof.
#[tokio::test]
async fn every_end_has_its_start_and_every_run_its_own_id() {
    let world = World::new([]);
    let unnamed = world.subagents.register(Arc::new(FakeProvider::new("", Play::Hang)));
    assert_eq!(unnamed.err().expect("unnamed").code(), ErrorCode::InvalidInput);
    let _registered = world.subagents.register(fake(Play::Stop(StopReason::Completed)));
    let parent = world.parent().await;
    for _ in 0..3 {
        let run = world.subagents.start("fake", asks(&parent, &world.signal(), "q")).await;
        let run = run.expect("started");
        assert!(!run.child().as_str().is_empty());
        run.result().await.expect("no fault");
    }
    let runs: Vec<_> = world
        .kit
        .facts()
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::RunStarted { run, provider, child, .. } => Some((run, "start", provider, child)),
            Fact::RunEnded { run, provider, child, .. } => Some((run, "end", provider, child)),
            _ => None,
        })
        .collect();
    let pairs: Vec<_> = runs.chunks(2).collect();
    assert_eq!(pairs.len(), 3);
    for (n, pair) in (1..).zip(pairs) {
        let [start, end] = pair else { panic!("{pair:?}") };
        assert_eq!((start.0, start.1, end.0, end.1), (RunId(n), "start", RunId(n), "end"));
        assert_eq!((&start.2, &start.3), (&end.2, &end.3), "the same identity");
    }
}
