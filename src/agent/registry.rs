//! The agent registry, pure: which sessions and agents exist in this process, and who may publish.
//!
//! One entry is one agent instance from the beginning of its creation to its removal. An agent and
//! its session share one id, so publishing the entry publishes both (contract P1 f).

use std::collections::BTreeMap;

use crate::ids::{OwnerId, SessionId};
use crate::sync::{Access, ObjectKind, key_of, touch};

/// How far an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Being created; invisible.
    Pending,
    /// Published; visible by its session id.
    Live,
}

#[derive(Debug)]
struct Entry<A> {
    session: SessionId,
    parent: Option<OwnerId>,
    phase: Phase,
    closing: bool,
    handle: A,
}

/// Why a creation may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BeginRefusal {
    /// The host is closing.
    #[error("the agent host is closing")]
    HostClosing,
    /// The parent instance is closing or gone.
    #[error("the parent agent is closing or gone")]
    ParentUnavailable,
}

/// Why a publication lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishRefusal {
    /// An agent of the same session id is registered.
    #[error("an agent of that session is already registered as {0}")]
    Collision(OwnerId),
    /// The host is closing.
    #[error("the agent host is closing")]
    HostClosing,
    /// The parent instance is closing or gone.
    #[error("the parent agent is closing or gone")]
    ParentUnavailable,
    /// The creation itself was closed, or never begun.
    #[error("the creation was closed")]
    Closed,
}

/// The agents of one host. `A` is the agent handle it hands out.
#[derive(Debug)]
pub struct Registry<A> {
    entries: BTreeMap<OwnerId, Entry<A>>,
    live: BTreeMap<SessionId, OwnerId>,
    closing: bool,
}

impl<A> Default for Registry<A> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), live: BTreeMap::new(), closing: false }
    }
}

fn touch_session(session: &SessionId, access: Access) {
    touch(ObjectKind::Registry, key_of(session.as_str()), access);
}

fn touch_instance(instance: OwnerId, access: Access) {
    touch(ObjectKind::Owner, instance.0, access);
}

impl<A: Clone> Registry<A> {
    /// Notes that `instance` is being created for `session`, under `parent`. Several creations of
    /// one session id may run; the first to publish wins (fact-sheet 3.8).
    pub fn begin(
        &mut self,
        instance: OwnerId,
        session: SessionId,
        parent: Option<OwnerId>,
        handle: A,
    ) -> Result<(), BeginRefusal> {
        if self.closing {
            return Err(BeginRefusal::HostClosing);
        }
        if parent.is_some_and(|parent| !self.is_current(parent)) {
            return Err(BeginRefusal::ParentUnavailable);
        }
        touch_instance(instance, Access::Write);
        let entry = Entry { session, parent, phase: Phase::Pending, closing: false, handle };
        self.entries.insert(instance, entry);
        Ok(())
    }

    /// Publishes `instance`: its agent and session become visible together.
    pub fn publish(&mut self, instance: OwnerId) -> Result<(), PublishRefusal> {
        self.may_publish(instance)?;
        let Some(entry) = self.entries.get_mut(&instance) else {
            return Err(PublishRefusal::Closed);
        };
        touch_session(&entry.session, Access::Write);
        touch_instance(instance, Access::Write);
        entry.phase = Phase::Live;
        self.live.insert(entry.session.clone(), instance);
        Ok(())
    }

    /// What [`Registry::publish`] would answer, changing nothing.
    pub fn may_publish(&self, instance: OwnerId) -> Result<(), PublishRefusal> {
        touch_instance(instance, Access::Read);
        if self.closing {
            return Err(PublishRefusal::HostClosing);
        }
        let entry = match self.entries.get(&instance) {
            Some(entry) if !entry.closing && entry.phase == Phase::Pending => entry,
            _ => return Err(PublishRefusal::Closed),
        };
        if entry.parent.is_some_and(|parent| !self.is_current(parent)) {
            return Err(PublishRefusal::ParentUnavailable);
        }
        touch_session(&entry.session, Access::Read);
        match self.live.get(&entry.session) {
            Some(&holder) => Err(PublishRefusal::Collision(holder)),
            None => Ok(()),
        }
    }

    /// Marks `instance` as closing: it starts and adopts nothing any more. It stays visible until
    /// it is removed. False if it was closing already, or is not registered.
    pub fn close(&mut self, instance: OwnerId) -> bool {
        touch_instance(instance, Access::Write);
        match self.entries.get_mut(&instance) {
            Some(entry) if !entry.closing => {
                entry.closing = true;
                true
            }
            _ => false,
        }
    }

    /// Removes `instance`, agent and session together. Returns its handle, which the caller drops
    /// after unlocking, and whether it was published.
    pub fn remove(&mut self, instance: OwnerId) -> Option<(A, bool)> {
        touch_instance(instance, Access::Write);
        let entry = self.entries.remove(&instance)?;
        let published = entry.phase == Phase::Live;
        if published {
            touch_session(&entry.session, Access::Write);
            self.live.remove(&entry.session);
        }
        Some((entry.handle, published))
    }

    /// The published agent of `session`, closing or not.
    pub fn get(&self, session: &SessionId) -> Option<&A> {
        touch_session(session, Access::Read);
        let instance = self.live.get(session)?;
        self.entries.get(instance).map(|entry| &entry.handle)
    }

