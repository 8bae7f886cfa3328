//! Shared memory between processes of one host: the receiver copies straight from the sender's pages.
//!
//! A link is one Unix socket. It carries the engine's frames and, between them, writes that name their bytes
//! and do not carry them. What they name lies in memory that the receiver has mapped for reading, or that it
//! reads through the kernel (`process_vm_readv`) where the kernel lets it. It copies from there into its own
//! pages, by its own grant, and says how many writes are over:
//!
//! ```text
//!  sender                                 receiver
//!  engine's thread --- Export, fd ------> engine's thread: maps it
//!    | write: Post (piece, extents) ----> hands it to a copier        copiers
//!    |                                                                sender's pages -> own pages
//!    | <-- Over (count) ----------------- reports landed  <---------- news
//! ```
//!
//! # Who is safe from whom
//! - The receiver's pages are written by the receiver alone: `revoke` needs no word of the sender, which may
//!   be frozen or dead.
//! - The sender's pages are only read, and only what it handed out. It takes them back at once, see
//!   `lease.rs`.
//! - A peer is a process whose user the kernel named and the configuration permits. What it hands out must be
//!   sealed against shrinking, and every run is checked against it, so that nothing it says makes this side
//!   read elsewhere or fail in the middle of a copy.
//! - The death of a peer shows as a hang-up or, where a child of its holds the socket open, by its process
//!   descriptor. Neither side leaves a file or a segment behind, however it ends.
//!
//! - `mod.rs`: the transport
//! - `config.rs`: how it is set up
//! - `address.rs`, `sockets.rs`: addresses, Unix sockets, who is at the other end
//! - `frames.rs`, `stream.rs`: what goes over the connection
//! - `links.rs`, `greeting.rs`: links from their first frame to their end
//! - `outbound.rs`, `lease.rs`: what is lent to the peer for reading
//! - `inbound.rs`, `copier.rs`: what is copied from it
#![allow(unsafe_code)]

mod address;
mod config;
mod copier;
mod frames;
mod greeting;
mod inbound;
mod lease;
mod links;
mod outbound;
mod sockets;
mod stream;

pub use config::{Private, ShmConfig};

use super::grants::Revoking;
use super::mailbox::Mailbox;
use super::ticker::Ticker;
use super::{Caps, Event, Transport, TransportError, Wait, Write, WriteModel};
use crate::home::Home;
use crate::ids::{GrantId, LinkId, RegionId};
use crate::layout::Admission;
use crate::memory::{MemoryKind, Region, RegionTable, host};
use address::Address;
use bytes::Bytes;
use copier::{Copiers, Job};
use inbound::{Desk, News};
use links::{Link, Place, Role};
use rustix::event::{Timespec, epoll};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Moves pages between processes of one host, in one copy.
///
/// Fastest from memory that the receiver can map: [`SharedBuffer`](crate::memory::SharedBuffer), or a
/// [`Region::shared`] over a sealed memory file. Other memory is read through the kernel where that permits
/// it; where not, the link is refused and another transport takes its place. Into which memory bytes go does
/// not matter.
#[derive(Debug)]
pub struct ShmTransport {
    home: Home,
    config: ShmConfig,
    address: Address,
    poll: OwnedFd,
    listener: OwnedFd,
    ticker: Ticker,
    news: Arc<Mailbox<Vec<News>>>,
    // Before the regions: threads end before anything they use.
    copiers: Copiers,
    panics: Arc<AtomicU64>,
    table: Arc<RegionTable>,
    links: HashMap<LinkId, Link>,
    /// What each token of `poll` stands for, besides the fixed ones.
    places: HashMap<u64, Place>,
    next_token: u64,
    /// Out of descriptors: the listener is not watched until the next tick.
    is_deaf: bool,
    /// Events of calls, for the next `progress`.
    ready: VecDeque<Event>,
    /// Links with something queued to be sent.
    unsent: Vec<LinkId>,
    desk: Desk,
    scratch: Vec<u8>,
}

