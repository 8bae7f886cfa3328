//! The 16 bytes in front of every frame, and its checksum.

use super::{Crc32c, WireError};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Version of the format.
pub const VERSION: u8 = 1;

/// What follows a header. Numbers are never reused: 1 to 31 are frames of a link, 32 to 47 frames of a
/// room, 48 to 63 frames of a group, from 64 on frames of data lanes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// [`Frame::Hello`](super::Frame::Hello).
    Hello = 1,
    /// [`Frame::Layout`](super::Frame::Layout).
    Layout = 2,
    /// [`Frame::Ping`](super::Frame::Ping).
    Ping = 3,
    /// [`Frame::Pong`](super::Frame::Pong).
    Pong = 4,
    /// [`Frame::Goodbye`](super::Frame::Goodbye).
    Goodbye = 5,
    /// [`Frame::RegionsGone`](super::Frame::RegionsGone).
    RegionsGone = 6,
    /// [`Frame::RegionsClosed`](super::Frame::RegionsClosed).
    RegionsClosed = 7,
    /// [`RoomFrame::Join`](super::RoomFrame::Join).
    Join = 32,
    /// [`RoomFrame::Offer`](super::RoomFrame::Offer).
    Offer = 33,
    /// [`RoomFrame::Grant`](super::RoomFrame::Grant).
    Grant = 34,
    /// [`RoomFrame::ChunkDone`](super::RoomFrame::ChunkDone).
    ChunkDone = 35,
    /// [`RoomFrame::Done`](super::RoomFrame::Done).
    Done = 36,
    /// [`RoomFrame::Failed`](super::RoomFrame::Failed).
    Failed = 37,
    /// [`RoomFrame::Abort`](super::RoomFrame::Abort).
    Abort = 38,
    /// [`RoomFrame::Quiet`](super::RoomFrame::Quiet).
    Quiet = 39,
    /// [`RoomFrame::Query`](super::RoomFrame::Query).
    Query = 40,
    /// [`RoomFrame::Status`](super::RoomFrame::Status).
    Status = 41,
    /// [`GroupFrame::Enrol`](super::GroupFrame::Enrol).
    Enrol = 48,
    /// [`GroupFrame::Vote`](super::GroupFrame::Vote).
    Vote = 49,
    /// [`GroupFrame::Verdict`](super::GroupFrame::Verdict).
    Verdict = 50,
    /// [`DataHeader`](super::DataHeader).
    Data = 64,
}

/// The 16 bytes in front of every frame.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic, `KVFY` |
/// | 4 | 1 | version, [`VERSION`] |
/// | 5 | 1 | kind |
/// | 6 | 2 | flags of that kind; unknown ones are refused |
/// | 8 | 4 | bytes of the body |
/// | 12 | 4 | CRC-32C of bytes 0 to 11 and the body |
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Flags of that kind.
    pub flags: u16,
    /// Bytes of the body. The payload of a data frame is not part of it.
    pub body_bytes: u32,
    /// CRC-32C of the first 12 bytes and the body.
    pub checksum: u32,
}

impl Kind {
    /// The kind with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Layout,
            3 => Self::Ping,
            4 => Self::Pong,
            5 => Self::Goodbye,
            6 => Self::RegionsGone,
            7 => Self::RegionsClosed,
            32 => Self::Join,
            33 => Self::Offer,
            34 => Self::Grant,
            35 => Self::ChunkDone,
            36 => Self::Done,
            37 => Self::Failed,
            38 => Self::Abort,
            39 => Self::Quiet,
            40 => Self::Query,
            41 => Self::Status,
            48 => Self::Enrol,
            49 => Self::Vote,
            50 => Self::Verdict,
            64 => Self::Data,
            _ => return None,
        })
    }

    const fn known_flags(self) -> u16 {
        match self {
            Self::Data => PAYLOAD_CRC,
            _ => 0,
        }
    }
}

impl Header {
    /// Reads a header. The body's length is not yet checked against any limit, nor the checksum.
    ///
    /// # Errors
    /// Wrong magic or version, unknown kind or flags.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, version, kind, f0, f1, b0, b1, b2, b3, c0, c1, c2, c3] = *bytes;
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(WireError::Value { field: "header.magic", value: u32::from_le_bytes(magic).into() });
        }
        if version != VERSION {
            return Err(WireError::Version { found: version, spoken: VERSION });
        }
        let Some(kind) = Kind::from_number(kind) else {
            return Err(WireError::Value { field: "header.kind", value: kind.into() });
        };
        let flags = u16::from_le_bytes([f0, f1]);
        let unknown = flags & !kind.known_flags();
        if unknown != 0 {
            return Err(WireError::Value { field: "header.flags", value: unknown.into() });
        }
        let body_bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        Ok(Self { kind, flags, body_bytes, checksum: u32::from_le_bytes([c0, c1, c2, c3]) })
    }

    /// A header whose checksum covers `body`, which must be as long as `body_bytes` says.
    pub(super) fn sealed(kind: Kind, flags: u16, body_bytes: u32, body: &[u8]) -> Self {
        let mut header = Self { kind, flags, body_bytes, checksum: 0 };
        header.checksum = header.checksum_with(body);
        header
    }

    /// Bytes of the body, if there are at most `limit`.
    ///
    /// # Errors
    /// There are more.
    pub fn body_within(&self, limit: u32) -> Result<usize, WireError> {
        let too_large =
            WireError::TooLarge { field: "header.body", value: self.body_bytes.into(), limit: limit.into() };
        if self.body_bytes > limit {
            return Err(too_large);
        }
        usize::try_from(self.body_bytes).map_err(|_| too_large)
    }

    /// Compares the checksum with that of this header and its body.
    ///
    /// # Errors
    /// They differ.
    pub fn verify(&self, body: &[u8]) -> Result<(), WireError> {
        let wanted = self.checksum_with(body);
        if self.checksum == wanted {
            Ok(())
        } else {
            Err(WireError::Checksum { found: self.checksum, wanted })
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..12].copy_from_slice(&self.covered());
        bytes[12..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn checksum_with(&self, body: &[u8]) -> u32 {
        Crc32c::new().update(&self.covered()).update(body).finish()
    }

    /// The bytes that the checksum covers.
    fn covered(&self) -> [u8; 12] {
        let [m0, m1, m2, m3] = MAGIC;
        let [f0, f1] = self.flags.to_le_bytes();
        let [b0, b1, b2, b3] = self.body_bytes.to_le_bytes();
        [m0, m1, m2, m3, VERSION, self.kind as u8, f0, f1, b0, b1, b2, b3]
    }
}

/// Flag of data frames: the payload's checksum is there.
pub(super) const PAYLOAD_CRC: u16 = 1;

const MAGIC: [u8; 4] = *b"KVFY";
