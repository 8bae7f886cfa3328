//! The KV chunk wire format: what two engines say to each other. Little-endian, versioned, written
//! by hand.
//!
//! Every frame starts with 16 bytes ([`Header`]): magic, version, kind, flags, body length, checksum.
//! Control frames travel on a link's control connection, in order. Data frames travel on data lanes,
//! in any order; their payload follows the frame.
//!
//! - `mod.rs`: the frames
//! - `header.rs`: the 16 bytes in front of every frame, and its checksum
//! - `codec.rs`: checked reading and writing of bodies, and the tail of optional fields
//! - `control.rs`: bodies of link and room frames
//! - `layout.rs`: bodies that describe pools and page lists
//! - `data.rs`: the data frame of two-sided transports
#![forbid(unsafe_code)]

mod codec;
mod control;
mod data;
mod header;
mod layout;

pub use codec::WireError;
pub use data::DataHeader;
pub use header::{HEADER_BYTES, Header, Kind, VERSION};

use crate::error::ErrorKind;
use crate::ids::{GrantId, GroupId, GroupSizes, Instance, Party, Rank, RegionId};
use crate::layout::{PageList, PoolLayout, Share};
use crate::poll::KVPoll;
use bytes::Bytes;
use std::ops::Range;

/// A control frame.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Frame {
    /// First frame on a link, both ways: who I am.
    Hello(Hello),
    /// Both ways, after `Hello` and again when pools change: my pools, and the keys that let you
    /// write to them.
    Layout(Layout),
    /// Both ways: still there.
    Ping {
        /// Comes back in `Pong`.
        token: u64,
    },
    /// Answer to `Ping`.
    Pong {
        /// The token of the ping.
        token: u64,
    },
    /// Both ways, last frame: why I close. Silence before the end of a link is a crash.
    Goodbye {
        /// The class of the reason.
        kind: ErrorKind,
        /// The reason.
        detail: String,
    },
    /// Both ways: what do you know of these rooms?
    Query {
        /// The rooms asked about.
        rooms: Vec<GrantId>,
    },
    /// Answer to `Query`, one a room.
    Status {
        /// The room.
        id: GrantId,
        /// Its state; `None` for a room that is not known.
        state: Option<KVPoll>,
        /// Tokens known to be in place.
        tokens: u32,
    },
    /// Both ways: these regions are being withdrawn; stop using them and answer.
    RegionsGone {
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// Answer to `RegionsGone`: not used and not mapped any more.
    RegionsClosed {
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// A frame of one room.
    Room {
        /// The room, the attempt and the receiver it belongs to.
        id: GrantId,
        /// What is said.
        frame: RoomFrame,
    },
}

/// Who a process is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Hello {
    /// Optional abilities, one bit each; both sides use those they share.
    pub features: u64,
    /// This start of the process.
    pub instance: Instance,
    /// The group's name, as in the directory.
    pub group: String,
    /// Place in the group.
    pub rank: Rank,
    /// Sizes of the group.
    pub sizes: GroupSizes,
    /// The model served; must be equal on both sides.
    pub model: String,
}

/// Pools, and the keys that let the peer write to them.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Layout {
    /// Counts the layouts of this instance; grants name it.
    pub epoch: u32,
    /// The pools.
    pub layout: PoolLayout,
    /// A transport's keys of the regions, empty for two-sided transports.
    pub keys: Vec<(RegionId, Bytes)>,
}

/// What is said about one room. `R` is the decode side (receiver), `S` the prefill side (sender).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RoomFrame {
    /// R to S, first: I am a destination of this room.
    Join {
        /// Every decode rank that will join this sender, myself included. All must say the same.
        destinations: Vec<Rank>,
    },
    /// S to R: what the request will be, before pages are granted.
    Offer(Offer),
    /// R to S: write here.
    Grant(Grant),
    /// S to R: these tokens are in place for these layers.
    ChunkDone {
        /// The tokens.
        tokens: Range<u32>,
        /// Their global layers; all if none are named.
        layers: Option<Range<u32>>,
    },
    /// S to R: nothing more will be written. R succeeds when as many writes have landed.
    Done(Done),
    /// S to R: I gave up. Writes may still be under way until `Quiet`.
    Failed(Cause),
    /// R to S: stop.
    Abort(Cause),
    /// S to R, after `Failed` or `Abort`: stopped, and I will not write again.
    Quiet,
}

/// What a request will be.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Offer {
    /// Tokens of the prompt, if known.
    pub tokens: Option<u32>,
    /// Whether they are computed already.
    pub complete: bool,
    /// The engine's own bytes.
    pub payload: Bytes,
}

/// Lends pages.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Grant {
    /// The receiver's layout that the page lists refer to.
    pub epoch: u32,
    /// The sender's layout that the share was made from.
    pub source_epoch: u32,
    /// Tokens wanted; those before are held already.
    pub tokens: Range<u32>,
    /// What this sender owes; nothing if none is named.
    pub share: Option<Share>,
    /// Pages by group of the receiver's layout; for row groups, the rows.
    pub pages: Vec<(GroupId, PageList)>,
}

/// The end of a sender's work.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Writes posted under this grant.
    pub ops: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The engine's own bytes.
    pub payload: Bytes,
}

/// Why a room failed, as its first witness tells it; passed on unchanged.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Cause {
    /// Where it arose.
    pub origin: Party,
    /// The state it arose in.
    pub state: KVPoll,
    /// Its class.
    pub kind: ErrorKind,
    /// The exact fact.
    pub detail: String,
}

/// Bytes of a control body before `Hello` at most.
pub const MAX_BODY_BEFORE_HELLO: u32 = 64 << 10;
/// Bytes of a control body at most.
pub const MAX_BODY: u32 = 16 << 20;
/// Pages of one grant at most, all groups together.
pub const MAX_PAGES: usize = 1 << 20;
/// Bytes of a name (group, model, dtype, tag) at most.
pub const MAX_NAME: usize = 256;
/// Bytes of a failure's detail at most; longer ones are cut.
pub const MAX_DETAIL: usize = 1024;
/// Bytes of an engine's own payload at most.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Destinations of one room at most.
pub const MAX_DESTINATIONS: usize = 4096;
