//! One run: plan in, trace and verdict out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use clap::ValueEnum;
use continuable::error::ErrorCode;
use continuable::ids::SessionId;
use continuable::runtime::Runtime;
use continuable::store::path::SessionPlace;
use continuable::store::{DiskOperation, DiskPath, SessionStore};
use serde::{Deserialize, Serialize};

use crate::canary::Lie;
use crate::deployment::{Deployment, Ground};
use crate::disk::{CrashQuestion, LoseUnsynced, SimDisk};
use crate::explore::{
    Estimate, Executor, Outcome, RunEnd, RunOptions, RunRecord, Sampler, SimRuntime, mix,
};
use crate::invariants::{self, Finding, Invariant, log};
use crate::plan::Plan;
use crate::probe::Confirmed;
use crate::trace::{Answer, Contested, EndState, Event, Note, Recovered, Stamp, Trace};
use crate::workload::{SharedSaga, Workload};
use crate::world;

/// Which engine runs a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The schedule explorer: one process, a virtual clock that jumps.
    Explore,
    /// The world: hosts on a simulated network, with the real clients between them.
    World,
}

impl Engine {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Explore => "explore",
            Self::World => "world",
        }
    }
}

/// Runs `plan` on `engine`; `lie` makes one part of the deployment a liar.
pub fn run_on(engine: Engine, plan: &Plan, lie: Option<Lie>, options: RunOptions) -> RunReport {
    match engine {
        Engine::Explore => run(plan, lie, options),
        Engine::World => world::run(plan, lie, options),
    }
}

/// Everything a run left.
#[derive(Debug)]
pub struct RunReport {
    /// The engine it ran on.
    pub engine: Engine,
    /// What happened.
    pub trace: Trace,
    /// How it ended, with its figures, those of all its lives together.
    pub outcome: Outcome,
    /// The answers of all its choices: they replay it.
    pub answers: Vec<u64>,
    /// How often each point was reached, as in `Point::ALL`.
    pub points: Vec<u64>,
    /// How many disk operations of each kind were asked for.
    pub disk: BTreeMap<DiskOperation, u64>,
    /// Whether something still held the runtime after everything was dropped: a cycle.
    pub leaked: bool,
}

impl RunReport {
    /// What the invariants say.
    pub fn judge(&self) -> Vec<(&'static Invariant, Finding)> {
        invariants::judge(&self.trace)
    }
}

/// What all lives of a run have in common.
struct Lives {
    plan: Arc<Plan>,
    lie: Option<Lie>,
    record: RunRecord,
    saga: SharedSaga,
    disk: SimDisk,
    confirmed: Confirmed,
}

/// Runs `plan` on the explore engine; `lie` makes one part of the deployment a liar.
pub fn run(plan: &Plan, lie: Option<Lie>, options: RunOptions) -> RunReport {
    let choices = plan.sampler.choices(plan.seed, plan.estimate());
    let lives = Lives {
        plan: Arc::new(plan.clone()),
        lie,
        record: RunRecord::new(choices),
        saga: SharedSaga::default(),
        disk: SimDisk::new(),
        confirmed: Confirmed::default(),
    };
    let mut recovered = Vec::new();
    let (mut polls, mut tasks, mut began_us, mut leaked) = (0, 0, 0, false);
    for life in 0.. {
        let names = if life == 0 { plan.seed } else { mix(plan.seed ^ mix(life)) };
        let options = RunOptions { names, life, began_us, ..options.clone() };
        let (outcome, leak) = lives.live(options, std::mem::take(&mut recovered));
        polls += outcome.polls;
        tasks += outcome.tasks;
        leaked |= leak;
        if !matches!(outcome.end, RunEnd::Crashed { .. }) {
            let Lives { record, disk, .. } = lives;
            let disk = disk.counts();
            let (answers, points) = (record.answers(), record.points());
            let outcome = Outcome { polls, tasks, ..outcome };
            return RunReport {
                engine: Engine::Explore,
                trace: record.take_trace(),
                outcome,
                answers,
                points,
                disk,
                leaked,
            };
        }
        began_us = outcome.elapsed_ms * 1_000;
        recovered = lives.crash(life, outcome.elapsed_ms);
    }
    unreachable!("lives are counted without end")
}

