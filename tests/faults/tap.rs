//! A transport between an engine and another transport: records, holds, repeats and loses what passes.

use bytes::Bytes;
use kvferry::layout::{Admission, Extent, Piece};
use kvferry::memory::{MemoryKind, Region};
use kvferry::transport::{Caps, Event, Transport, TransportError, Wait, Write};
use kvferry::wire::Frame;
use kvferry::{GrantId, LinkId, OpId, RegionId};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    Pass,
    Hold,
    Twice,
}

/// What becomes of the engine's writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writes {
    Pass,
    /// So many pass; the others are taken, and nothing comes of them while the link lives.
    HoldAfter(usize),
    /// Taken, and then broken.
    Break,
}

/// The test's hold on a tap.
#[derive(Clone)]
pub(crate) struct Valve(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    bell: OwnedFd,
}

struct State {
    out: Box<dyn FnMut(&Frame) -> Fate + Send>,
    writes: Writes,
    passed: usize,
    held_writes: usize,
    held: Vec<(LinkId, Bytes)>,
    sent: Vec<(LinkId, Bytes)>,
    to_send: Vec<(LinkId, Bytes)>,
    landed: usize,
    at_progress: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Debug)]
struct Kept {
    link: LinkId,
    op: OpId,
    grant: GrantId,
    piece: Piece,
    source: Vec<Extent>,
}

#[derive(Debug)]
pub(crate) struct Tap {
    inner: Box<dyn Transport>,
    valve: Valve,
    poll: OwnedFd,
    kept: Vec<Kept>,
    ready: Vec<Event>,
}

impl Tap {
    pub(crate) fn on(inner: Box<dyn Transport>) -> (Box<dyn Transport>, Valve) {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for fd in [bell.as_fd(), inner.wake_fd().unwrap()] {
            epoll::add(&poll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        let state = State {
            out: Box::new(|_| Fate::Pass),
            writes: Writes::Pass,
            passed: 0,
            held_writes: 0,
            held: Vec::new(),
            sent: Vec::new(),
            to_send: Vec::new(),
            landed: 0,
            at_progress: None,
        };
        let valve = Valve(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), bell }));
        let tap = Self { inner, valve: valve.clone(), poll, kept: Vec::new(), ready: Vec::new() };
        (Box::new(tap), valve)
    }

    /// Hands on the writes that wait, if they may go.
    fn release_writes(&mut self) {
        if self.valve.0.state.lock().writes != Writes::Pass {
            return;
        }
        for kept in std::mem::take(&mut self.kept) {
            let Kept { link, op, grant, .. } = kept;
            let write =
                Write { op, grant, piece: kept.piece.clone(), source: &kept.source, destination: &[] };
            match self.inner.write(link, &write) {
                Ok(()) => {}
                Err(TransportError::Full) => self.kept.push(kept),
                Err(error) => self.ready.push(Event::Settled { link, grant, op, result: Err(error) }),
            }
        }
        self.valve.0.state.lock().held_writes = self.kept.len();
    }
}

