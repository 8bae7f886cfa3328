//! What the engine publishes of one room, and what its handle asks of the engine. Shared by both,
//! without a lock on the path of `poll`.
//!
//! Order of stores: error, details, release, poll. A reader that loads `poll` first therefore sees an
//! error with `Failed`, and `Safe` with `Success`.

use super::changes::Change;
use crate::error::KVTransferError;
use crate::ids::{Generation, Rank, Room, Side};
use crate::poll::{KVPoll, Release};
use crate::session::Figures;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Mutex, OnceLock, Ordering};
use crate::wire::Offer;
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::task::{Poll, Waker};

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) side: Side,
    pub(crate) room: Room,
    /// The receiver's generation; 0 on the sending side.
    pub(crate) generation: Generation,
    pub(crate) tag: u64,
    poll: AtomicU8,
    release: AtomicU8,
    ready_tokens: AtomicU32,
    error: OnceLock<KVTransferError>,
    details: Mutex<Details>,
    wakers: Mutex<Vec<Waker>>,
    /// The handle asks for the end.
    abort: AtomicBool,
    pub(crate) is_dirty: AtomicBool,
    /// On the change feed, waiting to be read.
    pub(crate) is_changed: AtomicBool,
    /// What the change feed has told last.
    pub(crate) reported: Mutex<Option<Change>>,
    pub(crate) abort_detail: Mutex<Option<String>>,
}

/// What is rarely read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) offer: Option<Offer>,
    pub(crate) payloads: Vec<(Rank, Bytes)>,
    pub(crate) granted: Option<Granted>,
    pub(crate) waiting_for: Vec<Rank>,
    pub(crate) layers_ready: Vec<(u32, u32)>,
    pub(crate) figures: Option<Figures>,
    pub(crate) path: Option<&'static str>,
}

impl Details {
    /// Whether callers wait for what differs; figures and names are read when wanted.
    fn shows_other(&self, new: &Self) -> bool {
        self.offer != new.offer
            || self.granted != new.granted
            || self.layers_ready != new.layers_ready
            || self.payloads != new.payloads
    }
}

/// What the decode side has lent to a sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Granted {
    /// Tokens that every destination already holds; they need not be computed or sent.
    pub held_tokens: u32,
    /// Number of destinations.
    pub destinations: usize,
}

impl Slot {
    pub(crate) fn new(side: Side, room: Room, generation: Generation, tag: u64) -> Arc<Self> {
        Arc::new(Self {
            side,
            room,
            generation,
            tag,
            poll: AtomicU8::new(KVPoll::Bootstrapping as u8),
            release: AtomicU8::new(Release::Held as u8),
            ready_tokens: AtomicU32::new(0),
            error: OnceLock::new(),
            details: Mutex::default(),
            wakers: Mutex::default(),
            abort: AtomicBool::new(false),
            is_dirty: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
            reported: Mutex::default(),
            abort_detail: Mutex::default(),
        })
    }

    pub(crate) fn poll(&self) -> KVPoll {
        // Acquire; pairs with the Release in `publish`.
        KVPoll::from_number(self.poll.load(Ordering::Acquire)).unwrap_or(KVPoll::Failed)
    }

    pub(crate) fn release(&self) -> Release {
        // Acquire; pairs with the Release in `publish`.
        Release::from_number(self.release.load(Ordering::Acquire)).unwrap_or(Release::Held)
    }

    pub(crate) fn ready_tokens(&self) -> u32 {
        // Acquire; pairs with the Release in `publish`: the bytes of these tokens are visible.
        self.ready_tokens.load(Ordering::Acquire)
    }

    pub(crate) fn error(&self) -> Option<KVTransferError> {
        self.poll(); // orders the load of the error behind a `Failed` seen before
        self.error.get().cloned()
    }

    pub(crate) fn details<T>(&self, read: impl FnOnce(&Details) -> T) -> T {
        read(&self.details.lock())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.poll().is_terminal() && self.release() == Release::Safe
    }

    /// Stores a new view. Answers whether anything changed that the caller can see.
    pub(crate) fn publish(
        &self,
        poll: KVPoll,
        release: Release,
        error: Option<&KVTransferError>,
        ready_tokens: u32,
        details: Option<Details>,
    ) -> bool {
        if let Some(error) = error {
            let _ = self.error.set(error.clone()); // the first stays
        }
        let mut changed = false;
        if let Some(details) = details {
            let mut known = self.details.lock();
            changed |= known.shows_other(&details);
            *known = details;
        }
        // Release; pairs with the Acquire loads above.
        changed |= self.ready_tokens.swap(ready_tokens, Ordering::Release) != ready_tokens;
        changed |= self.release.swap(release as u8, Ordering::Release) != release as u8;
        changed |= self.poll.swap(poll as u8, Ordering::Release) != poll as u8;
        changed
    }

    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.wakers.lock())
    }

    /// Asks for the end; true if the engine has to be told to look.
    pub(crate) fn wish_abort(&self) -> bool {
        // Release; pairs with the Acquire in `wants_abort`.
        self.abort.store(true, Ordering::Release);
        !self.is_dirty.swap(true, Ordering::AcqRel)
    }

    /// Whether the end was asked for. The engine clears `is_dirty` before it looks.
    pub(crate) fn wants_abort(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    /// Completes with what `look` finds, looked for after every change.
    pub(crate) fn wait_for<T>(
        self: &Arc<Self>,
        look: impl Fn(&Self) -> Option<T> + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static
    where
        T: Send + 'static,
    {
        let slot = Arc::clone(self);
        std::future::poll_fn(move |context| {
            if let Some(found) = look(&slot) {
                return Poll::Ready(found);
            }
            let mut wakers = slot.wakers.lock();
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            drop(wakers);
            // Once more: a change between the look and the registration has taken no waker.
            look(&slot).map_or(Poll::Pending, Poll::Ready)
        })
    }
}
