//! A queue between threads with a descriptor that wakes its one reader, written only when it sleeps.

use super::Wait;
use crate::doorbell::Doorbell;
use crate::sync::SegQueue;
use std::io;
use std::os::fd::BorrowedFd;

/// Many writers, one reader. Its bound is the writers' affair: each kind of message has one.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    queue: SegQueue<T>,
    bell: Doorbell,
}

impl<T> Mailbox<T> {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { queue: SegQueue::new(), bell: Doorbell::new()? })
    }

    /// Adds a message and wakes the reader if it sleeps.
    pub(super) fn push(&self, message: T) {
        self.queue.push(message);
        self.bell.ring();
    }

    /// Takes the oldest message.
    pub(super) fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Messages waiting.
    #[cfg(feature = "tcp")]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Reader: from now on the next message makes the descriptor readable, unless one is there already.
    pub(super) fn arm(&self) -> Wait {
        self.bell.arm();
        if self.queue.is_empty() {
            return Wait::Ready;
        }
        self.bell.disarm();
        Wait::Busy
    }

    /// Reader: makes the descriptor unreadable again.
    pub(super) fn silence(&self) {
        self.bell.clear();
    }

    /// Readable after `arm` once there is a message.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
}
