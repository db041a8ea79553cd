//! The world engine: one plan on a simulated network of its hosts.
//!
//! | host | what runs on it | what it holds |
//! |---|---|---|
//! | `runtime` | the code under test, the plan's clients, the human-facing adapter | a disk that outlives it |
//! | `model` | the scripted model, served over HTTP | nothing that outlives it |
//! | `human` | the person's side of every operation by a human | nothing |
//! | `visitor` | a second runtime, if the plan has visits | the disk of `runtime` |
//!
//! turmoil moves messages and time between the hosts; inside each, the executor orders the tasks
//! ([`crate::explore::nested`]). Crash order: the disk is frozen, the host is dropped, the loss model
//! decides what the disk keeps, the host starts again.
//!
//! Phases: safety under faults until the clients are done; then everything heals, crashed hosts
//! start again, and everything must come to rest within bounded virtual time (I24), or what is still
//! pending is named.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use continuable::adapter::{AdapterServices, HumanAdapter};
use continuable::model::http::{HttpModel, HttpModelConfig};
use continuable::model::script::ScriptedModel;
use continuable::runtime::{BoxFuture, Runtime, spawn};
use turmoil::net::TcpListener;

use crate::canary::Lie;
use crate::deployment::{Deployment, Ground, model};
use crate::disk::SimDisk;
use crate::explore::{
    EPOCH_MS, Executor, Halt, Nested, Outcome, RunEnd, RunOptions, RunRecord, SimRuntime, mix,
};
use crate::faults::{Host, StreamFault};
use crate::model_server::serve;
use crate::plan::{Plan, Visit};
use crate::probe::Confirmed;
use crate::run::{Engine, RunReport, crash_disk, end_state, restarted};
use crate::trace::{Answer, Event, Note, Recovered, Stamp};
use crate::workload::{Person, SharedSaga, Workload};

mod human;
mod network;
mod visitor;

use human::{Errands, HUMAN_PORT, Human};
use network::{MODEL_PORT, ModelConnect, Weather};
use visitor::VISITOR;

/// A host polls its tasks at every tick; none is above the least latency.
const TICK: Duration = Duration::from_millis(1);
/// The least time a message takes.
const LATENCY_MIN: Duration = Duration::from_millis(1);
/// The most it takes in fair weather.
const LATENCY_MAX: Duration = Duration::from_millis(4);
/// How long clients, and then each Task, may take before the run stops waiting, in virtual
/// milliseconds.
const REST_MS: u64 = 600;
/// How long a plan may take until it heals, and how long it may take after that.
const PHASE_MS: u64 = 5_000;
/// Lives of the model and the human host begin at these numbers; those of the
/// runtime at 0. Every visit
/// has one of its own.
const MODEL_LIFE: u64 = 10;
const HUMAN_LIFE: u64 = 11;
const VISITOR_LIFE: u64 = 12;

/// What the hosts share outside of the network.
struct Shared {
    plan: Arc<Plan>,
    lie: Option<Lie>,
    options: RunOptions,
    record: RunRecord,
    saga: SharedSaga,
    disk: SimDisk,
    confirmed: Confirmed,
    halt: Halt,
    /// What the last crash left, for the next life of the runtime.
    recovered: Mutex<Vec<Recovered>>,
    life: AtomicU64,
    /// Virtual milliseconds since the simulation began.
    now_ms: AtomicU64,
    /// The current life of the runtime host.
    current: Mutex<Option<Arc<Life>>>,
    scripts: Mutex<Option<ScriptedModel>>,
    /// What breaks the model's responses that begin now.
    breaks: Mutex<Option<(u64, StreamFault)>>,
    errands: Arc<Errands>,
    /// The visits of the second runtime that are not over, in the order of their times.
    visits: Mutex<VecDeque<Visit>>,
    /// How many of its processes are gone.
    visitors: AtomicU64,
    /// The last one exited.
    visited: AtomicBool,
    done: AtomicBool,
}

/// One life of the runtime host.
struct Life {
    runtime: Arc<SimRuntime>,
    workload: Arc<Workload>,
}

impl Shared {
    fn executor(&self, life: u64) -> Executor {
        let names = if life == 0 { self.plan.seed } else { mix(self.plan.seed ^ mix(life)) };
        // A host that starts has no clock of its own yet.
        let began_us = self.now_ms.load(Ordering::Relaxed) * 1_000;
        let options = RunOptions { names, life, began_us, ..self.options.clone() };
        Executor::of(self.record.clone(), options)
    }

    fn host(&self, executor: Executor) -> impl Future<Output = turmoil::Result> + use<> {
        tokio::task::unconstrained(Nested::new(executor, Arc::clone(&self.halt)))
    }

