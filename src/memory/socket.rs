//! Vectored socket calls straight from and into extents. Non-blocking, and without signals.

use super::MemoryError;
use super::cursor::{Body, Next};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The vector list of one thread, reused from call to call.
#[derive(Debug)]
pub(crate) struct Vectors {
    list: Vec<libc::iovec>,
    limit: usize,
}

// SAFETY: the list holds addresses only inside `send` and `receive`, which empty it before they return.
unsafe impl Send for Vectors {}

/// Why a vectored call moved nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// An extent is not usable.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Vectors {
    /// A list of at most `limit` vectors a call, between 2 and [`MAX_VECTORS`].
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(2, MAX_VECTORS);
        Self { list: Vec::with_capacity(limit), limit }
    }

    /// Sends `head`, then at most `limit` bytes of `body`. Returns the bytes sent, head included.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing now.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        body: Body<'_>,
        limit: u64,
    ) -> Result<usize, SocketError> {
        self.list.clear();
        if !head.is_empty() {
            let iov_base = head.as_ptr().cast_mut().cast();
            self.list.push(libc::iovec { iov_base, iov_len: head.len() });
        }
        self.fill(body, limit, self.limit)?;
        let message = self.message();
        // SAFETY: `message` points at `list`, whose vectors are `head` and checked spans of regions
        // that the snapshot in `body` keeps mapped; sending only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, SEND_FLAGS) };
        self.list.clear();
        Ok(usize::try_from(sent).map_err(|_| io::Error::last_os_error())?)
    }

    /// Receives at most `limit` bytes into `body`, and, if all of what is left of it fits one call, what
    /// follows into `tail`. Returns the bytes received; 0 means the peer closed.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there now.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        body: Body<'_>,
        limit: u64,
        left: u64,
        tail: &mut [u8],
    ) -> Result<usize, SocketError> {
        self.list.clear();
        let filled = self.fill(body, limit, self.limit - 1)?;
        if filled == left && !tail.is_empty() {
            self.list.push(libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() });
        }
        let mut message = self.message();
        // SAFETY: `message` points at `list`, whose vectors are `tail` and checked spans of regions that
        // the snapshot in `body` keeps mapped; the caller holds the pages' grant.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        self.list.clear();
        Ok(usize::try_from(received).map_err(|_| io::Error::last_os_error())?)
    }

    /// Adds vectors for `body` until there are `vectors`; returns their bytes.
    fn fill(&mut self, body: Body<'_>, limit: u64, vectors: usize) -> Result<u64, MemoryError> {
        let list = &mut self.list;
        let mut bytes = 0;
        let walked = body.spans(limit, |span| {
            if list.len() >= vectors {
                return Next::Stop;
            }
            list.push(libc::iovec { iov_base: span.start.cast(), iov_len: span.len });
            bytes += span.len as u64;
            Next::Go
        });
        if walked.is_err() {
            list.clear();
        }
        walked.map(|()| bytes)
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid `msghdr`: no name, no control data, no vectors.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = ptr::null_mut();
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.list.len();
        message
    }
}

/// Vectors of one call at most: the kernel's limit.
pub(crate) const MAX_VECTORS: usize = 1024;

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use crate::layout::Extent;
    use crate::memory::{Cursor, HostBuffer, RegionTable};
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn scattered_pages_go_through_a_socket_with_head_and_tail() {
        let (mut left, right) = UnixStream::pair().unwrap();
        let (source, target) = (HostBuffer::zeroed(4096).unwrap(), HostBuffer::zeroed(4096).unwrap());
        let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
        source.write_at(0, &bytes);
        let table = RegionTable::default();
        table.insert(source.region(RegionId(0)));
        table.insert(target.region(RegionId(1)));
        let regions = table.snapshot();
        let list = |region, places: &[(u64, u64)]| -> Vec<Extent> {
            places.iter().map(|&(offset, len)| Extent { region: RegionId(region), offset, len }).collect()
        };
        let (from, to) = (list(0, &[(100, 10), (50, 5)]), list(1, &[(7, 3), (1000, 12)]));
        let mut vectors = Vectors::new(64);
        let body = Body { regions: &regions, extents: &from, cursor: Cursor::default() };
        assert_eq!(vectors.send(left.as_fd(), b"head", body, 1000).unwrap(), 19);
        left.write_all(b"next").unwrap();
        let mut head = [0; 4];
        (&right).read_exact(&mut head).unwrap();
        assert_eq!(&head, b"head");
        let mut tail = [0; 8];
        let body = Body { regions: &regions, extents: &to, cursor: Cursor::default() };
        assert_eq!(vectors.receive(right.as_fd(), body, 1000, 15, &mut tail).unwrap(), 19);
        assert_eq!(&tail, b"next\0\0\0\0");
        let landed = [target.to_vec(7, 3), target.to_vec(1000, 12)].concat();
        assert_eq!(landed, [&bytes[100..110], &bytes[50..55]].concat());
        let empty = vectors.receive(right.as_fd(), body, 1000, 15, &mut tail);
        assert!(matches!(empty, Err(SocketError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock));
    }

    #[test]
    fn sending_to_a_closed_peer_is_an_error_without_a_signal() {
        let (left, right) = UnixStream::pair().unwrap();
        drop(right);
        let regions = RegionTable::default().snapshot();
        let body = Body { regions: &regions, extents: &[], cursor: Cursor::default() };
        let sent = Vectors::new(2).send(left.as_fd(), b"x", body, 0);
        assert!(matches!(sent, Err(SocketError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe));
    }
}
