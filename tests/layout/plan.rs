//! Pieces and extents of random pools.

use crate::world::{World, gather, index, is_cut, reference, scatter, worlds};
use kvferry::layout::{Block, Extent, Piece, Pieces, PlanError, blocks};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_cover_every_pair_and_position_once(world in worlds()) {
        let Piece { pairs, positions } = &world.piece;
        let mut seen = vec![vec![0; positions.len()]; pairs.len()];
        for piece in pieces(&world) {
            for pair in piece.pairs.clone() {
                for position in piece.positions.clone() {
                    seen[index(pair - pairs.start)][index(position - positions.start)] += 1;
                }
            }
        }
        prop_assert!(seen.iter().flatten().all(|&times| times == 1));
    }

    #[test]
    fn pieces_keep_to_the_limit_unless_they_are_one_unit(world in worlds()) {
        for piece in pieces(&world) {
            let is_one_unit = piece.pairs.len() == 1 && {
                let unit = unit(&world, piece.pairs.start);
                (piece.positions.end - 1) / unit == piece.positions.start / unit
            };
            prop_assert!(world.pairing.bytes(&piece) <= world.max_bytes || is_one_unit, "{piece:?}");
        }
    }

    #[test]
    fn cuts_lie_on_page_borders_if_a_page_fits(world in worlds()) {
        for piece in pieces(&world) {
            let page = world.page_tokens;
            let start = piece.positions.start;
            let border = start - start % page + page;
            let to_border = Piece { pairs: piece.pairs.clone(), positions: start..border };
            if world.pairing.bytes(&to_border) <= world.max_bytes {
                let end = piece.positions.end;
                prop_assert!(end % page == 0 || end == world.piece.positions.end, "{piece:?}");
            }
        }
    }

    #[test]
    fn pieces_copy_what_a_copy_token_by_token_would(world in worlds()) {
        let mut memory = world.destination.memory.clone();
        let mut through_blocks = memory.clone();
        for piece in pieces(&world) {
            let (source, destination) = extents(&world, &piece);
            scatter(&mut memory, &destination, &gather(&world.source.memory, &source));
            for block in zipped(&source, &destination) {
                let from = Extent { region: block.source, offset: block.source_offset, len: block.len };
                let to = Extent { region: block.destination, offset: block.destination_offset, len: block.len };
                scatter(&mut through_blocks, &[to], &gather(&world.source.memory, &[from]));
            }
        }
        let expected = reference(&world, &world.piece);
        prop_assert_eq!(&memory, &expected);
        prop_assert_eq!(&through_blocks, &expected);
    }

    #[test]
    fn extents_have_the_bytes_of_the_piece_and_none_could_be_joined(world in worlds()) {
        for piece in pieces(&world).into_iter().chain([world.piece.clone()]) {
            let (source, destination) = extents(&world, &piece);
            for list in [&source, &destination] {
                let sum: u64 = list.iter().map(|extent| extent.len).sum();
                prop_assert_eq!(sum, world.pairing.bytes(&piece));
                let is_joined = |pair: &[Extent]| {
                    pair[0].region != pair[1].region || pair[0].offset + pair[0].len != pair[1].offset
                };
                prop_assert!(list.windows(2).all(is_joined));
            }
            let sum: u64 = zipped(&source, &destination).iter().map(|block| block.len).sum();
            prop_assert_eq!(sum, world.pairing.bytes(&piece));
        }
    }

    #[test]
    fn equal_calls_give_equal_pieces(world in worlds()) {
        prop_assert_eq!(pieces(&world), pieces(&world));
    }

    #[test]
    fn positions_outside_the_pages_are_refused(world in worlds()) {
        let mut out = Vec::new();
        let covered = world.source.pages.covers(world.page_tokens);
        for positions in [covered.start..covered.end + 1, covered.end..covered.end, covered.end..covered.start] {
            let piece = Piece { positions: positions.clone(), ..world.piece.clone() };
            let result = world.pairing.source_extents(&piece, &world.source.pages, &mut out);
            prop_assert_eq!(result, Err(PlanError::Positions { wanted: positions, covered: covered.clone() }));
        }
        prop_assert!(out.is_empty());
    }

    #[test]
    fn pages_outside_the_group_are_refused(world in worlds(), at: prop::sample::Index, page in 24..u32::MAX) {
        let mut pages = world.source.pages.clone();
        let at = at.index(pages.indices.len());
        pages.indices[at] = page;
        let piece = Piece { positions: pages.covers(world.page_tokens), ..world.piece.clone() };
        let mut out = Vec::new();
        let result = world.pairing.source_extents(&piece, &pages, &mut out);
        prop_assert_eq!(result, Err(PlanError::Page { page, items: 24 }));
        prop_assert!(out.is_empty());
    }

    #[test]
    fn pieces_of_pairs_that_do_not_exist_are_refused(
        world in worlds(),
        start in 0..8_u32,
        end in prop_oneof![0..8_u32, any::<u32>()],
    ) {
        let world = World { piece: Piece { pairs: start..end, ..world.piece }, ..world };
        for piece in pieces(&world) {
            let result = world.pairing.source_extents(&piece, &world.source.pages, &mut Vec::new());
            prop_assert!(result.is_err() || index(piece.pairs.end) <= world.pairing.pairs().len());
        }
    }
}

#[test]
fn pairs_of_two_groups_are_refused() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let world = worlds().new_tree(&mut runner).unwrap().current();
    // The other group sorts first.
    let piece = Piece { pairs: 0..2, ..world.piece.clone() };
    let result = world.pairing.source_extents(&piece, &world.source.pages, &mut Vec::new());
    assert_eq!(result, Err(PlanError::Pairs(0..2)));
}

fn pieces(world: &World) -> Vec<Piece> {
    let mut left = Pieces::new(world.piece.clone());
    let next = || left.next(&world.pairing, world.max_bytes);
    let pieces: Vec<_> = std::iter::from_fn(next).take(10_000).collect();
    assert!(pieces.len() < 10_000, "never ends");
    pieces
}

fn extents(world: &World, piece: &Piece) -> (Vec<Extent>, Vec<Extent>) {
    let (mut source, mut destination) = (Vec::new(), Vec::new());
    let World { pairing, .. } = world;
    let sent = pairing.source_extents(piece, &world.source.pages, &mut source).expect("a fitting piece");
    let received = pairing
        .destination_extents(piece, &world.destination.pages, &mut destination)
        .expect("a fitting piece");
    assert_eq!((sent, received), (pairing.bytes(piece), pairing.bytes(piece)));
    (source, destination)
}

fn zipped(source: &[Extent], destination: &[Extent]) -> Vec<Block> {
    let mut out = Vec::new();
    blocks(source, destination, &mut out);
    out
}

fn unit(world: &World, pair: u32) -> u32 {
    let pair = world.pairing.pairs()[index(pair)];
    match is_cut(&world.source.layout.entries[index(pair.source)].order) {
        true => 1,
        false => world.page_tokens,
    }
}
