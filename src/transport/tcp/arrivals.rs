//! Accepted connections that are not yet part of a link: limited in number and in time.

use super::hello::{Greeting, Role};
use super::sockets::{self, Moved};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// By their tokens, which grow: the first is the oldest.
#[derive(Debug)]
pub(super) struct Arrivals {
    waiting: BTreeMap<u64, Arrival>,
    limit: usize,
}

#[derive(Debug)]
struct Arrival {
    socket: OwnedFd,
    bytes: [u8; Greeting::BYTES],
    filled: usize,
    greeting: Option<Greeting>,
    ticks: u32,
}

/// All connections of a link, as its opener greeted on them.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) greeting: Greeting,
    pub(super) control: OwnedFd,
    pub(super) lanes: Vec<OwnedFd>,
}

/// What came of reading from a connection.
#[derive(Debug)]
pub(super) enum Heard {
    /// Not enough yet.
    Part,
    /// Greeted; other connections of its link are missing. There is nothing more to hear from it.
    Greeted,
    /// It was the last of its link.
    All(Gathered),
    /// It ended, or is none of ours.
    Gone,
}

impl Arrivals {
    pub(super) fn new(limit: usize) -> Self {
        Self { waiting: BTreeMap::new(), limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a connection; if there are too many, the oldest goes: one of ours greets at once, so that
    /// those who only wait cannot keep it out.
    pub(super) fn push(&mut self, token: u64, socket: OwnedFd, ticks: u32) {
        if self.waiting.len() >= self.limit
            && let Some((_, oldest)) = self.waiting.pop_first()
        {
            tracing::debug!(greeted = oldest.greeting.is_some(), "too many connections without a link");
        }
        let arrival = Arrival { socket, bytes: [0; Greeting::BYTES], filled: 0, greeting: None, ticks };
        self.waiting.insert(token, arrival);
    }

    pub(super) fn socket(&self, token: u64) -> Option<&OwnedFd> {
        self.waiting.get(&token).map(|arrival| &arrival.socket)
    }

    /// Reads from a connection that is ready.
    pub(super) fn hear(&mut self, token: u64) -> Heard {
        let Some(arrival) = self.waiting.get_mut(&token) else { return Heard::Gone };
        let greeting = match arrival.read() {
            Ok(Some(greeting)) => greeting,
            Ok(None) => return Heard::Part,
            Err(reason) => {
                tracing::debug!(reason, "connection dropped before it was part of a link");
                self.waiting.remove(&token);
                return Heard::Gone;
            }
        };
        let twins = self.waiting.values().filter(|other| other.greeting == Some(greeting)).count();
        if twins > 1 {
            self.waiting.remove(&token);
            return Heard::Gone;
        }
        self.gather(greeting).map_or(Heard::Greeted, Heard::All)
    }

    /// Time passes: those that had enough of it go.
    pub(super) fn tick(&mut self) {
        self.waiting.retain(|_, arrival| {
            arrival.ticks = arrival.ticks.saturating_sub(1);
            arrival.ticks > 0
        });
    }

    /// Takes out the connections of a link, if all are there.
    fn gather(&mut self, like: Greeting) -> Option<Gathered> {
        let is_same = |other: &Greeting| other.nonce == like.nonce && other.lanes == like.lanes;
        let same = self.waiting.iter().filter(|(_, other)| other.greeting.as_ref().is_some_and(is_same));
        let tokens: Vec<u64> = same.map(|(token, _)| *token).collect();
        // No two are alike, so a full number of them is each role once.
        if tokens.len() != usize::from(like.lanes) + 1 {
            return None;
        }
        let mut control = None;
        let mut lanes: Vec<(u8, OwnedFd)> = Vec::new();
        for arrival in tokens.iter().filter_map(|token| self.waiting.remove(token)) {
            match arrival.greeting.map(|greeting| greeting.role) {
                Some(Role::Lane(lane)) => lanes.push((lane, arrival.socket)),
                _ => control = Some(arrival.socket),
            }
        }
        lanes.sort_by_key(|(lane, _)| *lane);
        let lanes = lanes.into_iter().map(|(_, socket)| socket).collect();
        control.map(|control| Gathered { greeting: like, control, lanes })
    }
}

impl Arrival {
    /// The greeting once it is whole. Nothing behind it is read.
    fn read(&mut self) -> Result<Option<Greeting>, String> {
        if self.greeting.is_some() {
            return Err("ended, or spoke before it was answered".into());
        }
        while self.filled < self.bytes.len() {
            match sockets::receive(self.socket.as_fd(), &mut self.bytes[self.filled..]) {
                Ok(Moved::Blocked) => return Ok(None),
                Ok(Moved::Bytes(count)) => self.filled += count,
                Err(error) => return Err(error.to_string()),
            }
        }
        let greeting = Greeting::decode(&self.bytes).map_err(|error| error.to_string())?;
        if greeting.role == Role::Accepted {
            return Err("answered without being asked".into());
        }
        self.greeting = Some(greeting);
        Ok(self.greeting)
    }
}
