//! The prefill side of a room: grants and chunks in, writes out, then `Done`.

use super::course::Course;
use super::destination::{Destination, Lent};
use super::phase::Trigger;
use super::work::{Chunk, Finish, Work};
use super::{Action, Figures, Session};
use crate::config::Deadlines;
use crate::error::{ErrorKind, Fault, KVTransferError, Origin};
use crate::ids::{GrantId, LinkId, OpId, Party, Rank, Room};
use crate::layout::{PageList, Pairing, Piece};
use crate::poll::{KVPoll, Release};
use crate::wire::{Cause, Done, Grant, Offer, RoomFrame};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The prefill side of one room on one rank.
#[derive(Debug)]
pub struct SenderSession {
    course: Course,
    write_bytes: u64,
    retransmits: u32,
    /// The ranks that will all have to grant, as the first `Join` named them.
    expected: Vec<Rank>,
    /// Those that came after the end and were told of it.
    told_late: Vec<Party>,
    destinations: BTreeMap<LinkId, Destination>,
    work: Work,
    offer: Option<Offer>,
}

/// A receiver that has joined, and how it is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "made by drivers")]
pub struct JoinedLink {
    /// The link it joined over.
    pub link: LinkId,
    /// Who it is.
    pub party: Party,
    /// Its grant.
    pub id: GrantId,
    /// Whether `Done` may be sent before the last write has settled, since the peer counts landed
    /// writes itself.
    pub peer_counts: bool,
}

/// A write to be posted: resolve it into extents, post it, then call [`SenderSession::posted`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriteJob<'a> {
    /// Its number.
    pub op: OpId,
    /// Its grant.
    pub id: GrantId,
    /// What is written.
    pub piece: &'a Piece,
    /// Its bytes.
    pub bytes: u64,
    /// Which entry is which.
    pub pairing: &'a Pairing,
    /// Pages here.
    pub source: &'a PageList,
    /// Pages at the peer.
    pub destination: &'a PageList,
}

/// How a posted write ended.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the three ways a write ends")]
pub enum Settlement {
    /// In place.
    Landed,
    /// It arrived damaged and may be posted again.
    Damaged,
    /// It cannot be made.
    Broken(Fault),
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

    /// A receiver of this room and attempt has joined, naming all `destinations`.
    pub fn join(&mut self, now: Instant, joined: JoinedLink, destinations: &[Rank]) {
        let JoinedLink { link, party, id, .. } = joined;
        if self.course.state().is_terminal() {
            let ended = || self.course.refusal(ErrorKind::Protocol, "the room has ended".into());
            let cause = self.course.cause().unwrap_or_else(ended);
            if !self.told_late.contains(&party) {
                self.told_late.push(party);
            }
            return self.refuse(link, id, cause);
        }
        let mut destinations = destinations.to_vec();
        destinations.sort_unstable();
        destinations.dedup();
        let others = self.destinations.values().map(|other| other.joined);
        if others.clone().any(|other| (other.link, other.id) == (link, id)) {
            return; // repeated
        }
        let has_joined = others.clone().any(|other| other.party.rank == party.rank);
        let differs = !self.expected.is_empty() && self.expected != destinations;
        let broken = if has_joined {
            Some(format!("duplicate room: rank {} has joined it already", party.rank))
        } else if differs {
            Some(format!(
                "destinations differ: {} were named before, {} now",
                self.expected.len(),
                destinations.len()
            ))
        } else if destinations.binary_search(&party.rank).is_err() {
            Some(format!("{party} is not one of the destinations it names"))
        } else {
            None
        };
        if let Some(detail) = broken {
            let cause = self.course.refusal(ErrorKind::Protocol, detail.clone());
            // Somebody who is waited for will not come: nobody else has to wait for it.
            if !has_joined && self.expected.contains(&party.rank) {
                let fault = Fault::new(ErrorKind::Protocol, detail);
                self.course.fail(now, fault, Origin::Peer(party));
                self.conclude(now);
            }
            let cause = self.course.cause().unwrap_or(cause);
            return self.refuse(link, id, cause);
        }
        self.expected = destinations;
        self.destinations.insert(link, Destination::new(joined));
        self.course.progress(now);
        if let Some(offer) = &self.offer {
            self.course.send(link, id, RoomFrame::Offer(offer.clone()));
        }
    }

