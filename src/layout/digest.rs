//! What must be equal on both sides, in 16 bytes.

use super::{GroupKind, HeadSpan, ItemOrder, PoolEntry, PoolLayout, Role, Sharding};
use std::fmt;

/// A digest of everything about a layout that a peer compares: equal digests pair, unequal ones may.
/// It saves comparing in full among peers that mean well; it is not proof against forgery.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "16 bytes of the wire format")]
pub struct LayoutDigest(pub [u8; 16]);

impl PoolLayout {
    /// The digest of this layout: FNV-1a of 128 bits over its groups sorted by name, then its entries
    /// sorted by (group name, layer, role). Regions, offsets, strides and numbers of items are left
    /// out, and so is the order in which groups and entries were added.
    pub fn digest(&self) -> LayoutDigest {
        let mut fnv = Fnv(OFFSET_BASIS);
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by_key(|group| group.name.as_str());
        for group in groups {
            fnv.text(&group.name);
            match group.kind {
                GroupKind::Paged { page_tokens } => fnv.numbers([0, page_tokens.into()]),
                GroupKind::Rows => fnv.numbers([1]),
            }
        }
        for place in self.canonical() {
            let entry = &self.entries[place];
            fnv.text(self.group_of(entry.group).map_or("", |group| &group.name));
            fnv.entry(entry);
        }
        LayoutDigest(fnv.0.to_le_bytes())
    }
}

impl fmt::Display for LayoutDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

impl fmt::Debug for LayoutDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// FNV-1a: each byte is mixed in by exclusive or, then by a multiplication. Every value is preceded by
/// its length or its kind, so that different descriptions are different bytes.
struct Fnv(u128);

impl Fnv {
    fn entry(&mut self, entry: &PoolEntry) {
        match entry.role {
            Role::Key => self.numbers([0]),
            Role::Value => self.numbers([1]),
            Role::KeyValue => self.numbers([2]),
            Role::Latent => self.numbers([3]),
            Role::Scale(number) => self.numbers([4, number.into()]),
            Role::State(number) => self.numbers([5, number.into()]),
            Role::Aux(number) => self.numbers([6, number.into()]),
        }
        match entry.layer {
            None => self.numbers([0]),
            Some(layer) => self.numbers([1, layer.into()]),
        }
        self.numbers([entry.item_bytes]);
        self.text(&entry.dtype);
        match &entry.order {
            ItemOrder::TokenMajor => self.numbers([0]),
            ItemOrder::HeadMajor { heads } => self.numbers([1, (*heads).into()]),
            ItemOrder::HeadBlocks { heads, tag } => {
                self.numbers([2, (*heads).into()]);
                self.text(tag);
            }
            ItemOrder::Opaque { tag } => {
                self.numbers([3]);
                self.text(tag);
            }
        }
        match entry.sharding {
            Sharding::Replicated => self.numbers([0]),
            Sharding::Heads(HeadSpan { first, count, total }) => {
                self.numbers([1, first.into(), count.into(), total.into()]);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.numbers([u64::try_from(text.len()).unwrap_or(u64::MAX)]);
        self.bytes(text.as_bytes());
    }

    fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.bytes(&number.to_le_bytes());
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
}

const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupId, RegionId};

    fn layout() -> PoolLayout {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", 16, 100);
        let aux = layout.rows("aux", 8);
        layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), 4096).layer(0).dtype("bf16"));
        layout.push(PoolEntry::new(aux, Role::Aux(3), RegionId(1), 8));
        layout
    }

    #[test]
    fn the_hash_is_fnv_1a_of_128_bits() {
        let hash = |text: &str| {
            let mut fnv = Fnv(OFFSET_BASIS);
            fnv.bytes(text.as_bytes());
            fnv.0
        };
        assert_eq!(hash(""), OFFSET_BASIS);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash("foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn what_peers_do_not_compare_leaves_the_digest_alone() {
        let mut other = layout();
        other.groups.swap(0, 1);
        other.groups[1].items = 7;
        other.entries.swap(0, 1);
        other.entries[0].group = GroupId(0);
        other.entries[1] = PoolEntry { group: GroupId(1), region: RegionId(9), ..other.entries[1].clone() };
        other.entries[1] = other.entries[1].clone().offset(3).stride(9000);
        assert_eq!(other.digest(), layout().digest());
    }

    #[test]
    fn what_peers_compare_changes_the_digest() {
        let changes: [fn(&mut PoolLayout); 10] = [
            |l| l.groups[0].name = "kw".into(),
            |l| l.groups[0].kind = GroupKind::Paged { page_tokens: 32 },
            |l| l.groups[0].kind = GroupKind::Rows,
            |l| l.entries[0].role = Role::Value,
            |l| l.entries[0].layer = None,
            |l| l.entries[0].item_bytes = 2048,
            |l| l.entries[0].dtype = "fp16".into(),
            |l| l.entries[0].order = ItemOrder::Opaque { tag: String::new() },
            |l| l.entries[0].sharding = Sharding::Heads(HeadSpan::all(8)),
            |l| drop(l.entries.pop()),
        ];
        for change in changes {
            let mut other = layout();
            change(&mut other);
            assert_ne!(other.digest(), layout().digest(), "{other:?}");
        }
    }
}
