//! The room tables of an engine, and the timers of its rooms.

use super::groups::Shares;
use super::slot::{Details, Granted, Slot};
use super::sources::Sources;
use super::targets::Candidates;
use crate::error::KVTransferError;
use crate::ids::{Attempt, LinkId, Rank, Room, Side};
use crate::layout::TokenShard;
use crate::memory::Mark;
use crate::poll::{KVPoll, Release};
use crate::session::{Outcome, ReceiverSession, SenderSession, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// A live transfer of this engine.
pub(super) type Key = (Side, Room);

/// What waits for a peer.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Waiter {
    /// A room, for a rank that shares its outcome.
    Group(Key),
    /// A receiver, for its source.
    Receiver(Room),
}

#[derive(Debug)]
pub(super) struct SenderRoom {
    pub(super) slot: Arc<Slot>,
    pub(super) attempt: Attempt,
    pub(super) session: SenderSession,
    /// How its tokens are dealt out to ranks.
    pub(super) tokens: TokenShard,
    /// Chunks whose bytes may not be read yet.
    pub(super) marks: Vec<(usize, Vec<Mark>)>,
    /// Chunks given so far.
    pub(super) chunks: usize,
    pub(super) path: Option<&'static str>,
    /// What the outcome has to do with other ranks.
    pub(super) shares: Option<Box<Shares>>,
    armed: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct ReceiverRoom {
    pub(super) slot: Arc<Slot>,
    pub(super) session: ReceiverSession,
    /// Where its sources come from, until they are known.
    pub(super) unresolved: Option<Sources>,
    /// Sources known and not yet connected.
    pub(super) wanted: BTreeMap<Rank, Wanted>,
    /// Those that were.
    pub(super) reached: BTreeMap<Rank, Wanted>,
    pub(super) path: Option<&'static str>,
    /// Which transport each of its links belongs to, or did.
    pub(super) transports: BTreeMap<LinkId, usize>,
    /// What the outcome has to do with other ranks.
    pub(super) shares: Option<Box<Shares>>,
    armed: Option<Instant>,
}

/// A source that has to be reached.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) candidates: Candidates,
    pub(super) instance: Option<crate::ids::Instance>,
}

#[derive(Debug, Default)]
pub(super) struct Rooms {
    pub(super) senders: BTreeMap<Room, SenderRoom>,
    pub(super) receivers: BTreeMap<Room, ReceiverRoom>,
    timers: BTreeSet<(Instant, Key)>,
    /// Senders that wait for a mark.
    pub(super) marked: BTreeSet<Room>,
    /// Rooms whose pages are not safe although their time is over.
    pub(super) quarantined: BTreeSet<Key>,
    /// Receivers whose sources are not known.
    pub(super) unresolved: BTreeSet<Room>,
    /// Rooms whose group is not known.
    pub(super) ungrouped: BTreeSet<Key>,
    /// Sources to be connected again for what they may have said last.
    pub(super) lost: Vec<(Room, Rank)>,
}

impl SenderRoom {
    pub(super) fn new(
        slot: Arc<Slot>,
        attempt: Attempt,
        session: SenderSession,
        tokens: TokenShard,
        shares: Option<Box<Shares>>,
    ) -> Self {
        Self { slot, attempt, session, tokens, marks: Vec::new(), chunks: 0, path: None, shares, armed: None }
    }

    fn details(&self) -> Details {
        let granted = self.session.granted();
        Details {
            granted: granted.map(|(held_tokens, destinations)| Granted { held_tokens, destinations }),
            waiting_for: self.session.waiting_for(),
            figures: Some(self.session.figures()),
            path: self.path,
            ..Details::default()
        }
    }
}

impl ReceiverRoom {
    pub(super) fn new(
        slot: Arc<Slot>,
        session: ReceiverSession,
        from: Sources,
        shares: Option<Box<Shares>>,
    ) -> Self {
        let unresolved = Some(from);
        Self {
            slot,
            session,
            unresolved,
            wanted: BTreeMap::new(),
            reached: BTreeMap::new(),
            path: None,
            transports: BTreeMap::new(),
            shares,
            armed: None,
        }
    }

    fn details(&self, state: KVPoll) -> Details {
        let session = &self.session;
        let payloads = if state == KVPoll::Success {
            session.payloads().map(|(rank, bytes)| (rank, bytes.clone())).collect()
        } else {
            Vec::new()
        };
        Details {
            offer: session.offered().cloned(),
            payloads,
            waiting_for: session.waiting_for(),
            layers_ready: session.ready_by_layer(),
            figures: Some(session.figures()),
            path: self.path,
            ..Details::default()
        }
    }
}

impl Rooms {
    pub(super) fn session(&mut self, key: Key) -> Option<&mut dyn Session> {
        Some(match key.0 {
            Side::Prefill => &mut self.senders.get_mut(&key.1)?.session,
            Side::Decode => &mut self.receivers.get_mut(&key.1)?.session,
        })
    }

    /// What a room has to do with other ranks, if its outcome is theirs too.
    pub(super) fn shares(&mut self, key: Key) -> Option<&mut Shares> {
        self.shared_room(key).map(|(_, shares)| shares)
    }

