//! Tools: what an agent's model may call.
//!
//! A [`ToolRegistry`] holds the tools of a deployment. An agent calls through its [`ToolSet`]: a
//! live view of the registry under the restrictions of its line of parents, with the tools that
//! are its own. A call goes through [`ToolSet::prepare`] directly before its body starts, through
//! [`PreparedCall::run`], and through [`PreparedCall::finish`] once its final result is known.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use serde_json::{Map, Value};

use super::Agent;
use super::schema::{Schema, SchemaError};
use super::structured::StructuredCapture;
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::message::{ContentBlock, Message};
use crate::runtime::{BoxFuture, Runtime, contain};
use crate::session::{RawJson, ToolErrorInfo, ToolFilter};
use crate::sync::{Access, LockClass, Mutex, ObjectKind, key_of, touch};

pub use crate::model::ToolDefinition;

/// Whether calls of one response may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolMode {
    /// With other parallel calls.
    Parallel,
    /// Alone.
    Exclusive,
}

/// One execution of a tool. A model may use a call id twice; executions are never confused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutionId(pub u64);

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolInvocation {
    /// This execution.
    pub execution: ExecutionId,
    /// The call's id, as the model wrote it.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, valid for the tool's schema.
    pub arguments: Value,
    /// The calling agent.
    pub agent: Agent,
    /// Fires when the turn is cancelled; the tool should then end.
    pub signal: CancelSignal,
    /// The open turn.
    pub turn: u64,
    /// The open step.
    pub step: u64,
}

/// Who calls, and where: what [`PreparedCall::run`] adds to a prepared call.
#[derive(Debug, Clone)]
pub struct CallSite {
    /// The call's id, as the model wrote it.
    pub call_id: String,
    /// The calling agent.
    pub agent: Agent,
    /// Fires when the turn is cancelled.
    pub signal: CancelSignal,
    /// The open turn.
    pub turn: u64,
    /// The open step.
    pub step: u64,
}

/// What a call produced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutput {
    /// What the model is shown.
    pub content: Vec<ContentBlock>,
    /// Set if the call failed.
    pub error: Option<ToolErrorInfo>,
    /// The result as a value, for programs.
    pub value: Option<Value>,
    /// Whether a successful result ends the turn.
    pub concludes: bool,
    /// Contexts that enter the log after the last result of the batch.
    pub contexts: Vec<Message>,
}

impl ToolOutput {
    /// A success with one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::text(text)], ..Self::default() }
    }

    /// A failure with one text.
    pub fn failed(name: &str, code: &str, text: impl Into<String>) -> Self {
        let error = ToolErrorInfo { name: name.to_owned(), code: code.to_owned() };
        Self { error: Some(error), ..Self::text(text) }
    }

    /// A failure of a call that was refused before its body.
    fn refused(code: ErrorCode, text: impl Into<String>) -> Self {
        Self::failed("ToolError", code.word(), text)
    }

    /// Whether the call succeeded.
    pub fn is_success(&self) -> bool {
        self.error.is_none()
    }
}

/// A tool. Its code is foreign: a panic is a failed result (contract P18).
pub trait Tool: Send + Sync {
    /// What the model is told about it. Read once, at registration.
    fn definition(&self) -> ToolDefinition;

    /// Whether it may run beside other calls.
    fn mode(&self) -> ToolMode {
        ToolMode::Exclusive
    }

    /// Runs a call to its end.
    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput>;

    /// The last word on a result of a call of this tool, whoever made it: the body, a hook that
    /// denied or replaced it, a failure. For size limits.
    fn shape(
        &self,
        agent: &Agent,
        arguments: &Value,
        output: ToolOutput,
    ) -> BoxFuture<'static, ToolOutput> {
        let _unused = (agent, arguments);
        Box::pin(std::future::ready(output))
    }
}

/// Why a tool or a section was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The name is taken.
    #[error("a tool named {0:?} is registered already")]
    Duplicate(String),
    /// Its argument schema is not supported.
    #[error("the tool {name:?} has an unsupported argument schema: {source}")]
    Schema {
        /// The tool.
        name: String,
        /// What is wrong.
        source: SchemaError,
    },
}

