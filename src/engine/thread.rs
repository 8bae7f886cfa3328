//! Who runs the loop: a thread of the engine's own, or the caller. And how it ends.

use super::clock;
use super::core::Core;
use super::shared::{Shared, wake};
use super::slot::Slot;
use super::usage::UsageError;
use super::wake::WaitSet;
use crate::error::ErrorKind;
use crate::ids::{Rank, RegionId, Room, Side};
use crate::transport::Wait;
use crossbeam::channel::{Receiver, Sender, bounded};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// What was still out when an engine closed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Whether everything was run down within the limit. If not, threads may still be at work.
    pub is_finished: bool,
    /// Rooms whose pages are not known to be safe, and who may still touch them: that memory must stay
    /// mapped.
    pub unreleased: Vec<(Side, Room, Vec<Rank>)>,
    /// Regions that peers had keys of and that could not be proved out of their reach, and who may still
    /// write to them: they must stay mapped, too.
    pub unproved: Vec<(RegionId, Vec<Rank>)>,
}

#[derive(Debug)]
pub(super) struct Driver {
    waits: Arc<WaitSet>,
    /// The thread and its last word; none in manual mode.
    ended: Option<(ThreadId, Receiver<CloseReport>)>,
    report: Mutex<Option<CloseReport>>,
}

impl Driver {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let waits = Arc::new(shared.core.lock().wait_set(shared)?);
        let mut ended = None;
        if !shared.is_manual {
            let (sender, receiver) = bounded(1);
            let (shared, waits) = (Arc::clone(shared), Arc::clone(&waits));
            let run = move || run(&shared, &waits, &sender);
            let thread = thread::Builder::new().name("kvferry".into()).spawn(run)?;
            ended = Some((thread.thread().id(), receiver));
        }
        Ok(Self { waits, ended, report: Mutex::new(None) })
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ended.is_none().then(|| self.waits.fd())
    }

    /// A turn that the caller has asked for. A panic ends the engine and goes on to the caller.
    pub(super) fn turn(&self, shared: &Shared) -> Result<usize, UsageError> {
        if shared.counters.is_broken() {
            return Err(UsageError::Panicked);
        }
        let turn = || shared.core.try_lock().map_or(0, |mut core| shared.turn(&mut core));
        catch_unwind(AssertUnwindSafe(turn)).map_err(|panic| {
            let report = shared.break_off();
            self.report.lock().get_or_insert(report);
            resume_unwind(panic)
        })
    }

    /// Sleeps until there is work, a deadline is near, or the time is over.
    pub(super) fn sleep(&self, shared: &Shared, timeout: Duration) {
        sleep(shared, &self.waits, Some(timeout));
    }

    pub(super) fn close(&self, shared: &Shared, limit: Duration) -> CloseReport {
        if shared.check_process().is_err() {
            return CloseReport::default(); // a forked child: nothing here is its own to end
        }
        let mut report = self.report.lock();
        if let Some(report) = &*report {
            return report.clone();
        }
        *shared.close_limit.lock() = limit;
        shared.live.close();
        let new = match &self.ended {
            None => run_down(shared, &self.waits),
            // Called from a waker, on the progress thread itself: it ends when that returns.
            Some((thread, _)) if *thread == thread::current().id() => return shared.unfinished(),
            Some((_, ended)) => {
                shared.inbox.ring();
                ended.recv_timeout(limit.saturating_add(GRACE)).unwrap_or_else(|_| shared.unfinished())
            }
        };
        shared.inbox.wake(); // whoever drives by hand and sleeps
        report.insert(new).clone()
    }
}

/// Arms everything that can wake the driver. `Busy`: there is work already.
pub(super) fn prepare_wait(shared: &Shared, core: &mut MutexGuard<'_, Core>) -> Wait {
    match shared.inbox.arm() {
        Wait::Ready => core.prepare_wait(),
        busy => busy,
    }
}

