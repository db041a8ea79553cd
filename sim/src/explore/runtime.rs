//! [`SimRuntime`]: the runtime seam over the explorer's executor.
//!
//! One object holds everything that a run shares: the ready set, the virtual clock, the choices and
//! the recorders. It sits behind a mutex because [`Runtime`] must be `Sync`; one thread uses it, so
//! the mutex is never contended, and it is never held while foreign code runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use continuable::facts::Fact;
use continuable::points::Point;
use continuable::runtime::{BoxFuture, PointFuture, Runtime};
use continuable::sync::{Access, ObjectKind, touch};

use super::choices::Choices;
use super::rng::{Rng, mix};
use crate::trace::{Event, Note, Stamp, Trace};

/// When every run begins, in milliseconds since the Unix epoch: 2026-07-21, the design's date.
pub const EPOCH_MS: u64 = 1_784_592_000_000;

/// The clock is one object: `now` reads it, a jump writes it.
const CLOCK: u64 = 0;

/// Looks at the world right after a step whose facts ask for it, with no lock held. Facts are
/// recorded inside critical sections, where nothing may be looked at.
pub trait Probe: Send + Sync {
    /// Whether `fact` asks for a look. Called under locks: it must only decide.
    fn wants(&self, fact: &Fact) -> bool;

    /// What is to be seen, for the facts that asked.
    fn look(&self, facts: Vec<Fact>) -> Vec<Note>;
}

/// Decides what happens to those who arrive at a point. Called with no lock held.
pub trait PointFaults: Send + Sync {
    /// What the arrival has to wait for, if a fault strikes it.
    fn reach(&self, point: Point) -> Option<PointFuture>;
}

/// What a run may do beside running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOptions {
    /// Seeds the fresh names (ids); names are not choices. Each life has its own.
    pub names: u64,
    /// Which life of which process this is; see [`crate::trace::Entry::life`].
    pub life: u64,
    /// Virtual microseconds that passed before this life began.
    pub began_us: u64,
    /// Whether a point lets the others go first.
    pub points_yield: bool,
    /// Whether points are written to the trace; they are counted either way.
    pub trace_points: bool,
    /// Whether each step's footprint is recorded.
    pub footprints: bool,
    /// Polls after which the run is a livelock.
    pub polls_max: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            names: 0,
            life: 0,
            began_us: 0,
            points_yield: true,
            trace_points: false,
            footprints: false,
            polls_max: 1_000_000,
        }
    }
}

/// By due time (microseconds) and order of making.
pub(super) type Timers = BTreeMap<(u64, u64), Waker>;

/// What a closed runtime held, to be dropped with no lock held.
pub(super) struct Remains {
    _arrivals: Vec<BoxFuture<'static, ()>>,
    _timers: Timers,
    _probe: Option<Arc<dyn Probe>>,
    _faults: Option<Arc<dyn PointFaults>>,
}

/// One task as the ready set knows it.
#[derive(Debug)]
pub(super) struct TaskEntry {
    /// `<spawner's path>.<ordinal>: <name>`; never a global count (issue 4).
    pub(super) name: Arc<str>,
    /// The path alone: its spawner's, then its ordinal among the spawner's tasks.
    path: String,
    /// The same in every schedule, so that footprints compare.
    pub(super) key: u64,
    spawned: u64,
    pub(super) fresh: u64,
    names: Rng,
    queued: bool,
    pub(super) done: bool,
    pub(super) polls: u64,
}

/// Task numbers set aside for one life, so that a sampler tells tasks of different lives apart.
const TASKS_PER_LIFE: u64 = 512;

/// What one run shares between all its lives and all its hosts: who decides, and what happened.
#[derive(Debug)]
pub struct Shared {
    choices: Box<dyn Choices>,
    /// Every answer given, in order: the recorded list that replays this run.
    answers: Vec<u64>,
    /// How many of the answers chose a task.
    task_choices: u64,
    trace: Trace,
    points: Vec<u64>,
}

/// The part of a run that outlives its executors. Cloning shares it.
#[derive(Debug, Clone)]
pub struct RunRecord(Arc<Mutex<Shared>>);

