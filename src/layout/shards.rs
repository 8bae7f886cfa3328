//! Tokens dealt out to ranks: which of them a rank holds, and where they lie among those it holds.

use std::fmt;
use std::ops::Range;

/// Tokens of granule `g = token / granule` are held where `g % step == phase`. They lie one behind the
/// other in the pages of who holds them: a page list counts *held* tokens, see
/// [`held_before`](Self::held_before).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "three numbers of the wire format")]
pub struct TokenShard {
    /// Tokens dealt out together.
    pub granule: u32,
    /// Ranks they are dealt to.
    pub step: u32,
    /// Which of those ranks this is.
    pub phase: u32,
}

impl TokenShard {
    /// Every token.
    pub const WHOLE: Self = Self { granule: 1, step: 1, phase: 0 };

    /// Run number `phase` of `step` equal runs of whole pages that together hold `tokens` (the last may
    /// be shorter): a request cut into contiguous parts.
    pub fn run(tokens: u32, page_tokens: u32, step: u32, phase: u32) -> Self {
        let pages = tokens.div_ceil(page_tokens.max(1)).div_ceil(step.max(1)).max(1);
        Self { granule: pages.saturating_mul(page_tokens), step, phase }
    }

    /// Whether it holds this token.
    pub const fn holds(self, token: u32) -> bool {
        token / self.granule % self.step == self.phase
    }

    /// Whether there is such a shard at all.
    pub const fn is_possible(self) -> bool {
        self.granule > 0 && self.phase < self.step
    }

    /// Whether it holds every token.
    pub const fn is_whole(self) -> bool {
        self.step == 1
    }

    /// Held tokens before `token`: where it lies among them, if it is held.
    pub fn held_before(self, token: u32) -> u32 {
        if self.is_whole() {
            return token;
        }
        let (granule, at) = (token / self.granule, token % self.granule);
        let (round, turn) = (granule / self.step, granule % self.step);
        let here = match turn {
            turn if turn < self.phase => 0,
            turn if turn == self.phase => at,
            _ => self.granule,
        };
        round * self.granule + here // no more than `token`
    }

    /// The token that lies behind so many held ones; the last number a token can have if there is none.
    pub fn token_at(self, held: u32) -> u32 {
        if self.is_whole() {
            return held;
        }
        let [granule, step, phase, held] = [self.granule, self.step, self.phase, held].map(u64::from);
        let turns = (held / granule * step).saturating_add(phase);
        narrow(turns.saturating_mul(granule).saturating_add(held % granule))
    }

    /// Where the held ones of `tokens` lie.
    pub fn held(self, tokens: &Range<u32>) -> Range<u32> {
        self.held_before(tokens.start)..self.held_before(tokens.end)
    }

    /// The most tokens of which those held lie in `held`.
    pub fn tokens(self, held: &Range<u32>) -> Range<u32> {
        let start = match held.start.checked_sub(1) {
            None => 0,
            Some(before) => self.token_at(before).saturating_add(1),
        };
        start..if held.is_empty() { start } else { self.token_at(held.end) }
    }

    /// Whether `other` holds a token that this one holds, requests being long enough.
    pub fn meets(self, other: Self) -> bool {
        self.shared(other) > 0
    }

    /// Of the tokens of one common period of both, how many both hold.
    pub(super) fn shared(self, other: Self) -> u128 {
        // A shard holds the tokens whose remainder by its period lies in an interval. Two remainders belong
        // to one token of the common period exactly if they are equal modulo the periods' divisor.
        let divisor = u128::from(gcd(self.period(), other.period()));
        let [(start, len), (other_start, other_len)] =
            [self, other].map(|shard| (shard.start() % divisor, u128::from(shard.granule)));
        let (turns, rest) = (len / divisor, len % divisor);
        let (other_turns, other_rest) = (other_len / divisor, other_len % divisor);
        let gap = (other_start + divisor - start) % divisor;
        let ahead = rest.saturating_sub(gap).min(other_rest);
        let around = other_rest.saturating_sub(divisor - gap).min(rest);
        turns * other_turns * divisor + turns * other_rest + other_turns * rest + ahead + around
    }

