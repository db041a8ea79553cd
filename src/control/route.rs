//! The route of a message, decided from what one section sees (fact-sheet 7.4; contract P1, I14).

use crate::control::association::Association;
use crate::ids::{OwnerId, SessionId, TaskId};
use crate::vocabulary::TaskStatus;

/// A live agent that the association does not account for (contract I14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// It has no activation at all.
    Outside,
    /// It is not the agent of the activation's run.
    NotAssociated,
}

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<R> {
    /// Nowhere: the live agent is not ours.
    Conflict(Conflict),
    /// Nowhere: the activation belongs to another session.
    Foreign {
        /// Its Task.
        task: TaskId,
    },
    /// Nowhere: the activation's Task takes nothing any more.
    NotRunning {
        /// Its Task.
        task: TaskId,
        /// Where it stands.
        status: TaskStatus,
    },
    /// Nowhere: the activation has no run yet.
    Starting {
        /// Its Task.
        task: TaskId,
    },
    /// Into the running activation.
    Steer {
        /// Its Task.
        task: TaskId,
        /// Its run.
        run: R,
    },
    /// Into a fresh activation.
    Start,
}

/// Decides. `live` is the agent instance registered under the child's id; `status` is that of the
/// association's Task, absent if its owner removed it.
pub fn decide<R: Clone, S>(
    association: Option<&Association<R, S>>,
    sender: &SessionId,
    live: Option<OwnerId>,
    status: impl FnOnce(&TaskId) -> Option<TaskStatus>,
) -> Route<R> {
    let Some(association) = association else {
        return if live.is_some() { Route::Conflict(Conflict::Outside) } else { Route::Start };
    };
    if let (Some(filled), Some(live)) = (&association.filled, live)
        && filled.agent != Some(live)
    {
        return Route::Conflict(Conflict::NotAssociated);
    }
    let task = association.activation.task.clone();
    if association.activation.owner_session != *sender {
        return Route::Foreign { task };
    }
    // A Task that its owner removed was settled before.
    match status(&task).unwrap_or(TaskStatus::Killed) {
        TaskStatus::Running => {}
        status => return Route::NotRunning { task, status },
    }
    match &association.filled {
        None => Route::Starting { task },
        Some(filled) => Route::Steer { task, run: filled.run.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::association::{Activation, Filled};
    use crate::ids::ActivationId;

    fn association(agent: Option<Option<u64>>) -> Association<&'static str, ()> {
        let activation = Activation {
            id: ActivationId(1),
            task: TaskId::of("subagent", 1),
            owner: OwnerId(1),
            owner_session: SessionId::new("parent"),
        };
        let filled = agent.map(|agent| Filled { run: "run", agent: agent.map(OwnerId) });
        Association { activation, signal: (), filled }
    }

    fn route(
        agent: Option<Option<u64>>,
        sender: &str,
        live: Option<u64>,
        status: Option<TaskStatus>,
    ) -> Route<&'static str> {
        let association = association(agent);
        decide(Some(&association), &SessionId::new(sender), live.map(OwnerId), |_| status)
    }

    const RUNNING: Option<TaskStatus> = Some(TaskStatus::Running);

    fn task() -> TaskId {
        TaskId::of("subagent", 1)
    }

    #[test]
    fn without_an_association_a_live_agent_is_a_conflict() {
        let none: Option<&Association<&str, ()>> = None;
        let sender = SessionId::new("parent");
        assert_eq!(decide(none, &sender, None, |_| None), Route::Start);
        let live = decide(none, &sender, Some(OwnerId(4)), |_| None);
        assert_eq!(live, Route::Conflict(Conflict::Outside));
    }

    #[test]
    fn without_a_run_the_registry_does_not_matter() {
        for live in [None, Some(4)] {
            assert_eq!(route(None, "parent", live, RUNNING), Route::Starting { task: task() });
        }
    }

    #[test]
    fn an_agent_other_than_the_runs_is_a_conflict() {
        let conflict = Route::Conflict(Conflict::NotAssociated);
        assert_eq!(route(Some(Some(4)), "parent", Some(5), RUNNING), conflict);
        assert_eq!(route(Some(None), "parent", Some(5), RUNNING), conflict);
        let steer = Route::Steer { task: task(), run: "run" };
        assert_eq!(route(Some(Some(4)), "parent", Some(4), RUNNING), steer);
        assert_eq!(route(Some(Some(4)), "parent", None, RUNNING), steer);
        assert_eq!(route(Some(None), "parent", None, RUNNING), steer);
    }

    #[test]
    fn a_foreign_sender_reaches_no_activation() {
        let foreign = Route::Foreign { task: task() };
        assert_eq!(route(Some(Some(4)), "other", Some(4), RUNNING), foreign);
    }

    #[test]
    fn a_task_that_is_not_running_takes_nothing() {
        for status in [TaskStatus::Stopping, TaskStatus::Completed, TaskStatus::Failed] {
            let refused = Route::NotRunning { task: task(), status };
            assert_eq!(route(Some(Some(4)), "parent", Some(4), Some(status)), refused);
            assert_eq!(route(None, "parent", None, Some(status)), refused);
        }
        let removed = Route::NotRunning { task: task(), status: TaskStatus::Killed };
        assert_eq!(route(None, "parent", None, None), removed);
    }
}
