//! Tasks whose owners are real agents: notices, the wake policy, disposal, the tools as a model
//! calls them. Not numbered by the fact-sheet; contract P7, P16 and invariants I9, I12, I13.

use std::sync::Arc;

use continuable::agent::tools::ToolOutput;
use continuable::agent::{Agent, AgentHandle};
use continuable::control::AgentOwner;
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::TaskId;
use continuable::message::ContentBlock;
use continuable::model::script::Step;
use continuable::session::EventBody;
use continuable::task::{TaskService, TaskServiceConfig, TaskStart, WakePolicy};
use continuable::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsLoaded};
use continuable::vocabulary::TaskOutcome;
use serde_json::json;

use super::kit::{Kit, TestHooks, hook, settle, story, wait_until};
use super::task_kit::{Work, hooked};

struct Tasks {
    kit: Kit,
    tasks: Arc<TaskService>,
    _loaded: TaskToolsLoaded,
}

impl Tasks {
    fn new(steps: impl IntoIterator<Item = Step>, wake: WakePolicy) -> Self {
        let kit = Kit::new(steps);
        let tasks = TaskService::new(Arc::clone(&kit.runtime), TaskServiceConfig { wake });
        let config = TaskToolsConfig::default();
        let tools = TaskTools::new(Arc::clone(&kit.runtime), Arc::clone(&tasks), config);
        let loaded = tools.expect("a good configuration").load(&kit.tools).expect("loaded");
        Self { kit, tasks, _loaded: loaded }
    }

    fn start(&self, agent: &Agent, limit: Option<u64>) -> (TaskId, Work) {
        let (hooks, work) = hooked();
        let mut start = TaskStart::new("bash", "x").owned_by(AgentOwner::shared(agent));
        start.output_limit_bytes = limit;
        (self.tasks.start_prepared(start, hooks).expect("started"), work)
    }

    async fn ask(&self, handle: &AgentHandle, text: &str) {
        handle.agent().followup(self.kit.user(text));
        handle.agent().when_idle().await;
    }
}

const NOTICE: &str = "background task bash-1 (bash: x) finished [status: completed]. Read its output with \
     task_output.";

/// The text of the last tool result in the log.
fn last_result(agent: &Agent) -> String {
    let events = agent.session().snapshot_from(0);
    let results = events.iter().rev().filter_map(|event| match &event.body {
        EventBody::ToolResult { message, .. } => Some(message),
        _ => None,
    });
    let mut texts = results.map(|message| match message.content.as_slice() {
        [ContentBlock::ToolResult { content, .. }] => {
            content.iter().filter_map(ContentBlock::as_text).collect()
        }
        other => panic!("not a tool result: {other:?}"),
    });
    texts.next().expect("a tool result")
}

#[tokio::test]
async fn an_idle_owner_has_its_notice_logged_and_sleeps_on() {
    let tasks = Tasks::new([Step::say("hello")], WakePolicy::Quiet);
    let handle = tasks.kit.create("parent").await;
    tasks.ask(&handle, "hi").await;
    let (_, mut work) = tasks.start(handle.agent(), None);
    work.complete("text");
    wait_until("the notice", || {
        story(handle.agent().session()).contains(&format!("user {NOTICE}"))
    })
    .await;
    settle().await;
    let story = story(handle.agent().session());
    assert_eq!(story.last(), Some(&format!("user {NOTICE}")), "no turn follows");
}

#[tokio::test]
async fn a_waking_notice_opens_a_turn_until_its_budget_is_spent() {
    let steps = ["1", "2", "3", "4"].map(Step::say);
    let tasks = Tasks::new(steps, WakePolicy::Wake(1));
    let handle = tasks.kit.create("parent").await;
    tasks.ask(&handle, "hi").await;
    let turns = || story(handle.agent().session()).iter().filter(|l| l.starts_with("turn")).count();
    let finish_one = async || {
        let (id, mut work) = tasks.start(handle.agent(), None);
        work.complete("text");
        let logged = format!("background task {id} ");
        let there = || story(handle.agent().session()).iter().any(|line| line.contains(&logged));
        wait_until("the notice", there).await;
        handle.agent().when_idle().await;
        settle().await;
    };
    finish_one().await;
    assert_eq!(turns(), 2, "woken");
    finish_one().await;
    assert_eq!(turns(), 2, "at its limit it injects quietly");
    tasks.ask(&handle, "more").await;
    finish_one().await;
    assert_eq!(turns(), 4, "a person's message gives the budget back");
}

