//! §10.16: persistence.

use std::io::ErrorKind;
use std::sync::Arc;

use continuable::cancel::CancelSignal;
use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::session::{Event, EventBody, Session, TurnEndReason};
use continuable::store::{DiskOperation, Loaded, SessionStore, StoreError, TailCut};
use continuable::vocabulary::CancelCause;

use crate::support::{
    Fault, Shelf, answer, header, header_line, id, is_inside, lines, open_turn, turn,
};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (282, "a_log_appears_with_its_first_events_and_keeps_their_bytes"),
    (283, "an_interrupted_turn_is_kept_and_closed_and_committed_bytes_stay"),
    (284, "a_failed_append_leaves_no_gap_and_a_failed_rollback_reports_both"),
    (285, "unanswered_calls_are_closed_by_whether_they_were_started"),
    (286, "damage_after_the_last_turn_end_is_cut_and_before_it_refused"),
    (287, "a_header_that_does_not_belong_is_refused_before_any_repair"),
    (288, "events_during_a_write_form_a_second_batch_and_a_flush_retries_a_failed_write"),
    (289, "a_load_looks_for_a_live_owner_inside_its_turn"),
    (290, "a_cold_load_reserves_its_id"),
    (291, "sessions_of_one_id_collide_unless_the_first_was_abandoned"),
    (292, "a_seed_is_written_once_and_a_resume_does_not_write_it_again"),
    (293, "a_live_session_adopts_its_stored_log_and_its_open_turn_stays_open"),
    (294, "retirement_drains_before_release_and_closing_tries_failed_ones_again"),
    (295, "gaps_are_refused_and_an_empty_batch_is_a_no_op"),
    (296, "an_inspection_is_cancelled_queued_and_under_way"),
    (298, "ids_stay_inside_the_root_and_headers_are_read_in_pieces"),
];

async fn load(store: &Arc<SessionStore>, text: &str) -> Result<Loaded, StoreError> {
    store.load(&id(text)).await
}

async fn resumed(shelf: &Shelf, text: &str) -> (Arc<Session>, Loaded) {
    let mut loaded = load(&shelf.store, text).await.expect("it loads");
    let session = shelf.session(loaded.header.clone(), Some(loaded.events.clone()));
    shelf.store.attach(&session, loaded.reservation.take()).expect("it is reserved for us");
    (session, loaded)
}

fn kinds(events: &[Arc<Event>]) -> Vec<&str> {
    events.iter().map(|event| event.kind()).collect()
}

/// Scenario 282.
#[tokio::test]
async fn a_log_appears_with_its_first_events_and_keeps_their_bytes() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    assert_eq!(shelf.store.flush(&session).await.expect("nothing to do"), 0);
    assert!(shelf.files().is_empty(), "no file before the first event");
    session.append(turn(1, "hello")).expect("a turn");
    shelf.store.poke(&session);
    assert_eq!(shelf.store.flush(&session).await.expect("it works"), 3);
    let events = session.snapshot_from(0);
    assert_eq!(shelf.text("s"), header_line("s") + &lines(&events));
    assert_eq!(shelf.files().len(), 1, "no temporary file is left");

    let packed = r#"{"type":"text-chunks","seq0":4,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["a","b","c"]}}"#;
    let mixed = [
        r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1,"trigger":{"kind":"retry"}}}"#,
        r#"{"type":"step/start","seq":1,"time":1,"data":{"turn":1,"step":1}}"#,
        r#"{"type":"x/y","seq":2,"time":1.5,"data":{"z":12345678901234567890123,"a":"\ud800"}}"#,
        r#"{"type":"assistant/chunk","seq":3,"time":9,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"_"}}}"#,
        packed,
        r#"{"type":"step/end","seq":7,"time":12,"data":{"turn":1,"step":1}}"#,
        r#"{"type":"turn/end","seq":8,"time":12,"data":{"turn":1,"reason":{"kind":"completed"}}}"#,
    ];
    let text = header_line("mixed") + &mixed.map(|line| line.to_owned() + "\n").concat();
    shelf.plant("--project--", "mixed", &text);
    let (session, loaded) = resumed(&shelf, "mixed").await;
    assert_eq!((loaded.events.len(), loaded.closers, loaded.tail_cut), (9, 0, None));
    session.append(turn(2, "more")).expect("a turn");
    assert_eq!(shelf.store.flush(&session).await.expect("it works"), 13);
    let after = shelf.text("mixed");
    assert_eq!(after, text + &lines(&session.snapshot_from(9)), "packed and unpacked mix");
}

