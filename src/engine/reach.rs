//! Finding and connecting the peers that receivers wait for.

use super::core::{Core, News};
use super::links::Link;
use super::rooms::{Waiter, Wanted};
use super::shared::Shared;
use super::sources::{self, Source, Sources};
use super::targets::{Candidates, Farewell, Hopeless, Reach};
use crate::error::{ErrorKind, Fault};
use crate::ids::{LinkId, Rank, Room, Side};
use crate::session::{Session, SourceLink};
use crate::transport::Transport;
use crate::wire::{Frame, RoomFrame};
use std::time::Instant;

impl Core {
    /// Looks for sources that are not known, and tries peers that are due.
    pub(super) fn reach(&mut self, shared: &Shared, now: Instant) {
        if shared.inbox.take_directory() {
            let unresolved: Vec<_> = self.rooms.unresolved.iter().copied().collect();
            unresolved.into_iter().for_each(|room| self.resolve(shared, now, room));
            let ungrouped: Vec<_> = self.rooms.ungrouped.iter().copied().collect();
            ungrouped.into_iter().for_each(|key| self.find_mates(shared, now, key));
        }
        for (room, rank) in std::mem::take(&mut self.rooms.lost) {
            self.reach_again(shared, now, room, rank);
        }
        for (candidates, transport, address) in self.targets.due(now) {
            match self.transports[transport].connect(&address) {
                Ok(link) => {
                    let caps = self.transports[transport].caps();
                    self.links.insert(link, Link::new(now, transport, caps));
                    self.targets.connecting(&candidates, link);
                }
                Err(error) => {
                    let detail = Fault::caused_by(ErrorKind::Transport, "connecting", error).detail;
                    tracing::debug!(%detail, "connect failed");
                    for waiter in self.targets.untried(now, &candidates, &detail) {
                        match waiter {
                            Waiter::Group(key) => self.mate_unreachable(shared, now, key, None),
                            Waiter::Receiver(room) => self.note_unreachable(shared, now, room),
                        }
                    }
                }
            }
        }
        for Hopeless { room: waiter, candidates, error, next } in self.targets.hopeless(now) {
            let place = places(&self.transports, &candidates);
            let is_tried = next.is_none();
            let next = next.map_or("it is being tried".into(), |next| format!("next try in {next:.0?}"));
            let has_gone = format!("at {place} has gone; last try: {error}; {next}");
            let room = match waiter {
                Waiter::Receiver(room) => room,
                Waiter::Group(key) => {
                    self.mate_gone(shared, now, key, &candidates, &has_gone, is_tried);
                    continue;
                }
            };
            let Some(receiver) = self.rooms.receivers.get_mut(&room) else { continue };
            let rank = receiver.wanted.iter().find(|(_, wanted)| wanted.candidates == candidates);
            let Some((&rank, _)) = rank else { continue };
            let detail = format!("prefill rank {rank} {has_gone}");
            // If its link was lost, that is the reason.
            receiver.session.unreachable(now, rank);
            receiver.session.fail(now, Fault::new(ErrorKind::PeerLost, detail));
            self.follow_up(shared, now, (Side::Decode, room), News::All);
        }
    }

    /// Finds out who feeds a receiver, if that can be known now.
    pub(super) fn resolve(&mut self, shared: &Shared, now: Instant, room: Room) {
        let key = (Side::Decode, room);
        let Some(receiver) = self.rooms.receivers.get_mut(&room) else { return };
        let Some(from) = receiver.unresolved.clone() else { return };
        let found = match (&from, &shared.directory) {
            (Sources::Ranks(sources), _) => Ok(Some(sources.clone())),
            (Sources::Group { name, dp }, Some(directory)) => {
                let Some(own) = self.announced.as_ref().map(|announced| &announced.holding) else { return };
                let found = self.feeds.resolve(shared, &**directory, (name, *dp), room, own);
                if let Ok(None) = found {
                    receiver.session.still_missing(sources::missing(&**directory, name, &shared.place));
                }
                found
            }
            (Sources::Group { .. }, None) => {
                Err(Fault::new(ErrorKind::Bootstrap, "the engine has no directory"))
            }
        };
        match found {
            Ok(None) => {
                // Nothing anybody waits for has changed; a new room still needs its timer.
                if self.rooms.unresolved.insert(room) {
                    self.follow_up(shared, now, key, News::All);
                }
                return;
            }
            Ok(Some(sources)) => {
                receiver.unresolved = None;
                self.rooms.unresolved.remove(&room);
                self.connect_sources(shared, now, room, &sources);
            }
            Err(fault) => receiver.session.fail(now, fault),
        }
        self.follow_up(shared, now, key, News::All);
    }

