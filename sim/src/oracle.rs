//! The oracle: which answers an operation may get, by a sequential reference model.
//!
//! The model is rebuilt from the facts of a life alone. A call that is decided in the section in
//! which it is asked is judged against the state at that moment; a call that waits, or crosses a
//! network, against every state between its question and its answer. What the answer must be is
//! narrowed by the facts that the call itself left. A reply that was lost is indefinite: it allows
//! both outcomes, and never counts as a failure. Reading order: [`model`] (the state), then this
//! file (what each operation may be answered).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{MessageId, OwnerId, SessionId, TaskId};
use continuable::vocabulary::{KillAnswer, RouteCode, TaskStatus};

use crate::plan::{BadId, BadStart, By, GiveUp, Operation};
use crate::trace::{Answer, Entry, Event, Note};

mod model;

use model::{Model, Obstacle};

/// An answer that may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// This one.
    Exactly(Answer),
    /// A read of a Task with that status, and with output only if its outcome has some.
    Read(TaskId, TaskStatus, bool),
    /// A refusal by what the code met on the way, such as a log that does not load.
    AnyRefusal,
    /// A run that ended.
    AnyRun,
}

impl Allowed {
    fn admits(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Exactly(allowed), answer) => allowed == answer,
            (Self::Read(id, standing, has_output), Answer::Seen { task, status, output }) => {
                let silent = output.as_ref().is_some_and(String::is_empty);
                task == id && status == standing && (*has_output || silent)
            }
            (Self::AnyRefusal, Answer::Refused { .. }) | (Self::AnyRun, Answer::Ran { .. }) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(answer) => {
                f.write_str(&serde_json::to_string(answer).map_err(|_| fmt::Error)?)
            }
            Self::Read(task, status, output) => {
                write!(f, "{task} read as {status:?}, {}", if *output { "output" } else { "empty" })
            }
            Self::AnyRefusal => f.write_str("any refusal"),
            Self::AnyRun => f.write_str("any end of a run"),
        }
    }
}

/// One answer, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Where the answer is, as a place in its life.
    pub at: usize,
    /// What was answered.
    pub answer: Answer,
    /// What could have been.
    pub allowed: Vec<Allowed>,
}

impl Verdict {
    /// Whether the answer is allowed.
    pub fn holds(&self) -> bool {
        self.allowed.iter().any(|allowed| allowed.admits(&self.answer))
    }

    /// Whether nothing else could have been answered.
    pub fn was_forced(&self) -> bool {
        self.allowed.len() == 1
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observed = Allowed::Exactly(self.answer.clone());
        write!(f, "answered {observed}, allowed was ")?;
        if self.allowed.is_empty() {
            return f.write_str("nothing: the start that it needed never happened");
        }
        for (place, allowed) in self.allowed.iter().enumerate() {
            let separator = if place == 0 { "" } else { " or " };
            write!(f, "{separator}{allowed}")?;
        }
        Ok(())
    }
}

/// Judges every answer of the lives of one run, life by life.
pub fn judge(lives: &[&[Entry]]) -> Vec<Vec<Verdict>> {
    let mut children = Vec::new();
    lives.iter().map(|life| Life::new(&mut children).judge(life)).collect()
}

/// What a call still waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Watch {
    /// Nothing: its answer is decided.
    Decided,
    /// The Task that it starts: a start is answered with its child, a send with its route.
    Start { send: bool, job: bool },
    /// The receipt of its message in that Task.
    Steer { task: TaskId, message: Option<MessageId> },
    /// The Task's end; answered by where it stands.
    Wait { task: TaskId, timeout_ms: u64 },
    /// The cancel hook of a Task.
    Hook { task: TaskId },
    /// A person's message.
    PersonSends { parent: SessionId, child: SessionId },
    /// A person's kill.
    PersonKills { parent: SessionId, task: TaskId },
}

/// A call that was not answered yet.
struct Pending {
    operation: Operation,
    actor: Arc<str>,
    asked_ms: u64,
    allowed: Vec<Allowed>,
    watch: Watch,
    /// Whose Task it starts.
    owner: Option<SessionId>,
    /// The Task that it started.
    started: Option<TaskId>,
    /// The parent instance that it published.
    published: Option<OwnerId>,
}

impl Pending {
    fn allow(&mut self, allowed: Allowed) {
        if !self.allowed.contains(&allowed) {
            self.allowed.push(allowed);
        }
    }

