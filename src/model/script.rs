//! A model that follows a script: deterministic, on any executor, without a network.
//!
//! Each request takes the next [`Step`] of its session's script. A session that has no script of
//! its own takes the one laid out for the n-th new session, then the one its factory makes, then
//! steps from a queue that such sessions share, in the order of their requests. A request without a
//! step fails: "script exhausted". Gates hold a response until a test or a plan releases them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ModelClient, ModelError, ModelRequest, ModelStream};
use crate::channel::Latch;
use crate::ids::SessionId;
use crate::runtime::{BoxFuture, Runtime};
use crate::sync::{Access, LockClass, Mutex, ObjectKind, key_of, touch};

mod parts;
mod steps;

use parts::{Flow, PartStream};
pub use parts::{Part, chunks_of_call, chunks_of_text, finish};
pub use steps::{ScriptedCall, Step};

/// Makes the script of a session that has none, from its first request and its place among the new
/// sessions, counted from 1. `None` leaves it to the shared queue.
pub type ScriptFactory = Arc<dyn Fn(&ModelRequest, u64) -> Option<Vec<Step>> + Send + Sync>;

/// What a request without a step is told.
pub const SCRIPT_EXHAUSTED: &str = "script exhausted";

/// How many steps one request may follow: a gate that is for always would never answer.
const STEPS_PER_REQUEST_MAX: usize = 64;

/// Two latches: somebody reached the gate; the gate is open.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate {
    reached: Latch<()>,
    open: Latch<()>,
}

#[derive(Default)]
struct Scripts {
    sessions: BTreeMap<SessionId, VecDeque<Step>>,
    /// Sessions that had no script of their own at their first request.
    met: BTreeSet<SessionId>,
    numbered: BTreeMap<u64, Vec<Step>>,
    factory: Option<ScriptFactory>,
    shared: VecDeque<Step>,
    gates: BTreeMap<String, Gate>,
    requests: Vec<Arc<ModelRequest>>,
    recording: bool,
}

pub(super) struct Inner {
    pub(super) runtime: Arc<dyn Runtime>,
    scripts: Mutex<Scripts>,
    started: AtomicU64,
    pub(super) active: AtomicU64,
}

impl Inner {
    pub(super) fn gate(&self, name: &str) -> Gate {
        let mut scripts = self.scripts.lock();
        if let Some(gate) = scripts.gates.get(name) {
            return gate.clone();
        }
        let gate = Gate::default();
        scripts.gates.insert(name.to_owned(), gate.clone());
        gate
    }
}

/// The scripted model. Cloning shares the script.
#[derive(Clone)]
pub struct ScriptedModel {
    inner: Arc<Inner>,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({} requests)", self.request_count())
    }
}

