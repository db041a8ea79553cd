//! One schedule of a race, and all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use continuable::channel::Latch;
use continuable::runtime::Runtime as _;
use continuable::sync::{Access, Object};

use super::stage::{Memory, Stage};
use super::tree::{Next, Reduction, Tree};
use super::{Outcome, Script, Variant};
use crate::explore::{Choices, Executor, RunOptions, RunRecord, mix};
use crate::invariants;
use crate::trace::Trace;

/// Polls after which a schedule is a livelock: many times the longest.
const POLLS_MAX: u64 = 20_000;
/// Names of every schedule are drawn from this seed: they are no choices.
const NAMES: u64 = 7;

/// How a search is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Which schedules are left out.
    pub reduction: Reduction,
    /// Whether a point lets the others go first.
    pub points_yield: bool,
    /// Whether the canonical traces are collected.
    pub traces: bool,
    /// The most schedules, complete and cut short together.
    pub schedules_max: u64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            reduction: Reduction::Sleep,
            points_yield: true,
            traces: false,
            schedules_max: u64::MAX,
        }
    }
}

/// What one outcome was reached by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// How many complete schedules.
    pub schedules: u64,
    /// The answers of the shortest of them, the first in their order among equals.
    pub shortest: Vec<u64>,
}

/// A schedule that broke something other than the outcome set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// What: an invariant's id and what was seen, or how the schedule did not end.
    pub what: String,
    /// Its answers.
    pub answers: Vec<u64>,
}

/// The sum of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// Complete schedules.
    pub schedules: u64,
    /// Schedules that were cut short, because the rest of them was known.
    pub pruned: u64,
    /// The most answers that a schedule took.
    pub depth: usize,
    /// The most steps in a race's window.
    pub longest: usize,
    /// By outcome.
    pub outcomes: BTreeMap<Outcome, Reached>,
    /// Schedules that broke something; the first few.
    pub broken: Vec<Broken>,
    /// The canonical traces, if they were asked for.
    pub traces: BTreeSet<u128>,
    /// Whether nothing is left to be explored.
    pub exhausted: bool,
}

/// How many broken schedules are kept.
const BROKEN_KEPT: usize = 4;

impl Searched {
    /// Adds another part of the same search.
    pub fn merge(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.pruned += other.pruned;
        self.depth = self.depth.max(other.depth);
        self.longest = self.longest.max(other.longest);
        for (outcome, reached) in other.outcomes {
            self.reach(outcome, reached);
        }
        self.broken.extend(other.broken);
        self.broken
            .sort_by(|a, b| (a.answers.len(), &a.answers).cmp(&(b.answers.len(), &b.answers)));
        self.broken.truncate(BROKEN_KEPT);
        self.traces.extend(other.traces);
    }

    fn reach(&mut self, outcome: Outcome, reached: Reached) {
        let Some(known) = self.outcomes.get_mut(&outcome) else {
            self.outcomes.insert(outcome, reached);
            return;
        };
        known.schedules += reached.schedules;
        let length = |answers: &Vec<u64>| (answers.len(), answers.clone());
        if length(&reached.shortest) < length(&known.shortest) {
            known.shortest = reached.shortest;
        }
    }

    fn add(&mut self, ended: Ended, answers: Vec<u64>) {
        self.depth = self.depth.max(answers.len());
        let Ended { outcome, broken, steps, trace } = ended;
        self.schedules += 1;
        self.longest = self.longest.max(steps);
        self.traces.extend(trace);
        if let Some(what) = broken {
            self.broken.push(Broken { what, answers: answers.clone() });
            self.broken.truncate(BROKEN_KEPT);
        }
        if let Some(outcome) = outcome {
            self.reach(outcome, Reached { schedules: 1, shortest: answers });
        }
    }
}

/// One complete schedule.
#[derive(Debug)]
pub struct Ended {
    /// What the race came to; `None` if its script never ended.
    pub outcome: Option<Outcome>,
    /// What it broke.
    pub broken: Option<String>,
    /// Steps in the window.
    pub steps: usize,
    /// Its canonical trace.
    pub trace: Option<u128>,
}

/// The script of a later life.
type Restart = fn(Stage) -> Script;

/// Whether steps are choices now, and what else a script asks of its driver.
#[derive(Debug, Default)]
pub(super) struct Window {
    open: AtomicBool,
    /// Who waits until nothing moves any more.
    quiet: Mutex<Option<Latch<()>>>,
    /// After how many more steps the machine dies, and what its next life does.
    crash: Mutex<Option<(u64, Restart)>>,
    /// Whether the facts are those of one process, as the invariants need them.
    unjudged: AtomicBool,
}

impl Window {
    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// The machine dies after `steps` more steps, and then `restart` is its next life.
    pub(super) fn crash_after(&self, steps: u64, restart: Restart) {
        *guard(&self.crash) = Some((steps, restart));
    }

