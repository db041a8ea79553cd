//! A plan: everything that a run is told to do, as data. A seed makes a plan; a plan loads for ever.
//!
//! Operations name their targets by "the k-th child so far" and "the k-th newest Task", so that a
//! shortened plan still means something.

use serde::{Deserialize, Serialize};

use crate::explore::{Estimate, Rng, Sampler};

/// The format of a saved plan.
pub const PLAN_VERSION: u32 = 1;

/// One run, as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The seed it was made from; also seeds the sampler and the fresh names.
    pub seed: u64,
    /// Who makes the choices.
    pub sampler: Sampler,
    /// How many parents there are, at least one.
    pub parents: u64,
    /// What the model answers, by the child's ordinal, then by its request.
    pub scripts: Vec<Vec<ModelStep>>,
    /// What the model answers to the parents' own turns.
    pub parent_script: Vec<ModelStep>,
    /// Concurrent clients, each with its operations in order.
    pub clients: Vec<Vec<Planned>>,
    /// What the disk does wrong until the run heals.
    pub faults: Vec<PlannedFault>,
    /// Whether a listener of the Task service panics at everything it hears.
    pub panicking_listener: bool,
    /// What every agent's hook does.
    pub hook: Hook,
    /// How the run comes to its end.
    pub ending: Ending,
}

/// What the deployment's hook of every agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// There is none.
    Absent,
    /// It lets everything pass.
    Idle,
    /// It blocks every third prompt.
    Blocks,
    /// It panics before every fifth step.
    Panics,
}

/// What stops the work that is still under way when the clients are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Nothing, as long as it ends by itself; what hangs is killed.
    Patience,
    /// The disposal of its owners.
    Owners,
    /// The disposal of the control service.
    Control,
    /// The disposal of the Task service.
    Tasks,
}

/// One operation of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Virtual milliseconds to wait first.
    pub after_ms: u64,
    /// What to do.
    pub operation: Operation,
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The parent's model.
    Parent,
    /// A person, with the parent loaded.
    Human,
}

/// Which provider a child starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// A fresh child.
    Spawn,
    /// A child that inherits the parent's completed turns.
    Fork,
}

/// What is wrong with a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadStart {
    /// An empty label: refused before a Task exists.
    Label,
    /// No provider of that name: the Task fails.
    NoProvider,
    /// Deeper than allowed: the Task fails.
    Depth,
}

/// An id that no send may accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadId {
    /// The empty string.
    Empty,
    /// Longer than any id may be.
    Long,
    /// Well formed, and unknown.
    Unknown,
    /// Tries to leave the root.
    Escape,
}

/// What a client does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Operation {
    /// Start a continuable child.
    Start {
        /// The parent.
        parent: u64,
        /// With which provider.
        provider: Provider,
    },
    /// Start one in a way that must not work.
    StartBadly {
        /// The parent.
        parent: u64,
        /// What is wrong.
        wrong: BadStart,
    },
    /// Send a message to a child.
    Send {
        /// The parent that sends, or that the person sends through.
        parent: u64,
        /// The k-th child so far, of any parent: a foreign one is refused.
        child: u64,
        /// Who sends.
        by: By,
        /// Give up after so many milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up_ms: Option<u64>,
    },
    /// Send to an id that is no child.
    SendBadly {
        /// The parent that sends.
        parent: u64,
        /// The id.
        id: BadId,
    },
    /// Kill a Task.
    Kill {
        /// The k-th newest Task.
        task: u64,
        /// Who kills.
        by: By,
    },
    /// Wait for a Task.
    Wait {
        /// The k-th newest Task.
        task: u64,
        /// For how long.
        timeout_ms: u64,
    },
    /// Read a Task's output.
    Read {
        /// The k-th newest Task.
        task: u64,
    },
    /// Prompt a parent, so that it has turns of its own to fork from.
    Prompt {
        /// The parent.
        parent: u64,
    },
    /// Dispose a parent.
    DisposeOwner {
        /// The parent.
        parent: u64,
    },
    /// Load a disposed parent again, as a new instance with the same id.
    ReopenOwner {
        /// The parent.
        parent: u64,
    },
    /// Somebody else tears the log of a child that is not live: half a line at its end.
    Tear {
        /// The k-th child so far.
        child: u64,
    },
    /// Take the control surface away, or bring it back.
    Surface {
        /// Whether it is to be attached.
        attached: bool,
    },
}

/// One answer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStep {
    /// Text, and the turn ends.
    Say,
    /// Text after so many milliseconds.
    Slow(u64),
    /// Nothing at all, and the turn ends.
    Empty,
    /// A call of the tool that works.
    Tool,
    /// A call of the tool that takes so many milliseconds.
    SlowTool(u64),
    /// A call of the tool that takes so many milliseconds and concludes the turn.
    Conclude(u64),
    /// A call of the tool that panics.
    PanickingTool,
    /// A call with malformed arguments.
    Malformed,
    /// One chunk, then nothing until it is cancelled.
    Hang,
    /// A failure of the model.
    Error,
    /// The token limit.
    MaxTokens,
    /// A refusal.
    Refuse,
    /// The model client panics.
    Panic,
    /// Delegates in the foreground.
    Delegate,
    /// Delegates in the background, to a child that the clients do not know.
    Background,
    /// Waits for the first Task and reads it.
    TaskOutput,
    /// Kills the first Task.
    TaskKill,
}