/// Scenario 283.
#[tokio::test]
async fn an_interrupted_turn_is_kept_and_closed_and_committed_bytes_stay() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(turn(1, "hello")).expect("a turn");
    session.append(open_turn(2, &[], &[])).expect("a turn");
    shelf.store.flush(&session).await.expect("it works");
    let before = shelf.text("s");

    let crashed = shelf.another_store();
    let loaded = load(&crashed, "s").await.expect("it loads");
    assert_eq!(kinds(&loaded.events[7..]), ["step/end", "turn/end"]);
    assert_eq!(loaded.closers, 2);
    let end = loaded.events.last().map(|event| &event.body);
    assert!(matches!(
        end,
        Some(EventBody::TurnEnd { turn: 2, reason: TurnEndReason::Interrupted })
    ));
    let after = shelf.text("s");
    assert_eq!(after, before + &lines(&loaded.events[7..]));
    drop(loaded);
    let again = load(&crashed, "s").await.expect("it loads");
    assert_eq!((again.closers, shelf.text("s")), (0, after), "repair happens once");
}

/// Scenario 284.
#[tokio::test]
async fn a_failed_append_leaves_no_gap_and_a_failed_rollback_reports_both() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(turn(1, "hello")).expect("a turn");
    shelf.store.flush(&session).await.expect("it works");
    let before = shelf.text("s");

    session.append(turn(2, "more")).expect("a turn");
    let torn = || Fault::Torn(40, ErrorKind::StorageFull);
    shelf.disk.fail(DiskOperation::Append, 0, 1, torn());
    let error = shelf.store.flush(&session).await.expect_err("a full disk");
    assert_eq!(error.code(), ErrorCode::StoreFailed);
    assert!(error.to_string().contains("append to --project--/s/session.jsonl"), "{error}");
    assert_eq!(shelf.text("s"), before, "the torn bytes are gone");

    shelf.disk.fail(DiskOperation::Append, 0, 1, torn());
    shelf.disk.fail(DiskOperation::Truncate, 0, 1, Fault::Fail(ErrorKind::ReadOnlyFilesystem));
    let error = shelf.store.flush(&session).await.expect_err("both fail");
    let StoreError::Rollback { append, rollback } = &error else { panic!("{error}") };
    assert!(append.to_string().contains("append to"), "{append}");
    assert!(rollback.to_string().contains("cut --project--/s"), "{rollback}");
    assert_eq!(shelf.text("s").len(), before.len() + 40, "the torn bytes are still there");

    assert_eq!(shelf.store.flush(&session).await.expect("the disk works again"), 6);
    assert_eq!(shelf.text("s"), before + &lines(&session.snapshot_from(3)));
}

/// Scenario 285.
#[tokio::test]
async fn unanswered_calls_are_closed_by_whether_they_were_started() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(open_turn(1, &["done", "lost", "never"], &["done", "lost"])).expect("a turn");
    session.append(vec![answer(1, "done", 4)]).expect("a result");
    shelf.store.flush(&session).await.expect("it works");
    let loaded = load(&shelf.another_store(), "s").await.expect("it loads");
    let codes: Vec<_> = loaded.events[7..]
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolResult { error: Some(error), .. } => {
                Some((error.code.as_str(), event.sources.clone()))
            }
            _ => None,
        })
        .collect();
    let want = [("TOOL_OUTCOME_UNKNOWN", Some(vec![5])), ("TOOL_NOT_STARTED", None)];
    assert_eq!(codes, want);
    assert_eq!(kinds(&loaded.events[9..]), ["step/end", "turn/end"]);
}

