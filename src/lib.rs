//! Continuable background subagents.

pub mod ids;
pub mod vocabulary;
pub mod error;
pub mod message;
pub mod points;
pub mod facts;
pub mod sync;
pub mod channel;
pub mod cancel;
pub mod runtime;
pub mod session;
pub mod store;
pub mod model;
pub mod agent;
pub mod sections;
pub mod task;
pub mod provider;
pub mod control;
pub mod tools;
pub mod assembly;
