//! Sessions: the append-only log that outlives every agent (fact-sheet 2).
//!
//! Reading order: [`event`] (what a log is made of), [`codec`] (one event, one line), [`log`] (the
//! pure log: what may be appended, what a model sees), [`rules`] and [`surface`] (the checks),
//! [`fold`], [`descriptor`], [`repair`], [`compaction`] and [`audit`] (what a log says). [`Session`] is the shared object:
//! a log behind its lock, and the observers that run after unlock.

pub mod raw;
pub mod event;
pub mod codec;
pub mod log;
pub mod rules;
pub mod surface;
pub mod fold;
pub mod descriptor;
pub mod repair;
pub mod compaction;
pub mod audit;
mod lossless;
mod observe;
#[cfg(test)]
mod kit;

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId};
use crate::runtime::{Runtime, contain_call};
use crate::sync::{LockClass, Mutex, MutexGuard};

pub use audit::{AuditError, AuditProblem, audit};
pub use codec::LineError;
pub use descriptor::{Descriptor, DescriptorError, SUBAGENT_DESCRIPTOR_VERSION, ToolFilter};
pub use event::{
    Draft, Event, EventBody, HeaderReason, SESSION_FORMAT_VERSION, SessionHeader, SurfaceOp,
    ToolErrorInfo, TurnEndReason, TurnTrigger, tool_result_message,
};
pub use fold::{fold_descriptor, fork_seed, highest_task_ordinals, own_events, result_since};
pub use log::{AppendError, SeedError, SessionLog};
pub use observe::{Observer, ObserverGuard};
pub use raw::RawJson;
pub use repair::closers;

use observe::Publication;

/// A check that may veto an append, run inside the session's section after every rule has passed:
/// it must be quick, take no lock and change nothing. Its panic is a veto.
pub type Validator = dyn Fn(&SessionLog, &[Event]) -> Result<(), String> + Send + Sync;

struct State {
    log: SessionLog,
    validators: Vec<Arc<Validator>>,
}

/// A live session: its log behind the session lock, and its observers.
pub struct Session {
    runtime: Arc<dyn Runtime>,
    header: Arc<SessionHeader>,
    agent: Option<OwnerId>,
    state: Mutex<State>,
    publication: Publication,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.header.id).finish_non_exhaustive()
    }
}

impl Session {
    /// A session that starts a new lifecycle: fresh without a seed, else forked or resumed
    /// ([`SessionLog::new`]). `agent` is the exact instance that owns it, named in its facts.
    ///
    /// # Errors
    ///
    /// [`SeedError`] if the seed is not contiguous from 0.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        header: SessionHeader,
        seed: Option<Vec<Arc<Event>>>,
        agent: Option<OwnerId>,
    ) -> Result<Arc<Self>, SeedError> {
        let header = Arc::new(header);
        let log = SessionLog::new(Arc::clone(&header), seed, runtime.now())?;
        let (first, end) = (log.first_live_seq(), log.len());
        if first < end {
            let (session, count) = (header.id.clone(), end - first);
            runtime.fact(Fact::EventsAppended { session, agent, seq: first, count });
        }
        Ok(Arc::new(Self {
            publication: Publication::new(end),
            state: Mutex::new(LockClass::Session, State { log, validators: Vec::new() }),
            runtime,
            header,
            agent,
        }))
    }

    /// The session's id.
    pub fn id(&self) -> &SessionId {
        &self.header.id
    }

    /// The session's header.
    pub fn header(&self) -> &Arc<SessionHeader> {
        &self.header
    }

    /// The agent instance that owns the session.
    pub fn agent(&self) -> Option<OwnerId> {
        self.agent
    }

    /// Takes the session lock (class `Session`). Call [`publish`](Self::publish) after the guard
    /// is dropped if anything was appended.
    pub fn lock(&self) -> SessionGuard<'_> {
        SessionGuard { session: self, state: self.state.lock() }
    }

    /// Appends the whole batch or nothing, in a section of its own, and publishes it. Answers the
    /// sequence numbers it got.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; the log is as it was.
    pub fn append(&self, drafts: Vec<Draft>) -> Result<Range<u64>, AppendError> {
        let range = self.lock().append(drafts)?;
        self.publish();
        Ok(range)
    }

    /// Runs the observers of everything appended and not yet published, in log order, under no
    /// lock. Another call's publication in progress takes ours over instead (contract P20).
    pub fn publish(&self) {
        self.publication.drain(&self.runtime, self.id());
    }

    /// Has `observer` called with every event appended from now on, until the guard is dropped.
    pub fn observe(self: &Arc<Self>, observer: Arc<Observer>) -> ObserverGuard {
        let id = self.publication.add(observer);
        ObserverGuard::new(Arc::downgrade(self), id)
    }

    /// Runs `action` now, or, during a publication, when that has unwound (fact-sheet 2.1 rule 6).
    pub fn after_publication(&self, action: Box<dyn FnOnce() + Send>) {
        if let Some(action) = self.publication.defer(action) {
            action();
        }
    }

    /// Adds a check that may veto appends for as long as the session lives.
    pub fn add_validator(&self, validator: Arc<Validator>) {
        self.state.lock().validators.push(validator);
    }

    /// How many events the log has.
    pub fn len(&self) -> u64 {
        self.state.lock().log.len()
    }

    /// Whether the log has no event.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The events from `seq` on.
    pub fn snapshot_from(&self, seq: u64) -> Vec<Arc<Event>> {
        let state = self.state.lock();
        let events = state.log.events();
        let from = usize::try_from(seq).unwrap_or(usize::MAX).min(events.len());
        events[from..].to_vec()
    }
}

