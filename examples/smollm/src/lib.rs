//! SmolLM2-135M on the CPU over a paged KV cache that belongs to this program.
//!
//! The model reads and writes keys and values only through the pages of a [`pool::PagePool`], so that a
//! transfer library can move those pages to another process and generation continues there.
//!
//! - [`weights`]: fetches the published model file, verifies it, loads it
//! - [`model`]: the forward pass
//! - [`pool`]: the paged KV cache, the only module with `unsafe`
//! - [`text`]: tokens to text and back, chat format
//! - [`generate`]: prefill in chunks, greedy decode
//! - [`prompts`]: texts to run without typing one

pub mod generate;
pub mod model;
pub mod pool;
pub mod prompts;
pub mod text;
pub mod weights;
