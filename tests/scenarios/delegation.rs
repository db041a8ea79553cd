//! §10.10: the delegation tool.

use std::sync::Arc;
use std::task::Poll;

use continuable::agent::AgentOptions;
use continuable::agent::tools::ToolMode;
use continuable::control::SubagentControlService;
use continuable::message::MessageSource;
use continuable::model::script::Step;
use continuable::session::EventBody;
use continuable::session::descriptor::ToolFilter;
use continuable::task::{TaskService, TaskServiceConfig};
use continuable::tools::delegate::{
    DelegateConfig, DelegateMount, DelegateServices, DelegateTool, MountError,
};
use continuable::vocabulary::{CancelCause, StopReason, TaskStatus};
use serde_json::{Value, json};

use super::fake_provider::{FakeProvider, Play};
use super::kit::{settle, wait_until};
use super::world::{World, delegation, error_code, field, text, word};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (130, "a_foreground_call_answers_its_childs_last_text"),
    (131, "an_instance_without_background_does_not_offer_it"),
    (132, "delegations_run_alone"),
    (133, "a_run_that_did_not_complete_is_an_error_without_its_partial_output"),
    (134, "two_instances_reach_two_providers"),
    (135, "only_what_is_configured_is_sent"),
    (136, "a_delegation_needs_a_caller"),
    (137, "the_tool_is_there_while_its_provider_is"),
    (138, "a_foreground_run_is_disposed_once_and_no_failure_hides_another"),
    (139, "the_calls_signal_is_the_runs"),
    (140, "a_depth_cap_is_exact_or_left_to_the_provider"),
    (141, "a_one_shot_task_keeps_its_answer"),
    (142, "a_one_shot_without_the_task_service_says_what_to_load"),
    (143, "a_failed_start_fails_the_one_shot_task"),
    (144, "a_kill_of_a_pending_start_ends_killed"),
    (145, "a_kill_passes_its_reason_on"),
    (146, "a_continuable_start_answers_both_ids"),
    (147, "a_continuable_start_without_the_control_service_says_what_to_load"),
    (148, "nobody_starts_a_child_that_no_tool_could_continue"),
    (149, "nobody_starts_a_child_that_its_own_tools_could_not_continue"),
    (150, "without_a_control_surface_nothing_is_started"),
];

fn config(provider: &str) -> DelegateConfig {
    DelegateConfig::new(provider)
}

/// A world with a fake provider named `fake`, and a delegation tool for it.
fn faked(play: Play) -> (World, Arc<FakeProvider>, DelegateMount) {
    faked_by(FakeProvider::new("fake", play))
}

fn faked_by(provider: FakeProvider) -> (World, Arc<FakeProvider>, DelegateMount) {
    let (mut world, provider) = (World::new([]), Arc::new(provider));
    world.providers.push(world.subagents.register(provider.clone()).expect("the name is free"));
    let mount = world.mount(config("fake"));
    (world, provider, mount)
}

/// Scenario 130.
#[tokio::test]
async fn a_foreground_call_answers_its_childs_last_text() {
    let world = World::new([Step::say("the answer")]);
    let _mount = world.mount(config("spawn"));
    let parent = world.parent().await;
    let output = world.call(parent.agent(), "subagent", delegation(false)).await;
    assert_eq!(text(&output), "the answer");
    assert_eq!(word(&output, "kind"), "foreground");
    assert_eq!(field(&output, "runId"), json!(1));
    assert_eq!(field(&output, "output"), json!([{ "type": "text", "text": "the answer" }]));
    assert_eq!(world.kit.host.list().len(), 1, "the child is disposed before the call returns");
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
}

