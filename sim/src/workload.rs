//! The workload: carries out a plan on a deployment, records every operation and its answer, then
//! heals and brings everything to rest.
//!
//! A plan may take several lives of the process. What a life hands on to the next is its [`Saga`]:
//! which sessions exist and how far each client came, never anything of the process's memory.
//! Reading order: this file, [`children`] (starts and sends), [`owners`] (parents, Tasks, parts),
//! [`rest`] (the end).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use continuable::agent::{Agent, AgentHandle};
use continuable::cancel::CancelSignal;
use continuable::facts::CancelScope;
use continuable::ids::{SessionId, TaskId};
use continuable::runtime::{BoxFuture, Runtime, spawn};
use continuable::task::TaskService;
use continuable::vocabulary::CancelCause;

use crate::deployment::Deployment;
use crate::explore::SimRuntime;
use crate::plan::{By, Ending, GiveUp, Operation, Plan, Planned};
use crate::trace::{Answer, Event, Note};

mod children;
mod owners;
mod rest;

/// A parent: its current instance, and the right to dispose it.
struct Parent {
    id: SessionId,
    agent: Agent,
    handle: Option<AgentHandle>,
}

/// What the clients of one life know of.
#[derive(Default)]
struct Known {
    parents: Vec<Parent>,
    /// Each Task with the session that may reach it.
    tasks: Vec<(TaskId, SessionId)>,
    /// The run comes to its end: nothing new is asked for.
    resting: bool,
}

/// What outlives a process: the names of what is stored, and how far the clients came.
#[derive(Debug, Default)]
pub struct Saga {
    /// Which life it is.
    pub life: u64,
    /// Every child, in the order of the starts.
    pub children: Vec<SessionId>,
    /// Operations that were asked for and not answered.
    pub open: BTreeSet<u64>,
    /// Whether the clients are done: only the end is left.
    pub finishing: bool,
    /// Whether faults are over; the world engine heals its network then.
    pub healed: bool,
    /// How many operations of each client were begun.
    begun: Vec<usize>,
}

/// A [`Saga`] that its lives share.
pub type SharedSaga = Arc<Mutex<Saga>>;

/// A person, where they reach the runtime across a network.
pub trait Person: Send + Sync {
    /// Carries out what `target` says.
    fn act(&self, target: Target) -> BoxFuture<'static, Answer>;
}

/// What a person does, with its targets by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Sends a message.
    Send {
        /// Through this loaded parent.
        parent: SessionId,
        /// To this child.
        child: SessionId,
        /// What.
        text: String,
        /// The caller gives up so.
        give_up: Option<GiveUp>,
    },
    /// Kills a Task.
    Kill {
        /// As this parent.
        parent: SessionId,
        /// Which.
        task: TaskId,
    },
}

/// A plan being carried out, in one life.
pub struct Workload {
    deployment: Deployment,
    plan: Arc<Plan>,
    saga: SharedSaga,
    person: Option<Arc<dyn Person>>,
    rest_ms: u64,
    known: Mutex<Known>,
}

/// How long the run waits for a Task to end by itself once faults are healed, in virtual
/// milliseconds; longer than any script, so that only what hangs is left.
pub const REST_MS: u64 = 60_000;

impl Workload {
    /// Carries out `plan` on `deployment`, from where `saga` left off.
    pub fn new(deployment: Deployment, plan: Arc<Plan>, saga: SharedSaga) -> Arc<Self> {
        Self::across(deployment, plan, saga, None, REST_MS)
    }

    /// The same with a person who reaches it across a network, and with `rest_ms` of patience.
    pub fn across(
        deployment: Deployment,
        plan: Arc<Plan>,
        saga: SharedSaga,
        person: Option<Arc<dyn Person>>,
        rest_ms: u64,
    ) -> Arc<Self> {
        Arc::new(Self { deployment, plan, saga, person, rest_ms, known: Mutex::default() })
    }

    /// Whether a person takes part in the plan.
    pub fn has_human(plan: &Plan) -> bool {
        plan.clients.iter().flatten().any(|planned| planned.operation.is_human())
    }

    /// What it runs on.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saga(&self) -> MutexGuard<'_, Saga> {
        self.saga.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A fault that a client makes.
    fn struck(&self, kind: &str, at: &str) {
        self.note(Note::Struck { fault: None, kind: kind.to_owned(), at: at.to_owned() });
    }

    /// The process dies by a client's hand; never answers.
    async fn crash(&self, by: &str) -> Answer {
        self.struck(by, "the process");
        self.deployment.ground.disk.freeze();
        self.deployment.runtime.request_crash(by.to_owned());
        std::future::pending().await
    }

    /// The whole life: parents, clients, heal, rest.
    pub async fn run(self: Arc<Self>) {
        let later = self.saga().life > 0;
        if later {
            self.script_children();
        }
        for number in 0..self.plan.parents.max(1) {
            self.open_parent(number, later).await;
        }
        let left = self.clients().await;
        let finishing = std::mem::replace(&mut self.saga().finishing, true);
        if self.plan.ending == Ending::Restart {
            if !finishing {
                self.crash("restart at the end").await;
            }
            self.continue_all().await;
        }
        self.rest().await;
        if let Some(clients) = left {
            clients.await;
        }
    }

