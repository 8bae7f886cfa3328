//! What sessions want done, and the writes they are asked for.

use super::core::{Core, News};
use super::rooms::Key;
use super::shared::Shared;
use crate::error::{ErrorKind, Fault};
use crate::ids::{LinkId, Room, Side};
use crate::layout::Admission;
use crate::session::{Action, Session};
use crate::transport::{TransportError, Write};
use crate::wire::{Frame, Layout};
use std::sync::Arc;
use std::time::Instant;

/// What became of the attempt to post a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Posted {
    /// So many bytes are on their way.
    Bytes(u64),
    /// The room has nothing for this link now.
    Nothing,
    /// The link takes no more now.
    Full,
}

impl Core {
    pub(super) fn act(&mut self, key: Key, action: Action) {
        match action {
            Action::Send { link, id, frame } => self.send(link, &Frame::Room { id, frame }),
            Action::Admit { link: id, .. } => self.admit(key, id),
            Action::Reconnect { rank } => self.rooms.lost.push((key.1, rank)),
            Action::Revoke { link, id } => {
                // Also of a link that has ended: its transport answers for it all the same.
                let receiver = self.rooms.receivers.get(&key.1);
                if let Some(&transport) = receiver.and_then(|room| room.transports.get(&link)) {
                    self.transports[transport].revoke(link, id);
                }
            }
            Action::Fence { link } => {
                let fault = Fault::new(ErrorKind::Timeout, "the peer did not vouch for pages in time");
                self.end_link(link, fault);
            }
        }
    }

    pub(super) fn send(&mut self, id: LinkId, frame: &Frame) {
        let Some(link) = self.links.get(&id).filter(|link| link.is_connected) else { return };
        let transport = &mut self.transports[link.transport];
        match transport.send_control(id, frame.encode()) {
            Ok(()) => {}
            Err(error @ TransportError::TooLarge { .. }) => {
                // The peer would wait for it in vain.
                tracing::error!(link = %id, %error, "control frame does not fit the transport");
                transport.disconnect(id);
            }
            // The link has ended, or is ended by its transport: `LinkDown` tells the rest.
            Err(error) => tracing::debug!(link = %id, %error, "control frame not sent"),
        }
    }

    /// Tells one peer our pools.
    pub(super) fn announce(&mut self, id: LinkId) {
        let Some(announced) = self.announced.clone() else { return };
        let Some(link) = self.links.get(&id).filter(|link| link.is_connected) else { return };
        let transport = &mut self.transports[link.transport];
        let mut regions: Vec<_> = announced.layout.entries.iter().map(|entry| entry.region).collect();
        regions.sort_unstable();
        regions.dedup();
        let keys = regions.into_iter().map(|region| (region, transport.key_for(id, region)));
        let keys: Vec<_> = keys.filter(|(_, key)| !key.is_empty()).collect();
        if let Some(link) = self.links.get_mut(&id) {
            link.keyed.extend(keys.iter().map(|(region, _)| *region));
        }
        let layout = announced.layout.as_ref().clone();
        self.send(id, &Frame::Layout(Layout { epoch: announced.epoch, layout, keys }));
    }

    /// Ends a link from this side, telling the peer why; `LinkDown` follows.
    pub(super) fn end_link(&mut self, id: LinkId, fault: Fault) {
        self.send(id, &Frame::Goodbye { kind: fault.kind, detail: fault.detail.to_string() });
        let Some(link) = self.links.get_mut(&id) else { return };
        link.reason.get_or_insert(fault);
        self.transports[link.transport].disconnect(id);
    }

    /// Puts a sender on the ring of each link it may have writes for.
    pub(super) fn enqueue_writes(&mut self, (side, room): Key) {
        if side != Side::Prefill {
            return;
        }
        let Some(sender) = self.rooms.senders.get(&room) else { return };
        for (id, _) in sender.session.receivers() {
            if sender.session.may_have_writes(id)
                && let Some(link) = self.links.get_mut(&id)
            {
                link.enqueue(room);
            }
        }
    }

