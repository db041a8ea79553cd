//! The layers put together: what an embedder builds once per process.
//!
//! Every part an assembly needs is mounted here, so that no product can forget the control surface
//! or the follow-up tool and find out at run time.

use std::fmt;
use std::sync::Arc;

use crate::agent::hooks::AgentHooks;
use crate::agent::tools::ToolRegistry;
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
}

impl AssemblyConfig {
    /// A deployment without a persona, hooks or defaults, on `disk`.
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
        }
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
    _task_tools: TaskToolsLoaded,
    _providers: Vec<Registration>,
}

impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Assembly")
    }
}

impl Assembly {
    /// Puts the layers together, with the in-process providers `spawn` and `fork` and the Task
    /// tools, which attach the control surface that every start needs (contract I21).
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
        Ok(Self {
            runtime,
            store,
            agents,
            tools,
            tasks,
            subagents,
            control,
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
        for (kind, highest) in ordinals {
            self.tasks.raise_counter(&kind, highest);
        }
        Ok(handle)
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
