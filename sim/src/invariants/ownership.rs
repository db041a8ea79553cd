//! I9, I12 to I14, I19 and I26: notices, owners that close or are replaced, agents that nobody
//! owns, foreground runs, and the events of runs.

use std::collections::{BTreeMap, BTreeSet};

use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::ids::{OwnerId, RunId, TaskId};
use continuable::vocabulary::{CancelCause, WaitEnd};

use super::history::{AgentStory, History};
use super::{Check, Finding, Invariant, Kind};
use crate::plan::Operation;
use crate::trace::{Answer, Event, Note};

/// At most one notice per Task, to the exact owner, while nobody knows.
pub const I9A: Invariant = Invariant {
    id: "I9a",
    kind: Kind::Always,
    sentence: "at most one unsolicited notice per Task, only into the exact owner instance, \
               claimed only while unreported",
    dangers: &["a waiter and a notice competed", "a read and a notice competed"],
    check: Check::Life(one_notice_to_the_exact_owner),
};

/// What is known of one Task's report.
#[derive(Default)]
struct Report {
    claims: u64,
    injected: u64,
    told: Option<&'static str>,
    waited: bool,
    read: bool,
}

fn one_notice_to_the_exact_owner(history: &History<'_>, finding: &mut Finding) {
    let mut reports: BTreeMap<&TaskId, Report> = BTreeMap::new();
    for (at, fact) in history.facts() {
        match fact {
            Fact::TaskReadTerminal { task, .. } => {
                let report = reports.entry(task).or_default();
                report.read = true;
                report.told = report.told.or(Some("read"));
            }
            Fact::TaskKillAnswered { task, .. } => {
                let report = reports.entry(task).or_default();
                report.told = report.told.or(Some("killed"));
            }
            Fact::TaskWaitJoined { task, .. } => reports.entry(task).or_default().waited = true,
            Fact::TaskWaitEnded { task, end: WaitEnd::Terminal, .. } => {
                let report = reports.entry(task).or_default();
                report.told = report.told.or(Some("waited for"));
            }
            Fact::NoticeClaimed { task, owner } => {
                let report = reports.entry(task).or_default();
                report.claims += 1;
                let (claims, told) = (report.claims, report.told);
                finding.demand(claims == 1 && told.is_none(), at, || {
                    format!("{task}: notice {claims} was claimed although it was {told:?}")
                });
                exact_owner(history, finding, at, task, *owner);
            }
            Fact::NoticeInjected { task, owner, .. } => {
                let report = reports.entry(task).or_default();
                report.injected += 1;
                let (claimed, injected) = (report.claims, report.injected);
                finding.demand(injected == 1 && claimed == 1, at, || {
                    format!("{task}: {injected} notices for {claimed} claims")
                });
                exact_owner(history, finding, at, task, *owner);
            }
            _ => {}
        }
    }
    let noticed = || reports.values().filter(|report| report.claims > 0);
    finding.meet_if(noticed().any(|report| report.waited), "a waiter and a notice competed");
    finding.meet_if(noticed().any(|report| report.read), "a read and a notice competed");
}

fn exact_owner(
    history: &History<'_>,
    finding: &mut Finding,
    at: usize,
    task: &TaskId,
    owner: OwnerId,
) {
    let started = history.tasks.get(task).and_then(|task| task.owner);
    finding.demand(started == Some(owner), at, || {
        format!("the notice of {task} went to {owner}; its owner is {started:?}")
    });
}

/// A closing owner takes its Tasks along.
pub const I13: Invariant = Invariant {
    id: "I13",
    kind: Kind::Always,
    sentence: "owner disposal cancels, awaits and removes that owner's Tasks before it completes; \
               nothing starts after it began",
    dangers: &["an owner closed over an open Task", "a start raced the disposal"],
    check: Check::Life(a_closing_owner_takes_its_tasks_along),
};

