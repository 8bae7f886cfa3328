//! A link that this side opens, until the peer has accepted all its connections.

use super::NAME;
use super::config::TcpConfig;
use super::hello::{Greeting, Role};
use super::sockets::{self, Moved};
use crate::transport::TransportError;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Debug)]
pub(super) struct Dial {
    nonce: u128,
    lanes: u8,
    /// The control connection, then the lanes.
    connections: Vec<Dialled>,
    /// Addresses to try if this one does not answer.
    pub(super) candidates: Vec<SocketAddr>,
    answer: [u8; Greeting::BYTES],
    filled: usize,
    pub(super) ticks: u32,
}

#[derive(Debug)]
struct Dialled {
    socket: OwnedFd,
    is_greeted: bool,
}

/// What became of a connection that was ready.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// It greeted; what it waits for now is an answer, on the control connection only.
    Greeted,
    /// Nothing yet.
    Waiting,
    /// The peer has accepted the link.
    Accepted,
}

impl Dial {
    /// Nothing is connected yet.
    pub(super) fn new(nonce: u128, lanes: u8, ticks: u32) -> Self {
        Self {
            nonce,
            lanes,
            connections: Vec::new(),
            candidates: Vec::new(),
            answer: [0; Greeting::BYTES],
            filled: 0,
            ticks,
        }
    }

    /// Starts to connect everything to `address`, in place of what was tried before.
    pub(super) fn start(&mut self, address: SocketAddr, config: &TcpConfig) -> Result<(), TransportError> {
        self.connections.clear();
        self.filled = 0;
        for _ in 0..=self.lanes {
            let socket = sockets::dial(address, config).map_err(|source| TransportError::Io {
                name: NAME,
                op: "connect",
                source,
            })?;
            self.connections.push(Dialled { socket, is_greeted: false });
        }
        Ok(())
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.connections.iter().map(|connection| &connection.socket)
    }

    /// A connection is ready.
    pub(super) fn step(&mut self, index: usize) -> Result<Step, TransportError> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(Step::Waiting) };
        if !connection.is_greeted {
            let connected = sockopt::socket_error(&connection.socket).and_then(|error| error);
            connected.map_err(|errno| TransportError::Io {
                name: NAME,
                op: "connect",
                source: errno.into(),
            })?;
            let role = u8::try_from(index).ok().and_then(|index| index.checked_sub(1));
            let role = role.map_or(Role::Control, Role::Lane);
            let greeting = Greeting { role, lanes: self.lanes, nonce: self.nonce }.encode();
            return match sockets::send(connection.socket.as_fd(), &greeting)? {
                Moved::Bytes(Greeting::BYTES) => {
                    connection.is_greeted = true;
                    Ok(Step::Greeted)
                }
                // Not connected yet.
                Moved::Blocked => Ok(Step::Waiting),
                // A new connection has room for so little.
                Moved::Bytes(_) => Err(sockets::closed()),
            };
        }
        if index > 0 {
            // A lane has nothing to say before the control connection is answered: it ended.
            return Err(sockets::closed());
        }
        while self.filled < self.answer.len() {
            match sockets::receive(connection.socket.as_fd(), &mut self.answer[self.filled..])? {
                Moved::Blocked => return Ok(Step::Waiting),
                Moved::Bytes(count) => self.filled += count,
            }
        }
        let wanted = Greeting { role: Role::Accepted, lanes: self.lanes, nonce: self.nonce };
        let answer = Greeting::decode(&self.answer);
        match answer {
            Ok(answer) if answer == wanted => Ok(Step::Accepted),
            Ok(_) => Err(broken("accepted another link".into())),
            Err(error) => Err(broken(error.to_string())),
        }
    }

    /// The control connection and the lanes, once accepted.
    pub(super) fn into_sockets(self) -> Vec<OwnedFd> {
        self.connections.into_iter().map(|connection| connection.socket).collect()
    }
}

fn broken(detail: String) -> TransportError {
    TransportError::Format { name: NAME, detail }
}