impl Lives {
    /// One life of the process, from its assembly to its rest or its death.
    fn live(&self, options: RunOptions, recovered: Vec<Recovered>) -> (Outcome, bool) {
        let life = options.life;
        let mut executor = Executor::of(self.record.clone(), options);
        let runtime = Arc::clone(executor.runtime());
        let ground = Ground {
            disk: self.disk.clone(),
            confirmed: self.confirmed.clone(),
            crashes: life == 0,
            ..Ground::new(&runtime, self.lie)
        };
        let deployment = Deployment::new(&runtime, &self.plan, ground);
        if life > 0 {
            self.saga.lock().unwrap_or_else(PoisonError::into_inner).life = life;
            runtime.record(Event::Note(restarted(&deployment, life - 1, recovered)));
        }
        let (plan, saga) = (Arc::clone(&self.plan), Arc::clone(&self.saga));
        let workload = Workload::new(deployment, plan, saga);
        let (_, outcome) = executor.run(Arc::clone(&workload).run());
        if !matches!(outcome.end, RunEnd::Crashed { .. }) {
            let end = end_state(&workload, &outcome.end);
            let stamp = Stamp { ms: outcome.elapsed_ms, life, actor: "harness".into() };
            self.record.push(stamp, Event::Note(Note::Ended(end)));
        }
        drop(workload);
        drop(executor);
        // A process that died took its cycles with it.
        let rested = !matches!(outcome.end, RunEnd::Crashed { .. });
        (outcome, rested && Arc::strong_count(&runtime) > 1)
    }

    /// What the death of the process leaves: calls without an answer, and of the disk what the
    /// choices let survive.
    fn crash(&self, life: u64, ms: u64) -> Vec<Recovered> {
        let open = {
            let mut saga = self.saga.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut saga.open)
        };
        for op in open {
            let stamp = Stamp { ms, life, actor: "harness".into() };
            self.record.push(stamp, Event::Note(Note::Answered { op, answer: Answer::Lost }));
        }
        crash_disk(&self.disk, &mut |options| self.record.choose(options), &self.confirmed)
    }
}

/// Crashes `disk`, of each question keeping what `choose` answers of so many options, and reads what
/// is left of every session.
pub fn crash_disk(
    disk: &SimDisk,
    choose: &mut dyn FnMut(u64) -> u64,
    confirmed: &Confirmed,
) -> Vec<Recovered> {
    let before = disk.fork();
    disk.crash(&mut |_: CrashQuestion, options: u64| choose(options));
    let sessions = listed(&before);
    let written = before.files();
    let left = disk.files();
    let mut loads: BTreeMap<_, _> = survey(&disk.fork()).into_iter().collect();
    let recovered = sessions.into_iter().map(|session| {
        let bytes = |files: &BTreeMap<DiskPath, Vec<u8>>| {
            let place = SessionPlace::of(&session, None).ok()?;
            files.get(&place.log).cloned()
        };
        let (was, is) = (bytes(&written).unwrap_or_default(), bytes(&left).unwrap_or_default());
        let mut recovered = Recovered {
            written: lines(&was),
            confirmed: confirmed.events(&session),
            kept: None,
            prefix: true,
            cut: None,
            error: None,
            struck: confirmed.is_struck(&session),
            session,
        };
        match loads.remove(&recovered.session) {
            Some(Ok(load)) => {
                // A cut that was lost brings back events that had been appended (I17 counts them).
                let common = load.kept.min(recovered.written);
                recovered.prefix = head(&is, common) == head(&was, common);
                recovered.kept = Some(load.kept);
                recovered.cut = load.cut;
            }
            Some(Err((code, _))) => recovered.error = Some(code),
            None => {}
        }
        recovered
    });
    recovered.collect()
}

/// How many events the log holds: its whole lines without the header.
fn lines(log: &[u8]) -> u64 {
    (log.iter().filter(|byte| **byte == b'\n').count() as u64).saturating_sub(1)
}

/// The header and the first `events` events.
fn head(log: &[u8], events: u64) -> &[u8] {
    let ends = log.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(end, _)| end + 1);
    let end = ends.take(usize::try_from(events).unwrap_or(usize::MAX).saturating_add(1)).last();
    &log[..end.unwrap_or(0)]
}

/// The first note of a later life: what the disk gave back, and that nothing else did.
pub fn restarted(deployment: &Deployment, after: u64, recovered: Vec<Recovered>) -> Note {
    Note::Restarted {
        after,
        recovered,
        tasks: deployment.tasks.list(None).len() as u64,
        associations: deployment.control().activations() as u64,
        agents: deployment.agents.list().len() as u64,
    }
}

