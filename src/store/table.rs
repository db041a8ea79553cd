//! Who owns which id: live owners, reservations of cold loads, and each id's chain.
//!
//! Pure decisions; [`super::SessionStore`] holds the table behind one leaf lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::disk::Lease;
use super::error::StoreError;
use super::writer::Writer;
use crate::channel::{Latch, Turnstile};
use crate::ids::SessionId;
use crate::session::Session;
use crate::sync::{Access, ObjectKind, key_of, touch};

/// How far the retirement of a live owner is.
#[derive(Debug)]
enum Retirement {
    /// It was not asked for.
    No,
    /// It is under way; the latch is set when it ended.
    Pending(Latch<()>),
    /// Its flush failed. The events are kept until somebody needs the id, or the store closes.
    Failed,
}

#[derive(Debug)]
struct Owner {
    session: Arc<Session>,
    /// Whether it was ever poked or flushed: if not, it has nothing pending.
    active: bool,
    /// Whether an eager write is in flight.
    writing: bool,
    /// Whether it was poked since that write looked.
    again: bool,
    retirement: Retirement,
}

impl Owner {
    fn is(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

#[derive(Debug, Default)]
struct Slot {
    chain: Arc<Turnstile>,
    owner: Option<Owner>,
    reservation: Option<u64>,
    writer: Option<Writer>,
    /// The first byte of the file that a failed sync may have lost (contract P6).
    suspect: Option<u64>,
}

impl Slot {
    fn owner_of(&mut self, session: &Arc<Session>) -> Option<&mut Owner> {
        self.owner.as_mut().filter(|owner| owner.is(session))
    }

    fn forget_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.remember(&writer);
        }
    }

    fn remember(&mut self, writer: &Writer) {
        self.suspect = writer.suspect_from();
    }
}

/// Who stands behind an id, for a reader or a load.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nobody: the disk decides.
    Stored,
    /// A live session.
    Live(Arc<Session>),
    /// A session on its way out; look again when the latch is set.
    Retiring(Latch<()>),
    /// A session whose retirement failed: its last events are only here.
    Unretired(Arc<Session>),
}

/// A forgotten owner, to be dropped after unlock.
#[derive(Debug)]
pub(super) struct Forgotten {
    pub(super) session: Arc<Session>,
    /// Whether its retirement failed before.
    pub(super) unretired: bool,
}

impl From<Owner> for Forgotten {
    fn from(owner: Owner) -> Self {
        let unretired = matches!(owner.retirement, Retirement::Failed);
        Self { session: owner.session, unretired }
    }
}

#[derive(Default)]
pub(super) struct Table {
    slots: BTreeMap<SessionId, Slot>,
    tokens: u64,
    closing: bool,
    lease: Option<Lease>,
    /// Owners forgotten inside a section, to be dropped outside.
    forgotten: Vec<Forgotten>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("slots", &self.slots).finish_non_exhaustive()
    }
}

fn note(id: &SessionId, access: Access) {
    touch(ObjectKind::Name, key_of(id.as_str()), access);
}

impl Table {
    /// From now on nothing new is attached, loaded or poked. Answers who is live.
    pub(super) fn close(&mut self) -> Vec<Arc<Session>> {
        self.closing = true;
        let owners = self.slots.values().filter_map(|slot| slot.owner.as_ref());
        owners.map(|owner| Arc::clone(&owner.session)).collect()
    }

    /// Whether the store's lease was taken.
    pub(super) fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// The fencing number of the lease.
    pub(super) fn fence(&self) -> Option<u64> {
        self.lease.as_ref().map(Lease::fence)
    }

    /// Keeps the lease, or gives it back.
    pub(super) fn set_lease(&mut self, lease: Option<Lease>) -> Option<Lease> {
        std::mem::replace(&mut self.lease, lease)
    }

    /// Owners that were forgotten inside a section.
    pub(super) fn take_forgotten(&mut self) -> Vec<Forgotten> {
        std::mem::take(&mut self.forgotten)
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.slots.keys().cloned().collect()
    }

    /// The chain of `id`; pair with [`Table::tidy`].
    pub(super) fn chain(&mut self, id: &SessionId) -> Arc<Turnstile> {
        note(id, Access::Read);
        Arc::clone(&self.slots.entry(id.clone()).or_default().chain)
    }