impl ScriptedModel {
    /// A model without a script. `runtime` only measures the pauses of slow steps.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let scripts = Scripts { recording: true, ..Scripts::default() };
        Self {
            inner: Arc::new(Inner {
                runtime,
                scripts: Mutex::new(LockClass::Leaf, scripts),
                started: AtomicU64::new(0),
                active: AtomicU64::new(0),
            }),
        }
    }

    /// A model whose sessions share `steps`, in the order of their requests.
    pub fn shared(runtime: Arc<dyn Runtime>, steps: impl IntoIterator<Item = Step>) -> Self {
        let model = Self::new(runtime);
        model.push_shared(steps);
        model
    }

    /// Appends to the queue that sessions without a script share.
    pub fn push_shared(&self, steps: impl IntoIterator<Item = Step>) {
        self.inner.scripts.lock().shared.extend(steps);
    }

    /// Appends to the script of `session`; from now on it has one of its own.
    pub fn push(&self, session: &SessionId, steps: impl IntoIterator<Item = Step>) {
        let mut scripts = self.inner.scripts.lock();
        scripts.sessions.entry(session.clone()).or_default().extend(steps);
    }

    /// Lays out the script of the `n`-th new session, counted from 1 in the order of first
    /// requests; sessions with a script of their own are not counted.
    pub fn push_new_session(&self, n: u64, steps: impl IntoIterator<Item = Step>) {
        let mut scripts = self.inner.scripts.lock();
        scripts.numbered.entry(n).or_default().extend(steps);
    }

    /// Makes the scripts of new sessions that have none laid out.
    pub fn set_factory(&self, factory: ScriptFactory) {
        let old = self.inner.scripts.lock().factory.replace(factory);
        drop(old);
    }

    /// Opens a gate for good, before or after somebody reached it.
    pub fn release(&self, gate: &str) {
        self.inner.gate(gate).open.set(());
    }

    /// Waits until a response is held at `gate`; ready at once if one ever was.
    pub async fn reached(&self, gate: &str) {
        let gate = self.inner.gate(gate);
        gate.reached.wait().await;
    }

    /// Whether a response was ever held at `gate`.
    pub fn was_reached(&self, gate: &str) -> bool {
        self.inner.gate(gate).reached.get().is_some()
    }

    /// Whether requests are kept for [`ScriptedModel::requests`]; they are unless told otherwise.
    pub fn set_recording(&self, recording: bool) {
        self.inner.scripts.lock().recording = recording;
    }

    /// The requests so far, oldest first.
    pub fn requests(&self) -> Vec<Arc<ModelRequest>> {
        self.inner.scripts.lock().requests.clone()
    }

    /// The requests of one session so far, oldest first.
    pub fn requests_of(&self, session: &SessionId) -> Vec<Arc<ModelRequest>> {
        self.requests().into_iter().filter(|request| request.session == *session).collect()
    }

    /// How many requests there were, recorded or not.
    pub fn request_count(&self) -> u64 {
        self.inner.started.load(Ordering::Relaxed)
    }

    /// How many responses are in flight: started, and neither ended nor dropped.
    pub fn active(&self) -> u64 {
        self.inner.active.load(Ordering::Relaxed)
    }

    /// How many steps of `session`'s own script are left.
    pub fn steps_left(&self, session: &SessionId) -> usize {
        self.inner.scripts.lock().sessions.get(session).map_or(0, VecDeque::len)
    }

    /// The next step for `request`; `None` when its script is exhausted. Factories are foreign
    /// code: they run with no lock held.
    fn next_step(&self, request: &ModelRequest) -> Option<Step> {
        let session = &request.session;
        touch(ObjectKind::Name, key_of(session.as_str()), Access::Write);
        let (ordinal, factory) = {
            let mut scripts = self.inner.scripts.lock();
            if let Some(script) = scripts.sessions.get_mut(session) {
                return take(script);
            }
            if scripts.met.contains(session) {
                return take_shared(&mut scripts);
            }
            let ordinal = scripts.met.len() as u64 + 1;
            touch(ObjectKind::Name, key_of("scripted model: new sessions"), Access::Write);
            scripts.met.insert(session.clone());
            if let Some(steps) = scripts.numbered.remove(&ordinal) {
                let script = scripts.sessions.entry(session.clone()).or_default();
                script.extend(steps);
                return take(script);
            }
            (ordinal, scripts.factory.clone())
        };
        let made = factory.and_then(|factory| factory(request, ordinal));
        let mut scripts = self.inner.scripts.lock();
        match made {
            Some(steps) => {
                let script = scripts.sessions.entry(session.clone()).or_default();
                script.extend(steps);
                take(script)
            }
            None => take_shared(&mut scripts),
        }
    }

    /// Everything `request` is answered with. Gates and functions are followed until a step that
    /// answers.
    fn answer(&self, request: &ModelRequest) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut step = self.next_step(request);
        for _ in 0..STEPS_PER_REQUEST_MAX {
            match step {
                None => {
                    parts.push(Part::Fail(ModelError::new(SCRIPT_EXHAUSTED)));
                    return parts;
                }
                Some(Step::Gate(name)) => {
                    parts.push(Part::Gate(name));
                    step = self.next_step(request);
                }
                Some(Step::Pause(pause)) => {
                    parts.push(Part::Pause(pause));
                    step = self.next_step(request);
                }
                Some(Step::Func(function)) => step = Some(function(request)),
                Some(Step::Always(inner)) => step = Some(*inner),
                Some(answer) => {
                    parts.extend(answer.parts(request.turn, request.step));
                    return parts;
                }
            }
        }
        parts.push(Part::Fail(ModelError::new("the script leads to no answer")));
        parts
    }
}

/// Takes the front step; one that is for always stays.
fn take(script: &mut VecDeque<Step>) -> Option<Step> {
    match script.front() {
        Some(Step::Always(_)) => script.front().cloned(),
        _ => script.pop_front(),
    }
}

fn take_shared(scripts: &mut Scripts) -> Option<Step> {
    touch(ObjectKind::Name, key_of("scripted model: shared queue"), Access::Write);
    take(&mut scripts.shared)
}

impl ModelClient for ScriptedModel {
    fn start(
        &self,
        request: ModelRequest,
    ) -> BoxFuture<'static, Result<Box<dyn ModelStream>, ModelError>> {
        let model = self.clone();
        Box::pin(async move {
            model.inner.started.fetch_add(1, Ordering::Relaxed);
            let request = Arc::new(request);
            {
                let mut scripts = model.inner.scripts.lock();
                if scripts.recording {
                    scripts.requests.push(Arc::clone(&request));
                }
            }
            let parts = model.answer(&request);
            let mut stream = PartStream::new(model.inner, request.signal.clone(), parts);
            // What comes before the first chunk is the wait for the response itself.
            match stream.open().await {
                Flow::Failed(error) => Err(error),
                Flow::Chunk | Flow::End => Ok(Box::new(stream) as Box<dyn ModelStream>),
            }
        })
    }
}

#[cfg(test)]
mod tests;