    /// From now on several processes record facts.
    pub(super) fn unjudge(&self) {
        self.unjudged.store(true, Ordering::Relaxed);
    }

    /// Whether the machine dies before the next step.
    fn crashes(&self) -> Option<Restart> {
        let mut crash = guard(&self.crash);
        let (steps, restart) = crash.as_mut()?;
        if *steps == 0 {
            let restart = *restart;
            *crash = None;
            return Some(restart);
        }
        *steps -= 1;
        None
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Set once nothing is ready and no timer is set.
    pub(super) fn quiet(&self) -> Latch<()> {
        guard(&self.quiet).get_or_insert_default().clone()
    }

    /// Nothing moves any more: whoever waits for that goes on. False if nobody does.
    fn rest(&self) -> bool {
        self.open.store(false, Ordering::Relaxed);
        let quiet = guard(&self.quiet).take();
        quiet.is_some_and(|quiet| quiet.set(()))
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The choices of one schedule: first in, first out outside of the window.
#[derive(Debug)]
struct Guided {
    walk: Arc<Mutex<Walk>>,
}

/// What the driver and the choices share.
#[derive(Debug)]
struct Walk {
    tree: Tree,
    /// The values that the current step asked for.
    values: Vec<u64>,
}

impl Choices for Guided {
    fn task(&mut self, _ready: &[u32]) -> usize {
        0
    }

    fn value(&mut self, width: u64) -> u64 {
        let mut walk = guard(&self.walk);
        let answer = walk.tree.value(width);
        walk.values.push(answer);
        answer
    }
}

/// How a life ended.
enum Halt {
    /// Nothing moves any more.
    Rest,
    /// The rest of the schedule is known.
    Known,
    /// The machine died; that is its next life.
    Crashed(Restart),
    /// It never came to rest.
    Livelock,
}

/// Walks a part of a race's tree.
pub struct Searcher<'a> {
    variant: &'a Variant,
    options: SearchOptions,
    walk: Arc<Mutex<Walk>>,
}

impl<'a> Searcher<'a> {
    /// A walk of the whole tree of `variant`.
    pub fn new(variant: &'a Variant, options: SearchOptions) -> Self {
        Self::of(variant, options, Tree::new(options.reduction))
    }

    /// A walk of a part that was split off.
    pub fn of(variant: &'a Variant, options: SearchOptions, tree: Tree) -> Self {
        let walk = Arc::new(Mutex::new(Walk { tree, values: Vec::new() }));
        Self { variant, options, walk }
    }

    /// Explores the current schedule and adds it to `sum`.
    pub fn explore(&self, sum: &mut Searched) {
        guard(&self.walk).tree.begin();
        let (ended, _) = self.schedule();
        let answers = guard(&self.walk).tree.answers();
        match ended {
            Some(ended) => sum.add(ended, answers),
            None => sum.pruned += 1,
        }
    }

    /// Moves on; false if this part has no schedule left.
    pub fn advance(&self) -> bool {
        guard(&self.walk).tree.advance()
    }

    /// Gives a part away.
    pub fn split(&self) -> Option<Tree> {
        guard(&self.walk).tree.split()
    }

    /// Everything that is left, up to the most schedules.
    pub fn exhaust(&self) -> Searched {
        let mut sum = Searched::default();
        loop {
            self.explore(&mut sum);
            if !self.advance() {
                sum.exhausted = true;
                return sum;
            }
            if sum.schedules + sum.pruned >= self.options.schedules_max {
                return sum;
            }
        }
    }

    /// One schedule; `None` if it was cut short.
    fn schedule(&self) -> (Option<Ended>, Trace) {
        let record = RunRecord::new(Box::new(Guided { walk: Arc::clone(&self.walk) }));
        let window = Arc::new(Window::default());
        let memory = Memory::default();
        let mut canon = Canon::default();
        let mut script = self.variant.script;
        for life in 0.. {
            let options = RunOptions {
                names: mix(NAMES + life),
                life,
                footprints: true,
                points_yield: self.options.points_yield,
                polls_max: POLLS_MAX,
                ..RunOptions::default()
            };
            let mut executor = Executor::of(record.clone(), options);
            let runtime = Arc::clone(executor.runtime());
            let stage = Stage::new(Arc::clone(&runtime), Arc::clone(&window), memory.clone());
            let output = Arc::new(Mutex::new(None));
            let (place, body) = (Arc::clone(&output), script(stage.clone()));
            let main = Box::pin(async move {
                let outcome = body.await;
                *guard(&place) = Some(outcome);
            });
            runtime.spawn("main".to_owned(), main);
            let halt = self.drive(&mut executor, &window, &mut canon);
            if let Halt::Crashed(_) = halt {
                memory.disk.freeze();
                runtime.request_crash("the machine stops".to_owned());
            }
            drop(executor);
            stage.bury();
            let outcome = guard(&output).take();
            match halt {
                Halt::Crashed(restart) => {
                    memory.crash(&record);
                    script = restart;
                }
                Halt::Known => return (None, record.take_trace()),
                Halt::Rest => return self.ended(outcome, &record, &window, canon, None),
                Halt::Livelock => {
                    let what = Some("it never came to rest".to_owned());
                    return self.ended(outcome, &record, &window, canon, what);
                }
            }
        }
        unreachable!("lives are counted without end")
    }

    fn ended(
        &self,
        outcome: Option<Outcome>,
        record: &RunRecord,
        window: &Window,
        canon: Canon,
        livelock: Option<String>,
    ) -> (Option<Ended>, Trace) {
        let trace = record.take_trace();
        let judged = !window.unjudged.load(Ordering::Relaxed);
        let broken = livelock.or_else(|| broken(&trace).filter(|_| judged)).or_else(|| {
            outcome.is_none().then(|| "the race's script waits for what never comes".to_owned())
        });
        let hash = self.options.traces.then_some(canon.hash);
        (Some(Ended { outcome, broken, steps: canon.steps, trace: hash }), trace)
    }

    /// Runs a life to its end.
    fn drive(&self, executor: &mut Executor, window: &Window, canon: &mut Canon) -> Halt {
        for _ in 0..POLLS_MAX {
            if let Some(restart) = window.crashes() {
                return Halt::Crashed(restart);
            }
            if !window.is_open() {
                if !(executor.step() || executor.jump() || window.rest()) {
                    return Halt::Rest;
                }
                continue;
            }
            let ready = executor.ready();
            if ready.is_empty() {
                if executor.jump() {
                    canon.step(executor, &[]);
                } else {
                    window.rest();
                }
                continue;
            }
            let next = guard(&self.walk).tree.next(&ready);
            let Next::Run(index) = next else { return Halt::Known };
            guard(&self.walk).values.clear();
            executor.step_at(index);
            let mut walk = guard(&self.walk);
            let step = executor.steps().last().expect("footprints are on");
            let key = step.task.map_or(0, |task| executor.task_key(task));
            walk.tree.stepped(&step.record, key);
            if self.options.traces {
                canon.step(executor, &walk.values);
            } else {
                canon.steps += 1;
            }
        }
        Halt::Livelock
    }

    /// The schedule that `answers` are, with its whole trace.
    pub fn replay(
        variant: &'a Variant,
        answers: &[u64],
        options: SearchOptions,
    ) -> (Option<Ended>, Trace) {
        let tree = Tree::recorded(answers);
        Self::of(variant, options, tree).schedule()
    }
}

/// What a trace broke first.
fn broken(trace: &Trace) -> Option<String> {
    invariants::judge(trace).into_iter().find_map(|(invariant, finding)| {
        let violation = finding.violations.into_iter().next()?;
        Some(format!("{}: {} (entry {})", invariant.id, violation.text, violation.at))
    })
}

/// The canonical form of a schedule: the same for all that differ only in the order of independent
/// steps. Each step is hashed with the steps it had to follow; the sum forgets their order.
#[derive(Debug, Default)]
struct Canon {
    hash: u128,
    steps: usize,
    /// How many steps each task made, by its key.
    made: BTreeMap<u64, u64>,
    /// The last writer of each object, and its readers since.
    objects: BTreeMap<Object, (Option<Event>, BTreeSet<Event>)>,
}

/// A step by its task's key and its place among the task's steps.
type Event = (u64, u64);

impl Canon {
    fn step(&mut self, executor: &Executor, values: &[u64]) {
        self.steps += 1;
        let step = executor.steps().last().expect("footprints are on");
        let key = step.task.map_or(0, |task| executor.task_key(task));
        let made = self.made.entry(key).or_default();
        let event = (key, *made);
        *made += 1;
        let mut before = BTreeSet::new();
        for object in step.touched(Access::Read) {
            let (writer, readers) = self.objects.entry(object).or_default();
            before.extend(*writer);
            readers.insert(event);
        }
        for object in step.touched(Access::Write) {
            let (writer, readers) = self.objects.entry(object).or_default();
            before.extend(*writer);
            before.extend(std::mem::take(readers));
            *writer = Some(event);
        }
        before.remove(&event);
        let parts = [event.0, event.1].into_iter().chain(values.iter().copied());
        let parts = parts.chain(before.into_iter().flat_map(|(task, place)| [task, place]));
        let (low, high) = parts
            .fold((1, 2), |(low, high), part| (mix(low ^ part), mix(high ^ part.rotate_left(17))));
        self.hash = self.hash.wrapping_add(u128::from(low) | u128::from(high) << 64);
    }
}
