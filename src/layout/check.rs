//! Whether a description of pools can be right.

use super::entry::described;
use super::{
    GroupKind, ItemOrder, MAX_ENTRIES, MAX_GROUPS, MAX_NAME_BYTES, PageGroup, PoolEntry, PoolLayout, Role,
    Sharding,
};
use crate::ids::{GroupId, RegionId};
use std::collections::BTreeSet;

/// A description of pools that cannot be right.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Two groups share a name.
    #[error("group name {0:?} is used twice")]
    DuplicateGroup(String),
    /// Two entries cannot be told apart by a peer.
    #[error("{} is described twice", described(group, *role, *layer))]
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
    /// An entry names a region that is not there.
    #[error("entry {entry} names region {}, which is not registered", region.0)]
    UnknownRegion {
        /// The entry's place.
        entry: usize,
        /// The region it names.
        region: RegionId,
    },
    /// An entry reaches beyond its region.
    #[error("entry {entry} ends at byte {end} of region {}, which has {len}", region.0)]
    RegionTooSmall {
        /// The entry's place.
        entry: usize,
        /// Its region.
        region: RegionId,
        /// Byte behind its last item.
        end: u64,
        /// Bytes of the region.
        len: u64,
    },
    /// An entry reaches beyond byte 2^64.
    #[error("entry {entry} ends beyond 64 bits")]
    Overflow {
        /// The entry's place.
        entry: usize,
    },
}

impl PoolLayout {
    /// Checks everything: the numbers as [`check_shape`](Self::check_shape) does, and that every item
    /// lies inside its region, whose bytes `region_len` tells.
    ///
    /// # Errors
    /// The first thing that cannot be right.
    pub fn check(&self, region_len: impl Fn(RegionId) -> Option<u64>) -> Result<(), LayoutError> {
        self.check_shape()?;
        for (place, entry) in self.entries.iter().enumerate() {
            let region = entry.region;
            let len = region_len(region).ok_or(LayoutError::UnknownRegion { entry: place, region })?;
            let end = self.end(place, entry)?;
            if end > len {
                return Err(LayoutError::RegionTooSmall { entry: place, region, end, len });
            }
        }
        Ok(())
    }

    /// Checks what can be checked without knowing the regions, as for a peer's layout: limits, names,
    /// sizes, and that no item ends beyond 64 bits.
    ///
    /// # Errors
    /// The first thing that cannot be right.
    pub fn check_shape(&self) -> Result<(), LayoutError> {
        let counts =
            [("groups", self.groups.len(), MAX_GROUPS), ("entries", self.entries.len(), MAX_ENTRIES)];
        for (what, count, limit) in counts {
            if count > limit {
                return Err(LayoutError::TooMany { what, count, limit });
            }
        }
        let mut names = BTreeSet::new();
        for group in &self.groups {
            if !names.insert(group.name.as_str()) {
                return Err(LayoutError::DuplicateGroup(group.name.clone()));
            }
            check_group(group)?;
        }
        let mut keys = BTreeSet::new();
        for (place, entry) in self.entries.iter().enumerate() {
            let group = self.group(place, entry)?;
            if !keys.insert((entry.group, entry.role, entry.layer)) {
                let group = group.name.clone();
                return Err(LayoutError::DuplicateEntry { group, role: entry.role, layer: entry.layer });
            }
            check_entry(place, entry, group)?;
            self.end(place, entry)?;
        }
        Ok(())
    }

    fn group(&self, place: usize, entry: &PoolEntry) -> Result<&PageGroup, LayoutError> {
        let missing =
            LayoutError::UnknownGroup { entry: place, group: entry.group, groups: self.groups.len() };
        self.group_of(entry.group).ok_or(missing)
    }

    /// The byte behind the last item.
    fn end(&self, place: usize, entry: &PoolEntry) -> Result<u64, LayoutError> {
        let last = u64::from(self.group(place, entry)?.items.saturating_sub(1));
        let end = last
            .checked_mul(entry.item_stride)
            .and_then(|bytes| bytes.checked_add(entry.offset))
            .and_then(|start| start.checked_add(entry.item_bytes));
        end.ok_or(LayoutError::Overflow { entry: place })
    }
}

