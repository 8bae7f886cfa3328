//! Prefill and decode in one process.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};

use kvferry_smollm::pool::PagePool;
use kvferry_smollm::{generate, now, weights};

use crate::cli::Single;
use crate::model_path;
use crate::report::Outcome;

/// Runs the model on each prompt, one after the other.
pub(crate) fn run(Single { prompt, run }: &Single) -> Result<Outcome> {
    let prompts = prompt.texts()?;
    let (model, text) = weights::load(&model_path(run)?)?;
    for prompt in prompts {
        let prompt = text.encode(&prompt)?;
        let tokens = prompt.len() + run.tokens.get();
        let page_tokens = run.page_tokens.get();
        // Twice the pages needed, so that those of the request are truly scattered.
        let pages = u32::try_from(2 * tokens.div_ceil(page_tokens)).context("too many pages")?;
        let pool = PagePool::new(model.config().geometry(page_tokens, pages), run.seed)?;
        let mut sequence = pool.allocate(tokens)?;

        let start = now();
        let mut chunks = 0;
        let first = generate::prefill(&model, &mut sequence, &prompt, run.chunk_tokens, |progress| {
            chunks += usize::from(matches!(progress, generate::Progress::Chunk(_)));
            Ok(())
        })?;
        let prefilled = now();
        let mut stream = text.stream();
        let end = (!run.past_end).then_some(text.end());
        let generated = generate::decode(&model, &mut sequence, first, run.tokens.get(), end, |token| {
            show(&stream.push(token)?)
        })?;
        show(&stream.finish()?)?;
        println!();
        let ended = now();

        let prefill = prefilled - start;
        // The first token came with the prefill.
        let steps = generated.len() - 1;
        println!();
        println!("prompt     {} tokens in {chunks} chunks", prompt.len());
        println!("KV cache   {:.1} MB", pool.geometry().kv_bytes(prompt.len()) as f64 / 1e6);
        println!("prefill    {:.2} s, {:.1} tokens/s", prefill.as_secs_f64(), rate(prompt.len(), prefill));
        println!("generated  {} tokens, {:.1} tokens/s", generated.len(), rate(steps, ended - prefilled));
    }
    Ok(Outcome::Good)
}

fn show(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to stdout")
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
