//! Prefill in chunks and greedy decode.

use std::num::NonZeroUsize;
use std::ops::Range;

use anyhow::{Context as _, Result, ensure};

use crate::model::Model;
use crate::pool::Sequence;

/// A part of the prompt whose keys and values are in their pages, in all layers.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Chunk<'a> {
    /// Positions of its tokens in the sequence.
    pub tokens: Range<usize>,
    /// Positions of the pages that this chunk finished: filled, or the prompt ends in them.
    pub finished: Range<usize>,
    /// Numbers in the pool of the pages that this chunk finished.
    pub pages: &'a [u32],
    /// Whether the prompt ends here.
    pub last: bool,
}

/// What prefill has got done.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is no third thing to wait for")]
pub enum Progress<'a> {
    /// The keys and values of one layer are in their pages.
    Layer {
        /// Positions of the tokens.
        tokens: Range<usize>,
        /// The layer.
        layer: usize,
        /// What holds them; these tokens do not count in it yet.
        sequence: &'a Sequence,
    },
    /// Those of all layers are.
    Chunk(Chunk<'a>),
}

/// Runs the model on the prompt, `chunk_tokens` at a time, and calls `on_progress` after each layer and after
/// each chunk. Returns the first generated token; it is not in the pages yet.
///
/// Chunks need not end at a page border. The result depends on the tokens and the chunk size alone.
///
/// # Errors
/// An empty prompt, an error of [`Model::forward`] or of `on_progress`.
pub fn prefill(
    model: &Model,
    sequence: &mut Sequence,
    prompt: &[u32],
    chunk_tokens: NonZeroUsize,
    mut on_progress: impl FnMut(Progress<'_>) -> Result<()>,
) -> Result<u32> {
    let mut state = None;
    let mut finished = sequence.tokens() / sequence.pool().geometry().page_tokens;
    let mut rest = prompt;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(chunk_tokens.get().min(rest.len()));
        rest = after;
        let start = sequence.tokens();
        let tokens = start..start + chunk.len();
        state = Some(model.forward_by_layer(chunk, sequence, |layer, sequence| {
            on_progress(Progress::Layer { tokens: tokens.clone(), layer, sequence })
        })?);
        let last = rest.is_empty();
        let geometry = sequence.pool().geometry();
        let end = sequence.tokens();
        let until = if last { geometry.pages_for(end) } else { end / geometry.page_tokens };
        on_progress(Progress::Chunk(Chunk {
            tokens,
            finished: finished..until,
            pages: &sequence.pages()[finished..until],
            last,
        }))?;
        finished = until;
    }
    greedy(&model.logits(&state.context("empty prompt")?)?)
}

/// Continues a sequence whose prompt is in its pages: `first` is the token that prefill returned.
///
/// Gives at most `limit` tokens, `first` among them, and calls `on_token` with each as soon as it is known.
/// Ends early after the token `end`, if one is given.
///
/// # Errors
/// An error of [`Model::forward`] or of `on_token`.
pub fn decode(
    model: &Model,
    sequence: &mut Sequence,
    first: u32,
    limit: usize,
    end: Option<u32>,
    mut on_token: impl FnMut(u32) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(limit);
    let mut next = first;
    while tokens.len() < limit {
        tokens.push(next);
        on_token(next)?;
        if end == Some(next) || tokens.len() == limit {
            break;
        }
        next = greedy(&model.logits(&model.forward(&[next], sequence)?)?)?;
    }
    Ok(tokens)
}

/// Returns the token with the highest score; of equal ones the first.
fn greedy(logits: &[f32]) -> Result<u32> {
    let mut best = 0;
    for (token, score) in logits.iter().enumerate() {
        ensure!(!score.is_nan(), "score of token {token} is not a number");
        if *score > logits[best] {
            best = token;
        }
    }
    u32::try_from(best).context("vocabulary of more than 32 bits")
}
