//! Control frames.

use super::{kind_of, sealed};
use bytes::Bytes;
use kvferry::wire::{Frame, HEADER_BYTES};

/// Takes the input as a frame, and what follows its header as the body of the kind it names. Whether one
/// of the two was a frame.
pub(crate) fn run(input: &[u8]) -> bool {
    let raw = check(&Bytes::copy_from_slice(input));
    let body = input.get(HEADER_BYTES..).unwrap_or_default();
    let right = kind_of(input).and_then(|kind| check(&sealed(kind, body)));
    raw.or(right).is_some()
}

/// What decodes must come back from its encoding, which says nothing that the bytes did not.
pub(crate) fn check(bytes: &Bytes) -> Option<Frame> {
    let frame = Frame::decode(bytes).ok()?;
    let encoded = frame.encode();
    assert!(encoded.len() <= bytes.len(), "{} bytes were {} before", encoded.len(), bytes.len());
    assert_eq!(Frame::decode(&encoded).as_ref(), Ok(&frame), "from {bytes:x?}");
    assert_eq!(frame.encode(), encoded, "two encodings of {frame:?}");
    Some(frame)
}
