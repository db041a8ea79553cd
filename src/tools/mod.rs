//! The model-facing tools: thin adapters over the services (fact-sheet 8).

pub mod render;
pub mod tasks;