/// Which operation of the disk a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultedOperation {
    /// Syncs of files: a flush fails.
    Flush,
    /// Appends to files.
    Append,
}

/// One fault of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFault {
    /// What it strikes.
    pub operation: FaultedOperation,
    /// How many such operations pass first.
    pub skip: u64,
    /// Once, or from then on until the run heals.
    pub once: bool,
}

/// A class of plans of one size: PCT's length estimate belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(pub u64);

/// The longest runs ever seen, by size class: choices of a task, and tasks. A longer run is
/// reported by every sweep; then the table is raised. It is fixed, not learned, because a seed must
/// mean the same run alone and in a sweep.
const LONGEST: [Estimate; 4] = [
    Estimate { choices: 800, tasks: 140 },
    Estimate { choices: 1_200, tasks: 220 },
    Estimate { choices: 1_600, tasks: 300 },
    Estimate { choices: 3_000, tasks: 500 },
];

impl Plan {
    /// How many operations it has.
    pub fn size(&self) -> u64 {
        self.clients.iter().map(|client| client.len() as u64).sum()
    }

    /// Its size class.
    pub fn size_class(&self) -> SizeClass {
        SizeClass(match self.size() {
            0..=3 => 0,
            4..=7 => 1,
            8..=15 => 2,
            _ => 3,
        })
    }

    /// How long it may get.
    pub fn estimate(&self) -> Estimate {
        let class = usize::try_from(self.size_class().0).unwrap_or(usize::MAX);
        LONGEST[class.min(LONGEST.len() - 1)]
    }

    /// The plan of `seed`.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::split(seed, 0x9_1a9);
        let sampler = Sampler::draw(&mut rng);
        let parents = 1 + rng.below(2);
        let weights = Weights::draw(&mut rng);
        let scripts = (0..4).map(|_| script(&mut rng, &weights)).collect();
        let operations = 2 + rng.below(5) + rng.below(5) * rng.below(3);
        let clients_wanted = 1 + rng.below(3);
        let mut clients: Vec<Vec<Planned>> = (0..clients_wanted).map(|_| Vec::new()).collect();
        // The first operation is a start: a plan without a child tests little.
        let first = Operation::Start { parent: 0, provider: provider(&mut rng) };
        clients[0].push(Planned { after_ms: 0, operation: first });
        for _ in 1..operations {
            let client = rng.below(clients_wanted);
            let after_ms = if rng.chance(1, 2) { 0 } else { rng.below(40) };
            let operation = operation(&mut rng, &weights, parents);
            let client = usize::try_from(client).expect("a handful of clients");
            clients[client].push(Planned { after_ms, operation });
        }
        let faults = (0..weights.faults).map(|_| fault(&mut rng)).collect();
        let parent_script = (0..rng.below(4)).map(|_| parent_step(&mut rng)).collect();
        let panicking_listener = rng.chance(1, 12);
        let hook = match rng.below(12) {
            0..6 => Hook::Absent,
            6..10 => Hook::Idle,
            10 => Hook::Blocks,
            _ => Hook::Panics,
        };
        let ending = match rng.below(8) {
            0..4 => Ending::Patience,
            4 | 5 => Ending::Owners,
            6 => Ending::Control,
            _ => Ending::Tasks,
        };
        Self {
            version: PLAN_VERSION,
            seed,
            sampler,
            parents,
            scripts,
            parent_script,
            clients,
            faults,
            panicking_listener,
            hook,
            ending,
        }
    }
}

/// Swarm weights: which things exist at all in this plan, and how often.
#[derive(Debug, Clone)]
struct Weights {
    operations: Vec<u64>,
    steps: Vec<u64>,
    faults: u64,
}

const OPERATION_KINDS: usize = 12;
/// Without the swarm's draw: starts, bad starts, sends, bad sends, kills, waits, reads, prompts,
/// disposals, reopenings, torn logs, surface changes.
const OPERATION_WEIGHTS: [u64; OPERATION_KINDS] = [14, 2, 34, 3, 14, 12, 9, 4, 3, 3, 2, 2];

const STEPS: [(ModelStep, u64); 15] = [
    (ModelStep::Say, 10),
    (ModelStep::Slow(15), 6),
    (ModelStep::Empty, 2),
    (ModelStep::Tool, 6),
    (ModelStep::SlowTool(12), 3),
    (ModelStep::Conclude(9), 2),
    (ModelStep::PanickingTool, 1),
    (ModelStep::Malformed, 1),
    (ModelStep::Hang, 2),
    (ModelStep::Error, 1),
    (ModelStep::MaxTokens, 1),
    (ModelStep::Refuse, 1),
    (ModelStep::Panic, 1),
    (ModelStep::Delegate, 1),
    (ModelStep::Background, 1),
];

