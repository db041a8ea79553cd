//! Makes the committed corpus anew: `cargo run --release -p continuable-sim --example corpus`, a
//! minute or two.
//!
//! `sim/corpus/choices` are inputs of the fuzz target that together reach as much as they can:
//! of the runs of the first seeds of every suite on both engines a greedy set cover, twofold.
//! `sim/corpus/bundles` are failures that every tree has, a lie of the canary on each engine, cut
//! down. Neither depends on anything but the code: made twice, the files are the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use continuable_sim::canary::Lie;
use continuable_sim::explore::RunOptions;
use continuable_sim::fuzz::{Input, reached};
use continuable_sim::invariants;
use continuable_sim::plan::{Plan, Suite};
use continuable_sim::replay::{Bundle, Verdict};
use continuable_sim::run::{Engine, run_on};
use continuable_sim::shrink::shrink;

/// How many seeds of each suite are looked through on each engine.
const SEEDS: u64 = 1_500;
/// The longest input: a fuzzer is slow with long ones, and a repository heavy.
const INPUT_BYTES_MAX: usize = 2_048;
/// The most inputs that are kept.
const INPUTS_MAX: usize = 60;
/// How many inputs of each engine reach the same: tomorrow's generator makes another run of each.
const TIMES: usize = 2;
/// How many seeds a lie may live.
const LIE_SEEDS: u64 = 200;
/// The most runs that cutting one bundle down may take.
const SHRINK_RUNS_MAX: u64 = 20_000;

/// An input and what its run reaches.
struct Candidate {
    input: Input,
    reached: BTreeSet<&'static str>,
}

/// What the inputs chosen so far reach.
#[derive(Default)]
struct Cover {
    anywhere: BTreeSet<&'static str>,
    engines: BTreeMap<(Engine, &'static str), usize>,
    suites: BTreeSet<(Engine, Suite)>,
}

impl Cover {
    /// What `candidate` would add: something new at all, a new suite, something new on its engine;
    /// among equals the short one.
    fn gain(&self, candidate: &Candidate) -> (usize, usize, usize, Reverse<usize>) {
        let Candidate { input, reached } = candidate;
        let anywhere = reached.difference(&self.anywhere).count();
        let suite = usize::from(!self.suites.contains(&(input.engine, input.suite)));
        let times = |name| self.engines.get(&(input.engine, name)).copied().unwrap_or(0);
        let here = reached.iter().filter(|name| times(**name) < TIMES).count();
        (anywhere, suite, here, Reverse(input.choices.len()))
    }

    fn add(&mut self, candidate: &Candidate) {
        let Candidate { input, reached } = candidate;
        self.anywhere.extend(reached);
        for name in reached {
            *self.engines.entry((input.engine, *name)).or_default() += 1;
        }
        self.suites.insert((input.engine, input.suite));
    }
}

/// The runs of the first seeds of `suite` that fit an input.
fn candidates(engine: Engine, suite: Suite) -> Vec<Candidate> {
    let one = |seed| {
        let plan = Plan::of(suite, seed);
        let report = run_on(engine, &plan, None, RunOptions::default());
        let input = Input::recorded(suite, seed, &report).ok()?;
        let fits = input.encode().len() <= INPUT_BYTES_MAX;
        fits.then(|| Candidate { input, reached: reached(&report).into_iter().collect() })
    };
    (0..SEEDS).filter_map(one).collect()
}

/// The candidates of every suite on both engines, in an order that no thread decides.
fn every_candidate() -> Vec<Candidate> {
    let pairs = Engine::ALL.iter().flat_map(|engine| Suite::ALL.iter().map(|s| (*engine, *s)));
    thread::scope(|scope| {
        let workers: Vec<_> =
            pairs.map(|(engine, suite)| scope.spawn(move || candidates(engine, suite))).collect();
        let done = workers.into_iter().map(|worker| worker.join().expect("a run does not panic"));
        done.flatten().collect()
    })
}

/// Empties a directory of the corpus, or makes it.
fn emptied(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("the old corpus goes");
    }
    fs::create_dir_all(&path).expect("the directory is made");
    path
}

fn write_choices() {
    let directory = emptied("choices");
    let mut left = every_candidate();
    let runs = left.len();
    let (mut cover, mut bytes) = (Cover::default(), 0);
    for number in 0..INPUTS_MAX {
        let best = (0..left.len()).max_by_key(|place| cover.gain(&left[*place]));
        let best = left.remove(best.expect("there are candidates"));
        let (anywhere, suite, here, _) = cover.gain(&best);
        if anywhere + suite + here == 0 {
            break;
        }
        cover.add(&best);
        let again = best.input.judge().expect("a run of a healthy tree holds");
        assert!(best.reached.iter().eq(reached(&again).iter().collect::<BTreeSet<_>>()));
        let Input { engine, suite, seed, .. } = &best.input;
        let encoded = best.input.encode();
        bytes += encoded.len();
        println!("{number:>3} {engine} {suite} {seed}: {} bytes, {anywhere} new", encoded.len());
        fs::write(directory.join(format!("{engine}-{suite}-{seed}")), encoded).expect("written");
    }
    println!(
        "of {} runs: {bytes} bytes reach {} points and dangers, {} counted on each engine",
        runs,
        cover.anywhere.len(),
        cover.engines.len()
    );
}

fn write_bundles() {
    let directory = emptied("bundles");
    for engine in Engine::ALL {
        for lie in Lie::ALL {
            let invariant = invariants::named(lie.caught_by()).expect("a listed invariant");
            let told = (0..LIE_SEEDS).find_map(|seed| {
                let plan = Plan::of(Suite::Everything, seed);
                let report = run_on(*engine, &plan, Some(*lie), RunOptions::default());
                let verdict = Verdict::on(invariant, &report)?;
                Some(Bundle::with(&plan, Some(*lie), &report, &verdict))
            });
            let bundle = told.expect("a lie is caught");
            let small = shrink(&bundle, SHRINK_RUNS_MAX, &mut |_| ()).expect("it shows itself");
            let name = format!("{lie:?}-{engine}.json").to_lowercase();
            println!("{name}: {:?}", small.progress);
            // Every commit has this failure.
            let bundle = Bundle { commit: None, ..small.bundle };
            bundle.save(&directory.join(name)).expect("written");
        }
    }
}

fn main() {
    write_choices();
    write_bundles();
}
