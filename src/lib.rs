//! kvferry moves the KV cache of large language models from prefill to decode workers.
//!
//! A serving engine that splits *prefill* (computing a prompt's KV cache) from *decode* (generating
//! with it) has to move each request's pages, scattered over per-layer pools, from one set of
//! processes to the other: many requests at once, while either side may abort, crash or freeze.
//! kvferry is that whole layer: it finds and compares peers, lends and fills pages, checks what
//! arrived, ends every room by itself, and says exactly when pages may be used again.
//!
//! # A room from both ends
//!
//! ```
//! use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
//! use kvferry::memory::HostBuffer;
//! use kvferry::transport::local::LocalNetwork;
//! use kvferry::{Chunk, Engine, Finish, Grant, KVPoll, Place, Room, RoomOptions, Source, Sources};
//! use std::time::Duration;
//!
//! // One layer of keys: 64 pages of 16 tokens, 8 heads of 128 bf16 values.
//! let network = LocalNetwork::new();
//! let start = |name: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     let engine = Engine::builder(Place::alone(name)).transport(network.endpoint(name)?).build()?;
//!     let pool = HostBuffer::zeroed(64 * 16 * 8 * 256)?;
//!     let region = engine.register(|id| pool.region(id))?;
//!     let mut layout = PoolLayout::new();
//!     let kv = layout.paged("kv", 16, 64);
//!     layout.push(PoolEntry::token_major(kv, Role::Key, 0, region, 16, HeadSpan::all(8), 256).dtype("bf16"));
//!     engine.set_layout(layout)?;
//!     Ok((engine, pool, kv))
//! };
//! let (prefill, source, kv) = start("prefill")?;
//! let (decode, destination, _) = start("decode")?;
//!
//! // Decode: 40 tokens are wanted, and these pages are lent for them.
//! let from = Sources::Ranks(vec![Source::new(prefill.place().rank, prefill.addresses())]);
//! let receiver = decode.receiver(Room(7), from, RoomOptions::default())?;
//! receiver.grant(Grant::new(0..40).pages(kv, &[11, 50, 3]))?;
//!
//! // Prefill: two chunks, the second one starting inside a page.
//! source.write_at(9 * 16 * 8 * 256, b"keys of token 0");
//! let sender = prefill.sender(Room(7), RoomOptions::default())?;
//! sender.send(Chunk::new(0..24).pages(kv, &[9, 2]))?;
//! sender.send(Chunk::new(24..40).pages(kv, &[2, 30]))?;
//! sender.finish(Finish::new(40).payload(b"first token"))?;
//!
//! assert_eq!(receiver.wait(Duration::from_secs(10)), KVPoll::Success);
//! assert_eq!(receiver.payload().as_deref(), Some(&b"first token"[..]));
//! assert_eq!(destination.to_vec(11 * 16 * 8 * 256, 15), b"keys of token 0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The parts
//!
//! ```text
//!  prefill process                                   decode process
//! +-----------------------+                         +-------------------------+
//! | KVSender   KVSender   |        bootstrap        | KVReceiver  KVReceiver  |
//! |      \     /          |<------ directory ------>|       \     /           |
//! |      Engine           |                         |       Engine            |
//! |        |  pools       |   control connection    |  pools  |               |
//! |    transports ========|=========================|===== transports         |
//! |           \___________|______ data lanes _______|________/                |
//! +-----------------------+                         +-------------------------+
//! ```
//!
//! - [`Engine`]: one rank's end; [`KVSender`] and [`KVReceiver`]: a request from either side.
//! - [`layout`]: what pools look like; [`memory`]: where they are.
//! - [`transport`]: how bytes move; [`bootstrap`]: how peers are found.
//! - [`session`] and [`wire`]: the rules and the format, for those who build transports or tools.
//!
//! # What it does not do
//!
//! - It computes nothing, caches nothing and schedules nothing: which pages a request gets is the
//!   engine's business.
//! - It does not cast element types. Page sizes, orders of heads and tokens and parallel sizes may differ
//!   between the sides; what cannot be converted is refused by name before a byte moves.
//! - It neither encrypts nor authenticates: peers are trusted as processes, though not as to what they
//!   send.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tcp` | yes | the TCP transport |
//! | `shm` | yes | the transport through shared memory, between processes of a host |
//! | `bootstrap` | yes | the HTTP+JSON directory, server and client |
//! | `sim` | no | for tests: the protocol simulator, and faults on command |

mod address;
pub mod bootstrap;
mod checksum;
mod config;
mod doorbell;
mod engine;
mod error;
#[cfg(feature = "sim")]
pub mod faults;
mod home;
mod ids;
pub mod layout;
pub mod memory;
mod ops;
mod poll;
pub mod session;
#[cfg(feature = "sim")]
pub mod sim;
mod sync;
pub mod transport;
pub mod wire;

pub use address::{AddressError, Host, HostPort, Network};
pub use config::{Config, ConfigError, Deadlines, Limits, Liveness};
pub use engine::{
    Accepted, BuildError, Change, Chunk, CloseReport, Engine, EngineBuilder, Finish, Grant, Granted,
    KVReceiver, KVSender, Member, Offer, Outcome, PeerReport, Place, Report, RoomOptions, RoomReport, Source,
    Sources, Stats, TransferStats, UsageError, Withdrawal,
};
pub use error::{ErrorKind, Fault, KVTransferError, Origin};
pub use ids::{
    Attempt, BallotId, Generation, GrantId, GroupId, GroupSizes, Instance, LinkId, OpId, Party, Rank,
    RegionId, Room, Side,
};
pub use poll::{KVPoll, Release};

// The README's programs use the default features.
#[cfg(all(doctest, feature = "bootstrap", feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
