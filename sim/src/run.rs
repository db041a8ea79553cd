//! One run: plan in, trace and verdict out.

use std::sync::Arc;

use continuable::ids::SessionId;
use continuable::runtime::Runtime;
use continuable::store::SessionStore;

use crate::canary::Lie;
use crate::deployment::Deployment;
use crate::disk::LoseUnsynced;
use crate::explore::{Executor, Outcome, RunEnd, RunOptions, SimRuntime};
use crate::invariants::{self, Finding, Invariant, log};
use crate::plan::Plan;
use crate::trace::{EndState, Event, Note, Stamp, Trace};
use crate::workload::Workload;

/// Everything a run left.
#[derive(Debug)]
pub struct RunReport {
    /// What happened.
    pub trace: Trace,
    /// How it ended, with its figures.
    pub outcome: Outcome,
    /// The answers of all its choices: they replay it.
    pub answers: Vec<u64>,
    /// How often each point was reached, as in `Point::ALL`.
    pub points: Vec<u64>,
    /// Whether something still held the runtime after everything was dropped: a cycle.
    pub leaked: bool,
}

impl RunReport {
    /// What the invariants say.
    pub fn judge(&self) -> Vec<(&'static Invariant, Finding)> {
        invariants::judge(&self.trace)
    }
}

/// Runs `plan`; `lie` makes one part of the deployment a liar.
pub fn run(plan: &Plan, lie: Option<Lie>, options: RunOptions) -> RunReport {
    let choices = plan.sampler.choices(plan.seed, plan.estimate());
    let options = RunOptions { names: plan.seed, ..options };
    let mut executor = Executor::new(choices, options);
    let runtime = Arc::clone(executor.runtime());
    let workload = Workload::new(Deployment::new(&runtime, plan, lie), plan.clone());
    let (_, outcome) = executor.run(Arc::clone(&workload).run());
    let agents = workload.deployment().agents.list();
    let mut end = EndState {
        agents: agents.iter().map(|agent| (agent.instance(), agent.id().clone())).collect(),
        ..EndState::default()
    };
    match &outcome.end {
        RunEnd::Quiescent { pending } => end.stuck.clone_from(pending),
        RunEnd::Livelock { task, .. } => end.livelock = Some(Arc::clone(task)),
    }
    drop(agents);
    end.logs = stored_logs(&workload);
    let record = runtime.run_record().clone();
    let stamp = Stamp { ms: outcome.elapsed_ms, life: 0, actor: "harness".into() };
    record.push(stamp, Event::Note(Note::Ended(end)));
    let (trace, answers, points) = (record.take_trace(), record.answers(), record.points());
    drop(workload);
    drop(executor);
    let leaked = Arc::strong_count(&runtime) > 1;
    RunReport { trace, outcome, answers, points, leaked }
}

/// Judges every stored log as a crash now would leave it.
fn stored_logs(workload: &Workload) -> Vec<(SessionId, u64, Option<String>)> {
    let disk = workload.deployment().disk.fork();
    disk.crash(&mut LoseUnsynced);
    let plain =
        crate::explore::Sampler::Fifo.choices(0, crate::explore::Estimate { choices: 0, tasks: 0 });
    let mut executor = Executor::new(plain, RunOptions::default());
    let runtime: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(executor.runtime());
    let (judged, _) = executor.run(async move {
        let store = SessionStore::open(runtime, Arc::new(disk));
        let mut judged = Vec::new();
        let listed = match store.list().await {
            Ok(listed) => listed,
            Err(error) => {
                return vec![(SessionId::new("(listing)"), 0, Some(error.to_string()))];
            }
        };
        for entry in listed {
            // A load is what the next process does: it may cut and repair, and must answer a whole
            // log.
            judged.push(match store.load(&entry.id).await {
                Ok(loaded) => {
                    let fault = log::fault(&loaded.events, true);
                    (entry.id, loaded.events.len() as u64, fault)
                }
                Err(error) => (entry.id, 0, Some(error.to_string())),
            });
        }
        judged
    });
    judged.unwrap_or_default()
}