    /// The model's host: the scripted model, served to whoever connects.
    fn model_host(self: &Arc<Self>) -> impl Future<Output = turmoil::Result> + use<> {
        let executor = self.executor(MODEL_LIFE);
        let runtime: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(executor.runtime());
        let scripted = model(&runtime);
        *guard(&self.scripts) = Some(scripted.clone());
        let (shared, here) = (Arc::clone(self), Arc::clone(&runtime));
        let accept = async move {
            let Ok(listener) = TcpListener::bind(("0.0.0.0", MODEL_PORT)).await else { return };
            while let Ok((stream, _)) = listener.accept().await {
                let breaks = Arc::clone(&shared);
                let breaks = Arc::new(move || *guard(&breaks.breaks));
                let scripted = Arc::new(scripted.clone());
                let connection = serve(Arc::clone(&here), scripted, breaks, stream);
                // A broken connection is the client's to report.
                let connection = async move { drop(connection.await) };
                spawn(&here, "model connection", connection).detach();
            }
        };
        spawn(&runtime, "model server", accept).detach();
        self.host(executor)
    }

    /// The runtime's host: everything a process assembles at its start, and the plan's clients.
    fn runtime_host(self: &Arc<Self>) -> impl Future<Output = turmoil::Result> + use<> {
        let life = self.life.load(Ordering::Relaxed);
        let executor = self.executor(life);
        let runtime = Arc::clone(executor.runtime());
        let shared: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(&runtime);
        let config = HttpModelConfig { identify: true, ..HttpModelConfig::new("model") };
        let client = HttpModel::new(Arc::clone(&shared), Arc::new(ModelConnect), config);
        let scripts = guard(&self.scripts).clone().unwrap_or_else(|| model(&shared));
        let ground = Ground {
            disk: self.disk.clone(),
            scripts,
            model: Arc::new(client),
            confirmed: self.confirmed.clone(),
            lie: self.lie,
            crashes: life == 0,
        };
        let deployment = Deployment::new(&runtime, &self.plan, ground);
        if life > 0 {
            guard(&self.saga).life = life;
            let recovered = std::mem::take(&mut *guard(&self.recovered));
            runtime.record(Event::Note(restarted(&deployment, life - 1, recovered)));
        }
        let (plan, saga) = (Arc::clone(&self.plan), Arc::clone(&self.saga));
        let errands = Arc::<Errands>::clone(&self.errands);
        let person = Workload::has_human(&plan).then_some(errands as Arc<dyn Person>);
        let humans = person.is_some();
        let workload = Workload::across(deployment, plan, saga, person, REST_MS);
        if humans {
            human_server(&shared, &workload);
        }
        let (whole, over) = (Arc::clone(&workload), Arc::clone(self));
        let main: BoxFuture<'static, ()> = Box::pin(async move {
            whole.run().await;
            over.done.store(true, Ordering::Relaxed);
        });
        runtime.spawn("main".to_owned(), main);
        *guard(&self.current) = Some(Arc::new(Life { runtime, workload }));
        self.host(executor)
    }

    /// The person's host.
    fn human_host(self: &Arc<Self>) -> impl Future<Output = turmoil::Result> + use<> {
        let executor = self.executor(HUMAN_LIFE);
        let runtime: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(executor.runtime());
        let live = Human::new(Arc::clone(&runtime)).live(Arc::clone(&self.errands));
        spawn(&runtime, "person", live).detach();
        self.host(executor)
    }

    /// The process died: what that leaves, before it starts again.
    fn bury(&self, ms: u64) {
        let life = self.life.fetch_add(1, Ordering::Relaxed);
        self.errands.clear();
        let open = std::mem::take(&mut guard(&self.saga).open);
        for op in open {
            let stamp = Stamp { ms, life, actor: "harness".into() };
            self.record.push(stamp, Event::Note(Note::Answered { op, answer: Answer::Lost }));
        }
        let left =
            crash_disk(&self.disk, &mut |options| self.record.choose(options), &self.confirmed);
        *guard(&self.recovered) = left;
    }
}

