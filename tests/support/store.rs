//! What the tests of stored sessions share: a real directory whose operations fail as told, and
//! sessions that say something. Included by `#[path]`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use continuable::channel::Latch;
use continuable::ids::{MessageId, SessionId};
use continuable::message::{ContentBlock, Message, MessageSource, Role};
use continuable::runtime::{BoxFuture, Runtime, TokioRuntime};
use continuable::session::{
    Draft, Event, Session, SessionHeader, TurnEndReason, TurnTrigger, tool_result_message,
};
use continuable::store::disk::{Entry, Lease};
use continuable::store::{Disk, DiskOperation, DiskPath, SessionStore, StdDisk};

/// What happens to an operation.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It fails and changes nothing.
    Fail(io::ErrorKind),
    /// The same, with these words.
    FailSaying(io::ErrorKind, &'static str),
    /// A write leaves its first bytes and fails.
    Torn(usize, io::ErrorKind),
    /// A read returns at most so many bytes.
    Short(usize),
    /// It says on the first latch that it began, and waits for the second; then the next rule for
    /// that kind of operation decides.
    Hold(Latch<()>, Latch<()>),
}

#[derive(Debug)]
struct Rule {
    operation: DiskOperation,
    /// Part of the paths it is for; empty for all.
    inside: String,
    skip: usize,
    times: usize,
    fault: Fault,
}

/// A real directory that fails as told and remembers what it was asked.
#[derive(Debug)]
pub struct FaultyDisk {
    inner: StdDisk,
    rules: Mutex<Vec<Rule>>,
    asked: Mutex<Vec<(DiskOperation, DiskPath)>>,
}

impl FaultyDisk {
    /// The next `times` operations of that kind, after `skip` others, meet `fault`.
    pub fn fail(&self, operation: DiskOperation, skip: usize, times: usize, fault: Fault) {
        let rule = Rule { operation, inside: String::new(), skip, times, fault };
        self.rules.lock().expect("no panic inside").push(rule);
    }

    /// Every operation of that kind on a path that has `inside` in it meets `fault` from now on.
    pub fn fail_inside(&self, inside: &str, operation: DiskOperation, fault: Fault) {
        let inside = inside.to_owned();
        let rule = Rule { operation, inside, skip: 0, times: usize::MAX, fault };
        self.rules.lock().expect("no panic inside").push(rule);
    }

    /// The next operation of that kind says when it began, and waits; answers both latches.
    pub fn hold(&self, operation: DiskOperation) -> (Latch<()>, Latch<()>) {
        let (began, gate) = (Latch::new(), Latch::new());
        self.fail(operation, 0, 1, Fault::Hold(began.clone(), gate.clone()));
        (began, gate)
    }

    pub fn heal(&self) {
        self.rules.lock().expect("no panic inside").clear();
    }

    /// How often an operation was asked for.
    pub fn count(&self, operation: DiskOperation) -> usize {
        let asked = self.asked.lock().expect("no panic inside");
        asked.iter().filter(|(found, _)| *found == operation).count()
    }

    /// Whether any of the operations that change something was asked for since the last look.
    pub fn wrote(&self) -> bool {
        use DiskOperation::{Length, List, Read, Sync, SyncDirectory};
        let asked = std::mem::take(&mut *self.asked.lock().expect("no panic inside"));
        asked.iter().any(|(found, _)| !matches!(found, List | Length | Read | Sync | SyncDirectory))
    }

    fn strike(&self, operation: DiskOperation, path: &DiskPath) -> Option<Fault> {
        let mut rules = self.rules.lock().expect("no panic inside");
        let path = path.to_string();
        let rule = rules.iter_mut().find(|rule| {
            rule.operation == operation && rule.times > 0 && path.contains(&rule.inside)
        })?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.fault.clone())
    }

    async fn meet(&self, operation: DiskOperation, path: &DiskPath) -> io::Result<Option<Fault>> {
        self.asked.lock().expect("no panic inside").push((operation, path.clone()));
        loop {
            match self.strike(operation, path) {
                Some(Fault::Fail(kind)) => return Err(io::Error::new(kind, "told to fail")),
                Some(Fault::FailSaying(kind, words)) => return Err(io::Error::new(kind, words)),
                Some(Fault::Hold(began, gate)) => {
                    began.set(());
                    gate.wait().await;
                }
                fault => return Ok(fault),
            }
        }
    }
}