    /// Forgets the slot of `id` if nothing is known about it and nobody waits at its chain.
    pub(super) fn tidy(&mut self, id: &SessionId) {
        let idle = self.slots.get(id).is_some_and(|slot| {
            slot.owner.is_none()
                && slot.reservation.is_none()
                && slot.writer.is_none()
                && slot.suspect.is_none()
                && Arc::strong_count(&slot.chain) == 1
        });
        if idle {
            self.slots.remove(id);
        }
    }

    /// Makes `session` the owner of its id. Answers whether a predecessor was forgotten, and
    /// whether its retirement had failed.
    pub(super) fn attach(
        &mut self,
        session: &Arc<Session>,
        token: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let id = session.id();
        note(id, Access::Write);
        if self.closing {
            return Err(StoreError::Closing);
        }
        let slot = self.slots.entry(id.clone()).or_default();
        if slot.reservation.is_some() && slot.reservation != token {
            return Err(StoreError::Reserved { id: id.clone() });
        }
        if let Some(owner) = &slot.owner {
            if owner.is(session) {
                return Ok(None);
            }
            let unwritten = slot.writer.as_ref().is_none_or(|writer| !writer.is_materialised());
            let abandoned = !owner.active && unwritten;
            if !abandoned && !matches!(owner.retirement, Retirement::Failed) {
                let what = "another session of that id is live";
                return Err(StoreError::Collision { id: id.clone(), what });
            }
        }
        let forgotten = slot.owner.take().map(|owner| {
            // What its predecessor knew about the file does not hold for it.
            slot.forget_writer();
            Forgotten::from(owner)
        });
        let unretired = forgotten.as_ref().map(|forgotten| forgotten.unretired);
        self.forgotten.extend(forgotten);
        slot.reservation = None;
        slot.owner = Some(Owner {
            session: Arc::clone(session),
            active: false,
            writing: false,
            again: false,
            retirement: Retirement::No,
        });
        Ok(unretired)
    }

    /// Whether an eager write of `session` must be started now.
    pub(super) fn poke(&mut self, session: &Arc<Session>) -> bool {
        note(session.id(), Access::Write);
        let closing = self.closing;
        let slot = self.slots.get_mut(session.id());
        let Some(owner) = slot.and_then(|slot| slot.owner_of(session)) else { return false };
        if closing || !matches!(owner.retirement, Retirement::No) {
            return false;
        }
        owner.active = true;
        owner.again = true;
        !std::mem::replace(&mut owner.writing, true)
    }

    /// An eager write is about to look at what is pending.
    pub(super) fn write_begins(&mut self, session: &Arc<Session>) {
        note(session.id(), Access::Write);
        if let Some(owner) =
            self.slots.get_mut(session.id()).and_then(|slot| slot.owner_of(session))
        {
            owner.again = false;
        }
    }

    /// An eager write ended; whether it must go on because of events that arrived meanwhile.
    pub(super) fn write_ended(&mut self, session: &Arc<Session>, worked: bool) -> bool {
        note(session.id(), Access::Write);
        let slot = self.slots.get_mut(session.id());
        let Some(owner) = slot.and_then(|slot| slot.owner_of(session)) else { return false };
        owner.writing = worked && owner.again;
        owner.writing
    }

    /// The writer of `session`, for the holder of its chain; `None` if it never wrote.
    pub(super) fn take_writer(
        &mut self,
        session: &Arc<Session>,
    ) -> Result<Option<Writer>, StoreError> {
        note(session.id(), Access::Write);
        let slot = self
            .slots
            .get_mut(session.id())
            .filter(|slot| slot.owner.as_ref().is_some_and(|owner| owner.is(session)));
        let Some(slot) = slot else {
            return Err(StoreError::NotAttached { id: session.id().clone() });
        };
        if let Some(owner) = &mut slot.owner {
            owner.active = true;
        }
        Ok(slot.writer.take())
    }

