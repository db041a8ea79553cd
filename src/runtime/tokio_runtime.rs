//! The production runtime: tokio's multi-thread scheduler, the wall clock, the system's randomness.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::stream::{FactStream, FactSubscription};
use super::{BoxFuture, PointFuture, Runtime};
use crate::facts::Fact;
use crate::points::Point;

/// Runs everything on a tokio runtime.
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    facts: FactStream,
}

impl TokioRuntime {
    /// The runtime of the calling tokio context.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn current() -> Self {
        Self::on(tokio::runtime::Handle::current())
    }

    /// The runtime behind `handle`.
    pub fn on(handle: tokio::runtime::Handle) -> Self {
        Self { handle, facts: FactStream::default() }
    }

    /// Subscribes to facts, with room for `capacity` not yet received. A full subscriber loses
    /// facts, counted in [`FactSubscription::lost`].
    pub fn subscribe(&self, capacity: usize) -> FactSubscription {
        self.facts.subscribe(capacity)
    }
}

impl fmt::Debug for TokioRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokioRuntime")
    }
}

impl Runtime for TokioRuntime {
    fn spawn(&self, _name: String, body: BoxFuture<'static, ()>) {
        drop(self.handle.spawn(body));
    }

    fn now(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the operating system has a random source");
        u64::from_le_bytes(bytes)
    }

    fn point(&self, _point: Point) -> PointFuture {
        PointFuture::ready()
    }

    fn fact(&self, fact: Fact) {
        if tracing::enabled!(target: "continuable", tracing::Level::DEBUG) {
            trace(&fact);
        }
        self.facts.publish(self.now(), fact);
    }
}

/// Mirrors a fact as a `tracing` event: its name and its fields as JSON.
fn trace(fact: &Fact) {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(fact) else { return };
    let name = fields.remove("fact").unwrap_or_default();
    let name = name.as_str().unwrap_or_default();
    let text = |key: &str| {
        let value = fields.get(key)?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    tracing::debug!(
        target: "continuable",
        fact = name,
        task = text("task"),
        child = text("child"),
        agent = text("agent"),
        session = text("session"),
        activation = text("activation"),
        message = text("message"),
        fields = %serde_json::Value::Object(fields.clone()),
    );
}
