//! The seam between this crate and the world that runs it: spawn, sleep, now, random, point, fact.
//!
//! [`TokioRuntime`] is production; the simulator brings its own. Channels need no seam: tokio's run
//! on any executor.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::channel::{Receiver, oneshot};
use crate::facts::{Fact, FactSink, PanicKind};
use crate::ids::{MessageId, SessionId, uuid_text};
use crate::points::Point;

mod stream;
mod tokio_runtime;

pub use stream::{FactStream, FactSubscription, StampedFact};
pub use tokio_runtime::TokioRuntime;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the runtime library needs of its world.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Runs `body` to its end in the background. Panics inside `body` are already contained; use
    /// [`spawn`] rather than this.
    fn spawn(&self, name: String, body: BoxFuture<'static, ()>);

    /// Now, in milliseconds since the Unix epoch.
    fn now(&self) -> u64;

    /// Waits for `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// A random number.
    fn random(&self) -> u64;

    /// Marks a named interleaving point; await the result.
    fn point(&self, point: Point) -> PointFuture;

    /// Records a fact. Called inside critical sections; never waits.
    fn fact(&self, fact: Fact);
}

impl FactSink for Arc<dyn Runtime> {
    fn record(&self, fact: Fact) {
        self.fact(fact);
    }
}

/// A fresh random session id (contract P13).
pub fn fresh_session_id(runtime: &dyn Runtime) -> SessionId {
    SessionId::new(uuid_text([runtime.random(), runtime.random()]))
}

/// A fresh random message id.
pub fn fresh_message_id(runtime: &dyn Runtime) -> MessageId {
    MessageId::new(uuid_text([runtime.random(), runtime.random()]))
}

/// The future of a [`Point`]: ready at once in production; in the simulator it yields, or waits as
/// long as the plan says.
#[must_use = "a point does nothing unless awaited"]
pub struct PointFuture(PointState);

enum PointState {
    Ready,
    Yield,
    Hold(BoxFuture<'static, ()>),
}

impl PointFuture {
    /// Ready at once.
    pub const fn ready() -> Self {
        Self(PointState::Ready)
    }

    /// Lets every other ready task go first, if the scheduler wants it so.
    pub const fn yield_once() -> Self {
        Self(PointState::Yield)
    }

    /// Ready when `hold` is.
    pub fn hold(hold: BoxFuture<'static, ()>) -> Self {
        Self(PointState::Hold(hold))
    }
}

impl Future for PointFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            PointState::Ready => Poll::Ready(()),
            PointState::Yield => {
                self.0 = PointState::Ready;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            PointState::Hold(hold) => hold.as_mut().poll(cx),
        }
    }
}

/// A task of ours, or a piece of foreign code, panicked. The text is the panic's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{task} panicked: {text}")]
pub struct Panicked {
    /// Which piece of code.
    pub task: String,
    /// The panic's message.
    pub text: String,
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Spawns `future` as a runtime-owned task and returns a view of it: dropping the view stops
/// nothing (contract P17). A panic that reaches this far is a broken invariant of ours.
pub fn spawn<T: Send + 'static>(
    runtime: &Arc<dyn Runtime>,
    name: impl Into<String>,
    future: impl Future<Output = T> + Send + 'static,
) -> Spawned<T> {
    let name = name.into();
    let (sender, receiver) = oneshot();
    let contained = Contained {
        runtime: Arc::clone(runtime),
        kind: PanicKind::Ours,
        name: name.clone(),
        future: Box::pin(future),
    };
    let body = async move {
        let outcome = contained.await;
        // Nobody may be looking any more; the work is done all the same.
        drop(sender.send(outcome));
    };
    runtime.spawn(name.clone(), Box::pin(body));
    Spawned { name, receiver }
}

/// A view of a spawned task's result.
#[must_use = "dropping the view loses the result; say `detach` if that is meant"]
pub struct Spawned<T> {
    name: String,
    receiver: Receiver<Result<T, Panicked>>,
}

impl<T> Spawned<T> {
    /// Lets the task run on unseen.
    pub fn detach(self) {}
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.receiver).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(outcome)) => Poll::Ready(outcome),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Panicked {
                task: self.name.clone(),
                text: "the runtime dropped the task".to_owned(),
            })),
        }
    }
}

/// Awaits foreign code; its panic becomes a typed failure (contract P18).
pub async fn contain<T>(
    runtime: &Arc<dyn Runtime>,
    name: &str,
    future: impl Future<Output = T> + Send,
) -> Result<T, Panicked> {
    let kind = PanicKind::Foreign;
    Contained {
        runtime: Arc::clone(runtime),
        kind,
        name: name.to_owned(),
        future: Box::pin(future),
    }
    .await
}

/// Calls foreign code; its panic becomes a typed failure (contract P18).
pub fn contain_call<T>(
    runtime: &Arc<dyn Runtime>,
    name: &str,
    call: impl FnOnce() -> T,
) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|payload| caught(runtime, PanicKind::Foreign, name, &*payload))
}

fn caught(
    runtime: &Arc<dyn Runtime>,
    kind: PanicKind,
    name: &str,
    payload: &(dyn Any + Send),
) -> Panicked {
    let text = panic_text(payload);
    runtime.fact(Fact::PanicCaught { kind, task: name.to_owned(), text: text.clone() });
    Panicked { task: name.to_owned(), text }
}

struct Contained<'a, T> {
    runtime: Arc<dyn Runtime>,
    kind: PanicKind,
    name: String,
    future: BoxFuture<'a, T>,
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match catch_unwind(AssertUnwindSafe(|| this.future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(payload) => {
                Poll::Ready(Err(caught(&this.runtime, this.kind, &this.name, &*payload)))
            }
        }
    }
}
