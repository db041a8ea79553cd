//! Tasks: background work with one terminal result (fact-sheet 4).

pub mod record;
pub mod table;

pub use record::{
    Notice, OwnerRef, Settlement, TaskLinks, TaskParts, TaskRecord, TaskSnapshot, TaskSpec,
    WaitStep, WaitWake, Waiter,
};
pub use table::{OUTPUT_LIMIT_MAX, OwnerGone, Preflight, TaskRefusal, TaskTable};
