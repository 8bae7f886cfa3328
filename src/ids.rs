//! Names of the things that travel: rooms, ranks, processes, links, operations.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number that ties one [`KVSender`](crate::KVSender) to its receivers. Every value is an
/// ordinary room, 0 and 2^64-1 included.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct Room(pub u64);

/// Which try of a room this is. Both sides must name the same; 0 unless the caller has a better one.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct Attempt(pub u64);

/// Counts the receivers of one process; tells two uses of the same room apart.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct Generation(pub u64);

/// One start of one process, drawn at random. A restarted process is another instance.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct Instance(pub u128);

/// Coordinates of a worker in its group: data, pipeline, context and tensor parallel index.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "the four axes are part of the wire format")]
pub struct Rank {
    /// Data parallel index.
    pub dp: u32,
    /// Pipeline stage.
    pub pp: u32,
    /// Context parallel index.
    pub cp: u32,
    /// Tensor parallel index.
    pub tp: u32,
}

/// How many ranks a group has on each axis; every size is at least 1.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "the four axes are part of the wire format")]
pub struct GroupSizes {
    /// Data parallel size.
    pub dp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Context parallel size.
    pub cp: u32,
    /// Tensor parallel size.
    pub tp: u32,
}

/// Which part a process plays in one room.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_enums, reason = "a transfer has two sides")]
#[repr(u8)]
pub enum Side {
    /// Computes the KV cache and sends it.
    Prefill = 0,
    /// Receives it and generates tokens.
    Decode = 1,
}

/// One process as a party to a room: no two running processes share this name.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "carried in every failure on the wire")]
pub struct Party {
    /// The part it plays.
    pub side: Side,
    /// Its place in its group.
    pub rank: Rank,
    /// The process start it belongs to.
    pub instance: Instance,
}

/// One live connection to a peer. A reconnect is another link.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(u64);

/// A posted write, numbered from 0 within its grant and link.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct OpId(pub u32);

/// A registered stretch of memory of one engine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct RegionId(pub u32);

/// A page group, by its place in [`PoolLayout::groups`](crate::layout::PoolLayout).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a number and nothing else")]
pub struct GroupId(pub u16);

/// One receiver's lending of pages. Unique among the grants of one link.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "the key of every room frame on the wire")]
pub struct GrantId {
    /// The room.
    pub room: Room,
    /// The caller's try of it.
    pub attempt: Attempt,
    /// The receiver that lends.
    pub generation: Generation,
}

/// One rank's use of a room whose outcome it shares with others of its group.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "the key of every group frame on the wire")]
pub struct BallotId {
    /// The side that votes.
    pub side: Side,
    /// The room.
    pub room: Room,
    /// The caller's try of it.
    pub attempt: Attempt,
    /// Tells the rank's uses of the room apart. Each rank counts its own.
    pub generation: Generation,
}

impl Rank {
    /// The rank of a group that is parallel in no other way.
    pub const fn tp(tp: u32) -> Self {
        Self { dp: 0, pp: 0, cp: 0, tp }
    }
}

impl GroupSizes {
    /// A group of one rank.
    pub const ONE: Self = Self { dp: 1, pp: 1, cp: 1, tp: 1 };

    /// A group of `tp` tensor parallel ranks.
    pub const fn tp(tp: u32) -> Self {
        Self { dp: 1, pp: 1, cp: 1, tp }
    }

    /// Whether `rank` lies inside the group.
    pub const fn holds(self, rank: Rank) -> bool {
        rank.dp < self.dp && rank.pp < self.pp && rank.cp < self.cp && rank.tp < self.tp
    }

    /// Number of ranks, in 64 bits since sizes may come from a peer.
    pub fn ranks(self) -> u64 {
        [self.dp, self.pp, self.cp, self.tp].into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }
}

impl LinkId {
    /// A number no other link of this process has.
    pub fn allocate() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp{} pp{} cp{} tp{}", self.dp, self.pp, self.cp, self.tp)
    }
}

impl fmt::Display for GroupSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp{} x pp{} x cp{} x tp{}", self.dp, self.pp, self.cp, self.tp)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Eight digits tell processes apart in a log; the full number is in the field.
        write!(f, "{} rank {} ({:08x})", self.side, self.rank, self.instance.0 >> 96)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
