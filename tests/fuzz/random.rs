//! Random and mutated bytes, the same in every run.

/// Numbers by splitmix64.
pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for each name.
    pub(crate) fn new(name: &str) -> Self {
        Self(name.bytes().fold(0x5eed, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte)))
    }

    /// Fewer than `limit` bytes.
    pub(crate) fn bytes(&mut self, limit: usize) -> Vec<u8> {
        let length = self.below(limit);
        (0..length).map(|_| self.byte()).collect()
    }

    /// One of `corpus` with up to four changes: bits, bytes, numbers at their ends, cuts, repeats, parts of
    /// another.
    pub(crate) fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus[self.below(corpus.len())].clone();
        let other = &corpus[self.below(corpus.len())];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len().max(1));
            let mut change = |len, new: &mut dyn FnMut(u8) -> u8| {
                bytes.iter_mut().skip(at).take(len).for_each(|byte| *byte = new(*byte));
            };
            match self.below(7) {
                0 => change(1, &mut |byte| byte ^ 1 << self.below(8)),
                1 => change(1, &mut |_| self.byte()),
                2 => change(4, &mut |_| 0xff),
                3 => change(4, &mut |_| 0),
                4 => bytes.truncate(at),
                5 => {
                    let end = at + self.below(bytes.len() - at + 1);
                    bytes.extend_from_within(at..end);
                }
                _ => {
                    let start = self.below(other.len().max(1));
                    let len = (other.len() - start).min(bytes.len() - at).min(8);
                    bytes.splice(at..at + len, other[start..start + len].iter().copied());
                }
            }
        }
        bytes
    }

    fn below(&mut self, limit: usize) -> usize {
        let [low, high, ..] = self.next().to_le_bytes();
        usize::from(u16::from_le_bytes([low, high])) % limit
    }

    fn byte(&mut self) -> u8 {
        let [low, ..] = self.next().to_le_bytes();
        low
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
