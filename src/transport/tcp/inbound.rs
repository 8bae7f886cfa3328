//! The receiving half of a lane: heads are checked, payloads go straight into the pages.

use super::NAME;
use super::config::Countdown;
use super::note::Note;
use super::outbound::is_pause;
use super::sockets::{self, Moved};
use super::worker::News;
use crate::checksum::Crc32c;
use crate::ids::LinkId;
use crate::layout::Extent;
use crate::memory::{Body, Cursor, RegionTable, Regions, SocketError, Vectors, read};
use crate::ops::TooManyGaps;
use crate::transport::TransportError;
use crate::transport::grants::{Begin, Grants};
use crate::transport::mailbox::Mailbox;
use crate::wire::DataHeader;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Inbound {
    link: LinkId,
    grants: Arc<Grants>,
    head: [u8; DataHeader::BYTES],
    filled: usize,
    payload: Option<Payload>,
    /// Whether the payload's grant is held.
    holds: bool,
    fault: Countdown,
    /// Where the payload goes; kept for its memory.
    extents: Vec<Extent>,
    /// Writes that are over, from the start of the lane.
    over: u64,
    /// How many of those the peer knows of.
    noted: u64,
    /// Those that arrived damaged and the peer does not know of.
    damaged: VecDeque<u64>,
}

/// What the thread lends to the lane whose turn it is.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    pub(super) table: &'a RegionTable,
    pub(super) vectors: &'a mut Vectors,
    pub(super) scratch: &'a mut [u8],
    pub(super) news: &'a Mailbox<News>,
}

/// Why reading stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stop {
    /// Nothing is there now.
    Blocked,
    /// The engine has not taken what was reported before.
    Full,
    /// Others have their turn.
    Turn,
}

#[derive(Debug)]
struct Payload {
    header: DataHeader,
    left: u64,
    sum: Crc32c,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// The extents from here on.
    Pages(Arc<Regions>, Cursor),
    Nowhere,
}

impl Inbound {
    pub(super) fn new(link: LinkId, grants: Arc<Grants>, fault: Countdown) -> Self {
        Self {
            link,
            grants,
            head: [0; DataHeader::BYTES],
            filled: 0,
            payload: None,
            holds: false,
            fault,
            extents: Vec::new(),
            over: 0,
            noted: 0,
            damaged: VecDeque::new(),
        }
    }

