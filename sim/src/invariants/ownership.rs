//! I9a, I13 and I26: notices, owners that close, and the events of runs.

use std::collections::BTreeMap;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, RunId, TaskId};
use continuable::vocabulary::WaitEnd;

use super::history::History;
use super::{Check, Finding, Invariant, Kind};

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
