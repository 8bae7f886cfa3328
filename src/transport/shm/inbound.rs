//! What arrives over a link: writes that are copied from the peer's memory, and counted.

use super::NAME;
use super::config::Countdown;
use super::frames::{Post, broken};
use crate::ids::{GrantId, LinkId, OpId};
use crate::layout::Extent;
use crate::memory::fetch::{FetchError, Fetcher, Process, Source, Target, Way};
use crate::memory::import::Imports;
use crate::memory::words::PeerWords;
use crate::memory::{Cursor, RegionTable};
use crate::transport::TransportError;
use crate::transport::grants::{Begin, Grants};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The receiving side of a link; shared by all who copy.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) link: LinkId,
    pub(super) grants: Grants,
    imports: Mutex<Arc<Imports>>,
    /// The peer's leases.
    words: PeerWords,
    /// How the peer's own memory is read, if it can be.
    process: Option<Process>,
    is_closed: AtomicBool,
}

/// A write that waits to be copied, or is being copied.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) inbound: Arc<Inbound>,
    /// Its place among those of the link.
    pub(super) number: u64,
    pub(super) post: Post,
    /// Whether its grant is held.
    holds: bool,
}

/// What a copier reports.
#[derive(Debug)]
pub(super) enum News {
    Broken {
        link: LinkId,
        error: TransportError,
    },
    Landed {
        link: LinkId,
        grant: GrantId,
        op: OpId,
        bytes: u64,
    },
    /// A write of the link is over; the last report about it.
    Over {
        link: LinkId,
        number: u64,
    },
    Refused {
        link: LinkId,
        grant: GrantId,
        detail: String,
    },
    Revoked {
        link: LinkId,
        grant: GrantId,
    },
}

/// What one thread needs to copy; reused from write to write.
#[derive(Debug, Default)]
pub(super) struct Desk {
    fetcher: Fetcher,
    sources: Vec<Extent>,
    targets: Vec<Extent>,
    fault: Countdown,
}

impl Desk {
    pub(super) fn new(fault: &Countdown) -> Self {
        Self { fault: fault.clone(), ..Self::default() }
    }
}

