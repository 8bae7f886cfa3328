//! Numbers that look random and follow from a seed.

pub(crate) struct Rng(u64);

impl Rng {
    /// From `KVF_SEED`, or from the clock; the test prints it.
    pub(crate) fn new() -> (Self, u64) {
        let given = std::env::var("KVF_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        let seed = given.unwrap_or_else(|| clock() as u64 & 0xFFFF_FFFF);
        (Self(seed ^ 0x9E37_79B9_7F4A_7C15), seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 32) % end
    }
}
