//! The change feed: which rooms changed since last asked, so that nobody scans all of them.

use super::slot::Slot;
use crate::doorbell::Doorbell;
use crate::ids::{Generation, Room, Side};
use crate::poll::{KVPoll, Release};
use crate::sync::{AtomicBool, Ordering, SegQueue};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A room that changed, as it is now. Several changes of a room between two looks are one, and none is
/// reported twice: each room ends once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Change {
    /// The caller's number, from [`RoomOptions::tag`](super::RoomOptions::tag).
    pub tag: u64,
    /// The room.
    pub room: Room,
    /// The receiver's generation; 0 for senders.
    pub generation: Generation,
    /// Which side of the room.
    pub side: Side,
    /// Where it stands.
    pub state: KVPoll,
    /// Whether its pages are the caller's again.
    pub release: Release,
    /// Tokens in place (receivers).
    pub tokens_ready: u32,
    /// Whether an offer has come (receivers).
    pub offered: bool,
    /// Whether every grant is in (senders).
    pub granted: bool,
}

/// At most one entry a room, and none before somebody reads.
#[derive(Debug)]
pub(crate) struct Feed {
    changed: SegQueue<Arc<Slot>>,
    bell: Doorbell,
    is_read: AtomicBool,
}

impl Feed {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { changed: SegQueue::new(), bell: Doorbell::new()?, is_read: AtomicBool::new(false) })
    }

    pub(crate) fn note(&self, slot: &Arc<Slot>) {
        if self.is_read.load(Ordering::Acquire) && !slot.is_changed.swap(true, Ordering::AcqRel) {
            self.changed.push(Arc::clone(slot));
            self.bell.write();
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.is_read.store(true, Ordering::Release);
        self.bell.fd()
    }

    pub(crate) fn drain(&self, out: &mut Vec<Change>) -> usize {
        self.is_read.store(true, Ordering::Release);
        self.bell.clear(); // before reading: what comes later rings again
        let before = out.len();
        // Bounded by what is there now, so that a busy engine cannot hold the caller.
        for _ in 0..self.changed.len() {
            let Some(slot) = self.changed.pop() else { break };
            // A swap, so that either this sees the change or whoever makes it queues the slot again.
            slot.is_changed.swap(false, Ordering::AcqRel);
            let change = Change::of(&slot);
            // A change may have been read with the one before it, and is then not news.
            if slot.reported.lock().replace(change) != Some(change) {
                out.push(change);
            }
        }
        if !self.changed.is_empty() {
            self.bell.write();
        }
        out.len() - before
    }
}

impl Change {
    fn of(slot: &Slot) -> Self {
        let state = slot.poll();
        // Stored before the state: seen without its end it would be told as something that cannot be. The
        // end is about to be noted.
        let release = if state.is_terminal() { slot.release() } else { Release::Held };
        let (offered, granted) = slot.details(|details| (details.offer.is_some(), details.granted.is_some()));
        Self {
            tag: slot.tag,
            room: slot.room,
            generation: slot.generation,
            side: slot.side,
            state,
            release,
            tokens_ready: slot.ready_tokens(),
            offered,
            granted,
        }
    }
}
