//! A structured result: the capture tool of one agent, and its guard (fact-sheet 6.7).
//!
//! A valid call of `structured_output` only *stages* its value, under that one execution. The value
//! is captured when the authoritative result of the execution is a success, after every hook. From
//! the first stage on the guard refuses every later call of the agent; a discarded stage opens it
//! again, and the model may try once more.

use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use serde_json::{Value, json};

use super::schema::{Schema, SchemaError};
use super::tools::{
    ExecutionId, PromptSection, Tool, ToolDefinition, ToolInvocation, ToolMode, ToolOutput,
};
use crate::facts::Fact;
use crate::ids::OwnerId;
use crate::runtime::{BoxFuture, Runtime};
use crate::sync::{Access, LockClass, Mutex, ObjectKind, fresh_key, touch};

/// The capture tool's name.
pub const STRUCTURED_OUTPUT: &str = "structured_output";

/// Where the instruction stands in the system prompt: at the end of the tools' band.
pub const STRUCTURED_SECTION_ORDER: u32 = 190;

const DESCRIPTION: &str = "Report the final result of this run. Call it exactly once, when the \
     work is done; the run ends with it.";

const INSTRUCTION: &str = "Your result is read by a program. When your work is done, call the tool \
     `structured_output` exactly once, with arguments that fit its schema. That call ends the run: \
     make it the last one of your answer, and do not answer in plain text instead, because text is \
     not read.";

/// What an accepted call answers.
const RECORDED: &str = "Structured output recorded.";

struct Stage {
    agent: OwnerId,
    value: Value,
}

#[derive(Default)]
struct State {
    stages: BTreeMap<ExecutionId, Stage>,
    captured: Option<Value>,
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    schema: Value,
    key: u64,
    state: Mutex<State>,
}

/// The structured result of one run, before and after it is captured. Cloning shares it.
#[derive(Clone)]
pub struct StructuredCapture {
    inner: Arc<Inner>,
}

impl fmt::Debug for StructuredCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StructuredCapture({:?})", self.captured())
    }
}

impl StructuredCapture {
    /// A run whose result must fit `schema`.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if the schema is not an object's or uses a keyword outside the subset.
    pub fn new(runtime: Arc<dyn Runtime>, schema: Value) -> Result<Self, SchemaError> {
        Schema::arguments(&schema)?;
        // A leaf: the steer section asks `is_captured` under the agent's queue lock.
        let state = Mutex::new(LockClass::Leaf, State::default());
        Ok(Self { inner: Arc::new(Inner { runtime, schema, key: fresh_key(), state }) })
    }

    /// The schema, exactly as it was requested.
    pub fn schema(&self) -> &Value {
        &self.inner.schema
    }

    /// The captured value.
    pub fn captured(&self) -> Option<Value> {
        self.read(|state| state.captured.clone())
    }

    /// Whether a value was captured: the run takes no more steering.
    pub fn is_captured(&self) -> bool {
        self.read(|state| state.captured.is_some())
    }

    /// Whether the guard refuses calls: a value is captured, or staged and not yet discarded.
    pub fn is_closed(&self) -> bool {
        self.read(|state| state.captured.is_some() || !state.stages.is_empty())
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        touch(ObjectKind::Name, self.inner.key, Access::Read);
        read(&self.inner.state.lock())
    }

    fn stage(&self, execution: ExecutionId, agent: OwnerId, value: Value) {
        touch(ObjectKind::Name, self.inner.key, Access::Write);
        self.inner.state.lock().stages.insert(execution, Stage { agent, value });
    }

    /// The authoritative result of `execution` is known. A staged value of it is captured or
    /// discarded; other executions' stages are untouched, and the first captured value stands.
    pub(super) fn settle(&self, execution: ExecutionId, success: bool) {
        let mut state = self.inner.state.lock();
        let Some(stage) = state.stages.remove(&execution) else { return };
        touch(ObjectKind::Name, self.inner.key, Access::Write);
        if success && state.captured.is_none() {
            state.captured = Some(stage.value);
            self.inner.runtime.fact(Fact::StructuredCaptured { agent: stage.agent });
        }
    }

    /// The section that tells the model about the capture tool.
    pub fn section(&self) -> PromptSection {
        PromptSection {
            order: STRUCTURED_SECTION_ORDER,
            name: STRUCTURED_OUTPUT.to_owned(),
            text: INSTRUCTION.to_owned(),
        }
    }

    /// The capture tool, for the one agent that owns it.
    pub(super) fn tool(&self) -> Arc<dyn Tool> {
        Arc::new(CaptureTool { capture: self.clone() })
    }
}

struct CaptureTool {
    capture: StructuredCapture,
}

