//! A paged KV cache whose bytes other threads may read and write.
//!
//! Each layer has one buffer of keys and one of values: f32, token-major, `[page, token, head, dim]`, one
//! plain host allocation at an address that never changes while the pool lives. Sequences own pages at
//! scattered places.
//!
//! The law of these bytes:
//! - The pool owns them and frees them when the last [`Arc`] of it is dropped. Whoever was told their
//!   address (see [`PagePool::buffers`]) must keep such an `Arc` until it has forgotten the address.
//! - A page belongs to at most one [`Sequence`]; only that sequence reads or writes it, through this module.
//! - Tokens are appended, never rewritten: the bytes of a token that counts in [`Sequence::tokens`] do not
//!   change while the sequence lives.
//! - While a sequence is lent [`Lending::Outgoing`], others may read the tokens it holds. While it is lent
//!   [`Lending::Incoming`], others may write all its pages, and this module does not touch them.
//! - Lent pages go back to the pool only after [`Sequence::take_back`]; a sequence dropped before that
//!   leaves its pages unused for ever rather than to a new owner.
//!
//! No `&[f32]` or `&mut [f32]` of these bytes is ever made: they are copied out and in.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};

/// Shape of a pool: equal for all layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "callers state every dimension")]
pub struct Geometry {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Values a head holds for one token.
    pub head_dim: usize,
    /// Tokens in one page.
    pub page_tokens: usize,
    /// Pages in each buffer.
    pub pages: u32,
}

impl Geometry {
    /// f32 values that one token takes in one buffer.
    pub const fn token_values(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one page in one buffer.
    pub const fn page_bytes(&self) -> usize {
        self.page_tokens * self.token_values() * size_of::<f32>()
    }

    /// Pages that `tokens` tokens occupy.
    pub const fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Bytes of KV that `tokens` tokens hold over all layers, keys and values.
    pub const fn kv_bytes(&self, tokens: usize) -> usize {
        2 * self.layers * tokens * self.token_values() * size_of::<f32>()
    }
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "attention has these two")]
pub enum Kind {
    /// Keys, after the rotary embedding.
    Key,
    /// Values.
    Value,
}

/// Where the bytes of one layer's keys or values lie.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BufferInfo {
    /// Layer of the model, from 0.
    pub layer: usize,
    /// Keys or values.
    pub kind: Kind,
    /// First byte; page `p` starts at `base + p * page_bytes`.
    pub base: NonNull<u8>,
    /// Bytes in the whole buffer.
    pub len: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
    /// Pages in the buffer.
    pub pages: u32,
}

/// Who else may touch the pages of a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "every combination the module's law allows")]
pub enum Lending {
    /// Others write into the pages; the owner neither reads nor appends.
    Incoming,
    /// Only the owner touches the pages.
    None,
    /// Others read the tokens held so far; the owner reads and appends.
    Outgoing,
}

/// The buffers of all layers and the list of unused pages.
#[derive(Debug)]
pub struct PagePool {
    geometry: Geometry,
    buffers: Vec<Buffer>,
    unused: Mutex<UnusedPages>,
}

impl PagePool {
    /// Allocates zeroed buffers. Pages are later handed out in an order that depends only on `seed` and the
    /// calls made.
    ///
    /// # Errors
    /// A geometry with a zero dimension, one too large for the address space, or no memory.
    pub fn new(geometry: Geometry, seed: u64) -> Result<Arc<Self>> {
        let Geometry { layers, kv_heads, head_dim, page_tokens, pages } = geometry;
        ensure!(
            layers > 0 && kv_heads > 0 && head_dim > 0 && page_tokens > 0 && pages > 0,
            "pool geometry has a zero dimension: {geometry:?}"
        );
        let values = kv_heads
            .checked_mul(head_dim)
            .and_then(|token| token.checked_mul(page_tokens))
            .and_then(|page| page.checked_mul(usize::try_from(pages).ok()?))
            .with_context(|| format!("pool geometry is too large: {geometry:?}"))?;
        let buffers = (0..2 * layers).map(|_| Buffer::new(values)).collect::<Result<_>>()?;
        let unused = Mutex::new(UnusedPages { pages: (0..pages).collect(), random: SplitMix(seed) });
        Ok(Arc::new(Self { geometry, buffers, unused }))
    }

    /// Takes the pages for a sequence of at most `tokens` tokens, at random places.
    ///
    /// # Errors
    /// Not enough unused pages; none is taken then.
    pub fn allocate(self: &Arc<Self>, tokens: usize) -> Result<Sequence> {
        let wanted = self.geometry.pages_for(tokens);
        let pages = self.with_unused(|unused| {
            ensure!(
                wanted <= unused.pages.len(),
                "{tokens} tokens need {wanted} pages, {} are unused",
                unused.pages.len()
            );
            Ok((0..wanted).map(|_| unused.take()).collect())
        })?;
        Ok(Sequence { pool: Arc::clone(self), pages, tokens: 0, lending: Lending::None })
    }