macro_rules! plain {
    ($name:ident($path:ident $(, $argument:ident: $kind:ty)*) -> $output:ty, $operation:ident) => {
        fn $name<'a>(
            &'a self,
            $path: &'a DiskPath,
            $($argument: $kind,)*
        ) -> BoxFuture<'a, io::Result<$output>> {
            Box::pin(async move {
                self.meet(DiskOperation::$operation, $path).await?;
                self.inner.$name($path, $($argument),*).await
            })
        }
    };
}

impl Disk for FaultyDisk {
    plain!(list(path) -> Vec<Entry>, List);
    plain!(length(path) -> Option<u64>, Length);
    plain!(create_directory(path) -> bool, CreateDirectory);
    plain!(write_new(path, bytes: Vec<u8>) -> (), WriteNew);
    plain!(overwrite(path, offset: u64, bytes: Vec<u8>) -> (), Overwrite);
    plain!(truncate(path, length: u64) -> (), Truncate);
    plain!(sync(path) -> (), Sync);
    plain!(link(path, to: &'a DiskPath) -> (), Link);
    plain!(remove(path) -> (), Remove);
    plain!(sync_directory(path) -> (), SyncDirectory);
    plain!(lease(path) -> Option<Lease>, Lease);

    fn read<'a>(
        &'a self,
        path: &'a DiskPath,
        offset: u64,
        max: usize,
    ) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        Box::pin(async move {
            let max = match self.meet(DiskOperation::Read, path).await? {
                Some(Fault::Short(most)) => max.min(most),
                _ => max,
            };
            self.inner.read(path, offset, max).await
        })
    }

    fn append<'a>(&'a self, path: &'a DiskPath, bytes: Vec<u8>) -> BoxFuture<'a, io::Result<u64>> {
        Box::pin(async move {
            match self.meet(DiskOperation::Append, path).await? {
                Some(Fault::Torn(keep, kind)) => {
                    self.inner.append(path, bytes[..keep.min(bytes.len())].to_vec()).await?;
                    Err(io::Error::new(kind, "told to tear"))
                }
                _ => self.inner.append(path, bytes).await,
            }
        })
    }
}

/// A directory, a disk on it that fails as told, and a store on that.
pub struct Shelf {
    pub root: tempfile::TempDir,
    pub disk: Arc<FaultyDisk>,
    pub tokio: Arc<TokioRuntime>,
    pub runtime: Arc<dyn Runtime>,
    pub store: Arc<SessionStore>,
}

