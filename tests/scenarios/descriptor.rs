//! §10.9: descriptor snapshots and folds.

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[];
