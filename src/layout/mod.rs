//! Geometry: where the bytes of a token lie in a pool, on either side. Pure arithmetic.
//!
//! A [`PoolLayout`] describes one engine's pools. [`Pairing`] matches two of them entry by entry. A
//! [`Piece`] names bytes without an address (which pairs, which tokens); each side turns the same
//! piece into [`Extent`]s of its own memory, in the same order:
//!
//! ```text
//!                     piece: pairs 4..6, tokens 32..64
//!            source layout + pages        destination layout + pages
//!                    |                               |
//!         extents to gather from           extents to scatter into
//! ```
//!
//! - `mod.rs`: the description of pools, checked on construction
//! - `pages.rs`: scattered pages of one request, and its tokens
//! - `pairing.rs`: which entry here is which entry there, and what differs
//! - `plan.rs`: chunks cut into pieces, pieces turned into extents
//! - `admission.rs`: what a receiver lets a writer touch
//! - `digest.rs`: what must be equal on both sides, in 16 bytes
#![forbid(unsafe_code)]

mod admission;
mod digest;
mod pages;
mod pairing;
mod plan;

pub use admission::{Admission, Refusal};
pub use digest::LayoutDigest;
pub use pages::{PageList, Pages, PagesError};
pub use pairing::{Mismatch, Pair, Pairing};
pub use plan::{Block, Extent, Piece, Pieces, PlanError, blocks};

use crate::ids::{GroupId, RegionId};
use std::ops::Range;

/// All pools of one engine: groups of pages, and the buffers that are cut into them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolLayout {
    /// Page spaces; entries refer to them by place, peers by name.
    pub groups: Vec<PageGroup>,
    /// Buffers.
    pub entries: Vec<PoolEntry>,
}

/// A page space: entries of one group share page numbers.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PageGroup {
    /// Its name, equal on both sides.
    pub name: String,
    /// What an item of this group holds.
    pub kind: GroupKind,
    /// Number of pages (or rows); valid numbers are `0..items`.
    pub items: u32,
}

/// What an item of a group holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum GroupKind {
    /// KV of this many tokens.
    Paged {
        /// Tokens a page.
        page_tokens: u32,
    },
    /// One record of a request, sent whole with `finish`.
    Rows,
}

/// One buffer of a pool, for instance the keys of one layer.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolEntry {
    /// The group whose page numbers it uses.
    pub group: GroupId,
    /// What it holds. Entries pair across sides by (group name, role, layer).
    pub role: Role,
    /// Global layer number; none for what belongs to no layer.
    pub layer: Option<u32>,
    /// The registered memory it lies in.
    pub region: RegionId,
    /// Byte offset of item 0 in the region.
    pub offset: u64,
    /// Bytes of one item.
    pub item_bytes: u64,
    /// Bytes from one item to the next, at least `item_bytes`.
    pub item_stride: u64,
    /// Element type; an open name such as `bf16`, compared as text.
    pub dtype: String,
    /// Order inside an item.
    pub order: ItemOrder,
    /// Which part of the model's data this rank holds.
    pub sharding: Sharding,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Role {
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Keys and values in one item.
    KeyValue,
    /// Compressed latent of multi-head latent attention.
    Latent,
    /// Scales of a quantised buffer, by number.
    Scale(u16),
    /// Recurrent or other state, by number.
    State(u16),
    /// A record of the engine's own, by number.
    Aux(u16),
}

/// Order of an item's bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ItemOrder {
    /// `[token, head, dim]`: a token's bytes are contiguous.
    TokenMajor,
    /// `[head, token, dim]`: `heads` runs, each with the tokens of one head.
    HeadMajor {
        /// Heads in the item.
        heads: u32,
    },
    /// Each head contiguous, its inside known only by name: cut by head, not by token.
    HeadBlocks {
        /// Heads in the item.
        heads: u32,
        /// The inside, compared as text.
        tag: String,
    },
    /// Moved whole, known only by name.
    Opaque {
        /// The inside, compared as text.
        tag: String,
    },
}

/// Which part of the model's data an entry holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Sharding {
    /// All of it, on every rank.
    Replicated,
    /// A range of heads.
    Heads(HeadSpan),
}

/// The heads a rank holds, of `total` in the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "a range of heads")]
pub struct HeadSpan {
    /// First head held.
    pub first: u32,
    /// Heads held.
    pub count: u32,
    /// Heads of the model.
    pub total: u32,
}

/// What one prefill rank owes one decode rank.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Share {
    /// Heads owed; all that both sides hold if none is named.
    pub heads: Option<HeadSpan>,
    /// Global layers owed; all if none are named.
    pub layers: Option<Range<u32>>,
    /// How tokens are dealt out to ranks on the sending side.
    pub source: TokenShard,
    /// How tokens are dealt out to ranks on the receiving side.
    pub destination: TokenShard,
}

/// Tokens of granule `g = token / granule` are held where `g % step == phase`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "three numbers of the wire format")]
pub struct TokenShard {
    /// Tokens dealt out together.
    pub granule: u32,
    /// Ranks they are dealt to.
    pub step: u32,
    /// Which of those ranks this is.
    pub phase: u32,
}

/// A description of pools that cannot be right.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Two groups share a name.
    #[error("group name {0:?} is used twice")]
    DuplicateGroup(String),
    /// Two entries cannot be told apart by a peer.
    #[error("{role:?} of layer {layer:?} in group {group:?} is described twice")]
    DuplicateEntry {
        /// The group's name.
        group: String,
        /// The shared role.
        role: Role,
        /// The shared layer.
        layer: Option<u32>,
    },
    /// An entry names a group that is not there.
    #[error("entry {entry} names group {}, there are {groups}", group.0)]
    UnknownGroup {
        /// The entry's place.
        entry: usize,
        /// The group it names.
        group: GroupId,
        /// Number of groups.
        groups: usize,
    },
    /// An entry's numbers do not fit together.
    #[error("entry {entry}: {field} is {value}, must be {rule}")]
    BadEntry {
        /// The entry's place.
        entry: usize,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What would be accepted.
        rule: &'static str,
    },
    /// A group's numbers make no sense.
    #[error("group {group:?}: {field} is {value}, must be {rule}")]
    BadGroup {
        /// The group's name.
        group: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What would be accepted.
        rule: &'static str,
    },
    /// More groups or entries than the format carries.
    #[error("{count} {what}, at most {limit}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

/// Groups of one layout at most.
pub const MAX_GROUPS: usize = 1024;
/// Entries of one layout at most.
pub const MAX_ENTRIES: usize = 65_536;

impl Share {
    /// Everything both sides hold.
    pub const WHOLE: Self =
        Self { heads: None, layers: None, source: TokenShard::WHOLE, destination: TokenShard::WHOLE };
}

impl TokenShard {
    /// Every token.
    pub const WHOLE: Self = Self { granule: 1, step: 1, phase: 0 };
}