    /// Returns the shape of the pool.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns how many pages belong to no sequence.
    pub fn unused_pages(&self) -> usize {
        self.with_unused(|unused| unused.pages.len())
    }

    /// Says where each buffer lies: layer by layer, keys before values.
    ///
    /// Reading or writing through these addresses is bound by the law of this module.
    pub fn buffers(&self) -> impl Iterator<Item = BufferInfo> + '_ {
        self.buffers.iter().enumerate().map(|(index, buffer)| BufferInfo {
            layer: index / 2,
            kind: if index % 2 == 0 { Kind::Key } else { Kind::Value },
            base: buffer.base.cast(),
            len: buffer.layout.size(),
            page_bytes: self.geometry.page_bytes(),
            pages: self.geometry.pages,
        })
    }

    fn buffer(&self, layer: usize, kind: Kind) -> &Buffer {
        &self.buffers[2 * layer + usize::from(kind == Kind::Value)]
    }

    fn with_unused<T>(&self, act: impl FnOnce(&mut UnusedPages) -> T) -> T {
        // The list is consistent between any two statements, so a panic elsewhere does not spoil it.
        act(&mut self.unused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The tokens of one request and the pages that hold them.
#[derive(Debug)]
pub struct Sequence {
    pool: Arc<PagePool>,
    pages: Vec<u32>,
    tokens: usize,
    lending: Lending,
}

impl Sequence {
    /// Notes that others may touch the pages from now on, as `lending` says.
    ///
    /// # Errors
    /// The pages are lent already.
    pub fn lend(&mut self, lending: Lending) -> Result<()> {
        ensure!(self.lending == Lending::None, "pages are lent already: {:?}", self.lending);
        self.lending = lending;
        Ok(())
    }

    /// Ends the lending; the sequence holds `tokens` tokens now.
    ///
    /// # Errors
    /// More tokens than the pages hold, or fewer than the sequence held before; the pages stay lent.
    ///
    /// # Safety
    /// Nobody else touches the pages any more: the transfer library has said that they may be reused.
    pub unsafe fn take_back(&mut self, tokens: usize) -> Result<()> {
        ensure!(
            (self.tokens..=self.capacity()).contains(&tokens),
            "{tokens} tokens taken back, held {} with room for {}",
            self.tokens,
            self.capacity()
        );
        self.tokens = tokens;
        self.lending = Lending::None;
        Ok(())
    }

    /// Copies keys or values of new tokens, `[token, head, dim]`, to `layer`, behind the tokens held. They
    /// count once [`Sequence::advance`] is called, after all layers are written.
    ///
    /// # Errors
    /// The pages are lent as [`Lending::Incoming`], or have no room for the tokens.
    ///
    /// # Panics
    /// If the pool has no such layer or `values` is not a whole number of tokens.
    pub fn write(&mut self, layer: usize, kind: Kind, values: &[f32]) -> Result<()> {
        let token_values = self.pool.geometry.token_values();
        assert!(values.len().is_multiple_of(token_values), "{} values of whole tokens", values.len());
        let range = self.tokens..self.tokens + values.len() / token_values;
        self.check(&range)?;
        let buffer = self.pool.buffer(layer, kind);
        let mut rest = values;
        for run in self.runs(range) {
            let (source, after) = rest.split_at(run.tokens * token_values);
            let destination = buffer.place(&self.pool.geometry, &run);
            // SAFETY: `place` checked that the run lies in the buffer. This sequence alone owns its pages,
            // `&mut self` excludes its own readers, the pages are not lent as incoming, and outgoing readers
            // stay below `self.tokens`, where these tokens begin.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), destination.as_ptr(), source.len()) };
            rest = after;
        }
        Ok(())
    }

    /// Copies some heads of these tokens, the next here, from a sequence that holds all heads to this one, which
    /// holds only those.
    ///
    /// # Errors
    /// As for [`Sequence::write`] and [`Sequence::read`].
    ///
    /// # Panics
    /// If there are no such heads or layer.
    pub fn copy_heads(
        &mut self,
        from: &Self,
        layer: usize,
        tokens: &Range<usize>,
        heads: &Range<usize>,
    ) -> Result<()> {
        ensure!(tokens.start == self.tokens, "token {} is not the next", tokens.start);
        let Geometry { head_dim, .. } = self.pool.geometry;
        let token_values = from.pool.geometry.token_values();
        for kind in [Kind::Key, Kind::Value] {
            let all = from.read(layer, kind, tokens.end)?;
            let new = all.chunks_exact(token_values).skip(tokens.start);
            let own: Vec<f32> =
                new.flat_map(|token| &token[heads.start * head_dim..heads.end * head_dim]).copied().collect();
            self.write(layer, kind, &own)?;
        }
        Ok(())
    }

    /// Counts `tokens` more tokens as held: all layers have been written for them.
    ///
    /// # Errors
    /// As for [`Sequence::write`].
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        self.check(&(self.tokens..self.tokens + tokens))?;
        self.tokens += tokens;
        Ok(())
    }

    /// Copies out keys or values of `layer` for the tokens `0..tokens`, `[token, head, dim]`. These may
    /// include tokens written but not counted yet.
    ///
    /// # Errors
    /// As for [`Sequence::write`].
    ///
    /// # Panics
    /// If the pool has no such layer.
    pub fn read(&self, layer: usize, kind: Kind, tokens: usize) -> Result<Vec<f32>> {
        self.check(&(0..tokens))?;
        let token_values = self.pool.geometry.token_values();
        let buffer = self.pool.buffer(layer, kind);
        let mut values = vec![0.0; tokens * token_values];
        let mut rest = values.as_mut_slice();
        for run in self.runs(0..tokens) {
            let (destination, after) = rest.split_at_mut(run.tokens * token_values);
            let source = buffer.place(&self.pool.geometry, &run);
            // SAFETY: `place` checked that the run lies in the buffer, whose bytes are initialised. This
            // sequence alone owns its pages, `&self` excludes its own writers, and they are not lent as
            // incoming, so nobody writes them now.
            unsafe {
                ptr::copy_nonoverlapping(source.as_ptr(), destination.as_mut_ptr(), destination.len());
            };
            rest = after;
        }
        Ok(values)
    }

    /// Returns the pool that holds the pages.
    pub fn pool(&self) -> &Arc<PagePool> {
        &self.pool
    }

    /// Returns the page numbers: the `i`-th holds the tokens from `i * page_tokens`.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Returns how many tokens are held in all layers.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns how many tokens the pages have room for.
    pub fn capacity(&self) -> usize {
        self.pages.len() * self.pool.geometry.page_tokens
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        ensure!(self.lending != Lending::Incoming, "pages are lent to a writer");
        ensure!(
            range.end <= self.capacity(),
            "tokens up to {} in pages with room for {}",
            range.end,
            self.capacity()
        );
        Ok(())
    }

    /// Splits a range of tokens at page borders.
    fn runs(&self, range: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let page_tokens = self.pool.geometry.page_tokens;
        let mut position = range.start;
        std::iter::from_fn(move || {
            let first = position % page_tokens;
            let tokens = (page_tokens - first).min(range.end - position);
            let run = (tokens > 0).then(|| Run { page: self.pages[position / page_tokens], first, tokens });
            position += tokens;
            run
        })
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if self.lending == Lending::None {
            self.pool.with_unused(|unused| unused.pages.append(&mut self.pages));
        }
    }
}

/// Tokens that lie side by side in one page.
struct Run {
    page: u32,
    first: usize,
    tokens: usize,
}

/// One allocation of f32, freed with the pool.
#[derive(Debug)]
struct Buffer {
    base: NonNull<f32>,
    layout: Layout,
}

// SAFETY: an address and a length; the bytes are reached only as the law of this module allows, which
// does not depend on the thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; no method of a shared buffer touches the bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(values: usize) -> Result<Self> {
        let bytes = values.checked_mul(size_of::<f32>()).context("buffer of more than all memory")?;
        let layout = Layout::from_size_align(bytes, ALIGN).context("buffer of more than all memory")?;
        ensure!(bytes > 0, "empty buffer");
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).with_context(|| format!("no memory for a buffer of {bytes} bytes"))?;
        Ok(Self { base: base.cast(), layout })
    }

    /// Returns where a run begins; all of it lies inside the buffer.
    fn place(&self, geometry: &Geometry, run: &Run) -> NonNull<f32> {
        assert!(
            run.page < geometry.pages && run.first + run.tokens <= geometry.page_tokens,
            "run inside its page and the page inside the pool"
        );
        let page = usize::try_from(run.page).expect("a page number below the count that was allocated");
        let offset = (page * geometry.page_tokens + run.first) * geometry.token_values();
        // SAFETY: the buffer has `pages * page_tokens * token_values` values, and the run ends inside them
        // by the assertion.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once; by the law of the module nobody uses
        // the address after the pool is gone.
        unsafe { dealloc(self.base.as_ptr().cast(), self.layout) };
    }
}

#[derive(Debug)]
struct UnusedPages {
    pages: Vec<u32>,
    random: SplitMix,
}

impl UnusedPages {
    /// Takes a random page; there is one.
    fn take(&mut self) -> u32 {
        let index = self.random.below(self.pages.len());
        self.pages.swap_remove(index)
    }
}

/// SplitMix64: small, and the same everywhere for the same seed.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let bound = u64::try_from(bound).expect("a count of pages");
        usize::try_from(mixed % bound).expect("below a bound that is a usize")
    }
}

/// Alignment of each buffer: a memory page, as registration of memory prefers it.
const ALIGN: usize = 4096;
