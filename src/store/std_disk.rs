//! The real file system.
//!
//! Blocking calls run on tokio's blocking pool, so this disk needs a tokio runtime. New files have
//! mode 0600 and new directories 0700 (fact-sheet 2.8). Symbolic links below the root are refused,
//! never followed: the check is made before each operation, so it keeps stray links out, not an
//! attacker who can write inside the root.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, DiskPath, Entry, EntryKind, Lease, is_plain_name};
use super::fence::{LEASE_READ_BYTES, NextFence};
use crate::runtime::BoxFuture;

/// A directory of the operating system.
#[derive(Debug, Clone)]
pub struct StdDisk {
    root: Arc<Path>,
}

impl StdDisk {
    /// The disk below `root`, which is made when the first session is written.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into().into() }
    }

    /// The directory everything is below.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Runs `call` on the blocking pool with the checked system path of `path`.
    fn blocking<T: Send + 'static>(
        &self,
        path: &DiskPath,
        call: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let (root, path) = (Arc::clone(&self.root), path.clone());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || call(resolve(&root, &path)?))
                .await
                .map_err(io::Error::other)?
        })
    }
}

/// The system path of `path`, unless a symbolic link stands in the way.
fn resolve(root: &Path, path: &DiskPath) -> io::Result<PathBuf> {
    let mut resolved = root.to_owned();
    for name in path.components() {
        resolved.push(name);
        match fs::symlink_metadata(&resolved) {
            Ok(found) if found.is_symlink() => {
                let text = format!("{} is a symbolic link", resolved.display());
                return Err(io::Error::new(ErrorKind::PermissionDenied, text));
            }
            Ok(_) => {}
            // The operation itself says what is missing.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(resolved)
}

fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    builder.mode(0o700);
    builder
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    options.mode(0o600);
    options
}

fn list(directory: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for found in fs::read_dir(directory)? {
        let found = found?;
        let kind = match found.file_type()? {
            kind if kind.is_dir() => EntryKind::Directory,
            kind if kind.is_file() => EntryKind::File,
            _ => EntryKind::Other,
        };
        // A name that is not text is not one of ours.
        if let Ok(name) = found.file_name().into_string()
            && is_plain_name(&name)
        {
            entries.push(Entry { name, kind });
        }
    }
    entries.sort();
    Ok(entries)
}

fn length(file: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(file) {
        Ok(found) if found.is_file() => Ok(Some(found.len())),
        Ok(_) => Err(io::Error::new(ErrorKind::IsADirectory, "not a plain file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn create_directory(directory: &Path) -> io::Result<bool> {
    match private_directory().create(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the root with its parents, and every new name durable: nobody else knows the places above
/// the root, so nobody else can sync them.
fn create_root(root: &Path) -> io::Result<bool> {
    let missing = missing_directories(root);
    if let Some(outermost) = missing.first() {
        sync_found_name(parent_of(outermost))?;
    }
    for directory in &missing {
        create_directory(directory)?;
        sync_name(directory)?;
    }
    Ok(!missing.is_empty())
}

/// The directories on the way to `root`, itself included, that are not there, the outermost first.
fn missing_directories(root: &Path) -> Vec<&Path> {
    let ancestors = root.ancestors().filter(|path| !path.as_os_str().is_empty());
    let mut missing: Vec<_> = ancestors.take_while(|path| !path.is_dir()).collect();
    missing.reverse();
    missing
}

/// The directory `path` is in; that of a relative path's first component is the current one.
fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the name `path` durable.
fn sync_name(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// Makes the name of a directory durable that was there already: whoever made it may have been
/// killed before syncing it.
fn sync_found_name(directory: &Path) -> io::Result<()> {
    match sync_name(directory) {
        // Nobody who may not read the parent made it as this disk does.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Makes the names in the root durable, and the root's own.
fn sync_root(root: &Path) -> io::Result<()> {
    File::open(root)?.sync_all()?;
    sync_found_name(root)
}

fn append(file: &Path, bytes: &[u8]) -> io::Result<u64> {
    // O_APPEND: the kernel places the bytes after whatever is there.
    let mut file = OpenOptions::new().append(true).open(file)?;
    file.write_all(bytes)?;
    Ok(file.metadata()?.len())
}

/// An advisory lock on the file: the operating system gives it back when the process ends. The
/// fencing number is read and written under the lock, so no two holders share one.
fn lease(path: &Path) -> io::Result<Option<Lease>> {
    let mut options = private_file();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut contents = Vec::new();
    (&file).take(LEASE_READ_BYTES as u64).read_to_end(&mut contents)?;
    let next = NextFence::after(&contents)
        .map_err(|unusable| io::Error::new(ErrorKind::InvalidData, unusable))?;
    file.seek(SeekFrom::Start(next.offset))?;
    file.write_all(&next.line)?;
    file.sync_all()?;
    if next.is_first() {
        // A lease file that a power cut takes away would start over.
        sync_name(path)?;
    }
    Ok(Some(Lease::new(next.number, file)))
}

impl Disk for StdDisk {
    fn list<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<Vec<Entry>>> {
        self.blocking(directory, |path| list(&path))
    }

    fn length<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<u64>>> {
        self.blocking(file, |path| length(&path))
    }

    fn read<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        self.blocking(file, move |path| {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.take(max as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    fn create_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<bool>> {
        let is_root = *directory == DiskPath::root();
        let create = if is_root { create_root } else { create_directory };
        self.blocking(directory, move |path| create(&path))
    }

    fn write_new<'a>(
        &'a self,
        file: &'a DiskPath,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.blocking(file, move |path| {
            private_file().write(true).create_new(true).open(path)?.write_all(&bytes)
        })
    }

    fn append<'a>(&'a self, file: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>> {
        self.blocking(file, move |path| append(&path, &bytes))
    }

    fn overwrite<'a>(
        &'a self,
        file: &'a DiskPath,
        offset: u64,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.blocking(file, move |path| {
            let mut file = OpenOptions::new().write(true).open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(&bytes)
        })
    }

    fn truncate<'a>(&'a self, file: &'a DiskPath, length: u64) -> BoxFuture<'a, io::Result<()>> {
        self.blocking(file, move |path| OpenOptions::new().write(true).open(path)?.set_len(length))
    }

    fn sync<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.blocking(file, |path| OpenOptions::new().write(true).open(path)?.sync_all())
    }

    fn link<'a>(&'a self, from: &'a DiskPath, to: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        let (root, from) = (Arc::clone(&self.root), from.clone());
        self.blocking(to, move |to| fs::hard_link(resolve(&root, &from)?, to))
    }

    fn remove<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        self.blocking(file, fs::remove_file)
    }

    fn sync_directory<'a>(&'a self, directory: &'a DiskPath) -> BoxFuture<'a, io::Result<()>> {
        let is_root = *directory == DiskPath::root();
        self.blocking(directory, move |path| match is_root {
            true => sync_root(&path),
            false => File::open(path)?.sync_all(),
        })
    }

    fn lease<'a>(&'a self, file: &'a DiskPath) -> BoxFuture<'a, io::Result<Option<Lease>>> {
        self.blocking(file, |path| lease(&path))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn files_and_directories_are_private() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let disk = StdDisk::new(root.path().join("store"));
        let directory = DiskPath::root().child("d");
        let file = directory.child("f");
        assert!(disk.create_directory(&DiskPath::root()).await.expect("the root"));
        assert!(disk.create_directory(&directory).await.expect("a directory"));
        disk.write_new(&file, b"x".to_vec()).await.expect("a file");
        let mode = |name: &str| {
            let found = fs::metadata(root.path().join("store").join(name)).expect("it exists");
            found.permissions().mode() & 0o777
        };
        assert_eq!((mode("."), mode("d"), mode("d/f")), (0o700, 0o700, 0o600));
    }

    #[tokio::test]
    async fn symbolic_links_are_refused() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let outside = tempfile::tempdir().expect("a temporary directory");
        std::os::unix::fs::symlink(outside.path(), root.path().join("d")).expect("a link");
        let disk = StdDisk::new(root.path());
        let file = DiskPath::root().child("d").child("f");
        let refused = disk.write_new(&file, b"x".to_vec()).await.expect_err("a link leads out");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(!outside.path().join("f").exists());
        let listed = disk.list(&DiskPath::root()).await.expect("the root");
        assert_eq!(listed[0].kind, EntryKind::Other);
    }

    #[tokio::test]
    async fn a_new_root_is_made_from_the_outside_in() {
        let outside = tempfile::tempdir().expect("a temporary directory");
        let root = outside.path().join("a").join("b").join("c");
        let names = |root: &Path| {
            let missing = missing_directories(root).into_iter();
            missing.map(|path| path.file_name().expect("it has one").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&root), ["a", "b", "c"]);
        let disk = StdDisk::new(&root);
        assert!(disk.create_directory(&DiskPath::root()).await.expect("the root"));
        assert!(!disk.create_directory(&DiskPath::root()).await.expect("it is there"));
        assert_eq!(names(&root), [""; 0]);
        disk.sync_directory(&DiskPath::root()).await.expect("the root and its name");
        assert_eq!(names(Path::new("no-such/relative")), ["no-such", "relative"]);
        assert_eq!(parent_of(Path::new("no-such")), Path::new("."));
        fs::write(outside.path().join("file"), b"").expect("a file");
        let below = StdDisk::new(outside.path().join("file").join("root"));
        below.create_directory(&DiskPath::root()).await.expect_err("a file is in the way");
    }

    #[tokio::test]
    async fn the_lease_file_keeps_the_fencing_number_as_text() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (disk, other) = (StdDisk::new(root.path()), StdDisk::new(root.path()));
        let file = DiskPath::root().child("lease");
        let text = || fs::read_to_string(root.path().join("lease")).expect("it is text");
        let first = disk.lease(&file).await.expect("it works").expect("it is free");
        assert_eq!((first.fence(), text().as_str()), (1, "00000000000000000001\n"));
        assert!(other.lease(&file).await.expect("it works").is_none());
        assert_eq!(text(), "00000000000000000001\n", "the loser wrote nothing");
        drop(first);
        let second = other.lease(&file).await.expect("it works").expect("it is free");
        assert_eq!((second.fence(), text().lines().nth(1)), (2, Some("00000000000000000002")));
    }
}
