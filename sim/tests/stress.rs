//! Real threads, a real directory: 8 parents, 64 children, 2,000 activations, random sends, kills,
//! reads and waits by parents and people, judged by the same invariants as every simulated run.
//!
//! Goal: what the explorer proves at await level must also hold when sections really run at the
//! same time. Method: record every fact of tokio's multi-thread scheduler without loss (facts take
//! their place inside their critical sections), then judge the trace. The seed fixes what is asked,
//! not how the threads interleave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use continuable::agent::{Agent, AgentHandle};
use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::control::{ContinuableStart, ContinuableStartSpec};
use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{SessionId, TaskId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{FactSubscription, Runtime, TokioRuntime};
use continuable::store::StdDisk;
use continuable::vocabulary::RouteCode;
use continuable_sim::invariants::judge;
use continuable_sim::trace::{EndState, Event, Note, Stamp, Trace};

const PARENTS: usize = 8;
const CHILDREN_PER_PARENT: usize = 8;
const ACTIVATIONS: u64 = 2_000;
/// More facts than the run can make: a lost one would void the verdict.
const FACTS_MAX: usize = 4_000_000;

/// How long the whole run may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// A small stable generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("below a usize")
    }
}

/// What a child's model does in one response: mostly it answers; sometimes it hangs until it is
/// cancelled or fails, so that kills meet running turns and failures meet waiters.
fn step_of(random: u64) -> Step {
    match random % 10 {
        0 => Step::Hang,
        1 => Step::Err("the model is tired".to_owned()),
        2..=5 => Step::SayPieces {
            pieces: vec!["slow".to_owned(), " and".to_owned(), " steady".to_owned()],
            pause: Duration::from_millis(1),
        },
        _ => Step::say(format!("answer {random}")),
    }
}

struct World {
    assembly: Assembly,
    started: AtomicU64,
    refused: AtomicU64,
    steered: AtomicU64,
    gave_up: AtomicU64,
}

struct Family {
    parent: Agent,
    children: Vec<ContinuableStart>,
    tasks: Vec<TaskId>,
}

impl World {
    fn enough(&self) -> bool {
        self.started.load(Ordering::Relaxed) >= ACTIVATIONS
    }

    fn begin(&self, family: &mut Family) {
        let spec = ContinuableStartSpec::text("spawn", "stress", "begin");
        let started = self.assembly.control.start_continuable(&family.parent, spec);
        let started = started.expect("a registered parent with a surface may start");
        self.started.fetch_add(1, Ordering::Relaxed);
        family.tasks.push(started.task.clone());
        family.children.push(started);
    }

