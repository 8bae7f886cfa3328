//! Heads of data frames.

use kvferry::wire::{DataHeader, HEADER_BYTES, crc32c};

/// Takes the input as a head, and its body under a right header.
pub(crate) fn run(input: &[u8]) {
    let mut raw = [0; DataHeader::BYTES];
    for (place, byte) in raw.iter_mut().zip(input) {
        *place = *byte;
    }
    check(&raw);
    right(&mut raw);
    check(&raw);
}

/// Makes everything before the body right, but for the flags.
pub(crate) fn right(head: &mut [u8; DataHeader::BYTES]) {
    head[..6].copy_from_slice(b"KVFY\x01\x40");
    head[8..12].copy_from_slice(&[56, 0, 0, 0]);
    let checksum = crc32c(&[&head[..12], &head[HEADER_BYTES..]].concat());
    head[12..16].copy_from_slice(&checksum.to_le_bytes());
}

fn check(head: &[u8; DataHeader::BYTES]) {
    if let Ok(header) = DataHeader::decode(head) {
        assert_eq!(header.encode(), *head, "there is one encoding only");
    }
}
