//! Control connection and data lanes over TCP.
//!
//! A link is one control connection and a number of lanes, all opened by the connecting side. The control
//! connection is served by the engine's thread, in `progress`; lane `k` of every link by worker `k`, both
//! ways:
//!
//! ```text
//!   engine's thread                     worker k
//!   listener, control connections       lane k of every link
//!        | commands: writes, close  ->  |  pages -> socket, socket -> pages
//!        | <- news: landed, settled     |  checksums, notes of what is over
//! ```
//!
//! - `mod.rs`: the transport
//! - `config.rs`: how it is set up
//! - `links.rs`: links from their first connection to their end
//! - `arrivals.rs`, `dial.rs`, `hello.rs`: connections before they are a link, of either direction
//! - `control.rs`: the control connection
//! - `worker.rs`, `inbound.rs`, `outbound.rs`, `note.rs`: the lanes
//! - `address.rs`, `resolver.rs`, `sockets.rs`: addresses, names, sockets
//! - `probe.rs`: decoders for fuzzers

mod address;
mod arrivals;
mod config;
mod control;
mod dial;
mod hello;
mod inbound;
mod links;
mod note;
mod outbound;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod probe;
mod resolver;
mod sockets;
mod worker;

pub use config::{Integrity, TcpConfig};

use super::grants::Revoking;
use super::mailbox::Mailbox;
use super::ticker::{Run, Ticker};
use super::{Caps, Event, Transport, TransportError, Wait, Write, WriteModel};
use crate::address::{Host, HostPort};
use crate::home::Home;
use crate::ids::{GrantId, LinkId, RegionId};
use crate::layout::{Admission, Extent};
use crate::memory::{MemoryKind, Region, RegionTable, host};
use arrivals::Arrivals;
use bytes::Bytes;
use links::{Link, Place};
use outbound::Job;
use resolver::Resolver;
use rustix::event::{Timespec, epoll};
use rustix::net::Shutdown;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use worker::{Command, Ending, News, Settled, Worker};

/// Moves pages over TCP, straight from and into the pools.
///
/// Dropping it ends all links and its threads; its port can be bound again at once.
#[derive(Debug)]
pub struct TcpTransport {
    home: Home,
    config: TcpConfig,
    address: Bytes,
    poll: OwnedFd,
    listener: OwnedFd,
    ticker: Ticker,
    news: Arc<Mailbox<News>>,
    // Before the regions: threads end before anything they use.
    workers: Vec<Worker>,
    /// How often a worker has panicked.
    panics: Arc<AtomicU64>,
    table: Arc<RegionTable>,
    resolver: Resolver,
    links: HashMap<LinkId, Link>,
    dials: HashMap<LinkId, dial::Dial>,
    arrivals: Arrivals,
    /// What each token of `poll` stands for, besides the fixed ones.
    places: HashMap<u64, Place>,
    next_token: u64,
    /// Out of descriptors: the listener is not watched until the next tick.
    is_deaf: bool,
    /// A peer was turned away for want of links, and none was welcomed since.
    is_full: bool,
    /// Events of calls, for the next `progress`.
    ready: VecDeque<Event>,
    /// Extent lists to be used again.
    spare: Vec<Vec<Extent>>,
    scratch: Vec<u8>,
}

