//! The model-facing tools: thin adapters over the services (fact-sheet 8).

pub mod delegate;
pub mod render;
pub mod send_message;
pub mod tasks;
