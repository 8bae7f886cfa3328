//! The frames that this transport adds to the engine's, on the same connection.
//!
//! Numbers are little-endian. Each frame begins with 16 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `KVFS` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind |
//! | 6 | 2 | 0, reserved |
//! | 8 | 4 | bytes of the body |
//! | 12 | 4 | 0, reserved |
//!
//! | kind | name | body |
//! |---|---|---|
//! | 1 | `Hello` | token 16, where it lies 8, leases 4, reserved 4; with it the descriptor of the leases |
//! | 2 | `Probed` | 4: 1 if the peer's own memory can be read from here, else 0 |
//! | 3 | `Ready` | |
//! | 4 | `Refuse` | why, in UTF-8 |
//! | 5 | `Export` | region 4, kind 4 (1 mapped: with it a descriptor; 2 at an address), where it starts 8, bytes 8 |
//! | 6 | `Withdraw` | region 4 |
//! | 7 | `Post` | 64 as below, then 16 for each extent: offset 8, region 4, bytes 4 |
//! | 8 | `Over` | 8: how many writes of the link are over, from its start |
//!
//! A `Post` has room 8, attempt 8, generation 8, op 4, pairs 8 and positions 8 (start and end each), bytes of
//! the write 4, slot of the lease 4, number of extents 4, number of the lease 8.
//!
//! The connecting side says `Hello`; the other answers `Hello` and `Probed`; the first says `Probed`; the
//! other `Ready`, or `Refuse`. From then on either side sends the rest, and frames of the engine between.
//! There is no checksum: the bytes never leave the host's memory.

use super::NAME;
use super::lease::Lease;
use crate::ids::{Attempt, Generation, GrantId, OpId, RegionId, Room};
use crate::layout::{Extent, Piece};
use crate::transport::TransportError;
use bytes::{Buf, BufMut, Bytes, BytesMut};

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Frame {
    Export { region: RegionId, place: Place, len: u64 },
    Hello { token: u128, token_at: u64, leases: u32 },
    Over(u64),
    Post(Post),
    Probed(Readable),
    Ready,
    Refuse(String),
    Withdraw(RegionId),
}

/// Where a region's bytes are to be found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// At this offset of the descriptor that comes with it.
    Mapped(u64),
    /// At this address of the peer's.
    Remote(u64),
}

/// Whether one process can read the memory of the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Readable {
    No,
    Yes,
}

/// A write, named but not carried.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Post {
    pub(super) grant: GrantId,
    pub(super) op: OpId,
    pub(super) piece: Piece,
    pub(super) bytes: u32,
    pub(super) lease: Lease,
    /// The source's extents as they came.
    pub(super) extents: Bytes,
}

/// The start of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) body: usize,
}

impl Head {
    pub(super) const BYTES: usize = 16;