const PARENT_STEPS: [ModelStep; 6] = [
    ModelStep::Say,
    ModelStep::Slow(10),
    ModelStep::Delegate,
    ModelStep::Background,
    ModelStep::TaskOutput,
    ModelStep::TaskKill,
];

impl Weights {
    /// Each kind is left out of the plan with one chance in five (swarm testing); starts, sends
    /// and plain answers always stay.
    fn draw(rng: &mut Rng) -> Self {
        let mut thin = |weight: u64, keep: bool| {
            if !keep && rng.chance(1, 5) { 0 } else { weight }
        };
        let operations = OPERATION_WEIGHTS
            .iter()
            .enumerate()
            .map(|(kind, weight)| thin(*weight, kind == 0 || kind == 2))
            .collect();
        let steps =
            STEPS.iter().map(|(step, weight)| thin(*weight, *step == ModelStep::Say)).collect();
        let faults = if rng.chance(1, 3) { 1 + rng.below(2) } else { 0 };
        Self { operations, steps, faults }
    }
}

fn weighted(rng: &mut Rng, weights: &[u64]) -> usize {
    let mut left = rng.below(weights.iter().sum());
    for (index, weight) in weights.iter().enumerate() {
        if left < *weight {
            return index;
        }
        left -= weight;
    }
    0
}

fn parent_step(rng: &mut Rng) -> ModelStep {
    *rng.pick(&PARENT_STEPS).expect("the list is not empty")
}

fn provider(rng: &mut Rng) -> Provider {
    if rng.chance(1, 3) { Provider::Fork } else { Provider::Spawn }
}

fn by(rng: &mut Rng) -> By {
    if rng.chance(1, 3) { By::Human } else { By::Parent }
}

fn script(rng: &mut Rng, weights: &Weights) -> Vec<ModelStep> {
    (0..3 + rng.below(4)).map(|_| STEPS[weighted(rng, &weights.steps)].0).collect()
}

fn fault(rng: &mut Rng) -> PlannedFault {
    let operation =
        if rng.chance(2, 3) { FaultedOperation::Flush } else { FaultedOperation::Append };
    PlannedFault { operation, skip: rng.below(8), once: rng.chance(1, 2) }
}

fn operation(rng: &mut Rng, weights: &Weights, parents: u64) -> Operation {
    // Mostly the first parent, so that children meet their own.
    let parent = if rng.chance(1, 5) { rng.below(parents) } else { 0 };
    let near = rng.below(3);
    match weighted(rng, &weights.operations) {
        0 => Operation::Start { parent, provider: provider(rng) },
        1 => {
            let all = [BadStart::Label, BadStart::NoProvider, BadStart::Depth];
            let wrong = *rng.pick(&all).expect("the list is not empty");
            Operation::StartBadly { parent, wrong }
        }
        2 => {
            let give_up_ms = if rng.chance(1, 6) { Some(rng.below(20)) } else { None };
            Operation::Send { parent, child: near, by: by(rng), give_up_ms }
        }
        3 => {
            let all = [BadId::Empty, BadId::Long, BadId::Unknown, BadId::Escape];
            let id = *rng.pick(&all).expect("the list is not empty");
            Operation::SendBadly { parent, id }
        }
        4 => Operation::Kill { task: near, by: by(rng) },
        5 => Operation::Wait { task: near, timeout_ms: 1 + rng.below(200) },
        6 => Operation::Read { task: near },
        7 => Operation::Prompt { parent },
        8 => Operation::DisposeOwner { parent },
        9 => Operation::ReopenOwner { parent },
        10 => Operation::Tear { child: near },
        _ => Operation::Surface { attached: rng.chance(2, 3) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_json_form_and_a_seed_always_makes_the_same_one() {
        for seed in 0..200 {
            let plan = Plan::of_seed(seed);
            let json = serde_json::to_string(&plan).expect("a plan is plain data");
            assert_eq!(serde_json::from_str::<Plan>(&json).expect("it parses"), plan);
            assert_eq!(Plan::of_seed(seed), plan);
            assert!(plan.size() >= 2);
        }
    }

    #[test]
    fn plans_differ_and_every_kind_of_operation_and_answer_occurs() {
        let plans: Vec<_> = (0..2_000).map(Plan::of_seed).collect();
        let mut kinds = std::collections::BTreeSet::new();
        let mut steps = std::collections::BTreeSet::new();
        for plan in &plans {
            steps.extend(plan.scripts.iter().flatten().copied());
            for planned in plan.clients.iter().flatten() {
                let json = serde_json::to_value(&planned.operation).expect("plain data");
                kinds.insert(json["do"].to_string());
            }
        }
        assert_eq!(kinds.len(), OPERATION_KINDS, "{kinds:?}");
        assert_eq!(steps.len(), STEPS.len());
        assert!(plans.windows(2).all(|pair| pair[0].clients != pair[1].clients));
    }
}
