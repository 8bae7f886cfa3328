//! Decoders of this transport for fuzzers; feature `sim`. Each gives the encoding of what it read.

use super::hello::Greeting;
use super::note::Note;
use super::{TransportError, address};
use crate::address::HostPort;
use bytes::Bytes;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = Greeting::BYTES;
/// Bytes of a note.
pub const NOTE_BYTES: usize = Note::BYTES;

/// Reads the first bytes of a connection.
pub fn greeting(bytes: &[u8; GREETING_BYTES]) -> Option<[u8; GREETING_BYTES]> {
    Some(Greeting::decode(bytes).ok()?.encode())
}

/// Reads what a lane's receiver tells.
pub fn note(bytes: &[u8; NOTE_BYTES]) -> Option<[u8; NOTE_BYTES]> {
    Some(Note::decode(bytes)?.encode())
}

/// Reads an address as a peer publishes it.
///
/// # Errors
/// It is none.
pub fn address(bytes: &[u8]) -> Result<(HostPort, Bytes), TransportError> {
    let address = address::decode(bytes)?;
    let encoded = address::encode(&address)?;
    Ok((address, encoded))
}
