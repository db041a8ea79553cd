//! A Task's life after its start: its producer's outcome, then the terminal order of contract P8.

use std::sync::{Arc, Weak};

use super::record::Settlement;
use super::{SettledHook, TaskOwner, TaskService, TaskSnapshot};
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::ids::TaskId;
use crate::points::Point;
use crate::runtime::{BoxFuture, Panicked, Runtime, contain, contain_call, spawn};
use crate::sections::settlement;
use crate::vocabulary::TaskOutcome;

impl TaskService {
    /// Drives a registered Task to its end in a task of its own: awaits `done`, settles, tells,
    /// runs `settled`, releases. The driver does not keep the service alive.
    pub fn drive(
        &self,
        id: &TaskId,
        done: BoxFuture<'static, TaskOutcome>,
        settled: Option<SettledHook>,
    ) {
        let driver = Driver {
            service: self.me.clone(),
            runtime: Arc::clone(&self.runtime),
            id: id.clone(),
            settled,
        };
        spawn(&self.runtime, format!("task {id}"), driver.run(done)).detach();
    }

    /// Records `outcome` and, if it is the first, tells listeners and the owner. The waiters are
    /// released by [`TaskService::release`].
    pub(super) async fn settle(&self, id: &TaskId, outcome: TaskOutcome) -> bool {
        let now = self.runtime.now();
        let settlement = settlement::settle(&self.table, id, outcome, now, &self.runtime);
        let Settlement::Recorded { snapshot, owner, cancel, gone } = settlement else {
            return false;
        };
        drop((cancel, gone));
        self.runtime.point(Point::TaskListeners).await;
        self.tell(&snapshot, owner.as_ref());
        drop(owner);
        self.deliver_notice(id).await;
        true
    }

    /// One call per listener, contained; futures they return run on their own.
    fn tell(&self, snapshot: &TaskSnapshot, owner: Option<&Arc<dyn TaskOwner>>) {
        let listeners: Vec<_> = self.watchers.lock().listeners.values().cloned().collect();
        for listener in listeners {
            let call = || listener(snapshot, owner);
            match contain_call(&self.runtime, "task listener", call) {
                Ok(None) => {}
                Ok(Some(work)) => {
                    let runtime = Arc::clone(&self.runtime);
                    spawn(&self.runtime, "task listener", async move {
                        if let Err(panicked) = contain(&runtime, "task listener", work).await {
                            warn_listener(&panicked);
                        }
                    })
                    .detach();
                }
                Err(panicked) => warn_listener(&panicked),
            }
        }
    }

    /// Claims the Task's one notice, if it is due, and injects it into the exact owner instance.
    pub(super) async fn deliver_notice(&self, id: &TaskId) {
        let writer = self.watchers.lock().writers.values().next().cloned();
        let Some(writer) = writer else { return };
        self.runtime.point(Point::NoticeClaim).await;
        let claimed = self.table.lock().claim_notice(id, &self.runtime);
        let Some(notice) = claimed else { return };
        self.runtime.point(Point::NoticeInject).await;
        let policy = self.config.wake;
        let injected = contain_call(&self.runtime, "task notice", || {
            let message = writer.notice(&notice.snapshot);
            let id = message.id.clone();
            notice.owner.notify(message, policy).then_some(id)
        });
        let (task, owner) = (id.clone(), notice.owner.instance());
        match injected {
            Ok(Some(message)) => {
                self.runtime.fact(Fact::NoticeInjected { task, owner, message });
            }
            Ok(None) => self.runtime.fact(Fact::NoticeDropped { task, owner }),
            Err(panicked) => {
                warn_listener(&panicked);
                self.runtime.fact(Fact::NoticeDropped { task, owner });
            }
        }
    }

    /// Releases the waiters.
    pub(super) async fn release(&self, id: &TaskId) {
        self.runtime.point(Point::TaskRelease).await;
        let released = self.table.lock().release(id, &self.runtime);
        if let Some((latch, snapshot)) = released {
            latch.set(snapshot);
        }
    }
}

fn warn_listener(panicked: &Panicked) {
    tracing::warn!(target: "continuable", %panicked, "a task listener failed");
}

/// Drives one Task. Its parts do not keep the service alive, so dropping the service is noticed.
struct Driver {
    service: Weak<TaskService>,
    runtime: Arc<dyn Runtime>,
    id: TaskId,
    settled: Option<SettledHook>,
}