fn check_group(group: &PageGroup) -> Result<(), LayoutError> {
    let page_tokens = match group.kind {
        GroupKind::Paged { page_tokens } => page_tokens,
        GroupKind::Rows => 1,
    };
    let rules = [
        ("name bytes", bytes_of(&group.name), group.name.len() <= MAX_NAME_BYTES, AT_MOST_256),
        ("page_tokens", u64::from(page_tokens), page_tokens > 0, "at least 1"),
        ("items", u64::from(group.items), group.items > 0, "at least 1"),
    ];
    match rules.into_iter().find(|(_, _, holds, _)| !holds) {
        None => Ok(()),
        Some((field, value, _, rule)) => {
            Err(LayoutError::BadGroup { group: group.name.clone(), field, value, rule })
        }
    }
}

fn check_entry(place: usize, entry: &PoolEntry, group: &PageGroup) -> Result<(), LayoutError> {
    let rule = |field, value, holds: bool, rule| match holds {
        true => Ok(()),
        false => Err(LayoutError::BadEntry { entry: place, field, value, rule }),
    };
    let bytes = entry.item_bytes;
    rule("item_bytes", bytes, bytes > 0, "at least 1")?;
    rule("item_stride", entry.item_stride, entry.item_stride >= bytes, "at least item_bytes")?;
    rule("dtype bytes", bytes_of(&entry.dtype), entry.dtype.len() <= MAX_NAME_BYTES, AT_MOST_256)?;
    if let ItemOrder::HeadBlocks { tag, .. } | ItemOrder::Opaque { tag } = &entry.order {
        rule("tag bytes", bytes_of(tag), tag.len() <= MAX_NAME_BYTES, AT_MOST_256)?;
    }
    // Items of row groups have no tokens and are moved whole.
    let page_tokens = match group.kind {
        GroupKind::Paged { page_tokens } => u64::from(page_tokens),
        GroupKind::Rows => 1,
    };
    match entry.order {
        ItemOrder::TokenMajor => {
            rule("item_bytes", bytes, bytes.is_multiple_of(page_tokens), "a multiple of page_tokens")?;
        }
        ItemOrder::HeadMajor { heads } => {
            rule("heads", u64::from(heads), heads > 0, "at least 1")?;
            // Both factors come from 32 bits.
            let rows = page_tokens * u64::from(heads);
            rule("item_bytes", bytes, bytes.is_multiple_of(rows), "a multiple of page_tokens * heads")?;
        }
        ItemOrder::HeadBlocks { heads, .. } => {
            rule("heads", u64::from(heads), heads > 0, "at least 1")?;
            rule("item_bytes", bytes, bytes.is_multiple_of(u64::from(heads)), "a multiple of heads")?;
        }
        ItemOrder::Opaque { .. } => {}
    }
    if let Sharding::Heads(span) = entry.sharding {
        rule("head span's count", u64::from(span.count), span.count > 0, "at least 1")?;
        let end = u64::from(span.first) + u64::from(span.count);
        rule("head span's end", end, end <= u64::from(span.total), "at most its total")?;
    }
    Ok(())
}

