//! Sessions: the append-only log that outlives every agent (fact-sheet 2).
//!
//! Reading order: [`event`] (what a log is made of), [`codec`] (one event, one line), [`log`] (the
//! pure log: what may be appended, what a model sees), [`rules`] and [`surface`] (the checks),
//! [`fold`], [`descriptor`] and [`repair`] (what a log says). [`Session`] is the shared object:
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
mod lossless;
mod observe;

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId};
use crate::runtime::{Runtime, contain_call};
use crate::sync::{LockClass, Mutex, MutexGuard};

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
