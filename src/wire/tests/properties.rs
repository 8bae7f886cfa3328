//! What holds for any frame.

use super::arbitrary;
use crate::layout::Piece;
use crate::wire::{DataHeader, Frame, HEADER_BYTES, Header, WireError};
use bytes::Bytes;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn decoding_an_encoded_frame_gives_it_back(frame in arbitrary::frame()) {
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn a_frame_cut_anywhere_is_refused(frame in arbitrary::frame()) {
        let whole = frame.encode();
        for end in 0..whole.len() {
            let refused = Frame::decode(&whole.slice(..end));
            prop_assert!(matches!(refused, Err(WireError::Truncated { .. })), "cut at {}: {:?}", end, refused);
        }
    }

    #[test]
    fn a_changed_byte_is_refused(frame in arbitrary::frame(), at in any::<prop::sample::Index>(), with in 1_u8..) {
        let mut bytes = frame.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        prop_assert!(Frame::decode(&Bytes::from(bytes)).is_err());
    }

    #[test]
    fn the_header_tells_the_length_of_the_rest(frame in arbitrary::frame()) {
        let bytes = frame.encode();
        let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
        prop_assert_eq!(header.body_within(u32::MAX), Ok(bytes.len() - HEADER_BYTES));
        prop_assert_eq!(header.kind, frame.kind());
        prop_assert_eq!(header.verify(&bytes[HEADER_BYTES..]), Ok(()));
    }

    #[test]
    fn decoding_an_encoded_data_header_gives_it_back(header in arbitrary::data_header()) {
        prop_assert_eq!(DataHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_changed_byte_of_a_data_header_is_refused(
        header in arbitrary::data_header(),
        at in 0..DataHeader::BYTES,
        with in 1_u8..,
    ) {
        let mut bytes = header.encode();
        bytes[at] ^= with;
        prop_assert!(DataHeader::decode(&bytes).is_err());
    }

    #[test]
    fn a_piece_that_ends_before_it_starts_is_refused(mut header in arbitrary::data_header(), end: u32) {
        let start = end.saturating_add(1);
        prop_assume!(start > end);
        header.piece = Piece { pairs: start..end, positions: 0..1 };
        let pairs = WireError::Range { field: "data.pairs", start, end };
        prop_assert_eq!(DataHeader::decode(&header.encode()), Err(pairs));
        header.piece = Piece { pairs: 0..1, positions: start..end };
        let positions = WireError::Range { field: "data.positions", start, end };
        prop_assert_eq!(DataHeader::decode(&header.encode()), Err(positions));
    }
}

#[test]
fn payloads_and_keys_are_not_copied() {
    for (name, frame) in super::samples::frames() {
        let bytes = frame.encode();
        let parts = match Frame::decode(&bytes).unwrap() {
            Frame::Layout(layout) => layout.keys.into_iter().map(|(_, key)| key).collect(),
            Frame::Room { frame: crate::wire::RoomFrame::Done(done), .. } => vec![done.payload],
            Frame::Room { frame: crate::wire::RoomFrame::Offer(offer), .. } => vec![offer.payload],
            _ => continue,
        };
        for part in parts.iter().filter(|part| !part.is_empty()) {
            assert!(bytes.as_ptr_range().contains(&part.as_ptr()), "{name}");
        }
    }
}
