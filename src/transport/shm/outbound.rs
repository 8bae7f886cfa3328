//! What leaves over a link: writes that the peer copies from our memory, and what it may read of it.

use super::NAME;
use super::config::Private;
use super::frames::{Frame, MAX_EXTENTS, Place, PostHead, Readable};
use super::lease::{LEASES, Leases};
use super::stream::Stream;
use crate::ids::{GrantId, OpId, RegionId};
use crate::memory::import::is_sealed;
use crate::memory::words::Words;
use crate::memory::{MemoryError, Region};
use crate::transport::{TransportError, Write};
use rustix::fs::{Mode, OFlags, SealFlags};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct Outbound {
    words: Words,
    leases: Leases,
    /// Posted and not over at the peer; oldest first.
    sent: VecDeque<Sent>,
    /// Writes that are over, from the start.
    over: u64,
    /// Bytes of those that are not settled.
    in_flight: u64,
    exported: BTreeSet<RegionId>,
    /// Whether the peer can read our own memory.
    pub(super) readable: Readable,
}

#[derive(Debug)]
struct Sent {
    grant: GrantId,
    op: OpId,
    bytes: u64,
    is_settled: bool,
}

/// What is told of a write that is over.
pub(super) type Settle<'a> = dyn FnMut(GrantId, OpId, Result<(), TransportError>) + 'a;

impl Outbound {
    pub(super) fn new() -> Result<Self, MemoryError> {
        let words = Words::new(TOKEN_WORDS + LEASES)?;
        Ok(Self {
            words,
            leases: Leases::default(),
            sent: VecDeque::new(),
            over: 0,
            in_flight: 0,
            exported: BTreeSet::new(),
            readable: Readable::No,
        })
    }

