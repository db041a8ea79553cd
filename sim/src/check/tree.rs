//! The tree of schedules: a depth-first walk with sleep sets, as a pure type.
//!
//! A node is one answer: the next task of a step, or a value that a race asked for. After a subtree
//! is explored its first task falls asleep in the siblings' subtrees, and wakes when a step touches
//! what that task's step touched: until then running it would only repeat a known trace with two
//! independent steps swapped (Godefroid). Every trace keeps at least one schedule, and exactly one
//! is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use continuable::sync::{Access, Object, ObjectKind, StepRecord};

use crate::explore::Step;

/// A ready task whose next step is known, and what that step touches.
type Sleeper = (u32, Arc<StepRecord>);

/// How schedules are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// None is: every order of every two steps.
    Off,
    /// Sleep sets: the certified search.
    Sleep,
    /// Sleep sets, and of the ready tasks only those that a race of a schedule asks for (source
    /// sets, Abdulla et al.). Admitted where it reaches the same canonical traces.
    Source,
    /// At most so many switches away from a task that could have gone on; no sleep sets.
    Preemptions(u64),
}

#[derive(Debug, Clone)]
enum Node {
    Task(TaskNode),
    Value { answer: u64, width: u64 },
}

#[derive(Debug, Clone)]
struct TaskNode {
    /// The ready tasks, in the order of their arrival.
    ready: Vec<u32>,
    /// Those whose step here would repeat a known trace.
    asleep: Vec<Sleeper>,
    /// Those whose subtrees are explored, or given away. One whose step asked for a value has no
    /// record: it does something else each time, and never sleeps.
    done: Vec<(u32, Option<Arc<StepRecord>>)>,
    chosen: u32,
    /// With source sets: who is to be chosen here, the chosen and the done among them.
    wanted: Vec<u32>,
    record: Option<Arc<StepRecord>>,
    /// Whether the chosen step asked for a value.
    asked: bool,
    /// The task of the step before, and how many preemptions there were.
    last: Option<u32>,
    preemptions: u64,
}

impl TaskNode {
    /// Who could still be chosen here, in the order in which they are.
    fn candidates<'a>(&'a self, reduction: Reduction) -> impl Iterator<Item = u32> + 'a {
        let rested = move |task: &u32| {
            !self.asleep.iter().any(|(asleep, _)| asleep == task)
                && !self.done.iter().any(|(done, _)| done == task)
        };
        let allowed = move |task: &u32| match reduction {
            Reduction::Preemptions(most) => self.preempting(*task) <= most,
            Reduction::Source => self.wanted.is_empty() || self.wanted.contains(task),
            Reduction::Off | Reduction::Sleep => true,
        };
        // Going on comes first, so that a bounded walk always has somewhere to go.
        let last = self.last.filter(|last| self.ready.contains(last));
        let others = self.ready.iter().copied().filter(move |task| Some(*task) != last);
        last.into_iter().chain(others).filter(rested).filter(allowed)
    }

    /// Preemptions so far, if `task` runs next.
    fn preempting(&self, task: u32) -> u64 {
        let switches = self.last.is_some_and(|last| last != task && self.ready.contains(&last));
        self.preemptions + u64::from(switches)
    }

    /// Who sleeps after the chosen step.
    fn asleep_after(&self) -> Vec<Sleeper> {
        let Some(record) = &self.record else { return Vec::new() };
        let known = self.done.iter().filter_map(|(task, record)| Some((*task, record.clone()?)));
        let sleepers = self.asleep.iter().cloned().chain(known);
        let stays = |(task, sleeping): &Sleeper| {
            *task != self.chosen && !Step::records_conflict(record, sleeping)
        };
        sleepers.filter(stays).collect()
    }
}

/// What the next step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The task at that place of the ready list.
    Run(usize),
    /// All that are ready sleep: the rest of this schedule is known.
    Known,
}

/// A walk over a part of the tree.
#[derive(Debug, Clone)]
pub struct Tree {
    reduction: Reduction,
    nodes: Vec<Node>,
    /// How many of the nodes are the path to this part, and never change.
    floor: usize,
    /// How far the current schedule is.
    depth: usize,
    /// What is answered where the tree does not know better.
    recorded: Vec<u64>,
    /// The steps of the current schedule, for source sets.
    past: Past,
    /// From which node on the current schedule is new.
    new_from: usize,
}

impl Tree {
    /// The whole tree.
    pub fn new(reduction: Reduction) -> Self {
        Self {
            reduction,
            nodes: Vec::new(),
            floor: 0,
            depth: 0,
            recorded: Vec::new(),
            past: Past::default(),
            new_from: 0,
        }
    }

    /// A walk whose first schedule follows `answers`: places in ready lists, and values.
    pub fn recorded(answers: &[u64]) -> Self {
        Self { recorded: answers.to_vec(), ..Self::new(Reduction::Off) }
    }

    /// The next schedule begins.
    pub fn begin(&mut self) {
        self.depth = 0;
        self.past = Past::default();
        self.new_from = self.nodes.len().saturating_sub(1);
    }

