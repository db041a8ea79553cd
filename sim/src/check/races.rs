//! The races of contract §4, by subject.

use super::Race;

mod sends;
mod store;
mod tasks;

/// Every race.
pub const ALL: &[Race] = &[
    sends::L1,
    sends::L2,
    sends::L3,
    tasks::L11,
    tasks::L12,
    sends::L14,
    sends::L16,
    sends::L17,
    store::L19,
    sends::L20,
    tasks::L21,
    sends::L22,
    store::L25,
    tasks::L26,
];

/// The race of that id.
pub fn named(id: &str) -> Option<&'static Race> {
    ALL.iter().find(|race| race.id == id)
}
