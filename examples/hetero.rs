//! Two prefill processes with half of the heads each, one decode process with all of them; other page sizes
//! and another order of heads and tokens on the two sides. Every byte is checked.
//!
//! ```sh
//! cargo run --release --example hetero
//! ```
//!
//! Neither side says anything about the other: each describes its own pools, and the directory tells who
//! holds what.

use kvferry::bootstrap::{BootstrapServer, ClientConfig, HttpDirectory, ServerConfig};
use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    Chunk, Engine, Finish, Grant, GroupId, GroupSizes, KVPoll, Place, Rank, Room, RoomOptions, Sources,
};
use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

const LAYERS: u32 = 4;
const HEADS: u32 = 4;
const HEAD_BYTES: u32 = 64;
const PREFILL_RANKS: u32 = 2;
const TOKENS: u32 = 1000;
const CHUNK: u32 = 300;
const ROOM: Room = Room(1);

/// A pool, and where the tokens of the one request lie in it.
struct Side {
    engine: Engine,
    kv: GroupId,
    page_tokens: u32,
    heads: HeadSpan,
    is_head_major: bool,
    /// Keys and values of each layer.
    pools: Vec<HostBuffer>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [] => decode(),
        [rank, directory] => prefill(rank, directory),
        _ => Err("no arguments are needed".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn decode() -> Result<(), Box<dyn Error>> {
    let directory = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default())?;
    let start = |rank: u32| {
        Command::new(env::current_exe()?).args([rank.to_string(), directory.url().to_string()]).spawn()
    };
    let children = (0..PREFILL_RANKS).map(start).collect::<Result<Vec<_>, _>>()?;

    // Head-major pages of 64 tokens.
    let side =
        Side::new(Place::alone("decode"), &directory.url().to_string(), HeadSpan::all(HEADS), 64, true)?;
    let receiver = side.engine.receiver(ROOM, Sources::group("prefill"), RoomOptions::default())?;
    receiver.grant(Grant::new(0..TOKENS).pages(side.kv, &side.pages(0..TOKENS)))?;
    let state = receiver.wait(Duration::MAX);
    for mut child in children {
        child.wait()?;
    }
    if state == KVPoll::Failed {
        return Err(receiver.error().map_or("failed".into(), Into::into));
    }
    let wrong = side.wrong_bytes();
    if wrong > 0 {
        return Err(format!("{wrong} bytes are wrong").into());
    }
    println!(
        "{TOKENS} tokens, {LAYERS} layers, {HEADS} heads from {PREFILL_RANKS} processes: {} bytes, all right",
        receiver.stats().bytes
    );
    Ok(())
}

fn prefill(rank: &str, directory: &str) -> Result<(), Box<dyn Error>> {
    let rank = rank.parse()?;
    let count = HEADS / PREFILL_RANKS;
    let heads = HeadSpan { first: rank * count, count, total: HEADS };
    let place = Place::new("prefill", Rank::tp(rank), GroupSizes::tp(PREFILL_RANKS));
    // Token-major pages of 16 tokens.
    let side = Side::new(place, directory, heads, 16, false)?;
    side.fill();
    let sender = side.engine.sender(ROOM, RoomOptions::default())?;
    for start in (0..TOKENS).step_by(CHUNK as usize) {
        let tokens = start..(start + CHUNK).min(TOKENS);
        sender.send(Chunk::new(tokens.clone()).pages(side.kv, &side.pages(tokens)))?;
    }
    sender.finish(Finish::new(TOKENS))?;
    match sender.wait(Duration::MAX) {
        KVPoll::Success => Ok(()),
        _ => Err(sender.error().map_or("failed".into(), Into::into)),
    }
}

impl Side {
    fn new(
        place: Place,
        directory: &str,
        heads: HeadSpan,
        page_tokens: u32,
        is_head_major: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let directory = HttpDirectory::new(directory, ClientConfig::default())?;
        let engine = Engine::builder(place)
            .model("synthetic")
            .directory(Arc::new(directory))
            .transport(TcpTransport::new(TcpConfig::new())?)
            .build()?;
        let pool_pages = pool_pages(page_tokens);
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", page_tokens, pool_pages);
        let mut pools = Vec::new();
        for layer in 0..LAYERS {
            for role in [Role::Key, Role::Value] {
                let bytes = pool_pages * page_tokens * heads.count * HEAD_BYTES;
                let pool = HostBuffer::zeroed(bytes.into())?;
                let region = engine.register(|id| pool.region(id))?;
                let describe = if is_head_major { PoolEntry::head_major } else { PoolEntry::token_major };
                let entry = describe(kv, role, layer, region, page_tokens, heads, HEAD_BYTES.into());
                layout.push(entry.dtype("bf16"));
                pools.push(pool);
            }
        }
        engine.set_layout(layout)?;
        Ok(Self { engine, kv, page_tokens, heads, is_head_major, pools })
    }

    /// The pages that hold these tokens.
    fn pages(&self, tokens: std::ops::Range<u32>) -> Vec<u32> {
        (tokens.start / self.page_tokens..tokens.end.div_ceil(self.page_tokens))
            .map(|n| self.page(n))
            .collect()
    }

    /// Where the `n`th page of the request lies: all over the pool.
    fn page(&self, n: u32) -> u32 {
        (n * 7 + 3) % pool_pages(self.page_tokens)
    }

    /// Byte offset of a token's values of a head of the model.
    fn place_of(&self, token: u32, head: u32) -> u64 {
        let (tokens, heads) = (self.page_tokens, self.heads.count);
        let (slot, head) = (token % tokens, head - self.heads.first);
        let cell = if self.is_head_major { head * tokens + slot } else { slot * heads + head };
        let page = self.page(token / tokens) * tokens * heads;
        u64::from((page + cell) * HEAD_BYTES)
    }

    fn cells(&self) -> impl Iterator<Item = (u32, u32)> {
        let heads = self.heads.first..self.heads.first + self.heads.count;
        (0..TOKENS).flat_map(move |token| heads.clone().map(move |head| (token, head)))
    }

    fn fill(&self) {
        for (number, pool) in (0..).zip(&self.pools) {
            for (token, head) in self.cells() {
                pool.write_at(self.place_of(token, head), &values(number, token, head));
            }
        }
    }

    fn wrong_bytes(&self) -> usize {
        let mut wrong = 0;
        for (number, pool) in (0..).zip(&self.pools) {
            for (token, head) in self.cells() {
                let found = pool.to_vec(self.place_of(token, head), HEAD_BYTES as usize);
                let wanted = values(number, token, head);
                wrong += found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
            }
        }
        wrong
    }
}

/// A number that 7 does not divide, so that pages of a request do not meet.
fn pool_pages(page_tokens: u32) -> u32 {
    let pages = 2 * TOKENS.div_ceil(page_tokens);
    if pages.is_multiple_of(7) { pages + 1 } else { pages }
}

/// What a buffer holds of a token and a head; different for each.
fn values(buffer: u32, token: u32, head: u32) -> Vec<u8> {
    let seed = ((buffer * HEADS + head) * TOKENS + token).wrapping_mul(2_654_435_761);
    (0..HEAD_BYTES).map(|at| seed.rotate_left(at % 32).to_le_bytes()[0] ^ at.to_le_bytes()[0]).collect()
}