impl ShmTransport {
    /// Listens, and starts the threads that copy.
    ///
    /// # Errors
    /// The name is in use, or the process is out of descriptors or threads.
    pub fn new(config: ShmConfig) -> Result<Self, TransportError> {
        let io = |op| move |source: io::Error| TransportError::Io { name: NAME, op, source };
        let address = Address::new(config.name.as_deref())?;
        let listener = sockets::listen(&address).map_err(io("listen"))?;
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
        let copiers = Copiers::start(config.copiers, &config.fault, &table, &news, &panics)
            .map_err(io("starting a copier"))?;
        tracing::debug!(%address, copiers = config.copiers, "listening");
        Ok(Self {
            home: Home::here(),
            address,
            poll,
            listener,
            ticker,
            news,
            copiers,
            panics,
            table,
            links: HashMap::new(),
            places: HashMap::new(),
            next_token: FIRST_TOKEN,
            is_deaf: false,
            ready: VecDeque::new(),
            unsent: Vec::new(),
            desk: Desk::default(),
            scratch: vec![0; SCRATCH],
            config,
        })
    }
}

impl ShmTransport {
    /// The bytes that `connect` takes for a transport of this host that was given a name, as its
    /// `local_address` gives them.
    ///
    /// ```
    /// use kvferry::transport::Transport;
    /// use kvferry::transport::shm::{ShmConfig, ShmTransport};
    ///
    /// let transport = ShmTransport::new(ShmConfig::new().name("doc example"))?;
    /// assert_eq!(transport.local_address(), ShmTransport::address_of("doc example")?);
    /// # Ok::<(), kvferry::transport::TransportError>(())
    /// ```
    ///
    /// # Errors
    /// The name is empty or longer than 64 bytes.
    pub fn address_of(name: &str) -> Result<Bytes, TransportError> {
        Ok(Address::new(Some(name))?.encode())
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        Caps { write_model: WriteModel::TwoSided, max_control: stream::MAX_FRAME, max_write: MAX_WRITE }
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        host::is_host(kind)
    }

    fn local_address(&self) -> Bytes {
        self.address.encode()
    }

    fn describe(&self, address: &[u8]) -> String {
        Address::decode(address).map_or_else(|error| error.to_string(), |place| place.to_string())
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        let address = Address::decode(address)?;
        let link = LinkId::allocate();
        match self.dial(link, &address) {
            Ok(()) => {}
            Err(error) if links::is_exhausted(&error) => return Err(error),
            // The address is fine, who it belongs to is not there.
            Err(error) => self.ready.push_back(links::down(link, error)),
        }
        Ok(link)
    }

    fn disconnect(&mut self, link: LinkId) {
        self.close(link, TransportError::Disconnected { name: NAME });
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        if !self.supports(region.kind()) {
            return Err(TransportError::Unsupported { name: NAME, kind: region.kind() });
        }
        self.table.insert(region.clone());
        // Who came for our pages and cannot read these had better come another way.
        let cannot = |open: &Link| {
            let is_up = open.is_open() && open.role() == Role::Accepted;
            is_up && !open.outbound.can_export(region, self.config.private)
        };
        let found = self.links.iter().filter(|(_, open)| cannot(open));
        let found: Vec<LinkId> = found.map(|(link, _)| *link).collect();
        for link in found {
            self.refuse(link, outbound::unreachable(region));
        }
        Ok(())
    }

    fn deregister(&mut self, region: RegionId) {
        self.table.remove(region);
        for (link, open) in &mut self.links {
            if open.is_open() {
                open.outbound.withdraw(region, &mut open.stream);
                self.unsent.push(*link);
            }
        }
    }

    fn key_for(&mut self, link: LinkId, region: RegionId) -> Bytes {
        // Two-sided, so there is no key. But the peer may read it soon: it is handed out now.
        let regions = self.table.snapshot();
        if let (Some(open), Some(region)) = (self.links.get_mut(&link), regions.get(region))
            && open.is_open()
        {
            // If it cannot be handed out, the write that needs it says so.
            let _ = open.outbound.export(region, self.config.private, &mut open.stream);
            self.unsent.push(link);
        }
        Bytes::new()
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        let open = self.links.get_mut(&link).filter(|open| open.is_open());
        let open = open.ok_or(TransportError::NotConnected(link))?;
        let regions = self.table.snapshot();
        let total = regions.check(write.source)?;
        let bytes = match u32::try_from(total) {
            Ok(bytes) if total <= MAX_WRITE => bytes,
            _ => return Err(TransportError::TooLarge { name: NAME, bytes: total, limit: MAX_WRITE }),
        };
        let Link { outbound, stream, .. } = open;
        if !outbound.has_room(total, self.config.window, stream) {
            return Err(TransportError::Full);
        }
        let mut last = None;
        for extent in write.source {
            if last != Some(extent.region)
                && let Some(region) = regions.get(extent.region)
            {
                outbound.export(region, self.config.private, stream)?;
                last = Some(extent.region);
            }
        }
        outbound.post(write, bytes, stream)?;
        self.unsent.push(link);
        self.send_if_much(link);
        Ok(())
    }

