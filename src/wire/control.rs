//! Control frames whole: header, body, tail.

use super::codec::{Coded, Reader, Writer, wide};
use super::{
    GroupFrame, HEADER_BYTES, Header, Hello, Kind, Layout, MAX_BODY, MAX_DETAIL, MAX_REGIONS, RoomFrame,
    WireError,
};
use crate::error::ErrorKind;
use crate::ids::{BallotId, GrantId, RegionId};
use bytes::Bytes;

/// A control frame.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Frame {
    /// First frame on a link, both ways: who I am.
    Hello(Hello),
    /// Both ways, after `Hello` and again when pools change: my pools, and the keys that let you
    /// write to them.
    Layout(Layout),
    /// Both ways: still there.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 8 | `token` |
    Ping {
        /// Comes back in `Pong`.
        token: u64,
    },
    /// Answer to `Ping`; the same bytes.
    Pong {
        /// The token of the ping.
        token: u64,
    },
    /// Both ways, last frame: why I close. Silence before the end of a link is a crash.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 1 | `kind`, the number of an [`ErrorKind`] |
    /// | 1 | 4 + n | `detail` |
    Goodbye {
        /// The class of the reason.
        kind: ErrorKind,
        /// The reason.
        detail: String,
    },
    /// Both ways: these regions are being withdrawn; stop using them and answer.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 4 + 4 n | `regions` |
    RegionsGone {
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// Answer to `RegionsGone`: not used and not mapped any more; the same bytes.
    RegionsClosed {
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// A frame of one room.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 24 | `id`: room (8), attempt (8), generation (8) |
    /// | 24 | | the body of the [`RoomFrame`] |
    Room {
        /// The room, the attempt and the receiver it belongs to.
        id: GrantId,
        /// What is said.
        frame: RoomFrame,
    },
    /// A frame between ranks of one group.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 25 | `id`: side (1: 0 prefill, 1 decode), room (8), attempt (8), generation (8) |
    /// | 25 | | the body of the [`GroupFrame`] |
    Group {
        /// The use of a room that is voted on, as the member names it.
        id: BallotId,
        /// What is said.
        frame: GroupFrame,
    },
}

impl Frame {
    /// Reads one whole frame, header included. Payloads and keys are slices of `bytes`, not copies.
    ///
    /// # Errors
    /// The bytes are not a control frame of this version.
    pub fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::Truncated {
                field: "header",
                needed: wide(HEADER_BYTES),
                left: wide(bytes.len()),
            });
        };
        let header = Header::decode(head)?;
        let claimed = header.body_within(MAX_BODY)?;
        if body.len() < claimed {
            return Err(WireError::Truncated {
                field: "header.body",
                needed: wide(claimed),
                left: wide(body.len()),
            });
        }
        if body.len() > claimed {
            return Err(WireError::Trailing(wide(body.len() - claimed)));
        }
        header.verify(body)?;
        Self::read(header.kind, &mut Reader::new(body), bytes)
    }

    /// The whole frame, header included.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::new();
        match self {
            Self::Hello(hello) => hello.write(&mut w),
            Self::Layout(layout) => layout.write(&mut w),
            Self::Ping { token } | Self::Pong { token } => w.u64(*token),
            Self::Goodbye { kind, detail } => {
                kind.write(&mut w);
                w.detail(detail);
            }
            Self::RegionsGone { regions } | Self::RegionsClosed { regions } => w.list(regions),
            Self::Room { id, frame } => {
                id.write(&mut w);
                frame.write(&mut w);
            }
            Self::Group { id, frame } => {
                id.write(&mut w);
                frame.write(&mut w);
            }
        }
        w.finish(self.kind())
    }

    /// The kind that stands in the header.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Layout(_) => Kind::Layout,
            Self::Ping { .. } => Kind::Ping,
            Self::Pong { .. } => Kind::Pong,
            Self::Goodbye { .. } => Kind::Goodbye,
            Self::RegionsGone { .. } => Kind::RegionsGone,
            Self::RegionsClosed { .. } => Kind::RegionsClosed,
            Self::Room { frame, .. } => frame.kind(),
            Self::Group { frame, .. } => frame.kind(),
        }
    }

    /// Reads the body `r`, which lies in `whole`.
    fn read(kind: Kind, r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, WireError> {
        let frame = match kind {
            Kind::Hello => Self::Hello(Hello::read(r)?),
            Kind::Layout => Self::Layout(Layout::read(r, whole)?),
            Kind::Ping => Self::Ping { token: r.u64("ping.token")? },
            Kind::Pong => Self::Pong { token: r.u64("pong.token")? },
            Kind::Goodbye => Self::Goodbye {
                kind: ErrorKind::read(r, "goodbye.kind")?,
                detail: r.text("goodbye.detail", MAX_DETAIL)?,
            },
            Kind::RegionsGone => Self::RegionsGone { regions: r.list("regions_gone.regions", MAX_REGIONS)? },
            Kind::RegionsClosed => {
                Self::RegionsClosed { regions: r.list("regions_closed.regions", MAX_REGIONS)? }
            }
            Kind::Join
            | Kind::Offer
            | Kind::Grant
            | Kind::ChunkDone
            | Kind::Done
            | Kind::Failed
            | Kind::Abort
            | Kind::Quiet
            | Kind::Query
            | Kind::Status => {
                let id = GrantId::read(r, "room.id")?;
                // Reads its own tail, since some room frames have optional fields.
                return Ok(Self::Room { id, frame: RoomFrame::read(kind, r, whole)? });
            }
            Kind::Enrol | Kind::Verdict | Kind::Vote => {
                Self::Group { id: BallotId::read(r, "group.id")?, frame: GroupFrame::read(kind, r)? }
            }
            Kind::Data => {
                return Err(WireError::Value { field: "header.kind", value: (kind as u8).into() });
            }
        };
        let [] = r.tail([])?;
        Ok(frame)
    }
}
