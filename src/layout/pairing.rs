//! Which entry here is which entry there.

use super::entry::described;
use super::plan::Geometry;
use super::{GroupKind, PageGroup, PoolEntry, PoolLayout, Role, place};
use crate::ids::GroupId;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// Two layouts matched entry by entry. Both sides compute the same one from the same two layouts:
/// pairs are sorted by (group name, layer, role), so that a pair's number means the same on both.
#[derive(Clone, Debug)]
pub struct Pairing {
    pub(crate) source: Arc<PoolLayout>,
    pub(crate) destination: Arc<PoolLayout>,
    pub(crate) pairs: Vec<Pair>,
    /// One a pair: how its bytes may be cut.
    pub(super) geometry: Vec<Geometry>,
    groups: Vec<PairedGroup>,
}

/// A group that both sides have, and its pairs.
#[derive(Clone, Debug)]
struct PairedGroup {
    source: GroupId,
    destination: GroupId,
    pairs: Range<u32>,
}

/// One entry of the source and the entry of the destination that holds the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Pair {
    /// Place in the source's entries.
    pub source: u32,
    /// Place in the destination's entries.
    pub destination: u32,
    /// Group of the source's entry.
    pub source_group: GroupId,
    /// Group of the destination's entry.
    pub destination_group: GroupId,
    /// What both hold.
    pub role: Role,
    /// Their layer.
    pub layer: Option<u32>,
}

/// What the two sides describe differently.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what}: {source_value} on the prefill side, {destination_value} on the decode side")]
#[non_exhaustive]
pub struct Mismatch {
    /// The field, with group, role and layer.
    pub what: String,
    /// Its value at the source.
    pub source_value: String,
    /// Its value at the destination.
    pub destination_value: String,
}

impl Pairing {
    /// Matches two layouts of equal geometry: kind of each group, and of each entry the bytes of an
    /// item, dtype, order and sharding. Regions, offsets, strides and numbers of items may differ.
    ///
    /// # Errors
    /// The first field that matters and differs, an entry only one side has, or a layout that
    /// [`PoolLayout::check_shape`] refuses.
    pub fn new(source: Arc<PoolLayout>, destination: Arc<PoolLayout>) -> Result<Self, Mismatch> {
        check(&source, &destination)?;
        let mut groups = pair_groups(&source, &destination)?;
        let pairs = pair_entries(&source, &destination)?;
        let name = |pair: &Pair| source.groups[usize::from(pair.source_group.0)].name.as_str();
        for group in &mut groups {
            let own = source.groups[usize::from(group.source.0)].name.as_str();
            let start = pairs.partition_point(|pair| name(pair) < own);
            let end = pairs.partition_point(|pair| name(pair) <= own);
            group.pairs = number(start)..number(end);
        }
        let of_pair = |pair: &Pair| {
            let (entry, group) = entry_and_group(&source, place(pair.source));
            Geometry::new(group.kind, entry)
        };
        let geometry = pairs.iter().map(of_pair).collect();
        Ok(Self { source, destination, pairs, geometry, groups })
    }

    /// The pairs, in the order both sides number them.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The group of the destination that pairs with this group of the source.
    pub fn destination_group(&self, source: GroupId) -> Option<GroupId> {
        Some(self.group(source)?.destination)
    }

    /// The group of the source that pairs with this group of the destination.
    pub fn source_group(&self, destination: GroupId) -> Option<GroupId> {
        Some(self.groups.iter().find(|group| group.destination == destination)?.source)
    }

    /// What a group of the source holds.
    pub fn kind(&self, source: GroupId) -> Option<GroupKind> {
        Some(self.source.group_of(source)?.kind)
    }

