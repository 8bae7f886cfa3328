//! The control connection of a link: whole frames, in order, within limits.

use super::NAME;
use super::sockets::{self, Moved};
use crate::transport::TransportError;
use crate::wire::{HEADER_BYTES, Header, Kind, MAX_BODY, MAX_BODY_BEFORE_HELLO};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(super) struct Control {
    socket: OwnedFd,
    /// Frames to send; the first may be sent in part.
    out: VecDeque<Bytes>,
    waiting: u64,
    /// The start of the frame that is being received. Grows only with bytes that came.
    input: BytesMut,
    greeted: bool,
}

impl Control {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, out: VecDeque::new(), waiting: 0, input: BytesMut::new(), greeted: false }
    }

    /// Queues a frame and sends what can be sent. Returns how many bytes wait.
    pub(super) fn send(&mut self, frame: Bytes) -> Result<u64, TransportError> {
        self.waiting += frame.len() as u64;
        self.out.push_back(frame);
        if self.out.len() == 1 {
            self.flush()?;
        }
        Ok(self.waiting)
    }

    /// Sends what can be sent. Returns how many bytes that was.
    pub(super) fn flush(&mut self) -> Result<u64, TransportError> {
        let before = self.waiting;
        while let Some(frame) = self.out.front_mut() {
            match sockets::send(self.socket.as_fd(), frame)? {
                Moved::Blocked => break,
                Moved::Bytes(count) => {
                    self.waiting -= count as u64;
                    frame.advance(count);
                    if frame.is_empty() {
                        self.out.pop_front();
                    }
                }
            }
        }
        Ok(before - self.waiting)
    }

    /// Receives about `budget` bytes at most and hands on every frame that is whole. The frames
    /// before an error are handed on as well. Returns how many bytes came.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        scratch: &mut [u8],
        mut each: impl FnMut(Bytes),
    ) -> Result<usize, TransportError> {
        let mut received = 0;
        while received < budget {
            match sockets::receive(self.socket.as_fd(), scratch)? {
                Moved::Blocked => break,
                Moved::Bytes(count) => {
                    received += count;
                    self.input.extend_from_slice(&scratch[..count]);
                    self.cut(&mut each)?;
                }
            }
        }
        Ok(received)
    }

    /// Whether bytes wait to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    fn cut(&mut self, each: &mut impl FnMut(Bytes)) -> Result<(), TransportError> {
        while let Some(head) = self.input.first_chunk::<HEADER_BYTES>() {
            let broken = |error: &dyn std::fmt::Display| TransportError::Format {
                name: NAME,
                detail: error.to_string(),
            };
            let header = Header::decode(head).map_err(|error| broken(&error))?;
            if !self.greeted && header.kind != Kind::Hello {
                return Err(broken(&format_args!("first frame is {:?}, not a hello", header.kind)));
            }
            if header.kind == Kind::Data {
                return Err(broken(&"data frame on the control connection"));
            }
            let limit = if self.greeted { MAX_BODY } else { MAX_BODY_BEFORE_HELLO };
            let body = header.body_within(limit).map_err(|error| broken(&error))?;
            if self.input.len() < HEADER_BYTES + body {
                return Ok(());
            }
            self.greeted = true;
            let frame = self.input.split_to(HEADER_BYTES + body);
            // A small frame that is kept must not keep a large buffer.
            each(if frame.len() < SMALL { Bytes::copy_from_slice(&frame) } else { frame.freeze() });
        }
        Ok(())
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Largest control frame.
pub(super) const MAX_FRAME: u32 = MAX_BODY + 16;
const SMALL: usize = 4096;
const _: () = assert!(HEADER_BYTES == 16, "the largest frame counts its header");
