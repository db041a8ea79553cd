//! The workload: carries out a plan on a deployment, records every operation and its answer, then
//! heals and brings everything to rest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use continuable::agent::{Agent, AgentHandle, CreateAgent, ResumeAgent};
use continuable::cancel::CancelSignal;
use continuable::control::{ContinuableStartSpec, ControlError, Delivery};
use continuable::error::ErrorCode;
use continuable::facts::CancelScope;
use continuable::ids::{SESSION_ID_MAX_UNITS, SessionId, TaskId};
use continuable::message::{ContentBlock, Message, MessageSource};
use continuable::runtime::{Runtime, fresh_message_id, fresh_session_id, spawn};
use continuable::session::highest_task_ordinals;
use continuable::store::path::SessionPlace;
use continuable::task::{TaskError, TaskService, TaskSnapshot};
use continuable::vocabulary::{CancelCause, RouteCode};

use crate::deployment::Deployment;
use crate::explore::SimRuntime;
use crate::plan::{BadId, BadStart, By, Ending, Operation, Plan, Planned, Provider};
use crate::trace::{Answer, Event, Note};

/// How long the run waits for a Task to end by itself once faults are healed, in virtual
/// milliseconds; longer than any script, so that only what hangs is left.
const REST_MS: u64 = 60_000;

/// A parent: its current instance, and the right to dispose it.
struct Parent {
    id: SessionId,
    agent: Agent,
    handle: Option<AgentHandle>,
}

/// What the clients know of.
#[derive(Default)]
struct Known {
    parents: Vec<Parent>,
    children: Vec<SessionId>,
    /// Each Task with its parent's place.
    tasks: Vec<(TaskId, usize)>,
    /// The run comes to its end: nothing new is asked for.
    resting: bool,
}

/// A plan being carried out.
pub struct Workload {
    deployment: Deployment,
    plan: Plan,
    known: Mutex<Known>,
}

impl Workload {
    /// Carries out `plan` on `deployment`.
    pub fn new(deployment: Deployment, plan: Plan) -> Arc<Self> {
        Arc::new(Self { deployment, plan, known: Mutex::default() })
    }

