//! The decode side of a room: pages lent to every source, until each byte is in place.

use super::course::Course;
use super::phase::Trigger;
use super::source::Source;
use super::{Action, Figures, Session};
use crate::config::Deadlines;
use crate::error::{ErrorKind, Fault, KVTransferError, Origin};
use crate::ids::{GrantId, GroupId, LinkId, OpId, Party, Rank, Side};
use crate::layout::{PageList, Share};
use crate::poll::{KVPoll, Release};
use crate::wire::{Cause, Grant, Offer, RoomFrame, Status};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The decode side of one room on one rank.
#[derive(Debug)]
pub struct ReceiverSession {
    course: Course,
    id: GrantId,
    destinations: Vec<Rank>,
    layers: Vec<u32>,
    sources: BTreeMap<Rank, Source>,
    lent: Option<Lent>,
    /// What the driver knows of sources that are not there yet.
    hint: String,
}

/// What a receiver lends to its sources.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "made by drivers")]
pub struct Lent {
    /// Tokens wanted; those before are held already.
    pub tokens: Range<u32>,
    /// Pages by group of the receiver's layout; rows for row groups.
    pub pages: Arc<[(GroupId, PageList)]>,
}

/// How a source is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "made by drivers")]
pub struct SourceLink {
    /// The link.
    pub link: LinkId,
    /// Who it is.
    pub party: Party,
    /// Whether this side applies the bytes, and so can stop them and count them itself.
    pub revocable: bool,
    /// The receiver's layout as announced on this link.
    pub epoch: u32,
    /// The source's layout.
    pub source_epoch: u32,
}

impl ReceiverSession {
    /// A room that waits for its sources; `destinations` are all decode ranks that join the same
    /// senders, `layers` the global layers of this rank's pool.
    pub fn new(
        now: Instant,
        id: GrantId,
        party: Party,
        deadlines: Deadlines,
        destinations: Vec<Rank>,
        layers: Vec<u32>,
    ) -> Self {
        let course = Course::new(now, id.room, party, deadlines);
        Self { course, id, destinations, layers, sources: BTreeMap::new(), lent: None, hint: String::new() }
    }

    /// Says which ranks feed this room and what each owes (`None`: nothing, but it must say so). Once.
    pub fn expect(&mut self, now: Instant, sources: impl IntoIterator<Item = (Rank, Option<Share>)>) {
        for (rank, share) in sources {
            let new = || Source::new(share, self.destinations.clone(), self.layers.clone());
            self.sources.entry(rank).or_insert_with(new);
        }
        self.course.discovered(now);
    }