/// The session's section: reads the log, and appends to it.
pub struct SessionGuard<'a> {
    session: &'a Session,
    state: MutexGuard<'a, State>,
}

impl Deref for SessionGuard<'_> {
    type Target = SessionLog;

    fn deref(&self) -> &SessionLog {
        &self.state.log
    }
}

impl SessionGuard<'_> {
    /// Appends the whole batch or nothing; answers the sequence numbers it got.
    ///
    /// Records here, inside the section, the facts of what entered the log: `EventsAppended`, and
    /// for a session with an agent `MessageLogged` (of user and steering messages), `TurnStarted`,
    /// `TurnEnded`, `StepStarted` and `StepEnded`. Callers do not record them again.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; the log is as it was.
    pub fn append(&mut self, drafts: Vec<Draft>) -> Result<Range<u64>, AppendError> {
        let session = self.session;
        if session.publication.is_mine() {
            return Err(AppendError::Reentrant);
        }
        let state = &mut *self.state;
        let staged = state.log.stage(drafts)?;
        for validator in &state.validators {
            contain_call(&session.runtime, "session validator", || {
                validator(&state.log, staged.events())
            })
            .unwrap_or_else(|panic| Err(panic.to_string()))
            .map_err(|reason| AppendError::Vetoed { reason })?;
        }
        let range = state.log.commit(staged, session.runtime.now());
        let from = usize::try_from(range.start).expect("a log fits into memory");
        let appended = &state.log.events()[from..];
        session.record(appended);
        session.publication.push(appended);
        Ok(range)
    }
}

