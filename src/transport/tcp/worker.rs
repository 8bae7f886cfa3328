//! A thread that moves the data of its lanes, both ways. It never waits for one lane.

use super::config::TcpConfig;
use super::inbound::{Inbound, Lent, NEWS_LIMIT, Stop};
use super::outbound::{Job, Outbound};
use super::{NAME, sockets};
use crate::home::Home;
use crate::ids::{GrantId, LinkId, OpId};
use crate::layout::Extent;
use crate::memory::{RegionTable, Vectors};
use crate::transport::grants::Grants;
use crate::transport::mailbox::Mailbox;
use crate::transport::{TransportError, Wait};
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// What a worker is told. Writes are bounded by the links' windows, the rest by the number of links.
#[derive(Debug)]
pub(super) enum Command {
    /// The lane ends on this side.
    Close {
        lane: u64,
        ending: Ending,
    },
    /// A lane of a new link; `lane` is its number in this transport.
    Open {
        lane: u64,
        place: LanePlace,
        socket: OwnedFd,
        grants: Arc<Grants>,
    },
    /// Reports were taken: read on.
    Resume,
    Stop,
    Write {
        lane: u64,
        job: Job,
    },
}

/// What a worker reports. `Landed` and `Refused` are bounded by the worker, the rest by what it was told
/// to do.
#[derive(Debug)]
pub(super) enum News {
    /// A lane failed: its link is to be closed. What it was given is settled.
    Broken {
        link: LinkId,
        error: TransportError,
    },
    /// A lane is gone, as told; the last report about it.
    Ended {
        place: LanePlace,
    },
    Landed {
        link: LinkId,
        grant: GrantId,
        op: OpId,
        bytes: u64,
    },
    Refused {
        link: LinkId,
        grant: GrantId,
        detail: String,
    },
    /// A name's addresses, or why there are none; from the resolver.
    Resolved {
        link: LinkId,
        found: Result<Vec<SocketAddr>, String>,
    },
    Revoked {
        link: LinkId,
        grant: GrantId,
    },
    Settled(Box<Settled>),
}

#[derive(Debug)]
pub(super) struct Settled {
    pub(super) place: LanePlace,
    pub(super) grant: GrantId,
    pub(super) op: OpId,
    pub(super) bytes: u32,
    pub(super) result: Result<(), TransportError>,
    /// To be used again.
    pub(super) extents: Vec<Extent>,
}

/// Which lane of which link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LanePlace {
    pub(super) link: LinkId,
    pub(super) index: usize,
}

/// Why a lane is closed by the engine's thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Closed,
    Disconnected,
}

/// The engine's end of a worker.
#[derive(Debug)]
pub(super) struct Worker {
    home: Home,
    inbox: Arc<Mailbox<Command>>,
    is_full: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Lanes {
    config: TcpConfig,
    poll: OwnedFd,
    inbox: Arc<Mailbox<Command>>,
    news: Arc<Mailbox<News>>,
    table: Arc<RegionTable>,
    lanes: HashMap<u64, Slot>,
    vectors: Vectors,
    scratch: Vec<u8>,
    /// Some lane waits for reports to be taken.
    is_full: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
}

/// A lane until the engine's thread closes it.
#[derive(Debug)]
enum Slot {
    Broken(LanePlace),
    Open(Box<Lane>),
}

#[derive(Debug)]
struct Lane {
    place: LanePlace,
    socket: OwnedFd,
    inbound: Inbound,
    outbound: Outbound,
    interest: epoll::EventFlags,
    is_paused: bool,
}

impl Worker {
    pub(super) fn start(
        number: usize,
        config: TcpConfig,
        table: Arc<RegionTable>,
        news: Arc<Mailbox<News>>,
        panics: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Mailbox::new()?);
        let is_full = Arc::new(AtomicBool::new(false));
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, inbox.bell(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let lanes = Lanes {
            vectors: Vectors::new(config.vectors),
            config,
            poll,
            inbox: Arc::clone(&inbox),
            news,
            table,
            lanes: HashMap::new(),
            scratch: vec![0; SCRATCH],
            is_full: Arc::clone(&is_full),
            panics,
        };
        let thread =
            std::thread::Builder::new().name(format!("kvferry-tcp-{number}")).spawn(|| lanes.serve())?;
        Ok(Self { home: Home::here(), inbox, is_full, thread: Some(thread) })
    }