impl TcpTransport {
    /// Listens, and starts a thread for each lane.
    ///
    /// # Errors
    /// The address cannot be bound or advertised, or the process is out of descriptors or threads.
    pub fn new(config: TcpConfig) -> Result<Self, TransportError> {
        let bad = |detail| TransportError::Address { name: NAME, detail };
        let (listener, bound) = sockets::listen(config.bind)
            .map_err(|error| bad(format!("binding {} failed: {error}", config.bind)))?;
        let told =
            HostPort::advertised(bound, config.advertise.as_ref()).map_err(|error| bad(error.to_string()))?;
        let address = address::encode(&told)?;
        let io = |op| move |source: io::Error| TransportError::Io { name: NAME, op, source };
        let poll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| io("epoll_create")(errno.into()))?;
        let ticker = Ticker::new(config.hello / TICKS).map_err(io("timerfd_create"))?;
        let news = Arc::new(Mailbox::new().map_err(io("eventfd"))?);
        let fixed = [(LISTENER, listener.as_fd()), (BELL, news.bell()), (TIMER, ticker.as_fd())];
        for (token, fd) in fixed {
            let added = epoll::add(&poll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN);
            added.map_err(|errno| io("epoll_ctl")(errno.into()))?;
        }
        let table = Arc::new(RegionTable::default());
        let panics = Arc::new(AtomicU64::new(0));
        let start = |number| {
            let (config, panics) = (config.clone(), Arc::clone(&panics));
            Worker::start(usize::from(number), config, Arc::clone(&table), Arc::clone(&news), panics)
        };
        let workers =
            (0..config.lanes).map(start).collect::<io::Result<_>>().map_err(io("starting a worker"))?;
        tracing::debug!(address = %told, lanes = config.lanes, "listening");
        Ok(Self {
            home: Home::here(),
            address,
            poll,
            listener,
            ticker,
            news,
            workers,
            panics,
            table,
            resolver: Resolver::default(),
            links: HashMap::new(),
            dials: HashMap::new(),
            arrivals: Arrivals::new(config.arrivals),
            places: HashMap::new(),
            next_token: FIRST_TOKEN,
            is_deaf: false,
            is_full: false,
            ready: VecDeque::new(),
            spare: Vec::new(),
            scratch: vec![0; SCRATCH],
            config,
        })
    }

    /// The bytes that `connect` takes for an address, as `local_address` gives them: for networks in which
    /// peers reach this side through another address than it knows of.
    ///
    /// ```
    /// use kvferry::transport::tcp::TcpTransport;
    ///
    /// let address = "10.0.0.7:4000".parse()?;
    /// let bytes = TcpTransport::encode_address(&address)?;
    /// assert_eq!(TcpTransport::decode_address(&bytes)?, address);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The host's name is longer than 255 bytes.
    pub fn encode_address(address: &HostPort) -> Result<Bytes, TransportError> {
        address::encode(address)
    }

    /// The address that these bytes stand for.
    ///
    /// # Errors
    /// They stand for none.
    pub fn decode_address(bytes: &[u8]) -> Result<HostPort, TransportError> {
        address::decode(bytes)
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        Caps { write_model: WriteModel::TwoSided, max_control: control::MAX_FRAME, max_write: MAX_WRITE }
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        host::is_host(kind)
    }

    fn local_address(&self) -> Bytes {
        self.address.clone()
    }

    fn describe(&self, address: &[u8]) -> String {
        address::decode(address).map_or_else(|error| error.to_string(), |place| place.to_string())
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        let address = address::decode(address)?;
        let link = LinkId::allocate();
        self.dials.insert(link, dial::Dial::new(links::nonce()?, self.config.lanes, TICKS + 1));
        let started = match address.host() {
            Host::Ip(ip) => self.start_dial(link, vec![(*ip, address.port()).into()]),
            Host::Name(_) => self
                .resolver
                .ask(link, address, &self.news)
                .map_err(|source| TransportError::Io { name: NAME, op: "starting the resolver", source }),
        };
        self.ticker.run(Run::Tick);
        match started {
            Ok(()) => Ok(link),
            Err(error) => {
                self.dials.remove(&link);
                if links::is_exhausted(&error) {
                    return Err(error);
                }
                // The address is fine, the network is not.
                self.ready.push_back(links::down(link, error));
                Ok(link)
            }
        }
    }

    fn disconnect(&mut self, link: LinkId) {
        if let Some(dial) = self.dials.remove(&link) {
            self.forget_dial(link, &dial);
            self.ready.push_back(links::down(link, Ending::Disconnected.error()));
        }
        self.close(link, Ending::Disconnected, Ending::Disconnected.error());
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        if !self.supports(region.kind()) {
            return Err(TransportError::Unsupported { name: NAME, kind: region.kind() });
        }
        self.table.insert(region.clone());
        Ok(())
    }

    fn deregister(&mut self, region: RegionId) {
        self.table.remove(region);
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        let open = self.links.get_mut(&link).filter(|open| open.closing.is_none());
        let open = open.ok_or(TransportError::NotConnected(link))?;
        let total = self.table.snapshot().check(write.source)?;
        let bytes = match u32::try_from(total) {
            Ok(bytes) if total <= MAX_WRITE => bytes,
            _ => return Err(TransportError::TooLarge { name: NAME, bytes: total, limit: MAX_WRITE }),
        };
        if (open.in_flight > 0 && open.in_flight + total > self.config.window) || open.writes >= MAX_WRITES {
            return Err(TransportError::Full);
        }
        let mut extents = self.spare.pop().unwrap_or_default();
        extents.extend_from_slice(write.source);
        let Write { op, grant, .. } = *write;
        let job = Job { grant, op, piece: write.piece.clone(), extents, bytes };
        let (lane, worker) = open.take_lane(total);
        self.workers[worker].tell(Command::Write { lane, job });
        Ok(())
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        let open = self.links.get_mut(&link).filter(|open| open.closing.is_none());
        let open = open.ok_or(TransportError::NotConnected(link))?;
        let bytes = frame.len() as u64;
        if bytes > u64::from(control::MAX_FRAME) {
            return Err(TransportError::TooLarge { name: NAME, bytes, limit: control::MAX_FRAME.into() });
        }
        match open.control.send(frame) {
            Ok(waiting) if waiting > self.config.control_bytes => {
                let stalled = || TransportError::Stalled { name: NAME, waiting };
                self.close(link, Ending::Disconnected, stalled());
                Err(stalled())
            }
            Ok(_) => {
                self.watch_control(link);
                Ok(())
            }
            Err(error) => {
                self.close(link, Ending::Closed, error);
                Err(TransportError::NotConnected(link))
            }
        }
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        if let Some(open) = self.links.get(&link) {
            open.grants.admit(grant, admission);
        }
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        // A link that is gone has no lanes, so nobody is applying.
        let revoking = self.links.get(&link).map_or(Revoking::Done, |open| open.grants.revoke(grant));
        if revoking == Revoking::Done {
            self.ready.push_back(Event::Revoked { link, grant });
        }
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(self.ready.drain(..));
        // First all that was reported by now: what a peer says of its writes comes after their end here.
        for _ in 0..self.news.len() {
            let Some(news) = self.news.pop() else { break };
            self.hear(news, events);
        }
        self.poll_sockets(events);
        self.workers.iter().for_each(Worker::resume);
        // Calls made from within have left theirs here.
        events.extend(self.ready.drain(..));
        events.len() - before
    }

    fn panics(&self) -> u64 {
        // Acquire; pairs with the Release in `Lanes::serve`.
        self.panics.load(Ordering::Acquire)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn prepare_wait(&mut self) -> Wait {
        if self.ready.is_empty() { self.news.arm() } else { Wait::Busy }
    }
}

