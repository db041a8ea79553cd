//! §10.12: the Task tools.

use std::sync::Arc;
use std::time::Duration;

use continuable::agent::tools::{ToolOutput, ToolRegistry};
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{SessionId, TaskId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::task::{TaskOwner, TaskStart};
use continuable::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsLoaded};
use continuable::vocabulary::{TaskOutcome, TaskStatus};
use serde_json::{Value, json};

use super::task_kit::{FakeOwner, Work, World, code, hooked, settle};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (189, "loading_attaches_the_surface_and_unloading_detaches_it"),
    (190, "a_default_wait_above_the_cap_is_refused"),
    (191, "the_status_line_carries_the_detail"),
    (192, "the_body_is_followed_by_one_newline_and_the_value_hides_the_owner"),
    (193, "a_final_output_is_rendered_whole_every_time"),
    (194, "a_limit_keeps_the_tail_and_the_status_line"),
    (195, "empty_bodies_fit_a_limit"),
    (196, "a_replaced_result_is_bounded_without_its_status"),
    (197, "a_failed_read_is_bounded"),
    (198, "every_other_result_of_a_limited_task_is_bounded"),
    (199, "a_wait_ends_terminal_or_at_the_cap"),
    (200, "empty_and_unknown_ids_are_errors"),
    (201, "the_list_shows_the_callers_tasks"),
    (202, "a_kill_answers_in_words_and_as_a_value"),
    (203, "a_kill_of_a_finished_task_consumes_no_output"),
    (204, "an_owner_gets_one_notice"),
    (205, "a_notice_fits_its_limit"),
    (206, "no_notice_follows_a_kill_a_wait_or_an_unowned_task"),
    (207, "the_notice_goes_to_the_exact_instance"),
    (208, "an_owner_that_breaks_on_its_notice_is_contained"),
    (209, "notices_need_no_registry"),
];

struct Tools {
    world: World,
    tools: TaskTools,
    registry: Arc<ToolRegistry>,
    loaded: Option<TaskToolsLoaded>,
}

impl Tools {
    fn new() -> Self {
        Self::with(TaskToolsConfig::default())
    }

    fn with(config: TaskToolsConfig) -> Self {
        let mut world = World::new();
        world.surface = None;
        let (runtime, tasks) = (Arc::clone(&world.runtime), Arc::clone(&world.tasks));
        let tools = TaskTools::new(runtime, tasks, config).expect("a good configuration");
        let registry = Arc::new(ToolRegistry::default());
        let loaded = Some(tools.load(&registry).expect("loaded"));
        Self { world, tools, registry, loaded }
    }

    fn bash(&self, limit: Option<u64>) -> (TaskId, Work) {
        let mut start = TaskStart::new("bash", "a command");
        start.output_limit_bytes = limit;
        self.world.start(start)
    }

    async fn output(&self, id: &TaskId) -> ToolOutput {
        self.tools.output(None, &json!({ "task_id": id }), None).await
    }

    async fn kill(&self, id: &TaskId) -> ToolOutput {
        self.tools.kill(None, &json!({ "task_id": id })).await
    }
}

fn text(output: &ToolOutput) -> &str {
    match output.content.as_slice() {
        [ContentBlock::Text { text }] => text,
        other => panic!("not one text: {other:?}"),
    }
}

fn value(output: &ToolOutput) -> &Value {
    output.value.as_ref().expect("a value")
}

fn error_code(output: &ToolOutput) -> &str {
    &output.error.as_ref().expect("an error").code
}

fn notices(owner: &FakeOwner) -> Vec<String> {
    owner.notices.lock().expect("lock").iter().map(|notice| notice.text()).collect()
}

