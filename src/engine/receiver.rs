//! The handle of the decode side.

use super::handle::Handle;
use super::layouts::Announced;
use super::sender::check_order;
use super::shared::{Command, Shared};
use super::slot::Slot;
use super::stats::TransferStats;
use super::usage::{Accepted, UsageError};
use super::work::Grant;
use crate::error::KVTransferError;
use crate::ids::{Generation, Rank, Room};
use crate::poll::{KVPoll, Release};
use crate::session::Lent;
use crate::wire::{MAX_PAGES, Offer};
use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One request on the decode side. Every method may be called from any thread and never blocks,
/// unless it says so. Dropping it aborts the transfer; its pages then come back through
/// [`Engine::changes`](super::Engine::changes) or [`KVReceiver::released`].
#[derive(Debug)]
pub struct KVReceiver {
    handle: Handle,
    announced: Arc<Announced>,
    has_granted: AtomicBool,
}

impl KVReceiver {
    pub(super) fn new(shared: Arc<Shared>, slot: Arc<Slot>, announced: Arc<Announced>) -> Self {
        Self { handle: Handle::new(shared, slot), announced, has_granted: AtomicBool::new(false) }
    }

    /// Lends pages to the prefill side. Once; allowed from the start. Until
    /// [`release`](Self::release) is `Safe`, the pages are neither read (but for tokens known to be
    /// ready) nor written by the caller.
    ///
    /// # Errors
    /// The pages do not fit the tokens or the pools, or pages were lent before; nothing is lent.
    pub fn grant(&self, grant: Grant<'_>) -> Result<Accepted, UsageError> {
        let Some((shared, slot)) = self.handle.open()? else { return Ok(Accepted::Ended) };
        let Grant { tokens, pages, rows } = grant;
        check_order(&tokens)?;
        let mut lists = Vec::with_capacity(pages.len() + rows.len());
        for given in &pages {
            lists.push((given.group, self.announced.pages(given, &tokens)?));
        }
        for (group, rows) in &rows {
            lists.push((*group, self.announced.rows(*group, rows)?));
        }
        let pages = lists.iter().map(|(_, list)| list.indices.len()).sum();
        if pages > MAX_PAGES {
            return Err(UsageError::TooManyPages { pages, limit: MAX_PAGES });
        }
        if self.has_granted.swap(true, Ordering::AcqRel) {
            return Err(UsageError::AlreadyGranted);
        }
        shared.inbox.command(Command::Grant { slot, lent: Lent { tokens, pages: lists.into() } });
        Ok(Accepted::Queued)
    }

    /// Says which data parallel rank of the source group computes the room, if that was not known when
    /// the receiver was made.
    ///
    /// # Errors
    /// [`UsageError::Forked`].
    pub fn set_dp(&self, dp: u32) -> Result<Accepted, UsageError> {
        let Some((shared, slot)) = self.handle.open()? else { return Ok(Accepted::Ended) };
        shared.inbox.command(Command::SetDp { slot, dp });
        Ok(Accepted::Queued)
    }

    /// Ends the transfer; every source is told at once. Nothing if it has ended.
    pub fn abort(&self, reason: &str) {
        self.handle.abort(reason);
    }

    /// Where the transfer stands: one atomic read. After `Success`, and for tokens reported ready, the
    /// bytes are visible to this process.
    pub fn poll(&self) -> KVPoll {
        self.handle.slot().poll()
    }

    /// Why it failed, once it has.
    pub fn error(&self) -> Option<KVTransferError> {
        self.handle.slot().error()
    }

    /// Whether the pages lent are the caller's again: one atomic read.
    pub fn release(&self) -> Release {
        self.handle.slot().release()
    }

    /// Ranks that keep [`release`](Self::release) from being `Safe`.
    pub fn waiting_for(&self) -> Vec<Rank> {
        self.handle.details(|details| details.waiting_for.clone())
    }

    /// Tokens in place from every source, in every layer: one atomic read.
    pub fn ready_tokens(&self) -> u32 {
        self.handle.slot().ready_tokens()
    }

    /// Tokens in place in this global layer.
    pub fn ready_tokens_of(&self, layer: u32) -> u32 {
        let slot = self.handle.slot();
        let ready = self
            .handle
            .details(|details| details.layers_ready.iter().find(|(l, _)| *l == layer).map(|(_, t)| *t));
        ready.unwrap_or(0).max(slot.ready_tokens())
    }

    /// What the request will be, if the prefill side has said so.
    pub fn offered(&self) -> Option<Offer> {
        self.handle.details(|details| details.offer.clone())
    }

    /// The bytes given to `finish`, after `Success`; of the first source that sent any.
    pub fn payload(&self) -> Option<Bytes> {
        self.payloads().into_iter().map(|(_, bytes)| bytes).find(|bytes| !bytes.is_empty())
    }

    /// The bytes each source gave to `finish`, after `Success`.
    pub fn payloads(&self) -> Vec<(Rank, Bytes)> {
        self.handle.details(|details| details.payloads.clone())
    }

    /// When things happened and how much moved. Complete once the transfer has ended.
    pub fn stats(&self) -> TransferStats {
        self.handle.stats()
    }

    /// The room.
    pub fn room(&self) -> Room {
        self.handle.slot().room
    }

    /// Tells this use of the room from others.
    pub fn generation(&self) -> Generation {
        self.handle.slot().generation
    }

    /// Completes when the transfer has ended. Dropping the future changes nothing.
    pub fn finished(&self) -> impl Future<Output = Result<(), KVTransferError>> + Send + 'static {
        self.handle.finished()
    }

    /// Completes when the pages are the caller's again.
    pub fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        self.handle.released()
    }

    /// Completes when the prefill side has said what the request will be, or with `None` when the
    /// transfer has ended before that.
    pub fn wait_offered(&self) -> impl Future<Output = Option<Offer>> + Send + 'static {
        self.handle.wait_for(None, |slot| {
            let over = slot.poll().is_terminal();
            match slot.details(|details| details.offer.clone()) {
                None if !over => None,
                offer => Some(offer),
            }
        })
    }

    /// Completes when at least `tokens` are in place in every layer (true), or the transfer has ended
    /// before that (false).
    pub fn wait_ready(&self, tokens: u32) -> impl Future<Output = bool> + Send + 'static {
        self.handle.wait_for(false, move |slot| {
            let over = slot.poll().is_terminal();
            let ready = slot.ready_tokens() >= tokens;
            (ready || over).then_some(ready)
        })
    }

    /// Completes when at least `tokens` are in place in each of these global layers (true), so that work on
    /// them can begin, or the transfer has ended before that (false).
    pub fn wait_layers(
        &self,
        layers: Range<u32>,
        tokens: u32,
    ) -> impl Future<Output = bool> + Send + 'static {
        self.handle.wait_for(false, move |slot| {
            let over = slot.poll().is_terminal();
            let ready = slot.ready_tokens() >= tokens
                || slot.details(|details| {
                    let asked = details.layers_ready.iter().filter(|(layer, _)| layers.contains(layer));
                    asked.clone().next().is_some() && asked.clone().all(|(_, ready)| *ready >= tokens)
                });
            (ready || over).then_some(ready)
        })
    }

    /// Blocks until the transfer has ended and its pages are back, or the time is over; gives the state.
    pub fn wait(&self, timeout: Duration) -> KVPoll {
        self.handle.wait(timeout)
    }
}
