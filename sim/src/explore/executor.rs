//! The executor: one thread, every order of polls that the choices ask for.
//!
//! A step is one poll of one task. When nothing is ready the clock jumps to the next timer; when
//! there is no timer either, the run is over. Dropping the pool is a crash: tasks are dropped in
//! their order, with no lock held and nothing borrowed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use continuable::facts::{Fact, PanicKind};
use continuable::runtime::{BoxFuture, Runtime};
use continuable::sync::{Access, Object, ObjectKind, StepRecord, begin_step, end_step, touch};

use super::choices::Choices;
use super::runtime::{RunOptions, RunRecord, SimRuntime, TaskWaker};
use crate::trace::Event;

/// A task in its slot.
struct Slot {
    /// `None` while it is polled, and once it is finished.
    body: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

/// What one step did, when footprints are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The polled task; `None` for a jump of the clock.
    pub task: Option<u32>,
    /// The tasks that were ready before the step, in their order.
    pub ready: Vec<u32>,
    /// What it touched.
    pub record: StepRecord,
}

impl Step {
    /// Whether the two steps may not be swapped: an object in common, written by one of them.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.task == other.task || Self::records_conflict(&self.record, &other.record)
    }

    /// Whether two steps that did this conflict, whoever made them.
    pub fn records_conflict(one: &StepRecord, other: &StepRecord) -> bool {
        one.touches.iter().any(|(object, access)| {
            other.touches.iter().any(|(theirs, their_access)| {
                object == theirs && (*access == Access::Write || *their_access == Access::Write)
            })
        })
    }

    /// The objects it touched with `access`.
    pub fn touched(&self, access: Access) -> impl Iterator<Item = Object> {
        let touches = self.record.touches.iter();
        touches.filter(move |(_, how)| *how == access).map(|(object, _)| *object)
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// Nothing is ready and no timer is set.
    Quiescent {
        /// The tasks that wait for something that will never come, by name: a deadlock, or a leak.
        pending: Vec<Arc<str>>,
    },
    /// The process died.
    Crashed {
        /// Of what.
        by: String,
    },
    /// The poll bound was reached.
    Livelock {
        /// The task polled most often.
        task: Arc<str>,
        /// How often.
        polls: u64,
    },
}

/// A run's end with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub end: RunEnd,
    /// Polls made.
    pub polls: u64,
    /// Choices of a task made: what PCT's length estimate counts.
    pub task_choices: u64,
    /// Tasks ever spawned.
    pub tasks: u64,
    /// Virtual milliseconds passed.
    pub elapsed_ms: u64,
}

/// Runs tasks on the calling thread.
pub struct Executor {
    runtime: Arc<SimRuntime>,
    slots: Vec<Slot>,
    steps: Vec<Step>,
    polls: u64,
}

impl Executor {
    /// An executor without tasks, whose run `choices` decide.
    pub fn new(choices: Box<dyn Choices>, options: RunOptions) -> Self {
        Self::of(RunRecord::new(choices), options)
    }

    /// An executor without tasks that is one life or one host of a run.
    pub fn of(record: RunRecord, options: RunOptions) -> Self {
        let runtime = SimRuntime::new(record, options);
        Self { runtime, slots: Vec::new(), steps: Vec::new(), polls: 0 }
    }

    /// The runtime that its tasks use.
    pub fn runtime(&self) -> &Arc<SimRuntime> {
        &self.runtime
    }

