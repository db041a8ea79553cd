//! `send_message`: continues a background subagent (fact-sheet 8.2; contract P4, P5).
//!
//! A thin adapter. Whether the message joins the running activation or starts a fresh one is the
//! control service's decision alone.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::agent::tools::{
    RegisterError, Tool, ToolDefinition, ToolGuard, ToolInvocation, ToolOutput, ToolRegistry,
};
use crate::cancel::CancelSignal;
use crate::control::{ControlError, Delivery, SubagentControlService};
use crate::error::ErrorCode;
use crate::message::{ContentBlock, MessageSource};
use crate::runtime::BoxFuture;
use crate::vocabulary::RouteCode;

/// The tool's name. A delegation tool asks for it in its caller's own scope before it starts a
/// child that only this tool can continue.
pub const SEND_MESSAGE: &str = "send_message";

const DESCRIPTION: &str = "Sends a message to a subagent that you started in the background. While \
    it works, the message joins its current task; once it has finished, the message continues it \
    in a new task with everything it knew. Do not wait for the answer here: read it with \
    task_output from the task that this tool names. A message that was not delivered is nowhere \
    and may be sent again.";

/// The tool, and its operation for other surfaces.
#[derive(Clone)]
pub struct SendMessageTool {
    control: Arc<SubagentControlService>,
}

impl fmt::Debug for SendMessageTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendMessageTool")
    }
}

impl SendMessageTool {
    /// The tool over `control`; it needs nothing else.
    pub fn new(control: Arc<SubagentControlService>) -> Self {
        Self { control }
    }

    /// Registers the tool until the guard is dropped.
    ///
    /// # Errors
    ///
    /// The name is taken.
    pub fn load(&self, registry: &Arc<ToolRegistry>) -> Result<ToolGuard, RegisterError> {
        registry.register(Arc::new(self.clone()))
    }

    /// Sends as `caller`, under the caller's own signal: when it fires, or the future is dropped,
    /// a message that is not drained yet is withdrawn (contract P4). An id that names nothing is no
    /// error here: it starts a Task that fails, so that ids cannot be probed.
    pub async fn send(
        &self,
        caller: Option<&Agent>,
        arguments: &Value,
        signal: Option<&CancelSignal>,
    ) -> ToolOutput {
        let Some(caller) = caller else {
            let text = "send_message requires a calling agent; the message was not delivered";
            return failed(ErrorCode::InvalidInput, text);
        };
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let (Some(child), Some(message)) = (text("subagent_id"), text("message")) else {
            let text = "subagent_id and message must be strings; the message was not delivered";
            return failed(ErrorCode::InvalidArgs, text);
        };
        let content = vec![ContentBlock::text(message)];
        let source = MessageSource::Coordinator { sender_session_id: caller.id().clone() };
        match self.control.send_message(caller, child, content, source, signal).await {
            Ok(delivery) => delivered(child, &delivery),
            Err(error) => failed(error.code(), undelivered(&error)),
        }
    }
}

fn delivered(child: &str, Delivery { route, task }: &Delivery) -> ToolOutput {
    let (word, text) = match route {
        RouteCode::Steered => ("steered", format!("message delivered to running task {task}")),
        RouteCode::Started => {
            ("started", format!("message started task {task} continuing subagent {child}"))
        }
    };
    let value = json!({ "route": word, "taskId": task });
    ToolOutput { value: Some(value), ..ToolOutput::text(text) }
}

/// Every failure says that the message is nowhere; a Task refusal does not say so by itself.
fn undelivered(error: &ControlError) -> String {
    match error {
        ControlError::Task(refusal) => format!("{refusal}; the message was not delivered"),
        error => error.to_string(),
    }
}

fn failed(code: ErrorCode, text: impl Into<String>) -> ToolOutput {
    ToolOutput::failed("SubagentControlError", code.word(), text)
}

impl Tool for SendMessageTool {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: SEND_MESSAGE.to_owned(),
            description: DESCRIPTION.to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "subagent_id": {
                        "type": "string",
                        "description": "The subagent's id, as its start named it.",
                    },
                    "message": { "type": "string", "description": "What to tell it." },
                },
                "required": ["subagent_id", "message"],
            }),
        }
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        let tool = self.clone();
        Box::pin(async move {
            let ToolInvocation { arguments, agent, signal, .. } = invocation;
            tool.send(Some(&agent), &arguments, Some(&signal)).await
        })
    }
}
