//! The explore engine: our own single-thread executor, its virtual clock and its choices.
//!
//! Reading order: [`choices`] (who decides), [`runtime`] (what the code under test sees),
//! [`executor`] (the loop), [`nested`] (the same loop inside a host of the world engine).

pub mod choices;
pub mod executor;
pub mod nested;
pub mod rng;
pub mod runtime;

pub use choices::{Choices, Estimate, Exhaustive, Sampler};
pub use executor::{Executor, Outcome, RunEnd, Step};
pub use nested::{Halt, Nested};
pub use rng::{Rng, mix};
pub use runtime::{EPOCH_MS, PointFaults, Probe, RunOptions, RunRecord, SimRuntime};

#[cfg(test)]
mod tests;
