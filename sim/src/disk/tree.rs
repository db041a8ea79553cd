//! Files and directories with cached, pending and durable content. Pure: no lock, no fault.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use continuable::store::disk::DiskPath;
use serde::{Deserialize, Serialize};

const ROOT: u64 = 0;

#[derive(Debug, Clone)]
enum FileChange {
    Write { offset: u64, bytes: Vec<u8> },
    Cut { length: u64 },
}

#[derive(Debug, Clone, Default)]
struct FileNode {
    durable: Vec<u8>,
    cached: Vec<u8>,
    pending: Vec<FileChange>,
}

#[derive(Debug, Clone, Default)]
struct DirectoryNode {
    durable: BTreeMap<String, u64>,
    cached: BTreeMap<String, u64>,
    pending: Vec<(String, Option<u64>)>,
}

#[derive(Debug, Clone)]
enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}

/// What a crash asks, once per thing that was not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrashQuestion {
    /// How many of a file's last pending changes are lost.
    LostChanges,
    /// How many bytes at its end the first lost write is short of; all of them means none left.
    TornBytes,
    /// Whether the torn write's length survives without its bytes, which then read as NUL.
    NulTail,
    /// Whether a name, or its removal, is lost.
    LostName,
}

/// What survives a crash.
pub trait CrashChoices {
    /// A number below `options`, which is at least 1. Zero means: nothing is lost.
    fn choose(&mut self, question: CrashQuestion, options: u64) -> u64;
}

impl<F: FnMut(CrashQuestion, u64) -> u64> CrashChoices for F {
    fn choose(&mut self, question: CrashQuestion, options: u64) -> u64 {
        self(question, options)
    }
}

/// Everything pending survives: the process died, not the machine.
#[derive(Debug, Clone, Copy)]
pub struct LoseNothing;

impl CrashChoices for LoseNothing {
    fn choose(&mut self, _: CrashQuestion, _: u64) -> u64 {
        0
    }
}

/// Nothing pending survives.
#[derive(Debug, Clone, Copy)]
pub struct LoseUnsynced;

impl CrashChoices for LoseUnsynced {
    fn choose(&mut self, question: CrashQuestion, options: u64) -> u64 {
        if question == CrashQuestion::NulTail { 0 } else { options - 1 }
    }
}

fn apply(content: &mut Vec<u8>, change: &FileChange) {
    match change {
        FileChange::Write { offset, bytes } => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let end = start + bytes.len();
            if content.len() < end {
                // A hole reads as NUL bytes.
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(bytes);
        }
        FileChange::Cut { length } => {
            content.resize(usize::try_from(*length).unwrap_or(usize::MAX), 0);
        }
    }
}

impl FileNode {
    fn change(&mut self, change: FileChange) {
        apply(&mut self.cached, &change);
        self.pending.push(change);
    }

    /// A prefix of the pending changes survives; the first lost write may be torn, with or without
    /// its length (then the rest reads as NUL bytes).
    fn crash(&mut self, choices: &mut dyn CrashChoices) {
        let pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            let lost = choose(choices, CrashQuestion::LostChanges, pending.len() as u64 + 1);
            let kept = pending.len() - usize::try_from(lost).unwrap_or(pending.len());
            pending[..kept].iter().for_each(|change| apply(&mut self.durable, change));
            if let Some(FileChange::Write { offset, bytes }) = pending.get(kept) {
                let torn = choose(choices, CrashQuestion::TornBytes, bytes.len() as u64 + 1);
                let keep = bytes.len() - usize::try_from(torn).unwrap_or(bytes.len());
                let mut left = bytes[..keep].to_vec();
                if keep < bytes.len() && choose(choices, CrashQuestion::NulTail, 2) == 1 {
                    left.resize(bytes.len(), 0);
                }
                if !left.is_empty() {
                    apply(&mut self.durable, &FileChange::Write { offset: *offset, bytes: left });
                }
            }
        }
        self.cached = self.durable.clone();
    }
}

fn choose(choices: &mut dyn CrashChoices, question: CrashQuestion, options: u64) -> u64 {
    choices.choose(question, options).min(options - 1)
}

impl DirectoryNode {
    fn change(&mut self, name: &str, node: Option<u64>) {
        rename(&mut self.cached, name, node);
        self.pending.push((name.to_owned(), node));
    }

    /// Each pending name survives or not, one by one.
    fn crash(&mut self, choices: &mut dyn CrashChoices) {
        for (name, node) in std::mem::take(&mut self.pending) {
            if choose(choices, CrashQuestion::LostName, 2) == 0 {
                rename(&mut self.durable, &name, node);
            }
        }
        self.cached = self.durable.clone();
    }
}

fn rename(names: &mut BTreeMap<String, u64>, name: &str, node: Option<u64>) {
    match node {
        Some(node) => names.insert(name.to_owned(), node),
        None => names.remove(name),
    };
}

/// The whole file system. Nodes are numbered in the order they were made and never reused.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let root = (ROOT, Node::Directory(DirectoryNode::default()));
        Self { nodes: BTreeMap::from([root]), next: ROOT + 1 }
    }
}

