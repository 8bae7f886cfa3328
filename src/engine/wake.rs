//! Waking whoever drives the engine, and whoever waits for changes.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A descriptor that becomes readable when rung. Rings between two looks cost one write.
#[derive(Debug)]
pub(crate) struct Doorbell {
    fd: OwnedFd,
    /// Somebody sleeps on the descriptor, or is about to.
    armed: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, armed: AtomicBool::new(false) })
    }

    /// Wakes the sleeper, if there is one. What was stored before is visible to it.
    pub(crate) fn ring(&self) {
        // SeqCst on both sides: either the sleeper sees what was queued, or we see it armed.
        if self.armed.swap(false, Ordering::SeqCst) {
            self.write();
        }
    }

    /// Makes the descriptor unreadable, and the next `ring` write. Look for work once more after this,
    /// and only then sleep.
    pub(crate) fn arm(&self) {
        self.clear();
        self.armed.swap(true, Ordering::SeqCst);
    }

    /// Makes the descriptor readable.
    pub(crate) fn write(&self) {
        // The only other outcome is a full counter, which is readable already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One descriptor over several.
#[derive(Debug)]
pub(crate) struct WaitSet {
    epoll: OwnedFd,
}

impl WaitSet {
    pub(crate) fn new<'f>(members: impl IntoIterator<Item = BorrowedFd<'f>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for member in members {
            epoll::add(&epoll, member, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll })
    }

    /// Sleeps until a member is readable or the time is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut fds = [rustix::event::PollFd::new(&self.epoll, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => tracing::error!(%errno, "poll failed"),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