    fn recall(&mut self, link: LinkId, grant: GrantId) {
        let Self { links, ready, .. } = self;
        if let Some(open) = links.get_mut(&link) {
            open.outbound.recall(grant, &mut |grant, op, result| {
                ready.push_back(Event::Settled { link, grant, op, result });
            });
        }
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        let open = self.links.get_mut(&link).filter(|open| open.is_open());
        let open = open.ok_or(TransportError::NotConnected(link))?;
        let bytes = frame.len() as u64;
        if bytes > u64::from(stream::MAX_FRAME) {
            return Err(TransportError::TooLarge { name: NAME, bytes, limit: stream::MAX_FRAME.into() });
        }
        open.stream.control(frame);
        self.unsent.push(link);
        self.send_if_much(link);
        let waiting = self.links.get(&link).map_or(0, |open| open.stream.waiting());
        if waiting > self.config.control_bytes {
            let stalled = || TransportError::Stalled { name: NAME, waiting };
            self.close(link, stalled());
            return Err(stalled());
        }
        Ok(())
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        let Some(open) = self.links.get_mut(&link) else { return };
        if let Some(inbound) = &open.inbound {
            inbound.grants.admit(grant, admission);
            if !std::mem::replace(&mut open.is_admitting, true) {
                // Its pages are going to be read.
                self.copiers.tell(Job::Populate(inbound.imports()));
            }
        }
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        // A link that is gone has nothing left to copy, so nobody is applying.
        let inbound = self.links.get(&link).and_then(|open| open.inbound.as_ref());
        let revoking = inbound.map_or(Revoking::Done, |inbound| inbound.grants.revoke(grant));
        if revoking == Revoking::Done {
            self.ready.push_back(Event::Revoked { link, grant });
        }
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(self.ready.drain(..));
        // First all that was reported by now: what a peer says of its writes comes after their end here.
        self.hear_copiers(events);
        self.poll_sockets(events);
        self.send_unsent();
        // Calls made from within have left theirs here.
        events.extend(self.ready.drain(..));
        events.len() - before
    }

    fn panics(&self) -> u64 {
        // Acquire; pairs with the Release in `Copier::serve`.
        self.panics.load(Ordering::Acquire)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn prepare_wait(&mut self) -> Wait {
        self.send_unsent();
        if self.ready.is_empty() { self.news.arm() } else { Wait::Busy }
    }
}

impl ShmTransport {
    fn hear_copiers(&mut self, events: &mut Vec<Event>) {
        for _ in 0..NEWS_A_TURN {
            let Some(news) = self.news.pop() else { break };
            news.into_iter().for_each(|news| self.hear(news, events));
        }
    }

    fn hear(&mut self, news: News, events: &mut Vec<Event>) {
        match news {
            News::Broken { link, error } => self.broken(link, error),
            News::Landed { link, grant, op, bytes } => {
                // It may have been copied before a revocation and be told after it: too late to count.
                let inbound = self.links.get(&link).and_then(|open| open.inbound.as_ref());
                if inbound.is_some_and(|inbound| inbound.grants.is_admitted(grant)) {
                    events.push(Event::Landed { link, grant, op, bytes });
                }
            }
            News::Over { link, number } => self.count_over(link, number, events),
            News::Refused { link, grant, detail } => events.push(Event::Refused { link, grant, detail }),
            News::Revoked { link, grant } => events.push(Event::Revoked { link, grant }),
        }
    }

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
                TIMER => self.tick(),
                token => match self.places.get(&token) {
                    Some(&Place::Process(link)) => self.peer_ended(link, events),
                    Some(&Place::Socket(link)) => self.serve(link, flags, events),
                    None => {}
                },
            }
        }
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // the connections and the leases are the parent's
        }
        // Also where a forked child still has the descriptor: nobody waits for what is not served.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for open in self.links.values_mut() {
            open.leave();
        }
    }
}

pub(super) const NAME: &str = "shm";
/// Bytes of one write at most, of ours and of a peer's.
const MAX_WRITE: u64 = 16 << 20;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const TIMER: u64 = 2;
const FIRST_TOKEN: u64 = 3;

/// Parts of the time limit for greetings; what is given up is given up after one part too many.
const TICKS: u32 = 4;
const EVENTS: usize = 64;
const SCRATCH: usize = 128 << 10;
/// Reports of copiers taken before sockets have their turn.
const NEWS_A_TURN: usize = 1024;
