//! §10.14: steering, cancel, admission, flush.

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[];