    fn refuse(&mut self, code: ErrorCode) {
        self.allow(Allowed::Exactly(Answer::Refused { code }));
    }

    fn answer(&mut self, answer: Answer) {
        self.allow(Allowed::Exactly(answer));
    }

    fn give_up(&self) -> Option<GiveUp> {
        match self.operation {
            Operation::Send { give_up, .. }
            | Operation::Wait { give_up, .. }
            | Operation::Foreground { give_up, .. } => give_up,
            _ => None,
        }
    }
}

/// A parent as the clients hold it.
struct Parent {
    session: SessionId,
    agents: Vec<OwnerId>,
    /// Whether somebody has the right to dispose it; `None` while that changes.
    held: bool,
}

struct Life<'a> {
    model: Model,
    children: &'a mut Vec<SessionId>,
    parents: Vec<Parent>,
    tasks: Vec<(TaskId, SessionId)>,
    pending: BTreeMap<u64, Pending>,
    asked: bool,
    control_unloaded: bool,
    crashed: bool,
    verdicts: Vec<Verdict>,
}

/// The place of the k-th of `length` things, wrapping around.
fn place(k: u64, length: usize) -> Option<usize> {
    usize::try_from(k.checked_rem(length as u64)?).ok()
}

impl<'a> Life<'a> {
    fn new(children: &'a mut Vec<SessionId>) -> Self {
        Self {
            model: Model::default(),
            children,
            parents: Vec::new(),
            tasks: Vec::new(),
            pending: BTreeMap::new(),
            asked: false,
            control_unloaded: false,
            crashed: false,
            verdicts: Vec::new(),
        }
    }

    fn judge(mut self, entries: &[Entry]) -> Vec<Verdict> {
        for (at, entry) in entries.iter().enumerate() {
            match &entry.event {
                Event::Fact(fact) => self.fact(entry, fact),
                Event::Note(Note::Asked { op, operation }) => self.ask(*op, operation, entry),
                Event::Note(Note::Answered { op, answer }) => self.answer(at, *op, answer, entry),
                Event::Note(Note::Crashed { .. }) => self.crashed = true,
                Event::Note(_) => {}
            }
        }
        self.verdicts
    }

    // --- facts --------------------------------------------------------------------------------

    fn fact(&mut self, entry: &Entry, fact: &Fact) {
        self.model.apply(fact);
        if let Fact::AgentPublished { agent, session, .. } = fact {
            self.published(*agent, session, &entry.actor);
        }
        if let Fact::SendAnswered { route: RouteCode::Started, task, .. } = fact
            && &*entry.actor == "0: main"
            && let Some(parent) = self.parents.first()
        {
            // After a restart every child is continued without an operation of its own.
            self.tasks.push((task.clone(), parent.session.clone()));
        }
        for pending in self.pending.values_mut() {
            extend(&self.model, pending, entry, fact);
        }
    }

    fn published(&mut self, agent: OwnerId, session: &SessionId, actor: &str) {
        if !self.asked {
            if session.as_str().starts_with("parent-") {
                self.parents.push(Parent {
                    session: session.clone(),
                    agents: vec![agent],
                    held: true,
                });
            }
            return;
        }
        let Some(parent) = self.parents.iter_mut().find(|parent| parent.session == *session) else {
            return;
        };
        // A reopened parent is known to its clients somewhere between here and the answer.
        parent.agents.push(agent);
        let reopens = |pending: &&mut Pending| {
            matches!(
                pending.operation,
                Operation::ReopenOwner { .. } | Operation::ReplaceOwner { .. }
            ) && actor.starts_with(spawner(&pending.actor))
        };
        if let Some(pending) = self.pending.values_mut().find(reopens) {
            pending.published = Some(agent);
        }
    }

    // --- questions ----------------------------------------------------------------------------

    fn ask(&mut self, op: u64, operation: &Operation, entry: &Entry) {
        self.asked = true;
        let mut pending = Pending {
            operation: operation.clone(),
            actor: entry.actor.clone(),
            asked_ms: entry.ms,
            allowed: Vec::new(),
            watch: Watch::Decided,
            owner: None,
            started: None,
            published: None,
        };
        if self.decide(&mut pending).is_none() {
            pending.answer(Answer::NoTarget);
        }
        self.pending.insert(op, pending);
    }

