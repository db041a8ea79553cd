//! The kit of the Task scenarios: owners and producers without an agent behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use continuable::cancel::CancelSignal;
use continuable::channel::{Sender, oneshot};
use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::ids::{OwnerId, SessionId, TaskId};
use continuable::message::{Message, MessageSource};
use continuable::runtime::{FactSubscription, Runtime, TokioRuntime, fresh_message_id};
use continuable::task::{
    Attachment, BoxedEffect, NoticeWriter, OwnerGone, TaskCancel, TaskError, TaskHooks, TaskOwner,
    TaskService, TaskServiceConfig, TaskSnapshot, TaskStart, WakePolicy,
};
use continuable::vocabulary::{TaskOutcome, TaskStatus};

/// Which instance is registered under which session id.
pub type Registry = Arc<Mutex<BTreeMap<SessionId, OwnerId>>>;

/// An owner without an agent behind it.
pub struct FakeOwner {
    instance: OwnerId,
    session: SessionId,
    registry: Option<Registry>,
    cleanups: Mutex<Vec<BoxedEffect>>,
    closing: Mutex<bool>,
    pub notices: Mutex<Vec<Message>>,
    /// What `notify` does: true takes the notice, false refuses it; `None` panics.
    takes: Mutex<Option<bool>>,
}

impl FakeOwner {
    pub fn new(instance: u64, session: &str, registry: Option<&Registry>) -> Arc<Self> {
        Arc::new(Self {
            instance: OwnerId(instance),
            session: SessionId::new(session),
            registry: registry.cloned(),
            cleanups: Mutex::default(),
            closing: Mutex::new(false),
            notices: Mutex::default(),
            takes: Mutex::new(Some(true)),
        })
    }

    pub fn register(&self) {
        let registry = self.registry.as_ref().expect("a registry");
        registry.lock().expect("lock").insert(self.session.clone(), self.instance);
    }

    pub fn panic_on_notices(&self) {
        *self.takes.lock().expect("lock") = None;
    }

    pub async fn dispose(&self) {
        *self.closing.lock().expect("lock") = true;
        let cleanups = std::mem::take(&mut *self.cleanups.lock().expect("lock"));
        for cleanup in cleanups {
            cleanup().await;
        }
    }

    pub fn cleanups(&self) -> usize {
        self.cleanups.lock().expect("lock").len()
    }
}

impl TaskOwner for FakeOwner {
    fn instance(&self) -> OwnerId {
        self.instance
    }

    fn session(&self) -> SessionId {
        self.session.clone()
    }

    fn admit(&self, cleanup: Option<BoxedEffect>) -> Result<(), OwnerGone> {
        let registered = self.registry.as_ref().is_some_and(|registry| {
            registry.lock().expect("lock").get(&self.session) == Some(&self.instance)
        });
        if !registered {
            return Err(OwnerGone::NotRegistered);
        }
        if *self.closing.lock().expect("lock") {
            return Err(OwnerGone::Closing);
        }
        self.cleanups.lock().expect("lock").extend(cleanup);
        Ok(())
    }

    fn notify(&self, notice: Message, _policy: WakePolicy) -> bool {
        let takes = self.takes.lock().expect("lock").expect("the inbox of this owner is broken");
        if takes {
            self.notices.lock().expect("lock").push(notice);
        }
        takes
    }
}

/// Writes the shortest notice.
pub struct Writer(pub Arc<dyn Runtime>);

impl NoticeWriter for Writer {
    fn notice(&self, task: &TaskSnapshot) -> Message {
        let source = MessageSource::Plugin { plugin: "test".to_owned() };
        Message::user(fresh_message_id(&*self.0), format!("{} is done", task.id), source)
    }
}

/// The test's end of a producer.
pub struct Work {
    pub done: Option<Sender<TaskOutcome>>,
    pub reasons: Arc<Mutex<Vec<String>>>,
    pub fails: Arc<Mutex<bool>>,
}

