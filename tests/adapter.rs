//! The human-facing adapter (contract P19), in memory and on real sockets: what a person sees and
//! does, what is refused and how, and that a person who is gone waits for nothing.

use std::sync::Arc;
use std::time::Duration;

use continuable::adapter::client::{CallError, HumanClient};
use continuable::adapter::protocol::{self, Response};
use continuable::adapter::{CALLS_MAX, HumanAdapter, LINE_BYTES_MAX, LineError};
use continuable::agent::AgentHandle;
use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::control::{ContinuableStart, ContinuableStartSpec};
use continuable::error::ErrorCode;
use continuable::ids::{SessionId, TaskId};
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{Runtime, TokioRuntime};
use continuable::store::StdDisk;
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};
use continuable::wire::{Connect, TcpConnect};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One process with a loaded parent, and its adapter.
struct World {
    runtime: Arc<dyn Runtime>,
    assembly: Assembly,
    adapter: Arc<HumanAdapter>,
    model: ScriptedModel,
    parent: AgentHandle,
    _directory: TempDir,
}

fn me() -> SessionId {
    SessionId::new("parent")
}

async fn world(steps: Vec<Step>) -> World {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
    let model = ScriptedModel::shared(Arc::clone(&runtime), steps);
    let disk = Arc::new(StdDisk::new(directory.path()));
    let config = AssemblyConfig::new(Arc::clone(&runtime), disk, Arc::new(model.clone()));
    let assembly = Assembly::new(config).expect("it assembles");
    let parent = assembly.create_parent(me()).await.expect("the id is free");
    let adapter = assembly.human_adapter().expect("it has a store");
    World { runtime, assembly, adapter, model, parent, _directory: directory }
}

impl World {
    fn start(&self) -> ContinuableStart {
        let spec = ContinuableStartSpec::text("spawn", "measure", "How long is the bridge?");
        self.assembly.control.start_continuable(self.parent.agent(), spec).expect("it starts")
    }

    async fn ended(&self, task: &TaskId) {
        let ended = self.assembly.tasks.wait(task, Some(&me()), None, None).await;
        assert!(ended.expect("it is known").status.is_terminal());
    }

