//! Pools registered with an engine, and sequences whose pages a transfer touches.
//!
//! The law of [`pool`](crate::pool) asks two things of whoever is told where pages lie: to keep the pool
//! alive, which the regions made here do by owning an [`Arc`] of it, and to take pages back only once
//! nobody touches them any more, which `Lent::take_back` learns from the handle of the transfer.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
use kvferry::memory::Region;
use kvferry::{Engine, GroupId, KVPoll, KVReceiver, KVSender, KVTransferError, Release};

use crate::pool::{Geometry, Kind, Lending, PagePool, Sequence};

/// Lends all buffers of a pool to an engine and describes them to it: `heads` are the KV heads of the model
/// that it holds. Returns the group of their pages.
///
/// # Errors
/// A pool that the engine cannot use, or an engine that has rooms.
pub fn register(engine: &Engine, pool: &Arc<PagePool>, heads: HeadSpan) -> Result<GroupId> {
    let Geometry { kv_heads, head_dim, page_tokens, pages, .. } = *pool.geometry();
    let page_tokens = u32::try_from(page_tokens)?;
    ensure!(usize::try_from(heads.count)? == kv_heads, "a pool of {kv_heads} KV heads holds {heads:?}");
    let head_bytes = u64::try_from(head_dim * size_of::<f32>())?;
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", page_tokens, pages);
    for buffer in pool.buffers() {
        let len = u64::try_from(buffer.len)?;
        // SAFETY: the buffer lives as long as the pool, of which the region owns a part. Its pages are
        // lent and taken back through `Lent`.
        let region = |id| unsafe { Region::host(id, buffer.base, len, Some(Arc::clone(pool) as _)) };
        let region = engine.register(region)?;
        let role = match buffer.kind {
            Kind::Key => Role::Key,
            Kind::Value => Role::Value,
        };
        let layer = u32::try_from(buffer.layer)?;
        let entry = PoolEntry::token_major(kv, role, layer, region, page_tokens, heads, head_bytes);
        layout.push(entry.dtype("f32"));
    }
    engine.set_layout(layout)?;
    Ok(kv)
}

/// A sequence whose pages a transfer touches, together with the handle of that transfer.
///
/// Dropped before it is taken back, it ends the transfer and its pages stay unused for ever.
#[derive(Debug)]
pub struct Lent<H> {
    sequence: Sequence,
    handle: H,
}

/// The handle of a transfer, of either side.
pub trait Handle {
    /// What the transfer does to the pages.
    const LENDING: Lending;

    /// Why it failed, once it has.
    fn error(&self) -> Option<KVTransferError>;

    /// Whether the pages are the caller's again.
    fn release(&self) -> Release;

    /// Blocks until it has ended and the pages are back, or the time is over; gives the state.
    fn wait(&self, limit: Duration) -> KVPoll;
}

impl<H: Handle> Lent<H> {
    /// Lends a sequence; the pages of no other one are given to this handle.
    ///
    /// # Errors
    /// The sequence is lent already.
    pub(crate) fn new(mut sequence: Sequence, handle: H) -> Result<Self> {
        sequence.lend(H::LENDING)?;
        Ok(Self { sequence, handle })
    }

    /// Returns the two apart. They stay each other's: neither is exchanged.
    pub(crate) fn parts(&mut self) -> (&mut Sequence, &H) {
        (&mut self.sequence, &self.handle)
    }

    /// Returns the handle.
    pub(crate) fn handle(&self) -> &H {
        &self.handle
    }

    /// Waits until the transfer has ended and nobody touches the pages any more. The sequence then holds
    /// `tokens` tokens, if the transfer went well.
    ///
    /// # Errors
    /// The transfer failed: its pages are unused again. Or it has not given them back after `limit`.
    pub(crate) fn take_back(mut self, tokens: usize, limit: Duration) -> Result<(Sequence, H)> {
        let state = self.handle.wait(limit);
        ensure!(
            self.handle.release() == Release::Safe,
            "room is {state:?} and its pages still in use after {limit:?}"
        );
        let tokens = if state == KVPoll::Success { tokens } else { self.sequence.tokens() };
        // SAFETY: the only transfer that was told of these pages has reported that they may be reused.
        unsafe { self.sequence.take_back(tokens) }?;
        match self.handle.error() {
            None => Ok((self.sequence, self.handle)),
            Some(error) => Err(error).context("transfer failed"),
        }
    }
}

impl Handle for KVReceiver {
    const LENDING: Lending = Lending::Incoming;

    fn error(&self) -> Option<KVTransferError> {
        self.error()
    }

    fn release(&self) -> Release {
        self.release()
    }

    fn wait(&self, limit: Duration) -> KVPoll {
        self.wait(limit)
    }
}

impl Handle for KVSender {
    const LENDING: Lending = Lending::Outgoing;

    fn error(&self) -> Option<KVTransferError> {
        self.error()
    }

    fn release(&self) -> Release {
        self.release()
    }

    fn wait(&self, limit: Duration) -> KVPoll {
        self.wait(limit)
    }
}
