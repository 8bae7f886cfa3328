//! The forward pass of a Llama model over a paged KV cache.
//!
//! Rotary embedding (adjacent pairs, as GGUF files of Llama models store them), RMS norm, grouped-query
//! attention, SwiGLU, output weights tied to the embedding. All weights are f32.

use std::ops::Range;

use anyhow::{Result, ensure};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::rope_i;

use crate::pool::{Geometry, Kind, Sequence};

/// Hyper-parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "whoever describes a model states every field")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Width inside the feed-forward part.
    pub feed_forward: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values in a head; even.
    pub head_dim: usize,
    /// Most tokens the model was trained for.
    pub context: usize,
    /// Base of the rotary embedding's frequencies.
    pub rope_base: f32,
    /// Added to the mean square in RMS norm.
    pub norm_epsilon: f32,
}

impl Config {
    /// Returns the shape of a pool for this model.
    pub fn geometry(&self, page_tokens: usize, pages: u32) -> Geometry {
        let Self { layers, kv_heads, head_dim, .. } = *self;
        Geometry { layers, kv_heads, head_dim, page_tokens, pages }
    }

    /// Returns the KV heads of part `part` of so many even parts.
    pub const fn kv_heads_of(&self, part: usize, parts: usize) -> Range<usize> {
        self.kv_heads * part / parts..self.kv_heads * (part + 1) / parts
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "{} heads are not a multiple of {} KV heads",
            self.heads,
            self.kv_heads
        );
        ensure!(self.head_dim.is_multiple_of(2), "head size {} is odd", self.head_dim);
        Ok(())
    }
}

/// A model in memory.
#[derive(Debug)]
pub struct Model {
    config: Config,
    embedding: Tensor,
    blocks: Vec<Block>,
    output_norm: Tensor,
    rope_frequencies: Vec<f32>,
}

impl Model {
    /// Builds a model from tensors that `fetch` gives by their name in the GGUF file and their shape.
    ///
    /// # Errors
    /// An error of `fetch`, a tensor of another shape, or a config that contradicts itself.
    pub fn new(config: Config, mut fetch: impl FnMut(&str, &[usize]) -> Result<Tensor>) -> Result<Self> {
        config.check()?;
        let mut tensor = |name: &str, shape: &[usize]| {
            let tensor = fetch(name, shape)?;
            ensure!(tensor.dims() == shape, "{name} has shape {:?}, not {shape:?}", tensor.dims());
            Ok(tensor)
        };
        let Config { hidden, head_dim, .. } = config;
        let blocks =
            (0..config.layers).map(|layer| Block::new(&config, layer, &mut tensor)).collect::<Result<_>>()?;
        let embedding = tensor("token_embd.weight", &[config.vocabulary, hidden])?;
        let output_norm = tensor("output_norm.weight", &[hidden])?;
        let rope_frequencies =
            (0..head_dim / 2).map(|i| config.rope_base.powf(-2.0 * i as f32 / head_dim as f32)).collect();
        Ok(Self { config, embedding, blocks, output_norm, rope_frequencies })
    }

    /// Returns the hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Appends `tokens` to the sequence: writes their keys and values to its pages. Returns the final hidden
    /// state of the last one, for [`Model::logits`].
    ///
    /// # Errors
    /// No tokens, more than the context or the pages have room for, pages lent to a writer, a token outside
    /// the vocabulary, or a sequence of another model's pool.
    pub fn forward(&self, tokens: &[u32], sequence: &mut Sequence) -> Result<Tensor> {
        self.forward_by_layer(tokens, sequence, |_, _| Ok(()))
    }

    /// As [`Model::forward`], and calls `on_layer` with each layer whose keys and values of these tokens are
    /// in their pages, and with the sequence.
    ///
    /// # Errors
    /// As [`Model::forward`], and an error of `on_layer`.
    pub fn forward_by_layer(
        &self,
        tokens: &[u32],
        sequence: &mut Sequence,
        mut on_layer: impl FnMut(usize, &Sequence) -> Result<()>,
    ) -> Result<Tensor> {
        let start = sequence.tokens();
        let geometry = sequence.pool().geometry();
        ensure!(!tokens.is_empty(), "no tokens to run the model on");
        ensure!(
            start + tokens.len() <= self.config.context,
            "{} tokens pass the model's context of {}",
            start + tokens.len(),
            self.config.context
        );
        ensure!(
            *geometry == self.config.geometry(geometry.page_tokens, geometry.pages),
            "pool {geometry:?} is not of this model"
        );
        let place = Place {
            config: &self.config,
            rope: self.rope(start, tokens.len())?,
            mask: causal_mask(start, tokens.len())?,
        };
        let mut state = self.embedding.index_select(&Tensor::new(tokens, &Device::Cpu)?, 0)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            state = block.forward(&state, layer, &place, sequence)?;
            on_layer(layer, sequence)?;
        }
        sequence.advance(tokens.len())?;
        let last = state.narrow(0, tokens.len() - 1, 1)?.contiguous()?;
        Ok(rms_norm(&last, &self.output_norm, self.config.norm_epsilon)?)
    }

    /// Returns a score for each token of the vocabulary to be the next one.
    ///
    /// # Errors
    /// A `state` that [`Model::forward`] did not return.
    pub fn logits(&self, state: &Tensor) -> Result<Vec<f32>> {
        Ok(linear(state, &self.embedding)?.flatten_all()?.to_vec1()?)
    }

    /// Returns cosines and sines for `count` positions from `start`.
    fn rope(&self, start: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let angles: Vec<f32> = (start..start + count)
            .flat_map(|position| self.rope_frequencies.iter().map(move |f| position as f32 * f))
            .collect();
        let angles = Tensor::from_vec(angles, (count, self.rope_frequencies.len()), &Device::Cpu)?;
        Ok((angles.cos()?, angles.sin()?))
    }
}