impl RunRecord {
    /// A run that `choices` decide.
    pub fn new(choices: Box<dyn Choices>) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            choices,
            answers: Vec::new(),
            task_choices: 0,
            trace: Trace::default(),
            points: vec![0; Point::ALL.len()],
        })))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of `ready` runs next, asked for the tasks of `life`.
    pub(super) fn choose_task(&self, life: u64, ready: &[u32]) -> usize {
        let mut shared = self.shared();
        let shared = &mut *shared;
        let index = if life == 0 {
            shared.choices.task(ready)
        } else {
            let first = u32::try_from(life * TASKS_PER_LIFE).unwrap_or(0);
            let numbered: Vec<_> = ready.iter().map(|task| first.wrapping_add(*task)).collect();
            shared.choices.task(&numbered)
        };
        shared.answers.push(index as u64);
        shared.task_choices += 1;
        index
    }

    /// A choice of a value below `width`; 0 is the quiet one (no fault).
    pub fn choose(&self, width: u64) -> u64 {
        if width < 2 {
            return 0;
        }
        let mut shared = self.shared();
        let answer = shared.choices.value(width);
        shared.answers.push(answer);
        answer
    }

    /// Writes an entry to the trace.
    pub fn push(&self, stamp: Stamp, event: Event) {
        self.shared().trace.push(stamp, event);
    }

    /// Takes the trace out; later entries start a new one.
    pub fn take_trace(&self) -> Trace {
        std::mem::take(&mut self.shared().trace)
    }

    /// The facts of one life so far, in their order.
    pub fn facts(&self, life: u64) -> Vec<Fact> {
        let shared = self.shared();
        let own = shared.trace.entries.iter().filter(|entry| entry.life == life);
        let facts = own.filter_map(|entry| match &entry.event {
            Event::Fact(fact) => Some(fact.clone()),
            Event::Note(_) => None,
        });
        facts.collect()
    }

    /// Entries recorded so far.
    pub fn trace_length(&self) -> usize {
        self.shared().trace.entries.len()
    }

    /// How often each point of [`Point::ALL`] was reached.
    pub fn points(&self) -> Vec<u64> {
        self.shared().points.clone()
    }

    /// Every answer given so far: [`super::Sampler::Recorded`] of it replays the run.
    pub fn answers(&self) -> Vec<u64> {
        self.shared().answers.clone()
    }

    /// How many of the answers chose a task.
    pub fn task_choices(&self) -> u64 {
        self.shared().task_choices
    }
}

pub(super) struct State {
    pub(super) tasks: Vec<TaskEntry>,
    /// Spawned and not yet adopted by the executor, in the order of `tasks`.
    pub(super) arrivals: Vec<BoxFuture<'static, ()>>,
    pub(super) ready: Vec<u32>,
    timers: Timers,
    timers_made: u64,
    pub(super) now_us: u64,
    pub(super) current: Option<u32>,
    outside_spawned: u64,
    outside_names: Rng,
    probe: Option<Arc<dyn Probe>>,
    asked: Vec<Fact>,
    faults: Option<Arc<dyn PointFaults>>,
    /// By how much the wall clock jumped.
    jumped_ms: u64,
    /// What crashed the process, once it did.
    crashed: Option<String>,
    /// Who polls this executor, where it is nested in another one.
    host: Option<Waker>,
    pub(super) closed: bool,
}

/// The explorer's runtime. Made together with its [`super::Executor`].
pub struct SimRuntime {
    me: Weak<Self>,
    state: Mutex<State>,
    record: RunRecord,
    pub(super) options: RunOptions,
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimRuntime")
    }
}

impl SimRuntime {
    pub(super) fn new(record: RunRecord, options: RunOptions) -> Arc<Self> {
        let state = State {
            tasks: Vec::new(),
            arrivals: Vec::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            now_us: options.began_us,
            current: None,
            outside_spawned: 0,
            outside_names: Rng::split(options.names, 0),
            probe: None,
            asked: Vec::new(),
            faults: None,
            jumped_ms: 0,
            crashed: None,
            host: None,
            closed: false,
        };
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            state: Mutex::new(state),
            record,
            options,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which life of the run this is.
    pub fn life(&self) -> u64 {
        self.options.life
    }

    /// What this run shares with its other lives and hosts.
    pub fn run_record(&self) -> &RunRecord {
        &self.record
    }

    /// A choice of a value below `width`; 0 is the quiet one (no fault).
    pub fn choose(&self, width: u64) -> u64 {
        self.record.choose(width)
    }

    /// Milliseconds of virtual time since the run began.
    pub fn elapsed_ms(&self) -> u64 {
        touch(ObjectKind::Clock, CLOCK, Access::Read);
        self.state().now_us / 1_000
    }

    /// Writes an entry to the trace, by the current task.
    pub fn record(&self, event: Event) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let actor = match state.current {
            Some(task) => Arc::clone(&state.tasks[task as usize].name),
            None => "harness".into(),
        };
        let ms = state.now_us / 1_000;
        if let Event::Fact(fact) = &event
            && state.probe.as_ref().is_some_and(|probe| probe.wants(fact))
        {
            state.asked.push(fact.clone());
        }
        self.record.push(Stamp { ms, life: self.options.life, actor }, event);
    }