/// Serves the human-facing adapter, for as long as the runtime's process lives. Every connection
/// has the services that are loaded when it begins.
fn human_server(runtime: &Arc<dyn Runtime>, workload: &Arc<Workload>) {
    let (here, workload) = (Arc::clone(runtime), Arc::clone(workload));
    let accept = async move {
        let Ok(listener) = TcpListener::bind(("0.0.0.0", HUMAN_PORT)).await else { return };
        while let Ok((stream, _)) = listener.accept().await {
            let deployment = workload.deployment();
            let adapter = HumanAdapter::new(AdapterServices {
                runtime: Arc::clone(&here),
                agents: Arc::clone(&deployment.agents),
                tasks: Arc::clone(&deployment.tasks),
                control: deployment.control(),
                store: Arc::clone(&deployment.store),
            });
            // A broken connection is the person's to report.
            let serve = async move { drop(adapter.serve(stream).await) };
            spawn(&here, "human connection", serve).detach();
        }
    };
    spawn(runtime, "human server", accept).detach();
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `plan` on the world engine; `lie` makes one part of the deployment a liar.
pub fn run(plan: &Plan, lie: Option<Lie>, options: RunOptions) -> RunReport {
    let mut visits = plan.visits.clone();
    visits.sort_by_key(|visit| visit.at_ms);
    let shared = Arc::new(Shared {
        plan: Arc::new(plan.clone()),
        lie,
        options,
        record: RunRecord::new(plan.sampler.choices(plan.seed, plan.estimate())),
        saga: SharedSaga::default(),
        disk: SimDisk::new(),
        confirmed: Confirmed::default(),
        halt: Halt::default(),
        recovered: Mutex::default(),
        life: AtomicU64::new(0),
        now_ms: AtomicU64::new(0),
        current: Mutex::default(),
        scripts: Mutex::default(),
        breaks: Mutex::default(),
        errands: Arc::default(),
        visits: Mutex::new(visits.into()),
        visitors: AtomicU64::new(0),
        visited: AtomicBool::new(false),
        done: AtomicBool::new(false),
    });
    let mut sim = turmoil::Builder::new()
        .rng_seed(plan.seed)
        .epoch(UNIX_EPOCH + Duration::from_millis(EPOCH_MS))
        .tick_duration(TICK)
        .simulation_duration(Duration::from_millis(4 * PHASE_MS))
        .min_message_latency(LATENCY_MIN)
        .max_message_latency(LATENCY_MAX)
        .enable_random_order()
        .build();
    let (model, runtime, human) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
    sim.host(Host::Model.name(), move || model.model_host());
    sim.host(Host::Runtime.name(), move || runtime.runtime_host());
    sim.host(Host::Human.name(), move || human.human_host());
    if shared.has_visits() {
        let visitor = Arc::clone(&shared);
        sim.host(VISITOR, move || visitor.visitor_host());
    }
    let (end, ms) = weathered(&mut sim, &shared, Weather::new(&plan.network));
    let life = guard(&shared.current).take().expect("the runtime host has started");
    let state = end_state(&life.workload, &end);
    let number = shared.life.load(Ordering::Relaxed);
    let stamp = Stamp { ms, life: number, actor: "harness".into() };
    shared.record.push(stamp, Event::Note(Note::Ended(state)));
    let outcome = Outcome {
        end,
        polls: life.runtime.polls(),
        task_choices: shared.record.task_choices(),
        tasks: life.runtime.spawned(),
        elapsed_ms: ms,
    };
    let (record, disk) = (shared.record.clone(), shared.disk.counts());
    let runtime = Arc::clone(&life.runtime);
    drop(life);
    drop(sim);
    drop(shared);
    let (engine, trace) = (Engine::World, record.take_trace());
    let (answers, points) = (record.answers(), record.points());
    let leaked = Arc::strong_count(&runtime) > 1;
    RunReport { engine, trace, outcome, answers, points, disk, leaked }
}

/// Steps the world until the plan is over and everything is at rest, or its time is.
fn weathered(
    sim: &mut turmoil::Sim<'_>,
    shared: &Arc<Shared>,
    mut weather: Weather,
) -> (RunEnd, u64) {
    let mut healed_at = None;
    let mut rested = 0;
    loop {
        let ms = u64::try_from(sim.elapsed().as_millis()).unwrap_or(u64::MAX);
        shared.now_ms.store(ms, Ordering::Relaxed);
        weather.blow(sim, shared, ms);
        shared.relieve_visitor(sim);
        // Its only failures are those of hosts' own main futures, which never end.
        let stepped = sim.step();
        let life = guard(&shared.current).clone();
        let Some(life) = life else { continue };
        if let Some(halted) = guard(&shared.halt).take() {
            return (halted, ms);
        }
        if life.runtime.crashed().is_some() {
            drop(life);
            weather.crash(sim, shared, ms);
            continue;
        }
        if guard(&shared.saga).healed && healed_at.is_none() {
            healed_at = Some(ms);
            weather.clear(sim, shared);
        }
        let mut pending = at_work(&life.runtime);
        if shared.has_visits() {
            pending.push(VISITOR.into());
        }
        let over = shared.done.load(Ordering::Relaxed);
        rested = if over { rested + 1 } else { 0 };
        let late = ms > healed_at.unwrap_or(PHASE_MS) + PHASE_MS;
        if (over && (pending.is_empty() || rested > GRACE)) || late || stepped.is_err() {
            return (RunEnd::Quiescent { pending }, ms);
        }
    }
}

/// How many ticks what is left may take to end, once the plan is over.
const GRACE: u64 = 400;

/// Tasks of the runtime host that stay for as long as it does.
const SERVERS: &[&str] = &["human server", "human connection"];

/// The tasks of the runtime host that are not finished, its servers aside.
fn at_work(runtime: &SimRuntime) -> Vec<Arc<str>> {
    let serves = |name: &str| SERVERS.iter().any(|server| name.ends_with(server));
    runtime.unfinished().into_iter().filter(|name| !serves(name)).collect()
}
