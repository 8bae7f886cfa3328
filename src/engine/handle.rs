//! What both handles have in common.

use super::clock;
use super::shared::Shared;
use super::slot::{Details, Slot};
use super::stats::TransferStats;
use super::usage::UsageError;
use crate::error::{ErrorKind, Fault, KVTransferError, Moment, Origin};
use crate::poll::KVPoll;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// A caller's end of a slot. Dropping it aborts the room.
#[derive(Debug)]
pub(super) struct Handle {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>, slot: Arc<Slot>) -> Self {
        Self { shared, slot }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Where a command goes; `None` if the room has ended.
    pub(super) fn open(&self) -> Result<Option<(&Shared, Arc<Slot>)>, UsageError> {
        self.shared.check_process()?;
        let ended = self.slot.poll().is_terminal();
        Ok((!ended).then(|| (&*self.shared, Arc::clone(&self.slot))))
    }

    pub(super) fn abort(&self, reason: &str) {
        if self.shared.check_process().is_err() || self.slot.poll().is_terminal() {
            return;
        }
        self.slot.abort_detail.lock().get_or_insert_with(|| reason.to_owned());
        self.shared.inbox.look_at(&self.slot, self.slot.wish_abort());
    }

    /// Nothing is known in a forked child, where who held the lock is not there to let go of it.
    pub(super) fn details<T>(&self, read: impl FnOnce(&Details) -> T) -> T {
        let is_here = self.shared.check_process().is_ok();
        if is_here { self.slot.details(read) } else { read(&Details::default()) }
    }

    /// Completes with what `look` finds, or in a forked child, where nothing changes any more, with
    /// `forked`.
    pub(super) fn wait_for<T: Clone + Send + 'static>(
        &self,
        forked: T,
        look: impl Fn(&Slot) -> Option<T> + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let home = self.shared.home;
        self.slot.wait_for(move |slot| if home.is_here() { look(slot) } else { Some(forked.clone()) })
    }

    pub(super) fn stats(&self) -> TransferStats {
        let (figures, path) = self.details(|details| (details.figures, details.path));
        figures.map(|figures| TransferStats::new(&figures, path)).unwrap_or_default()
    }

    pub(super) fn finished(&self) -> impl Future<Output = Result<(), KVTransferError>> + Send + 'static {
        self.wait_for(Err(self.forked()), |slot| match slot.poll() {
            KVPoll::Success => Some(Ok(())),
            KVPoll::Failed => slot.error().map(Err),
            _ => None,
        })
    }

    pub(super) fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        self.slot.wait_for(|slot| slot.is_over().then_some(()))
    }

    fn forked(&self) -> KVTransferError {
        let Slot { room, side, .. } = *self.slot;
        let moment = Moment { room, state: self.slot.poll(), elapsed: Duration::ZERO };
        let detail = UsageError::Forked(self.shared.home.process()).to_string();
        Fault::new(ErrorKind::Aborted, detail).at(moment, Origin::Local(self.shared.party(side)))
    }

    pub(super) fn wait(&self, timeout: Duration) -> KVPoll {
        if self.shared.check_process().is_ok() {
            block_on(self.released(), timeout);
        }
        self.slot.poll()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child the room is the parent's, and still wanted there.
        if self.shared.check_process().is_ok() && !self.slot.is_over() {
            self.shared.inbox.look_at(&self.slot, self.slot.wish_abort());
        }
    }
}

/// Runs a future on this thread, for so long at most.
pub(super) fn block_on<T>(future: impl Future<Output = T>, timeout: Duration) -> Option<T> {
    let waker = WAKER.with(Waker::clone);
    let mut future = pin!(future);
    let end = clock::now().checked_add(timeout);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        match end.map(|end| end.saturating_duration_since(clock::now())) {
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One a thread, so that a slot keeps one however often the thread waits.
    static WAKER: Waker = Arc::new(Unpark(thread::current())).into();
}