    /// Posts writes: each link serves its rooms in turn, one quantum each, while its window is open.
    pub(super) fn pump(&mut self, shared: &Shared, now: Instant) -> usize {
        let limits = &shared.config.limits;
        let links: Vec<_> =
            self.links.iter().filter(|(_, link)| link.has_rooms()).map(|(id, _)| *id).collect();
        let mut did = 0;
        for id in links {
            while let Some(link) = self.links.get_mut(&id) {
                if link.in_flight >= limits.in_flight_bytes || link.is_full {
                    break;
                }
                let Some(room) = link.next_room() else { break };
                let mut quantum = limits.write_bytes;
                let last = loop {
                    match self.post(now, id, room) {
                        Posted::Bytes(bytes) => {
                            did += 1;
                            quantum = quantum.saturating_sub(bytes);
                            if quantum == 0 {
                                break Posted::Bytes(bytes);
                            }
                        }
                        other => break other,
                    }
                };
                if let Some(link) = self.links.get_mut(&id) {
                    match last {
                        Posted::Bytes(_) => link.enqueue(room),
                        Posted::Nothing => {}
                        Posted::Full => {
                            link.is_full = true;
                            link.put_back(room);
                        }
                    }
                }
                self.follow_up(shared, now, (Side::Prefill, room), News::Bytes);
            }
        }
        did
    }

    /// Posts the next write of a room to the peer of a link.
    fn post(&mut self, now: Instant, id: LinkId, room: Room) -> Posted {
        let Some(sender) = self.rooms.senders.get_mut(&room) else { return Posted::Nothing };
        let Some(link) = self.links.get_mut(&id) else { return Posted::Nothing };
        let Some(job) = sender.session.next_write(now, id) else { return Posted::Nothing };
        let (source, destination) = &mut self.extents;
        source.clear();
        destination.clear();
        let mut resolved = job.pairing.source_extents(job.piece, job.source, source);
        if !link.is_two_sided() {
            let there = job.pairing.destination_extents(job.piece, job.destination, destination);
            resolved = resolved.and(there);
        }
        let bytes = job.bytes;
        let result = match resolved {
            Err(error) => Err(Fault::caused_by(ErrorKind::Layout, "pages", error)),
            Ok(_) => {
                let write =
                    Write { op: job.op, grant: job.id, piece: job.piece.clone(), source, destination };
                match self.transports[link.transport].write(id, &write) {
                    // A link that is gone takes no more: its end is on the way here, with the reason.
                    Err(TransportError::Full | TransportError::NotConnected(_)) => return Posted::Full,
                    Err(error) => Err(Fault::caused_by(ErrorKind::Transport, "write", error)),
                    Ok(()) => Ok(()),
                }
            }
        };
        match result {
            Ok(()) => {
                link.in_flight += bytes;
                sender.session.posted(now, id);
                Posted::Bytes(bytes)
            }
            Err(fault) => {
                sender.session.fail(now, fault);
                Posted::Nothing
            }
        }
    }

    /// A sender has given up: what it posted is taken back where that is possible.
    pub(super) fn recall(&mut self, (side, room): Key) {
        let Some(sender) = self.rooms.senders.get(&room).filter(|_| side == Side::Prefill) else { return };
        for (id, grant) in sender.session.receivers() {
            if let Some(link) = self.links.get(&id) {
                self.transports[link.transport].recall(id, grant);
            }
        }
    }

    fn admit(&mut self, key: Key, id: LinkId) {
        let ours = self.our_pools();
        let (Some(room), Some(link), Some(ours)) =
            (self.rooms.receivers.get(&key.1), self.links.get_mut(&id), ours)
        else {
            return;
        };
        let (Some(lent), Some(share)) = (room.session.lent(), room.session.share(id)) else { return };
        // The pairing was checked when the source was attached, and pools do not change under a room.
        let Ok(pairing) = link.pairing_from_peer(&ours, share) else { return };
        let admission = Admission::new(pairing, lent.tokens.clone(), Arc::clone(&lent.pages));
        self.transports[link.transport].admit(id, room.session.id(), Arc::new(admission));
    }
}
