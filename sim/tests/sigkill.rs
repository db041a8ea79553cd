//! A real kill: the runtime works on a real directory in a process of its own, is struck by SIGKILL
//! at a random moment, and is started again; 200 times.
//!
//! Goal: nothing that was confirmed is lost, no log is damaged, and every session goes on by its id,
//! with the operating system's own files, locks and death. Method: this binary runs itself as the
//! worker. The worker says on a pipe what it begins, and what the runtime reported as durable; the
//! kill comes after a drawn delay; what stands in the pipe then is the ledger that the directory
//! must honour. The seed fixes the delays, not what the worker reaches meanwhile.
//!
//! A kill leaves the page cache alone, so a missing fsync does not show here: `operation_log` is
//! the other half.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use continuable::ids::SessionId;
use continuable::session::repair::closers;
use continuable::store::StdDisk;
use continuable::store::disk::{Disk, DiskPath};

use real_disk::{Household, finished_texts, parent_id, store_on};

mod real_disk;

const KILLS: u64 = 200;
/// Lives on one directory; then a new one, so that logs and checks stay short.
const LIVES: u64 = 10;
/// Directories under test at a time.
const LANES: u64 = 2;
const SEED: u64 = 0x51_6b_11;
/// The longest life, in milliseconds from the start of the process.
const LIFE_MAX: u64 = 90;
/// Who asks at the same time in one worker.
const CLIENTS: u64 = 3;
/// More children than this are not started; the others are continued.
const CHILDREN_MAX: usize = 5;
/// After this a worker that nobody killed gives up, so that none is left behind.
const PATIENCE: Duration = Duration::from_secs(20);

const WORKER: &str = "the_worker_confirms_what_is_durable";
const DIRECTORY: &str = "CONTINUABLE_SIGKILL_DIRECTORY";
const LIFE: &str = "CONTINUABLE_SIGKILL_LIFE";

/// A small stable generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

// --- the worker -----------------------------------------------------------------------------------

/// One line on the pipe, whole or not at all. The harness may have begun a line of its own.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).expect("the pipe is open");
    out.flush().expect("the pipe is open");
}

/// The children whose logs are in the directory.
async fn children_on(disk: &StdDisk) -> Vec<SessionId> {
    let listed = store_on(Arc::new(disk.clone())).list().await.expect("the directory lists");
    listed.into_iter().map(|log| log.id).filter(|id| *id != parent_id()).collect()
}

async fn client(
    household: Arc<Household>,
    children: Arc<Mutex<Vec<SessionId>>>,
    name: String,
    rounds: u64,
) {
    let mut random = Random(SEED + name.bytes().map(u64::from).sum::<u64>());
    for round in 0..rounds {
        let text = format!("{name}-{round}");
        let known = children.lock().expect("no panic inside").clone();
        say(&format!("begun {text}"));
        let (child, confirmed) = if known.is_empty()
            || known.len() < CHILDREN_MAX && random.below(2) == 0
        {
            let child = household.start(&text).await;
            children.lock().expect("no panic inside").push(child.clone());
            (child, true)
        } else {
            let child = &known[usize::try_from(random.below(known.len() as u64)).expect("small")];
            (child.clone(), household.continue_child(child, &text).await)
        };
        let verb = if confirmed { "confirmed" } else { "undelivered" };
        say(&format!("{verb} {} {text}", child.as_str()));
    }
}

/// Works below `root` for so many rounds per client.
async fn work(root: &Path, life: &str, rounds: u64) {
    let disk = StdDisk::new(root);
    disk.create_directory(&DiskPath::root()).await.expect("the root");
    let lease = disk.lease(&DiskPath::root().child(".lease")).await.expect("it works");
    let lease = lease.expect("whoever had it is dead");
    say(&format!("fence {}", lease.fence()));
    let children = Arc::new(Mutex::new(children_on(&disk).await));
    let household = Arc::new(Household::open(Arc::new(disk)).await);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (household, children) = (Arc::clone(&household), Arc::clone(&children));
            tokio::spawn(client(household, children, format!("{life}-{number}"), rounds))
        })
        .collect();
    for client in clients {
        client.await.expect("no client panics");
    }
    Arc::into_inner(household).expect("the clients are done").close().await;
}