/// Scenario 286.
#[tokio::test]
async fn damage_after_the_last_turn_end_is_cut_and_before_it_refused() {
    let shelf = Shelf::new();
    let events = shelf.stored("s").await;
    let whole = shelf.text("s");
    for tail in ["{\"type\":\"torn", "garbage\n", "\0\0\0\n", &lines(&events[1..2])] {
        shelf.plant("--project--", "s", &(whole.clone() + tail));
        let store = shelf.another_store();
        let cut = TailCut { offset: whole.len() as u64, bytes: tail.len() as u64 };
        let listed = store.list().await.expect("it lists");
        assert_eq!((listed[0].events, listed[0].tail_cut), (3, Some(cut)));
        assert_eq!(store.inspect(&id("s")).await.expect("it reads").tail_cut, Some(cut));
        let loaded = load(&store, "s").await.expect("a torn tail");
        assert_eq!((loaded.events.len(), loaded.tail_cut), (3, Some(cut)));
        assert_eq!(shelf.text("s"), whole, "{tail:?} is cut");
    }
    let head = header_line("s");
    for damaged in [
        head.clone() + "garbage\n" + &lines(&events),
        head.clone() + &lines(&events[1..]),
        head.clone() + "\0\0\0\0" + &lines(&events),
    ] {
        shelf.plant("--project--", "s", &damaged);
        let store = shelf.another_store();
        let error = load(&store, "s").await.expect_err("committed damage");
        let offset_wanted = head.len() as u64;
        assert!(
            matches!(&error, StoreError::Damaged { file, offset, .. }
                if *offset == offset_wanted && file.as_str() == "--project--/s/session.jsonl"),
            "{error}"
        );
        let listed = store.list().await.expect("it lists");
        let code = listed[0].error.as_ref().map(StoreError::code);
        assert_eq!(code, Some(ErrorCode::DamagedLog), "listing and load agree");
        assert_eq!(shelf.text("s"), damaged, "nothing was written");
    }
}

/// Scenario 287.
#[tokio::test]
async fn a_header_that_does_not_belong_is_refused_before_any_repair() {
    let shelf = Shelf::new();
    let events = shelf.stored("other").await;
    let open = lines(&events[..2]);
    let numbers = |from: &str, to: &str| header_line("s").replace(from, to) + &open;
    for (text, code) in [
        (header_line("t") + &open, ErrorCode::DamagedLog),
        (numbers("/project", "/elsewhere"), ErrorCode::DamagedLog),
        (numbers(",\"cwd\":\"/project\"", ""), ErrorCode::DamagedLog),
        (numbers("\"createdAt\":5", "\"createdAt\":-0"), ErrorCode::DamagedLog),
        (numbers("\"createdAt\":5", "\"createdAt\":0.5"), ErrorCode::DamagedLog),
        (numbers("Depth\":0", "Depth\":-1"), ErrorCode::DamagedLog),
        (numbers("\"version\":0", "\"version\":2"), ErrorCode::UnsupportedLog),
    ] {
        shelf.plant("--project--", "s", &text);
        shelf.disk.wrote();
        let error = load(&shelf.store, "s").await.expect_err("a wrong header");
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains("--project--/s/session.jsonl"), "{error}");
        let header = shelf.store.read_header(&id("s")).await.expect_err("a wrong header");
        assert_eq!(header.code(), code);
        assert!(!shelf.disk.wrote());
        assert_eq!(shelf.text("s"), text);
    }
    shelf.plant("--project--", "s", &(header_line("s") + &open));
    shelf.plant(
        "--elsewhere--",
        "s",
        &(header_line("s").replace("/project", "/elsewhere") + &open),
    );
    let error = load(&shelf.store, "s").await.expect_err("stored twice");
    assert!(matches!(error, StoreError::Duplicate { .. }), "{error}");
    let listed = shelf.store.list().await.expect("it lists");
    let twice =
        listed.iter().filter(|entry| matches!(entry.error, Some(StoreError::Duplicate { .. })));
    assert_eq!(twice.count(), 2);
    assert!(!shelf.disk.wrote());
}

