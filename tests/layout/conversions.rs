//! Every way from one arrangement of ranks, pages and heads to another, byte by byte.

use crate::group::{Member, Shape, map, ranks, transfer};
use kvferry::layout::{Holding, TokenShard};
use kvferry::{GroupSizes, Rank, Room};
use std::ops::Range;

#[test]
fn any_heads_reach_any_ranks() {
    for (prefill, decode) in pairs([1, 2, 4, 8]) {
        for heads in [1, 2, 4, 8] {
            for (ours, theirs) in pairs([false, true]) {
                run(&Case { heads: Some(heads), prefill, decode, ours, theirs, ..CASE });
            }
        }
        run(&Case { heads: None, prefill, decode, ..CASE });
    }
}

#[test]
fn any_stages_reach_any_stages() {
    for (prefill_pp, decode_pp) in pairs([1, 2]) {
        for (prefill, decode) in pairs([1, 2, 4, 8]) {
            for heads in [Some(1), Some(2), Some(4), Some(8), None] {
                run(&Case { heads, prefill, decode, prefill_pp, decode_pp, ..CASE });
            }
        }
    }
}

#[test]
fn any_pages_fill_any_pages() {
    for destination_page in [1, 2, 4, 8, 16] {
        for (ours, theirs) in pairs([false, true]) {
            for (prefill, decode) in pairs([1, 2, 4, 8]) {
                for heads in [Some(1), Some(2), Some(4), Some(8), None] {
                    if heads.is_some() || !(ours || theirs) {
                        run(&Case { heads, prefill, decode, destination_page, ours, theirs, ..CASE });
                    }
                }
            }
        }
    }
}

