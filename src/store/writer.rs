//! The file of one session as this store left it, and what it takes to add to it and to confirm it.
//!
//! Only the holder of the id's turn at the chain has the [`Writer`].

use std::sync::Arc;

use super::disk::DiskPath;
use super::error::StoreError;
use super::files::Files;
use super::jsonl;
use super::path::SessionPlace;
use crate::facts::Fact;
use crate::session::{Event, Session, SessionHeader};

/// Where a session's file stands.
#[derive(Debug)]
pub(super) struct Writer {
    header: Arc<SessionHeader>,
    place: SessionPlace,
    /// Whether the file exists and this store knows its length.
    materialised: bool,
    /// The file's length as this store left it, in bytes.
    length: u64,
    /// How many events those bytes hold.
    events: u64,
    /// How many of the bytes a successful sync covered.
    synced: u64,
    /// How many events are confirmed durable: bytes and names.
    confirmed: u64,
    /// The bytes from `synced` to `length`, to write them again after a failed sync (contract P6).
    unsynced: Vec<u8>,
    /// Whether a sync failed since the last successful one.
    suspect: bool,
    /// A failed append whose bytes may stand after `length`, because taking them back failed, too.
    torn: Option<Vec<u8>>,
    /// Whether a torn tail was cut and not synced since.
    cut_unsynced: bool,
    /// Directories whose names are not known to be durable.
    unsynced_names: Vec<DiskPath>,
}

impl Writer {
    /// The writer of a session that has no file yet, as far as anybody knows.
    pub(super) fn fresh(header: Arc<SessionHeader>, place: SessionPlace) -> Self {
        Self {
            header,
            place,
            materialised: false,
            length: 0,
            events: 0,
            synced: 0,
            confirmed: 0,
            unsynced: Vec::new(),
            suspect: false,
            torn: None,
            cut_unsynced: false,
            unsynced_names: Vec::new(),
        }
    }

    /// The writer of a file that was just read: `bytes` are its valid beginning and hold `events`
    /// events. The bytes from `suspect_from` on were hit by a failed sync.
    pub(super) fn found(
        header: Arc<SessionHeader>,
        place: SessionPlace,
        bytes: &[u8],
        events: u64,
        suspect_from: Option<u64>,
    ) -> Self {
        let length = bytes.len() as u64;
        let synced = suspect_from.unwrap_or(length).min(length);
        // A file that fits into memory has offsets that fit into `usize`.
        let unsynced = bytes[usize::try_from(synced).unwrap_or(bytes.len())..].to_vec();
        let unsynced_names = names_of(&place);
        Self {
            materialised: true,
            length,
            events,
            synced,
            unsynced,
            suspect: suspect_from.is_some(),
            unsynced_names,
            ..Self::fresh(header, place)
        }
    }

    pub(super) fn place(&self) -> &SessionPlace {
        &self.place
    }

    pub(super) fn is_materialised(&self) -> bool {
        self.materialised
    }

    /// The first byte that a failed sync may have lost although it can be read.
    pub(super) fn suspect_from(&self) -> Option<u64> {
        self.suspect.then_some(self.synced)
    }

    fn is_confirmed(&self) -> bool {
        self.confirmed == self.events
            && self.unsynced_names.is_empty()
            && !(self.suspect || self.torn.is_some() || self.cut_unsynced)
    }

    /// Writes every event of `session` that is not written yet. Events that arrive meanwhile form
    /// the next batch. A failed batch stays unwritten, whole and in order.
    pub(super) async fn write_pending(
        &mut self,
        files: &Files,
        session: &Session,
    ) -> Result<(), StoreError> {
        loop {
            let pending = session.snapshot_from(self.events);
            if pending.is_empty() {
                return Ok(());
            }
            self.write(files, &pending, false).await?;
        }
    }

