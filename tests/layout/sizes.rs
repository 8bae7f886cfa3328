//! Large pools: how much is done, and where it lies.

use kvferry::layout::{
    Extent, HeadSpan, ItemOrder, PageList, Pairing, Piece, Pieces, PlanError, PoolEntry, PoolLayout, Role,
    Share, blocks,
};
use kvferry::{GroupId, RegionId};
use std::sync::Arc;

#[test]
fn a_large_request_takes_as_many_pieces_and_extents_as_it_must() {
    let pairing = model();
    // Every second page: nothing can be joined.
    let pages = PageList::new(0, (0..PAGES).map(|page| page * 2).collect());
    let page_bytes = 16 * 8 * 256;
    let per_piece = 512 * 1024 / page_bytes;
    let mut left = Pieces::new(Piece { pairs: 0..128, positions: 0..PAGES * 16 });
    let (mut pieces, mut extents, mut out) = (0, 0, Vec::new());
    while let Some(piece) = left.next(&pairing, 512 * 1024) {
        out.clear();
        pairing.source_extents(&piece, &pages, &mut out).unwrap();
        assert!(u64::try_from(out.len()).unwrap() <= per_piece);
        pieces += 1;
        extents += out.len();
    }
    assert_eq!(pieces, 128 * u64::from(PAGES).div_ceil(per_piece));
    assert_eq!(extents, 128 * 15_000);
}

#[test]
fn a_piece_looks_at_its_own_pages_only() {
    let pairing = model();
    let mut pages = PageList::new(0, vec![u32::MAX; 15_000]);
    pages.indices[9_000] = 17;
    let piece = Piece { pairs: 4..5, positions: 9_000 * 16..9_001 * 16 };
    let mut out = Vec::new();
    pairing.source_extents(&piece, &pages, &mut out).unwrap();
    assert_eq!(out, [Extent { region: RegionId(4), offset: 17 * 32_768, len: 32_768 }]);
}

#[test]
fn adjacent_pages_are_one_extent_an_entry() {
    let pairing = model();
    let pages = PageList::new(0, (500..500 + PAGES).collect());
    let piece = Piece { pairs: 0..128, positions: 0..PAGES * 16 };
    let mut out = Vec::new();
    let bytes = pairing.destination_extents(&piece, &pages, &mut out).unwrap();
    assert_eq!(bytes, 128 * 15_000 * 32_768);
    assert_eq!(out.len(), 128);
    assert!(out.iter().all(|extent| extent.offset == 500 * 32_768 && extent.len == 15_000 * 32_768));
}

#[test]
fn extents_of_one_call_are_not_joined_to_those_before() {
    let pairing = model();
    let pages = PageList::new(0, vec![0, 1]);
    let mut out = Vec::new();
    for positions in [0..16, 16..32] {
        pairing.source_extents(&Piece { pairs: 0..1, positions }, &pages, &mut out).unwrap();
    }
    assert_eq!(out.len(), 2);
}

#[test]
fn block_major_pages_beyond_4_gib_are_found() {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, 4096);
    let template = PoolEntry::head_major(kv, Role::KeyValue, 0, RegionId(0), 16, HeadSpan::all(8), 256);
    layout.extend(template.block_major(0..64));
    layout.check(|_| Some(4096 * 128 * 32_768)).unwrap();
    let layout = Arc::new(layout);
    let pairing = Pairing::new(layout.clone(), layout).unwrap();
    let block = 128 * 32_768;
    let mut out = Vec::new();

    // Keys and values of a layer are neighbours in a block, and pair by pair after one another.
    let pages = PageList::new(0, vec![4095]);
    let piece = Piece { pairs: 0..128, positions: 0..16 };
    pairing.source_extents(&piece, &pages, &mut out).unwrap();
    assert_eq!(out, [Extent { region: RegionId(0), offset: 4095 * block, len: block }]);

    // Tokens 3..5 of each head of the values of layer 1.
    out.clear();
    pairing.source_extents(&Piece { pairs: 3..4, positions: 3..5 }, &pages, &mut out).unwrap();
    let rows = (0..8).map(|head| Extent {
        region: RegionId(0),
        offset: 4095 * block + 3 * 32_768 + head * 16 * 256 + 3 * 256,
        len: 2 * 256,
    });
    assert_eq!(out, rows.collect::<Vec<_>>());
}

#[test]
fn what_is_moved_whole_starts_at_its_own_start() {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, 100);
    let order = ItemOrder::Opaque { tag: "d/8,t,8".into() };
    layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), 1000).layer(0).order(order));
    let layout = Arc::new(layout);
    let pairing = Pairing::new(layout.clone(), layout).unwrap();
    let mut out = Vec::new();
    let mut extents = |first, positions| {
        let piece = Piece { pairs: 0..1, positions };
        pairing.source_extents(&piece, &PageList::new(first, vec![7, 9]), &mut out)
    };
    assert_eq!(extents(0, 15..20), Err(PlanError::Unit { at: 15, unit: 16 }));
    assert_eq!(extents(8, 8..16), Err(PlanError::Unit { at: 8, unit: 16 }));
    assert_eq!(extents(16, 16..33), Ok(2000));
    assert_eq!(extents(16, 32..33), Ok(1000));
    let at = |page: u64| Extent { region: RegionId(0), offset: page * 1000, len: 1000 };
    assert_eq!(out, [at(7), at(9), at(9)]);
}

