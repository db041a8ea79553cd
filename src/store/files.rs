//! The disk as the store uses it: every operation after its named point, every error with its
//! operation and path.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::disk::{Disk, DiskOperation, DiskPath, Entry, EntryKind, Lease};
use super::error::{DiskFailure, StoreError};
use super::fence::FenceError;
use super::jsonl::{self, DecodedLog, LogError};
use super::path::{COMPRESSED_LOG_FILE, LEASE_FILE, LOG_FILE, SessionPlace, session_directory};
use crate::ids::SessionId;
use crate::points::Point;
use crate::runtime::Runtime;
use crate::session::SessionHeader;

/// How much is read at a time, in bytes.
const READ_BYTES: usize = 64 * 1_024;

/// How much of a file is searched for the end of its header, in bytes.
const HEADER_MAX_BYTES: usize = 1 << 20;

/// How much is read at a time while looking for the end of the header, in bytes.
const HEADER_READ_BYTES: usize = 4_096;

/// How often a read starts over because the file grew meanwhile.
const READ_ATTEMPTS: u32 = 8;

/// How many names are tried for the temporary file of a new session.
const TEMPORARY_NAMES: u64 = 64;

/// The disk and the runtime whose points stand before each of its operations.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) runtime: Arc<dyn Runtime>,
    disk: Arc<dyn Disk>,
}

fn failure(operation: DiskOperation, path: &DiskPath, source: io::Error) -> StoreError {
    DiskFailure { operation, path: path.clone(), source: Arc::new(source) }.into()
}

/// Whether a disk operation failed in that way.
pub(super) fn failed_as(error: &StoreError, kind: ErrorKind) -> bool {
    matches!(error, StoreError::Disk(failure) if failure.source.kind() == kind)
}

/// What the disk said about the fencing numbers of a lease file, if that is why it failed.
fn fence_error(error: &StoreError) -> Option<FenceError> {
    let StoreError::Disk(failure) = error else { return None };
    failure.source.get_ref()?.downcast_ref().copied()
}

fn log_error(file: &DiskPath, error: LogError) -> StoreError {
    let file = file.clone();
    match error {
        LogError::Damaged { offset, what } => StoreError::Damaged { file, offset, what },
        LogError::Unsupported { offset, what } => StoreError::UnsupportedLog { file, offset, what },
    }
}

impl Files {
    pub(super) fn new(runtime: Arc<dyn Runtime>, disk: Arc<dyn Disk>) -> Self {
        Self { runtime, disk }
    }

    async fn run<T>(
        &self,
        point: Point,
        operation: DiskOperation,
        path: &DiskPath,
        call: impl Future<Output = io::Result<T>>,
    ) -> Result<T, StoreError> {
        self.runtime.point(point).await;
        call.await.map_err(|error| failure(operation, path, error))
    }

    pub(super) async fn length(&self, file: &DiskPath) -> Result<Option<u64>, StoreError> {
        let call = self.disk.length(file);
        self.run(Point::StoreLength, DiskOperation::Length, file, call).await
    }

    pub(super) async fn read(
        &self,
        file: &DiskPath,
        offset: u64,
        max: usize,
    ) -> Result<Vec<u8>, StoreError> {
        let call = self.disk.read(file, offset, max);
        self.run(Point::StoreRead, DiskOperation::Read, file, call).await
    }

    pub(super) async fn append(&self, file: &DiskPath, bytes: &[u8]) -> Result<u64, StoreError> {
        let call = self.disk.append(file, bytes.to_vec());
        self.run(Point::StoreAppend, DiskOperation::Append, file, call).await
    }

    pub(super) async fn overwrite(
        &self,
        file: &DiskPath,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let call = self.disk.overwrite(file, offset, bytes.to_vec());
        self.run(Point::StoreOverwrite, DiskOperation::Overwrite, file, call).await
    }

    pub(super) async fn truncate(&self, file: &DiskPath, length: u64) -> Result<(), StoreError> {
        let call = self.disk.truncate(file, length);
        self.run(Point::StoreTruncate, DiskOperation::Truncate, file, call).await
    }

    pub(super) async fn sync(&self, file: &DiskPath) -> Result<(), StoreError> {
        self.run(Point::StoreSync, DiskOperation::Sync, file, self.disk.sync(file)).await
    }