fn run(shared: &Shared, waits: &WaitSet, ended: &Sender<CloseReport>) {
    let drive = || {
        while !shared.live.is_closing() {
            let did = shared.turn(&mut shared.core.lock());
            if did == 0 {
                sleep(shared, waits, None);
            }
        }
        run_down(shared, waits)
    };
    // A defect here must not leave callers waiting for ever.
    let report = catch_unwind(AssertUnwindSafe(drive)).unwrap_or_else(|_| shared.break_off());
    // Nobody may be listening any more.
    let _ = ended.send(report);
}

fn sleep(shared: &Shared, waits: &WaitSet, limit: Option<Duration>) {
    let mut core = shared.core.lock();
    if prepare_wait(shared, &mut core) == Wait::Busy || shared.live.is_closing() && limit.is_none() {
        return;
    }
    let until = core.deadline().map(|deadline| deadline.saturating_duration_since(clock::now()));
    drop(core);
    waits.wait(until.into_iter().chain(limit).min());
}

/// Fails every room, waits for their pages within the limit, says goodbye, lets go of all descriptors.
/// Links are ended at half the limit: that frees pages which a frozen peer would hold for ever.
fn run_down(shared: &Shared, waits: &WaitSet) -> CloseReport {
    let (start, limit) = (clock::now(), *shared.close_limit.lock());
    let end = start.checked_add(limit);
    let mut farewell = start.checked_add(limit / 2);
    loop {
        let mut core = shared.core.lock();
        let did = shared.turn(&mut core);
        core.fail_all(shared, clock::now()); // each time: calls made before the end may have opened more
        let now = clock::now();
        if farewell.is_some_and(|at| at <= now) {
            core.leave_groups(shared, now);
            core.say_goodbye();
            farewell = None;
        }
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
        if left.is_zero() || core.rooms.is_empty() && shared.inbox.commands() == 0 {
            break;
        }
        drop(core);
        let left = farewell.map_or(left, |at| left.min(at.saturating_duration_since(now)));
        if did == 0 {
            sleep(shared, waits, Some(left));
        }
    }
    let mut core = shared.core.lock();
    core.say_goodbye();
    shared.turn(&mut core);
    // Of peers with keys of our memory it is worth waiting for the proof.
    while core.has_keyed_links() {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(clock::now()));
        if left.is_zero() {
            break;
        }
        drop(core);
        sleep(shared, waits, Some(left));
        core = shared.core.lock();
        shared.turn(&mut core);
    }
    let unproved = core.let_go();
    let registration = core.registration.take();
    let woken = std::mem::take(&mut core.woken);
    drop(core);
    wake(woken);
    let report = CloseReport { is_finished: true, unproved, ..shared.unfinished() };
    shared.give_up(ErrorKind::ShuttingDown, "the engine is closed");
    drop(registration); // may wait for the directory
    report
}

impl Shared {
    /// The loop has panicked, which is a defect: whoever waits is told, here and at the peers, which see
    /// their links end.
    fn break_off(&self) -> CloseReport {
        // Release; pairs with the Acquire in `Counters::is_broken`.
        self.counters.panics.fetch_add(1, Ordering::Release);
        self.give_up(ErrorKind::Internal, "the engine's loop has panicked");
        let let_go = || {
            let mut core = self.core.lock();
            let (unproved, registration) = (core.let_go(), core.registration.take());
            let woken = std::mem::take(&mut core.woken);
            drop(core);
            wake(woken);
            drop(registration); // may wait for the directory
            unproved
        };
        // What has panicked once may do so again.
        let unproved = catch_unwind(AssertUnwindSafe(let_go)).unwrap_or_default();
        CloseReport { unproved, ..self.unfinished() }
    }

    /// What is not known to be safe now.
    fn unfinished(&self) -> CloseReport {
        let slots = self.live.all().into_iter().filter(|slot| !slot.is_over());
        let waiting_for = |slot: &Slot| slot.details(|details| details.waiting_for.clone());
        let unreleased = slots.map(|slot| (slot.side, slot.room, waiting_for(&slot))).collect();
        CloseReport { is_finished: false, unreleased, unproved: Vec::new() }
    }
}

const GRACE: Duration = Duration::from_millis(500);
