//! When something is tried next.

use std::time::{Duration, Instant};

/// First pause between two tries.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two tries.
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The next try of something, and how long after it comes the one after.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pub(super) due: Option<Instant>,
    pause: Duration,
}

impl Retry {
    /// Due at `when`, with no failure before.
    pub(super) const fn at(when: Instant) -> Self {
        Self { due: Some(when), pause: Duration::ZERO }
    }

    /// Due at `when`, unless it waits already.
    pub(super) fn start(&mut self, when: Instant) {
        if self.due.is_none() {
            self.due = Some(when);
        }
    }

    /// Due after a pause, longer each time.
    pub(super) fn again(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
        self.due = Some(now + self.pause);
    }
}
