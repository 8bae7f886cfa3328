//! The sending half of a lane: writes straight from the pages, and notes about what was received.

use super::config::{Fault, Integrity};
use super::note::Note;
use super::sockets;
use super::{NAME, config::TcpConfig};
use crate::checksum::Crc32c;
use crate::ids::{GrantId, OpId};
use crate::layout::{Extent, Piece};
use crate::memory::{Body, Cursor, MemoryError, RegionTable, Regions, SocketError, Vectors, read};
use crate::transport::TransportError;
use crate::wire::DataHeader;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A write on its way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) grant: GrantId,
    pub(super) op: OpId,
    pub(super) piece: Piece,
    pub(super) extents: Vec<Extent>,
    pub(super) bytes: u32,
}

/// What a write came to.
pub(super) type Settle<'a> = dyn FnMut(Job, Result<(), TransportError>) + 'a;

#[derive(Debug)]
pub(super) struct Outbound {
    waiting: VecDeque<Job>,
    current: Current,
    /// Sent whole, not yet over at the peer; oldest first.
    sent: VecDeque<Job>,
    /// Writes that are over, from the start of the lane.
    over: u64,
    /// The socket takes nothing now.
    blocked: bool,
    integrity: Integrity,
    fault: Fault,
}

#[derive(Debug)]
enum Current {
    Idle,
    Note { bytes: [u8; Note::BYTES], sent: usize },
    Write(Box<Sending>),
}

/// A frame's head, perhaps with one byte of payload, and how long that is.
type Head = ([u8; DataHeader::BYTES + 1], usize);

#[derive(Debug)]
struct Sending {
    job: Job,
    regions: Arc<Regions>,
    /// The frame's head, and one byte of payload if that is to be damaged.
    head: [u8; DataHeader::BYTES + 1],
    head_len: usize,
    head_sent: usize,
    cursor: Cursor,
    left: u64,
}

