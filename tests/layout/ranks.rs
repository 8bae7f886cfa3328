//! Which rank owes which what, in the cases that engines have.

use crate::group::ranks;
use kvferry::layout::{
    HeadSpan, Holding, Layers, Pairing, PoolEntry, PoolLayout, RankMap, RanksError, Role, Share, TokenShard,
};
use kvferry::{GroupSizes, Rank, RegionId, Room, Side};
use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

#[test]
fn equal_sizes_pair_each_rank_with_its_twin() {
    for heads in [Some(8), Some(2), None] {
        let sizes = GroupSizes { dp: 1, pp: 2, cp: 1, tp: 4 };
        let map = even((sizes, heads), (sizes, heads));
        for room in (0..9).map(Room) {
            for rank in ranks(sizes) {
                assert_eq!(map.sources(room, rank), [(rank, Some(Share::WHOLE))]);
                assert_eq!(map.destinations(room, rank), [rank]);
            }
        }
    }
}

#[test]
fn more_decode_ranks_share_a_prefill_rank() {
    let map = even((GroupSizes::tp(2), Some(8)), (GroupSizes::tp(8), Some(8)));
    for r in 0..8 {
        let share = Share::WHOLE.heads(span(r, 1, 8));
        assert_eq!(map.sources(Room(5), Rank::tp(r)), [(Rank::tp(r / 4), Some(share))]);
    }
    assert_eq!(map.destinations(Room(5), Rank::tp(1)), [4, 5, 6, 7].map(Rank::tp));
}

#[test]
fn more_prefill_ranks_feed_a_decode_rank_with_their_heads() {
    let map = even((GroupSizes::tp(8), Some(8)), (GroupSizes::tp(2), Some(8)));
    let owed = |p| (Rank::tp(p), Some(Share::WHOLE.heads(span(p, 1, 8))));
    assert_eq!(map.sources(Room(3), Rank::tp(1)), [4, 5, 6, 7].map(owed));
    assert_eq!(map.destinations(Room(3), Rank::tp(6)), [Rank::tp(1)]);
}

#[test]
fn sizes_that_do_not_divide_each_other_overlap() {
    let map = even((GroupSizes::tp(3), Some(6)), (GroupSizes::tp(2), Some(6)));
    let part = |p, first, count| (Rank::tp(p), Some(Share::WHOLE.heads(span(first, count, 6))));
    assert_eq!(map.sources(Room(0), Rank::tp(0)), [part(0, 0, 2), part(1, 2, 1)]);
    assert_eq!(map.sources(Room(0), Rank::tp(1)), [part(1, 3, 1), part(2, 4, 2)]);
    assert_eq!(map.destinations(Room(0), Rank::tp(1)), [0, 1].map(Rank::tp));
}

#[test]
fn of_equal_prefill_ranks_one_sends_and_the_others_hear_of_it() {
    // Latent attention: every rank holds all of it. Each decode rank chooses among its own half.
    let map = even((GroupSizes::tp(8), None), (GroupSizes::tp(2), None));
    let mut sent: BTreeMap<Rank, u32> = BTreeMap::new();
    for room in (0..80).map(Room) {
        for d in 0..2 {
            let fed = map.sources(room, Rank::tp(d));
            let own: Vec<_> = (4 * d..4 * d + 4).map(Rank::tp).collect();
            assert_eq!(fed.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), own);
            let real: Vec<_> = fed.into_iter().filter(|(_, share)| share.is_some()).collect();
            assert_eq!(real.len(), 1);
            *sent.entry(real[0].0).or_default() += 1;
        }
        for p in 0..8 {
            assert_eq!(map.destinations(room, Rank::tp(p)), [Rank::tp(p / 4)]);
        }
    }
    assert_eq!(sent, (0..8).map(|p| (Rank::tp(p), 20)).collect());
}

#[test]
fn fewer_heads_than_ranks_are_sent_by_each_holder_in_turn() {
    // Two heads on six prefill ranks, four decode ranks: three holders of a head serve two ranks each.
    let map = even((GroupSizes::tp(6), Some(2)), (GroupSizes::tp(4), Some(2)));
    let mut sent: BTreeMap<Rank, u32> = BTreeMap::new();
    for room in (0..30).map(Room) {
        for d in 0..4 {
            let fed = map.sources(room, Rank::tp(d));
            let real: Vec<_> = fed.iter().filter(|(_, share)| share.is_some()).collect();
            assert_eq!(real.len(), 1);
            assert_eq!(real[0].0.tp / 3, d / 2, "the same head");
            *sent.entry(real[0].0).or_default() += 1;
        }
    }
    assert_eq!(sent, (0..6).map(|p| (Rank::tp(p), 20)).collect());
}