impl Driver {
    async fn run(mut self, done: BoxFuture<'static, TaskOutcome>) {
        let outcome = contain(&self.runtime, "task producer", done).await;
        let outcome = self.checked(outcome);
        self.runtime.point(Point::TaskSettle).await;
        let Some(service) = self.service.upgrade() else {
            self.run_settled().await;
            return;
        };
        let first = service.settle(&self.id, outcome).await;
        self.run_settled().await;
        if first {
            service.release(&self.id).await;
        }
    }

    /// Drops the association. It runs also for a Task that was forced to fail: only now is its
    /// producer quiescent.
    async fn run_settled(&mut self) {
        let Some(settled) = self.settled.take() else { return };
        self.runtime.point(Point::AssociationDrop).await;
        if let Err(panicked) = contain_call(&self.runtime, "task settled hook", settled) {
            tracing::warn!(target: "continuable", %panicked, "a task's settled hook failed");
        }
    }

    /// A producer that panics or reports a live status broke its contract: its Task fails.
    fn checked(&self, outcome: Result<TaskOutcome, Panicked>) -> TaskOutcome {
        let detail = match outcome {
            Ok(outcome) if outcome.status.is_terminal() => return outcome,
            Ok(outcome) => format!("Error: the producer settled as {}", outcome.status),
            Err(panicked) => format!("Error: {panicked}"),
        };
        let task = &self.id;
        tracing::warn!(target: "continuable", %task, detail, "task producer contract violation");
        TaskOutcome::failed(Some(ErrorCode::Panicked), detail)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::super::{Live, TaskCancel, TaskHooks, TaskRecord, TaskServiceConfig, TaskStart};
    use super::*;
    use crate::ids::SessionId;
    use crate::runtime::TokioRuntime;
    use crate::vocabulary::TaskStatus;

    /// What a record costs beside its outcome's text: itself, its place in both maps, its strings.
    fn cost_in_bytes(label: usize) -> usize {
        // A tree's node holds up to 11 entries and is at least half full, hence the doubling.
        let record = 2 * (size_of::<u64>() + size_of::<TaskRecord<Live>>());
        let index = 2 * (size_of::<TaskId>() + size_of::<u64>());
        let texts = "subagent-1000000".len() + "subagent".len() + label + 4 * size_of::<usize>();
        record + index + texts
    }

    #[test]
    fn a_terminal_record_costs_at_most_a_kilobyte() {
        // The longest label is 80 UTF-16 units, at most 3 bytes each.
        assert!(cost_in_bytes(240) <= 1_024, "{} bytes", cost_in_bytes(240));
    }

    #[tokio::test]
    async fn a_terminal_record_keeps_nothing_of_its_producer_alive() {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        let tasks = TaskService::new(runtime, TaskServiceConfig::default());
        let _surface = tasks.attach_surface("test");
        let child = Arc::new(());
        let held: [Arc<()>; 3] = std::array::from_fn(|_| Arc::clone(&child));
        let [in_cancel, in_done, in_settled] = held;
        let cancel = TaskCancel::Hook(Arc::new(move |_| {
            let _held = &in_cancel;
            Ok(())
        }));
        let mut hooks = TaskHooks::new(cancel, async move {
            let _held = in_done;
            TaskOutcome::completed("x")
        });
        hooks.settled = Some(Box::new(move || drop(in_settled)));
        let child = Arc::downgrade(&{ child });
        let mut start = TaskStart::new("subagent", "x");
        start.child = Some(SessionId::new("child"));
        let id = tasks.start_prepared(start, hooks).expect("started");
        assert!(child.upgrade().is_some());
        let end = tasks.wait(&id, None, None, None).await.expect("settled");
        assert_eq!(end.status, TaskStatus::Completed);
        assert!(child.upgrade().is_none());
        assert_eq!(tasks.list(None).len(), 1, "the record is still there");
    }

    #[tokio::test]
    async fn dropping_the_service_cancels_its_live_tasks() {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        let tasks = TaskService::new(Arc::clone(&runtime), TaskServiceConfig::default());
        let surface = tasks.attach_surface("test");
        let scope = crate::facts::CancelScope::Call { call: "work".to_owned() };
        let signal = crate::cancel::CancelSignal::new(runtime, scope);
        let seen = signal.clone();
        let done = async move {
            signal.cancelled().await;
            TaskOutcome::killed()
        };
        let hooks = TaskHooks::new(TaskCancel::Signal(seen.clone()), done);
        tasks.start_prepared(TaskStart::new("subagent", "x"), hooks).expect("started");
        drop((surface, tasks));
        assert_eq!(seen.cause(), Some(crate::vocabulary::CancelCause::TasksDisposed));
    }
}