    pub(super) async fn sync_directory(&self, directory: &DiskPath) -> Result<(), StoreError> {
        let call = self.disk.sync_directory(directory);
        self.run(Point::StoreSyncDirectory, DiskOperation::SyncDirectory, directory, call).await
    }

    /// The lease of the whole store.
    pub(super) async fn lease(&self) -> Result<Lease, StoreError> {
        let file = DiskPath::root().child(LEASE_FILE);
        self.create_directory(&DiskPath::root()).await?;
        let call = self.disk.lease(&file);
        let taken = self.run(Point::StoreLease, DiskOperation::Lease, &file, call).await;
        let taken = taken.map_err(|error| match fence_error(&error) {
            Some(source) => StoreError::LeaseUnusable { file: file.clone(), source },
            None => error,
        })?;
        taken.ok_or(StoreError::LeaseHeld)
    }

    async fn create_directory(&self, directory: &DiskPath) -> Result<(), StoreError> {
        let call = self.disk.create_directory(directory);
        self.run(Point::StoreCreateDirectory, DiskOperation::CreateDirectory, directory, call)
            .await
            .map(|_| ())
    }

    /// The subdirectories of `directory`; none if it does not exist.
    pub(super) async fn subdirectories(
        &self,
        directory: &DiskPath,
    ) -> Result<Vec<DiskPath>, StoreError> {
        let entries = self.entries(directory).await?;
        let directories = entries.into_iter().filter(|entry| entry.kind == EntryKind::Directory);
        Ok(directories.map(|entry| directory.child(&entry.name)).collect())
    }

    async fn entries(&self, directory: &DiskPath) -> Result<Vec<Entry>, StoreError> {
        let call = self.disk.list(directory);
        match self.run(Point::StoreList, DiskOperation::List, directory, call).await {
            Err(error) if failed_as(&error, ErrorKind::NotFound) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Whether a log is stored in `directory`.
    ///
    /// # Errors
    ///
    /// `UnsupportedLog` if only a compressed one is.
    pub(super) async fn holds_log(&self, directory: &DiskPath) -> Result<bool, StoreError> {
        let entries = self.entries(directory).await?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        if !has(LOG_FILE) && has(COMPRESSED_LOG_FILE) {
            return Err(StoreError::UnsupportedLog {
                file: directory.child(COMPRESSED_LOG_FILE),
                offset: 0,
                what: "compressed logs are not read".to_owned(),
            });
        }
        Ok(has(LOG_FILE))
    }

    /// Where the log of `id` is stored, whatever project it belongs to.
    ///
    /// # Errors
    ///
    /// `InvalidId`, `Duplicate` if two projects have it, `UnsupportedLog`, or a disk failure.
    pub(super) async fn find(&self, id: &SessionId) -> Result<Option<SessionPlace>, StoreError> {
        let name = session_directory(id)?;
        let mut found: Option<SessionPlace> = None;
        for project in self.subdirectories(&DiskPath::root()).await? {
            let place = SessionPlace::at(&project, &name);
            if !self.holds_log(&place.directory).await? {
                continue;
            }
            if let Some(first) = found {
                return Err(StoreError::Duplicate {
                    id: id.clone(),
                    first: first.log,
                    second: place.log,
                });
            }
            found = Some(place);
        }
        Ok(found)
    }

    /// The header of the log at `place`, which must be that of `id`. Reads only as far as needed.
    pub(super) async fn read_header(
        &self,
        id: &SessionId,
        place: &SessionPlace,
    ) -> Result<SessionHeader, StoreError> {
        let mut line = Vec::new();
        while !line.contains(&b'\n') && line.len() < HEADER_MAX_BYTES {
            let more = self.read(&place.log, line.len() as u64, HEADER_READ_BYTES).await?;
            if more.is_empty() {
                break;
            }
            line.extend_from_slice(&more);
        }
        if let Some(newline) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(newline + 1);
        }
        let header = jsonl::decode_header(&line).map_err(|error| log_error(&place.log, error))?;
        check_place(id, place, &header)?;
        Ok(header)
    }

    /// The log at `place`, which must be that of `id`, and its bytes.
    pub(super) async fn read_log(
        &self,
        id: &SessionId,
        place: &SessionPlace,
    ) -> Result<(DecodedLog, Vec<u8>), StoreError> {
        let bytes = self.read_whole(&place.log).await?;
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        // Whose log it is comes before what is wrong with it.
        let header =
            jsonl::decode_header(&bytes[..end]).map_err(|error| log_error(&place.log, error))?;
        check_place(id, place, &header)?;
        let log = jsonl::decode(&bytes).map_err(|error| log_error(&place.log, error))?;
        Ok((log, bytes))
    }

    /// All bytes of a file that did not change while they were read.
    async fn read_whole(&self, file: &DiskPath) -> Result<Vec<u8>, StoreError> {
        let mut expected = self.length(file).await?.unwrap_or(0);
        for _ in 0..READ_ATTEMPTS {
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < expected {
                let more = self.read(file, bytes.len() as u64, READ_BYTES).await?;
                if more.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&more);
            }
            let after = self.length(file).await?.unwrap_or(0);
            if after == expected && bytes.len() as u64 == expected {
                return Ok(bytes);
            }
            expected = after;
        }
        let found = self.length(file).await?;
        Err(StoreError::Conflict { file: file.clone(), expected, found })
    }

