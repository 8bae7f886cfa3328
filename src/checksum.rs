//! CRC-32C (Castagnoli; "CRC-32/ISCSI"), computed with the instructions the processor has.

/// The CRC-32C of bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    digest: crc_fast::Digest,
}

/// The CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

impl Crc32c {
    /// The checksum of nothing yet.
    pub fn new() -> Self {
        Self { digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi) }
    }

    /// Adds the bytes that come next.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.digest.update(bytes);
        self
    }

    /// The checksum of all bytes added.
    pub fn finish(&self) -> u32 {
        // The crate gives all widths in 64 bits; the upper half of this one is zero.
        let [a, b, c, d, ..] = self.digest.finalize().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_catalogue() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for cut in [0, 1, 7, 63, 64, 300, 4999, 5000] {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(Crc32c::new().update(head).update(tail).finish(), crc32c(&bytes), "cut at {cut}");
        }
    }
}