    /// Tokens of one common period of both.
    pub(super) fn common_period(self, other: Self) -> u128 {
        let (own, others) = (self.period(), other.period());
        u128::from(own / gcd(own, others)) * u128::from(others)
    }

    /// This shard counted in units of so many tokens, if none of them is parted.
    pub(super) fn in_units(self, unit_tokens: u32) -> Option<Self> {
        let granule = self.granule;
        match granule.is_multiple_of(unit_tokens) {
            _ if self.is_whole() => Some(Self::WHOLE),
            true => Some(Self { granule: granule / unit_tokens, ..self }),
            false => None,
        }
    }

    /// The held tokens that follow one another from `token` on, or from the next that is held.
    fn stretch(self, token: u32) -> Range<u32> {
        if self.is_whole() {
            return token..u32::MAX;
        }
        let granule = token / self.granule;
        let turn = granule % self.step;
        let wait = if turn <= self.phase { self.phase - turn } else { self.step - turn + self.phase };
        let [granule, wait, len] = [granule, wait, self.granule].map(u64::from);
        // The first factor is a token's granule, so this is below 2^64.
        let start = (granule + wait) * len;
        let from = if wait == 0 { token } else { narrow(start) };
        from..narrow(start + len)
    }

    fn start(self) -> u128 {
        u128::from(self.phase) * u128::from(self.granule)
    }

    fn period(self) -> u64 {
        u64::from(self.granule) * u64::from(self.step)
    }
}

impl fmt::Display for TokenShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { granule, step, phase } = self;
        write!(f, "part {phase} of {step}, {granule} tokens at a time")
    }
}

/// Which positions move: those that both sides hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Deal {
    pub(super) source: TokenShard,
    pub(super) destination: TokenShard,
}

impl Deal {
    pub(super) const ALL: Self = Self { source: TokenShard::WHOLE, destination: TokenShard::WHOLE };

    pub(super) const fn is_all(&self) -> bool {
        self.source.is_whole() && self.destination.is_whole()
    }

