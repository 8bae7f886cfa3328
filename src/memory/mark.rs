//! Readiness: the producer says when the bytes of a chunk are there to be read.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Becomes ready once, when the bytes it stands for are written. Cheap to clone; a chunk is read only
/// after its mark is ready.
#[derive(Clone)]
pub struct Mark {
    state: Arc<State>,
}

/// Makes its [`Mark`] ready, from any thread. Dropped unsignalled, it leaves the mark abandoned.
#[derive(Debug)]
pub struct HostTrigger {
    mark: Mark,
}

struct State {
    phase: AtomicU8,
    hooks: Mutex<Vec<Hook>>,
}

type Hook = Box<dyn FnOnce() + Send>;

const PENDING: u8 = 0;
const READY: u8 = 1;
const ABANDONED: u8 = 2;

impl Mark {
    /// A mark, and the trigger that makes it ready.
    ///
    /// ```
    /// use kvferry::memory::Mark;
    ///
    /// let (mark, trigger) = Mark::host();
    /// assert!(!mark.is_ready());
    /// trigger.signal();
    /// assert!(mark.is_ready());
    /// ```
    pub fn host() -> (Self, HostTrigger) {
        let mark = Self::with_phase(PENDING);
        (mark.clone(), HostTrigger { mark })
    }

    /// A mark that is ready from the start.
    pub fn ready() -> Self {
        Self::with_phase(READY)
    }

    /// Whether the bytes are there. What the producer wrote before is visible to who sees `true`.
    pub fn is_ready(&self) -> bool {
        // Acquire; pairs with the Release in `settle`.
        self.state.phase.load(Ordering::Acquire) == READY
    }

    /// Whether the trigger is gone and the mark will never be ready.
    pub fn is_abandoned(&self) -> bool {
        self.state.phase.load(Ordering::Acquire) == ABANDONED
    }

    /// Runs `hook` once the mark is ready or abandoned; at once if it is already. It runs on the thread
    /// that signals, so it must be short and must not block.
    pub fn on_ready(&self, hook: Box<dyn FnOnce() + Send>) {
        let mut hooks = self.state.hooks.lock();
        // The phase changes under this lock only, so no hook is left behind.
        if self.state.phase.load(Ordering::Acquire) == PENDING {
            hooks.push(hook);
        } else {
            drop(hooks);
            hook();
        }
    }

    fn with_phase(phase: u8) -> Self {
        Self { state: Arc::new(State { phase: AtomicU8::new(phase), hooks: Mutex::default() }) }
    }

    /// The first call decides.
    fn settle(&self, phase: u8) {
        let mut hooks = self.state.hooks.lock();
        if self.state.phase.load(Ordering::Acquire) != PENDING {
            return;
        }
        // Release; pairs with the Acquire in `is_ready`.
        self.state.phase.store(phase, Ordering::Release);
        let waiting = std::mem::take(&mut *hooks);
        drop(hooks);
        for hook in waiting {
            hook();
        }
    }
}

impl HostTrigger {
    /// The bytes are written: whoever waits for the mark may read them.
    pub fn signal(self) {
        self.mark.settle(READY);
    }
}

impl Drop for HostTrigger {
    fn drop(&mut self) {
        self.mark.settle(ABANDONED);
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state.phase.load(Ordering::Acquire) {
            READY => "Mark(ready)",
            ABANDONED => "Mark(abandoned)",
            _ => "Mark(pending)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn counted(mark: &Mark) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&count);
        mark.on_ready(Box::new(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        }));
        count
    }

    #[test]
    fn hooks_run_once_when_signalled_and_at_once_afterwards() {
        let (mark, trigger) = Mark::host();
        let early = counted(&mark);
        assert_eq!(early.load(Ordering::SeqCst), 0);
        trigger.signal();
        assert!(mark.is_ready() && !mark.is_abandoned());
        assert_eq!(early.load(Ordering::SeqCst), 1);
        assert_eq!(counted(&mark).load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_dropped_trigger_abandons_its_mark_and_runs_the_hooks() {
        let (mark, trigger) = Mark::host();
        let hook = counted(&mark);
        drop(trigger);
        assert!(!mark.is_ready() && mark.is_abandoned());
        assert_eq!(hook.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_signal_from_another_thread_is_seen() {
        let (mark, trigger) = Mark::host();
        let (tell, told) = std::sync::mpsc::channel();
        mark.on_ready(Box::new(move || tell.send(()).unwrap()));
        std::thread::spawn(|| trigger.signal());
        told.recv().unwrap();
        assert!(mark.is_ready());
    }
}
