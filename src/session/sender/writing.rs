//! Writes of a room, pulled by the driver, and how they end.

use super::SenderSession;
use crate::error::{ErrorKind, Fault, Origin};
use crate::ids::{GrantId, LinkId, OpId};
use crate::layout::{PageList, Pairing, Piece};
use crate::poll::KVPoll;
use std::time::Instant;

/// A write to be posted: resolve it into extents, post it, then call [`SenderSession::posted`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriteJob<'a> {
    /// Its number.
    pub op: OpId,
    /// Its grant.
    pub id: GrantId,
    /// What is written.
    pub piece: &'a Piece,
    /// Its bytes.
    pub bytes: u64,
    /// Which entry is which.
    pub pairing: &'a Pairing,
    /// Pages here.
    pub source: &'a PageList,
    /// Pages at the peer.
    pub destination: &'a PageList,
}

/// How a posted write ended.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the three ways a write ends")]
pub enum Settlement {
    /// In place.
    Landed,
    /// It arrived damaged and may be posted again.
    Damaged,
    /// It cannot be made.
    Broken(Fault),
}

impl SenderSession {
    /// The next write for the receiver of this link; the same again until it is
    /// [`posted`](Self::posted).
    pub fn next_write(&mut self, now: Instant, link: LinkId) -> Option<WriteJob<'_>> {
        if self.course.state() != KVPoll::Transferring {
            return None;
        }
        let destination = self.destinations.get_mut(&link).filter(|d| !d.down)?;
        match destination.next(&self.work, self.write_bytes) {
            Err(fault) => {
                self.course.fail_here(now, fault);
                self.conclude(now);
                None
            }
            Ok(None) => {
                self.conclude(now); // the last chunk may have had nothing for it
                None
            }
            Ok(Some(_)) => self.write_job(link),
        }
    }

    /// The write that [`next_write`](Self::next_write) gave was accepted by the transport.
    pub fn posted(&mut self, now: Instant, link: LinkId) {
        if let Some(destination) = self.destinations.get_mut(&link) {
            destination.posted();
            self.course.figures.first_byte.get_or_insert(now);
            self.conclude(now);
        }
    }

    /// A posted write is over. Answers its bytes.
    pub fn settled(&mut self, now: Instant, link: LinkId, op: OpId, settlement: Settlement) -> u64 {
        let Some(destination) = self.destinations.get_mut(&link) else { return 0 };
        let Some(job) = destination.settled(op) else { return 0 };
        let (bytes, party) = (job.bytes, destination.joined.party);
        match settlement {
            Settlement::Landed => {
                destination.landed(&job);
                self.course.moved(now, job.bytes);
            }
            Settlement::Damaged if self.course.state().is_terminal() => {}
            Settlement::Damaged => {
                if !destination.repeat(op, job, self.retransmits) {
                    let times = self.retransmits + 1;
                    let detail = format!("write {} arrived damaged {times} times", op.0);
                    self.course.fail_here(now, Fault::new(ErrorKind::Corrupted, detail));
                }
            }
            Settlement::Broken(fault) if fault.kind == ErrorKind::PeerLost => {
                self.course.fail(now, fault, Origin::Peer(party));
            }
            Settlement::Broken(fault) => {
                self.course.fail_here(now, fault);
            }
        }
        self.conclude(now);
        bytes
    }

    /// Whether [`next_write`](Self::next_write) may give something for this link.
    pub fn may_have_writes(&self, link: LinkId) -> bool {
        self.course.state() == KVPoll::Transferring
            && self.destinations.get(&link).is_some_and(|d| d.may_have_writes(&self.work))
    }

    fn write_job(&self, link: LinkId) -> Option<WriteJob<'_>> {
        let destination = self.destinations.get(&link)?;
        let (op, job) = destination.current()?;
        let (source, lent) = destination.lists(&self.work, job)?;
        Some(WriteJob {
            op: *op,
            id: destination.joined.id,
            piece: &job.piece,
            bytes: job.bytes,
            pairing: destination.pairing()?,
            source,
            destination: lent,
        })
    }
}
