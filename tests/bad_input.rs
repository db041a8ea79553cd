//! Bad input to the store: every row yields a typed error that names the cause, and leaves nothing
//! half-written.

use std::io::ErrorKind;
use std::sync::Arc;

use continuable::error::ErrorCode;
use continuable::session::Session;
use continuable::store::{DiskOperation, SessionStore, StoreError};

#[path = "support/store.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use support::{Fault, Shelf, header, header_line, id, lines, turn};

fn live(shelf: &Shelf, text: &str) -> Arc<Session> {
    let session = shelf.live(header(text), None);
    session.append(turn(1, "hello")).expect("a turn");
    session
}

#[tokio::test]
async fn ids_that_cannot_be_stored_are_refused_before_anything_exists() {
    let shelf = Shelf::new();
    let (long, wide) = ("a".repeat(10_000), "\u{1d11e}".repeat(64));
    for (text, cause) in [("", "empty"), (&long, "10000 UTF-16 units"), (&wide, "640 bytes")] {
        let session = shelf.session(header(text), None);
        let errors = [
            shelf.store.attach(&session, None).expect_err("it cannot be stored"),
            shelf.store.read_header(&id(text)).await.expect_err("it cannot be stored"),
            shelf.store.inspect(&id(text)).await.expect_err("it cannot be stored"),
            shelf.store.load(&id(text)).await.expect_err("it cannot be stored"),
        ];
        for error in errors {
            assert_eq!(error.code(), ErrorCode::InvalidInput, "{error}");
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
    assert!(shelf.files().is_empty());
}

#[tokio::test]
async fn ids_that_are_not_stored_are_not_found_whatever_they_look_like() {
    let shelf = Shelf::new();
    shelf.stored("s").await;
    for text in ["..", ".", "/", "a/b", "\0", "~", "~0073", "S", "s ", "é", "session.jsonl", "-"] {
        shelf.disk.wrote();
        let error = shelf.store.load(&id(text)).await.expect_err("nobody stored it");
        assert_eq!(error.code(), ErrorCode::SessionNotFound, "{text:?}: {error}");
        let error = shelf.store.read_header(&id(text)).await.expect_err("nobody stored it");
        assert_eq!(error.code(), ErrorCode::SessionNotFound, "{text:?}: {error}");
        assert!(!shelf.disk.wrote());
    }
}

#[tokio::test]
async fn a_disk_that_refuses_a_new_session_is_named_and_leaves_no_log() {
    use DiskOperation as Op;
    for (operation, kind) in [
        (Op::List, ErrorKind::PermissionDenied),
        (Op::CreateDirectory, ErrorKind::ReadOnlyFilesystem),
        (Op::CreateDirectory, ErrorKind::PermissionDenied),
        (Op::WriteNew, ErrorKind::StorageFull),
        (Op::Sync, ErrorKind::Other),
        (Op::Link, ErrorKind::StorageFull),
    ] {
        let shelf = Shelf::new();
        let session = live(&shelf, "s");
        shelf.disk.fail(operation, 0, 1, Fault::Fail(kind));
        let error = shelf.store.flush(&session).await.expect_err("the disk refuses");
        let StoreError::Disk(failure) = &error else { panic!("{error}") };
        assert_eq!((failure.operation, failure.source.kind()), (operation, kind));
        assert!(error.to_string().contains(operation.word()), "{error}");
        assert!(shelf.files().is_empty(), "{operation:?} left {:?}", shelf.files().keys());
        assert_eq!(shelf.store.flush(&session).await.expect("the disk works again"), 3);
        assert_eq!(shelf.text("s"), header_line("s") + &lines(&session.snapshot_from(0)));
    }
}

#[tokio::test]
async fn a_disk_that_refuses_more_events_is_named_and_leaves_the_log_whole() {
    use DiskOperation as Op;
    for (operation, kind, grows) in [
        (Op::Length, ErrorKind::Other, false),
        (Op::Append, ErrorKind::StorageFull, false),
        (Op::Append, ErrorKind::ReadOnlyFilesystem, false),
        (Op::Sync, ErrorKind::Other, true),
    ] {
        let shelf = Shelf::new();
        let session = live(&shelf, "s");
        shelf.store.flush(&session).await.expect("the disk works");
        let before = shelf.text("s");
        session.append(turn(2, "more")).expect("a turn");
        shelf.disk.fail(operation, 0, 1, Fault::Fail(kind));
        let error = shelf.store.flush(&session).await.expect_err("the disk refuses");
        assert_eq!(error.code(), ErrorCode::StoreFailed);
        assert!(error.to_string().contains("--project--/s/session.jsonl"), "{error}");
        let whole = before.clone() + &lines(&session.snapshot_from(3));
        assert_eq!(shelf.text("s"), if grows { whole.clone() } else { before });
        assert_eq!(shelf.store.flush(&session).await.expect("the disk works again"), 6);
        assert_eq!(shelf.text("s"), whole);
    }
}

#[tokio::test]
async fn a_file_where_a_directory_should_be_is_named() {
    let shelf = Shelf::new();
    std::fs::write(shelf.root.path().join("--project--"), "in the way").expect("a file");
    let session = live(&shelf, "s");
    let error = shelf.store.flush(&session).await.expect_err("a file is in the way");
    assert_eq!(error.code(), ErrorCode::StoreFailed);
    assert!(error.to_string().contains("create directory --project--"), "{error}");
    let error = shelf.store.load(&id("other")).await.expect_err("nothing is stored");
    assert_eq!(error.code(), ErrorCode::SessionNotFound);
    assert_eq!(shelf.files().len(), 1);
}

#[tokio::test]
async fn a_failed_read_is_named_and_reserves_nothing() {
    let shelf = Shelf::new();
    shelf.stored("s").await;
    shelf.disk.fail(DiskOperation::Read, 0, 1, Fault::Fail(ErrorKind::Other));
    let error = shelf.store.load(&id("s")).await.expect_err("EIO");
    assert!(error.to_string().contains("read --project--/s/session.jsonl"), "{error}");
    assert_eq!(shelf.store.load(&id("s")).await.expect("it works again").events.len(), 3);
}

#[tokio::test]
async fn logs_that_cannot_be_read_are_named_with_the_byte_and_stay_as_they_are() {
    let shelf = Shelf::new();
    let events = shelf.stored("other").await;
    let (head, body) = (header_line("s"), lines(&events));
    let after_head = head.len() as u64;
    let legacy = r#"{"type":"mode/set","seq":0,"time":1,"data":{}}"#;
    for (text, code, at) in [
        (String::new(), ErrorCode::DamagedLog, 0),
        ("garbage".to_owned(), ErrorCode::DamagedLog, 0),
        (body.clone(), ErrorCode::DamagedLog, 0),
        (head.trim_end().to_owned(), ErrorCode::DamagedLog, 0),
        (head.replace("\"createdAt\":5", "\"createdAt\":1e99") + &body, ErrorCode::DamagedLog, 0),
        (head.replace("Depth\":0", "Depth\":-0") + &body, ErrorCode::DamagedLog, 0),
        (head.replace("Depth\":0", "Depth\":null") + &body, ErrorCode::DamagedLog, 0),
        (head.replace("\"version\":0", "\"version\":1") + &body, ErrorCode::UnsupportedLog, 0),
        (head.clone() + "garbage\n" + &body, ErrorCode::DamagedLog, after_head),
        (
            head.clone() + &body.replace("\"seq\":0", "\"seq\":-1"),
            ErrorCode::DamagedLog,
            after_head,
        ),
        (head.clone() + &body.replace("\"seq\":0", "\"seq\":9"), ErrorCode::DamagedLog, after_head),
        (head.clone() + legacy + "\n", ErrorCode::UnsupportedLog, after_head),
    ] {
        shelf.plant("--project--", "s", &text);
        shelf.disk.wrote();
        let error = shelf.store.load(&id("s")).await.expect_err(&text);
        assert_eq!(error.code(), code, "{text}: {error}");
        let (StoreError::Damaged { file, offset, .. }
        | StoreError::UnsupportedLog { file, offset, .. }) = &error
        else {
            panic!("{error}")
        };
        assert_eq!((file.as_str(), *offset), ("--project--/s/session.jsonl", at), "{text}");
        let listed = shelf.store.list().await.expect("it lists");
        let entry = listed.iter().find(|entry| entry.id == id("s")).expect("it is listed");
        assert_eq!(entry.error.as_ref().map(StoreError::code), Some(code), "{text}");
        assert!(!shelf.disk.wrote());
        assert_eq!(shelf.text("s"), text);
    }
}

#[tokio::test]
async fn a_header_of_another_session_and_an_id_stored_twice_are_named() {
    let shelf = Shelf::new();
    shelf.plant("--project--", "s", &header_line("t"));
    let error = shelf.store.load(&id("s")).await.expect_err("not its header");
    assert!(error.to_string().contains("it names session t, not s"), "{error}");
    let elsewhere = header_line("t").replace("/project", "/elsewhere");
    shelf.plant("--project--", "t", &header_line("t"));
    shelf.plant("--elsewhere--", "t", &elsewhere);
    let error = shelf.store.load(&id("t")).await.expect_err("stored twice");
    let text = error.to_string();
    assert!(text.contains("--elsewhere--/t/session.jsonl"), "{text}");
    assert!(text.contains("--project--/t/session.jsonl"), "{text}");
}

#[tokio::test]
async fn a_compressed_log_is_unsupported_and_its_id_is_taken() {
    let shelf = Shelf::new();
    let file = shelf.plant("--project--", "s", "x");
    std::fs::rename(&file, file.with_extension("jsonl.zstd")).expect("it moves");
    let error = shelf.store.load(&id("s")).await.expect_err("compressed");
    assert_eq!(error.code(), ErrorCode::UnsupportedLog, "{error}");
    let session = live(&shelf, "s");
    let error = shelf.store.flush(&session).await.expect_err("the id is taken");
    assert_eq!(error.code(), ErrorCode::UnsupportedLog, "{error}");
    assert_eq!(shelf.files().len(), 1);
}

#[tokio::test]
async fn a_log_that_somebody_else_changed_is_a_conflict_and_stays_as_it_is() {
    let shelf = Shelf::new();
    for changed in ["longer", "shorter", "gone"] {
        let session = live(&shelf, changed);
        shelf.store.flush(&session).await.expect("the disk works");
        session.append(turn(2, "more")).expect("a turn");
        let file = shelf.path(changed);
        let text = shelf.text(changed);
        match changed {
            "longer" => std::fs::write(&file, text + "{\"by\":\"somebody\"}\n").expect("a file"),
            "shorter" => std::fs::write(&file, &text[..40]).expect("a file"),
            _ => std::fs::remove_file(&file).expect("a file"),
        }
        let before = shelf.files();
        let error = shelf.store.flush(&session).await.expect_err("it was changed");
        assert_eq!(error.code(), ErrorCode::StoreConflict, "{error}");
        assert!(error.to_string().contains(&format!("--project--/{changed}")), "{error}");
        assert_eq!(shelf.files(), before, "nothing was written");
    }
}

#[tokio::test]
async fn what_somebody_else_writes_in_the_gap_before_an_append_is_never_lost() {
    for torn in [false, true] {
        let shelf = Shelf::new();
        let session = live(&shelf, "s");
        shelf.store.flush(&session).await.expect("the disk works");
        session.append(turn(2, "more")).expect("a turn");
        let (began, gate) = shelf.disk.hold(DiskOperation::Append);
        if torn {
            shelf.disk.fail(DiskOperation::Append, 0, 1, Fault::Torn(9, ErrorKind::StorageFull));
        }
        let flushing = shelf.store.flush(&session);
        began.wait().await;
        let foreign = shelf.text("s") + "{\"by\":\"somebody\"}\n";
        std::fs::write(shelf.path("s"), &foreign).expect("a file");
        gate.set(());
        let error = flushing.await.expect_err("somebody wrote in the gap");
        match &error {
            StoreError::Conflict { .. } => assert!(!torn),
            StoreError::Rollback { rollback, .. } => {
                assert!(torn);
                assert_eq!(rollback.code(), ErrorCode::StoreConflict, "{error}");
            }
            other => panic!("{other}"),
        }
        assert!(shelf.text("s").starts_with(&foreign), "nothing of theirs is lost");
    }
}

#[tokio::test]
async fn a_runtime_without_the_lease_writes_nothing() {
    let shelf = Shelf::new();
    shelf.stored("s").await;
    let [winner, loser] =
        [(); 2].map(|()| SessionStore::open_leased(Arc::clone(&shelf.runtime), shelf.disk.clone()));
    let loaded = winner.load(&id("s")).await.expect("the lease is free");
    let before = shelf.files();
    let error = loser.load(&id("s")).await.expect_err("somebody has the lease");
    assert_eq!(error.code(), ErrorCode::LeaseHeld);
    let session = shelf.session(header("t"), None);
    loser.attach(&session, None).expect("nothing is written yet");
    session.append(turn(1, "hello")).expect("a turn");
    let error = loser.flush(&session).await.expect_err("somebody has the lease");
    assert_eq!(error.code(), ErrorCode::LeaseHeld);
    assert_eq!(loser.inspect(&id("s")).await.expect("reading works").events, loaded.events);
    assert_eq!(shelf.files(), before);
    assert_eq!((winner.fence(), loser.fence()), (Some(1), None));
    drop(loaded);
    winner.close().await.expect("nothing is live");
    assert_eq!(loser.flush(&session).await.expect("the lease is free"), 3);
    assert_eq!((winner.fence(), loser.fence()), (None, Some(2)));
}

#[tokio::test]
async fn a_lease_file_without_a_number_is_refused_and_left_as_it_is() {
    let shelf = Shelf::new();
    shelf.stored("s").await;
    let file = shelf.root.path().join(".lease");
    std::fs::write(&file, "somebody's notes").expect("a file");
    let before = shelf.files();
    let store = SessionStore::open_leased(Arc::clone(&shelf.runtime), shelf.disk.clone());
    let error = store.load(&id("s")).await.expect_err("its numbers would start over");
    assert!(matches!(error, StoreError::LeaseUnusable { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::StoreFailed);
    assert_eq!((shelf.files(), store.fence()), (before, None));
    std::fs::write(&file, "").expect("a file");
    drop(store.load(&id("s")).await.expect("an empty file never held a number"));
    assert_eq!(store.fence(), Some(1));
}
