//! The state of one life, as a sequential reader of its facts knows it.

use std::collections::{BTreeMap, BTreeSet};

use continuable::facts::Fact;
use continuable::ids::{ActivationId, OwnerId, SessionId, TaskId};
use continuable::vocabulary::TaskStatus;

/// One Task.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// The instance that owns it.
    pub owner: Option<OwnerId>,
    /// That instance's session; nobody's Task is everybody's.
    pub owner_session: Option<SessionId>,
    /// What kind: a `job` is cancelled by a hook, everything else by a signal.
    pub kind: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// Whether its outcome has output.
    pub output: bool,
    /// Whether its waiters were released.
    pub released: bool,
    /// Whether its owner closed over it: nobody reaches it any more.
    pub removed: bool,
}

/// One association.
#[derive(Debug, Clone)]
pub(super) struct Association {
    pub activation: ActivationId,
    pub task: TaskId,
    pub owner_session: Option<SessionId>,
    /// The agent of its run, once the run is filled in.
    pub filled: Option<Option<OwnerId>>,
    /// Whether it holds the child; else it only reserves it for its own owner.
    pub holds: bool,
}

/// What the code under test must know, rebuilt from its facts alone.
#[derive(Debug, Default)]
pub(super) struct Model {
    surfaces: u64,
    tasks_closing: bool,
    control_closing: bool,
    /// Whether a control service was closed ever: a person may still talk to it.
    pub control_closed_once: bool,
    pub tasks: BTreeMap<TaskId, Task>,
    /// Every association of a child, oldest first.
    associations: BTreeMap<SessionId, Vec<Association>>,
    /// The published instance of each session.
    live: BTreeMap<SessionId, OwnerId>,
    sessions: BTreeMap<OwnerId, SessionId>,
    /// Instances that are being disposed: still published, no owners any more.
    closing: BTreeSet<OwnerId>,
    /// Instances whose queues take nothing.
    mute: BTreeSet<OwnerId>,
}

/// Why nothing could be started now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    ControlClosing,
    TasksClosing,
    NoSurface,
    OwnerGone,
}

impl Model {
    /// The published instance of `session`.
    pub fn live(&self, session: &SessionId) -> Option<OwnerId> {
        self.live.get(session).copied()
    }

    /// The session of an instance that was ever published.
    pub fn session(&self, agent: OwnerId) -> Option<&SessionId> {
        self.sessions.get(&agent)
    }

    /// Whether exactly this instance is published, and not closing.
    pub fn is_current(&self, agent: OwnerId) -> bool {
        !self.closing.contains(&agent)
            && self.sessions.get(&agent).is_some_and(|session| self.live(session) == Some(agent))
    }

    /// Whether the instance's queues are closed for good.
    pub fn is_mute(&self, agent: OwnerId) -> bool {
        self.mute.contains(&agent)
    }

    /// Whether the control service refuses everything.
    pub fn control_closing(&self) -> bool {
        self.control_closing
    }

    /// What stands in the way of a Task of `owner`, in the order of the checks (contract P16).
    pub fn obstacle(&self, owner: OwnerId, needs_control: bool) -> Option<Obstacle> {
        if needs_control && self.control_closing {
            Some(Obstacle::ControlClosing)
        } else if self.tasks_closing {
            Some(Obstacle::TasksClosing)
        } else if self.surfaces == 0 {
            Some(Obstacle::NoSurface)
        } else if !self.is_current(owner) {
            Some(Obstacle::OwnerGone)
        } else {
            None
        }
    }

    /// The association that a send by `sender` meets: the holder, or the sender's own pending one
    /// (contract P5).
    pub fn association(&self, child: &SessionId, sender: &SessionId) -> Option<&Association> {
        let known = self.associations.get(child)?;
        let own = |known: &&Association| known.owner_session.as_ref() == Some(sender);
        known.iter().find(|known| known.holds).or_else(|| known.iter().find(own))
    }

