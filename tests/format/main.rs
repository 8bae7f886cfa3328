//! The wire format from outside: golden bytes, hostile bytes.
//!
//! A golden file that changes means that peers of the old version misread these bytes: raise
//! `wire::VERSION`. `KVF_BLESS=1 cargo test --lib wire` writes the files anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

mod golden;
mod memory;

use bytes::Bytes;
use kvferry::wire::{DataHeader, Frame, HEADER_BYTES, Header, Kind, VERSION, WireError, crc32c};
use std::collections::BTreeSet;

/// A frame with this body, its length and checksum right.
fn sealed(kind: u8, body: &[u8]) -> Bytes {
    let mut frame = b"KVFY\x01".to_vec();
    frame.extend([kind, 0, 0]);
    frame.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    let checksum = crc32c(&[&frame, body].concat());
    frame.extend(checksum.to_le_bytes());
    frame.extend(body);
    Bytes::from(frame)
}

fn is_data(bytes: &[u8]) -> bool {
    bytes[5] == Kind::Data as u8
}

#[test]
fn golden_bytes_decode_and_encode_to_themselves() {
    for (name, bytes) in golden::all() {
        let again = if is_data(&bytes) {
            DataHeader::decode(bytes.first_chunk().unwrap()).unwrap().encode().to_vec()
        } else {
            Frame::decode(&Bytes::from(bytes.clone())).unwrap().encode().to_vec()
        };
        assert_eq!(again, bytes, "{name}: the bytes changed, so the wire version must");
    }
}

#[test]
fn golden_files_cover_each_kind() {
    let known: BTreeSet<u8> = (0..=u8::MAX).filter(|number| Kind::from_number(*number).is_some()).collect();
    let found: BTreeSet<u8> = golden::all().iter().map(|(_, bytes)| bytes[5]).collect();
    assert_eq!(found, known);
    assert!(known.iter().all(|number| Kind::from_number(*number).unwrap() as u8 == *number));
}

#[test]
fn golden_frames_with_any_bit_flipped_are_refused() {
    for (name, bytes) in golden::all() {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let taken = if is_data(&bytes) {
                DataHeader::decode(flipped.first_chunk().unwrap()).is_ok()
            } else {
                Frame::decode(&Bytes::from(flipped)).is_ok()
            };
            assert!(!taken, "{name}: bit {bit}");
        }
    }
}

#[test]
fn bodies_cut_anywhere_are_refused_or_another_whole_frame() {
    for (name, bytes) in golden::all().into_iter().filter(|(_, bytes)| !is_data(bytes)) {
        for end in HEADER_BYTES..bytes.len() {
            let cut = sealed(bytes[5], &bytes[HEADER_BYTES..end]);
            match Frame::decode(&cut) {
                Ok(frame) => assert_eq!(frame.encode(), cut, "{name} cut at {end}"),
                Err(WireError::Truncated { .. }) => {}
                Err(other) => panic!("{name} cut at {end}: {other}"),
            }
        }
    }
}

#[test]
fn headers_of_others_are_refused() {
    let header = |at: usize, byte: u8| {
        let mut bytes = *Frame::decode(&sealed(3, &[0; 8])).unwrap().encode().first_chunk().unwrap();
        bytes[at] = byte;
        Header::decode(&bytes)
    };
    let value = |field, value| Err(WireError::Value { field, value });
    assert_eq!(header(0, b'G'), value("header.magic", u32::from_le_bytes(*b"GVFY").into()));
    assert_eq!(header(4, 2), Err(WireError::Version { found: 2, spoken: VERSION }));
    for unknown in [0, 8, 31, 42, 63, 65, 255] {
        assert_eq!(header(5, unknown), value("header.kind", unknown.into()));
    }
    assert_eq!(header(6, 1), value("header.flags", 1));
    assert_eq!(header(7, 0x80), value("header.flags", 0x8000));
    let long = header(11, 0xff).unwrap();
    assert_eq!(
        long.body_within(1024),
        Err(WireError::TooLarge { field: "header.body", value: long.body_bytes.into(), limit: 1024 })
    );
}
