//! The whole stack on a [`Kit`]: Tasks and their tools, the providers spawn and fork, the control
//! service, `send_message`. Each part that a test wants absent can be dropped.

use std::sync::Arc;

use continuable::agent::tools::{CallSite, ToolGuard, ToolOutput};
use continuable::agent::{Agent, AgentHandle};
use continuable::cancel::CancelSignal;
use continuable::control::SubagentControlService;
use continuable::facts::CancelScope;
use continuable::ids::{SessionId, TaskId};
use continuable::message::ContentBlock;
use continuable::model::script::Step;
use continuable::provider::in_process::InProcess;
use continuable::provider::{Registration, SubagentService};
use continuable::session::Event;
use continuable::task::{TaskService, TaskServiceConfig, TaskSnapshot};
use continuable::tools::delegate::{DelegateConfig, DelegateMount, DelegateServices};
use continuable::tools::send_message::SendMessageTool;
use continuable::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsLoaded};
use serde_json::{Value, json};

use super::kit::Kit;

/// Everything but delegation tools, which a test mounts as it needs them.
pub struct World {
    pub kit: Kit,
    pub tasks: Arc<TaskService>,
    pub subagents: Arc<SubagentService>,
    pub control: Arc<SubagentControlService>,
    _task_tools: TaskToolsLoaded,
    pub send_message: Option<ToolGuard>,
    pub providers: Vec<Registration>,
}

impl World {
    /// The model answers requests, of whatever session, with `steps` in their order.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::on(Kit::new(steps))
    }

    /// The stack on a kit of the test's own.
    pub fn on(kit: Kit) -> Self {
        let runtime = Arc::clone(&kit.runtime);
        let tasks = TaskService::new(Arc::clone(&runtime), TaskServiceConfig::default());
        let subagents = SubagentService::new(Arc::clone(&runtime));
        let providers = [InProcess::spawn(), InProcess::fork()];
        let providers = providers.map(|p| subagents.register(p).expect("the name is free")).into();
        let control = SubagentControlService::new(
            Arc::clone(&kit.host),
            Arc::clone(&tasks),
            Arc::clone(&subagents),
            Some(Arc::clone(&kit.shelf.store)),
        );
        let task_tools = TaskTools::new(runtime, Arc::clone(&tasks), TaskToolsConfig::default());
        let task_tools = task_tools.expect("valid").load(&kit.tools).expect("the names are free");
        let send = SendMessageTool::new(Arc::clone(&control)).load(&kit.tools);
        Self {
            kit,
            tasks,
            subagents,
            control,
            _task_tools: task_tools,
            send_message: Some(send.expect("the name is free")),
            providers,
        }
    }

    /// A root agent named `parent`.
    pub async fn parent(&self) -> AgentHandle {
        self.kit.create("parent").await
    }

    pub fn services(&self) -> DelegateServices {
        DelegateServices {
            runtime: Arc::clone(&self.kit.runtime),
            subagents: Arc::clone(&self.subagents),
            tasks: Some(Arc::clone(&self.tasks)),
            control: Some(Arc::clone(&self.control)),
        }
    }

    /// Mounts a delegation tool.
    pub fn mount(&self, config: DelegateConfig) -> DelegateMount {
        self.mount_with(config, self.services())
    }

    pub fn mount_with(&self, config: DelegateConfig, services: DelegateServices) -> DelegateMount {
        let mount = DelegateMount::new(config, services, Arc::clone(&self.kit.tools));
        mount.expect("nothing refuses it")
    }

    pub fn signal(&self) -> CancelSignal {
        let scope = CancelScope::Call { call: "test".to_owned() };
        CancelSignal::new(Arc::clone(&self.kit.runtime), scope)
    }

    /// Calls a tool as `agent`, in no turn.
    pub async fn call(&self, agent: &Agent, tool: &str, arguments: Value) -> ToolOutput {
        self.call_under(agent, tool, arguments, self.signal()).await
    }

    /// The same, under a signal.
    pub async fn call_under(
        &self,
        agent: &Agent,
        tool: &str,
        arguments: Value,
        signal: CancelSignal,
    ) -> ToolOutput {
        let call = match agent.tools().prepare(tool, &arguments.to_string()) {
            Ok(call) => call,
            Err(refused) => return *refused,
        };
        let agent = agent.clone();
        let site = CallSite { call_id: "c".to_owned(), agent, signal, turn: 1, step: 1 };
        let output = call.run(&self.kit.runtime, site).await;
        call.finish(output, None)
    }

    /// `task_output` with `wait`.
    pub async fn output(&self, agent: &Agent, task: &str) -> String {
        let arguments = json!({ "task_id": task, "wait": true });
        text(&self.call(agent, "task_output", arguments).await)
    }

    /// Waits until a Task of `agent` is terminal.
    pub async fn wait(&self, agent: &Agent, task: &TaskId) -> TaskSnapshot {
        let waited = self.tasks.wait(task, Some(agent.id()), None, None).await;
        waited.expect("the Task is the caller's")
    }

    /// The events of a session on disk.
    pub async fn stored(&self, id: &SessionId) -> Vec<Arc<Event>> {
        let store = self.kit.shelf.another_store();
        store.inspect(id).await.expect("it is stored").events
    }
}

/// The arguments of a delegation.
pub fn delegation(background: bool) -> Value {
    let mut arguments = json!({ "description": "look it up", "prompt": "find the answer" });
    if background {
        arguments["run_in_background"] = json!(true);
    }
    arguments
}

/// The one text of an output.
pub fn text(output: &ToolOutput) -> String {
    match output.content.as_slice() {
        [ContentBlock::Text { text }] => text.clone(),
        other => panic!("not one text: {other:?}"),
    }
}

/// The code of a failed output.
pub fn error_code(output: &ToolOutput) -> &str {
    output.error.as_ref().map_or("no error", |error| &error.code)
}

/// A field of an output's value.
pub fn field(output: &ToolOutput, name: &str) -> Value {
    output.value.as_ref().and_then(|value| value.get(name)).cloned().unwrap_or_default()
}

/// A field of an output's value that is a string.
pub fn word(output: &ToolOutput, name: &str) -> String {
    field(output, name).as_str().unwrap_or_else(|| panic!("{name} in {output:?}")).to_owned()
}
