//! The prefill side: computes the KV cache of prompts in chunks and sends each while the next is computed.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kvferry::{Accepted, Chunk, Engine, EngineBuilder, Finish, GroupId, KVPoll, KVSender, Room, RoomOptions};

use crate::generate::{self, Progress};
use crate::memory::{self, Lent};
use crate::model::Model;
use crate::now;
use crate::pool::PagePool;
use crate::protocol::FirstToken;

/// A model, a pool and an engine that sends from it.
#[derive(Debug)]
pub struct Prefill {
    model: Arc<Model>,
    pool: Arc<PagePool>,
    engine: Engine,
    kv: GroupId,
    /// Whether each layer is sent as soon as it is known.
    by_layer: bool,
}

/// A prompt whose room is open.
#[derive(Debug)]
pub struct Outgoing {
    lent: Lent<KVSender>,
    prompt: Vec<u32>,
    opened: Instant,
    /// What was given last: when, counted from `opened`, and its bytes.
    last: Option<(Duration, usize)>,
}

/// What computing a prompt gave.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Computed {
    /// The first generated token.
    pub first: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Chunks it was computed in.
    pub chunks: usize,
    /// Time from the first chunk's begin to the first token.
    pub time: Duration,
}

/// What sending a prompt took.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// Bytes of KV.
    pub bytes: u64,
    /// Bytes of what was given last: a chunk, or a layer of it.
    pub last_bytes: usize,
    /// Time from giving that until its last write was settled.
    pub last_time: Duration,
}

impl Prefill {
    /// Registers a pool with the engine to be built.
    ///
    /// # Errors
    /// The engine cannot be built or cannot use the pool.
    pub fn start(builder: EngineBuilder, model: Arc<Model>, pool: Arc<PagePool>) -> Result<Self> {
        let engine = builder.build()?;
        let kv = memory::register(&engine, &pool)?;
        Ok(Self { model, pool, engine, kv, by_layer: false })
    }

    /// Sends each layer of a chunk as soon as it is computed, not the whole chunk at its end.
    pub fn layer_by_layer(mut self, by_layer: bool) -> Self {
        self.by_layer = by_layer;
        self
    }

    /// Opens a room for a prompt.
    ///
    /// # Errors
    /// An empty prompt, one longer than the model or the pool has room for, or a room in use.
    pub fn open(&self, room: Room, prompt: Vec<u32>) -> Result<Outgoing> {
        let context = self.model.config().context;
        ensure!(!prompt.is_empty(), "empty prompt");
        ensure!(prompt.len() <= context, "{} tokens pass the model's context of {context}", prompt.len());
        let sequence = self.pool.allocate(prompt.len())?;
        let sender = self.engine.sender(room, RoomOptions::default())?;
        Ok(Outgoing { lent: Lent::new(sequence, sender)?, prompt, opened: now(), last: None })
    }

    /// Computes a prompt, and sends each chunk as soon as it is known. Nothing here waits for the network:
    /// what is given to the sender is queued and goes out while the next chunk is computed.
    ///
    /// # Errors
    /// The room has ended, or the model cannot be run on the prompt; the room is then ended.
    pub fn compute(&self, room: &mut Outgoing, chunk_tokens: NonZeroUsize) -> Result<Computed> {
        let result = self.compute_and_send(room, chunk_tokens);
        if let Err(error) = &result {
            room.lent.handle().abort(&format!("{error:#}"));
        }
        result
    }

    fn compute_and_send(&self, room: &mut Outgoing, chunk_tokens: NonZeroUsize) -> Result<Computed> {
        let Outgoing { lent, prompt, opened, last } = room;
        let (sequence, sender) = lent.parts();
        let pages = sequence.pages().to_vec();
        let geometry = *self.pool.geometry();
        let start = now();
        let mut chunks = 0;
        let mut send = |tokens: Range<usize>, layer: Option<usize>| -> Result<()> {
            // A page that ends inside a chunk and goes on in the next is named in both.
            let named =
                &pages[tokens.start / geometry.page_tokens..tokens.end.div_ceil(geometry.page_tokens)];
            let bytes = geometry.kv_bytes(tokens.len());
            *last = Some((now() - *opened, layer.map_or(bytes, |_| bytes / geometry.layers)));
            let tokens = u32::try_from(tokens.start)?..u32::try_from(tokens.end)?;
            let mut chunk = Chunk::new(tokens).pages(self.kv, named);
            if let Some(layer) = layer {
                let layer = u32::try_from(layer)?;
                chunk = chunk.layers(layer..layer + 1);
            }
            ensure!(sender.send(chunk)? == Accepted::Queued, "room has ended");
            Ok(())
        };

        let first =
            generate::prefill(&self.model, sequence, prompt, chunk_tokens, |progress| match progress {
                Progress::Layer { tokens, layer } if self.by_layer => send(tokens, Some(layer)),
                Progress::Layer { .. } => Ok(()),
                Progress::Chunk(generate::Chunk { tokens, .. }) => {
                    chunks += 1;
                    if self.by_layer { Ok(()) } else { send(tokens, None) }
                }
            })?;
        let payload = FirstToken(first).encode();
        sender.finish(Finish::new(u32::try_from(prompt.len())?).payload(&payload))?;

        Ok(Computed { first, prompt_tokens: prompt.len(), chunks, time: now() - start })
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

impl Outgoing {
    /// Ends the room.
    pub fn abort(&self, reason: &str) {
        self.lent.handle().abort(reason);
    }

    /// Says where the transfer stands.
    pub fn state(&self) -> KVPoll {
        self.lent.handle().poll()
    }

    /// Waits until the pages are not read any more, and gives them back to the pool.
    ///
    /// # Errors
    /// The transfer failed, or has not ended after `limit`.
    pub fn wait(self, limit: Duration) -> Result<Sent> {
        let (given, last_bytes) = self.last.unwrap_or_default();
        let (_, sender) = self.lent.take_back(self.prompt.len(), limit)?;
        let stats = sender.stats();
        let settled = stats.last_byte.context("no byte was sent")?;
        Ok(Sent { bytes: stats.bytes, last_bytes, last_time: settled.saturating_sub(given) })
    }
}
