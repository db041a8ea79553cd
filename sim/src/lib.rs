//! The simulator: the real runtime under simulated clocks, disks and schedulers.
pub mod canary;
pub mod cli;
pub mod deployment;
pub mod disk;
pub mod explore;
pub mod invariants;
pub mod plan;
pub mod probe;
pub mod report;
pub mod run;
pub mod tally;
pub mod trace;
pub mod workload;