    /// Receives until nothing is left or the turn's bytes are used up. Notes of the peer go to `on_note`.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        lent: &mut Lent<'_>,
        on_note: &mut dyn FnMut(Note) -> Result<(), TransportError>,
    ) -> Result<Stop, TransportError> {
        let mut budget = BYTES_A_TURN;
        // A head that came with the tail of a payload announces itself by no event: it never waits.
        while budget > 0 || self.filled == self.head.len() {
            let moved = if self.payload.is_some() {
                self.receive_payload(socket, lent)?
            } else if self.filled < self.head.len() {
                if self.filled == 0 && lent.news.len() >= NEWS_LIMIT {
                    return Ok(Stop::Full);
                }
                let moved = sockets::receive(socket, &mut self.head[self.filled..])?;
                if let Moved::Bytes(count) = moved {
                    self.filled += count;
                }
                moved
            } else {
                self.filled = 0;
                match Note::is_note(&self.head) {
                    true => on_note(Note::decode(&self.head).ok_or_else(|| broken(&"damaged note"))?)?,
                    false => self.begin(lent)?,
                }
                continue;
            };
            match moved {
                Moved::Blocked => return Ok(Stop::Blocked),
                Moved::Bytes(count) => budget = budget.saturating_sub(count),
            }
        }
        Ok(Stop::Turn)
    }

    /// What the peer should be told now, if anything.
    pub(super) fn note(&mut self) -> Option<Note> {
        if self.noted == self.over {
            return None;
        }
        let damaged: Vec<u64> = self.damaged.iter().copied().take(Note::MAX_DAMAGED).collect();
        self.damaged.drain(..damaged.len());
        // No further than to the first damaged write that does not fit.
        let over = self.damaged.front().copied().unwrap_or(self.over);
        self.noted = over;
        Some(Note { over, damaged })
    }

    /// Whether the peer should be told something.
    pub(super) fn has_note(&self) -> bool {
        self.noted < self.over
    }

    /// A data frame's head is there.
    fn begin(&mut self, lent: &Lent<'_>) -> Result<(), TransportError> {
        let header = DataHeader::decode(&self.head).map_err(|error| broken(&error))?;
        let bytes = u64::from(header.payload_bytes);
        if bytes > super::MAX_WRITE {
            return Err(broken(&format_args!("payload of {bytes} bytes, at most {}", super::MAX_WRITE)));
        }
        let mut place = Place::Nowhere;
        if let Begin::Apply(admission) = self.grants.begin(header.grant, header.op).map_err(gaps)? {
            self.extents.clear();
            match admission.place_of(&header.piece, bytes, &mut self.extents) {
                // Taken after the grant was seen, so that regions it needs are there.
                Ok(()) => place = Place::Pages(lent.table.snapshot(), Cursor::default()),
                Err(refusal) => {
                    let detail = refusal.to_string();
                    lent.news.push(News::Refused { link: self.link, grant: header.grant, detail });
                }
            }
        }
        self.payload = Some(Payload { header, left: bytes, sum: Crc32c::new(), place });
        if bytes == 0 { self.finish_empty(lent.news) } else { Ok(()) }
    }

    fn receive_payload(
        &mut self,
        socket: BorrowedFd<'_>,
        lent: &mut Lent<'_>,
    ) -> Result<Moved, TransportError> {
        let Some(payload) = &mut self.payload else { return Ok(Moved::Blocked) };
        let grant = payload.header.grant;
        if !matches!(payload.place, Place::Nowhere) {
            self.holds = self.grants.enter(grant);
            if self.holds {
                let moved = self.receive_into_pages(socket, lent);
                self.leave(lent.news);
                return moved;
            }
            payload.place = Place::Nowhere;
        }
        let limit = usize::try_from(payload.left).unwrap_or(usize::MAX).min(lent.scratch.len());
        let moved = sockets::receive(socket, &mut lent.scratch[..limit])?;
        if let Moved::Bytes(count) = moved {
            payload.left -= count as u64;
            if payload.left == 0 {
                self.payload = None;
                self.over += 1;
            }
        }
        Ok(moved)
    }

    /// Receives once; the grant is held meanwhile.
    fn receive_into_pages(
        &mut self,
        socket: BorrowedFd<'_>,
        lent: &mut Lent<'_>,
    ) -> Result<Moved, TransportError> {
        let Some(payload) = &mut self.payload else { return Ok(Moved::Blocked) };
        let Place::Pages(regions, cursor) = &mut payload.place else { return Ok(Moved::Blocked) };
        let body = Body { regions, extents: &self.extents, cursor: *cursor };
        let (left, limit) = (payload.left, payload.left.min(BYTES_A_CALL));
        let count = match lent.vectors.receive(socket, body, limit, left, &mut self.head) {
            Ok(0) => return Err(sockets::closed()),
            Ok(count) => count,
            Err(SocketError::Io(error)) if is_pause(&error) => return Ok(Moved::Blocked),
            Err(SocketError::Io(error)) => return Err(sockets::failed("recvmsg", error)),
            Err(SocketError::Memory(error)) => {
                tracing::warn!(%error, "admitted pages are not registered, write dropped");
                payload.place = Place::Nowhere;
                return Ok(Moved::Bytes(0));
            }
        };
        let landed = (count as u64).min(left);
        if payload.header.payload_crc.is_some() {
            read::checksum(body, landed, &mut payload.sum)?;
        }
        cursor.advance(&self.extents, landed);
        payload.left -= landed;
        // What came behind the payload is the start of the next head.
        self.filled = count - usize::try_from(landed).unwrap_or(count);
        if payload.left == 0 {
            self.finish(lent.news)?;
        }
        Ok(Moved::Bytes(count))
    }

    /// All bytes are in place; the grant is held.
    fn finish(&mut self, news: &Mailbox<News>) -> Result<(), TransportError> {
        self.fault.trip();
        let Some(Payload { header, sum, .. }) = &self.payload else { return Ok(()) };
        let DataHeader { grant, op, .. } = *header;
        if header.payload_crc.is_some_and(|wanted| wanted != sum.finish()) {
            tracing::debug!(link = %self.link, ?grant, op = op.0, "payload damaged, asked for again");
            self.grants.reject(grant, op).map_err(gaps)?;
            if self.damaged.len() >= DAMAGED_LIMIT {
                return Err(broken(&"damaged writes without end"));
            }
            self.damaged.push_back(self.over);
        } else if self.grants.is_admitted(grant) {
            let bytes = header.payload_bytes.into();
            news.push(News::Landed { link: self.link, grant, op, bytes });
        }
        self.over += 1;
        Ok(())
    }

    /// The lane ends, perhaps by a panic while it held a grant.
    pub(super) fn end(&mut self, news: &Mailbox<News>) {
        if self.holds {
            self.leave(news);
        }
    }

    /// Lets go of the grant, and of the payload if it is whole.
    fn leave(&mut self, news: &Mailbox<News>) {
        self.holds = false;
        let Some(payload) = &self.payload else { return };
        let grant = payload.header.grant;
        if payload.left == 0 && !matches!(payload.place, Place::Nowhere) {
            self.payload = None;
        }
        for _ in 0..self.grants.leave(grant) {
            news.push(News::Revoked { link: self.link, grant });
        }
    }

    /// A write of nothing is over as soon as its head is there.
    fn finish_empty(&mut self, news: &Mailbox<News>) -> Result<(), TransportError> {
        let Some(Payload { header, place, .. }) = &self.payload else { return Ok(()) };
        let grant = header.grant;
        self.holds = matches!(place, Place::Pages(..)) && self.grants.enter(grant);
        if self.holds {
            let finished = self.finish(news);
            self.leave(news);
            return finished;
        }
        self.payload = None;
        self.over += 1;
        Ok(())
    }
}

fn broken(detail: &dyn std::fmt::Display) -> TransportError {
    TransportError::Format { name: NAME, detail: detail.to_string() }
}

fn gaps(error: TooManyGaps) -> TransportError {
    broken(&error)
}

/// Bytes received before the thread looks at its other lanes.
const BYTES_A_TURN: usize = 2 << 20;
/// Bytes received by one call: what is checked afterwards is still in the cache.
const BYTES_A_CALL: u64 = 1 << 20;
/// Reports that may wait for the engine before lanes stop reading.
pub(super) const NEWS_LIMIT: usize = 8192;
/// Damaged writes that the peer has not been told of.
const DAMAGED_LIMIT: usize = 1024;
