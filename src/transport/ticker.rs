//! The passing of time, counted in ticks while something waits. No clock is read.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Ticker {
    timer: OwnedFd,
    every: Timespec,
    runs: bool,
}

impl Ticker {
    /// Stands still at first.
    pub(super) fn new(every: Duration) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let every = every.clamp(Duration::from_millis(1), Duration::from_secs(3600));
        let every = Timespec {
            tv_sec: every.as_secs().try_into().unwrap_or(1),
            tv_nsec: every.subsec_nanos().into(),
        };
        Ok(Self { timer, every, runs: false })
    }

    /// Ticks from now on, or not.
    pub(super) fn run(&mut self, runs: Run) {
        let wanted = runs == Run::Tick;
        if wanted == self.runs {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let every = if wanted { self.every } else { zero };
        let times = Itimerspec { it_interval: every, it_value: every };
        // Valid times on a valid timer.
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times).is_ok() {
            self.runs = wanted;
        }
    }

    /// Makes the descriptor unreadable until the next tick.
    pub(super) fn silence(&self) {
        // An error says that no time has passed.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}

/// Whether time is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Run {
    Stop,
    Tick,
}

impl AsFd for Ticker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
