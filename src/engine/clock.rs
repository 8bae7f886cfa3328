//! The only reader of the clock.

use std::time::Instant;

/// The time, for sessions and deadlines.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