    /// Writes `batch`, which must follow the events written so far. An empty batch is a no-op.
    ///
    /// # Errors
    ///
    /// `Sequence`, `Conflict` (nothing written), or a disk failure: then the file was brought back
    /// to its former length, or `Rollback` says why not and the next write tries again.
    pub(super) async fn write(
        &mut self,
        files: &Files,
        batch: &[Arc<Event>],
        repair: bool,
    ) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        for (expected, event) in (self.events..).zip(batch) {
            if event.seq != expected {
                let (id, found) = (self.header.id.clone(), event.seq);
                return Err(StoreError::Sequence { id, expected, found });
            }
        }
        let bytes = jsonl::encode_events(batch);
        if self.materialised {
            self.append(files, bytes).await?;
        } else {
            self.create(files, bytes).await?;
        }
        let (seq, count) = (self.events, batch.len() as u64);
        self.events += count;
        let session = self.header.id.clone();
        files.runtime.fact(Fact::BatchWritten { session, seq, count, repair });
        Ok(())
    }

    /// Header and first batch appear together, synced.
    async fn create(&mut self, files: &Files, batch: Vec<u8>) -> Result<(), StoreError> {
        let mut bytes = jsonl::encode_header(&self.header);
        bytes.extend_from_slice(&batch);
        files.materialise(&self.place, &bytes).await?;
        self.materialised = true;
        self.length = bytes.len() as u64;
        self.synced = self.length;
        self.unsynced_names = names_of(&self.place);
        Ok(())
    }

    async fn append(&mut self, files: &Files, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.roll_back(files).await?;
        files.expect_length(&self.place.log, self.length).await?;
        let expected = self.length + bytes.len() as u64;
        match files.append(&self.place.log, &bytes).await {
            Ok(found) if found == expected => {
                self.length = expected;
                self.unsynced.extend_from_slice(&bytes);
                Ok(())
            }
            // Somebody wrote in the gap between our check and our append (contract P15).
            Ok(found) => {
                let (file, found) = (self.place.log.clone(), Some(found));
                Err(StoreError::Conflict { file, expected, found })
            }
            Err(append) => {
                self.torn = Some(bytes);
                match self.roll_back(files).await {
                    Ok(()) => Err(append),
                    Err(rollback) => {
                        let (append, rollback) = (Box::new(append), Box::new(rollback));
                        Err(StoreError::Rollback { append, rollback })
                    }
                }
            }
        }
    }

    /// Takes back what a failed append left, be it the last one or an earlier one that could not be
    /// taken back yet: any prefix of its bytes. Nothing may be added before they are gone.
    async fn roll_back(&mut self, files: &Files) -> Result<(), StoreError> {
        let Some(bytes) = &self.torn else { return Ok(()) };
        let (file, expected) = (&self.place.log, self.length);
        let found = files.length(file).await?;
        let conflict = || StoreError::Conflict { file: file.clone(), expected, found };
        let left = found.and_then(|found| found.checked_sub(expected)).ok_or_else(conflict)?;
        let left = usize::try_from(left).map_err(|_| conflict())?;
        if left == 0 {
            self.torn = None;
            return Ok(());
        }
        if left > bytes.len() {
            return Err(conflict());
        }
        let mut read = Vec::new();
        while read.len() < left {
            let more = files.read(file, expected + read.len() as u64, left - read.len()).await?;
            if more.is_empty() {
                return Err(conflict());
            }
            read.extend_from_slice(&more);
        }
        // Bytes that are not ours are somebody else's and stay (contract P15).
        if read != bytes[..left] {
            return Err(conflict());
        }
        self.cut(files).await
    }

    /// Cuts the file to `length`, durably.
    async fn cut(&mut self, files: &Files) -> Result<(), StoreError> {
        files.truncate(&self.place.log, self.length).await?;
        self.torn = None;
        // What this sync covers is confirmed by the next flush only: it may follow a failed one.
        let synced = files.sync(&self.place.log).await;
        self.suspect |= synced.is_err();
        synced
    }

    /// Cuts a torn tail of `bytes` bytes that a load found after the valid beginning.
    pub(super) async fn cut_tail(&mut self, files: &Files, bytes: u64) -> Result<(), StoreError> {
        files.expect_length(&self.place.log, self.length + bytes).await?;
        files.truncate(&self.place.log, self.length).await?;
        self.cut_unsynced = true;
        Ok(())
    }

    /// Makes everything written durable and returns how many events are confirmed.
    ///
    /// After a failed sync every byte past the last successful one is written again first: the
    /// disk may have dropped it and would still report success (contract P6).
    pub(super) async fn confirm(&mut self, files: &Files) -> Result<u64, StoreError> {
        if !self.materialised {
            return Ok(0);
        }
        if self.is_confirmed() {
            return Ok(self.confirmed);
        }
        self.roll_back(files).await?;
        // Another runtime's repair may have cut what we are about to vouch for (contract P15).
        files.expect_length(&self.place.log, self.length).await?;
        if self.suspect {
            files.truncate(&self.place.log, self.length).await?;
            files.overwrite(&self.place.log, self.synced, &self.unsynced).await?;
        }
        if let Err(error) = files.sync(&self.place.log).await {
            self.suspect = true;
            return Err(error);
        }
        self.suspect = false;
        self.cut_unsynced = false;
        self.synced = self.length;
        self.unsynced = Vec::new();
        while let Some(directory) = self.unsynced_names.last() {
            files.sync_directory(directory).await?;
            self.unsynced_names.pop();
        }
        self.confirmed = self.events;
        Ok(self.confirmed)
    }
}

/// The directories that hold the names on the way to a log, the innermost last.
fn names_of(place: &SessionPlace) -> Vec<DiskPath> {
    vec![DiskPath::root(), place.project.clone(), place.directory.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::runtime::{Runtime, TokioRuntime};
    use crate::session::{Draft, TurnEndReason};
    use crate::store::StdDisk;

    /// Scenario 295, from inside: sessions never hand out a gap.
    #[tokio::test]
    async fn a_batch_with_a_gap_is_refused_whole() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        let files = Files::new(runtime, Arc::new(StdDisk::new(root.path())));
        let header = Arc::new(SessionHeader::new(SessionId::new("s"), 0));
        let place = SessionPlace::of(&header.id, None).expect("an ordinary id");
        let mut writer = Writer::fresh(header, place);
        let event = |seq| {
            let end = Draft::turn_end(1, TurnEndReason::Completed);
            Arc::new(Event::new(seq, 0, end))
        };
        for (batch, want) in [(vec![event(1)], 0), (vec![event(0), event(2)], 1)] {
            let error = writer.write(&files, &batch, false).await.expect_err("a gap");
            assert!(matches!(error, StoreError::Sequence { expected, .. } if expected == want));
        }
        writer.write(&files, &[], false).await.expect("an empty batch is a no-op");
        assert!(!writer.is_materialised());
    }
}
