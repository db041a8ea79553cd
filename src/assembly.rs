//! The layers put together: what an embedder builds once per process.
//!
//! Every part an assembly needs is mounted here, so that no product can forget the control surface
//! or the follow-up tool and find out at run time.

use std::fmt;
use std::sync::Arc;

use crate::adapter::{AdapterServices, HumanAdapter};
use crate::agent::hooks::AgentHooks;
use crate::agent::tools::{RegisterError, ToolGuard, ToolRegistry};
use crate::agent::{
    AgentHandle, AgentHost, AgentHostConfig, AgentOptions, CreateAgent, CreateError, ResumeAgent,
};
use crate::control::SubagentControlService;
use crate::ids::SessionId;
use crate::model::ModelClient;
use crate::provider::in_process::InProcess;
use crate::provider::{Registration, SubagentError, SubagentService};
use crate::runtime::Runtime;
use crate::session::fold;
use crate::store::{CloseError, Disk, SessionStore};
use crate::task::{TaskService, TaskServiceConfig, WakePolicy};
use crate::tools::delegate::{
    DelegateConfig, DelegateMount, DelegateServices, MAX_DEPTH_DEFAULT, MountError,
};
use crate::tools::send_message::SendMessageTool;
use crate::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsError, TaskToolsLoaded};

/// Why an assembly was not put together. Nothing stays mounted.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// A provider could not be registered.
    #[error(transparent)]
    Provider(#[from] SubagentError),
    /// The Task tools could not be loaded.
    #[error(transparent)]
    TaskTools(#[from] TaskToolsError),
    /// `send_message` could not be loaded.
    #[error(transparent)]
    SendMessage(#[from] RegisterError),
    /// A delegation tool could not be mounted.
    #[error(transparent)]
    Delegate(#[from] MountError),
}

/// What an assembly is made of.
pub struct AssemblyConfig {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// Where sessions are stored; without one nothing is continuable.
    pub disk: Option<Arc<dyn Disk>>,
    /// The model service.
    pub model: Arc<dyn ModelClient>,
    /// The deployment's persona.
    pub system_prompt: String,
    /// What an agent's absent options default to.
    pub defaults: AgentOptions,
    /// Hooks of every agent.
    pub hooks: Vec<Arc<dyn AgentHooks>>,
    /// Whether a Task's notice may wake its idle owner (contract P7).
    pub wake: WakePolicy,
    /// How long the Task tools wait.
    pub task_tools: TaskToolsConfig,
    /// The delegation tools; one whose provider is registered later waits for it.
    pub delegates: Vec<DelegateConfig>,
}

impl AssemblyConfig {
    /// A deployment without a persona, hooks or defaults, on `disk`. Its models delegate with
    /// `subagent` to a fresh child, and with `subagent_fork` to one that knows the conversation.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        disk: Arc<dyn Disk>,
        model: Arc<dyn ModelClient>,
    ) -> Self {
        Self {
            runtime,
            disk: Some(disk),
            model,
            system_prompt: String::new(),
            defaults: AgentOptions::default(),
            hooks: Vec::new(),
            wake: WakePolicy::default(),
            task_tools: TaskToolsConfig::default(),
            delegates: vec![delegate("spawn", "subagent"), delegate("fork", "subagent_fork")],
        }
    }
}

fn delegate(provider: &str, tool: &str) -> DelegateConfig {
    DelegateConfig {
        tool_name: tool.to_owned(),
        max_depth: Some(MAX_DEPTH_DEFAULT),
        ..DelegateConfig::new(provider)
    }
}

/// All layers of one process.
pub struct Assembly {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// The session store.
    pub store: Option<Arc<SessionStore>>,
    /// The agents.
    pub agents: Arc<AgentHost>,
    /// The deployment's tools.
    pub tools: Arc<ToolRegistry>,
    /// The Tasks.
    pub tasks: Arc<TaskService>,
    /// The subagent providers.
    pub subagents: Arc<SubagentService>,
    /// The continuable children.
    pub control: Arc<SubagentControlService>,
    _delegates: Vec<DelegateMount>,
    _send_message: ToolGuard,
    _task_tools: TaskToolsLoaded,
    _providers: Vec<Registration>,
}

impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Assembly")
    }
}

