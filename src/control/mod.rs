//! The control service: continuable children and their activations (fact-sheet 7).

mod owner;

pub use owner::AgentOwner;
