//! Links from the time they are up to their end.

use super::copier::Job;
use super::frames::{Frame, Place as Memory, Post, broken};
use super::greeting::Greeting;
use super::inbound::{Arrival, Inbound};
use super::outbound::{MAX_WRITES, Outbound};
use super::sockets;
use super::stream::{Incoming, Stream};
use super::{LISTENER, NAME, ShmTransport};
use crate::ids::{LinkId, RegionId};
use crate::memory::fetch::Way;
use crate::memory::import::Import;
use crate::transport::ticker::Run;
use crate::transport::{Event, TransportError};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A connection, from its first byte to its end.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) outbound: Outbound,
    /// Once the peer has said hello.
    pub(super) inbound: Option<Arc<Inbound>>,
    /// Writes may come from the peer.
    pub(super) is_admitting: bool,
    pub(super) stage: Stage,
    pub(super) token: u64,
    /// The peer's process, readable when it has ended.
    pub(super) process: Option<OwnedFd>,
    interest: EventFlags,
    role: Role,
    /// Writes of the peer, from the start.
    arrived: u64,
    /// Those that are over.
    over: Over,
    /// How many of those the peer knows of.
    noted: u64,
}

#[derive(Debug)]
pub(super) enum Stage {
    Greeting(Greeting),
    Up,
    /// Waits until nothing of it is being copied any more.
    Ending(TransportError),
}

/// Who opened a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Accepted,
    Dialled,
}

/// Which writes are over. They end in any order and are told to the peer in the order they came.
#[derive(Debug, Default)]
struct Over {
    /// All before this.
    first: u64,
    /// And of those from it on, these.
    done: VecDeque<bool>,
}

/// What a token stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    Process(LinkId),
    Socket(LinkId),
}

impl Link {
    pub(super) fn new(stream: Stream, outbound: Outbound, role: Role, greeting: Greeting) -> Self {
        Self {
            stream,
            outbound,
            inbound: None,
            is_admitting: false,
            stage: Stage::Greeting(greeting),
            token: 0,
            process: None,
            interest: INPUT,
            role,
            arrived: 0,
            over: Over::default(),
            noted: 0,
        }
    }

    /// Whether it may be used.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// The transport goes: pages are back, and what can be said is said.
    pub(super) fn leave(&mut self) {
        if let Some(inbound) = &self.inbound {
            inbound.close();
        }
        self.outbound.end(sockets::closed, &mut |_, _, _| {});
        self.stream.say_goodbye();
    }
}

impl Over {
    fn insert(&mut self, number: u64) {
        let Some(at) = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()) else { return };
        if self.done.len() <= at {
            self.done.resize(at + 1, false);
        }
        self.done[at] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.first += 1;
        }
    }
}

impl ShmTransport {
    /// A link's connection is ready.
    pub(super) fn serve(&mut self, link: LinkId, flags: EventFlags, events: &mut Vec<Event>) {
        let Some(open) = self.links.get_mut(&link) else { return };
        let before = events.len();
        let mut moved = 0;
        if flags.contains(EventFlags::OUT) {
            // What was waiting for the peer to read on. If it has gone, reading tells.
            moved = open.stream.flush().unwrap_or(0);
        }
        let received = self.read(link, BYTES_A_TURN, events);
        moved += *received.as_ref().unwrap_or(&0) as u64;
        match received {
            Ok(_) => {
                let is_open = self.links.get(&link).is_some_and(Link::is_open);
                if is_open && moved > 0 && events.len() == before {
                    events.push(Event::Alive { link });
                }
                self.watch_output(link);
            }
            Err(error) => self.close(link, error),
        }
    }

