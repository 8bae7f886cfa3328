//! The prefill side: a pool full of KV, sent to whoever lends pages for it.
//!
//! ```sh
//! cargo run --release --example prefill                            # prints the command for the other terminal
//! cargo run --release --example decode -- --directory http://...
//! ```
//!
//! Both are told the same shape of model, tokens and number of requests, and count rooms alike, as a router
//! would number them in serving.

mod support;

use clap::Parser;
use kvferry::bootstrap::{BootstrapServer, ClientConfig, HttpDirectory, ServerConfig};
use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout};
use kvferry::memory::HostBuffer;
use kvferry::{Chunk, Engine, Finish, GroupId, KVPoll, KVSender, Offer, Place, Room, RoomOptions};
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use support::options::{self, Common};
use support::pages::{self, Scatter};
use support::report::Sent;

/// Sends the KV cache of synthetic requests to `decode`.
#[derive(Debug, Parser)]
struct Options {
    /// Address of the directory; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    #[command(flatten)]
    common: Common,
    /// Tokens of a chunk, as chunked prefill would compute them
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    chunk_tokens: u32,
    /// In the first room, wait for a line on standard input after this many chunks
    #[arg(long)]
    pause_after_chunks: Option<u32>,
}

fn main() -> ExitCode {
    options::exit("prefill", run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let Options { common, .. } = options;
    let shape = common.shape.shape()?;
    let scatter = Scatter::new(common.tokens, shape.page_tokens, common.requests)?;

    // The directory lives in this process here; any process can have it.
    let server = BootstrapServer::bind(&options.listen, ServerConfig::default())?;
    let directory = HttpDirectory::new(&server.url(), ClientConfig::default())?;
    let builder = Engine::builder(Place::alone("prefill"))
        .model(&shape.name)
        .config(common.config()?)
        .directory(Arc::new(directory));
    let engine = builder.transports(common.transports()).build()?;

    // One pool for the keys of each layer and one for the values. Page 7 of a request is page 7 in all.
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", shape.page_tokens, scatter.pool_pages);
    for layer in 0..shape.layers {
        for role in shape.roles {
            let pool = HostBuffer::zeroed(u64::from(scatter.pool_pages) * shape.page_bytes() as u64)?;
            pages::fill(&pool, layout.entries.len(), shape.page_bytes());
            let region = engine.register(|id| pool.region(id))?;
            let (tokens, heads) = (shape.page_tokens, HeadSpan::all(shape.heads));
            layout.push(PoolEntry::token_major(kv, *role, layer, region, tokens, heads, shape.head_bytes));
        }
    }
    engine.set_layout(layout)?;
    println!("directory {}", server.url());
    let same = "with the same shape, tokens, requests and repeat";
    eprintln!("now, {same}: cargo run --release --example decode -- --directory {}", server.url());

    let mut sent = Sent::default();
    'rounds: for round in 0..common.repeat {
        let mut senders = Vec::new();
        for request in 0..common.requests {
            let room = round * common.requests + request;
            let sender = engine.sender(Room(room.into()), RoomOptions::default())?;
            send(&sender, kv, &scatter.source(room), shape.page_tokens, options)?;
            senders.push(sender);
        }
        for sender in senders {
            // Ends when the decode side has everything and nothing reads the pages any more, or on failure.
            sender.wait(Duration::MAX);
            match sender.error() {
                None => sent.bytes += sender.stats().bytes,
                Some(error) => {
                    eprintln!("prefill: {error}");
                    let has_nobody_come = error.state == KVPoll::Bootstrapping;
                    sent.failed.push(error);
                    if has_nobody_come {
                        break 'rounds;
                    }
                }
            }
            sent.rooms += 1;
        }
    }
    engine.close(Duration::from_secs(2));
    sent.print(common, &shape)
}

/// Gives a request to the engine as chunked prefill would: each chunk as soon as it is computed. Nothing here
/// waits for the decode side.
fn send(
    sender: &KVSender,
    kv: GroupId,
    pages: &[u32],
    page_tokens: u32,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    let tokens = options.common.tokens;
    let chunks = (0..tokens).step_by(options.chunk_tokens as usize);
    for (chunk, start) in (0_u32..).zip(chunks) {
        if options.pause_after_chunks == Some(chunk) && sender.room() == Room(0) {
            pause(sender, tokens)?;
        }
        let end = start.saturating_add(options.chunk_tokens).min(tokens);
        let pages = &pages[(start / page_tokens) as usize..end.div_ceil(page_tokens) as usize];
        sender.send(Chunk::new(start..end).pages(kv, pages))?;
    }
    let first_token = sender.room().0.to_le_bytes();
    sender.finish(Finish::new(tokens).payload(&first_token))?;
    // The decode side lends its pages on this, so that it measures the transfer and nothing else.
    sender.offer(Offer::tokens(tokens).complete())?;
    Ok(())
}

/// Stops in mid-transfer until told to go on.
fn pause(sender: &KVSender, tokens: u32) -> Result<(), Box<dyn Error>> {
    sender.offer(Offer::tokens(tokens))?;
    pollster::block_on(sender.wait_granted());
    println!("paused in room {}", sender.room());
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}
