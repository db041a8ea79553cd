//! §10.6: structured output.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use continuable::agent::hooks::{AgentHooks, HookContext, HookFuture, ToolCall};
use continuable::agent::structured::STRUCTURED_OUTPUT;
use continuable::agent::tools::{PromptSection, ToolGuard, ToolOutput, ToolSet};
use continuable::agent::{Agent, AgentHandle};
use continuable::cancel::CancelSignal;
use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::message::ContentBlock;
use continuable::model::ModelRequest;
use continuable::model::script::{ScriptedCall, Step};
use continuable::provider::in_process::InProcess;
use continuable::provider::{
    Registration, Run, StartRequest, SteerError, SubagentError, SubagentResult, SubagentService,
};
use continuable::session::{Event, EventBody};
use continuable::vocabulary::{CancelCause, StopReason};
use serde_json::{Value, json};

use crate::kit::{Kit, story};

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (68, "a_valid_call_is_the_runs_result_and_its_last_request"),
    (69, "a_valid_call_is_the_runs_result_and_its_last_request"),
    (70, "a_steer_after_the_capture_is_refused_at_once"),
    (71, "only_calls_before_the_capture_run"),
    (72, "no_hook_revives_a_call_after_the_capture"),
    (73, "only_calls_before_the_capture_run"),
    (74, "invalid_arguments_may_be_corrected_in_the_same_turn"),
    (75, "a_run_that_only_talks_fails_without_a_second_prompt"),
    (76, "a_failed_request_fails_the_run"),
    (77, "a_cancellation_at_the_end_of_a_captureless_turn_aborts_the_run"),
    (78, "a_schema_outside_the_subset_is_refused_before_there_is_a_child"),
    (79, "a_blocked_capture_goes_on_without_a_result"),
    (80, "an_accepted_capture_may_show_other_content"),
    (81, "the_last_hook_decides_about_the_capture"),
    (82, "the_instruction_ends_the_childs_system_text_and_nobody_elses"),
    (86, "only_the_child_sees_the_tool"),
    (87, "concurrent_children_have_their_own_schemas_and_results"),
    (88, "tools_and_sections_stand_in_canonical_order"),
    (89, "a_capture_outlives_its_provider_and_dies_with_the_child"),
    (90, "without_a_structured_run_the_tool_is_unknown"),
    (91, "a_discarded_stage_is_never_promoted"),
];

type Pre = Box<dyn Fn(&ToolCall) -> Option<ToolOutput> + Send + Sync>;
type Post = Box<dyn Fn(&ToolCall, &ToolOutput) -> Option<ToolOutput> + Send + Sync>;

/// Hooks around tools, for every agent.
#[derive(Default)]
struct ToolHooks {
    pre: Option<Pre>,
    post: Option<Post>,
}

impl ToolHooks {
    fn pre(pre: impl Fn(&ToolCall) -> Option<ToolOutput> + Send + Sync + 'static) -> Self {
        Self { pre: Some(Box::new(pre)), post: None }
    }

    fn post(
        post: impl Fn(&ToolCall, &ToolOutput) -> Option<ToolOutput> + Send + Sync + 'static,
    ) -> Self {
        Self { pre: None, post: Some(Box::new(post)) }
    }
}

impl AgentHooks for ToolHooks {
    fn pre_tool<'a>(
        &'a self,
        _context: &'a HookContext,
        call: &'a ToolCall,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        let answer = self.pre.as_ref().and_then(|hook| hook(call));
        Box::pin(async { Ok(answer) })
    }

    fn post_tool<'a>(
        &'a self,
        _context: &'a HookContext,
        call: &'a ToolCall,
        output: &'a ToolOutput,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        let answer = self.post.as_ref().and_then(|hook| hook(call, output));
        Box::pin(async { Ok(answer) })
    }
}

/// A parent and the spawn provider over a whole host.
struct Bench {
    kit: Kit,
    subagents: Arc<SubagentService>,
    provider: Registration,
    parent: AgentHandle,
}

