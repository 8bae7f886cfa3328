//! Whole groups of ranks: their pools and memory, described byte by byte, and what moves between them.

use crate::world::index;
use kvferry::layout::{
    Block, Extent, HeadSpan, Holding, PageList, Pairing, Piece, Pieces, PoolEntry, PoolLayout, RankMap, Role,
    blocks,
};
use kvferry::{GroupId, GroupSizes, Rank, RegionId, Room};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How a rank lays out what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) page_tokens: u32,
    pub(crate) by_heads: bool,
    /// Keys and values of all layers side by side in one region.
    pub(crate) fused: bool,
    pub(crate) head_bytes: u64,
    /// From one page of a request to the next.
    pub(crate) page_step: u32,
}

/// One rank: its pools, its memory, and the pages of the request.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) rank: Rank,
    pub(crate) holding: Holding,
    pub(crate) shape: Shape,
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) pages: PageList,
    memory: Vec<Vec<u8>>,
    /// How often each byte was written.
    writes: Vec<Vec<u8>>,
}

/// A byte of a request, as every rank sees it.
type Name = (u32, Role, u32, u32, u64);

/// Where it lies: region and offset.
type At = (usize, usize);

impl Member {
    /// A rank with room for `tokens`; what it holds of them is rubbish.
    pub(crate) fn new(rank: Rank, holding: Holding, shape: Shape, tokens: &Range<u32>) -> Self {
        let page = shape.page_tokens;
        let held = holding.tokens.held(tokens);
        let first = held.start - held.start % page;
        let count = (held.end - first).div_ceil(page);
        // Not divisible by any step, so that no page comes twice.
        let items = (2 * count).next_multiple_of(6) + 1;
        let indices = (0..count).map(|at| (1 + at * shape.page_step) % items).collect();
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", page, items);
        for entry in entries(kv, &holding, &shape) {
            layout.push(entry);
        }
        let len =
            layout.entries.iter().map(|entry| entry.offset + u64::from(items) * entry.item_stride).max();
        let len = len.map_or(0, |len| usize::try_from(len).expect("a small pool"));
        layout.check(|_| Some(len as u64)).expect("entries inside their regions");
        let regions = layout.entries.iter().map(|entry| index(entry.region.0) + 1).max().unwrap_or(0);
        let (memory, writes) = (vec![vec![RUBBISH; len]; regions], vec![vec![0; len]; regions]);
        let (layout, pages) = (Arc::new(layout), PageList::new(first, indices));
        Self { rank, holding, shape, layout, pages, memory, writes }
    }

    /// Every byte that it holds of `tokens`, by arithmetic of its own.
    fn each(&self, tokens: &Range<u32>, mut visit: impl FnMut(Name, At)) {
        let Shape { page_tokens, by_heads, head_bytes, .. } = self.shape;
        let heads = self.holding.heads.unwrap_or(HeadSpan::all(1));
        let held = |token: &u32| {
            *token / self.holding.tokens.granule % self.holding.tokens.step == self.holding.tokens.phase
        };
        let before = u32::try_from((0..tokens.start).filter(held).count()).expect("few tokens");
        for (local, token) in (before..).zip(tokens.clone().filter(held)) {
            let page = self.pages.indices[index((local - self.pages.first) / page_tokens)];
            let slot = local % page_tokens;
            for entry in &self.layout.entries {
                for head in 0..heads.count {
                    let cell = match by_heads {
                        true => head * page_tokens + slot,
                        false => slot * heads.count + head,
                    };
                    let start =
                        entry.offset + u64::from(page) * entry.item_stride + u64::from(cell) * head_bytes;
                    for byte in 0..head_bytes {
                        let name =
                            (entry.layer.expect("a layer"), entry.role, token, heads.first + head, byte);
                        let offset = usize::try_from(start + byte).expect("a small pool");
                        visit(name, (index(entry.region.0), offset));
                    }
                }
            }
        }
    }

    /// Holds the request.
    pub(crate) fn fill(&mut self, tokens: &Range<u32>) {
        let mut bytes = Vec::new();
        self.each(tokens, |name, at| bytes.push((value(name), at)));
        bytes.into_iter().for_each(|(value, (region, offset))| self.memory[region][offset] = value);
    }

    /// Every byte of `tokens` is right and was written once, and nothing else was.
    pub(crate) fn check(&self, tokens: &Range<u32>) {
        let mut expected = 0;
        self.each(tokens, |name, (region, offset)| {
            expected += 1;
            assert_eq!(self.writes[region][offset], 1, "writes of {name:?} at {}", self.rank);
            assert_eq!(self.memory[region][offset], value(name), "{name:?} at {}", self.rank);
        });
        let written: usize = self.writes.iter().flatten().map(|&times| usize::from(times)).sum();
        assert_eq!(written, expected, "bytes written at {}", self.rank);
    }

    fn write(&mut self, block: &Block, source: &Self) {
        let bounds = |offset: u64| {
            let start = usize::try_from(offset).expect("a small pool");
            start..start + usize::try_from(block.len).expect("a small block")
        };
        let from = &source.memory[index(block.source.0)][bounds(block.source_offset)];
        let (region, to) = (index(block.destination.0), bounds(block.destination_offset));
        self.memory[region][to.clone()].copy_from_slice(from);
        self.writes[region][to].iter_mut().for_each(|times| *times += 1);
    }
}

