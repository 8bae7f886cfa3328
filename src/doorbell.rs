//! A descriptor that wakes one sleeper, and costs a system call only when it sleeps.

use crate::sync::{AtomicBool, Event, Ordering, fence};
use std::io;
use std::os::fd::BorrowedFd;

/// An event with a flag that says whether anybody sleeps on it, or is about to.
#[derive(Debug)]
pub(crate) struct Doorbell {
    event: Event,
    armed: AtomicBool,
}

impl Doorbell {
    /// One that is not armed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { event: Event::new()?, armed: AtomicBool::new(false) })
    }

    /// Wakes the sleeper, if there is one. What was stored before is visible to it.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `arm`: either this sees the sleeper armed, or the sleeper what was stored.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::Relaxed) {
            self.write();
        }
    }

    /// Makes the next `ring` write. Look for work once more after this, and only then sleep.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Nobody is going to sleep after all.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Makes the descriptor readable.
    pub(crate) fn write(&self) {
        self.event.set();
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        self.event.clear();
    }

    /// Readable once rung.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.fd()
    }
}
