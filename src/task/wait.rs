//! Waiting for a Task. A wait is the one operation whose future is not a mere view: dropping it
//! uncounts the waiter at once (contract P17), and may give a promised notice back (P7).

use std::sync::Arc;
use std::time::Duration;

use super::record::{Left, TaskSnapshot, WaitStep, WaitWake};
use super::{Live, TaskError, TaskService, WaitSignal};
use crate::cancel::CancelSignal;
use crate::channel::Latch;
use crate::ids::{SessionId, TaskId};
use crate::points::Point;
use crate::runtime::{BoxFuture, spawn};

/// A wait's timeout from a caller's number of milliseconds, which must be finite and above zero.
pub fn wait_timeout(milliseconds: f64) -> Result<Duration, TaskError> {
    if !milliseconds.is_finite() || milliseconds <= 0.0 {
        return Err(TaskError::InvalidTimeout);
    }
    Duration::try_from_secs_f64(milliseconds / 1_000.0).map_err(|_| TaskError::InvalidTimeout)
}

impl TaskService {
    /// Waits until the Task is settled and its waiters are released, without counting as one: it
    /// tells nobody. Ready at once for a Task that is over or unknown.
    pub async fn released(&self, id: &TaskId) {
        let latch = self.table.lock().record(id).and_then(|record| record.latch().cloned());
        if let Some(latch) = latch {
            latch.wait().await;
        }
    }

    /// Waits until the Task is terminal and everything that follows its end is done (contract P8),
    /// or until `timeout`, which returns the live snapshot, or until `signal` fires, which fails
    /// with [`TaskError::WaitAborted`]. It never cancels the Task. A returned terminal snapshot
    /// counts as told.
    pub fn wait(
        self: &Arc<Self>,
        id: &TaskId,
        caller: Option<&SessionId>,
        timeout: Option<Duration>,
        signal: Option<CancelSignal>,
    ) -> impl Future<Output = Result<TaskSnapshot, TaskError>> + Send + 'static {
        let (service, id, caller) = (Arc::clone(self), id.clone(), caller.cloned());
        async move {
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Err(TaskError::InvalidTimeout);
            }
            let (mut joined, step) =
                Joined::join(service, id, caller.as_ref(), WaitSignal(signal.clone()))?;
            match joined.ended(step) {
                Some(end) => end,
                None => joined.until_end(timeout, signal).await,
            }
        }
    }
}

/// One counted waiter.
struct Joined {
    service: Arc<TaskService>,
    id: TaskId,
    key: u64,
    latch: Option<Latch<TaskSnapshot>>,
    counted: bool,
}

impl Joined {
    fn join(
        service: Arc<TaskService>,
        id: TaskId,
        caller: Option<&SessionId>,
        signal: WaitSignal,
    ) -> Result<(Self, WaitStep), TaskError> {
        let mut table = service.table.lock();
        let (key, step, latch, left) = table.join(&id, caller, signal, &service.runtime)?;
        drop(table);
        drop_left(left);
        Ok((Self { service, id, key, latch, counted: true }, step))
    }

    /// The wait's result, if `step` ends it; the waiter has left then.
    fn ended(&mut self, step: WaitStep) -> Option<Result<TaskSnapshot, TaskError>> {
        let end = match step {
            WaitStep::KeepWaiting => return None,
            WaitStep::Terminal(snapshot) | WaitStep::TimedOut(snapshot) => Ok(snapshot),
            WaitStep::Aborted => Err(TaskError::WaitAborted),
        };
        self.counted = false;
        Some(end)
    }

    async fn until_end(
        mut self,
        timeout: Option<Duration>,
        signal: Option<CancelSignal>,
    ) -> Result<TaskSnapshot, TaskError> {
        let latch = self.latch.take().unwrap_or_default();
        let mut asleep = timeout.map(|timeout| self.service.runtime.sleep(timeout));
        let mut signal = signal;
        loop {
            self.service.runtime.point(Point::TaskWait).await;
            let wake = tokio::select! {
                biased;
                _ = latch.wait() => WaitWake::Released,
                () = fired(signal.as_ref()) => WaitWake::Aborted,
                () = slept(asleep.as_mut()) => WaitWake::TimedOut,
            };
            let mut table = self.service.table.lock();
            let resumed = table.resume(&self.id, self.key, wake, &self.service.runtime);
            drop(table);
            let step = match resumed {
                Some((step, left)) => {
                    drop_left(left);
                    step
                }
                // The owner closed and its record is gone; the latch has the end.
                None => latch.get().map_or(WaitStep::Aborted, WaitStep::Terminal),
            };
            if let Some(end) = self.ended(step) {
                return end;
            }
            // Recorded, not yet released: only the release counts from here on.
            (signal, asleep) = (None, None);
        }
    }
}

/// What a waiter leaves behind is dropped with no lock held.
fn drop_left(left: Left<Live>) {
    drop(left);
}

async fn fired(signal: Option<&CancelSignal>) {
    match signal {
        Some(signal) => drop(signal.cancelled().await),
        None => std::future::pending().await,
    }
}

async fn slept(asleep: Option<&mut BoxFuture<'static, ()>>) {
    match asleep {
        Some(asleep) => asleep.await,
        None => std::future::pending().await,
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let mut table = self.service.table.lock();
        let (due, waiter) = table.leave(&self.id, self.key, &self.service.runtime);
        drop(table);
        drop(waiter);
        if due {
            let (service, id) = (Arc::clone(&self.service), self.id.clone());
            let name = format!("notice {id}");
            spawn(&self.service.runtime, name, async move { service.deliver_notice(&id).await })
                .detach();
        }
    }
}