    async fn reached(&self, gate: &str) {
        while !self.model.was_reached(gate) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A raw connection in memory, and what serving it came to.
    fn raw(&self) -> (DuplexStream, JoinHandle<Result<(), LineError>>) {
        let (near, far) = duplex(512);
        (near, tokio::spawn(Arc::clone(&self.adapter).serve(far)))
    }

    fn client(&self) -> HumanClient {
        HumanClient::new(&self.runtime, self.raw().0)
    }

    async fn close(self) {
        self.assembly.shutdown().await.expect("it closes");
    }
}

fn code(error: CallError) -> ErrorCode {
    error.code().unwrap_or_else(|| panic!("no refusal: {error}"))
}

fn text_of(events: &[Box<serde_json::value::RawValue>]) -> String {
    events.iter().map(|event| event.get()).collect::<Vec<_>>().join("\n")
}

/// A person opens a child, reads it, continues it, waits, reads the output, and kills.
async fn a_day(world: &World, person: HumanClient) {
    let started = world.start();
    world.ended(&started.task).await;
    let child = started.child.clone();

    let listed = person.children(&me()).await.expect("a list").children;
    assert_eq!((listed.len(), &listed[0].id, &listed[0].task), (1, &child, &None));
    assert!(listed[0].events > 0 && listed[0].created_at.is_some());

    let read = person.transcript(&me(), &child, 0).await.expect("a transcript");
    assert_eq!((read.header.parent_session, read.next), (Some(me()), None));
    assert_eq!(read.events.len() as u64, listed[0].events);
    assert!(text_of(&read.events).contains("1,280 metres"));
    assert!(world.assembly.agents.get(&child).is_none(), "reading loads no agent");
    let rest = person.transcript(&me(), &child, 3).await.expect("a transcript").events;
    assert_eq!(text_of(&rest), text_of(&read.events[3..]));

    let sent = person.send(&me(), child.as_str(), "And when did it open?").await.expect("sent");
    assert_eq!(sent.route, RouteCode::Started);
    world.reached("opening").await;
    let running = person.children(&me()).await.expect("a list").children;
    let task = running[0].task.clone().expect("it runs");
    assert_eq!((&task.id, task.status), (&sent.task, TaskStatus::Running));
    let live = person.wait(&me(), &sent.task, Some(1.0)).await.expect("a timeout").task;
    assert_eq!(live.status, TaskStatus::Running);
    let parent = me();
    let joined = person.send(&parent, child.as_str(), "In which year?");
    let release = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.model.release("opening");
    };
    let (joined, ()) = tokio::join!(joined, release);
    let joined = joined.expect("sent");
    assert_eq!((joined.route, &joined.task), (RouteCode::Steered, &sent.task));
    let ended = person.wait(&me(), &sent.task, None).await.expect("it ends").task;
    assert_eq!(ended.status, TaskStatus::Completed);
    let output = person.output(&me(), &sent.task).await.expect("it is known");
    assert_eq!(output.text, "It opened in 1937.");
    let log = text_of(&person.transcript(&me(), &child, 0).await.expect("it").events);
    for said in ["And when did it open?", "In which year?"] {
        let line = log.lines().find(|line| line.contains(said)).expect("it is in the log");
        assert!(line.contains(r#""source":{"kind":"user"}"#), "{line}");
    }

    let last = person.send(&me(), child.as_str(), "Who built it?").await.expect("sent");
    world.reached("builder").await;
    let killed = person.kill(&me(), &last.task, Some("enough")).await.expect("it is known");
    assert_eq!(killed.answer, KillAnswer::Requested);
    let ended = person.wait(&me(), &last.task, None).await.expect("it ends").task;
    assert_eq!(ended.status, TaskStatus::Killed);
    let again = person.kill(&me(), &last.task, None).await.expect("it is known");
    assert_eq!(again.answer, KillAnswer::AlreadyFinished);
}

fn steps_of_a_day() -> Vec<Step> {
    vec![
        Step::say("The bridge is 1,280 metres long."),
        Step::held("It opened", "opening", " long ago."),
        Step::say("It opened in 1937."),
        Step::gate("builder"),
    ]
}

#[tokio::test]
async fn a_person_reads_continues_and_kills_children() {
    let world = world(steps_of_a_day()).await;
    a_day(&world, world.client()).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_over_real_sockets() {
    let world = world(steps_of_a_day()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let adapter = Arc::clone(&world.adapter);
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("somebody comes");
        adapter.serve(stream).await
    });
    let stream = TcpConnect::new(address).connect().await.expect("it listens");
    a_day(&world, HumanClient::new(&world.runtime, stream)).await;
    // The last clone of the client is gone, so the connection ends in good order.
    server.await.expect("no panic").expect("a clean end");
    world.close().await;
}

#[tokio::test]
async fn refusals_are_typed_and_leave_nothing_behind() {
    let world = world(vec![Step::say("done")]).await;
    let started = world.start();
    world.ended(&started.task).await;
    let person = world.client();
    let stranger = SessionId::new("stranger");
    let (child, task) = (started.child.as_str(), &started.task);

    let refused = person.send(&stranger, child, "hello").await.expect_err("nobody is loaded");
    assert_eq!(code(refused), ErrorCode::OwnerUnavailable);
    let refused = person.kill(&stranger, task, None).await.expect_err("nobody is loaded");
    assert_eq!(code(refused), ErrorCode::OwnerUnavailable);
    let refused = person.transcript(&stranger, &started.child, 0).await.expect_err("not theirs");
    assert_eq!(code(refused), ErrorCode::Unauthorized);
    assert_eq!(person.children(&stranger).await.expect("a list").children, []);

    for id in ["", "../../etc/passwd", "a/b", "\0"] {
        let refused = person.send(&me(), id, "hello").await;
        // An id that could name a session starts a Task, which then finds nothing.
        if let Err(refused) = refused {
            assert_eq!(code(refused), ErrorCode::InvalidInput, "{id:?}");
        }
        let refused = person.transcript(&me(), &SessionId::new(id), 0).await.expect_err(id);
        let code = code(refused);
        let known = [ErrorCode::InvalidInput, ErrorCode::SessionNotFound];
        assert!(known.contains(&code), "{id:?}: {code}");
    }
    let unknown = TaskId::new("subagent-99");
    for refused in [
        person.wait(&me(), &unknown, None).await.map(|_| ()).expect_err("unknown"),
        person.output(&me(), &unknown).await.map(|_| ()).expect_err("unknown"),
        person.kill(&me(), &unknown, None).await.map(|_| ()).expect_err("unknown"),
    ] {
        assert_eq!(code(refused), ErrorCode::UnknownTask);
    }
    for timeout in [0.0, -1.0, 1e300] {
        let refused = person.wait(&me(), task, Some(timeout)).await.expect_err("no time");
        assert_eq!(code(refused), ErrorCode::InvalidInput, "{timeout}");
    }
    world.close().await;
}

/// Sends raw lines and reads the answers' lines.
async fn raw_answers(world: &World, lines: &[&[u8]], answers: usize) -> Vec<Response> {
    let (near, served) = world.raw();
    let (input, mut output) = tokio::io::split(near);
    let write = async {
        for line in lines {
            output.write_all(line).await.expect("it is read");
            output.write_all(b"\n").await.expect("it is read");
        }
    };
    let mut input = BufReader::new(input).lines();
    let read = async {
        let mut read = Vec::new();
        while read.len() < answers {
            let line = input.next_line().await.expect("text").expect("an answer");
            assert!(line.contains(r#""jsonrpc":"2.0""#), "{line}");
            read.push(serde_json::from_str(&line).expect("an answer"));
        }
        read
    };
    let ((), read) = tokio::join!(write, read);
    // The calls that are still under way are cancelled, and answered, before the end.
    output.shutdown().await.expect("it closes");
    while input.next_line().await.expect("text").is_some() {}
    served.await.expect("no panic").expect("a clean end");
    read
}

#[tokio::test]
async fn garbage_is_answered_and_the_connection_goes_on() {
    let world = world(vec![]).await;
    let lines: &[&[u8]] = &[
        b"garbage \xff\xfe",
        b"",
        b"[1,2]",
        br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":77}}"#,
        br#"{"jsonrpc":"2.0","id":"a","method":"fly"}"#,
        br#"{"jsonrpc":"2.0","id":2,"method":"children","params":{"parent":"parent"}}"#,
    ];
    let answers = raw_answers(&world, lines, 4).await;
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.error.as_ref().map(|error| error.code)).collect();
    assert_eq!(
        codes,
        [
            Some(protocol::PARSE_ERROR),
            Some(protocol::INVALID_REQUEST),
            Some(protocol::METHOD_NOT_FOUND),
            None
        ]
    );
    assert_eq!(answers[3].result.as_ref().expect("a result").get(), r#"{"children":[]}"#);
    world.close().await;
}

#[tokio::test]
async fn a_line_without_an_end_ends_the_connection() {
    let world = world(vec![]).await;
    let (mut near, served) = world.raw();
    let piece = vec![b'x'; 1 << 16];
    let mut sent = 0;
    while near.write_all(&piece).await.is_ok() {
        sent += piece.len();
        assert!(sent <= LINE_BYTES_MAX + (2 << 16), "it takes a line of any length");
        if sent > LINE_BYTES_MAX {
            break;
        }
    }
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.expect("an answer, then the end");
    assert!(answer.contains("-32700") && answer.contains("longer"), "{answer}");
    assert!(matches!(served.await.expect("no panic"), Err(LineError::TooLong)));

    let (mut near, served) = world.raw();
    near.write_all(b"{\"json").await.expect("it is read");
    drop(near);
    let torn = served.await.expect("no panic");
    assert!(matches!(torn, Err(LineError::Torn { bytes: 6 })), "{torn:?}");
    world.close().await;
}

#[tokio::test]
async fn the_calls_of_a_connection_are_bounded_and_have_ids_of_their_own() {
    let world = world(vec![Step::gate("never")]).await;
    let task = world.start().task;
    let wait = |id: usize| {
        let params = format!(r#"{{"parent":"parent","task":"{task}"}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"wait","params":{params}}}"#)
    };
    let mut lines: Vec<_> = (0..CALLS_MAX).map(wait).collect();
    lines.push(wait(3));
    lines.push(wait(CALLS_MAX));
    let cancel = r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":5}}"#;
    lines.push(cancel.to_owned());
    let lines: Vec<_> = lines.iter().map(String::as_bytes).collect();
    let answers = raw_answers(&world, &lines, 3).await;
    let told: Vec<_> = answers
        .iter()
        .map(|answer| {
            let error = answer.error.as_ref().expect("an error");
            (answer.id.clone(), error.code, error.data.map(|data| data.code))
        })
        .collect();
    let number = |id: usize| Some(protocol::RequestId::Number(id.try_into().expect("small")));
    assert_eq!(
        told,
        [
            (None, protocol::INVALID_REQUEST, None),
            (number(CALLS_MAX), protocol::REFUSED, Some(ErrorCode::ServiceUnavailable)),
            (number(5), protocol::REFUSED, Some(ErrorCode::WaitAborted)),
        ]
    );
    // The connection is over: nobody counts as a waiter any more, so the parent will be told.
    assert_eq!(world.assembly.tasks.waiting(&task), 0);
    world.close().await;
}

#[tokio::test]
async fn who_gives_up_withdraws_the_message() {
    let world = world(vec![Step::held("thinking", "thought", " done"), Step::say("bye")]).await;
    let started = world.start();
    world.reached("thought").await;
    let person = world.client();
    let child = started.child.as_str();

    let send = protocol::Call::Send {
        parent: "parent".to_owned(),
        child: child.to_owned(),
        text: "never mind".to_owned(),
    };
    let soon = tokio::time::sleep(Duration::from_millis(5));
    let refused = person.call_until::<serde_json::Value>(send, soon).await;
    assert_eq!(code(refused.expect_err("it is withdrawn")), ErrorCode::Cancelled);

    let soon = Duration::from_millis(5);
    let dropped = tokio::time::timeout(soon, person.send(&me(), child, "nor this")).await;
    assert!(dropped.is_err(), "the turn is held, so nothing drains the message");
    // The next call is read after the one that gave the message up.
    person.children(&me()).await.expect("a list");

    let other = world.client();
    let lost = {
        let other = other.clone();
        let (parent, child) = (me(), child.to_owned());
        tokio::spawn(async move { other.send(&parent, &child, "nor that").await })
    };
    tokio::time::sleep(soon).await;
    lost.abort();
    drop(lost.await);
    drop(other);

    tokio::time::sleep(soon).await;
    world.model.release("thought");
    world.ended(&started.task).await;
    let log = text_of(&person.transcript(&me(), &started.child, 0).await.expect("it").events);
    for said in ["never mind", "nor this", "nor that"] {
        assert!(!log.contains(said), "{said}: {log}");
    }
    world.close().await;
}

#[tokio::test]
async fn a_lost_connection_says_that_nothing_is_known() {
    let world = world(vec![Step::gate("never")]).await;
    let task = world.start().task;
    let (near, far) = duplex(512);
    let served = tokio::spawn(Arc::clone(&world.adapter).serve(far));
    let person = HumanClient::new(&world.runtime, near);
    let waiting = {
        let (person, task) = (person.clone(), task.clone());
        tokio::spawn(async move { person.wait(&me(), &task, None).await })
    };
    while world.assembly.tasks.waiting(&task) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The serving future is dropped, as a process does that ends.
    served.abort();
    let lost = waiting.await.expect("no panic").expect_err("nobody answers");
    assert!(matches!(lost, CallError::ConnectionLost), "{lost}");
    let after = person.children(&me()).await.expect_err("it is over");
    assert!(matches!(after, CallError::ConnectionLost) && person.is_closed(), "{after}");
    while world.assembly.tasks.waiting(&task) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.close().await;
}

/// A transcript longer than a page is read in pages, while both sides talk through small buffers.
#[tokio::test]
async fn long_transcripts_come_in_pages() {
    let long = "x".repeat(700_000);
    let world = world(vec![Step::say(long.clone()), Step::say(long), Step::say("end")]).await;
    let started = world.start();
    world.ended(&started.task).await;
    let person = world.client();
    let child = &started.child;
    let sent = person.send(&me(), child.as_str(), "again").await.expect("sent");
    world.ended(&sent.task).await;
    let (mut from, mut pages, mut events) = (0, 0, 0);
    loop {
        let page = person.transcript(&me(), child, from).await.expect("a page");
        (pages, events) = (pages + 1, events + page.events.len());
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    let listed = person.children(&me()).await.expect("a list").children;
    assert_eq!(events as u64, listed[0].events);
    assert!(pages > 1, "{pages}");
    let beyond = person.transcript(&me(), child, u64::MAX).await.expect("an empty page");
    assert!(beyond.events.is_empty() && beyond.next.is_none());
    world.close().await;
}