    /// A Task that its owner can reach.
    pub fn reachable(&self, id: &TaskId) -> Option<&Task> {
        self.tasks.get(id).filter(|task| !task.removed)
    }

    /// How many Tasks `session` lists.
    pub fn listed(&self, session: &SessionId) -> u64 {
        let theirs = |task: &&Task| {
            !task.removed && task.owner_session.as_ref().is_none_or(|owner| owner == session)
        };
        self.tasks.values().filter(theirs).count() as u64
    }

    /// A fresh control service takes the place of a closed one.
    pub fn control_loaded(&mut self) {
        self.control_closing = false;
        self.associations.clear();
    }

    fn task(&mut self, id: &TaskId, change: impl FnOnce(&mut Task)) {
        if let Some(task) = self.tasks.get_mut(id) {
            change(task);
        }
    }

    /// Takes in one fact.
    pub fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::SurfaceAttached { count } | Fact::SurfaceDetached { count } => {
                self.surfaces = *count;
            }
            Fact::TasksClosing => self.tasks_closing = true,
            Fact::ControlClosing => {
                (self.control_closing, self.control_closed_once) = (true, true);
            }
            Fact::AgentPublished { agent, session, .. } => {
                self.live.insert(session.clone(), *agent);
                self.sessions.insert(*agent, session.clone());
            }
            Fact::AgentDisposing { agent, .. } | Fact::OwnerClosing { owner: agent } => {
                self.closing.insert(*agent);
            }
            Fact::AgentRemoved { agent, session } => {
                if self.live(session) == Some(*agent) {
                    self.live.remove(session);
                }
            }
            Fact::InboxClosed { agent } => {
                self.mute.insert(*agent);
            }
            _ => self.apply_to_tasks(fact),
        }
    }

    fn apply_to_tasks(&mut self, fact: &Fact) {
        match fact {
            Fact::TaskStarted { task, kind, owner, owner_session, .. } => {
                let started = Task {
                    owner: *owner,
                    owner_session: owner_session.clone(),
                    kind: kind.clone(),
                    status: TaskStatus::Running,
                    output: false,
                    released: false,
                    removed: false,
                };
                self.tasks.insert(task.clone(), started);
            }
            Fact::TaskStopping { task, .. } => {
                self.task(task, |task| task.status = TaskStatus::Stopping);
            }
            Fact::TaskSettled { task, status, output, .. } => self.task(task, |task| {
                (task.status, task.output) = (*status, *output);
            }),
            Fact::TaskReleased { task, .. } => self.task(task, |task| task.released = true),
            Fact::OwnerTasksRemoved { owner, .. } => {
                let theirs = self.tasks.values_mut().filter(|task| task.owner == Some(*owner));
                theirs.for_each(|task| task.removed = true);
            }
            Fact::AssociationInstalled { activation, child, task, owner, resumed } => {
                let installed = Association {
                    activation: *activation,
                    task: task.clone(),
                    owner_session: self.sessions.get(owner).cloned(),
                    filled: None,
                    holds: !resumed,
                };
                self.associations.entry(child.clone()).or_default().push(installed);
            }
            Fact::AssociationAuthorised { activation, child } => {
                self.associate(child, *activation, |known| known.holds = true);
            }
            Fact::AssociationFilled { activation, child, agent, .. } => {
                self.associate(child, *activation, |known| known.filled = Some(*agent));
            }
            Fact::AssociationRemoved { activation, child } => {
                if let Some(known) = self.associations.get_mut(child) {
                    known.retain(|known| known.activation != *activation);
                }
            }
            _ => {}
        }
    }

    fn associate(
        &mut self,
        child: &SessionId,
        activation: ActivationId,
        change: impl FnOnce(&mut Association),
    ) {
        let known = self.associations.get_mut(child).into_iter().flatten();
        if let Some(found) = known.into_iter().find(|known| known.activation == activation) {
            change(found);
        }
    }
}