/// Names in a tool filter that the filtered scope does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tool filter names unknown tools: {}", .0.join(", "))]
pub struct UnknownTools(pub Vec<String>);

impl UnknownTools {
    /// `UNKNOWN_TOOL`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::UnknownTool
    }
}

/// One part of the system prompt, placed by its order (fact-sheet §12).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PromptSection {
    /// Its place; lower stands earlier.
    pub order: u32,
    /// Its name; breaks ties of order.
    pub name: String,
    /// Its text.
    pub text: String,
}

struct Registered {
    definition: ToolDefinition,
    schema: Schema,
    tool: Arc<dyn Tool>,
}

impl Registered {
    fn of(tool: Arc<dyn Tool>) -> Result<Self, RegisterError> {
        let definition = tool.definition();
        let schema = Schema::arguments(&definition.parameters)
            .map_err(|source| RegisterError::Schema { name: definition.name.clone(), source })?;
        Ok(Self { definition, schema, tool })
    }
}

#[derive(Default)]
struct Tables {
    tools: BTreeMap<String, Arc<Registered>>,
    sections: BTreeMap<String, PromptSection>,
}

/// The tools of a deployment, by name, and the sections that explain them to the model.
pub struct ToolRegistry {
    tables: Mutex<Tables>,
    executions: AtomicU64,
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tables.lock().tools.keys()).finish()
    }
}

impl Default for ToolRegistry {
    fn default() -> Self {
        Self {
            tables: Mutex::new(LockClass::Leaf, Tables::default()),
            executions: AtomicU64::new(0),
        }
    }
}

impl ToolRegistry {
    /// Registers `tool` until the guard is dropped. Every agent's set shows it at once.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing changed.
    pub fn register(self: &Arc<Self>, tool: Arc<dyn Tool>) -> Result<ToolGuard, RegisterError> {
        let registered = Arc::new(Registered::of(tool)?);
        let name = registered.definition.name.clone();
        let mut tables = self.tables.lock();
        if tables.tools.contains_key(&name) {
            touch(ObjectKind::Name, key_of(&name), Access::Read);
            return Err(RegisterError::Duplicate(name));
        }
        touch(ObjectKind::Name, key_of(&name), Access::Write);
        tables.tools.insert(name.clone(), registered);
        Ok(ToolGuard { registry: Arc::downgrade(self), entry: Entry::Tool(name) })
    }

    /// Adds a section to every agent's system prompt until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Duplicate`] if a section of that name exists.
    pub fn register_section(
        self: &Arc<Self>,
        section: PromptSection,
    ) -> Result<ToolGuard, RegisterError> {
        let name = section.name.clone();
        let mut tables = self.tables.lock();
        if tables.sections.contains_key(&name) {
            return Err(RegisterError::Duplicate(name));
        }
        touch(ObjectKind::Name, key_of(&name), Access::Write);
        tables.sections.insert(name.clone(), section);
        Ok(ToolGuard { registry: Arc::downgrade(self), entry: Entry::Section(name) })
    }

    fn get(&self, name: &str) -> Option<Arc<Registered>> {
        touch(ObjectKind::Name, key_of(name), Access::Read);
        self.tables.lock().tools.get(name).cloned()
    }

    fn all(&self) -> BTreeMap<String, Arc<Registered>> {
        let tools = self.tables.lock().tools.clone();
        for name in tools.keys() {
            touch(ObjectKind::Name, key_of(name), Access::Read);
        }
        tools
    }
}

#[derive(Debug)]
enum Entry {
    Tool(String),
    Section(String),
}

/// Unregisters its tool or section when dropped. Calls that were prepared run on.
#[must_use = "dropping the guard unregisters the tool"]
#[derive(Debug)]
pub struct ToolGuard {
    registry: Weak<ToolRegistry>,
    entry: Entry,
}

impl Drop for ToolGuard {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut tables = registry.tables.lock();
        let (Entry::Tool(name) | Entry::Section(name)) = &self.entry;
        touch(ObjectKind::Name, key_of(name), Access::Write);
        let removed = match &self.entry {
            Entry::Tool(name) => tables.tools.remove(name),
            Entry::Section(name) => {
                tables.sections.remove(name);
                None
            }
        };
        drop(tables);
        // The tool is foreign: it is dropped after the lock.
        drop(removed);
    }
}