/// Scenario 189.
#[tokio::test]
async fn loading_attaches_the_surface_and_unloading_detaches_it() {
    let mut tools = Tools::new();
    let (_, _work) = tools.bash(None);
    let again = tools.tools.load(&tools.registry);
    assert!(again.is_err(), "the names are taken");
    tools.loaded = None;
    let refused = tools.world.tasks.start(TaskStart::new("bash", "x"), || panic!("never run"));
    assert_eq!(code(refused), ErrorCode::NoControlSurface);
    tools.loaded = Some(tools.tools.load(&tools.registry).expect("loaded again"));
    let (_, _work) = tools.bash(None);
}

/// Scenario 190.
#[tokio::test]
async fn a_default_wait_above_the_cap_is_refused() {
    let world = World::new();
    for (wait_default_ms, wait_cap_ms) in [(2, 1), (0, 1)] {
        let config = TaskToolsConfig { wait_default_ms, wait_cap_ms };
        let (runtime, tasks) = (Arc::clone(&world.runtime), Arc::clone(&world.tasks));
        assert!(TaskTools::new(runtime, tasks, config).is_err());
    }
}

/// Scenario 191.
#[tokio::test]
async fn the_status_line_carries_the_detail() {
    let tools = Tools::new();
    let (id, mut work) = tools.bash(None);
    assert_eq!(text(&tools.output(&id).await), "(no new output)\n[status: running]");
    work.finish(TaskOutcome::failed(None, "exit 3"));
    settle().await;
    assert_eq!(text(&tools.output(&id).await), "(no new output)\n[status: failed, exit 3]");
}

/// Scenario 192.
#[tokio::test]
async fn the_body_is_followed_by_one_newline_and_the_value_hides_the_owner() {
    let tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let (id, mut work) = tools.world.owned(&owner);
    work.complete("line\n");
    settle().await;
    let caller = SessionId::new("s");
    let output = tools.tools.output(Some(&caller), &json!({ "task_id": id }), None).await;
    assert_eq!(text(&output), "line\n[status: completed]");
    let task = value(&output)["task"].as_object().expect("a task");
    let keys: Vec<_> = task.keys().map(String::as_str).collect();
    assert_eq!(keys, ["id", "kind", "label", "status", "startedAt", "finishedAt"]);
    assert_eq!(value(&output)["text"], "line\n");
}

/// Scenario 193.
#[tokio::test]
async fn a_final_output_is_rendered_whole_every_time() {
    let tools = Tools::new();
    let (id, mut work) = tools.bash(None);
    work.complete("one\ntwo");
    settle().await;
    for _ in 0..2 {
        assert_eq!(text(&tools.output(&id).await), "one\ntwo\n[status: completed]");
    }
}

/// Scenario 194.
#[tokio::test]
async fn a_limit_keeps_the_tail_and_the_status_line() {
    let tools = Tools::new();
    let (id, mut work) = tools.bash(Some(48));
    work.complete(&"é€𝄞".repeat(40));
    settle().await;
    let output = tools.output(&id).await;
    let shown = text(&output);
    assert!(shown.len() <= 48, "{} bytes", shown.len());
    assert_eq!(shown, "[output truncated]\né€𝄞\n[status: completed]");
}

/// Scenario 195.
#[tokio::test]
async fn empty_bodies_fit_a_limit() {
    let tools = Tools::new();
    for (body, limit, shown) in [
        ("", 40, "(no new output)\n[status: completed]"),
        ("\n", 40, "\n[status: completed]"),
        ("", 20, "[status: completed]"),
        ("\n", 19, "[status: completed]"),
        ("x", 8, "mpleted]"),
    ] {
        let (id, mut work) = tools.bash(Some(limit));
        work.complete(body);
        settle().await;
        assert_eq!(text(&tools.output(&id).await), shown, "{body:?} in {limit}");
    }
}

/// Scenario 196.
#[tokio::test]
async fn a_replaced_result_is_bounded_without_its_status() {
    let tools = Tools::new();
    let (id, _work) = tools.bash(Some(32));
    let replaced = ToolOutput::text("a policy replaced this result by something long");
    let arguments = json!({ "task_id": id });
    let bound = tools.tools.bound(None, &arguments, replaced);
    assert_eq!(text(&bound), "a policy repl\n[result truncated]");
}

