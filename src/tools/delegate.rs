//! The delegation tool: `subagent`, or another name, one instance per provider (fact-sheet 8.1;
//! contract P14, P17, I19, I21, I22).
//!
//! Three forms of one call. In the *foreground* the tool drives a run itself and disposes it before
//! it returns. In the background a provider with continuation gets a *continuable* child through
//! the control service, which answers the child's id and its first Task's; any other provider gets
//! a *one-shot* Task. [`DelegateMount`] keeps the tool registered for as long as its provider is.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::agent::tools::{Tool, ToolDefinition, ToolInvocation, ToolMode, ToolOutput};
use crate::cancel::CancelSignal;
use crate::control::{ContinuableStartSpec, SubagentControlService};
use crate::message::{ContentBlock, MessageSource};
use crate::points::Point;
use crate::provider::{StartRequest, SubagentProvider, SubagentService};
use crate::runtime::{BoxFuture, Runtime};
use crate::task::TaskService;
use crate::tools::send_message::SEND_MESSAGE;

mod config;
mod error;
mod mount;
mod run;

pub use config::{
    ConfigError, DelegateConfig, MAX_DEPTH_DEFAULT, PROVIDER_MANAGED, TOOL_NAME_DEFAULT,
};
pub use error::DelegateError;
pub use mount::{DelegateMount, MountError};

/// The services behind a delegation tool. A form whose service is absent answers what to load; no
/// Task exists then.
#[derive(Clone)]
pub struct DelegateServices {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// The providers.
    pub subagents: Arc<SubagentService>,
    /// The Tasks; for one-shot background runs.
    pub tasks: Option<Arc<TaskService>>,
    /// The control service; for continuable children.
    pub control: Option<Arc<SubagentControlService>>,
}

impl fmt::Debug for DelegateServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelegateServices")
            .field("tasks", &self.tasks.is_some())
            .field("control", &self.control.is_some())
            .finish_non_exhaustive()
    }
}

/// One delegation tool, worded for the provider it was made for.
#[derive(Debug, Clone)]
pub struct DelegateTool {
    config: Arc<DelegateConfig>,
    services: DelegateServices,
    inherits_parent_context: bool,
    continuable: bool,
}

/// What the model asked for.
struct Arguments {
    description: String,
    prompt: String,
    background: bool,
}

