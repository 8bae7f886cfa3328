//! What handles ask of the core.

use super::core::{Core, News};
use super::groups::Shares;
use super::rooms::{ReceiverRoom, SenderRoom};
use super::shared::{Command, Group, Shared};
use super::slot::Slot;
use super::sources::Sources;
use crate::config::{Deadlines, Limits};
use crate::error::ErrorKind;
use crate::ids::{Attempt, Room, Side};
use crate::memory::Mark;
use crate::session::{Adopted, Parked, ReceiverSession, SenderSession};
use std::sync::Arc;
use std::time::Instant;

impl Core {
    pub(super) fn take_commands(&mut self, shared: &Shared, now: Instant) -> usize {
        let mut did = 0;
        // Bounded by what is there now, so that busy callers cannot hold the turn.
        for _ in 0..shared.inbox.commands() {
            let Some(command) = shared.inbox.pop_command() else { break };
            self.command(shared, now, command);
            did += 1;
        }
        did
    }

    fn command(&mut self, shared: &Shared, now: Instant, command: Command) {
        let slot = match command {
            Command::OpenSender { slot, attempt, deadlines, tokens, group } => {
                let party = shared.party(Side::Prefill);
                let Limits { write_bytes, retransmits, .. } = shared.config.limits;
                let session = SenderSession::new(now, slot.room, party, deadlines, write_bytes, retransmits);
                let shares = shares(shared, now, deadlines, group);
                let room = SenderRoom::new(Arc::clone(&slot), attempt, session, tokens, shares);
                return self.open_sender(shared, now, slot, room);
            }
            Command::OpenReceiver { slot, id, from, deadlines, layers, group } => {
                let rank = shared.place.rank;
                let party = shared.party(Side::Decode);
                let session = ReceiverSession::new(now, id, party, deadlines, vec![rank], layers);
                let shares = shares(shared, now, deadlines, group);
                let room = ReceiverRoom::new(Arc::clone(&slot), session, from, shares);
                self.rooms.receivers.insert(slot.room, room);
                let told = self.open_ballot(now, (Side::Decode, slot.room));
                self.resolve(shared, now, slot.room);
                self.join_group(shared, now, (Side::Decode, slot.room), told);
                return self.grant_wish(shared, now, &slot);
            }
            Command::Reject { room, attempt, detail } => {
                return self.reject(shared, now, room, attempt, detail);
            }
            Command::Chunk { slot, mut chunk, marks } => {
                if let Some(room) = self.rooms.sender_of(&slot) {
                    chunk.ready = !watch(shared, room, &marks);
                    room.session.send(now, chunk);
                    room.chunks += 1;
                }
                slot
            }
            Command::Finish { slot, mut finish, marks } => {
                if let Some(room) = self.rooms.sender_of(&slot) {
                    finish.ready = !watch(shared, room, &marks);
                    room.session.finish(now, finish);
                }
                slot
            }
            Command::Offer { slot, offer } => {
                if let Some(room) = self.rooms.sender_of(&slot) {
                    room.session.offer(now, offer);
                }
                slot
            }
            Command::Grant { slot, lent } => {
                if let Some(room) = self.rooms.receiver_of(&slot) {
                    room.session.grant(now, lent);
                }
                slot
            }
            Command::SetDp { slot, dp: chosen } => {
                let room = self.rooms.receiver_of(&slot);
                if let Some(Sources::Group { dp, .. }) = room.and_then(|room| room.unresolved.as_mut()) {
                    *dp = Some(chosen);
                    self.resolve(shared, now, slot.room);
                }
                return;
            }
        };
        if self.rooms.senders.get(&slot.room).is_some_and(|room| !room.marks.is_empty()) {
            self.rooms.marked.insert(slot.room);
        }
        let key = (slot.side, slot.room);
        if self.rooms.slot(key).is_some_and(|owner| Arc::ptr_eq(owner, &slot)) {
            self.follow_up(shared, now, key, News::All);
        }
    }

    fn open_sender(&mut self, shared: &Shared, now: Instant, slot: Arc<Slot>, made: SenderRoom) {
        let (room, attempt) = (slot.room, made.attempt);
        self.rooms.senders.insert(room, made);
        let told = self.open_ballot(now, (Side::Prefill, room));
        self.join_group(shared, now, (Side::Prefill, room), told);
        let Adopted { parked, aborted, left, .. } = self.lobby.adopt(room, attempt);
        if let (Some(cause), Some(sender)) = (aborted, self.rooms.senders.get_mut(&room)) {
            sender.session.left_early(now, left, &cause);
        }
        for Parked { link, party, id, frame, .. } in parked {
            if self.rooms.sender_of(&slot).is_some() {
                self.sender_frame(shared, now, link, id, frame);
            } else {
                // It ended over the frames before: these are answered like any late one.
                let answers = self.lobby.frame(now, link, party, id, frame, 0);
                self.answer(answers);
            }
        }
        self.follow_up(shared, now, (Side::Prefill, room), News::All);
        self.grant_wish(shared, now, &slot);
    }

    fn reject(&mut self, shared: &Shared, now: Instant, room: Room, attempt: Attempt, detail: String) {
        if self.rooms.senders.get(&room).is_some_and(|sender| sender.attempt == attempt) {
            return; // it has a sender, which decides for itself
        }
        let cause = shared.cause(Side::Prefill, ErrorKind::Rejected, detail);
        let answers = self.lobby.bury(now, room, attempt, cause, Vec::new());
        self.answer(answers);
    }
}

/// The part of a new room in the outcome it shares with others.
fn shares(
    shared: &Shared,
    now: Instant,
    deadlines: Deadlines,
    group: Option<Box<Group>>,
) -> Option<Box<Shares>> {
    let Group { id, ranks, outcome } = *group?;
    Some(Box::new(Shares::new(now, id, shared.party(id.side), ranks, outcome, deadlines.discover)))
}

/// Keeps the marks of a chunk that are not ready, and nudges the driver when one is. Answers whether there are any.
fn watch(shared: &Shared, room: &mut SenderRoom, marks: &[Mark]) -> bool {
    let pending: Vec<_> = marks.iter().filter(|mark| !mark.is_ready()).cloned().collect();
    for mark in &pending {
        let inbox = Arc::clone(&shared.inbox);
        mark.on_ready(Box::new(move || inbox.nudge()));
    }
    let has_pending = !pending.is_empty();
    if has_pending {
        room.marks.push((room.chunks, pending));
    }
    has_pending
}