/// Scenario 197.
#[tokio::test]
async fn a_failed_read_is_bounded() {
    let tools = Tools::new();
    let (hooks, _work) = hooked();
    let hooks = hooks.streaming(Arc::new(|| Err("Error: the terminal is gone for good".into())));
    let start = TaskStart::new("pty", "x").limited_to(30);
    let id = tools.world.tasks.start(start, || hooks).expect("started");
    let output = tools.output(&id).await;
    assert_eq!(error_code(&output), "PRODUCER_FAILED");
    assert_eq!(text(&output), "Error: the \n[result truncated]");
}

/// Scenario 198. Denials and failures of hooks end as a result like any other.
#[tokio::test]
async fn every_other_result_of_a_limited_task_is_bounded() {
    let tools = Tools::new();
    let (id, _work) = tools.bash(Some(24));
    let arguments = json!({ "task_id": id });
    let denied = ToolOutput::failed("Denied", "TOOL_NOT_STARTED", "this call is not allowed here");
    let bound = tools.tools.bound(None, &arguments, denied.clone());
    assert_eq!(text(&bound), "this \n[result truncated]");
    assert_eq!(error_code(&bound), "TOOL_NOT_STARTED");
    // Without a Task the caller may see there is no limit.
    for other in [json!({ "task_id": "bash-9" }), json!({})] {
        assert_eq!(tools.tools.bound(None, &other, denied.clone()), denied);
    }
}

/// Scenario 199.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_terminal_or_at_the_cap() {
    let tools = Tools::with(TaskToolsConfig { wait_default_ms: 10, wait_cap_ms: 20 });
    let (id, mut work) = tools.bash(None);
    let started = tokio::time::Instant::now();
    let long = json!({ "task_id": id, "wait": true, "timeout_ms": 86_400_000 });
    let output = tools.tools.output(None, &long, None).await;
    assert_eq!(text(&output), "(no new output)\n[status: running]");
    assert!(started.elapsed() < Duration::from_millis(100));
    let wait = json!({ "task_id": id, "wait": true });
    let (output, ()) = tokio::join!(tools.tools.output(None, &wait, None), async {
        settle().await;
        work.complete("done");
    });
    assert_eq!(text(&output), "done\n[status: completed]");
    for bad in [json!(0), json!(-5), json!("soon")] {
        let (id, _work) = tools.bash(None);
        let wait = json!({ "task_id": id, "wait": true, "timeout_ms": bad });
        assert_eq!(text(&tools.tools.output(None, &wait, None).await), "invalid wait timeout");
    }
}

/// Scenario 200.
#[tokio::test]
async fn empty_and_unknown_ids_are_errors() {
    let tools = Tools::new();
    for arguments in [json!({ "task_id": "" }), json!({})] {
        assert_eq!(error_code(&tools.tools.output(None, &arguments, None).await), "INVALID_INPUT");
        assert_eq!(error_code(&tools.tools.kill(None, &arguments).await), "INVALID_INPUT");
    }
    let output = tools.output(&TaskId::new("bash-7")).await;
    assert_eq!((error_code(&output), text(&output)), ("UNKNOWN_TASK", "unknown task bash-7"));
    assert_eq!(error_code(&tools.kill(&TaskId::new("bash-7")).await), "UNKNOWN_TASK");
}

/// Scenario 201.
#[tokio::test]
async fn the_list_shows_the_callers_tasks() {
    let tools = Tools::new();
    assert_eq!(text(&tools.tools.list(None)), "(no background tasks)");
    let owner = tools.world.owner(1, "s");
    let (_, _open) = tools.bash(None);
    let (_, mut mine) = tools.world.owned(&owner);
    mine.complete("x");
    settle().await;
    assert_eq!(text(&tools.tools.list(None)), "bash-1 [bash] running — a command");
    assert_eq!(
        text(&tools.tools.list(Some(&SessionId::new("s")))),
        "bash-1 [bash] running — a command\nbash-2 [bash] completed — a command"
    );
}

