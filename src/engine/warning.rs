//! Warnings of what may happen all the time.

use std::time::{Duration, Instant};

/// One kind of warning: at most one line an interval, which says how many there were.
#[derive(Debug, Default)]
pub(super) struct Warning {
    last: Option<Instant>,
    unsaid: u64,
}

impl Warning {
    /// It happened. If it is time for a line, answers how often it has since the last one.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

const INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock;

    #[test]
    fn a_line_an_interval_tells_how_many_there_were() {
        let (mut warning, start) = (Warning::default(), clock::now());
        assert_eq!(warning.due(start), Some(1));
        for _ in 0..100 {
            assert_eq!(warning.due(start + INTERVAL / 2), None);
        }
        assert_eq!(warning.due(start + INTERVAL), Some(101));
        assert_eq!(warning.due(start + INTERVAL), None);
    }
}
