//! I11, I27 and I30: who may resume, for whom the store writes, and trees that end leaf first.

use std::collections::BTreeMap;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId};
use continuable::vocabulary::TaskStatus;

use super::history::{ActivationStory, History};
use super::{Check, Finding, Invariant, Kind};
use crate::plan::Operation;
use crate::trace::Note;

/// Only the parent resumes.
pub const I11: Invariant = Invariant {
    id: "I11",
    kind: Kind::Always,
    sentence: "only the persisted direct parent may resume; refusals write nothing and name the id \
               unavailable",
    dangers: &["a foreign send was refused", "a foreign send raced the real one"],
    check: Check::Life(only_the_parent_resumes),
};

fn only_the_parent_resumes(history: &History<'_>, finding: &mut Finding) {
    let parents = first_parents(history);
    for (id, activation) in history.activations.values().enumerate() {
        let Some(task) = history.tasks.get(&activation.task) else { continue };
        let foreign = parents.get(&activation.child).is_some_and(|parent| {
            Some(parent) != history.agents.get(&activation.owner).and_then(|a| a.session.as_ref())
        });
        if !foreign {
            continue;
        }
        let at = activation.installed;
        finding.demand(activation.authorised.is_none() && activation.filled.is_none(), at, || {
            format!("a foreign activation of {} was authorised", activation.child)
        });
        if let Some(outcome) = task.outcome() {
            let refused = outcome.code == Some(ErrorCode::Unauthorized);
            finding.demand(outcome.status != TaskStatus::Completed, outcome.at, || {
                format!("a foreign activation of {} ended {outcome:?}", activation.child)
            });
            finding.meet_if(refused, "a foreign send was refused");
            let overlaps = |other: &ActivationStory| {
                other.child == activation.child
                    && other.claims_from().is_some_and(|from| from < outcome.at)
                    && other.removed.first().is_none_or(|removed| *removed > at)
            };
            let raced = refused
                && history
                    .activations
                    .values()
                    .enumerate()
                    .any(|(other, story)| other != id && overlaps(story));
            finding.meet_if(raced, "a foreign send raced the real one");
        }
    }
}

/// Whose child each session is, from its first activation's owner.
fn first_parents(history: &History<'_>) -> BTreeMap<SessionId, SessionId> {
    let mut parents = BTreeMap::new();
    for activation in history.activations.values().filter(|activation| !activation.resumed) {
        let owner = history.agents.get(&activation.owner);
        if let Some(parent) = owner.and_then(|owner| owner.session.clone()) {
            parents.insert(activation.child.clone(), parent);
        }
    }
    parents
}

/// The store writes for owners only.
pub const I27: Invariant = Invariant {
    id: "I27",
    kind: Kind::Always,
    sentence: "the store writes only for sessions that a live agent owns or is retiring or that an \
               authorised resume repairs",
    dangers: &["an agent was disposed with a pending write"],
    check: Check::Life(the_store_writes_for_owners_only),
};

/// What the store owes one session.
#[derive(Default)]
struct Written {
    /// Whether an agent was published since the session was last retired.
    owned: bool,
    /// The end of what was appended.
    appended: u64,
    /// The end of what was written.
    written: u64,
}

fn the_store_writes_for_owners_only(history: &History<'_>, finding: &mut Finding) {
    let mut sessions: BTreeMap<&SessionId, Written> = BTreeMap::new();
    for (at, fact) in history.facts() {
        match fact {
            Fact::AgentPublished { session, .. } => {
                sessions.entry(session).or_default().owned = true;
            }
            Fact::SessionRetired { session, failed: false } => {
                sessions.entry(session).or_default().owned = false;
            }
            Fact::EventsAppended { session, seq, count, .. } => {
                sessions.entry(session).or_default().appended = seq + count;
            }
            Fact::AgentDisposing { session, .. } => {
                let behind = sessions.get(session).is_some_and(|s| s.written < s.appended);
                finding.meet_if(behind, "an agent was disposed with a pending write");
            }
            Fact::BatchWritten { session, seq, count, repair } => {
                let state = sessions.entry(session).or_default();
                state.written = seq + count;
                let owned = state.owned;
                let mut claims =
                    history.activations.values().filter(|story| story.child == *session).peekable();
                // A root session is resumed by its host; nobody authorises that.
                let is_child = claims.peek().is_some();
                let authorised = claims.any(|story| {
                    story.claims_from().is_some_and(|from| from <= at)
                        && story.removed.first().is_none_or(|removed| *removed > at)
                });
                let authorised = authorised || bypassed(history, at);
                finding.demand(owned || !is_child || (*repair && authorised), at, || {
                    format!("{session} was written, and nobody owns or repairs it")
                });
            }
            _ => {}
        }
    }
}

/// Whether somebody is loading a child past the control service at `at`: that repairs on its own
/// authority (I14 judges what becomes of it).
fn bypassed(history: &History<'_>, at: usize) -> bool {
    let mut open = Vec::new();
    for (_, note) in history.notes().take_while(|(place, _)| *place < at) {
        match note {
            Note::Asked { op, operation: Operation::Bypass { .. } } => open.push(*op),
            Note::Answered { op, .. } => open.retain(|known| known != op),
            _ => {}
        }
    }
    !open.is_empty()
}

/// Trees end leaf first.
pub const I30: Invariant = Invariant {
    id: "I30",
    kind: Kind::Always,
    sentence: "a middle agent that completes or is killed leaves no live leaf: leaves are \
               quiescent before the middle's Task is terminal",
    dangers: &["a leaf was running when its middle ended"],
    check: Check::Life(trees_end_leaf_first),
};

fn trees_end_leaf_first(history: &History<'_>, finding: &mut Finding) {
    let mut leaves: BTreeMap<OwnerId, Vec<OwnerId>> = BTreeMap::new();
    for (id, agent) in &history.agents {
        if let Some(parent) = agent.parent {
            leaves.entry(parent).or_default().push(*id);
        }
    }
    for activation in history.activations.values() {
        let Some(middle) = activation.agent() else { continue };
        let Some(leaves) = leaves.get(&middle) else { continue };
        let ending = history.agents.get(&middle).and_then(|agent| agent.disposing);
        let outcome = history.tasks.get(&activation.task).and_then(|task| task.outcome());
        for leaf in leaves {
            let Some(story) = history.agents.get(leaf) else { continue };
            let running = ending.is_some_and(|at| story.live_at(at));
            finding.meet_if(running, "a leaf was running when its middle ended");
            if let Some(outcome) = outcome {
                finding.demand(!story.live_at(outcome.at), outcome.at, || {
                    format!("{leaf} lives on after {} of its middle {middle}", activation.task)
                });
            }
        }
    }
}