    /// Whether these bytes claim to be one of ours, and not the engine's.
    pub(super) fn is_ours(bytes: &[u8; Self::BYTES]) -> bool {
        bytes.starts_with(MAGIC)
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, TransportError> {
        let [.., version, kind, r0, r1, b0, b1, b2, b3, r2, r3, r4, r5] = *bytes;
        if version != VERSION {
            return Err(broken(format!("version {version} of the transport, this side speaks {VERSION}")));
        }
        if [r0, r1, r2, r3, r4, r5] != [0; 6] {
            return Err(broken("bytes that are 0 in this version are not".into()));
        }
        let body = u32::from_le_bytes([b0, b1, b2, b3]);
        let limit = if kind == POST { MAX_POST } else { MAX_OTHER };
        match usize::try_from(body) {
            Ok(body) if body <= limit => Ok(Self { kind, body }),
            _ => Err(broken(format!("frame of kind {kind} with {body} bytes"))),
        }
    }

    fn put(kind: u8, body: usize, out: &mut BytesMut) {
        out.put_slice(MAGIC);
        out.put_slice(&[VERSION, kind, 0, 0]);
        out.put_u32_le(u32::try_from(body).unwrap_or(u32::MAX));
        out.put_u32_le(0);
    }
}

impl Frame {
    pub(super) fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Hello { token, token_at, leases } => {
                Head::put(HELLO, 32, out);
                out.put_u128_le(*token);
                out.put_u64_le(*token_at);
                out.put_u32_le(*leases);
                out.put_u32_le(0);
            }
            Self::Probed(readable) => {
                Head::put(PROBED, 4, out);
                out.put_u32_le(u32::from(*readable == Readable::Yes));
            }
            Self::Ready => Head::put(READY, 0, out),
            Self::Refuse(detail) => {
                let mut end = detail.len().min(MAX_OTHER);
                while !detail.is_char_boundary(end) {
                    end -= 1;
                }
                Head::put(REFUSE, end, out);
                out.put_slice(&detail.as_bytes()[..end]);
            }
            Self::Export { region, place, len } => {
                Head::put(EXPORT, 24, out);
                out.put_u32_le(region.0);
                let (kind, at) = match place {
                    Place::Mapped(at) => (1, *at),
                    Place::Remote(at) => (2, *at),
                };
                out.put_u32_le(kind);
                out.put_u64_le(at);
                out.put_u64_le(*len);
            }
            Self::Withdraw(region) => {
                Head::put(WITHDRAW, 4, out);
                out.put_u32_le(region.0);
            }
            Self::Post(post) => {
                let Post { grant, op, piece, bytes, lease, extents } = post;
                let head = PostHead { grant: *grant, op: *op, piece, bytes: *bytes, lease: *lease };
                head.put(extents.len() / EXTENT_BYTES, out);
                out.put_slice(extents);
            }
            Self::Over(count) => {
                Head::put(OVER, 8, out);
                out.put_u64_le(*count);
            }
        }
    }

    /// Whether a descriptor comes with it.
    pub(super) fn has_descriptor(&self) -> bool {
        matches!(self, Self::Hello { .. } | Self::Export { place: Place::Mapped(_), .. })
    }

    pub(super) fn decode(kind: u8, mut body: Bytes) -> Result<Self, TransportError> {
        let wrong = || broken(format!("frame of kind {kind} is not one"));
        let sized = |size: usize| if body.len() == size { Ok(()) } else { Err(wrong()) };
        match kind {
            HELLO => {
                sized(32)?;
                let (token, token_at) = (body.get_u128_le(), body.get_u64_le());
                let (leases, reserved) = (body.get_u32_le(), body.get_u32_le());
                if reserved != 0 { Err(wrong()) } else { Ok(Self::Hello { token, token_at, leases }) }
            }
            PROBED => {
                sized(4)?;
                match body.get_u32_le() {
                    0 => Ok(Self::Probed(Readable::No)),
                    1 => Ok(Self::Probed(Readable::Yes)),
                    _ => Err(wrong()),
                }
            }
            READY => sized(0).map(|()| Self::Ready),
            REFUSE => Ok(Self::Refuse(std::str::from_utf8(&body).map_err(|_| wrong())?.into())),
            EXPORT => {
                sized(24)?;
                let (region, kind) = (RegionId(body.get_u32_le()), body.get_u32_le());
                let (at, len) = (body.get_u64_le(), body.get_u64_le());
                let place = match kind {
                    1 => Place::Mapped(at),
                    2 => Place::Remote(at),
                    _ => return Err(wrong()),
                };
                Ok(Self::Export { region, place, len })
            }
            WITHDRAW => sized(4).map(|()| Self::Withdraw(RegionId(body.get_u32_le()))),
            POST if body.len() >= POST_BYTES => {
                let grant = GrantId {
                    room: Room(body.get_u64_le()),
                    attempt: Attempt(body.get_u64_le()),
                    generation: Generation(body.get_u64_le()),
                };
                let op = OpId(body.get_u32_le());
                let pairs = body.get_u32_le()..body.get_u32_le();
                let positions = body.get_u32_le()..body.get_u32_le();
                let (bytes, slot, count) = (body.get_u32_le(), body.get_u32_le(), body.get_u32_le());
                let lease = Lease { slot, number: body.get_u64_le() };
                if usize::try_from(count).ok().and_then(|count| count.checked_mul(EXTENT_BYTES))
                    != Some(body.len())
                {
                    return Err(wrong());
                }
                let piece = Piece { pairs, positions };
                Ok(Self::Post(Post { grant, op, piece, bytes, lease, extents: body }))
            }
            OVER => sized(8).map(|()| Self::Over(body.get_u64_le())),
            _ => Err(wrong()),
        }
    }
}

