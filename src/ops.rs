//! Sets of write numbers. Writes arrive nearly in order over a few lanes, so a set is a handful of
//! intervals; a peer that makes it many breaks the protocol.

use crate::ids::OpId;
use std::ops::Range;

/// Distinct write numbers seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpSet {
    /// Disjoint, ascending, never adjacent.
    runs: Vec<Range<u64>>,
    count: u32,
}

/// A writer whose numbers leave more gaps than any honest order of arrival does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("operations of a grant leave more than {MAX_RUNS} gaps")]
pub(crate) struct TooManyGaps;

impl OpSet {
    /// Adds a number; answers whether it is new.
    pub(crate) fn insert(&mut self, op: OpId) -> Result<bool, TooManyGaps> {
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
            _ if full => return Err(TooManyGaps),
            _ => self.runs.insert(at, op..op + 1),
        }
        self.count += 1;
        Ok(true)
    }

    /// Takes a number out again; nothing if it is not in.
    pub(crate) fn remove(&mut self, op: OpId) -> Result<(), TooManyGaps> {
        let op = u64::from(op.0);
        let at = self.runs.partition_point(|run| run.end <= op);
        let full = self.runs.len() >= MAX_RUNS;
        let Some(run) = self.runs.get_mut(at).filter(|run| run.contains(&op)) else { return Ok(()) };
        match (run.start == op, run.end == op + 1) {
            (true, true) => drop(self.runs.remove(at)),
            (true, false) => run.start = op + 1,
            (false, true) => run.end = op,
            (false, false) if full => return Err(TooManyGaps),
            (false, false) => {
                let behind = op + 1..run.end;
                run.end = op;
                self.runs.insert(at + 1, behind);
            }
        }
        self.count -= 1;
        Ok(())
    }

    /// How many numbers are in.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// The largest number in, plus one.
    pub(crate) fn end(&self) -> u64 {
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

    #[test]
    fn an_op_set_agrees_with_a_plain_set_in_any_order() {
        let (mut set, mut plain) = (OpSet::default(), BTreeSet::new());
        let mut random = 12345_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let op = u32::try_from(random >> 40).unwrap() % 64;
            let op = if op == 63 { u32::MAX } else { op };
            if random & (1 << 20) == 0 {
                assert_eq!(set.insert(OpId(op)), Ok(plain.insert(op)));
            } else {
                set.remove(OpId(op)).unwrap();
                plain.remove(&op);
            }
            let listed: BTreeSet<u64> = set.runs.iter().cloned().flatten().collect();
            assert_eq!(listed, plain.iter().copied().map(u64::from).collect());
            assert_eq!(set.len() as usize, plain.len());
            assert!(set.runs.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", set.runs);
        }
    }

    #[test]
    fn gaps_are_bounded() {
        let mut set = OpSet::default();
        for op in 0..MAX_RUNS {
            assert_eq!(set.insert(OpId(u32::try_from(op * 2).unwrap())), Ok(true));
        }
        assert_eq!(set.insert(OpId(u32::MAX)), Err(TooManyGaps));
        assert_eq!(set.insert(OpId(1)), Ok(true));
    }
}