impl Transport for Tap {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        self.inner.supports(kind)
    }

    fn local_address(&self) -> Bytes {
        self.inner.local_address()
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        self.inner.connect(address)
    }

    fn disconnect(&mut self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        self.inner.register(region)
    }

    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        let Write { op, grant, .. } = *write;
        let mut state = self.valve.0.state.lock();
        match state.writes {
            Writes::HoldAfter(passing) if state.passed >= passing => {
                let (piece, source) = (write.piece.clone(), write.source.to_vec());
                self.kept.push(Kept { link, op, grant, piece, source });
                state.held_writes += 1;
                self.valve.0.changed.notify_all();
                Ok(())
            }
            Writes::Break => {
                let source = std::io::ErrorKind::BrokenPipe.into();
                let error = TransportError::Io { name: self.inner.name(), op: "test", source };
                self.ready.push(Event::Settled { link, grant, op, result: Err(error) });
                Ok(())
            }
            _ => {
                drop(state);
                self.inner.write(link, write)?;
                self.valve.0.state.lock().passed += 1;
                Ok(())
            }
        }
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        let mut state = self.valve.0.state.lock();
        let fate = (state.out)(&Frame::decode(&frame).unwrap());
        state.sent.push((link, frame.clone()));
        self.valve.0.changed.notify_all();
        if fate == Fate::Hold {
            state.held.push((link, frame));
            return Ok(());
        }
        drop(state);
        if fate == Fate::Twice {
            self.inner.send_control(link, frame.clone())?;
        }
        self.inner.send_control(link, frame)
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        self.inner.admit(link, grant, admission);
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        self.inner.revoke(link, grant);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let _ = rustix::io::read(&self.valve.0.bell, &mut [0; 8]);
        let at_progress = self.valve.0.state.lock().at_progress.take();
        if let Some(act) = at_progress {
            act();
        }
        let to_send = std::mem::take(&mut self.valve.0.state.lock().to_send);
        for (link, frame) in to_send {
            // The link may have ended meanwhile.
            let _ = self.inner.send_control(link, frame);
        }
        self.release_writes();
        self.inner.progress(events);
        let mut state = self.valve.0.state.lock();
        for event in &events[before..] {
            match event {
                Event::Landed { .. } => state.landed += 1,
                Event::LinkDown { link: ended, .. } => {
                    state.held.retain(|(link, _)| link != ended);
                    let (over, kept) = std::mem::take(&mut self.kept)
                        .into_iter()
                        .partition::<Vec<_>, _>(|kept| kept.link == *ended);
                    self.kept = kept;
                    self.ready.extend(over.into_iter().map(|Kept { link, op, grant, .. }| {
                        let result = Err(TransportError::Closed { name: self.inner.name() });
                        Event::Settled { link, grant, op, result }
                    }));
                    state.held_writes = self.kept.len();
                }
                _ => {}
            }
        }
        drop(state);
        self.valve.0.changed.notify_all();
        events.append(&mut self.ready);
        events.len() - before
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn prepare_wait(&mut self) -> Wait {
        let state = self.valve.0.state.lock();
        let may_write = state.writes == Writes::Pass && !self.kept.is_empty();
        let is_busy = may_write || !self.ready.is_empty() || !state.to_send.is_empty();
        drop(state);
        if is_busy { Wait::Busy } else { self.inner.prepare_wait() }
    }
}

impl Valve {
    /// Decides about each frame of the engine.
    pub(crate) fn on_frame(&self, fate: impl FnMut(&Frame) -> Fate + Send + 'static) {
        self.0.state.lock().out = Box::new(fate);
    }

    pub(crate) fn on_write(&self, writes: Writes) {
        let mut state = self.0.state.lock();
        (state.writes, state.passed) = (writes, 0);
        drop(state);
        self.ring();
    }

    /// Does this in the next call of `progress`, and so within a turn of the engine.
    pub(crate) fn at_progress(&self, act: impl FnOnce() + Send + 'static) {
        self.0.state.lock().at_progress = Some(Box::new(act));
        self.ring();
    }

    /// Sends a frame as if the engine had.
    pub(crate) fn send(&self, link: LinkId, frame: Bytes) {
        self.0.state.lock().to_send.push((link, frame));
        self.ring();
    }

    /// Lets everything pass, what was held included.
    pub(crate) fn open(&self) {
        let mut state = self.0.state.lock();
        state.out = Box::new(|_| Fate::Pass);
        state.writes = Writes::Pass;
        let held = std::mem::take(&mut state.held);
        state.to_send.extend(held);
        drop(state);
        self.ring();
    }

    /// Frames of the engine so far.
    pub(crate) fn sent(&self) -> Vec<(LinkId, Bytes)> {
        self.0.state.lock().sent.clone()
    }

    /// Waits until so many frames are held.
    pub(crate) fn until_held(&self, frames: usize) {
        self.until("held frames", |state| state.held.len() >= frames);
    }

    /// Waits until so many writes are held.
    pub(crate) fn until_held_writes(&self, writes: usize) {
        self.until("held writes", |state| state.held_writes >= writes);
    }

    /// Waits until so many writes of peers are in place.
    pub(crate) fn until_landed(&self, writes: usize) {
        self.until("landed writes", |state| state.landed >= writes);
    }

    /// Waits until the engine has sent such a frame.
    pub(crate) fn until_sent(&self, is_it: impl Fn(&Frame) -> bool) {
        self.until("a frame", |state| {
            state.sent.iter().any(|(_, frame)| Frame::decode(frame).is_ok_and(|frame| is_it(&frame)))
        });
    }

    fn until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let mut state = self.0.state.lock();
        while !is_so(&state) {
            let over = self.0.changed.wait_for(&mut state, Duration::from_secs(30)).timed_out();
            assert!(!over, "waited in vain for {what}");
        }
    }

    fn ring(&self) {
        rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes()).unwrap();
    }
}

impl fmt::Debug for Valve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Valve")
    }
}
