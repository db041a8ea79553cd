//! The races of contract §4, by subject.

use super::Race;

mod sends;
mod store;

/// Every race.
pub const ALL: &[Race] = &[sends::L1, sends::L3, store::L19, store::L25];

/// The race of that id.
pub fn named(id: &str) -> Option<&'static Race> {
    ALL.iter().find(|race| race.id == id)
}