impl Work {
    pub fn finish(&mut self, outcome: TaskOutcome) {
        let done = self.done.take().expect("finished once");
        drop(done.send(outcome));
    }

    pub fn complete(&mut self, output: &str) {
        self.finish(TaskOutcome::completed(output));
    }

    pub fn reasons(&self) -> Vec<String> {
        self.reasons.lock().expect("lock").clone()
    }
}

/// A producer with a cancel hook that records its reasons.
pub fn hooked() -> (TaskHooks, Work) {
    let (sender, receiver) = oneshot();
    let work = Work { done: Some(sender), reasons: Arc::default(), fails: Arc::default() };
    let (reasons, fails) = (Arc::clone(&work.reasons), Arc::clone(&work.fails));
    let hook = move |reason: &str| {
        reasons.lock().expect("lock").push(reason.to_owned());
        if *fails.lock().expect("lock") { Err("Error: cannot stop".to_owned()) } else { Ok(()) }
    };
    let done = async move { receiver.await.unwrap_or_else(|_| TaskOutcome::killed()) };
    (TaskHooks::new(TaskCancel::Hook(Arc::new(hook)), done), work)
}

pub type Seen = Arc<Mutex<Vec<(TaskSnapshot, Option<OwnerId>)>>>;

pub struct World {
    pub runtime: Arc<dyn Runtime>,
    pub tasks: Arc<TaskService>,
    pub surface: Option<Attachment>,
    pub registry: Registry,
    pub facts: FactSubscription,
}

impl World {
    pub fn new() -> Self {
        let runtime = Arc::new(TokioRuntime::current());
        let facts = runtime.subscribe(10_000);
        let runtime: Arc<dyn Runtime> = runtime;
        let tasks = TaskService::new(Arc::clone(&runtime), TaskServiceConfig::default());
        let surface = Some(tasks.attach_surface("test"));
        Self { runtime, tasks, surface, registry: Registry::default(), facts }
    }

    pub fn owner(&self, instance: u64, session: &str) -> Arc<FakeOwner> {
        let owner = FakeOwner::new(instance, session, Some(&self.registry));
        owner.register();
        owner
    }

    pub fn start(&self, start: TaskStart) -> (TaskId, Work) {
        let (hooks, work) = hooked();
        (self.tasks.start(start, || hooks).expect("started"), work)
    }

    pub fn bash(&self) -> (TaskId, Work) {
        self.start(TaskStart::new("bash", "a command"))
    }

    pub fn owned(&self, owner: &Arc<FakeOwner>) -> (TaskId, Work) {
        let owner: Arc<dyn TaskOwner> = Arc::clone(owner) as _;
        self.start(TaskStart::new("bash", "a command").owned_by(owner))
    }

    pub fn status(&self, id: &TaskId) -> TaskStatus {
        self.tasks.get(id, None).expect("there").status
    }

    pub fn signal(&self) -> CancelSignal {
        let scope = CancelScope::Call { call: "wait".to_owned() };
        CancelSignal::new(Arc::clone(&self.runtime), scope)
    }

    /// Attaches a listener that remembers what it saw.
    pub fn seen(&self) -> (Seen, Attachment) {
        let seen = Seen::default();
        let told = Arc::clone(&seen);
        let attached = self.tasks.on_done(Arc::new(move |snapshot, owner| {
            let owner = owner.map(|owner| owner.instance());
            told.lock().expect("lock").push((snapshot.clone(), owner));
            None
        }));
        (seen, attached)
    }

    pub fn facts(&mut self) -> Vec<Fact> {
        std::iter::from_fn(|| self.facts.try_recv()).map(|fact| (*fact.fact).clone()).collect()
    }
}

/// Lets everything that is ready run.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub fn code<T: std::fmt::Debug>(result: Result<T, TaskError>) -> ErrorCode {
    result.expect_err("refused").code()
}