impl Bench {
    async fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::with_hooks(steps, Vec::new()).await
    }

    async fn with_hooks(steps: impl IntoIterator<Item = Step>, hooks: Vec<ToolHooks>) -> Self {
        let hooks = hooks.into_iter().map(|hook| Arc::new(hook) as Arc<dyn AgentHooks>).collect();
        let kit = Kit::with_hooks(steps, hooks);
        let subagents = SubagentService::new(Arc::clone(&kit.runtime));
        let provider = subagents.register(InProcess::spawn()).expect("the name is free");
        let parent = kit.create("parent").await;
        Self { kit, subagents, provider, parent }
    }

    fn signal(&self) -> CancelSignal {
        let scope = CancelScope::Call { call: "delegate".to_owned() };
        CancelSignal::new(Arc::clone(&self.kit.runtime), scope)
    }

    async fn start(&self, schema: Value, signal: CancelSignal) -> Result<Run, SubagentError> {
        let parent = self.parent.agent().clone();
        let mut request = StartRequest::text(parent, signal, "report");
        request.output_schema = Some(schema);
        self.subagents.start("spawn", request).await
    }

    /// A run that reports `{"n": integer}`, held at the gate `go` if its script begins there.
    async fn started(&self) -> (Run, Agent) {
        let run = self.start(schema("n"), self.signal()).await.expect("it starts");
        let child = self.kit.host.get(run.child()).expect("it is published");
        (run, child)
    }

    /// Runs to the end: the result, and the child's log in short.
    async fn run(&self) -> (SubagentResult, Vec<String>) {
        let (run, child) = self.started().await;
        let result = run.result().await.expect("no infrastructure fault");
        run.dispose().await.expect("it can be disposed");
        (result, story(child.session()))
    }

    fn requests(&self) -> Vec<Arc<ModelRequest>> {
        self.kit.model.requests()
    }

    /// Registers a tool that counts its runs.
    fn counter(&self, name: &str) -> (Arc<AtomicU64>, ToolGuard) {
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let guard = self.kit.tool(name, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { ToolOutput::text("done") }
        });
        (runs, guard)
    }
}

/// An object with one required integer.
fn schema(property: &str) -> Value {
    json!({"type": "object", "properties": {property: {"type": "integer"}}, "required": [property]})
}

fn report(n: u64) -> Step {
    Step::Structured(json!({"n": n}))
}

fn calls(listed: &[(&str, Value)]) -> Step {
    let listed = listed.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone()));
    Step::Tools(listed.collect())
}

fn blocked() -> ToolOutput {
    ToolOutput::failed("Blocked", "BLOCKED", "the reviewer wants more detail")
}

/// What hooks saw of capture calls.
fn is_capture(call: &ToolCall) -> bool {
    call.name == STRUCTURED_OUTPUT
}

/// The texts of all tool results in a child's log.
fn result_texts(child: &Agent) -> Vec<String> {
    let texts = |event: &Arc<Event>| match &event.body {
        EventBody::ToolResult { message, .. } => match message.content.first() {
            Some(ContentBlock::ToolResult { content, .. }) => {
                Some(content.iter().filter_map(ContentBlock::as_text).collect::<String>())
            }
            _ => None,
        },
        _ => None,
    };
    child.session().snapshot_from(0).iter().filter_map(texts).collect()
}

fn tool_names(request: &ModelRequest) -> Vec<&str> {
    request.tools.iter().map(|tool| tool.name.as_str()).collect()
}

/// Scenarios 68, 69.
#[tokio::test]
async fn a_valid_call_is_the_runs_result_and_its_last_request() {
    let seen = Arc::new(Mutex::new(None));
    let shown = Arc::clone(&seen);
    let watch = ToolHooks::post(move |_, output| {
        *shown.lock().expect("no panic inside") = output.value.clone();
        None
    });
    let bench = Bench::with_hooks([report(7)], vec![watch]).await;
    let (run, child) = bench.started().await;
    let result = run.result().await.expect("no fault");
    assert_eq!(result.stop, StopReason::Completed);
    assert_eq!(result.structured, Some(json!({"n": 7})));
    assert_eq!(*seen.lock().expect("no panic inside"), Some(json!({"recorded": true})));
    assert_eq!(result_texts(&child), ["Structured output recorded."]);
    assert_eq!(bench.requests().len(), 1);
    let agent = child.instance();
    assert!(bench.kit.facts().contains(&Fact::StructuredCaptured { agent }));
    run.dispose().await.expect("it can be disposed");
}