    /// Says which decode ranks join a source that is expected, where they are others than those of the
    /// receiver. Before it is connected.
    pub fn joined_by(&mut self, source: Rank, destinations: Vec<Rank>) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.destinations = destinations;
        }
    }

    /// Why sources are still missing, for the error if they stay so.
    pub fn still_missing(&mut self, hint: String) {
        self.hint = hint;
    }

    /// A source is connected and its layout fits: join it.
    pub fn source_up(&mut self, now: Instant, rank: Rank, link: SourceLink) {
        let Some(source) = self.sources.get_mut(&rank) else { return };
        if source.lost.is_some() {
            return self.back(now, rank, link);
        }
        if source.link.is_some() || self.course.state() == KVPoll::Success {
            return;
        }
        source.link = Some(link);
        let destinations = source.destinations.clone();
        self.course.send(link.link, self.id, RoomFrame::Join { destinations });
        if self.course.state() == KVPoll::Failed {
            // It may wait for this rank, as others named it: it joins to say why it will not come.
            return self.conclude(now);
        }
        self.lend(rank);
        if self.sources.values().all(|source| source.link.is_some()) {
            self.course.step(now, Trigger::Known);
        }
    }

    /// A source whose last word may have been lost with its link is connected again: it is asked.
    fn back(&mut self, now: Instant, rank: Rank, link: SourceLink) {
        let Some(source) = self.sources.get_mut(&rank) else { return };
        let same = source.link.is_some_and(|before| before.party == link.party);
        if self.course.state().is_terminal() || source.again.is_some() {
            return;
        }
        if !same {
            return self.stay_lost(now, rank);
        }
        source.again = Some(link.link);
        self.course.send(link.link, self.id, RoomFrame::Query { asked: Side::Prefill });
    }

    /// A source that is waited for cannot be reached. Ends the room only if it was connected before.
    pub fn unreachable(&mut self, now: Instant, rank: Rank) {
        if self.sources.get(&rank).is_some_and(|source| source.again.is_none()) {
            self.stay_lost(now, rank);
        }
    }

    /// Whether this source was joined, and so knows of the end by itself if its link has ended.
    pub fn has_joined(&self, rank: Rank) -> bool {
        self.sources.get(&rank).is_some_and(|source| source.link.is_some())
    }

    /// What a source said last is lost with its link.
    fn stay_lost(&mut self, now: Instant, rank: Rank) {
        let Some(source) = self.sources.get(&rank) else { return };
        if let (Some(fault), Some(link)) = (&source.lost, source.link) {
            self.course.fail(now, fault.clone(), Origin::Peer(link.party));
            self.conclude(now);
        }
    }

    /// Lends pages to every source. Once.
    pub fn grant(&mut self, now: Instant, lent: Lent) {
        if self.course.state().is_terminal() || self.lent.is_some() {
            return;
        }
        self.lent = Some(lent);
        self.course.figures.granted = Some(now);
        self.course.progress(now);
        let ranks: Vec<_> = self.sources.keys().copied().collect();
        ranks.into_iter().for_each(|rank| self.lend(rank));
    }

    /// All bytes of a write are in place.
    pub fn landed(&mut self, now: Instant, link: LinkId, op: OpId, bytes: u64) {
        let Some((party, source)) = self.at(link) else { return };
        match source.land(op, bytes) {
            Ok(0) => return,
            Ok(bytes) => self.course.moved(now, bytes),
            Err(fault) => {
                self.course.fail(now, fault, Origin::Peer(party));
            }
        }
        self.course.step(now, Trigger::Started);
        self.conclude(now);
    }

    /// A write did not fit what was lent, and nothing of it was applied: what its writer says of it is
    /// not true.
    pub fn refused(&mut self, now: Instant, link: LinkId, detail: &str) {
        let Some((party, _)) = self.at(link) else { return };
        let fault = Fault::new(ErrorKind::Protocol, format!("a write outside of what was lent: {detail}"));
        self.course.fail(now, fault, Origin::Peer(party));
        self.conclude(now);
    }

    /// Nothing will touch the pages for this link's writer any more.
    pub fn revoked(&mut self, now: Instant, link: LinkId) {
        if let Some((_, source)) = self.at(link) {
            source.quiet();
        }
        self.conclude(now);
    }

    /// What the request will be, once a source has said so.
    pub fn offered(&self) -> Option<&Offer> {
        self.sources.values().find_map(|source| source.offer.as_ref())
    }

    /// The bytes each source gave to `finish`, once it is done.
    pub fn payloads(&self) -> impl Iterator<Item = (Rank, &Bytes)> {
        self.sources.iter().filter_map(|(rank, source)| Some((*rank, &source.done.as_ref()?.payload)))
    }

    /// Tokens in place from every source, in every layer.
    pub fn ready_tokens(&self) -> u32 {
        let Some(lent) = &self.lent else { return 0 };
        let state = self.course.state();
        self.sources.values().map(|source| source.tokens(state, &lent.tokens)).min().unwrap_or(0)
    }

    /// Tokens in place in each layer of this rank's pool.
    pub fn ready_by_layer(&self) -> Vec<(u32, u32)> {
        let Some(Lent { tokens: wanted, .. }) = &self.lent else { return Vec::new() };
        let all = self.ready_tokens();
        let owing: Vec<_> =
            self.sources.values().filter(|source| source.share.is_some() && !source.is_complete()).collect();
        let ready = |layer: u32| {
            let tokens = owing.iter().filter_map(|source| source.progress.tokens_of(layer)).min();
            tokens.map_or(all, |tokens| tokens.clamp(wanted.start, wanted.end).max(all))
        };
        self.layers.iter().map(|&layer| (layer, ready(layer))).collect()
    }

    /// Whether pages were lent.
    pub fn lent(&self) -> Option<&Lent> {
        self.lent.as_ref()
    }

    /// Every decode rank that joins this source.
    pub fn destinations(&self, source: Rank) -> &[Rank] {
        self.sources.get(&source).map_or(&self.destinations, |source| &source.destinations)
    }

    /// Its grant.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// What a source owes.
    pub fn share(&self, link: LinkId) -> Option<&Share> {
        self.sources.values().find(|source| source.link.is_some_and(|l| l.link == link))?.share.as_ref()
    }

    /// What the source of this rank owes.
    pub fn share_of(&self, rank: Rank) -> Option<&Share> {
        self.sources.get(&rank)?.share.as_ref()
    }

    fn at(&mut self, link: LinkId) -> Option<(Party, &mut Source)> {
        let on_link =
            |source: &&mut Source| source.link.is_some_and(|l| l.link == link) || source.again == Some(link);
        let source = self.sources.values_mut().find(on_link)?;
        Some((source.link?.party, source))
    }

    /// Lends the pages to one source, if there are any and it is there.
    fn lend(&mut self, rank: Rank) {
        let Some(source) = self.sources.get_mut(&rank).filter(|_| self.lent.is_some()) else { return };
        let Some(SourceLink { link, .. }) = source.link else { return };
        if source.share.is_some() {
            source.admit();
            self.course.ask(Action::Admit { link, id: self.id });
        }
        self.tell_grant(rank);
    }

    fn tell_grant(&mut self, rank: Rank) {
        let Some(lent) = &self.lent else { return };
        let Some(source) = self.sources.get(&rank) else { return };
        let Some(SourceLink { link, epoch, source_epoch, .. }) = source.link else { return };
        let (tokens, share, pages) = (lent.tokens.clone(), source.share.clone(), lent.pages.to_vec());
        self.course.send(
            link,
            self.id,
            RoomFrame::Grant(Grant { epoch, source_epoch, tokens, share, pages }),
        );
    }

    /// Draws every conclusion that the last event allows.
    fn conclude(&mut self, now: Instant) {
        let failed = self.course.state() == KVPoll::Failed;
        if failed {
            self.tell_failure();
        }
        let complete = !self.sources.is_empty() && self.sources.values().all(Source::is_complete);
        if !failed && !complete {
            return;
        }
        for source in self.sources.values_mut() {
            if let Some(link) = source.link
                && source.must_revoke()
            {
                self.course.ask(Action::Revoke { link: link.link, id: self.id });
            }
        }
        if complete && self.sources.values().all(Source::is_quiet) {
            self.course.step(now, Trigger::Delivered);
        }
    }

    fn tell_failure(&mut self) {
        let Some(cause) = self.course.cause() else { return };
        for source in self.sources.values_mut() {
            let Some(link) = source.link.filter(|_| !source.told && !source.down) else { continue };
            source.told = true;
            self.course.send(link.link, self.id, RoomFrame::Abort(cause.clone()));
        }
    }

    /// A source says where the room stands there: what it has not heard is said again.
    fn status(&mut self, now: Instant, rank: Rank, status: Status) {
        let Some(source) = self.sources.get_mut(&rank) else { return };
        let Some(SourceLink { link, party, .. }) = source.link else { return };
        if source.lost.is_some() {
            return self.stay_lost(now, rank); // its last word was another one
        }
        if source.told || source.is_complete() || self.course.state().is_terminal() {
            return;
        }
        match status.state {
            None if source.has_begun() => {
                let fault = Fault::new(ErrorKind::PeerLost, "the source does not know the room any more");
                self.course.fail(now, fault, Origin::Peer(party));
            }
            None => {
                let destinations = source.destinations.clone();
                self.course.send(link, self.id, RoomFrame::Join { destinations });
                self.tell_grant(rank);
            }
            Some(_) if !status.granted => self.tell_grant(rank),
            Some(_) => {
                if source.has_moved(status.bytes) {
                    self.course.progress(now);
                }
            }
        }
    }

    fn answer(&mut self, link: LinkId) {
        let (state, granted) = (self.course.state(), self.lent.is_some());
        let Some((_, source)) = self.at(link) else { return };
        let mut status = Status::new(Side::Decode, Some(state));
        (status.granted, status.bytes) = (granted, source.landed_bytes());
        let frame = match self.course.cause() {
            Some(cause) => RoomFrame::Abort(cause),
            None => RoomFrame::Status(status),
        };
        self.course.send(link, self.id, frame);
    }

    fn missing(&self) -> String {
        let names = |filter: &dyn Fn(&Source) -> bool| {
            let ranks =
                self.sources.iter().filter(|(_, source)| filter(source)).map(|(rank, _)| rank.to_string());
            ranks.collect::<Vec<_>>().join(", ")
        };
        match self.course.state() {
            KVPoll::Bootstrapping if self.sources.is_empty() => {
                format!("the sources are not known; {}", self.hint)
            }
            KVPoll::Bootstrapping => {
                format!("not connected: prefill rank {}; {}", names(&|s| s.link.is_none()), self.hint)
            }
            _ if self.lent.is_none() => "waiting for pages from the caller".into(),
            _ if self.sources.values().all(Source::is_complete) => {
                format!("pages are still touched by prefill rank {}", names(&|s| !s.is_quiet()))
            }
            _ => format!("waiting for prefill rank {}", names(&|s| !s.is_complete())),
        }
    }
}

