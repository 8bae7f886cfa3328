//! Receivers of a room, and what they lend.

use super::SenderSession;
use crate::error::{ErrorKind, Fault, Origin};
use crate::ids::{GrantId, LinkId, Party, Rank, Side};
use crate::layout::Pairing;
use crate::session::destination::{Destination, Lent};
use crate::session::phase::Trigger;
use crate::wire::{Cause, Grant, RoomFrame, Status};
use std::sync::Arc;
use std::time::Instant;

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

impl SenderSession {
    /// A receiver of this room and attempt has joined, naming all `destinations`.
    pub fn join(&mut self, now: Instant, joined: JoinedLink, destinations: &[Rank]) {
        let JoinedLink { link, party, id, .. } = joined;
        let others = self.destinations.values().map(|other| other.joined);
        if others.clone().any(|other| (other.link, other.id) == (link, id)) {
            return; // repeated: it hears of the end like all others, when nothing is under way to it
        }
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
        self.course.discovered(now);
        if let Some(offer) = &self.offer {
            self.course.send(link, id, RoomFrame::Offer(offer.clone()));
        }
    }

    /// A receiver lends pages; `pairing` is made from both layouts and the grant's share, if it has one.
    pub fn grant(
        &mut self,
        now: Instant,
        link: LinkId,
        id: GrantId,
        grant: &Grant,
        pairing: Option<Arc<Pairing>>,
    ) {
        if self.course.state().is_terminal() {
            return; // it has been told, or will be when everything has settled
        }
        let Some(destination) = self.destinations.get_mut(&link).filter(|d| d.joined.id == id) else {
            return self.stranger(link, id);
        };
        if destination.lent.as_ref().is_some_and(|lent| lent.is_of(grant)) {
            return; // repeated
        }
        if destination.lent.is_some() {
            let party = destination.joined.party;
            let fault = Fault::new(ErrorKind::Protocol, "granted twice");
            self.course.fail(now, fault, Origin::Peer(party));
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

    /// Answers a receiver that has not joined, as far as is known here: it may join once more.
    pub fn stranger(&mut self, link: LinkId, id: GrantId) {
        let unknown = Status::new(Side::Prefill, None);
        self.course.send(link, id, RoomFrame::Status(unknown));
    }

    /// What was given must meet what was lent, and be refused before a byte moves where it does not.
    pub(super) fn check_ranges(&self) -> Result<(), Fault> {
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

    fn refuse(&mut self, link: LinkId, id: GrantId, cause: Cause) {
        self.course.send(link, id, RoomFrame::Failed(cause));
        self.course.send(link, id, RoomFrame::Quiet);
    }
}
