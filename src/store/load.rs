//! Reading stored sessions: the authorising header read, inspection, the load that repairs and
//! reserves, adoption by a live session, and listing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::disk::DiskPath;
use super::error::StoreError;
use super::jsonl::{DecodedLog, TailCut};
use super::path::{SessionPlace, session_of_directory};
use super::table::Standing;
use super::writer::Writer;
use super::{SessionStore, Turn, View};
use crate::cancel::CancelSignal;
use crate::facts::Fact;
use crate::ids::SessionId;
use crate::points::Point;
use crate::runtime::spawn;
use crate::session::repair::closers;
use crate::session::{Event, Session, SessionHeader};

/// A session as it is stored, or as its live owner has it.
#[derive(Debug, Clone)]
pub struct StoredSession {
    /// Its header.
    pub header: SessionHeader,
    /// Its events, without closers.
    pub events: Vec<Arc<Event>>,
    /// The torn tail after them, which is still in the file.
    pub tail_cut: Option<TailCut>,
}

/// A session loaded for a new lifecycle: balanced, and confirmed durable.
#[derive(Debug)]
pub struct Loaded {
    /// Its header.
    pub header: SessionHeader,
    /// Its events, closers included: the seed of the live session.
    pub events: Vec<Arc<Event>>,
    /// The torn tail that was cut.
    pub tail_cut: Option<TailCut>,
    /// How many of the events are closers that this load wrote.
    pub closers: u64,
    /// The id, reserved until it is attached or dropped; `None` if a live session owns it.
    pub reservation: Option<Reservation>,
}

/// An id that nobody else can attach or load. Dropping it gives the id back.
#[derive(Debug)]
pub struct Reservation {
    store: Weak<SessionStore>,
    id: SessionId,
    token: u64,
    spent: bool,
}

impl Reservation {
    /// The reserved id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    pub(super) fn token_of(&self, session: &Session) -> Option<u64> {
        (self.id == *session.id()).then_some(self.token)
    }

    pub(super) fn spend(mut self) {
        self.spent = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade().filter(|_| !self.spent) {
            store.table.lock().release(&self.id, self.token);
        }
    }
}

/// One stored session in a listing.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The session's id, as its directory says.
    pub id: SessionId,
    /// Its log.
    pub file: DiskPath,
    /// Its header, if that can be read.
    pub header: Option<SessionHeader>,
    /// How many events a load would keep, before closers.
    pub events: u64,
    /// Whether it has none: only a header.
    pub empty: bool,
    /// The torn tail a load would cut.
    pub tail_cut: Option<TailCut>,
    /// Why a load would fail.
    pub error: Option<StoreError>,
}

impl SessionStore {
    /// The turn at the chain of `id` and who stands behind it, after any retirement under way.
    async fn settled_turn(&self, id: &SessionId) -> (Turn<'_>, Standing) {
        loop {
            let turn = self.turn(id).await;
            let standing = self.table.lock().standing(id);
            match standing {
                Standing::Retiring(latch) => {
                    drop(turn);
                    self.runtime().point(Point::StoreTurn).await;
                    latch.wait().await;
                }
                standing => return (turn, standing),
            }
        }
    }

    fn refused<T>(&self, id: &SessionId, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &outcome {
            self.fact(Fact::LoadRefused { session: id.clone(), code: error.code() });
        }
        outcome
    }

    async fn find_stored(&self, id: &SessionId) -> Result<SessionPlace, StoreError> {
        self.files.find(id).await?.ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }

    /// The header of `id`, for authorisation: writes nothing, reads no further than the header
    /// (contract P5).
    ///
    /// # Errors
    ///
    /// `NotFound`, `InvalidId`, `Damaged`, `UnsupportedLog`, `HeaderMismatch`, `Duplicate`, or a
    /// disk failure.
    pub async fn read_header(&self, id: &SessionId) -> Result<SessionHeader, StoreError> {
        let (_turn, standing) = self.settled_turn(id).await;
        if let Standing::Live(session) = standing {
            return Ok(SessionHeader::clone(session.header()));
        }
        let outcome = async {
            let place = self.find_stored(id).await?;
            self.files.read_header(id, &place).await
        };
        self.refused(id, outcome.await)
    }

    /// The session `id` as it is stored, or as its live owner has it. Writes nothing; dropping the
    /// future ends it at once.
    ///
    /// # Errors
    ///
    /// As [`SessionStore::read_header`], for the whole log.
    pub async fn inspect(&self, id: &SessionId) -> Result<StoredSession, StoreError> {
        let (_turn, standing) = self.settled_turn(id).await;
        if let Standing::Live(session) = standing {
            let header = SessionHeader::clone(session.header());
            let events = session.snapshot_from(0);
            return Ok(StoredSession { header, events, tail_cut: None });
        }
        let place = self.find_stored(id).await?;
        let (log, _) = self.files.read_log(id, &place).await?;
        let DecodedLog { header, events, tail_cut, .. } = log;
        Ok(StoredSession { header, events, tail_cut })
    }

