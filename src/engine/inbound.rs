//! What comes from transports and peers.

use super::core::{Core, News};
use super::links::{Link, Peer, Pools};
use super::rooms::Waiter;
use super::shared::Shared;
use crate::error::{ErrorKind, Fault};
use crate::ids::{GrantId, LinkId, Side};
use crate::session::{Answer, JoinedLink, Session, Settlement};
use crate::transport::{Event, TransportError};
use crate::wire::{Frame, Grant, Hello, RoomFrame};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Core {
    pub(super) fn event(&mut self, shared: &Shared, now: Instant, transport: usize, event: Event) {
        match event {
            Event::Alive { link } => self.hear(now, link),
            Event::Connected { link } => self.connected(shared, now, transport, link),
            Event::Control { link, frame } => self.control(shared, now, link, &frame),
            Event::Landed { link, grant, op, bytes } => {
                self.hear(now, link);
                let receiver = self.rooms.receivers.get_mut(&grant.room);
                if let Some(room) = receiver.filter(|room| room.session.id() == grant) {
                    room.session.landed(now, link, op, bytes);
                    if let Some(link) = self.links.get_mut(&link) {
                        link.received += bytes;
                    }
                    self.follow_up(shared, now, (Side::Decode, grant.room), News::Bytes);
                }
            }
            Event::Settled { link, grant, op, result } => {
                if !matches!(result, Err(TransportError::Recalled { .. })) {
                    self.hear(now, link);
                }
                let settlement = match result {
                    Ok(()) => Settlement::Landed,
                    Err(TransportError::Corrupted) => {
                        shared.counters.damaged.fetch_add(1, Ordering::Relaxed);
                        if let Some(count) = self.damaged.due(now) {
                            tracing::warn!(%link, count, "writes arrived damaged and are made again");
                        }
                        Settlement::Damaged
                    }
                    Err(error) => Settlement::Broken(self.broken_write(link, error)),
                };
                let Some(room) = self.rooms.senders.get_mut(&grant.room) else { return };
                let has_landed = matches!(settlement, Settlement::Landed);
                let bytes = room.session.settled(now, link, op, settlement);
                if let Some(link) = self.links.get_mut(&link) {
                    link.sent += if has_landed { bytes } else { 0 };
                    link.in_flight = link.in_flight.saturating_sub(bytes);
                    link.is_full = false;
                }
                self.follow_up(shared, now, (Side::Prefill, grant.room), News::Bytes);
            }
            Event::Refused { link, grant, detail } => {
                shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                let receiver = self.rooms.receivers.get_mut(&grant.room);
                if let Some(room) = receiver.filter(|room| room.session.id() == grant) {
                    room.session.refused(now, link, &detail);
                    self.follow_up(shared, now, (Side::Decode, grant.room), News::All);
                }
            }
            Event::Revoked { link, grant } => {
                let receiver = self.rooms.receivers.get_mut(&grant.room);
                if let Some(room) = receiver.filter(|room| room.session.id() == grant) {
                    room.session.revoked(now, link);
                    self.follow_up(shared, now, (Side::Decode, grant.room), News::All);
                }
            }
            Event::LinkDown { link, quiesced, error } => self.link_down(shared, now, link, quiesced, error),
        }
    }

    /// Sends answers of the lobby.
    pub(super) fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { link, id, frame } in answers {
            self.send(link, &Frame::Room { id, frame });
        }
    }

    fn connected(&mut self, shared: &Shared, now: Instant, transport: usize, id: LinkId) {
        let caps = self.transports[transport].caps();
        let link = self.links.entry(id).or_insert_with(|| Link::new(now, transport, caps));
        (link.is_connected, link.heard, link.pinged) = (true, now, now);
        self.beat.watch(now, &shared.config.liveness);
        let place = &shared.place;
        self.send(
            id,
            &Frame::Hello(Hello {
                features: 0,
                instance: shared.instance,
                group: place.group.clone(),
                rank: place.rank,
                sizes: place.sizes,
                model: shared.model.clone(),
            }),
        );
        self.announce(id);
    }

    fn control(&mut self, shared: &Shared, now: Instant, id: LinkId, bytes: &Bytes) {
        self.hear(now, id);
        let frame = match Frame::decode(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.count_malformed(shared, now, id, &error);
                return self.end_link(id, Fault::caused_by(ErrorKind::Protocol, "malformed frame", error));
            }
        };
        let Some(link) = self.links.get_mut(&id) else { return };
        match frame {
            Frame::Hello(hello) if link.peer.is_none() => {
                match Peer::introduced(&hello, &shared.model, shared.any_model) {
                    Ok(peer) => {
                        link.peer = Some(peer);
                        self.introduced(shared, now, id);
                    }
                    Err(fault) => self.end_link(id, fault),
                }
            }
            _ if link.peer.is_none() => self.end_link(id, Fault::new(ErrorKind::Protocol, "no hello")),
            Frame::Layout(pools) => {
                if let Err(error) = pools.layout.check_shape() {
                    return self.end_link(id, Fault::caused_by(ErrorKind::Layout, "the peer's pools", error));
                }
                link.pools = Some(Pools { epoch: pools.epoch, layout: Arc::new(pools.layout) });
                for (region, key) in &pools.keys {
                    let imported = self.transports[link.transport].import(id, *region, key);
                    if let Err(error) = imported {
                        return self
                            .end_link(id, Fault::caused_by(ErrorKind::Transport, "region key", error));
                    }
                }
                self.link_up(shared, now, id);
            }
            Frame::Ping { token } => self.send(id, &Frame::Pong { token }),
            Frame::Goodbye { kind, detail } => self.end_link(id, Fault::new(kind, detail)),
            Frame::RegionsGone { regions } => {
                let transport = &mut self.transports[link.transport];
                regions.iter().for_each(|region| transport.forget_import(id, *region));
                self.send(id, &Frame::RegionsClosed { regions });
            }
            Frame::RegionsClosed { regions } => self.regions_closed(id, &regions),
            Frame::Room { id: grant, frame } => self.room_frame(shared, now, id, grant, frame, bytes.len()),
            Frame::Group { id: ballot, frame } => self.group_frame(shared, now, id, ballot, frame),
            // Answers whose arrival is all they have to say, and a repeated hello.
            _ => {}
        }
    }

    fn room_frame(
        &mut self,
        shared: &Shared,
        now: Instant,
        link: LinkId,
        id: GrantId,
        frame: RoomFrame,
        bytes: usize,
    ) {
        if frame.reader() == Side::Decode {
            let receiver = self.rooms.receivers.get_mut(&id.room).filter(|room| room.session.id() == id);
            let Some(room) = receiver else {
                if matches!(frame, RoomFrame::Query { .. }) {
                    let cause =
                        shared.cause(Side::Decode, ErrorKind::Aborted, "the receiver has ended".into());
                    return self.send(link, &Frame::Room { id, frame: RoomFrame::Abort(cause) });
                }
                shared.counters.late.fetch_add(1, Ordering::Relaxed);
                return;
            };
            // Only its sources have a say in it.
            if !room.transports.contains_key(&link) {
                shared.counters.late.fetch_add(1, Ordering::Relaxed);
                return;
            }
            room.session.frame(now, link, id, &frame);
            return self.follow_up(shared, now, (Side::Decode, id.room), News::All);
        }
        let Some(party) = self.links.get(&link).and_then(|link| link.party(Side::Decode)) else { return };
        if self.rooms.senders.get(&id.room).is_some_and(|room| room.attempt == id.attempt) {
            return self.sender_frame(shared, now, link, id, frame);
        }
        // No sender, or one of another attempt: this attempt's may have ended, or be yet to come.
        let answers = self.lobby.frame(now, link, party, id, frame, bytes);
        let is_busy = |answer: &Answer| matches!(&answer.frame, RoomFrame::Failed(cause) if cause.kind == ErrorKind::Busy);
        if answers.iter().any(is_busy)
            && let Some(link) = self.links.get_mut(&link)
            && let Some(count) = link.busy.due(now)
        {
            tracing::warn!(peer = %party, count, "no space for receivers without a sender");
        }
        self.answer(answers);
    }

    fn count_malformed(
        &mut self,
        shared: &Shared,
        now: Instant,
        link: LinkId,
        error: &dyn std::error::Error,
    ) {
        shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.malformed.due(now) {
            tracing::warn!(%link, error = %error, count, "peers broke the format, their links are ended");
        }
    }

    /// A receiver's frame for a sender that is here.
    pub(super) fn sender_frame(
        &mut self,
        shared: &Shared,
        now: Instant,
        id: LinkId,
        grant: GrantId,
        frame: RoomFrame,
    ) {
        let key = (Side::Prefill, grant.room);
        let ours = self.our_pools();
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(party) = link.party(Side::Decode) else { return };
        let Some(room) = self.rooms.senders.get_mut(&grant.room) else { return };
        match frame {
            RoomFrame::Join { destinations } => {
                let peer_counts = link.is_two_sided();
                room.session.join(now, JoinedLink { link: id, party, id: grant, peer_counts }, &destinations);
                room.path = Some(self.transports[link.transport].name());
                link.rooms.insert(key);
            }
            RoomFrame::Grant(_) if !room.session.receivers().any(|known| known == (id, grant)) => {
                room.session.stranger(id, grant);
            }
            RoomFrame::Grant(body) => {
                let Grant { epoch, source_epoch, .. } = body;
                let current = link.pools.as_ref().map(|pools| pools.epoch);
                let held = room.tokens;
                let pairing = match (&ours, &body.share) {
                    (_, Some(share)) if share.source != held => {
                        let detail = format!("tokens held: {held} here, {} in the grant", share.source);
                        Err(Fault::new(ErrorKind::Layout, detail))
                    }
                    (Some(ours), share) if (ours.epoch, current) == (source_epoch, Some(epoch)) => {
                        share.as_ref().map(|share| link.pairing_to_peer(ours, share)).transpose()
                    }
                    _ => Err(Fault::new(
                        ErrorKind::Layout,
                        "the grant names pools announced before the current ones",
                    )),
                };
                match pairing {
                    Ok(pairing) => room.session.grant(now, id, grant, &body, pairing),
                    Err(fault) => room.session.fail(now, fault),
                }
            }
            frame => room.session.frame(now, id, grant, &frame),
        }
        self.follow_up(shared, now, key, News::All);
    }

    fn link_down(
        &mut self,
        shared: &Shared,
        now: Instant,
        id: LinkId,
        quiesced: bool,
        error: TransportError,
    ) {
        let is_malformed = matches!(error, TransportError::Format { .. });
        if is_malformed {
            self.count_malformed(shared, now, id, &error);
        }
        let link = self.links.remove(&id);
        let reason = link.as_ref().and_then(|link| link.reason.clone());
        // What a peer says when it goes is an answer, not a fault of the network. Nor is another version.
        let refusals = [ErrorKind::Layout, ErrorKind::Protocol, ErrorKind::ShuttingDown];
        let refused = reason.clone().filter(|fault| refusals.contains(&fault.kind));
        let is_final = is_malformed && self.targets.is_last(id);
        let refused = refused.or(is_final.then(|| Fault::new(ErrorKind::Protocol, error.to_string())));
        let fault =
            reason.clone().unwrap_or_else(|| Fault::caused_by(ErrorKind::PeerLost, "link lost", error));
        tracing::debug!(link = %id, detail = %fault.detail, "link down");
        self.lobby.link_down(id);
        let is_goodbye = reason.as_ref().is_some_and(|fault| fault.kind == ErrorKind::ShuttingDown);
        if link.as_ref().is_some_and(|link| link.is_connected) && !is_goodbye {
            shared.counters.links_lost.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(link) = &link {
            self.keys_ended(id, link, quiesced);
        }
        let silent = link.as_ref().filter(|link| link.is_silent).map(Link::rank);
        for key in link.map(|link| link.rooms).unwrap_or_default() {
            if let Some(session) = self.rooms.session(key) {
                session.link_down(now, id, quiesced, fault.clone());
            }
            // A peer that has been silent that long is not asked for its last word.
            if let (Some(rank), (Side::Decode, room)) = (silent, key)
                && let Some(receiver) = self.rooms.receivers.get_mut(&room)
            {
                receiver.session.unreachable(now, rank);
            }
            self.mate_down(shared, now, key, id, &fault, refused.is_some() || silent.is_some());
            self.follow_up(shared, now, key, News::All);
        }
        let told = self.ballots.link_down(now, id, &fault);
        self.tell(shared, now, told);
        for waiter in self.targets.down(now, id, &fault.detail) {
            let room = match waiter {
                Waiter::Receiver(room) => room,
                Waiter::Group(key) => {
                    self.mate_unreachable(shared, now, key, refused.as_ref());
                    continue;
                }
            };
            // A peer that cannot work with us, or goes, will not do better at the next try.
            let Some(fault) = refused.clone() else {
                self.note_unreachable(shared, now, room);
                continue;
            };
            if let Some(session) = self.rooms.session((Side::Decode, room)) {
                session.fail(now, fault);
            }
            self.follow_up(shared, now, (Side::Decode, room), News::All);
        }
    }

    /// Why a write could not be made. If that is because its link has ended, the news of which may come
    /// later, then for the link's reason.
    fn broken_write(&self, link: LinkId, error: TransportError) -> Fault {
        use TransportError::{Closed, Disconnected, NotConnected};
        if !matches!(error, Closed { .. } | Disconnected { .. } | NotConnected(_)) {
            return Fault::caused_by(ErrorKind::Transport, "write", error);
        }
        let reason = self.links.get(&link).and_then(|link| link.reason.clone());
        reason.unwrap_or_else(|| Fault::caused_by(ErrorKind::PeerLost, "link lost", error))
    }

    fn hear(&mut self, now: Instant, link: LinkId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.heard = now;
        }
    }
}
