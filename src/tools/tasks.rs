//! `task_output`, `task_list`, `task_kill` and the completion notices (fact-sheet 8.3 and 4.5).
//!
//! Loading them attaches the control surface that Tasks need (invariant I21); dropping what the
//! load returned detaches it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::render;
use crate::agent::Agent;
use crate::agent::tools::{
    PromptSection, RegisterError, Tool, ToolDefinition, ToolGuard, ToolInvocation, ToolMode,
    ToolOutput, ToolRegistry,
};
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::ids::{SessionId, TaskId};
use crate::message::{Message, MessageSource};
use crate::points::Point;
use crate::runtime::{BoxFuture, Runtime, fresh_message_id};
use crate::task::{Attachment, NoticeWriter, TaskError, TaskService, TaskSnapshot, wait_timeout};
use crate::vocabulary::KillAnswer;

/// The plugin name in the notices' source.
pub const NOTICE_PLUGIN: &str = "tool-tasks";

/// Where the tools' section stands in the system prompt (fact-sheet §12).
const PROMPT_SECTION_ORDER: u32 = 106;
const PROMPT_SECTION: &str = "Background tasks run while you go on. You are told once when one is \
    finished; read it with task_output, list them with task_list, stop one with task_kill. Do not \
    poll: with wait, task_output waits for you.";

/// Configuration of the Task tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskToolsConfig {
    /// How long `task_output` waits when asked to without a timeout, in milliseconds.
    pub wait_default_ms: u64,
    /// The longest wait, in milliseconds; longer ones are clamped.
    pub wait_cap_ms: u64,
}

impl Default for TaskToolsConfig {
    fn default() -> Self {
        Self { wait_default_ms: 30_000, wait_cap_ms: 600_000 }
    }
}

/// Why the tools were not loaded. Nothing stays attached.
#[derive(Debug, thiserror::Error)]
pub enum TaskToolsError {
    /// The default wait is zero or above the cap.
    #[error("the default wait of {default} ms must be above 0 and at most the cap of {cap} ms")]
    Wait {
        /// The default, in milliseconds.
        default: u64,
        /// The cap, in milliseconds.
        cap: u64,
    },
    /// A tool could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The tools' operations, for their adapters here and for other surfaces.
#[derive(Debug, Clone)]
pub struct TaskTools {
    tasks: Arc<TaskService>,
    runtime: Arc<dyn Runtime>,
    config: TaskToolsConfig,
}

/// The loaded tools: dropping it unloads them and detaches the surface.
#[must_use = "dropping it unloads the tools"]
pub struct TaskToolsLoaded {
    _surface: Attachment,
    _notices: Attachment,
    _tools: Vec<ToolGuard>,
}

impl TaskTools {
    /// The operations on `tasks`.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        tasks: Arc<TaskService>,
        config: TaskToolsConfig,
    ) -> Result<Self, TaskToolsError> {
        let TaskToolsConfig { wait_default_ms: default, wait_cap_ms: cap } = config;
        if default == 0 || default > cap {
            return Err(TaskToolsError::Wait { default, cap });
        }
        Ok(Self { tasks, runtime, config })
    }

    /// Registers the three tools, attaches the control surface and the notices.
    pub fn load(&self, registry: &Arc<ToolRegistry>) -> Result<TaskToolsLoaded, TaskToolsError> {
        let mut tools = Vec::new();
        for operation in [Operation::Output, Operation::List, Operation::Kill] {
            tools.push(registry.register(Arc::new(TaskTool { all: self.clone(), operation }))?);
        }
        tools.push(registry.register_section(PromptSection {
            order: PROMPT_SECTION_ORDER,
            name: "tasks".to_owned(),
            text: PROMPT_SECTION.to_owned(),
        })?);
        Ok(TaskToolsLoaded {
            _surface: self.tasks.attach_surface("tool-tasks"),
            _notices: self.tasks.attach_notices(Arc::new(Notices(Arc::clone(&self.runtime)))),
            _tools: tools,
        })
    }