impl Arguments {
    fn of(value: &Value) -> Result<Self, DelegateError> {
        let text = |name: &'static str| match value.get(name).and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => Err(DelegateError::Argument(name)),
        };
        Ok(Self {
            description: text("description")?,
            prompt: text("prompt")?,
            background: value.get("run_in_background").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

impl DelegateTool {
    /// The tool for `provider`.
    ///
    /// # Errors
    ///
    /// [`MountError::Config`], and [`MountError::DepthLimit`] for a cap that the provider could
    /// not keep.
    pub fn new(
        config: DelegateConfig,
        services: DelegateServices,
        provider: &dyn SubagentProvider,
    ) -> Result<Self, MountError> {
        config.check()?;
        if config.max_depth.is_some() && !provider.capabilities().depth_limit {
            return Err(MountError::DepthLimit {
                tool: config.tool_name,
                provider: config.provider,
            });
        }
        Ok(Self {
            config: Arc::new(config),
            services,
            inherits_parent_context: provider.inherits_parent_context(),
            continuable: provider.resume().is_some(),
        })
    }

    /// Delegates for `caller`. `signal` is the call's own: it cancels a foreground run. Dropping
    /// the future cancels it too; its disposal finishes on its own (contract P17).
    pub async fn delegate(
        &self,
        caller: Option<&Agent>,
        arguments: &Value,
        signal: &CancelSignal,
    ) -> ToolOutput {
        let outcome = match self.checked(caller, arguments, signal) {
            Err(error) => Err(error),
            Ok((caller, arguments)) if arguments.background => {
                self.services.runtime.point(Point::BackgroundStart).await;
                self.background(caller, arguments)
            }
            Ok((caller, arguments)) => self.foreground(caller, arguments, signal).await,
        };
        outcome.unwrap_or_else(|error| {
            ToolOutput::failed("SubagentError", error.code().word(), error.to_string())
        })
    }

    fn checked<'a>(
        &self,
        caller: Option<&'a Agent>,
        arguments: &Value,
        signal: &CancelSignal,
    ) -> Result<(&'a Agent, Arguments), DelegateError> {
        let caller =
            caller.ok_or_else(|| DelegateError::NoCaller(self.config.tool_name.clone()))?;
        let arguments = Arguments::of(arguments)?;
        if arguments.background && !self.config.enable_run_in_background {
            return Err(DelegateError::BackgroundDisabled);
        }
        match signal.is_cancelled() {
            true => Err(DelegateError::Aborted),
            false => Ok((caller, arguments)),
        }
    }

    /// Starts in the background: synchronous, so a refusal leaves nothing behind (invariant I22).
    fn background(
        &self,
        caller: &Agent,
        arguments: Arguments,
    ) -> Result<ToolOutput, DelegateError> {
        let provider = self.services.subagents.provider(&self.config.provider);
        let Some(provider) = provider else {
            return Err(DelegateError::NoProvider(self.config.provider.clone()));
        };
        match provider.resume() {
            Some(_) => self.continuable(caller, arguments),
            None => self.one_shot(caller, arguments),
        }
    }

    /// A child that can be continued, but only if this very caller could continue it.
    fn continuable(
        &self,
        caller: &Agent,
        arguments: Arguments,
    ) -> Result<ToolOutput, DelegateError> {
        let control = self.services.control.as_ref().ok_or(DelegateError::NoControl)?;
        if !caller.tools().contains(SEND_MESSAGE) {
            return Err(DelegateError::NoSendMessage);
        }
        let config = &self.config;
        let spec = ContinuableStartSpec {
            provider: config.provider.clone(),
            label: arguments.description,
            prompt: vec![ContentBlock::text(arguments.prompt)],
            source: MessageSource::User,
            agent_options: config.agent_options.clone().unwrap_or_default(),
            max_depth: config.max_depth,
            persona: config.persona.clone(),
            tool_filter: config.tool_filter.clone(),
            output_schema: None,
        };
        let started = control.start_continuable(caller, spec)?;
        let (child, task) = (started.child, started.task);
        let value = json!({ "kind": "background", "taskId": task, "subagentId": child });
        let text = format!("started subagent {child} as task {task}");
        Ok(ToolOutput { value: Some(value), ..ToolOutput::text(text) })
    }

    /// The request of a run that this tool holds.
    fn request(&self, caller: &Agent, signal: CancelSignal, prompt: String) -> StartRequest {
        let config = &self.config;
        StartRequest {
            agent_options: config.agent_options.clone().unwrap_or_default(),
            max_depth: config.max_depth,
            tool_filter: config.tool_filter.clone(),
            persona: config.persona.clone(),
            ..StartRequest::text(caller.clone(), signal, prompt)
        }
    }

    fn description(&self) -> String {
        let mut text = "Delegates one task to a subagent that works on its own and reports its \
            final answer. "
            .to_owned();
        text.push_str(if self.inherits_parent_context {
            "The subagent sees this conversation up to its last completed turn; the prompt says \
             what to do now."
        } else {
            "The subagent does not see this conversation: put everything it needs into the prompt."
        });
        if !self.config.enable_run_in_background {
            return text;
        }
        text.push_str(
            " With run_in_background the call returns at once with a task id: you are told when \
             the task is finished, read its result with task_output, and stop it with task_kill.",
        );
        if self.continuable {
            text.push_str(
                " A background subagent can be continued: send_message with its subagent id \
                 reaches it while it works, and starts a new task of it afterwards.",
            );
        }
        text
    }
}

impl Tool for DelegateTool {
    fn definition(&self) -> ToolDefinition {
        let mut properties = json!({
            "description": {
                "type": "string",
                "description": "A few words that name the task, for people.",
            },
            "prompt": { "type": "string", "description": "The task." },
        });
        if self.config.enable_run_in_background {
            properties["run_in_background"] = json!({
                "type": "boolean",
                "description": "Return at once and work in the background.",
            });
        }
        ToolDefinition {
            name: self.config.tool_name.clone(),
            description: self.description(),
            // Unnamed properties are let through: a forced background gets an answer of its own.
            parameters: json!({
                "type": "object",
                "properties": properties,
                "required": ["description", "prompt"],
            }),
        }
    }

    fn mode(&self) -> ToolMode {
        ToolMode::Exclusive
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        let tool = self.clone();
        Box::pin(async move {
            let ToolInvocation { arguments, agent, signal, .. } = invocation;
            tool.delegate(Some(&agent), &arguments, &signal).await
        })
    }
}