    /// The pairs of a group of the source whose layer lies in `layers`, all if none are named. Pairs
    /// without a layer go with the first: with layers counted from 0 exactly one part of a division owns
    /// them. Contiguous, since pairs are sorted by group and layer, those without one first.
    pub fn pairs_of(&self, source: GroupId, layers: Option<&Range<u32>>) -> Range<u32> {
        let Some(group) = self.group(source) else { return 0..0 };
        let Some(layers) = layers else { return group.pairs.clone() };
        let pairs = &self.pairs[place(group.pairs.start)..place(group.pairs.end)];
        // Pairs without a layer come first.
        let below = |end: u32| {
            let count = pairs.partition_point(|pair| pair.layer.is_none_or(|layer| layer < end));
            group.pairs.start + u32::try_from(count).expect("pairs are numbered in 32 bits")
        };
        let start = if layers.start == 0 { group.pairs.start } else { below(layers.start) };
        let end = if layers.is_empty() { start } else { below(layers.end) };
        start..end.max(start)
    }

    fn group(&self, source: GroupId) -> Option<&PairedGroup> {
        self.groups.iter().find(|group| group.source == source)
    }
}

fn check(source: &PoolLayout, destination: &PoolLayout) -> Result<(), Mismatch> {
    let verdict = |layout: &PoolLayout| match layout.check_shape() {
        Ok(()) => (true, "possible".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let ((source_ok, source_value), (destination_ok, destination_value)) =
        (verdict(source), verdict(destination));
    match source_ok && destination_ok {
        true => Ok(()),
        false => Err(Mismatch { what: "layout".to_owned(), source_value, destination_value }),
    }
}

/// Pairs groups by name, sorted by it. Groups of one side only come to nothing here: if they have
/// entries, those are found to be missing.
fn pair_groups(source: &PoolLayout, destination: &PoolLayout) -> Result<Vec<PairedGroup>, Mismatch> {
    let (ours, theirs) = (by_name(source), by_name(destination));
    let mut paired = Vec::with_capacity(ours.len().min(theirs.len()));
    for (source_id, group) in ours {
        let found = theirs.binary_search_by_key(&group.name.as_str(), |(_, other)| other.name.as_str());
        let Ok(at) = found else { continue };
        let (destination_id, other) = theirs[at];
        compare_kinds(group, other)?;
        paired.push(PairedGroup { source: source_id, destination: destination_id, pairs: 0..0 });
    }
    Ok(paired)
}

fn by_name(layout: &PoolLayout) -> Vec<(GroupId, &PageGroup)> {
    let mut groups: Vec<_> = (0_u16..).map(GroupId).zip(&layout.groups).collect();
    groups.sort_by_key(|(_, group)| group.name.as_str());
    groups
}

fn compare_kinds(source: &PageGroup, destination: &PageGroup) -> Result<(), Mismatch> {
    let name = &source.name;
    let (field, source_value, destination_value) = match (source.kind, destination.kind) {
        (GroupKind::Paged { page_tokens: ours }, GroupKind::Paged { page_tokens: theirs }) => {
            if ours == theirs {
                return Ok(());
            }
            ("page_tokens", ours.to_string(), theirs.to_string())
        }
        (GroupKind::Rows, GroupKind::Rows) => return Ok(()),
        (GroupKind::Paged { .. }, GroupKind::Rows) => ("kind", "paged".to_owned(), "rows".to_owned()),
        (GroupKind::Rows, GroupKind::Paged { .. }) => ("kind", "rows".to_owned(), "paged".to_owned()),
    };
    Err(Mismatch { what: format!("{field} of group {name:?}"), source_value, destination_value })
}

/// Walks both layouts in the order of (group name, layer, role).
fn pair_entries(source: &PoolLayout, destination: &PoolLayout) -> Result<Vec<Pair>, Mismatch> {
    let (ours, theirs) = (source.canonical(), destination.canonical());
    let (mut at_source, mut at_destination) = (ours.iter().peekable(), theirs.iter().peekable());
    let mut pairs = Vec::with_capacity(ours.len());
    loop {
        let (source_place, destination_place) = match (at_source.peek(), at_destination.peek()) {
            (None, None) => return Ok(pairs),
            (Some(&&place), None) => return Err(missing(source, place, Ordering::Less)),
            (None, Some(&&place)) => return Err(missing(destination, place, Ordering::Greater)),
            (Some(&&ours), Some(&&theirs)) => match key(source, ours).cmp(&key(destination, theirs)) {
                Ordering::Equal => (ours, theirs),
                side @ Ordering::Less => return Err(missing(source, ours, side)),
                side @ Ordering::Greater => return Err(missing(destination, theirs, side)),
            },
        };
        at_source.next();
        at_destination.next();
        let (entry, group) = entry_and_group(source, source_place);
        let (other, _) = entry_and_group(destination, destination_place);
        compare_entries(&group.name, entry, other)?;
        pairs.push(Pair {
            source: number(source_place),
            destination: number(destination_place),
            source_group: entry.group,
            destination_group: other.group,
            role: entry.role,
            layer: entry.layer,
        });
    }
}

fn compare_entries(group: &str, source: &PoolEntry, destination: &PoolEntry) -> Result<(), Mismatch> {
    let (ours, theirs) = (source, destination);
    let fields = [
        ("item_bytes", ours.item_bytes == theirs.item_bytes),
        ("dtype", ours.dtype == theirs.dtype),
        ("order", ours.order == theirs.order),
        ("sharding", ours.sharding == theirs.sharding),
    ];
    let Some((field, _)) = fields.into_iter().find(|(_, equal)| !equal) else { return Ok(()) };
    let value = |entry: &PoolEntry| match field {
        "item_bytes" => entry.item_bytes.to_string(),
        "dtype" => entry.dtype.clone(),
        "order" => entry.order.to_string(),
        _ => entry.sharding.to_string(),
    };
    let what = format!("{field} of {}", described(group, source.role, source.layer));
    Err(Mismatch { what, source_value: value(source), destination_value: value(destination) })
}

/// The entry at `at` of `layout`, which is the source if `side` is `Less`, has no counterpart.
fn missing(layout: &PoolLayout, at: usize, side: Ordering) -> Mismatch {
    let (entry, group) = entry_and_group(layout, at);
    let (here, there) = ("described".to_owned(), "missing".to_owned());
    let (source_value, destination_value) =
        if side == Ordering::Less { (here, there) } else { (there, here) };
    Mismatch { what: described(&group.name, entry.role, entry.layer), source_value, destination_value }
}

fn key(layout: &PoolLayout, at: usize) -> (&str, Option<u32>, Role) {
    let (entry, group) = entry_and_group(layout, at);
    (&group.name, entry.layer, entry.role)
}

/// Both exist: `check` has found them before.
fn entry_and_group(layout: &PoolLayout, at: usize) -> (&PoolEntry, &PageGroup) {
    let entry = &layout.entries[at];
    (entry, &layout.groups[usize::from(entry.group.0)])
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("a checked layout has at most MAX_ENTRIES entries")
}

#[cfg(test)]
mod tests {
    use super::super::{HeadSpan, ItemOrder};
    use super::*;
    use crate::ids::RegionId;

    fn layout(groups: &[&str], layers: Range<u32>) -> PoolLayout {
        let mut layout = PoolLayout::new();
        for name in groups {
            let group = layout.paged(*name, 16, 100);
            for layer in layers.clone().rev() {
                for role in [Role::Value, Role::Key] {
                    layout.push(PoolEntry::new(group, role, RegionId(0), 4096).layer(layer).dtype("bf16"));
                }
            }
        }
        layout
    }

    fn mismatch(change: impl FnOnce(&mut PoolLayout)) -> String {
        let mut changed = layout(&["kv"], 0..4);
        change(&mut changed);
        Pairing::new(Arc::new(layout(&["kv"], 0..4)), Arc::new(changed)).unwrap_err().to_string()
    }

    #[test]
    fn pairs_are_sorted_by_group_name_layer_and_role() {
        let mut source = layout(&["swa", "kv"], 0..2);
        let rows = source.rows("aux", 8);
        source.push(PoolEntry::new(rows, Role::Aux(0), RegionId(0), 8));
        let mut destination = PoolLayout::new();
        let rows = destination.rows("aux", 64);
        destination.push(PoolEntry::new(rows, Role::Aux(0), RegionId(3), 8).stride(64).offset(5));
        let other = layout(&["kv", "swa"], 0..2);
        destination.groups.extend(other.groups);
        destination
            .extend(other.entries.into_iter().map(|e| PoolEntry { group: GroupId(e.group.0 + 1), ..e }));

        let pairing = Pairing::new(Arc::new(source), Arc::new(destination)).unwrap();
        let order: Vec<_> = pairing.pairs().iter().map(|p| (p.source_group.0, p.layer, p.role)).collect();
        let expected = [
            (2, None, Role::Aux(0)),
            (1, Some(0), Role::Key),
            (1, Some(0), Role::Value),
            (1, Some(1), Role::Key),
            (1, Some(1), Role::Value),
            (0, Some(0), Role::Key),
            (0, Some(0), Role::Value),
            (0, Some(1), Role::Key),
            (0, Some(1), Role::Value),
        ];
        assert_eq!(order, expected);
        assert_eq!(pairing.destination_group(GroupId(1)), Some(GroupId(1)));
        assert_eq!(pairing.destination_group(GroupId(0)), Some(GroupId(2)));
        assert_eq!(pairing.source_group(GroupId(0)), Some(GroupId(2)));
        assert_eq!(pairing.source_group(GroupId(3)), None);
        assert_eq!(pairing.kind(GroupId(2)), Some(GroupKind::Rows));
        assert_eq!(pairing.pairs_of(GroupId(1), None), 1..5);
        assert_eq!(pairing.pairs_of(GroupId(0), Some(&(1..9))), 7..9);
        assert_eq!(pairing.pairs_of(GroupId(0), Some(&(3..9))), 9..9);
        assert_eq!(pairing.pairs_of(GroupId(2), Some(&(0..9))), 0..1);
        assert_eq!(pairing.pairs_of(GroupId(2), Some(&(1..9))), 1..1);
        assert_eq!(pairing.pairs_of(GroupId(9), None), 0..0);
    }

    #[test]
    fn inverted_layers_hold_no_pairs() {
        let layout = Arc::new(layout(&["kv"], 0..4));
        let pairing = Pairing::new(layout.clone(), layout).unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "a peer may send it")]
        let inverted = 3..1;
        assert!(pairing.pairs_of(GroupId(0), Some(&inverted)).is_empty());
    }

    #[test]
    fn a_mismatch_names_field_place_and_both_values() {
        fn assert_mismatch(what: &str, ours: &str, theirs: &str, change: fn(&mut PoolLayout)) {
            let expected = format!("{what}: {ours} on the prefill side, {theirs} on the decode side");
            assert_eq!(mismatch(change), expected);
        }
        let key = |field: &str| format!("{field}key of layer 0 in group \"kv\"");
        assert_mismatch("page_tokens of group \"kv\"", "16", "32", |l| {
            l.groups[0].kind = GroupKind::Paged { page_tokens: 32 };
        });
        assert_mismatch("kind of group \"kv\"", "paged", "rows", |l| l.groups[0].kind = GroupKind::Rows);
        assert_mismatch("item_bytes of value of layer 3 in group \"kv\"", "4096", "8192", |l| {
            l.entries[0] = PoolEntry { item_bytes: 8192, item_stride: 8192, ..l.entries[0].clone() };
        });
        assert_mismatch(&key("dtype of "), "bf16", "fp8_e4m3", |l| l.entries[7].dtype = "fp8_e4m3".into());
        assert_mismatch(&key("order of "), "token-major", "opaque \"x\"", |l| {
            l.entries[7].order = ItemOrder::Opaque { tag: "x".into() };
        });
        assert_mismatch(&key("sharding of "), "replicated", "8 heads from 0 on of 8", |l| {
            l.entries[7] = l.entries[7].clone().heads(HeadSpan::all(8));
        });
        assert_mismatch(&key(""), "described", "missing", |l| drop(l.entries.pop()));
        assert_mismatch("latent of layer 4 in group \"kv\"", "missing", "described", |l| {
            l.push(PoolEntry::new(GroupId(0), Role::Latent, RegionId(0), 4096).layer(4));
        });
    }

    #[test]
    fn an_impossible_layout_is_a_mismatch() {
        let text = mismatch(|l| l.entries[1].item_stride = u64::MAX);
        assert_eq!(
            text,
            "layout: possible on the prefill side, entry 1 ends beyond 64 bits on the decode side"
        );
    }
}
