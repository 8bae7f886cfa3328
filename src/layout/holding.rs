//! What one rank holds of every request.

use super::{HeadSpan, Layers, PoolLayout, Sharding, Share, TokenShard};
use crate::ids::{GroupSizes, Rank};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// What one rank holds of every request. As text, for a directory: `heads 4+2/8; layers 0-15,20; tokens
/// 16x2+1`, the first and last of which are left out where nothing is cut.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub struct Holding {
    /// The heads it holds; none where every rank holds all, as for latent attention.
    pub heads: Option<HeadSpan>,
    /// Global layers of which it holds KV.
    pub layers: Layers,
    /// How tokens are dealt out to ranks.
    pub tokens: TokenShard,
}

/// A text that is no holding.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} does not say what a rank holds")]
#[non_exhaustive]
pub struct HoldingError(pub String);

impl Holding {
    /// What a rank of a group of these sizes holds if layers are cut evenly into stages, and heads (none
    /// for latent attention, which every rank holds) evenly by tensor parallel rank; where there are more
    /// ranks than heads, several hold the same.
    pub fn even(sizes: GroupSizes, rank: Rank, heads: Option<u32>, layers: u32) -> Self {
        let span = |total: u32| {
            let Range { start: first, end } = even(total, sizes.tp, rank.tp);
            HeadSpan { first, count: end.max(first + 1) - first, total }
        };
        let layers = even(layers, sizes.pp, rank.pp).into();
        Self { heads: heads.map(span), layers, tokens: TokenShard::WHOLE }
    }

    /// With tokens dealt out to ranks.
    #[must_use]
    pub fn tokens(mut self, tokens: TokenShard) -> Self {
        self.tokens = tokens;
        self
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        match (self.heads.is_none_or(HeadSpan::is_possible), self.tokens.is_possible()) {
            (false, _) => Err("heads"),
            (_, false) => Err("tokens"),
            (true, true) => Ok(()),
        }
    }

    /// Heads and tokens of one period that both hold of a layer, multiplied.
    pub(super) fn cells(&self, other: &Self, period: u128) -> u128 {
        let heads = match (self.heads, other.heads) {
            (Some(ours), Some(theirs)) => ours.meet(theirs).map_or(0, |span| span.count),
            _ => 1,
        };
        let tokens = self.tokens.shared(other.tokens) * (period / self.tokens.common_period(other.tokens));
        tokens * u128::from(heads)
    }

    /// Whether there is something of a layer that both hold, if both hold of the layer at all.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.cells(other, self.tokens.common_period(other.tokens)) > 0
    }

    /// What this source owes that destination of these layers, which both hold; nothing if there are none.
    pub(super) fn share(&self, destination: &Self, layers: Layers) -> Option<Share> {
        let mut share = Share::WHOLE.tokens(self.tokens, destination.tokens);
        if let (Some(ours), Some(theirs)) = (self.heads, destination.heads)
            && ours != theirs
        {
            share.heads = Some(ours.meet(theirs)?);
        }
        if layers.is_empty() {
            return None;
        }
        let is_all = layers == self.layers && layers == destination.layers;
        share.layers = (!is_all).then_some(layers);
        Some(share)
    }
}

impl PoolLayout {
    /// What a rank with these pools holds, of tokens dealt out so.
    pub fn holding(&self, tokens: TokenShard) -> Holding {
        let layers = self.entries.iter().filter_map(|entry| entry.layer).collect();
        let spans = self.entries.iter().filter_map(|entry| match entry.sharding {
            Sharding::Heads(span) => Some(span),
            Sharding::Replicated => None,
        });
        let heads = spans.max_by_key(|span| (span.total, span.first, span.count));
        Holding { heads, layers, tokens }
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(HeadSpan { first, count, total }) = self.heads {
            write!(f, "heads {first}+{count}/{total}; ")?;
        }
        write!(f, "layers {}", self.layers)?;
        let TokenShard { granule, step, phase } = self.tokens;
        if self.tokens.is_whole() { Ok(()) } else { write!(f, "; tokens {granule}x{step}+{phase}") }
    }
}

