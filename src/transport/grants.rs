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
use crate::ops::{OpSet, TooManyGaps};
use crate::sync::Mutex;
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

#[derive(Debug)]
struct Entry {
    admission: Arc<Admission>,
    appliers: u32,
    revokes: u32,
    ops: OpSet,
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
        let is_new = entry.ops.insert(op)?;
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
            Some(entry) => entry.ops.remove(op),
            None => Ok(()),
        }
    }
}