/// Scenario 131.
#[tokio::test]
async fn an_instance_without_background_does_not_offer_it() {
    let (world, provider, _mount) = faked(Play::Stop(StopReason::Completed));
    let only = DelegateConfig {
        tool_name: "ask".to_owned(),
        enable_run_in_background: false,
        ..config("fake")
    };
    let _only = world.mount(only);
    let parent = world.parent().await;
    let tools = parent.agent().tools().definitions();
    let tool = |name: &str| tools.iter().find(|tool| tool.name == name).expect("it is there");
    let named = |name: &str| {
        let schema = tool(name).parameters["properties"].as_object().expect("an object").clone();
        schema.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(named("subagent"), ["description", "prompt", "run_in_background"]);
    assert_eq!(tool("subagent").parameters["required"], json!(["description", "prompt"]));
    assert!(tool("subagent").description.contains("task_output"));
    assert_eq!(named("ask"), ["description", "prompt"]);
    assert!(!tool("ask").description.contains("task_output"));

    let forced = world.call(parent.agent(), "ask", delegation(true)).await;
    assert!(text(&forced).contains("run_in_background is disabled for this tool instance"));
    assert!(!forced.is_success());
    assert_eq!(provider.starts(), 0);
    assert!(world.call(parent.agent(), "ask", delegation(false)).await.is_success());
}

/// Scenario 132. Execution mode belongs to the tool, so it is the same for every form of a call.
#[tokio::test]
async fn delegations_run_alone() {
    let world = World::new([]);
    let _background = world.mount(config("spawn"));
    let only = DelegateConfig {
        tool_name: "ask".to_owned(),
        enable_run_in_background: false,
        ..config("spawn")
    };
    let _foreground = world.mount(only);
    let parent = world.parent().await;
    for tool in ["subagent", "ask"] {
        assert_eq!(parent.agent().tools().mode(tool), ToolMode::Exclusive, "{tool}");
    }
}

/// Scenario 133.
#[tokio::test]
async fn a_run_that_did_not_complete_is_an_error_without_its_partial_output() {
    let (world, provider, _mount) = faked(Play::Hang);
    let parent = world.parent().await;
    let stops = [
        (StopReason::Aborted, "cancelled", "CANCELLED"),
        (StopReason::Error, "failed", "SUBAGENT_FAILED"),
        (StopReason::MaxTokens, "token limit", "SUBAGENT_FAILED"),
        (StopReason::Refusal, "declined", "SUBAGENT_FAILED"),
        (StopReason::Other("evicted".into()), "abnormally (evicted)", "SUBAGENT_FAILED"),
    ];
    for (stop, words, code) in stops {
        provider.set(Play::Stop(stop));
        let output = world.call(parent.agent(), "subagent", delegation(false)).await;
        assert!(text(&output).contains(words), "{}", text(&output));
        assert!(!text(&output).contains("partial"), "no partial output");
        assert_eq!((error_code(&output), &output.value), (code, &None));
    }
    provider.set(Play::Fail("no transport"));
    let output = world.call(parent.agent(), "subagent", delegation(false)).await;
    assert!(text(&output).contains("no transport"));
    assert_eq!(error_code(&output), "PROVIDER_FAILED");
}

/// Scenario 134.
#[tokio::test]
async fn two_instances_reach_two_providers() {
    let (mut world, first, _first) = faked(Play::Stop(StopReason::Completed));
    let second = Arc::new(FakeProvider::new("other", Play::Stop(StopReason::Completed)));
    world.providers.push(world.subagents.register(second.clone()).expect("the name is free"));
    let named = DelegateConfig { tool_name: "helper".to_owned(), ..config("other") };
    let _second = world.mount(named);
    let parent = world.parent().await;
    assert!(world.call(parent.agent(), "helper", delegation(false)).await.is_success());
    assert_eq!((first.starts(), second.starts()), (0, 1));
    assert!(world.call(parent.agent(), "subagent", delegation(false)).await.is_success());
    assert_eq!((first.starts(), second.starts()), (1, 1));
}

/// Scenario 135.
#[tokio::test]
async fn only_what_is_configured_is_sent() {
    let (world, provider, bare) = faked(Play::Stop(StopReason::Completed));
    let parent = world.parent().await;
    for background in [false, true] {
        world.call(parent.agent(), "subagent", delegation(background)).await;
        settle().await;
        let sent = provider.request();
        assert_eq!(sent.agent_options, AgentOptions::default());
        assert_eq!((sent.persona, sent.tool_filter, sent.max_depth), (None, None, None));
        assert_eq!(sent.output_schema, None);
        assert_eq!(sent.source, MessageSource::User);
        assert!(sent.parent.same(parent.agent()));
    }
    drop(bare);

    let given = json!({
        "provider": "fake", "persona": "a librarian", "maxDepth": 2,
        "agentOptions": { "model": "small" }, "toolFilter": { "deny": ["task_kill"] },
    });
    let _given = world.mount(DelegateConfig::from_value(&given).expect("valid"));
    for background in [false, true] {
        world.call(parent.agent(), "subagent", delegation(background)).await;
        settle().await;
        let sent = provider.request();
        let options = AgentOptions { model: Some("small".into()), ..AgentOptions::default() };
        assert_eq!(sent.agent_options, options);
        let filter = ToolFilter { allow: None, deny: Some(vec!["task_kill".into()]) };
        assert_eq!(sent.tool_filter, Some(filter), "a deny list alone makes no allow list");
        assert_eq!((sent.persona.as_deref(), sent.max_depth), (Some("a librarian"), Some(2)));
    }

    let empty = json!({ "provider": "fake", "toolFilter": {} });
    assert!(DelegateConfig::from_value(&empty).is_err());
    let empty = DelegateConfig { tool_filter: Some(ToolFilter::default()), ..config("fake") };
    let refused = DelegateMount::new(empty, world.services(), Arc::clone(&world.kit.tools));
    assert!(matches!(refused, Err(MountError::Config(_))));
}

/// Scenario 136. A tool call always has an agent here; other surfaces of the operation may not.
#[tokio::test]
async fn a_delegation_needs_a_caller() {
    let (world, provider, _mount) = faked(Play::Stop(StopReason::Completed));
    let tool = DelegateTool::new(config("fake"), world.services(), &*provider).expect("valid");
    for background in [false, true] {
        let output = tool.delegate(None, &delegation(background), &world.signal()).await;
        assert!(text(&output).contains("requires a calling agent"));
        assert!(!output.is_success());
    }
    assert_eq!(provider.starts(), 0);
    assert!(world.tasks.list(None).is_empty());
}

/// Scenario 137. A waiting instance that cannot be mounted when its provider appears says so and
/// leaves the provider to the others; the reference took it away (hazard 18 of §11).
#[tokio::test]
async fn the_tool_is_there_while_its_provider_is() {
    let world = World::new([]);
    let parent = world.parent().await;
    let tools = parent.agent().tools();
    let wording = || {
        let tools = tools.definitions();
        tools.iter().find(|tool| tool.name == "subagent").map(|tool| tool.description.clone())
    };
    let register = |name: &'static str, inherits| {
        let provider = FakeProvider { inherits, ..FakeProvider::new(name, Play::Hang) };
        world.subagents.register(Arc::new(provider)).expect("the name is free")
    };
    let mount = world.mount(config("late"));
    let double = world.mount(config("late"));
    assert!(wording().is_none() && !mount.is_mounted());
    let _other = register("other", false);
    assert!(wording().is_none(), "somebody else's provider");

    let late = register("late", false);
    assert!(wording().expect("mounted").contains("does not see this conversation"));
    assert!(mount.is_mounted() && !double.is_mounted());
    assert!(matches!(double.last_error(), Some(MountError::Register(_))));
    assert!(world.subagents.provider("late").is_some(), "the provider stays");
    drop(double);

    drop(late);
    assert!(wording().is_none(), "gone with its provider");
    let _late = register("late", true);
    assert!(wording().expect("mounted again").contains("sees this conversation up to"));
    drop(mount);
    assert!(wording().is_none(), "unmounted");

    let waiting = world.mount(config("later"));
    drop(waiting);
    let _later = register("later", false);
    assert!(wording().is_none(), "a dropped instance never mounts");
}