/// Scenario 70.
#[tokio::test]
async fn a_steer_after_the_capture_is_refused_at_once() {
    let bench = Bench::new([Step::gate("go"), report(1)]).await;
    let (run, child) = bench.started().await;
    let answer = Arc::new(Mutex::new(None));
    let (steering, answered) = (run.clone(), Arc::clone(&answer));
    let message = bench.kit.user("one more thing");
    let late = message.id.clone();
    let observed = child.session().observe(Arc::new(move |event: &Arc<Event>| {
        if matches!(event.body, EventBody::ToolResult { .. }) {
            let steered = steering.steer(message.clone()).expect("it can be steered");
            *answered.lock().expect("no panic inside") = Some(steered.map(drop));
        }
    }));
    bench.kit.model.release("go");
    let result = run.result().await.expect("no fault");
    assert_eq!(*answer.lock().expect("no panic inside"), Some(Err(SteerError::Captured)));
    assert_eq!(result.structured, Some(json!({"n": 1})));
    assert!(!story(child.session()).iter().any(|line| line.starts_with("steering")));
    let in_request = |request: &Arc<ModelRequest>| request.messages.iter().any(|m| m.id == late);
    assert!(!bench.requests().iter().any(in_request));
    drop(observed);
    run.dispose().await.expect("it can be disposed");
}

/// Scenarios 71, 73.
#[tokio::test]
async fn only_calls_before_the_capture_run() {
    let step = calls(&[
        ("before", json!({})),
        (STRUCTURED_OUTPUT, json!({"n": 3})),
        ("after", json!({})),
        (STRUCTURED_OUTPUT, json!({"n": 4})),
    ]);
    let bench = Bench::new([step]).await;
    let (before, _before) = bench.counter("before");
    let (after, _after) = bench.counter("after");
    let (result, story) = bench.run().await;
    assert_eq!(result.structured, Some(json!({"n": 3})));
    assert_eq!((before.load(Ordering::Relaxed), after.load(Ordering::Relaxed)), (1, 0));
    let results: Vec<_> = story.iter().filter(|line| line.starts_with("result")).collect();
    let refused = "result TOOL_NOT_STARTED";
    assert_eq!(results, ["result ok", "result ok", refused, refused]);
    assert_eq!(bench.requests().len(), 1);
}

/// Scenario 72. The hook does more than allow: it answers in the tool's place.
#[tokio::test]
async fn no_hook_revives_a_call_after_the_capture() {
    let step = calls(&[(STRUCTURED_OUTPUT, json!({"n": 1})), ("after", json!({}))]);
    let revive = ToolHooks::pre(|call| (call.name == "after").then(|| ToolOutput::text("mine")));
    let bench = Bench::with_hooks([step], vec![revive]).await;
    let (after, _after) = bench.counter("after");
    let (result, story) = bench.run().await;
    assert_eq!(result.structured, Some(json!({"n": 1})));
    assert_eq!(after.load(Ordering::Relaxed), 0);
    assert!(story.contains(&"result TOOL_NOT_STARTED".to_owned()), "{story:?}");
}

/// Scenario 74.
#[tokio::test]
async fn invalid_arguments_may_be_corrected_in_the_same_turn() {
    let wrong = Step::tool(STRUCTURED_OUTPUT, json!({"n": "seven"}));
    let bench = Bench::new([wrong, report(7)]).await;
    let (result, story) = bench.run().await;
    assert_eq!(result.structured, Some(json!({"n": 7})));
    assert_eq!(
        story,
        [
            "turn 1",
            "user report",
            "step 1",
            "assistant ",
            "call structured_output",
            "result INVALID_ARGS",
            "step 2",
            "assistant ",
            "call structured_output",
            "result ok",
            "end 1 completed",
        ]
    );
}

