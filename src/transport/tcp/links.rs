//! Links from their first connection to their end.

use super::arrivals::{Gathered, Heard};
use super::control::Control;
use super::dial::{Dial, Step};
use super::hello::{Greeting, Role};
use super::sockets::{self, Moved};
use super::worker::{Command, Ending, LanePlace};
use super::{LISTENER, NAME, TICKS, TcpTransport};
use crate::ids::LinkId;
use crate::transport::grants::Grants;
use crate::transport::ticker::Run;
use crate::transport::{Event, TransportError};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A link that is usable, or on its way to its end.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) control: Control,
    pub(super) grants: Arc<Grants>,
    /// Bytes of unsettled writes.
    pub(super) in_flight: u64,
    /// Unsettled writes.
    pub(super) writes: usize,
    pub(super) closing: Option<Closing>,
    lanes: Vec<LaneUse>,
    token: u64,
    interest: EventFlags,
}

/// An end that has begun.
#[derive(Debug)]
pub(super) struct Closing {
    /// Lanes that may still move bytes.
    pub(super) lanes_left: usize,
    error: TransportError,
    /// What the peer said last may still be on its way.
    listens: bool,
    ticks: u32,
}

/// What a token stands for.
#[derive(Debug)]
pub(super) enum Place {
    Arrival,
    Control(LinkId),
    Dial(LinkId, usize),
    /// A control connection of a link that has ended here; read until the peer has closed it too, for so
    /// many ticks at most, so that our last frames arrive.
    Leaving(OwnedFd, u32),
}

#[derive(Debug)]
struct LaneUse {
    number: u64,
    worker: usize,
    in_flight: u64,
}

impl Link {
    /// Chooses the lane with the least to do for a write, and counts it there.
    pub(super) fn take_lane(&mut self, bytes: u64) -> (u64, usize) {
        self.in_flight += bytes;
        self.writes += 1;
        // A link has at least one lane.
        self.lanes.iter_mut().min_by_key(|lane| lane.in_flight).map_or((0, 0), |lane| {
            // A little more than its bytes, so that empty writes take turns as well.
            lane.in_flight += bytes + 1;
            (lane.number, lane.worker)
        })
    }

    /// A write is over.
    pub(super) fn give_lane_back(&mut self, index: usize, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.writes = self.writes.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.in_flight = lane.in_flight.saturating_sub(bytes + 1);
        }
    }

    /// Sends what can be sent at once and says that no more will come.
    pub(super) fn say_goodbye(&mut self, scratch: &mut [u8]) {
        // The connection may have failed: then there is nobody to say it to.
        let _ = self.control.flush();
        let _ = rustix::net::shutdown(self.control.as_fd(), Shutdown::Write);
        drain(self.control.as_fd(), scratch);
    }
}