#[tokio::test]
async fn a_disposed_agent_cancels_and_removes_its_tasks_and_hears_nothing() {
    let tasks = Tasks::new([Step::say("hello")], WakePolicy::Quiet);
    let handle = tasks.kit.create("parent").await;
    let agent = handle.agent().clone();
    let (id, mut work) = tasks.start(&agent, None);
    let reasons = Arc::clone(&work.reasons);
    let disposal = tokio::spawn(async move { handle.dispose().await });
    wait_until("the cancellation", || !reasons.lock().expect("lock").is_empty()).await;
    assert_eq!(*reasons.lock().expect("lock"), ["owner disposed"]);
    let (hooks, _late) = hooked();
    let late = TaskStart::new("bash", "late").owned_by(AgentOwner::shared(&agent));
    let refused = tasks.tasks.start_prepared(late, hooks).expect_err("its owner closes");
    assert_eq!(refused.code(), ErrorCode::OwnerUnavailable);
    assert!(!disposal.is_finished(), "it waits for its Tasks");
    work.finish(TaskOutcome::killed());
    disposal.await.expect("joined");
    assert_eq!(
        tasks.tasks.get(&id, Some(agent.id())).expect_err("removed").code(),
        ErrorCode::UnknownTask
    );
    let facts = tasks.kit.facts();
    let place = |fits: &dyn Fn(&Fact) -> bool| facts.iter().position(fits).expect("recorded");
    let removed = place(&|fact| matches!(fact, Fact::OwnerTasksRemoved { count: 1, .. }));
    let gone = place(&|fact| matches!(fact, Fact::AgentRemoved { .. }));
    assert!(removed < gone);
    assert!(!facts.iter().any(|fact| matches!(fact, Fact::NoticeInjected { .. })));
}

#[tokio::test]
async fn a_replacement_is_neither_told_nor_torn_down_for_its_predecessor() {
    let tasks = Tasks::new([Step::say("hello")], WakePolicy::Quiet);
    let old = tasks.kit.create("parent").await;
    let stale = AgentOwner::shared(old.agent());
    old.dispose().await;
    let new = tasks.kit.host.create(tasks.kit.request("parent")).await.expect("the id is free");
    let (id, _work) = tasks.start(new.agent(), None);
    let (hooks, _late) = hooked();
    let start = TaskStart::new("bash", "late").owned_by(Arc::clone(&stale));
    let refused = tasks.tasks.start_prepared(start, hooks).expect_err("it is stale");
    assert_eq!(refused.code(), ErrorCode::OwnerUnavailable);
    tasks.tasks.close_owner(stale.instance()).await;
    assert!(tasks.tasks.get(&id, Some(new.agent().id())).is_ok());
}

#[tokio::test]
async fn a_model_waits_for_a_task_and_reads_it() {
    let wait = json!({ "task_id": "bash-1", "wait": true });
    let steps = [Step::tool("task_output", wait), Step::say("done")];
    let tasks = Tasks::new(steps, WakePolicy::Quiet);
    let handle = tasks.kit.create("parent").await;
    let (id, mut work) = tasks.start(handle.agent(), None);
    handle.agent().followup(tasks.kit.user("wait for it"));
    wait_until("the wait", || tasks.tasks.waiting(&id) == 1).await;
    work.complete("the text");
    handle.agent().when_idle().await;
    assert_eq!(last_result(handle.agent()), "the text\n[status: completed]");
    settle().await;
    assert!(!story(handle.agent().session()).contains(&format!("user {NOTICE}")));
}

#[tokio::test]
async fn a_cancelled_turn_gives_the_notice_back() {
    let wait = json!({ "task_id": "bash-1", "wait": true });
    let tasks = Tasks::new([Step::tool("task_output", wait)], WakePolicy::Quiet);
    let handle = tasks.kit.create("parent").await;
    let (id, mut work) = tasks.start(handle.agent(), None);
    handle.agent().followup(tasks.kit.user("wait for it"));
    wait_until("the wait", || tasks.tasks.waiting(&id) == 1).await;
    handle.agent().cancel(
        continuable::vocabulary::CancelCause::User,
        continuable::agent::CancelOptions::default(),
    );
    handle.agent().when_idle().await;
    work.complete("the text");
    wait_until("the notice", || {
        story(handle.agent().session()).contains(&format!("user {NOTICE}"))
    })
    .await;
}

#[tokio::test]
async fn whatever_hooks_make_of_a_limited_result_is_bounded() {
    let read = || Step::tool("task_output", json!({ "task_id": "bash-1" }));
    let steps = [read(), Step::say("1"), read(), Step::say("2")];
    let tasks = Tasks::new(steps, WakePolicy::Quiet);
    let long = || Ok(Some(ToolOutput::text("a policy's own text, which is far too long")));
    let hooks = TestHooks {
        pre_tool: hook(
            move |context| async move { if context.turn == 1 { long() } else { Ok(None) } },
        ),
        post_tool: hook(move |_| async move { long() }),
        ..TestHooks::default()
    };
    let (handle, _hooks) = tasks.kit.create_with("parent", hooks).await;
    let (_, _work) = tasks.start(handle.agent(), Some(24));
    for turn in ["denied before it runs", "replaced after it ran"] {
        tasks.ask(&handle, turn).await;
        assert_eq!(last_result(handle.agent()), "a pol\n[result truncated]", "{turn}");
    }
}