    /// From now on `probe` looks at the world.
    pub fn set_probe(&self, probe: Arc<dyn Probe>) {
        let before = self.state().probe.replace(probe);
        drop(before);
    }

    /// From now on `faults` strike at points; with `None` nothing does.
    pub fn set_faults(&self, faults: Option<Arc<dyn PointFaults>>) {
        let before = std::mem::replace(&mut self.state().faults, faults);
        drop(before);
    }

    /// The wall clock jumps forward; timers do not see it.
    pub fn jump_clock(&self, ms: u64) {
        touch(ObjectKind::Clock, CLOCK, Access::Write);
        self.state().jumped_ms += ms;
    }

    /// The process dies: nothing that its tasks do from now on is recorded, and the executor stops
    /// after this step. The disk must be frozen already.
    pub fn request_crash(&self, by: String) {
        self.record(Event::Note(Note::Crashed { by: by.clone() }));
        let mut state = self.state();
        state.crashed.get_or_insert(by);
        state.closed = true;
    }

    /// What crashed the process, if anything did.
    pub fn crashed(&self) -> Option<String> {
        self.state().crashed.clone()
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.state().crashed.is_some()
    }

    /// Lets the probe look, if the last step's facts asked for it.
    pub(super) fn look(&self) {
        let (probe, asked) = {
            let mut state = self.state();
            if state.asked.is_empty() {
                return;
            }
            (state.probe.clone(), std::mem::take(&mut state.asked))
        };
        let notes = probe.map(|probe| probe.look(asked)).unwrap_or_default();
        for note in notes {
            self.record(Event::Note(note));
        }
    }

    fn wake(&self, task: u32) {
        let mut state = self.state();
        let entry = &mut state.tasks[task as usize];
        // Two wakes commute, a wake and a poll do not: the poll writes this object.
        touch(ObjectKind::Ready, entry.key, Access::Read);
        let mut host = None;
        if !entry.queued && !entry.done {
            entry.queued = true;
            state.ready.push(task);
            host = state.host.take();
        }
        drop(state);
        // Wakes may come while another host is polled; this one then has to be polled again.
        if let Some(host) = host {
            host.wake();
        }
    }

    /// From now on `host` is woken when a task becomes ready.
    pub(super) fn set_host(&self, host: &Waker) {
        let before = self.state().host.replace(host.clone());
        drop(before);
    }

    /// The host's clock: moves time on to `now_us` and wakes every task whose time has come.
    pub(super) fn advance(&self, now_us: u64) {
        let mut due = Vec::new();
        {
            let mut state = self.state();
            state.now_us = state.now_us.max(now_us);
            let now = state.now_us;
            while let Some(first) = state.timers.first_entry() {
                if first.key().0 > now {
                    break;
                }
                due.push(first.remove());
            }
        }
        for waker in due {
            waker.wake();
        }
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.state().timers.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Polls made of all its tasks together.
    pub fn polls(&self) -> u64 {
        self.state().tasks.iter().map(|task| task.polls).sum()
    }

    /// Tasks ever spawned.
    pub fn spawned(&self) -> u64 {
        self.state().tasks.len() as u64
    }

    /// The tasks that are not finished, by name.
    pub fn unfinished(&self) -> Vec<Arc<str>> {
        let state = self.state();
        let left = state.tasks.iter().filter(|task| !task.done);
        left.map(|task| Arc::clone(&task.name)).collect()
    }

    /// Jumps to the next timer and wakes every task whose time has come; false if there is none.
    pub(super) fn jump(&self) -> bool {
        let mut due = Vec::new();
        {
            let mut state = self.state();
            let Some((&(at, _), _)) = state.timers.first_key_value() else { return false };
            state.now_us = state.now_us.max(at);
            while let Some(first) = state.timers.first_entry() {
                if first.key().0 > at {
                    break;
                }
                due.push(first.remove());
            }
        }
        touch(ObjectKind::Clock, CLOCK, Access::Write);
        for waker in due {
            waker.wake();
        }
        true
    }

    /// Forgets everything that could keep the pool alive. The caller drops the result unlocked.
    pub(super) fn close(&self) -> Remains {
        let mut state = self.state();
        state.closed = true;
        state.ready.clear();
        Remains {
            _arrivals: std::mem::take(&mut state.arrivals),
            _timers: std::mem::take(&mut state.timers),
            _probe: state.probe.take(),
            _faults: state.faults.take(),
        }
    }
}

impl State {
    pub(super) fn take_ready(&mut self, index: usize) -> u32 {
        let task = self.ready.remove(index);
        let entry = &mut self.tasks[task as usize];
        entry.queued = false;
        entry.polls += 1;
        self.current = Some(task);
        task
    }

