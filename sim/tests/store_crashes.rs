//! The session store on the simulated disk: every operation fails once, fails from then on, or is
//! where the machine crashes; and whatever was confirmed is still there (contract I4, I17, P6).

use std::sync::{Arc, Mutex};

use continuable::channel::Latch;
use continuable::ids::{MessageId, SessionId};
use continuable::message::{Message, MessageSource};
use continuable::runtime::{Runtime, TokioRuntime};
use continuable::session::repair::closers;
use continuable::session::{Draft, Event, Session, SessionHeader, TurnEndReason, TurnTrigger};
use continuable::store::disk::{DiskOperation, DiskPath};
use continuable::store::{Loaded, SessionStore, StoreError};
use continuable_sim::disk::{
    CrashChoices, CrashQuestion, DiskError, DiskFault, DiskFaults, FaultRule, FaultRules,
    LoseNothing, LoseUnsynced, SimDisk,
};

fn id() -> SessionId {
    SessionId::new("s")
}

fn turn(number: u64) -> Vec<Draft> {
    let text = format!("turn {number}");
    let prompt = Message::user(MessageId::new(text.clone()), text, MessageSource::User);
    vec![
        Draft::turn_start(number, TurnTrigger::Message { source: MessageSource::User }),
        Draft::user_message(prompt),
        Draft::turn_end(number, TurnEndReason::Completed),
    ]
}

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(TokioRuntime::current())
}

/// Everything that was appended, and how much of it was ever confirmed.
#[derive(Default)]
struct Known {
    appended: Vec<Arc<Event>>,
    confirmed: u64,
}

impl Known {
    fn confirm(&mut self, session: &Session, flushed: Result<u64, StoreError>) {
        self.appended = session.snapshot_from(0);
        if let Ok(mark) = flushed {
            self.confirmed = self.confirmed.max(mark);
        }
    }
}

/// Two lifecycles: create, two turns, an open turn; then a resume that repairs, and one more turn.
async fn work(disk: &SimDisk, known: &mut Known) {
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let mut header = SessionHeader::new(id(), 0);
    header.cwd = Some("/p".to_owned());
    let first = Session::new(runtime(), header, None, None).expect("no seed");
    store.attach(&first, None).expect("the id is free");
    for number in 1..=2 {
        first.append(turn(number)).expect("a turn");
        store.poke(&first);
        known.confirm(&first, store.flush(&first).await);
    }
    first.append(turn(3)[..2].to_vec()).expect("half a turn");
    known.confirm(&first, store.flush(&first).await);
    drop(store.retire(&first).await);
    let Ok(mut loaded) = store.load(&id()).await else { return };
    known.confirmed = known.confirmed.max(loaded.events.len() as u64);
    let seed = Some(loaded.events.clone());
    let second = Session::new(runtime(), loaded.header.clone(), seed, None).expect("contiguous");
    store.attach(&second, loaded.reservation.take()).expect("it is reserved");
    known.appended = second.snapshot_from(0);
    let last = second.lock().last_turn();
    second.append(turn(last + 1)).expect("a turn");
    known.confirm(&second, store.flush(&second).await);
    known.confirm(&second, store.flush(&second).await);
}