impl Session for ReceiverSession {
    fn fail(&mut self, now: Instant, fault: Fault) {
        self.course.fail_here(now, fault);
        self.conclude(now);
    }

    fn fail_for(&mut self, now: Instant, cause: &Cause) {
        self.course.fail_for(now, cause);
        self.conclude(now);
    }

    fn frame(&mut self, now: Instant, link: LinkId, id: GrantId, frame: &RoomFrame) {
        let wanted = self.lent.as_ref().map(|lent| lent.tokens.clone());
        let our_id = self.id;
        let Some((party, source)) = self.at(link).filter(|_| id == our_id) else { return };
        let result = match frame {
            RoomFrame::Offer(offer) => {
                // Said again, it does not keep the deadline away.
                if source.offer.replace(offer.clone()).is_none() {
                    self.course.progress(now);
                }
                Ok(())
            }
            RoomFrame::ChunkDone { .. } if wanted.is_none() => {
                Err(Fault::new(ErrorKind::Protocol, "chunk done before any grant"))
            }
            // A source may hold more layers than it owes.
            RoomFrame::ChunkDone { tokens, layers }
                if source.done.is_none()
                    && source.progress.concerns(layers.as_ref())
                    && !source.progress.is_repeated(tokens, layers.as_ref()) =>
            {
                let result = source.progress.advance(tokens, layers.as_ref());
                if !tokens.is_empty() {
                    self.course.progress(now);
                }
                self.course.step(now, Trigger::Started);
                result.map_err(|error| Fault::caused_by(ErrorKind::Protocol, "chunk done", error))
            }
            RoomFrame::ChunkDone { .. } => Ok(()),
            RoomFrame::Done(done) => match wanted {
                None => Err(Fault::new(ErrorKind::Protocol, "done before any grant")),
                Some(wanted) => {
                    let is_news = source.done.is_none();
                    let result = source.finish(done, &wanted);
                    source.vouched();
                    let is_short = source.lost.is_some() && !source.is_complete();
                    if is_news {
                        self.course.progress(now);
                    }
                    self.course.step(now, Trigger::Started);
                    if is_short {
                        self.stay_lost(now, party.rank); // more than its last word was lost
                    }
                    result
                }
            },
            RoomFrame::Failed(cause) => {
                source.told = true;
                // Both ends may have lost the same link: then this end saw for itself who went.
                if source.lost.is_some() && cause.kind == ErrorKind::PeerLost {
                    return self.stay_lost(now, party.rank);
                }
                self.course.fail_for(now, cause);
                Ok(())
            }
            RoomFrame::Quiet => {
                source.vouched();
                Ok(())
            }
            RoomFrame::Query { asked: Side::Decode } => return self.answer(link),
            RoomFrame::Status(status) if status.of == Side::Prefill => {
                let (rank, status) = (party.rank, *status);
                self.status(now, rank, status);
                return self.conclude(now);
            }
            RoomFrame::Abort(_)
            | RoomFrame::Grant(_)
            | RoomFrame::Join { .. }
            | RoomFrame::Query { .. }
            | RoomFrame::Status(_) => {
                Err(Fault::new(ErrorKind::Protocol, "a sender sent a frame of the receiver"))
            }
        };
        if let Err(fault) = result {
            self.course.fail(now, fault, Origin::Peer(party));
        }
        self.conclude(now);
    }

