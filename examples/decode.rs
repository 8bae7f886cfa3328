//! The decode side: lends pages, waits until the KV is in them, and checks every byte.
//!
//! ```sh
//! cargo run --release --example prefill                            # prints the command for the other terminal
//! cargo run --release --example decode -- --directory http://...
//! ```
//!
//! `--compare-socket` copies as many bytes over a plain socket in turn with the transfers.

#![expect(clippy::disallowed_methods, reason = "an example may read the clock")]

mod support;

use clap::Parser;
use kvferry::bootstrap::{ClientConfig, HttpDirectory};
use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout};
use kvferry::memory::HostBuffer;
use kvferry::{Engine, Grant, Place, Room, RoomOptions, Sources};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::options::{self, Common};
use support::pages::{self, Scatter};
use support::progress::Progress;
use support::report::Received;
use support::socket::{self, Socket};

/// Receives the KV cache of synthetic requests from `prefill`.
#[derive(Debug, Parser)]
struct Options {
    /// Where the directory is, as `prefill` prints it
    #[arg(long)]
    directory: String,
    #[command(flatten)]
    common: Common,
    /// Number of the first room, if an earlier decode process had some
    #[arg(long, default_value_t = 0)]
    first_room: u32,
    /// Copy as many bytes over a plain socket in turn, and compare
    #[arg(long)]
    compare_socket: bool,
    /// Print a line whenever more of a prompt is in place
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match socket::is_source() {
        true => options::exit("decode", socket::serve()),
        false => options::exit("decode", run(&Options::parse())),
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let Options { common, .. } = options;
    let shape = common.shape.shape()?;
    let scatter = Scatter::new(common.tokens, shape.page_tokens, common.requests)?;

    let directory = HttpDirectory::new(&options.directory, ClientConfig::default())?;
    let builder = Engine::builder(Place::alone("decode"))
        .model(&shape.name)
        .config(common.config()?)
        .directory(Arc::new(directory));
    let engine = builder.transports(common.transports()).build()?;

    // One pool for the keys of each layer and one for the values. Page 7 of a request is page 7 in all.
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", shape.page_tokens, scatter.pool_pages);
    let mut pools = Vec::new();
    for layer in 0..shape.layers {
        for role in shape.roles {
            let pool = HostBuffer::zeroed(u64::from(scatter.pool_pages) * shape.page_bytes() as u64)?;
            let region = engine.register(|id| pool.region(id))?;
            let (tokens, heads) = (shape.page_tokens, HeadSpan::all(shape.heads));
            layout.push(PoolEntry::token_major(kv, *role, layer, region, tokens, heads, shape.head_bytes));
            pools.push(pool);
        }
    }
    engine.set_layout(layout)?;

    let bytes = u64::from(common.tokens) * u64::from(common.requests) * shape.token_bytes();
    let mut socket = match options.compare_socket {
        true => Some(Socket::start(usize::try_from(bytes)?)?),
        false => None,
    };
    let mut received = Received::new(bytes);
    for round in 0..common.repeat {
        pools.iter().for_each(|pool| pool.fill(pages::UNTOUCHED));
        let mut receivers = Vec::new();
        for request in 0..common.requests {
            let room = options.first_room + round * common.requests + request;
            let sources = Sources::group("prefill");
            let receiver = engine.receiver(Room(room.into()), sources, RoomOptions::default())?;
            receivers.push((room, receiver));
        }
        for (_, receiver) in &receivers {
            // Pages could be lent at once. Lent after the offer, all that is measured is the transfer.
            pollster::block_on(receiver.wait_offered());
        }

        let start = Instant::now();
        for (room, receiver) in &receivers {
            receiver.grant(Grant::new(0..common.tokens).pages(kv, &scatter.destination(*room)))?;
        }
        let progress = Progress::start(bytes, options.verbose);
        for (_, receiver) in &receivers {
            let mut ready = 0;
            while ready < common.tokens && pollster::block_on(receiver.wait_ready(ready + 1)) {
                ready = receiver.ready_tokens();
                let tokens: u32 = receivers.iter().map(|(_, receiver)| receiver.ready_tokens()).sum();
                progress.reach(receiver.room(), ready, u64::from(tokens) * shape.token_bytes());
            }
        }
        for (_, receiver) in &receivers {
            // Afterwards the pages are ours again, however it ended.
            receiver.wait(Duration::MAX);
            received.failed.extend(receiver.error());
        }
        let seconds = start.elapsed();
        drop(progress);
        if !received.failed.is_empty() {
            break;
        }

        for (room, receiver) in &receivers {
            if receiver.payload().as_deref() != Some(&u64::from(*room).to_le_bytes()) {
                return Err(format!("room {room}: payload {:?}", receiver.payload()).into());
            }
            scatter.verify(*room, &pools, &shape, common.tokens)?;
        }
        let socket_seconds = socket.as_mut().map(Socket::copy).transpose()?;
        received.rounds.push((seconds, socket_seconds));
    }
    engine.close(Duration::from_secs(2));
    received.print(common, &shape)
}
