//! The data frame of two-sided transports.

use super::WireError;
use super::codec::{Coded, Reader};
use super::header::{HEADER_BYTES, Header, Kind, PAYLOAD_CRC};
use crate::ids::{GrantId, OpId};
use crate::layout::Piece;
use bytes::BufMut;
use std::ops::Range;

/// Names a write; its payload follows the frame. S to R on a data lane, after the grant. The header's
/// checksum covers these bytes and not the payload, so that nothing is applied under a damaged name.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 16 | header, kind 64; flag bit 0: `payload_crc` is there |
/// | 16 | 8 | `grant.room` |
/// | 24 | 8 | `grant.attempt` |
/// | 32 | 8 | `grant.generation` |
/// | 40 | 4 | `op` |
/// | 44 | 8 | `piece.pairs`: start, end |
/// | 52 | 8 | `piece.positions`: start, end |
/// | 60 | 4 | `payload_bytes` |
/// | 64 | 4 | `payload_crc`; 0 if it is not there |
/// | 68 | 4 | 0, reserved |
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
        let mut frame = [0; Self::BYTES];
        let (head, body) = frame.split_at_mut(HEADER_BYTES);
        let mut rest = &mut *body;
        for number in [self.grant.room.0, self.grant.attempt.0, self.grant.generation.0] {
            rest.put_u64_le(number);
        }
        let Piece { pairs, positions } = &self.piece;
        for number in [self.op.0, pairs.start, pairs.end, positions.start, positions.end] {
            rest.put_u32_le(number);
        }
        rest.put_u32_le(self.payload_bytes);
        rest.put_u32_le(self.payload_crc.unwrap_or(0));
        let flags = if self.payload_crc.is_some() { PAYLOAD_CRC } else { 0 };
        head.copy_from_slice(&Header::sealed(Kind::Data, flags, BODY_BYTES, body).encode());
        frame
    }

    /// Reads a frame of exactly [`Self::BYTES`], checksum included.
    ///
    /// # Errors
    /// The bytes are not a data frame.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, WireError> {
        let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::Truncated { field: "header", needed: 16, left: 0 });
        };
        let header = Header::decode(head)?;
        if header.kind != Kind::Data {
            return Err(WireError::Value { field: "header.kind", value: (header.kind as u8).into() });
        }
        if header.body_bytes != BODY_BYTES {
            return Err(WireError::Value { field: "header.body", value: header.body_bytes.into() });
        }
        header.verify(body)?;
        let mut r = Reader::new(body);
        let grant = GrantId::read(&mut r, "data.grant")?;
        let op = OpId(r.u32("data.op")?);
        let pairs = Range::read(&mut r, "data.pairs")?;
        let positions = Range::read(&mut r, "data.positions")?;
        let payload_bytes = r.u32("data.payload_bytes")?;
        let crc = r.u32("data.payload_crc")?;
        let payload_crc = (header.flags & PAYLOAD_CRC != 0).then_some(crc);
        if payload_crc.is_none() && crc != 0 {
            return Err(WireError::Value { field: "data.payload_crc", value: crc.into() });
        }
        let reserved = r.u32("data.reserved")?;
        if reserved != 0 {
            return Err(WireError::Value { field: "data.reserved", value: reserved.into() });
        }
        Ok(Self { grant, op, piece: Piece { pairs, positions }, payload_bytes, payload_crc })
    }
}

const BODY_BYTES: u32 = 56;
const _: () = assert!(DataHeader::BYTES == HEADER_BYTES + 56, "the body's length is stated twice");
