//! The simulator.
pub mod disk;