    /// Fails unless `file` is `expected` bytes long (contract P15).
    pub(super) async fn expect_length(
        &self,
        file: &DiskPath,
        expected: u64,
    ) -> Result<(), StoreError> {
        let found = self.length(file).await?;
        if found == Some(expected) {
            return Ok(());
        }
        Err(StoreError::Conflict { file: file.clone(), expected, found })
    }

    /// Makes the log at `place` with `bytes`, whole or not at all: a temporary file is written and
    /// synced, then linked into place. Its names are not synced yet.
    pub(super) async fn materialise(
        &self,
        place: &SessionPlace,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        match self.create_directory(&place.project).await {
            Err(error) if failed_as(&error, ErrorKind::NotFound) => {
                self.create_directory(&DiskPath::root()).await?;
                self.create_directory(&place.project).await?;
            }
            made => made?,
        }
        self.create_directory(&place.directory).await?;
        let temporary = self.write_temporary(place, bytes).await?;
        let linked = self.link_into_place(&temporary, &place.log).await;
        // A temporary file left behind is never read; failing over it would fail for nothing.
        self.remove_quietly(&temporary).await;
        linked
    }

    /// Writes the temporary file under the first free name: a crash may have left others.
    async fn write_temporary(
        &self,
        place: &SessionPlace,
        bytes: &[u8],
    ) -> Result<DiskPath, StoreError> {
        let mut attempt = 0;
        loop {
            let temporary = place.temporary(attempt);
            let call = self.disk.write_new(&temporary, bytes.to_vec());
            match self.run(Point::StoreWriteNew, DiskOperation::WriteNew, &temporary, call).await {
                Ok(()) => return Ok(temporary),
                Err(error) if failed_as(&error, ErrorKind::AlreadyExists) => {
                    attempt += 1;
                    if attempt == TEMPORARY_NAMES {
                        return Err(error);
                    }
                }
                Err(error) => {
                    self.remove_quietly(&temporary).await;
                    return Err(error);
                }
            }
        }
    }

    async fn link_into_place(&self, from: &DiskPath, log: &DiskPath) -> Result<(), StoreError> {
        let call = self.disk.sync(from);
        self.run(Point::StoreSyncNew, DiskOperation::Sync, from, call).await?;
        let call = self.disk.link(from, log);
        match self.run(Point::StoreLink, DiskOperation::Link, log, call).await {
            Err(error) if failed_as(&error, ErrorKind::AlreadyExists) => {
                // Somebody else made the log since we looked (contract P15).
                let found = self.length(log).await?;
                Err(StoreError::Conflict { file: log.clone(), expected: 0, found })
            }
            linked => linked,
        }
    }

    async fn remove_quietly(&self, file: &DiskPath) {
        let call = self.disk.remove(file);
        drop(self.run(Point::StoreRemove, DiskOperation::Remove, file, call).await);
    }
}

/// Fails unless `header` is that of `id` and belongs where it was found (fact-sheet 2.9): a repair
/// must never be redirected into another session's file.
fn check_place(
    id: &SessionId,
    place: &SessionPlace,
    header: &SessionHeader,
) -> Result<(), StoreError> {
    let mismatch = |what: String| StoreError::HeaderMismatch { file: place.log.clone(), what };
    if header.id != *id {
        return Err(mismatch(format!("it names session {}, not {id}", header.id)));
    }
    let belongs = SessionPlace::of(id, header.cwd.as_deref())?;
    if belongs.log != place.log {
        return Err(mismatch(format!("it belongs to {}", belongs.log)));
    }
    Ok(())
}
