//! How much memory this thread holds at most while it decodes.
#![allow(unsafe_code, reason = "a counting allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting what each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    let held = HELD.get().wrapping_add(sign * isize::try_from(bytes).unwrap_or(isize::MAX));
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call goes to `System` unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises are those `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: `ptr` came from `System` by `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Begins to count; what this thread holds already.
pub(crate) fn start() -> isize {
    PEAK.set(HELD.get());
    HELD.get()
}

/// Bytes held at most since `start`, beyond what was held then.
pub(crate) fn peak(before: isize) -> usize {
    usize::try_from(PEAK.get().wrapping_sub(before)).unwrap_or(0)
}
