//! The prefill side of a room: grants and chunks in, writes out, then `Done`.
//!
//! - `mod.rs`: work in, conclusions
//! - `joining.rs`: receivers and what they lend
//! - `writing.rs`: writes out, and how they end

mod joining;
mod writing;

pub use joining::JoinedLink;
pub use writing::{Settlement, WriteJob};

use super::course::Course;
use super::destination::Destination;
use super::phase::Trigger;
use super::work::{Chunk, Finish, Work};
use super::{Action, Figures, Session};
use crate::config::Deadlines;
use crate::error::{ErrorKind, Fault, KVTransferError, Origin};
use crate::ids::{GrantId, LinkId, Party, Rank, Room, Side};
use crate::poll::{KVPoll, Release};
use crate::wire::{Cause, Done, Offer, RoomFrame, Status};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Instant;

/// The prefill side of one room on one rank.
#[derive(Debug)]
pub struct SenderSession {
    course: Course,
    write_bytes: u64,
    retransmits: u32,
    /// The ranks that will all have to grant, as the first `Join` named them.
    expected: Vec<Rank>,
    /// Those that came after the end and were told of it, or went before the start and know of it.
    told_late: Vec<Party>,
    destinations: BTreeMap<LinkId, Destination>,
    work: Work,
    offer: Option<Offer>,
}

impl SenderSession {
    /// A room that waits for its receivers.
    pub fn new(
        now: Instant,
        room: Room,
        party: Party,
        deadlines: Deadlines,
        write_bytes: u64,
        retransmits: u32,
    ) -> Self {
        Self {
            course: Course::new(now, room, party, deadlines),
            write_bytes,
            retransmits,
            expected: Vec::new(),
            told_late: Vec::new(),
            destinations: BTreeMap::new(),
            work: Work::default(),
            offer: None,
        }
    }

    /// Tells every receiver what the request will be.
    pub fn offer(&mut self, _now: Instant, offer: Offer) {
        if self.course.state().is_terminal() {
            return;
        }
        for Destination { joined, .. } in self.destinations.values().filter(|d| !d.down && d.done.is_none()) {
            self.course.send(joined.link, joined.id, RoomFrame::Offer(offer.clone()));
        }
        self.offer = Some(offer);
    }

    /// Adds a chunk, already checked by an [`Intake`](super::work::Intake).
    pub fn send(&mut self, now: Instant, chunk: Chunk) {
        self.give(now, |work| work.add(chunk));
    }

    /// Ends the work, already checked by an [`Intake`](super::work::Intake).
    pub fn finish(&mut self, now: Instant, finish: Finish) {
        self.give(now, |work| work.finish = Some(finish));
    }

    /// The bytes of chunk number `chunk` (from 0; the number of chunks stands for the rows) may be read.
    pub fn ready(&mut self, now: Instant, chunk: usize) {
        self.give(now, |work| match work.chunks.get_mut(chunk) {
            Some(chunk) => chunk.ready = true,
            None => work.finish.iter_mut().for_each(|finish| finish.ready = true),
        });
    }

    /// Receivers that know of the end, if others that should have joined did not: what a
    /// [`Lobby`](super::Lobby) has to know of a room that failed early.
    pub fn joined_early(&self) -> Option<Vec<Party>> {
        let joined = self.destinations.values().map(|d| d.joined.party).chain(self.told_late.iter().copied());
        (self.expected.is_empty() || self.destinations.len() < self.expected.len()).then(|| joined.collect())
    }

    /// Receivers had given up before this sender was made, the first for this reason: so does it.
    pub fn left_early(&mut self, now: Instant, left: Vec<Party>, cause: &Cause) {
        self.told_late.extend(left);
        self.fail_for(now, cause);
    }

