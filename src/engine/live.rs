//! Which handle owns a room, until the room is over; and whether handles may still be made.

use super::slot::Slot;
use super::usage::UsageError;
use crate::ids::{Room, Side};
use crate::sync::{AtomicBool, Mutex, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Live {
    slots: Mutex<BTreeMap<(Side, Room), Arc<Slot>>>,
    closing: AtomicBool,
}

impl Live {
    pub(super) fn is_closing(&self) -> bool {
        // Acquire; pairs with the Release in `close`.
        self.closing.load(Ordering::Acquire)
    }

    /// From now on nobody gets a room: `all` finds every slot there will be.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Claims a room for the slot that `make` makes, under the lock.
    pub(super) fn claim<T>(
        &self,
        key: (Side, Room),
        limit: usize,
        make: impl FnOnce() -> Result<(Arc<Slot>, T), UsageError>,
    ) -> Result<(Arc<Slot>, T), UsageError> {
        let mut slots = self.slots.lock();
        if self.is_closing() {
            return Err(UsageError::Closed); // under the lock: whoever has closed finds this slot, or it is not made
        }
        if slots.get(&key).is_some_and(|slot| !slot.is_over()) {
            return Err(UsageError::RoomInUse(key.1));
        }
        if slots.len() >= limit {
            return Err(UsageError::TooManyRooms(limit));
        }
        let (slot, more) = make()?;
        slots.insert(key, Arc::clone(&slot));
        Ok((slot, more))
    }

    /// A room is over: its number is free.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        let key = (slot.side, slot.room);
        if slots.get(&key).is_some_and(|owner| Arc::ptr_eq(owner, slot)) {
            slots.remove(&key);
        }
    }

    /// Changes what rooms are made with, while there are none.
    pub(super) fn without_rooms(&self, change: impl FnOnce()) -> Result<(), UsageError> {
        let slots = self.slots.lock();
        if !slots.is_empty() {
            return Err(UsageError::RoomsAlive(slots.len()));
        }
        change();
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.lock().values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}