    /// `task_output`: reads a Task, after waiting for it if asked to.
    pub async fn output(
        &self,
        caller: Option<&SessionId>,
        arguments: &Value,
        signal: Option<CancelSignal>,
    ) -> ToolOutput {
        let Some(id) = task_id(arguments) else { return no_task_id() };
        if arguments.get("wait").and_then(Value::as_bool).unwrap_or(false) {
            let timeout = match self.timeout(arguments) {
                Ok(timeout) => timeout,
                Err(error) => return self.failed(&id, caller, &error).await,
            };
            let waited = self.tasks.wait(&id, caller, Some(timeout), signal).await;
            if let Err(error) = waited {
                return self.failed(&id, caller, &error).await;
            }
            self.runtime.point(Point::TaskRead).await;
        }
        match self.tasks.read(&id, caller).await {
            Ok(read) => {
                let value = json!({ "text": read.text, "task": public(&read.snapshot) });
                let text = render::output(&read.text, &read.snapshot);
                ToolOutput { value: Some(value), ..ToolOutput::text(text) }
            }
            Err(error) => self.failed(&id, caller, &error).await,
        }
    }

    fn timeout(&self, arguments: &Value) -> Result<Duration, TaskError> {
        let cap = Duration::from_millis(self.config.wait_cap_ms);
        match arguments.get("timeout_ms") {
            None | Some(Value::Null) => Ok(Duration::from_millis(self.config.wait_default_ms)),
            Some(value) => Ok(wait_timeout(value.as_f64().unwrap_or(f64::NAN))?.min(cap)),
        }
    }

    /// `task_list`: the caller's Tasks and the unowned ones.
    pub fn list(&self, caller: Option<&SessionId>) -> ToolOutput {
        let tasks = self.tasks.list(caller);
        let value = json!({ "tasks": tasks.iter().map(public).collect::<Vec<_>>() });
        ToolOutput { value: Some(value), ..ToolOutput::text(render::list(&tasks)) }
    }

    /// `task_kill`: requests the cancellation of a Task; consumes no output.
    pub async fn kill(&self, caller: Option<&SessionId>, arguments: &Value) -> ToolOutput {
        let Some(id) = task_id(arguments) else { return no_task_id() };
        let reason = arguments.get("reason").and_then(Value::as_str);
        let killed = self.tasks.kill(&id, caller, reason).await;
        let answer = match killed {
            Ok(answer) => answer,
            Err(error) => return self.failed(&id, caller, &error).await,
        };
        self.runtime.point(Point::TaskRead).await;
        let task = match self.tasks.get(&id, caller) {
            Ok(task) => task,
            Err(error) => return self.failed(&id, caller, &error).await,
        };
        let (outcome, text) = match answer {
            KillAnswer::Requested => {
                ("cancellation-requested", format!("requested cancellation of task {id}"))
            }
            KillAnswer::AlreadyFinished => (
                "already-finished",
                format!("task {id} had already finished {}", render::status_line(&task)),
            ),
        };
        let value = json!({ "outcome": outcome, "task": public(&task) });
        let output = ToolOutput { value: Some(value), ..ToolOutput::text(text) };
        bounded(output, task.output_limit_bytes)
    }

    async fn failed(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
        error: &TaskError,
    ) -> ToolOutput {
        self.runtime.point(Point::TaskRead).await;
        let output = ToolOutput::failed("TaskError", error.code().word(), error.to_string());
        bounded(output, self.limit(id, caller))
    }

    /// The byte limit of a Task that the caller may see.
    fn limit(&self, id: &TaskId, caller: Option<&SessionId>) -> Option<u64> {
        self.tasks.get(id, caller).ok()?.output_limit_bytes
    }

    /// Bounds a result of `task_output` or `task_kill`, whoever made it: the tool, a hook that
    /// denied or replaced it, a failure. Results of several blocks are left alone.
    pub fn bound(
        &self,
        caller: Option<&SessionId>,
        arguments: &Value,
        output: ToolOutput,
    ) -> ToolOutput {
        match task_id(arguments) {
            Some(id) => bounded(output, self.limit(&id, caller)),
            None => output,
        }
    }
}

