//! Closing, of one owner instance or of the whole service, in the order of contract P16: refuse,
//! cancel, await, remove.

use std::sync::Arc;

use super::table::Open;
use super::{Live, TaskError, TaskService};
use crate::error::ErrorCode;
use crate::ids::{OwnerId, TaskId};
use crate::points::Point;
use crate::runtime::{BoxFuture, spawn};
use crate::sections::settlement::{self, Teardown};
use crate::vocabulary::{CancelCause, TaskOutcome};

impl TaskService {
    /// Closes `owner`: refuses its new Tasks and notices, cancels its live Tasks, waits for all of
    /// them, removes them. Other owners, a same-id replacement included, are untouched. Every
    /// caller waits for the same completion, and dropping the future stops nothing.
    pub fn close_owner(&self, owner: OwnerId) -> BoxFuture<'static, ()> {
        let mut watchers = self.watchers.lock();
        let running = watchers.closing.get(&owner).cloned();
        let done = running.clone().unwrap_or_default();
        watchers.closing.entry(owner).or_insert_with(|| done.clone());
        drop(watchers);
        if running.is_none()
            && let Some(service) = self.me.upgrade()
        {
            let done = done.clone();
            spawn(&self.runtime, format!("close tasks of {owner}"), async move {
                let open = service.table.lock().close_owner(owner, &service.runtime);
                service.wind_down(open, CancelCause::OwnerDisposed).await;
                let removed = service.table.lock().remove_owner(owner, &service.runtime);
                drop(removed);
                service.watchers.lock().closing.remove(&owner);
                done.set(());
            })
            .detach();
        }
        Box::pin(async move { done.wait().await })
    }

    /// Closes the service: refuses everything new, silences listeners and notices, cancels every
    /// Task, waits for all of them, removes them. Every caller waits for the same completion.
    pub fn dispose(&self) -> BoxFuture<'static, ()> {
        let mut watchers = self.watchers.lock();
        let running = watchers.disposed.clone();
        let done = running.clone().unwrap_or_default();
        watchers.disposed.get_or_insert_with(|| done.clone());
        drop(watchers);
        if running.is_none()
            && let Some(service) = self.me.upgrade()
        {
            let done = done.clone();
            spawn(&self.runtime, "close tasks", async move {
                let open = service.table.lock().close(&service.runtime);
                service.silence();
                service.wind_down(open, CancelCause::TasksDisposed).await;
                let removed = service.table.lock().clear();
                drop(removed);
                done.set(());
            })
            .detach();
        }
        Box::pin(async move { done.wait().await })
    }

    /// Drops listeners and notice writers, with no lock held.
    fn silence(&self) {
        let mut watchers = self.watchers.lock();
        let listeners = std::mem::take(&mut watchers.listeners);
        let writers = std::mem::take(&mut watchers.writers);
        drop(watchers);
        drop((listeners, writers));
    }

    /// Cancels every Task of `open`, then waits until each is settled and released.
    async fn wind_down(self: &Arc<Self>, open: Vec<Open<Live>>, cause: CancelCause) {
        for task in &open {
            self.runtime.point(Point::TaskCancel).await;
            match settlement::tear_down(&self.table, &task.id, cause, &self.runtime) {
                Teardown::Nothing => {}
                Teardown::Wake(cancel, decision) => cancel.wake(decision, cause),
                Teardown::Hook(hook) => {
                    self.runtime.point(Point::TaskCancelHook).await;
                    let called = self.call_hook(&task.id, &hook, cause.reason());
                    drop(hook);
                    self.runtime.point(Point::TaskStop).await;
                    match called {
                        Ok(()) => settlement::torn_down(&self.table, &task.id, &self.runtime),
                        Err(error) => self.force_fail(&task.id, &error).await,
                    }
                }
            }
        }
        for task in open {
            self.runtime.point(Point::TasksDrain).await;
            task.latch.wait().await;
        }
        self.runtime.point(Point::TasksRemove).await;
    }

    /// A producer whose cancel fails during teardown is not waited for; what it does later changes
    /// nothing (fact-sheet 4.6).
    async fn force_fail(&self, id: &TaskId, error: &TaskError) {
        let detail = format!("cancel threw during teardown; work may be orphaned: {error}");
        tracing::warn!(target: "continuable", task = %id, detail, "a task was forced to fail");
        let outcome = TaskOutcome::failed(Some(ErrorCode::ProducerFailed), detail);
        if self.settle(id, outcome).await {
            self.release(id).await;
        }
    }
}

impl Drop for TaskService {
    /// Dropping the service requests the disposal of its Tasks: every live producer is cancelled,
    /// nothing is waited for (contract P17).
    fn drop(&mut self) {
        let cause = CancelCause::TasksDisposed;
        if self.table.lock().is_closing() {
            return;
        }
        let open = self.table.lock().close(&self.runtime);
        for task in open {
            match settlement::tear_down(&self.table, &task.id, cause, &self.runtime) {
                Teardown::Nothing => {}
                Teardown::Wake(cancel, decision) => cancel.wake(decision, cause),
                Teardown::Hook(hook) => {
                    if let Err(error) = self.call_hook(&task.id, &hook, cause.reason()) {
                        tracing::warn!(target: "continuable", task = %task.id, %error, "orphaned");
                    }
                }
            }
        }
    }
}
