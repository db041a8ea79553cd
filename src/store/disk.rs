//! What the store needs of a disk, as one object-safe trait.
//!
//! Paths are relative to the store's root and made of safe components only ([`DiskPath`]). Nothing
//! is durable before [`Disk::sync`] (bytes) and [`Disk::sync_directory`] (names) succeeded, and
//! after a failed sync the unsynced bytes may be lost although they can still be read (contract
//! P6).

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::runtime::BoxFuture;
use crate::sync::key_of;

/// A place below a disk's root. Every component is a plain name: never empty, `.` or `..`, and
/// without separators or NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiskPath(Arc<str>);

impl DiskPath {
    /// The disk's root itself.
    pub fn root() -> Self {
        Self("".into())
    }

    /// The place named `name` inside this directory.
    ///
    /// # Panics
    ///
    /// When `name` is not a plain name. Names come from the escapes of [`super::path`] or from a
    /// listing, so that is a broken invariant of ours.
    pub fn child(&self, name: &str) -> Self {
        assert!(is_plain_name(name), "{name:?} is no plain name below {self}");
        if self.0.is_empty() {
            Self(name.into())
        } else {
            Self(format!("{}/{name}", self.0).into())
        }
    }

    /// The directory this place is in; the root is in itself.
    pub fn parent(&self) -> Self {
        Self(self.0.rsplit_once('/').map_or("", |(parent, _)| parent).into())
    }

    /// The components from the root down.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The last component; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// The path as text, separated by `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path's key for the recorder of what a step touches.
    pub fn key(&self) -> u64 {
        key_of(&self.0)
    }
}

/// Whether `name` can be one component of a [`DiskPath`].
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

impl fmt::Display for DiskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "the store's root" } else { &self.0 })
    }
}

impl fmt::Debug for DiskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// Anything else, symbolic links included: never followed.
    Other,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// What it stands for.
    pub kind: EntryKind,
}

/// The operations of a [`Disk`], as errors and fault plans name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskOperation {
    /// [`Disk::list`].
    List,
    /// [`Disk::length`].
    Length,
    /// [`Disk::read`].
    Read,
    /// [`Disk::create_directory`].
    CreateDirectory,
    /// [`Disk::write_new`].
    WriteNew,
    /// [`Disk::append`].
    Append,
    /// [`Disk::overwrite`].
    Overwrite,
    /// [`Disk::truncate`].
    Truncate,
    /// [`Disk::sync`].
    Sync,
    /// [`Disk::link`].
    Link,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::sync_directory`].
    SyncDirectory,
    /// [`Disk::lease`].
    Lease,
}

impl DiskOperation {
    /// Every operation.
    pub const ALL: [Self; 13] = [
        Self::List,
        Self::Length,
        Self::Read,
        Self::CreateDirectory,
        Self::WriteNew,
        Self::Append,
        Self::Overwrite,
        Self::Truncate,
        Self::Sync,
        Self::Link,
        Self::Remove,
        Self::SyncDirectory,
        Self::Lease,
    ];

    /// What it does, for a message.
    pub fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Length => "look up the length of",
            Self::Read => "read",
            Self::CreateDirectory => "create directory",
            Self::WriteNew => "create",
            Self::Append => "append to",
            Self::Overwrite => "rewrite",
            Self::Truncate => "cut",
            Self::Sync => "sync",
            Self::Link => "link into place",
            Self::Remove => "remove",
            Self::SyncDirectory => "sync directory",
            Self::Lease => "lease",
        }
    }
}

/// The right to be the only one who writes, until it is dropped or its process ends.
pub struct Lease {
    fence: u64,
    /// Gives the lease back when dropped.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Lease {
    /// The lease with the number `fence`, held for as long as `guard` lives.
    pub fn new(fence: u64, guard: impl Any + Send + Sync) -> Self {
        Self { fence, _guard: Box::new(guard) }
    }

    /// The fencing number of this acquisition: higher than that of every earlier one of the same
    /// lease file, across processes and crashes, because it was durable in the file before the
    /// lease was granted. Not necessarily higher by one. Whoever guards something else that the
    /// holder writes can refuse a number below the highest it saw, and so a holder that was
    /// overtaken without knowing it (contract P15).
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A disk. Operations are atomic with regard to each other but not to crashes; a failed write may
/// have written any prefix of its bytes.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// The names in `directory`, in order. [`io::ErrorKind::NotFound`] if there is none.
    fn list<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<Vec<Entry>>>;

    /// The length of `file` in bytes; `None` if it does not exist.
    fn length<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<u64>>>;

    /// Up to `max` bytes of `file` from byte `offset`. May return fewer; none means the end.
    fn read<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>>;

    /// Makes `directory`, private to the user; false if it is there already. Its parent must exist,
    /// except for the root, whose parents are made too.
    fn create_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<bool>>;

    /// Makes `file` with `bytes`, private to the user; [`io::ErrorKind::AlreadyExists`] if it is
    /// there.
    fn write_new<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>)
    -> BoxFuture<'a, io::Result<()>>;

    /// Adds `bytes` at the end of `file`, wherever that is now, and returns its new length. Never
    /// writes over what somebody else added; the caller compares lengths (contract P15).
    fn append<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>>;

    /// Writes `bytes` over those of `file` from byte `offset`: the same bytes again, after a failed
    /// sync (contract P6).
    fn overwrite<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>>;

    /// Cuts `file` to `length` bytes.
    fn truncate<'a>(&'a self, file: &'a DiskPath, length: u64) -> BoxFuture<'a, io::Result<()>>;

    /// Makes the bytes of `file` durable.
    fn sync<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>>;

    /// Gives the file `from` the second name `to`; [`io::ErrorKind::AlreadyExists`] if that name is
    /// taken.
    fn link<'a>(&'a self, from: &'a DiskPath, to: &'a DiskPath) -> BoxFuture<'a, io::Result<()>>;

    /// Takes the name `file` away.
    fn remove<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>>;

    /// Makes the names in `directory` durable; for the root, its own name too.
    fn sync_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<()>>;

    /// Takes the lease that `file` stands for, making it if it is not there, and makes its fencing
    /// number durable there ([`super::fence`]); `None`, and nothing written, if somebody else has
    /// it. [`io::ErrorKind::InvalidData`] around a [`super::fence::FenceError`], and nothing
    /// written, if the file has no next number.
    fn lease<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<Lease>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_knows_its_parts() {
        let path = DiskPath::root().child("a").child("b");
        assert_eq!(path.as_str(), "a/b");
        assert_eq!(path.name(), "b");
        assert_eq!(path.parent(), DiskPath::root().child("a"));
        assert_eq!(path.parent().parent(), DiskPath::root());
        assert_eq!(path.components().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_name_that_means_another_place_is_no_component() {
        for name in ["", ".", "..", "a/b", "a\\b", "\0"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
        assert!(is_plain_name("..."));
    }
}