    /// Reads what has come, and acts on every frame of it.
    fn read(
        &mut self,
        link: LinkId,
        budget: usize,
        events: &mut Vec<Event>,
    ) -> Result<usize, TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(0) };
        if matches!(open.stage, Stage::Ending(_)) {
            return Ok(0);
        }
        let mut incoming = Vec::new();
        let received = open.stream.receive(budget, &mut self.scratch, &mut incoming);
        for frame in incoming {
            self.take(link, frame, events)?;
        }
        received
    }

    fn take(
        &mut self,
        link: LinkId,
        incoming: Incoming,
        events: &mut Vec<Event>,
    ) -> Result<(), TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        match (&open.stage, incoming) {
            (Stage::Ending(_), _) => Ok(()),
            (Stage::Greeting(_), Incoming::Own(frame, fd)) => self.greeted(link, frame, fd, events),
            (Stage::Greeting(_), Incoming::Control(_)) => Err(broken("a frame before the link is up".into())),
            (Stage::Up, Incoming::Control(frame)) => {
                events.push(Event::Control { link, frame });
                Ok(())
            }
            (Stage::Up, Incoming::Own(Frame::Post(post), _)) => self.arrive(link, post, events),
            (Stage::Up, Incoming::Own(Frame::Over(count), _)) => {
                open.outbound.take_over(count, &mut |grant, op, result| {
                    events.push(Event::Settled { link, grant, op, result });
                })
            }
            (Stage::Up, Incoming::Own(Frame::Export { region, place, len }, fd)) => {
                self.import(link, region, place, len, fd)
            }
            (Stage::Up, Incoming::Own(Frame::Withdraw(region), _)) => {
                if let Some(inbound) = &open.inbound {
                    inbound.change_imports(|imports| imports.remove(region));
                }
                Ok(())
            }
            (Stage::Up, Incoming::Own(Frame::Refuse(detail), _)) => {
                Err(TransportError::Unreachable { name: NAME, detail })
            }
            (Stage::Up, Incoming::Own(frame, _)) => Err(broken(format!("{frame:?} on a link that is up"))),
        }
    }

    /// The peer hands out a region.
    fn import(
        &mut self,
        link: LinkId,
        region: RegionId,
        place: Memory,
        len: u64,
        fd: Option<OwnedFd>,
    ) -> Result<(), TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        let Some(inbound) = &open.inbound else { return Ok(()) };
        if inbound.imports().len() >= MAX_IMPORTS {
            return Err(broken(format!("more than {MAX_IMPORTS} regions")));
        }
        let import = match (place, fd) {
            (Memory::Mapped(at), Some(fd)) => Import::mapped(&fd, at, len),
            (Memory::Mapped(_), None) => return Err(broken("a descriptor is missing".into())),
            (Memory::Remote(_), _) if !inbound.reads_private() => {
                return Err(broken("an address in memory that cannot be read from here".into()));
            }
            (Memory::Remote(at), _) => Import::remote(at, len),
        };
        let import = import.map_err(|error| {
            let detail = format!("region {} of the peer cannot be used: {error}", region.0);
            TransportError::Unreachable { name: NAME, detail }
        })?;
        inbound.change_imports(|imports| imports.insert(region, import.clone()));
        if open.is_admitting {
            let mut new = crate::memory::import::Imports::default();
            new.insert(region, import);
            self.copiers.tell(Job::Populate(Arc::new(new)));
        }
        Ok(())
    }

    /// A write of the peer's: a small one is copied now, if nobody else is at it; others by the copiers.
    fn arrive(&mut self, link: LinkId, post: Post, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        let Some(inbound) = &open.inbound else { return Ok(()) };
        let is_small = post.bytes <= COPIED_AT_ONCE && post.extents.len() <= EXTENTS_AT_ONCE;
        let number = open.arrived;
        if number - open.over.first >= 2 * MAX_WRITES as u64 {
            return Err(broken(format!("more than {MAX_WRITES} writes at once")));
        }
        open.arrived += 1;
        let mut arrival = Box::new(Arrival::new(Arc::clone(inbound), number, post));
        if is_small && self.copiers.are_idle() && !self.config.fault.is_set() {
            let mut news = Vec::new();
            arrival.apply(&mut self.desk, &self.table, Way::Cached, &mut |each| news.push(each));
            news.into_iter().for_each(|news| self.hear(news, events));
        } else {
            self.copiers.tell(Job::Copy(arrival));
        }
        Ok(())
    }

    /// A write of a peer is over: it is told, and an end that waited for it goes on.
    pub(super) fn count_over(&mut self, link: LinkId, number: u64, events: &mut Vec<Event>) {
        let Some(open) = self.links.get_mut(&link) else { return };
        open.over.insert(number);
        let is_quiet = open.over.first == open.arrived;
        if !matches!(open.stage, Stage::Ending(_)) {
            self.unsent.push(link);
        } else if is_quiet && let Some(Link { stage: Stage::Ending(error), .. }) = self.links.remove(&link) {
            events.push(down(link, error));
        }
    }

    /// A copier found that a link cannot go on.
    pub(super) fn broken(&mut self, link: LinkId, error: TransportError) {
        let Some(open) = self.links.get(&link) else { return };
        // Memory of a peer that has gone cannot be read either: that is what happened then.
        let has_gone = matches!(error, TransportError::Io { .. }) && sockets::is_hung_up(open.stream.as_fd());
        self.close(link, if has_gone { sockets::closed() } else { error });
    }

    /// The peer's process has ended, though a child of its may still hold the connection.
    pub(super) fn peer_ended(&mut self, link: LinkId, events: &mut Vec<Event>) {
        loop {
            match self.read(link, BYTES_A_TURN, events) {
                Ok(1..) => {}
                Ok(0) => return self.close(link, sockets::closed()),
                Err(error) => return self.close(link, error),
            }
        }
    }

    /// Ends a link from this side and tells the peer why.
    pub(super) fn refuse(&mut self, link: LinkId, error: TransportError) {
        if let Some(open) = self.links.get_mut(&link) {
            let detail = match &error {
                TransportError::Unreachable { detail, .. } => detail.clone(),
                other => other.to_string(),
            };
            open.stream.own(&Frame::Refuse(detail));
        }
        self.close(link, error);
    }

    /// Ends a link. What we posted settles now; `LinkDown` follows when nothing of the peer's is being copied
    /// any more.
    pub(super) fn close(&mut self, link: LinkId, error: TransportError) {
        let Self { links, ready, places, poll, .. } = self;
        let Some(open) = links.get_mut(&link) else { return };
        if matches!(open.stage, Stage::Ending(_)) {
            return;
        }
        tracing::debug!(%link, %error, "link ends");
        let was_accepted = matches!(open.stage, Stage::Greeting(_)) && open.role == Role::Accepted;
        let is_wanted = matches!(error, TransportError::Disconnected { .. });
        let reason =
            || if is_wanted { TransportError::Disconnected { name: NAME } } else { sockets::closed() };
        // First, so that nothing that is written to the pages now can count.
        open.outbound.end(reason, &mut |grant, op, result| {
            ready.push_back(Event::Settled { link, grant, op, result });
        });
        open.stream.say_goodbye();
        // Its descriptors may live on in a forked child: they are taken from the set by hand.
        let _ = epoll::delete(&*poll, &open.stream);
        if let Some(process) = open.process.take() {
            let _ = epoll::delete(&*poll, &process);
        }
        places.retain(
            |_, place| !matches!(place, Place::Process(other) | Place::Socket(other) if *other == link),
        );
        if let Some(inbound) = &open.inbound {
            inbound.close();
        }
        let is_quiet = open.over.first == open.arrived;
        open.stage = Stage::Ending(error);
        if is_quiet
            && let Some(Link { stage: Stage::Ending(error), .. }) = links.remove(&link)
            // Nobody was told of a connection that came and did not become a link.
            && !was_accepted
        {
            ready.push_back(down(link, error));
        }
    }

    /// Sends what is queued if it is much: the rest waits for the end of the turn.
    pub(super) fn send_if_much(&mut self, link: LinkId) {
        if self.links.get(&link).is_some_and(|open| open.stream.waiting() > MUCH) {
            self.send(link);
        }
    }

    /// Sends what is queued on all links.
    pub(super) fn send_unsent(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        unsent.sort_unstable();
        unsent.dedup();
        unsent.drain(..).for_each(|link| self.send(link));
        // Kept for its memory, unless more came meanwhile.
        if self.unsent.is_empty() {
            self.unsent = unsent;
        }
    }

    fn send(&mut self, link: LinkId) {
        let Some(open) = self.links.get_mut(&link) else { return };
        if open.is_open() && open.noted != open.over.first {
            open.noted = open.over.first;
            open.stream.own(&Frame::Over(open.noted));
        }
        // If the peer has gone, reading what it said last tells so, too.
        let _ = open.stream.flush();
        self.watch_output(link);
    }

    /// Asks for the events of the connection that matter now.
    fn watch_output(&mut self, link: LinkId) {
        let Some(open) = self.links.get_mut(&link) else { return };
        let mut interest = INPUT;
        if open.stream.waiting() > 0 {
            interest |= EventFlags::OUT;
        }
        if interest != open.interest && !matches!(open.stage, Stage::Ending(_)) {
            open.interest = interest;
            let data = epoll::EventData::new_u64(open.token);
            let _ = epoll::modify(&self.poll, &open.stream, data, interest);
        }
    }

    /// Watches the connection of a new link.
    pub(super) fn watch(&mut self, link: LinkId, open: &mut Link) -> Result<(), TransportError> {
        self.next_token += 1;
        open.token = self.next_token;
        epoll::add(&self.poll, &open.stream, epoll::EventData::new_u64(open.token), INPUT)
            .map_err(|errno| sockets::failed("epoll_ctl", errno.into()))?;
        self.places.insert(open.token, Place::Socket(link));
        Ok(())
    }

    /// A part of the time limit has passed.
    pub(super) fn tick(&mut self) {
        self.ticker.silence();
        let mut late = Vec::new();
        for (link, open) in &mut self.links {
            if let Stage::Greeting(greeting) = &mut open.stage
                && greeting.is_late()
            {
                late.push(*link);
            }
        }
        for link in late {
            self.close(link, TransportError::TimedOut { name: NAME, doing: "connecting" });
        }
        let data = epoll::EventData::new_u64(LISTENER);
        if self.is_deaf && epoll::add(&self.poll, &self.listener, data, EventFlags::IN).is_ok() {
            self.is_deaf = false;
        }
        let is_timed =
            self.is_deaf || self.links.values().any(|open| matches!(open.stage, Stage::Greeting(_)));
        if !is_timed {
            self.ticker.run(Run::Stop);
        }
    }
}

pub(super) fn down(link: LinkId, error: TransportError) -> Event {
    Event::LinkDown { link, quiesced: true, error }
}

/// Whether this process, and not the peer, is the cause.
pub(super) fn is_exhausted(error: &TransportError) -> bool {
    let code = |errno: Errno| Some(errno.raw_os_error());
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    matches!(error, TransportError::Io { source, .. }
        if exhausted.into_iter().any(|errno| source.raw_os_error() == code(errno)))
}

const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Bytes of one link's frames read before others have their turn.
const BYTES_A_TURN: usize = 1 << 20;
/// Queued bytes that are sent without waiting for more.
const MUCH: u64 = 32 << 10;
/// Writes of at most so many bytes and extents may be copied by the engine's thread.
const COPIED_AT_ONCE: u32 = 64 << 10;
const EXTENTS_AT_ONCE: usize = 256 * 16;
/// Regions of a peer at most.
const MAX_IMPORTS: usize = 8192;