    /// A receiver lends pages; `pairing` is made from both layouts.
    pub fn grant(&mut self, now: Instant, link: LinkId, id: GrantId, grant: &Grant, pairing: Arc<Pairing>) {
        if self.course.state().is_terminal() {
            return; // it has been told, or will be when everything has settled
        }
        let Some(destination) = self.destinations.get_mut(&link).filter(|d| d.joined.id == id) else {
            return self.refuse_stranger(link, id);
        };
        if destination.lent.is_some() {
            let party = destination.joined.party;
            let fault = Fault::new(ErrorKind::Protocol, "granted twice");
            self.course.fail(now, fault, Origin::Peer(party));
            return self.conclude(now);
        }
        if let Some(part) = grant.share.as_ref().and_then(|share| share.unsupported()) {
            let fault = Fault::new(ErrorKind::Layout, format!("a share of {part} is not supported"));
            self.course.fail_here(now, fault);
            return self.conclude(now);
        }
        destination.lent = Some(Lent::new(grant, pairing));
        if let Err(fault) = self.check_ranges() {
            self.course.fail_here(now, fault);
        } else if self.is_granted() {
            self.course.figures.granted = Some(now);
            self.course.step(now, Trigger::Known);
            if !self.work.is_empty() {
                self.course.step(now, Trigger::Started);
            }
        }
        self.conclude(now);
    }

    /// Answers a grant of a receiver that has not joined.
    pub fn refuse_stranger(&mut self, link: LinkId, id: GrantId) {
        let cause = self.course.refusal(ErrorKind::Protocol, "grant without join".into());
        self.refuse(link, id, cause);
    }

    /// Tells every receiver what the request will be.
    pub fn offer(&mut self, _now: Instant, offer: Offer) {
        if self.course.state().is_terminal() {
            return;
        }
        for Destination { joined, .. } in self.destinations.values().filter(|d| !d.down && !d.done_sent) {
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

    /// The next write for the receiver of this link; the same again until it is
    /// [`posted`](Self::posted).
    pub fn next_write(&mut self, now: Instant, link: LinkId) -> Option<WriteJob<'_>> {
        if self.course.state() != KVPoll::Transferring {
            return None;
        }
        let destination = self.destinations.get_mut(&link).filter(|d| !d.down)?;
        match destination.next(&self.work, self.write_bytes) {
            Err(fault) => {
                self.course.fail_here(now, fault);
                self.conclude(now);
                None
            }
            Ok(None) => {
                self.conclude(now); // the last chunk may have had nothing for it
                None
            }
            Ok(Some(_)) => self.write_job(link),
        }
    }

    /// The write that [`next_write`](Self::next_write) gave was accepted by the transport.
    pub fn posted(&mut self, now: Instant, link: LinkId) {
        if let Some(destination) = self.destinations.get_mut(&link) {
            destination.posted();
            self.course.figures.first_byte.get_or_insert(now);
            self.conclude(now);
        }
    }

    /// A posted write is over. Answers its bytes.
    pub fn settled(&mut self, now: Instant, link: LinkId, op: OpId, settlement: Settlement) -> u64 {
        let Some(destination) = self.destinations.get_mut(&link) else { return 0 };
        let Some(job) = destination.settled(op) else { return 0 };
        let (bytes, party) = (job.bytes, destination.joined.party);
        match settlement {
            Settlement::Landed => {
                destination.landed(&job);
                self.course.moved(now, job.bytes);
            }
            Settlement::Damaged if self.course.state().is_terminal() => {}
            Settlement::Damaged => {
                if !destination.repeat(op, job, self.retransmits) {
                    let times = self.retransmits + 1;
                    let detail = format!("write {} arrived damaged {times} times", op.0);
                    self.course.fail_here(now, Fault::new(ErrorKind::Corrupted, detail));
                }
            }
            Settlement::Broken(fault) if fault.kind == ErrorKind::PeerLost => {
                self.course.fail(now, fault, Origin::Peer(party));
            }
            Settlement::Broken(fault) => {
                self.course.fail_here(now, fault);
            }
        }
        self.conclude(now);
        bytes
    }

    /// Whether [`next_write`](Self::next_write) may give something for this link.
    pub fn may_have_writes(&self, link: LinkId) -> bool {
        self.course.state() == KVPoll::Transferring
            && self.destinations.get(&link).is_some_and(|d| d.may_have_writes(&self.work))
    }

    /// Receivers that know of the end, if others that should have joined did not: what a
    /// [`Lobby`](super::Lobby) has to know of a room that failed early.
    pub fn joined_early(&self) -> Option<Vec<Party>> {
        let joined = self.destinations.values().map(|d| d.joined.party).chain(self.told_late.iter().copied());
        (self.expected.is_empty() || self.destinations.len() < self.expected.len()).then(|| joined.collect())
    }

    /// Receivers that joined, by link.
    pub fn receivers(&self) -> impl Iterator<Item = (LinkId, GrantId)> + '_ {
        self.destinations.iter().map(|(link, d)| (*link, d.joined.id))
    }

