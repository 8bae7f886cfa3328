//! One buffer of a pool, and constructors for the usual shapes.

use crate::ids::{GroupId, RegionId};
use std::fmt;
use std::ops::Range;

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
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "a range of heads")]
pub struct HeadSpan {
    /// First head held.
    pub first: u32,
    /// Heads held.
    pub count: u32,
    /// Heads of the model.
    pub total: u32,
}

impl PoolEntry {
    /// An entry of whole items one behind the other from the start of `region`: token-major, without
    /// a layer, the same on every rank. The methods below change what differs.
    pub const fn new(group: GroupId, role: Role, region: RegionId, item_bytes: u64) -> Self {
        Self {
            group,
            role,
            layer: None,
            region,
            offset: 0,
            item_bytes,
            item_stride: item_bytes,
            dtype: String::new(),
            order: ItemOrder::TokenMajor,
            sharding: Sharding::Replicated,
        }
    }

    /// Pages `[token, head, dim]` of one layer (often called NHD), `head_bytes` a token and head.
    pub fn token_major(
        group: GroupId,
        role: Role,
        layer: u32,
        region: RegionId,
        page_tokens: u32,
        heads: HeadSpan,
        head_bytes: u64,
    ) -> Self {
        Self::new(group, role, region, item_bytes(page_tokens, heads, head_bytes)).layer(layer).heads(heads)
    }

    /// Pages `[head, token, dim]` of one layer (often called HND), `head_bytes` a token and head.
    pub fn head_major(
        group: GroupId,
        role: Role,
        layer: u32,
        region: RegionId,
        page_tokens: u32,
        heads: HeadSpan,
        head_bytes: u64,
    ) -> Self {
        let order = ItemOrder::HeadMajor { heads: heads.count };
        Self::token_major(group, role, layer, region, page_tokens, heads, head_bytes).order(order)
    }

    /// Keys and values of one layer in one region, each described like this entry, at these offsets
    /// from its own:
    ///
    /// - `[block, K|V, page]`: `entry.stride(2 * bytes).fused_kv(0, bytes)`
    /// - `[K|V, block, page]`: `entry.fused_kv(0, blocks * bytes)`
    pub fn fused_kv(self, key_offset: u64, value_offset: u64) -> [Self; 2] {
        let part = |role, offset: u64| Self {
            role,
            // Saturated sums are refused by `PoolLayout::check`, as no region is that long.
            offset: self.offset.saturating_add(offset),
            ..self.clone()
        };
        [part(Role::Key, key_offset), part(Role::Value, value_offset)]
    }

    /// Keys and values of `layers` in one region `[block, layer, K|V, page]`, each page described like
    /// this entry: from one page of an entry to its next is a whole block.
    pub fn block_major(self, layers: Range<u32>) -> Vec<Self> {
        let bytes = self.item_bytes;
        let layer_bytes = bytes.saturating_mul(2);
        let stride = layer_bytes.saturating_mul(u64::from(layers.end.saturating_sub(layers.start)));
        let parts = layers.zip(0_u64..).flat_map(|(layer, place)| {
            let key_offset = layer_bytes.saturating_mul(place);
            let entry = self.clone().layer(layer).stride(stride);
            entry.fused_kv(key_offset, key_offset.saturating_add(bytes))
        });
        parts.collect()
    }

    /// With this global layer number.
    pub fn layer(mut self, layer: u32) -> Self {
        self.layer = Some(layer);
        self
    }

    /// With item 0 at this byte of the region.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// With this many bytes from one item to the next.
    pub fn stride(mut self, item_stride: u64) -> Self {
        self.item_stride = item_stride;
        self
    }

    /// With this element type.
    pub fn dtype(mut self, dtype: impl Into<String>) -> Self {
        self.dtype = dtype.into();
        self
    }

    /// With this order inside an item.
    pub fn order(mut self, order: ItemOrder) -> Self {
        self.order = order;
        self
    }

    /// Holding these heads of the model.
    pub fn heads(mut self, heads: HeadSpan) -> Self {
        self.sharding = Sharding::Heads(heads);
        self
    }
}

