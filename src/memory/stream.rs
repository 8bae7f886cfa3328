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

/// Copies `len` bytes; they may overlap.
///
/// # Safety
/// `from` is readable and `to` writable for so many bytes, and no reference to the latter exists. Others
/// may write either at the same time: then what is copied is unspecified.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, way: Way) {
    #[cfg(target_arch = "x86_64")]
    if way == Way::Around && len >= SHORTEST && is_x86_feature_detected!("avx") {
        // SAFETY: the processor has the feature; else the caller's promise.
        return unsafe { around(to, from, len) };
    }
    let _ = way;
    // SAFETY: the caller's promise.
    unsafe { ptr::copy(from, to, len) };
}

/// Makes stores around the cache visible to others, before anything stored after this.
pub(super) fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "loads and stores of one line, all inside the same bounds"
)]
unsafe fn around(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256};
    let head = to.align_offset(LINE).min(len);
    // SAFETY: the caller's promise, for the bytes before the first whole line.
    unsafe { ptr::copy(from, to, head) };
    let mut at = head;
    while len - at >= 2 * LINE {
        let (to, from) = (to.wrapping_add(at), from.wrapping_add(at));
        // SAFETY: two whole lines before the end of both, aligned at the target.
        unsafe {
            let a = _mm256_loadu_si256(from.cast());
            let b = _mm256_loadu_si256(from.add(32).cast());
            let c = _mm256_loadu_si256(from.add(64).cast());
            let d = _mm256_loadu_si256(from.add(96).cast());
            _mm256_stream_si256(to.cast(), a);
            _mm256_stream_si256(to.add(32).cast(), b);
            _mm256_stream_si256(to.add(64).cast(), c);
            _mm256_stream_si256(to.add(96).cast(), d);
        }
        at += 2 * LINE;
    }
    // SAFETY: the caller's promise, for what is left.
    unsafe { ptr::copy(from.wrapping_add(at), to.wrapping_add(at), len - at) };
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
/// Shorter runs are copied through the cache.
#[cfg(target_arch = "x86_64")]
const SHORTEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_exactly() {
        let source: Vec<u8> = (0..=250).cycle().take(8192).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 63), (64, 31)] {
            for len in (0..300).chain([511, 512, 513, 1000, 4096, 4097, 8000]) {
                let mut target = vec![0xA5_u8; 8192 + 128];
                // SAFETY: both ranges lie inside their vectors.
                unsafe { copy(target[to..].as_mut_ptr(), source[from..].as_ptr(), len, Way::Around) };
                finish();
                assert!(target[to..to + len] == source[from..from + len], "{from} {to} {len}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xA5));
            }
        }
    }
}