fn bounded(mut output: ToolOutput, limit: Option<u64>) -> ToolOutput {
    if let (Some(limit), [crate::message::ContentBlock::Text { text }]) =
        (limit, output.content.as_mut_slice())
    {
        *text = render::bounded(text, limit);
    }
    output
}

/// The Task that the arguments name.
fn task_id(arguments: &Value) -> Option<TaskId> {
    let id = arguments.get("task_id").and_then(Value::as_str)?;
    (!id.is_empty()).then(|| TaskId::new(id))
}

fn no_task_id() -> ToolOutput {
    ToolOutput::failed("TaskError", ErrorCode::InvalidInput.word(), "task_id must not be empty")
}

/// A snapshot as programs and models may see it: no owner, no report, no limit.
fn public(task: &TaskSnapshot) -> Value {
    let mut value = json!({
        "id": task.id,
        "kind": task.kind,
        "label": task.label,
        "status": task.status,
        "startedAt": task.started_at,
    });
    if let Value::Object(fields) = &mut value {
        if let Some(detail) = &task.detail {
            fields.insert("detail".to_owned(), json!(detail));
        }
        if let Some(code) = task.code {
            fields.insert("code".to_owned(), json!(code));
        }
        if let Some(finished) = task.finished_at {
            fields.insert("finishedAt".to_owned(), json!(finished));
        }
    }
    value
}

/// Writes notices into owners.
struct Notices(Arc<dyn Runtime>);

impl NoticeWriter for Notices {
    fn notice(&self, task: &TaskSnapshot) -> Message {
        let source = MessageSource::Plugin { plugin: NOTICE_PLUGIN.to_owned() };
        Message::user(fresh_message_id(&*self.0), render::notice(task), source)
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Output,
    List,
    Kill,
}

struct TaskTool {
    all: TaskTools,
    operation: Operation,
}

impl Tool for TaskTool {
    fn definition(&self) -> ToolDefinition {
        let id = json!({ "type": "string", "description": "The Task's id, such as subagent-1." });
        let (name, description, parameters) = match self.operation {
            Operation::Output => (
                "task_output",
                "Reads a background task's new or final output and its status. With wait, first \
                 waits until the task is finished or the timeout is over.",
                json!({
                    "type": "object",
                    "properties": {
                        "task_id": id,
                        "wait": { "type": "boolean" },
                        "timeout_ms": {
                            "type": "number",
                            "description": "How long to wait at most, in milliseconds.",
                        },
                    },
                    "required": ["task_id"],
                }),
            ),
            Operation::List => (
                "task_list",
                "Lists the background tasks.",
                json!({ "type": "object", "properties": {} }),
            ),
            Operation::Kill => (
                "task_kill",
                "Requests the cancellation of a background task.",
                json!({
                    "type": "object",
                    "properties": { "task_id": id, "reason": { "type": "string" } },
                    "required": ["task_id"],
                }),
            ),
        };
        let (name, description) = (name.to_owned(), description.to_owned());
        ToolDefinition { name, description, parameters }
    }

    fn mode(&self) -> ToolMode {
        ToolMode::Parallel
    }

    fn shape(
        &self,
        agent: &Agent,
        arguments: &Value,
        output: ToolOutput,
    ) -> BoxFuture<'static, ToolOutput> {
        let (all, caller, arguments) = (self.all.clone(), agent.id().clone(), arguments.clone());
        match self.operation {
            Operation::List => Box::pin(std::future::ready(output)),
            Operation::Output | Operation::Kill => Box::pin(async move {
                all.runtime.point(Point::TaskRead).await;
                all.bound(Some(&caller), &arguments, output)
            }),
        }
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        let (all, operation) = (self.all.clone(), self.operation);
        Box::pin(async move {
            let ToolInvocation { arguments, agent, signal, .. } = invocation;
            let caller = Some(agent.id());
            all.runtime.point(Point::ToolBody).await;
            match operation {
                Operation::Output => all.output(caller, &arguments, Some(signal)).await,
                Operation::List => all.list(caller),
                Operation::Kill => all.kill(caller, &arguments).await,
            }
        })
    }
}