    /// The published instance of `session`.
    pub fn instance_of(&self, session: &SessionId) -> Option<OwnerId> {
        touch_session(session, Access::Read);
        self.live.get(session).copied()
    }

    /// Whether exactly `instance` is published, closing or not.
    pub fn is_published(&self, instance: OwnerId) -> bool {
        touch_instance(instance, Access::Read);
        self.entries.get(&instance).is_some_and(|entry| entry.phase == Phase::Live)
    }

    /// Whether exactly `instance` is published and not closing.
    pub fn is_current(&self, instance: OwnerId) -> bool {
        touch_instance(instance, Access::Read);
        self.entries
            .get(&instance)
            .is_some_and(|entry| entry.phase == Phase::Live && !entry.closing)
    }

    /// Every published agent, in order of session id.
    pub fn list(&self) -> Vec<A> {
        self.live.values().filter_map(|id| self.entries.get(id)).map(|e| e.handle.clone()).collect()
    }

    /// The agents created through `parent` and those still being created, oldest first.
    pub fn children(&self, parent: OwnerId) -> Vec<A> {
        touch_instance(parent, Access::Read);
        self.entries
            .values()
            .filter(|entry| entry.parent == Some(parent))
            .map(|entry| entry.handle.clone())
            .collect()
    }

    /// Whether exactly `child` was created through `parent`.
    pub fn is_owned_by(&self, child: OwnerId, parent: OwnerId) -> bool {
        touch_instance(child, Access::Read);
        self.entries.get(&child).is_some_and(|entry| entry.parent == Some(parent))
    }

    /// Refuses every later creation and publication, and returns all agents, oldest first.
    pub fn close_all(&mut self) -> Vec<A> {
        self.closing = true;
        self.entries.values().map(|entry| entry.handle.clone()).collect()
    }

    /// How many agents are published.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether nothing is registered, not even a creation.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: OwnerId = OwnerId(1);
    const B: OwnerId = OwnerId(2);
    const C: OwnerId = OwnerId(3);

    fn begun(ids: &[(OwnerId, &str, Option<OwnerId>)]) -> Registry<u64> {
        let mut registry = Registry::default();
        for (instance, session, parent) in ids {
            registry
                .begin(*instance, SessionId::new(*session), *parent, instance.0)
                .expect("nothing closes");
            registry.publish(*instance).expect("no collision");
        }
        registry
    }

    #[test]
    fn an_agent_is_invisible_until_it_is_published() {
        let mut registry = Registry::default();
        let id = SessionId::new("s");
        registry.begin(A, id.clone(), None, 1).expect("begins");
        assert_eq!(registry.get(&id), None);
        assert!(!registry.is_current(A));
        registry.publish(A).expect("publishes");
        assert_eq!(registry.get(&id), Some(&1));
        assert!(registry.is_current(A));
    }

    #[test]
    fn the_first_of_two_creations_to_publish_wins() {
        let mut registry = Registry::default();
        for instance in [A, B] {
            registry.begin(instance, SessionId::new("s"), None, instance.0).expect("begins");
        }
        registry.publish(B).expect("first");
        assert_eq!(registry.publish(A), Err(PublishRefusal::Collision(B)));
        assert_eq!(registry.remove(A), Some((1, false)));
        assert_eq!(registry.get(&SessionId::new("s")), Some(&2), "the loser takes nothing along");
    }

    #[test]
    fn a_closing_parent_adopts_nothing() {
        let mut registry = begun(&[(A, "a", None)]);
        registry.begin(B, SessionId::new("b"), Some(A), 2).expect("begins");
        assert!(registry.close(A));
        assert!(!registry.close(A));
        assert_eq!(registry.publish(B), Err(PublishRefusal::ParentUnavailable));
        let refused = registry.begin(C, SessionId::new("c"), Some(A), 3);
        assert_eq!(refused, Err(BeginRefusal::ParentUnavailable));
        assert_eq!(registry.children(A), [2], "the creation in flight is a child to wait for");
    }

    #[test]
    fn a_closing_agent_stays_visible_until_removed() {
        let mut registry = begun(&[(A, "a", None)]);
        registry.close(A);
        assert_eq!(registry.get(&SessionId::new("a")), Some(&1));
        assert!(!registry.is_current(A));
        assert_eq!(registry.remove(A), Some((1, true)));
        assert!(registry.is_empty());
        assert_eq!(registry.remove(A), None);
    }

    #[test]
    fn a_replacement_of_the_same_id_is_another_instance() {
        let mut registry = begun(&[(A, "s", None)]);
        registry.remove(A);
        registry.begin(B, SessionId::new("s"), None, 2).expect("begins");
        registry.publish(B).expect("the id is free");
        assert!(!registry.is_current(A));
        assert_eq!(registry.instance_of(&SessionId::new("s")), Some(B));
    }

    #[test]
    fn a_closing_host_refuses_everything() {
        let mut registry = begun(&[(A, "a", None)]);
        registry.begin(B, SessionId::new("b"), None, 2).expect("begins");
        assert_eq!(registry.close_all(), [1, 2]);
        assert_eq!(registry.publish(B), Err(PublishRefusal::HostClosing));
        let refused = registry.begin(C, SessionId::new("c"), None, 3);
        assert_eq!(refused, Err(BeginRefusal::HostClosing));
    }
}
