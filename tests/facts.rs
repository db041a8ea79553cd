//! Facts as an embedder sees them: a bounded stream, and `tracing` events with structured fields.
//!
//! Goal: monitoring never delays the work and never lies about what it lost. Method: one activation
//! on a real directory, watched by a stream with room, a stream without, and a subscriber of ours.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::control::ContinuableStartSpec;
use continuable::facts::Fact;
use continuable::ids::SessionId;
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{FactSubscription, Runtime, TokioRuntime};
use continuable::store::StdDisk;
use continuable::vocabulary::TaskStatus;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Lives one child to its end; answers what the two streams saw.
async fn one_activation() -> (FactSubscription, FactSubscription) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokio = TokioRuntime::current();
    let (roomy, tight) = (tokio.subscribe(10_000), tokio.subscribe(3));
    let runtime: Arc<dyn Runtime> = Arc::new(tokio);
    let model = ScriptedModel::shared(Arc::clone(&runtime), [Step::say("done")]);
    let disk = Arc::new(StdDisk::new(directory.path()));
    let assembly = Assembly::new(AssemblyConfig::new(runtime, disk, Arc::new(model)));
    let assembly = assembly.expect("a sound configuration");
    let me = SessionId::new("parent");
    let parent = assembly.create_parent(me.clone()).await.expect("a fresh id");
    let spec = ContinuableStartSpec::text("spawn", "label", "work");
    let started = assembly.control.start_continuable(parent.agent(), spec).expect("it starts");
    let end = assembly.tasks.wait(&started.task, Some(&me), None, None).await;
    assert_eq!(end.expect("its own Task").status, TaskStatus::Completed);
    assembly.shutdown().await.expect("all is durable");
    (roomy, tight)
}

/// A full subscriber loses facts, counts them, and delays nothing.
fn the_streams_are_true(mut roomy: FactSubscription, mut tight: FactSubscription) {
    let seen: Vec<_> = std::iter::from_fn(|| roomy.try_recv()).collect();
    assert_eq!(roomy.lost(), 0);
    assert!(seen.iter().map(|fact| fact.ordinal).eq(0..seen.len() as u64), "in order, no gap");
    let kept = std::iter::from_fn(|| tight.try_recv()).count() as u64;
    assert_eq!(kept, 3);
    assert_eq!(tight.lost() + kept, seen.len() as u64);
    let at = |wanted: fn(&Fact) -> bool| seen.iter().position(|fact| wanted(&fact.fact));
    let disposed = at(|fact| matches!(fact, Fact::RunDisposed { .. })).expect("a disposal");
    let settled = at(|fact| matches!(fact, Fact::TaskSettled { .. })).expect("a settlement");
    assert!(disposed < settled, "the stream shows the order of the sections");
}

/// What `tracing` was told, field by field.
#[derive(Default)]
struct Told(Mutex<Vec<BTreeMap<String, String>>>);

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

struct Listener(Arc<Told>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "continuable"
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.0.lock().expect("not poisoned").push(fields.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// One test, since tracing's callsites remember whether anybody listened when they were first met,
/// in the whole process.
#[test]
fn facts_are_a_stream_that_counts_its_losses_and_tracing_events_with_structured_fields() {
    let told = Arc::new(Told::default());
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let tokio = tokio.expect("a runtime");
    let (roomy, tight) = tracing::subscriber::with_default(Listener(Arc::clone(&told)), || {
        tokio.block_on(one_activation())
    });
    the_streams_are_true(roomy, tight);
    let told = told.0.lock().expect("not poisoned");
    let facts: Vec<_> = told.iter().filter(|fields| fields.contains_key("fact")).collect();
    let settled = facts.iter().find(|fields| fields["fact"] == "task_settled");
    let settled = settled.expect("the settlement was told");
    assert_eq!(settled["task"], "subagent-1");
    let fields: serde_json::Value =
        serde_json::from_str(&settled["fields"]).expect("the fields are JSON");
    assert_eq!(fields["status"], "completed");
    assert_eq!(fields["output"], true);
}
