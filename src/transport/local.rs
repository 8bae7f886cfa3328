//! The in-process transport: the reference, and what single-process users run.
//!
//! Two-sided: a write waits at the destination, whose own `progress` copies it, a bounded number of
//! bytes a turn. A link's gate is held during each copy; an end that closes the link takes it first, so
//! that nobody reads or writes pages whose writes have settled.

use super::grants::{Begin, Grants, Revoking};
use super::mailbox::Mailbox;
use super::{Caps, Event, Transport, TransportError, Wait, Write, WriteModel};
use crate::home::Home;
use crate::ids::{GrantId, LinkId, OpId, RegionId};
use crate::layout::{Admission, Extent, Piece, Refusal};
use crate::memory::{Body, Cursor, MemoryKind, Region, RegionTable, Regions, host};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Transports of one process that can reach each other by name.
///
/// ```
/// use kvferry::transport::{Transport, local::LocalNetwork};
///
/// let network = LocalNetwork::new();
/// let decode = network.endpoint("decode")?;
/// let mut prefill = network.endpoint("prefill")?;
/// let link = prefill.connect(&decode.local_address())?;
/// # let _ = link;
/// # Ok::<(), kvferry::transport::TransportError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LocalNetwork {
    names: Arc<Mutex<HashMap<String, Weak<Inbox>>>>,
}

/// One end of a [`LocalNetwork`].
#[derive(Debug)]
pub struct LocalTransport {
    home: Home,
    network: LocalNetwork,
    name: String,
    inbox: Arc<Inbox>,
    regions: RegionTable,
    links: BTreeMap<LinkId, Link>,
    /// Links with writes to apply, in turn.
    applying: VecDeque<LinkId>,
    /// Events of calls, for the next `progress`.
    ready: VecDeque<Event>,
}

type Inbox = Mailbox<(LinkId, Message)>;

/// One end's view of a link.
#[derive(Debug)]
struct Link {
    peer: Arc<Inbox>,
    /// The link's number at the peer.
    there: LinkId,
    wire: Arc<Wire>,
    /// Our index into the wire's counts.
    end: usize,
    grants: Grants,
    incoming: VecDeque<Arriving>,
    sent: VecDeque<Sent>,
    in_flight: u64,
}

/// What both ends of a link share.
#[derive(Debug)]
struct Wire {
    /// Whether the link is open; held while bytes are copied.
    gate: Mutex<bool>,
    /// Bytes of control frames waiting, by the end that sent them.
    control: [AtomicU64; 2],
}

#[derive(Debug)]
enum Message {
    Open {
        peer: Weak<Inbox>,
        there: LinkId,
        wire: Arc<Wire>,
    },
    Opened,
    Control(Bytes),
    Write(Box<Arriving>),
    /// The oldest write is over.
    Settled,
    Closed,
}

/// A write that waits to be applied.
#[derive(Debug)]
struct Arriving {
    grant: GrantId,
    op: OpId,
    piece: Piece,
    bytes: u64,
    regions: Arc<Regions>,
    source: Vec<Extent>,
    /// Where it goes, once looked up.
    place: Place,
    done: u64,
    from: Cursor,
    to: Cursor,
}

#[derive(Debug)]
enum Place {
    Unknown,
    Pages(Vec<Extent>),
    Nowhere,
}

#[derive(Debug)]
struct Sent {
    grant: GrantId,
    op: OpId,
    bytes: u64,
}

impl LocalNetwork {
    /// A network without ends.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new end, reached by `name`.
    ///
    /// # Errors
    /// The name is in use, or no descriptor is left.
    pub fn endpoint(&self, name: &str) -> Result<LocalTransport, TransportError> {
        let inbox =
            Inbox::new().map_err(|source| TransportError::Io { name: NAME, op: "eventfd", source })?;
        let inbox = Arc::new(inbox);
        let mut names = self.names.lock();
        if names.get(name).is_some_and(|inbox| inbox.strong_count() > 0) {
            return Err(TransportError::Address { name: NAME, detail: format!("`{name}` is in use") });
        }
        names.insert(name.to_owned(), Arc::downgrade(&inbox));
        drop(names);
        Ok(LocalTransport {
            home: Home::here(),
            network: self.clone(),
            name: name.to_owned(),
            inbox,
            regions: RegionTable::default(),
            links: BTreeMap::new(),
            applying: VecDeque::new(),
            ready: VecDeque::new(),
        })
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        Caps { write_model: WriteModel::TwoSided, max_control: MAX_CONTROL, max_write: MAX_WRITE }
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        host::is_host(kind)
    }

    fn local_address(&self) -> Bytes {
        Bytes::copy_from_slice(self.name.as_bytes())
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        let name = std::str::from_utf8(address)
            .map_err(|_| TransportError::Address { name: NAME, detail: "not UTF-8".into() })?;
        let (here, there) = (LinkId::allocate(), LinkId::allocate());
        let Some(peer) = self.network.names.lock().get(name).and_then(Weak::upgrade) else {
            self.ready.push_back(down(here, closed()));
            return Ok(here);
        };
        let wire = Arc::new(Wire { gate: Mutex::new(true), control: Default::default() });
        let opening =
            Message::Open { peer: Arc::downgrade(&self.inbox), there: here, wire: Arc::clone(&wire) };
        peer.push((there, opening));
        self.links.insert(here, Link::new(peer, there, wire, 0));
        Ok(here)
    }