    /// What is allowed from what is known when it is asked; `None` if it has no target.
    fn decide(&mut self, pending: &mut Pending) -> Option<()> {
        match pending.operation.clone() {
            Operation::Start { parent, .. } => self.start_for(pending, parent, false),
            Operation::StartBadly { parent, wrong } => {
                self.start_for(pending, parent, wrong == BadStart::Label)
            }
            Operation::StartUnder { child, .. } => {
                let child = self.child(child)?;
                let owner = self.model.live(&child)?;
                pending.owner = Some(child);
                start(&self.model, pending, owner, false, true);
                Some(())
            }
            Operation::Job { parent, .. } => {
                let place = place(parent, self.parents.len())?;
                pending.owner = Some(self.parents[place].session.clone());
                for owner in self.parents[place].agents.clone() {
                    start(&self.model, pending, owner, false, false);
                }
                if let Watch::Start { job, .. } = &mut pending.watch {
                    *job = true;
                }
                Some(())
            }
            Operation::Send { .. } | Operation::SendOdd { .. } | Operation::SendBadly { .. } => {
                self.decide_send(pending)
            }
            Operation::Kill { .. } | Operation::Wait { .. } | Operation::Read { .. } => {
                self.decide_task(pending)
            }
            Operation::List { parent } => {
                let place = place(parent, self.parents.len())?;
                let count = self.model.listed(&self.parents[place].session);
                pending.answer(Answer::Listed { count });
                Some(())
            }
            Operation::Prompt { parent } => {
                let place = place(parent, self.parents.len())?;
                for agent in &self.parents[place].agents {
                    if self.model.is_mute(*agent) {
                        pending.refuse(ErrorCode::OwnerUnavailable);
                    } else {
                        pending.answer(Answer::Done);
                    }
                }
                Some(())
            }
            other => self.decide_behind(pending, &other),
        }
    }