/// Scenario 288.
#[tokio::test]
async fn events_during_a_write_form_a_second_batch_and_a_flush_retries_a_failed_write() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(turn(1, "hello")).expect("a turn");
    shelf.store.flush(&session).await.expect("it works");
    let mut facts = shelf.tokio.subscribe(100);
    let (began, gate) = shelf.disk.hold(DiskOperation::Append);
    session.append(turn(2, "two")).expect("a turn");
    shelf.store.poke(&session);
    began.wait().await;
    session.append(turn(3, "three")).expect("a turn");
    session.append(turn(4, "four")).expect("a turn");
    shelf.store.poke(&session);
    gate.set(());
    shelf.store.flush(&session).await.expect("it works");
    let batches: Vec<_> = std::iter::from_fn(|| facts.try_recv())
        .filter_map(|stamped| match &*stamped.fact {
            Fact::BatchWritten { seq, count, .. } => Some((*seq, *count)),
            _ => None,
        })
        .collect();
    assert_eq!(batches, [(3, 3), (6, 6)]);

    let (began, gate) = shelf.disk.hold(DiskOperation::Append);
    shelf.disk.fail(DiskOperation::Append, 0, 1, Fault::Fail(ErrorKind::StorageFull));
    session.append(turn(5, "five")).expect("a turn");
    shelf.store.poke(&session);
    began.wait().await;
    session.append(turn(6, "six")).expect("a turn");
    gate.set(());
    // The eager task's second batch fails; the flush joins it and makes an attempt of its own.
    assert_eq!(shelf.store.flush(&session).await.expect("a flush retries"), 18);

    shelf.disk.fail(DiskOperation::Append, 0, 1, Fault::Fail(ErrorKind::StorageFull));
    session.append(turn(7, "seven")).expect("a turn");
    let error = shelf.store.flush(&session).await.expect_err("its own attempt failed");
    assert_eq!(error.code(), ErrorCode::StoreFailed);
    assert_eq!(shelf.store.flush(&session).await.expect("nothing was lost"), 21);
    assert_eq!(shelf.text("s"), header_line("s") + &lines(&session.snapshot_from(0)));
}

/// Scenario 289.
#[tokio::test]
async fn a_load_looks_for_a_live_owner_inside_its_turn() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    let empty = load(&shelf.store, "s").await.expect_err("no events");
    assert_eq!(empty.code(), ErrorCode::SessionNotFound);
    session.append(open_turn(1, &[], &[])).expect("a turn");
    let open = load(&shelf.store, "s").await.expect_err("an open turn");
    assert_eq!(open.code(), ErrorCode::OpenTurn);
    assert!(shelf.files().is_empty(), "a refused load writes nothing");

    let stored = shelf.stored("t").await;
    let (began, gate) = shelf.disk.hold(DiskOperation::Length);
    let inspecting = {
        let store = Arc::clone(&shelf.store);
        tokio::spawn(async move { store.inspect(&id("t")).await })
    };
    began.wait().await;
    let queued = shelf.store.load(&id("t"));
    let live = shelf.live(header("t"), Some(stored.clone()));
    shelf.disk.wrote();
    gate.set(());
    inspecting.await.expect("no panic").expect("it reads");
    let loaded = queued.await.expect("the live session answers");
    assert!(loaded.reservation.is_none());
    assert_eq!(loaded.events, live.snapshot_from(0));
    assert_eq!(kinds(&loaded.events).last(), Some(&"session/end-seed"));
}

/// Scenario 290.
#[tokio::test]
async fn a_cold_load_reserves_its_id() {
    let shelf = Shelf::new();
    let events = shelf.stored("s").await;
    let (began, gate) = shelf.disk.hold(DiskOperation::Length);
    let loading = shelf.store.load(&id("s"));
    began.wait().await;
    let intruder = shelf.session(header("s"), Some(events.clone()));
    let refused = shelf.store.attach(&intruder, None).expect_err("it is loading");
    assert!(matches!(refused, StoreError::Reserved { .. }), "{refused}");
    gate.set(());
    let loaded = loading.await.expect("it loads");
    let refused = shelf.store.attach(&intruder, None).expect_err("it is reserved");
    assert!(matches!(refused, StoreError::Reserved { .. }), "{refused}");
    let second = load(&shelf.store, "s").await.expect_err("it is reserved");
    assert_eq!(second.code(), ErrorCode::SessionAlreadyExists);
    drop(loaded);
    shelf.store.attach(&intruder, None).expect("the id is free again");
    assert_eq!(shelf.store.flush(&intruder).await.expect("it adopts its log"), 4);
}

