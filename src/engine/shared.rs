//! What handles, the progress thread and the core have in common.

use super::changes::Feed;
use super::core::Core;
use super::inbox::Inbox;
use super::layouts::Announced;
use super::live::Live;
use super::outcome::Outcome;
use super::slot::Slot;
use super::sources::Sources;
use super::stats::Counters;
use super::usage::UsageError;
use super::{Place, clock};
use crate::bootstrap::Directory;
use crate::config::{Config, Deadlines};
use crate::error::{ErrorKind, Fault, Moment, Origin};
use crate::home::Home;
use crate::ids::{Attempt, BallotId, Generation, GrantId, Instance, Party, Rank, Room, Side};
use crate::layout::TokenShard;
use crate::memory::Mark;
use crate::poll::{KVPoll, Release};
use crate::session::{Chunk, Finish, Lent};
use crate::wire::{Cause, Offer};
use parking_lot::{Mutex, RwLock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

/// Lock order: `core`, then `live`, then a slot's own locks. Handles never take `core`.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) instance: Instance,
    pub(super) model: String,
    /// Peers may name another model.
    pub(super) any_model: bool,
    pub(super) config: Config,
    pub(super) directory: Option<Arc<dyn Directory>>,
    pub(super) core: Mutex<Core>,
    pub(super) inbox: Arc<Inbox<Command>>,
    pub(super) feed: Feed,
    /// How tokens are dealt out to the ranks of the group, of which this is one.
    pub(super) tokens: TokenShard,
    pub(super) announced: RwLock<Option<Arc<Announced>>>,
    pub(super) live: Live,
    pub(super) generations: AtomicU64,
    pub(super) next_region: AtomicU32,
    pub(super) counters: Counters,
    /// How long the end may take.
    pub(super) close_limit: Mutex<Duration>,
    pub(super) is_manual: bool,
    /// Peers are reached over the first transport or not at all.
    pub(super) is_strict: bool,
    pub(super) home: Home,
}

/// What handles ask for.
#[derive(Debug)]
pub(super) enum Command {
    Chunk {
        slot: Arc<Slot>,
        chunk: Chunk,
        marks: Vec<Mark>,
    },
    Finish {
        slot: Arc<Slot>,
        finish: Finish,
        marks: Vec<Mark>,
    },
    Grant {
        slot: Arc<Slot>,
        lent: Lent,
    },
    Offer {
        slot: Arc<Slot>,
        offer: Offer,
    },
    OpenReceiver {
        slot: Arc<Slot>,
        id: GrantId,
        from: Sources,
        deadlines: Deadlines,
        layers: Vec<u32>,
        group: Option<Box<Group>>,
    },
    OpenSender {
        slot: Arc<Slot>,
        attempt: Attempt,
        deadlines: Deadlines,
        tokens: TokenShard,
        group: Option<Box<Group>>,
    },
    Reject {
        room: Room,
        attempt: Attempt,
        detail: String,
    },
    SetDp {
        slot: Arc<Slot>,
        dp: u32,
    },
}

/// Who shares the outcome of a new room.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: BallotId,
    pub(super) ranks: Vec<Rank>,
    pub(super) outcome: Outcome,
}

/// Wakers are code of the caller's: a panic of one is told by the panic hook, and harms nobody else.
pub(super) fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Shared {
    pub(super) fn party(&self, side: Side) -> Party {
        Party { side, rank: self.place.rank, instance: self.instance }
    }

    /// A cause of this process, for rooms that have no session to give one.
    pub(super) fn cause(&self, side: Side, kind: ErrorKind, detail: String) -> Cause {
        Cause { origin: self.party(side), state: KVPoll::Bootstrapping, kind, detail }
    }

    /// Whether calls still mean anything.
    pub(super) fn check_open(&self) -> Result<(), UsageError> {
        self.check_process()?;
        match (self.live.is_closing(), self.counters.is_broken()) {
            (_, true) => Err(UsageError::Panicked),
            (true, false) => Err(UsageError::Closed),
            (false, false) => Ok(()),
        }
    }

    pub(super) fn check_process(&self) -> Result<(), UsageError> {
        if self.home.is_here() { Ok(()) } else { Err(UsageError::Forked(self.home.process())) }
    }

    /// Who shares the outcome of a room, if others do.
    pub(super) fn group(
        &self,
        side: Side,
        room: Room,
        attempt: Attempt,
        outcome: Outcome,
    ) -> Result<Option<Box<Group>>, UsageError> {
        let ranks = outcome.ranks(self.place.rank, self.place.sizes, self.directory.is_some())?;
        if ranks.is_empty() {
            return Ok(None);
        }
        let generation = Generation(self.generations.fetch_add(1, Ordering::Relaxed));
        Ok(Some(Box::new(Group { id: BallotId { side, room, attempt, generation }, ranks, outcome })))
    }

    /// Claims a room for a new handle.
    pub(super) fn claim(
        &self,
        side: Side,
        room: Room,
        tag: u64,
    ) -> Result<(Arc<Slot>, Arc<Announced>), UsageError> {
        self.check_process()?;
        self.live.claim((side, room), self.config.limits.rooms, || {
            let generation = match side {
                Side::Prefill => Generation(0),
                Side::Decode => Generation(self.generations.fetch_add(1, Ordering::Relaxed)),
            };
            // Pools change while no room is claimed: the room has those it was made with.
            let announced = self.announced.read().clone().ok_or(UsageError::NoLayout)?;
            Ok((Slot::new(side, room, generation, tag), announced))
        })
    }

    /// Nobody drives the engine any more: whoever still waits is told. Pages that were out stay so.
    pub(super) fn give_up(&self, kind: ErrorKind, detail: &str) {
        self.live.close();
        for slot in self.live.all().into_iter().filter(|slot| !slot.poll().is_terminal()) {
            let moment = Moment { room: slot.room, state: slot.poll(), elapsed: Duration::ZERO };
            let error = Fault::new(kind, detail).at(moment, Origin::Local(self.party(slot.side)));
            slot.publish(KVPoll::Failed, Release::Draining, Some(&error), slot.ready_tokens(), None);
            self.feed.note(&slot);
            wake(slot.take_wakers());
        }
    }

    /// One turn of the core. Wakers run after its lock is free.
    pub(super) fn turn(&self, core: &mut parking_lot::MutexGuard<'_, Core>) -> usize {
        let did = core.turn(self, clock::now());
        let woken = std::mem::take(&mut core.woken);
        parking_lot::MutexGuard::unlocked(core, || wake(woken));
        did
    }
}