    /// [`SessionStore::inspect`] until `signal` fires, queued or under way.
    ///
    /// # Errors
    ///
    /// `Cancelled` with the signal's cause, whatever else went wrong meanwhile.
    pub async fn inspect_until(
        &self,
        id: &SessionId,
        signal: &CancelSignal,
    ) -> Result<StoredSession, StoreError> {
        tokio::select! {
            biased;
            cause = signal.cancelled() => Err(StoreError::Cancelled { cause }),
            outcome = self.inspect(id) => match signal.cause() {
                Some(cause) => Err(StoreError::Cancelled { cause }),
                None => outcome,
            },
        }
    }

    /// Loads `id` for a new lifecycle and reserves it. A torn tail is cut and an open turn closed,
    /// durably: authorise first (contract P5). The log is read once.
    ///
    /// If a live session owns the id, its events are flushed and answered, without a reservation.
    ///
    /// # Errors
    ///
    /// Nothing of the session was written: `NotFound` (also a live session without events), `InvalidId`,
    /// `Damaged`, `UnsupportedLog`, `HeaderMismatch`, `Duplicate`, `OpenTurn` of a live session,
    /// `Reserved`, `LeaseHeld`, `Closing`. Else `Conflict` or a disk failure.
    pub fn load(self: &Arc<Self>, id: &SessionId) -> View<Loaded> {
        self.load_checked(id, |_stored| true)
    }

    /// Like [`SessionStore::load`], but asks `check` about the stored session after it was read and
    /// before anything of it is written (contract P5). If it answers false, nothing is.
    ///
    /// # Errors
    ///
    /// Those of `load`; `Refused` if `check` said no.
    pub fn load_checked(
        self: &Arc<Self>,
        id: &SessionId,
        check: impl FnOnce(&StoredSession) -> bool + Send + 'static,
    ) -> View<Loaded> {
        let (store, id) = (Arc::clone(self), id.clone());
        let load = async move {
            let outcome = store.load_in_task(&id, check).await;
            store.refused(&id, outcome)
        };
        View(spawn(self.runtime(), "store load", load))
    }

    async fn load_in_task(
        self: &Arc<Self>,
        id: &SessionId,
        check: impl FnOnce(&StoredSession) -> bool + Send,
    ) -> Result<Loaded, StoreError> {
        let (_turn, standing) = self.settled_turn(id).await;
        match standing {
            Standing::Live(session) => return self.load_live(&session, check).await,
            Standing::Unretired(session) => {
                // Its last events are only in memory: save them now or lose them.
                let outcome = self.flush_in_turn(&session).await;
                self.forget(&session, outcome.is_err());
            }
            Standing::Retiring(_) | Standing::Stored => {}
        }
        let token = self.table.lock().reserve(id)?;
        let store = Arc::downgrade(self);
        let reservation = Reservation { store, id: id.clone(), token, spent: false };
        let place = self.find_stored(id).await?;
        // What is read before the lease is had, another runtime may write on until it is.
        self.take_lease().await?;
        let (log, bytes) = self.files.read_log(id, &place).await?;
        let DecodedLog { header, events, kept, tail_cut } = log;
        let stored = StoredSession { header, events, tail_cut };
        if !check(&stored) {
            return Err(StoreError::Refused { id: id.clone() });
        }
        let StoredSession { header, mut events, .. } = stored;
        let (stored, kept) = (events.len() as u64, usize::try_from(kept).unwrap_or(bytes.len()));
        let suspect = self.table.lock().suspect(id);
        let shared = Arc::new(header.clone());
        let mut writer = Writer::found(shared, place, &bytes[..kept], stored, suspect);
        drop(bytes);
        let closing = closers(&events);
        let repaired = self.repair(&mut writer, tail_cut, &closing).await;
        if let Err(error) = repaired {
            // A failed sync may have lost bytes that earlier lifecycles wrote, too.
            let suspect = writer.suspect_from().map(|_| 0).or(suspect);
            self.table.lock().set_suspect(id, suspect);
            return Err(error);
        }
        self.table.lock().loaded(id, token, writer);
        let closers = closing.len() as u64;
        events.extend(closing);
        let (length, cut) = (events.len() as u64, tail_cut.map_or(0, |cut| cut.bytes));
        self.fact(Fact::SessionLoaded { session: id.clone(), length, closers, cut });
        Ok(Loaded { header, events, tail_cut, closers, reservation: Some(reservation) })
    }