fn a_closing_owner_takes_its_tasks_along(history: &History<'_>, finding: &mut Finding) {
    let mut closing: BTreeMap<OwnerId, usize> = BTreeMap::new();
    let mut emptied: BTreeMap<OwnerId, usize> = BTreeMap::new();
    let tasks_of =
        |owner: OwnerId| history.tasks.iter().filter(move |(_, task)| task.owner == Some(owner));
    for (at, fact) in history.facts() {
        match fact {
            Fact::AgentDisposing { agent, .. } => {
                closing.insert(*agent, at);
                let open = tasks_of(*agent).any(|(_, task)| task.open_at(at));
                finding.meet_if(open, "an owner closed over an open Task");
            }
            Fact::OwnerTasksRemoved { owner, .. } => {
                emptied.insert(*owner, at);
                for (id, task) in tasks_of(*owner) {
                    finding.demand(!task.open_at(at), at, || {
                        format!("{id} is open, and {owner} is said to have no Tasks left")
                    });
                }
            }
            Fact::TaskStarted { task, owner: Some(owner), .. } => {
                finding.demand(!closing.contains_key(owner), at, || {
                    format!("{task} started although {owner} is closing")
                });
            }
            Fact::TaskStartRefused { code: ErrorCode::OwnerUnavailable, owner: Some(owner) } => {
                finding.meet_if(closing.contains_key(owner), "a start raced the disposal");
            }
            Fact::AgentRemoved { agent, .. } if tasks_of(*agent).next().is_some() => {
                let open = tasks_of(*agent).find(|(_, task)| task.open_at(at));
                finding.demand(open.is_none(), at, || {
                    format!("{agent} is gone and its {:?} is open", open.map(|(id, _)| id))
                });
                finding.demand(emptied.contains_key(agent), at, || {
                    format!("{agent} is gone before its Tasks were removed")
                });
            }
            _ => {}
        }
    }
}

/// A run's two events.
pub const I26: Invariant = Invariant {
    id: "I26",
    kind: Kind::Always,
    sentence: "every published run has exactly one start and one end event in that order; an \
               unpublished one has none",
    dangers: &["a child was killed between publication and hand-over"],
    check: Check::Life(one_start_and_one_end),
};

fn one_start_and_one_end(history: &History<'_>, finding: &mut Finding) {
    let mut started: BTreeMap<RunId, usize> = BTreeMap::new();
    let mut ended: BTreeMap<RunId, usize> = BTreeMap::new();
    for (at, fact) in history.facts() {
        match fact {
            Fact::RunStarted { run, .. } => {
                finding.demand(started.insert(*run, at).is_none(), at, || {
                    format!("{run} started twice")
                });
            }
            Fact::RunEnded { run, .. } => {
                let first = ended.insert(*run, at).is_none();
                finding.demand(first && started.contains_key(run), at, || {
                    format!("{run} ended twice, or without a start")
                });
            }
            _ => {}
        }
    }
    if let Some((at, _)) = history.end {
        for run in started.keys() {
            finding.demand(ended.contains_key(run), at, || format!("{run} never ended"));
        }
    }
    let mut killed = history
        .activations
        .values()
        .filter(|activation| activation.filled.is_none() && activation.cancelled.is_some());
    let published = |from: usize, child| {
        history.agents.values().any(|agent| {
            agent.session.as_ref() == Some(child) && agent.published.is_some_and(|at| at > from)
        })
    };
    finding.meet_if(
        killed.any(|activation| published(activation.installed, &activation.child)),
        "a child was killed between publication and hand-over",
    );
}

/// A result reaches somebody.
pub const I9B: Invariant = Invariant {
    id: "I9b",
    kind: Kind::Eventually,
    sentence: "a terminal result reaches somebody (waiter, reader or notice), unless a kill was \
               requested or the owner is unowned, closing or gone",
    dangers: &["a counted waiter was dropped before its snapshot"],
    check: Check::Life(every_result_reaches_somebody),
};

fn every_result_reaches_somebody(history: &History<'_>, finding: &mut Finding) {
    let mut told: BTreeSet<&TaskId> = BTreeSet::new();
    let mut closing: BTreeSet<OwnerId> = BTreeSet::new();
    let mut settled: Vec<(usize, &TaskId, OwnerId)> = Vec::new();
    let mut counted: BTreeSet<&TaskId> = BTreeSet::new();
    let mut released: BTreeSet<&TaskId> = BTreeSet::new();
    // Without a writer there are no notices, and nobody who could be told unasked.
    let (mut writers, mut over) = (0, false);
    for (at, fact) in history.facts() {
        match fact {
            Fact::NoticesAttached { count } => writers = *count,
            // Whoever closes refuses notices, also of Tasks whose end is being told just now (P16).
            Fact::NoticesDetached { count } => {
                writers = *count;
                settled.retain(|(_, task, _)| writers > 0 || released.contains(task));
            }
            Fact::TasksClosing | Fact::ControlClosing => {
                over = true;
                settled.retain(|(_, task, _)| released.contains(task));
            }
            Fact::OwnerClosing { owner } => {
                closing.insert(*owner);
                settled.retain(|(_, task, theirs)| theirs != owner || released.contains(task));
            }
            Fact::TaskReleased { task, .. } => drop(released.insert(task)),
            Fact::TaskReadTerminal { task, .. }
            | Fact::TaskKillAnswered { task, .. }
            | Fact::NoticeInjected { task, .. }
            | Fact::NoticeDropped { task, .. }
            | Fact::TaskWaitEnded { task, end: WaitEnd::Terminal, .. } => drop(told.insert(task)),
            Fact::TaskWaitEnded { task, end: WaitEnd::Aborted, .. } => {
                finding.meet_if(
                    counted.contains(task),
                    "a counted waiter was dropped before its snapshot",
                );
            }
            Fact::TaskSettled { task, owner: Some(owner), waiters, .. } => {
                if *waiters > 0 {
                    counted.insert(task);
                }
                if writers > 0 && !over && !closing.contains(owner) {
                    settled.push((at, task, *owner));
                }
            }
            _ => {}
        }
    }
    if history.end.is_none() {
        return;
    }
    for (at, task, _) in settled {
        finding.demand(told.contains(task), at, || format!("nobody heard how {task} ended"));
    }
}