fn not_found() -> io::Error {
    ErrorKind::NotFound.into()
}

impl Tree {
    fn find(&self, path: &DiskPath) -> io::Result<u64> {
        path.components().try_fold(ROOT, |node, name| match &self.nodes[&node] {
            Node::Directory(directory) => directory.cached.get(name).copied().ok_or_else(not_found),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        })
    }

    fn directory(&mut self, path: &DiskPath) -> io::Result<&mut DirectoryNode> {
        let node = self.find(path)?;
        match self.nodes.get_mut(&node) {
            Some(Node::Directory(directory)) => Ok(directory),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, path: &DiskPath) -> io::Result<&mut FileNode> {
        let node = self.find(path)?;
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn add(&mut self, path: &DiskPath, node: Node) -> io::Result<()> {
        let number = self.next;
        let directory = self.directory(&path.parent())?;
        if directory.cached.contains_key(path.name()) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        directory.change(path.name(), Some(number));
        self.nodes.insert(number, node);
        self.next += 1;
        Ok(())
    }

    /// Names in the directory, and whether each is a directory.
    pub(super) fn list(&mut self, path: &DiskPath) -> io::Result<Vec<(String, bool)>> {
        let names = self.directory(path)?.cached.clone();
        Ok(names
            .into_iter()
            .map(|(name, node)| (name, matches!(self.nodes[&node], Node::Directory(_))))
            .collect())
    }

    pub(super) fn content(&mut self, path: &DiskPath) -> io::Result<&[u8]> {
        self.file(path).map(|file| file.cached.as_slice())
    }

    /// Bytes in all files together.
    pub(super) fn used(&self) -> u64 {
        let lengths = self.nodes.values().map(|node| match node {
            Node::File(file) => file.cached.len() as u64,
            Node::Directory(_) => 0,
        });
        lengths.sum()
    }

    pub(super) fn create_directory(&mut self, path: &DiskPath) -> io::Result<bool> {
        match self.find(path).map(|node| &self.nodes[&node]) {
            Ok(Node::Directory(_)) => Ok(false),
            Ok(Node::File(_)) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => {
                self.add(path, Node::Directory(DirectoryNode::default()))?;
                Ok(true)
            }
        }
    }

    pub(super) fn create_file(&mut self, path: &DiskPath) -> io::Result<()> {
        self.add(path, Node::File(FileNode::default()))
    }

    pub(super) fn write(&mut self, path: &DiskPath, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            let bytes = bytes.to_vec();
            self.file(path)?.change(FileChange::Write { offset, bytes });
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, path: &DiskPath, length: u64) -> io::Result<()> {
        self.file(path)?.change(FileChange::Cut { length });
        Ok(())
    }

    pub(super) fn sync(&mut self, path: &DiskPath) -> io::Result<()> {
        let file = self.file(path)?;
        for change in std::mem::take(&mut file.pending) {
            apply(&mut file.durable, &change);
        }
        Ok(())
    }

    /// What a failed sync does: pending changes stay readable and never become durable.
    pub(super) fn drop_dirty(&mut self, path: &DiskPath) -> io::Result<()> {
        self.file(path)?.pending.clear();
        Ok(())
    }

    pub(super) fn link(&mut self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        let node = self.find(from)?;
        let directory = self.directory(&to.parent())?;
        if directory.cached.contains_key(to.name()) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        directory.change(to.name(), Some(node));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &DiskPath) -> io::Result<()> {
        self.file(path)?;
        self.directory(&path.parent())?.change(path.name(), None);
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, path: &DiskPath) -> io::Result<()> {
        let directory = self.directory(path)?;
        directory.pending.clear();
        directory.durable = directory.cached.clone();
        Ok(())
    }

    pub(super) fn crash(&mut self, choices: &mut dyn CrashChoices) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.crash(choices),
                Node::Directory(directory) => directory.crash(choices),
            }
        }
    }

    /// Every reachable file, through cached or through durable names and bytes.
    pub(super) fn files(&self, durable: bool) -> BTreeMap<DiskPath, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut open = vec![(DiskPath::root(), ROOT)];
        while let Some((path, node)) = open.pop() {
            match &self.nodes[&node] {
                Node::File(file) => {
                    let content = if durable { &file.durable } else { &file.cached };
                    files.insert(path, content.clone());
                }
                Node::Directory(directory) => {
                    let names = if durable { &directory.durable } else { &directory.cached };
                    open.extend(names.iter().map(|(name, node)| (path.child(name), *node)));
                }
            }
        }
        files
    }

    /// The bytes that a crash would leave under `path`, if the name itself would be left.
    pub(super) fn durable(&self, path: &DiskPath) -> Option<&[u8]> {
        let node = path.components().try_fold(ROOT, |node, name| match &self.nodes[&node] {
            Node::Directory(directory) => directory.durable.get(name).copied(),
            Node::File(_) => None,
        })?;
        match &self.nodes[&node] {
            Node::File(file) => Some(&file.durable),
            Node::Directory(_) => None,
        }
    }

    /// Whether the node at `path` has changes that are not durable.
    pub(super) fn has_pending(&self, path: &DiskPath) -> bool {
        self.find(path).is_ok_and(|node| match &self.nodes[&node] {
            Node::File(file) => !file.pending.is_empty(),
            Node::Directory(directory) => !directory.pending.is_empty(),
        })
    }

    pub(super) fn plant(&mut self, path: &DiskPath, bytes: &[u8]) {
        let mut place = DiskPath::root();
        let names: Vec<_> = path.components().collect();
        for name in &names[..names.len().saturating_sub(1)] {
            let parent = place.clone();
            place = place.child(name);
            if self.find(&place).is_err() {
                let number = self.plant_node(Node::Directory(DirectoryNode::default()));
                self.plant_name(&parent, name, number);
            }
        }
        let content = bytes.to_vec();
        let node = FileNode { durable: content.clone(), cached: content, pending: Vec::new() };
        let number = self.plant_node(Node::File(node));
        self.plant_name(&place, path.name(), number);
    }

    fn plant_node(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.nodes.insert(number, node);
        self.next += 1;
        number
    }

    fn plant_name(&mut self, directory: &DiskPath, name: &str, node: u64) {
        if let Ok(directory) = self.directory(directory) {
            directory.cached.insert(name.to_owned(), node);
            directory.durable.insert(name.to_owned(), node);
        }
    }

    pub(super) fn damage(&mut self, path: &DiskPath, change: impl Fn(&mut Vec<u8>)) -> bool {
        self.file(path).is_ok_and(|file| {
            change(&mut file.durable);
            change(&mut file.cached);
            true
        })
    }

    pub(super) fn unlink(&mut self, path: &DiskPath) -> bool {
        self.directory(&path.parent()).is_ok_and(|directory| {
            directory.durable.remove(path.name());
            directory.pending.retain(|(name, _)| name != path.name());
            directory.cached.remove(path.name()).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> DiskPath {
        DiskPath::root().child("f")
    }

    fn durable_file(bytes: &[u8]) -> Tree {
        let mut tree = Tree::default();
        tree.plant(&file(), bytes);
        tree
    }

    #[test]
    fn a_crash_loses_bytes_that_were_not_synced() {
        let mut tree = durable_file(b"ab");
        tree.write(&file(), 2, b"cd").expect("a file");
        tree.sync(&file()).expect("a file");
        tree.write(&file(), 4, b"ef").expect("a file");
        tree.crash(&mut LoseUnsynced);
        assert_eq!(tree.content(&file()).expect("a file"), b"abcd");
    }

    #[test]
    fn a_crash_tears_a_write_at_any_byte_with_or_without_its_length() {
        for (script, want) in
            [([1, 1, 0], "abc"), ([1, 1, 1], "abc\0"), ([1, 2, 0], "ab"), ([1, 0, 0], "abcd")]
        {
            let mut tree = durable_file(b"ab");
            tree.write(&file(), 2, b"cd").expect("a file");
            let mut answers = script.into_iter();
            tree.crash(&mut |_: CrashQuestion, _: u64| answers.next().unwrap_or(0));
            assert_eq!(tree.content(&file()).expect("a file"), want.as_bytes(), "{script:?}");
        }
    }

    #[test]
    fn after_a_failed_sync_the_bytes_are_readable_and_a_later_sync_does_not_save_them() {
        let mut tree = durable_file(b"ab");
        tree.write(&file(), 2, b"cd").expect("a file");
        tree.drop_dirty(&file()).expect("a file");
        tree.write(&file(), 4, b"ef").expect("a file");
        tree.sync(&file()).expect("a file");
        assert_eq!(tree.content(&file()).expect("a file"), b"abcdef");
        tree.crash(&mut LoseNothing);
        assert_eq!(tree.content(&file()).expect("a file"), b"ab\0\0ef");
    }

    #[test]
    fn a_synced_file_whose_name_is_not_synced_is_gone() {
        let mut tree = Tree::default();
        let directory = DiskPath::root().child("d");
        tree.create_directory(&directory).expect("a directory");
        tree.create_file(&directory.child("f")).expect("a file");
        tree.sync(&directory.child("f")).expect("a file");
        tree.sync_directory(&directory).expect("a directory");
        let mut kept = tree.clone();
        tree.crash(&mut LoseUnsynced);
        assert!(tree.files(false).is_empty());
        kept.sync_directory(&DiskPath::root()).expect("the root");
        kept.crash(&mut LoseUnsynced);
        assert_eq!(kept.files(false).len(), 1);
    }

    #[test]
    fn two_names_of_a_file_share_its_bytes() {
        let mut tree = durable_file(b"ab");
        let other = DiskPath::root().child("g");
        tree.link(&file(), &other).expect("a file");
        tree.remove(&file()).expect("a file");
        tree.write(&other, 2, b"cd").expect("a file");
        assert_eq!(tree.content(&other).expect("a file"), b"abcd");
        assert!(tree.content(&file()).is_err());
    }
}