impl Tool for CaptureTool {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: STRUCTURED_OUTPUT.to_owned(),
            description: DESCRIPTION.to_owned(),
            parameters: self.capture.schema().clone(),
        }
    }

    // Alone, so that calls before it are over and calls after it meet the guard.
    fn mode(&self) -> ToolMode {
        ToolMode::Exclusive
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        let agent = invocation.agent.instance();
        self.capture.stage(invocation.execution, agent, invocation.arguments);
        let output = ToolOutput {
            value: Some(json!({"recorded": true})),
            concludes: true,
            ..ToolOutput::text(RECORDED)
        };
        Box::pin(ready(output))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tools::{PreparedCall, ToolRegistry, ToolSet};
    use super::*;
    use crate::runtime::TokioRuntime;

    const AGENT: OwnerId = OwnerId(1);

    fn schema() -> Value {
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    }

    /// Runs `test` with an agent's set that has a structured result to report.
    fn with_set(test: impl FnOnce(&ToolSet, &StructuredCapture)) {
        let tokio = tokio::runtime::Builder::new_current_thread().build().expect("builds");
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::on(tokio.handle().clone()));
        let capture = StructuredCapture::new(runtime, schema()).expect("supported");
        let mut set = ToolSet::of(Arc::new(ToolRegistry::default()));
        set.add_structured(capture.clone()).expect("the first");
        test(&set, &capture);
    }

    /// What the body of the capture tool does.
    fn body(call: &PreparedCall, capture: &StructuredCapture, value: Value) -> ToolOutput {
        capture.stage(call.execution(), AGENT, value);
        ToolOutput { concludes: true, ..ToolOutput::text(RECORDED) }
    }

    fn blocked() -> Option<ToolOutput> {
        Some(ToolOutput::failed("Blocked", "BLOCKED", "not like this"))
    }

    #[test]
    fn a_value_is_captured_by_the_final_result_not_by_the_body() {
        with_set(|set, capture| {
            let call = set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect("valid");
            let output = body(&call, capture, json!({"n": 1}));
            assert_eq!(capture.captured(), None);
            assert!(capture.is_closed(), "pending already refuses calls");
            let last = call.finish(output, Some(ToolOutput::text("replaced")));
            assert!(last.concludes);
            assert_eq!(capture.captured(), Some(json!({"n": 1})));
        });
    }

    #[test]
    fn a_blocked_result_is_discarded_and_the_next_call_is_captured() {
        with_set(|set, capture| {
            let call = set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect("valid");
            let output = body(&call, capture, json!({"n": 1}));
            assert!(!call.finish(output, blocked()).concludes);
            assert_eq!(capture.captured(), None);
            assert!(!capture.is_closed());
            let call = set.prepare(STRUCTURED_OUTPUT, r#"{"n":2}"#).expect("open again");
            let output = body(&call, capture, json!({"n": 2}));
            call.finish(output, None);
            assert_eq!(capture.captured(), Some(json!({"n": 2})));
        });
    }

    #[test]
    fn a_call_that_is_given_up_leaves_no_stage() {
        with_set(|set, capture| {
            let call = set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect("valid");
            body(&call, capture, json!({"n": 1}));
            drop(call);
            assert!(!capture.is_closed());
            assert_eq!(capture.captured(), None);
        });
    }

    #[test]
    fn after_capture_the_guard_refuses_every_call() {
        with_set(|set, capture| {
            let call = set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect("valid");
            let output = body(&call, capture, json!({"n": 1}));
            call.finish(output, None);
            for (name, arguments) in [(STRUCTURED_OUTPUT, r#"{"n":2}"#), ("other", "{}")] {
                let refused = set.prepare(name, arguments).expect_err("refused");
                assert_eq!(refused.error.expect("a failure").code, "TOOL_NOT_STARTED");
            }
            assert_eq!(capture.captured(), Some(json!({"n": 1})));
        });
    }

    #[test]
    fn another_executions_result_promotes_nothing() {
        with_set(|set, capture| {
            let first = set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect("valid");
            let second = set.prepare(STRUCTURED_OUTPUT, r#"{"n":2}"#).expect("none staged yet");
            let output = body(&first, capture, json!({"n": 1}));
            second.finish(output, None);
            assert_eq!(capture.captured(), None);
            drop(first);
            assert_eq!(capture.captured(), None);
        });
    }

    #[test]
    fn arguments_outside_the_schema_may_be_corrected() {
        with_set(|set, capture| {
            let refused = set.prepare(STRUCTURED_OUTPUT, r#"{"n":"1"}"#).expect_err("invalid");
            assert_eq!(refused.error.expect("a failure").code, "INVALID_ARGS");
            assert!(!capture.is_closed());
            assert!(set.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).is_ok());
        });
    }

    #[test]
    fn the_tool_has_exactly_the_requested_schema_and_only_its_own_agent_sees_it() {
        with_set(|set, _| {
            assert_eq!(set.definitions()[0].parameters, schema());
            let section = set.sections().pop().expect("one section");
            assert_eq!(section.order, STRUCTURED_SECTION_ORDER);
            let child = set.child(None).expect("no filter");
            assert!(child.definitions().is_empty());
            assert!(child.sections().is_empty());
            let refused = child.prepare(STRUCTURED_OUTPUT, r#"{"n":1}"#).expect_err("unknown");
            assert_eq!(refused.error.expect("a failure").code, "UNKNOWN_TOOL");
        });
    }

    #[test]
    fn an_unsupported_schema_is_refused_before_there_is_a_capture() {
        let tokio = tokio::runtime::Builder::new_current_thread().build().expect("builds");
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::on(tokio.handle().clone()));
        for bad in [json!({"type": "string"}), json!({"type": "object", "oneOf": []})] {
            assert!(StructuredCapture::new(Arc::clone(&runtime), bad).is_err());
        }
    }
}
