//! The executor inside a host of the world engine: turmoil moves time and messages between hosts,
//! the choices order the tasks inside this one.
//!
//! turmoil polls the tasks of one host in the same order for every seed, so all tasks of a host are
//! this executor's, and the host itself has one task: this future.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::executor::{Executor, RunEnd};

/// Where a nested executor says that it cannot go on.
pub type Halt = Arc<Mutex<Option<RunEnd>>>;

/// Runs an executor's tasks for as long as it is polled; never ready. Dropping it drops the tasks
/// in their order.
pub struct Nested {
    executor: Executor,
    asleep: Option<Pin<Box<tokio::time::Sleep>>>,
    halt: Halt,
}

impl Nested {
    /// The tasks of `executor`. A livelock is told to `halt`; nothing is polled after it.
    pub fn new(executor: Executor, halt: Halt) -> Self {
        Self { executor, asleep: None, halt }
    }

    fn stopped(&self) -> bool {
        self.executor.runtime().crashed().is_some()
            || self.halt.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Steps until nothing is ready; false if it must not go on.
    fn steps(&mut self) -> bool {
        loop {
            if self.stopped() {
                return false;
            }
            if self.executor.is_spent() {
                let end = self.executor.livelock();
                *self.halt.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                return false;
            }
            if !self.executor.step() {
                return true;
            }
        }
    }
}

/// Microseconds since the simulation began, as the polling host sees them.
fn elapsed_us() -> u64 {
    let elapsed = turmoil::sim_elapsed().unwrap_or_default();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

impl Future for Nested {
    type Output = turmoil::Result;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let now = elapsed_us();
            let runtime = Arc::clone(this.executor.runtime());
            runtime.advance(now);
            if !this.steps() {
                return Poll::Pending;
            }
            runtime.set_host(cx.waker());
            let Some(due) = runtime.next_timer() else {
                this.asleep = None;
                return Poll::Pending;
            };
            // A timer fires in the tick in which it is due, never before.
            let mut asleep =
                Box::pin(tokio::time::sleep(Duration::from_micros(due.saturating_sub(now))));
            let waits = asleep.as_mut().poll(cx).is_pending();
            this.asleep = Some(asleep);
            if waits {
                return Poll::Pending;
            }
            if elapsed_us() < due {
                // The two clocks differ by less than a tick.
                runtime.advance(due);
            }
        }
    }
}
