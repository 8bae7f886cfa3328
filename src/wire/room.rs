//! Bodies of room frames.

use super::codec::{Coded, Reader, Writer, wide};
use super::{Kind, MAX_DESTINATIONS, MAX_DETAIL, MAX_PAYLOAD, WireError, pages};
use crate::error::ErrorKind;
use crate::ids::{GroupId, Party, Rank, Side};
use crate::layout::{MAX_GROUPS, PageList, Share};
use crate::poll::KVPoll;
use bytes::Bytes;
use std::ops::Range;

/// What is said about one room. `R` is the decode side (receiver), `S` the prefill side (sender).
/// Offsets count from the end of the room's id, 24 bytes into the body.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RoomFrame {
    /// R to S, first: I am a destination of this room.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 4 + 16 n | `destinations`: dp (4), pp (4), cp (4), tp (4) of each |
    Join {
        /// Every decode rank that will join this sender, myself included. All must say the same.
        destinations: Vec<Rank>,
    },
    /// S to R: what the request will be, before pages are granted.
    Offer(Offer),
    /// R to S: write here.
    Grant(Grant),
    /// S to R: these tokens are in place for these layers.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 8 | `tokens`: start, end |
    /// | 8 | 1 (+ 8) | `layers`, optional: start, end |
    ChunkDone {
        /// The tokens.
        tokens: Range<u32>,
        /// Their global layers; all if none are named.
        layers: Option<Range<u32>>,
    },
    /// S to R: nothing more will be written. R succeeds when as many writes have landed.
    Done(Done),
    /// S to R: I gave up. Writes may still be under way until `Quiet`.
    Failed(Cause),
    /// R to S: stop.
    Abort(Cause),
    /// S to R, after `Failed` or `Abort`: stopped, and I will not write again. No bytes.
    Quiet,
    /// Both ways, where nothing was heard for a while: what do you know of this room? Answered with
    /// `Status`, or by saying the last word of a room again: `Done`, `Failed` and `Quiet`, or `Abort`.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 1 | `asked`: 0 prefill, 1 decode |
    Query {
        /// The part of the party that is asked.
        asked: Side,
    },
    /// Answer to `Query`.
    Status(Status),
}

/// Where a room stands at one party.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 1 | `of`: 0 prefill, 1 decode |
/// | 1 | 1 | `granted`, 0 or 1 |
/// | 2 | 8 | `bytes` |
/// | 10 | 1 (+ 1) | `state`, the number of a [`KVPoll`] |
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// The part of the party that answers.
    pub of: Side,
    /// Whether pages were lent (receiver), or the grant has come (sender).
    pub granted: bool,
    /// Bytes that are in place as far as it knows.
    pub bytes: u64,
    /// Its state; `None` for a room it does not know.
    pub state: Option<KVPoll>,
}

/// What a request will be.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 1 | `complete`, 0 or 1 |
/// | 1 | 1 (+ 4) | `tokens`, optional |
/// | | 6 + n | `payload`: optional field 1, critical; left out if empty |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Offer {
    /// Tokens of the prompt, if known.
    pub tokens: Option<u32>,
    /// Whether they are computed already.
    pub complete: bool,
    /// The engine's own bytes.
    pub payload: Bytes,
}

/// Lends pages.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | `epoch` |
/// | 4 | 4 | `source_epoch` |
/// | 8 | 8 | `tokens`: start, end |
/// | 16 | 1 (+ n) | `share`, optional |
/// | | 4 + n lists | `pages`: group (2), page list of each |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Grant {
    /// The receiver's layout that the page lists refer to.
    pub epoch: u32,
    /// The sender's layout that the share was made from.
    pub source_epoch: u32,
    /// Tokens wanted; those before are held already.
    pub tokens: Range<u32>,
    /// What this sender owes; nothing if none is named.
    pub share: Option<Share>,
    /// Pages by group of the receiver's layout; for row groups, the rows.
    pub pages: Vec<(GroupId, PageList)>,
}