/// Scenario 138. And reference bug 19.
#[tokio::test]
async fn a_foreground_run_is_disposed_once_and_no_failure_hides_another() {
    let (world, provider, _mount) = faked(Play::Stop(StopReason::Completed));
    let parent = world.parent().await;
    let plays = [Play::Stop(StopReason::Completed), Play::Stop(StopReason::Error), Play::Lose("x")];
    for (n, play) in (1..).zip(plays) {
        provider.set(play);
        world.call(parent.agent(), "subagent", delegation(false)).await;
        settle().await;
        assert_eq!(provider.disposals(), n);
    }

    let broken = FakeProvider::new("fake", Play::Stop(StopReason::Completed));
    let broken = FakeProvider { dispose_error: Some("reap failed"), ..broken };
    let (world, provider, _mount) = faked_by(broken);
    let parent = world.parent().await;
    let output = world.call(parent.agent(), "subagent", delegation(false)).await;
    assert_eq!(text(&output), "dispose failed: Error: reap failed");
    assert_eq!(error_code(&output), "DISPOSE_FAILED");
    for (play, words) in [
        (Play::Stop(StopReason::MaxTokens), "the subagent reached its token limit"),
        (Play::Lose("line cut"), "the subagent could not run: line cut"),
    ] {
        provider.set(play);
        let output = world.call(parent.agent(), "subagent", delegation(false)).await;
        assert_eq!(text(&output), format!("{words}; dispose failed: Error: reap failed"));
    }
    assert_eq!(provider.disposals(), 3);
}