#[test]
fn stages_owe_the_layers_they_have_in_common() {
    let group = |pp| GroupSizes { dp: 1, pp, cp: 1, tp: 1 };
    let pp = |pp| Rank { pp, ..Rank::default() };
    let fed = |prefill, decode, rank| {
        let map = RankMap::new(&holdings(group(prefill), Some(4), 12), &holdings(group(decode), Some(4), 12));
        map.unwrap().sources(Room(0), pp(rank))
    };
    let part = |rank, layers: Range<u32>| (pp(rank), Some(Share::WHOLE.layers(layers)));
    assert_eq!(fed(2, 1, 0), [part(0, 0..6), part(1, 6..12)]);
    assert_eq!(fed(1, 2, 1), [part(0, 6..12)]);
    assert_eq!(fed(3, 2, 0), [part(0, 0..4), part(1, 4..6)]);
    assert_eq!(fed(3, 2, 1), [part(1, 6..8), part(2, 8..12)]);
}

#[test]
fn layers_that_every_stage_holds_come_with_others_and_in_turn() {
    let group = |pp| GroupSizes { dp: 1, pp, cp: 1, tp: 1 };
    let pp = |pp| Rank { pp, ..Rank::default() };
    // Layers 6 and 7 are those of a draft model, which every stage has.
    let with_draft = |pps| -> Vec<_> {
        let add = |(rank, mut holding): (Rank, Holding)| {
            holding.layers = holding.layers.iter().chain([6, 7]).collect();
            (rank, holding)
        };
        holdings(group(pps), None, 6).into_iter().map(add).collect()
    };
    let map = RankMap::new(&with_draft(2), &with_draft(1)).unwrap();
    let owed = |room, source| map.owes(Room(room), pp(source), pp(0)).unwrap();
    for room in [0, 2] {
        assert_eq!(owed(room, 0), Share::WHOLE.layers([0, 1, 2, 6, 7]));
        assert_eq!(owed(room, 1), Share::WHOLE.layers(3..6));
        assert_eq!(owed(room + 1, 0), Share::WHOLE.layers(0..3));
        assert_eq!(owed(room + 1, 1), Share::WHOLE.layers([3, 4, 5, 6, 7]));
    }
    // Who gets nothing else of the other stage does not get the draft from it either.
    let map = RankMap::new(&with_draft(2), &with_draft(2)).unwrap();
    for (room, rank) in (0..4).flat_map(|room| [0, 1].map(|rank| (Room(room), pp(rank)))) {
        assert_eq!(map.sources(room, rank), [(rank, Some(Share::WHOLE))]);
    }
    // A decode rank that has the draft only gets it from either, and the other stage hears of the room.
    let mut draft = with_draft(1);
    draft[0].1.layers = (6..8).into();
    let map = RankMap::new(&with_draft(2), &draft).unwrap();
    for room in 0..4_u64 {
        let turn = u32::try_from(room % 2).unwrap();
        let part = |at| (pp(at), (at == turn).then_some(Share::WHOLE.layers(6..8)));
        assert_eq!(map.sources(Room(room), pp(0)), [0, 1].map(part));
    }
}

#[test]
fn layers_may_be_dealt_out_to_ranks() {
    let cp = |cp| Rank { cp, ..Rank::default() };
    let sources: Vec<_> = (0..3)
        .map(|at| {
            let mut holding = holdings(GroupSizes::ONE, None, 1).remove(0).1;
            holding.layers = (0..8).filter(|layer| layer % 3 == at).collect();
            (cp(at), holding)
        })
        .collect();
    let map = RankMap::new(&sources, &holdings(GroupSizes::ONE, None, 8)).unwrap();
    let owed = map.sources(Room(9), Rank::default());
    let part = |at, layers: &[u32]| {
        let layers: Layers = layers.iter().copied().collect();
        (cp(at), Some(Share::WHOLE.layers(layers)))
    };
    assert_eq!(owed, [part(0, &[0, 3, 6]), part(1, &[1, 4, 7]), part(2, &[2, 5])]);
}

