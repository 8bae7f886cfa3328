//! Values against golden bytes, both ways.
//!
//! A golden file that changes means that peers of the old version misread these bytes: raise `VERSION`.
//! `KVF_BLESS=1 cargo test --lib wire` writes the files anew.

#[path = "../../../tests/format/golden.rs"]
mod files;

use super::samples;
use crate::wire::{DataHeader, Frame};
use bytes::Bytes;
use std::fmt::Debug;

/// Compares the encoding with the golden bytes, and returns these.
fn golden(name: &str, value: &impl Debug, encoded: &[u8]) -> Bytes {
    let golden = files::blessed(name, encoded, &format!("{value:?}"));
    assert_eq!(golden, encoded, "{name}: the bytes changed, so the wire version must");
    Bytes::from(golden)
}

// One test, so that files are not counted while others are written.
#[test]
fn values_equal_their_golden_bytes() {
    let mut named = Vec::new();
    for (name, frame) in samples::frames() {
        let bytes = golden(name, &frame, &frame.encode());
        assert_eq!(Frame::decode(&bytes), Ok(frame), "{name}");
        named.push(name);
    }
    for (name, header) in samples::data_headers() {
        let bytes = golden(name, &header, &header.encode());
        assert_eq!(DataHeader::decode(bytes.first_chunk().unwrap()), Ok(header), "{name}");
        named.push(name);
    }
    named.sort_unstable();
    let found: Vec<_> = files::all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, named, "a golden file without a value");
}