/// The end of a sender's work.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | `tokens` |
/// | 4 | 4 | `ops` |
/// | 8 | 8 | `bytes` |
/// | 16 | 6 + n | `payload`: optional field 1, critical; left out if empty |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Writes posted under this grant.
    pub ops: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The engine's own bytes.
    pub payload: Bytes,
}

/// Why a room failed, as its first witness tells it; passed on unchanged.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 1 | `origin.side`: 0 prefill, 1 decode |
/// | 1 | 16 | `origin.rank`: dp, pp, cp, tp |
/// | 17 | 16 | `origin.instance` |
/// | 33 | 1 | `state`, the number of a [`KVPoll`] |
/// | 34 | 1 | `kind`, the number of an [`ErrorKind`] |
/// | 35 | 4 + n | `detail` |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Cause {
    /// Where it arose.
    pub origin: Party,
    /// The state it arose in.
    pub state: KVPoll,
    /// Its class.
    pub kind: ErrorKind,
    /// The exact fact.
    pub detail: String,
}

impl RoomFrame {
    /// Reads the body of a room frame and its tail; `r` lies in `whole`.
    pub(super) fn read(kind: Kind, r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, WireError> {
        let frame = match kind {
            Kind::Join => Self::Join { destinations: r.list("join.destinations", MAX_DESTINATIONS)? },
            Kind::Offer => return Offer::read(r, whole).map(Self::Offer),
            Kind::Grant => Self::Grant(Grant::read(r)?),
            Kind::ChunkDone => Self::ChunkDone {
                tokens: Range::read(r, "chunk_done.tokens")?,
                layers: r.option("chunk_done.layers")?,
            },
            Kind::Done => return Done::read(r, whole).map(Self::Done),
            Kind::Failed => Self::Failed(Cause::read(r, "cause")?),
            Kind::Abort => Self::Abort(Cause::read(r, "cause")?),
            Kind::Quiet => Self::Quiet,
            Kind::Query => Self::Query { asked: Side::read(r, "query.asked")? },
            Kind::Status => Self::Status(Status::read(r)?),
            other => return Err(WireError::Value { field: "header.kind", value: (other as u8).into() }),
        };
        let [] = r.tail([])?;
        Ok(frame)
    }

    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::Join { destinations } => w.list(destinations),
            Self::Offer(offer) => offer.write(w),
            Self::Grant(grant) => grant.write(w),
            Self::ChunkDone { tokens, layers } => {
                tokens.write(w);
                w.option(layers.as_ref());
            }
            Self::Done(done) => done.write(w),
            Self::Failed(cause) | Self::Abort(cause) => cause.write(w),
            Self::Quiet => {}
            Self::Query { asked } => asked.write(w),
            Self::Status(status) => status.write(w),
        }
    }

    /// The side of the room that reads it.
    pub const fn reader(&self) -> Side {
        match self {
            Self::Join { .. } | Self::Grant(_) | Self::Abort(_) => Side::Prefill,
            Self::Offer(_) | Self::ChunkDone { .. } | Self::Done(_) | Self::Failed(_) | Self::Quiet => {
                Side::Decode
            }
            Self::Query { asked } => *asked,
            Self::Status(Status { of: Side::Prefill, .. }) => Side::Decode,
            Self::Status(_) => Side::Prefill,
        }
    }

    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Join { .. } => Kind::Join,
            Self::Offer(_) => Kind::Offer,
            Self::Grant(_) => Kind::Grant,
            Self::ChunkDone { .. } => Kind::ChunkDone,
            Self::Done(_) => Kind::Done,
            Self::Failed(_) => Kind::Failed,
            Self::Abort(_) => Kind::Abort,
            Self::Quiet => Kind::Quiet,
            Self::Query { .. } => Kind::Query,
            Self::Status(_) => Kind::Status,
        }
    }
}

