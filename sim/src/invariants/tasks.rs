//! I1 to I3 and I20 to I22: Tasks, their one outcome, and starts that are refused.

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};

use super::history::{ActivationStory, History};
use super::{Check, Finding, Invariant, Kind};
use crate::trace::{Answer, Event, Note};

/// Whether a fact is recorded under the lock of the associations or of the Tasks, which the section
/// that installs an activation holds. On many threads other facts may fall in between.
fn needs_admission_locks(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::AssociationInstalled { .. }
            | Fact::AssociationAuthorised { .. }
            | Fact::AssociationFilled { .. }
            | Fact::AssociationRemoved { .. }
            | Fact::ControlClosing
            | Fact::TaskStarted { .. }
            | Fact::TaskStopping { .. }
            | Fact::TaskKillAnswered { .. }
            | Fact::TaskSettled { .. }
            | Fact::TaskReleased { .. }
            | Fact::TaskWaitJoined { .. }
            | Fact::TaskWaitEnded { .. }
            | Fact::TaskReadTerminal { .. }
            | Fact::OwnerClosing { .. }
            | Fact::OwnerTasksRemoved { .. }
    )
}

/// One Task per activation.
pub const I1: Invariant = Invariant {
    id: "I1",
    kind: Kind::Always,
    sentence: "one Task per activation, installed before any provider or store await; steering \
               creates none",
    dangers: &["a send was steered", "a send was started"],
    check: Check::Life(one_task_per_activation),
};

fn one_task_per_activation(history: &History<'_>, finding: &mut Finding) {
    for (id, activation) in &history.activations {
        let installed = activation.installed;
        let tasks: Vec<_> =
            history.tasks.iter().filter(|(_, task)| task.activation == Some(*id)).collect();
        finding.demand(tasks.len() == 1 && *tasks[0].0 == activation.task, installed, || {
            format!("{id} of {} has {} Tasks", activation.child, tasks.len())
        });
        let Some(started) = history.tasks.get(&activation.task).and_then(|task| task.started)
        else {
            continue;
        };
        // One section: nobody else had its locks between the two facts.
        let (first, last) = (started.min(installed), started.max(installed));
        let mut between = history.entries[first..last].iter().skip(1);
        let alone = !between.any(|entry| match &entry.event {
            Event::Fact(fact) => needs_admission_locks(fact),
            Event::Note(_) => true,
        });
        finding.demand(alone, installed, || {
            format!("{id} and {} were not installed in one section", activation.task)
        });
        let early = history.facts().take_while(|(at, _)| *at < installed).find(|(_, fact)| {
            matches!(fact, Fact::RunStarted { child, .. } if *child == activation.child)
                && !activation.resumed
        });
        finding.demand(early.is_none(), installed, || {
            format!("a run of {} started before its Task", activation.child)
        });
        finding.demand(activation.filled.is_none_or(|(at, ..)| at > installed), installed, || {
            format!("{id} was filled before it was installed")
        });
    }
    for (id, message) in &history.messages {
        for (at, _, _, _, route, task) in &message.routed {
            let known = history.tasks.get(task).and_then(|task| task.started);
            match route {
                RouteCode::Steered => {
                    finding.meet("a send was steered");
                    finding.demand(known.is_some_and(|known| known < *at), *at, || {
                        format!("steered {id} names {task}, which did not run yet")
                    });
                }
                RouteCode::Started => {
                    finding.meet("a send was started");
                    finding.demand(known.is_some(), *at, || {
                        format!("{id} started {task}, which never started")
                    });
                }
            }
        }
        finding.demand(
            message.routed.len() <= 1,
            message.routed.last().map_or(0, |route| route.0),
            || format!("{id} was routed {} times", message.routed.len()),
        );
    }
}

/// Disposal before the terminal state.
pub const I2: Invariant = Invariant {
    id: "I2",
    kind: Kind::Always,
    sentence: "run disposal is complete before its Task is terminal, and a terminal Task leaves no \
               live child, except where the recorded outcome says so",
    dangers: &["a disposal was slow while somebody waited"],
    check: Check::Life(disposed_before_terminal),
};