    /// Which of `ready` runs next.
    ///
    /// # Panics
    ///
    /// If the same answers led to another ready list before: the race is not deterministic.
    pub fn next(&mut self, ready: &[u32]) -> Next {
        let place = |task: u32| ready.iter().position(|other| *other == task);
        if let Some(node) = self.nodes.get(self.depth) {
            let Node::Task(node) = node else { panic!("a value became a task: not deterministic") };
            assert_eq!(node.ready, ready, "step {}: not deterministic", self.depth);
            self.depth += 1;
            return Next::Run(place(node.chosen).expect("it was ready before"));
        }
        let before = self.nodes.iter().rev().find_map(|node| match node {
            Node::Task(node) => Some(node),
            Node::Value { .. } => None,
        });
        let mut node = TaskNode {
            ready: ready.to_vec(),
            asleep: Vec::new(),
            done: Vec::new(),
            chosen: 0,
            wanted: Vec::new(),
            record: None,
            asked: false,
            last: before.map(|node| node.chosen),
            preemptions: before.map_or(0, |node| node.preempting(node.chosen)),
        };
        if matches!(self.reduction, Reduction::Sleep | Reduction::Source) {
            node.asleep = before.map(TaskNode::asleep_after).unwrap_or_default();
        }
        let recorded = self.recorded.get(self.depth).and_then(|place| usize::try_from(*place).ok());
        let recorded = recorded.and_then(|place| ready.get(place)).copied();
        let chosen = recorded.or_else(|| node.candidates(self.reduction).next());
        let Some(chosen) = chosen else { return Next::Known };
        node.chosen = chosen;
        node.wanted.push(chosen);
        self.nodes.push(Node::Task(node));
        self.depth += 1;
        Next::Run(place(chosen).expect("candidates are ready"))
    }

    /// A value below `width`.
    pub fn value(&mut self, width: u64) -> u64 {
        let answer = match self.nodes.get(self.depth) {
            Some(Node::Value { answer, width: before }) => {
                assert_eq!(*before, width, "value {}: not deterministic", self.depth);
                *answer
            }
            Some(Node::Task(_)) => panic!("a task became a value: not deterministic"),
            None => {
                let answer = self.recorded.get(self.depth).copied().unwrap_or(0) % width;
                self.nodes.push(Node::Value { answer, width });
                answer
            }
        };
        self.depth += 1;
        answer
    }

    /// What the step that was chosen last did; `key` is the ready flag of its task.
    pub fn stepped(&mut self, record: &StepRecord, key: u64) {
        let mut asked = false;
        let first = self.first_ready();
        for place in (0..self.depth).rev() {
            match &mut self.nodes[place] {
                Node::Value { .. } => asked = true,
                Node::Task(node) => {
                    node.asked |= asked;
                    if node.record.as_deref() != Some(record) {
                        node.record = Some(Arc::new(record.clone()));
                    }
                    if self.reduction == Reduction::Source {
                        let task = node.chosen;
                        let rooted = first.contains(&task);
                        let asks = self.past.step(record, key, task, place, rooted);
                        if place >= self.new_from {
                            asks.into_iter().for_each(|ask| self.want(&ask));
                        }
                    }
                    return;
                }
            }
        }
    }

    /// The tasks that were ready before the first step, where that matters.
    fn first_ready(&self) -> Vec<u32> {
        let first = self.nodes.iter().find_map(|node| match node {
            Node::Task(node) if self.reduction == Reduction::Source => Some(node.ready.clone()),
            _ => None,
        });
        first.unwrap_or_default()
    }

    /// A race was seen: one of its initials must be tried before the step that it raced with.
    fn want(&mut self, ask: &Ask) {
        let Node::Task(node) = &mut self.nodes[ask.place] else { return };
        if ask.initials.iter().any(|task| node.wanted.contains(task)) {
            return;
        }
        // What one that sleeps would lead to is known already.
        let asleep = |task: &&u32| node.asleep.iter().any(|(asleep, _)| asleep == *task);
        let enabled = |task: &&u32| node.ready.contains(task);
        let initial = ask.initials.iter().find(asleep);
        let initial = initial.or_else(|| ask.initials.iter().find(enabled));
        node.wanted.extend(initial);
    }

    /// The answers of the current schedule: places in ready lists, and values.
    pub fn answers(&self) -> Vec<u64> {
        let answer = |node: &Node| match node {
            Node::Value { answer, .. } => *answer,
            Node::Task(node) => {
                let place = node.ready.iter().position(|task| *task == node.chosen);
                place.unwrap_or(0) as u64
            }
        };
        self.nodes[..self.depth].iter().map(answer).collect()
    }

