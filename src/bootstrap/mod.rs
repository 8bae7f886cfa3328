//! Finding peers: who belongs to a group, and how to reach them.
//!
//! - `mod.rs`: the [`Directory`] trait and its records
//! - `roster.rs`: whether the records of a group are complete
//! - `fixed.rs`: a table given by the caller
//! - `owners.rs`: a bounded table of room owners
//!
//! With the feature `bootstrap`, over HTTP and JSON:
//! - `server.rs`: the server and its routes; `table.rs`: what it holds
//! - `client.rs`: the client; `lookups.rs`: what it knows and asks next; `leases.rs`: what it registered;
//!   `retry.rs`: when something is tried next; `http.rs`: one request
//! - `json.rs`: the bodies; `clock.rs`: the time; `probe.rs`: both sides without sockets, for fuzzers

#[cfg(feature = "bootstrap")]
mod client;
#[cfg(feature = "bootstrap")]
mod clock;
mod fixed;
#[cfg(feature = "bootstrap")]
mod http;
#[cfg(feature = "bootstrap")]
mod json;
#[cfg(feature = "bootstrap")]
mod leases;
#[cfg(feature = "bootstrap")]
mod lookups;
mod owners;
#[cfg(all(feature = "bootstrap", feature = "sim"))]
#[doc(hidden)]
pub mod probe;
#[cfg(feature = "bootstrap")]
mod retry;
mod roster;
#[cfg(feature = "bootstrap")]
mod server;
#[cfg(feature = "bootstrap")]
mod table;

#[cfg(feature = "bootstrap")]
pub use client::{ClientConfig, HttpDirectory};
pub use fixed::FixedDirectory;
pub use roster::RosterError;
#[cfg(feature = "bootstrap")]
pub use server::{BootstrapServer, ServerConfig};

use crate::address::AddressError;
use crate::ids::{GroupSizes, Instance, Rank, Room};
use crate::layout::LayoutDigest;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// What a rank publishes about itself.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct RankRecord {
    /// The group it belongs to.
    pub group: String,
    /// Sizes of that group; all its ranks must say the same.
    pub sizes: GroupSizes,
    /// Its place.
    pub rank: Rank,
    /// This start of its process.
    pub instance: Instance,
    /// How to reach it: transport name and that transport's own address, in order of preference.
    pub addresses: Vec<(String, Vec<u8>)>,
    /// Digest of its layout.
    pub layout: LayoutDigest,
    /// The engine's own entries.
    pub extra: BTreeMap<String, String>,
}

/// A group whose ranks have all registered.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// The group's name.
    pub name: String,
    /// Its sizes.
    pub sizes: GroupSizes,
    /// Its ranks, sorted.
    pub ranks: Vec<RankRecord>,
}

/// What a directory knows of a group now.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum GroupState {
    /// Nothing yet; a lookup is under way.
    Unknown,
    /// Some ranks are missing; asked again with back-off.
    NotReady {
        /// Ranks registered.
        registered: u64,
        /// Ranks announced; 0 while none has registered.
        announced: u64,
        /// The first of the missing, at most 16.
        missing: Vec<Rank>,
    },
    /// All ranks are known.
    Ready(Arc<GroupInfo>),
    /// The last lookup failed; asked again with back-off.
    Unreachable {
        /// Why.
        detail: String,
    },
}

/// Where a registration stands.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RegistrationState {
    /// The directory has not answered yet.
    Pending,
    /// The rank can be found.
    Published,
    /// The directory refuses the record; asked again with back-off, except after a replacement.
    Refused {
        /// Why.
        detail: String,
    },
    /// The directory cannot be reached; asked again with back-off.
    Unreachable {
        /// Why.
        detail: String,
    },
}

/// A directory that cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// An address cannot be used as configured.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address to listen on is taken, or not this host's.
    #[error("binding {address} failed")]
    Bind {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A limit that cannot work.
    #[error("{field} must be {rule}")]
    Config {
        /// The field.
        field: &'static str,
        /// What would be accepted.
        rule: &'static str,
    },
    /// The thread or its event queue could not be made.
    #[error("starting the directory thread failed: {0}")]
    Start(#[source] io::Error),
}

/// Keeps a registration alive; dropping it removes the registration and waits a bounded time for that.
pub trait Registration: Debug + Send {
    /// Where it stands; changes wake the watchers of the directory.
    fn state(&self) -> RegistrationState {
        RegistrationState::Published
    }
}

/// Finds peers. No method blocks; lookups run elsewhere and `watch` tells when to look again.
///
/// Lookups go on for about a minute after the last question; then what is not known is forgotten and the
/// watchers are woken, so that whoever still waits asks again.
pub trait Directory: Debug + Send + Sync {
    /// Publishes a rank and keeps it published until the answer is dropped. A record of the same
    /// group and rank replaces an older one.
    fn register(&self, record: RankRecord) -> Box<dyn Registration>;
    /// What is known of a group now; starts or renews a lookup when nothing recent is.
    fn group(&self, name: &str) -> GroupState;
    /// Forgets what is known of a group, because it proved wrong.
    fn invalidate(&self, name: &str);
    /// Says which data parallel rank of a group owns a room.
    fn publish_owner(&self, group: &str, room: Room, dp: u32);
    /// Which data parallel rank of a group owns a room, if known; starts a lookup when it is not.
    fn owner(&self, group: &str, room: Room) -> Option<u32>;
    /// Calls `wake` from any thread whenever an answer may have changed. No lock is held meanwhile; it
    /// must be quick, since the directory waits for it. A directory keeps `wake` as long as it lives.
    fn watch(&self, wake: Arc<dyn Fn() + Send + Sync>);
}

impl RankRecord {
    /// The record of one rank, without addresses.
    pub fn new(
        group: impl Into<String>,
        sizes: GroupSizes,
        rank: Rank,
        instance: Instance,
        layout: LayoutDigest,
    ) -> Self {
        let (addresses, extra) = (Vec::new(), BTreeMap::new());
        Self { group: group.into(), sizes, rank, instance, addresses, layout, extra }
    }

    /// Adds a way to reach it, after those already there.
    #[must_use]
    pub fn address(mut self, transport: impl Into<String>, address: impl Into<Vec<u8>>) -> Self {
        self.addresses.push((transport.into(), address.into()));
        self
    }

    /// Adds an entry of the engine's own.
    #[must_use]
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.insert(key.into(), value.into());
        self
    }
}
