//! What a real directory was asked for, replayed on the simulated disk, with a crash of the machine
//! after every operation; and again without each of its syncs.
//!
//! A SIGKILL keeps the page cache, so `sigkill` cannot see a missing fsync. Here the loss model of
//! the simulated disk strikes the very operations that the real disk got: everything confirmed must
//! be there after every crash, and it must not be once a sync that saves something is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use continuable::ids::SessionId;
use continuable::store::StdDisk;
use continuable_sim::disk::{CrashQuestion, Recorded, RecordingDisk, SimDisk};

use real_disk::{Household, finished_texts, store_on};

mod real_disk;

/// Two children and a continuation of one on a real directory, then a second life that continues
/// both.
async fn record() -> Vec<Recorded> {
    let root = tempfile::tempdir().expect("a temporary directory");
    let disk = Arc::new(RecordingDisk::new(Arc::new(StdDisk::new(root.path().join("sessions")))));
    let household = Household::open(disk.clone()).await;
    let mut children = Vec::new();
    for text in ["first", "second"] {
        let child = household.start(text).await;
        disk.confirm(child.clone(), text.to_owned());
        children.push(child);
    }
    assert!(household.continue_child(&children[0], "third").await, "nobody else is at it");
    disk.confirm(children[0].clone(), "third".to_owned());
    household.close().await;
    let household = Household::open(disk.clone()).await;
    for (child, text) in children.into_iter().zip(["fourth", "fifth"]) {
        assert!(household.continue_child(&child, text).await, "nobody else is at it");
        disk.confirm(child, text.to_owned());
    }
    household.close().await;
    disk.log()
}

/// What is answered to a question with so many options.
type Answer = fn(CrashQuestion, u64) -> u64;

/// The ways to crash.
const LOSSES: &[(&str, Answer)] = &[
    ("everything pending", |question, options| match question {
        CrashQuestion::NulTail => 0,
        _ => options - 1,
    }),
    ("pending names", |question, options| match question {
        CrashQuestion::LostName => options - 1,
        _ => 0,
    }),
    ("pending bytes", |question, options| match question {
        CrashQuestion::LostName | CrashQuestion::NulTail => 0,
        _ => options - 1,
    }),
    ("torn bytes", |question, options| match question {
        CrashQuestion::LostName | CrashQuestion::NulTail => 0,
        CrashQuestion::LostChanges => options - 1,
        CrashQuestion::TornBytes => options / 2,
    }),
    ("torn bytes, their length kept", |question, options| match question {
        CrashQuestion::LostName => 0,
        CrashQuestion::NulTail | CrashQuestion::LostChanges => options - 1,
        CrashQuestion::TornBytes => options / 2,
    }),
];

type Confirmed = BTreeMap<SessionId, BTreeSet<String>>;

/// Whether what a crash left of `disk` honours `confirmed`; else what is wrong.
async fn check(disk: &SimDisk, confirmed: &Confirmed) -> Result<(), String> {
    let store = store_on(Arc::new(disk.clone()));
    let mut missing = confirmed.clone();
    for log in store.list().await.map_err(|error| error.to_string())? {
        if let Some(error) = log.error {
            return Err(error.to_string());
        }
        let stored = store.inspect(&log.id).await.map_err(|error| error.to_string())?;
        let finished = finished_texts(&stored.events);
        missing.entry(log.id).and_modify(|texts| texts.retain(|text| !finished.contains(text)));
    }
    missing.retain(|_, texts| !texts.is_empty());
    if missing.is_empty() { Ok(()) } else { Err(format!("confirmed and lost: {missing:?}")) }
}

/// Replays `log` without the entry `left_out`, with every crash after every entry; the first thing
/// that is wrong, if any. Counts the crashes.
async fn replay(
    log: &[Recorded],
    left_out: Option<usize>,
    crashes: &mut u64,
) -> Result<(), String> {
    let (disk, mut confirmed) = (SimDisk::new(), Confirmed::new());
    for (at, entry) in log.iter().enumerate().filter(|(at, _)| Some(*at) != left_out) {
        entry.apply(&disk).await.map_err(|error| format!("operation {at}, {entry:?}: {error}"))?;
        if let Recorded::Confirmed(session, text) = entry {
            confirmed.entry(session.clone()).or_default().insert(text.clone());
        }
        if left_out.is_some_and(|left_out| at < left_out) {
            // As in the whole log, which was judged.
            continue;
        }
        for (loss, answer) in LOSSES {
            let crashed = disk.fork();
            crashed.crash(&mut |question: CrashQuestion, options: u64| answer(question, options));
            *crashes += 1;
            let checked = check(&crashed, &confirmed).await;
            checked.map_err(|wrong| format!("after operation {at}, lost {loss}: {wrong}"))?;
        }
    }
    Ok(())
}

/// Why it is harmless to leave out the sync at `at`, or `None` if nothing says so.
async fn excuse(log: &[Recorded], at: usize) -> Option<&'static str> {
    let path = log[at].synced().expect("it is a sync");
    let disk = SimDisk::new();
    for entry in &log[..at] {
        entry.apply(&disk).await.expect("the whole log replays");
    }
    if !disk.has_pending(path) {
        return Some("nothing was pending");
    }
    let until_confirmed =
        log[at + 1..].iter().take_while(|entry| !matches!(entry, Recorded::Confirmed(..)));
    if until_confirmed.clone().any(|entry| entry.synced() == Some(path)) {
        return Some("made up for before anything was confirmed");
    }
    (at + 1 + until_confirmed.count() == log.len()).then_some("nothing was confirmed after it")
}

#[tokio::test]
async fn every_sync_that_saves_something_is_needed() {
    let log = record().await;
    let mut crashes = 0;
    replay(&log, None, &mut crashes).await.expect("everything confirmed outlives every crash");
    let (mut red, mut harmless) = (BTreeMap::new(), BTreeMap::new());
    for at in (0..log.len()).filter(|at| log[*at].synced().is_some()) {
        let kind = if matches!(log[at], Recorded::Sync(_)) { "file" } else { "directory" };
        match (replay(&log, Some(at), &mut crashes).await, excuse(&log, at).await) {
            (Err(_), None | Some("made up for before anything was confirmed")) => {
                *red.entry(kind).or_insert(0) += 1;
            }
            (Ok(()), Some(why)) => *harmless.entry((kind, why)).or_insert(0) += 1,
            (outcome, excuse) => {
                panic!("without {at}, {:?}: {outcome:?}, excused by {excuse:?}", log[at]);
            }
        }
    }
    println!("{} entries, {crashes} crashes; red: {red:?}; harmless: {harmless:?}", log.len());
    assert!(red.get("file").is_some_and(|count| *count >= 5), "a sync per confirmed turn");
    assert!(red.get("directory").is_some_and(|count| *count >= 4), "a sync per new name");
}
