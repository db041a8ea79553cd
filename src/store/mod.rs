//! Durable session logs (fact-sheet 2.8 to 2.10; contract P5, P6, P12, P13, P15).
//!
//! Reading order: [`disk`] (what a disk can do), [`path`] (where a log lives), [`jsonl`] (its
//! bytes), [`fence`] (those of the lease file), `files` (operations with points and named errors),
//! `writer` (one file: add, confirm), `table` (who owns which id), then [`SessionStore`]: the verbs,
//! here and in `load`.
//!
//! All operations on one id take turns, first in, first out. What writes runs in runtime-owned
//! tasks; the returned future is a view, and dropping it stops nothing (contract P17). Without a
//! lease the gap between the length check and the write remains (contract P15): two runtimes that
//! append in that gap can both succeed, and the damage shows as a sequence error on load.
//! Two losses do not show at all without a lease: one runtime takes back its own torn append while
//! the other, which saw only the torn bytes, has cut them and written on; and a failed sync of one
//! drops bytes that the other has yet to sync. Runtimes that share a root want the lease.

pub mod path;
pub mod disk;
pub mod fence;
pub mod std_disk;
pub mod jsonl;
mod error;
mod files;
mod writer;
mod table;
mod load;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::channel::{Pass, Turnstile};
use crate::facts::Fact;
use crate::ids::SessionId;
use crate::points::Point;
use crate::runtime::{Runtime, Spawned, spawn};
use crate::session::Session;
use crate::sync::{LockClass, Mutex};

pub use disk::{Disk, DiskOperation, DiskPath};
pub use error::{CloseError, CloseFailure, DiskFailure, StoreError};
pub use jsonl::TailCut;
pub use load::{Listed, Loaded, Reservation, StoredSession};
pub use std_disk::StdDisk;

use files::Files;
use path::SessionPlace;
use table::{Forgotten, Table};
use writer::Writer;

/// The future of a store operation that runs in a task of its own: a view, which stops nothing
/// when dropped.
#[must_use = "dropping the view loses the result; say `detach` if that is meant"]
pub struct View<T>(Spawned<Result<T, StoreError>>);

impl<T> View<T> {
    /// Lets the operation run on unseen.
    pub fn detach(self) {
        self.0.detach();
    }
}

impl<T> Future for View<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|outcome| match outcome {
            Ok(outcome) => outcome,
            Err(panicked) => Err(StoreError::Stopped { what: panicked.to_string() }),
        })
    }
}

/// A view of a flush: the durable mark, that is how many leading events are confirmed.
pub type Flush = View<u64>;

/// The store of session logs on one disk.
#[derive(Debug)]
pub struct SessionStore {
    files: Files,
    table: Mutex<Table>,
    /// Who may take the lease; `None` without one.
    leasing: Option<Turnstile>,
}

/// The holder's turn at an id's chain.
struct Turn<'a> {
    store: &'a SessionStore,
    id: SessionId,
    chain: Option<Arc<Turnstile>>,
    pass: Option<Pass>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pass = None;
        self.chain = None;
        self.store.table.lock().tidy(&self.id);
    }
}

impl SessionStore {
    /// The store on `disk`, without a lease. Touches nothing yet.
    pub fn open(runtime: Arc<dyn Runtime>, disk: Arc<dyn Disk>) -> Arc<Self> {
        Self::build(runtime, disk, None)
    }

    /// The store on `disk`, whose first write takes the lease of the whole store and keeps it until
    /// the store is closed or dropped. While another runtime has it, whatever would write fails
    /// with `LeaseHeld` before any write; reading works (contract P15).
    pub fn open_leased(runtime: Arc<dyn Runtime>, disk: Arc<dyn Disk>) -> Arc<Self> {
        Self::build(runtime, disk, Some(Turnstile::new()))
    }

    fn build(
        runtime: Arc<dyn Runtime>,
        disk: Arc<dyn Disk>,
        leasing: Option<Turnstile>,
    ) -> Arc<Self> {
        let table = Mutex::new(LockClass::Leaf, Table::default());
        Arc::new(Self { files: Files::new(runtime, disk), table, leasing })
    }

    /// The fencing number of this store's lease, from the lease file: higher than that of every
    /// store that had the lease before ([`disk::Lease::fence`]). `None` without a lease, before the
    /// first write took it, and after it was given back.
    pub fn fence(&self) -> Option<u64> {
        self.table.lock().fence()
    }