    /// Positions of `range` that move, in stretches that follow one another on both sides.
    pub(super) fn stretches(self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                let (ours, theirs) = (self.source.stretch(at), self.destination.stretch(at));
                let found = ours.start.max(theirs.start)..ours.end.min(theirs.end).min(range.end);
                at = if found.is_empty() { found.start.max(at + 1) } else { found.end };
                if !found.is_empty() {
                    return Some(found);
                }
            }
            None
        })
    }

    /// How many positions of `range` move.
    pub(super) fn count(self, range: &Range<u32>) -> u32 {
        match self.single() {
            Some(shard) => {
                let held = shard.held(range);
                held.end.saturating_sub(held.start)
            }
            None => self.stretches(range.clone()).map(|stretch| stretch.end - stretch.start).sum(),
        }
    }

    /// The end of the first `most` positions of `range` that move, and how many there are.
    pub(super) fn take(self, range: &Range<u32>, most: u32) -> (u32, u32) {
        if let Some(shard) = self.single() {
            let held = shard.held(range);
            return match held.end.saturating_sub(held.start) {
                count if count <= most => (range.end, count),
                _ => (shard.token_at(held.start + most.max(1) - 1) + 1, most),
            };
        }
        let mut left = most;
        for stretch in self.stretches(range.clone()) {
            let len = stretch.end - stretch.start;
            if len >= left {
                return (stretch.start + left, most);
            }
            left -= len;
        }
        (range.end, most - left)
    }

    /// The shard that alone decides.
    fn single(self) -> Option<TokenShard> {
        match (self.source.is_whole(), self.destination.is_whole()) {
            (_, true) => Some(self.source),
            (true, false) => Some(self.destination),
            (false, false) => None,
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Behind the last number a token can have is nothing.
fn narrow(token: u64) -> u32 {
    u32::try_from(token).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> impl Iterator<Item = TokenShard> {
        (1..5).flat_map(|granule| {
            (1..5).flat_map(move |step| (0..step).map(move |phase| TokenShard { granule, step, phase }))
        })
    }

    fn number(count: usize) -> u32 {
        u32::try_from(count).unwrap()
    }

    #[test]
    fn held_tokens_lie_one_behind_the_other() {
        for shard in shards() {
            let held: Vec<_> = (0..100).filter(|&token| shard.holds(token)).collect();
            for token in 0..100 {
                let before = held.iter().filter(|&&other| other < token).count();
                assert_eq!(shard.held_before(token), number(before), "{shard:?} {token}");
            }
            for (at, &token) in (0..).zip(&held) {
                assert_eq!(shard.token_at(at), token);
            }
            for (start, end) in (0..8).flat_map(|start| (start + 1..8).map(move |end| (start, end))) {
                let tokens = shard.tokens(&(start..end));
                assert_eq!(shard.held(&tokens), start..end, "{shard:?} {tokens:?}");
                let is_most = tokens.start == 0 || shard.held_before(tokens.start - 1) < start;
                assert!(is_most && shard.held_before(tokens.end + 1) > end, "{shard:?} {tokens:?}");
            }
        }
    }

    #[test]
    fn what_moves_is_what_both_hold() {
        for (source, destination) in shards().flat_map(|a| shards().map(move |b| (a, b))) {
            let deal = Deal { source, destination };
            let both = |token: &u32| source.holds(*token) && destination.holds(*token);
            for range in [0..60, 7..31, 5..5, 13..14] {
                let moved: Vec<_> = deal.stretches(range.clone()).flatten().collect();
                let expected: Vec<_> = range.clone().filter(both).collect();
                assert_eq!(moved, expected, "{deal:?} {range:?}");
                assert_eq!(deal.count(&range), number(expected.len()));
                for most in 1..8 {
                    let (end, count) = deal.take(&range, most);
                    assert_eq!(count, most.min(number(expected.len())));
                    assert_eq!(deal.count(&(range.start..end)), count, "{deal:?} {range:?} {most}");
                }
            }
            let period = u32::try_from(source.common_period(destination)).unwrap();
            assert_eq!(source.shared(destination), (0..period).filter(both).count() as u128, "{deal:?}");
        }
    }

    #[test]
    fn runs_are_contiguous_and_hold_everything() {
        for (tokens, page, step) in [(100, 16, 3), (1, 16, 4), (64, 64, 1), (1000, 1, 7)] {
            let mut at = 0;
            for phase in 0..step {
                let source = TokenShard::run(tokens, page, step, phase);
                let deal = Deal { source, destination: TokenShard::WHOLE };
                for stretch in deal.stretches(0..tokens) {
                    assert!(stretch.start == at && stretch.start % page == 0);
                    at = stretch.end;
                }
            }
            assert_eq!(at, tokens);
        }
    }

    #[test]
    fn the_largest_numbers_stay_in_bounds() {
        let edges = [1, 2, u32::MAX - 1, u32::MAX];
        let shard = |(granule, step)| TokenShard { granule, step, phase: step - 1 };
        for shard in edges.into_iter().flat_map(|granule| edges.map(|step| shard((granule, step)))) {
            for number in [0, 1, u32::MAX - 1, u32::MAX] {
                assert!(shard.held_before(number) <= number);
                assert!(shard.token_at(number) >= number);
                assert!(shard.tokens(&(number..u32::MAX)).end >= number);
            }
            let destination = TokenShard { granule: 3, step: 1 << 31, phase: 7 };
            let deal = Deal { source: shard, destination };
            assert!(deal.take(&(0..u32::MAX), 5).1 <= 5);
        }
    }
}