#[test]
fn a_stage_without_layers_is_joined_and_joins() {
    let group = |pp| GroupSizes { dp: 1, pp, cp: 1, tp: 2 };
    let stage = |pp, tp| Rank { pp, tp, ..Rank::default() };
    // The middle stage of three has no layers with KV; so has the second of the decode side.
    let cut = |pps, layers: &'static [&'static [u32]]| -> Vec<_> {
        let set = |(rank, mut holding): (Rank, Holding)| {
            holding.layers = layers[usize::try_from(rank.pp).unwrap()].iter().copied().collect();
            (rank, holding)
        };
        holdings(group(pps), Some(2), 1).into_iter().map(set).collect()
    };
    let map = RankMap::new(&cut(3, &[&[0, 4], &[], &[9]]), &cut(2, &[&[0, 4, 9], &[]])).unwrap();
    let own = map.sources(Room(0), stage(0, 1));
    assert_eq!(
        own,
        [
            (stage(0, 1), Some(Share::WHOLE.layers([0, 4]))),
            (stage(1, 0), None),
            (stage(2, 1), Some(Share::WHOLE.layers(9..10)))
        ]
    );
    let lonely = map.sources(Room(0), stage(1, 0));
    assert!(!lonely.is_empty() && lonely.iter().all(|(_, share)| share.is_none()), "{lonely:?}");
}

#[test]
fn context_parallel_ranks_share_out_pages_or_take_turns() {
    let prefill = GroupSizes { dp: 1, pp: 1, cp: 2, tp: 1 };
    let cp = |cp| Rank { cp, ..Rank::default() };
    let whole = even((prefill, Some(4)), (GroupSizes::ONE, Some(4)));
    for room in 0..4_u64 {
        let turn = u32::try_from(room % 2).unwrap();
        let expected = [0, 1].map(|at| (cp(at), (at == turn).then_some(Share::WHOLE)));
        assert_eq!(whole.sources(Room(room), Rank::default()), expected);
    }
    let pages = |rank: Rank| TokenShard { granule: 16, step: 2, phase: rank.cp };
    let dealt: Vec<_> =
        holdings(prefill, Some(4), 2).into_iter().map(|(rank, h)| (rank, h.tokens(pages(rank)))).collect();
    let map = RankMap::new(&dealt, &holdings(GroupSizes::ONE, Some(4), 2)).unwrap();
    let owed = [0, 1].map(|at| (cp(at), Some(Share::WHOLE.tokens(pages(cp(at)), TokenShard::WHOLE))));
    assert_eq!(map.sources(Room(7), Rank::default()), owed);
}

#[test]
fn decode_context_parallel_ranks_get_every_nth_token() {
    let token = |tp| TokenShard { granule: 1, step: 4, phase: tp };
    let dealt: Vec<_> = (0..4)
        .map(|tp| (Rank::tp(tp), Holding::even(GroupSizes::tp(4), Rank::tp(tp), None, 2).tokens(token(tp))))
        .collect();
    let map = RankMap::new(&holdings(GroupSizes::tp(4), None, 2), &dealt).unwrap();
    for tp in 0..4 {
        let share = Share::WHOLE.tokens(TokenShard::WHOLE, token(tp));
        assert_eq!(map.sources(Room(3), Rank::tp(tp)), [(Rank::tp(tp), Some(share))]);
    }
}

#[test]
fn ranks_that_cannot_feed_each_other_are_errors() {
    let (one, tp) = (GroupSizes::ONE, Rank::tp);
    let held = |heads: HeadSpan, layers: &[u32], tokens| {
        let mut holding = Holding::even(one, Rank::default(), Some(1), 1).tokens(tokens);
        (holding.heads, holding.layers) = (Some(heads), layers.iter().copied().collect());
        holding
    };
    let all = || held(HeadSpan::all(4), &[0, 1, 2], TokenShard::WHOLE);
    let error = |sources: &[Holding], destinations: &[Holding]| {
        let numbered = |holdings: &[Holding]| (0..).map(tp).zip(holdings.iter().cloned()).collect::<Vec<_>>();
        RankMap::new(&numbered(sources), &numbered(destinations)).unwrap_err()
    };
    assert_eq!(error(&[], &[all()]), RanksError::Empty(Side::Prefill));
    assert_eq!(error(&[all()], &[]), RanksError::Empty(Side::Decode));
    let half = held(span(0, 2, 4), &[0, 1, 2], TokenShard::WHOLE);
    assert_eq!(error(slice::from_ref(&half), &[half.clone(), all()]), RanksError::Missing(tp(1)));
    assert_eq!(error(&[half, all()], &[all()]), RanksError::Overlap(tp(0), tp(1)));
    let fewer = held(HeadSpan::all(4), &[0, 2], TokenShard::WHOLE);
    assert_eq!(error(slice::from_ref(&fewer), &[all()]), RanksError::Missing(tp(0)));
    let odd = held(HeadSpan::all(4), &[0, 1, 2], TokenShard { granule: 2, step: 2, phase: 1 });
    assert_eq!(error(&[odd], &[all()]), RanksError::Missing(tp(0)));
    let other = held(HeadSpan::all(8), &[0, 1, 2], TokenShard::WHOLE);
    let heads = RanksError::Heads { source_rank: tp(0), destination: tp(0) };
    assert_eq!(error(&[other], &[all()]), heads);
    let none = held(span(4, 1, 4), &[0], TokenShard::WHOLE);
    assert_eq!(error(&[all()], &[none]), RanksError::Impossible { rank: tp(0), what: "heads" });
    let shard = held(HeadSpan::all(4), &[0], TokenShard { granule: 0, step: 1, phase: 0 });
    assert_eq!(error(&[all()], &[shard]), RanksError::Impossible { rank: tp(0), what: "tokens" });
}