    pub(super) fn tell(&self, command: Command) {
        self.inbox.push(command);
    }

    /// Reports were taken: lanes that wait for that go on.
    pub(super) fn resume(&self) {
        // SeqCst; pairs with the store in `pause`.
        if self.is_full.load(Ordering::SeqCst) && self.is_full.swap(false, Ordering::SeqCst) {
            self.inbox.push(Command::Resume);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A forked child has no such thread, and its handle may name another one by now.
            std::mem::forget(self.thread.take());
            return;
        }
        self.inbox.push(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // Soon: the thread waits for nothing but its descriptors. A panic was its own.
            let _ = thread.join();
        }
    }
}

impl Lanes {
    /// Until told to stop. A panic, which would be a defect of ours, ends the links and not the thread; it is
    /// counted before anybody can see what it did.
    fn serve(mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            // Release; pairs with the Acquire in `TcpTransport::panics`.
            self.panics.fetch_add(1, Ordering::Release);
            let open: Vec<u64> = self.lanes.keys().copied().collect();
            for lane in open {
                let source = io::Error::other("a worker panicked");
                self.fail(lane, TransportError::Io { name: NAME, op: "moving data", source });
            }
        }
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut written = Vec::new();
        loop {
            while let Some(command) = self.inbox.pop() {
                match command {
                    Command::Stop => return,
                    command => self.obey(command, &mut written),
                }
            }
            for lane in written.drain(..) {
                self.turn(lane, epoll::EventFlags::empty());
            }
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let limit = if self.inbox.arm() == Wait::Busy { Some(&now) } else { None };
            events.clear();
            // Interrupted: as if nothing happened. Anything else cannot happen to a valid descriptor.
            let _ = epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), limit);
            for event in &events {
                match event.data.u64() {
                    BELL => self.inbox.silence(),
                    lane => self.turn(lane, event.flags),
                }
            }
        }
    }

    fn obey(&mut self, command: Command, written: &mut Vec<u64>) {
        match command {
            Command::Close { lane, ending } => {
                let place = match self.lanes.remove(&lane) {
                    Some(Slot::Open(open)) => self.give_back(*open, ending),
                    Some(Slot::Broken(place)) => place,
                    None => return,
                };
                self.news.push(News::Ended { place });
            }
            Command::Open { lane, place, socket, grants } => self.open(lane, place, socket, grants),
            Command::Resume => {
                let is_paused = |slot: &Slot| matches!(slot, Slot::Open(lane) if lane.is_paused);
                let paused = self.lanes.iter().filter(|(_, slot)| is_paused(slot));
                let paused: Vec<u64> = paused.map(|(number, _)| *number).collect();
                for lane in paused {
                    self.turn(lane, epoll::EventFlags::IN);
                }
            }
            Command::Stop => {}
            Command::Write { lane, job } => match self.lanes.get_mut(&lane) {
                Some(Slot::Open(open)) => {
                    open.outbound.push(job);
                    if written.last() != Some(&lane) {
                        written.push(lane);
                    }
                }
                Some(Slot::Broken(place)) => report(&self.news, *place, job, Err(sockets::closed())),
                None => debug_assert!(false, "a lane is told of before its writes"),
            },
        }
    }

    fn open(&mut self, lane: u64, place: LanePlace, socket: OwnedFd, grants: Arc<Grants>) {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let opened = Lane {
            place,
            inbound: Inbound::new(place.link, grants, self.config.fault.receive.clone()),
            outbound: Outbound::new(&self.config),
            socket,
            interest,
            is_paused: false,
        };
        let added = epoll::add(&self.poll, &opened.socket, epoll::EventData::new_u64(lane), interest);
        self.lanes.insert(lane, Slot::Open(Box::new(opened)));
        if let Err(errno) = added {
            self.fail(lane, sockets::failed("epoll_ctl", errno.into()));
        }
    }

    /// Moves what can be moved on one lane.
    fn turn(&mut self, number: u64, flags: epoll::EventFlags) {
        let Self { lanes, table, vectors, scratch, news, .. } = self;
        let Some(Slot::Open(lane)) = lanes.get_mut(&number) else { return };
        let mut lent = Lent { table, vectors, scratch, news };
        let moved = lane.turn(flags, &mut lent).and_then(|()| lane.watch(&self.poll, number));
        match moved {
            Ok(()) if lane.is_paused => self.pause(),
            Ok(()) => {}
            Err(error) => self.fail(number, error),
        }
    }

    /// Asks to be told when reports are taken.
    fn pause(&self) {
        // SeqCst; pairs with the load in `resume`, which comes after reports are taken: either that
        // sees the flag, or the length here is seen low.
        self.is_full.store(true, Ordering::SeqCst);
        if self.news.len() < NEWS_LIMIT && self.is_full.swap(false, Ordering::SeqCst) {
            self.inbox.push(Command::Resume);
        }
    }

    /// A lane cannot go on: everything it was given is settled, and the engine's thread closes the link.
    fn fail(&mut self, number: u64, error: TransportError) {
        if let Some(Slot::Open(lane)) = self.lanes.remove(&number) {
            let place = self.give_back(*lane, Ending::Closed);
            self.lanes.insert(number, Slot::Broken(place));
            self.news.push(News::Broken { link: place.link, error });
        }
    }

    fn give_back(&self, lane: Lane, ending: Ending) -> LanePlace {
        let Lane { place, mut inbound, outbound, socket, .. } = lane;
        // First, so that nothing is read from pages whose writes have settled.
        drop(socket);
        inbound.end(&self.news);
        outbound.end(|| ending.error(), &mut |job, result| report(&self.news, place, job, result));
        place
    }
}

