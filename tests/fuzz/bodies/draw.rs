//! Values drawn from a fuzzer's input. What has run out gives zeros.

use arbitrary::Unstructured;
use std::ops::Range;

pub(crate) struct Draw<'a>(Unstructured<'a>);

impl<'a> Draw<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self(Unstructured::new(input))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit
    }

    pub(crate) fn place(&mut self, len: usize) -> usize {
        usize::from(self.byte()) % len.max(1)
    }

    pub(crate) fn yes(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.place(of.len())].clone()
    }

    /// Mostly a small number, at times one at a border, at times any.
    pub(crate) fn u32(&mut self) -> u32 {
        match self.byte() {
            byte @ 0..200 => u32::from(byte % 64),
            200..215 => 1 << (self.byte() % 32),
            215..230 => (1_u32 << (self.byte() % 32)).wrapping_sub(1),
            230..240 => u32::MAX - u32::from(self.byte() % 64),
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    pub(crate) fn u64(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..200 => u64::from(byte),
            200..215 => 1 << (self.byte() % 64),
            215..230 => (1_u64 << (self.byte() % 64)).wrapping_sub(1),
            230..240 => u64::MAX - u64::from(self.byte() % 64),
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    /// A range, at times one that ends before it starts.
    pub(crate) fn range(&mut self) -> Range<u32> {
        let start = self.u32();
        let end = if self.below(8) == 0 { self.u32() } else { start.saturating_add(self.u32()) };
        start..end
    }

    pub(crate) fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.yes().then(|| value(self))
    }

    pub(crate) fn list<T>(&mut self, limit: u8, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(limit + 1)).map(|_| value(self)).collect()
    }
}