#[test]
fn all_of_it_at_once() {
    let mut number = 0;
    for (prefill_pp, decode_pp) in pairs([1, 2]) {
        for destination_page in [1, 2, 4, 8, 16] {
            for (ours, theirs) in pairs([false, true]) {
                for (prefill, decode) in pairs([1, 2, 4, 8]) {
                    for heads in [Some(1), Some(2), Some(4), Some(8), None] {
                        if heads.is_none() && (ours || theirs) {
                            continue;
                        }
                        number += 1;
                        let fused = number % 3 == 0;
                        let max_bytes = 7 + number % 300;
                        let pp = (prefill_pp, decode_pp);
                        let case =
                            Case { heads, prefill, decode, destination_page, ours, theirs, fused, ..CASE };
                        run(&Case { prefill_pp: pp.0, decode_pp: pp.1, max_bytes, room: number, ..case });
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_that_do_not_divide_each_other_work() {
    for (prefill, decode, heads) in [(3, 2, 6), (2, 3, 6), (3, 5, 15), (3, 2, 8), (5, 3, 4), (3, 7, 2)] {
        for (ours, theirs) in pairs([false, true]) {
            run(&Case { heads: Some(heads), prefill, decode, ours, theirs, ..CASE });
        }
        run(&Case { heads: None, prefill, decode, destination_page: 3, ..CASE });
    }
}

#[test]
fn dealt_out_tokens_reach_their_ranks() {
    // Pages dealt out over prefill ranks, tokens over decode ranks, or a request cut into runs.
    let shards: [fn(u32, u32) -> TokenShard; 3] = [
        |step, phase| TokenShard { granule: 4, step, phase },
        |step, phase| TokenShard { granule: 1, step, phase },
        |step, phase| TokenShard::run(TOKENS.end, 4, step, phase),
    ];
    for (source, destination) in pairs([0, 1, 2]) {
        for (prefill, decode) in pairs([1, 2, 3, 4]) {
            for destination_page in [1, 4, 8] {
                for (ours, theirs) in pairs([false, true]) {
                    let sizes = [prefill, decode].map(|cp| GroupSizes { dp: 1, pp: 1, cp, tp: 2 });
                    let case = Case { heads: Some(2), destination_page, ours, theirs, ..CASE };
                    let [sources, destinations] =
                        [(0, shards[source]), (1, shards[destination])].map(|(side, shard)| {
                            let sizes = sizes[side];
                            members(&case, side, sizes, |rank, held| held.tokens(shard(sizes.cp, rank.cp)))
                        });
                    check(&case, sources, destinations);
                }
            }
        }
    }
}

#[test]
fn layers_dealt_out_to_stages_and_those_of_a_draft_on_every_stage_are_written_once() {
    let layers: [fn(u32, u32) -> Vec<u32>; 3] = [
        |_, _| (0..7).collect(),
        |stages, stage| (0..5).filter(|layer| layer % stages == stage).chain([5, 6]).collect(),
        |stages, stage| (0..5).filter(|layer| layer * stages / 5 == stage).chain([5, 6]).collect(),
    ];
    for (source, destination) in pairs([0, 1, 2]) {
        for (prefill_pp, decode_pp) in pairs([1, 2, 3]) {
            for (prefill, decode) in pairs([1, 2]) {
                for room in 0..4 {
                    let case = Case { heads: Some(2), room, ..CASE };
                    let sizes = [(prefill_pp, prefill), (decode_pp, decode)];
                    let [sources, destinations] =
                        [(0, layers[source]), (1, layers[destination])].map(|(side, layers)| {
                            let (pp, tp) = sizes[side];
                            members(&case, side, GroupSizes { dp: 1, pp, cp: 1, tp }, |rank, mut held| {
                                held.layers = layers(pp, rank.pp).into_iter().collect();
                                held
                            })
                        });
                    check(&case, sources, destinations);
                }
            }
        }
    }
}

/// One arrangement of both sides.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Option<u32>,
    prefill: u32,
    decode: u32,
    prefill_pp: u32,
    decode_pp: u32,
    destination_page: u32,
    /// Head-major.
    ours: bool,
    theirs: bool,
    fused: bool,
    max_bytes: u64,
    room: u64,
}

const CASE: Case = Case {
    heads: None,
    prefill: 1,
    decode: 1,
    prefill_pp: 1,
    decode_pp: 1,
    destination_page: 4,
    ours: false,
    theirs: false,
    fused: false,
    max_bytes: 64,
    room: 0,
};

/// Held from the start by the destination are the tokens before; the last page is partly filled.
const TOKENS: Range<u32> = 5..19;
const LAYERS: u32 = 2;

fn run(case: &Case) {
    let sizes = |pp, tp| GroupSizes { dp: 1, pp, cp: 1, tp };
    let sources = members(case, 0, sizes(case.prefill_pp, case.prefill), |_, held| held);
    let destinations = members(case, 1, sizes(case.decode_pp, case.decode), |_, held| held);
    check(case, sources, destinations);
}

fn members(
    case: &Case,
    side: usize,
    sizes: GroupSizes,
    hold: impl Fn(Rank, Holding) -> Holding,
) -> Vec<Member> {
    let shape = |rank: Rank| Shape {
        page_tokens: [4, case.destination_page][side],
        by_heads: [case.ours, case.theirs][side],
        fused: case.fused,
        head_bytes: 2,
        page_step: 1 + rank.tp % 2,
    };
    let member = |rank| {
        let holding = hold(rank, Holding::even(sizes, rank, case.heads, LAYERS));
        Member::new(rank, holding, shape(rank), &TOKENS)
    };
    ranks(sizes).map(member).collect()
}

fn check(case: &Case, mut sources: Vec<Member>, mut destinations: Vec<Member>) {
    sources.iter_mut().for_each(|source| source.fill(&TOKENS));
    let chunks = [TOKENS.start..11, 11..TOKENS.end];
    let map = map(&sources, &destinations);
    transfer(&map, Room(case.room), &sources, &mut destinations, &chunks, case.max_bytes);
    for destination in &destinations {
        destination.check(&TOKENS);
    }
}

fn pairs<T: Copy, const N: usize>(values: [T; N]) -> impl Iterator<Item = (T, T)> {
    values.into_iter().flat_map(move |a| values.map(|b| (a, b)))
}