    /// Ends the room for the reason a receiver gave before it could join.
    pub fn fail_for(&mut self, now: Instant, cause: &Cause) {
        self.course.fail_for(now, cause);
        self.conclude(now);
    }

    /// Why the room failed, as it is told to others.
    pub fn cause(&self) -> Option<Cause> {
        self.course.cause()
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

    /// What was given must meet what was lent, and be refused before a byte moves where it does not.
    fn check_ranges(&self) -> Result<(), Fault> {
        let misfit = |detail: String| Err(Fault::new(ErrorKind::Layout, detail));
        for (destination, lent) in
            self.destinations.values().filter_map(|d| d.lent.as_ref().map(|lent| (d, lent)))
        {
            if destination.is_empty_share() {
                continue;
            }
            let (party, wanted) = (destination.joined.party, &lent.tokens);
            if let Some(start) = self.work.start()
                && start > wanted.start
                && !wanted.is_empty()
            {
                return misfit(format!("the first chunk starts at token {start}, {party} wants {wanted:?}"));
            }
            if self.work.end() > wanted.end {
                let end = self.work.end();
                return misfit(format!("tokens up to {end} were given, {party} lent pages for {wanted:?}"));
            }
            let offered = self.offer.as_ref().and_then(|offer| offer.tokens);
            let total = self.work.finish.as_ref().map(|finish| finish.tokens).or(offered);
            if let Some(total) = total
                && total != wanted.end
            {
                return misfit(format!("the prompt has {total} tokens, {party} lent pages for {wanted:?}"));
            }
        }
        Ok(())
    }

    fn is_granted(&self) -> bool {
        !self.expected.is_empty()
            && self.destinations.len() == self.expected.len()
            && self.destinations.values().all(|d| d.lent.is_some())
    }

    fn write_job(&self, link: LinkId) -> Option<WriteJob<'_>> {
        let destination = self.destinations.get(&link)?;
        let (op, job) = destination.current()?;
        let (source, lent) = destination.lists(&self.work, job)?;
        Some(WriteJob {
            op: *op,
            id: destination.joined.id,
            piece: &job.piece,
            bytes: job.bytes,
            pairing: destination.pairing()?,
            source,
            destination: lent,
        })
    }

    fn refuse(&mut self, link: LinkId, id: GrantId, cause: Cause) {
        self.course.send(link, id, RoomFrame::Failed(cause));
        self.course.send(link, id, RoomFrame::Quiet);
    }

    /// Draws every conclusion that the last event allows.
    fn conclude(&mut self, now: Instant) {
        if self.course.state() == KVPoll::Failed {
            return self.tell_failure();
        }
        let total = self.work.finish.as_ref().map(|finish| (finish.tokens, finish.payload.clone()));
        for destination in self.destinations.values_mut().filter(|d| !d.down) {
            let JoinedLink { link, id, peer_counts, .. } = destination.joined;
            if destination.done_sent {
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
            self.course.send(link, id, RoomFrame::Done(Done { tokens, ops, bytes, payload }));
            destination.done_sent = true;
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

    fn frame(&mut self, now: Instant, link: LinkId, id: GrantId, frame: &RoomFrame) {
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
        self.course.deadline(self.release() == Release::Draining)
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

    fn error(&self) -> Option<&KVTransferError> {
        self.course.error()
    }

    fn figures(&self) -> Figures {
        self.course.figures
    }
}
