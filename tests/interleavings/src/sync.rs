//! The primitives of `src/sync.rs`, as a model of memory. They promise no more than the real ones.

use loom::sync::atomic::AtomicUsize;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Wake;

pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Where some threads store and others swap, loom leaves open which came first and then shows values that
/// are gone: its swaps do not follow at once on what they read. So a store is a swap here, which nobody
/// can see but for one thing: it also passes on what the write before it released.
#[derive(Debug)]
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

impl Default for AtomicBool {
    fn default() -> Self {
        Self::new(false)
    }
}

/// A queue without a lock: what was stored before a push is visible to whoever pops it. That it is empty
/// says nothing about other memory.
#[derive(Debug)]
pub(crate) struct SegQueue<T> {
    /// No thread is switched between an access to these and the access to a number before it.
    items: Plain<VecDeque<T>>,
    pushed: AtomicUsize,
    popped: AtomicUsize,
}

/// The model runs one thread at a time, so this is never contended.
type Plain<T> = std::sync::Mutex<T>;

impl<T> SegQueue<T> {
    pub(crate) fn new() -> Self {
        let items = Plain::new(VecDeque::new());
        Self { items, pushed: AtomicUsize::new(0), popped: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, item: T) {
        self.pushed.fetch_add(1, Ordering::Release);
        self.items.lock().unwrap().push_back(item);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut popped = self.popped.load(Ordering::Acquire);
        while self.pushed.load(Ordering::Acquire) > popped {
            match self.popped.compare_exchange(popped, popped + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.items.lock().unwrap().pop_front(),
                Err(now) => popped = now,
            }
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.pushed.load(Ordering::Acquire).saturating_sub(self.popped.load(Ordering::Acquire))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) <= self.popped.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// A cell written once: whoever sees that it is, sees the value.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    is_set: AtomicBool,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), is_set: AtomicBool::new(false) }
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }
}

/// A descriptor that is readable from `set` to `clear`. The number is real, what it does is not.
#[derive(Debug)]
pub(crate) struct Event {
    fd: File,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: Mutex<bool>,
    changed: loom::sync::Condvar,
}

thread_local! {
    /// The model runs all its threads on one.
    static SIGNALS: RefCell<HashMap<RawFd, Arc<Signal>>> = RefCell::default();
}

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let (fd, signal) = (File::open("/dev/null")?, Arc::new(Signal::default()));
        SIGNALS.with_borrow_mut(|signals| signals.insert(fd.as_raw_fd(), Arc::clone(&signal)));
        Ok(Self { fd, signal })
    }

    pub(crate) fn set(&self) {
        self.signal.set();
    }

    pub(crate) fn clear(&self) {
        *self.signal.is_set.lock() = false;
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        SIGNALS.with_borrow_mut(|signals| signals.remove(&self.fd.as_raw_fd()));
    }
}

impl Signal {
    fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps until it is set.
    fn wait(&self) {
        let mut is_set = self.is_set.lock();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
    }

    fn take(&self) {
        self.wait();
        *self.is_set.lock() = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.set();
    }
}

/// Sleeps until the descriptor is readable.
pub(crate) fn sleep(fd: BorrowedFd<'_>) {
    let signal = SIGNALS.with_borrow(|signals| Arc::clone(&signals[&fd.as_raw_fd()]));
    signal.wait();
}

/// Runs a future; sleeps until it is woken.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let signal = Arc::new(Signal::default());
    let waker = Arc::clone(&signal).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        signal.take();
    }
}