    /// Gives the writer back. If its owner is gone meanwhile, only what its file needs is kept.
    pub(super) fn put_writer(&mut self, session: &Arc<Session>, writer: Writer) {
        note(session.id(), Access::Write);
        let slot = self.slots.entry(session.id().clone()).or_default();
        if slot.owner_of(session).is_some() {
            slot.writer = Some(writer);
        } else {
            slot.remember(&writer);
        }
    }

    /// The first byte of the file of `id` that a failed sync may have lost.
    pub(super) fn suspect(&self, id: &SessionId) -> Option<u64> {
        self.slots.get(id).and_then(|slot| slot.suspect)
    }

    /// Notes that a sync of the file of `id` failed, whoever wrote its bytes.
    pub(super) fn set_suspect(&mut self, id: &SessionId, suspect: Option<u64>) {
        note(id, Access::Write);
        self.slots.entry(id.clone()).or_default().suspect = suspect;
    }

    /// Whether `session` is the owner of its id.
    pub(super) fn owns(&mut self, session: &Arc<Session>) -> bool {
        note(session.id(), Access::Read);
        self.slots.get_mut(session.id()).is_some_and(|slot| slot.owner_of(session).is_some())
    }

    /// Who stands behind `id`.
    pub(super) fn standing(&self, id: &SessionId) -> Standing {
        note(id, Access::Read);
        let Some(owner) = self.slots.get(id).and_then(|slot| slot.owner.as_ref()) else {
            return Standing::Stored;
        };
        match &owner.retirement {
            Retirement::No => Standing::Live(Arc::clone(&owner.session)),
            Retirement::Pending(latch) => Standing::Retiring(latch.clone()),
            Retirement::Failed => Standing::Unretired(Arc::clone(&owner.session)),
        }
    }

    /// Reserves `id` for a cold load. The caller has seen that nobody is live.
    pub(super) fn reserve(&mut self, id: &SessionId) -> Result<u64, StoreError> {
        note(id, Access::Write);
        if self.closing {
            return Err(StoreError::Closing);
        }
        let slot = self.slots.entry(id.clone()).or_default();
        if slot.reservation.is_some() {
            return Err(StoreError::Reserved { id: id.clone() });
        }
        if slot.owner.is_some() {
            let what = "it became live while it was loading";
            return Err(StoreError::Collision { id: id.clone(), what });
        }
        self.tokens += 1;
        slot.reservation = Some(self.tokens);
        Ok(self.tokens)
    }

    /// A cold load ended well: its writer waits for the session that is made of it.
    pub(super) fn loaded(&mut self, id: &SessionId, token: u64, writer: Writer) {
        note(id, Access::Write);
        if let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.reservation == Some(token)) {
            slot.suspect = None;
            slot.writer = Some(writer);
        }
    }

    /// Gives a reservation back unused.
    pub(super) fn release(&mut self, id: &SessionId, token: u64) {
        note(id, Access::Write);
        if let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.reservation == Some(token)) {
            slot.reservation = None;
            slot.forget_writer();
        }
        self.tidy(id);
    }

    /// Starts the retirement of `session`; `None` if it is not the owner or already retiring.
    pub(super) fn retire(&mut self, session: &Arc<Session>) -> Option<Latch<()>> {
        note(session.id(), Access::Write);
        let owner = self.slots.get_mut(session.id())?.owner_of(session)?;
        if !matches!(owner.retirement, Retirement::No) {
            return None;
        }
        let latch = Latch::new();
        owner.retirement = Retirement::Pending(latch.clone());
        Some(latch)
    }

    /// The retirement's flush failed: the session is kept for a second try.
    pub(super) fn retirement_failed(&mut self, session: &Arc<Session>) {
        note(session.id(), Access::Write);
        let slot = self.slots.get_mut(session.id());
        if let Some(owner) = slot.and_then(|slot| slot.owner_of(session)) {
            owner.retirement = Retirement::Failed;
        }
    }

    /// Forgets `session`; `None` if it is not the owner.
    pub(super) fn forget(&mut self, session: &Arc<Session>) -> Option<Forgotten> {
        note(session.id(), Access::Write);
        let slot = self.slots.get_mut(session.id())?;
        slot.owner_of(session)?;
        let owner = slot.owner.take()?;
        slot.forget_writer();
        self.tidy(session.id());
        Some(owner.into())
    }
}
