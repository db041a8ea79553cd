//! Plans as a proptest strategy, and how a plan is made smaller. One generator and one set of
//! reductions serve the command line and the tests.

use proptest::prelude::Rng as _;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::{Ending, Hook, ModelStep, Operation, Plan, Suite};

/// Draws plans of one suite.
#[derive(Debug, Clone, Copy)]
pub struct Plans(pub Suite);

impl Strategy for Plans {
    type Tree = PlanTree;
    type Value = Plan;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        Ok(PlanTree::new(Plan::of(self.0, runner.rng().next_u64())))
    }
}

/// A plan with what is left to try to make it smaller.
#[derive(Debug, Clone)]
pub struct PlanTree {
    current: Plan,
    /// The last plan known to fail, while a smaller one is tried.
    larger: Option<Plan>,
    candidates: Vec<Plan>,
    next: usize,
    /// Whether this pass over the candidates made the plan smaller: then there is another one.
    shrunk: bool,
}

impl PlanTree {
    fn new(current: Plan) -> Self {
        let candidates = reductions(&current);
        Self { candidates, current, larger: None, next: 0, shrunk: false }
    }
}

impl ValueTree for PlanTree {
    type Value = Plan;

    fn current(&self) -> Plan {
        self.current.clone()
    }

    fn simplify(&mut self) -> bool {
        if self.larger.take().is_some() {
            // The smaller plan fails too: go on from it, at the same place of its own list.
            self.candidates = reductions(&self.current);
            self.shrunk = true;
        }
        if self.next >= self.candidates.len() && std::mem::take(&mut self.shrunk) {
            self.next = 0;
        }
        let Some(smaller) = self.candidates.get(self.next) else { return false };
        self.larger = Some(std::mem::replace(&mut self.current, smaller.clone()));
        true
    }

    fn complicate(&mut self) -> bool {
        let Some(larger) = self.larger.take() else { return false };
        self.current = larger;
        self.next += 1;
        self.simplify()
    }
}

/// Everything that makes `plan` smaller by one step, the largest steps first. Each differs from
/// `plan`, and repeating them ends.
pub fn reductions(plan: &Plan) -> Vec<Plan> {
    let mut reduced = Reduced { plan, candidates: Vec::new() };
    reduced.clients();
    reduced.lists();
    reduced.settings();
    reduced.scripts();
    reduced.details();
    reduced.candidates
}

struct Reduced<'a> {
    plan: &'a Plan,
    candidates: Vec<Plan>,
}

impl Reduced<'_> {
    fn add(&mut self, change: impl FnOnce(&mut Plan)) {
        let mut smaller = self.plan.clone();
        change(&mut smaller);
        if smaller != *self.plan {
            self.candidates.push(smaller);
        }
    }

    /// Whole clients, then runs of operations, halves first.
    fn clients(&mut self) {
        let count = self.plan.clients.len();
        for client in (0..count).rev().filter(|_| count > 1) {
            self.add(|plan| drop(plan.clients.remove(client)));
        }
        for client in 0..count {
            let operations = self.plan.clients[client].len();
            let mut length = operations;
            while length > 0 {
                for start in (0..operations.saturating_sub(length - 1)).step_by(length) {
                    self.add(|plan| drop(plan.clients[client].drain(start..start + length)));
                }
                length /= 2;
            }
        }
    }

    fn lists(&mut self) {
        for fault in (0..self.plan.faults.len()).rev() {
            self.add(|plan| {
                plan.faults.remove(fault);
            });
        }
        for fault in (0..self.plan.network.len()).rev() {
            self.add(|plan| {
                plan.network.remove(fault);
            });
        }
        for visit in (0..self.plan.visits.len()).rev() {
            self.add(|plan| {
                plan.visits.remove(visit);
            });
        }
    }

    fn settings(&mut self) {
        self.add(|plan| plan.parents = 1);
        self.add(|plan| plan.panicking_listener = false);
        self.add(|plan| plan.hook = Hook::Absent);
        self.add(|plan| plan.ending = Ending::Patience);
        self.add(|plan| plan.wakes = 0);
        self.add(|plan| plan.lease = false);
        self.add(|plan| plan.capacity = None);
        self.add(|plan| plan.parent_script.clear());
    }

    fn scripts(&mut self) {
        for script in (0..self.plan.scripts.len()).rev() {
            self.add(|plan| plan.scripts[script].truncate(1));
            for step in 0..self.plan.scripts[script].len() {
                self.add(|plan| plan.scripts[script][step] = ModelStep::Say);
            }
        }
    }

    fn details(&mut self) {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.plan.clients[client].len() {
                self.add(|plan| plan.clients[client][place].after_ms = 0);
                self.add(|plan| plainer(&mut plan.clients[client][place].operation));
            }
        }
        for fault in 0..self.plan.faults.len() {
            self.add(|plan| plan.faults[fault].skip = 0);
            self.add(|plan| plan.faults[fault].once = true);
        }
    }
}

/// The same operation without its frills.
fn plainer(operation: &mut Operation) {
    match operation {
        Operation::Start { structured, .. } => *structured = false,
        Operation::Foreground { give_up, .. }
        | Operation::Send { give_up, .. }
        | Operation::Wait { give_up, .. } => *give_up = None,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reduction_is_another_plan_and_reducing_ends() {
        for seed in 0..50 {
            let mut plan = Plan::of(Suite::Recovery, seed);
            let mut steps = 0;
            while let Some(smaller) = reductions(&plan).into_iter().next() {
                assert_ne!(smaller, plan);
                plan = smaller;
                steps += 1;
                assert!(steps < 500);
            }
            assert_eq!(plan.size(), 0);
        }
    }

    #[test]
    fn a_tree_shrinks_to_the_part_that_fails() {
        let fails = |plan: &Plan| {
            let mut all = plan.clients.iter().flatten();
            all.any(|planned| matches!(planned.operation, Operation::Kill { .. }))
        };
        let seeds = (0..200).map(|seed| Plan::of(Suite::Cancellation, seed));
        let mut tried = 0;
        for plan in seeds.filter(fails) {
            let mut tree = PlanTree::new(plan);
            let mut smallest = tree.current();
            let mut moved = tree.simplify();
            while moved {
                let failed = fails(&tree.current());
                if failed {
                    smallest = tree.current();
                }
                moved = if failed { tree.simplify() } else { tree.complicate() };
            }
            assert_eq!(smallest.size(), 1, "{smallest:?}");
            tried += 1;
        }
        assert!(tried > 100);
    }

    #[test]
    fn the_strategy_draws_plans_of_its_suite() {
        let mut runner = TestRunner::deterministic();
        let mut draw = || Plans(Suite::Notices).new_tree(&mut runner).expect("a plan").current();
        let (first, second) = (draw(), draw());
        assert_eq!(first.suite, Suite::Notices);
        assert_ne!(first, second);
        assert_eq!(first, Plan::of(Suite::Notices, first.seed));
    }
}
