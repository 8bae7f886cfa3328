//! How long it takes to plan: a request is cut into pieces, these are turned into extents of both sides,
//! and those into blocks, in batches of one piece.
//!
//! `cargo bench --bench plan`; the processor times are for so many blocks as the name says.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvferry::layout::{
    Block, Extent, HeadSpan, PageList, Pairing, Piece, Pieces, PoolEntry, PoolLayout, Role, Share,
    TokenShard, blocks,
};
use kvferry::{GroupId, RegionId};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// How one side lays its pages out.
#[derive(Clone, Copy)]
struct Pool {
    page_tokens: u32,
    heads: HeadSpan,
    by_heads: bool,
    /// Keys and values of all layers side by side in one block.
    fused: bool,
}

/// A request between two pools, and the buffers of its planner.
struct Request {
    pairing: Pairing,
    tokens: u32,
    source: PageList,
    destination: PageList,
    from: Vec<Extent>,
    to: Vec<Extent>,
    out: Vec<Block>,
}

impl Request {
    fn new(layers: u32, tokens: u32, source: Pool, destination: Pool, share: &Share) -> Self {
        let list = |pool: Pool, shard: TokenShard| {
            let pages = shard.held_before(tokens).div_ceil(pool.page_tokens);
            // Every second page: no two can be joined.
            PageList::new(0, (0..pages).map(|page| page * 2).collect())
        };
        let (ours, theirs) = (source.layout(layers, tokens), destination.layout(layers, tokens));
        Self {
            pairing: Pairing::of(ours, theirs, share).expect("pools that fit"),
            tokens,
            source: list(source, share.source),
            destination: list(destination, share.destination),
            from: Vec::new(),
            to: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Plans all of it; answers the number of blocks.
    fn plan(&mut self) -> usize {
        let pairs = self.pairing.pairs_of(GroupId(0), None);
        let mut left = Pieces::new(Piece { pairs, positions: 0..self.tokens });
        let mut count = 0;
        while let Some(piece) = left.next(&self.pairing, PIECE_BYTES) {
            self.from.clear();
            self.to.clear();
            self.out.clear();
            self.pairing.source_extents(&piece, &self.source, &mut self.from).expect("pages of the source");
            let there = self.pairing.destination_extents(&piece, &self.destination, &mut self.to);
            there.expect("pages of the destination");
            blocks(&self.from, &self.to, &mut self.out);
            count += black_box(&self.out).len();
        }
        count
    }
}

impl Pool {
    fn layout(self, layers: u32, tokens: u32) -> Arc<PoolLayout> {
        let Self { page_tokens: page, heads, by_heads, fused } = self;
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", page, 2 * tokens.div_ceil(page));
        let entry = |role, layer, region| match by_heads {
            true => PoolEntry::head_major(kv, role, layer, RegionId(region), page, heads, HEAD_BYTES),
            false => PoolEntry::token_major(kv, role, layer, RegionId(region), page, heads, HEAD_BYTES),
        };
        if fused {
            layout.extend(entry(Role::Key, 0, 0).block_major(0..layers));
        } else {
            for layer in 0..layers {
                layout.push(entry(Role::Key, layer, 2 * layer));
                layout.push(entry(Role::Value, layer, 2 * layer + 1));
            }
        }
        Arc::new(layout)
    }
}

fn plan(c: &mut Criterion) {
    let pool = |page_tokens, heads, by_heads| Pool { page_tokens, heads, by_heads, fused: false };
    let (all, half) = (HeadSpan::all(8), HeadSpan { first: 4, count: 4, total: 8 });
    let (plain, whole) = (pool(16, all, false), Share::WHOLE);
    let token = TokenShard { granule: 1, step: 4, phase: 1 };
    let dealt = Share::WHOLE.tokens(TokenShard::WHOLE, token);
    let fused = Pool { fused: true, ..plain };
    let cases = [
        ("pages", 56, 16_000, plain, plain, &whole),
        ("pages", 64, 125_008, plain, plain, &whole),
        ("head slices", 56, 1_000, plain, pool(16, half, false), &Share::WHOLE.heads(half)),
        ("head slices", 64, 7_824, plain, pool(16, half, false), &Share::WHOLE.heads(half)),
        (
            "head-major slices",
            64,
            125_008,
            pool(16, all, true),
            pool(16, half, true),
            &Share::WHOLE.heads(half),
        ),
        ("token-major to head-major", 64, 976, plain, pool(16, all, true), &whole),
        ("head-major to token-major", 64, 976, pool(16, all, true), plain, &whole),
        ("pages of 64 to 16", 64, 125_056, pool(64, all, false), plain, &whole),
        ("head-major pages of 64 to 16", 64, 15_616, pool(64, all, true), pool(16, all, true), &whole),
        ("every fourth token", 64, 31_248, plain, plain, &dealt),
        ("block-major", 64, 125_008, fused, fused, &whole),
    ];
    let mut group = c.benchmark_group("plan");
    for (name, layers, tokens, source, destination, share) in cases {
        let mut request = Request::new(layers, tokens, source, destination, share);
        let count = request.plan();
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new(name, count), |b| {
            b.iter_custom(|times| {
                let start = processor_time();
                (0..times).for_each(|_| assert_eq!(request.plan(), count));
                processor_time() - start
            });
        });
    }
    group.finish();
}

/// Time that this thread has run: what else runs on the machine does not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().expect("past"), time.tv_nsec.try_into().expect("past"))
}

/// Of one head of one token: 128 of two bytes.
const HEAD_BYTES: u64 = 256;
const PIECE_BYTES: u64 = 512 * 1024;

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = plan
}
criterion_main!(benches);
