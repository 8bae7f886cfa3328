//! Which entry here is which entry there, as far as one rank owes it to another.

use super::entry::described;
use super::heads::{Described, page_tokens};
use super::route::Route;
use super::shards::Deal;
use super::{GroupKind, HeadSpan, PageGroup, PageList, PoolLayout, Role, Sharding, Share, TokenShard, place};
use crate::ids::{GroupId, Side};
use std::cmp::Ordering;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

/// Two layouts matched entry by entry, as far as a share goes. Both sides compute the same one from the
/// same two layouts and the same share: pairs are sorted by (group name, layer, role), so that a pair's
/// number means the same on both.
#[derive(Clone, Debug)]
pub struct Pairing {
    pub(crate) source: Arc<PoolLayout>,
    pub(crate) destination: Arc<PoolLayout>,
    share: Share,
    pub(crate) pairs: Vec<Pair>,
    /// One a pair: how its bytes travel.
    pub(super) routes: Vec<Route>,
    groups: Vec<PairedGroup>,
    /// The layer that what has none goes with.
    first_layer: u32,
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
    /// Matches two layouts that hold the same, in full: see [`of`](Self::of).
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn new(source: Arc<PoolLayout>, destination: Arc<PoolLayout>) -> Result<Self, Mismatch> {
        Self::of(source, destination, &Share::WHOLE)
    }

    /// Matches what `share` names of two layouts. Of that, both sides must describe the same entries of
    /// the same element type, and the source must hold all the heads that the destination is owed. Page
    /// sizes, token-major and head-major order, regions, offsets, strides and numbers of items may differ;
    /// what can only be moved whole must lie in pages of one size and have one tag.
    ///
    /// An optional group may be missing on the other side as a whole.
    ///
    /// What a share does not cut goes with its first part: entries without a layer with the
    /// destination's first layer, those that every rank holds with the destination's first head, rows with
    /// its first token. So exactly one source owes them.
    ///
    /// # Errors
    /// The first field that matters and differs, an entry owed that only one side has, a share that cannot
    /// be, or a layout that [`PoolLayout::check_shape`] refuses.
    pub fn of(
        source: Arc<PoolLayout>,
        destination: Arc<PoolLayout>,
        share: &Share,
    ) -> Result<Self, Mismatch> {
        check(&source, &destination)?;
        share.check().map_err(|what| Mismatch::new(what, "owed", "impossible"))?;
        if !share.source.meets(share.destination) {
            return Err(Mismatch::new("tokens held", share.source, share.destination));
        }
        let first_layer = destination.entries.iter().filter_map(|entry| entry.layer).min().unwrap_or(0);
        let mut pairing = Self {
            groups: pair_groups(&source, &destination)?,
            share: share.clone(),
            pairs: Vec::new(),
            routes: Vec::new(),
            first_layer,
            source,
            destination,
        };
        pairing.pair_entries()?;
        pairing.number_groups();
        Ok(pairing)
    }