    /// Lets every client do what is left of its operations; those that wait for a child that hangs
    /// by its script are met again at the end.
    async fn clients(self: &Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let mut clients = Vec::new();
        let mut first = 0;
        self.saga().begun.resize(self.plan.clients.len(), 0);
        for (number, operations) in self.plan.clients.iter().enumerate() {
            let client = Arc::clone(self).client(number, first);
            first += operations.len() as u64;
            clients.push(spawn(&self.runtime(), format!("client {number}"), client));
        }
        // A panic of the workload itself is recorded as ours and fails the run.
        let mut clients: BoxFuture<'static, ()> = Box::pin(async move {
            for client in clients {
                drop(client.await);
            }
        });
        let patience = self.runtime().sleep(Duration::from_millis(self.rest_ms));
        tokio::select! {
            biased;
            () = clients.as_mut() => None,
            () = patience => Some(clients),
        }
    }

    async fn client(self: Arc<Self>, number: usize, first: u64) {
        loop {
            let begun = self.saga().begun[number];
            let Some(planned) = self.plan.clients[number].get(begun) else { return };
            let Planned { after_ms, operation } = planned.clone();
            if after_ms > 0 {
                self.runtime().sleep(Duration::from_millis(after_ms)).await;
            }
            if self.known().resting {
                return;
            }
            let op = first + begun as u64;
            {
                let mut saga = self.saga();
                saga.begun[number] += 1;
                saga.open.insert(op);
            }
            self.note(Note::Asked { op, operation: operation.clone() });
            let answer = self.perform(op, operation).await;
            self.saga().open.remove(&op);
            self.note(Note::Answered { op, answer });
        }
    }

    async fn perform(self: &Arc<Self>, op: u64, operation: Operation) -> Answer {
        match operation {
            Operation::Start { parent, provider, structured } => {
                self.start(parent, provider, structured)
            }
            Operation::StartUnder { child, provider } => self.start_under(child, provider),
            Operation::StartBadly { parent, wrong } => self.start_badly(parent, wrong),
            Operation::Foreground { parent, provider, give_up } => {
                self.foreground(op, parent, provider, give_up).await
            }
            Operation::Job { parent, ms, stubborn } => self.job(parent, ms, stubborn),
            Operation::Send { parent, child, by, give_up } => {
                self.send(op, parent, child, by, give_up).await
            }
            Operation::SendOdd { parent, child, what } => {
                self.send_odd(op, parent, child, what).await
            }
            Operation::SendBadly { parent, id } => self.send_badly(op, parent, id).await,
            Operation::Kill { task, by } => self.kill(task, by).await,
            Operation::Wait { task, timeout_ms, give_up } => {
                self.wait(op, task, timeout_ms, give_up).await
            }
            Operation::Read { task } => self.read(task).await,
            Operation::List { parent } => self.list(parent),
            Operation::Prompt { parent } => self.prompt(parent).await,
            Operation::DisposeOwner { parent } => self.dispose_owner(parent).await,
            Operation::ReopenOwner { parent } => self.reopen_owner(parent).await,
            Operation::ReplaceOwner { parent } => self.replace_owner(parent).await,
            Operation::Bypass { child, hold_ms } => self.bypass(child, hold_ms).await,
            Operation::Damage { child, how } => self.damage(child, how),
            Operation::Unload { part } => self.unload(part).await,
            Operation::Load { part } => {
                self.deployment.load(part);
                Answer::Done
            }
            Operation::Compact { parent } => self.compact(parent),
            Operation::ClockJump { ms } => {
                self.struck("clock jump", "the wall clock");
                self.deployment.runtime.jump_clock(ms);
                Answer::Done
            }
            Operation::Crash => self.crash("crash by a client").await,
        }
    }

    /// A signal for one call.
    fn call_signal(&self, op: u64) -> CancelSignal {
        CancelSignal::new(self.runtime(), CancelScope::Call { call: format!("operation {op}") })
    }

    /// Awaits `call` until it answers, or until its caller gives up: by dropping it (`None`), or by
    /// its signal, which the call itself answers.
    async fn patiently<T>(
        &self,
        call: impl Future<Output = T>,
        signal: &CancelSignal,
        give_up: Option<GiveUp>,
    ) -> Option<T> {
        let Some(GiveUp { after_ms, dropped }) = give_up else { return Some(call.await) };
        let asleep = self.runtime().sleep(Duration::from_millis(after_ms));
        if dropped {
            return tokio::select! {
                biased;
                answer = call => Some(answer),
                () = asleep => None,
            };
        }
        let fired = signal.clone();
        let impatience = async move {
            asleep.await;
            fired.cancel(CancelCause::CallerGone);
        };
        spawn(&self.runtime(), "impatience", impatience).detach();
        Some(call.await)
    }

    // --- targets ------------------------------------------------------------------------------

    fn parent(&self, parent: u64) -> Option<(usize, Agent)> {
        let known = self.known();
        let place = place(parent, known.parents.len())?;
        Some((place, known.parents[place].agent.clone()))
    }

    fn child(&self, child: u64) -> Option<SessionId> {
        let saga = self.saga();
        Some(saga.children[place(child, saga.children.len())?].clone())
    }

    /// The k-th newest Task, with the session that may reach it.
    fn task(&self, task: u64) -> Option<(TaskId, SessionId)> {
        let known = self.known();
        let back = place(task, known.tasks.len())?;
        known.tasks.get(known.tasks.len() - 1 - back).cloned()
    }

    /// The person, if `by` is one and they reach the runtime across a network.
    fn person(&self, by: By) -> Option<&Arc<dyn Person>> {
        self.person.as_ref().filter(|_| by == By::Human)
    }
}

/// The place of the k-th of `length` things, wrapping around.
fn place(k: u64, length: usize) -> Option<usize> {
    usize::try_from(k.checked_rem(length as u64)?).ok()
}
