//! Sets of write numbers. Writes arrive nearly in order over a few lanes, so a set is a handful of
//! intervals; a peer that makes it many breaks the protocol.

use crate::ids::OpId;
use std::ops::Range;

/// Distinct write numbers seen.
#[derive(Clone, Debug, Default)]
pub(super) struct OpSet {
    /// Disjoint, ascending, never adjacent.
    runs: Vec<Range<u64>>,
    count: u32,
}

/// More intervals than any honest order of arrival makes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TooScattered;

impl OpSet {
    /// Adds a number; answers whether it is new.
    pub(super) fn insert(&mut self, op: OpId) -> Result<bool, TooScattered> {
        let op = u64::from(op.0);
        let at = self.runs.partition_point(|run| run.end < op);
        let full = self.runs.len() >= MAX_RUNS;
        match self.runs.get_mut(at) {
            Some(run) if run.contains(&op) => return Ok(false),
            Some(run) if run.end == op => {
                run.end += 1;
                if self.runs.get(at + 1).is_some_and(|next| next.start == op + 1) {
                    self.runs[at].end = self.runs.remove(at + 1).end;
                }
            }
            Some(run) if run.start == op + 1 => run.start = op,
            _ if full => return Err(TooScattered),
            _ => self.runs.insert(at, op..op + 1),
        }
        self.count += 1;
        Ok(true)
    }

    /// How many numbers are in.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// The largest number in, plus one.
    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }
}

const MAX_RUNS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn counts_distinct_numbers_in_any_order() {
        let (mut set, mut wanted) = (OpSet::default(), BTreeSet::new());
        let mut x = 7_u32;
        for _ in 0..4000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let op = x >> 22;
            assert_eq!(set.insert(OpId(op)), Ok(wanted.insert(op)));
        }
        assert_eq!(set.len() as usize, wanted.len());
        assert_eq!(set.end(), u64::from(*wanted.last().unwrap()) + 1);
    }

    #[test]
    fn scattered_numbers_are_bounded() {
        let mut set = OpSet::default();
        let refused = (0..u32::MAX).step_by(2).position(|op| set.insert(OpId(op)).is_err());
        assert_eq!(refused, Some(MAX_RUNS));
    }
}
