//! The 16 bytes in front of every frame.

use super::WireError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Version of the format.
pub const VERSION: u8 = 1;

/// What follows a header. Numbers are never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// [`Frame::Hello`](super::Frame::Hello).
    Hello = 1,
}

/// The 16 bytes in front of every frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Flags of that kind.
    pub flags: u16,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// CRC-32C of the first 12 bytes and the body.
    pub checksum: u32,
}

impl Header {
    /// Reads a header. The body's length is not yet checked against any limit.
    ///
    /// # Errors
    /// Wrong magic, version or kind.
    pub fn decode(_bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        todo!()
    }
}