impl Inbound {
    pub(super) fn new(link: LinkId, words: PeerWords, process: Option<Process>) -> Self {
        Self {
            link,
            grants: Grants::default(),
            imports: Mutex::default(),
            words,
            process,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Nothing more is copied, once what is under way has come to the end of its piece.
    pub(super) fn close(&self) {
        // Relaxed: a hint; who waits for the end waits for every write to be over.
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn imports(&self) -> Arc<Imports> {
        Arc::clone(&self.imports.lock())
    }

    pub(super) fn change_imports(&self, change: impl FnOnce(&mut Imports)) {
        change(Arc::make_mut(&mut self.imports.lock()));
    }

    /// Whether the peer's own memory can be read.
    pub(super) fn reads_private(&self) -> bool {
        self.process.is_some()
    }
}

impl Arrival {
    pub(super) fn new(inbound: Arc<Inbound>, number: u64, post: Post) -> Self {
        Self { inbound, number, post, holds: false }
    }

    /// Copies it, unless there is a reason not to. It is over afterwards in any case.
    pub(super) fn apply(
        &mut self,
        desk: &mut Desk,
        table: &RegionTable,
        way: Way,
        report: &mut dyn FnMut(News),
    ) {
        let link = self.inbound.link;
        if let Err(error) = self.try_apply(desk, table, way, report) {
            report(News::Broken { link, error });
        }
        self.end(report);
    }

    /// It is over, perhaps by a panic while its grant was held.
    pub(super) fn end(&mut self, report: &mut dyn FnMut(News)) {
        self.leave(report);
        report(News::Over { link: self.inbound.link, number: self.number });
    }

    fn try_apply(
        &mut self,
        desk: &mut Desk,
        table: &RegionTable,
        way: Way,
        report: &mut dyn FnMut(News),
    ) -> Result<(), TransportError> {
        let Self { inbound, post, .. } = self;
        let (link, grant, op, bytes) = (inbound.link, post.grant, post.op, u64::from(post.bytes));
        if inbound.is_closed.load(Ordering::Relaxed) || !post.lease.holds(inbound.words.as_slice()) {
            return Ok(());
        }
        desk.sources.clear();
        let named = post.sources(&mut desk.sources);
        if named != bytes || bytes > super::MAX_WRITE {
            return Err(broken(format!("a write of {bytes} bytes names {named}")));
        }
        let gaps = |error: crate::ops::TooManyGaps| broken(error.to_string());
        let Begin::Apply(admission) = inbound.grants.begin(grant, op).map_err(gaps)? else { return Ok(()) };
        desk.targets.clear();
        if let Err(refusal) = admission.place_of(&post.piece, bytes, &mut desk.targets) {
            report(News::Refused { link, grant, detail: refusal.to_string() });
            return Ok(());
        }
        if !self.copy(desk, table, way, report)? {
            // Taken back by the peer: as if it had never come.
            self.inbound.grants.reject(grant, op).map_err(gaps)?;
        }
        Ok(())
    }

    /// Copies piece by piece; whether the peer let it be copied to the end.
    fn copy(
        &mut self,
        desk: &mut Desk,
        table: &RegionTable,
        way: Way,
        report: &mut dyn FnMut(News),
    ) -> Result<bool, TransportError> {
        let inbound = Arc::clone(&self.inbound);
        let words = inbound.words.as_slice();
        let (grant, op, bytes) = (self.post.grant, self.post.op, u64::from(self.post.bytes));
        let imports = inbound.imports();
        // Taken after the grant was seen, so that regions it needs are there.
        let regions = table.snapshot();
        let cursor = Cursor::default();
        let mut from = Source { imports: &imports, process: inbound.process, extents: &desk.sources, cursor };
        let mut to = Target { regions: &regions, extents: &desk.targets, cursor };
        let mut left = bytes;
        loop {
            self.holds = inbound.grants.enter(grant);
            if !self.holds || inbound.is_closed.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if !self.post.lease.holds(words) {
                return Ok(false);
            }
            desk.fault.trip();
            let fetched = desk.fetcher.fetch(&mut from, &mut to, left.min(PIECE), way);
            if !self.post.lease.still_holds(words) {
                return Ok(false);
            }
            match fetched {
                Ok(0) if left > 0 => {
                    return Err(broken(format!("{left} bytes of a write come from nowhere")));
                }
                Ok(fetched) => left -= fetched,
                Err(FetchError::Ours(error)) => {
                    tracing::warn!(%error, "admitted pages are not registered, write dropped");
                    return Ok(true);
                }
                Err(FetchError::Theirs(error)) => return Err(broken(error.to_string())),
                Err(FetchError::Unreadable(source)) => {
                    return Err(TransportError::Io { name: NAME, op: "process_vm_readv", source });
                }
            }
            if left == 0 {
                if inbound.grants.is_admitted(grant) {
                    report(News::Landed { link: inbound.link, grant, op, bytes });
                }
                return Ok(true);
            }
            self.leave(report);
        }
    }

    fn leave(&mut self, report: &mut dyn FnMut(News)) {
        if !std::mem::take(&mut self.holds) {
            return;
        }
        let (link, grant) = (self.inbound.link, self.post.grant);
        for _ in 0..self.inbound.grants.leave(grant) {
            report(News::Revoked { link, grant });
        }
    }
}

/// The error of a thread of ours that panicked.
pub(super) fn panicked() -> TransportError {
    TransportError::Io { name: NAME, op: "copying", source: io::Error::other("a copier panicked") }
}

/// Bytes copied before the thread looks whether it still should.
const PIECE: u64 = 512 << 10;