    /// The pairs, in the order both sides number them.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// What of the two layouts is matched.
    pub fn share(&self) -> &Share {
        &self.share
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

    /// The most tokens of which a page list of one side has all that this side holds; `source` is the
    /// group's number at the source.
    pub fn covers(&self, side: Side, source: GroupId, list: &PageList) -> Range<u32> {
        let group = self.group(source).and_then(|group| match side {
            Side::Decode => self.destination.group_of(group.destination),
            Side::Prefill => self.source.group_of(group.source),
        });
        self.shard(side).tokens(&list.covers(group.map_or(1, page_tokens)))
    }

    /// The pairs of a group of the source whose layer lies in `layers`, all if none are named. Pairs
    /// without a layer go with the first layer of the destination. Contiguous, since pairs are sorted by
    /// group and layer, those without one first.
    pub fn pairs_of(&self, source: GroupId, layers: Option<&Range<u32>>) -> Range<u32> {
        let Some(group) = self.group(source) else { return 0..0 };
        let Some(layers) = layers else { return group.pairs.clone() };
        let pairs = &self.pairs[place(group.pairs.start)..place(group.pairs.end)];
        // Pairs without a layer come first.
        let below = |end: u32| {
            let count = pairs.partition_point(|pair| pair.layer.is_none_or(|layer| layer < end));
            group.pairs.start + number(count)
        };
        // No layer is below the first.
        let start = if layers.contains(&self.first_layer) { group.pairs.start } else { below(layers.start) };
        let end = if layers.is_empty() { start } else { below(layers.end) };
        start..end.max(start)
    }

    /// Whether both sides hold any of these tokens.
    pub(crate) fn moves_any(&self, tokens: &Range<u32>) -> bool {
        let Share { source, destination, .. } = self.share;
        Deal { source, destination }.stretches(tokens.clone()).next().is_some()
    }

    /// How tokens are dealt out to the ranks of a side.
    pub(super) fn shard(&self, side: Side) -> TokenShard {
        match side {
            Side::Decode => self.share.destination,
            Side::Prefill => self.share.source,
        }
    }

    /// Walks both layouts in the order of (group name, layer, role).
    fn pair_entries(&mut self) -> Result<(), Mismatch> {
        let (source, destination) = (Arc::clone(&self.source), Arc::clone(&self.destination));
        let first_head = self.share.heads.and_then(|owed| first_head(&destination, owed.total));
        let owed = |layout: &PoolLayout, other: &PoolLayout| -> Vec<usize> {
            let all = layout.canonical().into_iter();
            all.filter(|&at| self.is_owed(layout, at) && !may_be_missing(layout, at, other)).collect()
        };
        let (ours, theirs) = (owed(&source, &destination), owed(&destination, &source));
        let (mut at_source, mut at_destination) = (ours.iter().peekable(), theirs.iter().peekable());
        loop {
            let (source_place, destination_place) = match (at_source.peek(), at_destination.peek()) {
                (None, None) => return Ok(()),
                (Some(&&place), None) => return Err(missing(&source, place, Ordering::Less)),
                (None, Some(&&place)) => return Err(missing(&destination, place, Ordering::Greater)),
                (Some(&&ours), Some(&&theirs)) => match key(&source, ours).cmp(&key(&destination, theirs)) {
                    Ordering::Equal => (ours, theirs),
                    side @ Ordering::Less => return Err(missing(&source, ours, side)),
                    side @ Ordering::Greater => return Err(missing(&destination, theirs, side)),
                },
            };
            at_source.next();
            at_destination.next();
            let (ours, theirs) = (entry_of(&source, source_place), entry_of(&destination, destination_place));
            let mut route = Route::new(ours, theirs, &self.share)?;
            let with_head = self.share.heads.map(|heads| heads.first);
            if theirs.entry.sharding == Sharding::Replicated
                && first_head.is_some()
                && first_head != with_head
            {
                continue; // owed by who holds the first head
            }
            let before = self.pairs.last().zip(self.routes.last());
            route.stacked = before
                .is_some_and(|(pair, before)| pair.source_group == ours.entry.group && route.follows(before));
            self.routes.push(route);
            self.pairs.push(Pair {
                source: number(source_place),
                destination: number(destination_place),
                source_group: ours.entry.group,
                destination_group: theirs.entry.group,
                role: ours.entry.role,
                layer: ours.entry.layer,
            });
        }
    }

    /// Whether an entry lies in the share, as far as its layer and its group tell.
    fn is_owed(&self, layout: &PoolLayout, at: usize) -> bool {
        let Described { entry, group } = entry_of(layout, at);
        let Share { layers, source, destination, .. } = &self.share;
        let layer = entry.layer.unwrap_or(self.first_layer);
        let has_first = source.holds(destination.token_at(0));
        layers.as_ref().is_none_or(|layers| layers.contains(layer))
            && (group.kind != GroupKind::Rows || has_first)
    }

    fn number_groups(&mut self) {
        let name = |pair: &Pair| self.source.groups[usize::from(pair.source_group.0)].name.as_str();
        for group in &mut self.groups {
            let own = self.source.groups[usize::from(group.source.0)].name.as_str();
            let start = self.pairs.partition_point(|pair| name(pair) < own);
            let end = self.pairs.partition_point(|pair| name(pair) <= own);
            group.pairs = number(start)..number(end);
        }
    }

    fn group(&self, source: GroupId) -> Option<&PairedGroup> {
        self.groups.iter().find(|group| group.source == source)
    }
}

impl Mismatch {
    pub(super) fn new(what: impl Into<String>, source: impl Display, destination: impl Display) -> Self {
        let (source_value, destination_value) = (source.to_string(), destination.to_string());
        Self { what: what.into(), source_value, destination_value }
    }
}

/// The first head of a side, of so many in the model.
fn first_head(layout: &PoolLayout, total: u32) -> Option<u32> {
    let spans = layout.entries.iter().filter_map(|entry| match entry.sharding {
        Sharding::Heads(HeadSpan { first, total: of, .. }) if of == total => Some(first),
        _ => None,
    });
    spans.min()
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
    let kind = |group: &PageGroup| match group.kind {
        GroupKind::Paged { .. } => "paged",
        GroupKind::Rows => "rows",
    };
    match (kind(source), kind(destination)) {
        (ours, theirs) if ours == theirs => Ok(()),
        (ours, theirs) => Err(Mismatch::new(format!("kind of group {:?}", source.name), ours, theirs)),
    }
}

/// The entry at `at` of `layout`, which is the source if `side` is `Less`, has no counterpart.
/// Whether an entry is of an optional group that the other side is without.
fn may_be_missing(layout: &PoolLayout, at: usize, other: &PoolLayout) -> bool {
    let Described { group, .. } = entry_of(layout, at);
    group.is_optional && other.groups.iter().all(|known| known.name != group.name)
}

fn missing(layout: &PoolLayout, at: usize, side: Ordering) -> Mismatch {
    let Described { entry, group } = entry_of(layout, at);
    let (here, there) = ("described", "missing");
    let (source, destination) = if side == Ordering::Less { (here, there) } else { (there, here) };
    Mismatch::new(described(&group.name, entry.role, entry.layer), source, destination)
}

fn key(layout: &PoolLayout, at: usize) -> (&str, Option<u32>, Role) {
    let Described { entry, group } = entry_of(layout, at);
    (&group.name, entry.layer, entry.role)
}

/// Entry and group exist: `check` has found them before.
fn entry_of(layout: &PoolLayout, at: usize) -> Described<'_> {
    let entry = &layout.entries[at];
    Described { entry, group: &layout.groups[usize::from(entry.group.0)] }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("a checked layout has at most MAX_ENTRIES entries")
}

