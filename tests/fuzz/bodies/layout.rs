//! Descriptions of pools, pairings of two of them, and pieces resolved against arbitrary page lists.

use super::draw::Draw;
use super::{frame, sealed};
use kvferry::layout::{
    Admission, Extent, GroupKind, HeadSpan, ItemOrder, PageList, Pairing, Piece, Pieces, PoolEntry,
    PoolLayout, Role, Share, TokenShard, blocks,
};
use kvferry::wire::{Frame, Kind};
use kvferry::{GroupId, RegionId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Draws two descriptions, alike for the most part, and moves pieces between them.
pub(crate) fn run(input: &[u8]) {
    let mut draw = Draw::new(input);
    let source = layout(&mut draw);
    let destination = variant(&mut draw, &source);
    let fits = [&source, &destination].map(|layout| {
        let shape = layout.check_shape();
        travels(layout, shape.is_ok());
        assert!(shape.is_ok() || layout.check(|_| Some(u64::MAX)).is_err());
        layout.digest();
        shape.is_ok()
    });
    let (source, destination) = (Arc::new(source), Arc::new(destination));
    let share = if draw.yes() { Share::WHOLE } else { share(&mut draw) };
    let Ok(pairing) = Pairing::of(source.clone(), destination.clone(), &share) else { return };
    assert_eq!(fits, [true; 2], "a description that cannot be right was paired");
    let pairing = Arc::new(pairing);
    while !draw.is_empty() {
        let [ours, theirs] = [&source, &destination].map(|layout| pages(&mut draw, layout));
        let piece = piece(&mut draw, &pairing);
        resolve(&pairing, &piece, &ours, &theirs);
        let tokens = draw.range();
        admit(&pairing, &destination, tokens, &piece, theirs);
        cut(&mut draw, &pairing, piece);
    }
}

/// A description comes back from its frame, unless it cannot be right.
fn travels(layout: &PoolLayout, is_possible: bool) {
    let Ok(Frame::Layout(mut whole)) = Frame::decode(&sealed(Kind::Layout as u8, &[0; 16])) else {
        panic!("no pools are pools");
    };
    whole.layout = layout.clone();
    let whole = Frame::Layout(whole);
    let again = frame::check(&whole.encode());
    assert!(again.as_ref().is_none_or(|again| *again == whole));
    assert!(again.is_some() || !is_possible, "{whole:?} does not travel");
}

fn layout(draw: &mut Draw<'_>) -> PoolLayout {
    let mut layout = PoolLayout::new();
    for _ in 0..=draw.below(4) {
        let name = draw.pick(&["kv", "swa", "state", "x", ""]);
        let items = draw.u32();
        if draw.below(4) == 0 {
            layout.rows(name, items);
        } else {
            let page_tokens = draw.u32();
            layout.paged(name, page_tokens, items);
        }
    }
    for _ in 0..draw.below(9) {
        layout.push(entry(draw, &layout));
    }
    layout
}

fn entry(draw: &mut Draw<'_>, layout: &PoolLayout) -> PoolEntry {
    let group = GroupId(u16::from(draw.below(5)));
    let number = u16::from(draw.below(3));
    let roles = [
        Role::Key,
        Role::Value,
        Role::KeyValue,
        Role::Latent,
        Role::Scale(number),
        Role::State(number),
        Role::Aux(number),
    ];
    let heads = 1 + draw.u32() % 4;
    let tokens = match layout.group_of(group).map(|group| group.kind) {
        Some(GroupKind::Paged { page_tokens }) => page_tokens.max(1),
        _ => 1,
    };
    // Right for the most part.
    let unit = u64::from(tokens).saturating_mul(heads.into());
    let item_bytes = if draw.below(8) == 0 { draw.u64() } else { unit.saturating_mul(draw.u64() % 8 + 1) };
    let mut entry = PoolEntry::new(group, draw.pick(&roles), RegionId(u32::from(draw.below(4))), item_bytes)
        .offset(draw.u64())
        .dtype(draw.pick(&["bf16", "", "fp8"]));
    if draw.yes() {
        entry = entry.stride(item_bytes.wrapping_add(draw.u64()));
    }
    if draw.below(4) > 0 {
        entry = entry.layer(draw.u32());
    }
    let tag = String::from(draw.pick(&["", "t"]));
    entry = match draw.below(6) {
        0 => entry.order(ItemOrder::HeadMajor { heads }),
        1 => entry.order(ItemOrder::HeadBlocks { heads, tag }),
        2 => entry.order(ItemOrder::Opaque { tag }),
        3 => entry.order(ItemOrder::HeadMajor { heads: draw.u32() }),
        _ => entry,
    };
    if draw.below(4) == 0 {
        entry = entry.heads(HeadSpan { first: draw.u32(), count: draw.u32(), total: draw.u32() });
    }
    entry
}

/// The same pools somewhere else, at times with a difference that matters.
fn variant(draw: &mut Draw<'_>, layout: &PoolLayout) -> PoolLayout {
    let mut other = layout.clone();
    for entry in &mut other.entries {
        match draw.below(8) {
            0 => entry.offset = draw.u64(),
            1 => entry.item_stride = entry.item_bytes.wrapping_add(draw.u64()),
            2 => entry.region = RegionId(draw.u32()),
            _ => {}
        }
    }
    convert(draw, &mut other);
    match draw.below(16) {
        0 => other.groups[0].items = draw.u32(),
        1 => other.groups.reverse(),
        2 => drop(other.entries.pop()),
        3 => other.entries.reverse(),
        4 => other.push(entry(draw, layout)),
        _ => {}
    }
    other
}

/// At times in pages of another size, and in another order.
fn convert(draw: &mut Draw<'_>, layout: &mut PoolLayout) {
    for group in 0..layout.groups.len() {
        let GroupKind::Paged { page_tokens } = layout.groups[group].kind else { continue };
        let tokens = match draw.below(4) {
            0 => page_tokens.saturating_mul(2),
            1 => 1,
            _ => continue,
        };
        layout.groups[group].kind = GroupKind::Paged { page_tokens: tokens };
        for entry in layout.entries.iter_mut().filter(|entry| usize::from(entry.group.0) == group) {
            entry.item_bytes =
                (entry.item_bytes / u64::from(page_tokens.max(1))).saturating_mul(tokens.into());
            entry.item_stride = entry.item_stride.max(entry.item_bytes);
            if matches!(entry.order, ItemOrder::HeadMajor { .. }) && draw.yes() {
                entry.order = ItemOrder::TokenMajor;
            }
        }
    }
}

fn share(draw: &mut Draw<'_>) -> Share {
    let mut share = Share::WHOLE;
    share.layers = draw.maybe(|draw| draw.list(3, Draw::u32).into_iter().collect());
    share.heads = draw.maybe(|draw| HeadSpan { first: draw.u32(), count: draw.u32(), total: draw.u32() });
    for shard in [&mut share.source, &mut share.destination] {
        *shard = match draw.below(8) {
            0 => TokenShard { granule: draw.u32(), step: draw.u32(), phase: draw.u32() },
            1 | 2 => {
                TokenShard { granule: 1 + draw.u32() % 9, step: 1 + draw.u32() % 5, phase: draw.u32() % 5 }
            }
            _ => TokenShard::WHOLE,
        };
    }
    share
}

fn pages(draw: &mut Draw<'_>, layout: &PoolLayout) -> Vec<(GroupId, PageList)> {
    let list = |draw: &mut Draw<'_>| {
        let group = GroupId(u16::from(draw.below(5)));
        let kind = layout.group_of(group).map(|group| (group.kind, group.items));
        let tokens = match kind {
            Some((GroupKind::Paged { page_tokens }, _)) => page_tokens,
            _ => 0,
        };
        let first = if draw.below(8) == 0 { draw.u32() } else { tokens.wrapping_mul(draw.below(4).into()) };
        let items = kind.map_or(1, |(_, items)| items.max(1));
        let strays = draw.below(8) == 0;
        let page = |draw: &mut Draw<'_>| if strays { draw.u32() } else { draw.u32() % items };
        (group, PageList::new(first, draw.list(12, page)))
    };
    draw.list(4, list)
}

