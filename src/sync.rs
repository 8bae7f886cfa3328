//! What threads share without a lock around it is made of these, so that `tests/interleavings` can run
//! the same files on a model of memory.

use crate::home::Home;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) use crossbeam::queue::SegQueue;
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::OnceLock;
#[cfg(feature = "shm")]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};

/// A descriptor that is readable from `set` to `clear`. In a forked child it is the parent's, and left as it is.
#[derive(Debug)]
pub(crate) struct Event {
    fd: OwnedFd,
    home: Home,
}

impl Event {
    /// One that is not readable.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, home: Home::here() })
    }

    pub(crate) fn set(&self) {
        if self.home.is_here() {
            // An error says that the count is full: readable already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn clear(&self) {
        if self.home.is_here() {
            // An error says that it was not set.
            let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(event: &Event) -> bool {
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    impl AsFd for Event {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd()
        }
    }

    #[test]
    fn an_event_is_readable_from_set_to_clear() {
        let event = Event::new().unwrap();
        assert!(!is_readable(&event));
        event.set();
        event.set();
        assert!(is_readable(&event));
        event.clear();
        event.clear();
        assert!(!is_readable(&event));
    }
}