#[cfg(test)]
mod tests {
    use super::super::{HeadSpan, ItemOrder, PoolEntry};
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
    fn an_optional_group_may_be_missing_on_either_side() {
        let (mut with, without) = (layout(&["kv", "draft"], 0..2), Arc::new(layout(&["kv"], 0..2)));
        let refused = Pairing::new(Arc::new(with.clone()), Arc::clone(&without)).unwrap_err();
        assert_eq!(refused.what, "key of layer 0 in group \"draft\"");
        with.make_optional(GroupId(1));
        let with = Arc::new(with);
        for (source, destination) in [(&with, &without), (&without, &with)] {
            let pairing = Pairing::new(Arc::clone(source), Arc::clone(destination)).unwrap();
            assert_eq!(pairing.pairs().len(), 4);
            assert_eq!(
                (pairing.source_group(GroupId(1)), pairing.destination_group(GroupId(1))),
                (None, None)
            );
        }
        // Where both sides have it, it is compared like any other.
        let other = Arc::new(layout(&["kv", "draft"], 0..1));
        assert!(Pairing::new(with, other).is_err());
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
        assert_mismatch(&key("bytes of a token of "), "256", "128", |l| {
            l.groups[0].kind = GroupKind::Paged { page_tokens: 32 };
        });
        assert_mismatch("kind of group \"kv\"", "paged", "rows", |l| l.groups[0].kind = GroupKind::Rows);
        assert_mismatch("bytes of a token of value of layer 3 in group \"kv\"", "256", "512", |l| {
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