/// Started by the other test it works until it is killed; started as a test it lives and ends in
/// order, so that the worker itself is known to be sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_confirms_what_is_durable() {
    let (Ok(root), Ok(life)) = (std::env::var(DIRECTORY), std::env::var(LIFE)) else {
        let root = tempfile::tempdir().expect("a temporary directory");
        work(root.path(), "alone", 5).await;
        let mut ledger = Ledger::default();
        ledger.check(root.path(), "after an orderly end").await;
        assert_eq!((ledger.open_turns, ledger.torn_tails), (0, 0));
        return;
    };
    let unkilled = tokio::time::timeout(PATIENCE, work(Path::new(&root), &life, u64::MAX)).await;
    assert!(unkilled.is_ok(), "nobody killed this worker for {PATIENCE:?}");
}

// --- who kills it ---------------------------------------------------------------------------------

/// What one directory owes.
#[derive(Default)]
struct Ledger {
    confirmed: BTreeMap<SessionId, BTreeSet<String>>,
    fence: u64,
    open_turns: u64,
    torn_tails: u64,
    continued: u64,
}

/// What a killed worker had said.
#[derive(Default)]
struct Said {
    begun: u64,
    answered: u64,
    confirmed: u64,
}

impl Ledger {
    fn note(&mut self, lines: &[String], what: &str) -> Said {
        let mut said = Said::default();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["begun", _] => said.begun += 1,
                ["confirmed", child, text] => {
                    said.answered += 1;
                    said.confirmed += 1;
                    let texts = self.confirmed.entry(SessionId::new(child)).or_default();
                    assert!(texts.insert(text.to_owned()), "{what}: {text} confirmed twice");
                }
                ["undelivered", _, _] => said.answered += 1,
                ["fence", number] => {
                    let fence = number.parse().expect("a number");
                    assert!(fence > self.fence, "{what}: fence {fence} after {}", self.fence);
                    self.fence = fence;
                }
                // The harness's own lines; a panic of the worker shows in how it ends.
                _ => {}
            }
        }
        said
    }

    /// Every log below `root` loads, and everything confirmed is in its log.
    async fn check(&mut self, root: &Path, what: &str) {
        let store = store_on(Arc::new(StdDisk::new(root)));
        let mut missing = self.confirmed.clone();
        for log in store.list().await.expect("the directory lists") {
            assert!(log.error.is_none(), "{what}: {:?}", log.error);
            let stored = store.inspect(&log.id).await.expect("what lists without an error loads");
            self.torn_tails += u64::from(stored.tail_cut.is_some());
            self.open_turns += u64::from(!closers(&stored.events).is_empty());
            let finished = finished_texts(&stored.events);
            missing.entry(log.id).and_modify(|texts| texts.retain(|text| !finished.contains(text)));
        }
        missing.retain(|_, texts| !texts.is_empty());
        assert!(missing.is_empty(), "{what}: confirmed and lost: {missing:?}");
    }

    /// Every child below `root` goes on by its id; what it is told then is owed too.
    async fn go_on(&mut self, root: &Path, what: &str) {
        let disk = StdDisk::new(root);
        let household = Arc::new(Household::open(Arc::new(disk.clone())).await);
        let mut going = Vec::new();
        for child in children_on(&disk).await {
            let (household, text) = (Arc::clone(&household), format!("{what}-goes-on"));
            going.push(tokio::spawn(async move {
                let delivered = household.continue_child(&child, &text).await;
                (delivered, child, text)
            }));
        }
        for going in going {
            let (delivered, child, text) = going.await.expect("it is continued");
            assert!(delivered, "{what}: nobody else is at {child}");
            self.confirmed.entry(child).or_default().insert(text);
            self.continued += 1;
        }
        Arc::into_inner(household).expect("all went on").close().await;
    }
}

