//! What a sender was given to send, and the rules of giving it.

use super::progress::{Progress, ProgressError};
use crate::ids::GroupId;
use crate::layout::PageList;
use bytes::Bytes;
use std::ops::Range;

/// KV of some tokens and layers, ready to be sent or soon to be.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Chunk {
    /// Its tokens.
    pub tokens: Range<u32>,
    /// Its global layers; all if none are named.
    pub layers: Option<Range<u32>>,
    /// Source pages by group of the sender's layout.
    pub pages: Vec<(GroupId, PageList)>,
    /// Whether the bytes may be read already.
    pub ready: bool,
}

/// The end of a sender's work.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Finish {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Source rows by group of the sender's layout.
    pub rows: Vec<(GroupId, PageList)>,
    /// The engine's own bytes.
    pub payload: Bytes,
    /// Whether the rows may be read already.
    pub ready: bool,
}

/// Work that cannot follow what was given before.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// `finish` was given already.
    #[error("given after finish")]
    AfterFinish,
    /// A layer has not come to the total.
    #[error("layer {layer} has come to token {done} of {total}")]
    Incomplete {
        /// The layer.
        layer: u32,
        /// Tokens it has.
        done: u32,
        /// The total named by `finish`.
        total: u32,
    },
    /// The chunk does not continue where its layers ended.
    #[error(transparent)]
    Progress(#[from] ProgressError),
    /// More chunks than the limit.
    #[error("more than {0} chunks")]
    TooManyChunks(usize),
}

/// Checks work as it is given; kept by whoever takes it from the user.
#[derive(Clone, Debug)]
pub struct Intake {
    progress: Progress,
    chunks_left: usize,
    limit: usize,
    finished: bool,
}

impl Intake {
    /// For a pool with these global layers.
    pub fn new(layers: Vec<u32>, max_chunks: usize) -> Self {
        Self { progress: Progress::new(layers), chunks_left: max_chunks, limit: max_chunks, finished: false }
    }

    /// Checks the next chunk.
    ///
    /// # Errors
    /// It cannot follow what was given; nothing is counted.
    pub fn chunk(&mut self, tokens: &Range<u32>, layers: Option<&Range<u32>>) -> Result<(), WorkError> {
        if self.finished {
            return Err(WorkError::AfterFinish);
        }
        let left = self.chunks_left.checked_sub(1).ok_or(WorkError::TooManyChunks(self.limit))?;
        self.progress.advance(tokens, layers)?;
        self.chunks_left = left;
        Ok(())
    }

    /// Checks the end.
    ///
    /// # Errors
    /// It was given already, or a layer is behind `total`.
    pub fn finish(&mut self, total: u32) -> Result<(), WorkError> {
        if self.finished {
            return Err(WorkError::AfterFinish);
        }
        if let Some((layer, done)) = self.progress.behind(total) {
            return Err(WorkError::Incomplete { layer, done, total });
        }
        self.finished = true;
        Ok(())
    }
}

/// All a sender was given.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    pub(super) chunks: Vec<Chunk>,
    pub(super) finish: Option<Finish>,
    /// Last token of any chunk.
    end: u32,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.finish.is_none()
    }

    /// First token given, once anything says it.
    pub(super) fn start(&self) -> Option<u32> {
        match (self.chunks.first(), &self.finish) {
            (Some(chunk), _) => Some(chunk.tokens.start),
            (None, Some(finish)) => Some(finish.tokens),
            (None, None) => None,
        }
    }

    pub(super) fn add(&mut self, chunk: Chunk) {
        self.end = self.end.max(chunk.tokens.end);
        self.chunks.push(chunk);
    }

    /// Last token given so far.
    pub(super) fn end(&self) -> u32 {
        self.finish.as_ref().map_or(self.end, |finish| finish.tokens.max(self.end))
    }
}

impl Chunk {
    /// A chunk of all layers whose bytes may be read.
    pub fn new(tokens: Range<u32>, pages: Vec<(GroupId, PageList)>) -> Self {
        Self { tokens, layers: None, pages, ready: true }
    }
}

impl Finish {
    /// The end of a prompt of this many tokens, without rows.
    pub fn new(tokens: u32) -> Self {
        Self { tokens, ready: true, ..Self::default() }
    }
}