/// What one agent may call: a live view of the registry, restricted, and the tools of its own.
///
/// A restriction bounds everything inherited, in the agent and in all its descendants; it does not
/// touch what the agent owns, and what it owns is not inherited. A tool that a restriction denies
/// does not exist for the agent: it is not listed, and calling it is `UNKNOWN_TOOL`.
#[derive(Clone)]
pub struct ToolSet {
    registry: Arc<ToolRegistry>,
    restrictions: Vec<Arc<ToolFilter>>,
    own: BTreeMap<String, Arc<Registered>>,
    structured: Option<StructuredCapture>,
}

impl fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.definitions().iter().map(|tool| &tool.name)).finish()
    }
}

fn admits(filter: &ToolFilter, name: &str) -> bool {
    let lists = |list: &Vec<String>| list.iter().any(|listed| listed == name);
    filter.allow.as_ref().is_none_or(lists) && !filter.deny.as_ref().is_some_and(lists)
}

impl ToolSet {
    /// Everything in `registry`, unrestricted.
    pub fn of(registry: Arc<ToolRegistry>) -> Self {
        Self { registry, restrictions: Vec::new(), own: BTreeMap::new(), structured: None }
    }

    /// A child's set: what this set inherits, under its restrictions and `filter`.
    ///
    /// # Errors
    ///
    /// [`UnknownTools`] if the filter names a tool that a child of this set could not call.
    pub fn child(&self, filter: Option<&ToolFilter>) -> Result<Self, UnknownTools> {
        let mut child = Self {
            registry: Arc::clone(&self.registry),
            restrictions: self.restrictions.clone(),
            own: BTreeMap::new(),
            structured: None,
        };
        if let Some(filter) = filter {
            let named = filter.allow.iter().chain(&filter.deny).flatten();
            let unknown: Vec<_> = named.filter(|name| !child.contains(name)).cloned().collect();
            if !unknown.is_empty() {
                return Err(UnknownTools(unknown));
            }
            child.restrictions.push(Arc::new(filter.clone()));
        }
        Ok(child)
    }

    /// Adds a tool of the agent's own; it shadows an inherited one of its name.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing changed.
    pub fn add_own(&mut self, tool: Arc<dyn Tool>) -> Result<(), RegisterError> {
        let registered = Registered::of(tool)?;
        let name = registered.definition.name.clone();
        if self.own.contains_key(&name) {
            return Err(RegisterError::Duplicate(name));
        }
        self.own.insert(name, Arc::new(registered));
        Ok(())
    }

    /// Gives the agent a structured result to report: its capture tool, its section of the system
    /// prompt and its guard (fact-sheet 6.7).
    ///
    /// # Errors
    ///
    /// [`RegisterError::Duplicate`] if it has one already.
    pub fn add_structured(&mut self, capture: StructuredCapture) -> Result<(), RegisterError> {
        self.add_own(capture.tool())?;
        self.structured = Some(capture);
        Ok(())
    }

    /// The agent's structured result, if it has one to report.
    pub fn structured(&self) -> Option<&StructuredCapture> {
        self.structured.as_ref()
    }

    fn inherits(&self, name: &str) -> bool {
        self.restrictions.iter().all(|filter| admits(filter, name))
    }

    fn find(&self, name: &str) -> Option<Arc<Registered>> {
        match self.own.get(name) {
            Some(own) => Some(Arc::clone(own)),
            None if self.inherits(name) => self.registry.get(name),
            None => None,
        }
    }

