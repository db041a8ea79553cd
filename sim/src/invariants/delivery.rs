//! I5 and I6: a message is delivered exactly once where its answer says, or nowhere.

use continuable::error::ErrorCode;
use continuable::ids::{MessageId, SessionId};
use continuable::message::MessageSource;
use continuable::vocabulary::{RouteCode, TaskStatus};

use super::history::{ActivationStory, History, MessageStory};
use super::{Check, Finding, Invariant, Kind};

/// A lost race delivers nothing.
pub const I5: Invariant = Invariant {
    id: "I5",
    kind: Kind::Always,
    sentence: "a lost steering race is NOT_DELIVERED; that call never cold-resumes; the message is \
               in no log and in no request",
    dangers: &[
        "a steer lost at turn end",
        "a steer lost at flush",
        "a steer lost at dispose",
        "a steer lost against startup",
    ],
    check: Check::Life(lost_is_nowhere),
};

fn lost_is_nowhere(history: &History<'_>, finding: &mut Finding) {
    for (id, message) in &history.messages {
        for (at, child, code) in &message.failed {
            let logged = message.logged.first();
            finding.demand(logged.is_none(), logged.map_or(*at, |logged| logged.0), || {
                format!("{id} failed with {code} and is in a log")
            });
            let sent = message.requests.first();
            finding.demand(sent.is_none(), sent.map_or(*at, |sent| sent.0), || {
                format!("{id} failed with {code} and is in a request")
            });
            let started = message.routed.iter().find(|route| route.4 == RouteCode::Started);
            finding.demand(started.is_none(), *at, || {
                format!("{id} failed with {code} and started a Task")
            });
            finding.demand(message.answered.is_empty(), *at, || {
                format!("{id} failed with {code} and was answered with success")
            });
            if *code == ErrorCode::NotDelivered {
                lost_when(history, child, *at, finding);
            } else if message.routed.iter().any(|route| route.4 == RouteCode::Steered) {
                // A caller that gave up is told so; every other lost steer is NOT_DELIVERED.
                finding.demand(*code == ErrorCode::Cancelled, *at, || {
                    format!("a lost steer of {id} answered {code}")
                });
            }
        }
    }
}

/// Names the phase in which a steer was lost.
fn lost_when(history: &History<'_>, child: &SessionId, at: usize, finding: &mut Finding) {
    let Some(activation) = history
        .activations_of(child)
        .find(|a| a.installed < at && a.removed.first().is_none_or(|removed| *removed > at))
    else {
        return;
    };
    let after = |place: Option<usize>| place.is_some_and(|place| place < at);
    let run = history.run_of(activation);
    let agent = history.agent_of(activation);
    if !after(activation.filled.map(|(place, ..)| place)) {
        finding.meet("a steer lost against startup");
    } else if after(run.and_then(|run| run.dispose_started)) {
        finding.meet("a steer lost at dispose");
    } else if after(agent.and_then(|agent| agent.closed).map(|(place, _)| place)) {
        finding.meet("a steer lost at flush");
    } else if agent.is_some_and(|agent| !agent.turns.is_empty()) {
        finding.meet("a steer lost at turn end");
    }
}

/// A delivered message is there exactly once.
pub const I6: Invariant = Invariant {
    id: "I6",
    kind: Kind::Always,
    sentence: "`steered` or `admitted` means exactly that message, once, in the live log before \
               that step's `step/start` and in its request snapshot, with the caller's source; \
               `started` and `completed` imply it once as the activation's first prompt, with the \
               caller's source",
    dangers: &[
        "an admitted step was cancelled before its request left",
        "a started message was the first prompt",
    ],
    check: Check::Life(delivered_once),
};

fn delivered_once(history: &History<'_>, finding: &mut Finding) {
    for (id, message) in &history.messages {
        finding.demand(message.logged.len() <= 1, place(message), || {
            format!("{id} is {} times in logs", message.logged.len())
        });
        for (at, agent, admitted) in &message.receipts {
            let Some((turn, step)) = admitted else {
                finding.demand(message.logged.is_empty(), *at, || {
                    format!("{id} was rejected and is in a log")
                });
                continue;
            };
            let opened = history.agents.get(agent).and_then(|agent| {
                agent.steps.iter().find(|(_, t, s)| (t, s) == (turn, step)).map(|(at, ..)| *at)
            });
            let logged = message.logged.first();
            let before = opened.is_some_and(|opened| logged.is_some_and(|l| l.0 < opened));
            finding.demand(before, *at, || {
                format!("{id} was admitted to turn {turn} step {step} and is not in the log before")
            });
            finding.demand(logged.is_some_and(|logged| logged.1 == *agent), *at, || {
                format!("{id} was admitted by {agent} and logged by another")
            });
            requested(history, (id, message), (*agent, *turn, *step), *at, finding);
        }
        for (at, route, _) in &message.answered {
            answered(history, (id, message), *at, *route, finding);
        }
    }
}

fn place(message: &MessageStory) -> usize {
    message.logged.last().map_or(0, |logged| logged.0)
}

/// If the step's request left at all, the message was in it.
fn requested(
    history: &History<'_>,
    (id, message): (&MessageId, &MessageStory),
    (agent, turn, step): (continuable::ids::OwnerId, u64, u64),
    at: usize,
    finding: &mut Finding,
) {
    let left = history
        .agents
        .get(&agent)
        .is_some_and(|story| story.requests.iter().any(|(_, t, s)| (*t, *s) == (turn, step)));
    if !left {
        finding.meet("an admitted step was cancelled before its request left");
        return;
    }
    let inside = message.requests.iter().any(|(_, a, t, s)| (*a, *t, *s) == (agent, turn, step));
    finding.demand(inside, at, || format!("{id} is missing in its step's request"));
}

fn answered(
    history: &History<'_>,
    (id, message): (&MessageId, &MessageStory),
    at: usize,
    route: RouteCode,
    finding: &mut Finding,
) {
    let Some((_, _, _, source, routed, task)) = message.routed.first() else {
        finding.demand(false, at, || format!("{id} was answered and never routed"));
        return;
    };
    finding
        .demand(*routed == route, at, || format!("{id} was routed one way and answered another"));
    let Some(activation) = history.activations.values().find(|a| a.task == *task) else { return };
    match route {
        RouteCode::Steered => {
            let logged = message.logged.first();
            let there = logged.is_some_and(|(logged, agent, _)| {
                *logged < at && activation.agent() == Some(*agent)
            });
            finding.demand(there, at, || format!("{id} was steered and is not in the live log"));
        }
        RouteCode::Started => first_prompt(history, id, activation, finding),
    }
    if let Some((logged, _, theirs)) = message.logged.first() {
        finding.demand(theirs == source, *logged, || {
            format!("{id} lost its caller's source: {theirs:?}")
        });
    }
}

fn first_prompt(
    history: &History<'_>,
    id: &MessageId,
    activation: &ActivationStory,
    finding: &mut Finding,
) {
    let Some(settled) = history.outcome_of(activation) else { return };
    let Some(agent) = history.agent_of(activation) else { return };
    let first = agent.logged.iter().find(|(_, _, source)| {
        matches!(source, MessageSource::User | MessageSource::Coordinator { .. })
    });
    let right = first.is_some_and(|(_, message, _)| message == id);
    if settled.status == TaskStatus::Completed {
        finding.demand(right, settled.at, || {
            format!("{} completed and {id} is not its first prompt", activation.task)
        });
        finding.meet_if(right, "a started message was the first prompt");
    }
}