/// All ranks of one data parallel rank.
pub(crate) fn ranks(sizes: GroupSizes) -> impl Iterator<Item = Rank> {
    (0..sizes.pp).flat_map(move |pp| {
        (0..sizes.cp).flat_map(move |cp| (0..sizes.tp).map(move |tp| Rank { dp: 0, pp, cp, tp }))
    })
}

pub(crate) fn map(sources: &[Member], destinations: &[Member]) -> RankMap {
    let holdings = |members: &[Member]| -> Vec<_> {
        members.iter().map(|member| (member.rank, member.holding.clone())).collect()
    };
    RankMap::new(&holdings(sources), &holdings(destinations)).expect("ranks that can feed each other")
}

/// Moves these tokens in one room.
pub(crate) fn transfer(
    map: &RankMap,
    room: Room,
    sources: &[Member],
    destinations: &mut [Member],
    chunks: &[Range<u32>],
    max_bytes: u64,
) {
    for destination in destinations {
        for (rank, share) in map.sources(room, destination.rank) {
            let source = sources.iter().find(|member| member.rank == rank).expect("a rank of the group");
            let Some(share) = share else { continue };
            let pairing = Pairing::of(source.layout.clone(), destination.layout.clone(), &share)
                .unwrap_or_else(|error| panic!("{rank} to {}: {error}", destination.rank));
            for positions in chunks {
                let pairs = pairing.pairs_of(GroupId(0), None);
                let rectangle = Piece { pairs, positions: positions.clone() };
                for block in planned(&pairing, rectangle, source, destination, max_bytes) {
                    destination.write(&block, source);
                }
            }
        }
    }
}

/// The blocks of a rectangle, by way of pieces of at most so many bytes.
pub(crate) fn planned(
    pairing: &Pairing,
    rectangle: Piece,
    source: &Member,
    destination: &Member,
    max_bytes: u64,
) -> Vec<Block> {
    let (mut out, mut left) = (Vec::new(), Pieces::new(rectangle));
    let (mut from, mut to) = (Vec::new(), Vec::new());
    while let Some(piece) = left.next(pairing, max_bytes) {
        from.clear();
        to.clear();
        let bytes = pairing.bytes(&piece);
        assert!(bytes > 0, "{piece:?}");
        assert_eq!(pairing.source_extents(&piece, &source.pages, &mut from), Ok(bytes), "{piece:?}");
        assert_eq!(pairing.destination_extents(&piece, &destination.pages, &mut to), Ok(bytes), "{piece:?}");
        let sum = |extents: &[Extent]| extents.iter().map(|extent| extent.len).sum::<u64>();
        assert_eq!((sum(&from), sum(&to)), (bytes, bytes), "{piece:?}");
        blocks(&from, &to, &mut out);
    }
    out
}

/// The fewest blocks that move `tokens`: a new one starts where a byte and the one before it at the
/// destination do not follow each other at the source.
pub(crate) fn fewest(tokens: &Range<u32>, source: &Member, destination: &Member) -> usize {
    let (mut from, mut moved) = (BTreeMap::new(), BTreeMap::new());
    source.each(tokens, |name, at| {
        from.insert(name, at);
    });
    destination.each(tokens, |name, at| {
        if let Some(&from) = from.get(&name) {
            moved.insert(at, from);
        }
    });
    let starts = moved.iter().filter(|((region, offset), (source_region, source_offset))| {
        let before = offset.checked_sub(1).and_then(|before| moved.get(&(*region, before)));
        before.is_none_or(|(other, before)| (other, before + 1) != (source_region, *source_offset))
    });
    starts.count()
}

fn entries(group: GroupId, holding: &Holding, shape: &Shape) -> Vec<PoolEntry> {
    let Shape { page_tokens: page, by_heads, fused, head_bytes, .. } = *shape;
    let entry = |layer: u32, region: u32, role: Role| match holding.heads {
        None => PoolEntry::new(group, role, RegionId(region), u64::from(page) * head_bytes).layer(layer),
        Some(heads) if by_heads => {
            PoolEntry::head_major(group, role, layer, RegionId(region), page, heads, head_bytes)
        }
        Some(heads) => PoolEntry::token_major(group, role, layer, RegionId(region), page, heads, head_bytes),
    };
    let layers = holding.layers.iter();
    match (holding.heads, fused) {
        (None, _) => (0..).zip(layers).map(|(region, layer)| entry(layer, region, Role::Latent)).collect(),
        (Some(_), false) => {
            let keys = (0..).zip(layers.clone()).map(|(region, layer)| entry(layer, region, Role::Key));
            let values = (0..).zip(layers).map(|(region, layer)| entry(layer, 8 + region, Role::Value));
            keys.chain(values).collect()
        }
        (Some(_), true) => match (holding.layers.iter().next(), holding.layers.iter().last()) {
            (Some(first), Some(last)) => entry(first, 0, Role::Key).block_major(first..last + 1),
            _ => Vec::new(),
        },
    }
}

fn value((layer, role, token, head, byte): Name) -> u8 {
    let role = match role {
        Role::Key => 1,
        Role::Value => 2,
        _ => 3,
    };
    let name = [u64::from(layer), role, u64::from(token), u64::from(head), byte];
    let mixed = name
        .into_iter()
        .fold(7_u64, |sum, part| (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    mixed.to_le_bytes()[5]
}

const RUBBISH: u8 = 0xdd;