/// Connections before they are a link.
impl TcpTransport {
    /// Takes the connections that have come.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            match sockets::accept(&self.listener, &self.config) {
                Ok(Some(socket)) => {
                    let token = self.token();
                    if self.watch(&socket, token, EventFlags::IN | EventFlags::RDHUP).is_ok() {
                        self.ticker.run(Run::Tick);
                        self.places.insert(token, Place::Arrival);
                        self.arrivals.push(token, socket, TICKS + 1);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors, most likely: tried again later, without burning a core.
                    tracing::warn!(%error, "connections cannot be accepted now");
                    self.is_deaf = epoll::delete(&self.poll, &self.listener).is_ok();
                    self.ticker.run(Run::Tick);
                    return;
                }
            }
        }
    }

    pub(super) fn hear_arrival(&mut self, token: u64, events: &mut Vec<Event>) {
        match self.arrivals.hear(token) {
            Heard::Part => {}
            Heard::Greeted => {
                if let Some(socket) = self.arrivals.socket(token) {
                    // Only its end is of interest until the others are there.
                    let data = epoll::EventData::new_u64(token);
                    let _ = epoll::modify(&self.poll, socket, data, EventFlags::RDHUP);
                }
            }
            Heard::Gone => {
                self.places.remove(&token);
            }
            Heard::All(gathered) => self.welcome(gathered, events),
        }
    }

    fn welcome(&mut self, gathered: Gathered, events: &mut Vec<Event>) {
        let Gathered { greeting, control, lanes } = gathered;
        if self.links.len() >= self.config.links {
            // Said once for as long as that lasts: anybody may knock.
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(links = self.links.len(), "too many links, peers are turned away");
            }
            return;
        }
        self.is_full = false;
        let answer = Greeting { role: Role::Accepted, ..greeting }.encode();
        // A new connection has room for so little.
        match sockets::send(control.as_fd(), &answer) {
            Ok(Moved::Bytes(Greeting::BYTES)) => self.establish(LinkId::allocate(), control, lanes, events),
            other => tracing::debug!(?other, "peer went before its link was there"),
        }
    }

    /// Connects to the first of `candidates` that may be connected to.
    pub(super) fn start_dial(
        &mut self,
        link: LinkId,
        mut candidates: Vec<SocketAddr>,
    ) -> Result<(), TransportError> {
        let Some(mut dial) = self.dials.remove(&link) else { return Ok(()) };
        self.forget_dial(link, &dial);
        let mut error = sockets::closed();
        if let Some(permitted) = &self.config.permitted {
            let is_permitted = |to: &SocketAddr| permitted.iter().any(|network| network.contains(to.ip()));
            if let Some(to) = candidates.iter().find(|to| !is_permitted(to)) {
                let detail = format!("{to} is outside the permitted networks");
                error = TransportError::Address { name: NAME, detail };
            }
            candidates.retain(is_permitted);
        }
        while !candidates.is_empty() {
            let started = dial.start(candidates.remove(0), &self.config);
            match started.and_then(|()| self.watch_dial(link, &dial)) {
                Ok(()) => {
                    dial.candidates = candidates;
                    self.dials.insert(link, dial);
                    return Ok(());
                }
                Err(other) => {
                    self.forget_dial(link, &dial);
                    error = other;
                }
            }
        }
        Err(error)
    }

    /// The resolver has answered.
    pub(super) fn dial_found(
        &mut self,
        link: LinkId,
        found: Result<Vec<SocketAddr>, String>,
        events: &mut Vec<Event>,
    ) {
        // It may have been given up meanwhile.
        if !self.dials.contains_key(&link) {
            return;
        }
        let started = match found {
            Ok(candidates) => self.start_dial(link, candidates),
            Err(detail) => Err(TransportError::Address { name: NAME, detail }),
        };
        if let Err(error) = started {
            self.dials.remove(&link);
            events.push(down(link, error));
        }
    }

    pub(super) fn step_dial(&mut self, link: LinkId, index: usize, events: &mut Vec<Event>) {
        let Some(dial) = self.dials.get_mut(&link) else { return };
        match dial.step(index) {
            Ok(Step::Waiting) => {}
            Ok(Step::Greeted) => {
                let interest =
                    if index == 0 { EventFlags::IN | EventFlags::RDHUP } else { EventFlags::RDHUP };
                let token = self.places.iter().find_map(|(token, place)| match place {
                    Place::Dial(other, place) if *other == link && *place == index => Some(*token),
                    _ => None,
                });
                if let (Some(token), Some(socket)) = (token, dial.sockets().nth(index)) {
                    let _ = epoll::modify(&self.poll, socket, epoll::EventData::new_u64(token), interest);
                }
            }
            Ok(Step::Accepted) => {
                if let Some(dial) = self.dials.remove(&link) {
                    self.forget_dial(link, &dial);
                    let mut sockets = dial.into_sockets();
                    let control = sockets.remove(0);
                    self.establish(link, control, sockets, events);
                }
            }
            Err(error) => {
                let rest = std::mem::take(&mut dial.candidates);
                let failed = if rest.is_empty() { Err(error) } else { self.start_dial(link, rest) };
                if let Err(error) = failed {
                    if let Some(dial) = self.dials.remove(&link) {
                        self.forget_dial(link, &dial);
                    }
                    events.push(down(link, error));
                }
            }
        }
    }

    /// Stops to watch the connections of a dial.
    pub(super) fn forget_dial(&mut self, link: LinkId, dial: &Dial) {
        for socket in dial.sockets() {
            let _ = epoll::delete(&self.poll, socket);
        }
        self.places.retain(|_, place| !matches!(place, Place::Dial(other, _) if *other == link));
    }

    fn watch_dial(&mut self, link: LinkId, dial: &Dial) -> Result<(), TransportError> {
        for (index, socket) in dial.sockets().enumerate() {
            let token = self.token();
            self.watch(socket, token, EventFlags::OUT)?;
            self.places.insert(token, Place::Dial(link, index));
        }
        Ok(())
    }
}