    /// Whether the agent can call `name` now.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// What the model is told, in canonical order: by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        let mut tools = self.registry.all();
        tools.retain(|name, _| self.inherits(name));
        tools.extend(self.own.iter().map(|(name, tool)| (name.clone(), Arc::clone(tool))));
        tools.into_values().map(|tool| tool.definition.clone()).collect()
    }

    /// The system prompt's sections after the persona, in canonical order: by order, then name.
    pub fn sections(&self) -> Vec<PromptSection> {
        let mut sections: Vec<_> = self.registry.tables.lock().sections.values().cloned().collect();
        sections.extend(self.structured.as_ref().map(StructuredCapture::section));
        sections.sort();
        sections
    }

    /// Whether calls of `name` may run beside others. An unknown tool's call only answers an error,
    /// so it may.
    pub fn mode(&self, name: &str) -> ToolMode {
        self.find(name).map_or(ToolMode::Parallel, |registered| registered.tool.mode())
    }

    /// The result of every call once a structured result is staged or captured. To be asked before
    /// the hooks, so that none of them answers in the tool's place; [`ToolSet::prepare`] asks again.
    pub fn guard(&self) -> Option<ToolOutput> {
        let closed = self.structured.as_ref().is_some_and(StructuredCapture::is_closed);
        let text = "the structured result is recorded already; this call was not run";
        closed.then(|| ToolOutput::refused(ErrorCode::ToolNotStarted, text))
    }

    /// Resolves a call. To be called directly before the body starts, after the hooks that may
    /// refuse it: here the guard decides, and nothing can overrule it.
    ///
    /// # Errors
    ///
    /// The result of a call that does not run: `TOOL_NOT_STARTED` once a structured result is
    /// staged or captured, `UNKNOWN_TOOL`, or `INVALID_ARGS`, which the model may correct.
    pub fn prepare(&self, name: &str, arguments: &str) -> Result<PreparedCall, Box<ToolOutput>> {
        if let Some(refusal) = self.guard() {
            return Err(Box::new(refusal));
        }
        let Some(registered) = self.find(name) else {
            let text = format!("unknown tool: {name}");
            return Err(Box::new(ToolOutput::refused(ErrorCode::UnknownTool, text)));
        };
        let arguments = parse(arguments).and_then(|value| {
            registered.schema.check(&value).map_err(|mismatch| mismatch.to_string())?;
            Ok(value)
        });
        match arguments {
            Ok(arguments) => {
                let number = self.registry.executions.fetch_add(1, Ordering::Relaxed) + 1;
                let execution = ExecutionId(number);
                let structured = self.structured.clone();
                Ok(PreparedCall { registered, execution, arguments, structured })
            }
            Err(detail) => {
                let text = format!("invalid arguments for {name}: {detail}");
                Err(Box::new(ToolOutput::refused(ErrorCode::InvalidArgs, text)))
            }
        }
    }
}

impl ToolSet {
    /// [`Tool::shape`] for a finished call with the raw argument text `arguments`. A panic leaves
    /// the output as it was.
    pub async fn shape(
        &self,
        agent: &Agent,
        name: &str,
        arguments: &str,
        output: ToolOutput,
    ) -> ToolOutput {
        let (Some(registered), Ok(arguments)) = (self.find(name), parse(arguments)) else {
            return output;
        };
        let shaped = output.clone();
        let shape = async move { registered.tool.shape(agent, &arguments, shaped).await };
        contain(agent.runtime(), "tool shape", shape).await.unwrap_or(output)
    }
}

/// Reads the model's raw argument text. Models write nothing for no arguments.
fn parse(arguments: &str) -> Result<Value, String> {
    if arguments.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    RawJson::checked(arguments)
        .and_then(|raw| raw.value())
        .map_err(|error| format!("not valid JSON ({error})"))
}

/// A call that may run: known, allowed and with valid arguments. Dropped unfinished, it counts as
/// failed.
pub struct PreparedCall {
    registered: Arc<Registered>,
    execution: ExecutionId,
    arguments: Value,
    structured: Option<StructuredCapture>,
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedCall({} {:?})", self.registered.definition.name, self.execution)
    }
}

impl PreparedCall {
    /// This execution.
    pub fn execution(&self) -> ExecutionId {
        self.execution
    }