    /// What it runs on.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> &Arc<TaskService> {
        &self.deployment.tasks
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::<SimRuntime>::clone(&self.deployment.runtime)
    }

    fn note(&self, note: Note) {
        self.deployment.runtime.record(Event::Note(note));
    }

    /// The whole life: parents, clients, heal, rest.
    pub async fn run(self: Arc<Self>) {
        for number in 0..self.plan.parents.max(1) {
            self.create_parent(number).await;
        }
        let mut clients = Vec::new();
        let mut first = 0;
        for (number, operations) in self.plan.clients.iter().enumerate() {
            let client = Arc::clone(&self).client(first, operations.clone());
            first += operations.len() as u64;
            clients.push(spawn(&self.runtime(), format!("client {number}"), client));
        }
        // A panic of the workload itself is recorded as ours and fails the run.
        let mut clients = Box::pin(async move {
            for client in clients {
                drop(client.await);
            }
        });
        // A client may wait for a child that hangs by its script: then it is met again at the end.
        let patience = self.runtime().sleep(Duration::from_millis(REST_MS));
        let left = tokio::select! {
            biased;
            () = clients.as_mut() => false,
            () = patience => true,
        };
        self.rest().await;
        if left {
            clients.await;
        }
    }

    async fn create_parent(&self, number: u64) {
        let id = SessionId::new(format!("parent-{number}"));
        self.deployment.script(&id, &self.plan.parent_script);
        // A parent writes nothing before its first turn, so no fault of the disk can strike here.
        if let Ok(handle) = self.deployment.agents.create(CreateAgent::new(id.clone())).await {
            let agent = handle.agent().clone();
            self.known().parents.push(Parent { id, agent, handle: Some(handle) });
        }
    }

    async fn client(self: Arc<Self>, first: u64, operations: Vec<Planned>) {
        for (number, planned) in operations.into_iter().enumerate() {
            if planned.after_ms > 0 {
                self.runtime().sleep(Duration::from_millis(planned.after_ms)).await;
            }
            if self.known().resting {
                return;
            }
            let op = first + number as u64;
            self.note(Note::Asked { op, operation: planned.operation.clone() });
            let answer = self.perform(op, planned.operation).await;
            self.note(Note::Answered { op, answer });
        }
    }

    async fn perform(&self, op: u64, operation: Operation) -> Answer {
        match operation {
            Operation::Start { parent, provider } => self.start(parent, provider, None),
            Operation::StartBadly { parent, wrong } => {
                self.start(parent, Provider::Spawn, Some(wrong))
            }
            Operation::Send { parent, child, by, give_up_ms } => {
                self.send(op, parent, child, by, give_up_ms).await
            }
            Operation::SendBadly { parent, id } => self.send_badly(op, parent, id).await,
            Operation::Kill { task, .. } => self.kill(task).await,
            Operation::Wait { task, timeout_ms } => self.wait(task, timeout_ms).await,
            Operation::Read { task } => self.read(task).await,
            Operation::Prompt { parent } => self.prompt(parent).await,
            Operation::DisposeOwner { parent } => self.dispose_owner(parent).await,
            Operation::ReopenOwner { parent } => self.reopen_owner(parent).await,
            Operation::Tear { child } => self.tear(child),
            Operation::Surface { attached } => {
                self.deployment.set_surface(attached);
                Answer::Done
            }
        }
    }

    // --- children -----------------------------------------------------------------------------

    fn start(&self, parent: u64, provider: Provider, wrong: Option<BadStart>) -> Answer {
        let Some((place, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let name = match wrong {
            Some(BadStart::NoProvider) => "nobody",
            _ => self.deployment.provider(provider),
        };
        let label = if wrong == Some(BadStart::Label) { "" } else { "work" };
        let mut spec = ContinuableStartSpec::text(name, label, "begin");
        spec.max_depth = (wrong == Some(BadStart::Depth)).then_some(0);
        match self.deployment.control.start_continuable(&agent, spec) {
            Ok(started) => {
                let mut known = self.known();
                let script = self.plan.scripts.get(known.children.len() % self.scripts());
                known.children.push(started.child.clone());
                known.tasks.push((started.task.clone(), place));
                drop(known);
                self.deployment.script(&started.child, script.map_or(&[], Vec::as_slice));
                Answer::Started { child: started.child, task: started.task }
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    fn scripts(&self) -> usize {
        self.plan.scripts.len().max(1)
    }

    async fn send(
        &self,
        op: u64,
        parent: u64,
        child: u64,
        by: By,
        give_up_ms: Option<u64>,
    ) -> Answer {
        let Some((place, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        let scope = CancelScope::Call { call: format!("send {op}") };
        let signal = CancelSignal::new(self.runtime(), scope);
        let patience = give_up_ms.map(Duration::from_millis);
        let send = self.deliver(op, &agent, child.as_str(), by, &signal);
        let sent = match (patience, give_up_ms) {
            (None, _) | (_, None) => Some(send.await),
            // The caller is dropped.
            (Some(patience), Some(ms)) if ms % 2 == 0 => {
                let asleep = self.runtime().sleep(patience);
                tokio::select! {
                    biased;
                    sent = send => Some(sent),
                    () = asleep => None,
                }
            }
            // The caller's signal fires.
            (Some(patience), Some(_)) => {
                let (asleep, fired) = (self.runtime().sleep(patience), signal.clone());
                let impatience = async move {
                    asleep.await;
                    fired.cancel(CancelCause::CallerGone);
                };
                spawn(&self.runtime(), "impatience", impatience).detach();
                Some(send.await)
            }
        };
        self.sent(place, sent)
    }

    fn sent(&self, place: usize, sent: Option<Result<Delivery, ControlError>>) -> Answer {
        match sent {
            None => Answer::GaveUp,
            Some(Err(error)) => Answer::Refused { code: error.code() },
            Some(Ok(Delivery { route, task })) => {
                if route == RouteCode::Started {
                    self.known().tasks.push((task.clone(), place));
                }
                Answer::Sent { route, task }
            }
        }
    }

    async fn deliver(
        &self,
        op: u64,
        agent: &Agent,
        child: &str,
        by: By,
        signal: &CancelSignal,
    ) -> Result<Delivery, ControlError> {
        let source = match by {
            By::Human => MessageSource::User,
            By::Parent => MessageSource::Coordinator { sender_session_id: agent.id().clone() },
        };
        let content = vec![ContentBlock::text(format!("message {op}"))];
        let control = &self.deployment.control;
        control.send_message(agent, child, content, source, Some(signal)).await
    }

    async fn send_badly(&self, op: u64, parent: u64, id: BadId) -> Answer {
        let Some((place, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let child = match id {
            BadId::Empty => String::new(),
            BadId::Long => "x".repeat(SESSION_ID_MAX_UNITS + 1),
            BadId::Unknown => fresh_session_id(&*self.runtime()).as_str().to_owned(),
            BadId::Escape => "../../etc/passwd".to_owned(),
        };
        let scope = CancelScope::Call { call: format!("send {op}") };
        let signal = CancelSignal::new(self.runtime(), scope);
        let sent = self.deliver(op, &agent, &child, By::Parent, &signal).await;
        self.sent(place, Some(sent))
    }

    // --- targets ------------------------------------------------------------------------------

    fn parent(&self, parent: u64) -> Option<(usize, Agent)> {
        let known = self.known();
        let place = place(parent, known.parents.len())?;
        Some((place, known.parents[place].agent.clone()))
    }

    fn child(&self, child: u64) -> Option<SessionId> {
        let known = self.known();
        Some(known.children[place(child, known.children.len())?].clone())
    }

    /// The k-th newest Task, with the session that may reach it.
    fn task(&self, task: u64) -> Option<(TaskId, SessionId)> {
        let known = self.known();
        let back = place(task, known.tasks.len())?;
        let (id, parent) = &known.tasks[known.tasks.len() - 1 - back];
        Some((id.clone(), known.parents[*parent].id.clone()))
    }

    /// Half a line at the end of a log that no live agent owns.
    fn tear(&self, child: u64) -> Answer {
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        let live = self.deployment.agents.get(&child).is_some();
        let Some(place) = SessionPlace::of(&child, None).ok().filter(|_| !live) else {
            return Answer::NoTarget;
        };
        let tear = |bytes: &mut Vec<u8>| bytes.extend_from_slice(b"{\"seq\":");
        if self.deployment.disk.damage(&place.log, tear) { Answer::Done } else { Answer::NoTarget }
    }

    // --- parents ------------------------------------------------------------------------------

    async fn prompt(&self, parent: u64) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let runtime = self.runtime();
        let message = Message::user(fresh_message_id(&*runtime), "go on", MessageSource::User);
        if !agent.followup(message) {
            return Answer::Refused { code: ErrorCode::OwnerUnavailable };
        }
        agent.when_idle().await;
        Answer::Done
    }

    async fn dispose_owner(&self, parent: u64) -> Answer {
        let handle = {
            let mut known = self.known();
            let Some(place) = place(parent, known.parents.len()) else { return Answer::NoTarget };
            known.parents[place].handle.take()
        };
        let Some(handle) = handle else { return Answer::NoTarget };
        handle.dispose().await;
        Answer::Done
    }

    async fn reopen_owner(&self, parent: u64) -> Answer {
        let (place, id) = {
            let known = self.known();
            let Some(place) = place(parent, known.parents.len()) else { return Answer::NoTarget };
            if known.parents[place].handle.is_some() {
                return Answer::NoTarget;
            }
            (place, known.parents[place].id.clone())
        };
        match self.deployment.agents.resume(ResumeAgent::new(id)).await {
            Ok(handle) => {
                let events = handle.agent().session().snapshot_from(0);
                for (kind, highest) in highest_task_ordinals(&events) {
                    self.tasks().raise_counter(&kind, highest);
                }
                let mut known = self.known();
                known.parents[place].agent = handle.agent().clone();
                // Two clients may have reopened it: the registry let only one through.
                let before = known.parents[place].handle.replace(handle);
                drop(known);
                drop(before);
                Answer::Done
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    // --- Tasks --------------------------------------------------------------------------------

    async fn kill(&self, task: u64) -> Answer {
        let Some((id, caller)) = self.task(task) else { return Answer::NoTarget };
        match self.tasks().kill(&id, Some(&caller), None).await {
            Ok(answer) => Answer::Killed { answer },
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    async fn wait(&self, task: u64, timeout_ms: u64) -> Answer {
        let Some((id, caller)) = self.task(task) else { return Answer::NoTarget };
        let timeout = Some(Duration::from_millis(timeout_ms));
        seen(self.tasks().wait(&id, Some(&caller), timeout, None).await)
    }

    async fn read(&self, task: u64) -> Answer {
        let Some((id, caller)) = self.task(task) else { return Answer::NoTarget };
        match self.tasks().read(&id, Some(&caller)).await {
            Ok(read) => {
                Answer::Seen { task: id, status: read.snapshot.status, output: Some(read.text) }
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    // --- the end ------------------------------------------------------------------------------

    /// Heals the disk, lets everything end, stops what does not, and closes every service.
    async fn rest(&self) {
        self.known().resting = true;
        let open = self.open_tasks();
        self.note(Note::Healed { pending: open.len() as u64 });
        self.deployment.disk.heal();
        match self.plan.ending {
            Ending::Patience => self.wait_or_kill(open).await,
            Ending::Owners => {}
            Ending::Control => self.deployment.control.dispose().await,
            Ending::Tasks => self.tasks().dispose().await,
        }
        let handles: Vec<_> =
            self.known().parents.iter_mut().filter_map(|parent| parent.handle.take()).collect();
        for handle in &handles {
            handle.dispose().await;
        }
        drop(handles);
        self.deployment.control.dispose().await;
        self.tasks().dispose().await;
        self.deployment.agents.dispose().await;
        // What could not be confirmed was recorded by the store as facts.
        drop(self.deployment.store.close().await);
        self.deployment.set_surface(false);
    }

    async fn wait_or_kill(&self, open: Vec<(TaskId, SessionId)>) {
        for (id, caller) in open {
            let patience = Some(Duration::from_millis(REST_MS));
            let waited = self.tasks().wait(&id, Some(&caller), patience, None).await;
            if waited.is_ok_and(|task| !task.status.is_terminal()) {
                // It hangs by its script.
                drop(self.tasks().kill(&id, Some(&caller), None).await);
                drop(self.tasks().wait(&id, Some(&caller), None, None).await);
            }
        }
    }

    fn open_tasks(&self) -> Vec<(TaskId, SessionId)> {
        let known = self.known();
        let open = known.tasks.iter().filter_map(|(id, parent)| {
            let caller = known.parents[*parent].id.clone();
            let task = self.tasks().get(id, Some(&caller)).ok()?;
            (!task.status.is_terminal()).then_some((id.clone(), caller))
        });
        open.collect()
    }
}

/// The place of the k-th of `length` things, wrapping around.
fn place(k: u64, length: usize) -> Option<usize> {
    usize::try_from(k.checked_rem(length as u64)?).ok()
}

fn seen(waited: Result<TaskSnapshot, TaskError>) -> Answer {
    match waited {
        Ok(task) => Answer::Seen { task: task.id, status: task.status, output: None },
        Err(error) => Answer::Refused { code: error.code() },
    }
}
