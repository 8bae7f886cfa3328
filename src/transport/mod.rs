//! How bytes move. The engine sees every transport through one trait.
//!
//! - `mod.rs`: the trait, its events and capabilities
//! - `grants.rs`: admitted grants of a link and who is applying under them (two-sided transports)
//! - `mailbox.rs`: a queue between threads with a descriptor that wakes the reader
//! - `ticker.rs`: the passing of time, counted while something waits
//! - `registry.rs`: transports by name
//! - `local.rs`: inside one process; the reference
//! - `shm/`: shared memory between processes of one host
//! - `tcp/`: control connection and data lanes over TCP

#[cfg_attr(
    not(any(feature = "shm", feature = "tcp")),
    expect(dead_code, reason = "only transports with threads give writes up again")
)]
mod grants;
pub mod local;
mod mailbox;
pub mod registry;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(any(feature = "shm", feature = "tcp"))]
mod ticker;

use crate::ids::{GrantId, LinkId, OpId, RegionId};
use crate::layout::{Admission, Extent, Piece};
use crate::memory::{MemoryError, MemoryKind, Region};
use bytes::Bytes;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Who moves bytes into the destination, and so who can stop them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "either the source moves the bytes or the destination does")]
pub enum WriteModel {
    /// The sender reaches into destination memory (RDMA put): only it can stop.
    OneSided,
    /// The destination's own transport applies the bytes: `revoke` stops them.
    TwoSided,
}

/// What a transport can do.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Who moves the bytes.
    pub write_model: WriteModel,
    /// Largest control frame, in bytes; larger messages are refused.
    pub max_control: u32,
    /// Largest write, in bytes.
    pub max_write: u64,
}

/// One write: a piece of a room, gathered here and scattered at the peer.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the engine makes one for each piece")]
pub struct Write<'a> {
    /// Its number under the grant.
    pub op: OpId,
    /// The grant it is made under.
    pub grant: GrantId,
    /// What is written, in terms both sides understand.
    pub piece: Piece,
    /// Where its bytes lie here, in the piece's order.
    pub source: &'a [Extent],
    /// Where they go at the peer; empty for two-sided transports, whose peer knows.
    pub destination: &'a [Extent],
}