    /// Runs the tool's body. A panic in it is a failed result with code `PANICKED` (contract P18).
    pub fn run(
        &self,
        runtime: &Arc<dyn Runtime>,
        site: CallSite,
    ) -> BoxFuture<'static, ToolOutput> {
        let CallSite { call_id, agent, signal, turn, step } = site;
        let name = self.registered.definition.name.clone();
        let invocation = ToolInvocation {
            execution: self.execution,
            call_id,
            name: name.clone(),
            arguments: self.arguments.clone(),
            agent,
            signal,
            turn,
            step,
        };
        let tool = Arc::clone(&self.registered.tool);
        let runtime = Arc::clone(runtime);
        Box::pin(async move {
            let body = async move { tool.call(invocation).await };
            contain(&runtime, &format!("tool {name}"), body).await.unwrap_or_else(|panicked| {
                ToolOutput::refused(ErrorCode::Panicked, panicked.to_string())
            })
        })
    }

    /// Settles the call: `body` is what it produced, `replaced` what the hooks made of that. The
    /// answer is the authoritative result, to be logged next; a structured result is committed or
    /// discarded by it. Replaced content does not take the end of the turn away from a successful
    /// result; a failed one ends no turn.
    pub fn finish(self, body: ToolOutput, replaced: Option<ToolOutput>) -> ToolOutput {
        let mut output = match replaced {
            Some(mut replaced) => {
                replaced.concludes |= body.concludes;
                replaced.contexts.splice(0..0, body.contexts);
                replaced
            }
            None => body,
        };
        output.concludes &= output.is_success();
        if let Some(capture) = &self.structured {
            capture.settle(self.execution, output.is_success());
        }
        output
    }
}

