//! The model client on real sockets, against the simulator's model server: what works, and every way
//! in which a response can fail. The connections of a run are gone when its Task is terminal.

use std::sync::Arc;
use std::time::Duration;

use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::control::ContinuableStartSpec;
use continuable::ids::SessionId;
use continuable::model::http::{HttpModel, HttpModelConfig};
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{Runtime, TokioRuntime};
use continuable::store::StdDisk;
use continuable::task::TaskSnapshot;
use continuable::vocabulary::{KillAnswer, TaskStatus};
use continuable::wire::TcpConnect;
use continuable_sim::faults::StreamFault;
use continuable_sim::model_server::serve;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A server on a port of its own, and a process whose agents ask it.
struct World {
    assembly: Assembly,
    model: HttpModel,
    _directory: TempDir,
}

fn me() -> SessionId {
    SessionId::new("parent")
}

async fn server(steps: Vec<Step>, breaks: Option<(u64, StreamFault)>) -> String {
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
    let scripted = ScriptedModel::shared(Arc::clone(&runtime), steps);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve = serve(
                Arc::clone(&runtime),
                Arc::new(scripted.clone()),
                Arc::new(move || breaks),
                stream,
            );
            tokio::spawn(serve);
        }
    });
    address
}

fn world(address: &str) -> World {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
    let config = HttpModelConfig { identify: true, ..HttpModelConfig::new(address) };
    let connect = Arc::new(TcpConnect::new(address));
    let model = HttpModel::new(Arc::clone(&runtime), connect, config);
    let disk = Arc::new(StdDisk::new(directory.path()));
    let config = AssemblyConfig::new(runtime, disk, Arc::new(model.clone()));
    let assembly = Assembly::new(config).expect("it assembles");
    World { assembly, model, _directory: directory }
}

/// Runs one child to its end; its Task, and what a reader reads or else how its log says it failed.
async fn ended(steps: Vec<Step>, breaks: Option<(u64, StreamFault)>) -> (TaskSnapshot, String) {
    let address = server(steps, breaks).await;
    let world = world(&address);
    let ended = child(&world).await;
    assert_eq!(world.model.connections(), 0, "a terminal Task has no connection");
    world.assembly.shutdown().await.expect("it closes");
    ended
}

async fn child(world: &World) -> (TaskSnapshot, String) {
    let parent = world.assembly.create_parent(me()).await.expect("the id is free");
    let spec = ContinuableStartSpec::text("spawn", "ask", "How long is the bridge?");
    let started = world.assembly.control.start_continuable(parent.agent(), spec);
    let started = started.expect("it starts");
    let tasks = &world.assembly.tasks;
    let task = tasks.wait(&started.task, Some(&me()), None, None).await.expect("it is known");
    let read = tasks.read(&started.task, Some(&me())).await.expect("it is known");
    if task.status == TaskStatus::Completed {
        return (task, read.text);
    }
    let store = world.assembly.store.as_ref().expect("it has a store");
    let loaded = store.load(&started.child).await.expect("it is stored");
    let last = loaded.events.last().expect("it has events").fresh_line();
    assert!(last.contains("turn/end"), "{last}");
    (task, last)
}

#[tokio::test(flavor = "multi_thread")]
async fn text_reasoning_and_calls_cross_a_real_socket() {
    let unknown = Step::tool("nothing", serde_json::json!({ "a": 1 }));
    let thought =
        Step::Think { reasoning: "long, I think".to_owned(), text: "1,280 metres".to_owned() };
    let (task, text) = ended(vec![unknown, thought], None).await;
    assert_eq!(task.status, TaskStatus::Completed);
    assert_eq!(text, "1,280 metres");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_broken_response_fails_its_task_and_says_how() {
    let say = || vec![Step::say("a"), Step::say("a")];
    let cases = [
        (say(), Some((2, StreamFault::Truncate)), "without a finish"),
        // Before or after the head arrived: "the request was not answered", "the response broke off".
        (say(), Some((2, StreamFault::Reset)), "/v1/chat/completions: the re"),
        (say(), Some((1, StreamFault::Garbage)), "is not UTF-8"),
        (
            vec![Step::RateLimited],
            None,
            r#""kind":"rate-limit","status":429,"message":"rate limit reached""#,
        ),
        (
            vec![Step::Err("out of paper".to_owned())],
            None,
            r#""kind":"http","status":500,"message":"out of paper""#,
        ),
        (vec![Step::Cut("half".to_owned())], None, "without a finish"),
        (
            vec![Step::Break { text: "half".to_owned(), error: "it broke".to_owned() }],
            None,
            "it broke",
        ),
    ];
    for (steps, breaks, says) in cases {
        let (task, told) = ended(steps, breaks).await;
        assert_eq!(task.status, TaskStatus::Failed, "{says}");
        assert!(told.contains(says), "{says:?} is missing in {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_the_port_fails_the_task() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let world = world(&address);
    let (task, told) = child(&world).await;
    assert_eq!(task.status, TaskStatus::Failed);
    assert!(told.contains("no connection"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_gives_up_a_server_that_never_answers_and_leaves_no_connection() {
    for breaks in [None, Some((1, StreamFault::Stall)), Some((0, StreamFault::Stall))] {
        let address = server(vec![Step::Hang], breaks).await;
        let world = world(&address);
        let parent = world.assembly.create_parent(me()).await.expect("the id is free");
        let spec = ContinuableStartSpec::text("spawn", "ask", "How long is the bridge?");
        let started =
            world.assembly.control.start_continuable(parent.agent(), spec).expect("it starts");
        let tasks = &world.assembly.tasks;
        while world.model.connections() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let killed = tasks.kill(&started.task, Some(&me()), None).await.expect("it is known");
        assert_eq!(killed, KillAnswer::Requested);
        let task = tasks.wait(&started.task, Some(&me()), None, None).await.expect("known");
        assert_eq!(task.status, TaskStatus::Killed);
        assert_eq!(world.model.connections(), 0, "{breaks:?}");
        world.assembly.shutdown().await.expect("it closes");
    }
}
