//! §10.1, §10.2: the control service on the real stack.

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[];