fn disposed_before_terminal(history: &History<'_>, finding: &mut Finding) {
    for activation in history.activations.values() {
        let Some(settled) = history.outcome_of(activation) else { continue };
        if settled.code == Some(ErrorCode::DisposeFailed) {
            continue;
        }
        if let Some(run) = history.run_of(activation) {
            finding.demand(run.disposed.is_some_and(|(at, _)| at < settled.at), settled.at, || {
                format!("{} is terminal before its run is disposed", activation.task)
            });
            let task = &history.tasks[&activation.task];
            let slow = run.dispose_started.is_some_and(|began| {
                let waited = |(joined, left): &(usize, Option<usize>)| {
                    *joined < settled.at && left.is_none_or(|left| left > began)
                };
                task.waiters.values().any(waited)
            });
            finding.meet_if(slow, "a disposal was slow while somebody waited");
        }
        let left = history.agents.iter().find(|(instance, agent)| {
            agent.session.as_ref() == Some(&activation.child)
                && agent.parent == Some(activation.owner)
                && agent.published.is_some_and(|published| published > activation.installed)
                && agent.live_at(settled.at)
                && !history.carries_another(**instance, &activation.task)
        });
        finding.demand(left.is_none(), settled.at, || {
            format!("{} is terminal and {} lives", activation.task, activation.child)
        });
    }
}

/// One outcome.
pub const I3: Invariant = Invariant {
    id: "I3",
    kind: Kind::Always,
    sentence: "one terminal status, one outcome, never reopened, never changed",
    dangers: &["a second settlement was attempted"],
    check: Check::Life(one_outcome),
};

fn one_outcome(history: &History<'_>, finding: &mut Finding) {
    for (id, task) in &history.tasks {
        // A settlement that is ignored, or a kill that comes too late to change anything.
        let late = task.kills.iter().any(|(_, answer)| *answer == KillAnswer::AlreadyFinished);
        finding.meet_if(late || !task.ignored.is_empty(), "a second settlement was attempted");
        let Some(settled) = task.outcome() else { continue };
        finding.demand(settled.status.is_terminal(), settled.at, || {
            format!("{id} settled as {}", settled.status)
        });
        let again = task.settled.get(1);
        finding.demand(again.is_none(), again.map_or(settled.at, |again| again.at), || {
            format!("{id} settled twice")
        });
        let reopened = task.stopping.iter().find(|at| **at > settled.at);
        finding.demand(reopened.is_none(), settled.at, || format!("{id} was stopping afterwards"));
        let released = task.released.iter().all(|at| *at > settled.at);
        finding.demand(released && task.released.len() <= 1, settled.at, || {
            format!("{id} was released {} times, or early", task.released.len())
        });
    }
    // What anybody saw afterwards is that outcome.
    for (at, note) in history.notes() {
        let Note::Answered { answer: Answer::Seen { task, status, .. }, .. } = note else {
            continue;
        };
        let settled = history.tasks.get(task).and_then(|task| task.outcome());
        if status.is_terminal() {
            let same = settled.is_some_and(|settled| settled.at < at && settled.status == *status);
            finding.demand(same, at, || format!("{task} was seen {status} and is not"));
        }
    }
}

/// After a kill nothing more comes of it.
pub const I20: Invariant = Invariant {
    id: "I20",
    kind: Kind::Always,
    sentence: "after an accepted kill no joined message yields another turn, Task or outcome",
    dangers: &["a kill hit a turn that two senders had joined"],
    check: Check::Life(a_kill_is_final),
};

