//! §10.17: the recorded end-to-end scenario.

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[];