impl Lane {
    fn turn(&mut self, flags: epoll::EventFlags, lent: &mut Lent<'_>) -> Result<(), TransportError> {
        let Self { place, socket, inbound, outbound, is_paused, .. } = self;
        let place = *place;
        let news = lent.news;
        let mut settle = |job, result| report(news, place, job, result);
        if flags.contains(epoll::EventFlags::OUT) {
            outbound.unblock();
        }
        let input = epoll::EventFlags::IN
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::HUP
            | epoll::EventFlags::ERR;
        if *is_paused && flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            // Reported again and again while nobody reads; the peer is gone.
            return Err(sockets::closed());
        }
        if flags.intersects(input) {
            let mut on_note = |note| outbound.take_note(&note, &mut settle);
            *is_paused = inbound.receive(socket.as_fd(), lent, &mut on_note)? == Stop::Full;
        }
        outbound.send(socket.as_fd(), lent.table, lent.vectors, || inbound.note(), &mut settle)
    }

    /// Asks for the events that matter now.
    fn watch(&mut self, poll: &OwnedFd, number: u64) -> Result<(), TransportError> {
        let mut interest = epoll::EventFlags::empty();
        if !self.is_paused {
            interest |= epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        }
        if self.outbound.has_work() || self.inbound.has_note() {
            interest |= epoll::EventFlags::OUT;
        }
        if interest == self.interest {
            return Ok(());
        }
        self.interest = interest;
        epoll::modify(poll, &self.socket, epoll::EventData::new_u64(number), interest)
            .map_err(|errno| sockets::failed("epoll_ctl", errno.into()))
    }
}

impl Ending {
    pub(super) fn error(self) -> TransportError {
        match self {
            Self::Closed => TransportError::Closed { name: NAME },
            Self::Disconnected => TransportError::Disconnected { name: NAME },
        }
    }
}

fn report(news: &Mailbox<News>, place: LanePlace, job: Job, result: Result<(), TransportError>) {
    let Job { grant, op, bytes, extents, .. } = job;
    news.push(News::Settled(Box::new(Settled { place, grant, op, bytes, result, extents })));
}

/// The mailbox's place among the lanes' numbers.
const BELL: u64 = 0;
const EVENTS: usize = 64;
/// Where payloads go that nobody wants.
const SCRATCH: usize = 64 << 10;
