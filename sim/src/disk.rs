//! The simulated disk: pending and durable bytes, pending and durable names, and every fault of
//! contract §5 that strikes storage.
//!
//! A file has *cached* bytes, which reads see, and *durable* bytes, which a crash leaves. Writes and
//! cuts are pending until a sync succeeds. A failed sync drops them: they stay readable, a later
//! sync reports success, and a crash loses them all the same (contract P6). A directory has cached
//! and durable names in the same way, except that a failed directory sync keeps them pending.
//!
//! A crash is [`SimDisk::freeze`] (later operations fail and change nothing), the host's own crash,
//! then [`SimDisk::crash`], which asks for each pending write whether it survives, torn where, and
//! thaws the disk. What fails is decided operation by operation by a [`DiskFaults`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use continuable::channel::Latch;
use continuable::runtime::{BoxFuture, Runtime};
use continuable::store::disk::{Disk, DiskOperation, DiskPath, Entry, EntryKind, Lease};
use continuable::store::fence::{LEASE_READ_BYTES, NextFence};
use continuable::sync::{Access, LockClass, Mutex, ObjectKind, touch};

mod faults;
mod record;
mod tree;

pub use faults::{DiskError, DiskFault, DiskFaults, FaultRule, FaultRules};
pub use record::{Recorded, RecordingDisk};
pub use tree::{CrashChoices, CrashQuestion, LoseNothing, LoseUnsynced};

use tree::Tree;

/// The object that stands for the free space of a bounded disk, and for the state of its faults.
const SPACE: u64 = 0;

#[derive(Debug, Default)]
struct State {
    tree: Tree,
    frozen: bool,
    operations: u64,
    /// How many operations of each kind were asked for.
    counts: BTreeMap<DiskOperation, u64>,
    capacity: Option<u64>,
    /// Whether a write ever met the capacity.
    filled: bool,
    /// The files of which bytes were cut, or dropped by a failed sync.
    cut: BTreeSet<DiskPath>,
    /// Who has each lease; holders are numbered.
    leases: BTreeMap<DiskPath, u64>,
    holders: u64,
}

/// A lease of a simulated disk: given back when dropped, gone when its host crashes.
struct SimLease {
    state: Arc<Mutex<State>>,
    file: DiskPath,
    holder: u64,
}

impl Drop for SimLease {
    fn drop(&mut self) {
        touch(ObjectKind::File, self.file.key(), Access::Write);
        let mut state = self.state.lock();
        if state.leases.get(&self.file) == Some(&self.holder) {
            state.leases.remove(&self.file);
        }
    }
}

