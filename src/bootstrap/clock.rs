//! The time of leases and back-off.

use std::time::Instant;

/// Now. The directories run apart from any engine, so they cannot be told.
#[expect(clippy::disallowed_methods, reason = "the directories' one place that reads the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}
