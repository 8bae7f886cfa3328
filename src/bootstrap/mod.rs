//! Finding peers: who belongs to a group, and how to reach them.
//!
//! - `mod.rs`: the [`Directory`] trait and its records
//! - `fixed.rs`: a table given by the caller
//! - `address.rs`: addresses as people write them; what may be advertised
//! - `server.rs`: the HTTP+JSON directory (feature `bootstrap`)
//! - `client.rs`: its client (feature `bootstrap`)

use crate::ids::{GroupSizes, Instance, Rank, Room};
use crate::layout::LayoutDigest;
use std::collections::BTreeMap;
use std::fmt::Debug;
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GroupState {
    /// Nothing yet; a lookup is under way.
    Unknown,
    /// Some ranks are missing; asked again with back-off.
    NotReady {
        /// Ranks registered.
        registered: u64,
        /// Ranks announced.
        announced: u64,
        /// Some of the missing.
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

/// Keeps a registration alive; dropping it removes the registration.
pub trait Registration: Debug + Send {}

/// Finds peers. No method blocks; lookups run elsewhere and `watch` tells when to look again.
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
    /// Calls `wake` from any thread whenever an answer may have changed.
    fn watch(&self, wake: Arc<dyn Fn() + Send + Sync>);
}
