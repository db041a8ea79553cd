//! One life of a trace, indexed by what its facts are about. One pass; positions are indices into
//! the life's entries.

use std::collections::BTreeMap;

use continuable::error::ErrorCode;
use continuable::facts::{CancelScope, Fact};
use continuable::ids::{ActivationId, MessageId, OwnerId, RunId, SessionId, TaskId};
use continuable::message::MessageSource;
use continuable::vocabulary::{CancelCause, KillAnswer, RouteCode, StopReason, TaskStatus};

use crate::trace::{EndState, Entry, Event, Note};

/// A recorded outcome.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    /// Where.
    pub at: usize,
    /// The terminal status.
    pub status: TaskStatus,
    /// Its code.
    pub code: Option<ErrorCode>,
    /// Whether it has output.
    pub output: bool,
}

/// One Task.
#[derive(Debug, Default)]
pub struct TaskStory {
    /// Where it started.
    pub started: Option<usize>,
    /// Its owner instance.
    pub owner: Option<OwnerId>,
    /// Its activation.
    pub activation: Option<ActivationId>,
    /// The child.
    pub child: Option<SessionId>,
    /// Where it was marked as stopping.
    pub stopping: Vec<usize>,
    /// Its outcomes; more than one is a bug.
    pub settled: Vec<Settled>,
    /// Where settlements were ignored.
    pub ignored: Vec<usize>,
    /// Where waiters were released.
    pub released: Vec<usize>,
    /// Kills and their answers.
    pub kills: Vec<(usize, KillAnswer)>,
    /// Waiters that joined, by key: where, and where they left.
    pub waiters: BTreeMap<u64, (usize, Option<usize>)>,
}

impl TaskStory {
    /// Its first outcome.
    pub fn outcome(&self) -> Option<Settled> {
        self.settled.first().copied()
    }

    /// Whether it is non-terminal at `at`.
    pub fn open_at(&self, at: usize) -> bool {
        self.started.is_some_and(|started| started <= at)
            && self.outcome().is_none_or(|settled| settled.at > at)
    }
}

/// One activation of a child.
#[derive(Debug)]
pub struct ActivationStory {
    /// Where its association was installed.
    pub installed: usize,
    /// The child.
    pub child: SessionId,
    /// Its Task.
    pub task: TaskId,
    /// The owner instance.
    pub owner: OwnerId,
    /// Whether it resumes a stored child.
    pub resumed: bool,
    /// Where the header authorised it.
    pub authorised: Option<usize>,
    /// Where its run was filled in, which, and the run's agent.
    pub filled: Option<(usize, RunId, Option<OwnerId>)>,
    /// Where its association was dropped.
    pub removed: Vec<usize>,
    /// The accepted cancellation.
    pub cancelled: Option<(usize, CancelCause)>,
    /// A cancellation that came after publication.
    pub too_late: Option<usize>,
}

impl ActivationStory {
    /// The agent instance that carries it, once known.
    pub fn agent(&self) -> Option<OwnerId> {
        self.filled.and_then(|(_, _, agent)| agent)
    }

    /// From where it may touch the child: an initial activation at once, a resumed one once
    /// authorised.
    pub fn claims_from(&self) -> Option<usize> {
        if self.resumed { self.authorised } else { Some(self.installed) }
    }
}

/// One run of a provider.
#[derive(Debug, Default)]
pub struct RunStory {
    /// Where its disposal began.
    pub dispose_started: Option<usize>,
    /// Where its disposal was complete, and whether it failed.
    pub disposed: Option<(usize, bool)>,
    /// Where it started.
    pub started: Option<usize>,
    /// Where its result settled.
    pub ended: Option<usize>,
}

/// The published result of an activation.
#[derive(Debug, Clone)]
pub struct Published {
    /// Where.
    pub at: usize,
    /// Why it stopped.
    pub stop: StopReason,
    /// Its failure.
    pub code: Option<ErrorCode>,
}

/// One agent instance.
#[derive(Debug, Default)]
pub struct AgentStory {
    /// Its session.
    pub session: Option<SessionId>,
    /// The instance it was created through.
    pub parent: Option<OwnerId>,
    /// Its delegation depth.
    pub depth: u64,
    /// Where it was published.
    pub published: Option<usize>,
    /// Where its disposal began.
    pub disposing: Option<usize>,
    /// Where it left the registry.
    pub removed: Option<usize>,
    /// Where it saw the cancellation of its activation.
    pub observed: Option<usize>,
    /// Where it was closed for settlement, and at which length.
    pub closed: Option<(usize, u64)>,
    /// Where its final flush began.
    pub flush_started: Option<usize>,
    /// Where its final flush ended: position, length, mark.
    pub flushed: Option<(usize, u64, Option<u64>)>,
    /// Its published result.
    pub result: Option<Published>,
    /// Turns it opened and closed, as (opened, closed).
    pub turns: Vec<(usize, Option<usize>)>,
    /// Where steps opened: position, turn, step.
    pub steps: Vec<(usize, u64, u64)>,
    /// Requests: position, turn, step.
    pub requests: Vec<(usize, u64, u64)>,
    /// Where tool bodies started.
    pub tools: Vec<usize>,
    /// Messages that entered its log, with their sources.
    pub logged: Vec<(usize, MessageId, MessageSource)>,
    /// Failed flushes of its session while it lived.
    pub failed_flushes: u64,
}