impl Session {
    fn record(&self, appended: &[Arc<Event>]) {
        let Some(first) = appended.first() else { return };
        self.runtime.fact(Fact::EventsAppended {
            session: self.id().clone(),
            agent: self.agent,
            seq: first.seq,
            count: appended.len() as u64,
        });
        let Some(agent) = self.agent else { return };
        for event in appended {
            let fact = match &event.body {
                EventBody::TurnStart { turn, trigger } => {
                    Fact::TurnStarted { agent, turn: *turn, trigger: trigger.word().to_owned() }
                }
                EventBody::TurnEnd { turn, reason } => {
                    Fact::TurnEnded { agent, turn: *turn, reason: reason.kind() }
                }
                EventBody::StepStart { turn, step } => {
                    Fact::StepStarted { agent, turn: *turn, step: *step }
                }
                EventBody::StepEnd { turn, step } => {
                    Fact::StepEnded { agent, turn: *turn, step: *step }
                }
                EventBody::UserMessage(message) | EventBody::SteeringMessage { message, .. } => {
                    Fact::MessageLogged {
                        agent,
                        message: message.id.clone(),
                        seq: event.seq,
                        source: message.source.clone(),
                    }
                }
                _ => continue,
            };
            self.runtime.fact(fact);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::kit::{StillRuntime, header, prompt, turn, user};
    use super::*;
    use crate::ids::OwnerId;

    fn session() -> Arc<Session> {
        on(&Arc::default())
    }

    fn on(runtime: &Arc<StillRuntime>) -> Arc<Session> {
        let runtime: Arc<dyn Runtime> = Arc::<StillRuntime>::clone(runtime);
        Session::new(runtime, header(), None, Some(OwnerId(1))).expect("no seed")
    }

    fn note(text: &str) -> Vec<Draft> {
        vec![Draft::user_message(user(text))]
    }

    fn recorder(seen: &Arc<std::sync::Mutex<Vec<u64>>>) -> Arc<Observer> {
        let seen = Arc::clone(seen);
        Arc::new(move |event: &Arc<Event>| seen.lock().expect("not poisoned").push(event.seq))
    }

    #[test]
    fn observers_run_in_log_order_and_only_for_what_came_after_them() {
        let session = session();
        session.append(note("before")).expect("appends");
        let seen = Arc::default();
        let guard = session.observe(recorder(&seen));
        session.append([note("a"), note("b")].concat()).expect("appends");
        session.append(note("c")).expect("appends");
        drop(guard);
        session.append(note("d")).expect("appends");
        assert_eq!(*seen.lock().expect("not poisoned"), [1, 2, 3]);
        assert_eq!(session.snapshot_from(3).len(), 2);
        assert_eq!(session.snapshot_from(99).len(), 0);
    }

    #[test]
    fn what_enters_the_log_is_a_fact() {
        let runtime = Arc::default();
        let session = on(&runtime);
        session.append(note("a")).expect("appends");
        session.append(turn(1, prompt(), "b", TurnEndReason::Completed)).expect("appends");
        let facts = runtime.facts.lock().expect("not poisoned");
        let names: Vec<_> = facts
            .iter()
            .map(|fact| match fact {
                Fact::EventsAppended { seq, count, .. } => format!("{seq}+{count}"),
                Fact::MessageLogged { seq, .. } => format!("message {seq}"),
                Fact::TurnStarted { .. } => "turn".to_owned(),
                Fact::StepStarted { .. } => "step".to_owned(),
                Fact::StepEnded { .. } => "/step".to_owned(),
                Fact::TurnEnded { .. } => "/turn".to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["0+1", "message 0", "1+5", "turn", "step", "/step", "/turn"]);
    }

    #[test]
    fn a_panicking_observer_is_contained_and_the_append_stands() {
        let session = session();
        let _first = session.observe(Arc::new(|_: &Arc<Event>| panic!("observer")));
        let seen = Arc::default();
        let _second = session.observe(recorder(&seen));
        assert_eq!(session.append(note("a")), Ok(0..1));
        assert_eq!(session.append(note("b")), Ok(1..2));
        assert_eq!(*seen.lock().expect("not poisoned"), [0, 1]);
    }

    #[test]
    fn an_observer_may_not_append_to_its_session_and_the_outer_append_stands() {
        let session = session();
        let refused = Arc::new(AtomicU64::new(0));
        let (inner, count) = (Arc::downgrade(&session), Arc::clone(&refused));
        let _guard = session.observe(Arc::new(move |_: &Arc<Event>| {
            let inner = inner.upgrade().expect("alive");
            assert_eq!(inner.append(note("inner")), Err(AppendError::Reentrant));
            count.fetch_add(1, Ordering::Relaxed);
        }));
        session.append([note("a"), note("b")].concat()).expect("appends");
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        assert_eq!(session.len(), 2);
    }

    #[test]
    fn an_observer_may_append_to_another_session() {
        let (session, other) = (session(), session());
        let target = Arc::clone(&other);
        let _guard = session.observe(Arc::new(move |_: &Arc<Event>| {
            target.append(note("copied")).expect("another session");
        }));
        session.append(note("a")).expect("appends");
        assert_eq!(other.len(), 1);
    }

    #[test]
    fn an_append_from_another_task_during_a_publication_is_published_after_it() {
        let session = session();
        let seen = Arc::default();
        let (appended, wait) = mpsc::channel();
        let wait = std::sync::Mutex::new(Some(wait));
        let (start, started) = mpsc::channel();
        let _slow = session.observe(Arc::new(move |event: &Arc<Event>| {
            if event.seq == 0 {
                let wait = wait.lock().expect("not poisoned").take().expect("once");
                start.send(()).expect("the other thread waits");
                wait.recv().expect("the other thread appends");
            }
        }));
        let _recorder = session.observe(recorder(&seen));
        let other = Arc::clone(&session);
        let thread = std::thread::spawn(move || {
            started.recv().expect("a publication begins");
            let range = other.append(note("b"));
            appended.send(()).expect("the observer waits");
            range
        });
        session.append(note("a")).expect("appends");
        assert_eq!(thread.join().expect("no panic"), Ok(1..2));
        assert_eq!(*seen.lock().expect("not poisoned"), [0, 1]);
    }

    #[test]
    fn what_is_asked_for_during_a_publication_happens_when_it_has_unwound() {
        let session = session();
        let inner = Arc::downgrade(&session);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&order);
        let _guard = session.observe(Arc::new(move |event: &Arc<Event>| {
            let (seq, log) = (event.seq, Arc::clone(&log));
            log.lock().expect("not poisoned").push(format!("event {seq}"));
            let inner = inner.upgrade().expect("alive");
            inner.after_publication(Box::new(move || {
                log.lock().expect("not poisoned").push(format!("after {seq}"));
            }));
        }));
        session.append([note("a"), note("b")].concat()).expect("appends");
        let order = order.lock().expect("not poisoned").join(", ");
        assert_eq!(order, "event 0, event 1, after 0, after 1");
    }

    #[test]
    fn a_veto_or_a_panic_of_a_validator_leaves_the_log_as_it_was() {
        let session = session();
        session.add_validator(Arc::new(|log, staged| {
            let opens = staged.iter().any(|event| event.kind() == "turn/start");
            assert!(log.len() < 2, "too long");
            if opens { Err("no turns".to_owned()) } else { Ok(()) }
        }));
        let batch = vec![Draft::user_message(user("a")), Draft::turn_start(1, prompt())];
        assert_eq!(
            session.append(batch),
            Err(AppendError::Vetoed { reason: "no turns".to_owned() })
        );
        assert_eq!((session.len(), session.lock().open_turn()), (0, None));
        session.append(note("a")).expect("appends");
        session.append(note("b")).expect("appends");
        assert!(matches!(session.append(note("c")), Err(AppendError::Vetoed { .. })));
        assert_eq!(session.len(), 2);
    }
}
