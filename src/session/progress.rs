//! Tokens done, a layer at a time: chunks may cover some layers only, but each layer's tokens come
//! without gap or overlap.

use std::ops::Range;

/// How far each layer of a room has come.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// Global layer numbers, ascending. Empty for pools without layers, which count as one.
    layers: Vec<u32>,
    /// Tokens done, one a layer.
    done: Vec<u32>,
    started: bool,
}

/// Tokens that do not continue where the last chunk of a layer ended.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgressError {
    /// A layer has come this far and is continued elsewhere.
    #[error("layer {layer} has come to token {done}, the chunk starts at {start}")]
    Gap {
        /// The layer.
        layer: u32,
        /// Tokens it has.
        done: u32,
        /// Where the chunk starts.
        start: u32,
    },
    /// The layers named are none of the pool's.
    #[error("layers {0:?} are not in the pool")]
    Layers(Range<u32>),
    /// A range that ends before it starts.
    #[error("tokens {0:?} end before they start")]
    Reversed(Range<u32>),
}

impl Progress {
    pub(super) fn new(mut layers: Vec<u32>) -> Self {
        layers.sort_unstable();
        layers.dedup();
        let done = vec![0; layers.len().max(1)];
        Self { layers, done, started: false }
    }

    /// Counts a chunk. The first one may start anywhere; the tokens before it are counted as done for
    /// every layer.
    pub(super) fn advance(
        &mut self,
        tokens: &Range<u32>,
        layers: Option<&Range<u32>>,
    ) -> Result<(), ProgressError> {
        if tokens.start > tokens.end {
            return Err(ProgressError::Reversed(tokens.clone()));
        }
        let slots = self.slots(layers)?;
        if !self.started {
            self.done.fill(tokens.start);
            self.started = true;
        }
        if let Some(slot) = slots.clone().find(|&slot| self.done[slot] != tokens.start) {
            let layer = self.layers.get(slot).copied().unwrap_or(0);
            return Err(ProgressError::Gap { layer, done: self.done[slot], start: tokens.start });
        }
        self.done[slots].fill(tokens.end);
        Ok(())
    }

    /// Whether any of these layers is counted.
    pub(super) fn concerns(&self, layers: Option<&Range<u32>>) -> bool {
        self.slots(layers).is_ok()
    }

    /// Whether a chunk was counted before.
    pub(super) fn is_repeated(&self, tokens: &Range<u32>, layers: Option<&Range<u32>>) -> bool {
        let known = |slots: Range<usize>| self.done[slots].iter().all(|done| *done >= tokens.end);
        self.started && !tokens.is_empty() && self.slots(layers).is_ok_and(known)
    }

    /// Tokens done in every layer.
    pub(super) fn tokens(&self) -> u32 {
        self.done.iter().copied().min().unwrap_or(0)
    }

    /// Tokens done in this layer; `None` if the pool has no such layer.
    pub(super) fn tokens_of(&self, layer: u32) -> Option<u32> {
        self.layers.binary_search(&layer).ok().map(|slot| self.done[slot])
    }

    /// The layer that is not at `total`, and where it is.
    pub(super) fn behind(&self, total: u32) -> Option<(u32, u32)> {
        if !self.started {
            return None;
        }
        let slot = self.done.iter().position(|&done| done != total)?;
        Some((self.layers.get(slot).copied().unwrap_or(0), self.done[slot]))
    }

    fn slots(&self, layers: Option<&Range<u32>>) -> Result<Range<usize>, ProgressError> {
        let Some(layers) = layers else { return Ok(0..self.done.len()) };
        let start = self.layers.partition_point(|&layer| layer < layers.start);
        let end = self.layers.partition_point(|&layer| layer < layers.end);
        if start >= end { Err(ProgressError::Layers(layers.clone())) } else { Ok(start..end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_advance_apart_and_the_slowest_counts() {
        let mut progress = Progress::new(vec![3, 1, 2]);
        progress.advance(&(8..16), Some(&(1..3))).unwrap();
        assert_eq!(progress.tokens(), 8);
        progress.advance(&(8..16), Some(&(3..9))).unwrap();
        assert_eq!((progress.tokens(), progress.tokens_of(2), progress.tokens_of(7)), (16, Some(16), None));
        let gap = progress.advance(&(20..24), None);
        assert_eq!(gap, Err(ProgressError::Gap { layer: 1, done: 16, start: 20 }));
        assert_eq!(progress.behind(16), None);
    }

    #[test]
    fn pools_without_layers_count_as_one() {
        let mut progress = Progress::new(Vec::new());
        progress.advance(&(0..4), None).unwrap();
        assert_eq!(progress.tokens(), 4);
        assert!(progress.advance(&(4..5), Some(&(0..1))).is_err());
    }
}
