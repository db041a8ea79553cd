//! I7, I8, I10, I24 and I29: associations, live children, cancellation, rest, panics.

use continuable::error::ErrorCode;
use continuable::facts::{Fact, PanicKind};
use continuable::ids::OwnerId;
use continuable::vocabulary::TaskStatus;

use super::history::{ActivationStory, AgentStory, History};
use super::tasks::killed;
use super::{Check, Finding, Invariant, Kind};
use crate::trace::Note;

/// One activation at a time.
pub const I7: Invariant = Invariant {
    id: "I7",
    kind: Kind::Always,
    sentence: "at most one authorised activation per child in a process; its association leaves \
               only by P8",
    dangers: &["two sends raced on a stopped child"],
    check: Check::Life(one_activation_at_a_time),
};

fn one_activation_at_a_time(history: &History<'_>, finding: &mut Finding) {
    for (id, activation) in &history.activations {
        if let Some(claims) = activation.claims_from() {
            let rival = history.activations.iter().find(|(other, rival)| {
                *other != id
                    && rival.child == activation.child
                    && rival.claims_from().is_some_and(|theirs| theirs <= claims)
                    && rival.removed.first().is_none_or(|removed| *removed > claims)
            });
            finding.demand(rival.is_none(), claims, || {
                format!("{id} and another own {} at once", activation.child)
            });
        }
        finding.meet_if(raced(history, activation), "two sends raced on a stopped child");
        leaves_by_p8(history, activation, finding);
    }
}

/// Whether a send met the activation that another send had just started.
fn raced(history: &History<'_>, activation: &ActivationStory) -> bool {
    if !activation.resumed {
        return false;
    }
    let filled = activation.filled.map_or(usize::MAX, |(at, ..)| at);
    history.messages.values().any(|message| {
        message.failed.iter().any(|(at, child, _)| {
            *child == activation.child && *at > activation.installed && *at < filled
        })
    })
}

/// Recorded, then (disposed long before) dropped, then released.
fn leaves_by_p8(history: &History<'_>, activation: &ActivationStory, finding: &mut Finding) {
    let task = history.tasks.get(&activation.task);
    for removed in &activation.removed {
        let settled = task.and_then(|task| task.outcome());
        finding.demand(settled.is_some_and(|settled| settled.at < *removed), *removed, || {
            format!("{} lost its association before its outcome", activation.task)
        });
        if let Some(run) = history.run_of(activation) {
            let disposed = run.disposed.is_some_and(|(at, _)| at < *removed);
            let excused =
                settled.is_some_and(|settled| settled.code == Some(ErrorCode::DisposeFailed));
            finding.demand(disposed || excused, *removed, || {
                format!("{} lost its association before its disposal", activation.task)
            });
        }
        let released = task.and_then(|task| task.released.first().copied());
        finding.demand(released.is_none_or(|released| released > *removed), *removed, || {
            format!("{} released its waiters before its association", activation.task)
        });
    }
    finding.demand(activation.removed.len() <= 1, activation.installed, || {
        format!("{} lost its association twice", activation.task)
    });
}

/// Live children are bounded by work.
pub const I8: Invariant = Invariant {
    id: "I8",
    kind: Kind::Always,
    sentence: "live continuable children <= open Tasks, except where a disposal failed",
    dangers: &["two Tasks of one owner open at once"],
    check: Check::Life(bounded_children),
};

