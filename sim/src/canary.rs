//! The canary: parts that lie, through the public traits. Every sweep runs one and must catch it in
//! its first second; a sweep that does not is void.

use std::io;
use std::sync::Arc;

use continuable::ids::{OwnerId, SessionId};
use continuable::provider::in_process::InProcess;
use continuable::provider::{
    Capabilities, ContinuableProvider, ContinuableRequest, DisposeError, ResumeRequest,
    StartFuture, StartRequest, Steer, SubagentError, SubagentProvider, SubagentResult, SubagentRun,
};
use continuable::runtime::BoxFuture;
use continuable::store::disk::{Disk, DiskPath, Entry, Lease};

use serde::{Deserialize, Serialize};

use crate::disk::SimDisk;

/// Which part lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// The disk reports a sync that it did not make: a flush then confirms what a crash loses (I4).
    Flush,
    /// The provider reports a run as disposed that it has only begun to dispose (I2).
    Dispose,
}

impl Lie {
    /// Every lie.
    pub const ALL: &'static [Self] = &[Self::Flush, Self::Dispose];

    /// The invariant that must catch it.
    pub fn caught_by(self) -> &'static str {
        match self {
            Self::Flush => "I4",
            Self::Dispose => "I2",
        }
    }
}

/// A disk that never syncs and says it did.
#[derive(Debug)]
pub struct LyingDisk(pub SimDisk);

impl Disk for LyingDisk {
    fn list<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<Vec<Entry>>> {
        self.0.list(directory)
    }

    fn length<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<u64>>> {
        self.0.length(file)
    }

    fn read<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        self.0.read(file, offset, max)
    }

    fn create_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<bool>> {
        self.0.create_directory(directory)
    }

    fn write_new<'a>(
        &'a self,
        file: &'a DiskPath,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.0.write_new(file, bytes)
    }

    fn append<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>> {
        self.0.append(file, bytes)
    }

    fn overwrite<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.0.overwrite(file, offset, bytes)
    }

    fn truncate<'a>(&'a self, file: &'a DiskPath, length: u64) -> BoxFuture<'a, io::Result<()>> {
        self.0.truncate(file, length)
    }

    fn sync<'a>(&'a self, _file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn link<'a>(&'a self, from: &'a DiskPath, to: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.0.link(from, to)
    }

    fn remove<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.0.remove(file)
    }

    fn sync_directory<'a>(&'a self, _directory: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn lease<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<Lease>>> {
        self.0.lease(file)
    }
}

/// The name of [`HastyProvider`].
pub const HASTY: &str = "hasty";

/// The spawn provider, except that its runs report their disposal as complete at once.
pub struct HastyProvider(pub Arc<InProcess>);

impl SubagentProvider for HastyProvider {
    fn name(&self) -> &str {
        HASTY
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn inherits_parent_context(&self) -> bool {
        self.0.inherits_parent_context()
    }

    fn start(&self, request: StartRequest) -> StartFuture {
        hasty(SubagentProvider::start(&*self.0, request))
    }

    fn resume(&self) -> Option<&dyn ContinuableProvider> {
        Some(self)
    }
}

impl ContinuableProvider for HastyProvider {
    fn start(&self, request: ContinuableRequest) -> StartFuture {
        hasty(ContinuableProvider::start(&*self.0, request))
    }

    fn resume(&self, request: ResumeRequest) -> StartFuture {
        hasty(ContinuableProvider::resume(&*self.0, request))
    }
}

fn hasty(start: StartFuture) -> StartFuture {
    Box::pin(async move {
        let run = start.await?;
        Ok(Arc::new(HastyRun(run)) as Arc<dyn SubagentRun>)
    })
}

struct HastyRun(Arc<dyn SubagentRun>);

impl SubagentRun for HastyRun {
    fn child(&self) -> &SessionId {
        self.0.child()
    }

    fn local_agent(&self) -> Option<OwnerId> {
        self.0.local_agent()
    }

    fn result(&self) -> BoxFuture<'static, Result<SubagentResult, SubagentError>> {
        self.0.result()
    }

    fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>> {
        // Begun, and not waited for.
        drop(self.0.dispose());
        Box::pin(std::future::ready(Ok(())))
    }

    fn steer(&self) -> Option<&dyn Steer> {
        self.0.steer()
    }
}
