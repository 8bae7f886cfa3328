//! Optional fields behind a body.

use super::samples;
use crate::wire::codec::Writer;
use crate::wire::{Frame, HEADER_BYTES, Kind, WireError};
use bytes::Bytes;

/// The frame with more bytes behind its body.
fn with_tail(frame: &Frame, tail: &[u8]) -> Bytes {
    let mut w = Writer::new();
    for byte in frame.encode().iter().skip(HEADER_BYTES).chain(tail) {
        w.u8(*byte);
    }
    w.finish(frame.kind())
}

#[test]
fn unknown_optional_fields_are_skipped_even_twice() {
    for (name, frame) in samples::frames() {
        let bytes = with_tail(&frame, b"\x77\x00\x03\0\0\0abc\x77\x00\0\0\0\0");
        assert_eq!(Frame::decode(&bytes), Ok(frame), "{name}");
    }
}

#[test]
fn unknown_critical_fields_are_refused() {
    for (name, frame) in samples::frames() {
        let bytes = with_tail(&frame, b"\x77\x80\x03\0\0\0abc");
        assert_eq!(Frame::decode(&bytes), Err(WireError::CriticalField(0x77)), "{name}");
    }
}

#[test]
fn known_fields_are_refused_twice() {
    for (name, frame) in samples::frames() {
        let has_payload = matches!(name, "done" | "offer");
        let bytes = with_tail(&frame, b"\x01\x00\x03\0\0\0abc");
        if has_payload {
            assert_eq!(Frame::decode(&bytes), Err(WireError::DuplicateField(1)), "{name}");
        }
    }
}

#[test]
fn a_known_field_is_read_with_and_without_the_critical_bit() {
    let (_, bare) = samples::frames().into_iter().find(|(name, _)| *name == "done_bare").unwrap();
    let critical = with_tail(&bare, b"\x01\x80\x03\0\0\0abc");
    let optional = with_tail(&bare, b"\x01\x00\x03\0\0\0abc");
    assert_ne!(Frame::decode(&critical), Ok(bare));
    assert_eq!(Frame::decode(&critical), Frame::decode(&optional));
}

#[test]
fn a_field_that_ends_behind_the_body_is_refused() {
    for (name, frame) in samples::frames() {
        for tail in
            [b"\x77\x00\x04\0\0\0abc".as_slice(), b"\x77\x00\xff\xff\xff\xffabc", b"\x77", b"\x77\0\0"]
        {
            let refused = Frame::decode(&with_tail(&frame, tail));
            assert!(matches!(refused, Err(WireError::Truncated { .. })), "{name}: {refused:?}");
        }
    }
}

#[test]
fn bytes_behind_the_frame_are_refused() {
    let mut bytes = Frame::Ping { token: 1 }.encode().to_vec();
    bytes.extend([0; 7]);
    assert_eq!(Frame::decode(&Bytes::from(bytes)), Err(WireError::Trailing(7)));
}

#[test]
fn a_data_kind_is_not_a_control_frame() {
    let mut w = Writer::new();
    w.u64(0);
    let refused = Frame::decode(&w.finish(Kind::Data));
    assert_eq!(refused, Err(WireError::Value { field: "header.kind", value: 64 }));
}
