//! What a race's script stands on: the real stack on the explorer, its gates, and the window in
//! which every step is a choice.

use std::sync::{Arc, Mutex, PoisonError};

use continuable::agent::{Agent, AgentHandle, CreateAgent};
use continuable::cancel::CancelSignal;
use continuable::control::{ContinuableStart, ContinuableStartSpec, ControlError, Delivery};
use continuable::facts::{CancelScope, Fact};
use continuable::ids::{SessionId, TaskId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::model::ModelRequest;
use continuable::model::script::Step;
use continuable::runtime::{BoxFuture, Runtime, spawn};
use continuable::store::disk::{DiskOperation, DiskPath};
use continuable::vocabulary::{KillAnswer, RouteCode};

use super::Script;
use super::search::Window;
use crate::deployment::{Deployment, Ground};
use crate::disk::{DiskFault, SimDisk};
use crate::explore::{RunRecord, Sampler, SimRuntime};
use crate::plan::{Ending, Hook, PLAN_VERSION, Plan, Suite};
use crate::probe::Confirmed;
use crate::run::crash_disk;
use crate::trace::Recovered;

mod gates;

pub use gates::Flushes;

/// One contender of a race: its name, and what it does and answers.
pub struct Racer {
    name: &'static str,
    body: BoxFuture<'static, String>,
}

impl Racer {
    /// A contender.
    pub fn new(name: &'static str, body: impl Future<Output = String> + Send + 'static) -> Self {
        Self { name, body: Box::pin(body) }
    }
}

/// A parent, with the right to dispose it.
pub struct Parent {
    /// Its agent.
    pub agent: Agent,
    /// The right.
    pub handle: AgentHandle,
}

/// The stage of one schedule. Cloning shares it.
#[derive(Clone)]
pub struct Stage {
    /// The explorer's runtime.
    pub runtime: Arc<SimRuntime>,
    window: Arc<Window>,
    deployment: Arc<Mutex<Option<Arc<Deployment>>>>,
    /// What each racer was told, in the order of their names' arrival.
    said: Arc<Mutex<Vec<Said>>>,
    /// What outlives the process.
    pub memory: Memory,
}

/// What outlives a process: the disk, what was confirmed on it, and what a crash left.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// The disk.
    pub disk: SimDisk,
    /// What earlier lives confirmed.
    pub confirmed: Confirmed,
    /// Names that a script wants to know again in its next life.
    pub known: Arc<Mutex<Vec<SessionId>>>,
    /// What the last crash left of each session.
    pub recovered: Arc<Mutex<Vec<Recovered>>>,
}