    fn connect_sources(&mut self, shared: &Shared, now: Instant, room: Room, sources: &[Source]) {
        let Some(receiver) = self.rooms.receivers.get_mut(&room) else { return };
        receiver.session.expect(now, sources.iter().map(|source| (source.rank, source.share.clone())));
        for source in sources.iter().filter(|source| !source.destinations.is_empty()) {
            receiver.session.joined_by(source.rank, source.destinations.clone());
        }
        for source in sources {
            let found = candidates(&self.transports, &source.addresses, shared.is_strict);
            let candidates = match found {
                Ok(candidates) => candidates,
                Err(why) => {
                    let detail = format!("prefill rank {} {why}", source.rank);
                    receiver.session.fail(now, Fault::new(ErrorKind::Bootstrap, detail));
                    return;
                }
            };
            receiver.wanted.insert(source.rank, Wanted { candidates, instance: source.instance });
        }
        for (rank, wanted) in receiver.wanted.clone() {
            let target = self.targets.want(now, &wanted.candidates, Waiter::Receiver(room));
            if let Reach::Link(link) = target.state
                && self.links.get(&link).is_some_and(Link::is_up)
            {
                self.attach(shared, now, room, rank, link);
            }
        }
    }

    /// A link knows its peer. If another process start answered at its address before, that one is over,
    /// whatever its links look like.
    pub(super) fn introduced(&mut self, shared: &Shared, now: Instant, id: LinkId) {
        let Some(peer) = self.links.get(&id).and_then(|link| link.peer.clone()) else { return };
        let Some(before) = self.targets.answered(now, id, peer.instance) else { return };
        let rank = peer.rank;
        let detail =
            format!("rank {rank} was restarted: instance {} took the place of {before}", peer.instance);
        tracing::info!(detail, "peer restarted");
        let is_over = |link: &Link| link.peer.as_ref().is_some_and(|peer| peer.instance == before);
        let over: Vec<_> = self.links.iter().filter(|(_, link)| is_over(link)).map(|(id, _)| *id).collect();
        for link in over {
            self.end_link(link, Fault::new(ErrorKind::PeerLost, detail.as_str()));
        }
        if let Some(directory) = &shared.directory {
            directory.invalidate(&peer.group);
        }
    }

    /// A source may have said its last word when its link ended: it is connected once more and asked.
    fn reach_again(&mut self, shared: &Shared, now: Instant, room: Room, rank: Rank) {
        let receiver = self.rooms.receivers.get_mut(&room);
        let Some(receiver) = receiver.filter(|room| !room.session.state().is_terminal()) else { return };
        let Some(wanted) = receiver.reached.remove(&rank) else { return };
        receiver.wanted.insert(rank, wanted.clone());
        let target = self.targets.want(now, &wanted.candidates, Waiter::Receiver(room));
        if let Reach::Link(link) = target.state
            && self.links.get(&link).is_some_and(Link::is_up)
        {
            self.attach(shared, now, room, rank, link);
            self.follow_up(shared, now, (Side::Decode, room), News::All);
        }
    }

    /// A link knows its peer's pools: whoever waits for it goes on.
    pub(super) fn link_up(&mut self, shared: &Shared, now: Instant, id: LinkId) {
        let Some((candidates, waiting, farewells)) = self.targets.up(id) else { return };
        self.note_path(id);
        for Farewell { id: room, destinations, cause } in farewells {
            self.send(id, &Frame::Room { id: room, frame: RoomFrame::Join { destinations } });
            self.send(id, &Frame::Room { id: room, frame: RoomFrame::Abort(cause) });
        }
        for waiter in waiting {
            let room = match waiter {
                Waiter::Receiver(room) => room,
                Waiter::Group(key) => {
                    self.mate_at(shared, now, key, &candidates, id);
                    continue;
                }
            };
            let Some(receiver) = self.rooms.receivers.get(&room) else { continue };
            let wanted = receiver.wanted.iter().find(|(_, wanted)| wanted.candidates == candidates);
            if let Some((&rank, _)) = wanted {
                self.attach(shared, now, room, rank, id);
                self.follow_up(shared, now, (Side::Decode, room), News::All);
            }
        }
    }

    /// Tells once a link how a peer is reached, and why not in a better way.
    fn note_path(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let passed = self.targets.passed_over(id);
        let best = &self.transports[..link.transport];
        link.passed_over = best
            .iter()
            .enumerate()
            .map(|(at, transport)| {
                let why = passed.iter().find(|(tried, _)| *tried == at).map(|(_, why)| why.as_str());
                (transport.name(), why.unwrap_or("the peer has no address of it").to_owned())
            })
            .collect();
        let Some(peer) = &link.peer else { return };
        let (transport, not) = (self.transports[link.transport].name(), &link.passed_over);
        tracing::info!(rank = %peer.rank, group = peer.group, transport, ?not, "path chosen");
    }