/// A disk in memory that fails as told. Cloning shares it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    faults: Arc<Mutex<Option<Arc<dyn DiskFaults>>>>,
    runtime: Option<Arc<dyn Runtime>>,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimDisk")
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk that works.
    pub fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(LockClass::Leaf, State::default())),
            faults: Arc::new(Mutex::new(LockClass::Leaf, None)),
            runtime: None,
        }
    }

    /// The same disk with a clock, which [`DiskFault::Slow`] needs.
    pub fn with_runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The same disk as another process has it: with `runtime`'s clock, and faults of its own.
    pub fn for_process(&self, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            state: Arc::clone(&self.state),
            faults: Arc::new(Mutex::new(LockClass::Leaf, None)),
            runtime: Some(runtime),
        }
    }

    /// From now on `faults` decides what fails.
    pub fn set_faults(&self, faults: Arc<dyn DiskFaults>) {
        let before = self.faults.lock().replace(faults);
        drop(before);
    }

    /// From now on nothing fails.
    pub fn heal(&self) {
        let before = self.faults.lock().take();
        drop(before);
    }

    /// Bounds the bytes of all files together; a write that does not fit is torn, with ENOSPC.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// How many operations of each kind were asked for so far.
    pub fn counts(&self) -> BTreeMap<DiskOperation, u64> {
        self.state.lock().counts.clone()
    }

    /// Whether a write ever met the capacity.
    pub fn was_filled(&self) -> bool {
        self.state.lock().filled
    }

    /// Whether bytes of `file` were ever cut, or dropped by a failed sync: without a lease these
    /// may have been somebody else's.
    pub fn was_cut(&self, file: &DiskPath) -> bool {
        self.state.lock().cut.contains(file)
    }

    /// How many operations were asked for so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// From now on operations fail and change nothing, those that already wait included.
    pub fn freeze(&self) {
        self.state.lock().frozen = true;
    }

    /// The right to freeze it.
    pub fn freezer(&self) -> Freezer {
        Freezer(Arc::downgrade(&self.state))
    }

    /// Loses what the crash of the machine loses, as `choices` say, and thaws the disk.
    pub fn crash(&self, choices: &mut dyn CrashChoices) {
        let mut state = self.state.lock();
        state.tree.crash(choices);
        state.leases.clear();
        state.frozen = false;
    }

    /// A disk of its own with the same content, durable and pending, and no faults.
    pub fn fork(&self) -> Self {
        let state = self.state.lock();
        let copy = State {
            tree: state.tree.clone(),
            frozen: false,
            operations: 0,
            counts: BTreeMap::new(),
            capacity: state.capacity,
            filled: false,
            cut: BTreeSet::new(),
            leases: BTreeMap::new(),
            holders: 0,
        };
        Self {
            state: Arc::new(Mutex::new(LockClass::Leaf, copy)),
            faults: Arc::new(Mutex::new(LockClass::Leaf, None)),
            runtime: self.runtime.clone(),
        }
    }

    /// Every file as a reader sees it now.
    pub fn files(&self) -> BTreeMap<DiskPath, Vec<u8>> {
        self.state.lock().tree.files(false)
    }

    /// Every file as it would be after losing everything that is not durable.
    pub fn durable_files(&self) -> BTreeMap<DiskPath, Vec<u8>> {
        self.state.lock().tree.files(true)
    }

    /// One file as it would be after losing everything that is not durable.
    pub fn durable_file(&self, file: &DiskPath) -> Option<Vec<u8>> {
        self.state.lock().tree.durable(file).map(<[u8]>::to_vec)
    }

    /// Whether a crash could lose bytes of the file, or names in the directory, at `place`; false if
    /// nothing is there.
    pub fn has_pending(&self, place: &DiskPath) -> bool {
        self.state.lock().tree.has_pending(place)
    }

    /// Somebody else writes `bytes` as the whole content of `file`, durably.
    pub fn plant(&self, file: &DiskPath, bytes: &[u8]) {
        touch(ObjectKind::File, file.key(), Access::Write);
        self.state.lock().tree.plant(file, bytes);
    }

    /// Changes the bytes of `file`, cached and durable alike: a flipped bit, a run of NUL bytes.
    /// False if there is no such file.
    pub fn damage(&self, file: &DiskPath, change: impl Fn(&mut Vec<u8>)) -> bool {
        touch(ObjectKind::File, file.key(), Access::Write);
        self.state.lock().tree.damage(file, change)
    }

    /// Takes the name `place` away, durably: a directory entry lost after a crash.
    pub fn unlink(&self, place: &DiskPath) -> bool {
        touch(ObjectKind::Directory, place.parent().key(), Access::Write);
        self.state.lock().tree.unlink(place)
    }

    /// Asks the faults, waits as told, and then runs `act` if nothing fails.
    fn run<'a, T: Send + 'a>(
        &'a self,
        operation: DiskOperation,
        path: &'a DiskPath,
        act: impl FnOnce(&mut State, Option<DiskFault>) -> io::Result<T> + Send + 'a,
    ) -> BoxFuture<'a, io::Result<T>> {
        Box::pin(async move {
            let ordinal = {
                let mut state = self.state.lock();
                state.operations += 1;
                *state.counts.entry(operation).or_default() += 1;
                state.operations - 1
            };
            let faults = self.faults.lock().clone();
            if faults.is_some() {
                // What fails may depend on what was asked before: the order matters.
                touch(ObjectKind::File, SPACE, Access::Write);
            }
            let fault = faults.and_then(|faults| faults.decide(operation, path, ordinal));
            let fault = self.wait(fault).await;
            let mut state = self.state.lock();
            if state.frozen {
                return Err(io::Error::other("the disk is frozen"));
            }
            if let Some(DiskFault::Fail(error)) = fault
                && operation != DiskOperation::Sync
            {
                return Err(error.into());
            }
            act(&mut state, fault)
        })
    }

    async fn wait(&self, fault: Option<DiskFault>) -> Option<DiskFault> {
        match fault {
            Some(DiskFault::Hold(gate)) => {
                let gate: Latch<()> = gate;
                gate.wait().await;
                None
            }
            Some(DiskFault::Slow { milliseconds }) => {
                if let Some(runtime) = &self.runtime {
                    runtime.sleep(Duration::from_millis(milliseconds)).await;
                }
                None
            }
            Some(DiskFault::Never) => std::future::pending().await,
            other => other,
        }
    }
}