impl Outbound {
    pub(super) fn new(config: &TcpConfig) -> Self {
        Self {
            waiting: VecDeque::new(),
            current: Current::Idle,
            sent: VecDeque::new(),
            over: 0,
            blocked: false,
            integrity: config.integrity,
            fault: config.fault.clone(),
        }
    }

    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// The socket takes bytes again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether there is anything to send; notes apart.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !matches!(self.current, Current::Idle)
    }

    /// Sends until there is nothing left, the socket is full, or the turn's bytes are used up. `note`
    /// gives what the peer should know, if anything.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        table: &RegionTable,
        vectors: &mut Vectors,
        mut note: impl FnMut() -> Option<Note>,
        settle: &mut Settle<'_>,
    ) -> Result<(), TransportError> {
        let mut budget = BYTES_A_TURN;
        while !self.blocked && budget > 0 {
            match &mut self.current {
                Current::Idle => {
                    if let Some(note) = note() {
                        self.current = Current::Note { bytes: note.encode(), sent: 0 };
                    } else if let Some(job) = self.waiting.front() {
                        let regions = table.snapshot();
                        let head = Sending::head(job, &regions, self.integrity, &self.fault);
                        // Taken only now: should that have panicked, it would still be there to be given back.
                        let Some(job) = self.waiting.pop_front() else { return Ok(()) };
                        match head {
                            Ok(head) => {
                                self.current = Current::Write(Box::new(Sending::new(job, regions, head)));
                            }
                            Err(error) => settle(job, Err(error.into())),
                        }
                    } else {
                        return Ok(());
                    }
                }
                Current::Note { bytes, sent } => match sockets::send(socket, &bytes[*sent..])? {
                    sockets::Moved::Blocked => self.blocked = true,
                    sockets::Moved::Bytes(count) => {
                        *sent += count;
                        if *sent == bytes.len() {
                            self.current = Current::Idle;
                        }
                    }
                },
                Current::Write(sending) => match sending.send(socket, vectors) {
                    Ok(0) => self.blocked = true,
                    Ok(count) => {
                        budget = budget.saturating_sub(count);
                        if sending.is_whole()
                            && let Current::Write(sending) =
                                std::mem::replace(&mut self.current, Current::Idle)
                        {
                            self.sent.push_back(sending.job);
                        }
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// The peer says how far it is.
    pub(super) fn take_note(&mut self, note: &Note, settle: &mut Settle<'_>) -> Result<(), TransportError> {
        let broken = |detail: String| TransportError::Format { name: NAME, detail };
        let sent = self.over + self.sent.len() as u64;
        if note.over < self.over || note.over > sent {
            return Err(broken(format!("{} writes are over, of {sent} sent", note.over)));
        }
        if note.damaged.iter().any(|place| !(self.over..note.over).contains(place)) {
            return Err(broken(format!("damaged writes {:?} are not among those over", note.damaged)));
        }
        while self.over < note.over
            && let Some(job) = self.sent.pop_front()
        {
            let is_damaged = note.damaged.contains(&self.over);
            self.over += 1;
            settle(job, if is_damaged { Err(TransportError::Corrupted) } else { Ok(()) });
        }
        Ok(())
    }

    /// Gives back every write that is not over.
    pub(super) fn end(self, error: impl Fn() -> TransportError, settle: &mut Settle<'_>) {
        let current = match self.current {
            Current::Write(sending) => Some(sending.job),
            _ => None,
        };
        for job in self.sent.into_iter().chain(current).chain(self.waiting) {
            settle(job, Err(error()));
        }
    }
}

impl Sending {
    fn new(job: Job, regions: Arc<Regions>, (head, head_len): Head) -> Self {
        let peeked = u64::from(head_len > DataHeader::BYTES);
        let mut cursor = Cursor::default();
        cursor.advance(&job.extents, peeked);
        let left = u64::from(job.bytes) - peeked;
        Self { job, regions, head, head_len, head_sent: 0, cursor, left }
    }

    /// Makes the head; reads the payload once for its checksum, so that sending finds it in the cache.
    fn head(job: &Job, regions: &Regions, integrity: Integrity, fault: &Fault) -> Result<Head, MemoryError> {
        fault.send.trip();
        let body = Body { regions, extents: &job.extents, cursor: Cursor::default() };
        let payload_crc = match integrity {
            Integrity::Off => None,
            Integrity::Crc32c => {
                let mut sum = Crc32c::new();
                read::checksum(body, job.bytes.into(), &mut sum)?;
                Some(sum.finish())
            }
        };
        let Job { grant, op, bytes, .. } = *job;
        let header = DataHeader { grant, op, piece: job.piece.clone(), payload_bytes: bytes, payload_crc };
        let mut head = [0; DataHeader::BYTES + 1];
        head[..DataHeader::BYTES].copy_from_slice(&header.encode());
        let mut head_len = DataHeader::BYTES;
        if fault.damage.strikes() {
            head_len += read::peek(body, &mut head[DataHeader::BYTES..])?;
            head[DataHeader::BYTES] ^= 0x10;
        }
        Ok((head, head_len))
    }

    /// Sends what fits; 0 if nothing does.
    fn send(&mut self, socket: BorrowedFd<'_>, vectors: &mut Vectors) -> Result<usize, TransportError> {
        let head = &self.head[self.head_sent..self.head_len];
        let body = Body { regions: &self.regions, extents: &self.job.extents, cursor: self.cursor };
        match vectors.send(socket, head, body, BYTES_A_CALL) {
            Ok(count) => {
                let of_head = count.min(head.len());
                let of_body = (count - of_head) as u64;
                self.head_sent += of_head;
                self.cursor.advance(&self.job.extents, of_body);
                self.left -= of_body;
                Ok(count)
            }
            Err(SocketError::Io(error)) if is_pause(&error) => Ok(0),
            Err(SocketError::Io(error)) => Err(sockets::failed("sendmsg", error)),
            Err(SocketError::Memory(error)) => Err(error.into()),
        }
    }

    fn is_whole(&self) -> bool {
        self.head_sent == self.head_len && self.left == 0
    }
}

/// Whether a call only has to be made again.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Bytes sent before the thread looks at its other lanes.
const BYTES_A_TURN: usize = 1 << 20;
const BYTES_A_CALL: u64 = 1 << 20;
