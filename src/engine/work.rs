//! What callers give: chunks, the end of a prompt, offers, grants.

use super::layouts::GroupPages;
use crate::ids::GroupId;
use crate::layout::Pages;
use crate::memory::Mark;
use std::ops::Range;

/// KV of some tokens, computed or about to be, in pages of the caller's pool.
///
/// `pages[i]` holds the tokens of page `tokens.start / page_tokens + i`; a page that two chunks share
/// is named in both. Page numbers are copied in the call; the pages themselves are read later, and
/// stay lent until [`KVSender::release`](super::KVSender::release) is `Safe`.
#[derive(Clone, Debug)]
pub struct Chunk<'a> {
    pub(super) tokens: Range<u32>,
    pub(super) layers: Option<Range<u32>>,
    pub(super) pages: Vec<GroupPages<'a>>,
    pub(super) ready: Vec<Mark>,
}

/// The end of a prompt.
#[derive(Clone, Debug)]
pub struct Finish<'a> {
    pub(super) tokens: u32,
    pub(super) rows: Vec<(GroupId, Pages<'a>)>,
    pub(super) payload: &'a [u8],
    pub(super) ready: Vec<Mark>,
}

/// What a request will be, told before pages are lent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer<'a> {
    pub(super) tokens: Option<u32>,
    pub(super) complete: bool,
    pub(super) payload: &'a [u8],
}

/// Pages lent to the prefill side.
#[derive(Clone, Debug)]
pub struct Grant<'a> {
    pub(super) tokens: Range<u32>,
    pub(super) pages: Vec<GroupPages<'a>>,
    pub(super) rows: Vec<(GroupId, Pages<'a>)>,
}

impl<'a> Chunk<'a> {
    /// These tokens, of all layers. Each layer's chunks continue where its last one ended; the first
    /// may start anywhere up to the tokens that the decode side holds already.
    pub fn new(tokens: Range<u32>) -> Self {
        Self { tokens, layers: None, pages: Vec::new(), ready: Vec::new() }
    }

    /// Only these global layers.
    #[must_use]
    pub fn layers(mut self, layers: Range<u32>) -> Self {
        self.layers = Some(layers);
        self
    }

    /// The pages of a group, from the one that holds the chunk's first token on.
    #[must_use]
    pub fn pages(mut self, group: GroupId, pages: impl Into<Pages<'a>>) -> Self {
        self.pages.push(GroupPages { group, first: None, pages: pages.into() });
        self
    }

    /// The pages of a group whose tokens start late (a window), from the page that starts at `first`.
    #[must_use]
    pub fn pages_from(mut self, group: GroupId, first: u32, pages: impl Into<Pages<'a>>) -> Self {
        self.pages.push(GroupPages { group, first: Some(first), pages: pages.into() });
        self
    }

    /// No byte is read before this mark is ready. May be called several times: all are waited for.
    #[must_use]
    pub fn ready(mut self, mark: &Mark) -> Self {
        self.ready.push(mark.clone());
        self
    }
}

impl<'a> Finish<'a> {
    /// The prompt has this many tokens.
    pub fn new(tokens: u32) -> Self {
        Self { tokens, rows: Vec::new(), payload: &[], ready: Vec::new() }
    }

    /// The rows of a row group that go with the request; as many as the decode side lends.
    #[must_use]
    pub fn rows(mut self, group: GroupId, rows: impl Into<Pages<'a>>) -> Self {
        self.rows.push((group, rows.into()));
        self
    }

    /// The caller's own bytes, for instance the first token. Delivered with success.
    #[must_use]
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// No row is read before this mark is ready.
    #[must_use]
    pub fn ready(mut self, mark: &Mark) -> Self {
        self.ready.push(mark.clone());
        self
    }
}

impl<'a> Offer<'a> {
    /// A prompt of this many tokens.
    pub fn tokens(tokens: u32) -> Self {
        Self { tokens: Some(tokens), ..Self::default() }
    }

    /// All tokens are computed already.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }

    /// The caller's own bytes.
    #[must_use]
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }
}

impl<'a> Grant<'a> {
    /// Lends pages for these tokens of a prompt; those before are held already, and the end is the
    /// prompt's length.
    pub fn new(tokens: Range<u32>) -> Self {
        Self { tokens, pages: Vec::new(), rows: Vec::new() }
    }

    /// The pages of a group, from the one that holds the first token wanted on.
    #[must_use]
    pub fn pages(mut self, group: GroupId, pages: impl Into<Pages<'a>>) -> Self {
        self.pages.push(GroupPages { group, first: None, pages: pages.into() });
        self
    }

    /// The pages of a group whose tokens start late (a window), from the page that starts at `first`.
    #[must_use]
    pub fn pages_from(mut self, group: GroupId, first: u32, pages: impl Into<Pages<'a>>) -> Self {
        self.pages.push(GroupPages { group, first: Some(first), pages: pages.into() });
        self
    }

    /// Rows of a row group.
    #[must_use]
    pub fn rows(mut self, group: GroupId, rows: impl Into<Pages<'a>>) -> Self {
        self.rows.push((group, rows.into()));
        self
    }
}