/// What is left when nothing moves any more.
pub fn end_state(workload: &Workload, end: &RunEnd) -> EndState {
    let deployment = workload.deployment();
    let agents = deployment.agents.list();
    let mut state = EndState {
        agents: agents.iter().map(|agent| (agent.instance(), agent.id().clone())).collect(),
        ..EndState::default()
    };
    match end {
        RunEnd::Quiescent { pending } => state.stuck.clone_from(pending),
        RunEnd::Livelock { task, .. } => state.livelock = Some(Arc::clone(task)),
        RunEnd::Crashed { .. } => {}
    }
    drop(agents);
    let disk = deployment.ground.disk.fork();
    disk.crash(&mut LoseUnsynced);
    let logs = survey(&disk);
    let files = disk.files();
    let contested = deployment.ground.confirmed.contested().into_iter();
    state.contested = contested
        .map(|(session, claims)| {
            let mut contested = contested_log(session, &claims, &files, &logs);
            contested.leased = deployment.leased;
            let place = SessionPlace::of(&contested.session, None).ok();
            contested.cut = place.is_some_and(|place| deployment.ground.disk.was_cut(&place.log));
            contested
        })
        .collect();
    let logs = logs.into_iter();
    // What somebody else damaged is not ours to keep well formed.
    let logs = logs.filter(|(session, _)| !deployment.ground.confirmed.is_struck(session));
    state.logs = logs
        .map(|(session, load)| match load {
            Ok(load) => (session, load.kept + load.closers, load.fault),
            Err((_, text)) => (session, 0, Some(text)),
        })
        .collect();
    state
}

/// What became of `session`, of which two runtimes were told that `claims` are durable: its load
/// left `files`.
fn contested_log(
    session: SessionId,
    claims: &BTreeSet<String>,
    files: &BTreeMap<DiskPath, Vec<u8>>,
    logs: &[Surveyed],
) -> Contested {
    let place = SessionPlace::of(&session, None).ok();
    let bytes = place.and_then(|place| files.get(&place.log)).cloned().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let kept: BTreeSet<_> = text.lines().collect();
    let load = logs.iter().find(|(listed, _)| *listed == session).map(|(_, load)| load);
    let report = load.and_then(|load| match load {
        Ok(load) => {
            let cut = || load.cut.map(|bytes| format!("a torn tail of {bytes} bytes"));
            load.fault.clone().or_else(cut)
        }
        Err((_, text)) => Some(text.clone()),
    });
    let loads = matches!(load, Some(Ok(_)));
    let missing = claims.iter().filter(|claim| !loads || !kept.contains(claim.as_str()));
    let (claimed, lost) = (claims.len() as u64, missing.count() as u64);
    Contested { session, leased: false, claimed, lost, cut: false, report }
}

/// How one stored session loads.
struct Load {
    /// Events before closers.
    kept: u64,
    /// Closers that the load wrote.
    closers: u64,
    /// Bytes of a torn tail.
    cut: Option<u64>,
    /// What is wrong with the whole log.
    fault: Option<String>,
}

/// A session, and how it loads or why it does not.
type Surveyed = (SessionId, Result<Load, (ErrorCode, String)>);

/// Runs `main` on an executor of its own, apart from the run.
fn apart<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    main: impl FnOnce(Arc<dyn Runtime>) -> F,
) -> Option<T> {
    let plain = Sampler::Fifo.choices(0, Estimate { choices: 0, tasks: 0 });
    let mut executor = Executor::new(plain, RunOptions::default());
    let runtime: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(executor.runtime());
    executor.run(main(runtime)).0
}

/// Every session that a listing finds.
fn listed(disk: &SimDisk) -> Vec<SessionId> {
    let disk = disk.clone();
    let listed = apart(|runtime| async move {
        let store = SessionStore::open(runtime, Arc::new(disk));
        store.list().await.unwrap_or_default()
    });
    listed.unwrap_or_default().into_iter().map(|entry| entry.id).collect()
}

/// Loads every session on `disk`, as the next process would: it may cut and repair, and must answer
/// a whole log. The disk is changed by it.
fn survey(disk: &SimDisk) -> Vec<Surveyed> {
    let disk = disk.clone();
    // Whether a repair would fit is not the question.
    disk.set_capacity(None);
    let judged = apart(|runtime| async move {
        let store = SessionStore::open(runtime, Arc::new(disk));
        let mut judged = Vec::new();
        let listed = match store.list().await {
            Ok(listed) => listed,
            Err(error) => {
                let failed = (error.code(), error.to_string());
                return vec![(SessionId::new("(listing)"), Err(failed))];
            }
        };
        for entry in listed {
            judged.push(match store.load(&entry.id).await {
                Ok(loaded) => {
                    let load = Load {
                        kept: loaded.events.len() as u64 - loaded.closers,
                        closers: loaded.closers,
                        cut: loaded.tail_cut.map(|cut| cut.bytes),
                        fault: log::fault(&loaded.events, true),
                    };
                    (entry.id, Ok(load))
                }
                Err(error) => (entry.id, Err((error.code(), error.to_string()))),
            });
        }
        judged
    });
    judged.unwrap_or_default()
}
