//! The probe: reads live logs and the disk right after the steps that claim something about them.
//!
//! Facts say what the code under test believes. A lying store believes that a flush confirmed what
//! is not on the disk, so the disk itself is asked, and the log itself is read (I4, I25).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use continuable::agent::AgentHost;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId};
use continuable::session::Event;
use continuable::store::path::SessionPlace;

use crate::disk::SimDisk;
use crate::explore::Probe;
use crate::invariants::log;
use crate::trace::Note;

/// Looks at one deployment.
pub struct Judge {
    disk: SimDisk,
    host: Weak<AgentHost>,
    state: Mutex<State>,
    confirmed: Confirmed,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<OwnerId, SessionId>,
    /// How many events each fork inherited.
    seeds: BTreeMap<SessionId, u64>,
}

/// A digest of the first `length` events as they are stored.
fn digest(events: &[Arc<Event>], length: u64) -> u64 {
    let seed = events.iter().take(usize::try_from(length).unwrap_or(usize::MAX));
    let lines: String = seed.map(|event| event.fresh_line()).collect();
    continuable::sync::key_of(&lines)
}

/// What is known of the files of a run: it outlives the process. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Confirmed(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Of each session the confirmed bytes.
    bytes: BTreeMap<SessionId, Vec<u8>>,
    /// Sessions whose files somebody else changed: what was confirmed of them holds no more.
    struck: BTreeSet<SessionId>,
    /// Of those that a second runtime changed, the lines that either was told are durable.
    contested: BTreeMap<SessionId, BTreeSet<String>>,
}

impl Confirmed {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many events of `session` were confirmed.
    pub fn events(&self, session: &SessionId) -> u64 {
        let known = self.known();
        let newlines = |bytes: &Vec<u8>| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        // The first line is the header.
        known.bytes.get(session).map_or(0, newlines).saturating_sub(1)
    }

    /// Somebody else changes the file of `session`.
    pub fn strike(&self, session: &SessionId) {
        let mut known = self.known();
        known.bytes.remove(session);
        known.contested.remove(session);
        known.struck.insert(session.clone());
    }

    /// A second runtime is about to write the file of `session` (contract P15): what was confirmed
    /// of it is a claim from now on, to be found in the file or missed aloud.
    pub fn contest(&self, session: &SessionId) {
        let mut known = self.known();
        if !known.struck.insert(session.clone()) {
            return;
        }
        let bytes = known.bytes.remove(session).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let claims = text.lines().skip(1).map(str::to_owned).collect();
        known.contested.insert(session.clone(), claims);
    }

    /// Either runtime was told that the first `mark` of `events` are durable.
    fn claim(&self, session: &SessionId, events: &[Arc<Event>], mark: u64) {
        let mut known = self.known();
        let Some(claims) = known.contested.get_mut(session) else { return };
        let marked = events.iter().take(usize::try_from(mark).unwrap_or(usize::MAX));
        claims.extend(marked.map(|event| event.fresh_line().trim_end().to_owned()));
    }

    /// Every contested session, with the lines that either runtime was told are durable.
    pub fn contested(&self) -> Vec<(SessionId, BTreeSet<String>)> {
        self.known().contested.clone().into_iter().collect()
    }

    /// Whether somebody else ever did.
    pub fn is_struck(&self, session: &SessionId) -> bool {
        self.known().struck.contains(session)
    }
}

impl Judge {
    /// A probe of the agents of `host` and of `disk`, on which `confirmed` is confirmed.
    pub fn new(disk: SimDisk, host: &Arc<AgentHost>, confirmed: Confirmed) -> Arc<Self> {
        Arc::new(Self { disk, host: Arc::downgrade(host), state: Mutex::default(), confirmed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, session: &SessionId) -> Option<Note> {
        if self.confirmed.is_struck(session) {
            return None;
        }
        let agent = self.host.upgrade()?.get(session)?;
        let events = agent.session().snapshot_from(0);
        let fault = log::fault(&events, false);
        let seed = self.state().seeds.get(session).copied().map(|length| digest(&events, length));
        Some(Note::LogJudged { session: session.clone(), events: events.len() as u64, fault, seed })
    }

    fn disk(&self, session: &SessionId, mark: u64) -> Option<Note> {
        if self.confirmed.is_struck(session) {
            let agent = self.host.upgrade()?.get(session)?;
            self.confirmed.claim(session, &agent.session().snapshot_from(0), mark);
            return None;
        }
        let place = SessionPlace::of(session, None).ok()?;
        let bytes = self.disk.durable_file(&place.log).unwrap_or_default();
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let ends: Vec<_> = ends.map(|(end, _)| end + 1).collect();
        // The first line is the header; the marked events follow.
        let marked = usize::try_from(mark).unwrap_or(usize::MAX);
        let whole = ends.get(marked).copied().unwrap_or(0);
        let mut files = self.confirmed.known();
        let known = files.bytes.entry(session.clone()).or_default();
        let changed = !bytes.starts_with(known);
        if whole >= known.len() {
            *known = bytes[..whole].to_vec();
        }
        let durable = (ends.len() as u64).saturating_sub(1);
        Some(Note::DiskJudged { session: session.clone(), durable, changed })
    }
}

impl Probe for Judge {
    fn wants(&self, fact: &Fact) -> bool {
        match fact {
            Fact::AgentPublished { agent, session, seed_length, .. } => {
                let mut state = self.state();
                state.sessions.insert(*agent, session.clone());
                if let Some(length) = seed_length {
                    state.seeds.insert(session.clone(), *length);
                }
                true
            }
            Fact::TurnEnded { .. }
            | Fact::FlushConfirmed { .. }
            | Fact::FinalFlushEnded { mark: Some(_), .. } => true,
            _ => false,
        }
    }

    fn look(&self, facts: Vec<Fact>) -> Vec<Note> {
        facts
            .into_iter()
            .filter_map(|fact| match fact {
                Fact::AgentPublished { session, .. } => self.log(&session),
                Fact::TurnEnded { agent, .. } => {
                    let session = self.state().sessions.get(&agent).cloned();
                    session.and_then(|session| self.log(&session))
                }
                Fact::FlushConfirmed { session, mark }
                | Fact::FinalFlushEnded { child: session, mark: Some(mark), .. } => {
                    self.disk(&session, mark)
                }
                _ => None,
            })
            .collect()
    }
}