    fn disconnect(&mut self, link: LinkId) {
        if let Some(closing) = self.links.remove(&link) {
            self.close(link, closing, || TransportError::Disconnected { name: NAME });
        }
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        if !self.supports(region.kind()) {
            return Err(TransportError::Unsupported { name: NAME, kind: region.kind() });
        }
        self.regions.insert(region.clone());
        Ok(())
    }

    fn deregister(&mut self, region: RegionId) {
        self.regions.remove(region);
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        let open = self.links.get_mut(&link).ok_or(TransportError::NotConnected(link))?;
        let regions = self.regions.snapshot();
        let bytes = regions.check(write.source)?;
        if bytes > MAX_WRITE {
            return Err(TransportError::TooLarge { name: NAME, bytes, limit: MAX_WRITE });
        }
        let full = open.in_flight > 0 && open.in_flight + bytes > WINDOW;
        if full || open.sent.len() >= MAX_WRITES {
            return Err(TransportError::Full);
        }
        let Write { op, grant, .. } = *write;
        open.in_flight += bytes;
        open.sent.push_back(Sent { grant, op, bytes });
        let arriving = Arriving {
            grant,
            op,
            piece: write.piece.clone(),
            bytes,
            regions,
            source: write.source.to_vec(),
            place: Place::Unknown,
            done: 0,
            from: Cursor::default(),
            to: Cursor::default(),
        };
        open.peer.push((open.there, Message::Write(Box::new(arriving))));
        Ok(())
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        let open = self.links.get(&link).ok_or(TransportError::NotConnected(link))?;
        let bytes = frame.len() as u64;
        if bytes > u64::from(MAX_CONTROL) {
            return Err(TransportError::TooLarge { name: NAME, bytes, limit: MAX_CONTROL.into() });
        }
        // Relaxed: a count, nothing is read on its strength.
        let waiting = open.wire.control[open.end].fetch_add(bytes, Ordering::Relaxed) + bytes;
        if waiting > MAX_WAITING {
            let stalled = || TransportError::Stalled { name: NAME, waiting };
            if let Some(closing) = self.links.remove(&link) {
                self.close(link, closing, stalled);
            }
            return Err(stalled());
        }
        open.peer.push((open.there, Message::Control(frame)));
        Ok(())
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        if let Some(open) = self.links.get(&link) {
            open.grants.admit(grant, admission);
        }
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        // Bytes are copied by this thread, in `progress` only: nobody holds the grant now.
        let done = self.links.get(&link).is_none_or(|open| open.grants.revoke(grant) == Revoking::Done);
        debug_assert!(done, "a local grant is held outside progress");
        self.ready.push_back(Event::Revoked { link, grant });
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(self.ready.drain(..));
        self.inbox.silence();
        for _ in 0..MESSAGES_A_TURN {
            let Some((link, message)) = self.inbox.pop() else { break };
            self.receive(link, message, events);
        }
        self.apply(events);
        // Closing a link may have left more.
        events.extend(self.ready.drain(..));
        events.len() - before
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell())
    }

    fn prepare_wait(&mut self) -> Wait {
        if self.ready.is_empty() && self.applying.is_empty() { self.inbox.arm() } else { Wait::Busy }
    }
}

impl LocalTransport {
    fn receive(&mut self, link: LinkId, message: Message, events: &mut Vec<Event>) {
        if let Message::Open { peer, there, wire } = message {
            if let Some(peer) = peer.upgrade() {
                peer.push((there, Message::Opened));
                self.links.insert(link, Link::new(peer, there, wire, 1));
                events.push(Event::Connected { link });
            }
            return;
        }
        // What was under way when this side closed the link.
        let Some(open) = self.links.get_mut(&link) else { return };
        match message {
            Message::Open { .. } => {}
            Message::Opened => events.push(Event::Connected { link }),
            Message::Control(frame) => {
                open.wire.control[1 - open.end].fetch_sub(frame.len() as u64, Ordering::Relaxed);
                events.push(Event::Control { link, frame });
            }
            Message::Write(arriving) => {
                if open.incoming.is_empty() {
                    self.applying.push_back(link);
                }
                open.incoming.push_back(*arriving);
            }
            Message::Settled => {
                if let Some(Sent { grant, op, bytes }) = open.sent.pop_front() {
                    open.in_flight -= bytes;
                    events.push(Event::Settled { link, grant, op, result: Ok(()) });
                }
            }
            Message::Closed => {
                if let Some(closing) = self.links.remove(&link) {
                    self.close(link, closing, closed);
                }
            }
        }
    }

