//! Admitted grants of a link and who is applying under them.
//!
//! A lane holds a grant only while it moves bytes, never while it waits for a peer, so `revoke` ends
//! soon however slow the peer is:
//!
//! ```text
//! begin(op) ... enter, move bytes, leave ... enter, move bytes, land, leave
//!                                   ^ a revoke here: nobody holds it, done at once
//!                    ^ a revoke here: done when the lane leaves
//! ```

use crate::ids::{GrantId, OpId};
use crate::layout::Admission;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// What the peer of one link may write now; shared by the lanes of the link.
#[derive(Debug, Default)]
pub(super) struct Grants {
    table: Mutex<HashMap<GrantId, Entry>>,
}

/// What to do with a write that arrives.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    /// Apply it as far as this allows.
    Apply(Arc<Admission>),
    /// Read it and throw it away: not admitted, or there already.
    Drop,
}

/// How a revocation stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Revoking {
    /// Nobody holds the grant.
    Done,
    /// Whoever leaves last reports it.
    Pending,
}

/// A writer whose operations leave more gaps than are kept track of.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("operations of a grant leave more than {MAX_GAPS} gaps")]
pub(super) struct TooManyGaps;

#[derive(Debug)]
struct Entry {
    admission: Arc<Admission>,
    appliers: u32,
    revokes: u32,
    ops: OpSet,
}

/// Numbers of operations, as sorted runs (first, last) that do not touch.
#[derive(Debug, Default)]
struct OpSet {
    runs: Vec<(u32, u32)>,
}

impl Grants {
    /// From now on writes under the grant may be applied.
    pub(super) fn admit(&self, grant: GrantId, admission: Arc<Admission>) {
        let mut table = self.table.lock();
        match table.get_mut(&grant) {
            // The number of a grant is not used again: one being revoked stays so.
            Some(entry) if entry.revokes > 0 => {}
            Some(entry) => entry.admission = admission,
            None => {
                let entry = Entry { admission, appliers: 0, revokes: 0, ops: OpSet::default() };
                table.insert(grant, entry);
            }
        }
    }

    /// From now on writes under the grant are thrown away.
    pub(super) fn revoke(&self, grant: GrantId) -> Revoking {
        let mut table = self.table.lock();
        match table.get_mut(&grant) {
            Some(entry) if entry.appliers > 0 => {
                entry.revokes += 1;
                Revoking::Pending
            }
            _ => {
                table.remove(&grant);
                Revoking::Done
            }
        }
    }

    /// A write arrives. Its operation counts as taken until it is given up by `reject`.
    ///
    /// # Errors
    /// The peer numbers its operations in a way that is not kept track of.
    pub(super) fn begin(&self, grant: GrantId, op: OpId) -> Result<Begin, TooManyGaps> {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(&grant).filter(|entry| entry.revokes == 0) else {
            return Ok(Begin::Drop);
        };
        let is_new = entry.ops.insert(op.0)?;
        Ok(if is_new { Begin::Apply(Arc::clone(&entry.admission)) } else { Begin::Drop })
    }

    /// Holds the grant while bytes move; `false` if it is not admitted any more.
    pub(super) fn enter(&self, grant: GrantId) -> bool {
        match self.table.lock().get_mut(&grant) {
            Some(entry) if entry.revokes == 0 => {
                entry.appliers += 1;
                true
            }
            _ => false,
        }
    }

    /// Ends what `enter` began. Returns how many revocations are done now.
    pub(super) fn leave(&self, grant: GrantId) -> u32 {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(&grant) else { return 0 };
        entry.appliers = entry.appliers.saturating_sub(1);
        let revokes = entry.revokes;
        if entry.appliers > 0 || revokes == 0 {
            return 0;
        }
        table.remove(&grant);
        revokes
    }

    /// Whether writes under a held grant still count.
    pub(super) fn is_admitted(&self, grant: GrantId) -> bool {
        self.table.lock().get(&grant).is_some_and(|entry| entry.revokes == 0)
    }

    /// The operation did not arrive whole: it may come again.
    pub(super) fn reject(&self, grant: GrantId, op: OpId) -> Result<(), TooManyGaps> {
        match self.table.lock().get_mut(&grant) {
            Some(entry) => entry.ops.remove(op.0),
            None => Ok(()),
        }
    }
}

impl OpSet {
    /// Whether `op` is new.
    fn insert(&mut self, op: u32) -> Result<bool, TooManyGaps> {
        let at = self.runs.partition_point(|&(_, last)| last < op);
        if self.runs.get(at).is_some_and(|&(first, _)| first <= op) {
            return Ok(false);
        }
        let joins_before = at > 0 && self.runs[at - 1].1.checked_add(1) == Some(op);
        let joins_after = self.runs.get(at).is_some_and(|&(first, _)| op.checked_add(1) == Some(first));
        match (joins_before, joins_after) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = op,
            (false, true) => self.runs[at].0 = op,
            (false, false) if self.runs.len() >= MAX_GAPS => return Err(TooManyGaps),
            (false, false) => self.runs.insert(at, (op, op)),
        }
        Ok(true)
    }

    fn remove(&mut self, op: u32) -> Result<(), TooManyGaps> {
        let at = self.runs.partition_point(|&(_, last)| last < op);
        let Some(&(first, last)) = self.runs.get(at) else { return Ok(()) };
        if op < first {
            return Ok(());
        }
        match (op > first, op < last) {
            (true, true) if self.runs.len() >= MAX_GAPS => return Err(TooManyGaps),
            (true, true) => {
                self.runs[at].1 = op - 1;
                self.runs.insert(at + 1, (op + 1, last));
            }
            (true, false) => self.runs[at].1 = op - 1,
            (false, true) => self.runs[at].0 = op + 1,
            (false, false) => {
                self.runs.remove(at);
            }
        }
        Ok(())
    }
}

/// Runs of operations kept for one grant. Lanes deliver nearly in order, so a few are enough.
const MAX_GAPS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_op_set_agrees_with_a_plain_set_in_any_order() {
        let (mut set, mut plain) = (OpSet::default(), BTreeSet::new());
        let mut random = 12345_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let op = u32::try_from(random >> 40).unwrap() % 64;
            let op = if op == 63 { u32::MAX } else { op };
            if random & (1 << 20) == 0 {
                assert_eq!(set.insert(op), Ok(plain.insert(op)));
            } else {
                set.remove(op).unwrap();
                plain.remove(&op);
            }
            let listed: BTreeSet<u32> = set.runs.iter().flat_map(|&(first, last)| first..=last).collect();
            assert_eq!(listed, plain);
            assert!(set.runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", set.runs);
        }
    }

    #[test]
    fn gaps_are_bounded() {
        let mut set = OpSet::default();
        for op in 0..MAX_GAPS {
            assert_eq!(set.insert(u32::try_from(op * 2).unwrap()), Ok(true));
        }
        assert_eq!(set.insert(u32::MAX), Err(TooManyGaps));
        assert_eq!(set.insert(1), Ok(true));
    }
}
