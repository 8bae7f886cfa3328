//! What a writer may name of the pages lent to it.

use crate::world::{World, index, worlds};
use kvferry::GroupId;
use kvferry::layout::{Admission, Extent, PageList, Pairing, Piece, PlanError, Refusal, Share};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::ops::Range;
use std::sync::Arc;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_lent_is_admitted(world in worlds()) {
        let admission = admission(&world, world.piece.positions.clone());
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
        let admission = admission(&world, world.piece.positions.clone());
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
    fn a_share_of_some_layers_has_pairs_of_these_only(world in worlds(), start in 0..4_u32, len in 0..4_u32) {
        let layers = start..start + len;
        let pairing = bound(&world, &Share::WHOLE.layers(layers.clone()));
        let named: Vec<_> = pairing.pairs().iter().filter_map(|pair| pair.layer).collect();
        let whole = world.pairing.pairs().iter().filter_map(|pair| pair.layer);
        prop_assert_eq!(named, whole.filter(|layer| layers.contains(layer)).collect::<Vec<_>>());
        let pages: Arc<[_]> = [(GroupId(0), world.destination.pages.clone())].into();
        let admission = Admission::new(pairing.clone(), world.piece.positions.clone(), pages);
        let end = u32::try_from(pairing.pairs().len()).unwrap();
        let beyond = Piece { pairs: end..end + 1, ..world.piece.clone() };
        let refused = Err(Refusal::Plan(PlanError::Pairs(end..end + 1)));
        prop_assert_eq!(admission.extents(&beyond, &mut Vec::new()), refused);
    }
}

#[test]
fn what_has_no_layer_is_owed_with_the_first_layer_only() {
    let world = paged_world();
    for (layers, is_owed) in [(0..1, true), (1..2, false), (0..0, false)] {
        let pairing = bound(&world, &Share::WHOLE.layers(layers.clone()));
        let has_aux = pairing.pairs().iter().any(|pair| pair.layer.is_none());
        assert_eq!(has_aux, is_owed, "layers {layers:?}");
    }
}

#[test]
fn tokens_and_groups_that_are_not_lent_are_named() {
    let world = paged_world();
    let World { pairing, piece, .. } = &world;
    let Range { start, end } = piece.positions.clone();
    let refusal =
        |admission: &Admission, piece: &Piece| admission.extents(piece, &mut Vec::new()).unwrap_err();

    let fewer = admission(&world, start..end - 1);
    let expected = Refusal::Tokens { wanted: start..end, lent: start..end - 1 };
    assert_eq!(refusal(&fewer, piece), expected);

    let whole = admission(&world, start..end);
    let aux = Piece { pairs: 0..1, positions: 0..1 };
    assert_eq!(refusal(&whole, &aux), Refusal::Group);
    let none = Piece { pairs: 1..1, ..piece.clone() };
    assert_eq!(refusal(&whole, &none), Refusal::Plan(PlanError::Pairs(1..1)));
    let both = Piece { pairs: 0..2, ..piece.clone() };
    assert_eq!(refusal(&whole, &both), Refusal::Plan(PlanError::Pairs(0..2)));
    assert_eq!(pairing.pairs().len(), index(piece.pairs.end));
}

#[test]
fn rows_are_admitted_over_the_whole_list() {
    let world = paged_world();
    let rows = PageList::new(0, vec![5, 6, 2]);
    // Tokens say nothing about rows.
    let lent = vec![(GroupId(1), rows)];
    let admission = Admission::new(world.pairing.clone(), 7..8, lent.into());
    let mut out = Vec::new();
    assert_eq!(admission.extents(&Piece { pairs: 0..1, positions: 0..3 }, &mut out), Ok(3));
    assert_eq!(out.iter().map(|extent| (extent.offset, extent.len)).collect::<Vec<_>>(), [(5, 2), (2, 1)]);
    let beyond = admission.extents(&Piece { pairs: 0..1, positions: 0..4 }, &mut out);
    assert_eq!(beyond, Err(Refusal::Plan(PlanError::Positions { wanted: 0..4, covered: 0..3 })));
}

fn admission(world: &World, tokens: Range<u32>) -> Admission {
    let pages = vec![(GroupId(0), world.destination.pages.clone())];
    Admission::new(world.pairing.clone(), tokens, pages.into())
}

fn bound(world: &World, share: &Share) -> Arc<Pairing> {
    let layouts = (world.source.layout.clone(), world.destination.layout.clone());
    Arc::new(Pairing::of(layouts.0, layouts.1, share).expect("a share of some layers"))
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
