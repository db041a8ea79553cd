//! The operation log of a disk: what a run on a real directory asked for, to be replayed on a
//! [`SimDisk`] that can lose what was not synced.

use std::io;
use std::sync::Arc;

use continuable::channel::Turnstile;
use continuable::ids::SessionId;
use continuable::runtime::BoxFuture;
use continuable::store::disk::{Disk, DiskPath, Entry, Lease};
use continuable::sync::{LockClass, Mutex};

use super::SimDisk;

/// One entry of an operation log. Operations that only read, or failed, change nothing and are not
/// in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// [`Disk::create_directory`].
    CreateDirectory(DiskPath),
    /// [`Disk::write_new`].
    WriteNew(DiskPath, Vec<u8>),
    /// [`Disk::append`].
    Append(DiskPath, Vec<u8>),
    /// [`Disk::overwrite`] from that byte.
    Overwrite(DiskPath, u64, Vec<u8>),
    /// [`Disk::truncate`] to that length.
    Truncate(DiskPath, u64),
    /// [`Disk::sync`].
    Sync(DiskPath),
    /// [`Disk::link`].
    Link(DiskPath, DiskPath),
    /// [`Disk::remove`].
    Remove(DiskPath),
    /// [`Disk::sync_directory`].
    SyncDirectory(DiskPath),
    /// [`Disk::lease`].
    Lease(DiskPath),
    /// The runtime reported the turn with this text durable.
    Confirmed(SessionId, String),
}

impl Recorded {
    /// The file or directory that this entry syncs, if it is a sync.
    pub fn synced(&self) -> Option<&DiskPath> {
        match self {
            Self::Sync(path) | Self::SyncDirectory(path) => Some(path),
            _ => None,
        }
    }

    /// Does the same to `disk`; a confirmation does nothing.
    ///
    /// # Errors
    ///
    /// Whatever `disk` answers.
    pub async fn apply(&self, disk: &SimDisk) -> io::Result<()> {
        match self {
            Self::CreateDirectory(path) => disk.create_directory(path).await.map(drop),
            Self::WriteNew(path, bytes) => disk.write_new(path, bytes.clone()).await,
            Self::Append(path, bytes) => disk.append(path, bytes.clone()).await.map(drop),
            Self::Overwrite(path, at, bytes) => disk.overwrite(path, *at, bytes.clone()).await,
            Self::Truncate(path, length) => disk.truncate(path, *length).await,
            Self::Sync(path) => disk.sync(path).await,
            Self::Link(from, to) => disk.link(from, to).await,
            Self::Remove(path) => disk.remove(path).await,
            Self::SyncDirectory(path) => disk.sync_directory(path).await,
            Self::Lease(path) => disk.lease(path).await.map(drop),
            Self::Confirmed(..) => Ok(()),
        }
    }
}

/// A disk that notes what is asked of the one below. Operations run one at a time, so that their
/// order in the log is the order in which they happened.
#[derive(Debug)]
pub struct RecordingDisk {
    below: Arc<dyn Disk>,
    turns: Turnstile,
    log: Mutex<Vec<Recorded>>,
}

impl RecordingDisk {
    /// Records what is asked of `below`.
    pub fn new(below: Arc<dyn Disk>) -> Self {
        let log = Mutex::new(LockClass::Leaf, Vec::new());
        Self { below, turns: Turnstile::new(), log }
    }

    /// Notes that the runtime reported the turn with `text` in `session` durable.
    pub fn confirm(&self, session: SessionId, text: String) {
        self.log.lock().push(Recorded::Confirmed(session, text));
    }

    /// The log so far.
    pub fn log(&self) -> Vec<Recorded> {
        self.log.lock().clone()
    }

    fn note<'a, T: Send + 'a>(
        &'a self,
        entry: Recorded,
        call: BoxFuture<'a, io::Result<T>>,
    ) -> BoxFuture<'a, io::Result<T>> {
        Box::pin(async move {
            let _turn = self.turns.pass().await;
            let done = call.await?;
            self.log.lock().push(entry);
            Ok(done)
        })
    }
}

impl Disk for RecordingDisk {
    fn list<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<Vec<Entry>>> {
        self.below.list(directory)
    }

    fn length<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<u64>>> {
        self.below.length(file)
    }

    fn read<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        self.below.read(file, offset, max)
    }

    fn create_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<bool>> {
        let entry = Recorded::CreateDirectory(directory.clone());
        self.note(entry, self.below.create_directory(directory))
    }

    fn write_new<'a>(
        &'a self,
        file: &'a DiskPath,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        let entry = Recorded::WriteNew(file.clone(), bytes.clone());
        self.note(entry, self.below.write_new(file, bytes))
    }

    fn append<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>> {
        let entry = Recorded::Append(file.clone(), bytes.clone());
        self.note(entry, self.below.append(file, bytes))
    }

    fn overwrite<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        let entry = Recorded::Overwrite(file.clone(), offset, bytes.clone());
        self.note(entry, self.below.overwrite(file, offset, bytes))
    }

    fn truncate<'a>(&'a self, file: &'a DiskPath, length: u64) -> BoxFuture<'a, io::Result<()>> {
        self.note(Recorded::Truncate(file.clone(), length), self.below.truncate(file, length))
    }

    fn sync<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.note(Recorded::Sync(file.clone()), self.below.sync(file))
    }

    fn link<'a>(&'a self, from: &'a DiskPath, to: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.note(Recorded::Link(from.clone(), to.clone()), self.below.link(from, to))
    }

    fn remove<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.note(Recorded::Remove(file.clone()), self.below.remove(file))
    }

    fn sync_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        let entry = Recorded::SyncDirectory(directory.clone());
        self.note(entry, self.below.sync_directory(directory))
    }

    fn lease<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<Lease>>> {
        self.note(Recorded::Lease(file.clone()), self.below.lease(file))
    }
}