fn bounded_children(history: &History<'_>, finding: &mut Finding) {
    let mut open: Vec<(&continuable::ids::TaskId, Option<OwnerId>)> = Vec::new();
    let mut live: Vec<OwnerId> = Vec::new();
    let mut excused = 0;
    // A bypassing agent (I14) has the child's session, and no Task.
    let is_child = |agent: &AgentStory| {
        !agent.bypasses()
            && history.activations.values().any(|a| agent.session.as_ref() == Some(&a.child))
    };
    for (at, fact) in history.facts() {
        match fact {
            Fact::TaskStarted { task, owner, activation: Some(_), .. } => {
                finding.meet_if(
                    owner.is_some() && open.iter().any(|(_, theirs)| theirs == owner),
                    "two Tasks of one owner open at once",
                );
                open.push((task, *owner));
            }
            Fact::TaskSettled { task, code, .. } => {
                open.retain(|(known, _)| *known != task);
                excused += usize::from(*code == Some(ErrorCode::DisposeFailed));
            }
            Fact::AgentPublished { agent, .. } => {
                if history.agents.get(agent).is_some_and(is_child) {
                    live.push(*agent);
                }
            }
            Fact::AgentRemoved { agent, .. } => live.retain(|known| known != agent),
            _ => continue,
        }
        finding.demand(live.len() <= open.len() + excused, at, || {
            format!("{} live children, {} open Tasks", live.len(), open.len())
        });
    }
}

/// A cancellation is final.
pub const I10: Invariant = Invariant {
    id: "I10",
    kind: Kind::Always,
    sentence: "a cancellation accepted before publication ends `killed` (or `failed` by disposal) \
               after quiescence; once observed no model request and no tool body of that \
               activation starts, and only what finalises is appended",
    dangers: &[
        "cancelled in lookup",
        "cancelled in start",
        "cancelled in a step",
        "cancelled in the final flush",
        "cancelled in dispose",
    ],
    check: Check::Life(cancelled_is_killed),
};

fn cancelled_is_killed(history: &History<'_>, finding: &mut Finding) {
    for (id, activation) in &history.activations {
        phase(history, activation, finding);
        let Some((accepted, cause)) = activation.cancelled else { continue };
        if let Some(settled) = history.outcome_of(activation) {
            finding.demand(killed(settled.status, settled.code), settled.at, || {
                format!(
                    "{} was cancelled ({cause:?}) and is {} {:?}",
                    activation.task, settled.status, settled.code
                )
            });
            finding.demand(settled.at > accepted, settled.at, || {
                format!("{id} was cancelled after its outcome")
            });
        }
        if let Some(agent) = history.agent_of(activation) {
            quiet_once_observed(agent, finding);
        }
    }
    // An agent that never became a run's (a start that was rolled back) is quiet as well.
    for agent in history.agents.values().filter(|agent| agent.observed.is_some()) {
        quiet_once_observed(agent, finding);
    }
}

fn quiet_once_observed(agent: &AgentStory, finding: &mut Finding) {
    let Some(observed) = agent.observed else { return };
    let late = |places: Vec<usize>| places.into_iter().find(|at| *at > observed);
    let works = [
        ("a request left", late(agent.requests.iter().map(|request| request.0).collect())),
        ("a tool started", late(agent.tools.clone())),
        ("a turn opened", late(agent.turns.iter().map(|turn| turn.0).collect())),
        ("a step opened", late(agent.steps.iter().map(|step| step.0).collect())),
    ];
    for (what, at) in works {
        finding.demand(at.is_none(), at.unwrap_or(observed), || {
            format!("{what} after the cancellation of {:?} was observed", agent.session)
        });
    }
}

fn phase(history: &History<'_>, activation: &ActivationStory, finding: &mut Finding) {
    let Some(at) = activation.cancelled.map(|(at, _)| at).or(activation.too_late) else { return };
    let before = |place: Option<usize>| place.is_some_and(|place| place < at);
    let run = history.run_of(activation);
    let agent = history.agent_of(activation);
    if before(run.and_then(|run| run.dispose_started)) {
        finding.meet("cancelled in dispose");
    } else if before(agent.and_then(|agent| agent.flush_started)) {
        finding.meet("cancelled in the final flush");
    } else if agent.is_some_and(|agent| agent.in_turn_at(at)) {
        finding.meet("cancelled in a step");
    } else if activation.resumed && !before(activation.authorised) {
        finding.meet("cancelled in lookup");
    } else if !before(activation.filled.map(|(place, ..)| place)) {
        finding.meet("cancelled in start");
    }
}

