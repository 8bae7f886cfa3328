//! The handle of the prefill side.

use super::handle::Handle;
use super::layouts::Announced;
use super::shared::{Command, Shared};
use super::slot::{Granted, Slot};
use super::stats::TransferStats;
use super::usage::{Accepted, UsageError};
use super::work::{Chunk, Finish, Offer};
use crate::error::KVTransferError;
use crate::ids::{Rank, Room};
use crate::poll::{KVPoll, Release};
use crate::session::{self, Intake};
use crate::wire;
use bytes::Bytes;
use parking_lot::Mutex;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One request on the prefill side. Every method may be called from any thread and never blocks,
/// unless it says so. Dropping it aborts the transfer; its pages then come back through
/// [`Engine::changes`](super::Engine::changes) or [`KVSender::released`].
#[derive(Debug)]
pub struct KVSender {
    handle: Handle,
    announced: Arc<Announced>,
    /// Held while work is queued, so that it is queued in the order it was checked.
    intake: Mutex<Intake>,
}

impl KVSender {
    pub(super) fn new(shared: Arc<Shared>, slot: Arc<Slot>, announced: Arc<Announced>) -> Self {
        let intake =
            Intake::new(announced.holding.layers.iter().collect(), shared.config.limits.chunks_per_room);
        Self { handle: Handle::new(shared, slot), announced, intake: Mutex::new(intake) }
    }

    /// Tells the decode side what the request will be, so that it can lend the right pages.
    ///
    /// # Errors
    /// [`UsageError::PayloadTooLarge`], [`UsageError::Forked`].
    pub fn offer(&self, offer: Offer<'_>) -> Result<Accepted, UsageError> {
        let Some((shared, slot)) = self.handle.open()? else { return Ok(Accepted::Ended) };
        let Offer { tokens, complete, payload } = offer;
        let payload = self.handle.payload(payload)?;
        shared.inbox.command(Command::Offer { slot, offer: wire::Offer { tokens, complete, payload } });
        Ok(Accepted::Queued)
    }

    /// Gives a chunk. Allowed from the start; it waits for the decode side.
    ///
    /// # Errors
    /// The chunk does not continue where its layers ended, or its pages do not fit; nothing is taken.
    pub fn send(&self, chunk: Chunk<'_>) -> Result<Accepted, UsageError> {
        let Some((shared, slot)) = self.handle.open()? else { return Ok(Accepted::Ended) };
        let Chunk { tokens, layers, pages, ready: marks } = chunk;
        check_order(&tokens)?;
        let lists: Result<Vec<_>, UsageError> =
            pages.iter().map(|given| Ok((given.group, self.announced.pages(given, &tokens)?))).collect();
        let pages = lists?;
        let mut intake = self.intake.lock();
        intake.chunk(&tokens, layers.as_ref())?;
        let chunk = session::Chunk { tokens, layers, pages, ready: marks.is_empty() };
        shared.inbox.command(Command::Chunk { slot, chunk, marks });
        Ok(Accepted::Queued)
    }

    /// Ends the prompt: every layer must have come to its last token.
    ///
    /// # Errors
    /// A layer is behind, `finish` was called before, the payload is too large, or rows do not fit.
    pub fn finish(&self, finish: Finish<'_>) -> Result<Accepted, UsageError> {
        let Some((shared, slot)) = self.handle.open()? else { return Ok(Accepted::Ended) };
        let Finish { tokens, rows, payload, ready: marks } = finish;
        let payload = self.handle.payload(payload)?;
        let rows: Result<Vec<_>, UsageError> =
            rows.iter().map(|(group, rows)| Ok((*group, self.announced.rows(*group, rows)?))).collect();
        let rows = rows?;
        let mut intake = self.intake.lock();
        intake.finish(tokens)?;
        let finish = session::Finish { tokens, rows, payload, ready: marks.is_empty() };
        shared.inbox.command(Command::Finish { slot, finish, marks });
        Ok(Accepted::Queued)
    }

    /// Ends the transfer; the decode side is told at once. Nothing if it has ended.
    pub fn abort(&self, reason: &str) {
        self.handle.abort(reason);
    }

    /// Where the transfer stands: one atomic read.
    pub fn poll(&self) -> KVPoll {
        self.handle.slot().poll()
    }

    /// Why it failed, once it has.
    pub fn error(&self) -> Option<KVTransferError> {
        self.handle.slot().error()
    }

    /// Whether the source pages are the caller's again: one atomic read.
    pub fn release(&self) -> Release {
        self.handle.slot().release()
    }

    /// Ranks that keep [`release`](Self::release) from being `Safe`.
    pub fn waiting_for(&self) -> Vec<Rank> {
        self.handle.details(|details| details.waiting_for.clone())
    }

    /// What the decode side holds and how many ranks it is, once all have lent pages. Tokens held need
    /// not be sent.
    pub fn granted(&self) -> Option<Granted> {
        self.handle.details(|details| details.granted)
    }

    /// When things happened and how much moved. Complete once the transfer has ended.
    pub fn stats(&self) -> TransferStats {
        self.handle.stats()
    }

    /// The room.
    pub fn room(&self) -> Room {
        self.handle.slot().room
    }

    /// Completes when the transfer has ended. Dropping the future changes nothing.
    pub fn finished(&self) -> impl Future<Output = Result<(), KVTransferError>> + Send + 'static {
        self.handle.finished()
    }

    /// Completes when the source pages are the caller's again.
    pub fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        self.handle.released()
    }

    /// Completes when every destination has lent pages, or with `None` when the transfer has ended
    /// before that.
    pub fn wait_granted(&self) -> impl Future<Output = Option<Granted>> + Send + 'static {
        self.handle.wait_for(None, |slot| {
            let over = slot.poll().is_terminal();
            match slot.details(|details| details.granted) {
                None if !over => None,
                granted => Some(granted),
            }
        })
    }

    /// Blocks until the transfer has ended and its pages are back, or the time is over; gives the state.
    pub fn wait(&self, timeout: Duration) -> KVPoll {
        self.handle.wait(timeout)
    }
}

impl Handle {
    /// The caller's own bytes, copied.
    fn payload(&self, payload: &[u8]) -> Result<Bytes, UsageError> {
        let limit = self.shared().config.limits.payload_bytes;
        if payload.len() > limit {
            return Err(UsageError::PayloadTooLarge { bytes: payload.len(), limit });
        }
        Ok(Bytes::copy_from_slice(payload))
    }
}

pub(super) fn check_order(tokens: &Range<u32>) -> Result<(), UsageError> {
    if tokens.start > tokens.end { Err(UsageError::Reversed(tokens.clone())) } else { Ok(()) }
}
