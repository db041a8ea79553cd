//! The process-local association from a child to its current activation, pure (design note,
//! "Active run association"; contract P1, P5, P8).
//!
//! An activation is *pending* until the child's persisted header authorises it, and then *holds*
//! the child. An initial activation holds its fresh child from the start. A pending one reserves
//! the child only against further sends of its own owner's session, so a foreign sender never
//! delays the real parent.

use std::collections::BTreeMap;

use crate::ids::{ActivationId, OwnerId, SessionId, TaskId};
use crate::sync::{Access, ObjectKind, key_of, touch};

/// Whose activation it is, and which Task carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activation {
    /// The activation.
    pub id: ActivationId,
    /// Its Task.
    pub task: TaskId,
    /// The exact owner instance.
    pub owner: OwnerId,
    /// The owner's session, which grants access.
    pub owner_session: SessionId,
}

/// A filled-in run, with the exact local agent it drives, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled<R> {
    /// The run.
    pub run: R,
    /// The agent instance it drives in this process.
    pub agent: Option<OwnerId>,
}

/// One association.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association<R, S> {
    /// Whose it is.
    pub activation: Activation,
    /// Its cancellation authority.
    pub signal: S,
    /// The run, after its publication.
    pub filled: Option<Filled<R>>,
}

/// What the table knows of one child.
#[derive(Debug)]
struct Child<R, S> {
    holder: Option<Association<R, S>>,
    pending: Vec<Association<R, S>>,
}

impl<R, S> Default for Child<R, S> {
    fn default() -> Self {
        Self { holder: None, pending: Vec::new() }
    }
}

/// Another activation holds the child already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The Task of the one that holds it.
    pub task: TaskId,
}

/// All associations of one control service. `R` is the run, `S` the cancellation authority.
#[derive(Debug)]
pub struct AssociationTable<R, S> {
    children: BTreeMap<SessionId, Child<R, S>>,
    closing: bool,
}

impl<R, S> Default for AssociationTable<R, S> {
    fn default() -> Self {
        Self { children: BTreeMap::new(), closing: false }
    }
}

fn touch_child(child: &SessionId, access: Access) {
    touch(ObjectKind::Association, key_of(child.as_str()), access);
}

fn touch_service(access: Access) {
    touch(ObjectKind::Name, key_of("subagent control service"), access);
}

impl<R: Clone, S: Clone> AssociationTable<R, S> {
    /// Whether the service refuses new activations.
    pub fn is_closing(&self) -> bool {
        touch_service(Access::Read);
        self.closing
    }

    /// The association that a send by `sender` meets: the holder, or the sender's own pending one.
    pub fn find(&self, child: &SessionId, sender: &SessionId) -> Option<&Association<R, S>> {
        touch_child(child, Access::Read);
        let known = self.children.get(child)?;
        known.holder.as_ref().or_else(|| {
            known.pending.iter().find(|pending| pending.activation.owner_session == *sender)
        })
    }

    /// The activations of the owner session `owner`: each child with the Task that carries it.
    pub fn of_owner(&self, owner: &SessionId) -> Vec<(SessionId, TaskId)> {
        let mut found = Vec::new();
        for (child, known) in &self.children {
            touch_child(child, Access::Read);
            let associations = known.holder.iter().chain(&known.pending);
            let own = associations.filter(|known| known.activation.owner_session == *owner);
            found.extend(own.map(|known| (child.clone(), known.activation.task.clone())));
        }
        found
    }

    /// Installs an activation. `authorised` makes it the holder at once: an initial activation of
    /// a fresh child.
    pub fn install(
        &mut self,
        child: SessionId,
        activation: Activation,
        signal: S,
        authorised: bool,
    ) {
        touch_child(&child, Access::Write);
        let known = self.children.entry(child).or_default();
        let association = Association { activation, signal, filled: None };
        if authorised {
            debug_assert!(known.holder.is_none(), "a fresh child is held by nobody");
            known.holder = Some(association);
        } else {
            known.pending.push(association);
        }
    }

    /// The header authorised the activation: it holds the child from now on, unless another one
    /// does (contract P5).
    pub fn authorise(&mut self, child: &SessionId, activation: ActivationId) -> Result<(), Held> {
        touch_child(child, Access::Write);
        let Some(known) = self.children.get_mut(child) else { return Ok(()) };
        if let Some(holder) = &known.holder {
            let same = holder.activation.id == activation;
            return if same { Ok(()) } else { Err(Held { task: holder.activation.task.clone() }) };
        }
        let place = known.pending.iter().position(|pending| pending.activation.id == activation);
        known.holder = place.map(|place| known.pending.remove(place));
        Ok(())
    }