/// Links.
impl TcpTransport {
    /// All connections are there.
    fn establish(&mut self, link: LinkId, control: OwnedFd, lanes: Vec<OwnedFd>, events: &mut Vec<Event>) {
        let interest = EventFlags::IN | EventFlags::RDHUP;
        // The sockets of an accepted link are watched under their tokens as arrivals.
        for socket in lanes.iter().chain([&control]) {
            let _ = epoll::delete(&self.poll, socket);
        }
        let token = self.token();
        if let Err(error) = self.watch(&control, token, interest) {
            events.push(Event::Connected { link });
            events.push(down(link, error));
            return;
        }
        self.places.insert(token, Place::Control(link));
        let grants = Arc::new(Grants::default());
        let mut uses = Vec::new();
        for (index, socket) in lanes.into_iter().enumerate() {
            let worker = index % self.workers.len();
            let (number, grants) = (self.token(), Arc::clone(&grants));
            let place = LanePlace { link, index };
            self.workers[worker].tell(Command::Open { lane: number, place, socket, grants });
            uses.push(LaneUse { number, worker, in_flight: 0 });
        }
        let control = Control::new(control);
        let opened =
            Link { control, grants, in_flight: 0, writes: 0, closing: None, lanes: uses, token, interest };
        self.links.insert(link, opened);
        events.push(Event::Connected { link });
    }

    /// The control connection is ready.
    pub(super) fn serve_control(&mut self, link: LinkId, flags: EventFlags, events: &mut Vec<Event>) {
        let Some(open) = self.links.get_mut(&link) else { return };
        let before = events.len();
        let frames = |frame| events.push(Event::Control { link, frame });
        let received = open.control.receive(CONTROL_A_TURN, &mut self.scratch, frames);
        let mut has_moved = matches!(received, Ok(1..));
        let mut served = received.map(drop);
        if served.is_ok() && flags.contains(EventFlags::OUT) && open.closing.is_none() {
            // What was waiting for the peer to read on.
            let sent = open.control.flush();
            has_moved |= matches!(sent, Ok(1..));
            served = sent.map(drop);
        }
        if has_moved && events.len() == before && open.closing.is_none() {
            events.push(Event::Alive { link });
        }
        match (served, &mut open.closing) {
            (Ok(()), None) => self.watch_control(link),
            (Ok(()), Some(_)) => {}
            (Err(error), None) => {
                self.close(link, Ending::Closed, error);
                self.stop_listening(link, events);
            }
            (Err(_), Some(_)) => self.stop_listening(link, events),
        }
    }

    /// Asks for the events of the control connection that matter now.
    pub(super) fn watch_control(&mut self, link: LinkId) {
        let Some(open) = self.links.get_mut(&link) else { return };
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        if open.control.has_output() {
            interest |= EventFlags::OUT;
        }
        if interest != open.interest {
            open.interest = interest;
            let data = epoll::EventData::new_u64(open.token);
            let _ = epoll::modify(&self.poll, &open.control, data, interest);
        }
    }

    /// Begins the end of a link; `LinkDown` follows when its lanes are quiet and, unless this side wanted
    /// it, what the peer said last is read.
    pub(super) fn close(&mut self, link: LinkId, ending: Ending, error: TransportError) {
        let Some(open) = self.links.get_mut(&link) else { return };
        if open.closing.is_some() {
            return;
        }
        let _ = open.control.flush();
        let _ = rustix::net::shutdown(open.control.as_fd(), Shutdown::Write);
        for lane in &open.lanes {
            self.workers[lane.worker].tell(Command::Close { lane: lane.number, ending });
        }
        self.ticker.run(Run::Tick);
        // A peer that closed may have said why; one that we close has nothing more to say.
        let listens = matches!(error, TransportError::Closed { .. });
        open.closing =
            Some(Closing { lanes_left: open.lanes.len(), error, listens, ticks: LAST_WORDS_TICKS });
        if listens {
            open.interest = EventFlags::IN | EventFlags::RDHUP;
            let data = epoll::EventData::new_u64(open.token);
            let _ = epoll::modify(&self.poll, &open.control, data, open.interest);
        } else {
            // Frames of a link that this side has ended are of no interest.
            let _ = epoll::delete(&self.poll, &open.control);
        }
    }

    /// Nothing more will come from the peer.
    fn stop_listening(&mut self, link: LinkId, events: &mut Vec<Event>) {
        let Some(open) = self.links.get_mut(&link) else { return };
        if let Some(closing) = &mut open.closing
            && closing.listens
        {
            closing.listens = false;
            let _ = epoll::delete(&self.poll, &open.control);
        }
        self.end_if_quiet(link, events);
    }

