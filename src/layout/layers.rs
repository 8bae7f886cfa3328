//! Sets of layers.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

/// A set of global layers, kept as runs: what a rank holds, or owes. As text: `0-15,20`.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Layers {
    /// First and last of each run, ascending, at least one layer apart.
    runs: Vec<(u32, u32)>,
}

/// A text that names no layers.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} does not name layers, such as \"0-15,20\"")]
#[non_exhaustive]
pub struct LayersError(pub String);

impl Layers {
    /// No layer.
    pub const NONE: Self = Self { runs: Vec::new() };

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether this layer is one of them.
    pub fn contains(&self, layer: u32) -> bool {
        let at = self.runs.partition_point(|(_, last)| *last < layer);
        self.runs.get(at).is_some_and(|(first, _)| *first <= layer)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.runs().flatten()
    }

    /// Layers that follow one another.
    pub fn runs(&self) -> impl Iterator<Item = RangeInclusive<u32>> + Clone + '_ {
        self.runs.iter().map(|(first, last)| *first..=*last)
    }

    /// Those of this set that are in `other`, too.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let mut common = Self::NONE;
        let mut others = other.runs.as_slice();
        for &(first, last) in &self.runs {
            others = &others[others.partition_point(|(_, end)| *end < first)..];
            let meeting = others.iter().take_while(|(start, _)| *start <= last);
            common.runs.extend(meeting.map(|(start, end)| (first.max(*start), last.min(*end))));
        }
        common
    }

    /// Those of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Self::NONE;
        for &(first, last) in &self.runs {
            let mut next = Some(first);
            let from = other.runs.partition_point(|(_, end)| *end < first);
            for &(start, end) in other.runs[from..].iter().take_while(|(start, _)| *start <= last) {
                left.runs.extend(next.filter(|next| *next < start).map(|next| (next, start - 1)));
                next = end.checked_add(1);
            }
            left.runs.extend(next.filter(|next| *next <= last).map(|next| (next, last)));
        }
        left
    }

    /// The set of these runs, if they are ascending and apart.
    pub(crate) fn of_runs(runs: Vec<(u32, u32)>) -> Option<Self> {
        let is_apart = |a: &(u32, u32), b: &(u32, u32)| a.1.checked_add(1).is_some_and(|next| next < b.0);
        (runs.is_sorted_by(is_apart) && runs.iter().all(|(first, last)| first <= last))
            .then_some(Self { runs })
    }
}

impl From<Range<u32>> for Layers {
    fn from(layers: Range<u32>) -> Self {
        let last = layers.end.checked_sub(1).filter(|last| *last >= layers.start);
        Self { runs: last.map(|last| (layers.start, last)).into_iter().collect() }
    }
}

impl<const N: usize> From<[u32; N]> for Layers {
    fn from(layers: [u32; N]) -> Self {
        layers.into_iter().collect()
    }
}

/// In any order, each as often as you like.
impl FromIterator<u32> for Layers {
    fn from_iter<I: IntoIterator<Item = u32>>(layers: I) -> Self {
        layers.into_iter().map(|layer| layer..=layer).collect()
    }
}

/// In any order; they may overlap.
impl FromIterator<RangeInclusive<u32>> for Layers {
    fn from_iter<I: IntoIterator<Item = RangeInclusive<u32>>>(runs: I) -> Self {
        let mut given: Vec<_> = runs.into_iter().filter(|run| !run.is_empty()).collect();
        given.sort_unstable_by_key(|run| *run.start());
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (start, end) in given.into_iter().map(RangeInclusive::into_inner) {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1).is_none_or(|next| start <= next) => {
                    *last = end.max(*last);
                }
                _ => runs.push((start, end)),
            }
        }
        Self { runs }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.runs.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Layers {
    type Err = LayersError;

    fn from_str(text: &str) -> Result<Self, LayersError> {
        let run = |run: &str| {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let runs = text.split(',').filter(|_| !text.is_empty()).map(run).collect::<Option<Vec<_>>>();
        let error = || LayersError(text.chars().take(100).collect());
        runs.and_then(Self::of_runs).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every subset of six layers, the last two of which are the last there can be.
    fn sets() -> impl Iterator<Item = Vec<u32>> + Clone {
        let names = [0, 1, 2, 4, u32::MAX - 1, u32::MAX];
        (0..1_u32 << names.len()).map(move |bits| {
            names.into_iter().enumerate().filter(|(at, _)| bits >> at & 1 > 0).map(|(_, name)| name).collect()
        })
    }

    #[test]
    fn sets_are_what_their_layers_are() {
        for named in sets() {
            let layers: Layers = named.iter().rev().chain(&named).copied().collect();
            assert_eq!(layers.iter().collect::<Vec<_>>(), named);
            assert_eq!(layers.count(), named.len() as u64);
            assert_eq!(layers.is_empty(), named.is_empty());
            assert!((0..6).chain([u32::MAX - 1, u32::MAX]).all(|l| layers.contains(l) == named.contains(&l)));
            assert_eq!(layers.to_string().parse(), Ok(layers.clone()), "{layers}");
            assert_eq!(Layers::of_runs(layers.runs.clone()), Some(layers));
        }
    }

    #[test]
    fn sets_are_met_and_parted() {
        for (ours, theirs) in sets().flat_map(|a| sets().map(move |b| (a.clone(), b))) {
            let [a, b] = [&ours, &theirs].map(|set| set.iter().copied().collect::<Layers>());
            let (common, rest): (Vec<u32>, Vec<u32>) = ours.iter().partition(|layer| theirs.contains(layer));
            assert_eq!(a.common(&b), common.into_iter().collect(), "{a} and {b}");
            assert_eq!(a.without(&b), rest.into_iter().collect(), "{a} without {b}");
        }
    }

    #[test]
    fn ranges_are_sets() {
        assert_eq!(Layers::from(3..7).to_string(), "3-6");
        assert_eq!(Layers::from(3..3), Layers::NONE);
        assert_eq!(Layers::from([7, 3, 8, 3]).to_string(), "3,7-8");
        #[expect(clippy::reversed_empty_ranges, reason = "it names no layer")]
        let runs = [5..=9, 0..=1, 2..=3, 6..=7, 11..=u32::MAX, 4..=2];
        assert_eq!(runs.into_iter().collect::<Layers>().to_string(), format!("0-3,5-9,11-{}", u32::MAX));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["x", "3-1", "1,0", "0-9,5", "0,1", "0-3,4", "1,", ",", "-1", "4294967296"] {
            assert_eq!(text.parse::<Layers>(), Err(LayersError(text.into())));
        }
    }
}