/// A replacement is not its predecessor.
pub const I12: Invariant = Invariant {
    id: "I12",
    kind: Kind::Always,
    sentence: "a same-id replacement of an owner is never notified, cancelled or torn down for its \
               predecessor",
    // By P16 an owner's Tasks settle before its id is free, so no replacement lives at that moment.
    dangers: &["a replacement followed an owner that closed over an open Task"],
    check: Check::Life(a_replacement_is_spared),
};

fn a_replacement_is_spared(history: &History<'_>, finding: &mut Finding) {
    let mut disposing: BTreeSet<OwnerId> = BTreeSet::new();
    let mut closing: BTreeSet<OwnerId> = BTreeSet::new();
    for (at, fact) in history.facts() {
        match fact {
            Fact::OwnerClosing { owner } => drop(closing.insert(*owner)),
            Fact::AgentDisposing { agent, .. } => drop(disposing.insert(*agent)),
            Fact::AgentRemoved { agent, session } if replaces(history, *agent, at) => {
                finding.demand(disposing.contains(agent), at, || {
                    format!("{agent} of {session} was torn down, and nobody disposed it")
                });
            }
            Fact::CancelAccepted {
                scope: CancelScope::Activation { activation, child },
                cause: CancelCause::OwnerDisposed,
            } => {
                let Some(story) = history.activations.get(activation) else { continue };
                finding.demand(closing.contains(&story.owner), at, || {
                    format!("the work of {child} was cancelled for another owner than its own")
                });
            }
            Fact::NoticeInjected { task, owner, .. } if replaces(history, *owner, at) => {
                exact_owner(history, finding, at, task, *owner);
            }
            Fact::AgentPublished { agent, .. } if replaces(history, *agent, at) => {
                let session = history.agents.get(agent).and_then(|agent| agent.session.as_ref());
                let over_open = history.tasks.values().any(|task| {
                    let before = task.owner.and_then(|owner| history.agents.get(&owner));
                    before.is_some_and(|before| {
                        before.session.as_ref() == session
                            && before.disposing.is_some_and(|at| task.open_at(at))
                    })
                });
                finding.meet_if(
                    over_open,
                    "a replacement followed an owner that closed over an open Task",
                );
            }
            _ => {}
        }
    }
}

/// Whether `agent` came after another instance of its session.
fn replaces(history: &History<'_>, agent: OwnerId, at: usize) -> bool {
    let Some(story) = history.agents.get(&agent) else { return false };
    history.agents.iter().any(|(other, before)| {
        *other != agent
            && before.session == story.session
            && before.published.is_some_and(|published| published < at)
            && before.published < story.published
    })
}

/// A bypassing agent is a conflict.
pub const I14: Invariant = Invariant {
    id: "I14",
    kind: Kind::Always,
    sentence: "a live agent without a matching association is an ownership conflict, never adopted",
    dangers: &["a bypassing agent was met by a send"],
    check: Check::Life(never_adopted),
};

fn never_adopted(history: &History<'_>, finding: &mut Finding) {
    let bypassing = |agent: &OwnerId| history.agents.get(agent).is_some_and(AgentStory::bypasses);
    for (at, fact) in history.facts() {
        match fact {
            Fact::AssociationFilled { child, agent: Some(agent), .. } => {
                finding.demand(!bypassing(agent), at, || {
                    format!("{agent}, loaded past the service, was adopted for {child}")
                });
            }
            Fact::MessageQueued { agent, message, .. } if bypassing(agent) => {
                let sent = history.messages.get(message).is_some_and(|m| !m.routed.is_empty());
                finding.demand(!sent, at, || {
                    format!("a message of a sender was steered into {agent}")
                });
            }
            Fact::SendFailed { child, code: ErrorCode::OwnershipConflict, .. } => {
                finding.meet("a bypassing agent was met by a send");
                let met = history.agents.iter().any(|(agent, story)| {
                    story.session.as_ref() == Some(child) && bypassing(agent) && story.live_at(at)
                });
                finding.demand(met, at, || {
                    format!("a send to {child} met an ownership conflict with nobody")
                });
            }
            _ => {}
        }
    }
}

