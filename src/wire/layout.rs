//! Bodies that describe pools and shares.
//!
//! A group of pages:
//!
//! | size | field |
//! |---|---|
//! | 4 + n | `name` |
//! | 1 | `kind`: 0 pages, 1 rows; 2 and 3 the same, optional |
//! | 4 | `page_tokens`, only for pages |
//! | 4 | `items` |
//!
//! An entry:
//!
//! | size | field |
//! |---|---|
//! | 2 | `group` |
//! | 1 | `role`: 0 key, 1 value, 2 key and value, 3 latent, 4 scale, 5 state, 6 aux |
//! | 2 | number of the role, only for scale, state, aux |
//! | 1 (+ 4) | `layer`, optional |
//! | 4 | `region` |
//! | 8 | `offset` |
//! | 8 | `item_bytes` |
//! | 8 | `item_stride` |
//! | 4 + n | `dtype` |
//! | 1 | `order`: 0 by token, 1 by head, 2 blocks of heads, 3 opaque |
//! | 4 | heads, only for orders 1 and 2 |
//! | 4 + n | tag, only for orders 2 and 3 |
//! | 1 | `sharding`: 0 replicated, 1 heads |
//! | 12 | first, count, total; only for heads |
//!
//! A share:
//!
//! | size | field |
//! |---|---|
//! | 1 (+ 12) | `heads`, optional: first, count, total |
//! | 1 (+ 4 + 8 n) | `layers`, optional: first and last of each run, ascending and apart |
//! | 12 | `source`: granule, step, phase |
//! | 12 | `destination`: granule, step, phase |

use super::codec::{Coded, Reader, Writer};
use super::{MAX_NAME, WireError};
use crate::ids::{GroupId, RegionId};
use crate::layout::{
    GroupKind, HeadSpan, ItemOrder, Layers, MAX_ENTRIES, MAX_GROUPS, PageGroup, PoolEntry, PoolLayout, Role,
    Sharding, Share, TokenShard,
};
use std::ops::RangeInclusive;

impl Coded for PoolLayout {
    const MIN_BYTES: usize = 8;

    fn write(&self, w: &mut Writer) {
        w.list(&self.groups);
        w.list(&self.entries);
    }

    fn read(r: &mut Reader<'_>, _field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            groups: r.list("layout.groups", MAX_GROUPS)?,
            entries: r.list("layout.entries", MAX_ENTRIES)?,
        })
    }
}

impl Coded for PageGroup {
    const MIN_BYTES: usize = 9;

    fn write(&self, w: &mut Writer) {
        w.text(&self.name);
        let optional = if self.is_optional { OPTIONAL } else { 0 };
        match self.kind {
            GroupKind::Paged { page_tokens } => {
                w.u8(optional);
                w.u32(page_tokens);
            }
            GroupKind::Rows => w.u8(1 + optional),
        }
        w.u32(self.items);
    }

    fn read(r: &mut Reader<'_>, _field: &'static str) -> Result<Self, WireError> {
        let name = r.text("group.name", MAX_NAME)?;
        let number = r.u8("group.kind")?;
        let kind = match number % OPTIONAL {
            _ if number >= 2 * OPTIONAL => {
                return Err(WireError::Value { field: "group.kind", value: number.into() });
            }
            0 => GroupKind::Paged { page_tokens: r.u32("group.page_tokens")? },
            _ => GroupKind::Rows,
        };
        Ok(Self { name, kind, items: r.u32("group.items")?, is_optional: number >= OPTIONAL })
    }
}

impl Coded for PoolEntry {
    const MIN_BYTES: usize = 38;

    fn write(&self, w: &mut Writer) {
        self.group.write(w);
        self.role.write(w);
        w.option(self.layer.as_ref());
        self.region.write(w);
        w.u64(self.offset);
        w.u64(self.item_bytes);
        w.u64(self.item_stride);
        w.text(&self.dtype);
        self.order.write(w);
        self.sharding.write(w);
    }

    fn read(r: &mut Reader<'_>, _field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            group: GroupId::read(r, "entry.group")?,
            role: Role::read(r, "entry.role")?,
            layer: r.option("entry.layer")?,
            region: RegionId::read(r, "entry.region")?,
            offset: r.u64("entry.offset")?,
            item_bytes: r.u64("entry.item_bytes")?,
            item_stride: r.u64("entry.item_stride")?,
            dtype: r.text("entry.dtype", MAX_NAME)?,
            order: ItemOrder::read(r, "entry.order")?,
            sharding: Sharding::read(r, "entry.sharding")?,
        })
    }
}

