//! Random numbers that are the same for the same seed, for ever.

use std::ops::Range;

/// A small generator (splitmix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The numbers of this seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number of the range, or its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.saturating_sub(range.start).max(1);
        range.start + self.number() % span
    }

    /// As [`within`](Self::within), in 32 bits.
    pub fn small(&mut self, range: Range<u32>) -> u32 {
        // The result lies below a number of 32 bits.
        u32::try_from(self.within(u64::from(range.start)..u64::from(range.end))).unwrap_or(range.start)
    }

    /// True this many times in a hundred.
    pub fn percent(&mut self, times: u64) -> bool {
        self.number() % 100 < times
    }

    /// A place in a list of this length.
    pub fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).unwrap_or(0)
    }
}

/// Spreads the bits of a number.
pub(super) const fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}
