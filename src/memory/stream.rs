//! The copy itself: through the cache, or around it for what nobody reads soon.
//!
//! A pool is far larger than a cache. A plain copy first fetches each line that it is about to overwrite;
//! stores around the cache do not, and leave the cache to others.

use std::ptr;

/// Whether what is written stays in the cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// Past the cache, where the processor can and the run is long enough.
    Around,
    /// As any copy.
    Cached,
}

/// One run of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) to: *mut u8,
    pub(super) from: *const u8,
    pub(super) len: usize,
}

/// Copies run after run; each may overlap with itself. Past the cache, the start of the next run is fetched
/// while the end of one is copied: the processor does so only inside a page.
///
/// # Safety
/// Of each run, `from` is readable and `to` writable for so many bytes, and no reference to the latter exists.
/// Others may write either at the same time: then what is copied is unspecified.
pub(super) unsafe fn copy(runs: &[Piece], way: Way) {
    for (at, &run) in runs.iter().enumerate() {
        let next = runs.get(at + 1).map_or(run.from, |next| next.from);
        // SAFETY: the caller's promise.
        unsafe { copy_one(run, next, way) };
    }
}

/// # Safety
/// As for [`copy`]; `next` may be any address.
unsafe fn copy_one(run: Piece, next: *const u8, way: Way) {
    #[cfg(target_arch = "x86_64")]
    if way == Way::Around && run.len >= SHORTEST {
        let head = run.to.align_offset(LINE).min(run.len);
        // SAFETY: the caller's promise, for the bytes before the first whole line.
        unsafe { ptr::copy(run.from, run.to, head) };
        let rest = run.after(head);
        let done = if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature, the target is aligned; else the caller's promise.
            unsafe { around_512(rest, next) }
        } else if is_x86_feature_detected!("avx") {
            // SAFETY: as above.
            unsafe { around_256(rest, next) }
        } else {
            0
        };
        let tail = rest.after(done);
        // SAFETY: the caller's promise, for what is left.
        return unsafe { ptr::copy(tail.from, tail.to, tail.len) };
    }
    let _ = (next, way);
    // SAFETY: the caller's promise.
    unsafe { ptr::copy(run.from, run.to, run.len) };
}

/// Makes stores around the cache visible to others, before anything stored after this.
pub(super) fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
impl Piece {
    /// What follows the first `bytes`, which are inside.
    fn after(self, bytes: usize) -> Self {
        Self { to: self.to.wrapping_add(bytes), from: self.from.wrapping_add(bytes), len: self.len - bytes }
    }

    /// Fetches a line that is copied soon: of this run, or of the next.
    #[inline(always)]
    fn fetch_ahead(self, at: usize, next: *const u8) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let ahead = at + AHEAD;
        let place = match ahead.checked_sub(self.len) {
            None => self.from.wrapping_add(ahead),
            Some(into_next) => next.wrapping_add(into_next),
        };
        // SAFETY: a hint, which touches nothing that is not mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
}

/// Copies whole blocks; answers how many bytes.
///
/// # Safety
/// As for [`copy`], and the target is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn around_512(run: Piece, next: *const u8) -> usize {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    let mut at = 0;
    while run.len - at >= BLOCK {
        let rest = run.after(at);
        for line in 0..BLOCK / LINE {
            run.fetch_ahead(at + line * LINE, next);
        }
        let mut lines = [std::arch::x86_64::_mm512_setzero_si512(); BLOCK / LINE];
        for (line, value) in lines.iter_mut().enumerate() {
            // SAFETY: a whole line before the end of the source.
            *value = unsafe { _mm512_loadu_si512(rest.from.wrapping_add(line * LINE).cast()) };
        }
        for (line, value) in lines.into_iter().enumerate() {
            // SAFETY: a whole line before the end of the target, and aligned.
            unsafe { _mm512_stream_si512(rest.to.wrapping_add(line * LINE).cast(), value) };
        }
        at += BLOCK;
    }
    at
}

/// Copies whole blocks; answers how many bytes.
///
/// # Safety
/// As for [`copy`], and the target is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn around_256(run: Piece, next: *const u8) -> usize {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_setzero_si256, _mm256_stream_si256};
    let mut at = 0;
    while run.len - at >= BLOCK {
        let rest = run.after(at);
        for line in 0..BLOCK / LINE {
            run.fetch_ahead(at + line * LINE, next);
        }
        let mut halves = [_mm256_setzero_si256(); 2 * BLOCK / LINE];
        for (half, value) in halves.iter_mut().enumerate() {
            // SAFETY: half a line before the end of the source.
            *value = unsafe { _mm256_loadu_si256(rest.from.wrapping_add(half * LINE / 2).cast()) };
        }
        for (half, value) in halves.into_iter().enumerate() {
            // SAFETY: half a line before the end of the target, and aligned.
            unsafe { _mm256_stream_si256(rest.to.wrapping_add(half * LINE / 2).cast(), value) };
        }
        at += BLOCK;
    }
    at
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
/// Bytes copied in one go.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 256;
/// How far ahead of the copy lines are fetched.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;
/// Shorter runs are copied through the cache.
#[cfg(target_arch = "x86_64")]
const SHORTEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_exactly_by_every_kind_of_copy() {
        let source: Vec<u8> = (0..=250).cycle().take(8192).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 63), (64, 31)] {
            for len in (0..300).chain([511, 512, 513, 1000, 4096, 4097, 8000]) {
                for way in [Way::Around, Way::Cached] {
                    let mut target = vec![0xA5_u8; 8192 + 128];
                    let first = len / 3;
                    let start =
                        Piece { to: target[to..].as_mut_ptr(), from: source[from..].as_ptr(), len: first };
                    let rest = Piece {
                        to: target[to + first..].as_mut_ptr(),
                        from: source[from + first..].as_ptr(),
                        len: len - first,
                    };
                    // SAFETY: all ranges lie inside their vectors.
                    unsafe { copy(&[start, rest], way) };
                    finish();
                    assert!(target[to..to + len] == source[from..from + len], "{from} {to} {len}");
                    assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xA5));
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn older_processors_copy_the_same() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        #[repr(align(64))]
        struct Lines([u8; 4096]);
        let source: Vec<u8> = (0..=250).cycle().take(4096).collect();
        for len in [0, 255, 256, 1000, 4096] {
            let mut target = Box::new(Lines([0xA5; 4096]));
            let run = Piece { to: target.0.as_mut_ptr(), from: source.as_ptr(), len };
            // SAFETY: both are as long, the target is aligned, and the processor has the feature.
            let done = unsafe { around_256(run, source.as_ptr()) };
            finish();
            assert_eq!(done, len / BLOCK * BLOCK);
            assert!(target.0[..done] == source[..done] && target.0[done..].iter().all(|byte| *byte == 0xA5));
        }
    }
}
