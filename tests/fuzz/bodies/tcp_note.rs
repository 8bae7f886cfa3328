//! Notes between the ends of a TCP lane.

use kvferry::transport::tcp::probe::{self, NOTE_BYTES};
use kvferry::wire::crc32c;

/// Takes the input as a note, and under a right magic, version and checksum.
pub(crate) fn run(input: &[u8]) {
    let mut raw = [0; NOTE_BYTES];
    for (place, byte) in raw.iter_mut().zip(input) {
        *place = *byte;
    }
    check(&raw);
    raw[..5].copy_from_slice(b"KVFN\x01");
    let sum = crc32c(&raw[..68]);
    raw[68..].copy_from_slice(&sum.to_le_bytes());
    check(&raw);
}

fn check(bytes: &[u8; NOTE_BYTES]) {
    if let Some(again) = probe::note(bytes) {
        assert_eq!(again, *bytes, "there is one encoding only");
    }
}