impl Memory {
    /// The machine died: of everything that was not durable the disk keeps nothing, all, half, or
    /// every other thing.
    pub(super) fn crash(&self, record: &RunRecord) {
        let (mode, mut asked) = (record.choose(4), 0_u64);
        let mut keep = |options: u64| {
            asked += 1;
            match (mode, asked % 2) {
                (0, _) | (3, 0) => 0,
                (2, _) => options / 2,
                _ => options - 1,
            }
        };
        let left = crash_disk(&self.disk, &mut keep, &self.confirmed);
        *self.recovered.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

/// A racer's name, and the word it was told.
type Said = (&'static str, Option<String>);

impl Stage {
    pub(super) fn new(runtime: Arc<SimRuntime>, window: Arc<Window>, memory: Memory) -> Self {
        Self { runtime, window, deployment: Arc::default(), said: Arc::default(), memory }
    }

    fn shared(&self) -> Arc<dyn Runtime> {
        Arc::<SimRuntime>::clone(&self.runtime)
    }

    // --- before the race ----------------------------------------------------------------------

    /// Assembles the whole stack; call it first.
    pub fn assemble(&self) -> Arc<Deployment> {
        self.assemble_for(&plan())
    }

    /// The same for a plan with something special in it.
    pub fn assemble_for(&self, plan: &Plan) -> Arc<Deployment> {
        let ground = Ground {
            disk: self.memory.disk.clone(),
            confirmed: self.memory.confirmed.clone(),
            ..Ground::new(&self.runtime, None)
        };
        ground.scripts.set_recording(true);
        let deployment = Arc::new(Deployment::new(&self.runtime, plan, ground));
        let place = &mut *self.deployment.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&deployment));
        deployment
    }

    /// What was assembled.
    ///
    /// # Panics
    ///
    /// If nothing was: an error of the script.
    pub fn deployment(&self) -> Arc<Deployment> {
        let deployment = self.deployment.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(deployment.as_ref().expect("the script assembles first"))
    }

    /// A parent without a turn of its own.
    ///
    /// # Panics
    ///
    /// If it cannot be created: an error of the script.
    pub async fn parent(&self, id: &str) -> Parent {
        let create = CreateAgent::new(SessionId::new(id));
        let handle = self.deployment().agents.create(create).await.expect("the id is free");
        Parent { agent: handle.agent().clone(), handle }
    }

    /// Starts a child of `parent` whose model follows `script`.
    ///
    /// # Panics
    ///
    /// If it is refused: an error of the script.
    pub fn start(&self, parent: &Agent, script: Vec<Step>) -> ContinuableStart {
        let started = self.try_start(parent).expect("nothing is in its way");
        self.script(&started.child, script);
        started
    }

    /// Starts a child of `parent`.
    pub fn try_start(&self, parent: &Agent) -> Result<ContinuableStart, ControlError> {
        let spec = ContinuableStartSpec::text("spawn", "work", "begin");
        self.deployment().control().start_continuable(parent, spec)
    }

    /// What the model answers to `child` next.
    pub fn script(&self, child: &SessionId, script: Vec<Step>) {
        self.deployment().ground.scripts.push(child, script);
    }

    /// Opens a gate of the model.
    pub fn release(&self, gate: &str) {
        self.deployment().ground.scripts.release(gate);
    }

    /// From now on the disk does to each operation what `decide` says: [`DiskFault::Hold`] is a gate.
    pub fn set_disk(
        &self,
        decide: impl Fn(DiskOperation) -> Option<DiskFault> + Send + Sync + 'static,
    ) {
        let decide = move |operation, _: &DiskPath, _: u64| decide(operation);
        self.deployment().ground.disk.set_faults(Arc::new(decide));
    }

    /// From now on the disk works.
    pub fn heal_disk(&self) {
        self.deployment().ground.disk.heal();
    }

    /// Waits until nothing can move any more, outside of the window: one order, no choices.
    pub async fn quiet(&self) {
        self.window.quiet().wait().await;
    }

    /// The machine dies after `steps` more steps, whoever makes them; `restart` is its next life.
    pub fn crash_after(&self, steps: u64, restart: fn(Self) -> Script) {
        self.window.crash_after(steps, restart);
    }

    /// Several processes record facts in this race: the invariants, which judge the facts of one,
    /// have nothing to say.
    pub fn unjudge(&self) {
        self.window.unjudge();
    }

    /// A value below `width`, tried for each of them.
    pub fn choose(&self, width: u64) -> u64 {
        self.runtime.choose(width)
    }

    /// Nothing runs any more: forgets the deployment.
    pub(super) fn bury(&self) {
        let mut place = self.deployment.lock().unwrap_or_else(PoisonError::into_inner);
        let deployment = place.take();
        drop(place);
        if let Some(deployment) = deployment {
            deployment.bury();
        }
    }

    // --- the race -----------------------------------------------------------------------------

    /// Lets the racers go, every step a choice, until nothing can move any more. What they are told
    /// is in [`Stage::said`] then, or once the gates that still held them are open.
    pub async fn race(&self, racers: Vec<Racer>) {
        self.go(racers);
        self.window.open();
        self.quiet().await;
    }

    fn go(&self, racers: Vec<Racer>) {
        let shared = self.shared();
        for racer in racers {
            let said = Arc::clone(&self.said);
            let place = {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.push((racer.name, None));
                said.len() - 1
            };
            let run = async move {
                let word = racer.body.await;
                said.lock().unwrap_or_else(PoisonError::into_inner)[place].1 = Some(word);
            };
            spawn(&shared, racer.name, run).detach();
        }
    }

    /// Lets one go alone, outside of the window: one order, no choices.
    pub async fn alone(&self, racer: Racer) {
        let word = racer.body.await;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push((racer.name, Some(word)));
    }

    /// What the racer of that name was told; `waits` if nothing yet.
    pub fn said(&self, name: &str) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let word = said.iter().find(|(known, _)| *known == name);
        word.and_then(|(_, word)| word.clone()).unwrap_or_else(|| "waits".to_owned())
    }

    /// A send by `sender` as its parent; the answer's word.
    pub fn send(
        &self,
        name: &'static str,
        sender: &Agent,
        child: &SessionId,
        text: &'static str,
    ) -> Racer {
        let source = MessageSource::Coordinator { sender_session_id: sender.id().clone() };
        self.send_as(name, sender, child, text, source, None)
    }

    /// A send with that source, and the caller's signal.
    pub fn send_as(
        &self,
        name: &'static str,
        sender: &Agent,
        child: &SessionId,
        text: &'static str,
        source: MessageSource,
        signal: Option<CancelSignal>,
    ) -> Racer {
        let (control, sender) = (self.deployment().control(), sender.clone());
        let child = child.as_str().to_owned();
        Racer::new(name, async move {
            let content = vec![ContentBlock::text(text)];
            let sent = control.send_message(&sender, &child, content, source, signal.as_ref());
            sent_word(&sent.await)
        })
    }

    /// A kill of `task` by its owner.
    pub fn kill(&self, name: &'static str, owner: &Agent, task: &TaskId) -> Racer {
        let (tasks, caller) = (Arc::clone(&self.deployment().tasks), owner.id().clone());
        let task = task.clone();
        Racer::new(name, async move {
            match tasks.kill(&task, Some(&caller), None).await {
                Ok(KillAnswer::Requested) => "requested".to_owned(),
                Ok(KillAnswer::AlreadyFinished) => "already-finished".to_owned(),
                Err(error) => error.code().word().to_owned(),
            }
        })
    }

