//! Geometry: where the bytes of a token lie in a pool, on either side. Pure arithmetic.
//!
//! A [`PoolLayout`] describes one engine's pools. [`Pairing`] matches two of them entry by entry, as far
//! as a [`Share`] says that one rank owes the other. A [`Piece`] names bytes without an address (which
//! pairs, which tokens); each side turns the same piece into [`Extent`]s of its own memory, in the same
//! order, whatever the pages, the order of heads and tokens, and the heads held on either side:
//!
//! ```text
//!                     piece: pairs 4..6, tokens 32..64
//!            source layout + pages        destination layout + pages
//!                    |                               |
//!         extents to gather from           extents to scatter into
//! ```
//!
//! - `mod.rs`: pools as groups of pages
//! - `entry.rs`: one buffer of a pool, and constructors for the usual shapes
//! - `check.rs`: whether a description can be right
//! - `pages.rs`: scattered pages of one request, and its tokens
//! - `share.rs`: what one rank owes another; `shards.rs`: tokens dealt out to ranks
//! - `layers.rs`: sets of layers; `holding.rs`: what a rank holds; `ranks.rs`: which rank owes which rank what
//! - `pairing.rs`: which entry here is which entry there, and what differs
//! - `heads.rs`: which heads of them move; `route.rs`: how their bytes are cut, and in which order they travel
//! - `pieces.rs`: chunks cut into pieces; `extents.rs`: pieces turned into extents and blocks
//! - `admission.rs`: what a receiver lets a writer touch
//! - `digest.rs`: what must be equal on both sides, in 16 bytes
#![forbid(unsafe_code)]

mod admission;
mod check;
mod digest;
mod entry;
mod extents;
mod heads;
mod holding;
mod layers;
mod pages;
mod pairing;
mod pieces;
mod ranks;
mod route;
mod shards;
mod share;

pub use admission::{Admission, Refusal};
pub use check::LayoutError;
pub use digest::LayoutDigest;
pub use entry::{HeadSpan, ItemOrder, PoolEntry, Role, Sharding};
pub use extents::{Block, PlanError, blocks};
pub use holding::{Holding, HoldingError};
pub use layers::{Layers, LayersError};
pub use pages::{PageList, Pages, PagesError};
pub use pairing::{Mismatch, Pair, Pairing};
pub use pieces::{Piece, Pieces};
pub use ranks::{RankMap, RanksError};
pub use route::Extent;
pub use shards::TokenShard;
pub use share::Share;

use crate::ids::GroupId;

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
    /// Whether peers may be without it.
    pub is_optional: bool,
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
        let kind = GroupKind::Paged { page_tokens };
        self.add(PageGroup { name: name.into(), kind, items, is_optional: false })
    }

    /// Adds a group of `items` rows, sent whole with `finish`.
    pub fn rows(&mut self, name: impl Into<String>, items: u32) -> GroupId {
        self.add(PageGroup { name: name.into(), kind: GroupKind::Rows, items, is_optional: false })
    }

    /// Lets peers be without this group: nothing of it moves then. Without this, a group that only one
    /// side has is a [`Mismatch`].
    pub fn make_optional(&mut self, group: GroupId) {
        if let Some(group) = self.groups.get_mut(usize::from(group.0)) {
            group.is_optional = true;
        }
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
