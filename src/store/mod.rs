//! Durable session logs.

pub mod path;
pub mod disk;
pub mod std_disk;