    /// Joins a source over a link that is up, if both ends fit.
    fn attach(&mut self, shared: &Shared, now: Instant, room: Room, rank: Rank, id: LinkId) {
        let Some(ours) = self.our_pools() else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(receiver) = self.rooms.receivers.get_mut(&room) else { return };
        let Some(wanted) = receiver.wanted.remove(&rank) else { return };
        let (Some(party), Some(peer), Some(pools)) = (link.party(Side::Prefill), &link.peer, &link.pools)
        else {
            return;
        };
        self.targets.unwant(&wanted.candidates, Waiter::Receiver(room));
        let candidates = wanted.candidates.clone();
        receiver.reached.insert(rank, Wanted { candidates, instance: Some(peer.instance) });
        let fault = if peer.rank != rank {
            let (there, group, sizes) = (peer.rank, &peer.group, peer.sizes);
            let detail = format!(
                "wrong rank: {there} of group {group:?} ({sizes}) answered where {rank} was expected"
            );
            Some(Fault::new(ErrorKind::Bootstrap, detail))
        } else if wanted.instance.is_some_and(|instance| instance != peer.instance) {
            if let (Some(directory), Some(group)) = (&shared.directory, Some(&peer.group)) {
                directory.invalidate(group);
            }
            let detail = format!("prefill rank {rank} was restarted since it registered");
            Some(Fault::new(ErrorKind::Bootstrap, detail))
        } else {
            None
        };
        let source = SourceLink {
            link: id,
            party,
            revocable: link.is_two_sided(),
            epoch: ours.epoch,
            source_epoch: pools.epoch,
        };
        let share = receiver.session.share_of(rank);
        let fault = fault.or_else(|| link.pairing_from_peer(&ours, share?).err());
        link.rooms.insert((Side::Decode, room));
        receiver.path = Some(self.transports[link.transport].name());
        receiver.transports.insert(id, link.transport);
        // Joined even where it cannot work: so the sender hears of it at once.
        receiver.session.source_up(now, rank, source);
        if let Some(fault) = fault {
            receiver.session.fail(now, fault);
        }
    }

    /// What the last try to reach the missing sources of a room said.
    pub(super) fn note_unreachable(&mut self, shared: &Shared, now: Instant, room: Room) {
        let Some(receiver) = self.rooms.receivers.get_mut(&room) else { return };
        let mut errors =
            receiver.wanted.values().filter_map(|wanted| self.targets.last_error(&wanted.candidates));
        if let Some(error) = errors.next_back() {
            receiver.session.still_missing(format!("last try: {error}"));
        }
        for (rank, wanted) in &receiver.wanted {
            if self.targets.last_error(&wanted.candidates).is_some() {
                receiver.session.unreachable(now, *rank);
            }
        }
        self.follow_up(shared, now, (Side::Decode, room), News::All);
    }
}

/// Addresses in words.
fn places(transports: &[Box<dyn Transport>], candidates: &Candidates) -> String {
    let place = |(transport, address): &(usize, bytes::Bytes)| {
        let transport = transports.get(*transport)?;
        Some(format!("{} {}", transport.name(), transport.describe(address)))
    };
    candidates.iter().filter_map(place).collect::<Vec<_>>().join(", ")
}

/// How a peer is reached that has these addresses, best first, by our own order; if `is_strict`, over our best
/// transport or not at all. If there is no way, why not, as a sentence about the peer goes on.
pub(super) fn candidates(
    transports: &[Box<dyn Transport>],
    addresses: &[(String, Vec<u8>)],
    is_strict: bool,
) -> Result<Candidates, String> {
    let ours = if is_strict { &transports[..transports.len().min(1)] } else { transports };
    let index = |name: &str| ours.iter().position(|transport| transport.name() == name);
    let known = addresses.iter().filter_map(|(name, address)| Some((index(name)?, address.clone().into())));
    let mut candidates: Candidates = known.collect();
    candidates.sort_by_key(|(transport, _)| *transport);
    if candidates.is_empty() {
        let names: Vec<_> = addresses.iter().map(|(name, _)| name.as_str()).collect();
        let here = if is_strict { "which is not the best one here" } else { "none of which is here" };
        return Err(format!("is reached over {names:?}, {here}"));
    }
    Ok(candidates)
}