    /// Copies for the links in turn, until the turn's bytes are used up.
    fn apply(&mut self, events: &mut Vec<Event>) {
        let regions = self.regions.snapshot();
        let mut budget = BYTES_A_TURN;
        while budget > 0
            && let Some(link) = self.applying.pop_front()
        {
            let Some(open) = self.links.get_mut(&link) else { continue };
            budget = budget.saturating_sub(open.apply_next(link, &regions, events).max(1));
            if !open.incoming.is_empty() {
                self.applying.push_back(link);
            }
        }
    }

    fn close(&mut self, link: LinkId, closing: Link, error: impl Fn() -> TransportError) {
        // Waits for at most one bounded copy of the peer; afterwards nobody touches the pages.
        *closing.wire.gate.lock() = false;
        closing.peer.push((closing.there, Message::Closed));
        let settled = closing.sent.into_iter().map(|Sent { grant, op, .. }| {
            let result = Err(error());
            Event::Settled { link, grant, op, result }
        });
        self.ready.extend(settled);
        self.ready.push_back(down(link, error()));
        self.applying.retain(|other| *other != link);
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // a forked child: the other ends are the parent's
        }
        while let Some((link, closing)) = self.links.pop_first() {
            self.close(link, closing, closed);
        }
        // Peers whose opening was not seen yet.
        while let Some((_, message)) = self.inbox.pop() {
            if let Message::Open { peer, there, .. } = message
                && let Some(peer) = peer.upgrade()
            {
                peer.push((there, Message::Closed));
            }
        }
        let mut names = self.network.names.lock();
        if names.get(&self.name).is_some_and(|inbox| inbox.as_ptr() == Arc::as_ptr(&self.inbox)) {
            names.remove(&self.name);
        }
    }
}

impl Link {
    fn new(peer: Arc<Inbox>, there: LinkId, wire: Arc<Wire>, end: usize) -> Self {
        Self {
            peer,
            there,
            wire,
            end,
            grants: Grants::default(),
            incoming: VecDeque::new(),
            sent: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// Copies some of the oldest write. Returns the bytes copied.
    fn apply_next(&mut self, link: LinkId, regions: &Regions, events: &mut Vec<Event>) -> u64 {
        let Some(write) = self.incoming.front_mut() else { return 0 };
        let gate = self.wire.gate.lock();
        if !*gate {
            // The peer closed; its message is on the way and settles everything.
            self.incoming.clear();
            return 0;
        }
        let refused = write.find_place(&self.grants);
        let (grant, op, bytes) = (write.grant, write.op, write.bytes);
        let mut copied = 0;
        let mut landed = false;
        if let Place::Pages(extents) = &write.place
            && self.grants.enter(grant)
        {
            let from = Body { regions: &write.regions, extents: &write.source, cursor: write.from };
            let to = Body { regions, extents, cursor: write.to };
            match host::copy(from, to, BYTES_A_COPY) {
                Ok(moved) => {
                    copied = moved;
                    write.from.advance(&write.source, moved);
                    write.to.advance(extents, moved);
                    write.done += moved;
                    landed = write.done == bytes;
                }
                Err(error) => {
                    tracing::warn!(%error, "admitted pages are not registered, write dropped");
                    write.place = Place::Nowhere;
                }
            }
            self.grants.leave(grant);
        } else {
            write.place = Place::Nowhere;
        }
        drop(gate);
        if let Some(refusal) = refused {
            events.push(Event::Refused { link, grant, detail: refusal.to_string() });
        }
        if landed {
            events.push(Event::Landed { link, grant, op, bytes });
        }
        if landed || matches!(write.place, Place::Nowhere) {
            self.incoming.pop_front();
            self.peer.push((self.there, Message::Settled));
        }
        copied
    }
}

impl Arriving {
    /// Looks up where it goes, once. Answers why it must not go there, if the grant is live.
    fn find_place(&mut self, grants: &Grants) -> Option<Refusal> {
        if !matches!(self.place, Place::Unknown) {
            return None;
        }
        self.place = Place::Nowhere;
        // Too many gaps is a broken peer; here it can only be our own engine.
        let Ok(Begin::Apply(admission)) = grants.begin(self.grant, self.op) else { return None };
        let mut extents = Vec::new();
        match admission.place_of(&self.piece, self.bytes, &mut extents) {
            Ok(()) => {
                self.place = Place::Pages(extents);
                None
            }
            Err(refusal) => Some(refusal),
        }
    }
}

fn closed() -> TransportError {
    TransportError::Closed { name: NAME }
}

fn down(link: LinkId, error: TransportError) -> Event {
    Event::LinkDown { link, quiesced: true, error }
}

const NAME: &str = "local";
const MAX_CONTROL: u32 = (16 << 20) + 16;
const MAX_WRITE: u64 = 16 << 20;
/// Bytes of unsettled writes on a link; one write may pass it.
const WINDOW: u64 = 16 << 20;
/// Unsettled writes on a link.
const MAX_WRITES: usize = 4096;
/// Bytes of control frames that wait for a peer.
const MAX_WAITING: u64 = 64 << 20;
const MESSAGES_A_TURN: usize = 1024;
const BYTES_A_TURN: u64 = 4 << 20;
/// Bytes copied while the gate is held.
const BYTES_A_COPY: u64 = 1 << 20;