/// Scenario 202.
#[tokio::test]
async fn a_kill_answers_in_words_and_as_a_value() {
    let tools = Tools::new();
    let (id, mut work) = tools.bash(None);
    let output = tools.kill(&id).await;
    assert_eq!(text(&output), "requested cancellation of task bash-1");
    assert_eq!(value(&output)["outcome"], "cancellation-requested");
    assert_eq!(value(&output)["task"]["status"], "stopping");
    work.finish(TaskOutcome::killed());
    settle().await;
    let output = tools.kill(&id).await;
    assert_eq!(text(&output), "task bash-1 had already finished [status: killed]");
    assert_eq!(value(&output)["outcome"], "already-finished");
    let (limited, work) = tools.bash(Some(24));
    *work.fails.lock().expect("lock") = true;
    assert_eq!(text(&tools.kill(&limited).await), "Error: cannot stop");
    *work.fails.lock().expect("lock") = false;
    assert_eq!(text(&tools.kill(&limited).await), "reque\n[result truncated]");
    let blocks =
        vec![ContentBlock::text("a policy's two"), ContentBlock::text("blocks, untouched")];
    let policy = ToolOutput { content: blocks, ..ToolOutput::default() };
    let arguments = json!({ "task_id": limited });
    assert_eq!(tools.tools.bound(None, &arguments, policy.clone()), policy);
}

/// Scenario 203.
#[tokio::test]
async fn a_kill_of_a_finished_task_consumes_no_output() {
    let tools = Tools::new();
    let (hooks, mut work) = hooked();
    let buffer = Arc::new(std::sync::Mutex::new("unread".to_owned()));
    let read = move || Ok(std::mem::take(&mut *buffer.lock().expect("lock")));
    let hooks = hooks.streaming(Arc::new(read));
    let id = tools.world.tasks.start(TaskStart::new("pty", "x"), || hooks).expect("started");
    work.complete("");
    settle().await;
    assert_eq!(value(&tools.kill(&id).await)["outcome"], "already-finished");
    assert_eq!(text(&tools.output(&id).await), "unread\n[status: completed]");
}

/// Scenario 204.
#[tokio::test]
async fn an_owner_gets_one_notice() {
    let mut tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let (id, mut work) = tools.world.owned(&owner);
    work.finish(TaskOutcome::failed(None, "exit 3"));
    settle().await;
    assert_eq!(
        notices(&owner),
        ["background task bash-1 (bash: a command) finished [status: failed, exit 3]. Read its \
          output with task_output."]
    );
    let source = owner.notices.lock().expect("lock")[0].source.clone();
    assert_eq!(source, MessageSource::Plugin { plugin: "tool-tasks".to_owned() });
    let injected = |fact: &Fact| matches!(fact, Fact::NoticeInjected { task, .. } if *task == id);
    assert_eq!(tools.world.facts().iter().filter(|fact| injected(fact)).count(), 1);
    let snapshot = tools.world.tasks.get(&id, Some(&SessionId::new("s"))).expect("there");
    assert!(!snapshot.reported, "a notice reports nothing");
}

/// Scenario 205.
#[tokio::test]
async fn a_notice_fits_its_limit() {
    let tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let cases = [
        (
            "bash",
            80,
            "background task bash-1 (bash: a command wi [notice truncated] Done; task_output.",
        ),
        ("bash", 64, "background task bash-2 (ba [notice truncated] Done; task_output."),
        ("pty-send", 29, "pty-send-1 Done; task_output."),
        ("bash", 32, "bash-3 Done; task_output."),
        ("bash", 8, "_output."),
    ];
    for (kind, limit, shown) in cases {
        let start = TaskStart::new(kind, "a command with a long label")
            .limited_to(limit)
            .owned_by(Arc::clone(&owner) as Arc<dyn TaskOwner>);
        let (_, mut work) = tools.world.start(start);
        work.complete("x");
        settle().await;
        let notice = notices(&owner).pop().expect("a notice");
        assert_eq!(notice, shown);
        assert!(notice.len() as u64 <= limit);
    }
}