/// Foreground runs are disposed before the answer.
pub const I19: Invariant = Invariant {
    id: "I19",
    kind: Kind::Always,
    sentence: "foreground runs are best effort and are disposed before the call returns",
    dangers: &["a foreground flush failed", "a foreground call was dropped"],
    check: Check::Life(foreground_runs_are_over),
};

/// A foreground call that is under way: who made it, and the runs that it started.
struct Call<'a> {
    path: &'a str,
    /// The agent whose tool call it is; none for a client's own.
    agent: Option<OwnerId>,
    runs: Vec<RunId>,
}

impl<'a> Call<'a> {
    fn of(actor: &'a str, agent: Option<OwnerId>) -> Self {
        Self { path: path_of(actor), agent, runs: Vec::new() }
    }

    /// Whether it made a run that `actor` started for a child of `parent`: the call itself, or for
    /// a tool call a task below it.
    fn made(&self, actor: &str, parent: Option<OwnerId>) -> bool {
        let Some(below) = path_of(actor).strip_prefix(self.path) else { return false };
        match self.agent {
            None => below.is_empty(),
            agent => agent == parent && (below.is_empty() || below.starts_with('.')),
        }
    }
}

/// The path of an actor, without the task's name.
fn path_of(actor: &str) -> &str {
    actor.split_once(':').map_or(actor, |(path, _)| path)
}

fn foreground_runs_are_over(history: &History<'_>, finding: &mut Finding) {
    let mut calls: BTreeMap<String, Call<'_>> = BTreeMap::new();
    for (at, entry) in history.entries.iter().enumerate() {
        match &entry.event {
            Event::Note(Note::Asked { op, operation: Operation::Foreground { .. } }) => {
                calls.insert(op.to_string(), Call::of(&entry.actor, None));
            }
            Event::Fact(Fact::ToolStarted { agent, call, .. }) => {
                calls.insert(format!("{agent} {call}"), Call::of(&entry.actor, Some(*agent)));
            }
            Event::Fact(Fact::RunStarted { run, child, agent, .. })
                if history.activations_of(child).next().is_none() =>
            {
                let parent = agent.and_then(|agent| history.agents.get(&agent)?.parent);
                let calls = calls.values_mut().filter(|call| call.made(&entry.actor, parent));
                calls.for_each(|call| call.runs.push(*run));
            }
            Event::Fact(Fact::FlushFailed { session, .. }) => {
                let foreground = history.agents.values().any(|agent| {
                    agent.session.as_ref() == Some(session)
                        && agent.parent.is_some()
                        && agent.live_at(at)
                        && history.activations_of(session).next().is_none()
                });
                finding.meet_if(foreground, "a foreground flush failed");
            }
            Event::Note(Note::Answered { op, answer }) => {
                let Some(call) = calls.remove(&op.to_string()) else { continue };
                match answer {
                    Answer::GaveUp => finding.meet("a foreground call was dropped"),
                    Answer::Lost => {}
                    _ => over(history, finding, at, &call),
                }
            }
            Event::Fact(Fact::ToolFinished { agent, call, .. }) => {
                if let Some(call) = calls.remove(&format!("{agent} {call}")) {
                    over(history, finding, at, &call);
                }
            }
            _ => {}
        }
    }
}

fn over(history: &History<'_>, finding: &mut Finding, at: usize, call: &Call<'_>) {
    for run in &call.runs {
        let disposed = history.runs.get(run).and_then(|run| run.disposed);
        finding.demand(disposed.is_some_and(|(place, _)| place < at), at, || {
            format!("a foreground call returned before {run} was disposed")
        });
    }
}

#[cfg(test)]
mod tests {
    use continuable::ids::{ActivationId, MessageId, SessionId};
    use continuable::vocabulary::StopReason;

    use super::super::kit::*;
    use super::*;
    use crate::plan::Provider;
    use crate::trace::EndState;

    fn notice(owner: OwnerId) -> Fact {
        Fact::NoticeInjected { task: task(), owner, message: MessageId::new("notice") }
    }