impl HeadSpan {
    /// All heads of a model that has `total`.
    pub const fn all(total: u32) -> Self {
        Self { first: 0, count: total, total }
    }

    /// Whether there can be such heads.
    pub(crate) fn is_possible(self) -> bool {
        self.count > 0 && u64::from(self.first) + u64::from(self.count) <= u64::from(self.total)
    }

    /// The heads that both name, of possible ones.
    pub(super) fn meet(self, other: Self) -> Option<Self> {
        let (first, total) = (self.first.max(other.first), self.total);
        let end = (self.first + self.count).min(other.first + other.count);
        (total == other.total && first < end).then(|| Self { first, count: end - first, total })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::Value => f.write_str("value"),
            Self::KeyValue => f.write_str("key-value"),
            Self::Latent => f.write_str("latent"),
            Self::Scale(number) => write!(f, "scale {number}"),
            Self::State(number) => write!(f, "state {number}"),
            Self::Aux(number) => write!(f, "aux {number}"),
        }
    }
}

impl fmt::Display for ItemOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenMajor => f.write_str("token-major"),
            Self::HeadMajor { heads } => write!(f, "head-major of {heads} heads"),
            Self::HeadBlocks { heads, tag } => write!(f, "head blocks {tag:?} of {heads} heads"),
            Self::Opaque { tag } => write!(f, "opaque {tag:?}"),
        }
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicated => f.write_str("replicated"),
            Self::Heads(HeadSpan { first, count, total }) => {
                write!(f, "{count} heads from {first} on of {total}")
            }
        }
    }
}

/// What an entry is called in errors.
pub(super) fn described(group: &str, role: Role, layer: Option<u32>) -> String {
    match layer {
        Some(layer) => format!("{role} of layer {layer} in group {group:?}"),
        None => format!("{role} in group {group:?}"),
    }
}

/// Saturated products are refused by `PoolLayout::check`, as no region is that long.
fn item_bytes(page_tokens: u32, heads: HeadSpan, head_bytes: u64) -> u64 {
    (u64::from(page_tokens) * u64::from(heads.count)).saturating_mul(head_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> PoolEntry {
        PoolEntry::head_major(GroupId(0), Role::KeyValue, 3, RegionId(7), 16, HeadSpan::all(8), 256)
    }

    #[test]
    fn pages_hold_every_head_of_every_token() {
        assert_eq!(page().item_bytes, 16 * 8 * 256);
        assert_eq!(page().order, ItemOrder::HeadMajor { heads: 8 });
        assert_eq!(page().sharding, Sharding::Heads(HeadSpan { first: 0, count: 8, total: 8 }));
    }

    #[test]
    fn fused_keys_and_values_differ_in_role_and_offset() {
        let [key, value] = page().offset(100).stride(1 << 20).fused_kv(0, 32_768);
        assert_eq!((key.role, key.offset, key.item_stride), (Role::Key, 100, 1 << 20));
        assert_eq!((value.role, value.offset, value.item_stride), (Role::Value, 32_868, 1 << 20));
    }

    #[test]
    fn block_major_pages_of_a_layer_lie_a_whole_block_apart() {
        let entries = page().block_major(10..12);
        let bytes = page().item_bytes;
        let places: Vec<_> = entries.iter().map(|e| (e.layer, e.role, e.offset / bytes)).collect();
        let expected = [
            (Some(10), Role::Key, 0),
            (Some(10), Role::Value, 1),
            (Some(11), Role::Key, 2),
            (Some(11), Role::Value, 3),
        ];
        assert_eq!(places, expected);
        assert!(entries.iter().all(|e| e.item_stride == 4 * bytes));
    }

    #[test]
    fn impossible_sizes_saturate() {
        let heads = HeadSpan::all(u32::MAX);
        let entry = PoolEntry::token_major(GroupId(0), Role::Key, 0, RegionId(0), u32::MAX, heads, 1 << 40);
        assert_eq!(entry.item_bytes, u64::MAX);
        assert_eq!(entry.block_major(0..2).last().map(|e| e.offset), Some(u64::MAX));
    }
}
