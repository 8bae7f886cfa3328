//! Random pools on two sides, their memory, and a copy token by token to compare with.

use kvferry::layout::{Extent, HeadSpan, ItemOrder, PageList, Pairing, Piece, PoolEntry, PoolLayout, Role};
use kvferry::{GroupId, RegionId};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// One buffer, as both sides describe it.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) order: ItemOrder,
    pub(crate) token_bytes: u64,
}

/// How a side lays its items out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrangement {
    /// A region for each buffer, items this many bytes apart.
    Apart(u64),
    /// One region, item `n` of every buffer side by side.
    BlockMajor,
}

/// One engine's pools and memory.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) memory: Vec<Vec<u8>>,
    pub(crate) pages: PageList,
}

/// Two pools, and the positions to move from one to the other.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) page_tokens: u32,
    pub(crate) source: Pool,
    pub(crate) destination: Pool,
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) piece: Piece,
    pub(crate) max_bytes: u64,
}

/// Worlds of paged groups (or, with pages of one position, of rows).
pub(crate) fn worlds() -> impl Strategy<Value = World> {
    let shape = (0..6_u32, prop::collection::vec(buffers(), 1..5));
    shape.prop_flat_map(|(page_tokens, buffers)| {
        let sides = (pages(), pages(), arrangements(), arrangements());
        let numbers = (any::<[u32; 4]>(), 1..200_u64);
        (Just((page_tokens, buffers)), sides, numbers).prop_map(|((page_tokens, buffers), sides, numbers)| {
            let (ours, theirs, packing, unpacking) = sides;
            let ([first, skip, start, len], max_bytes) = numbers;
            // Zero stands for a row group.
            let is_rows = page_tokens == 0;
            let page = page_tokens.max(1);
            let offset = |pages: u32| if is_rows { 0 } else { pages * page };
            let source_pages = PageList::new(offset(first % 3), ours);
            let destination_pages = PageList::new(offset(first % 3 + skip % 2), theirs);
            let common = meet(&source_pages.covers(page), &destination_pages.covers(page));
            let wholes = buffers.iter().any(|buffer| !is_cut(&buffer.order));
            let mut from = common.start + start % (common.end - common.start);
            if wholes {
                from -= from % page;
            }
            let to = from + 1 + len % (common.end - from);
            let source = pool(page_tokens, &buffers, packing, source_pages, 1);
            let destination = pool(page_tokens, &buffers, unpacking, destination_pages, 0);
            let pairing = Pairing::new(source.layout.clone(), destination.layout.clone());
            let pairing = Arc::new(pairing.expect("equal geometry"));
            let pairs = pairing.pairs_of(GroupId(0), None);
            let piece = Piece { pairs, positions: from..to };
            World { page_tokens: page, source, destination, pairing, piece, max_bytes }
        })
    })
}

/// Whether parts of a page may be moved.
pub(crate) fn is_cut(order: &ItemOrder) -> bool {
    matches!(order, ItemOrder::TokenMajor | ItemOrder::HeadMajor { .. })
}

/// The bytes of extents, one behind the other.
pub(crate) fn gather(memory: &[Vec<u8>], extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|extent| memory[at(extent)][range(extent)].iter().copied()).collect()
}

/// The opposite of `gather`.
pub(crate) fn scatter(memory: &mut [Vec<u8>], extents: &[Extent], mut bytes: &[u8]) {
    for extent in extents {
        let (own, others) = bytes.split_at(range(extent).len());
        memory[at(extent)][range(extent)].copy_from_slice(own);
        bytes = others;
    }
    assert!(bytes.is_empty());
}

/// The destination's memory after a copy of `piece` byte by byte, straight from the description.
pub(crate) fn reference(world: &World, piece: &Piece) -> Vec<Vec<u8>> {
    let mut memory = world.destination.memory.clone();
    for pair in &world.pairing.pairs()[index(piece.pairs.start)..index(piece.pairs.end)] {
        let ours = &world.source.layout.entries[index(pair.source)];
        let theirs = &world.destination.layout.entries[index(pair.destination)];
        let mut positions = piece.positions.clone();
        if !is_cut(&ours.order) {
            positions.end = positions.end.next_multiple_of(world.page_tokens);
        }
        for position in positions {
            let from = item_start(ours, &world.source.pages, position, world.page_tokens);
            let to = item_start(theirs, &world.destination.pages, position, world.page_tokens);
            for byte in bytes_of(ours, position % world.page_tokens, world.page_tokens) {
                let value = world.source.memory[index(ours.region.0)][from + byte];
                memory[index(theirs.region.0)][to + byte] = value;
            }
        }
    }
    memory
}

pub(crate) fn index(number: u32) -> usize {
    usize::try_from(number).expect("a number of this size")
}

