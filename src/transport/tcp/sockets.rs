//! Sockets as this transport uses them: non-blocking, closed on exec, without delay.

use super::NAME;
use super::config::TcpConfig;
use crate::transport::TransportError;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What a non-blocking call did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing can be moved now.
    Blocked,
}

/// A listener on `address`; ports of an earlier process are free at once.
pub(super) fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = open(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(net::getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Starts to connect.
pub(super) fn dial(address: SocketAddr, config: &TcpConfig) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    set_up(&socket, config)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// The next connection that came, if any.
pub(super) fn accept(listener: &OwnedFd, config: &TcpConfig) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(listener, FLAGS) {
        Ok(socket) => {
            // One whose options cannot be set has ended already: found out at its first use.
            let _ = set_up(&socket, config);
            Ok(Some(socket))
        }
        Err(Errno::AGAIN) => Ok(None),
        // The peer was quicker than this.
        Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Receives what is there.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Moved, TransportError> {
    match net::recv(socket, bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(closed()),
        Ok((count, _)) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Blocked),
        Err(errno) => Err(failed("recv", errno.into())),
    }
}

/// Sends what fits.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<Moved, TransportError> {
    match net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Blocked),
        Err(errno) => Err(failed("send", errno.into())),
    }
}

/// The error of a call on a connection; those that say that the peer has gone are one.
pub(super) fn failed(op: &'static str, source: io::Error) -> TransportError {
    match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            closed()
        }
        _ => TransportError::Io { name: NAME, op, source },
    }
}

pub(super) fn closed() -> TransportError {
    TransportError::Closed { name: NAME }
}

fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(family, SocketType::STREAM, FLAGS, Some(net::ipproto::TCP))?)
}

fn set_up(socket: &OwnedFd, config: &TcpConfig) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    if let Some(name) = &config.congestion {
        // The kernel may lack it or not allow it; its default works too.
        let _ = sockopt::set_tcp_congestion(socket, name);
    }
    if let Some(bytes) = config.buffers {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(())
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
const BACKLOG: i32 = 1024;
