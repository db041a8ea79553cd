//! The simulator: the real runtime under simulated clocks, disks and schedulers.
pub mod disk;
pub mod explore;
pub mod invariants;
pub mod plan;
pub mod trace;