/// Scenario 139. Contract P17 for the call that is dropped.
#[tokio::test]
async fn the_calls_signal_is_the_runs() {
    let (world, provider, _mount) = faked(Play::Hang);
    let parent = world.parent().await;
    let signal = world.signal();
    let call = world.call_under(parent.agent(), "subagent", delegation(false), signal.clone());
    let cancel = async {
        provider.busy.wait().await;
        signal.cancel(CancelCause::User);
    };
    let (output, ()) = tokio::join!(call, cancel);
    assert!(text(&output).contains("cancelled"));
    assert_eq!(provider.disposals(), 1);

    for background in [false, true] {
        let arguments = delegation(background);
        let output = world.call_under(parent.agent(), "subagent", arguments, signal.clone()).await;
        assert_eq!(text(&output), "tool call aborted before dispatch");
        assert_eq!(error_code(&output), "ABORTED_BEFORE_DISPATCH");
    }
    assert_eq!(provider.starts(), 1);

    let mut call = Box::pin(world.call(parent.agent(), "subagent", delegation(false)));
    std::future::poll_fn(|cx| {
        assert!(call.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    wait_until("the second run", || provider.starts() == 2).await;
    drop(call);
    wait_until("the abandoned run is disposed", || provider.disposals() == 2).await;
    assert_eq!(provider.request().signal.cause(), Some(CancelCause::CallerGone));
}

/// Scenario 140. JSON has no NaN and no infinity; JavaScript writes both as null.
#[tokio::test]
async fn a_depth_cap_is_exact_or_left_to_the_provider() {
    let read = |depth: &str| {
        let text = format!("{{\"provider\":\"fake\",\"maxDepth\":{depth}}}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        DelegateConfig::from_value(&value)
    };
    for bad in ["\"3\"", "null", "-1", "1.5", "-0", "-0.0", "9007199254740992", "1e300", "true"] {
        let error = read(bad).expect_err(bad);
        assert!(error.to_string().contains("maxDepth"), "{error}");
    }

    let (world, provider, first) = faked(Play::Stop(StopReason::Completed));
    drop(first);
    let parent = world.parent().await;
    let mut sent = Vec::new();
    let default = DelegateConfig::from_value(&json!({ "provider": "fake" })).expect("valid");
    let filter = ToolFilter { allow: Some(vec!["task_list".into()]), deny: None };
    let none = DelegateConfig { tool_filter: Some(filter.clone()), ..read("0").expect("valid") };
    for config in [default, none, read("\"provider-managed\"").expect("valid")] {
        let _mount = world.mount(config);
        assert!(world.call(parent.agent(), "subagent", delegation(false)).await.is_success());
        let request = provider.request();
        sent.push((request.max_depth, request.tool_filter));
    }
    assert_eq!(sent, [(Some(3), None), (Some(0), Some(filter)), (None, None)]);

    let capped = read("1").expect("valid");
    let incapable = FakeProvider::incapable("fake", Play::Stop(StopReason::Completed));
    let (world, _provider, programs) = faked_by(incapable);
    drop(programs);
    let refused =
        DelegateMount::new(capped.clone(), world.services(), Arc::clone(&world.kit.tools));
    let error = refused.expect_err("it cannot keep a cap");
    assert!(error.to_string().contains("provider-managed"), "{error}");
    let managed = DelegateConfig { max_depth: None, ..capped };
    assert!(world.mount(managed).is_mounted());
}

/// Scenario 141.
#[tokio::test]
async fn a_one_shot_task_keeps_its_answer() {
    let (world, provider, _mount) = faked(Play::Stop(StopReason::Completed));
    let parent = world.parent().await;
    let started = world.call(parent.agent(), "subagent", delegation(true)).await;
    assert_eq!(text(&started), "started background subagent task subagent-1");
    assert_eq!(started.value, Some(json!({ "kind": "background", "taskId": "subagent-1" })));
    for _ in 0..2 {
        let read = world.output(parent.agent(), "subagent-1").await;
        assert_eq!(read, "partial answer\n[status: completed]");
    }
    assert_eq!(provider.disposals(), 1);
    let tasks = world.tasks.list(Some(parent.agent().id()));
    assert_eq!((tasks[0].kind.as_str(), tasks[0].label.as_str()), ("subagent", "look it up"));
}

/// Scenario 142.
#[tokio::test]
async fn a_one_shot_without_the_task_service_says_what_to_load() {
    let (world, provider, mount) = faked(Play::Stop(StopReason::Completed));
    drop(mount);
    let services = DelegateServices { tasks: None, ..world.services() };
    let _mount = world.mount_with(config("fake"), services);
    let parent = world.parent().await;
    let output = world.call(parent.agent(), "subagent", delegation(true)).await;
    assert!(text(&output).starts_with("background tasks unavailable: load "), "{output:?}");
    assert_eq!(error_code(&output), "SERVICE_UNAVAILABLE");
    assert_eq!(provider.starts(), 0);
    assert!(world.call(parent.agent(), "subagent", delegation(false)).await.is_success());
}

/// Scenario 143.
#[tokio::test]
async fn a_failed_start_fails_the_one_shot_task() {
    let (world, _provider, _mount) = faked(Play::Fail("setup failed"));
    let parent = world.parent().await;
    world.call(parent.agent(), "subagent", delegation(true)).await;
    let read = world.output(parent.agent(), "subagent-1").await;
    assert_eq!(read, "(no new output)\n[status: failed, Error: setup failed]");
}

/// Scenario 144.
#[tokio::test]
async fn a_kill_of_a_pending_start_ends_killed() {
    let (world, provider, _mount) = faked(Play::Pend);
    let parent = world.parent().await;
    world.call(parent.agent(), "subagent", delegation(true)).await;
    provider.busy.wait().await;
    let killed = world.call(parent.agent(), "task_kill", json!({ "task_id": "subagent-1" })).await;
    assert_eq!(text(&killed), "requested cancellation of task subagent-1");
    let read = world.output(parent.agent(), "subagent-1").await;
    assert_eq!(read, "(no new output)\n[status: killed]");
    assert_eq!(provider.disposals(), 0, "there was no run");
}

/// Scenario 145.
#[tokio::test]
async fn a_kill_passes_its_reason_on() {
    let (world, provider, _mount) = faked(Play::Hang);
    let parent = world.parent().await;
    let mut reasons = Vec::new();
    for (n, reason) in (1..).zip([Some("wrong question"), None]) {
        world.call(parent.agent(), "subagent", delegation(true)).await;
        wait_until("the run", || provider.starts() == n).await;
        let mut arguments = json!({ "task_id": format!("subagent-{n}") });
        if let Some(reason) = reason {
            arguments["reason"] = json!(reason);
        }
        world.call(parent.agent(), "task_kill", arguments).await;
        let read = world.output(parent.agent(), &format!("subagent-{n}")).await;
        assert_eq!(read, "(no new output)\n[status: killed]");
        reasons.push(provider.request().signal.reason().expect("it fired"));
    }
    assert_eq!(reasons, ["wrong question", "background subagent task killed"]);
    assert_eq!(provider.disposals(), 2);
}

/// Scenario 146.
#[tokio::test]
async fn a_continuable_start_answers_both_ids() {
    let world = World::new([Step::say("the answer")]);
    let _mount = world.mount(config("spawn"));
    let parent = world.parent().await;
    let tools = parent.agent().tools().definitions();
    let tool = tools.iter().find(|tool| tool.name == "subagent").expect("mounted");
    for word in ["send_message", "task_output", "task_kill"] {
        assert!(tool.description.contains(word), "{word}");
    }
    let started = world.call(parent.agent(), "subagent", delegation(true)).await;
    let (child, task) = (word(&started, "subagentId"), word(&started, "taskId"));
    assert_eq!(text(&started), format!("started subagent {child} as task {task}"));
    assert_eq!((word(&started, "kind").as_str(), task.as_str()), ("background", "subagent-1"));
    let read = world.output(parent.agent(), &task).await;
    assert_eq!(read, "the answer\n[status: completed]");
    let stored = world.stored(&child.as_str().into()).await;
    assert!(stored.iter().any(|event| matches!(event.body, EventBody::Descriptor(_))));
}

/// Scenario 147.
#[tokio::test]
async fn a_continuable_start_without_the_control_service_says_what_to_load() {
    let world = World::new([]);
    let services = DelegateServices { control: None, ..world.services() };
    let _mount = world.mount_with(config("spawn"), services);
    let parent = world.parent().await;
    let output = world.call(parent.agent(), "subagent", delegation(true)).await;
    assert!(text(&output).contains("load the subagent-control package"), "{output:?}");
    assert_eq!(error_code(&output), "SERVICE_UNAVAILABLE");
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
}

/// Scenario 148.
#[tokio::test]
async fn nobody_starts_a_child_that_no_tool_could_continue() {
    let mut world = World::new([]);
    world.send_message = None;
    let _mount = world.mount(config("spawn"));
    let parent = world.parent().await;
    let output = world.call(parent.agent(), "subagent", delegation(true)).await;
    assert!(text(&output).contains("load the tool-subagent-control package"), "{output:?}");
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
    assert_eq!(world.control.activations(), 0);
}

/// Scenario 149. And reference bug 3.
#[tokio::test]
async fn nobody_starts_a_child_that_its_own_tools_could_not_continue() {
    let world = World::new([Step::say("the answer")]);
    let _mount = world.mount(config("spawn"));
    let mut request = world.kit.request("denied");
    let filter = ToolFilter { allow: None, deny: Some(vec!["send_message".into()]) };
    request.setup.tool_filter = Some(filter);
    let denied = world.kit.host.create(request).await.expect("nothing refuses it");
    let output = world.call(denied.agent(), "subagent", delegation(true)).await;
    assert!(text(&output).contains("load the tool-subagent-control package"), "{output:?}");
    assert!(world.tasks.list(Some(denied.agent().id())).is_empty());
    let other = world.parent().await;
    let output = world.call(other.agent(), "subagent", delegation(true)).await;
    assert!(output.is_success(), "its own scope decides: {output:?}");
    let task = world.wait(other.agent(), &"subagent-1".into()).await;
    assert_eq!(task.status, TaskStatus::Completed);
}

/// Scenario 150. Both background forms; nothing of a child exists after the refusal (I21).
#[tokio::test]
async fn without_a_control_surface_nothing_is_started() {
    let (world, provider, mount) = faked(Play::Stop(StopReason::Completed));
    drop(mount);
    let runtime = Arc::clone(&world.kit.runtime);
    let tasks = TaskService::new(runtime, TaskServiceConfig::default());
    let control = SubagentControlService::new(
        Arc::clone(&world.kit.host),
        Arc::clone(&tasks),
        Arc::clone(&world.subagents),
        Some(Arc::clone(&world.kit.shelf.store)),
    );
    let services = DelegateServices {
        tasks: Some(Arc::clone(&tasks)),
        control: Some(Arc::clone(&control)),
        ..world.services()
    };
    let _one_shot = world.mount_with(config("fake"), services.clone());
    let spawn = DelegateConfig { tool_name: "continuable".to_owned(), ..config("spawn") };
    let _continuable = world.mount_with(spawn, services);
    let parent = world.parent().await;
    for tool in ["subagent", "continuable"] {
        let output = world.call(parent.agent(), tool, delegation(true)).await;
        let words = "background tasks unavailable: no control surface is attached";
        assert!(text(&output).contains(words), "{output:?}");
        assert_eq!(error_code(&output), "NO_CONTROL_SURFACE");
    }
    assert_eq!(provider.starts(), 0);
    assert!(tasks.list(Some(parent.agent().id())).is_empty());
    assert_eq!((control.activations(), world.kit.host.list().len()), (0, 1));
    let _surface = tasks.attach_surface("test");
    assert!(world.call(parent.agent(), "subagent", delegation(true)).await.is_success());
}

/// Providers come and go on many threads; the tool ends up where its provider did.
#[tokio::test]
async fn a_mount_ends_up_where_its_provider_did() {
    let world = World::new([]);
    let parent = world.parent().await;
    let mount = world.mount(config("late"));
    let mounted = || (mount.is_mounted(), parent.agent().tools().contains("subagent"));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let late = Arc::new(FakeProvider::new("late", Play::Hang));
                    // Another thread's may be registered: then there is nothing to drop.
                    drop(world.subagents.register(late));
                }
            });
        }
    });
    assert_eq!(mounted(), (false, false));
    let late = world.subagents.register(Arc::new(FakeProvider::new("late", Play::Hang)));
    assert_eq!(mounted(), (true, true));
    drop(late);
    assert_eq!(mounted(), (false, false));
}

/// Contract I19: a dropped foreground call leaves no child. Contract I22: a refused start neither.
#[tokio::test]
async fn a_dropped_call_and_a_refused_start_leave_nothing() {
    let world = World::new([Step::Hang]);
    let _mount = world.mount(config("spawn"));
    let parent = world.parent().await;
    let mut call = Box::pin(world.call(parent.agent(), "subagent", delegation(false)));
    tokio::select! {
        biased;
        output = &mut call => panic!("it hangs: {output:?}"),
        () = wait_until("the child's request", || world.kit.model.request_count() == 1) => {}
    }
    assert_eq!(world.kit.host.list().len(), 2);
    drop(call);
    wait_until("the child is gone", || world.kit.host.list().len() == 1).await;

    let unnamed = json!({ "description": "", "prompt": "p", "run_in_background": true });
    let refused = world.call(parent.agent(), "subagent", unnamed).await;
    assert!(text(&refused).contains("invalid task label"), "{refused:?}");
    assert!(world.tasks.list(Some(parent.agent().id())).is_empty());
    assert_eq!((world.control.activations(), world.kit.host.list().len()), (0, 1));
}
