//! Random groups of ranks, prefixes and chunks.

use crate::group::{Member, Shape, fewest, map, planned, ranks, transfer};
use kvferry::layout::{Holding, Pairing, Piece, RankMap, Share, TokenShard};
use kvferry::{GroupId, GroupSizes, Rank, Room};
use proptest::prelude::*;
use std::ops::Range;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn every_byte_arrives_once(
        (heads, layers) in (prop::option::of(1..13_u32), 1..6_u32),
        (prefill, decode) in (groups(), groups()),
        tokens in tokens(),
        cuts in prop::collection::vec(0..60_u32, 0..4),
        max_bytes in 1..400_u64,
        room in any::<u64>(),
    ) {
        let mut sources = prefill.members(heads, layers, &tokens);
        let mut destinations = decode.members(heads, layers, &tokens);
        sources.iter_mut().for_each(|source| source.fill(&tokens));
        let map = map(&sources, &destinations);
        transfer(&map, Room(room), &sources, &mut destinations, &chunks(&tokens, cuts), max_bytes);
        destinations.iter().for_each(|destination| destination.check(&tokens));
    }

    #[test]
    fn both_sides_name_the_same_partners(
        (heads, layers) in (prop::option::of(1..13_u32), 0..6_u32),
        (prefill, decode) in (groups(), groups()),
        room in any::<u64>(),
    ) {
        let sources = prefill.holdings(heads, layers);
        let destinations = decode.holdings(heads, layers);
        let map = RankMap::new(&sources, &destinations).unwrap();
        for (source, _) in &sources {
            let joined = map.destinations(Room(room), *source);
            prop_assert!(!joined.is_empty(), "{source} is joined by nobody");
            for (destination, _) in &destinations {
                let fed = map.sources(Room(room), *destination);
                prop_assert!(!fed.is_empty(), "{destination} joins nobody");
                let found = fed.iter().find(|(rank, _)| rank == source);
                prop_assert_eq!(found.is_some(), joined.contains(destination));
                let owed = found.and_then(|(_, share)| share.clone());
                prop_assert_eq!(owed, map.owes(Room(room), *source, *destination));
            }
        }
    }

    #[test]
    fn blocks_are_as_few_as_they_can_be(
        heads in 1..7_u32,
        (first, count) in (0..6_u32, 1..7_u32),
        (ours, theirs) in (groups(), groups()),
        tokens in tokens(),
        share in prop::sample::select(vec![1, 2, 3]),
    ) {
        let (first, count) = (first % heads, (count - 1) % (heads - first % heads) + 1);
        let member = |group: &Group, step| {
            let mut holding = Holding::even(GroupSizes::ONE, Rank::default(), Some(heads), 1);
            holding.tokens = TokenShard { granule: 1 + group.granule, step, phase: 0 };
            let shape = Shape { fused: false, head_bytes: 3, page_step: 1, ..group.shape.clone() };
            Member::new(Rank::default(), holding, shape, &tokens)
        };
        let mut part = member(&theirs, share);
        let heads = part.holding.heads.as_mut().unwrap();
        (heads.first, heads.count) = (first, count);
        let part = Member::new(part.rank, part.holding, part.shape, &tokens);
        let whole = member(&ours, 1);
        let share = Share::WHOLE.heads(part.holding.heads.unwrap()).tokens(TokenShard::WHOLE, part.holding.tokens);
        for (source, destination, share) in [
            (&whole, &part, share.clone()),
            (&part, &whole, Share::WHOLE.heads(share.heads.unwrap()).tokens(share.destination, TokenShard::WHOLE)),
        ] {
            let pairing = Pairing::of(source.layout.clone(), destination.layout.clone(), &share).unwrap();
            let rectangle = Piece { pairs: pairing.pairs_of(GroupId(0), None), positions: tokens.clone() };
            if pairing.bytes(&rectangle) > 0 {
                let blocks = planned(&pairing, rectangle, source, destination, u64::MAX);
                prop_assert_eq!(blocks.len(), fewest(&tokens, source, destination));
            }
        }
    }
}

/// A group, and how its ranks lay out what they hold.
#[derive(Clone, Debug)]
struct Group {
    sizes: GroupSizes,
    shape: Shape,
    /// Tokens are dealt out over context parallel ranks: by granules, in runs, or not at all.
    dealt: Option<bool>,
    granule: u32,
}

impl Group {
    fn holdings(&self, heads: Option<u32>, layers: u32) -> Vec<(Rank, Holding)> {
        let shard = |cp| {
            let cps = self.sizes.cp;
            match self.dealt {
                None => TokenShard::WHOLE,
                Some(true) => TokenShard::run(END, self.granule + 1, cps, cp),
                Some(false) => TokenShard { granule: self.granule + 1, step: cps, phase: cp },
            }
        };
        let holding = |rank: Rank| Holding::even(self.sizes, rank, heads, layers).tokens(shard(rank.cp));
        ranks(self.sizes).map(|rank| (rank, holding(rank))).collect()
    }

    fn members(&self, heads: Option<u32>, layers: u32, tokens: &Range<u32>) -> Vec<Member> {
        let shape = |rank: Rank| Shape { page_step: 1 + rank.tp % 3, head_bytes: 2, ..self.shape.clone() };
        let holdings = self.holdings(heads, layers).into_iter();
        holdings.map(|(rank, holding)| Member::new(rank, holding, shape(rank), tokens)).collect()
    }
}

fn groups() -> impl Strategy<Value = Group> {
    let sizes = (1..4_u32, 1..4_u32, 1..6_u32).prop_map(|(pp, cp, tp)| GroupSizes { dp: 1, pp, cp, tp });
    let shape = (1..10_u32, any::<bool>(), any::<bool>()).prop_map(|(page_tokens, by_heads, fused)| Shape {
        page_tokens,
        by_heads,
        fused,
        head_bytes: 1,
        page_step: 1,
    });
    let dealt = prop::option::of(any::<bool>());
    (sizes, shape, dealt, 0..6_u32).prop_map(|(sizes, shape, dealt, granule)| Group {
        sizes,
        shape,
        dealt,
        granule,
    })
}

fn tokens() -> impl Strategy<Value = Range<u32>> {
    (0..20_u32, 1..30_u32).prop_map(|(start, len)| start..start + len)
}

fn chunks(tokens: &Range<u32>, cuts: Vec<u32>) -> Vec<Range<u32>> {
    let mut borders: Vec<_> = cuts.into_iter().map(|cut| cut.clamp(tokens.start, tokens.end)).collect();
    borders.extend([tokens.start, tokens.end]);
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).map(|borders| borders[0]..borders[1]).collect()
}

const END: u32 = 50;