    /// Cuts the tail, writes the closers, and confirms the whole file: what a load answers is
    /// durable.
    async fn repair(
        &self,
        writer: &mut Writer,
        tail_cut: Option<TailCut>,
        closing: &[Arc<Event>],
    ) -> Result<(), StoreError> {
        if let Some(cut) = tail_cut {
            writer.cut_tail(&self.files, cut.bytes).await?;
        }
        writer.write(&self.files, closing, true).await?;
        writer.confirm(&self.files).await.map(|_| ())
    }

    async fn load_live(
        &self,
        session: &Arc<Session>,
        check: impl FnOnce(&StoredSession) -> bool + Send,
    ) -> Result<Loaded, StoreError> {
        let (events, open) = {
            let log = session.lock();
            (log.events().to_vec(), log.open_turn())
        };
        let id = session.id().clone();
        if events.is_empty() {
            return Err(StoreError::NotFound { id });
        }
        if let Some(turn) = open {
            return Err(StoreError::OpenTurn { id, turn });
        }
        let header = SessionHeader::clone(session.header());
        let stored = StoredSession { header, events, tail_cut: None };
        if !check(&stored) {
            return Err(StoreError::Refused { id });
        }
        let StoredSession { header, events, .. } = stored;
        self.fact(Fact::FlushStarted { session: id, length: events.len() as u64 });
        // The snapshot was one section; writing what is pending is another.
        self.runtime().point(Point::StoreTurn).await;
        self.flush_in_turn(session).await?;
        Ok(Loaded { header, events, tail_cut: None, closers: 0, reservation: None })
    }

    /// A live session that this store did not load is about to be written: if its log is stored
    /// already, the stored events must be the beginning of `live`, and only the rest is written. A
    /// torn tail is cut; an open turn is not closed, for the live session decides.
    pub(super) async fn adopt(
        &self,
        writer: &mut Writer,
        session: &Arc<Session>,
        live: &[Arc<Event>],
    ) -> Result<(), StoreError> {
        let id = session.id();
        let Some(place) = self.files.find(id).await? else { return Ok(()) };
        let collision = |what| StoreError::Collision { id: id.clone(), what };
        if place != *writer.place() {
            return Err(collision("its stored log has another working directory"));
        }
        let (log, bytes) = self.files.read_log(id, &place).await?;
        if !live.starts_with(&log.events) {
            return Err(collision("its stored log has other events"));
        }
        let suspect = self.table.lock().suspect(id);
        let kept = usize::try_from(log.kept).unwrap_or(bytes.len());
        let (stored, header) = (log.events.len() as u64, Arc::clone(session.header()));
        let mut found = Writer::found(header, place, &bytes[..kept], stored, suspect);
        let repaired = self.repair(&mut found, log.tail_cut, &[]).await;
        if let Err(error) = repaired {
            let suspect = found.suspect_from().map(|_| 0).or(suspect);
            self.table.lock().set_suspect(id, suspect);
            return Err(error);
        }
        self.table.lock().set_suspect(id, None);
        *writer = found;
        Ok(())
    }

    /// Every stored session, with what a load of it would find. Writes nothing.
    ///
    /// # Errors
    ///
    /// A directory could not be listed. What concerns one session is in its entry.
    pub async fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        for project in self.files.subdirectories(&DiskPath::root()).await? {
            for directory in self.files.subdirectories(&project).await? {
                if let Some(id) = session_of_directory(directory.name()) {
                    let place = SessionPlace::at(&project, directory.name());
                    listed.extend(self.list_one(id, place).await);
                }
            }
        }
        mark_duplicates(&mut listed);
        Ok(listed)
    }

    async fn list_one(&self, id: SessionId, place: SessionPlace) -> Option<Listed> {
        let _turn = self.turn(&id).await;
        let file = place.log.clone();
        let outcome = async {
            match self.files.holds_log(&place.directory).await? {
                true => self.files.read_log(&id, &place).await.map(Some),
                false => Ok(None),
            }
        };
        let (log, error) = match outcome.await {
            Ok(None) => return None,
            Ok(Some((log, _))) => (Some(log), None),
            Err(error) => (None, Some(error)),
        };
        let events = log.as_ref().map_or(0, |log| log.events.len() as u64);
        Some(Listed {
            id,
            file,
            empty: error.is_none() && events == 0,
            events,
            tail_cut: log.as_ref().and_then(|log| log.tail_cut),
            header: log.map(|log| log.header),
            error,
        })
    }
}

/// Listing and load agree: an id under two projects is an error in both places.
fn mark_duplicates(listed: &mut [Listed]) {
    let mut files: BTreeMap<SessionId, Vec<DiskPath>> = BTreeMap::new();
    for entry in listed.iter() {
        files.entry(entry.id.clone()).or_default().push(entry.file.clone());
    }
    for entry in listed {
        if let [first, second, ..] = &files[&entry.id][..] {
            let (id, first, second) = (entry.id.clone(), first.clone(), second.clone());
            entry.error = Some(StoreError::Duplicate { id, first, second });
            entry.empty = false;
        }
    }
}
