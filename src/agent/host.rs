//! The agent host: configuration, the registry, and who may hold an agent.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::hooks::AgentHooks;
use super::registry::Registry;
use super::tools::ToolRegistry;
use super::{Agent, AgentOptions};
use crate::ids::{OwnerId, SessionId};
use crate::model::ModelClient;
use crate::runtime::Runtime;
use crate::sync::{LockClass, Mutex};

/// What agents are made with.
pub struct AgentHostConfig {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// The model service.
    pub model: Arc<dyn ModelClient>,
    /// The deployment's tools.
    pub tools: Arc<ToolRegistry>,
    /// The deployment's persona; a child's own shadows it.
    pub system_prompt: String,
    /// What an agent's absent options default to.
    pub defaults: AgentOptions,
    /// Hooks of every agent, before its own.
    pub hooks: Vec<Arc<dyn AgentHooks>>,
}

/// The agents of one process.
pub struct AgentHost {
    config: AgentHostConfig,
    registry: Mutex<Registry<Agent>>,
    instances: AtomicU64,
}

impl fmt::Debug for AgentHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentHost")
    }
}

impl AgentHost {
    /// A host without agents.
    pub fn new(config: AgentHostConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            registry: Mutex::new(LockClass::Registry, Registry::default()),
            instances: AtomicU64::new(0),
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &AgentHostConfig {
        &self.config
    }

    /// The registry core behind its lock (class `Registry`).
    pub fn registry(&self) -> &Mutex<Registry<Agent>> {
        &self.registry
    }

    /// The published agent of `session`, closing or not.
    pub fn get(&self, session: &SessionId) -> Option<Agent> {
        self.registry.lock().get(session).cloned()
    }

    /// Every published agent, in order of id.
    pub fn list(&self) -> Vec<Agent> {
        self.registry.lock().list()
    }

    fn next_instance(&self) -> OwnerId {
        OwnerId(self.instances.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