fn bytes_of(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

const AT_MOST_256: &str = "at most 256";

#[cfg(test)]
mod tests {
    use super::super::HeadSpan;
    use super::*;

    fn layout(entry: PoolEntry) -> PoolLayout {
        let mut layout = PoolLayout::new();
        layout.paged("kv", 16, 100);
        layout.rows("aux", 4);
        layout.push(entry);
        layout
    }

    fn entry() -> PoolEntry {
        PoolEntry::new(GroupId(0), Role::Key, RegionId(0), 4096).layer(0)
    }

    fn bad(entry: PoolEntry) -> (&'static str, u64) {
        match layout(entry).check_shape() {
            Err(LayoutError::BadEntry { field, value, .. }) => (field, value),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_that_do_not_fit_together_are_named() {
        let span = HeadSpan { first: 4, count: 5, total: 8 };
        let opaque = |tag: String| ItemOrder::Opaque { tag };
        let cases = [
            (entry().stride(4095), ("item_stride", 4095)),
            (PoolEntry { item_bytes: 0, ..entry() }, ("item_bytes", 0)),
            (PoolEntry { item_bytes: 4090, ..entry() }, ("item_bytes", 4090)),
            (entry().order(ItemOrder::HeadMajor { heads: 0 }), ("heads", 0)),
            (entry().order(ItemOrder::HeadMajor { heads: 3 }), ("item_bytes", 4096)),
            (entry().order(ItemOrder::HeadBlocks { heads: 3, tag: "d,t".into() }), ("item_bytes", 4096)),
            (entry().order(opaque("t".repeat(257))), ("tag bytes", 257)),
            (entry().dtype("x".repeat(257)), ("dtype bytes", 257)),
            (entry().heads(span), ("head span's end", 9)),
            (entry().heads(HeadSpan::all(0)), ("head span's count", 0)),
        ];
        for (entry, expected) in cases {
            assert_eq!(bad(entry), expected);
        }
        assert_eq!(
            layout(PoolEntry { item_bytes: 7, ..entry() }.order(opaque("x".into()))).check_shape(),
            Ok(())
        );
        assert_eq!(layout(PoolEntry { group: GroupId(1), item_bytes: 7, ..entry() }).check_shape(), Ok(()));
    }

    #[test]
    fn every_item_must_lie_inside_its_region() {
        let layout = layout(entry().offset(10).stride(5000));
        let end = 10 + 99 * 5000 + 4096;
        assert_eq!(layout.check(|_| Some(end)), Ok(()));
        let short = LayoutError::RegionTooSmall { entry: 0, region: RegionId(0), end, len: end - 1 };
        assert_eq!(layout.check(|_| Some(end - 1)), Err(short));
        assert_eq!(layout.check(|_| None), Err(LayoutError::UnknownRegion { entry: 0, region: RegionId(0) }));
    }

    #[test]
    fn ends_beyond_64_bits_are_errors() {
        for entry in [
            entry().offset(u64::MAX),
            entry().stride(u64::MAX / 2),
            PoolEntry { item_bytes: u64::MAX - 15, item_stride: u64::MAX, ..entry() },
        ] {
            assert_eq!(layout(entry).check_shape(), Err(LayoutError::Overflow { entry: 0 }));
        }
        assert_eq!(layout(entry().offset(u64::MAX - 100 * 4096)).check_shape(), Ok(()));
    }

    #[test]
    fn names_numbers_and_counts_are_checked() {
        let mut twice = layout(entry());
        twice.push(entry());
        let error = twice.check_shape().unwrap_err();
        assert_eq!(error.to_string(), "key of layer 0 in group \"kv\" is described twice");

        let mut twice = layout(entry());
        twice.rows("kv", 1);
        assert_eq!(twice.check_shape(), Err(LayoutError::DuplicateGroup("kv".into())));

        let missing = layout(PoolEntry { group: GroupId(2), ..entry() }).check_shape();
        assert_eq!(missing, Err(LayoutError::UnknownGroup { entry: 0, group: GroupId(2), groups: 2 }));

        for (page_tokens, items) in [(0, 1), (1, 0)] {
            let mut layout = PoolLayout::new();
            layout.paged("kv", page_tokens, items);
            assert!(matches!(layout.check_shape(), Err(LayoutError::BadGroup { value: 0, .. })));
        }

        let mut many = PoolLayout::new();
        let last = (0..70_000).map(|number| many.rows(number.to_string(), 1)).last();
        assert_eq!(last, Some(GroupId(u16::MAX)));
        assert!(matches!(many.check_shape(), Err(LayoutError::TooMany { what: "groups", .. })));
    }
}