fn a_kill_is_final(history: &History<'_>, finding: &mut Finding) {
    for (id, activation) in &history.activations {
        let Some((accepted, _)) = activation.cancelled else { continue };
        if let Some(agent) = history.agent_of(activation) {
            let turn = agent.turns.iter().find(|(opened, _)| *opened > accepted);
            finding.demand(turn.is_none(), turn.map_or(accepted, |turn| turn.0), || {
                format!("{id} opened a turn after its cancellation")
            });
        }
        let joined: Vec<_> = joined_before(history, activation, accepted).collect();
        finding.meet_if(joined.len() >= 2, "a kill hit a turn that two senders had joined");
        for message in joined {
            let more = message.routed.iter().filter(|route| route.4 == RouteCode::Started).count();
            finding.demand(more <= 1, accepted, || {
                format!("a message that joined {id} started another Task")
            });
        }
        let outcomes = history.tasks.get(&activation.task).map_or(0, |task| task.settled.len());
        finding.demand(outcomes <= 1, accepted, || format!("{id} has {outcomes} outcomes"));
    }
}

/// The messages that were routed into an activation before `at`.
fn joined_before<'a>(
    history: &'a History<'_>,
    activation: &'a ActivationStory,
    at: usize,
) -> impl Iterator<Item = &'a super::history::MessageStory> {
    history.messages.values().filter(move |message| {
        message.routed.iter().any(|route| route.0 < at && route.5 == activation.task)
    })
}

/// No control surface, no start.
pub const I21: Invariant = Invariant {
    id: "I21",
    kind: Kind::Always,
    sentence: "without a control surface a start is refused before anything is created",
    dangers: &["the surface went away between two starts"],
    check: Check::Life(no_surface_no_start),
};

fn no_surface_no_start(history: &History<'_>, finding: &mut Finding) {
    let mut attached = 0;
    let mut started_before = false;
    for (at, fact) in history.facts() {
        match fact {
            Fact::SurfaceAttached { count } | Fact::SurfaceDetached { count } => attached = *count,
            Fact::TaskStarted { task, .. } => {
                started_before = true;
                finding.demand(attached > 0, at, || format!("{task} started with no surface"));
            }
            Fact::AssociationInstalled { child, .. } => {
                finding.demand(attached > 0, at, || format!("{child} installed with no surface"));
            }
            Fact::TaskStartRefused { code: ErrorCode::NoControlSurface, .. } => {
                finding.meet_if(started_before, "the surface went away between two starts");
                finding.demand(attached == 0, at, || "refused with a surface".to_owned());
            }
            _ => {}
        }
    }
}

/// A refused call created nothing.
pub const I22: Invariant = Invariant {
    id: "I22",
    kind: Kind::Always,
    sentence: "a synchronous validation failure creates no Task, no association, no file",
    dangers: &[
        "refused: INVALID_INPUT",
        "refused: OWNER_UNAVAILABLE",
        "refused: NO_CONTROL_SURFACE",
    ],
    check: Check::Life(refusals_create_nothing),
};

fn refusals_create_nothing(history: &History<'_>, finding: &mut Finding) {
    let mut asked = std::collections::BTreeMap::new();
    for (at, note) in history.notes() {
        match note {
            Note::Asked { op, .. } => {
                asked.insert(*op, at);
            }
            Note::Answered { op, answer: Answer::Refused { code } } => {
                let Some(from) = asked.remove(op) else { continue };
                match code {
                    ErrorCode::InvalidInput => finding.meet("refused: INVALID_INPUT"),
                    ErrorCode::OwnerUnavailable => finding.meet("refused: OWNER_UNAVAILABLE"),
                    ErrorCode::NoControlSurface => finding.meet("refused: NO_CONTROL_SURFACE"),
                    _ => continue,
                }
                let actor = &history.entries[at].actor;
                let created = history.entries[from..at].iter().find(|entry| {
                    entry.actor == *actor
                        && matches!(
                            &entry.event,
                            Event::Fact(
                                Fact::TaskStarted { .. }
                                    | Fact::AssociationInstalled { .. }
                                    | Fact::BatchWritten { .. }
                            )
                        )
                });
                finding.demand(created.is_none(), at, || {
                    format!("operation {op} was refused with {code} and created something")
                });
            }
            _ => {}
        }
    }
}

/// Whether the status is one that a kill before publication allows.
pub(super) fn killed(status: TaskStatus, code: Option<ErrorCode>) -> bool {
    status == TaskStatus::Killed
        || status == TaskStatus::Failed && code == Some(ErrorCode::DisposeFailed)
}
