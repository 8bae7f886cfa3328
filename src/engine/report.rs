//! A picture of an engine at one moment: how each peer is reached, and where each room stands.

use super::core::Core;
use super::shared::Shared;
use super::slot::Slot;
use super::stats::{Stats, TransferStats};
use crate::ids::{Attempt, Instance, Rank, Room, Side};
use crate::poll::{KVPoll, Release};
use crate::session::Session;
use std::fmt;
use std::time::{Duration, Instant};

/// How each peer is reached, and where each room stands, at one moment. Prints as one line for each.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Peers with a link, in the order of their links.
    pub peers: Vec<PeerReport>,
    /// Rooms alive that the engine has taken up: senders, then receivers, by number.
    pub rooms: Vec<RoomReport>,
}

/// One link to a peer.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PeerReport {
    /// The peer's place in its group.
    pub rank: Rank,
    /// Its group.
    pub group: String,
    /// Its process start.
    pub instance: Instance,
    /// The transport that carries the link.
    pub transport: &'static str,
    /// Transports that would have been better, and why each is not used; of links made from here.
    pub passed_over: Vec<(&'static str, String)>,
    /// Rooms that use it.
    pub rooms: usize,
    /// Bytes posted and not settled.
    pub in_flight: u64,
    /// Bytes of KV that have gone to the peer.
    pub sent: u64,
    /// Bytes of KV that have come from it.
    pub received: u64,
    /// Time since anything was heard of it.
    pub silent_for: Duration,
}

/// One room.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct RoomReport {
    /// What this engine is in it.
    pub side: Side,
    /// Its number.
    pub room: Room,
    /// Which try of it.
    pub attempt: Attempt,
    /// The caller's number for it.
    pub tag: u64,
    /// Where it stands.
    pub state: KVPoll,
    /// Whether its pages are the caller's again.
    pub release: Release,
    /// Ranks that it waits for.
    pub waiting_for: Vec<Rank>,
    /// Its figures so far.
    pub stats: TransferStats,
}

impl Core {
    /// Counters and table sizes.
    pub(super) fn stats(&self, shared: &Shared) -> Stats {
        let mut stats = shared.counters.read();
        stats.rooms = shared.live.len();
        stats.links = self.links.len();
        (stats.targets, stats.unreachable) = self.targets.sizes();
        stats.reconnects = self.targets.reconnects();
        (stats.senders, stats.receivers) = (self.rooms.senders.len(), self.rooms.receivers.len());
        (stats.timers, stats.marked) = (self.rooms.timers(), self.rooms.marked.len());
        stats.quarantined = self.rooms.quarantined.len();
        (stats.regions, stats.withdrawals) = (self.regions.len(), self.withdrawals.len());
        (stats.parked, stats.remembered) = self.lobby.sizes();
        stats.late += self.lobby.late() + self.ballots.late();
        let (ballots, verdicts) = self.ballots.sizes();
        stats.ballots = ballots;
        stats.remembered += verdicts;
        stats
    }

    pub(super) fn report(&self, now: Instant) -> Report {
        let peers = self.links.values().filter_map(|link| {
            let peer = link.peer.as_ref()?;
            Some(PeerReport {
                rank: peer.rank,
                group: peer.group.clone(),
                instance: peer.instance,
                transport: self.transports[link.transport].name(),
                passed_over: link.passed_over.clone(),
                rooms: link.rooms.len(),
                in_flight: link.in_flight,
                sent: link.sent,
                received: link.received,
                silent_for: now.saturating_duration_since(link.heard),
            })
        });
        let senders = self.rooms.senders.values().map(|room| {
            let stats = TransferStats::new(&room.session.figures(), room.path);
            room_report(&room.slot, room.attempt, room.session.waiting_for(), stats)
        });
        let receivers = self.rooms.receivers.values().map(|room| {
            let stats = TransferStats::new(&room.session.figures(), room.path);
            room_report(&room.slot, room.session.id().attempt, room.session.waiting_for(), stats)
        });
        Report { peers: peers.collect(), rooms: senders.chain(receivers).collect() }
    }
}

fn room_report(slot: &Slot, attempt: Attempt, waiting_for: Vec<Rank>, stats: TransferStats) -> RoomReport {
    let Slot { side, room, tag, .. } = *slot;
    let (state, release) = (slot.poll(), slot.release());
    RoomReport { side, room, attempt, tag, state, release, waiting_for, stats }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peers.iter().try_for_each(|peer| writeln!(f, "{peer}"))?;
        self.rooms.iter().try_for_each(|room| writeln!(f, "{room}"))
    }
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, group, instance, transport, rooms, in_flight, sent, received, .. } = self;
        write!(
            f,
            "peer {rank} of {group:?} ({instance}) over {transport}: rooms={rooms} in_flight={in_flight}"
        )?;
        write!(f, " sent={sent} received={received} silent_for={:?}", self.silent_for)?;
        self.passed_over.iter().try_for_each(|(name, why)| write!(f, "; not {name}: {why}"))
    }
}

impl fmt::Display for RoomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, room, attempt, tag, state, release, waiting_for, stats } = self;
        write!(f, "{side} room {room} attempt {} tag {tag}: {state:?} {release:?}", attempt.0)?;
        write!(f, " bytes={} over {}", stats.bytes, stats.path.unwrap_or("nothing yet"))?;
        for (phase, time) in [
            ("bootstrap", stats.bootstrap_wait()),
            ("queue", stats.queue_time()),
            ("transfer", stats.transfer_time()),
        ] {
            time.map_or(Ok(()), |time| write!(f, " {phase}={time:?}"))?;
        }
        let ranks: Vec<_> = waiting_for.iter().map(Rank::to_string).collect();
        if ranks.is_empty() { Ok(()) } else { write!(f, "; waits for {}", ranks.join(", ")) }
    }
}
