//! A connection before it is a link: who is there, whose leases are where, and who can read whose memory.

use super::address::{self, Address};
use super::frames::{Frame, Readable, broken};
use super::inbound::Inbound;
use super::lease::LEASES;
use super::links::{Link, Place, Role, Stage};
use super::outbound::{Outbound, TOKEN_WORDS, unreachable};
use super::sockets::{self, Peer};
use super::stream::Stream;
use super::{NAME, Private, ShmTransport, TICKS};
use crate::ids::LinkId;
use crate::memory::fetch::Process;
use crate::memory::words::PeerWords;
use crate::transport::ticker::Run;
use crate::transport::{Event, TransportError};
use rustix::event::epoll::{self, EventFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far it has come.
#[derive(Debug)]
pub(super) struct Greeting {
    peer: Peer,
    /// The peer has told whether it can read our memory.
    is_probed: bool,
    ticks: u32,
}

impl Greeting {
    fn new(peer: Peer) -> Self {
        Self { peer, is_probed: false, ticks: TICKS + 1 }
    }

    /// A part of the time limit has passed; whether it was the last.
    pub(super) fn is_late(&mut self) -> bool {
        self.ticks = self.ticks.saturating_sub(1);
        self.ticks == 0
    }
}

impl ShmTransport {
    /// Connects to a peer of this host.
    pub(super) fn dial(&mut self, link: LinkId, to: &Address) -> Result<(), TransportError> {
        if address::boot()? != to.boot {
            let detail = format!("{to} is another host");
            return Err(TransportError::Unreachable { name: NAME, detail });
        }
        let socket = sockets::dial(to).map_err(|source| match source.kind() {
            io::ErrorKind::ConnectionRefused => TransportError::Unreachable {
                name: NAME,
                detail: format!("nobody is at {to}, or it is in another network namespace"),
            },
            _ => TransportError::Io { name: NAME, op: "connect", source },
        })?;
        let peer = self.check(&socket)?;
        let mut open = open(socket, Role::Dialled, peer)?;
        let token = u128::from_le_bytes(sockets::random()?);
        open.outbound.hello(token, &mut open.stream)?;
        self.watch(link, &mut open)?;
        self.links.insert(link, open);
        self.unsent.push(link);
        self.ticker.run(Run::Tick);
        Ok(())
    }

    /// Takes the connections that have come.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            match sockets::accept(&self.listener) {
                Ok(Some(socket)) => {
                    if let Err(error) = self.arrival(socket) {
                        tracing::warn!(%error, "a connection was turned away");
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

    fn arrival(&mut self, socket: OwnedFd) -> Result<(), TransportError> {
        let peer = self.check(&socket)?;
        let is_arriving =
            |open: &Link| open.role() == Role::Accepted && matches!(open.stage, Stage::Greeting(_));
        let arriving = self.links.iter().filter(|(_, open)| is_arriving(open)).map(|(link, _)| *link);
        let arriving: Vec<LinkId> = arriving.collect();
        if arriving.len() >= self.config.arrivals
            && let Some(oldest) = arriving.into_iter().min()
        {
            self.close(oldest, sockets::closed());
        }
        if self.links.len() >= self.config.links + self.config.arrivals {
            let detail = format!("{} links are too many", self.links.len());
            return Err(TransportError::Unreachable { name: NAME, detail });
        }
        let link = LinkId::allocate();
        let mut open = open(socket, Role::Accepted, peer)?;
        self.watch(link, &mut open)?;
        self.links.insert(link, open);
        self.ticker.run(Run::Tick);
        Ok(())
    }

    /// Who is at the other end, if that may be.
    fn check(&self, socket: &OwnedFd) -> Result<Peer, TransportError> {
        let peer = sockets::peer(socket.as_fd()).map_err(|source| sockets::failed("getsockopt", source))?;
        if self.config.permits(peer.user) {
            return Ok(peer);
        }
        let detail = format!("user {} is not permitted here", peer.user);
        Err(TransportError::Unreachable { name: NAME, detail })
    }

    /// A frame of a connection that is not yet a link.
    pub(super) fn greeted(
        &mut self,
        link: LinkId,
        frame: Frame,
        fd: Option<OwnedFd>,
        events: &mut Vec<Event>,
    ) -> Result<(), TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        let role = open.role();
        let Stage::Greeting(greeting) = &mut open.stage else { return Ok(()) };
        match (frame, fd) {
            (Frame::Hello { token, token_at, leases }, Some(fd)) if open.inbound.is_none() => {
                let peer = greeting.peer;
                let process = self.meet(link, peer, (token, token_at, leases), &fd)?;
                self.answer(link, process)
            }
            (Frame::Probed(readable), _) if open.inbound.is_some() && !greeting.is_probed => {
                greeting.is_probed = true;
                open.outbound.readable = readable;
                match role {
                    Role::Dialled => Ok(()),
                    Role::Accepted => self.decide(link, events),
                }
            }
            (Frame::Ready, _) if role == Role::Dialled && greeting.is_probed => {
                self.is_up(link, events);
                Ok(())
            }
            (Frame::Refuse(detail), _) => Err(TransportError::Unreachable { name: NAME, detail }),
            (frame, _) => Err(broken(format!("{frame:?} in a greeting"))),
        }
    }

    /// The peer has said hello: finds out what of its memory can be read.
    fn meet(
        &mut self,
        link: LinkId,
        peer: Peer,
        (token, token_at, leases): (u128, u64, u32),
        fd: &OwnedFd,
    ) -> Result<Option<Process>, TransportError> {
        let refuse = |detail| TransportError::Unreachable { name: NAME, detail };
        if usize::try_from(leases) != Ok(LEASES) {
            return Err(broken(format!("{leases} leases")));
        }
        let words = PeerWords::map(fd, TOKEN_WORDS + LEASES)
            .map_err(|error| refuse(format!("the peer's leases cannot be mapped: {error}")))?;
        let seen = words.as_slice().iter().take(TOKEN_WORDS).rev();
        let seen = seen.fold(0_u128, |seen, word| seen << 64 | u128::from(word.load(Ordering::Relaxed)));
        if seen != token {
            return Err(refuse("the peer's memory is not what is seen of it here".into()));
        }
        let process = Process { pid: peer.pid, token, token_at };
        let process = match self.config.private {
            Private::Refuse => None,
            Private::Read if peer.pid <= 0 => None,
            Private::Read => match process.probe() {
                Ok(()) => Some(process),
                Err(error) => {
                    tracing::debug!(%link, pid = peer.pid, %error, "only what can be mapped is read");
                    None
                }
            },
        };
        let Some(open) = self.links.get_mut(&link) else { return Ok(None) };
        open.inbound = Some(Arc::new(Inbound::new(link, words.skip(TOKEN_WORDS), process)));
        if let Some(ended) = sockets::process(open.stream.as_fd(), peer)
            && !sockets::is_hung_up(open.stream.as_fd())
        {
            self.next_token += 1;
            let data = epoll::EventData::new_u64(self.next_token);
            if epoll::add(&self.poll, &ended, data, EventFlags::IN).is_ok() {
                self.places.insert(self.next_token, Place::Process(link));
                open.process = Some(ended);
            }
        }
        Ok(process)
    }

    /// Says what this side found out.
    fn answer(&mut self, link: LinkId, process: Option<Process>) -> Result<(), TransportError> {
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        if open.role() == Role::Accepted {
            let token = u128::from_le_bytes(sockets::random()?);
            open.outbound.hello(token, &mut open.stream)?;
        }
        let readable = if process.is_some() { Readable::Yes } else { Readable::No };
        open.stream.own(&Frame::Probed(readable));
        self.unsent.push(link);
        Ok(())
    }

    /// Whoever connects wants to read from this side: it is told at once if it cannot.
    fn decide(&mut self, link: LinkId, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let up = self.links.values().filter(|open| open.is_open()).count();
        let Some(open) = self.links.get_mut(&link) else { return Ok(()) };
        let regions = self.table.snapshot();
        let found = regions.iter().find(|region| !open.outbound.can_export(region, self.config.private));
        let reason = match found {
            Some(region) => unreachable(region),
            None if up >= self.config.links => {
                let detail = format!("{up} links are as many as are taken");
                TransportError::Unreachable { name: NAME, detail }
            }
            None => {
                open.stream.own(&Frame::Ready);
                self.unsent.push(link);
                self.is_up(link, events);
                return Ok(());
            }
        };
        tracing::info!(%reason, "a peer was refused");
        self.refuse(link, reason);
        Ok(())
    }

    fn is_up(&mut self, link: LinkId, events: &mut Vec<Event>) {
        if let Some(open) = self.links.get_mut(&link) {
            open.stage = Stage::Up;
            events.push(Event::Connected { link });
        }
    }
}

fn open(socket: OwnedFd, role: Role, peer: Peer) -> Result<Link, TransportError> {
    let outbound = Outbound::new()?;
    Ok(Link::new(Stream::new(socket), outbound, role, Greeting::new(peer)))
}

const ACCEPTS_A_TURN: usize = 64;