    async fn send(&self, family: &mut Family, child: usize, source: MessageSource) {
        let content = vec![ContentBlock::text("go on")];
        let id = family.children[child].child.clone();
        let control = &self.assembly.control;
        let send = control.send_message(&family.parent, id.as_str(), content, source, None);
        // A turn that hangs admits nothing: this caller gives up, which withdraws the message.
        let Ok(answer) = tokio::time::timeout(Duration::from_millis(20), send).await else {
            self.gave_up.fetch_add(1, Ordering::Relaxed);
            return;
        };
        match answer {
            Ok(delivery) => {
                let count = match delivery.route {
                    RouteCode::Started => &self.started,
                    RouteCode::Steered => &self.steered,
                };
                count.fetch_add(1, Ordering::Relaxed);
                family.tasks.push(delivery.task);
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::NotDelivered, "{error}");
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn one(&self, family: &mut Family, random: &mut Random) {
        let caller = family.parent.id().clone();
        let child = random.below(family.children.len());
        let recent = family.tasks.len().min(CHILDREN_PER_PARENT * 2);
        let task = family.tasks[family.tasks.len() - 1 - random.below(recent)].clone();
        let tasks = &self.assembly.tasks;
        match random.below(10) {
            0..=2 => self.send(family, child, MessageSource::User).await,
            3..=5 => {
                let sender_session_id = caller;
                self.send(family, child, MessageSource::Coordinator { sender_session_id }).await;
            }
            6 => drop(tasks.read(&task, Some(&caller)).await.expect("it may read its own Task")),
            7 | 8 => {
                let killed = tasks.kill(&task, Some(&caller), None).await;
                killed.expect("it may kill its own Task");
            }
            _ => {
                let patience = Some(Duration::from_millis(random.next() % 4 + 1));
                let waited = tasks.wait(&task, Some(&caller), patience, None).await;
                waited.expect("it may wait for its own Task");
            }
        }
    }

    async fn live(self: Arc<Self>, parent: Agent, seed: u64) {
        let mut random = Random(seed);
        let mut family = Family { parent, children: Vec::new(), tasks: Vec::new() };
        for _ in 0..CHILDREN_PER_PARENT {
            self.begin(&mut family);
        }
        while !self.enough() {
            self.one(&mut family, &mut random).await;
        }
        // Hung turns end by a kill, everything else by itself.
        let caller = family.parent.id().clone();
        for task in &family.tasks {
            let killed = self.assembly.tasks.kill(task, Some(&caller), None).await;
            killed.expect("it may kill its own Task");
        }
        for task in &family.tasks {
            let waited = self.assembly.tasks.wait(task, Some(&caller), None, None).await;
            assert!(waited.expect("a Task of its own").status.is_terminal());
        }
    }
}

fn assembly(directory: &std::path::Path) -> (Assembly, FactSubscription) {
    let tokio = TokioRuntime::current();
    let facts = tokio.subscribe(FACTS_MAX);
    let runtime: Arc<dyn Runtime> = Arc::new(tokio);
    let model = ScriptedModel::new(Arc::clone(&runtime));
    model.set_recording(false);
    model.set_factory(Arc::new(|_request, n| {
        let mut random = Random(n);
        Some((0..ACTIVATIONS * 2).map(|_| step_of(random.next())).collect())
    }));
    let disk = Arc::new(StdDisk::new(directory));
    let config = AssemblyConfig::new(runtime, disk, Arc::new(model));
    (Assembly::new(config).expect("a sound configuration"), facts)
}

/// Everything recorded, with what was left at the end.
async fn trace_of(mut facts: FactSubscription, world: &World) -> Trace {
    let mut trace = Trace::default();
    let stamp = |ms| Stamp { ms, life: 0, actor: "tokio".into() };
    let mut first = None;
    while let Some(fact) = facts.try_recv() {
        let began = *first.get_or_insert(fact.at);
        assert_eq!(fact.ordinal, trace.entries.len() as u64, "no fact is lost or out of order");
        let ms = fact.at.saturating_sub(began);
        trace.push(stamp(ms), Event::Fact(Fact::clone(&fact.fact)));
    }
    assert_eq!(facts.lost(), 0);
    let store = world.assembly.store.as_ref().expect("it has a store");
    let listed = store.list().await.expect("the directory lists");
    let logs = listed.into_iter().map(|log| {
        let fault = log.error.map(|error| error.to_string());
        (log.id, log.events, fault)
    });
    let agents = world.assembly.agents.list();
    let end = EndState {
        agents: agents.iter().map(|agent| (agent.instance(), agent.id().clone())).collect(),
        logs: logs.collect(),
        ..EndState::default()
    };
    trace.push(stamp(0), Event::Note(Note::Ended(end)));
    trace
}

/// The story of the first few Tasks that never settled.
fn trace_tail_of_open(trace: &Trace) -> String {
    let settled = |wanted: &TaskId| {
        trace.facts().any(|fact| matches!(fact, Fact::TaskReleased { task, .. } if task == wanted))
    };
    let open: Vec<_> = trace
        .facts()
        .filter_map(|fact| match fact {
            Fact::TaskStarted { task, child: Some(child), .. } if !settled(task) => {
                Some((task.clone(), child.clone()))
            }
            _ => None,
        })
        .collect();
    let mut text = format!("{} open Tasks\n", open.len());
    for (task, child) in open.iter().take(2) {
        let about = |line: &String| line.contains(child.as_str()) || line.contains(task.as_str());
        let lines = trace.entries.iter().map(|entry| entry.columns()).filter(about);
        let lines: Vec<_> = lines.collect();
        text +=
            &format!("{task} of {child}:\n{}", lines[lines.len().saturating_sub(60)..].concat());
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_invariant_holds_on_real_threads_and_a_real_directory() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (assembly, facts) = assembly(directory.path());
    let mut parents: Vec<AgentHandle> = Vec::new();
    for n in 0..PARENTS {
        let id = SessionId::new(format!("parent-{n}"));
        parents.push(assembly.create_parent(id).await.expect("a fresh id"));
    }
    let world = Arc::new(World {
        assembly,
        started: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        steered: AtomicU64::new(0),
        gave_up: AtomicU64::new(0),
    });
    let lives: Vec<_> = (0..)
        .zip(&parents)
        .map(|(seed, parent)| tokio::spawn(Arc::clone(&world).live(parent.agent().clone(), seed)))
        .collect();
    let all = async {
        for life in lives {
            life.await.expect("no driver panics");
        }
    };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        let trace = trace_of(facts, &world).await;
        let stuck = trace_tail_of_open(&trace);
        panic!("still not at rest after {PATIENCE:?}:\n{stuck}");
    }
    assert_eq!(world.assembly.control.activations(), 0, "a wait that returned saw it leave");
    for parent in &parents {
        parent.dispose().await;
    }
    world.assembly.shutdown().await.expect("everything is confirmed durable");

    let trace = trace_of(facts, &world).await;
    let mut tested = 0;
    for (invariant, finding) in judge(&trace) {
        let shown = finding.violations.iter().take(3);
        let told: Vec<_> = shown
            .map(|found| {
                let at =
                    usize::try_from(found.at).unwrap_or(usize::MAX).min(trace.entries.len() - 1);
                let window = trace.entries[at.saturating_sub(8)..=at].iter();
                format!("{}\n{}", found.text, window.map(|e| e.columns()).collect::<String>())
            })
            .collect();
        assert!(told.is_empty(), "{invariant:?}\n{}", told.join("\n"));
        tested += finding.tested;
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} activations, {} steered, {} not delivered, {} given up, {} facts, {tested} tests of {} \
         invariants",
        count(&world.started),
        count(&world.steered),
        count(&world.refused),
        count(&world.gave_up),
        trace.entries.len(),
        continuable_sim::invariants::ALL.len(),
    );
    assert!(count(&world.started) >= ACTIVATIONS);
    assert!(count(&world.steered) > 0 && count(&world.refused) > 0, "both dangers were met");
}