    /// Reports the end if nothing is left to wait for.
    pub(super) fn end_if_quiet(&mut self, link: LinkId, events: &mut Vec<Event>) {
        let is_quiet = |open: &Link| {
            open.closing.as_ref().is_some_and(|closing| closing.lanes_left == 0 && !closing.listens)
        };
        if !self.links.get(&link).is_some_and(is_quiet) {
            return;
        }
        let Some(Link { control, closing: Some(closing), token, .. }) = self.links.remove(&link) else {
            return;
        };
        let socket = control.into_socket();
        let is_wanted = matches!(closing.error, TransportError::Disconnected { .. });
        let leaving = is_wanted && self.watch(&socket, token, EventFlags::IN | EventFlags::RDHUP).is_ok();
        if leaving {
            self.places.insert(token, Place::Leaving(socket, LAST_WORDS_TICKS));
        } else {
            self.places.remove(&token);
        }
        tracing::debug!(%link, error = %closing.error, "link ended");
        events.push(down(link, closing.error));
    }

    pub(super) fn drain_leaving(&mut self, token: u64) {
        if let Some(Place::Leaving(socket, _)) = self.places.get(&token)
            && drain(socket.as_fd(), &mut self.scratch)
        {
            self.places.remove(&token);
        }
    }

    /// A part of the time limit has passed.
    pub(super) fn tick(&mut self, events: &mut Vec<Event>) {
        self.ticker.silence();
        self.arrivals.tick();
        let arrivals = &self.arrivals;
        self.places.retain(|token, place| match place {
            Place::Arrival => arrivals.socket(*token).is_some(),
            Place::Leaving(_, ticks) => {
                *ticks = ticks.saturating_sub(1);
                *ticks > 0
            }
            Place::Control(_) | Place::Dial(..) => true,
        });
        for dial in self.dials.values_mut() {
            dial.ticks = dial.ticks.saturating_sub(1);
        }
        let late: Vec<LinkId> =
            self.dials.iter().filter(|(_, dial)| dial.ticks == 0).map(|(link, _)| *link).collect();
        for link in late {
            if let Some(dial) = self.dials.remove(&link) {
                self.forget_dial(link, &dial);
                events.push(down(link, TransportError::TimedOut { name: NAME, doing: "connecting" }));
            }
        }
        let mut silent = Vec::new();
        for (link, open) in &mut self.links {
            if let Some(closing) = &mut open.closing
                && closing.listens
            {
                closing.ticks = closing.ticks.saturating_sub(1);
                if closing.ticks == 0 {
                    silent.push(*link);
                }
            }
        }
        for link in silent {
            self.stop_listening(link, events);
        }
        if self.is_deaf && self.watch(&self.listener, LISTENER, EventFlags::IN).is_ok() {
            self.is_deaf = false;
        }
        if !self.is_timed() {
            self.ticker.run(Run::Stop);
        }
    }

    /// Whether anything has a time limit.
    fn is_timed(&self) -> bool {
        self.is_deaf
            || !self.arrivals.is_empty()
            || !self.dials.is_empty()
            || self.links.values().any(|open| open.closing.is_some())
            || self.places.values().any(|place| matches!(place, Place::Leaving(..)))
    }

    fn watch(&self, socket: &OwnedFd, token: u64, interest: EventFlags) -> Result<(), TransportError> {
        epoll::add(&self.poll, socket, epoll::EventData::new_u64(token), interest)
            .map_err(|errno| sockets::failed("epoll_ctl", errno.into()))
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }
}

pub(super) fn down(link: LinkId, error: TransportError) -> Event {
    Event::LinkDown { link, quiesced: true, error }
}

/// Whether this process, and not the peer or the network, is the cause.
pub(super) fn is_exhausted(error: &TransportError) -> bool {
    let code = |errno: Errno| Some(errno.raw_os_error());
    let exhausted =
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::ADDRNOTAVAIL];
    matches!(error, TransportError::Io { source, .. } if exhausted.into_iter().any(|errno| source.raw_os_error() == code(errno)))
}

/// A link's number, which nobody can guess.
pub(super) fn nonce() -> Result<u128, TransportError> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| sockets::failed("getrandom", errno.into()))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Reads and forgets what has come; whether the end was reached. A bounded number of bytes.
fn drain(socket: BorrowedFd<'_>, scratch: &mut [u8]) -> bool {
    for _ in 0..DRAINS {
        match sockets::receive(socket, scratch) {
            Ok(Moved::Bytes(_)) => {}
            Ok(Moved::Blocked) => return false,
            Err(_) => return true,
        }
    }
    false
}

const ACCEPTS_A_TURN: usize = 64;
/// Bytes of one link's control frames read before others have their turn.
const CONTROL_A_TURN: usize = 1 << 20;
/// Ticks in which what a peer said last is waited for.
const LAST_WORDS_TICKS: u32 = 2;
const DRAINS: usize = 256;