/// Scenario 75.
#[tokio::test]
async fn a_run_that_only_talks_fails_without_a_second_prompt() {
    let bench = Bench::new([Step::say("seven, I think")]).await;
    let (result, story) = bench.run().await;
    assert_eq!((result.stop, result.structured), (StopReason::Error, None));
    assert_eq!(bench.requests().len(), 1);
    assert_eq!(story.iter().filter(|line| line.starts_with("user")).count(), 1);
}

/// Scenario 76.
#[tokio::test]
async fn a_failed_request_fails_the_run() {
    let bench = Bench::new([]).await;
    let (result, story) = bench.run().await;
    assert_eq!((result.stop, result.structured), (StopReason::Error, None));
    assert_eq!(bench.requests().len(), 1);
    assert_eq!(story.last().map(String::as_str), Some("end 1 error"));
}

/// Scenario 77.
#[tokio::test]
async fn a_cancellation_at_the_end_of_a_captureless_turn_aborts_the_run() {
    let bench = Bench::new([Step::gate("go"), Step::say("no result")]).await;
    let signal = bench.signal();
    let run = bench.start(schema("n"), signal.clone()).await.expect("it starts");
    let child = bench.kit.host.get(run.child()).expect("it is published");
    let observed = child.session().observe(Arc::new(move |event: &Arc<Event>| {
        if matches!(event.body, EventBody::TurnEnd { .. }) {
            signal.cancel(CancelCause::Parent);
        }
    }));
    bench.kit.model.release("go");
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.structured), (StopReason::Aborted, None));
    drop(observed);
    run.dispose().await.expect("it can be disposed");
}

/// Scenario 78. An annotation that is not JSON cannot be written in Rust; what stands in for it is
/// an annotation of any JSON value, which constrains nothing.
#[tokio::test]
async fn a_schema_outside_the_subset_is_refused_before_there_is_a_child() {
    let bench = Bench::new([report(1)]).await;
    let mut pattern = schema("n");
    pattern["properties"]["n"]["minimum"] = json!(1);
    for bad in [pattern, json!({"type": "string"}), json!({"type": "object", "$ref": "#"})] {
        let refused = bench.start(bad, bench.signal()).await.expect_err("refused");
        assert!(matches!(refused, SubagentError::InvalidSchema(_)), "{refused}");
        assert_eq!(refused.code(), ErrorCode::InvalidInput);
    }
    assert_eq!(bench.kit.host.list().len(), 1, "only the parent");
    assert!(bench.requests().is_empty());
    let mut annotated = schema("n");
    annotated["description"] = json!({"any": ["value"]});
    let run = bench.start(annotated, bench.signal()).await.expect("annotations are free");
    assert_eq!(run.result().await.expect("no fault").structured, Some(json!({"n": 1})));
    run.dispose().await.expect("it can be disposed");
}

/// Scenario 79.
#[tokio::test]
async fn a_blocked_capture_goes_on_without_a_result() {
    let block = ToolHooks::post(|call, _| is_capture(call).then(blocked));
    let bench = Bench::with_hooks([report(1), Step::say("I give up")], vec![block]).await;
    let (run, child) = bench.started().await;
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.structured), (StopReason::Error, None));
    assert_eq!(result_texts(&child), ["the reviewer wants more detail"]);
    assert_eq!(bench.requests().len(), 2);
    assert!(story(child.session()).contains(&"result BLOCKED".to_owned()));
    run.dispose().await.expect("it can be disposed");
}

/// Scenario 80.
#[tokio::test]
async fn an_accepted_capture_may_show_other_content() {
    let replace =
        ToolHooks::post(|call, _| is_capture(call).then(|| ToolOutput::text("noted, thank you")));
    let bench = Bench::with_hooks([report(5)], vec![replace]).await;
    let (run, child) = bench.started().await;
    let result = run.result().await.expect("no fault");
    assert_eq!((result.stop, result.structured), (StopReason::Completed, Some(json!({"n": 5}))));
    assert_eq!(result_texts(&child), ["noted, thank you"]);
    assert_eq!(bench.requests().len(), 1);
    run.dispose().await.expect("it can be disposed");
}