impl Shelf {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let disk = Arc::new(FaultyDisk {
            inner: StdDisk::new(root.path()),
            rules: Mutex::default(),
            asked: Mutex::default(),
        });
        let tokio = Arc::new(TokioRuntime::current());
        let runtime: Arc<dyn Runtime> = tokio.clone();
        let store = SessionStore::open(Arc::clone(&runtime), disk.clone());
        Self { root, disk, tokio, runtime, store }
    }

    /// A second store on the same disk, as another process would have.
    pub fn another_store(&self) -> Arc<SessionStore> {
        SessionStore::open(Arc::clone(&self.runtime), self.disk.clone())
    }

    /// A live session, attached.
    pub fn live(&self, header: SessionHeader, seed: Option<Vec<Arc<Event>>>) -> Arc<Session> {
        let session = self.session(header, seed);
        self.store.attach(&session, None).expect("the id is free");
        session
    }

    pub fn session(&self, header: SessionHeader, seed: Option<Vec<Arc<Event>>>) -> Arc<Session> {
        Session::new(Arc::clone(&self.runtime), header, seed, None).expect("a valid seed")
    }

    /// A stored session of one finished turn.
    pub async fn stored(&self, id: &str) -> Vec<Arc<Event>> {
        let session = self.live(header(id), None);
        session.append(turn(1, "hello")).expect("a turn");
        self.store.flush(&session).await.expect("a working disk");
        self.store.retire(&session).await.expect("a working disk");
        session.snapshot_from(0)
    }

    /// Where the log of `id` is, below the project of [`header`].
    pub fn path(&self, id: &str) -> PathBuf {
        self.root.path().join("--project--").join(id).join("session.jsonl")
    }

    pub fn text(&self, id: &str) -> String {
        std::fs::read_to_string(self.path(id)).expect("a log")
    }

    /// Writes a log by hand.
    pub fn plant(&self, project: &str, id: &str, text: &str) -> PathBuf {
        let file = self.root.path().join(project).join(id).join("session.jsonl");
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        std::fs::write(&file, text).expect("a file");
        file
    }

    /// Every file below the root with its bytes.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut open = vec![self.root.path().to_owned()];
        while let Some(place) = open.pop() {
            for entry in std::fs::read_dir(place).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    files.insert(path.clone(), std::fs::read(path).expect("a file"));
                }
            }
        }
        files
    }
}

pub fn id(text: &str) -> SessionId {
    SessionId::new(text)
}

/// A header with the working directory `/project`.
pub fn header(text: &str) -> SessionHeader {
    let mut header = SessionHeader::new(id(text), 5);
    header.cwd = Some("/project".to_owned());
    header
}

pub fn header_line(text: &str) -> String {
    format!(
        "{{\"type\":\"session\",\"version\":0,\"id\":\"{text}\",\"createdAt\":5,\
         \"cwd\":\"/project\",\"delegationDepth\":0}}\n"
    )
}

pub fn prompt(text: &str) -> Message {
    Message::user(MessageId::new(format!("m-{text}")), text, MessageSource::User)
}

/// The events of a log as lines.
pub fn lines(events: &[Arc<Event>]) -> String {
    events.iter().map(|event| event.to_line() + "\n").collect()
}

fn opened(number: u64, text: &str) -> Vec<Draft> {
    vec![
        Draft::turn_start(number, TurnTrigger::Message { source: MessageSource::User }),
        Draft::user_message(prompt(text)),
    ]
}

/// A finished turn.
pub fn turn(number: u64, text: &str) -> Vec<Draft> {
    let mut drafts = opened(number, text);
    drafts.push(Draft::turn_end(number, TurnEndReason::Completed));
    drafts
}

/// A turn that is inside its first step and asked for the tool calls `asked`; those in `started`
/// were logged.
pub fn open_turn(number: u64, asked: &[&str], started: &[&str]) -> Vec<Draft> {
    let mut drafts = opened(number, "open");
    drafts.push(Draft::step_start(number, 1));
    let calls = asked.iter().map(|call| ContentBlock::ToolCall {
        id: (*call).to_owned(),
        name: "tool".to_owned(),
        arguments: "{}".to_owned(),
    });
    let source =
        MessageSource::Model { provider: "p".into(), model: "m".into(), replay_state: None };
    let message = Message::new(MessageId::new("a"), Role::Assistant, calls.collect(), source);
    drafts.push(Draft::assistant_message(number, 1, message, None, vec![]));
    drafts.extend(started.iter().map(|call| Draft::tool_call(number, 1, *call, "tool", "{}")));
    drafts
}

/// The result of a logged call.
pub fn answer(number: u64, call: &str, seq: u64) -> Draft {
    let content = vec![ContentBlock::text("done")];
    let message = tool_result_message(MessageId::new(format!("r-{call}")), call, content, false);
    Draft::tool_result(number, 1, message, None, Some(seq))
}

pub fn is_inside(root: &Path, file: &Path) -> bool {
    file.canonicalize().is_ok_and(|file| file.starts_with(root.canonicalize().expect("the root")))
}