impl Assembly {
    /// Puts the layers together: the in-process providers `spawn` and `fork`; the Task tools, which
    /// attach the control surface that every start needs (contract I21); `send_message`, without
    /// which no model may start a continuable child; the delegation tools.
    ///
    /// # Errors
    ///
    /// [`AssemblyError`]: a configuration out of its range.
    pub fn new(config: AssemblyConfig) -> Result<Self, AssemblyError> {
        let runtime = config.runtime;
        let store = config.disk.map(|disk| SessionStore::open(Arc::clone(&runtime), disk));
        let tools = Arc::new(ToolRegistry::default());
        let agents = AgentHost::new(AgentHostConfig {
            runtime: Arc::clone(&runtime),
            store: store.clone(),
            model: config.model,
            tools: Arc::clone(&tools),
            system_prompt: config.system_prompt,
            defaults: config.defaults,
            hooks: config.hooks,
        });
        let tasks = TaskService::new(Arc::clone(&runtime), TaskServiceConfig { wake: config.wake });
        let subagents = SubagentService::new(Arc::clone(&runtime));
        let providers =
            vec![subagents.register(InProcess::spawn())?, subagents.register(InProcess::fork())?];
        let task_tools =
            TaskTools::new(Arc::clone(&runtime), Arc::clone(&tasks), config.task_tools)?;
        let task_tools = task_tools.load(&tools)?;
        let control = SubagentControlService::new(
            Arc::clone(&agents),
            Arc::clone(&tasks),
            Arc::clone(&subagents),
            store.clone(),
        );
        let send_message = SendMessageTool::new(Arc::clone(&control)).load(&tools)?;
        let services = DelegateServices {
            runtime: Arc::clone(&runtime),
            subagents: Arc::clone(&subagents),
            tasks: Some(Arc::clone(&tasks)),
            control: Some(Arc::clone(&control)),
        };
        let mount = |config| DelegateMount::new(config, services.clone(), Arc::clone(&tools));
        let delegates = config.delegates.into_iter().map(mount).collect::<Result<_, _>>()?;
        Ok(Self {
            runtime,
            store,
            agents,
            tools,
            tasks,
            subagents,
            control,
            _delegates: delegates,
            _send_message: send_message,
            _task_tools: task_tools,
            _providers: providers,
        })
    }

    /// Creates a parent agent under `id`.
    ///
    /// # Errors
    ///
    /// The id is taken, or the host is closing.
    pub async fn create_parent(&self, id: SessionId) -> Result<AgentHandle, CreateError> {
        self.agents.create(CreateAgent::new(id)).await
    }

    /// Brings a persisted parent back: its session, not its Tasks. Task ids that its log names are
    /// never issued again (contract P13). Loads no other session.
    ///
    /// # Errors
    ///
    /// The session cannot be loaded, or is live.
    pub async fn resume_parent(&self, id: SessionId) -> Result<AgentHandle, CreateError> {
        let handle = self.agents.resume(ResumeAgent::new(id)).await?;
        let ordinals = {
            let log = handle.agent().session().lock();
            fold::highest_task_ordinals(log.events())
        };
        self.tasks.raise_counters(&ordinals);
        Ok(handle)
    }

    /// What a person reaches the children through; serve it on any byte stream. `None` without a
    /// store, where nothing is continuable.
    pub fn human_adapter(&self) -> Option<Arc<HumanAdapter>> {
        let services = AdapterServices {
            runtime: Arc::clone(&self.runtime),
            agents: Arc::clone(&self.agents),
            tasks: Arc::clone(&self.tasks),
            control: Arc::clone(&self.control),
            store: self.store.clone()?,
        };
        Some(HumanAdapter::new(services))
    }

    /// Closes everything in the order of contract P16: no new activations, then their Tasks, then
    /// the agents, then the store.
    ///
    /// # Errors
    ///
    /// Sessions that could not be confirmed durable.
    pub async fn shutdown(&self) -> Result<(), CloseError> {
        self.control.dispose().await;
        self.tasks.dispose().await;
        self.agents.dispose().await;
        match &self.store {
            Some(store) => store.close().await,
            None => Ok(()),
        }
    }
}