#[test]
fn the_last_byte_of_64_bits_is_reached_and_not_passed() {
    let with_offset = |offset| {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", 1, u32::MAX);
        layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), 8).stride(1 << 31).layer(0).offset(offset));
        Arc::new(layout)
    };
    let end = (u64::from(u32::MAX) - 1) * (1 << 31) + 8;
    let layout = with_offset(u64::MAX - end);
    let pairing = Pairing::new(layout.clone(), layout.clone()).unwrap();
    let mut out = Vec::new();
    let piece = Piece { pairs: 0..1, positions: u32::MAX - 1..u32::MAX };
    pairing.source_extents(&piece, &PageList::new(u32::MAX - 1, vec![u32::MAX - 1]), &mut out).unwrap();
    assert_eq!(out, [Extent { region: RegionId(0), offset: u64::MAX - 8, len: 8 }]);
    assert!(Pairing::new(layout, with_offset(u64::MAX - end + 1)).is_err());
}

#[test]
fn the_example_in_docs_layouts_is_true() {
    let pool = |page_tokens, first, count, by_heads| {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", page_tokens, 8);
        let heads = HeadSpan { first, count, total: 4 };
        let entry = if by_heads { PoolEntry::head_major } else { PoolEntry::token_major };
        layout.push(entry(kv, Role::Key, 0, RegionId(0), page_tokens, heads, 1));
        Arc::new(layout)
    };
    let share = Share::WHOLE.heads(HeadSpan { first: 2, count: 2, total: 4 });
    let pairing = Pairing::of(pool(4, 2, 2, false), pool(2, 0, 4, true), &share).unwrap();
    let piece = Piece { pairs: 0..1, positions: 0..3 };
    let (mut from, mut to, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(pairing.source_extents(&piece, &PageList::new(0, vec![5]), &mut from), Ok(6));
    assert_eq!(pairing.destination_extents(&piece, &PageList::new(0, vec![3, 0]), &mut to), Ok(6));
    blocks(&from, &to, &mut moved);
    let plain = |extents: &[Extent]| extents.iter().map(|e| (e.offset, e.len)).collect::<Vec<_>>();
    assert_eq!(plain(&from), [(40, 1), (42, 1), (41, 1), (43, 3)]);
    assert_eq!(plain(&to), [(28, 4), (4, 1), (6, 1)]);
    let moved: Vec<_> = moved.iter().map(|b| (b.source_offset, b.destination_offset, b.len)).collect();
    assert_eq!(moved, [(40, 28, 1), (42, 29, 1), (41, 30, 1), (43, 31, 1), (44, 4, 1), (45, 6, 1)]);
}

#[test]
fn block_major_pages_are_one_block_each_whatever_their_layers() {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, 4096);
    let template = PoolEntry::token_major(kv, Role::KeyValue, 0, RegionId(0), 16, HeadSpan::all(8), 256);
    layout.extend(template.block_major(0..64));
    let layout = Arc::new(layout);
    let pairing = Pairing::new(layout.clone(), layout).unwrap();
    let pages = PageList::new(0, (0..40).map(|page| page * 2).collect());
    let count = |max_bytes| {
        let mut left = Pieces::new(Piece { pairs: 0..128, positions: 0..40 * 16 });
        let (mut pieces, mut extents) = (0, Vec::new());
        while let Some(piece) = left.next(&pairing, max_bytes) {
            assert!(pairing.bytes(&piece) <= max_bytes);
            pairing.source_extents(&piece, &pages, &mut extents).unwrap();
            pieces += 1;
        }
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 40 * 128 * 32_768);
        (pieces, extents.len())
    };
    assert_eq!(count(u64::MAX), (1, 40));
    assert_eq!(count(512 * 1024), (8 * 40, 8 * 40));
}

/// 64 layers of keys and values, each in a region of its own, of 40,000 pages of 16 tokens.
fn model() -> Pairing {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, 40_000);
    for layer in 0..64 {
        for (role, region) in [(Role::Key, 2 * layer), (Role::Value, 2 * layer + 1)] {
            layout.push(PoolEntry::token_major(kv, role, layer, RegionId(region), 16, HeadSpan::all(8), 256));
        }
    }
    let layout = Arc::new(layout);
    let pairing = Pairing::new(layout.clone(), layout).expect("a layout pairs with itself");
    assert_eq!(pairing.pairs_of(GroupId(0), None), 0..128);
    pairing
}

const PAGES: u32 = 15_000;
