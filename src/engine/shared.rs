//! What handles, the progress thread and the core have in common.

use super::changes::Feed;
use super::core::Core;
use super::layouts::Announced;
use super::slot::Slot;
use super::sources::Sources;
use super::stats::Counters;
use super::usage::UsageError;
use super::{Place, clock};
use crate::bootstrap::Directory;
use crate::config::{Config, Deadlines};
use crate::doorbell::Doorbell;
use crate::error::{ErrorKind, Fault, Moment, Origin};
use crate::ids::{Attempt, Generation, GrantId, Instance, Party, Room, Side};
use crate::memory::Mark;
use crate::poll::{KVPoll, Release};
use crate::session::{Chunk, Finish, Lent};
use crate::wire::{Cause, Offer};
use crossbeam::queue::SegQueue;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Lock order: `core`, then `live`, then a slot's own locks. Handles never take `core`.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) instance: Instance,
    pub(super) model: String,
    pub(super) config: Config,
    pub(super) directory: Option<Arc<dyn Directory>>,
    pub(super) directory_changed: AtomicBool,
    pub(super) core: Mutex<Core>,
    pub(super) commands: SegQueue<Command>,
    /// Rooms whose handle wants something; each at most once.
    pub(super) dirty: SegQueue<Arc<Slot>>,
    pub(super) bell: Arc<Doorbell>,
    pub(super) feed: Feed,
    pub(super) announced: RwLock<Option<Arc<Announced>>>,
    /// Which handle owns a room, until the room is over.
    pub(super) live: Mutex<BTreeMap<(Side, Room), Arc<Slot>>>,
    pub(super) generations: AtomicU64,
    pub(super) next_region: AtomicU32,
    pub(super) counters: Counters,
    pub(super) closing: AtomicBool,
    /// How long the end may take.
    pub(super) close_limit: Mutex<Duration>,
    pub(super) is_manual: bool,
    pub(super) process: u32,
}

/// What handles ask for.
#[derive(Debug)]
pub(super) enum Command {
    Chunk { slot: Arc<Slot>, chunk: Chunk, marks: Vec<Mark> },
    Finish { slot: Arc<Slot>, finish: Finish, marks: Vec<Mark> },
    Grant { slot: Arc<Slot>, lent: Lent },
    Offer { slot: Arc<Slot>, offer: Offer },
    OpenReceiver { slot: Arc<Slot>, id: GrantId, from: Sources, deadlines: Deadlines, layers: Vec<u32> },
    OpenSender { slot: Arc<Slot>, attempt: Attempt, deadlines: Deadlines },
    Reject { room: Room, attempt: Attempt, detail: String },
    SetDp { slot: Arc<Slot>, dp: u32 },
}

impl Shared {
    pub(super) fn party(&self, side: Side) -> Party {
        Party { side, rank: self.place.rank, instance: self.instance }
    }

    /// A cause of this process, for rooms that have no session to give one.
    pub(super) fn cause(&self, side: Side, kind: ErrorKind, detail: String) -> Cause {
        Cause { origin: self.party(side), state: KVPoll::Bootstrapping, kind, detail }
    }

    pub(super) fn command(&self, command: Command) {
        self.commands.push(command);
        self.bell.ring();
    }

    /// Passes on what a slot's wish asks for.
    pub(super) fn look_at(&self, slot: &Arc<Slot>, is_news: bool) {
        if is_news {
            self.dirty.push(Arc::clone(slot));
            self.bell.ring();
        }
    }

    /// Whether calls still mean anything.
    pub(super) fn check_open(&self) -> Result<(), UsageError> {
        self.check_process()?;
        if self.closing.load(Ordering::Acquire) { Err(UsageError::Closed) } else { Ok(()) }
    }

    pub(super) fn check_process(&self) -> Result<(), UsageError> {
        let same = std::process::id() == self.process;
        if same { Ok(()) } else { Err(UsageError::Forked(self.process)) }
    }

    /// Claims a room for a new handle.
    pub(super) fn claim(
        &self,
        side: Side,
        room: Room,
        tag: u64,
    ) -> Result<(Arc<Slot>, Arc<Announced>), UsageError> {
        let mut live = self.live.lock();
        self.check_open()?; // under the lock: `give_up` finds every slot, or nobody gets one
        if live.get(&(side, room)).is_some_and(|slot| !slot.is_over()) {
            return Err(UsageError::RoomInUse(room));
        }
        if live.len() >= self.config.limits.rooms {
            return Err(UsageError::TooManyRooms(self.config.limits.rooms));
        }
        let generation = match side {
            Side::Prefill => Generation(0),
            Side::Decode => Generation(self.generations.fetch_add(1, Ordering::Relaxed)),
        };
        let slot = Slot::new(side, room, generation, tag);
        // Under the lock, under which pools change: the room has those it was made with.
        let announced = self.announced.read().clone().ok_or(UsageError::NoLayout)?;
        live.insert((side, room), Arc::clone(&slot));
        Ok((slot, announced))
    }

    /// A room is over: its number is free.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        let mut live = self.live.lock();
        let key = (slot.side, slot.room);
        if live.get(&key).is_some_and(|owner| Arc::ptr_eq(owner, slot)) {
            live.remove(&key);
        }
    }

    /// Nobody drives the engine any more: whoever still waits is told. Pages that were out stay so.
    pub(super) fn give_up(&self, kind: ErrorKind, detail: &str) {
        self.closing.store(true, Ordering::Release);
        let slots: Vec<_> = self.live.lock().values().cloned().collect();
        for slot in slots.into_iter().filter(|slot| !slot.poll().is_terminal()) {
            let moment = Moment { room: slot.room, state: slot.poll(), elapsed: Duration::ZERO };
            let error = Fault::new(kind, detail).at(moment, Origin::Local(self.party(slot.side)));
            slot.publish(KVPoll::Failed, Release::Draining, Some(&error), slot.ready_tokens(), None);
            self.feed.note(&slot);
            slot.take_wakers().into_iter().for_each(std::task::Waker::wake);
        }
    }

    /// Whether handles have asked for something that was not looked at.
    pub(super) fn has_work(&self) -> bool {
        !self.commands.is_empty() || !self.dirty.is_empty() || self.directory_changed.load(Ordering::Acquire)
    }

    /// One turn of the core. Wakers run after its lock is free.
    pub(super) fn turn(&self, core: &mut parking_lot::MutexGuard<'_, Core>) -> usize {
        let did = core.turn(self, clock::now());
        let woken = std::mem::take(&mut core.woken);
        parking_lot::MutexGuard::unlocked(core, || woken.into_iter().for_each(std::task::Waker::wake));
        did
    }
}
