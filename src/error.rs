//! Why a transfer failed, and on whose account.

use crate::ids::{Party, Rank, Room};
use crate::poll::KVPoll;
use std::sync::Arc;
use std::time::Duration;

/// The error below a failure.
type Below = Arc<dyn std::error::Error + Send + Sync>;

/// Why a transfer failed, in which state, after how long, and on whose account. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
#[error("room {room}: {kind} in {state:?} after {elapsed:.3?}, {origin}: {detail}")]
#[non_exhaustive]
pub struct KVTransferError {
    /// The room that failed.
    pub room: Room,
    /// The state it failed in.
    pub state: KVPoll,
    /// Time since the handle was made.
    pub elapsed: Duration,
    /// The class of the cause.
    pub kind: ErrorKind,
    /// Where the cause arose.
    pub origin: Origin,
    /// The exact fact.
    pub detail: Arc<str>,
    /// The lower layer's error, if it arose in this process. Its text is part of the detail, so it is no
    /// `source` in the sense of `std::error::Error`: chains would print it twice.
    pub cause: Option<Below>,
}

/// A cause before it is known to whom it happens: what lower layers hand up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The class of the cause.
    pub kind: ErrorKind,
    /// The exact fact.
    pub detail: Arc<str>,
    /// The lower layer's error.
    pub cause: Option<Below>,
}

/// The moment at which a room failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) room: Room,
    pub(crate) state: KVPoll,
    pub(crate) elapsed: Duration,
}

/// The class of a failure. The numbers are part of the wire format and never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum ErrorKind {
    /// A party asked for the end.
    #[error("aborted")]
    Aborted = 1,
    /// Peers could not be found or do not answer as the directory said.
    #[error("bootstrap failed")]
    Bootstrap = 2,
    /// A limit of the peer was reached.
    #[error("busy")]
    Busy = 3,
    /// Payload arrived damaged more often than it is asked for again.
    #[error("data corrupted")]
    Corrupted = 4,
    /// A defect of this library.
    #[error("internal invariant broken")]
    Internal = 5,
    /// The two sides describe their pools differently, or the pages given do not fit.
    #[error("layout mismatch")]
    Layout = 6,
    /// Memory could not be used as asked.
    #[error("memory error")]
    Memory = 7,
    /// The connection to a peer ended while it was needed.
    #[error("peer lost")]
    PeerLost = 8,
    /// A peer broke the rules of the protocol.
    #[error("protocol violation")]
    Protocol = 9,
    /// The request was refused before it had a sender.
    #[error("rejected")]
    Rejected = 10,
    /// The engine is closing.
    #[error("shutting down")]
    ShuttingDown = 11,
    /// A deadline passed.
    #[error("deadline passed")]
    Timeout = 12,
    /// A transport could not do its work.
    #[error("transport error")]
    Transport = 13,
}

/// Where a cause arose.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "here or elsewhere")]
pub enum Origin {
    /// In this process.
    #[error("on this rank ({0})")]
    Local(Party),
    /// In another process.
    #[error("on {0}")]
    Peer(Party),
}

impl KVTransferError {
    /// The party on which the root cause arose.
    pub const fn party(&self) -> Party {
        match self.origin {
            Origin::Local(party) | Origin::Peer(party) => party,
        }
    }

    /// The rank on which the root cause arose.
    pub const fn rank(&self) -> Rank {
        self.party().rank
    }

    /// Whether the root cause arose in another process.
    pub const fn is_from_another_rank(&self) -> bool {
        matches!(self.origin, Origin::Peer(_))
    }

    /// Whether the same request may succeed if started again.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Bootstrap
                | ErrorKind::Busy
                | ErrorKind::Corrupted
                | ErrorKind::PeerLost
                | ErrorKind::ShuttingDown
                | ErrorKind::Timeout
                | ErrorKind::Transport
        )
    }
}

impl Fault {
    /// A fault without an error below it.
    pub fn new(kind: ErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into(), cause: None }
    }

    /// A fault caused by `error`, whose text, with that of the causes below it, is kept in the detail.
    pub fn caused_by(
        kind: ErrorKind,
        what: &str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let mut detail = format!("{what}: {error}");
        let mut below = std::error::Error::source(&error);
        while let Some(cause) = below {
            detail.push_str(&format!(": {cause}"));
            below = cause.source();
        }
        Self { kind, detail: detail.into(), cause: Some(Arc::new(error)) }
    }

    pub(crate) fn at(self, moment: Moment, origin: Origin) -> KVTransferError {
        let Moment { room, state, elapsed } = moment;
        KVTransferError {
            room,
            state,
            elapsed,
            kind: self.kind,
            origin,
            detail: self.detail,
            cause: self.cause,
        }
    }
}

impl ErrorKind {
    /// The kind with this number on the wire.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Aborted,
            2 => Self::Bootstrap,
            3 => Self::Busy,
            4 => Self::Corrupted,
            5 => Self::Internal,
            6 => Self::Layout,
            7 => Self::Memory,
            8 => Self::PeerLost,
            9 => Self::Protocol,
            10 => Self::Rejected,
            11 => Self::ShuttingDown,
            12 => Self::Timeout,
            13 => Self::Transport,
            _ => return None,
        })
    }
}