    /// How deep the current schedule is.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Moves on to the next unexplored schedule; false if this part has none left.
    pub fn advance(&mut self) -> bool {
        while self.nodes.len() > self.floor {
            match self.nodes.pop() {
                Some(Node::Value { answer, width }) if answer + 1 < width => {
                    self.nodes.push(Node::Value { answer: answer + 1, width });
                    return true;
                }
                Some(Node::Task(mut node)) => {
                    node.retire();
                    let next = node.candidates(self.reduction).next();
                    if let Some(next) = next {
                        node.chosen = next;
                        self.nodes.push(Node::Task(node));
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// Gives the highest unexplored branch of this part to somebody else. Call it between two
    /// schedules, before [`Tree::advance`].
    pub fn split(&mut self) -> Option<Self> {
        for place in self.floor..self.nodes.len() {
            let other = match &self.nodes[place] {
                Node::Value { answer, width } if answer + 1 < *width => {
                    Node::Value { answer: answer + 1, width: *width }
                }
                Node::Task(node) => {
                    let mut node = node.clone();
                    node.retire();
                    let Some(next) = node.candidates(self.reduction).next() else { continue };
                    node.chosen = next;
                    Node::Task(node)
                }
                Node::Value { .. } => continue,
            };
            let mut nodes = self.nodes[..place].to_vec();
            nodes.push(other);
            let floor = place;
            // What is above the branch stays what it is, here as there.
            self.floor = place + 1;
            return Some(Self { nodes, floor, ..Self::new(self.reduction) });
        }
        None
    }
}

impl TaskNode {
    /// The chosen task's subtree is explored, or somebody else's.
    fn retire(&mut self) {
        let record = self.record.take().filter(|_| !self.asked);
        self.asked = false;
        self.done.push((self.chosen, record));
    }
}

/// A race that could have gone the other way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ask {
    /// The node of its first step.
    place: usize,
    /// The tasks of which one has to run there instead.
    initials: Vec<u32>,
}

/// The steps of one schedule with their happens-before order.
#[derive(Debug, Clone, Default)]
struct Past {
    steps: Vec<PastStep>,
    /// The last writer of each object, and its readers since.
    objects: BTreeMap<Object, (Option<usize>, BTreeSet<usize>)>,
}

#[derive(Debug, Clone)]
struct PastStep {
    task: u32,
    place: usize,
    /// What happened before it, itself included: a bit a step.
    before: Vec<u64>,
}

impl PastStep {
    fn follows(&self, step: usize) -> bool {
        self.before.get(step / 64).is_some_and(|word| word >> (step % 64) & 1 == 1)
    }
}

impl Past {
    /// Adds a step of `task`, and answers the races that it ends. `rooted`: the task was ready before
    /// the first step.
    fn step(
        &mut self,
        record: &StepRecord,
        key: u64,
        task: u32,
        place: usize,
        rooted: bool,
    ) -> Vec<Ask> {
        let now = self.steps.len();
        let ready = Object { kind: ObjectKind::Ready, key };
        let (polled, wakers) = self.objects.get(&ready).cloned().unwrap_or_default();
        let mut direct = BTreeSet::new();
        for (object, access) in &record.touches {
            if let Some((writer, readers)) = self.objects.get(object) {
                direct.extend(*writer);
                if *access == Access::Write {
                    direct.extend(readers);
                }
            }
        }
        let mut before = vec![0; now / 64 + 1];
        for step in &direct {
            for (word, more) in before.iter_mut().zip(&self.steps[*step].before) {
                *word |= more;
            }
        }
        before[now / 64] |= 1 << (now % 64);
        self.steps.push(PastStep { task, place, before });
        self.note(record, now, ready);
        let woken_without = |step: usize| {
            (polled.is_none() && rooted)
                || wakers.iter().any(|waker| !self.steps[*waker].follows(step))
        };
        let immediate = |step: usize| {
            !direct.iter().any(|other| *other != step && self.steps[*other].follows(step))
        };
        let races = direct.iter().copied().filter(|step| self.steps[*step].task != task);
        let races = races.filter(|step| immediate(*step) && woken_without(*step));
        races.map(|step| self.ask(step, now)).collect()
    }

    fn note(&mut self, record: &StepRecord, now: usize, ready: Object) {
        let of = |access| record.touches.iter().filter(move |(_, how)| *how == access);
        for (object, _) in of(Access::Write) {
            self.objects.insert(*object, (Some(now), BTreeSet::new()));
        }
        for (object, _) in of(Access::Read) {
            let (writer, readers) = self.objects.entry(*object).or_default();
            // A task that wakes itself is ready again because of this step.
            if *writer != Some(now) || *object == ready {
                readers.insert(now);
            }
        }
    }

    /// `step` raced with `now`: who can come first instead.
    fn ask(&self, step: usize, now: usize) -> Ask {
        let independent: Vec<_> = (step + 1..now)
            .filter(|other| !self.steps[*other].follows(step))
            .chain([now])
            .collect();
        let is_initial = |place: &usize| {
            let earlier = independent.iter().filter(|other| *other < place);
            !earlier.copied().any(|other| self.steps[*place].follows(other))
        };
        let initials = independent.iter().filter(|place| is_initial(place));
        let initials = initials.map(|place| self.steps[*place].task).collect();
        Ask { place: self.steps[step].place, initials }
    }
}
