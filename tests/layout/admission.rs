//! What a writer may name of the pages lent to it.

use crate::world::{World, index, worlds};
use kvferry::GroupId;
use kvferry::layout::{Admission, Extent, HeadSpan, PageList, Piece, PlanError, Refusal, Share, TokenShard};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::ops::Range;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_lent_is_admitted(world in worlds()) {
        let admission = admission(&world, Share::WHOLE, world.piece.positions.clone());
        let (mut admitted, mut planned) = (Vec::new(), Vec::new());
        let bytes = admission.extents(&world.piece, &mut admitted).unwrap();
        let pages = &world.destination.pages;
        world.pairing.destination_extents(&world.piece, pages, &mut planned).unwrap();
        prop_assert_eq!(&admitted, &planned);
        prop_assert_eq!(admission.bytes(&world.piece), Ok(bytes));
    }

    #[test]
    fn hostile_pieces_neither_panic_nor_reach_beyond_what_is_lent(
        world in worlds(),
        numbers in [hostile(), hostile(), hostile(), hostile()],
    ) {
        let admission = admission(&world, Share::WHOLE, world.piece.positions.clone());
        let piece = Piece { pairs: numbers[0]..numbers[1], positions: numbers[2]..numbers[3] };
        let mut out = Vec::new();
        let result = admission.extents(&piece, &mut out);
        prop_assert_eq!(result.is_err(), out.is_empty());
        prop_assert!(out.iter().all(|extent| is_lent(&world, extent)), "{piece:?} {out:?}");
        // A partial page is one extent for each of at most three heads.
        let pages = world.destination.pages.indices.len() + 2 * 3;
        prop_assert!(out.len() <= world.pairing.pairs().len() * pages);
        if let Ok(bytes) = result {
            prop_assert_eq!(admission.bytes(&piece), Ok(bytes));
        }
    }

    #[test]
    fn pairs_of_other_layers_are_refused(world in worlds(), start in 0..4_u32, len in 0..4_u32) {
        let mut share = Share::WHOLE;
        share.layers = Some(start..start + len);
        let admission = admission(&world, share, world.piece.positions.clone());
        for pair in world.piece.pairs.clone() {
            let piece = Piece { pairs: pair..pair + 1, ..world.piece.clone() };
            let layer = world.pairing.pairs()[index(pair)].layer.unwrap();
            let is_owed = (start..start + len).contains(&layer);
            let result = admission.extents(&piece, &mut Vec::new());
            prop_assert_eq!(matches!(result, Err(Refusal::Pairs { .. })), !is_owed);
            prop_assert_eq!(result.is_ok(), is_owed);
        }
    }
}

#[test]
fn what_has_no_layer_is_owed_with_the_first_layer_only() {
    let world = paged_world();
    let aux = Piece { pairs: 0..1, positions: 0..1 };
    let lent = vec![(GroupId(1), PageList::new(0, vec![5]))];
    for (layers, is_owed) in [(0..1, true), (1..2, false), (0..0, false)] {
        let mut share = Share::WHOLE;
        share.layers = Some(layers.clone());
        let admission = Admission::new(world.pairing.clone(), share, 7..8, lent.clone().into());
        assert_eq!(admission.bytes(&aux).is_ok(), is_owed, "layers {layers:?}");
    }
}

#[test]
fn tokens_groups_and_shares_that_are_not_lent_are_named() {
    let world = paged_world();
    let World { pairing, piece, .. } = &world;
    let Range { start, end } = piece.positions.clone();
    let refusal =
        |admission: &Admission, piece: &Piece| admission.extents(piece, &mut Vec::new()).unwrap_err();

    let fewer = admission(&world, Share::WHOLE, start..end - 1);
    let expected = Refusal::Tokens { wanted: start..end, lent: start..end - 1 };
    assert_eq!(refusal(&fewer, piece), expected);

    let whole = admission(&world, Share::WHOLE, start..end);
    let aux = Piece { pairs: 0..1, positions: 0..1 };
    assert_eq!(refusal(&whole, &aux), Refusal::Group);
    let none = Piece { pairs: 1..1, ..piece.clone() };
    assert_eq!(refusal(&whole, &none), Refusal::Plan(PlanError::Pairs(1..1)));
    let both = Piece { pairs: 0..2, ..piece.clone() };
    assert_eq!(refusal(&whole, &both), Refusal::Pairs { wanted: 0..2, lent: 0..1 });

    let mut dealt = Share::WHOLE;
    dealt.destination = TokenShard { granule: 1, step: 2, phase: 0 };
    assert_eq!(refusal(&admission(&world, dealt, start..end), piece), Refusal::Share("tokens"));
    let mut heads = Share::WHOLE;
    heads.heads = Some(HeadSpan { first: 0, count: 1, total: 2 });
    assert_eq!(refusal(&admission(&world, heads.clone(), start..end), piece), Refusal::Share("heads"));
    heads.heads = Some(HeadSpan::all(1));
    assert!(admission(&world, heads, start..end).bytes(piece).is_ok());
    assert_eq!(pairing.pairs().len(), index(piece.pairs.end));
}

#[test]
fn rows_are_admitted_over_the_whole_list() {
    let world = paged_world();
    let rows = PageList::new(0, vec![5, 6, 2]);
    // Tokens say nothing about rows.
    let lent = vec![(GroupId(1), rows)];
    let admission = Admission::new(world.pairing.clone(), Share::WHOLE, 7..8, lent.into());
    let mut out = Vec::new();
    assert_eq!(admission.extents(&Piece { pairs: 0..1, positions: 0..3 }, &mut out), Ok(3));
    assert_eq!(out.iter().map(|extent| (extent.offset, extent.len)).collect::<Vec<_>>(), [(5, 2), (2, 1)]);
    let beyond = admission.extents(&Piece { pairs: 0..1, positions: 0..4 }, &mut out);
    assert_eq!(beyond, Err(Refusal::Plan(PlanError::Positions { wanted: 0..4, covered: 0..3 })));
}

fn admission(world: &World, share: Share, tokens: Range<u32>) -> Admission {
    let pages = vec![(GroupId(0), world.destination.pages.clone())];
    Admission::new(world.pairing.clone(), share, tokens, pages.into())
}

fn paged_world() -> World {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    loop {
        let world = worlds().new_tree(&mut runner).expect("a world").current();
        if !is_rows(&world) && world.piece.positions.len() > 1 {
            return world;
        }
    }
}

fn is_rows(world: &World) -> bool {
    world.pairing.kind(GroupId(0)) == Some(kvferry::layout::GroupKind::Rows)
}

/// Whether an extent lies inside items of the lent pages. Joined extents span items that touch.
fn is_lent(world: &World, extent: &Extent) -> bool {
    let entries = world.destination.layout.entries.iter().filter(|entry| entry.group == GroupId(0));
    let items = entries.filter(|entry| entry.region == extent.region).flat_map(|entry| {
        let start = |page: &u32| entry.offset + u64::from(*page) * entry.item_stride;
        world.destination.pages.indices.iter().map(start).map(|start| start..start + entry.item_bytes)
    });
    let items: Vec<_> = items.collect();
    (extent.offset..extent.offset + extent.len).all(|byte| items.iter().any(|item| item.contains(&byte)))
}

/// Small numbers, which may be right, and the ends of the range.
fn hostile() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..40_u32, 1 => any::<u32>(), 1 => u32::MAX - 2..=u32::MAX]
}
