//! Deadlines and limits, with defaults that suit a cluster on one network.

use std::time::Duration;

/// How long each phase of a room may last. Counted from entering the phase.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Deadlines {
    /// Receiver: finding out who feeds the room. Sender: until the first receiver joins.
    pub discover: Duration,
    /// Receiver: connecting and comparing every source. Sender: until every receiver has lent pages.
    pub handshake: Duration,
    /// Everybody is known, nothing was given or has come yet.
    pub waiting_for_input: Duration,
    /// Time without any progress while transferring.
    pub stall: Duration,
    /// The whole life of a room, if limited.
    pub total: Option<Duration>,
    /// Time without news of a room after which its peers are asked about it; the pause between two
    /// questions doubles, up to sixteen times this.
    pub query: Duration,
    /// How long after the end to wait for peers to vouch that pages are quiet before the link is fenced.
    pub drain: Duration,
}

/// What may be used up, per engine unless said otherwise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Rooms alive at once, both sides together.
    pub rooms: usize,
    /// Chunks accepted by one sender before `finish`.
    pub chunks_per_room: usize,
    /// Bytes held for rooms that have no sender yet, per link: 512 for each frame, its bytes on the wire,
    /// and 4 for each page it lends. The default has room for ten thousand receivers that lend a few
    /// hundred pages each; those beyond it fail with [`ErrorKind::Busy`](crate::ErrorKind::Busy).
    pub parked_bytes: usize,
    /// Bytes posted to one link and not yet settled.
    pub in_flight_bytes: u64,
    /// Bytes of one write; the unit of fairness, abort and retransmission.
    pub write_bytes: u64,
    /// Times a damaged write is asked for again before the room fails.
    pub retransmits: u32,
    /// Bytes of the payload given to `finish` or `offer`.
    pub payload_bytes: usize,
    /// Answers kept for rooms that ended, so that late frames are answered and not adopted.
    pub tombstones: usize,
}

/// Everything about an engine that is not its place, its memory or its transports.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Deadlines of rooms that bring none of their own.
    pub deadlines: Deadlines,
    /// Limits.
    pub limits: Limits,
    /// Signs of life on links.
    pub liveness: Liveness,
}

/// Signs of life on each link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Liveness {
    /// Pause between two pings on an otherwise silent link.
    pub interval: Duration,
    /// Silence after which the peer counts as lost.
    pub timeout: Duration,
}

/// A value that cannot work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{field} is {value}, must be {rule}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field's path, such as `limits.write_bytes`.
    pub field: &'static str,
    /// Its value, durations in milliseconds.
    pub value: u64,
    /// What would be accepted.
    pub rule: &'static str,
}

impl Config {
    /// Checks that the values can work together.
    ///
    /// # Errors
    /// The first field whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self { deadlines, limits, liveness } = self;
        for (field, limit) in [
            ("deadlines.discover", deadlines.discover),
            ("deadlines.handshake", deadlines.handshake),
            ("deadlines.waiting_for_input", deadlines.waiting_for_input),
            ("deadlines.stall", deadlines.stall),
            ("deadlines.total", deadlines.total.unwrap_or(Duration::MAX)),
            ("deadlines.query", deadlines.query),
            ("deadlines.drain", deadlines.drain),
            ("liveness.interval", liveness.interval),
        ] {
            if limit.is_zero() {
                return Err(ConfigError { field, value: 0, rule: "longer than 0" });
            }
        }
        if liveness.timeout < liveness.interval.saturating_mul(2) {
            let value = u64::try_from(liveness.timeout.as_millis()).unwrap_or(u64::MAX);
            return Err(ConfigError { field: "liveness.timeout", value, rule: "at least two intervals" });
        }
        for (field, value, least) in [
            ("limits.rooms", limits.rooms, 1),
            ("limits.chunks_per_room", limits.chunks_per_room, 1),
            ("limits.parked_bytes", limits.parked_bytes, 1024),
        ] {
            if value < least {
                return Err(ConfigError { field, value: value as u64, rule: "larger" });
            }
        }
        if !(4096..=16 << 20).contains(&limits.write_bytes) {
            let value = limits.write_bytes;
            return Err(ConfigError { field: "limits.write_bytes", value, rule: "from 4 KiB to 16 MiB" });
        }
        if limits.in_flight_bytes < limits.write_bytes {
            let value = limits.in_flight_bytes;
            return Err(ConfigError {
                field: "limits.in_flight_bytes",
                value,
                rule: "at least limits.write_bytes",
            });
        }
        if limits.payload_bytes > 1 << 20 {
            let value = limits.payload_bytes as u64;
            return Err(ConfigError { field: "limits.payload_bytes", value, rule: "at most 1 MiB" });
        }
        Ok(())
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            discover: Duration::from_secs(30),
            handshake: Duration::from_secs(30),
            waiting_for_input: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            total: None,
            query: Duration::from_millis(500),
            drain: Duration::from_secs(2),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rooms: 65_536,
            chunks_per_room: 65_536,
            parked_bytes: 64 << 20,
            in_flight_bytes: 16 << 20,
            write_bytes: 512 << 10,
            retransmits: 3,
            payload_bytes: 64 << 10,
            tombstones: 65_536,
        }
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), timeout: Duration::from_secs(3) }
    }
}