    /// The first frame of this side: where the leases are, and a number by which the peer can tell that it
    /// reads our memory.
    pub(super) fn hello(&self, token: u128, stream: &mut Stream) -> Result<(), TransportError> {
        let words = self.words.as_slice();
        for (word, half) in words.iter().zip([token, token >> 64]) {
            let half = u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0);
            word.store(half, Ordering::Relaxed);
        }
        let token_at = words.as_ptr().addr() as u64;
        let fd = self.words.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| TransportError::Io { name: NAME, op: "dup", source })?;
        let leases = u32::try_from(LEASES).unwrap_or(u32::MAX);
        stream.with_fd(&Frame::Hello { token, token_at, leases }, Arc::new(fd));
        Ok(())
    }

    /// Whether the link takes a write of so many bytes now.
    pub(super) fn has_room(&self, bytes: u64, window: u64, stream: &Stream) -> bool {
        let in_window = self.in_flight == 0 || self.in_flight + bytes <= window;
        in_window && self.sent.len() < MAX_WRITES && stream.waiting() < MAX_WAITING
    }

    /// Posts a write whose extents were checked.
    pub(super) fn post(
        &mut self,
        write: &Write<'_>,
        bytes: u32,
        stream: &mut Stream,
    ) -> Result<(), TransportError> {
        let Write { op, grant, ref piece, source, .. } = *write;
        if source.len() > MAX_EXTENTS {
            let (bytes, limit) = (source.len() as u64 * 16, MAX_EXTENTS as u64 * 16);
            return Err(TransportError::TooLarge { name: NAME, bytes, limit });
        }
        let words = &self.words.as_slice()[TOKEN_WORDS..];
        let lease = self.leases.take(words, grant).ok_or(TransportError::Full)?;
        let head = PostHead { grant, op, piece, bytes, lease };
        stream.put(|out| head.put_with(source, out));
        let bytes = u64::from(bytes);
        self.in_flight += bytes;
        self.sent.push_back(Sent { grant, op, bytes, is_settled: false });
        Ok(())
    }

    /// The peer says how many writes are over.
    pub(super) fn take_over(&mut self, over: u64, settle: &mut Settle<'_>) -> Result<(), TransportError> {
        let sent = self.over + self.sent.len() as u64;
        if over < self.over || over > sent {
            let detail = format!("{over} writes are over, of {sent} sent");
            return Err(TransportError::Format { name: NAME, detail });
        }
        while self.over < over
            && let Some(Sent { grant, op, bytes, is_settled }) = self.sent.pop_front()
        {
            self.over += 1;
            if !is_settled {
                self.in_flight -= bytes;
                self.leases.give_back(grant);
                settle(grant, op, Ok(()));
            }
        }
        Ok(())
    }

    /// Takes back what was posted under a grant: all of it is settled now.
    pub(super) fn recall(&mut self, grant: GrantId, settle: &mut Settle<'_>) {
        self.leases.recall(&self.words.as_slice()[TOKEN_WORDS..], grant);
        for sent in self.sent.iter_mut().filter(|sent| sent.grant == grant && !sent.is_settled) {
            sent.is_settled = true;
            self.in_flight -= sent.bytes;
            self.leases.give_back(grant);
            settle(grant, sent.op, Err(TransportError::Recalled { name: NAME }));
        }
    }

    /// Takes everything back: the link ends.
    pub(super) fn end(&mut self, error: impl Fn() -> TransportError, settle: &mut Settle<'_>) {
        self.leases.recall_all(&self.words.as_slice()[TOKEN_WORDS..]);
        for Sent { grant, op, is_settled, .. } in self.sent.drain(..) {
            if !is_settled {
                settle(grant, op, Err(error()));
            }
        }
        self.in_flight = 0;
    }

    /// Lets the peer read a region, if it does not yet.
    pub(super) fn export(
        &mut self,
        region: &Region,
        private: Private,
        stream: &mut Stream,
    ) -> Result<(), TransportError> {
        if self.exported.contains(&region.id()) {
            return Ok(());
        }
        let (id, len) = (region.id(), region.len());
        if let Some((fd, at)) = mappable(region) {
            stream.with_fd(&Frame::Export { region: id, place: Place::Mapped(at), len }, fd);
        } else if private == Private::Read && self.readable == Readable::Yes {
            let place = Place::Remote(region.base().as_ptr().addr() as u64);
            stream.own(&Frame::Export { region: id, place, len });
        } else {
            return Err(unreachable(region));
        }
        self.exported.insert(id);
        Ok(())
    }

    /// Whether this memory of ours can be read by the peer in some way.
    pub(super) fn can_export(&self, region: &Region, private: Private) -> bool {
        (private == Private::Read && self.readable == Readable::Yes) || mappable(region).is_some()
    }

    /// The peer is to let go of a region.
    pub(super) fn withdraw(&mut self, region: RegionId, stream: &mut Stream) {
        if self.exported.remove(&region) {
            stream.own(&Frame::Withdraw(region));
        }
    }
}

/// A descriptor by which a peer can map a region and not write it, and where the region starts in it.
fn mappable(region: &Region) -> Option<(Arc<OwnedFd>, u64)> {
    let descriptor = region.descriptor()?;
    if region.is_empty() || !is_sealed(&descriptor.fd) {
        return None;
    }
    let seals = rustix::fs::fcntl_get_seals(&descriptor.fd).ok()?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Some((Arc::clone(&descriptor.fd), descriptor.offset));
    }
    // Opened anew for reading only.
    let path = format!("/proc/self/fd/{}", descriptor.fd.as_raw_fd());
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some((Arc::new(fd), descriptor.offset))
}

/// Why a peer cannot read a region.
pub(super) fn unreachable(region: &Region) -> TransportError {
    let detail = format!(
        "{region:?} is private memory of process {}, which the peer may not read; memory of \
         `SharedBuffer` can be mapped by it",
        std::process::id()
    );
    TransportError::Unreachable { name: NAME, detail }
}

/// Words before the leases, that hold the token.
pub(super) const TOKEN_WORDS: usize = 2;
/// Writes at most that are not over at the peer; also what is taken of a peer.
pub(super) const MAX_WRITES: usize = LEASES;
/// Bytes of frames that may wait before the next write.
const MAX_WAITING: u64 = 1 << 20;