    /// Receivers that joined, by link.
    pub fn receivers(&self) -> impl Iterator<Item = (LinkId, GrantId)> + '_ {
        self.destinations.iter().map(|(link, d)| (*link, d.joined.id))
    }

    /// What each receiver was told last of all, once the room has ended.
    pub fn last_words(&self) -> impl Iterator<Item = (Party, GrantId, Option<RoomFrame>)> + '_ {
        let words = |d: &Destination| match (self.course.cause(), &d.done) {
            (Some(cause), _) => Some(RoomFrame::Failed(cause)),
            (None, done) => done.clone().map(RoomFrame::Done),
        };
        self.destinations.values().map(move |d| (d.joined.party, d.joined.id, words(d)))
    }

    /// Tokens that every receiver already holds, and how many receivers there are; `None` until all
    /// have granted.
    pub fn granted(&self) -> Option<(u32, usize)> {
        self.course.figures.granted?;
        let held =
            self.destinations.values().filter_map(|d| d.lent.as_ref()).map(|lent| lent.tokens.start).min();
        Some((held.unwrap_or(0), self.destinations.len()))
    }

    fn give(&mut self, now: Instant, change: impl FnOnce(&mut Work)) {
        if self.course.state().is_terminal() {
            return;
        }
        change(&mut self.work);
        self.course.progress(now);
        if let Err(fault) = self.check_ranges() {
            self.course.fail_here(now, fault);
        }
        self.course.step(now, Trigger::Started); // only from WaitingForInput
        self.conclude(now);
    }

    /// Draws every conclusion that the last event allows.
    fn conclude(&mut self, now: Instant) {
        if self.course.state() == KVPoll::Failed {
            return self.tell_failure();
        }
        let total = self.work.finish.as_ref().map(|finish| (finish.tokens, finish.payload.clone()));
        for destination in self.destinations.values_mut().filter(|d| !d.down) {
            let JoinedLink { link, id, peer_counts, .. } = destination.joined;
            if destination.done.is_some() {
                continue; // it counts by itself now
            }
            while let Some(stage) = destination.next_done_stage() {
                if let Some(chunk) = self.work.chunks.get(stage) {
                    let (tokens, layers) = (chunk.tokens.clone(), chunk.layers.clone());
                    self.course.send(link, id, RoomFrame::ChunkDone { tokens, layers });
                }
            }
            let (tokens, payload) = match &total {
                _ if destination.is_empty_share() => (0, Bytes::new()),
                Some((tokens, payload))
                    if destination.is_all_posted() && (peer_counts || destination.is_settled()) =>
                {
                    (*tokens, payload.clone())
                }
                _ => continue,
            };
            let (ops, bytes) = destination.totals();
            let done = Done { tokens, ops, bytes, payload };
            self.course.send(link, id, RoomFrame::Done(done.clone()));
            destination.done = Some(done);
        }
        if self.course.state() == KVPoll::Transferring
            && total.is_some()
            && self.destinations.values().all(Destination::is_over)
        {
            self.course.step(now, Trigger::Delivered);
        }
    }

    fn tell_failure(&mut self) {
        let Some(cause) = self.course.cause() else { return };
        for destination in self.destinations.values_mut().filter(|d| !d.down) {
            let JoinedLink { link, id, .. } = destination.joined;
            if !destination.told {
                self.course.send(link, id, RoomFrame::Failed(cause.clone()));
                destination.told = true;
                destination.owes_quiet = true;
            }
            if destination.owes_quiet && destination.is_settled() {
                self.course.send(link, id, RoomFrame::Quiet);
                destination.owes_quiet = false;
            }
        }
    }

    /// Asks receivers that nothing was heard of.
    fn ask(&mut self) {
        for Destination { joined, .. } in self.destinations.values().filter(|d| d.is_asked()) {
            self.course.send(joined.link, joined.id, RoomFrame::Query { asked: Side::Decode });
        }
    }

    /// A receiver asks, perhaps over a later link: the last word to it is said again, if there was one.
    fn answer(&mut self, link: LinkId, id: GrantId) {
        let mut asking =
            self.destinations.iter().filter(|(at, d)| d.joined.id == id && (**at == link || d.down));
        let state = self.course.state();
        let Some((_, destination)) = asking.next().filter(|_| asking.next().is_none()) else {
            return self.stranger(link, id);
        };
        match (self.course.cause(), &destination.done) {
            (Some(cause), _) => {
                self.course.send(link, id, RoomFrame::Failed(cause));
                if destination.is_settled() {
                    self.course.send(link, id, RoomFrame::Quiet);
                }
            }
            (None, Some(done)) => self.course.send(link, id, RoomFrame::Done(done.clone())),
            (None, None) => {
                let mut status = Status::new(Side::Prefill, Some(state));
                status.granted = destination.lent.is_some();
                status.bytes = destination.settled_bytes();
                self.course.send(link, id, RoomFrame::Status(status));
            }
        }
    }

    fn missing(&self) -> String {
        if self.course.state() != KVPoll::Bootstrapping {
            let unsettled = self.destinations.values().filter(|d| !d.is_settled());
            let ranks: Vec<_> = unsettled.map(|d| d.joined.party.to_string()).collect();
            return match ranks.as_slice() {
                [] => "waiting for chunks or finish from the caller".into(),
                ranks => format!("waiting for {}", ranks.join(", ")),
            };
        }
        if self.expected.is_empty() {
            return "no receiver has joined".into();
        }
        let granted = |rank: &Rank| {
            self.destinations.values().any(|d| d.joined.party.rank == *rank && d.lent.is_some())
        };
        let missing: Vec<_> =
            self.expected.iter().filter(|rank| !granted(rank)).map(Rank::to_string).collect();
        format!("no grant from decode rank {}", missing.join(", "))
    }
}