    fn adopt(&mut self, names: u64, name: &str, body: BoxFuture<'static, ()>) -> u64 {
        let (spawner, ordinal) = match self.current {
            Some(task) => {
                let entry = &mut self.tasks[task as usize];
                entry.spawned += 1;
                (entry.path.as_str(), entry.spawned - 1)
            }
            None => {
                self.outside_spawned += 1;
                ("", self.outside_spawned - 1)
            }
        };
        let dot = if spawner.is_empty() { "" } else { "." };
        let path = format!("{spawner}{dot}{ordinal}");
        let key = mix(continuable::sync::key_of(&path));
        let task = u32::try_from(self.tasks.len()).expect("far fewer tasks than u32::MAX");
        self.tasks.push(TaskEntry {
            name: format!("{path}: {name}").into(),
            path,
            key,
            spawned: 0,
            fresh: 0,
            names: Rng::split(names, key),
            queued: true,
            done: false,
            polls: 0,
        });
        self.arrivals.push(body);
        self.ready.push(task);
        key
    }
}

/// Wakes one task; made once per task.
#[derive(Debug)]
pub(super) struct TaskWaker {
    runtime: Arc<SimRuntime>,
    task: u32,
}

impl TaskWaker {
    pub(super) fn of(runtime: &Arc<SimRuntime>, task: u32) -> Waker {
        Waker::from(Arc::new(Self { runtime: Arc::clone(runtime), task }))
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.runtime.wake(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.runtime.wake(self.task);
    }
}

/// Ready once the clock reached `due`; dropping it takes the timer back.
#[derive(Debug)]
struct Sleep {
    runtime: Weak<SimRuntime>,
    due: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(runtime) = self.runtime.upgrade() else { return Poll::Pending };
        touch(ObjectKind::Clock, CLOCK, Access::Read);
        let mut state = runtime.state();
        if state.now_us >= self.due {
            self.timer = None;
            return Poll::Ready(());
        }
        let key = self.timer.unwrap_or_else(|| {
            state.timers_made += 1;
            (self.due, state.timers_made)
        });
        self.timer = Some(key);
        let before = state.timers.insert(key, cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some((key, runtime)) = self.timer.take().zip(self.runtime.upgrade()) else { return };
        let waker = runtime.state().timers.remove(&key);
        drop(waker);
    }
}

impl Runtime for SimRuntime {
    fn spawn(&self, name: String, body: BoxFuture<'static, ()>) {
        let mut host = None;
        let refused = {
            let mut state = self.state();
            if state.closed {
                Some(body)
            } else {
                let key = state.adopt(self.options.names, &name, body);
                touch(ObjectKind::Ready, key, Access::Read);
                host = state.host.take();
                None
            }
        };
        if let Some(host) = host {
            host.wake();
        }
        // A destructor may spawn again: never under the lock.
        drop(refused);
    }

    fn now(&self) -> u64 {
        EPOCH_MS + self.elapsed_ms() + self.state().jumped_ms
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        touch(ObjectKind::Clock, CLOCK, Access::Read);
        let span = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let due = self.state().now_us.saturating_add(span);
        Box::pin(Sleep { runtime: Weak::clone(&self.me), due, timer: None })
    }

    fn random(&self) -> u64 {
        let mut state = self.state();
        match state.current {
            Some(task) => state.tasks[task as usize].names.number(),
            None => state.outside_names.number(),
        }
    }

    fn point(&self, point: Point) -> PointFuture {
        self.record.shared().points[point as usize] += 1;
        if self.options.trace_points {
            self.record(Event::Fact(Fact::PointReached { point }));
        }
        let faults = self.state().faults.clone();
        if let Some(struck) = faults.and_then(|faults| faults.reach(point)) {
            return struck;
        }
        if self.options.points_yield { PointFuture::yield_once() } else { PointFuture::ready() }
    }

    fn fact(&self, fact: Fact) {
        self.record(Event::Fact(fact));
    }
}