impl Status {
    /// Where a room stands at a party that plays `of`.
    pub const fn new(of: Side, state: Option<KVPoll>) -> Self {
        Self { of, granted: false, bytes: 0, state }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let of = Side::read(r, "status.of")?;
        let granted = r.bit("status.granted")?;
        let bytes = r.u64("status.bytes")?;
        Ok(Self { of, granted, bytes, state: r.option("status.state")? })
    }

    fn write(&self, w: &mut Writer) {
        self.of.write(w);
        w.u8(self.granted.into());
        w.u64(self.bytes);
        w.option(self.state.as_ref());
    }
}

impl Offer {
    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, WireError> {
        let complete = r.bit("offer.complete")?;
        let tokens = r.option("offer.tokens")?;
        Ok(Self { tokens, complete, payload: read_payload(r, whole, "offer.payload")? })
    }

    fn write(&self, w: &mut Writer) {
        w.u8(self.complete.into());
        w.option(self.tokens.as_ref());
        write_payload(w, &self.payload);
    }
}

impl Grant {
    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let epoch = r.u32("grant.epoch")?;
        let source_epoch = r.u32("grant.source_epoch")?;
        let tokens = Range::read(r, "grant.tokens")?;
        let share = r.option("grant.share")?;
        let lists = r.count("grant.pages", MAX_GROUPS, GroupId::MIN_BYTES + pages::MIN_LIST_BYTES)?;
        let mut pages = Vec::with_capacity(lists);
        let mut lent = 0;
        for _ in 0..lists {
            let group = GroupId::read(r, "grant.group")?;
            let list = pages::read(r, lent)?;
            lent += list.indices.len();
            pages.push((group, list));
        }
        Ok(Self { epoch, source_epoch, tokens, share, pages })
    }

    fn write(&self, w: &mut Writer) {
        w.u32(self.epoch);
        w.u32(self.source_epoch);
        self.tokens.write(w);
        w.option(self.share.as_ref());
        w.length(self.pages.len());
        for (group, list) in &self.pages {
            group.write(w);
            pages::write(list, w);
        }
    }
}

impl Done {
    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, WireError> {
        let tokens = r.u32("done.tokens")?;
        let ops = r.u32("done.ops")?;
        let bytes = r.u64("done.bytes")?;
        Ok(Self { tokens, ops, bytes, payload: read_payload(r, whole, "done.payload")? })
    }

    fn write(&self, w: &mut Writer) {
        w.u32(self.tokens);
        w.u32(self.ops);
        w.u64(self.bytes);
        write_payload(w, &self.payload);
    }
}

impl Coded for Cause {
    const MIN_BYTES: usize = Party::MIN_BYTES + KVPoll::MIN_BYTES + ErrorKind::MIN_BYTES + 4;

    fn read(r: &mut Reader<'_>, _field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            origin: Party::read(r, "cause.origin")?,
            state: KVPoll::read(r, "cause.state")?,
            kind: ErrorKind::read(r, "cause.kind")?,
            detail: r.text("cause.detail", MAX_DETAIL)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        self.origin.write(w);
        self.state.write(w);
        self.kind.write(w);
        w.detail(&self.detail);
    }
}

/// Reads the tail, whose only known field is the payload.
fn read_payload(r: &mut Reader<'_>, whole: &Bytes, field: &'static str) -> Result<Bytes, WireError> {
    let [payload] = r.tail([PAYLOAD])?;
    let payload = payload.unwrap_or_default();
    if payload.len() > MAX_PAYLOAD {
        return Err(WireError::TooLarge { field, value: wide(payload.len()), limit: wide(MAX_PAYLOAD) });
    }
    Ok(whole.slice_ref(payload))
}

fn write_payload(w: &mut Writer, payload: &Bytes) {
    if !payload.is_empty() {
        w.critical(PAYLOAD, payload);
    }
}

/// The engine's own bytes, an optional field of `Offer` and `Done`. Critical, since the first token of
/// a request may travel in it.
const PAYLOAD: u16 = 1;