impl AgentStory {
    /// Whether it is in the registry at `at`.
    pub fn live_at(&self, at: usize) -> bool {
        self.published.is_some_and(|published| published <= at)
            && self.removed.is_none_or(|removed| removed > at)
    }

    /// Whether it is a child that was loaded past the control service: a run's agent has its owner
    /// as parent.
    pub fn bypasses(&self) -> bool {
        self.depth > 0 && self.parent.is_none()
    }

    /// Whether a turn is open at `at`.
    pub fn in_turn_at(&self, at: usize) -> bool {
        self.turns
            .iter()
            .any(|(opened, closed)| *opened < at && closed.is_none_or(|closed| closed > at))
    }
}

/// A turn and a step.
pub type Place = (u64, u64);

/// One message with a sender.
#[derive(Debug, Default)]
pub struct MessageStory {
    /// Routes it took: position, child, sender, source, route, Task.
    pub routed: Vec<(usize, SessionId, OwnerId, MessageSource, RouteCode, TaskId)>,
    /// Successes: position, route, Task.
    pub answered: Vec<(usize, RouteCode, TaskId)>,
    /// Failures: position, child, code.
    pub failed: Vec<(usize, SessionId, ErrorCode)>,
    /// Where queues accepted it, and whether with a receipt.
    pub queued: Vec<(usize, OwnerId, bool)>,
    /// Where queues refused it.
    pub refused: Vec<(usize, OwnerId)>,
    /// How its receipts settled: position, agent, and the turn and step that admitted it.
    pub receipts: Vec<(usize, OwnerId, Option<Place>)>,
    /// Where it entered a log.
    pub logged: Vec<(usize, OwnerId, MessageSource)>,
    /// In which requests it was: position, agent, turn, step.
    pub requests: Vec<(usize, OwnerId, u64, u64)>,
}

/// The index.
#[derive(Debug, Default)]
pub struct History<'a> {
    /// The entries.
    pub entries: &'a [Entry],
    /// By id.
    pub tasks: BTreeMap<TaskId, TaskStory>,
    /// By number.
    pub activations: BTreeMap<ActivationId, ActivationStory>,
    /// By number.
    pub runs: BTreeMap<RunId, RunStory>,
    /// By instance.
    pub agents: BTreeMap<OwnerId, AgentStory>,
    /// By id.
    pub messages: BTreeMap<MessageId, MessageStory>,
    /// The end state, where the run ended.
    pub end: Option<(usize, &'a EndState)>,
    /// Where its process died, if it did.
    pub crashed: Option<usize>,
}

impl<'a> History<'a> {
    /// Indexes the entries of one life.
    pub fn of(entries: &'a [Entry]) -> Self {
        let mut history = Self { entries, ..Self::default() };
        for (at, entry) in entries.iter().enumerate() {
            match &entry.event {
                Event::Note(Note::Crashed { .. }) => history.crashed = Some(at),
                Event::Fact(fact) => history.fact(at, fact),
                Event::Note(Note::Ended(end)) => history.end = Some((at, end)),
                Event::Note(_) => {}
            }
        }
        history
    }

    /// The facts, with their positions.
    pub fn facts(&self) -> impl Iterator<Item = (usize, &'a Fact)> {
        let entries = self.entries;
        entries.iter().enumerate().filter_map(|(at, entry)| match &entry.event {
            Event::Fact(fact) => Some((at, fact)),
            Event::Note(_) => None,
        })
    }

    /// The notes, with their positions.
    pub fn notes(&self) -> impl Iterator<Item = (usize, &'a Note)> {
        let entries = self.entries;
        entries.iter().enumerate().filter_map(|(at, entry)| match &entry.event {
            Event::Note(note) => Some((at, note)),
            Event::Fact(_) => None,
        })
    }

    /// Facts and notes, with their positions.
    pub fn events(&self) -> impl Iterator<Item = (usize, Result<&'a Fact, &'a Note>)> {
        let entries = self.entries;
        entries.iter().enumerate().map(|(at, entry)| match &entry.event {
            Event::Fact(fact) => (at, Ok(fact)),
            Event::Note(note) => (at, Err(note)),
        })
    }