/// What all layers share about the tokens being computed.
struct Place<'a> {
    config: &'a Config,
    rope: (Tensor, Tensor),
    /// Absent for a single token, which sees all before it.
    mask: Option<Tensor>,
}

/// One layer.
#[derive(Debug)]
struct Block {
    attention_norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Block {
    fn new(
        config: &Config,
        layer: usize,
        tensor: &mut impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<Self> {
        let Config { hidden, feed_forward, .. } = *config;
        let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let mut tensor = |name: &str, shape: &[usize]| tensor(&format!("blk.{layer}.{name}.weight"), shape);
        Ok(Self {
            attention_norm: tensor("attn_norm", &[hidden])?,
            query: tensor("attn_q", &[query, hidden])?,
            key: tensor("attn_k", &[kv, hidden])?,
            value: tensor("attn_v", &[kv, hidden])?,
            output: tensor("attn_output", &[hidden, query])?,
            feed_forward_norm: tensor("ffn_norm", &[hidden])?,
            gate: tensor("ffn_gate", &[feed_forward, hidden])?,
            up: tensor("ffn_up", &[feed_forward, hidden])?,
            down: tensor("ffn_down", &[hidden, feed_forward])?,
        })
    }

    fn forward(
        &self,
        state: &Tensor,
        layer: usize,
        place: &Place<'_>,
        sequence: &mut Sequence,
    ) -> Result<Tensor> {
        let epsilon = place.config.norm_epsilon;
        let normed = rms_norm(state, &self.attention_norm, epsilon)?;
        let state = (state + self.attention(&normed, layer, place, sequence)?)?;
        let normed = rms_norm(&state, &self.feed_forward_norm, epsilon)?;
        let inner = (silu(&linear(&normed, &self.gate)?)? * linear(&normed, &self.up)?)?;
        Ok((&state + linear(&inner, &self.down)?)?)
    }

    fn attention(
        &self,
        state: &Tensor,
        layer: usize,
        place: &Place<'_>,
        sequence: &mut Sequence,
    ) -> Result<Tensor> {
        let Config { heads, kv_heads, head_dim, .. } = *place.config;
        let new = state.dim(0)?;
        let query = rotated(&linear(state, &self.query)?, heads, place)?;
        let key = rotated(&linear(state, &self.key)?, kv_heads, place)?.transpose(0, 1)?;
        let value = linear(state, &self.value)?;
        sequence.write(layer, Kind::Key, &key.flatten_all()?.to_vec1::<f32>()?)?;
        sequence.write(layer, Kind::Value, &value.flatten_all()?.to_vec1::<f32>()?)?;

        let total = sequence.tokens() + new;
        let gather = |kind| -> Result<Tensor> {
            let values = sequence.read(layer, kind, total)?;
            Ok(Tensor::from_vec(values, (total, kv_heads, head_dim), &Device::Cpu)?.transpose(0, 1)?)
        };
        let (keys, values) = (gather(Kind::Key)?, gather(Kind::Value)?);
        // Query heads that share a KV head are neighbours, so they stack up as more rows of one product.
        let rows = heads / kv_heads * new;
        let scores = query.reshape((kv_heads, rows, head_dim))?.matmul(&keys.t()?)?;
        let scores = (scores * (1.0 / (head_dim as f64).sqrt()))?;
        let scores = match &place.mask {
            Some(mask) => scores.reshape((heads, new, total))?.broadcast_add(mask)?,
            None => scores,
        };
        let shares = softmax_last_dim(&scores)?.reshape((kv_heads, rows, total))?;
        let mixed = shares.matmul(&values)?.reshape((heads, new, head_dim))?;
        linear(&mixed.transpose(0, 1)?.reshape((new, heads * head_dim))?, &self.output)
    }
}

/// Splits `[token, head * dim]` into heads and turns each by its position: `[head, token, dim]`.
fn rotated(values: &Tensor, heads: usize, place: &Place<'_>) -> Result<Tensor> {
    let (tokens, width) = values.dims2()?;
    let values = values.reshape((1, tokens, heads, width / heads))?.transpose(1, 2)?.contiguous()?;
    Ok(rope_i(&values, &place.rope.0, &place.rope.1)?.squeeze(0)?)
}

/// Multiplies rows by a weight stored as `[out, in]`.
fn linear(rows: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(rows.matmul(&weight.transpose(D::Minus2, D::Minus1)?)?)
}

/// Returns minus infinity where a new token (row) would see one after it (column), else zero.
fn causal_mask(start: usize, new: usize) -> Result<Option<Tensor>> {
    if new == 1 {
        return Ok(None);
    }
    let total = start + new;
    let seen = |row: usize, column: usize| if column <= start + row { 0.0 } else { f32::NEG_INFINITY };
    let mask = (0..new).flat_map(|row| (0..total).map(move |column| seen(row, column))).collect();
    Ok(Some(Tensor::from_vec(mask, (new, total), &Device::Cpu)?))
}