/// What went wrong with a transport, a link or a write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No room now; try again after progress.
    #[error("queue full")]
    Full,
    /// A payload arrived damaged; the write may be posted again.
    #[error("payload damaged on the way")]
    Corrupted,
    /// A system call failed.
    #[error("{name}: {op} failed")]
    Io {
        /// The transport.
        name: &'static str,
        /// The call.
        op: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// An address cannot be understood.
    #[error("{name}: bad address: {detail}")]
    Address {
        /// The transport.
        name: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The peer broke the format; its link is closed.
    #[error("{name}: peer broke the format: {detail}")]
    Format {
        /// The transport.
        name: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// The peer closed the link or ended.
    #[error("{name}: peer closed the connection")]
    Closed {
        /// The transport.
        name: &'static str,
    },
    /// This side closed the link.
    #[error("{name}: closed on this side")]
    Disconnected {
        /// The transport.
        name: &'static str,
    },
    /// No such link, or not any more.
    #[error("link {0} is not connected")]
    NotConnected(LinkId),
    /// Memory the transport was not told about, or outside what it was told.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// This side took the write back before it was over.
    #[error("{name}: taken back on this side")]
    Recalled {
        /// The transport.
        name: &'static str,
    },
    /// The peer does not read, and more is waiting for it than is kept; its link is closed.
    #[error("{name}: peer does not read, {waiting} bytes are waiting")]
    Stalled {
        /// The transport.
        name: &'static str,
        /// Bytes of control frames that are waiting.
        waiting: u64,
    },
    /// Nothing was heard of a connection in the time allowed.
    #[error("{name}: no answer while {doing}")]
    TimedOut {
        /// The transport.
        name: &'static str,
        /// What was waited for.
        doing: &'static str,
    },
    /// More bytes than one write or control frame may have.
    #[error("{name}: {bytes} bytes at once, at most {limit}")]
    TooLarge {
        /// The transport.
        name: &'static str,
        /// What was asked for.
        bytes: u64,
        /// What is possible.
        limit: u64,
    },
    /// The peer, or memory that is to be moved, cannot be reached in this way; another transport may.
    #[error("{name}: {detail}")]
    Unreachable {
        /// The transport.
        name: &'static str,
        /// What is in the way.
        detail: String,
    },
    /// Memory that this transport cannot reach.
    #[error("{name} cannot move {kind} memory")]
    Unsupported {
        /// The transport.
        name: &'static str,
        /// The memory.
        kind: MemoryKind,
    },
}

/// What happened in a transport since it was last asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The peer lives: a part of something large has come or was taken, and there is nothing else to say
    /// of it yet.
    Alive {
        /// The link.
        link: LinkId,
    },
    /// A link is usable: one this side asked for, or one a peer opened.
    Connected {
        /// The link.
        link: LinkId,
    },
    /// One whole control frame; frames of a link come in the order sent, each once.
    Control {
        /// The link.
        link: LinkId,
        /// The frame, header included.
        frame: Bytes,
    },
    /// All bytes of a peer's write are in place here (two-sided).
    Landed {
        /// The link.
        link: LinkId,
        /// The grant.
        grant: GrantId,
        /// The write.
        op: OpId,
        /// Its bytes.
        bytes: u64,
    },
    /// The link has ended. Every accepted write has settled or settles after this, and every
    /// `revoke` is still answered.
    LinkDown {
        /// The link.
        link: LinkId,
        /// Nothing the peer posted over it can still reach our memory. Always true on two-sided
        /// transports once the grants are revoked.
        quiesced: bool,
        /// Why.
        error: TransportError,
    },
    /// A write of ours is over on both sides: no source byte will be read and no destination byte
    /// written for it again. Exactly one for each accepted write, also after `LinkDown`.
    Settled {
        /// The link.
        link: LinkId,
        /// The grant.
        grant: GrantId,
        /// The write.
        op: OpId,
        /// How it ended.
        result: Result<(), TransportError>,
    },
    /// A peer's write under a live grant did not fit what was lent (two-sided): nothing of it was
    /// applied, and at the peer it settles as good. Comes before any control frame that the peer sent
    /// after that. Writes under unknown or revoked grants are thrown away without this.
    Refused {
        /// The link.
        link: LinkId,
        /// The grant.
        grant: GrantId,
        /// What did not fit.
        detail: String,
    },
    /// Nothing will touch the pages of this grant again. Exactly one for each `revoke`.
    Revoked {
        /// The link.
        link: LinkId,
        /// The grant.
        grant: GrantId,
    },
}

/// Whether the caller may sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "yes or no")]
pub enum Wait {
    /// Work arrived meanwhile: progress, do not sleep.
    Busy,
    /// Sleep on the descriptor.
    Ready,
}

/// Moves control frames and page bytes between engines. No method blocks. Called by the engine
/// only, from one thread at a time; a transport may have threads of its own, a fixed number.
pub trait Transport: Debug + Send {
    /// Its name in directories and errors, for instance `tcp`.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn caps(&self) -> Caps;
    /// Whether it can move bytes of this memory.
    fn supports(&self, kind: MemoryKind) -> bool;
    /// What a peer needs to reach this side; opaque, published by the directory.
    fn local_address(&self) -> Bytes;
    /// An address of this transport in words, for errors.
    fn describe(&self, address: &[u8]) -> String {
        address.escape_ascii().to_string()
    }

    /// Starts a connection. `Connected` or `LinkDown` follows.
    ///
    /// # Errors
    /// The address is not one of this transport's, or this process is out of descriptors.
    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError>;
    /// Ends a link for good; control frames already accepted are sent first if that needs no waiting.
    /// `LinkDown` follows unless it came already.
    fn disconnect(&mut self, link: LinkId);

    /// Makes local memory usable as source and destination.
    ///
    /// # Errors
    /// [`TransportError::Unsupported`], or the native call that failed.
    fn register(&mut self, region: &Region) -> Result<(), TransportError>;
    /// Forgets local memory. Legal only when no write or admitted grant names it.
    fn deregister(&mut self, region: RegionId);
    /// The key that lets the peer of this link write to a region; empty for two-sided transports.
    fn key_for(&mut self, _link: LinkId, _region: RegionId) -> Bytes {
        Bytes::new()
    }
    /// Accepts a peer's key. Keys of a link end with it.
    ///
    /// # Errors
    /// The key is malformed.
    fn import(&mut self, _link: LinkId, _region: RegionId, _key: &[u8]) -> Result<(), TransportError> {
        Ok(())
    }

    /// Lets go of a peer's region: when this returns, nothing here reaches it by that key. Legal only when
    /// no write names it.
    fn forget_import(&mut self, _link: LinkId, _region: RegionId) {}

    /// Posts one write: all of it or, on an error, nothing. Settles exactly once if accepted.
    ///
    /// # Errors
    /// [`TransportError::Full`]: again after progress. Else the link or a region is not usable.
    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError>;
    /// Takes back what was posted under a grant and is not over: it settles at once as
    /// [`Recalled`](TransportError::Recalled), and counts nowhere. For rooms that were given up. Transports
    /// that cannot do so do nothing: such writes settle as they are over.
    fn recall(&mut self, _link: LinkId, _grant: GrantId) {}
    /// Posts one control frame, header included; order is kept.
    ///
    /// # Errors
    /// The link is gone, or the peer does not read and too much is waiting: the link is then closed.
    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError>;

    /// Two-sided: from now on writes under this grant may be applied, as far as the admission allows.
    fn admit(&mut self, _link: LinkId, _grant: GrantId, _admission: Arc<Admission>) {}
    /// Two-sided: from now on such writes are read and thrown away. `Revoked` follows once nothing is
    /// applying any more; also for unknown grants and ended links.
    fn revoke(&mut self, _link: LinkId, _grant: GrantId) {}

    /// Does what can be done now and reports what happened. Returns the number of new events.
    fn progress(&mut self, events: &mut Vec<Event>) -> usize;
    /// How often a thread of its own has panicked so far: each time a defect, and what the thread had to do
    /// with has ended.
    fn panics(&self) -> u64 {
        0
    }
    /// Readable when `progress` may find work, provided `prepare_wait` last said `Ready`.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Arms the descriptor.
    fn prepare_wait(&mut self) -> Wait {
        Wait::Ready
    }
}
