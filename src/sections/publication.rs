//! Section (f): a session and its agent are published together, and removed together.

use crate::agent::registry::{PublishRefusal, Registry};
use crate::facts::{Fact, FactSink};
use crate::ids::{OwnerId, SessionId};
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::Mutex;
use crate::vocabulary::CancelCause;

/// What a publication is about.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The instance that becomes visible.
    pub agent: OwnerId,
    /// Its session.
    pub session: SessionId,
    /// The instance it was created through.
    pub parent: Option<OwnerId>,
    /// Its delegation depth.
    pub depth: u64,
    /// How many events a fork inherited.
    pub seed_length: Option<u64>,
    /// Whether it was loaded from the store.
    pub resumed: bool,
}

/// Why a publication did not happen. Nothing was changed.
#[derive(Debug)]
pub enum Unpublished<E> {
    /// The creation was cancelled first.
    Cancelled(CancelCause),
    /// The registry refused it.
    Refused(PublishRefusal),
    /// The session could not be attached to its store.
    Attach(E),
}

/// Publishes, unless the creation was cancelled or the registry refuses. `attach` puts the session
/// into its store under a leaf lock; it is called only when nothing else can refuse any more.
pub fn publish<A: Clone, E>(
    facts: &impl FactSink,
    creation: Option<&impl SlotLock>,
    registry: &Mutex<Registry<A>>,
    what: &Publication,
    attach: impl FnOnce() -> Result<(), E>,
) -> Result<(), Unpublished<E>> {
    let slot = creation.map(SlotLock::lock);
    let mut registry = registry.lock();
    if let Some(cause) = slot.as_ref().and_then(Slot::cause) {
        return Err(Unpublished::Cancelled(cause));
    }
    if let Err(refusal) = registry.may_publish(what.agent) {
        if let PublishRefusal::Collision(live) = refusal {
            facts.record(Fact::AgentCollided { session: what.session.clone(), live });
        }
        return Err(Unpublished::Refused(refusal));
    }
    attach().map_err(Unpublished::Attach)?;
    registry.publish(what.agent).map_err(Unpublished::Refused)?;
    facts.record(Fact::AgentPublished {
        agent: what.agent,
        session: what.session.clone(),
        parent: what.parent,
        depth: what.depth,
        seed_length: what.seed_length,
        resumed: what.resumed,
    });
    Ok(())
}

/// Removes an agent and its session. The handle is dropped by the caller, after the lock.
pub fn remove<A: Clone>(
    facts: &impl FactSink,
    registry: &Mutex<Registry<A>>,
    agent: OwnerId,
    session: &SessionId,
) -> Option<A> {
    let mut registry = registry.lock();
    let (handle, published) = registry.remove(agent)?;
    if published {
        facts.record(Fact::AgentRemoved { agent, session: session.clone() });
    }
    Some(handle)
}