/// Scenario 206.
#[tokio::test]
async fn no_notice_follows_a_kill_a_wait_or_an_unowned_task() {
    let tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let caller = SessionId::new("s");
    let (killed, mut work) = tools.world.owned(&owner);
    tools.tools.kill(Some(&caller), &json!({ "task_id": killed })).await;
    work.finish(TaskOutcome::killed());
    let (waited, mut work) = tools.world.owned(&owner);
    let wait = json!({ "task_id": waited, "wait": true });
    let (output, ()) = tokio::join!(tools.tools.output(Some(&caller), &wait, None), async {
        settle().await;
        work.complete("x");
    });
    assert_eq!(text(&output), "x\n[status: completed]");
    let (_, mut unowned) = tools.bash(None);
    unowned.complete("x");
    settle().await;
    assert!(notices(&owner).is_empty());
}

/// The other side of scenario 206: contract P7 gives a promised notice back, once, when the
/// counted waiter is dropped before it took its snapshot.
#[tokio::test]
async fn a_dropped_waiter_gives_the_notice_back_once() {
    let tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let caller = SessionId::new("s");
    let (id, mut work) = tools.world.owned(&owner);
    let mut waits: Vec<_> =
        (0..2).map(|_| Box::pin(tools.world.tasks.wait(&id, Some(&caller), None, None))).collect();
    for wait in &mut waits {
        tokio::select! {
            biased;
            _ = wait => panic!("nothing settled"),
            () = settle() => {}
        }
    }
    work.complete("x");
    settle().await;
    let snapshot = tools.world.tasks.get(&id, Some(&caller)).expect("there");
    assert_eq!((snapshot.status, snapshot.reported), (TaskStatus::Completed, true));
    assert!(notices(&owner).is_empty(), "the result is promised to two waiters");
    waits.pop();
    settle().await;
    assert!(notices(&owner).is_empty(), "one of them is still there");
    waits.pop();
    settle().await;
    assert_eq!(notices(&owner).len(), 1);
    assert!(!tools.world.tasks.get(&id, Some(&caller)).expect("there").reported);
}

/// Scenario 207.
#[tokio::test]
async fn the_notice_goes_to_the_exact_instance() {
    let tools = Tools::new();
    let old = tools.world.owner(1, "s");
    let (_, mut work) = tools.world.owned(&old);
    let new = tools.world.owner(2, "s");
    work.complete("x");
    settle().await;
    assert_eq!((notices(&old).len(), notices(&new).len()), (1, 0));
}

/// Scenario 208.
#[tokio::test]
async fn an_owner_that_breaks_on_its_notice_is_contained() {
    let mut tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    owner.panic_on_notices();
    let (id, mut work) = tools.world.owned(&owner);
    work.complete("x");
    settle().await;
    let facts = tools.world.facts();
    let caught = |fact: &&Fact| matches!(fact, Fact::PanicCaught { .. });
    assert_eq!(facts.iter().filter(caught).count(), 1);
    assert!(
        facts.iter().any(|fact| matches!(fact, Fact::TaskReleased { task, .. } if *task == id))
    );
}

/// Scenario 209.
#[tokio::test]
async fn notices_need_no_registry() {
    let tools = Tools::new();
    let owner = tools.world.owner(1, "s");
    let (_, mut one) = tools.world.owned(&owner);
    let (_, mut two) = tools.world.owned(&owner);
    tools.world.registry.lock().expect("lock").clear();
    one.complete("x");
    two.complete("x");
    settle().await;
    assert_eq!(notices(&owner).len(), 2);
}