    /// A start of another child of `owner`.
    pub fn starting(&self, name: &'static str, owner: &Agent) -> Racer {
        let (stage, owner) = (self.clone(), owner.clone());
        Racer::new(name, async move {
            match stage.try_start(&owner) {
                Ok(_) => "started".to_owned(),
                Err(error) => error.code().word().to_owned(),
            }
        })
    }

    /// A wait for the end of `task`, without a time limit, until `signal` fires.
    pub fn wait(
        &self,
        name: &'static str,
        owner: &Agent,
        task: &TaskId,
        signal: Option<CancelSignal>,
    ) -> Racer {
        let (tasks, caller) = (Arc::clone(&self.deployment().tasks), owner.id().clone());
        let task = task.clone();
        Racer::new(name, async move {
            match tasks.wait(&task, Some(&caller), None, signal).await {
                Ok(seen) => seen.status.word().to_owned(),
                Err(error) => error.code().word().to_owned(),
            }
        })
    }

    /// A read of `task`: its status, and whether there was text.
    pub fn read(&self, name: &'static str, owner: &Agent, task: &TaskId) -> Racer {
        let (tasks, caller) = (Arc::clone(&self.deployment().tasks), owner.id().clone());
        let task = task.clone();
        Racer::new(name, async move {
            match tasks.read(&task, Some(&caller)).await {
                Ok(read) if read.text.is_empty() => "empty".to_owned(),
                Ok(_) => "text".to_owned(),
                Err(error) => error.code().word().to_owned(),
            }
        })
    }

    /// A disposal of `parent`.
    pub fn dispose(&self, name: &'static str, parent: Parent) -> Racer {
        Racer::new(name, async move {
            parent.handle.dispose().await;
            "disposed".to_owned()
        })
    }

    /// A signal that a caller holds.
    pub fn signal(&self) -> CancelSignal {
        CancelSignal::new(self.shared(), CancelScope::Call { call: "a racer".to_owned() })
    }

    // --- after the race -----------------------------------------------------------------------

    /// Every fact of this life so far.
    pub fn facts(&self) -> Vec<Fact> {
        self.runtime.run_record().facts(self.runtime.life())
    }

    /// The status of every Task ever started, in the order of their numbers, with its code.
    pub fn tasks(&self) -> String {
        let mut said = Vec::new();
        for fact in self.facts() {
            match fact {
                Fact::TaskStarted { task, .. } => said.push((task, "open".to_owned())),
                Fact::TaskSettled { task, status, code, .. } => {
                    let known = said.iter_mut().find(|(known, _)| *known == task);
                    if let Some((_, said)) = known {
                        *said = match code {
                            Some(code) => format!("{} {}", status.word(), code.word()),
                            None => status.word().to_owned(),
                        };
                    }
                }
                _ => {}
            }
        }
        said.into_iter().map(|(_, said)| said).collect::<Vec<_>>().join(", ")
    }

    /// Where the message with that text is: in a log, in a request, or nowhere.
    pub fn message(&self, text: &str) -> &'static str {
        let ground = &self.deployment().ground;
        let logged = self.is_logged(text);
        let asks = |request: &Arc<ModelRequest>| format!("{:?}", request.messages).contains(text);
        let requested = ground.scripts.requests().iter().any(asks);
        match (logged, requested) {
            (true, true) => "logged, requested",
            (true, false) => "logged",
            (false, true) => "requested, not logged",
            (false, false) => "nowhere",
        }
    }

    /// Whether a file on the disk holds that text.
    pub fn is_logged(&self, text: &str) -> bool {
        let holds =
            |bytes: &Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        self.memory.disk.files().values().any(holds)
    }

    /// How many notices were injected.
    pub fn notices(&self) -> usize {
        let facts = self.facts();
        facts.iter().filter(|fact| matches!(fact, Fact::NoticeInjected { .. })).count()
    }

    /// How many agents live that are not the given parents.
    pub fn live(&self, parents: &[&Agent]) -> usize {
        let agents = self.deployment().agents.list();
        let is_parent = |agent: &Agent| parents.iter().any(|p| p.instance() == agent.instance());
        agents.iter().filter(|agent| !is_parent(agent)).count()
    }
}

/// The plan of a deployment in which nothing special happens.
pub fn plan() -> Plan {
    Plan {
        version: PLAN_VERSION,
        suite: Suite::Everything,
        seed: 0,
        sampler: Sampler::Fifo,
        parents: 0,
        scripts: Vec::new(),
        parent_script: Vec::new(),
        clients: Vec::new(),
        faults: Vec::new(),
        network: Vec::new(),
        visits: Vec::new(),
        panicking_listener: false,
        hook: Hook::Absent,
        wakes: 0,
        lease: false,
        capacity: None,
        ending: Ending::Patience,
    }
}

/// The word of a send's answer.
pub fn sent_word(sent: &Result<Delivery, ControlError>) -> String {
    match sent {
        Ok(Delivery { route: RouteCode::Started, .. }) => "started".to_owned(),
        Ok(Delivery { route: RouteCode::Steered, .. }) => "steered".to_owned(),
        Err(error) => error.code().word().to_owned(),
    }
}