    /// A room whose outcome is that of other ranks, too.
    pub(super) fn shared_room(&mut self, key: Key) -> Option<(&mut dyn Session, &mut Shares)> {
        Some(match key.0 {
            Side::Prefill => {
                let room = self.senders.get_mut(&key.1)?;
                (&mut room.session, room.shares.as_deref_mut()?)
            }
            Side::Decode => {
                let room = self.receivers.get_mut(&key.1)?;
                (&mut room.session, room.shares.as_deref_mut()?)
            }
        })
    }

    /// What is shown of a room, and why it failed.
    fn view(&self, key: Key) -> Option<(&Arc<Slot>, KVPoll, Release, Option<&KVTransferError>)> {
        let (slot, session, shares): (_, &dyn Session, _) = match key.0 {
            Side::Prefill => {
                let room = self.senders.get(&key.1)?;
                (&room.slot, &room.session, &room.shares)
            }
            Side::Decode => {
                let room = self.receivers.get(&key.1)?;
                (&room.slot, &room.session, &room.shares)
            }
        };
        let (own, release) = (session.state(), session.release());
        let Some(shares) = shares else { return Some((slot, own, release, session.error())) };
        let error = match shares.member.outcome() {
            Some(Outcome::Failed(error)) => Some(&**error),
            _ => None,
        };
        Some((slot, shares.shown(own, slot.poll()), release, error))
    }

    fn deadline_of(&self, key: Key) -> Option<Instant> {
        let (own, shares) = match key.0 {
            Side::Prefill => self.senders.get(&key.1).map(|room| (room.session.deadline(), &room.shares))?,
            Side::Decode => self.receivers.get(&key.1).map(|room| (room.session.deadline(), &room.shares))?,
        };
        let shared = shares.as_ref().and_then(|shares| shares.member.deadline());
        own.into_iter().chain(shared).min()
    }

    /// What is to be shown of a room.
    pub(super) fn standing(&self, key: Key) -> Option<(KVPoll, Release)> {
        self.view(key).map(|(_, state, release, _)| (state, release))
    }

    pub(super) fn slot(&self, key: Key) -> Option<&Arc<Slot>> {
        Some(match key.0 {
            Side::Prefill => &self.senders.get(&key.1)?.slot,
            Side::Decode => &self.receivers.get(&key.1)?.slot,
        })
    }

    /// The sender this handle belongs to, unless its room has another use by now.
    pub(super) fn sender_of(&mut self, slot: &Arc<Slot>) -> Option<&mut SenderRoom> {
        self.senders.get_mut(&slot.room).filter(|room| Arc::ptr_eq(&room.slot, slot))
    }

    /// The receiver this handle belongs to.
    pub(super) fn receiver_of(&mut self, slot: &Arc<Slot>) -> Option<&mut ReceiverRoom> {
        self.receivers.get_mut(&slot.room).filter(|room| Arc::ptr_eq(&room.slot, slot))
    }

    /// Stores what the caller may see. Answers whether that is news.
    pub(super) fn publish(&self, key: Key, full: bool) -> bool {
        let Some((slot, state, release, error)) = self.view(key) else { return false };
        let (ready, details) = match key.0 {
            Side::Prefill => {
                let Some(room) = self.senders.get(&key.1) else { return false };
                (0, full.then(|| room.details()))
            }
            Side::Decode => {
                let Some(room) = self.receivers.get(&key.1) else { return false };
                (room.session.ready_tokens(), full.then(|| room.details(state)))
            }
        };
        slot.publish(state, release, error, ready, details)
    }

    /// Sets the room's timer, if its next deadline is earlier than the one set. A later one is seen to
    /// when the timer fires, so that progress costs nothing here.
    pub(super) fn arm(&mut self, key: Key) {
        let Some(deadline) = self.deadline_of(key) else { return };
        let Some(armed) = self.armed(key) else { return };
        if armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        let before = armed.replace(deadline);
        if let Some(before) = before {
            self.timers.remove(&(before, key));
        }
        self.timers.insert((deadline, key));
    }

    /// The next room whose timer has fired.
    pub(super) fn due(&mut self, now: Instant) -> Option<Key> {
        let &(at, key) = self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.remove(&(at, key));
        if let Some(armed) = self.armed(key) {
            *armed = None;
        }
        Some(key)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// How many timers are set.
    pub(super) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(super) fn remove_sender(&mut self, room: Room) -> Option<SenderRoom> {
        self.quarantined.remove(&(Side::Prefill, room));
        self.disarm((Side::Prefill, room));
        self.marked.remove(&room);
        self.senders.remove(&room)
    }

    pub(super) fn remove_receiver(&mut self, room: Room) -> Option<ReceiverRoom> {
        self.quarantined.remove(&(Side::Decode, room));
        self.disarm((Side::Decode, room));
        self.unresolved.remove(&room);
        self.receivers.remove(&room)
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let senders = self.senders.keys().map(|room| (Side::Prefill, *room));
        senders.chain(self.receivers.keys().map(|room| (Side::Decode, *room))).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.senders.is_empty() && self.receivers.is_empty()
    }

    fn disarm(&mut self, key: Key) {
        if let Some(at) = self.armed(key).and_then(Option::take) {
            self.timers.remove(&(at, key));
        }
    }

    fn armed(&mut self, key: Key) -> Option<&mut Option<Instant>> {
        Some(match key.0 {
            Side::Prefill => &mut self.senders.get_mut(&key.1)?.armed,
            Side::Decode => &mut self.receivers.get_mut(&key.1)?.armed,
        })
    }
}
