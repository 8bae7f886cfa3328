//! kvferry moves the KV cache of large language models from prefill to decode workers.

mod address;
pub mod bootstrap;
mod checksum;
mod config;
mod engine;
mod error;
mod ids;
pub mod layout;
pub mod memory;
mod poll;
pub mod session;
pub mod transport;
pub mod wire;

pub use address::{AddressError, Host, HostPort, Network};
pub use config::{Config, ConfigError, Deadlines, Limits, Liveness};
pub use engine::{
    Accepted, BuildError, Change, Chunk, CloseReport, Engine, EngineBuilder, Finish, Grant, Granted,
    KVReceiver, KVSender, Offer, Place, RoomOptions, Source, Sources, Stats, TransferStats, UsageError,
};
pub use error::{ErrorKind, Fault, KVTransferError, Origin};
pub use ids::{
    Attempt, Generation, GrantId, GroupId, GroupSizes, Instance, LinkId, OpId, Party, Rank, RegionId, Room,
    Side,
};
pub use poll::{KVPoll, Release};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