/// Everything comes to rest.
pub const I24: Invariant = Invariant {
    id: "I24",
    kind: Kind::Eventually,
    sentence: "with faults healed every Task is terminal, every waiter woken, every receipt \
               settled, every live child disposed, and no spawned work, listener, timer or \
               association is left",
    dangers: &["a run ended with something pending before the heal"],
    check: Check::Life(comes_to_rest),
};

fn comes_to_rest(history: &History<'_>, finding: &mut Finding) {
    for (_, note) in history.notes() {
        if let Note::Healed { pending } = note {
            finding.meet_if(*pending > 0, "a run ended with something pending before the heal");
        }
    }
    let Some((at, end)) = history.end else { return };
    finding.demand(end.livelock.is_none(), at, || format!("{:?} runs for ever", end.livelock));
    finding.demand(end.stuck.is_empty(), at, || format!("left waiting: {}", end.stuck.join(", ")));
    finding.demand(end.agents.is_empty(), at, || format!("still live: {:?}", end.agents));
    finding.demand(end.associations.is_empty(), at, || {
        format!("associations left: {:?}", end.associations)
    });
    finding.demand(end.open_tasks.is_empty(), at, || format!("open Tasks: {:?}", end.open_tasks));
    for (id, task) in &history.tasks {
        let done = task.started.is_none() || !task.settled.is_empty() && !task.released.is_empty();
        finding.demand(done, at, || format!("{id} is not settled and released"));
        let waiting = task.waiters.values().any(|(_, left)| left.is_none());
        finding.demand(!waiting, at, || format!("a waiter of {id} was never woken"));
    }
    for (id, activation) in &history.activations {
        finding.demand(!activation.removed.is_empty(), at, || format!("{id} never left"));
    }
    for (id, message) in &history.messages {
        let owed = message.queued.iter().filter(|(_, _, receipt)| *receipt).count();
        finding.demand(message.receipts.len() >= owed, at, || {
            format!("a receipt of {id} never settled")
        });
        finding.demand(message.receipts.len() <= owed.max(1), at, || {
            format!("a receipt of {id} settled twice")
        });
    }
    let answers = history.notes().filter(|(_, note)| matches!(note, Note::Answered { .. })).count();
    let asked = history.notes().filter(|(_, note)| matches!(note, Note::Asked { .. })).count();
    finding.demand(answers == asked, at, || format!("{asked} operations, {answers} answers"));
}

/// Panics are contained.
pub const I29: Invariant = Invariant {
    id: "I29",
    kind: Kind::Always,
    sentence: "a panic in a producer, tool, model client, listener or loop fails at most its own \
               Task; every waiter and receipt still settles",
    dangers: &[
        "a tool panicked",
        "a model client panicked",
        "a listener panicked",
        "a hook panicked",
    ],
    check: Check::Life(panics_are_contained),
};

fn panics_are_contained(history: &History<'_>, finding: &mut Finding) {
    let mut foreign = 0;
    for (at, fact) in history.facts() {
        match fact {
            Fact::PanicCaught { kind, task, text } => {
                finding.demand(*kind == PanicKind::Foreign, at, || {
                    format!("a broken invariant in {task}: {text}")
                });
                foreign += usize::from(*kind == PanicKind::Foreign);
                finding.meet_if(text.contains("planned: tool"), "a tool panicked");
                finding.meet_if(text.contains("planned: model"), "a model client panicked");
                finding.meet_if(text.contains("planned: listener"), "a listener panicked");
                finding.meet_if(text.contains("planned: hook"), "a hook panicked");
            }
            Fact::TaskSettled { task, status, code: Some(ErrorCode::Panicked), .. } => {
                finding.demand(foreign > 0 && *status == TaskStatus::Failed, at, || {
                    format!("{task} blames a panic that nobody had")
                });
                foreign = foreign.saturating_sub(1);
            }
            _ => {}
        }
    }
}