fn piece(draw: &mut Draw<'_>, pairing: &Pairing) -> Piece {
    let pairs = match draw.below(4) {
        0 => draw.range(),
        _ => pairing.pairs_of(GroupId(u16::from(draw.below(4))), draw.maybe(Draw::range).as_ref()),
    };
    Piece { pairs, positions: draw.range() }
}

/// Both sides agree on the bytes of a piece, and its extents lie inside the entries.
fn resolve(pairing: &Pairing, piece: &Piece, ours: &[(GroupId, PageList)], theirs: &[(GroupId, PageList)]) {
    let bytes = pairing.bytes(piece);
    if bytes > LOOK_BYTES {
        return; // transports never resolve more than a write has bytes
    }
    for (_, source) in ours {
        let mut from = Vec::new();
        let Ok(gathered) = pairing.source_extents(piece, source, &mut from) else {
            assert!(from.is_empty(), "refused, and yet appended");
            continue;
        };
        assert_eq!(gathered, bytes);
        inside(&from, bytes);
        for (_, destination) in theirs {
            let mut to = Vec::new();
            if pairing.destination_extents(piece, destination, &mut to).is_ok() {
                inside(&to, bytes);
                let mut out = Vec::new();
                blocks(&from, &to, &mut out);
                assert_eq!(out.iter().map(|block| block.len).sum::<u64>(), bytes);
            }
        }
    }
}

