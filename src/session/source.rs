//! One sender of a receiver: how it is reached, what it said, what landed from it, and whether it can
//! still touch the pages.

use super::progress::Progress;
use super::receiver::SourceLink;
use crate::error::{ErrorKind, Fault};
use crate::ids::{LinkId, OpId, Rank};
use crate::layout::Share;
use crate::ops::OpSet;
use crate::poll::KVPoll;
use crate::wire::{Done, Offer};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) share: Option<Share>,
    /// Decode ranks that join it.
    pub(super) destinations: Vec<Rank>,
    pub(super) link: Option<SourceLink>,
    pub(super) offer: Option<Offer>,
    pub(super) done: Option<Done>,
    pub(super) progress: Progress,
    /// It knows how the room ended (from us, or from itself).
    pub(super) told: bool,
    pub(super) down: bool,
    /// The link ended when all but its last word may have come: why it ended.
    pub(super) lost: Option<Fault>,
    /// The link over which it is asked for that word.
    pub(super) again: Option<LinkId>,
    /// Bytes in place as it told last.
    told_bytes: u64,
    writer: Writer,
    landed: OpSet,
    bytes: u64,
}

/// Whether a source can touch the pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Writer {
    /// Nothing was lent to it, or nothing it posted can touch the pages any more.
    Quiet,
    /// It may write.
    Admitted,
    /// It is being stopped.
    Revoking,
}

impl Source {
    /// A source that these ranks join; `layers` are those of this rank's pool.
    pub(super) fn new(share: Option<Share>, destinations: Vec<Rank>, mut layers: Vec<u32>) -> Self {
        if let Some(owed) = share.as_ref().and_then(|share| share.layers.as_ref()) {
            layers.retain(|&layer| owed.contains(layer));
        }
        Self {
            share,
            destinations,
            link: None,
            offer: None,
            done: None,
            progress: Progress::new(layers),
            told: false,
            down: false,
            lost: None,
            again: None,
            told_bytes: 0,
            writer: Writer::Quiet,
            landed: OpSet::default(),
            bytes: 0,
        }
    }

    /// Pages are lent to it from now on.
    pub(super) fn admit(&mut self) {
        self.writer = Writer::Admitted;
    }

    /// Whether its writes must be stopped from here; true once.
    pub(super) fn must_revoke(&mut self) -> bool {
        let revocable = self.link.is_some_and(|link| link.revocable);
        let due = revocable && self.writer == Writer::Admitted;
        if due {
            self.writer = Writer::Revoking;
        }
        due
    }

    /// Nothing it posted can touch the pages any more.
    pub(super) fn quiet(&mut self) {
        self.writer = Writer::Quiet;
    }

    /// It says that it will not write again: proof only where it alone moves the bytes.
    pub(super) fn vouched(&mut self) {
        if self.link.is_some_and(|link| !link.revocable) {
            self.writer = Writer::Quiet;
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.writer == Writer::Quiet
    }

    /// Counts a write; answers its bytes if it is a new one.
    pub(super) fn land(&mut self, op: OpId, bytes: u64) -> Result<u64, Fault> {
        let new = self.landed.insert(op).map_err(|_| broken("writes landed in no order at all".into()))?;
        if !new {
            return Ok(0);
        }
        self.bytes += bytes;
        self.check_totals()?;
        Ok(bytes)
    }

    /// Keeps the totals of its `Done`, checked against what was asked for.
    pub(super) fn finish(&mut self, done: &Done, wanted: &Range<u32>) -> Result<(), Fault> {
        if self.done.is_some() {
            return Ok(()); // repeated
        }
        if self.share.is_some() && done.tokens != wanted.end {
            let detail = format!("the prompt has {} tokens, pages were lent for {wanted:?}", done.tokens);
            return Err(Fault::new(ErrorKind::Layout, detail));
        }
        self.done = Some(done.clone());
        self.check_totals()
    }

    /// Whether nothing but its `Done` may be missing.
    pub(super) fn may_be_done(&self, wanted: &Range<u32>) -> bool {
        let revocable = self.link.is_some_and(|link| link.revocable);
        let all_came = self.share.is_none() || wanted.is_empty() || self.progress.tokens() >= wanted.end;
        revocable && all_came
    }

    /// It told how many bytes are in place. Answers whether that is progress that is not seen here.
    pub(super) fn has_moved(&mut self, bytes: u64) -> bool {
        let counts = self.link.is_some_and(|link| link.revocable);
        let more = bytes > self.told_bytes;
        self.told_bytes = self.told_bytes.max(bytes);
        more && !counts
    }

    /// Whether it may be asked where it stands.
    pub(super) fn is_asked(&self) -> bool {
        self.link.is_some() && !self.told && !self.down && !self.is_complete()
    }

    /// Whether anything of it has come.
    pub(super) fn has_begun(&self) -> bool {
        self.landed.len() > 0 || self.done.is_some() || self.told_bytes > 0
    }

    /// Bytes of its writes that landed.
    pub(super) fn landed_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether everything it owed is in place.
    pub(super) fn is_complete(&self) -> bool {
        let counts = self.link.is_some_and(|link| link.revocable);
        self.done.as_ref().is_some_and(|done| !counts || self.landed.len() == done.ops)
    }

    /// Tokens in place from this source in every layer.
    pub(super) fn tokens(&self, state: KVPoll, wanted: &Range<u32>) -> u32 {
        match state {
            KVPoll::Success => wanted.end,
            _ if self.share.is_none() || self.is_complete() => wanted.end,
            _ => self.progress.tokens().clamp(wanted.start, wanted.end),
        }
    }

    fn check_totals(&self) -> Result<(), Fault> {
        let Some(done) = &self.done else { return Ok(()) };
        let counts = self.link.is_some_and(|link| link.revocable);
        let (ops, bytes) = (self.landed.len(), self.bytes);
        let over = self.landed.end() > u64::from(done.ops) || bytes > done.bytes;
        if counts && (over || (ops == done.ops && bytes != done.bytes)) {
            return Err(broken(format!(
                "{ops} writes of {bytes} bytes landed, {} of {} bytes were announced",
                done.ops, done.bytes
            )));
        }
        Ok(())
    }
}

fn broken(detail: String) -> Fault {
    Fault::new(ErrorKind::Protocol, detail)
}
