//! The end of an agent (contract P16): refuse, cancel, quiesce, clean up, dispose children, flush
//! for the last time, leave the registry. Memoized: every caller awaits the same completion.

use std::sync::Arc;

use super::hooks::AgentEvent;
use super::inbox::Stage;
use super::{Agent, AgentHost};
use crate::points::Point;
use crate::runtime::{contain, contain_call, spawn};
use crate::sections::{publication, steering};
use crate::vocabulary::CancelCause;

/// The right to dispose an agent, held by its creator. Dropping it requests the disposal, which
/// then finishes detached (contract P17).
#[must_use = "dropping the handle disposes the agent"]
#[derive(Debug)]
pub struct AgentHandle {
    agent: Agent,
}

impl AgentHandle {
    pub(super) fn new(agent: Agent) -> Self {
        Self { agent }
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Disposes the agent, and waits until it is gone. Never fails; may be called again. Awaiting it
    /// from inside the agent's own hooks, tools or effects waits for ever: call
    /// [`request_dispose`](Self::request_dispose) there.
    pub async fn dispose(&self) {
        self.agent.inner.runtime.point(Point::AgentDispose).await;
        self.agent.request_dispose();
        self.agent.inner.disposed.wait().await;
    }

    /// Begins the disposal, without waiting for it.
    pub fn request_dispose(&self) {
        self.agent.request_dispose();
    }
}

impl Drop for AgentHandle {
    fn drop(&mut self) {
        self.agent.request_dispose();
    }
}

impl Agent {
    /// Waits until the agent is disposed and unregistered, whoever disposes it.
    pub async fn disposed(&self) {
        self.inner.disposed.wait().await;
    }

    /// The first section of a disposal; the rest runs in a task of the runtime's.
    fn request_dispose(&self) {
        if self.inner.closing.get().is_some() {
            return;
        }
        let registry = self.inner.host.registry();
        let Some((cause, cancelled)) =
            steering::begin_disposal(&self.inbox(), registry, CancelCause::Disposed)
        else {
            return;
        };
        self.after_cancel(cause, cancelled);
        self.inner.closing.set(());
        let name = format!("disposal of {}", self.inner.instance);
        spawn(&self.inner.runtime, name, dispose(self.clone())).detach();
    }

    /// Waits until no activity runs. A reservation is not waited for.
    async fn quiesce(&self) {
        loop {
            let mut rest = self.inner.rest.listen();
            self.inner.runtime.point(Point::DisposeQuiesce).await;
            if self.inbox().stage() == Stage::Idle {
                return;
            }
            rest.heard().await;
        }
    }

    async fn run_effects(&self) {
        let runtime = &self.inner.runtime;
        let effects = self.inner.scope.lock().effects.take().unwrap_or_default();
        for (name, effect) in effects {
            runtime.point(Point::DisposeEffect).await;
            let future = contain_call(runtime, &name, effect);
            if let Ok(future) = future {
                // A panic is recorded as a fact; the disposal goes on.
                let _contained = contain(runtime, &name, future).await;
            }
        }
    }

    async fn dispose_children(&self) {
        loop {
            self.inner.runtime.point(Point::DisposeChildren).await;
            let children = self.inner.host.registry().lock().children(self.inner.instance);
            if children.is_empty() {
                return;
            }
            for child in &children {
                self.inner.runtime.point(Point::DisposeChildren).await;
                child.request_dispose();
            }
            for child in children {
                child.inner.disposed.wait().await;
            }
        }
    }
}

async fn dispose(agent: Agent) {
    let inner = &agent.inner;
    let runtime = Arc::clone(&inner.runtime);
    runtime.point(Point::AgentDispose).await;
    agent.quiesce().await;
    agent.run_effects().await;
    agent.dispose_children().await;
    runtime.point(Point::StoreRetire).await;
    let published = inner.host.registry().lock().is_published(inner.instance);
    if let Some(store) = inner.host.config().store.as_ref().filter(|_| published) {
        // Retirement is part of the disposal; its failure changes no outcome (invariant I27). The
        // store records it, and tries again when the id is needed.
        let _contained = store.retire(&inner.session).await;
    }
    runtime.point(Point::AgentUnregister).await;
    let removed =
        publication::remove(&runtime, inner.host.registry(), inner.instance, inner.session.id());
    drop(removed);
    inner.host.tell_disposed(&agent);
    agent.tell(&AgentEvent::Disposed);
    // Hooks are foreign and may hold agents: let them go, so that no cycle keeps this one.
    let hooks = std::mem::take(&mut inner.scope.lock().hooks);
    drop(hooks);
    inner.disposed.set(());
}

impl AgentHost {
    /// Closes the host: refuses every creation, and disposes every agent. Completes when nothing is
    /// left.
    pub async fn dispose(&self) {
        let runtime = Arc::clone(&self.config().runtime);
        loop {
            runtime.point(Point::AgentDispose).await;
            let agents = self.registry().lock().close_all();
            self.closing().set(());
            if agents.is_empty() {
                return;
            }
            for agent in &agents {
                runtime.point(Point::AgentDispose).await;
                agent.request_dispose();
            }
            for agent in agents {
                agent.disposed().await;
            }
        }
    }
}
