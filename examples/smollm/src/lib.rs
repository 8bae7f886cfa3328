//! SmolLM2-135M on the CPU over a paged KV cache that belongs to this program, and that cache's way from a
//! prefill process to a decode process.
//!
//! The model reads and writes keys and values only through the pages of a [`pool::PagePool`], so that kvferry
//! can move those pages to another process and generation continues there.
//!
//! - [`prefill`], [`decode`]: the two sides of a transfer
//! - [`memory`]: pools registered with kvferry, pages lent and taken back
//! - [`protocol`]: what the processes say to each other
//! - [`weights`]: fetches the published model file, verifies it, loads it
//! - [`model`]: the forward pass
//! - [`pool`]: the paged KV cache
//! - [`text`]: tokens to text and back, chat format
//! - [`generate`]: prefill in chunks, greedy decode
//! - [`prompts`]: texts to run without typing one
//!
//! `unsafe` is in [`memory`] and [`pool`] alone.

pub mod decode;
pub mod generate;
pub mod memory;
pub mod model;
pub mod pool;
pub mod prefill;
pub mod prompts;
pub mod protocol;
pub mod text;
pub mod weights;

/// Reads the clock.
#[expect(clippy::disallowed_methods, reason = "a program that reports how long it took")]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}