/// The right to freeze a disk, without keeping it alive.
#[derive(Clone)]
pub struct Freezer(Weak<Mutex<State>>);

impl Freezer {
    /// From now on operations of the disk fail and change nothing.
    pub fn freeze(&self) {
        if let Some(state) = self.0.upgrade() {
            state.lock().frozen = true;
        }
    }
}

impl State {
    /// Adds bytes at `offset`: all of them, or as many as the fault and the capacity let through.
    fn write(
        &mut self,
        file: &DiskPath,
        offset: Option<u64>,
        bytes: &[u8],
        fault: Option<DiskFault>,
    ) -> io::Result<u64> {
        touch(ObjectKind::File, file.key(), Access::Write);
        let length = self.tree.content(file)?.len() as u64;
        let offset = offset.unwrap_or(length);
        let mut fits = bytes.len();
        let mut outcome = Ok(());
        if let Some(DiskFault::Torn { keep, error }) = fault {
            fits = fits.min(usize::try_from(keep).unwrap_or(usize::MAX));
            outcome = Err(error.into());
        }
        if let Some(capacity) = self.capacity {
            touch(ObjectKind::File, SPACE, Access::Write);
            let grows = (offset + fits as u64).saturating_sub(length);
            let free = capacity.saturating_sub(self.tree.used());
            if grows > free {
                fits -= usize::try_from(grows - free).unwrap_or(usize::MAX).min(fits);
                outcome = Err(DiskError::Full.into());
                self.filled = true;
            }
        }
        self.tree.write(file, offset, &bytes[..fits])?;
        outcome.map(|()| length.max(offset + fits as u64))
    }

    /// Writes the next fencing number into the lease `file` and syncs it, as the real disk does.
    fn next_fence(&mut self, file: &DiskPath, fault: Option<DiskFault>) -> io::Result<u64> {
        match self.tree.create_file(file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let contents = self.tree.content(file)?;
        let next = NextFence::after(&contents[..contents.len().min(LEASE_READ_BYTES)])
            .map_err(|unusable| io::Error::new(ErrorKind::InvalidData, unusable))?;
        self.write(file, Some(next.offset), &next.line, fault)?;
        self.tree.sync(file)?;
        if next.is_first() {
            touch(ObjectKind::Directory, file.parent().key(), Access::Write);
            self.tree.sync_directory(&file.parent())?;
        }
        Ok(next.number)
    }
}

impl Disk for SimDisk {
    fn list<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<Vec<Entry>>> {
        self.run(DiskOperation::List, directory, |state, _| {
            touch(ObjectKind::Directory, directory.key(), Access::Read);
            let entries = state.tree.list(directory)?.into_iter().map(|(name, is_directory)| {
                let kind = if is_directory { EntryKind::Directory } else { EntryKind::File };
                Entry { name, kind }
            });
            Ok(entries.collect())
        })
    }

