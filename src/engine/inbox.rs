//! What handles and hooks leave for whoever drives the engine, and how that wakes it.

use super::slot::Slot;
use crate::doorbell::Doorbell;
use crate::sync::{AtomicBool, Ordering, SegQueue};
use crate::transport::Wait;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Many writers, one reader. Whatever rings has stored first what there is to do: a reader that was not
/// asleep yet finds it in `arm`.
#[derive(Debug)]
pub(super) struct Inbox<C> {
    commands: SegQueue<C>,
    /// Rooms whose handle wants something; each at most once.
    wishes: SegQueue<Arc<Slot>>,
    directory_changed: AtomicBool,
    is_nudged: AtomicBool,
    bell: Doorbell,
}

impl<C> Inbox<C> {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            commands: SegQueue::new(),
            wishes: SegQueue::new(),
            directory_changed: AtomicBool::new(false),
            is_nudged: AtomicBool::new(false),
            bell: Doorbell::new()?,
        })
    }

    pub(super) fn command(&self, command: C) {
        self.commands.push(command);
        self.bell.ring();
    }

    /// Passes on what a slot's wish asks for.
    pub(super) fn look_at(&self, slot: &Arc<Slot>, is_news: bool) {
        if is_news {
            self.wishes.push(Arc::clone(slot));
            self.bell.ring();
        }
    }

    pub(super) fn note_directory(&self) {
        // Release; pairs with the swap in `take_directory`.
        self.directory_changed.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Something that every turn looks at has changed.
    pub(super) fn nudge(&self) {
        // Release; pairs with the swap in `take_nudge`.
        self.is_nudged.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Wakes the reader over something that it looks at by itself between `arm` and sleep.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    /// Wakes whoever sleeps on the descriptor, armed or not.
    pub(super) fn wake(&self) {
        self.bell.write();
    }

    /// Reader: from now on what comes makes the descriptor readable, unless something is there already.
    pub(super) fn arm(&self) -> Wait {
        self.bell.clear();
        self.bell.arm();
        if self.has_work() { Wait::Busy } else { Wait::Ready }
    }

    /// Reader: the oldest command.
    pub(super) fn pop_command(&self) -> Option<C> {
        self.commands.pop()
    }

    pub(super) fn commands(&self) -> usize {
        self.commands.len()
    }

    /// Reader: a slot to look at.
    pub(super) fn pop_wish(&self) -> Option<Arc<Slot>> {
        let slot = self.wishes.pop()?;
        slot.is_dirty.swap(false, Ordering::AcqRel); // before looking: a later wish comes again
        Some(slot)
    }

    /// Reader, before looking into the directory: whether it has changed.
    pub(super) fn take_directory(&self) -> bool {
        self.directory_changed.swap(false, Ordering::AcqRel)
    }

    /// Reader, before looking at what nudges are about.
    pub(super) fn take_nudge(&self) -> bool {
        self.is_nudged.swap(false, Ordering::AcqRel)
    }

    /// Reader, at the end: nobody will look at what comes from now on.
    pub(super) fn discard(&self) {
        while self.pop_command().is_some() || self.pop_wish().is_some() || self.take_directory() {}
    }

    /// Readable after `arm` once there is work.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    fn has_work(&self) -> bool {
        !self.commands.is_empty()
            || !self.wishes.is_empty()
            || self.directory_changed.load(Ordering::Acquire)
            || self.is_nudged.load(Ordering::Acquire)
    }
}
