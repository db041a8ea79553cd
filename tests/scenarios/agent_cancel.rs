//! §10.14: cancellation, limits, reservations, retries.

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[];
