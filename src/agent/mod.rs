//! Agents: their registry, their queues, the loop that runs their turns, their life and death.

pub mod inbox;
pub mod registry;
pub mod steering;