#[test]
fn what_a_share_does_not_cut_is_owed_by_one_source() {
    let pool = |holding: &Holding| {
        let mut layout = PoolLayout::new();
        let (kv, aux) = (layout.paged("kv", 4, 8), layout.rows("aux", 8));
        for layer in holding.layers.iter() {
            let heads = holding.heads.unwrap();
            layout.push(PoolEntry::token_major(kv, Role::Key, layer, RegionId(0), 4, heads, 2));
            layout.push(PoolEntry::new(kv, Role::Scale(0), RegionId(1), 8).layer(layer));
        }
        layout.push(PoolEntry::new(aux, Role::Aux(0), RegionId(2), 8));
        Arc::new(layout)
    };
    let group = |pp, cp, tp| {
        let sizes = GroupSizes { dp: 1, pp, cp, tp };
        let dealt = |rank: Rank| TokenShard { granule: 2, step: cp, phase: rank.cp };
        let holding = |rank| Holding::even(sizes, rank, Some(4), 4).tokens(dealt(rank));
        ranks(sizes).map(|rank| (rank, holding(rank))).collect::<Vec<_>>()
    };
    let sizes = [(1, 1, 1), (1, 1, 4), (2, 1, 2), (4, 1, 1), (1, 2, 2), (1, 3, 1)];
    for (prefill, decode) in sizes.into_iter().flat_map(|a| sizes.map(|b| (a, b))) {
        let (sources, destinations) =
            (group(prefill.0, prefill.1, prefill.2), group(decode.0, decode.1, decode.2));
        let map = RankMap::new(&sources, &destinations).unwrap();
        let holdings: BTreeMap<_, _> = sources.into_iter().collect();
        for (rank, held) in destinations {
            let mut owed: BTreeMap<(Option<u32>, Role), Vec<TokenShard>> = BTreeMap::new();
            for (source, share) in map.sources(Room(1), rank) {
                let Some(share) = share else { continue };
                let pairing = Pairing::of(pool(&holdings[&source]), pool(&held), &share).unwrap();
                for pair in pairing.pairs().iter().filter(|pair| pair.role != Role::Key) {
                    owed.entry((pair.layer, pair.role)).or_default().push(share.source);
                }
            }
            // Rows once; what has tokens once for each part of them.
            for ((layer, role), mut shards) in owed.clone() {
                let parts = shards.len();
                shards.sort_unstable();
                shards.dedup();
                assert_eq!(shards.len(), parts, "{role} of {layer:?}: {prefill:?} to {decode:?}");
                assert!(layer.is_some() || parts == 1, "{prefill:?} to {decode:?}");
            }
            assert_eq!(owed.len() as u64, held.layers.count() + 1, "{prefill:?} to {decode:?}");
        }
    }
}

fn even((prefill, heads): (GroupSizes, Option<u32>), (decode, wanted): (GroupSizes, Option<u32>)) -> RankMap {
    RankMap::new(&holdings(prefill, heads, 4), &holdings(decode, wanted, 4)).expect("ranks that fit")
}

fn holdings(sizes: GroupSizes, heads: Option<u32>, layers: u32) -> Vec<(Rank, Holding)> {
    ranks(sizes).map(|rank| (rank, Holding::even(sizes, rank, heads, layers))).collect()
}

fn span(first: u32, count: u32, total: u32) -> HeadSpan {
    HeadSpan { first, count, total }
}
