//! Server and client without sockets, for fuzzers; feature `sim`.

use super::client::understand;
use super::lookups::{Ages, Lookups};
use super::server::{Rejection, Service};
use super::{GroupState, RankRecord, ServerConfig};
use crate::address::HostPort;
use crate::ids::Room;
use bytes::Bytes;
use hyper::{Method, StatusCode, Uri};
use std::time::{Duration, Instant};

/// What a server holds and answers.
#[derive(Debug)]
pub struct Server(Service);

/// What a client knows and asks.
#[derive(Debug)]
pub struct Client {
    lookups: Lookups,
    server: HostPort,
}

impl Server {
    /// An empty directory.
    pub fn new(config: &ServerConfig) -> Self {
        Self(Service::new(config))
    }

    /// The status and, if that is 200, the answer to a request; `None` for what HTTP has no room for.
    pub fn request(&self, method: &str, uri: &str, body: &[u8], now: Instant) -> Option<(u16, Bytes)> {
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let uri = Uri::try_from(uri).ok()?;
        Some(match self.0.obey(&method, &uri, body, now) {
            Ok(answer) => (StatusCode::OK.as_u16(), answer),
            Err(Rejection { status, .. }) => (status.as_u16(), Bytes::new()),
        })
    }
}

impl Client {
    /// Knows nothing.
    pub fn new(server: HostPort) -> Self {
        let time = Duration::from_secs(10);
        Self { lookups: Lookups::new(Ages { lease: time, refresh: time, owner: time }), server }
    }

    /// Publishes a rank.
    pub fn register(&mut self, record: RankRecord, now: Instant) {
        self.lookups.leases.register(record, now);
    }

    /// Asks for a group.
    pub fn group(&mut self, name: &str, now: Instant) -> GroupState {
        self.lookups.group(name, now)
    }

    /// Asks for the owner of a room.
    pub fn owner(&mut self, group: &str, room: Room, now: Instant) -> Option<u32> {
        self.lookups.owner(group, room, now)
    }

    /// Says who owns a room.
    pub fn publish_owner(&mut self, group: &str, room: Room, dp: u32, now: Instant) {
        self.lookups.publish_owner(group, room, dp, now);
    }

    /// Asks what is due; `status` and `body` are the answer. Whether anything was due.
    pub fn answer(&mut self, status: u16, body: &[u8], now: Instant) -> bool {
        let Ok(job) = self.lookups.next_job(now) else { return false };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let outcome = understand(&self.server, &job, status, body);
        self.lookups.finish(job, outcome, now);
        true
    }
}