/// A write to be posted.
#[derive(Debug)]
pub(super) struct PostHead<'a> {
    pub(super) grant: GrantId,
    pub(super) op: OpId,
    pub(super) piece: &'a Piece,
    pub(super) bytes: u32,
    pub(super) lease: Lease,
}

impl PostHead<'_> {
    /// The whole frame; `extents` were checked, and no more than [`MAX_EXTENTS`].
    pub(super) fn put_with(&self, extents: &[Extent], out: &mut BytesMut) {
        self.put(extents.len(), out);
        out.reserve(extents.len() * EXTENT_BYTES);
        for extent in extents {
            let mut bytes = [0; EXTENT_BYTES];
            bytes[..8].copy_from_slice(&extent.offset.to_le_bytes());
            bytes[8..12].copy_from_slice(&extent.region.0.to_le_bytes());
            // No longer than the write.
            bytes[12..].copy_from_slice(&u32::try_from(extent.len).unwrap_or(0).to_le_bytes());
            out.put_slice(&bytes);
        }
    }

    fn put(&self, extents: usize, out: &mut BytesMut) {
        let Self { grant, op, piece, bytes, lease } = self;
        Head::put(POST, POST_BYTES + extents * EXTENT_BYTES, out);
        for number in [grant.room.0, grant.attempt.0, grant.generation.0] {
            out.put_u64_le(number);
        }
        let Piece { pairs, positions } = piece;
        for number in [op.0, pairs.start, pairs.end, positions.start, positions.end, *bytes, lease.slot] {
            out.put_u32_le(number);
        }
        out.put_u32_le(u32::try_from(extents).unwrap_or(u32::MAX));
        out.put_u64_le(lease.number);
    }
}

impl Post {
    /// Its extents, appended to `out`; answers their bytes.
    pub(super) fn sources(&self, out: &mut Vec<Extent>) -> u64 {
        let mut total = 0;
        out.extend(self.extents.chunks_exact(EXTENT_BYTES).map(|bytes| {
            let (mut offset, mut region, mut len) = ([0; 8], [0; 4], [0; 4]);
            offset.copy_from_slice(&bytes[..8]);
            region.copy_from_slice(&bytes[8..12]);
            len.copy_from_slice(&bytes[12..]);
            let len = u64::from(u32::from_le_bytes(len));
            total += len;
            Extent { region: RegionId(u32::from_le_bytes(region)), offset: u64::from_le_bytes(offset), len }
        }));
        total
    }
}

pub(super) fn broken(detail: String) -> TransportError {
    TransportError::Format { name: NAME, detail }
}

/// Extents of one write at most.
pub(super) const MAX_EXTENTS: usize = 1 << 20;

