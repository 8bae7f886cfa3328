//! The decode side: lends pages to the prefill side, and generates once they are filled.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kvferry::layout::HeadSpan;
use kvferry::{Engine, EngineBuilder, Grant, GroupId, KVReceiver, Room, RoomOptions, Sources, TransferStats};

use crate::generate;
use crate::memory::{self, Lent};
use crate::model::Model;
use crate::pool::{PagePool, Sequence};
use crate::protocol::FirstToken;

/// A model, a pool and an engine that receives into it.
#[derive(Debug)]
pub struct Decode {
    model: Arc<Model>,
    pool: Arc<PagePool>,
    engine: Engine,
    kv: GroupId,
}

/// A prompt whose pages are lent.
#[derive(Debug)]
pub struct Incoming {
    lent: Lent<KVReceiver>,
    prompt_tokens: usize,
}

/// A prompt whose KV cache is here.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The pages.
    pub sequence: Sequence,
    /// The token that the prefill side generated.
    pub first: u32,
    /// What the transfer took.
    pub stats: TransferStats,
}

impl Decode {
    /// Registers a pool with the engine to be built.
    ///
    /// # Errors
    /// The engine cannot be built or cannot use the pool.
    pub fn start(builder: EngineBuilder, model: Arc<Model>, pool: Arc<PagePool>) -> Result<Self> {
        let engine = builder.build()?;
        let heads = HeadSpan::all(u32::try_from(model.config().kv_heads)?);
        let kv = memory::register(&engine, &pool, heads)?;
        Ok(Self { model, pool, engine, kv })
    }

    /// Takes pages for a prompt and the `limit` tokens to follow, and lends those of the prompt.
    ///
    /// # Errors
    /// The pool or the model has no room for so many tokens, or the room is in use.
    pub fn open(&self, room: Room, from: Sources, prompt_tokens: usize, limit: usize) -> Result<Incoming> {
        let (tokens, context) = (prompt_tokens + limit, self.model.config().context);
        ensure!(prompt_tokens > 0, "empty prompt");
        ensure!(tokens <= context, "{tokens} tokens pass the model's context of {context}");
        let sequence = self.pool.allocate(tokens)?;
        let receiver = self.engine.receiver(room, from, RoomOptions::default())?;
        let mut lent = Lent::new(sequence, receiver)?;
        let (sequence, receiver) = lent.parts();
        let pages = &sequence.pages()[..self.pool.geometry().pages_for(prompt_tokens)];
        receiver.grant(Grant::new(0..u32::try_from(prompt_tokens)?).pages(self.kv, pages))?;
        Ok(Incoming { lent, prompt_tokens })
    }

    /// Generates at most `limit` tokens, the received one among them, and calls `on_token` with each as soon
    /// as it is known. Ends early after the token `end`, if one is given.
    ///
    /// # Errors
    /// An error of the model or of `on_token`.
    pub fn generate(
        &self,
        received: Received,
        limit: usize,
        end: Option<u32>,
        on_token: impl FnMut(u32) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let Received { mut sequence, first, .. } = received;
        generate::decode(&self.model, &mut sequence, first, limit, end, on_token)
    }

    /// Computes the prompt and generates here alone, without any transfer: what the split run is held
    /// against.
    ///
    /// # Errors
    /// The pool has no room for so many tokens, or the model cannot be run on them.
    pub fn alone(
        &self,
        prompt: &[u32],
        chunk_tokens: NonZeroUsize,
        limit: usize,
        end: Option<u32>,
    ) -> Result<Vec<u32>> {
        let mut sequence = self.pool.allocate(prompt.len() + limit)?;
        let first = generate::prefill(&self.model, &mut sequence, prompt, chunk_tokens, |_| Ok(()))?;
        generate::decode(&self.model, &mut sequence, first, limit, end, |_| Ok(()))
    }

    /// Ends all rooms and the engine; waits `limit` for that at most.
    pub fn close(&self, limit: Duration) {
        self.engine.close(limit);
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<PagePool> {
        &self.pool
    }
}

impl Incoming {
    /// Ends the room.
    pub fn abort(&self, reason: &str) {
        self.lent.handle().abort(reason);
    }

    /// Waits until every byte is in place, and takes the pages back.
    ///
    /// # Errors
    /// The transfer failed: its pages are back in the pool. Or it has not ended after `limit`.
    pub fn wait(self, limit: Duration) -> Result<Received> {
        let (sequence, receiver) = self.lent.take_back(self.prompt_tokens, limit)?;
        let payload = receiver.payload().context("no first token came with the KV cache")?;
        let FirstToken(first) = FirstToken::decode(&payload)?;
        Ok(Received { sequence, first, stats: receiver.stats() })
    }
}