    /// Runs `main` and everything it spawns until nothing can move. The output of `main` is there
    /// if it finished.
    pub fn run<T: Send + 'static>(
        &mut self,
        main: impl Future<Output = T> + Send + 'static,
    ) -> (Option<T>, Outcome) {
        let output = Arc::new(Mutex::new(None));
        let place = Arc::clone(&output);
        let body = async move {
            let value = main.await;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        };
        self.runtime.spawn("main".to_owned(), Box::pin(body));
        let outcome = self.run_ready();
        let value = output.lock().unwrap_or_else(PoisonError::into_inner).take();
        (value, outcome)
    }

    /// Runs what is spawned until nothing can move.
    pub fn run_ready(&mut self) -> Outcome {
        let end = loop {
            if self.is_spent() {
                break self.livelock();
            }
            let moved = self.step() || self.jump();
            if self.runtime.is_crashed() {
                break RunEnd::Crashed { by: self.runtime.crashed().unwrap_or_default() };
            }
            if !moved {
                break RunEnd::Quiescent { pending: self.pending() };
            }
        };
        let state = self.runtime.state();
        Outcome {
            end,
            polls: self.polls,
            task_choices: self.runtime.run_record().task_choices(),
            tasks: state.tasks.len() as u64,
            elapsed_ms: state.now_us / 1_000,
        }
    }

    /// What each step touched, when footprints are on.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Every answer given so far: [`super::Sampler::Recorded`] of it replays the run.
    pub fn answers(&self) -> Vec<u64> {
        self.runtime.run_record().answers()
    }

    /// The name of a task.
    pub fn task_name(&self, task: u32) -> Arc<str> {
        Arc::clone(&self.runtime.state().tasks[task as usize].name)
    }

    /// The tasks that are ready, in the order of their arrival.
    pub fn ready(&self) -> Vec<u32> {
        self.runtime.state().ready.clone()
    }

    /// The key of a task: the same in every schedule.
    pub fn task_key(&self, task: u32) -> u64 {
        self.runtime.state().tasks[task as usize].key
    }

    /// Polls one ready task; false if none is ready.
    pub fn step(&mut self) -> bool {
        let index = {
            let state = self.runtime.state();
            match state.ready.len() {
                0 => return false,
                1 => 0,
                _ => {
                    let life = self.runtime.options.life;
                    self.runtime.run_record().choose_task(life, &state.ready)
                }
            }
        };
        self.step_at(index);
        true
    }

    /// Polls the ready task at `index`; somebody else chose.
    pub fn step_at(&mut self, index: usize) {
        let footprints = self.runtime.options.footprints;
        let mut ready = Vec::new();
        let (task, key, fresh, arrivals) = {
            let mut state = self.runtime.state();
            if footprints {
                ready.clone_from(&state.ready);
            }
            let task = state.take_ready(index);
            let entry = &state.tasks[task as usize];
            (task, entry.key, entry.fresh, std::mem::take(&mut state.arrivals))
        };
        self.adopt(arrivals);
        self.polls += 1;
        if footprints {
            begin_step(key, fresh);
            touch(ObjectKind::Ready, key, Access::Write);
        }
        let done = self.poll(task);
        let recorded = footprints.then(end_step);
        self.runtime.look();
        let mut state = self.runtime.state();
        state.current = None;
        state.tasks[task as usize].done |= done;
        if let Some((record, fresh)) = recorded {
            state.tasks[task as usize].fresh = fresh;
            self.steps.push(Step { task: Some(task), ready, record });
        }
    }

    /// Polls `task` and drops it when it is finished; true if it is.
    fn poll(&mut self, task: u32) -> bool {
        let slot = &mut self.slots[task as usize];
        let Some(mut body) = slot.body.take() else { return true };
        let mut context = Context::from_waker(&slot.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| body.as_mut().poll(&mut context)));
        if let Ok(Poll::Pending) = polled {
            slot.body = Some(body);
            return false;
        }
        // Its destructors belong to the step.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(body)));
        if polled.is_err() || dropped.is_err() {
            // `runtime::spawn` contains panics; one that arrives here is a broken executor or test.
            let name = self.task_name(task).to_string();
            let text = "a panic escaped its task".to_owned();
            let fact = Fact::PanicCaught { kind: PanicKind::Ours, task: name, text };
            self.runtime.record(Event::Fact(fact));
        }
        true
    }

    fn adopt(&mut self, arrivals: Vec<BoxFuture<'static, ()>>) {
        for body in arrivals {
            let task = u32::try_from(self.slots.len()).expect("far fewer tasks than u32::MAX");
            let waker = TaskWaker::of(&self.runtime, task);
            self.slots.push(Slot { body: Some(body), waker });
        }
    }

    /// Moves the clock to the next timer; false if there is none.
    pub fn jump(&mut self) -> bool {
        let footprints = self.runtime.options.footprints;
        if footprints {
            begin_step(0, 0);
        }
        let jumped = self.runtime.jump();
        if footprints {
            let (record, _) = end_step();
            if jumped {
                self.steps.push(Step { task: None, ready: Vec::new(), record });
            }
        }
        jumped
    }

    fn pending(&self) -> Vec<Arc<str>> {
        self.runtime.unfinished()
    }

    /// Whether the poll bound is reached.
    pub(super) fn is_spent(&self) -> bool {
        self.polls >= self.runtime.options.polls_max
    }

    pub(super) fn livelock(&self) -> RunEnd {
        let state = self.runtime.state();
        let busiest = state.tasks.iter().max_by_key(|task| task.polls);
        let (task, polls) = busiest
            .map_or_else(|| ("nobody".into(), 0), |task| (Arc::clone(&task.name), task.polls));
        RunEnd::Livelock { task, polls }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let remains = self.runtime.close();
        for slot in &mut self.slots {
            let body = slot.body.take();
            drop(body);
        }
        drop(remains);
    }
}