/// After a restart: what loads is what was appended, up to closers, with everything confirmed.
async fn check(disk: &SimDisk, known: &Known, what: &str) -> Option<Loaded> {
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let listed = store.list().await.expect("it lists");
    let loaded = match store.load(&id()).await {
        Ok(loaded) => loaded,
        Err(StoreError::NotFound { .. }) => {
            assert_eq!(known.confirmed, 0, "{what}: a confirmed session is gone");
            return None;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let kept = loaded.events.len() as u64 - loaded.closers;
    assert_eq!((listed[0].events, listed[0].tail_cut), (kept, loaded.tail_cut), "{what}");
    assert!(kept >= known.confirmed, "{what}: {kept} of {} confirmed", known.confirmed);
    let kept = usize::try_from(kept).expect("small");
    // A load that failed late may have written its closers.
    let whole = [known.appended.clone(), closers(&known.appended)].concat();
    assert!(
        whole.starts_with(&loaded.events[..kept]),
        "{what}: {:?}\nis not the beginning of\n{whole:?}",
        loaded.events
    );
    Some(loaded)
}

/// The restarted store goes on: a torn tail never fuses with what is appended.
async fn goes_on(disk: &SimDisk, what: &str) {
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let Ok(mut loaded) = store.load(&id()).await else { return };
    let seed = Some(loaded.events.clone());
    let session = Session::new(runtime(), loaded.header.clone(), seed, None).expect("contiguous");
    store.attach(&session, loaded.reservation.take()).expect("it is reserved");
    let last = session.lock().last_turn();
    session.append(turn(last + 1)).expect("a turn");
    let mark = store.flush(&session).await.expect(what);
    disk.crash(&mut LoseUnsynced);
    let known = Known { appended: session.snapshot_from(0), confirmed: mark };
    check(disk, &known, what).await;
}

/// A small linear congruential generator: the tests need variety, not quality.
struct Lcg(u64);

impl CrashChoices for Lcg {
    fn choose(&mut self, _: CrashQuestion, options: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % options
    }
}

async fn crash_and_check(disk: &SimDisk, known: &Known, what: &str) {
    for loss in 0..6 {
        let crashed = disk.fork();
        match loss {
            0 => crashed.crash(&mut LoseNothing),
            1 => crashed.crash(&mut LoseUnsynced),
            seed => crashed.crash(&mut Lcg(seed)),
        }
        let what = format!("{what}, loss {loss}");
        check(&crashed, known, &what).await;
        goes_on(&crashed, &what).await;
    }
}

/// How many operations `work` asks for when nothing fails.
async fn operations() -> u64 {
    let disk = SimDisk::new();
    let mut known = Known::default();
    work(&disk, &mut known).await;
    assert_eq!(known.confirmed, known.appended.len() as u64);
    disk.operations()
}

#[tokio::test]
async fn a_crash_at_every_operation_keeps_everything_confirmed() {
    let operations = operations().await;
    assert!(operations > 30, "the work is real: {operations} operations");
    for strike in 0..operations {
        let disk = SimDisk::new();
        let freezer = disk.clone();
        disk.set_faults(Arc::new(move |_: DiskOperation, _: &DiskPath, ordinal: u64| {
            if ordinal == strike {
                freezer.freeze();
            }
            None
        }));
        let mut known = Known::default();
        work(&disk, &mut known).await;
        disk.heal();
        crash_and_check(&disk, &known, &format!("crash at operation {strike}")).await;
    }
}

/// One operation, and then the next ones of its kind, fail: changing nothing, or leaving torn bytes.
struct Strikes {
    at: u64,
    times: u64,
    torn: bool,
    struck: Mutex<Option<(DiskOperation, u64)>>,
}

impl DiskFaults for Strikes {
    fn decide(&self, operation: DiskOperation, _: &DiskPath, ordinal: u64) -> Option<DiskFault> {
        let mut struck = self.struck.lock().expect("no panic inside");
        if ordinal == self.at {
            *struck = Some((operation, 0));
        }
        let (first, count) = struck.as_mut()?;
        if *first != operation || *count == self.times {
            return None;
        }
        *count += 1;
        let error = DiskError::Full;
        let writes = matches!(operation, DiskOperation::Append | DiskOperation::Overwrite);
        Some(match self.torn && writes {
            true => DiskFault::Torn { keep: 17, error },
            false => DiskFault::Fail(error),
        })
    }
}

#[tokio::test]
async fn a_fault_at_every_operation_loses_nothing_confirmed() {
    let operations = operations().await;
    for at in 0..operations {
        for (times, torn) in [1, 2, 3, u64::MAX].into_iter().flat_map(|n| [(n, false), (n, true)]) {
            let disk = SimDisk::new();
            let strikes = Arc::new(Strikes { at, times, torn, struck: Mutex::default() });
            disk.set_faults(strikes.clone());
            let mut known = Known::default();
            work(&disk, &mut known).await;
            disk.heal();
            let struck = *strikes.struck.lock().expect("no panic inside");
            let what = format!("{struck:?} at {at}, {times} times, torn {torn}");
            crash_and_check(&disk, &known, &what).await;
        }
    }
}

#[tokio::test]
async fn a_cut_whose_sync_failed_is_made_again() {
    let disk = SimDisk::new();
    let file = DiskPath::root().child("_no-cwd").child("s").child("session.jsonl");
    let header =
        "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":0,\"delegationDepth\":0}\n";
    disk.plant(&file, format!("{header}{}", "torn".repeat(99)).as_bytes());
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let rule = FaultRule::once(DiskOperation::Sync, DiskFault::Fail(DiskError::Io));
    disk.set_faults(Arc::new(FaultRules::new([rule])));
    store.load(&id()).await.expect_err("the sync fails");
    store.load(&id()).await.expect("it works again");
    assert_eq!(disk.durable_files()[&file], header.as_bytes());
}

#[tokio::test]
async fn bytes_that_a_failed_sync_dropped_are_written_again() {
    let disk = SimDisk::new();
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let session = Session::new(runtime(), SessionHeader::new(id(), 0), None, None).expect("fresh");
    store.attach(&session, None).expect("the id is free");
    session.append(turn(1)).expect("a turn");
    store.flush(&session).await.expect("it works");
    session.append(turn(2)).expect("a turn");
    let syncs = Mutex::new(0);
    disk.set_faults(Arc::new(move |operation, _: &DiskPath, _: u64| {
        let mut syncs = syncs.lock().expect("no panic inside");
        *syncs += u32::from(operation == DiskOperation::Sync);
        (operation == DiskOperation::Sync && *syncs == 1).then_some(DiskFault::Fail(DiskError::Io))
    }));
    store.flush(&session).await.expect_err("the sync fails");
    session.append(turn(3)).expect("a turn");
    assert_eq!(store.flush(&session).await.expect("it works again"), 9);
    let (cached, durable) = (disk.files(), disk.durable_files());
    assert_eq!(cached, durable, "what was confirmed is on the disk");
}

#[tokio::test]
async fn a_disk_that_is_full_tears_an_append_and_the_store_takes_it_back() {
    let disk = SimDisk::new();
    let store = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let session = Session::new(runtime(), SessionHeader::new(id(), 0), None, None).expect("fresh");
    store.attach(&session, None).expect("the id is free");
    session.append(turn(1)).expect("a turn");
    store.flush(&session).await.expect("it works");
    let whole = disk.files();
    let used: usize = whole.values().map(Vec::len).sum();
    disk.set_capacity(Some(used as u64 + 30));
    session.append(turn(2)).expect("a turn");
    let error = store.flush(&session).await.expect_err("the disk is full");
    assert!(error.to_string().contains("snapshot disk full"), "{error}");
    assert_eq!(disk.files(), whole);
    disk.set_capacity(None);
    assert_eq!(store.flush(&session).await.expect("there is room"), 6);
}

/// A torn append that could not be taken back is tried again later. By then another runtime may have
/// cut it and written on: those bytes are not ours to cut (contract P15).
#[tokio::test]
async fn a_late_rollback_never_cuts_what_another_runtime_wrote() {
    let disk = SimDisk::new();
    let first = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let session = Session::new(runtime(), SessionHeader::new(id(), 0), None, None).expect("fresh");
    first.attach(&session, None).expect("the id is free");
    session.append(turn(1)).expect("a turn");
    first.flush(&session).await.expect("it works");
    disk.set_faults(Arc::new(FaultRules::new([
        FaultRule::once(DiskOperation::Append, DiskFault::Torn { keep: 40, error: DiskError::Io }),
        FaultRule::once(DiskOperation::Truncate, DiskFault::Fail(DiskError::Io)),
    ])));
    session.append(turn(2)).expect("a turn");
    let torn = first.flush(&session).await.expect_err("the append is torn");
    assert!(matches!(torn, StoreError::Rollback { .. }), "{torn}");
    disk.heal();

    let second = SessionStore::open(runtime(), Arc::new(disk.clone()));
    let mut loaded = second.load(&id()).await.expect("it cuts the torn tail");
    assert_eq!(loaded.tail_cut.map(|cut| cut.bytes), Some(40));
    let seed = Some(loaded.events.clone());
    let other = Session::new(runtime(), loaded.header.clone(), seed, None).expect("contiguous");
    second.attach(&other, loaded.reservation.take()).expect("it is reserved");
    let mut ours = turn(2);
    ours.insert(
        1,
        Draft::user_message(Message::user(MessageId::new("other"), "other", MessageSource::User)),
    );
    other.append(ours).expect("a turn");
    assert_eq!(second.flush(&other).await.expect("it works"), 8);
    let whole = disk.files();

    for _ in 0..3 {
        let error = first.flush(&session).await.expect_err("somebody else wrote");
        assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
        assert_eq!(disk.files(), whole, "what the other was told is durable is still there");
    }
}

/// Two stores with a lease: what a load reads it reads while it has the lease, so that nobody writes
/// between the reading and the first write.
#[tokio::test]
async fn a_load_reads_under_the_lease() {
    let disk = SimDisk::new();
    let first = SessionStore::open_leased(runtime(), Arc::new(disk.clone()));
    let session = Session::new(runtime(), SessionHeader::new(id(), 0), None, None).expect("fresh");
    first.attach(&session, None).expect("the id is free");
    session.append(turn(1)).expect("a turn");
    first.flush(&session).await.expect("it works");

    let gate = Latch::new();
    let held = disk.for_process(runtime());
    let hold = DiskFault::Hold(gate.clone());
    held.set_faults(Arc::new(FaultRules::new([FaultRule::once(DiskOperation::Lease, hold)])));
    let second = SessionStore::open_leased(runtime(), Arc::new(held));
    let load = second.load(&id());
    tokio::task::yield_now().await;
    session.append(turn(2)).expect("a turn");
    first.flush(&session).await.expect("it has the lease");
    first.close().await.expect("all is saved");
    drop(first);
    gate.set(());
    let loaded = load.await.expect("the lease is free now");
    assert_eq!(loaded.events.len(), 6, "the second turn, too");
}

/// Takes the lease of the store on `disk` with a first write, and says its fencing number.
async fn fence_of(disk: &SimDisk, session: &str) -> Result<u64, StoreError> {
    let store = SessionStore::open_leased(runtime(), Arc::new(disk.clone()));
    let header = SessionHeader::new(SessionId::new(session), 0);
    let session = Session::new(runtime(), header, None, None).expect("fresh");
    store.attach(&session, None).expect("the id is free");
    session.append(turn(1)).expect("a turn");
    store.flush(&session).await?;
    Ok(store.fence().expect("it wrote, so it has the lease"))
}

#[tokio::test]
async fn fencing_numbers_rise_over_acquisitions_and_over_crashes() {
    let disk = SimDisk::new();
    let mut last = 0;
    for round in 0..60_u64 {
        if round % 3 == 1 {
            // The machine stops while the number is being written.
            let torn = DiskFault::Torn { keep: round % 22, error: DiskError::Io };
            let rule = FaultRule::once(DiskOperation::Lease, torn);
            disk.set_faults(Arc::new(FaultRules::new([rule])));
            fence_of(&disk, &format!("torn-{round}")).await.expect_err("the number is not there");
            disk.heal();
        }
        match round % 4 {
            0 => disk.crash(&mut LoseUnsynced),
            1 => disk.crash(&mut LoseNothing),
            2 => disk.crash(&mut Lcg(round)),
            _ => {}
        }
        let fence = fence_of(&disk, &format!("s-{round}")).await.expect("the lease is free");
        assert!(fence > last, "round {round}: {fence} after {last}");
        last = fence;
    }
    assert!(last >= 60, "every acquisition counts");
}
