//! A descriptor that wakes one sleeper, and costs a system call only when it sleeps.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// An event descriptor with a flag that says whether anybody sleeps on it, or is about to.
#[derive(Debug)]
pub(crate) struct Doorbell {
    fd: OwnedFd,
    armed: AtomicBool,
}

impl Doorbell {
    /// One that is not armed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, armed: AtomicBool::new(false) })
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
        // An error says that the count is full: readable already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        // An error says that nobody rang.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    /// Readable once rung.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
