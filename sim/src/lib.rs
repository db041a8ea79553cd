//! The simulator: the real runtime, unchanged, under a simulated scheduler, clock, network and disk,
//! judged by the invariants of the contract.
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
//! | storage | [`disk::SimDisk`] and the [`faults`] of the plan; what a crash loses is a choice |
//! | the network | [`world`]: turmoil, seeded by the plan, and the plan's weather |
//! | the model | the plan's scripts, through the scripted model |
//! | hash order, wall clock, threads, ambient randomness | banned; `tests/tidy.rs` reads every file for them |
//! | channels | `continuable::channel`: wakes are first in, first out |
//!
//! # The two engines
//!
//! [`run::Engine::Explore`] is one process: the scripted model is at hand, people call the services.
//! [`run::Engine::World`] puts runtime, model and person on hosts of a simulated network, each with an
//! executor of its own nested in it; the model is served by [`model_server`] to the real HTTP client,
//! people speak to the real adapter, and a second runtime may visit the disk.
//!
//! # The life of one run
//!
//! 1. [`plan`]: a seed draws which things exist at all (swarm weights), then clients with their
//!    operations, the model's scripts, the faults of disk, points and network, the sampler, the ending.
//! 2. [`deployment`]: the real layers are assembled on the executor's runtime, the simulated disk and
//!    the model. [`canary`] can make one part of it lie.
//! 3. [`workload`]: clients carry out their operations; every question and answer is noted in the
//!    [`trace`], between the facts that the code under test records.
//! 4. [`probe`]: right after a step that claims something about a log or the disk, both are read.
//! 5. A crash ends a life of the process: the disk is frozen, everything in memory is dropped, the
//!    disk keeps what the choices say, and the next life is assembled on it ([`run`], [`world`]).
//! 6. Rest: faults heal, what is still under way ends or is stopped, every service closes. The run is
//!    over when nothing is ready and no timer is set.
//! 7. [`invariants`]: the trace is judged, the answers by the reference model of [`oracle`]; [`tally`]
//!    adds up, [`report`] prints, [`cli`] exits.
//!
//! Around it: [`replay`] keeps a failure as a bundle, [`shrink`] cuts it down, [`sweep`] strikes named
//! plans with every single fault, [`determinism`] compares traces between processes, [`fuzz`] reads
//! plans from a fuzzer.
//!
//! *Architecture invariant:* `trace`, `oracle` and `invariants` never name an engine, so that one
//! check judges every engine, saved traces, and logs from elsewhere.
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
pub mod check;
pub mod cli;
