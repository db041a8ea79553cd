//! The simulator: the real runtime, unchanged, under a simulated scheduler, clock and disk, judged
//! by the invariants of the contract.
//!
//! # READ FIRST
//!
//! One run is a pure function of its [`plan::Plan`], and a plan is a pure function of its seed. What
//! could differ between two runs, and who owns it:
//!
//! | source of nondeterminism | owner |
//! |---|---|
//! | which task runs next | [`explore::Choices`], asked by the [`explore::Executor`] when two or more are ready |
//! | faults, injected values | the plan, or [`explore::Choices`] through [`explore::SimRuntime::choose`] |
//! | a fuzzer's bytes | [`fuzz`]: engine, suite and seed of the plan, then one answer of [`explore::Choices`] a byte |
//! | time | [`explore::SimRuntime`]: a virtual clock that jumps to the next timer when nothing is ready |
//! | ids | a stream per task, seeded by the plan; a task is named by its spawner and ordinal |
//! | storage | [`disk::SimDisk`] and the plan's faults |
//! | the model | the plan's scripts, through the scripted model |
//! | hash order, wall clock, threads, ambient randomness | banned; `tests/tidy.rs` reads every file for them |
//! | channels | `continuable::channel`: wakes are first in, first out |
//!
//! # The life of one run
//!
//! 1. [`plan`]: a seed draws which things exist at all (swarm weights), then clients with their
//!    operations, the model's scripts, the disk's faults, the sampler, the ending.
//! 2. [`deployment`]: the real layers are assembled on the executor's runtime, the simulated disk and
//!    the scripted model. [`canary`] can make one part of it lie.
//! 3. [`workload`]: clients carry out their operations; every question and answer is noted in the
//!    [`trace`], between the facts that the code under test records.
//! 4. [`probe`]: right after a step that claims something about a log or the disk, both are read.
//! 5. Rest: faults heal, what is still under way ends or is stopped, every service closes. The run is
//!    over when nothing is ready and no timer is set.
//! 6. [`invariants`]: the trace is judged, the answers by the reference model of [`oracle`]; [`tally`] adds up, [`report`] prints, [`cli`] exits.
//!
//! *Architecture invariant:* `trace`, `oracle` and `invariants` never name an engine, so that one check judges
//! every engine, saved traces, and logs from elsewhere.
//!
//! *Architecture invariant:* only [`cli`] has threads and a wall clock: it deals seeds to threads, one
//! executor each. A run cannot tell which thread it is on, and its trace holds no wall-clock time.
//!
//! *Architecture invariant:* the runtime under test is never patched for the simulator; it is reached
//! through the traits that an embedder has.

pub mod plan;
pub mod faults;
pub mod explore;
pub mod disk;
pub mod deployment;
pub mod model_server;
pub mod workload;
pub mod probe;
pub mod trace;
pub mod oracle;
pub mod invariants;
pub mod run;
pub mod world;
pub mod canary;
pub mod tally;
pub mod report;
pub mod replay;
pub mod shrink;
pub mod fuzz;
pub mod determinism;
pub mod sweep;
pub mod cli;
