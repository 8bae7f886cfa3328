//! Sleeping until one of several descriptors is readable.

use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

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
