//! Counters of an engine, and figures of a room.

use crate::error::{ErrorKind, KVTransferError};
use crate::session::Figures;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What an engine did and holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Rooms alive, both sides together.
    pub rooms: usize,
    /// Those of them that send, as far as the engine has taken them up.
    pub senders: usize,
    /// Those of them that receive.
    pub receivers: usize,
    /// Rooms with a timer set; each has one at most.
    pub timers: usize,
    /// Rooms that wait for a readiness mark.
    pub marked: usize,
    /// Rooms whose pages are not known to be safe although the time for that is over: a peer does not
    /// vouch for them. The change feed tells when they are.
    pub quarantined: usize,
    /// Live links.
    pub links: usize,
    /// Peers this engine has tried to reach, as far as they are kept in mind.
    pub targets: usize,
    /// Those of them that were there once and cannot be reached now: rooms that need one fail at once.
    pub unreachable: usize,
    /// Regions lent, without those being taken back.
    pub regions: usize,
    /// Regions being taken back that a peer may still reach.
    pub withdrawals: usize,
    /// Frames parked for rooms without a sender.
    pub parked: usize,
    /// Outcomes shared by several ranks that this one counts the votes for.
    pub ballots: usize,
    /// Ended rooms that are remembered, and outcomes.
    pub remembered: usize,
    /// Rooms that ended well.
    pub succeeded: u64,
    /// Rooms that failed, by cause.
    pub failed: BTreeMap<&'static str, u64>,
    /// Those of them whose cause arose in another process, by cause.
    pub failed_elsewhere: BTreeMap<&'static str, u64>,
    /// Rooms that were ever quarantined.
    pub quarantines: u64,
    /// Usable links that ended other than by a goodbye.
    pub links_lost: u64,
    /// Links to peers that had been lost.
    pub reconnects: u64,
    /// Bytes of rooms that ended.
    pub bytes: u64,
    /// Writes that arrived damaged and were asked for again.
    pub damaged: u64,
    /// Frames for rooms that were not there, or not there any more.
    pub late: u64,
    /// Control frames that were none, and connections on which a peer broke a transport's format.
    pub malformed: u64,
    /// Writes of peers that did not fit what was lent to them.
    pub refused: u64,
    /// Panics in the loop, which end the engine, or in a thread of a transport, which end its links.
    pub panics: u64,
}

/// Everything but what is nought, on one line.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failed, failed_elsewhere, .. } = self;
        let sizes = [
            ("rooms", self.rooms),
            ("senders", self.senders),
            ("receivers", self.receivers),
            ("timers", self.timers),
            ("marked", self.marked),
            ("quarantined", self.quarantined),
            ("links", self.links),
            ("targets", self.targets),
            ("unreachable", self.unreachable),
            ("regions", self.regions),
            ("withdrawals", self.withdrawals),
            ("parked", self.parked),
            ("ballots", self.ballots),
            ("remembered", self.remembered),
        ];
        let counts = [
            ("succeeded", self.succeeded),
            ("quarantines", self.quarantines),
            ("links_lost", self.links_lost),
            ("reconnects", self.reconnects),
            ("bytes", self.bytes),
            ("damaged", self.damaged),
            ("late", self.late),
            ("malformed", self.malformed),
            ("refused", self.refused),
            ("panics", self.panics),
        ];
        let sizes =
            sizes.into_iter().filter(|(_, size)| *size > 0).map(|(name, size)| format!("{name}={size}"));
        let counts = counts.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}"));
        let failed = failed.iter().map(|(cause, n)| {
            let elsewhere = failed_elsewhere.get(cause).copied().unwrap_or(0);
            format!("failed[{cause}]={n} ({elsewhere} elsewhere)")
        });
        f.write_str(&sizes.chain(counts).chain(failed).collect::<Vec<_>>().join(" "))
    }
}

/// When things happened in a room, counted from when its handle was made, and how much moved.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct TransferStats {
    /// Every party was known and ready: the end of `Bootstrapping`.
    pub known: Option<Duration>,
    /// Every grant was in (sender) or given (receiver).
    pub granted: Option<Duration>,
    /// The first write was posted or landed.
    pub first_byte: Option<Duration>,
    /// The last write settled or landed.
    pub last_byte: Option<Duration>,
    /// Bytes of KV.
    pub bytes: u64,
    /// The transport they took.
    pub path: Option<&'static str>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) damaged: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) quarantines: AtomicU64,
    pub(super) links_lost: AtomicU64,
    /// Of the loop: 0 or 1.
    pub(super) panics: AtomicU64,
    /// Of threads of transports.
    pub(super) worker_panics: AtomicU64,
    succeeded: AtomicU64,
    bytes: AtomicU64,
    failed: Mutex<Failed>,
}

#[derive(Clone, Debug, Default)]
struct Failed {
    all: BTreeMap<&'static str, u64>,
    elsewhere: BTreeMap<&'static str, u64>,
}

impl TransferStats {
    pub(super) fn new(figures: &Figures, path: Option<&'static str>) -> Self {
        let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(figures.created));
        Self {
            known: since(figures.known),
            granted: since(figures.granted),
            first_byte: since(figures.first_byte),
            last_byte: since(figures.last_byte),
            bytes: figures.bytes,
            path,
        }
    }

    /// Time until every party was known and ready.
    pub fn bootstrap_wait(&self) -> Option<Duration> {
        self.known
    }

    /// Time from then until the first byte moved: for pages, for work, for other rooms.
    pub fn queue_time(&self) -> Option<Duration> {
        Some(self.first_byte?.saturating_sub(self.known?))
    }

    /// Time from the first byte to the last.
    pub fn transfer_time(&self) -> Option<Duration> {
        Some(self.last_byte?.saturating_sub(self.first_byte?))
    }
}

impl Counters {
    pub(super) fn ended(&self, bytes: u64, error: Option<&KVTransferError>) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match error {
            Some(error) => {
                let mut failed = self.failed.lock();
                *failed.all.entry(name(error.kind)).or_default() += 1;
                if error.is_from_another_rank() {
                    *failed.elsewhere.entry(name(error.kind)).or_default() += 1;
                }
            }
            None => drop(self.succeeded.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The loop has panicked.
    pub(super) fn is_broken(&self) -> bool {
        self.panics.load(Ordering::Acquire) > 0
    }

    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Acquire) + self.worker_panics.load(Ordering::Acquire)
    }

    pub(super) fn read(&self) -> Stats {
        let Failed { all: failed, elsewhere: failed_elsewhere } = self.failed.lock().clone();
        Stats {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed,
            failed_elsewhere,
            quarantines: self.quarantines.load(Ordering::Relaxed),
            links_lost: self.links_lost.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            panics: self.panics(),
            bytes: self.bytes.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            malformed: self.malformed.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Aborted => "aborted",
        ErrorKind::Bootstrap => "bootstrap",
        ErrorKind::Busy => "busy",
        ErrorKind::Corrupted => "corrupted",
        ErrorKind::Internal => "internal",
        ErrorKind::Layout => "layout",
        ErrorKind::Memory => "memory",
        ErrorKind::PeerLost => "peer lost",
        ErrorKind::Protocol => "protocol",
        ErrorKind::Rejected => "rejected",
        ErrorKind::ShuttingDown => "shutting down",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Transport => "transport",
    }
}