    #[test]
    fn i9b_meets_a_result_that_nobody_hears() {
        let ended = || Note::Ended(EndState::default());
        assert_eq!(violations(&I9B, &noted(&good_life(), ended())), []);
        let untold = || without(good_life(), |fact| matches!(fact, Fact::NoticeInjected { .. }));
        assert_ne!(violations(&I9B, &noted(&untold(), ended())), []);
        let timed_out = Fact::TaskWaitEnded {
            task: task(),
            owner: Some(PARENT),
            waiter: 0,
            end: WaitEnd::TimedOut,
        };
        let waited = [untold(), vec![timed_out]].concat();
        assert_ne!(violations(&I9B, &noted(&waited, ended())), []);
        let mut closing = untold();
        closing.insert(0, Fact::OwnerClosing { owner: PARENT });
        assert_eq!(violations(&I9B, &noted(&closing, ended())), []);
    }

    #[test]
    fn i12_meets_a_replacement_that_is_noticed_or_torn_down() {
        let session = || SessionId::new("parent");
        let replaced = [
            vec![published(PARENT, "parent", None, 0)],
            good_life(),
            vec![
                Fact::OwnerClosing { owner: PARENT },
                Fact::AgentDisposing { agent: PARENT, session: session() },
                Fact::AgentRemoved { agent: PARENT, session: session() },
                published(OwnerId(9), "parent", None, 0),
            ],
        ]
        .concat();
        let noticed = [replaced.clone(), vec![notice(OwnerId(9))]].concat();
        tells_apart(&I12, &replaced, &noticed);
        let gone = Fact::AgentRemoved { agent: OwnerId(9), session: session() };
        tells_apart(&I12, &replaced, &[replaced.clone(), vec![gone]].concat());
        let cancel = Fact::CancelAccepted {
            scope: CancelScope::Activation { activation: ActivationId(1), child: child() },
            cause: CancelCause::OwnerDisposed,
        };
        let place = |fact: &Fact| matches!(fact, Fact::TurnEnded { .. });
        tells_apart(&I12, &good_life(), &after(good_life(), place, cancel));
    }

    #[test]
    fn i14_meets_an_adopted_agent_and_a_conflict_with_nobody() {
        let mut adopted = good_life();
        for fact in &mut adopted {
            if let Fact::AgentPublished { parent, .. } = fact {
                *parent = None;
            }
        }
        tells_apart(&I14, &good_life(), &adopted);
        let failed = Fact::SendFailed {
            message: MessageId::new("m"),
            child: child(),
            code: ErrorCode::OwnershipConflict,
        };
        let bypass = published(OwnerId(7), child().as_str(), None, 1);
        let met = [good_life(), vec![bypass.clone(), failed.clone()]].concat();
        tells_apart(&I14, &met, &[good_life(), vec![failed]].concat());
        let steered = Fact::MessageQueued {
            agent: OwnerId(7),
            message: prompt(),
            steering: true,
            receipt: true,
        };
        tells_apart(&I14, &met, &[met.clone(), vec![bypass, steered]].concat());
    }

    #[test]
    fn i19_meets_a_call_that_returns_before_its_run_is_disposed() {
        let child = || SessionId::new("foreground");
        let fact = Event::Fact;
        let started = fact(Fact::RunStarted {
            run: RunId(4),
            provider: "spawn".to_owned(),
            child: child(),
            agent: Some(CHILD),
        });
        let disposed = fact(Fact::RunDisposed { run: RunId(4), child: child(), failed: false });
        let operation =
            Operation::Foreground { parent: 0, provider: Provider::Spawn, give_up: None };
        let asked = Event::Note(Note::Asked { op: 0, operation });
        let answer = Answer::Ran { stop: StopReason::Completed };
        let answered = Event::Note(Note::Answered { op: 0, answer });
        let good = [&asked, &started, &disposed, &answered].map(Clone::clone).to_vec();
        assert_eq!(violations(&I19, &lives(&[good])), []);
        let early = [&asked, &started, &answered, &disposed].map(Clone::clone).to_vec();
        assert_ne!(violations(&I19, &lives(&[early])), []);
        let tool =
            Fact::ToolStarted { agent: PARENT, call: "c".to_owned(), tool: "subagent".to_owned() };
        let mine = fact(published(CHILD, "foreground", Some(PARENT), 1));
        let over = Fact::ToolFinished { agent: PARENT, call: "c".to_owned(), error: false };
        let early = vec![fact(tool), mine, started, fact(over), disposed];
        assert_ne!(violations(&I19, &lives(&[early])), []);
    }
}
