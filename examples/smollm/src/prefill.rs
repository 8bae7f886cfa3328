//! The prefill side: computes the KV cache of prompts in chunks and sends each while the next is computed.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kvferry::layout::HeadSpan;
use kvferry::{Accepted, Chunk, Engine, EngineBuilder, Finish, GroupId, KVPoll, KVSender, Room, RoomOptions};

use crate::generate::{self, Progress};
use crate::memory::{self, Lent};
use crate::model::Model;
use crate::now;
use crate::pool::{Geometry, PagePool, Sequence};
use crate::protocol::FirstToken;

/// A model, a pool and an engine that sends from it.
#[derive(Debug)]
pub struct Prefill {
    model: Arc<Model>,
    /// Lent to the engine: the KV heads that this process owns.
    pool: Arc<PagePool>,
    /// All KV heads, to compute with, where this process owns only some.
    whole: Option<Arc<PagePool>>,
    /// Those it owns.
    heads: Range<usize>,
    engine: Engine,
    kv: GroupId,
    /// Whether each layer is sent as soon as it is known.
    by_layer: bool,
}

/// A prompt whose room is open.
#[derive(Debug)]
pub struct Outgoing {
    lent: Lent<KVSender>,
    /// What it is computed in, if not in the pages lent.
    whole: Option<Sequence>,
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
    /// Registers a pool with the engine to be built. If that is one of several tensor parallel ranks, the pool
    /// has the KV heads of its part: [`Config::kv_heads_of`](crate::model::Config::kv_heads_of). Each rank
    /// computes everything, for simplicity, and owns and sends its heads.
    ///
    /// # Errors
    /// The engine cannot be built or cannot use the pool.
    pub fn start(builder: EngineBuilder, model: Arc<Model>, pool: Arc<PagePool>) -> Result<Self> {
        let engine = builder.build()?;
        let (rank, sizes) = (engine.place().rank, engine.place().sizes);
        let config = model.config();
        let heads = config.kv_heads_of(usize::try_from(rank.tp)?, usize::try_from(sizes.tp)?);
        let (first, count) = (u32::try_from(heads.start)?, u32::try_from(heads.len())?);
        let span = HeadSpan { first, count, total: u32::try_from(config.kv_heads)? };
        let kv = memory::register(&engine, &pool, span)?;
        let Geometry { page_tokens, pages, .. } = *pool.geometry();
        let whole = || PagePool::new(config.geometry(page_tokens, pages), 0);
        let whole = if heads.len() == config.kv_heads { None } else { Some(whole()?) };
        Ok(Self { model, pool, whole, heads, engine, kv, by_layer: false })
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
        let whole = self.whole.as_ref().map(|pool| pool.allocate(prompt.len())).transpose()?;
        let sender = self.engine.sender(room, RoomOptions::default())?;
        Ok(Outgoing { lent: Lent::new(sequence, sender)?, whole, prompt, opened: now(), last: None })
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
        let Outgoing { lent, whole, prompt, opened, last } = room;
        let (sequence, sender) = lent.parts();
        let pages = sequence.pages().to_vec();
        let (sequence, mut own) = match whole {
            None => (sequence, None),
            Some(whole) => (whole, Some(sequence)),
        };
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
                Progress::Layer { tokens, layer, sequence } => {
                    if let Some(own) = &mut own {
                        own.copy_heads(sequence, layer, &tokens, &self.heads)?;
                    }
                    if self.by_layer { send(tokens, Some(layer)) } else { Ok(()) }
                }
                Progress::Chunk(generate::Chunk { tokens, .. }) => {
                    chunks += 1;
                    if let Some(own) = &mut own {
                        own.advance(tokens.len())?;
                    }
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