    /// The place in the whole trace of the entry at `at`.
    pub fn n(&self, at: usize) -> usize {
        self.entries.get(at).map_or(at, |entry| usize::try_from(entry.n).unwrap_or(at))
    }

    /// The activations of one child, in their order.
    pub fn activations_of(&self, child: &SessionId) -> impl Iterator<Item = &ActivationStory> {
        self.activations.values().filter(move |activation| activation.child == *child)
    }

    /// Whether the agent carries an activation of another Task.
    pub fn carries_another(&self, agent: OwnerId, task: &TaskId) -> bool {
        self.activations.values().any(|other| other.task != *task && other.agent() == Some(agent))
    }

    /// The run of an activation.
    pub fn run_of(&self, activation: &ActivationStory) -> Option<&RunStory> {
        self.runs.get(&activation.filled?.1)
    }

    /// The agent of an activation.
    pub fn agent_of(&self, activation: &ActivationStory) -> Option<&AgentStory> {
        self.agents.get(&activation.agent()?)
    }

    /// The outcome of an activation's Task.
    pub fn outcome_of(&self, activation: &ActivationStory) -> Option<Settled> {
        self.tasks.get(&activation.task)?.outcome()
    }

    fn agent(&mut self, agent: OwnerId) -> &mut AgentStory {
        self.agents.entry(agent).or_default()
    }

    fn task(&mut self, task: &TaskId) -> &mut TaskStory {
        self.tasks.entry(task.clone()).or_default()
    }

    fn message(&mut self, message: &MessageId) -> &mut MessageStory {
        self.messages.entry(message.clone()).or_default()
    }

