//! [`TaskService`]: starting, looking, reading and killing. Waiting is in `wait.rs`, a Task's life
//! after its start in `drive.rs`, closing in `close.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::record::{TaskLinks, TaskSnapshot, TaskSpec};
use super::table::{OwnerGone, TaskRefusal, TaskTable};
use super::{
    BoxedEffect, Live, NoticeWriter, TaskCancel, TaskError, TaskHooks, TaskListener, TaskOwner,
    TaskStart, WakePolicy,
};
use crate::channel::Latch;
use crate::facts::Fact;
use crate::ids::{ActivationId, OwnerId, SessionId, TaskId};
use crate::points::Point;
use crate::runtime::{BoxFuture, Runtime, contain_call, spawn};
use crate::sections::settlement::{self, Kill};
use crate::sync::{LockClass, Mutex};
use crate::vocabulary::{CancelCause, KillAnswer};

/// Configuration of a [`TaskService`].
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskServiceConfig {
    /// Whether notices may wake an idle owner.
    pub wake: WakePolicy,
}

/// What a read returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRead {
    /// The next delta of a stream kind; else the whole output, empty while live.
    pub text: String,
    /// Taken after the read.
    pub snapshot: TaskSnapshot,
}

/// Who is told when a Task settles, and who waits for closings.
#[derive(Default)]
pub(super) struct Watchers {
    next: u64,
    pub(super) listeners: BTreeMap<u64, TaskListener>,
    pub(super) writers: BTreeMap<u64, Arc<dyn NoticeWriter>>,
    /// Owners that are closing, with the latch that their closing sets.
    pub(super) closing: BTreeMap<OwnerId, Latch<()>>,
    /// The service's own closing.
    pub(super) disposed: Option<Latch<()>>,
}

/// All Tasks of one process-wide scope.
pub struct TaskService {
    pub(super) me: Weak<Self>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) config: TaskServiceConfig,
    pub(super) table: Mutex<TaskTable<Live>>,
    pub(super) watchers: Mutex<Watchers>,
    activations: AtomicU64,
}

impl fmt::Debug for TaskService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskService").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Undoes an attachment when dropped: a control surface, a listener, a notice writer.
#[must_use = "dropping it detaches"]
pub struct Attachment {
    service: Weak<TaskService>,
    what: Attached,
}

enum Attached {
    Surface,
    Watcher(u64),
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let Some(service) = self.service.upgrade() else { return };
        match self.what {
            Attached::Surface => service.table.lock().detach_surface(&service.runtime),
            Attached::Watcher(key) => {
                let mut watchers = service.watchers.lock();
                let dropped = (watchers.listeners.remove(&key), watchers.writers.remove(&key));
                if dropped.1.is_some() {
                    let count = watchers.writers.len() as u64;
                    service.runtime.fact(Fact::NoticesDetached { count });
                }
                drop(watchers);
                drop(dropped);
            }
        }
    }
}