/// Starts the worker below `root`, kills it after `delay`, and returns the lines it had said.
fn live_and_die(root: &Path, life: &str, delay: Duration) -> Vec<String> {
    let mut worker = Command::new(std::env::current_exe().expect("this test's own binary"))
        .args(["--exact", WORKER, "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, root)
        .env(LIFE, life)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs, since it runs now");
    let pipe = BufReader::new(worker.stdout.take().expect("it is piped"));
    let reader = std::thread::spawn(move || {
        // The kill may have cut the last line: without its newline it was not said.
        let mut lines = pipe.split(b'\n').map_while(Result::ok).collect::<Vec<_>>();
        lines.pop();
        lines.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    });
    std::thread::sleep(delay);
    worker.kill().expect("SIGKILL");
    let ended = worker.wait().expect("it is our child");
    assert!(ended.code().is_none(), "{life} ended by itself: {ended}");
    reader.join().expect("it only reads")
}

#[derive(Default)]
struct Counts {
    mid_work: AtomicU64,
    after_confirmations: AtomicU64,
    confirmed: AtomicU64,
    open_turns: AtomicU64,
    torn_tails: AtomicU64,
    continued: AtomicU64,
    fences: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// [`LIVES`] lives on one directory.
fn lives(root: PathBuf, directory: u64, counts: &Counts) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("a tokio runtime");
    let (mut random, mut ledger) = (Random(SEED + directory), Ledger::default());
    for life in 0..LIVES {
        let delay = Duration::from_millis(random.below(LIFE_MAX));
        let what =
            format!("directory {directory}, life {life}, seed {SEED:#x}, killed at {delay:?}");
        let lines = live_and_die(&root, &format!("{directory}-{life}"), delay);
        let said = ledger.note(&lines, &what);
        add(&counts.mid_work, u64::from(said.begun > said.answered));
        add(&counts.after_confirmations, u64::from(said.confirmed > 0));
        add(&counts.confirmed, said.confirmed);
        tokio.block_on(async {
            ledger.check(&root, &what).await;
            ledger.go_on(&root, &format!("{directory}-{life}")).await;
        });
    }
    tokio.block_on(ledger.check(&root, "after the last life"));
    add(&counts.open_turns, ledger.open_turns);
    add(&counts.torn_tails, ledger.torn_tails);
    add(&counts.continued, ledger.continued);
    add(&counts.fences, ledger.fence);
}

#[test]
fn nothing_confirmed_is_lost_by_200_real_kills() {
    let (began, counts, next) = (Instant::now(), Counts::default(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let directory = next.fetch_add(1, Ordering::Relaxed);
                    if directory >= KILLS / LIVES {
                        return;
                    }
                    let above = tempfile::tempdir().expect("a temporary directory");
                    lives(above.path().join("sessions"), directory, &counts);
                }
            });
        }
    });
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "seed {SEED:#x}: {KILLS} kills in {:?}: {} mid-work, {} after confirmations; {} turns \
         confirmed and kept, {} turns found open, {} torn tails, {} continued by id, {} leases",
        began.elapsed(),
        count(&counts.mid_work),
        count(&counts.after_confirmations),
        count(&counts.confirmed),
        count(&counts.open_turns),
        count(&counts.torn_tails),
        count(&counts.continued),
        count(&counts.fences),
    );
    assert!(
        count(&counts.mid_work) >= KILLS / 2,
        "most kills struck while something was under way"
    );
    assert!(count(&counts.after_confirmations) >= KILLS / 4, "there was something to lose");
    assert!(count(&counts.open_turns) >= KILLS / 4, "logs ended inside a turn");
    assert!(count(&counts.continued) >= KILLS, "sessions went on by their ids");
}
