//! What is done with arbitrary bytes, one function a decoder or session. `fuzz/` runs them under libFuzzer,
//! `tests/fuzz` for a few seconds in every build.
#![allow(dead_code, reason = "each fuzz target uses one of them")]

pub(crate) mod data_header;
pub(crate) mod directory_client;
pub(crate) mod directory_server;
mod draw;
pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod lobby;
pub(crate) mod page_list;
pub(crate) mod receiver;
mod rooms;
pub(crate) mod sender;
pub(crate) mod tcp_address;
pub(crate) mod tcp_hello;
pub(crate) mod tcp_note;
pub(crate) mod tcp_stream;

use bytes::Bytes;
use kvferry::wire::{Kind, crc32c};
use std::time::Instant;

/// A frame with this body, its length and checksum right.
pub(crate) fn sealed(kind: u8, body: &[u8]) -> Bytes {
    let mut frame = b"KVFY\x01".to_vec();
    frame.extend([kind, 0, 0]);
    frame.extend(u32::try_from(body.len()).expect("a short body").to_le_bytes());
    let checksum = crc32c(&[&frame, body].concat());
    frame.extend(checksum.to_le_bytes());
    frame.extend(body);
    Bytes::from(frame)
}

/// When an input's time begins.
pub(crate) fn start() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "where virtual time begins does not matter")]
    Instant::now()
}

/// The kind that a frame's header names: one there is, whatever the byte.
pub(crate) fn kind_of(frame: &[u8]) -> Option<u8> {
    let number = *frame.get(5)?;
    let kinds = (0..=u8::MAX).filter(|number| Kind::from_number(*number).is_some());
    if Kind::from_number(number).is_some() { Some(number) } else { kinds.cycle().nth(number.into()) }
}