impl Drop for PreparedCall {
    fn drop(&mut self) {
        // After `finish` there is no stage left, and this changes nothing.
        if let Some(capture) = &self.structured {
            capture.settle(self.execution, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use serde_json::json;

    use super::*;

    struct Named(&'static str, Value);

    impl Tool for Named {
        fn definition(&self) -> ToolDefinition {
            ToolDefinition {
                name: self.0.to_owned(),
                description: String::new(),
                parameters: self.1.clone(),
            }
        }

        fn mode(&self) -> ToolMode {
            ToolMode::Parallel
        }

        fn call(&self, _invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
            Box::pin(ready(ToolOutput::text("done")))
        }
    }

    fn plain(name: &'static str) -> Arc<dyn Tool> {
        Arc::new(Named(name, json!({"type": "object"})))
    }

    fn registry(names: &[&'static str]) -> (Arc<ToolRegistry>, Vec<ToolGuard>) {
        let registry = Arc::new(ToolRegistry::default());
        let guards =
            names.iter().map(|name| registry.register(plain(name)).expect("registers")).collect();
        (registry, guards)
    }

    fn names(set: &ToolSet) -> Vec<String> {
        set.definitions().into_iter().map(|tool| tool.name).collect()
    }

    fn code(refused: Result<PreparedCall, Box<ToolOutput>>) -> String {
        refused.expect_err("refused").error.expect("a failure").code
    }

    fn filter(allow: Option<&[&str]>, deny: Option<&[&str]>) -> ToolFilter {
        let list = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        ToolFilter { allow: allow.map(list), deny: deny.map(list) }
    }

    #[test]
    fn a_tool_is_there_while_its_guard_lives_and_listed_by_name() {
        let (registry, guards) = registry(&["b", "c", "a"]);
        let set = ToolSet::of(Arc::clone(&registry));
        assert_eq!(names(&set), ["a", "b", "c"]);
        let twice = registry.register(plain("b"));
        assert_eq!(twice.expect_err("taken"), RegisterError::Duplicate("b".into()));
        drop(guards);
        assert!(names(&set).is_empty());
        assert_eq!(code(set.prepare("b", "{}")), "UNKNOWN_TOOL");
    }

    #[test]
    fn a_tool_with_an_unsupported_schema_is_not_registered() {
        let registry = Arc::new(ToolRegistry::default());
        let tool = Arc::new(Named("t", json!({"type": "object", "maxProperties": 2})));
        assert!(matches!(registry.register(tool), Err(RegisterError::Schema { .. })));
        assert!(!ToolSet::of(registry).contains("t"));
    }

    #[test]
    fn a_denied_tool_is_hidden_and_unknown() {
        let (registry, _guards) = registry(&["a", "b", "c"]);
        let root = ToolSet::of(registry);
        let only = root.child(Some(&filter(Some(&["a", "b"]), Some(&["b"])))).expect("known");
        assert_eq!(names(&only), ["a"]);
        assert_eq!(code(only.prepare("b", "{}")), "UNKNOWN_TOOL");
        assert!(only.prepare("a", "{}").is_ok());
        let nothing = root.child(Some(&filter(Some(&[]), None))).expect("known");
        assert!(names(&nothing).is_empty(), "an empty allow list denies everything");
        let all = root.child(Some(&filter(None, Some(&[])))).expect("known");
        assert_eq!(names(&all), ["a", "b", "c"]);
    }

    #[test]
    fn a_restriction_bounds_the_whole_line_of_descendants() {
        let (registry, mut guards) = registry(&["a", "b"]);
        let child = ToolSet::of(Arc::clone(&registry))
            .child(Some(&filter(None, Some(&["b"]))))
            .expect("ok");
        let grandchild = child.child(None).expect("ok");
        assert_eq!(names(&grandchild), ["a"]);
        let hidden = child.child(Some(&filter(None, Some(&["b"]))));
        assert_eq!(hidden.expect_err("hidden is unknown"), UnknownTools(vec!["b".into()]));
        guards.push(registry.register(plain("later")).expect("registers"));
        assert_eq!(names(&grandchild), ["a", "later"], "the view is live");
    }

    #[test]
    fn a_filter_that_names_an_unknown_tool_is_refused() {
        let (registry, _guards) = registry(&["a"]);
        let root = ToolSet::of(registry);
        for bad in [filter(Some(&["a", "x"]), None), filter(None, Some(&["x"]))] {
            assert_eq!(
                root.child(Some(&bad)).expect_err("unknown"),
                UnknownTools(vec!["x".into()])
            );
        }
    }

    #[test]
    fn a_tool_of_ones_own_is_neither_filtered_nor_inherited() {
        let (registry, _guards) = registry(&["a"]);
        let mut set =
            ToolSet::of(registry).child(Some(&filter(Some(&[]), None))).expect("an empty list");
        set.add_own(plain("own")).expect("free");
        assert!(set.add_own(plain("own")).is_err());
        assert_eq!(names(&set), ["own"]);
        assert!(set.prepare("own", "").is_ok());
        assert!(names(&set.child(None).expect("ok")).is_empty());
    }

    #[test]
    fn arguments_that_do_not_parse_or_fit_are_invalid_args() {
        let registry = Arc::new(ToolRegistry::default());
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
            "required": ["n"]});
        let _guard = registry.register(Arc::new(Named("t", schema))).expect("registers");
        let set = ToolSet::of(registry);
        let deep = format!("{{\"n\":{}", "[".repeat(100_000));
        for bad in ["{\"n\":", "[1]", "{\"n\":\"1\"}", "", "null", deep.as_str()] {
            assert_eq!(code(set.prepare("t", bad)), "INVALID_ARGS", "{bad:.20}");
        }
        assert!(set.prepare("t", " {\"n\":1} ").is_ok());
    }

    #[test]
    fn a_lone_surrogate_in_arguments_reads_as_the_replacement_character() {
        let (registry, _guards) = registry(&["a"]);
        let set = ToolSet::of(registry);
        let call = set.prepare("a", r#"{"x":"\ud800"}"#).expect("readable");
        assert_eq!(call.arguments, json!({"x": "\u{fffd}"}));
    }

    #[test]
    fn a_final_result_keeps_the_end_of_the_turn_only_if_it_is_a_success() {
        let (registry, _guards) = registry(&["a"]);
        let set = ToolSet::of(registry);
        let call = || set.prepare("a", "{}").expect("prepares");
        let body = || ToolOutput { concludes: true, ..ToolOutput::text("body") };
        assert!(call().finish(body(), None).concludes);
        assert!(call().finish(body(), Some(ToolOutput::text("other"))).concludes);
        let failed = call().finish(body(), Some(ToolOutput::failed("Blocked", "BLOCKED", "no")));
        assert!(!failed.concludes);
    }

    #[test]
    fn sections_stand_in_order_and_leave_with_their_guard() {
        let (registry, _guards) = registry(&[]);
        let section =
            |order, name: &str| PromptSection { order, name: name.to_owned(), text: String::new() };
        let late = registry.register_section(section(106, "tasks")).expect("free");
        let _early = registry.register_section(section(10, "z")).expect("free");
        assert!(registry.register_section(section(1, "z")).is_err());
        let set = ToolSet::of(registry);
        let order = || set.sections().into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(order(), ["z", "tasks"]);
        drop(late);
        assert_eq!(order(), ["z"]);
    }
}