impl TcpTransport {
    fn poll_sockets(&mut self, events: &mut Vec<Event>) {
        let mut polled = Vec::with_capacity(EVENTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted: the next turn sees the same.
        let _ = epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut polled), Some(&now));
        for event in polled {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                LISTENER => self.accept(),
                BELL => self.news.silence(),
                TIMER => self.tick(events),
                token => match self.places.get(&token) {
                    Some(Place::Arrival) => self.hear_arrival(token, events),
                    Some(&Place::Control(link)) => self.serve_control(link, flags, events),
                    Some(&Place::Dial(link, index)) => self.step_dial(link, index, events),
                    Some(Place::Leaving(..)) => self.drain_leaving(token),
                    None => {}
                },
            }
        }
    }

    fn hear(&mut self, news: News, events: &mut Vec<Event>) {
        match news {
            News::Broken { link, error } => self.close(link, Ending::Closed, error),
            News::Ended { place } => {
                if let Some(open) = self.links.get_mut(&place.link)
                    && let Some(closing) = &mut open.closing
                {
                    closing.lanes_left = closing.lanes_left.saturating_sub(1);
                    self.end_if_quiet(place.link, events);
                }
            }
            News::Landed { link, grant, op, bytes } => events.push(Event::Landed { link, grant, op, bytes }),
            News::Refused { link, grant, detail } => events.push(Event::Refused { link, grant, detail }),
            News::Resolved { link, found } => self.dial_found(link, found, events),
            News::Revoked { link, grant } => events.push(Event::Revoked { link, grant }),
            News::Settled(settled) => {
                let Settled { place, grant, op, bytes, result, mut extents } = *settled;
                if let Some(open) = self.links.get_mut(&place.link) {
                    open.give_lane_back(place.index, bytes.into());
                }
                if self.spare.len() < SPARES && extents.capacity() <= SPARE_EXTENTS {
                    extents.clear();
                    self.spare.push(extents);
                }
                events.push(Event::Settled { link: place.link, grant, op, result });
            }
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // the connections are the parent's
        }
        // Also where a forked child still has the descriptor: nobody waits at a port that is not served.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        // What was said last shall arrive: unread bytes would reset the connection.
        for open in self.links.values_mut() {
            open.say_goodbye(&mut self.scratch);
        }
    }
}

pub(super) const NAME: &str = "tcp";
/// Bytes of one write at most, of ours and of a peer's.
const MAX_WRITE: u64 = 16 << 20;
/// Unsettled writes of a link at most.
const MAX_WRITES: usize = 4096;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const TIMER: u64 = 2;
const FIRST_TOKEN: u64 = 3;

/// Parts of the time limit for greetings; what is given up is given up after one part too many.
const TICKS: u32 = 4;
const EVENTS: usize = 64;
const SCRATCH: usize = 64 << 10;
const SPARES: usize = 64;
const SPARE_EXTENTS: usize = 64 << 10;