    /// The sends, of a parent and of a person.
    fn decide_send(&self, pending: &mut Pending) -> Option<()> {
        match pending.operation.clone() {
            Operation::Send { parent, child, by, .. } => {
                let place = place(parent, self.parents.len())?;
                let child = self.child(child)?;
                if by == By::Human {
                    let parent = self.parents[place].session.clone();
                    pending.owner = Some(parent.clone());
                    pending.watch = Watch::PersonSends { parent, child };
                    person(&self.model, pending);
                    return Some(());
                }
                self.send_from(pending, place, &child);
                Some(())
            }
            Operation::SendOdd { parent, child, .. } => {
                let place = place(parent, self.parents.len())?;
                let child = self.child(child)?;
                self.send_from(pending, place, &child);
                Some(())
            }
            Operation::SendBadly { parent, id } => {
                let place = place(parent, self.parents.len())?;
                match id {
                    BadId::Empty | BadId::Long => pending.refuse(ErrorCode::InvalidInput),
                    BadId::Unknown => {
                        self.send_from(pending, place, &SessionId::new("nobody knows it"));
                    }
                    BadId::Escape => {
                        self.send_from(pending, place, &SessionId::new("../../etc/passwd"));
                    }
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Operations on the k-th newest Task.
    fn decide_task(&self, pending: &mut Pending) -> Option<()> {
        match pending.operation.clone() {
            Operation::Kill { task, by } => {
                let (task, parent) = self.task(task)?;
                if by == By::Human {
                    pending.watch = Watch::PersonKills { parent, task };
                    person(&self.model, pending);
                } else {
                    kill(&self.model, pending, &task);
                }
                Some(())
            }
            Operation::Wait { task, timeout_ms, .. } => {
                let (task, _) = self.task(task)?;
                if timeout_ms == 0 {
                    pending.refuse(ErrorCode::InvalidInput);
                } else if self.model.reachable(&task).is_none() {
                    pending.refuse(ErrorCode::UnknownTask);
                } else {
                    pending.watch = Watch::Wait { task, timeout_ms };
                }
                Some(())
            }
            Operation::Read { task } => {
                let (id, _) = self.task(task)?;
                match self.model.reachable(&id) {
                    None => pending.refuse(ErrorCode::UnknownTask),
                    Some(task) => {
                        let output = task.status.is_terminal() && task.output;
                        pending.allow(Allowed::Read(id, task.status, output));
                    }
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Operations on parents and parts.
    fn decide_behind(&mut self, pending: &mut Pending, operation: &Operation) -> Option<()> {
        match operation {
            Operation::Foreground { parent, .. } => {
                place(*parent, self.parents.len())?;
                pending.allow(Allowed::AnyRun);
                pending.allow(Allowed::AnyRefusal);
            }
            Operation::DisposeOwner { parent } | Operation::ReplaceOwner { parent } => {
                let place = place(*parent, self.parents.len())?;
                let replaces = matches!(operation, Operation::ReplaceOwner { .. });
                let held = std::mem::replace(&mut self.parents[place].held, false);
                if !held {
                    // Whoever is opening it again may have it by now.
                    if !self.is_reopening(place) {
                        return None;
                    }
                    pending.answer(Answer::NoTarget);
                }
                pending.answer(Answer::Done);
                if replaces {
                    pending.allow(Allowed::AnyRefusal);
                }
            }
            Operation::ReopenOwner { parent } => {
                let place = place(*parent, self.parents.len())?;
                if self.parents[place].held {
                    return None;
                }
                if self.is_reopening(place) {
                    pending.answer(Answer::NoTarget);
                }
                pending.answer(Answer::Done);
                pending.allow(Allowed::AnyRefusal);
            }
            Operation::Bypass { child, .. } => {
                self.child(*child)?;
                pending.answer(Answer::Done);
                pending.allow(Allowed::AnyRefusal);
            }
            Operation::Damage { child, how } => {
                let child = self.child(*child)?;
                pending.answer(Answer::NoTarget);
                if self.model.live(&child).is_none() || *how == crate::plan::Damage::Foreign {
                    pending.answer(Answer::Done);
                }
            }
            Operation::Compact { parent } => {
                place(*parent, self.parents.len())?;
                pending.answer(Answer::NoTarget);
                pending.answer(Answer::Done);
            }
            Operation::Load { part } => {
                if *part == crate::plan::Part::Control && std::mem::take(&mut self.control_unloaded)
                {
                    self.model.control_loaded();
                }
                pending.answer(Answer::Done);
            }
            _ => pending.answer(Answer::Done),
        }
        Some(())
    }

    fn is_reopening(&self, parent: usize) -> bool {
        self.pending.values().any(|pending| match pending.operation {
            Operation::ReopenOwner { parent: k } | Operation::ReplaceOwner { parent: k } => {
                place(k, self.parents.len()) == Some(parent)
            }
            _ => false,
        })
    }

    fn start_for(&self, pending: &mut Pending, parent: u64, nameless: bool) -> Option<()> {
        let place = place(parent, self.parents.len())?;
        pending.owner = Some(self.parents[place].session.clone());
        for owner in &self.parents[place].agents {
            start(&self.model, pending, *owner, nameless, true);
        }
        Some(())
    }

    fn send_from(&self, pending: &mut Pending, place: usize, child: &SessionId) {
        let parent = &self.parents[place];
        pending.owner = Some(parent.session.clone());
        for sender in &parent.agents {
            send(&self.model, pending, *sender, &parent.session, child);
        }
    }

    fn child(&self, child: u64) -> Option<SessionId> {
        Some(self.children[place(child, self.children.len())?].clone())
    }

    /// The k-th newest Task.
    fn task(&self, task: u64) -> Option<(TaskId, SessionId)> {
        let back = place(task, self.tasks.len())?;
        self.tasks.get(self.tasks.len() - 1 - back).cloned()
    }

    // --- answers ------------------------------------------------------------------------------

    fn answer(&mut self, at: usize, op: u64, answer: &Answer, entry: &Entry) {
        // A question of an earlier life was never answered; this one answers its own.
        let Some(mut pending) = self.pending.remove(&op) else { return };
        let took_ms = entry.ms - pending.asked_ms;
        conclude(&self.model, &mut pending, took_ms);
        if self.crashed {
            // It may have taken effect, all of it or none.
            pending.answer(Answer::Lost);
        }
        self.learn(&pending, answer);
        let allowed = pending.allowed;
        self.verdicts.push(Verdict { at, answer: answer.clone(), allowed });
    }

    /// What the clients know from an answer.
    fn learn(&mut self, pending: &Pending, answer: &Answer) {
        let owner = pending.owner.clone();
        match (answer, owner) {
            (Answer::Started { child, task }, Some(owner)) => {
                self.children.push(child.clone());
                self.tasks.push((task.clone(), owner));
            }
            (Answer::Sent { route: RouteCode::Started, task }, Some(owner)) => {
                self.tasks.push((task.clone(), owner));
            }
            (Answer::Done, Some(owner)) => {
                if let Some(task) = &pending.started {
                    self.tasks.push((task.clone(), owner));
                }
            }
            _ => {}
        }
        match (&pending.operation, answer) {
            (Operation::ReopenOwner { parent } | Operation::ReplaceOwner { parent }, _) => {
                let Some(place) = place(*parent, self.parents.len()) else { return };
                let other = self.is_reopening(place);
                let parent = &mut self.parents[place];
                if *answer == Answer::Done {
                    parent.held = true;
                }
                if let (Answer::Done, Some(agent), false) = (answer, pending.published, other) {
                    parent.agents = vec![agent];
                }
            }
            (Operation::Unload { part: crate::plan::Part::Control }, Answer::Done) => {
                self.control_unloaded = true;
            }
            _ => {}
        }
    }
}

/// An instance that was never published.
const NOBODY: OwnerId = OwnerId(u64::MAX);

/// The actor's path, without its name.
fn spawner(actor: &str) -> &str {
    actor.split(':').next().unwrap_or(actor)
}

/// A start by exactly that owner instance.
fn start(model: &Model, pending: &mut Pending, owner: OwnerId, nameless: bool, control: bool) {
    match model.obstacle(owner, control) {
        Some(Obstacle::ControlClosing | Obstacle::TasksClosing) => {
            pending.refuse(ErrorCode::Closing);
        }
        Some(Obstacle::NoSurface) => pending.refuse(ErrorCode::NoControlSurface),
        _ if nameless => pending.refuse(ErrorCode::InvalidInput),
        Some(Obstacle::OwnerGone) => pending.refuse(ErrorCode::OwnerUnavailable),
        None => pending.watch = Watch::Start { send: false, job: false },
    }
}

/// A send by exactly that owner instance (contract P1, I14; fact-sheet 7.4).
fn send(
    model: &Model,
    pending: &mut Pending,
    sender: OwnerId,
    session: &SessionId,
    child: &SessionId,
) {
    if model.control_closing() {
        return pending.refuse(ErrorCode::Closing);
    }
    let live = model.live(child);
    let Some(known) = model.association(child, session) else {
        if live.is_some() {
            return pending.refuse(ErrorCode::OwnershipConflict);
        }
        start(model, pending, sender, false, true);
        if let Watch::Start { send, .. } = &mut pending.watch {
            *send = true;
        }
        return;
    };
    if let (Some(agent), Some(live)) = (known.filled, live)
        && agent != Some(live)
    {
        return pending.refuse(ErrorCode::OwnershipConflict);
    }
    if known.owner_session.as_ref() != Some(session) {
        return pending.refuse(ErrorCode::ForeignTask);
    }
    let running = model.reachable(&known.task).is_some_and(|t| t.status == TaskStatus::Running);
    if !running || known.filled.is_none() {
        return pending.refuse(ErrorCode::NotDelivered);
    }
    if !model.is_current(sender) {
        return pending.refuse(ErrorCode::OwnerUnavailable);
    }
    pending.watch = Watch::Steer { task: known.task.clone(), message: None };
}

/// A kill by the Task's owner (contract P3).
fn kill(model: &Model, pending: &mut Pending, id: &TaskId) {
    match model.reachable(id) {
        None => pending.refuse(ErrorCode::UnknownTask),
        Some(task) if task.status.is_terminal() => {
            pending.answer(Answer::Killed { answer: KillAnswer::AlreadyFinished });
        }
        Some(task) if task.kind == "job" => {
            pending.answer(Answer::Killed { answer: KillAnswer::Requested });
            pending.refuse(ErrorCode::ProducerFailed);
            pending.watch = Watch::Hook { task: id.clone() };
        }
        Some(_) => pending.answer(Answer::Killed { answer: KillAnswer::Requested }),
    }
}

/// What a person may be told now; a state they meet is one of those between question and answer.
fn person(model: &Model, pending: &mut Pending) {
    pending.answer(Answer::Lost);
    if model.control_closed_once {
        pending.refuse(ErrorCode::Closing);
    }
    match pending.watch.clone() {
        Watch::PersonKills { parent, task } => {
            if model.live(&parent).is_none() {
                pending.refuse(ErrorCode::OwnerUnavailable);
            }
            kill(model, pending, &task);
            pending.watch = Watch::PersonKills { parent, task };
        }
        Watch::PersonSends { parent, child } => {
            let sender = model.live(&parent);
            if sender.is_none() {
                // The adapter finds nobody; without one the person holds an instance that is gone.
                pending.refuse(ErrorCode::OwnerUnavailable);
            }
            send(model, pending, sender.unwrap_or(NOBODY), &parent, &child);
            if matches!(pending.watch, Watch::Steer { .. }) {
                // The steer may lose every race on its way.
                pending.refuse(ErrorCode::NotDelivered);
                if pending.give_up().is_some_and(|give_up| !give_up.dropped) {
                    pending.refuse(ErrorCode::Cancelled);
                }
            }
            pending.watch = Watch::PersonSends { parent, child };
        }
        _ => {}
    }
}

/// Takes one fact into what a pending call may be answered.
fn extend(model: &Model, pending: &mut Pending, entry: &Entry, fact: &Fact) {
    let own = entry.actor == pending.actor;
    match (&mut pending.watch, fact) {
        (Watch::Start { job, .. }, Fact::TaskStarted { task, .. }) if own => {
            pending.started = Some(task.clone());
            if *job {
                pending.answer(Answer::Done);
            }
        }
        (Watch::Start { send, job: false }, Fact::AssociationInstalled { child, task, .. })
            if own =>
        {
            let answer = if *send {
                Answer::Sent { route: RouteCode::Started, task: task.clone() }
            } else {
                Answer::Started { child: child.clone(), task: task.clone() }
            };
            pending.answer(answer);
        }
        (Watch::Steer { message, .. }, Fact::SendRouted { message: routed, .. }) if own => {
            *message = Some(routed.clone());
        }
        (
            Watch::Steer { task, message: Some(own) },
            Fact::ReceiptSettled { message, admitted, .. },
        ) if own == message => {
            let task = task.clone();
            if admitted.is_some() {
                pending.answer(Answer::Sent { route: RouteCode::Steered, task });
            } else {
                pending.refuse(ErrorCode::NotDelivered);
            }
        }
        (Watch::Steer { message: Some(own), .. }, Fact::MessageRefused { message, .. })
            if own == message =>
        {
            pending.refuse(ErrorCode::NotDelivered);
        }
        (Watch::Hook { task }, _) => {
            let task = task.clone();
            match model.reachable(&task) {
                None => pending.refuse(ErrorCode::UnknownTask),
                Some(standing) if standing.status.is_terminal() => {
                    pending.answer(Answer::Killed { answer: KillAnswer::AlreadyFinished });
                }
                Some(_) => {}
            }
        }
        (
            Watch::PersonSends { parent, child },
            Fact::SendRouted { child: to, sender, route, task, .. },
        ) if child == to && model.session(*sender) == Some(parent) => {
            pending.answer(Answer::Sent { route: *route, task: task.clone() });
        }
        (Watch::PersonSends { .. } | Watch::PersonKills { .. }, _) => person(model, pending),
        _ => {}
    }
}

/// What only the moment of the answer decides: how long it took, and where the Task stands.
fn conclude(model: &Model, pending: &mut Pending, took_ms: u64) {
    let gave_up = pending.give_up().filter(|give_up| took_ms >= give_up.after_ms);
    match pending.watch.clone() {
        Watch::Steer { message, .. } => {
            if message.is_some() && pending.allowed.is_empty() {
                // It lost before it reached any queue.
                pending.refuse(ErrorCode::NotDelivered);
            }
            match gave_up {
                Some(GiveUp { dropped: true, .. }) => pending.answer(Answer::GaveUp),
                Some(GiveUp { dropped: false, .. }) => pending.refuse(ErrorCode::Cancelled),
                None => {}
            }
        }
        Watch::Wait { task: id, timeout_ms } => {
            if let Some(task) = model.tasks.get(&id) {
                let status = task.status;
                let over = status.is_terminal() && task.released;
                if over || (!status.is_terminal() && took_ms >= timeout_ms) {
                    pending.answer(Answer::Seen { task: id, status, output: None });
                }
            }
            match gave_up {
                Some(GiveUp { dropped: true, .. }) => pending.answer(Answer::GaveUp),
                Some(GiveUp { dropped: false, .. }) => pending.refuse(ErrorCode::WaitAborted),
                None => {}
            }
        }
        Watch::PersonSends { .. } if gave_up.is_some_and(|give_up| give_up.dropped) => {
            pending.answer(Answer::GaveUp);
        }
        Watch::PersonSends { .. } if gave_up.is_some() => pending.refuse(ErrorCode::Cancelled),
        _ => {
            let foreground = matches!(pending.operation, Operation::Foreground { .. });
            if foreground && gave_up.is_some_and(|give_up| give_up.dropped) {
                pending.answer(Answer::GaveUp);
            }
        }
    }
}