impl FromStr for Holding {
    type Err = HoldingError;

    fn from_str(text: &str) -> Result<Self, HoldingError> {
        let holding = parse(text).filter(|holding| holding.check().is_ok());
        holding.ok_or_else(|| HoldingError(text.chars().take(100).collect()))
    }
}

fn parse(text: &str) -> Option<Holding> {
    let mut holding = Holding { heads: None, layers: Layers::NONE, tokens: TokenShard::WHOLE };
    for part in text.split("; ") {
        match part.split_once(' ')? {
            ("heads", span) => {
                let [first, count, total] = numbers(span, ['+', '/'])?;
                holding.heads = Some(HeadSpan { first, count, total });
            }
            ("layers", layers) => holding.layers = layers.parse().ok()?,
            ("tokens", shard) => {
                let [granule, step, phase] = numbers(shard, ['x', '+'])?;
                holding.tokens = TokenShard { granule, step, phase };
            }
            _ => return None,
        }
    }
    Some(holding)
}

fn numbers(text: &str, [first, second]: [char; 2]) -> Option<[u32; 3]> {
    let (a, rest) = text.split_once(first)?;
    let (b, c) = rest.split_once(second)?;
    Some([a.parse().ok()?, b.parse().ok()?, c.parse().ok()?])
}

/// Part `at` of `total` cut into so many even parts.
fn even(total: u32, parts: u32, at: u32) -> Range<u32> {
    let border = |at: u64| u64::from(total) * at / u64::from(parts.max(1));
    let narrow = |border: u64| u32::try_from(border).unwrap_or(u32::MAX);
    narrow(border(at.into()))..narrow(border(u64::from(at) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holding_comes_back_from_its_text() {
        let mut holding = Holding::even(GroupSizes::tp(4), Rank::tp(2), Some(8), 16);
        assert_eq!(holding.to_string(), "heads 4+2/8; layers 0-15");
        assert_eq!(holding.to_string().parse(), Ok(holding.clone()));
        holding.layers = holding.layers.iter().chain([18, 20, 21]).collect();
        let dealt = holding.tokens(TokenShard { granule: 16, step: 2, phase: 1 });
        assert_eq!(dealt.to_string(), "heads 4+2/8; layers 0-15,18,20-21; tokens 16x2+1");
        assert_eq!(dealt.to_string().parse(), Ok(dealt));
        let mut none = Holding::even(GroupSizes::ONE, Rank::default(), None, 0);
        assert_eq!(none.to_string().parse(), Ok(none.clone()));
        none.layers = [0, u32::MAX].into();
        assert_eq!(none.to_string().parse(), Ok(none));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "layers",
            "layers 3-1",
            "layers 1,0",
            "layers 0-9,5",
            "layers x",
            "heads 1+8/8; layers 0",
            "heads 1+8; layers 0",
            "layers 0; tokens 16x2+2",
            "layers 0; tokens 0x1+0",
            "layers 0; colour blue",
        ] {
            assert_eq!(text.parse::<Holding>(), Err(HoldingError(text.into())));
        }
    }

    #[test]
    fn even_parts_hold_everything_and_more_ranks_than_heads_hold_the_same() {
        for (heads, tp) in [(8, 2), (6, 3), (8, 3), (2, 8), (3, 5), (1, 4)] {
            let spans = (0..tp).map(|at| {
                let span = Holding::even(GroupSizes::tp(tp), Rank::tp(at), Some(heads), 1).heads;
                span.map(|span| (span.first, span.first + span.count)).expect("heads")
            });
            let spans: Vec<_> = spans.collect();
            assert!(spans.windows(2).all(|two| two[0] == two[1] || two[0].1 == two[1].0), "{spans:?}");
            assert_eq!((spans[0].0, spans[spans.len() - 1].1), (0, heads));
        }
    }
}