/// Scenario 291.
#[tokio::test]
async fn sessions_of_one_id_collide_unless_the_first_was_abandoned() {
    let shelf = Shelf::new();
    let stored = shelf.stored("s").await;
    let before = shelf.text("s");
    let mut elsewhere = header("s");
    elsewhere.cwd = Some("/elsewhere".to_owned());
    let mut nowhere = header("s");
    nowhere.cwd = None;
    for (header, seed) in
        [(header("s"), None), (elsewhere, Some(stored.clone())), (nowhere, Some(stored.clone()))]
    {
        let session = shelf.live(header, seed);
        if session.is_empty() {
            session.append(turn(1, "other")).expect("a turn");
        }
        let error = shelf.store.flush(&session).await.expect_err("the id is taken");
        assert!(matches!(error, StoreError::Collision { .. }), "{error}");
        assert_eq!(shelf.text("s"), before);
        assert_eq!(shelf.files().len(), 1);
        shelf.store.detach(&session);
        let detached = shelf.store.flush(&session).await.expect_err("it is detached");
        assert_eq!(detached.code(), ErrorCode::SessionNotLive);
    }
    let first = shelf.live(header("t"), None);
    let second = shelf.live(header("t"), None);
    assert!(shelf.store.flush(&first).await.is_err(), "it was abandoned");
    second.append(turn(1, "hello")).expect("a turn");
    shelf.store.flush(&second).await.expect("it owns the id");
    let third = shelf.session(header("t"), None);
    let error = shelf.store.attach(&third, None).expect_err("a live session has the id");
    assert!(matches!(error, StoreError::Collision { .. }), "{error}");
}

/// Scenario 292.
#[tokio::test]
async fn a_seed_is_written_once_and_a_resume_does_not_write_it_again() {
    let shelf = Shelf::new();
    let parent = shelf.stored("parent").await;
    let mut fork = header("fork");
    fork.seed_length = Some(parent.len() as u64);
    let session = shelf.live(fork, Some(parent.clone()));
    shelf.store.poke(&session);
    assert_eq!(shelf.store.flush(&session).await.expect("it works"), 4);
    let text = shelf.text("fork");
    assert!(text.ends_with(&lines(&session.snapshot_from(0))));
    assert!(text.contains("\"seedLength\":3"));
    shelf.store.retire(&session).await.expect("it works");

    let (session, _) = resumed(&shelf, "fork").await;
    assert_eq!(shelf.store.flush(&session).await.expect("nothing to write"), 4);
    assert_eq!(shelf.text("fork"), text, "an untouched resume writes nothing");
    session.append(turn(2, "own")).expect("a turn");
    assert_eq!(shelf.store.flush(&session).await.expect("it works"), 7);
    assert_eq!(shelf.text("fork"), text + &lines(&session.snapshot_from(4)));
}

/// Scenario 293.
#[tokio::test]
async fn a_live_session_adopts_its_stored_log_and_its_open_turn_stays_open() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(turn(1, "hello")).expect("a turn");
    session.append(open_turn(2, &[], &[])).expect("a turn");
    shelf.store.flush(&session).await.expect("it works");
    let before = shelf.text("s");
    let torn = shelf.plant("--project--", "s", &(before.clone() + "{\"torn"));
    assert!(is_inside(shelf.root.path(), &torn));

    let adopting = shelf.another_store();
    adopting.attach(&session, None).expect("another store");
    session.append(vec![continuable::session::Draft::step_end(2, 1)]).expect("a step end");
    assert_eq!(adopting.flush(&session).await.expect("it adopts"), 8);
    assert_eq!(shelf.text("s"), before + &lines(&session.snapshot_from(7)));
}

/// Scenario 294.
#[tokio::test]
async fn retirement_drains_before_release_and_closing_tries_failed_ones_again() {
    let shelf = Shelf::new();
    let session = shelf.live(header("s"), None);
    session.append(turn(1, "hello")).expect("a turn");
    let (began, gate) = shelf.disk.hold(DiskOperation::Link);
    let retiring = shelf.store.retire(&session);
    began.wait().await;
    let loading = shelf.store.load(&id("s"));
    let replacement = shelf.session(header("s"), None);
    assert!(shelf.store.attach(&replacement, None).is_err(), "it is not released yet");
    gate.set(());
    retiring.await.expect("it works");
    assert_eq!(loading.await.expect("a load waits for the retirement").events.len(), 3);

    let (session, _) = resumed(&shelf, "s").await;
    session.append(turn(2, "more")).expect("a turn");
    shelf.disk.fail(DiskOperation::Append, 0, 1, Fault::Fail(ErrorKind::StorageFull));
    let failed = shelf.store.retire(&session).await.expect_err("a full disk");
    assert_eq!(failed.code(), ErrorCode::StoreFailed);
    let busy = shelf.live(header("busy"), None);
    busy.append(turn(1, "hello")).expect("a turn");
    let (began, gate) = shelf.disk.hold(DiskOperation::WriteNew);
    shelf.store.poke(&busy);
    began.wait().await;
    let closing = tokio::spawn(shelf.store.close());
    tokio::task::yield_now().await;
    assert!(!closing.is_finished(), "it waits for the write under way");
    gate.set(());
    closing.await.expect("no panic").expect("everything is confirmed now");
    assert!(shelf.text("s").ends_with(&lines(&session.snapshot_from(4))));
    assert_eq!(shelf.text("busy"), header_line("busy") + &lines(&busy.snapshot_from(0)));
    let late = load(&shelf.store, "s").await.expect_err("the store is closed");
    assert_eq!(late.code(), ErrorCode::Closing);
}

