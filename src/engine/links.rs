//! Links as the engine sees them: who is at the other end, what pools it has, what is under way.

use super::rooms::Key;
use super::warning::Warning;
use crate::error::{ErrorKind, Fault};
use crate::ids::{GroupSizes, Instance, Party, Rank, RegionId, Room, Side};
use crate::layout::{Mismatch, Pairing, PoolLayout, Share};
use crate::transport::{Caps, WriteModel};
use crate::wire::Hello;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// One live connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Which of the engine's transports it belongs to.
    pub(super) transport: usize,
    pub(super) caps: Caps,
    /// Frames may be sent.
    pub(super) is_connected: bool,
    pub(super) peer: Option<Peer>,
    pub(super) pools: Option<Pools>,
    /// Regions of ours that the peer was given a key of.
    pub(super) keyed: BTreeSet<RegionId>,
    /// Rooms that end with it.
    pub(super) rooms: BTreeSet<Key>,
    /// Rooms that may have writes for it, each once, served in turn.
    ring: VecDeque<Room>,
    ringed: BTreeSet<Room>,
    /// Bytes posted and not settled.
    pub(super) in_flight: u64,
    /// Bytes that have settled.
    pub(super) sent: u64,
    /// Bytes that have landed.
    pub(super) received: u64,
    /// The transport said `Full`; until something settles.
    pub(super) is_full: bool,
    pub(super) heard: Instant,
    /// When it was asked for a sign of life.
    pub(super) pinged: Instant,
    /// Why this side ends it, if it does.
    pub(super) reason: Option<Fault>,
    /// It ends because nothing was heard of the peer for too long.
    pub(super) is_silent: bool,
    /// Transports that would have been better, and why each is not used.
    pub(super) passed_over: Vec<(&'static str, String)>,
    /// The peer's receivers that were sent away.
    pub(super) busy: Warning,
    to_peer: Option<Paired>,
    from_peer: Option<Paired>,
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) instance: Instance,
    pub(super) rank: Rank,
    pub(super) group: String,
    pub(super) sizes: GroupSizes,
}

/// The peer's pools, as it announced them last.
#[derive(Clone, Debug)]
pub(super) struct Pools {
    pub(super) epoch: u32,
    pub(super) layout: Arc<PoolLayout>,
}

/// The pairing made last, kept while neither side announces other pools and rooms have the same share.
#[derive(Debug)]
struct Paired {
    epochs: (u32, u32),
    share: Share,
    pairing: Result<Arc<Pairing>, Mismatch>,
}

impl Link {
    pub(super) fn new(now: Instant, transport: usize, caps: Caps) -> Self {
        Self {
            transport,
            caps,
            is_connected: false,
            peer: None,
            pools: None,
            keyed: BTreeSet::new(),
            rooms: BTreeSet::new(),
            ring: VecDeque::new(),
            ringed: BTreeSet::new(),
            in_flight: 0,
            sent: 0,
            received: 0,
            is_full: false,
            heard: now,
            pinged: now,
            reason: None,
            is_silent: false,
            busy: Warning::default(),
            passed_over: Vec::new(),
            to_peer: None,
            from_peer: None,
        }
    }

    /// Whether the peer applies our writes, and we apply its: each side can then stop the other's.
    pub(super) fn is_two_sided(&self) -> bool {
        self.caps.write_model == WriteModel::TwoSided
    }

    /// Whether both ends know each other and each other's pools.
    pub(super) fn is_up(&self) -> bool {
        self.peer.is_some() && self.pools.is_some() && self.reason.is_none()
    }

    /// The peer as a party of a room in which it plays `side`.
    pub(super) fn party(&self, side: Side) -> Option<Party> {
        self.peer.as_ref().map(|peer| Party { side, rank: peer.rank, instance: peer.instance })
    }

    /// The peer's rank, as far as it is known.
    pub(super) fn rank(&self) -> Rank {
        self.peer.as_ref().map(|peer| peer.rank).unwrap_or_default()
    }

    /// A room that may have writes is served after the others.
    pub(super) fn enqueue(&mut self, room: Room) {
        if self.ringed.insert(room) {
            self.ring.push_back(room);
        }
    }

    /// A room that could not be served is the next again.
    pub(super) fn put_back(&mut self, room: Room) {
        if self.ringed.insert(room) {
            self.ring.push_front(room);
        }
    }

    /// The room to be served now.
    pub(super) fn next_room(&mut self) -> Option<Room> {
        let room = self.ring.pop_front()?;
        self.ringed.remove(&room);
        Some(room)
    }

    pub(super) fn has_rooms(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Matches what of our pools we owe the peer with its own.
    pub(super) fn pairing_to_peer(&mut self, ours: &Pools, share: &Share) -> Result<Arc<Pairing>, Fault> {
        let theirs = self.pools.as_ref().ok_or_else(unannounced)?;
        paired(&mut self.to_peer, ours, theirs, share)
    }

    /// Matches what of its pools the peer owes us with our own.
    pub(super) fn pairing_from_peer(&mut self, ours: &Pools, share: &Share) -> Result<Arc<Pairing>, Fault> {
        let theirs = self.pools.as_ref().ok_or_else(unannounced)?;
        paired(&mut self.from_peer, theirs, ours, share)
    }
}

impl Peer {
    /// Who `hello` says it is, if this side can work with it.
    pub(super) fn introduced(hello: &Hello, model: &str, any_model: bool) -> Result<Self, Fault> {
        if hello.model != model && !any_model {
            let detail = format!("model: {model:?} here, {:?} on rank {}", hello.model, hello.rank);
            return Err(Fault::new(ErrorKind::Layout, detail));
        }
        if !hello.sizes.holds(hello.rank) {
            let detail = format!("rank {} is outside its group of {}", hello.rank, hello.sizes);
            return Err(Fault::new(ErrorKind::Protocol, detail));
        }
        let Hello { instance, rank, sizes, group, .. } = hello.clone();
        Ok(Self { instance, rank, group, sizes })
    }
}

fn paired(
    kept: &mut Option<Paired>,
    source: &Pools,
    destination: &Pools,
    share: &Share,
) -> Result<Arc<Pairing>, Fault> {
    let epochs = (source.epoch, destination.epoch);
    if kept.as_ref().is_none_or(|kept| kept.epochs != epochs || kept.share != *share) {
        let (ours, theirs) = (Arc::clone(&source.layout), Arc::clone(&destination.layout));
        let pairing = Pairing::of(ours, theirs, share).map(Arc::new);
        *kept = Some(Paired { epochs, share: share.clone(), pairing });
    }
    match kept.as_ref().map(|kept| &kept.pairing) {
        Some(Ok(pairing)) => Ok(Arc::clone(pairing)),
        Some(Err(mismatch)) => Err(Fault::caused_by(ErrorKind::Layout, "pools", mismatch.clone())),
        None => Err(unannounced()),
    }
}

fn unannounced() -> Fault {
    Fault::new(ErrorKind::Protocol, "the peer has not announced its pools")
}
