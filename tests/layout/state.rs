//! Recurrent state whose rows have parts: each part is an entry of its own.

use kvferry::layout::{
    HeadSpan, Holding, ItemOrder, PageList, Pairing, Piece, PoolEntry, PoolLayout, RankMap, Role, TokenShard,
    blocks,
};
use kvferry::{GroupId, GroupSizes, Rank, RegionId, Room};
use std::sync::Arc;

/// A row of a convolution's state: for each of its steps the channels of the heads held (`x`), then those
/// that every rank has (`B` and `C`). Behind it the state space of the heads.
fn pool(heads: HeadSpan) -> (Arc<PoolLayout>, u64) {
    let (x, ssm) = (CHANNELS * u64::from(heads.count), STATE * u64::from(heads.count));
    let row = STEPS * (x + SHARED) + ssm;
    let mut layout = PoolLayout::new();
    let state = layout.rows("mamba", ROWS);
    let by_head = |bytes: u64, role: u16| {
        let order = ItemOrder::HeadBlocks { heads: heads.count, tag: "f32".into() };
        PoolEntry::new(state, Role::State(role), RegionId(0), bytes).layer(7).order(order).heads(heads)
    };
    for (step, role) in (0..STEPS).zip((0..).step_by(2)) {
        let start = step * (x + SHARED);
        layout.push(by_head(x, role).offset(start).stride(row));
        let shared = PoolEntry::new(state, Role::State(role + 1), RegionId(0), SHARED).layer(7);
        layout.push(shared.offset(start + x).stride(row));
    }
    layout.push(by_head(ssm, 100).offset(STEPS * (x + SHARED)).stride(row));
    layout.check(|_| Some(row * u64::from(ROWS))).expect("entries inside their row");
    (Arc::new(layout), row)
}

/// A row, each byte named by what it holds.
fn row(heads: HeadSpan) -> Vec<u64> {
    let held = u64::from(heads.first)..u64::from(heads.first + heads.count);
    let mut bytes = Vec::new();
    for step in 0..STEPS {
        let of_heads = held.clone().flat_map(|head| (0..CHANNELS).map(move |byte| (1 + head) << 8 | byte));
        bytes.extend(
            of_heads.chain((0..SHARED).map(|byte| 99 << 8 | byte)).map(|name| (1 + step) << 32 | name),
        );
    }
    bytes.extend(held.flat_map(|head| (0..STATE).map(move |byte| 50 << 32 | head << 8 | byte)));
    bytes
}

#[test]
fn parts_of_a_row_are_cut_by_heads_or_sent_by_one() {
    let holding = |tp, rank| {
        let mut holding = Holding::even(GroupSizes::tp(tp), Rank::tp(rank), Some(HEADS), 1);
        holding.layers = [7].into();
        holding.tokens(TokenShard::WHOLE)
    };
    for (prefill, decode) in [1, 2, 4].into_iter().flat_map(|a| [1, 2, 4, 8].map(|b| (a, b))) {
        let ranks = |tp| (0..tp).map(|rank| (Rank::tp(rank), holding(tp, rank))).collect::<Vec<_>>();
        let map = RankMap::new(&ranks(prefill), &ranks(decode)).unwrap();
        for (to, held) in ranks(decode) {
            let heads = held.heads.unwrap();
            let (theirs, stride) = pool(heads);
            let mut landed = vec![(0, 0); usize::try_from(stride * u64::from(ROWS)).unwrap()];
            for (from, share) in map.sources(Room(3), to) {
                let Some(share) = share else { continue };
                let source = holding(prefill, from.tp).heads.unwrap();
                let ((ours, from_stride), content) = (pool(source), row(source));
                let pairing = Pairing::of(ours, Arc::clone(&theirs), &share).unwrap();
                let piece = Piece { pairs: pairing.pairs_of(GroupId(0), None), positions: 0..1 };
                let (mut out, mut here, mut there) = (Vec::new(), Vec::new(), Vec::new());
                pairing.source_extents(&piece, &PageList::new(0, vec![1]), &mut here).unwrap();
                pairing.destination_extents(&piece, &PageList::new(0, vec![2]), &mut there).unwrap();
                blocks(&here, &there, &mut out);
                for byte in out.iter().flat_map(|block| (0..block.len).map(move |at| (block, at))) {
                    let (block, at) = byte;
                    let name = content[usize::try_from(block.source_offset + at - from_stride).unwrap()];
                    let cell = &mut landed[usize::try_from(block.destination_offset + at).unwrap()];
                    *cell = (name, cell.1 + 1);
                }
            }
            let start = usize::try_from(2 * stride).unwrap();
            let expected: Vec<_> = row(heads).into_iter().map(|name| (name, 1)).collect();
            assert_eq!(landed[start..start + expected.len()], expected, "{prefill} to {decode}");
            assert!(landed[..start].iter().all(|(_, times)| *times == 0));
        }
    }
}

const HEADS: u32 = 8;
const STEPS: u64 = 3;
const CHANNELS: u64 = 4;
const SHARED: u64 = 6;
const STATE: u64 = 10;
const ROWS: u32 = 3;
