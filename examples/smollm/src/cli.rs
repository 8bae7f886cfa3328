//! The command line.

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use kvferry::Host;

use kvferry_smollm::{prompts, text};

/// Runs a small language model in two processes, one for its prompt and one for its answer, and moves the KV
/// cache between them with kvferry.
///
/// Without a command: starts a directory and both processes here, and compares the answers with those of one
/// process alone.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) demo: Demo,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The directory in which the two sides find each other
    Bootstrap(Bootstrap),
    /// The decode side alone; give it the same prompt as the prefill side
    Decode(Worker),
    /// The prefill side alone; give it the same prompt as the decode side
    Prefill(Worker),
    /// Prefill and decode in this process, without any transfer
    Single(Single),
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    #[command(flatten)]
    pub(crate) prompt: Prompt,
    #[command(flatten)]
    pub(crate) run: Run,
    /// How KV travels
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
    /// Prefill processes, each of which owns and sends its part of the KV heads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) prefill_tp: u32,
    /// Tokens in a page of the decode side, if other than on the prefill side
    #[arg(long, value_name = "N")]
    pub(crate) decode_page_size: Option<NonZeroUsize>,
    /// Print one JSON summary instead of text and tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Bootstrap {
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8998")]
    pub(crate) bind: String,
    /// The host that others are told; needed when listening on all interfaces
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<Host>,
}

#[derive(Args, Debug)]
pub(crate) struct Worker {
    #[command(flatten)]
    pub(crate) prompt: Prompt,
    #[command(flatten)]
    pub(crate) run: Run,
    #[command(flatten)]
    pub(crate) link: Link,
    /// Number of the first request's room, the same on both sides
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) room: u64,
    /// Prefill processes that share out the KV heads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) tp: u32,
    /// Which of them this is, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) tp_rank: u32,
    /// Take requests from the router on stdin, and a pool for this many tokens
    #[arg(long, value_name = "TOKENS", hide = true)]
    pub(crate) routed: Option<usize>,
    /// Print one JSON summary instead of text and tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a worker meets the other side.
#[derive(Args, Debug)]
pub(crate) struct Link {
    /// Where the directory is
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8998")]
    pub(crate) directory: String,
    /// Where to listen for the other side; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub(crate) bind: SocketAddr,
    /// The host that others are told; needed when listening on all interfaces
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<Host>,
    /// How KV travels
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
    /// How long to wait for the other side
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) patience: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory where both sides are on one host and it works, else TCP
    Auto,
    /// Shared memory
    Shm,
    Tcp,
}

#[derive(Args, Debug)]
pub(crate) struct Single {
    #[command(flatten)]
    pub(crate) prompt: Prompt,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// What to run the model on; the opening of Alice in Wonderland unless told.
#[derive(Args, Debug)]
pub(crate) struct Prompt {
    /// A question, put into the model's chat format
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file whose text is continued
    #[arg(long, value_name = "PATH")]
    prompt_file: Option<PathBuf>,
    /// Put the text of the file into the chat format
    #[arg(long, requires = "prompt_file")]
    chat: bool,
    /// Requests at once; those after the first have prompts of their own
    #[arg(long, value_name = "N", default_value = "1")]
    requests: NonZeroUsize,
}

impl Prompt {
    /// Returns the prompts of all requests.
    pub(crate) fn texts(&self) -> Result<Vec<String>> {
        let first = match (&self.prompt, &self.prompt_file) {
            (Some(question), _) => text::chat(question),
            (None, Some(path)) => {
                let file = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                if self.chat { text::chat(&file) } else { file }
            }
            (None, None) => prompts::ALICE.to_owned(),
        };
        let texts: Vec<_> = [first].into_iter().chain(prompts::more()).take(self.requests.get()).collect();
        ensure!(texts.len() == self.requests.get(), "{} different prompts at most", texts.len());
        Ok(texts)
    }
}

/// How to run the model.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Model file in GGUF format; fetched with pip on the first run unless given
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value = "64")]
    pub(crate) tokens: NonZeroUsize,
    /// Go on when the model ends its answer
    #[arg(long)]
    pub(crate) past_end: bool,
    /// Tokens in a page of the KV cache
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) page_tokens: NonZeroUsize,
    /// Prompt tokens computed at a time
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) chunk_tokens: NonZeroUsize,
    /// Send each layer of a chunk as soon as it is computed, not the chunk at its end
    #[arg(long)]
    pub(crate) layerwise: bool,
    /// Chooses the places of the pages, others on each side
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: u64 = text.parse()?;
    ensure!(seconds > 0, "longer than 0");
    Ok(Duration::from_secs(seconds))
}