/// Scenario 81. Hooks here form a list, not a chain of wrappers: the last one has the last word,
/// whatever those before it accepted.
#[tokio::test]
async fn the_last_hook_decides_about_the_capture() {
    let accept = ToolHooks::post(|_, _| Some(ToolOutput::text("accepted")));
    let block = ToolHooks::post(|_, output| output.is_success().then(blocked));
    let bench = Bench::with_hooks([report(1), Step::say("oh")], vec![accept, block]).await;
    let (result, _) = bench.run().await;
    assert_eq!((result.stop, result.structured), (StopReason::Error, None));
    assert_eq!(bench.requests().len(), 2);
}

/// Scenario 82.
#[tokio::test]
async fn the_instruction_ends_the_childs_system_text_and_nobody_elses() {
    let bench = Bench::new([report(1), Step::say("hello")]).await;
    let section =
        PromptSection { order: 106, name: "tasks".to_owned(), text: "About tasks.".to_owned() };
    let _section = bench.kit.tools.register_section(section).expect("the name is free");
    bench.run().await;
    bench.parent.agent().followup(bench.kit.user("hello"));
    bench.parent.agent().when_idle().await;
    let requests = bench.requests();
    let [child, parent] = &requests[..] else { panic!("two requests") };
    assert_eq!(parent.system, "You are a test agent.\n\nAbout tasks.");
    let (rest, instruction) = child.system.split_at(parent.system.len());
    assert_eq!(rest, parent.system);
    assert!(instruction.starts_with("\n\n") && instruction.contains(STRUCTURED_OUTPUT));
}

/// Scenario 86.
#[tokio::test]
async fn only_the_child_sees_the_tool() {
    let bench = Bench::new([report(1), Step::say("hello")]).await;
    bench.run().await;
    bench.parent.agent().followup(bench.kit.user("hello"));
    bench.parent.agent().when_idle().await;
    let requests = bench.requests();
    assert_eq!(tool_names(&requests[0]), [STRUCTURED_OUTPUT]);
    assert_eq!(requests[0].tools[0].parameters, schema("n"));
    assert!(tool_names(&requests[1]).is_empty());
    assert!(!ToolSet::of(Arc::clone(&bench.kit.tools)).contains(STRUCTURED_OUTPUT));
}

/// Scenario 87.
#[tokio::test]
async fn concurrent_children_have_their_own_schemas_and_results() {
    let answer = Step::func(|request| {
        let properties = &request.tools[0].parameters["properties"];
        let (property, value) = if properties.get("a").is_some() { ("a", 1) } else { ("b", 2) };
        Step::Structured(json!({property: value}))
    });
    let bench = Bench::new([Step::gate("go"), Step::gate("go")]).await;
    bench.kit.model.push_shared([Step::Always(Box::new(answer))]);
    let a = bench.start(schema("a"), bench.signal()).await.expect("it starts");
    let b = bench.start(schema("b"), bench.signal()).await.expect("it starts");
    assert_eq!(bench.kit.host.list().len(), 3, "both live at once");
    bench.kit.model.release("go");
    assert_eq!(a.result().await.expect("no fault").structured, Some(json!({"a": 1})));
    assert_eq!(b.result().await.expect("no fault").structured, Some(json!({"b": 2})));
    for run in [a, b] {
        run.dispose().await.expect("it can be disposed");
    }
}