    /// Takes the lease, if this store has one and not taken it yet.
    async fn take_lease(&self) -> Result<(), StoreError> {
        let Some(leasing) = &self.leasing else { return Ok(()) };
        self.runtime().point(Point::StoreLease).await;
        let _pass = leasing.pass().await;
        if self.table.lock().has_lease() {
            return Ok(());
        }
        let lease = self.files.lease().await?;
        self.table.lock().set_lease(Some(lease));
        Ok(())
    }

    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.files.runtime
    }

    fn fact(&self, fact: Fact) {
        self.runtime().fact(fact);
    }

    async fn turn(&self, id: &SessionId) -> Turn<'_> {
        let (chain, forgotten) = {
            let mut table = self.table.lock();
            (table.chain(id), table.take_forgotten())
        };
        drop(forgotten);
        // The turn exists before it is granted, so that a caller who gives up leaves no trace.
        let mut turn =
            Turn { store: self, id: id.clone(), chain: Some(Arc::clone(&chain)), pass: None };
        self.runtime().point(Point::StoreTurn).await;
        turn.pass = Some(chain.pass().await);
        turn
    }

    /// Makes this store responsible for `session`. Nothing is written before its first event, and
    /// nothing at all before it is poked or flushed; a session that has events already (a seed)
    /// needs a poke. Safe to call inside a section.
    ///
    /// # Errors
    ///
    /// `InvalidId`; `Collision` with a live session of that id, unless that one was never poked
    /// nor flushed; `Reserved` while that id is loading, except to the load's own `reservation`;
    /// `Closing`.
    pub fn attach(
        &self,
        session: &Arc<Session>,
        reservation: Option<Reservation>,
    ) -> Result<(), StoreError> {
        SessionPlace::of(session.id(), session.header().cwd.as_deref())?;
        let token = reservation.as_ref().and_then(|reservation| reservation.token_of(session));
        let attached = self.table.lock().attach(session, token);
        if attached.is_ok()
            && let Some(reservation) = reservation
        {
            reservation.spend();
        }
        if let Some(failed) = attached? {
            self.fact(Fact::SessionRetired { session: session.id().clone(), failed });
        }
        Ok(())
    }

    /// Says that `session` has new events: they are written in a task of their own, unless one is
    /// at it already, which then goes on. Not confirmed; a failed write is tried again by the next
    /// poke or flush. Does nothing for a session that is not attached.
    pub fn poke(self: &Arc<Self>, session: &Arc<Session>) {
        if !self.table.lock().poke(session) {
            return;
        }
        let (store, session) = (Arc::clone(self), Arc::clone(session));
        let name = format!("store write {}", session.id());
        spawn(self.runtime(), name, async move { store.write_eagerly(&session).await }).detach();
    }

    async fn write_eagerly(&self, session: &Arc<Session>) {
        loop {
            let _turn = self.turn(session.id()).await;
            self.table.lock().write_begins(session);
            // The batch stays pending; the flush that needs it tries again and reports.
            let worked = self.write_in_turn(session, false).await.is_ok();
            if !self.table.lock().write_ended(session, worked) {
                return;
            }
        }
    }

    /// Writes everything pending and confirms it. Answers the durable mark: how many leading
    /// events of `session` are confirmed (contract P6).
    ///
    /// # Errors
    ///
    /// `NotAttached`, `Conflict`, `LeaseHeld`, `Collision` with a stored session, or a disk failure. Nothing is
    /// lost: the next flush tries again.
    pub fn flush(self: &Arc<Self>, session: &Arc<Session>) -> Flush {
        let (store, session) = (Arc::clone(self), Arc::clone(session));
        let name = format!("store flush {}", session.id());
        let flush = async move {
            let length = session.len();
            store.fact(Fact::FlushStarted { session: session.id().clone(), length });
            let _turn = store.turn(session.id()).await;
            store.flush_in_turn(&session).await
        };
        View(spawn(self.runtime(), name, flush))
    }

    /// Writes and confirms; the caller holds the turn and recorded `FlushStarted`.
    async fn flush_in_turn(&self, session: &Arc<Session>) -> Result<u64, StoreError> {
        let outcome = self.write_in_turn(session, true).await;
        let session = session.id().clone();
        self.fact(match &outcome {
            Ok(mark) => Fact::FlushConfirmed { session, mark: *mark },
            Err(error) => Fact::FlushFailed { session, code: error.code() },
        });
        outcome
    }

    /// Writes what is pending and, if asked, confirms it. The caller holds the turn.
    async fn write_in_turn(
        &self,
        session: &Arc<Session>,
        confirm: bool,
    ) -> Result<u64, StoreError> {
        let taken = self.table.lock().take_writer(session)?;
        let mut writer = match taken {
            Some(writer) => writer,
            None => {
                let place = SessionPlace::of(session.id(), session.header().cwd.as_deref())?;
                Writer::fresh(Arc::clone(session.header()), place)
            }
        };
        let outcome = self.write_with(&mut writer, session, confirm).await;
        self.table.lock().put_writer(session, writer);
        outcome
    }

    async fn write_with(
        &self,
        writer: &mut Writer,
        session: &Arc<Session>,
        confirm: bool,
    ) -> Result<u64, StoreError> {
        self.take_lease().await?;
        if !writer.is_materialised() {
            let pending = session.snapshot_from(0);
            if pending.is_empty() {
                return Ok(0);
            }
            self.adopt(writer, session, &pending).await?;
        }
        writer.write_pending(&self.files, session).await?;
        if confirm { writer.confirm(&self.files).await } else { Ok(0) }
    }

    /// Flushes `session` a last time and forgets it. A failure is the view's value and changes
    /// nothing else: the session's last events are kept until its id is needed again or the store
    /// closes, and tried once more then.
    pub fn retire(self: &Arc<Self>, session: &Arc<Session>) -> View<()> {
        let (store, session) = (Arc::clone(self), Arc::clone(session));
        let name = format!("store retire {}", session.id());
        let latch = self.table.lock().retire(&session);
        let retire = async move {
            let Some(latch) = latch else {
                return Err(StoreError::NotAttached { id: session.id().clone() });
            };
            let length = session.len();
            store.fact(Fact::FlushStarted { session: session.id().clone(), length });
            let turn = store.turn(session.id()).await;
            let outcome = store.flush_in_turn(&session).await;
            store.runtime().point(Point::StoreRetire).await;
            match outcome {
                Ok(_) => store.forget(&session, false),
                Err(_) => store.table.lock().retirement_failed(&session),
            }
            drop(turn);
            latch.set(());
            outcome.map(|_| ())
        };
        View(spawn(self.runtime(), name, retire))
    }

    fn forget(&self, session: &Arc<Session>, failed: bool) {
        let forgotten = self.table.lock().forget(session);
        if let Some(Forgotten { session, .. }) = forgotten {
            self.fact(Fact::SessionRetired { session: session.id().clone(), failed });
        }
    }

    /// Forgets `session` at once, written or not: a detached store. Later flushes of it fail.
    pub fn detach(&self, session: &Arc<Session>) {
        self.forget(session, true);
    }

    /// Refuses everything new, flushes every live session a last time, waits for everything under
    /// way, and forgets them all.
    ///
    /// # Errors
    ///
    /// [`CloseError`] with every session that was not confirmed.
    pub fn close(self: &Arc<Self>) -> impl Future<Output = Result<(), CloseError>> + Send + use<> {
        let store = Arc::clone(self);
        let close = spawn(self.runtime(), "store close", async move { store.drain().await });
        async move {
            let failures = close.await.unwrap_or_else(|panicked| {
                let error = StoreError::Stopped { what: panicked.to_string() };
                vec![CloseFailure { session: None, error }]
            });
            if failures.is_empty() { Ok(()) } else { Err(CloseError { failures }) }
        }
    }

    async fn drain(&self) -> Vec<CloseFailure> {
        let mut failures = Vec::new();
        let live = self.table.lock().close();
        for session in live {
            let _turn = self.turn(session.id()).await;
            // Its own retirement may have finished first.
            if !self.table.lock().owns(&session) {
                continue;
            }
            let outcome = self.flush_in_turn(&session).await;
            self.forget(&session, outcome.is_err());
            if let Err(error) = outcome {
                failures.push(CloseFailure { session: Some(session.id().clone()), error });
            }
        }
        let busy = self.table.lock().ids();
        for id in busy {
            drop(self.turn(&id).await);
        }
        let lease = self.table.lock().set_lease(None);
        drop(lease);
        failures
    }
}
