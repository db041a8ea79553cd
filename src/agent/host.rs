//! The agent host: configuration, the registry, and who may hold an agent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::create::CreateError;
use super::hooks::AgentHooks;
use super::registry::Registry;
use super::tools::ToolRegistry;
use super::{Agent, AgentOptions};
use crate::channel::Latch;
use crate::ids::{OwnerId, SessionId};
use crate::model::ModelClient;
use crate::runtime::{Runtime, contain_call};
use crate::store::SessionStore;
use crate::sync::{LockClass, Mutex};

/// What agents are made with.
pub struct AgentHostConfig {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// Where sessions are stored, if anywhere.
    pub store: Option<Arc<SessionStore>>,
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
    listeners: Mutex<Listeners>,
    closing: Latch<()>,
}

/// Hears of agents of the host. Called under no lock.
pub trait HostListener: Send + Sync {
    /// `agent` was published. A refusal or a panic rolls the publication back.
    ///
    /// # Errors
    ///
    /// Why the agent may not live.
    fn created(&self, agent: &Agent) -> Result<(), String> {
        let _unused = agent;
        Ok(())
    }

    /// `agent` is unregistered; paired with every `created` that was begun.
    fn disposed(&self, agent: &Agent) {
        let _unused = agent;
    }
}

#[derive(Default)]
struct Listeners {
    next: u64,
    all: BTreeMap<u64, Arc<dyn HostListener>>,
    /// Which listeners each live agent was announced to.
    told: BTreeMap<OwnerId, Vec<Arc<dyn HostListener>>>,
}

/// Ends a [`HostListener`]'s hearing when dropped; agents it was told of are still paired.
#[must_use = "dropping the guard ends the listening"]
pub struct ListenerGuard {
    host: Weak<AgentHost>,
    id: u64,
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        let Some(host) = self.host.upgrade() else { return };
        // The listener is foreign: it is dropped after the lock.
        let removed = host.listeners.lock().all.remove(&self.id);
        drop(removed);
    }
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
            listeners: Mutex::new(LockClass::Leaf, Listeners::default()),
            closing: Latch::new(),
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

    /// Set when the host begins to close.
    pub(super) fn closing(&self) -> &Latch<()> {
        &self.closing
    }

    /// Has `listener` hear of agents until the guard is dropped.
    pub fn listen(self: &Arc<Self>, listener: Arc<dyn HostListener>) -> ListenerGuard {
        let mut listeners = self.listeners.lock();
        listeners.next += 1;
        let id = listeners.next;
        listeners.all.insert(id, listener);
        ListenerGuard { host: Arc::downgrade(self), id }
    }

    /// Announces `agent`, one listener after the other.
    pub(super) fn tell_created(&self, agent: &Agent) -> Result<(), CreateError> {
        let all: Vec<_> = self.listeners.lock().all.values().cloned().collect();
        for listener in all {
            let told = Arc::clone(&listener);
            self.listeners.lock().told.entry(agent.instance()).or_default().push(told);
            contain_call(&self.config.runtime, "agent listener", || listener.created(agent))?
                .map_err(CreateError::Vetoed)?;
        }
        Ok(())
    }

    /// Pairs every announcement of `agent`.
    pub(super) fn tell_disposed(&self, agent: &Agent) {
        let told = self.listeners.lock().told.remove(&agent.instance()).unwrap_or_default();
        for listener in told {
            // The panic is recorded as a fact and fails nothing.
            drop(contain_call(&self.config.runtime, "agent listener", || {
                listener.disposed(agent);
            }));
        }
    }

    pub(super) fn next_instance(&self) -> OwnerId {
        OwnerId(self.instances.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
