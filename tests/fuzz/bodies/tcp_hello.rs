//! The first bytes of a TCP connection.

use kvferry::transport::tcp::probe::{self, GREETING_BYTES};
use kvferry::wire::crc32c;

/// Takes the input as a greeting, and under a right magic, version and checksum.
pub(crate) fn run(input: &[u8]) {
    let mut raw = [0; GREETING_BYTES];
    for (place, byte) in raw.iter_mut().zip(input) {
        *place = *byte;
    }
    check(&raw);
    raw[..5].copy_from_slice(b"KVFT\x01");
    let sum = crc32c(&raw[..28]);
    raw[28..].copy_from_slice(&sum.to_le_bytes());
    check(&raw);
}

fn check(bytes: &[u8; GREETING_BYTES]) {
    if let Some(again) = probe::greeting(bytes) {
        assert_eq!(again, *bytes, "there is one encoding only");
    }
}