    fn fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::TaskStarted { .. }
            | Fact::TaskKillAnswered { .. }
            | Fact::TaskStopping { .. }
            | Fact::TaskSettled { .. }
            | Fact::TaskSettlementIgnored { .. }
            | Fact::TaskReleased { .. }
            | Fact::TaskWaitJoined { .. }
            | Fact::TaskWaitEnded { .. } => self.task_fact(at, fact),
            Fact::AssociationInstalled { .. }
            | Fact::AssociationAuthorised { .. }
            | Fact::AssociationFilled { .. }
            | Fact::AssociationRemoved { .. }
            | Fact::CancelAccepted { .. }
            | Fact::CancelTooLate { .. } => self.activation_fact(at, fact),
            Fact::RunStarted { .. }
            | Fact::RunEnded { .. }
            | Fact::RunDisposeStarted { .. }
            | Fact::RunDisposed { .. } => self.run_fact(at, fact),
            Fact::SendRouted { .. }
            | Fact::SendAnswered { .. }
            | Fact::SendFailed { .. }
            | Fact::MessageQueued { .. }
            | Fact::MessageRefused { .. }
            | Fact::ReceiptSettled { .. }
            | Fact::MessageLogged { .. }
            | Fact::RequestSent { .. } => self.message_fact(at, fact),
            _ => self.agent_fact(at, fact),
        }
    }

    fn task_fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::TaskStarted { task, owner, activation, child, .. } => {
                let story = self.task(task);
                story.started.get_or_insert(at);
                story.owner = *owner;
                story.activation = *activation;
                story.child.clone_from(child);
            }
            Fact::TaskKillAnswered { task, answer, .. } => {
                self.task(task).kills.push((at, *answer));
            }
            Fact::TaskStopping { task, .. } => self.task(task).stopping.push(at),
            Fact::TaskSettled { task, status, code, output, .. } => {
                let settled = Settled { at, status: *status, code: *code, output: *output };
                self.task(task).settled.push(settled);
            }
            Fact::TaskSettlementIgnored { task, .. } => self.task(task).ignored.push(at),
            Fact::TaskReleased { task, .. } => self.task(task).released.push(at),
            Fact::TaskWaitJoined { task, waiter, .. } => {
                self.task(task).waiters.insert(*waiter, (at, None));
            }
            Fact::TaskWaitEnded { task, waiter, .. } => {
                if let Some((_, left)) = self.task(task).waiters.get_mut(waiter) {
                    *left = Some(at);
                }
            }
            _ => {}
        }
    }

    fn activation_fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::AssociationInstalled { activation, child, task, owner, resumed } => {
                let story = ActivationStory {
                    installed: at,
                    child: child.clone(),
                    task: task.clone(),
                    owner: *owner,
                    resumed: *resumed,
                    authorised: None,
                    filled: None,
                    removed: Vec::new(),
                    cancelled: None,
                    too_late: None,
                };
                self.activations.insert(*activation, story);
            }
            Fact::AssociationAuthorised { activation, .. } => {
                if let Some(story) = self.activations.get_mut(activation) {
                    story.authorised.get_or_insert(at);
                }
            }
            Fact::AssociationFilled { activation, run, agent, .. } => {
                if let Some(story) = self.activations.get_mut(activation) {
                    story.filled.get_or_insert((at, *run, *agent));
                }
            }
            Fact::AssociationRemoved { activation, .. } => {
                if let Some(story) = self.activations.get_mut(activation) {
                    story.removed.push(at);
                }
            }
            Fact::CancelAccepted { scope: CancelScope::Activation { activation, .. }, cause } => {
                if let Some(story) = self.activations.get_mut(activation) {
                    story.cancelled.get_or_insert((at, *cause));
                }
            }
            Fact::CancelTooLate { scope: CancelScope::Activation { activation, .. }, .. } => {
                if let Some(story) = self.activations.get_mut(activation) {
                    story.too_late.get_or_insert(at);
                }
            }
            _ => {}
        }
    }

    fn run_fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::RunStarted { run, .. } => {
                self.runs.entry(*run).or_default().started.get_or_insert(at);
            }
            Fact::RunEnded { run, .. } => {
                self.runs.entry(*run).or_default().ended.get_or_insert(at);
            }
            Fact::RunDisposeStarted { run, .. } => {
                self.runs.entry(*run).or_default().dispose_started.get_or_insert(at);
            }
            Fact::RunDisposed { run, failed, .. } => {
                self.runs.entry(*run).or_default().disposed.get_or_insert((at, *failed));
            }
            _ => {}
        }
    }

    fn message_fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::SendRouted { message, child, sender, source, route, task } => {
                let route = (at, child.clone(), *sender, source.clone(), *route, task.clone());
                self.message(message).routed.push(route);
            }
            Fact::SendAnswered { message, route, task, .. } => {
                self.message(message).answered.push((at, *route, task.clone()));
            }
            Fact::SendFailed { message, child, code } => {
                self.message(message).failed.push((at, child.clone(), *code));
            }
            Fact::MessageQueued { message, agent, receipt, .. } => {
                self.message(message).queued.push((at, *agent, *receipt));
            }
            Fact::MessageRefused { message, agent } => {
                self.message(message).refused.push((at, *agent));
            }
            Fact::ReceiptSettled { message, agent, admitted } => {
                self.message(message).receipts.push((at, *agent, *admitted));
            }
            Fact::MessageLogged { message, agent, source, .. } => {
                self.message(message).logged.push((at, *agent, source.clone()));
                self.agent(*agent).logged.push((at, message.clone(), source.clone()));
            }
            Fact::RequestSent { agent, turn, step, messages } => {
                self.agent(*agent).requests.push((at, *turn, *step));
                for message in messages {
                    self.message(message).requests.push((at, *agent, *turn, *step));
                }
            }
            _ => {}
        }
    }

    fn agent_fact(&mut self, at: usize, fact: &Fact) {
        match fact {
            Fact::AgentPublished { agent, session, parent, depth, .. } => {
                let story = self.agent(*agent);
                story.depth = *depth;
                story.published.get_or_insert(at);
                story.session = Some(session.clone());
                story.parent = *parent;
            }
            Fact::AgentDisposing { agent, .. } => {
                self.agent(*agent).disposing.get_or_insert(at);
            }
            Fact::AgentRemoved { agent, .. } => {
                self.agent(*agent).removed.get_or_insert(at);
            }
            Fact::CancelObserved { agent, .. } => {
                self.agent(*agent).observed.get_or_insert(at);
            }
            Fact::SettlementClosed { agent, length, .. } => {
                self.agent(*agent).closed = Some((at, *length));
            }
            Fact::FinalFlushStarted { agent, .. } => {
                self.agent(*agent).flush_started.get_or_insert(at);
            }
            Fact::FinalFlushEnded { agent, length, mark, .. } => {
                self.agent(*agent).flushed = Some((at, *length, *mark));
            }
            Fact::ResultPublished { agent: Some(agent), stop, code, .. } => {
                self.agent(*agent).result = Some(Published { at, stop: stop.clone(), code: *code });
            }
            Fact::TurnStarted { agent, .. } => self.agent(*agent).turns.push((at, None)),
            Fact::TurnEnded { agent, .. } => {
                if let Some((_, closed)) = self.agent(*agent).turns.last_mut() {
                    *closed = Some(at);
                }
            }
            Fact::StepStarted { agent, turn, step } => {
                self.agent(*agent).steps.push((at, *turn, *step));
            }
            Fact::ToolStarted { agent, .. } => self.agent(*agent).tools.push(at),
            Fact::FlushFailed { session, .. } => {
                let live = self
                    .agents
                    .values_mut()
                    .filter(|agent| agent.session.as_ref() == Some(session) && agent.live_at(at));
                live.for_each(|agent| agent.failed_flushes += 1);
            }
            _ => {}
        }
    }
}