impl TaskService {
    /// An empty service without a control surface.
    pub fn new(runtime: Arc<dyn Runtime>, config: TaskServiceConfig) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            runtime,
            config,
            table: Mutex::new(LockClass::Task, TaskTable::default()),
            watchers: Mutex::new(LockClass::Leaf, Watchers::default()),
            activations: AtomicU64::new(0),
        })
    }

    /// The table, for the section that registers a Task together with its association (contract
    /// P1 (a)): [`TaskTable::preflight`], the owner's check and cleanup, [`TaskTable::register`]
    /// with [`TaskService::links`]; then, after unlock, [`TaskService::drive`].
    pub fn table(&self) -> &Mutex<TaskTable<Live>> {
        &self.table
    }

    /// The number of a new activation. It is counted here, since one control service may replace
    /// another over the same Tasks, and no number is ever reused in a process (contract P13).
    pub fn next_activation(&self) -> ActivationId {
        ActivationId(self.activations.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Attaches a control surface: something through which Tasks can be read and stopped. Counted,
    /// so equal labels are independent (fact-sheet scenario 187).
    pub fn attach_surface(&self, label: &str) -> Attachment {
        tracing::debug!(target: "continuable", label, "task control surface attached");
        self.table.lock().attach_surface(&self.runtime);
        Attachment { service: self.me.clone(), what: Attached::Surface }
    }

    /// Attaches a listener; it hears of each Task once.
    pub fn on_done(&self, listener: TaskListener) -> Attachment {
        self.watch(|key, watchers| drop(watchers.listeners.insert(key, listener)))
    }

    /// Attaches the writer of notices. With several, the first attached writes; without one there
    /// are no notices. However many there are, a Task has at most one notice.
    pub fn attach_notices(&self, writer: Arc<dyn NoticeWriter>) -> Attachment {
        self.watch(|key, watchers| {
            watchers.writers.insert(key, writer);
            self.runtime.fact(Fact::NoticesAttached { count: watchers.writers.len() as u64 });
        })
    }

    fn watch(&self, insert: impl FnOnce(u64, &mut Watchers)) -> Attachment {
        let mut watchers = self.watchers.lock();
        let key = watchers.next;
        watchers.next += 1;
        insert(key, &mut watchers);
        Attachment { service: self.me.clone(), what: Attached::Watcher(key) }
    }

    /// Raises the counter of `kind` so that its next Task is numbered above `highest` (contract
    /// P13).
    pub fn raise_counter(&self, kind: &str, highest: u64) {
        self.table.lock().raise_counter(kind, highest);
    }

    /// Raises several counters in one section: the highest number seen of each kind.
    pub fn raise_counters(&self, highest: &BTreeMap<String, u64>) {
        let mut table = self.table.lock();
        for (kind, highest) in highest {
            table.raise_counter(kind, *highest);
        }
    }

    /// The links of a Task that is cancelled by `cancel` and owned by `owner`.
    pub fn links(cancel: TaskCancel, owner: Option<Arc<dyn TaskOwner>>) -> TaskLinks<Live> {
        TaskLinks { cancel, reader: None, owner, latch: Latch::new() }
    }

    /// The effect to attach to an owner instance before its first Task is registered: closes the
    /// owner here, and is done when its Tasks are settled and removed (contract P16).
    pub fn owner_cleanup(&self, owner: OwnerId) -> BoxedEffect {
        let service = self.me.clone();
        Box::new(move || {
            Box::pin(async move {
                if let Some(service) = service.upgrade() {
                    service.close_owner(owner).await;
                }
            })
        })
    }

    /// Starts a Task whose producer is built only once the preflight has passed (fact-sheet 4.1).
    /// `run` is called exactly once then, with no lock held; if it panics nothing is registered.
    /// The registration checks everything again.
    pub fn start(
        &self,
        start: TaskStart,
        run: impl FnOnce() -> TaskHooks,
    ) -> Result<TaskId, TaskError> {
        let spec = start.spec();
        self.admit(&mut self.table.lock(), &spec, start.owner.as_ref())?;
        let hooks = contain_call(&self.runtime, "task producer", run)?;
        self.start_prepared(start, hooks)
    }

    /// Starts a Task in one section, from hooks that were built without side effects.
    pub fn start_prepared(&self, start: TaskStart, hooks: TaskHooks) -> Result<TaskId, TaskError> {
        let TaskHooks { cancel, done, read_output, settled } = hooks;
        let spec = start.spec();
        let mut links = Self::links(cancel, start.owner.clone());
        links.reader = read_output;
        let now = self.runtime.now();
        let mut table = self.table.lock();
        let id = match self.admit(&mut table, &spec, start.owner.as_ref()) {
            Ok(()) => table.register(spec, links, now, &self.runtime),
            Err(refusal) => {
                // The links hold foreign values: they are dropped after the lock.
                drop(table);
                drop(links);
                return Err(refusal.into());
            }
        };
        drop(table);
        self.drive(&id, done, settled);
        Ok(id)
    }

    /// Preflight, the owner's own check, and its cleanup if it has none yet: one section.
    fn admit(
        &self,
        table: &mut TaskTable<Live>,
        spec: &TaskSpec,
        owner: Option<&Arc<dyn TaskOwner>>,
    ) -> Result<(), TaskRefusal> {
        let preflight = table.preflight(spec, &self.runtime)?;
        let Some(owner) = owner else { return Ok(()) };
        let instance = owner.instance();
        let cleanup = preflight.needs_cleanup.then(|| self.owner_cleanup(instance));
        owner.admit(cleanup).map_err(|why: OwnerGone| {
            let refusal = TaskRefusal::OwnerUnavailable { session: owner.session(), why };
            table.refused(spec, &refusal, &self.runtime);
            refusal
        })?;
        if preflight.needs_cleanup {
            table.cleanup_attached(instance);
        }
        Ok(())
    }

    /// A fresh snapshot; tells nobody and consumes nothing.
    pub fn get(&self, id: &TaskId, caller: Option<&SessionId>) -> Result<TaskSnapshot, TaskError> {
        Ok(self.table.lock().get(id, caller)?)
    }

    /// The caller's own Tasks and the unowned ones, in registration order; without a caller only
    /// the unowned ones.
    pub fn list(&self, caller: Option<&SessionId>) -> Vec<TaskSnapshot> {
        self.table.lock().list(caller)
    }

    /// How many wait for the Task now; for tests and diagnostics.
    pub fn waiting(&self, id: &TaskId) -> usize {
        self.table.lock().record(id).map_or(0, super::TaskRecord::waiting)
    }

    /// Reads a Task: the next delta of a stream kind, consumed; else the outcome's output, empty
    /// while live. A read of a terminal Task tells: no notice follows.
    pub async fn read(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<TaskRead, TaskError> {
        let mut text = String::new();
        loop {
            let (reader, terminal) = match self.read_final(id, caller)? {
                Ok(read) => return Ok(read),
                Err(found) => found,
            };
            self.runtime.point(Point::TaskRead).await;
            let delta = contain_call(&self.runtime, "task reader", || reader())?;
            text += &delta.map_err(|text| TaskError::Producer { task: id.clone(), text })?;
            if let Some(snapshot) = self.told(id, caller, terminal)? {
                return Ok(TaskRead { text, snapshot });
            }
            // It settled while its delta was read: what came after the delta belongs to this read.
        }
    }

    /// A final-output kind's read, in one section; or the reader of a stream kind and whether the
    /// Task is terminal.
    #[allow(clippy::type_complexity, reason = "read once, just above")]
    fn read_final(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<Result<TaskRead, (super::ReadOutput, bool)>, TaskError> {
        let mut table = self.table.lock();
        let record = table.reachable(id, caller)?;
        if let Some(reader) = record.reader() {
            return Ok(Err((Arc::clone(reader), record.is_terminal())));
        }
        let (text, owner) = record.read_final(&self.runtime);
        let snapshot = record.snapshot();
        drop(table);
        drop(owner);
        Ok(Ok(TaskRead { text, snapshot }))
    }

    /// The snapshot after a stream's delta, told if terminal; `None` if the Task became terminal
    /// only after the delta was taken.
    fn told(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
        was_terminal: bool,
    ) -> Result<Option<TaskSnapshot>, TaskError> {
        let mut table = self.table.lock();
        let record = table.reachable(id, caller)?;
        if record.is_terminal() && !was_terminal {
            return Ok(None);
        }
        let owner = record.read_terminal(&self.runtime);
        let snapshot = record.snapshot();
        drop(table);
        drop(owner);
        Ok(Some(snapshot))
    }

    /// Kills a Task (contract P3). A producer with a signal is cancelled before this returns, in
    /// one section; one with a hook in a task of its own, so that dropping the future stops
    /// nothing.
    pub fn kill(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
        reason: Option<&str>,
    ) -> BoxFuture<'static, Result<KillAnswer, TaskError>> {
        let cause = CancelCause::Kill;
        let step = settlement::kill(&self.table, id, caller, cause, &self.runtime);
        let hook = match step {
            Err(refusal) => return ready(Err(refusal.into())),
            Ok(Kill::Answered { answer, wake, owner }) => {
                drop(owner);
                if let Some((cancel, decision)) = wake {
                    cancel.wake_saying(decision, cause, reason);
                }
                return ready(Ok(answer));
            }
            Ok(Kill::Hook(hook)) => hook,
        };
        let Some(service) = self.me.upgrade() else {
            return ready(Err(TaskRefusal::Closing.into()));
        };
        let (id, caller) = (id.clone(), caller.cloned());
        let reason = reason.unwrap_or(cause.reason()).to_owned();
        let name = format!("kill {id}");
        let view = spawn(&self.runtime, name, async move {
            service.runtime.point(Point::TaskCancelHook).await;
            service.call_hook(&id, &hook, &reason)?;
            drop(hook);
            service.runtime.point(Point::TaskStop).await;
            let facts = &service.runtime;
            let (answer, owner) =
                settlement::kill_hooked(&service.table, &id, caller.as_ref(), facts)?;
            drop(owner);
            Ok(answer)
        });
        Box::pin(async move { view.await? })
    }

    /// Calls a producer's cancel hook, contained. A signal has none and cannot fail.
    pub(super) fn call_hook(
        &self,
        id: &TaskId,
        cancel: &TaskCancel,
        reason: &str,
    ) -> Result<(), TaskError> {
        let TaskCancel::Hook(hook) = cancel else { return Ok(()) };
        contain_call(&self.runtime, "task cancel hook", || hook(reason))?
            .map_err(|text| TaskError::Producer { task: id.clone(), text })
    }
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(value))
}