    /// Fills in the published run. False if the activation does not hold the child.
    pub fn fill(&mut self, child: &SessionId, activation: ActivationId, run: Filled<R>) -> bool {
        touch_child(child, Access::Write);
        let holder = self.children.get_mut(child).and_then(|known| known.holder.as_mut());
        match holder.filter(|holder| holder.activation.id == activation) {
            Some(holder) => {
                holder.filled = Some(run);
                true
            }
            None => false,
        }
    }

    /// Removes exactly this activation, and returns it to be dropped after unlocking.
    pub fn remove(
        &mut self,
        child: &SessionId,
        activation: ActivationId,
    ) -> Option<Association<R, S>> {
        touch_child(child, Access::Write);
        let known = self.children.get_mut(child)?;
        let removed = match known.holder.take_if(|holder| holder.activation.id == activation) {
            Some(holder) => Some(holder),
            None => {
                let place =
                    known.pending.iter().position(|pending| pending.activation.id == activation);
                place.map(|place| known.pending.remove(place))
            }
        };
        if known.holder.is_none() && known.pending.is_empty() {
            self.children.remove(child);
        }
        removed
    }

    /// Refuses every later activation and send. Returns the Task and the signal of each activation
    /// in the order of their installation; `None` if the service was closing before.
    pub fn close(&mut self) -> Option<Vec<(TaskId, S)>> {
        touch_service(Access::Write);
        if std::mem::replace(&mut self.closing, true) {
            return None;
        }
        let mut open: Vec<_> = self.associations().collect();
        open.sort_by_key(|association| association.activation.id);
        for child in self.children.keys() {
            touch_child(child, Access::Read);
        }
        let signals = open.into_iter().map(|a| (a.activation.task.clone(), a.signal.clone()));
        Some(signals.collect())
    }

    fn associations(&self) -> impl Iterator<Item = &Association<R, S>> {
        self.children.values().flat_map(|known| known.holder.iter().chain(&known.pending))
    }

    /// How many activations there are.
    pub fn len(&self) -> usize {
        self.associations().count()
    }

    /// Whether there is no activation.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activation(id: u64, owner: u64, session: &str) -> Activation {
        Activation {
            id: ActivationId(id),
            task: TaskId::of("subagent", id),
            owner: OwnerId(owner),
            owner_session: SessionId::new(session),
        }
    }

    type Table = AssociationTable<&'static str, u64>;

    fn child() -> SessionId {
        SessionId::new("child")
    }

    #[test]
    fn a_pending_activation_reserves_the_child_only_against_its_own_owner() {
        let mut table = Table::default();
        table.install(child(), activation(1, 7, "foreign"), 1, false);
        assert!(table.find(&child(), &SessionId::new("foreign")).is_some());
        assert!(table.find(&child(), &SessionId::new("parent")).is_none());
    }

    #[test]
    fn the_first_authorised_activation_holds_the_child_against_everybody() {
        let mut table = Table::default();
        table.install(child(), activation(1, 7, "foreign"), 1, false);
        table.install(child(), activation(2, 8, "parent"), 2, false);
        assert_eq!(table.authorise(&child(), ActivationId(2)), Ok(()));
        let held = Held { task: TaskId::of("subagent", 2) };
        assert_eq!(table.authorise(&child(), ActivationId(1)), Err(held));
        let met = table.find(&child(), &SessionId::new("foreign")).expect("the holder");
        assert_eq!(met.activation.id, ActivationId(2));
    }

    #[test]
    fn only_the_holder_is_filled_and_only_the_exact_activation_is_removed() {
        let mut table = Table::default();
        table.install(child(), activation(1, 8, "parent"), 1, true);
        let run = Filled { run: "run", agent: Some(OwnerId(9)) };
        assert!(!table.fill(&child(), ActivationId(2), run.clone()));
        assert!(table.fill(&child(), ActivationId(1), run));
        assert!(table.remove(&child(), ActivationId(2)).is_none());
        assert!(table.remove(&child(), ActivationId(1)).is_some());
        assert!(table.is_empty());
    }

    #[test]
    fn closing_returns_every_signal_once_in_order() {
        let mut table = Table::default();
        table.install(SessionId::new("b"), activation(1, 8, "parent"), 10, true);
        table.install(SessionId::new("a"), activation(2, 8, "parent"), 20, false);
        let open = table.close().expect("the first closing");
        assert_eq!(open.iter().map(|(_, signal)| *signal).collect::<Vec<_>>(), [10, 20]);
        assert!(table.close().is_none());
        assert!(table.is_closing());
    }
}
