//! The connection of a link: frames of the engine and of this transport, whole and in order, with the
//! descriptors that belong to some.

use super::frames::{Frame, Head, broken};
use super::sockets::{self, Moved};
use crate::transport::TransportError;
use crate::wire::{HEADER_BYTES, Header, Kind, MAX_BODY, MAX_BODY_BEFORE_HELLO};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    out: VecDeque<Segment>,
    /// What comes after all of `out`.
    tail: BytesMut,
    waiting: u64,
    /// The start of the frame that is being received. Grows only with bytes that came.
    input: BytesMut,
    /// Descriptors that came and whose frame is not there yet.
    fds: VecDeque<OwnedFd>,
    /// The engine's first frame has come.
    greeted: bool,
}

/// Something that came.
#[derive(Debug)]
pub(super) enum Incoming {
    Control(Bytes),
    /// A frame of this transport, and its descriptor if one belongs to it.
    Own(Frame, Option<OwnedFd>),
}

/// Bytes to be sent; the descriptor goes with the first of them.
#[derive(Debug)]
struct Segment {
    bytes: Bytes,
    fd: Option<Arc<OwnedFd>>,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            out: VecDeque::new(),
            tail: BytesMut::new(),
            waiting: 0,
            input: BytesMut::new(),
            fds: VecDeque::new(),
            greeted: false,
        }
    }

    /// Queues a frame of the engine. Returns how many bytes wait.
    pub(super) fn control(&mut self, frame: Bytes) -> u64 {
        self.waiting += frame.len() as u64;
        if frame.len() < SMALL {
            self.tail.extend_from_slice(&frame);
        } else {
            self.seal();
            self.out.push_back(Segment { bytes: frame, fd: None });
        }
        self.waiting
    }

    /// Queues a frame of this transport.
    pub(super) fn own(&mut self, frame: &Frame) {
        self.put(|out| frame.put(out));
    }

    /// Queues what `put` appends.
    pub(super) fn put(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.waiting += (self.tail.len() - before) as u64;
    }

    /// Queues a frame and the descriptor that belongs to it.
    pub(super) fn with_fd(&mut self, frame: &Frame, fd: Arc<OwnedFd>) {
        self.seal();
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        self.waiting += bytes.len() as u64;
        self.out.push_back(Segment { bytes: bytes.freeze(), fd: Some(fd) });
    }

    /// Sends what can be sent. Returns how many bytes that was.
    pub(super) fn flush(&mut self) -> Result<u64, TransportError> {
        self.seal();
        let before = self.waiting;
        while let Some(first) = self.out.front() {
            let fd = first.fd.as_ref().map(|fd| fd.as_fd());
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, segment) in slices.iter_mut().zip(&self.out) {
                if count > 0 && segment.fd.is_some() {
                    break;
                }
                *slice = IoSlice::new(&segment.bytes);
                count += 1;
            }
            match sockets::send(self.socket.as_fd(), &slices[..count], fd)? {
                Moved::Blocked => break,
                Moved::Bytes(count) => self.sent(count),
            }
        }
        Ok(before - self.waiting)
    }

    /// Receives about `budget` bytes at most and hands on every frame that is whole, also those before an
    /// error. Returns how many bytes came.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        scratch: &mut [u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<usize, TransportError> {
        let mut received = 0;
        while received < budget {
            let fds = &mut self.fds;
            match sockets::receive(self.socket.as_fd(), scratch, |fd| fds.push_back(fd))? {
                Moved::Blocked => break,
                Moved::Bytes(count) => {
                    received += count;
                    self.input.extend_from_slice(&scratch[..count]);
                    self.cut(incoming)?;
                    // A descriptor comes with the first byte of its frame.
                    if self.fds.len() > MAX_FDS {
                        return Err(broken("descriptors that belong to nothing".into()));
                    }
                    if count < scratch.len() && self.fds.is_empty() {
                        break; // most likely all there was; if not, the descriptor is still readable
                    }
                }
            }
        }
        Ok(received)
    }

    /// Says that no more will come.
    pub(super) fn say_goodbye(&mut self) {
        // The connection may have failed: then there is nobody to say it to.
        let _ = self.flush();
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Bytes that wait to be sent.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let bytes = self.tail.split().freeze();
            self.out.push_back(Segment { bytes, fd: None });
        }
    }

    fn sent(&mut self, count: usize) {
        self.waiting -= count as u64;
        let mut left = count;
        while left > 0
            && let Some(segment) = self.out.front_mut()
        {
            segment.fd = None;
            let of_it = left.min(segment.bytes.len());
            segment.bytes.advance(of_it);
            left -= of_it;
            if segment.bytes.is_empty() {
                self.out.pop_front();
            }
        }
    }

    fn cut(&mut self, incoming: &mut Vec<Incoming>) -> Result<(), TransportError> {
        while let Some(head) = self.input.first_chunk::<{ Head::BYTES }>() {
            if Head::is_ours(head) {
                let Head { kind, body } = Head::decode(head)?;
                if self.input.len() < Head::BYTES + body {
                    return Ok(());
                }
                let mut frame = self.input.split_to(Head::BYTES + body).freeze();
                frame.advance(Head::BYTES);
                let frame = Frame::decode(kind, frame)?;
                let fd = if frame.has_descriptor() {
                    let missing = || broken("a descriptor is missing".into());
                    Some(self.fds.pop_front().ok_or_else(missing)?)
                } else {
                    None
                };
                incoming.push(Incoming::Own(frame, fd));
                continue;
            }
            let header = Header::decode(head).map_err(|error| broken(error.to_string()))?;
            if !self.greeted && header.kind != Kind::Hello {
                return Err(broken(format!("first frame is {:?}, not a hello", header.kind)));
            }
            if header.kind == Kind::Data {
                return Err(broken("data frame with its payload".into()));
            }
            let limit = if self.greeted { MAX_BODY } else { MAX_BODY_BEFORE_HELLO };
            let body = header.body_within(limit).map_err(|error| broken(error.to_string()))?;
            if self.input.len() < HEADER_BYTES + body {
                return Ok(());
            }
            self.greeted = true;
            let frame = self.input.split_to(HEADER_BYTES + body);
            // A small frame that is kept must not keep a large buffer.
            let frame = if frame.len() < SMALL { Bytes::copy_from_slice(&frame) } else { frame.freeze() };
            incoming.push(Incoming::Control(frame));
        }
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Largest control frame.
pub(super) const MAX_FRAME: u32 = MAX_BODY + 16;
const _: () = assert!(HEADER_BYTES == 16 && Head::BYTES == 16, "both kinds of frames begin alike");
/// Smaller frames are copied into what is sent together.
const SMALL: usize = 4096;
const SLICES: usize = 16;
/// Descriptors whose frames have not come whole.
const MAX_FDS: usize = 64;
