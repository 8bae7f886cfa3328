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
//! - `mod.rs`: pools as groups of pages, and what one rank owes another
//! - `entry.rs`: one buffer of a pool, and constructors for the usual shapes
//! - `check.rs`: whether a description can be right
//! - `pages.rs`: scattered pages of one request, and its tokens
//! - `pairing.rs`: which entry here is which entry there, and what differs
//! - `plan.rs`: chunks cut into pieces, pieces turned into extents
//! - `admission.rs`: what a receiver lets a writer touch
//! - `digest.rs`: what must be equal on both sides, in 16 bytes
#![forbid(unsafe_code)]

mod admission;
mod check;
mod digest;
mod entry;
mod pages;
mod pairing;
mod plan;

pub use admission::{Admission, Refusal};
pub use check::LayoutError;
pub use digest::LayoutDigest;
pub use entry::{HeadSpan, ItemOrder, PoolEntry, Role, Sharding};
pub use pages::{PageList, Pages, PagesError};
pub use pairing::{Mismatch, Pair, Pairing};
pub use plan::{Block, Extent, Piece, Pieces, PlanError, blocks};

use crate::ids::GroupId;
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

impl PoolLayout {
    /// No pools yet. Add groups, then the entries that use them, then [`check`](Self::check).
    ///
    /// # Examples
    /// Two layers of keys and values, 16 tokens a page, 4096 pages, 8 heads of 128 `bf16`:
    /// ```
    /// use kvferry::RegionId;
    /// use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
    ///
    /// let mut layout = PoolLayout::new();
    /// let kv = layout.paged("kv", 16, 4096);
    /// for layer in 0..2 {
    ///     for (role, region) in [(Role::Key, RegionId(2 * layer)), (Role::Value, RegionId(2 * layer + 1))] {
    ///         let entry = PoolEntry::token_major(kv, role, layer, region, 16, HeadSpan::all(8), 256);
    ///         layout.push(entry.dtype("bf16"));
    ///     }
    /// }
    /// layout.check(|_region| Some(4096 * 16 * 8 * 256))?;
    /// # Ok::<(), kvferry::layout::LayoutError>(())
    /// ```
    pub const fn new() -> Self {
        Self { groups: Vec::new(), entries: Vec::new() }
    }

    /// Adds a group of `items` pages of `page_tokens` tokens each.
    pub fn paged(&mut self, name: impl Into<String>, page_tokens: u32, items: u32) -> GroupId {
        self.add(PageGroup { name: name.into(), kind: GroupKind::Paged { page_tokens }, items })
    }

    /// Adds a group of `items` rows, sent whole with `finish`.
    pub fn rows(&mut self, name: impl Into<String>, items: u32) -> GroupId {
        self.add(PageGroup { name: name.into(), kind: GroupKind::Rows, items })
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: PoolEntry) {
        self.entries.push(entry);
    }

    /// Adds entries, such as those of [`PoolEntry::fused_kv`] and [`PoolEntry::block_major`].
    pub fn extend(&mut self, entries: impl IntoIterator<Item = PoolEntry>) {
        self.entries.extend(entries);
    }

    /// The group with this number.
    pub fn group_of(&self, id: GroupId) -> Option<&PageGroup> {
        self.groups.get(usize::from(id.0))
    }

    /// Places of the entries, by (group name, layer, role): the order peers agree on.
    pub(crate) fn canonical(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.entries.len()).collect();
        places.sort_by_key(|&place| {
            let entry = &self.entries[place];
            (self.group_of(entry.group).map(|group| group.name.as_str()), entry.layer, entry.role)
        });
        places
    }

    fn add(&mut self, group: PageGroup) -> GroupId {
        // A number past the last one is refused by `check`, as are so many groups.
        let id = GroupId(u16::try_from(self.groups.len()).unwrap_or(u16::MAX));
        self.groups.push(group);
        id
    }
}

impl Share {
    /// Everything both sides hold.
    pub const WHOLE: Self =
        Self { heads: None, layers: None, source: TokenShard::WHOLE, destination: TokenShard::WHOLE };

    /// What of this share pieces cannot express in this version, if anything: parts of heads or tokens.
    pub fn unsupported(&self) -> Option<&'static str> {
        if self.heads.is_some() {
            Some("heads")
        } else if self.source != TokenShard::WHOLE || self.destination != TokenShard::WHOLE {
            Some("tokens")
        } else {
            None
        }
    }
}

impl TokenShard {
    /// Every token.
    pub const WHOLE: Self = Self { granule: 1, step: 1, phase: 0 };
}

/// Groups of one layout at most.
pub const MAX_GROUPS: usize = 1024;
/// Entries of one layout at most.
pub const MAX_ENTRIES: usize = 65_536;
/// Bytes of a group's name, a dtype or a tag at most.
pub const MAX_NAME_BYTES: usize = 256;

/// A place in a list held in memory. Lists of more than `usize::MAX` items do not exist, so a number
/// that does not fit is a place behind any list's end.
fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