    fn link_down(&mut self, now: Instant, link: LinkId, quiesced: bool, fault: Fault) {
        let wanted = self.lent.as_ref().map(|lent| lent.tokens.clone());
        let may_go_on = self.course.state() == KVPoll::Transferring;
        let Some((party, source)) = self.at(link) else { return };
        if source.again == Some(link) {
            return self.stay_lost(now, party.rank);
        }
        source.down = true;
        if quiesced && source.link.is_some_and(|link| !link.revocable) {
            source.quiet();
        }
        if !source.is_complete() {
            if may_go_on && wanted.is_some_and(|wanted| source.may_be_done(&wanted)) {
                source.lost = Some(fault);
                self.course.ask(Action::Reconnect { rank: party.rank });
            } else {
                self.course.fail(now, fault, Origin::Peer(party));
            }
        }
        self.conclude(now);
    }

    fn tick(&mut self, now: Instant) {
        if let Some(fault) = self.course.overdue(now, || self.missing()) {
            self.fail(now, fault);
        }
        if self.course.must_ask(now) {
            for source in self.sources.values().filter(|source| source.is_asked()) {
                if let Some(link) = source.link {
                    self.course.send(link.link, self.id, RoomFrame::Query { asked: Side::Prefill });
                }
            }
        }
        if self.release() == Release::Draining && self.course.must_fence(now) {
            for source in self.sources.values().filter(|source| !source.is_quiet()) {
                if let Some(link) = source.link {
                    self.course.ask(Action::Fence { link: link.link });
                }
            }
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.course.next_action()
    }

    fn deadline(&self) -> Option<Instant> {
        let asks = self.sources.values().any(Source::is_asked);
        self.course.deadline(self.release() == Release::Draining, asks)
    }

    fn state(&self) -> KVPoll {
        self.course.state()
    }

    fn release(&self) -> Release {
        if !self.course.state().is_terminal() {
            Release::Held
        } else if self.sources.values().all(Source::is_quiet) {
            Release::Safe
        } else {
            Release::Draining
        }
    }

    fn waiting_for(&self) -> Vec<Rank> {
        self.sources.iter().filter(|(_, source)| !source.is_quiet()).map(|(rank, _)| *rank).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, Generation, Instance, Room, Side};
    use crate::wire::Done;
    use std::time::Duration;

    /// A source that is not complete and says again that it is done does not keep the deadline away.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "only the start of virtual time")]
    fn done_said_again_is_no_progress() {
        let (now, rank) = (Instant::now(), Rank::tp(0));
        let party = |side| Party { side, rank, instance: Instance(1) };
        let id = GrantId { room: Room(7), attempt: Attempt(0), generation: Generation(1) };
        let (us, limits) = (party(Side::Decode), Deadlines::default());
        let mut session = ReceiverSession::new(now, id, us, limits, vec![rank], vec![0]);
        session.expect(now, [(rank, Some(Share::WHOLE))]);
        let (link, party) = (LinkId::allocate(), party(Side::Prefill));
        let source = SourceLink { link, party, revocable: true, epoch: 1, source_epoch: 1 };
        session.source_up(now, rank, source);
        let pages = [(GroupId(0), PageList::new(0, vec![0]))].into();
        session.grant(now, Lent { tokens: 0..4, pages });
        let done = RoomFrame::Done(Done { tokens: 4, ops: 3, bytes: 9, payload: Bytes::new() });
        for seconds in [0, 20, 40] {
            let now = now + Duration::from_secs(seconds);
            session.frame(now, link, id, &done);
            session.tick(now);
        }
        assert_eq!(session.error().map(|error| error.kind), Some(ErrorKind::Timeout));
    }
}