fn size(number: u64) -> usize {
    usize::try_from(number).expect("a number of this size")
}

fn at(extent: &Extent) -> usize {
    index(extent.region.0)
}

fn range(extent: &Extent) -> Range<usize> {
    size(extent.offset)..size(extent.offset + extent.len)
}

fn meet(a: &Range<u32>, b: &Range<u32>) -> Range<u32> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn item_start(entry: &PoolEntry, list: &PageList, position: u32, page_tokens: u32) -> usize {
    let page = list.indices[index((position - list.first) / page_tokens)];
    size(entry.offset) + index(page) * size(entry.item_stride)
}

/// Places inside an item of the bytes that belong to its token `token`.
fn bytes_of(entry: &PoolEntry, token: u32, page_tokens: u32) -> Vec<usize> {
    let (item, page, token) = (size(entry.item_bytes), index(page_tokens), index(token));
    let owner: Box<dyn Fn(usize) -> usize> = match entry.order {
        ItemOrder::HeadMajor { heads } => {
            let head = item / index(heads);
            Box::new(move |byte| byte % head / (head / page))
        }
        // Any split of what is moved whole will do.
        _ => Box::new(move |byte| byte * page / item),
    };
    (0..item).filter(|&byte| owner(byte) == token).collect()
}

fn buffers() -> impl Strategy<Value = Buffer> {
    let tag = "t".to_owned();
    let orders = prop_oneof![
        3 => Just(ItemOrder::TokenMajor),
        3 => (1..4_u32).prop_map(|heads| ItemOrder::HeadMajor { heads }),
        1 => (1..4_u32, Just(tag.clone())).prop_map(|(heads, tag)| ItemOrder::HeadBlocks { heads, tag }),
        1 => Just(ItemOrder::Opaque { tag }),
    ];
    (orders, 1..5_u64).prop_map(|(order, token_bytes)| {
        let heads = match order {
            ItemOrder::HeadMajor { heads } | ItemOrder::HeadBlocks { heads, .. } => heads,
            _ => 1,
        };
        Buffer { order, token_bytes: token_bytes * u64::from(heads) }
    })
}

/// At least three pages, of which some are adjacent.
fn pages() -> impl Strategy<Value = Vec<u32>> {
    let scattered = Just((0..ITEMS).collect::<Vec<_>>()).prop_shuffle();
    let adjacent = (0..ITEMS - 4).prop_map(|first| (first..first + 4).collect());
    let mixed =
        (0..ITEMS - 6).prop_map(|first| vec![first + 4, first, first + 1, first + 2, first + 5, first + 3]);
    prop_oneof![
        (scattered, 4..index(ITEMS)).prop_map(|(mut pages, len)| {
            pages.truncate(len);
            pages
        }),
        adjacent,
        mixed,
    ]
}

fn arrangements() -> impl Strategy<Value = Arrangement> {
    prop_oneof![(0..3_u64).prop_map(Arrangement::Apart), Just(Arrangement::BlockMajor)]
}

fn pool(page_tokens: u32, buffers: &[Buffer], arrangement: Arrangement, pages: PageList, seed: u8) -> Pool {
    let mut layout = PoolLayout::new();
    let group = match page_tokens {
        0 => layout.rows("kv", ITEMS),
        _ => layout.paged("kv", page_tokens, ITEMS),
    };
    let other = layout.rows("another", ITEMS);
    let item_bytes = |buffer: &Buffer| u64::from(page_tokens.max(1)) * buffer.token_bytes;
    let block: u64 = buffers.iter().map(item_bytes).sum();
    let mut offset = 3;
    for (layer, buffer) in (0..).zip(buffers) {
        let bytes = item_bytes(buffer);
        let entry = match arrangement {
            Arrangement::Apart(gap) => {
                PoolEntry::new(group, Role::Key, RegionId(layer), bytes).offset(offset).stride(bytes + gap)
            }
            Arrangement::BlockMajor => {
                let entry = PoolEntry::new(group, Role::Key, RegionId(0), bytes).offset(offset).stride(block);
                offset += bytes;
                entry
            }
        };
        layout.push(entry.layer(layer).order(buffer.order.clone()).heads(HeadSpan::all(1)));
    }
    layout.push(PoolEntry::new(other, Role::Aux(0), RegionId(0), 1));
    let len = 3 + u64::from(ITEMS) * (block + 2);
    layout.check(|_| Some(len)).expect("entries inside their regions");
    let byte = |region: u64, at: u64| u8::try_from((at * 31 + region * 97 + 7) % 251).expect("below 256");
    let memory = (0..).take(buffers.len()).map(|region| (0..len).map(|at| byte(region, at) * seed).collect());
    Pool { memory: memory.collect(), layout: Arc::new(layout), pages }
}

/// Pages of each group.
const ITEMS: u32 = 24;