impl Session for SenderSession {
    fn fail(&mut self, now: Instant, fault: Fault) {
        self.course.fail_here(now, fault);
        self.conclude(now);
    }

    fn fail_for(&mut self, now: Instant, cause: &Cause) {
        self.course.fail_for(now, cause);
        self.conclude(now);
    }

    fn frame(&mut self, now: Instant, link: LinkId, id: GrantId, frame: &RoomFrame) {
        if matches!(frame, RoomFrame::Query { asked: Side::Prefill }) {
            return self.answer(link, id);
        }
        let Some(destination) = self.destinations.get_mut(&link).filter(|d| d.joined.id == id) else {
            // An abort of a receiver that is no party here: it is quiet as far as we are concerned.
            if matches!(frame, RoomFrame::Abort(_)) {
                self.course.send(link, id, RoomFrame::Quiet);
            }
            return;
        };
        match frame {
            RoomFrame::Abort(cause) => {
                destination.told = true;
                destination.owes_quiet = true;
                if self.course.state() == KVPoll::Success {
                    self.course.send(link, id, RoomFrame::Quiet);
                    destination.owes_quiet = false;
                }
                self.course.fail_for(now, cause);
            }
            // It is there, which is all this side wants to know.
            RoomFrame::Status(Status { of: Side::Decode, .. }) => {}
            _ => {
                let party = destination.joined.party;
                let fault = Fault::new(ErrorKind::Protocol, "a receiver sent a frame of the sender");
                self.course.fail(now, fault, Origin::Peer(party));
            }
        }
        self.conclude(now);
    }

    fn link_down(&mut self, now: Instant, link: LinkId, _quiesced: bool, fault: Fault) {
        let Some(destination) = self.destinations.get_mut(&link) else { return };
        destination.down = true;
        let (over, party) = (destination.is_over(), destination.joined.party);
        if !over {
            self.course.fail(now, fault, Origin::Peer(party));
        }
        self.conclude(now);
    }

    fn tick(&mut self, now: Instant) {
        if let Some(fault) = self.course.overdue(now, || self.missing()) {
            self.fail(now, fault);
        }
        if self.course.must_ask(now) {
            self.ask();
        }
        if self.release() == Release::Draining && self.course.must_fence(now) {
            let stuck = self.destinations.values().filter(|d| !d.down && !d.is_settled());
            let links: Vec<_> = stuck.map(|d| d.joined.link).collect();
            links.into_iter().for_each(|link| self.course.ask(Action::Fence { link }));
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.course.next_action()
    }

    fn deadline(&self) -> Option<Instant> {
        let asks = self.destinations.values().any(Destination::is_asked);
        self.course.deadline(self.release() == Release::Draining, asks)
    }

    fn state(&self) -> KVPoll {
        self.course.state()
    }

    fn release(&self) -> Release {
        if !self.course.state().is_terminal() {
            Release::Held
        } else if self.destinations.values().all(Destination::is_settled) {
            Release::Safe
        } else {
            Release::Draining
        }
    }

    fn waiting_for(&self) -> Vec<Rank> {
        let unsettled = self.destinations.values().filter(|d| !d.is_settled());
        unsettled.map(|d| d.joined.party.rank).collect()
    }

    fn cause(&self) -> Option<Cause> {
        self.course.cause()
    }

    fn error(&self) -> Option<&KVTransferError> {
        self.course.error()
    }

    fn figures(&self) -> Figures {
        self.course.figures
    }
}