impl Coded for Role {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        let (role, number) = match *self {
            Self::Key => (0, None),
            Self::Value => (1, None),
            Self::KeyValue => (2, None),
            Self::Latent => (3, None),
            Self::Scale(number) => (4, Some(number)),
            Self::State(number) => (5, Some(number)),
            Self::Aux(number) => (6, Some(number)),
        };
        w.u8(role);
        if let Some(number) = number {
            w.u16(number);
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(match r.u8(field)? {
            0 => Self::Key,
            1 => Self::Value,
            2 => Self::KeyValue,
            3 => Self::Latent,
            4 => Self::Scale(r.u16(field)?),
            5 => Self::State(r.u16(field)?),
            6 => Self::Aux(r.u16(field)?),
            other => return Err(WireError::Value { field, value: other.into() }),
        })
    }
}

impl Coded for ItemOrder {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        match self {
            Self::TokenMajor => w.u8(0),
            Self::HeadMajor { heads } => {
                w.u8(1);
                w.u32(*heads);
            }
            Self::HeadBlocks { heads, tag } => {
                w.u8(2);
                w.u32(*heads);
                w.text(tag);
            }
            Self::Opaque { tag } => {
                w.u8(3);
                w.text(tag);
            }
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(match r.u8(field)? {
            0 => Self::TokenMajor,
            1 => Self::HeadMajor { heads: r.u32("entry.order.heads")? },
            2 => Self::HeadBlocks {
                heads: r.u32("entry.order.heads")?,
                tag: r.text("entry.order.tag", MAX_NAME)?,
            },
            3 => Self::Opaque { tag: r.text("entry.order.tag", MAX_NAME)? },
            other => return Err(WireError::Value { field, value: other.into() }),
        })
    }
}

impl Coded for Sharding {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        match self {
            Self::Replicated => w.u8(0),
            Self::Heads(span) => {
                w.u8(1);
                span.write(w);
            }
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(match r.u8(field)? {
            0 => Self::Replicated,
            1 => Self::Heads(HeadSpan::read(r, field)?),
            other => return Err(WireError::Value { field, value: other.into() }),
        })
    }
}

impl Coded for HeadSpan {
    const MIN_BYTES: usize = 12;

    fn write(&self, w: &mut Writer) {
        for heads in [self.first, self.count, self.total] {
            w.u32(heads);
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let span = Self { first: r.u32(field)?, count: r.u32(field)?, total: r.u32(field)? };
        if u64::from(span.first) + u64::from(span.count) > u64::from(span.total) {
            return Err(WireError::Value { field, value: span.count.into() });
        }
        Ok(span)
    }
}

impl Coded for Share {
    const MIN_BYTES: usize = 26;

    fn write(&self, w: &mut Writer) {
        w.option(self.heads.as_ref());
        w.option(self.layers.as_ref());
        self.source.write(w);
        self.destination.write(w);
    }

    fn read(r: &mut Reader<'_>, _field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            heads: r.option("share.heads")?,
            layers: r.option("share.layers")?,
            source: TokenShard::read(r, "share.source")?,
            destination: TokenShard::read(r, "share.destination")?,
        })
    }
}

impl Coded for Layers {
    const MIN_BYTES: usize = 4;

    fn write(&self, w: &mut Writer) {
        let runs: Vec<_> = self.runs().map(LayerRun).collect();
        w.list(&runs);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let runs = r.list::<LayerRun>(field, MAX_ENTRIES)?;
        let runs: Vec<_> = runs.into_iter().map(|LayerRun(run)| run.into_inner()).collect();
        let count = u64::try_from(runs.len()).unwrap_or(u64::MAX);
        Self::of_runs(runs).ok_or(WireError::Value { field, value: count })
    }
}

/// Layers that follow one another.
struct LayerRun(RangeInclusive<u32>);

impl Coded for LayerRun {
    const MIN_BYTES: usize = 8;

    fn write(&self, w: &mut Writer) {
        w.u32(*self.0.start());
        w.u32(*self.0.end());
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(Self(r.u32(field)?..=r.u32(field)?))
    }
}

impl Coded for TokenShard {
    const MIN_BYTES: usize = 12;

    fn write(&self, w: &mut Writer) {
        for number in [self.granule, self.step, self.phase] {
            w.u32(number);
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let shard = Self { granule: r.u32(field)?, step: r.u32(field)?, phase: r.u32(field)? };
        // Tokens are divided by these two.
        if shard.granule == 0 || shard.step == 0 {
            return Err(WireError::Value { field, value: 0 });
        }
        if shard.phase >= shard.step {
            return Err(WireError::Value { field, value: shard.phase.into() });
        }
        Ok(shard)
    }
}

/// Added to the kind of an optional group; there are as many kinds.
const OPTIONAL: u8 = 2;