/// Scenario 88.
#[tokio::test]
async fn tools_and_sections_stand_in_canonical_order() {
    let bench = Bench::new([Step::say("no tools"), report(1)]).await;
    bench.parent.agent().followup(bench.kit.user("hello"));
    bench.parent.agent().when_idle().await;
    assert!(bench.requests()[0].tools.is_empty());
    let (_, _last) = bench.counter("zoom");
    let (_, _first) = bench.counter("ask");
    let section = |order, name: &str| {
        let section = PromptSection { order, name: name.to_owned(), text: name.to_owned() };
        bench.kit.tools.register_section(section).expect("the name is free")
    };
    let _after = section(200, "after");
    let _before = section(106, "before");
    bench.run().await;
    let request = &bench.requests()[1];
    assert_eq!(tool_names(request), ["ask", STRUCTURED_OUTPUT, "zoom"]);
    let sections: Vec<_> = request.system.split("\n\n").collect();
    assert_eq!((sections[0], sections[1]), ("You are a test agent.", "before"));
    assert!(sections[2].contains(STRUCTURED_OUTPUT));
    assert_eq!(sections[3..], ["after"]);
}

/// Scenario 89.
#[tokio::test]
async fn a_capture_outlives_its_provider_and_dies_with_the_child() {
    let bench = Bench::new([Step::gate("go"), report(9)]).await;
    let (run, child) = bench.started().await;
    assert!(child.tools().contains(STRUCTURED_OUTPUT));
    let Bench { kit, subagents, provider, parent } = bench;
    drop(provider);
    assert!(subagents.provider("spawn").is_none());
    kit.model.release("go");
    let result = run.result().await.expect("no fault");
    assert_eq!(result.structured, Some(json!({"n": 9})));
    run.dispose().await.expect("it can be disposed");
    assert!(kit.host.get(run.child()).is_none());
    for agent in kit.host.list() {
        assert!(!agent.tools().contains(STRUCTURED_OUTPUT));
    }
    parent.dispose().await;
}

/// Scenario 90.
#[tokio::test]
async fn without_a_structured_run_the_tool_is_unknown() {
    let bench = Bench::new([report(1), Step::Final]).await;
    bench.parent.agent().followup(bench.kit.user("report"));
    bench.parent.agent().when_idle().await;
    let story = story(bench.parent.agent().session());
    assert!(story.contains(&"result UNKNOWN_TOOL".to_owned()), "{story:?}");
    // No agent: the deployment's tools as they are.
    let refused =
        ToolSet::of(Arc::clone(&bench.kit.tools)).prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#);
    let error = refused.expect_err("unknown").error.expect("a failure");
    assert_eq!(error.code, ErrorCode::UnknownTool.word());
}

/// One capture call under the call id that every step of [`discarded`] uses.
fn again(arguments: &Value) -> Step {
    let call = ScriptedCall::new(STRUCTURED_OUTPUT, arguments).with_id("again");
    Step::Calls { text: String::new(), calls: vec![call] }
}

/// Blocks the result of `{"n":1}`, and denies `{"n":3}` before it runs.
fn reviewers() -> Vec<ToolHooks> {
    let asks = |call: &ToolCall, n: u64| call.arguments == format!(r#"{{"n":{n}}}"#);
    vec![
        ToolHooks::pre(move |call| asks(call, 3).then(blocked)),
        ToolHooks::post(move |call, _| asks(call, 1).then(blocked)),
    ]
}

/// Scenario 91.
#[tokio::test]
async fn a_discarded_stage_is_never_promoted() {
    let discarded =
        || [again(&json!({"n": 1})), again(&json!({"n": "x"})), again(&json!({"n": 3}))];
    let bench = Bench::with_hooks(discarded().into_iter().chain([Step::Final]), reviewers()).await;
    let (result, story) = bench.run().await;
    assert_eq!((result.stop, result.structured), (StopReason::Error, None));
    let results: Vec<_> = story.iter().filter(|line| line.starts_with("result")).collect();
    assert_eq!(results, ["result BLOCKED", "result INVALID_ARGS", "result BLOCKED"]);

    let valid = again(&json!({"n": 4}));
    let bench = Bench::with_hooks(discarded().into_iter().chain([valid]), reviewers()).await;
    let (result, _) = bench.run().await;
    assert_eq!((result.stop, result.structured), (StopReason::Completed, Some(json!({"n": 4}))));
}