/// Extents are these bytes in all, and end where numbers do.
fn inside(extents: &[Extent], bytes: u64) {
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), bytes);
    for extent in extents {
        assert!(extent.len > 0 && extent.offset.checked_add(extent.len).is_some(), "{extent:?}");
    }
}

/// What is admitted is what was lent, and lies inside the destination's entries.
fn admit(
    pairing: &Arc<Pairing>,
    destination: &PoolLayout,
    tokens: Range<u32>,
    piece: &Piece,
    lent: Vec<(GroupId, PageList)>,
) {
    let admission = Admission::new(pairing.clone(), tokens, lent.clone().into());
    let Ok(bytes) = admission.bytes(piece) else { return };
    if bytes > LOOK_BYTES {
        return;
    }
    let mut out = Vec::new();
    match admission.extents(piece, &mut out) {
        Err(_) => assert!(out.is_empty(), "refused, and yet appended"),
        Ok(found) => {
            assert_eq!(found, bytes);
            inside(&out, bytes);
            within_pages(pairing, &destination.entries, piece, &lent, &out);
        }
    }
}

/// Each byte of the extents belongs to a page that was lent, of an entry that the piece names.
fn within_pages(
    pairing: &Pairing,
    entries: &[PoolEntry],
    piece: &Piece,
    lent: &[(GroupId, PageList)],
    out: &[Extent],
) {
    let mut allowed: BTreeMap<RegionId, Vec<Range<u64>>> = BTreeMap::new();
    for pair in &pairing.pairs()[piece.pairs.start as usize..piece.pairs.end as usize] {
        let entry = &entries[pair.destination as usize];
        let (_, list) = lent.iter().find(|(group, _)| *group == entry.group).expect("pages of its group");
        for &page in &list.indices {
            let start = entry.offset + u64::from(page) * entry.item_stride;
            allowed.entry(entry.region).or_default().push(start..start + entry.item_bytes);
        }
    }
    for runs in allowed.values_mut() {
        runs.sort_by_key(|run| run.start);
    }
    for extent in out {
        let end = extent.offset + extent.len;
        let mut at = extent.offset;
        for run in allowed.get(&extent.region).into_iter().flatten() {
            if run.start <= at {
                at = at.max(run.end);
            }
        }
        assert!(at >= end, "{extent:?} reaches beyond what was lent: {allowed:?}");
    }
}

/// Cutting ends, covers the rectangle once and in order, and keeps to the size.
fn cut(draw: &mut Draw<'_>, pairing: &Pairing, rectangle: Piece) {
    let max_bytes = draw.u64();
    let mut pieces = Pieces::new(rectangle.clone());
    let is_dealt = !pairing.share().source.is_whole() || !pairing.share().destination.is_whole();
    let mut at = (rectangle.pairs.start, rectangle.positions.start);
    for _ in 0..64 {
        let Some(piece) = pieces.next(pairing, max_bytes) else {
            let left = Piece { pairs: at.0..rectangle.pairs.end, positions: at.1..rectangle.positions.end };
            let is_whole = left.pairs.is_empty() || left.positions.is_empty() || pairing.bytes(&left) == 0;
            assert!(is_whole, "the pieces of {rectangle:?} end at {at:?}");
            return;
        };
        let Piece { pairs, positions } = &piece;
        // Where tokens are dealt out, the rest of a pair may have none of them.
        let is_next = (pairs.start, positions.start) == at;
        assert!(is_next || is_dealt && pairs.start > at.0, "{piece:?} of {rectangle:?}");
        assert!(pairs.start < pairs.end && pairs.end <= rectangle.pairs.end);
        assert!(positions.start < positions.end && positions.end <= rectangle.positions.end);
        at = match positions.end == rectangle.positions.end {
            true => (pairs.end, rectangle.positions.start),
            false => (pairs.start, positions.end),
        };
    }
}

/// Bytes of pieces that are resolved.
const LOOK_BYTES: u64 = 1 << 14;