/// Scenario 295. What a caller does to its drafts after an append cannot matter: they are moved.
#[tokio::test]
async fn gaps_are_refused_and_an_empty_batch_is_a_no_op() {
    let shelf = Shelf::new();
    let events = shelf.stored("s").await;
    let runtime = Arc::clone(&shelf.runtime);
    let gapped = vec![events[0].clone(), events[2].clone()];
    assert!(Session::new(runtime, header("t"), Some(gapped), None).is_err());
    let (session, _) = resumed(&shelf, "s").await;
    shelf.store.flush(&session).await.expect("it works");
    let before = shelf.text("s");
    shelf.disk.wrote();
    session.append(Vec::new()).expect("nothing to append");
    shelf.store.poke(&session);
    assert_eq!(shelf.store.flush(&session).await.expect("nothing to do"), 4);
    assert!(!shelf.disk.wrote());
    assert_eq!(shelf.text("s"), before);
}

/// Scenario 296.
#[tokio::test]
async fn an_inspection_is_cancelled_queued_and_under_way() {
    let shelf = Shelf::new();
    shelf.stored("s").await;
    let call = || CancelScope::Call { call: "inspect".to_owned() };
    let signals = [(); 2].map(|()| CancelSignal::new(Arc::clone(&shelf.runtime), call()));
    let (began, gate) = shelf.disk.hold(DiskOperation::Length);
    let inspections = signals.clone().map(|signal| {
        let store = Arc::clone(&shelf.store);
        tokio::spawn(async move { store.inspect_until(&id("s"), &signal).await })
    });
    began.wait().await;
    let [active, queued] = signals;
    queued.cancel(CancelCause::User);
    active.cancel(CancelCause::CallerGone);
    for (inspection, want) in
        inspections.into_iter().zip([CancelCause::CallerGone, CancelCause::User])
    {
        let error = inspection.await.expect("no panic").expect_err("it is cancelled");
        assert!(matches!(error, StoreError::Cancelled { cause } if cause == want), "{error}");
    }
    assert_eq!(shelf.store.inspect(&id("s")).await.expect("the chain is free").events.len(), 3);
    drop(gate);
}

/// Scenario 298.
#[tokio::test]
async fn ids_stay_inside_the_root_and_headers_are_read_in_pieces() {
    let shelf = Shelf::new();
    for hostile in ["..", ".", "../../x", "/etc/passwd", "a\\b", "~", "\0", "é\u{1d11e}"] {
        let events = {
            let session = shelf.live(header(hostile), None);
            session.append(turn(1, "hello")).expect("a turn");
            shelf.store.flush(&session).await.expect("an ordinary id");
            shelf.store.retire(&session).await.expect("it works");
            session.snapshot_from(0)
        };
        shelf.disk.fail(DiskOperation::Read, 0, 1_000, Fault::Short(7));
        let header = shelf.store.read_header(&id(hostile)).await.expect("in pieces");
        assert_eq!(header.id, id(hostile));
        shelf.disk.heal();
        let loaded = load(&shelf.store, hostile).await.expect("it loads");
        assert_eq!(loaded.events, events);
        assert!((0..).zip(&loaded.events).all(|(seq, event)| event.seq == seq));
    }
    assert!(shelf.files().keys().all(|file| is_inside(shelf.root.path(), file)));
    let empty = shelf.session(header(""), None);
    let refused = shelf.store.attach(&empty, None).expect_err("an empty id");
    assert_eq!(refused.code(), ErrorCode::InvalidInput);
}
