//! What a sender lends to its peer for reading, and takes back at once.
//!
//! # Protocol
//! The sender has a page of numbers that its peer can read: one, the *lease*, for each grant under which
//! something is posted and not over. A write names its lease and the number it had when the write was
//! posted. The peer looks at the lease before it copies a piece, and again after it:
//!
//! ```text
//!  sender                                peer's copier
//!  post(write, lease 5 = 0) -----------> lease 5 = 0? yes
//!                                        copies a piece
//!                                        fence; lease 5 = 0? yes: the piece counts
//!  recall: lease 5 = 1; fence            copies a piece
//!  pages are the caller's                fence; lease 5 = 0? no: nothing of this write counts
//! ```
//!
//! # Law
//! After `recall` the sender's pages may be written at once, whatever the peer does: running, frozen or
//! dead, it can only read them. What it read too late never counts: if it saw a byte written after the
//! recall, it sees the recall (its fence after the copy pairs with the fence before the pages go back). Its
//! own pages are protected by its own grant, of which this says nothing. A write whose last piece counted
//! before the recall has landed, as if the recall had come later.

use crate::ids::GrantId;
use crate::sync::{AtomicU64, Ordering, fence};
use std::collections::HashMap;

/// What a write was posted under.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Lease {
    pub(super) slot: u32,
    pub(super) number: u64,
}

/// The leases of one link at the sender. Their numbers lie in memory that the peer can read.
#[derive(Debug, Default)]
pub(super) struct Leases {
    used: HashMap<GrantId, Use>,
    free: Vec<u32>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    slot: u32,
    unsettled: u32,
}

impl Leases {
    /// The lease for one more write under a grant; none if all are in use.
    pub(super) fn take(&mut self, words: &[AtomicU64], grant: GrantId) -> Option<Lease> {
        let slot = match self.used.get_mut(&grant) {
            Some(used) => {
                used.unsettled += 1;
                used.slot
            }
            None => {
                let slot = self.free.pop().unwrap_or(self.next);
                words.get(usize::try_from(slot).ok()?)?;
                self.next = self.next.max(slot + 1);
                self.used.insert(grant, Use { slot, unsettled: 1 });
                slot
            }
        };
        // Relaxed: only this side writes it.
        Some(Lease { slot, number: words[usize::try_from(slot).ok()?].load(Ordering::Relaxed) })
    }

    /// A write under the grant is over.
    pub(super) fn give_back(&mut self, grant: GrantId) {
        let Some(used) = self.used.get_mut(&grant) else { return };
        used.unsettled -= 1;
        if used.unsettled == 0 {
            self.free.push(used.slot);
            self.used.remove(&grant);
        }
    }

    /// Takes back everything that was posted under the grant until now. When this returns, nothing that is
    /// written to the pages afterwards can count at the peer.
    pub(super) fn recall(&mut self, words: &[AtomicU64], grant: GrantId) {
        if let Some(used) = self.used.get(&grant) {
            recall(words, used.slot);
        }
        // Pairs with the fence in `still_holds`.
        fence(Ordering::SeqCst);
    }

    /// Takes back everything.
    pub(super) fn recall_all(&mut self, words: &[AtomicU64]) {
        self.used.values().for_each(|used| recall(words, used.slot));
        fence(Ordering::SeqCst);
    }
}

impl Lease {
    /// Before a copy: whether it is worth making.
    pub(super) fn holds(self, words: &[AtomicU64]) -> bool {
        let word = usize::try_from(self.slot).ok().and_then(|slot| words.get(slot));
        word.is_some_and(|word| word.load(Ordering::Relaxed) == self.number)
    }

    /// After a copy: whether it counts.
    pub(super) fn still_holds(self, words: &[AtomicU64]) -> bool {
        // Pairs with the fence in `recall`: the bytes copied were read before the number is.
        fence(Ordering::SeqCst);
        self.holds(words)
    }
}

fn recall(words: &[AtomicU64], slot: u32) {
    if let Some(word) = usize::try_from(slot).ok().and_then(|slot| words.get(slot)) {
        // Relaxed: the fence that follows orders it before the pages are written again.
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// Leases of one link: more grants than this cannot have unsettled writes at once.
pub(super) const LEASES: usize = 4096;