    fn length<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<u64>>> {
        self.run(DiskOperation::Length, file, |state, _| {
            touch(ObjectKind::File, file.key(), Access::Read);
            match state.tree.content(file) {
                Ok(content) => Ok(Some(content.len() as u64)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn read<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        self.run(DiskOperation::Read, file, move |state, fault| {
            touch(ObjectKind::File, file.key(), Access::Read);
            let content = state.tree.content(file)?;
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            let mut end = start.saturating_add(max).min(content.len());
            if let Some(DiskFault::Short { bytes }) = fault {
                // A short read still makes progress; none would mean the end of the file.
                let most = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
                end = end.min(start.saturating_add(most));
            }
            Ok(content[start..end].to_vec())
        })
    }

    fn create_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<bool>> {
        self.run(DiskOperation::CreateDirectory, directory, |state, _| {
            touch(ObjectKind::Directory, directory.parent().key(), Access::Write);
            state.tree.create_directory(directory)
        })
    }

    fn write_new<'a>(
        &'a self,
        file: &'a DiskPath,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::WriteNew, file, move |state, fault| {
            touch(ObjectKind::Directory, file.parent().key(), Access::Write);
            state.tree.create_file(file)?;
            state.write(file, Some(0), &bytes, fault).map(|_| ())
        })
    }

    fn append<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>> {
        self.run(DiskOperation::Append, file, move |state, fault| {
            state.write(file, None, &bytes, fault)
        })
    }

    fn overwrite<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::Overwrite, file, move |state, fault| {
            state.write(file, Some(offset), &bytes, fault).map(|_| ())
        })
    }

    fn truncate<'a>(&'a self, file: &'a DiskPath, length: u64) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::Truncate, file, move |state, _| {
            touch(ObjectKind::File, file.key(), Access::Write);
            state.cut.insert(file.clone());
            state.tree.truncate(file, length)
        })
    }

    fn sync<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::Sync, file, |state, fault| {
            touch(ObjectKind::File, file.key(), Access::Write);
            if let Some(DiskFault::Fail(error)) = fault {
                state.cut.insert(file.clone());
                state.tree.drop_dirty(file)?;
                return Err(error.into());
            }
            state.tree.sync(file)
        })
    }

    fn link<'a>(&'a self, from: &'a DiskPath, to: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::Link, to, move |state, _| {
            touch(ObjectKind::File, from.key(), Access::Read);
            touch(ObjectKind::File, to.key(), Access::Write);
            touch(ObjectKind::Directory, to.parent().key(), Access::Write);
            state.tree.link(from, to)
        })
    }

    fn remove<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::Remove, file, |state, _| {
            touch(ObjectKind::File, file.key(), Access::Write);
            touch(ObjectKind::Directory, file.parent().key(), Access::Write);
            state.tree.remove(file)
        })
    }

    fn sync_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.run(DiskOperation::SyncDirectory, directory, |state, _| {
            touch(ObjectKind::Directory, directory.key(), Access::Write);
            state.tree.sync_directory(directory)
        })
    }

    fn lease<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<Lease>>> {
        self.run(DiskOperation::Lease, file, |state, fault| {
            touch(ObjectKind::File, file.key(), Access::Write);
            if state.leases.contains_key(file) {
                return Ok(None);
            }
            let fence = state.next_fence(file, fault)?;
            state.holders += 1;
            let holder = state.holders;
            state.leases.insert(file.clone(), holder);
            let (state, file) = (Arc::clone(&self.state), file.clone());
            Ok(Some(Lease::new(fence, SimLease { state, file, holder })))
        })
    }
}
