//! Unix sockets as this transport uses them: non-blocking, closed on exec, with descriptors beside bytes.

use super::NAME;
use super::address::Address;
use crate::transport::TransportError;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a non-blocking call did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing can be moved now.
    Blocked,
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Peer {
    /// Its process here; 0 if it is in a space of processes that is not seen from here.
    pub(super) pid: i32,
    pub(super) user: u32,
}

pub(super) fn listen(address: &Address) -> io::Result<OwnedFd> {
    let socket = open()?;
    net::bind(&socket, &place(address)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects. Blocks for nobody: a listener with too many waiting refuses.
pub(super) fn dial(address: &Address) -> io::Result<OwnedFd> {
    let socket = open()?;
    net::connect(&socket, &place(address)?)?;
    Ok(socket)
}

/// The next connection that came, if any.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(listener, FLAGS) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends what fits of `bytes`; the descriptor goes with the first of them.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[IoSlice<'_>],
    fd: Option<BorrowedFd<'_>>,
) -> Result<Moved, TransportError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = net::SendAncillaryBuffer::new(&mut space);
    let rights;
    if let Some(fd) = fd {
        rights = [fd];
        beside.push(net::SendAncillaryMessage::ScmRights(&rights));
    }
    match net::sendmsg(socket, bytes, &mut beside, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(Moved::Blocked),
        Err(errno) => Err(failed("sendmsg", errno.into())),
    }
}

/// Receives what is there, and the descriptors that came with it.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    mut each: impl FnMut(OwnedFd),
) -> Result<Moved, TransportError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = net::RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut beside, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Moved::Blocked),
        Err(errno) => return Err(failed("recvmsg", errno.into())),
    };
    for message in beside.drain() {
        if let net::RecvAncillaryMessage::ScmRights(fds) = message {
            fds.for_each(&mut each);
        }
    }
    if received.flags.contains(net::ReturnFlags::CTRUNC) {
        // This process has no more of them, or the peer sent more than one of ours would.
        return Err(failed("receiving a descriptor", Errno::MFILE.into()));
    }
    if received.bytes == 0 { Err(closed()) } else { Ok(Moved::Bytes(received.bytes)) }
}

/// Who made the other end.
pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    Ok(Peer { pid: found.pid, user: found.uid })
}

/// A descriptor that is readable once the peer's process has ended; none if there is no telling.
pub(super) fn process(socket: BorrowedFd<'_>, peer: Peer) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    if option(socket, SO_PEERPIDFD, &mut fd).is_ok() && fd >= 0 {
        // SAFETY: the kernel has just made this descriptor for us.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let pid = rustix::process::Pid::from_raw(peer.pid)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Whether the other end is closed.
pub(super) fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
}

pub(super) fn random() -> Result<[u8; 16], TransportError> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed("getrandom", errno.into()))?;
    Ok(bytes)
}

/// The error of a call on a connection; those that say that the peer has gone are one.
pub(super) fn failed(op: &'static str, source: io::Error) -> TransportError {
    match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => closed(),
        _ => TransportError::Io { name: NAME, op, source },
    }
}

pub(super) fn closed() -> TransportError {
    TransportError::Closed { name: NAME }
}

fn open() -> io::Result<OwnedFd> {
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?)
}

fn place(address: &Address) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(&address.socket_name())?)
}

/// Reads an option of the size of `value`.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let place = (&raw mut *value).cast();
    // SAFETY: room for `size` bytes of a type that any bytes of the kernel's are valid for.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, place, &raw mut size) };
    if got == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
const BACKLOG: i32 = 1024;
/// Since Linux 6.5; the same number on every processor that matters here.
const SO_PEERPIDFD: libc::c_int = 77;
/// Descriptors that one call can bring.
const MAX_FDS: usize = 4;
