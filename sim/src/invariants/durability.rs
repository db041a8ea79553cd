//! I4, I23 and I25: what is reported as done is on the disk, is this activation's own, and is well
//! formed.

use std::collections::BTreeMap;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::SessionId;
use continuable::vocabulary::{StopReason, TaskStatus};

use super::history::{ActivationStory, AgentStory, History, Settled};
use super::{Check, Finding, Invariant, Kind};
use crate::trace::{Answer, Note};

/// Success needs evidence.
pub const I4: Invariant = Invariant {
    id: "I4",
    kind: Kind::Always,
    sentence: "of a continuable activation, `completed` implies a confirmed final flush covering \
               the length taken at closing; a failed one without an earlier accepted cancellation \
               gives `failed` with DURABILITY_FAILED and no unconfirmed output",
    dangers: &["a final flush failed", "a first flush failed and the final one passed"],
    check: Check::Life(success_is_durable),
};

fn success_is_durable(history: &History<'_>, finding: &mut Finding) {
    for activation in history.activations.values() {
        let Some(settled) = history.outcome_of(activation) else { continue };
        let Some(agent) = history.agent_of(activation) else {
            finding.demand(settled.status != TaskStatus::Completed, settled.at, || {
                format!("{} completed without an agent", activation.task)
            });
            continue;
        };
        let confirmed = match (agent.closed, agent.flushed) {
            (Some((closed, length)), Some((flushed, _, Some(mark)))) => {
                closed < flushed && flushed < settled.at && mark >= length
            }
            _ => false,
        };
        let failed = agent.flushed.is_some() && !confirmed;
        if settled.status == TaskStatus::Completed {
            finding.demand(confirmed, settled.at, || {
                format!("{} completed without a confirmed final flush", activation.task)
            });
            finding.meet_if(agent.failed_flushes > 0, DANGERS[1]);
        }
        if failed {
            finding.meet(DANGERS[0]);
            final_flush_failed(activation, agent, settled, finding);
        }
    }
    confirmed_is_on_the_disk(history, finding);
}

const DANGERS: [&str; 2] =
    ["a final flush failed", "a first flush failed and the final one passed"];

fn final_flush_failed(
    activation: &ActivationStory,
    agent: &AgentStory,
    settled: Settled,
    finding: &mut Finding,
) {
    // A run that was already failing, or cancelled, keeps that outcome.
    let cancelled = activation.cancelled.is_some();
    let went_well = agent.result.as_ref().is_some_and(|result| {
        result.stop == StopReason::Completed || result.code == Some(ErrorCode::DurabilityFailed)
    });
    if cancelled || !went_well || settled.code == Some(ErrorCode::DisposeFailed) {
        return;
    }
    let told = settled.status == TaskStatus::Failed
        && settled.code == Some(ErrorCode::DurabilityFailed)
        && !settled.output;
    finding.demand(told, settled.at, || {
        format!(
            "the final flush of {} failed and it is {} {:?}",
            activation.task, settled.status, settled.code
        )
    });
}

/// What the store confirmed would survive a crash: the disk itself is asked.
fn confirmed_is_on_the_disk(history: &History<'_>, finding: &mut Finding) {
    let mut confirmed: BTreeMap<&SessionId, u64> = BTreeMap::new();
    for (at, entry) in history.entries.iter().enumerate() {
        match &entry.event {
            crate::trace::Event::Fact(
                Fact::FlushConfirmed { session, mark }
                | Fact::FinalFlushEnded { child: session, mark: Some(mark), .. },
            ) => {
                let known = confirmed.entry(session).or_default();
                *known = (*known).max(*mark);
            }
            crate::trace::Event::Note(Note::DiskJudged { session, durable, .. }) => {
                let claimed = confirmed.get(session).copied().unwrap_or(0);
                finding.demand(*durable >= claimed, at, || {
                    format!("{claimed} events of {session} are confirmed, {durable} are durable")
                });
            }
            _ => {}
        }
    }
}

/// A result of one's own.
pub const I23: Invariant = Invariant {
    id: "I23",
    kind: Kind::Always,
    sentence: "a result comes only from this activation's own suffix",
    dangers: &["an activation produced no text of its own"],
    check: Check::Life(own_text),
};

/// The planned model signs each text with the instance it speaks for, so that a result shows whose
/// it is.
pub fn signed(agent: continuable::ids::OwnerId, turn: u64, step: u64) -> String {
    format!("[{agent} turn {turn} step {step}]")
}

fn own_text(history: &History<'_>, finding: &mut Finding) {
    for (at, note) in history.notes() {
        let Note::Answered { answer: Answer::Seen { task, output, status }, .. } = note else {
            continue;
        };
        // A Task of another kind has no activation.
        if history.tasks.get(task).is_some_and(|story| story.activation.is_none()) {
            continue;
        }
        if !status.is_terminal() {
            let empty = output.as_ref().is_none_or(String::is_empty);
            finding.demand(empty, at, || format!("{task} is {status} and has output"));
            continue;
        }
        let activation = history.activations.values().find(|a| a.task == *task);
        let agent = activation.and_then(ActivationStory::agent);
        match output.as_deref() {
            None | Some("") => {
                finding.meet_if(
                    *status == TaskStatus::Completed,
                    "an activation produced no text of its own",
                );
            }
            Some(text) => {
                let own = agent.is_some_and(|agent| text.contains(&format!("[{agent} turn ")));
                finding.demand(own, at, || format!("the output of {task} is not its own: {text}"));
            }
        }
    }
}

/// Logs are well formed.
pub const I25: Invariant = Invariant {
    id: "I25",
    kind: Kind::Always,
    sentence: "logs are well formed, judged at each `turn/end` and after load: contiguous sequence, \
               turns and steps nest and number by one, calls pair with results; confirmed bytes \
               never change",
    dangers: &["a cut was made", "a repair was made", "an append failed"],
    check: Check::Life(well_formed),
};

fn well_formed(history: &History<'_>, finding: &mut Finding) {
    let mut lengths: BTreeMap<(&SessionId, Option<continuable::ids::OwnerId>), u64> =
        BTreeMap::new();
    for (at, entry) in history.entries.iter().enumerate() {
        match &entry.event {
            crate::trace::Event::Fact(Fact::EventsAppended { session, agent, seq, count }) => {
                // A live log grows without holes; a new instance starts where its load ended.
                let known = lengths.entry((session, *agent)).or_insert(*seq);
                finding.demand(*known == *seq, at, || {
                    format!("{session} appended {seq} after {known}")
                });
                *known = seq + count;
            }
            crate::trace::Event::Fact(Fact::SessionLoaded { closers, cut, .. }) => {
                finding.meet_if(*cut > 0, "a cut was made");
                finding.meet_if(*closers > 0, "a repair was made");
            }
            crate::trace::Event::Fact(Fact::FlushFailed { .. }) => {
                finding.meet("an append failed");
            }
            crate::trace::Event::Note(Note::LogJudged { session, fault, .. }) => {
                finding.demand(fault.is_none(), at, || {
                    format!("{session}: {}", fault.clone().unwrap_or_default())
                });
            }
            crate::trace::Event::Note(Note::DiskJudged { session, changed, .. }) => {
                finding.demand(!changed, at, || format!("confirmed bytes of {session} changed"));
            }
            crate::trace::Event::Note(Note::Ended(end)) => {
                for (session, _, fault) in &end.logs {
                    finding.demand(fault.is_none(), at, || {
                        format!("stored {session}: {}", fault.clone().unwrap_or_default())
                    });
                }
            }
            _ => {}
        }
    }
}
