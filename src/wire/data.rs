//! The data frame of two-sided transports.

use super::WireError;
use crate::ids::{GrantId, OpId};
use crate::layout::Piece;

/// Names a write; its payload follows the frame.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct DataHeader {
    /// The grant it is made under.
    pub grant: GrantId,
    /// Its number.
    pub op: OpId,
    /// What is written.
    pub piece: Piece,
    /// Bytes that follow.
    pub payload_bytes: u32,
    /// CRC-32C of them, if the sender computed one.
    pub payload_crc: Option<u32>,
}

impl DataHeader {
    /// Bytes of the whole frame, header included.
    pub const BYTES: usize = 72;

    /// The frame.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        todo!()
    }

    /// Reads a frame of exactly [`Self::BYTES`], checksum included.
    ///
    /// # Errors
    /// The bytes are not a data frame.
    pub fn decode(_bytes: &[u8; Self::BYTES]) -> Result<Self, WireError> {
        todo!()
    }
}