const MAGIC: &[u8] = b"KVFS";
const VERSION: u8 = 1;
const HELLO: u8 = 1;
const PROBED: u8 = 2;
const READY: u8 = 3;
const REFUSE: u8 = 4;
const EXPORT: u8 = 5;
const WITHDRAW: u8 = 6;
const POST: u8 = 7;
const OVER: u8 = 8;
const POST_BYTES: usize = 64;
const EXTENT_BYTES: usize = 16;
const MAX_POST: usize = POST_BYTES + MAX_EXTENTS * EXTENT_BYTES;
const MAX_OTHER: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Frame> {
        let grant = GrantId { room: Room(1), attempt: Attempt(2), generation: Generation(u64::MAX) };
        let lease = Lease { slot: 9, number: 1 << 40 };
        let piece = Piece { pairs: 3..4, positions: 5..6 };
        let extents = Bytes::from(vec![7; 3 * EXTENT_BYTES]);
        vec![
            Frame::Hello { token: u128::MAX - 3, token_at: 4096, leases: 7 },
            Frame::Probed(Readable::Yes),
            Frame::Probed(Readable::No),
            Frame::Ready,
            Frame::Refuse("because".into()),
            Frame::Export { region: RegionId(4), place: Place::Mapped(8), len: 9 },
            Frame::Export { region: RegionId(4), place: Place::Remote(8), len: 9 },
            Frame::Withdraw(RegionId(u32::MAX)),
            Frame::Post(Post { grant, op: OpId(8), piece, bytes: 10, lease, extents }),
            Frame::Over(11),
        ]
    }

    fn encode(frame: &Frame) -> Bytes {
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        bytes.freeze()
    }

    #[test]
    fn frames_come_back() {
        for frame in samples() {
            let mut bytes = encode(&frame);
            let head = Head::decode(bytes.first_chunk().unwrap()).unwrap();
            bytes.advance(Head::BYTES);
            assert_eq!((head.body, Frame::decode(head.kind, bytes).unwrap()), (head.body, frame));
        }
    }

    #[test]
    fn cut_and_lengthened_bodies_are_refused() {
        for frame in samples().into_iter().filter(|frame| !matches!(frame, Frame::Refuse(_))) {
            let bytes = encode(&frame);
            let (kind, body) = (bytes[5], bytes.slice(Head::BYTES..));
            for len in 0..body.len() {
                assert!(Frame::decode(kind, body.slice(..len)).is_err(), "{frame:?} cut to {len}");
            }
            assert!(Frame::decode(kind, [&body[..], &[0]].concat().into()).is_err(), "{frame:?}");
        }
        assert!(Frame::decode(99, Bytes::new()).is_err());
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused_by_the_head() {
        let mut head = *encode(&Frame::Ready).first_chunk::<16>().unwrap();
        for (kind, limit) in [(POST, MAX_POST), (HELLO, MAX_OTHER), (200, MAX_OTHER)] {
            head[5] = kind;
            for (len, is_good) in [(limit, true), (limit + 1, false), (u32::MAX as usize, false)] {
                head[8..12].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
                assert_eq!(Head::decode(&head).is_ok(), is_good, "{kind} {len}");
            }
        }
        head[8..12].fill(0);
        for at in [4, 6, 7, 12, 15] {
            let mut wrong = head;
            wrong[at] ^= 0x10;
            assert!(Head::decode(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn extents_come_back() {
        let list = [
            Extent { region: RegionId(1), offset: u64::MAX, len: 3 },
            Extent { region: RegionId(u32::MAX), offset: 5 << 32, len: u32::MAX.into() },
        ];
        let piece = Piece { pairs: 0..1, positions: 0..1 };
        let grant = GrantId { room: Room(1), attempt: Attempt(0), generation: Generation(1) };
        let head =
            PostHead { grant, op: OpId(1), piece: &piece, bytes: 8, lease: Lease { slot: 0, number: 0 } };
        let mut bytes = BytesMut::new();
        head.put_with(&list, &mut bytes);
        let Ok(Frame::Post(post)) = Frame::decode(POST, bytes.freeze().slice(Head::BYTES..)) else {
            panic!("not a post");
        };
        let mut found = Vec::new();
        assert_eq!((post.sources(&mut found), &found[..]), (u64::from(u32::MAX) + 3, &list[..]));
    }
}
