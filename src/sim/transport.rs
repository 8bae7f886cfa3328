//! Two ways in which bytes move, with all that may go wrong.
//!
//! Two-sided: a write travels on one of two lanes, is checked against what its grant admits, and is
//! applied in two steps. One-sided: a write reaches into the destination at a time of its own, in two
//! steps, even after its link has ended, until it settles or the link is fenced.

use super::net::{DESTINATION, Net, SOURCE, Seen, delay};
use super::pool::{NOBODY, Tag, Trespass};
use super::setup::{Flaw, Model};
use super::{Event, World};
use crate::error::{ErrorKind, Fault};
use crate::ids::{GrantId, LinkId, OpId};
use crate::layout::{Admission, Extent, Piece};
use crate::poll::KVPoll;
use crate::session::{Session, Settlement};
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that is under way, or was.
#[derive(Debug, Default)]
pub(super) struct Fabric {
    pub(super) flights: Vec<Flight>,
    admitted: BTreeMap<(usize, GrantId), Admitted>,
    lanes: BTreeMap<(usize, u64), Duration>,
    /// Bytes posted and not settled, by connection.
    pub(super) in_flight: BTreeMap<usize, u64>,
}

/// One posted write.
#[derive(Debug)]
pub(super) struct Flight {
    conn: usize,
    pub(super) grant: GrantId,
    op: OpId,
    piece: Piece,
    bytes: u64,
    /// The use of the room at the source.
    pub(super) tag: Tag,
    source: Vec<Extent>,
    destination: Vec<Extent>,
    payload: Vec<u8>,
    damaged: bool,
    doubled: bool,
    /// Copies that have not arrived touch nothing any more.
    lost: bool,
    /// Its settlement is on its way.
    told: bool,
    pub(super) settled: bool,
}

#[derive(Debug)]
struct Admitted {
    admission: Admission,
    applying: u32,
    revoked: bool,
}

/// A step of the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// A write reaches the destination; half of it is applied.
    Begin { flight: usize },
    /// The other half.
    End { flight: usize },
    /// The source is told.
    Settle { flight: usize, how: How },
    /// The destination's transport answers `revoke`.
    Revoked { conn: usize, grant: GrantId },
    /// Nothing comes over this connection any more.
    Vouch { conn: usize },
}

/// How a write settles.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum How {
    Landed,
    Damaged,
    Broken,
}

impl Fabric {
    /// What is kept of grants and writes of processes that are still there.
    pub(super) fn left<'a>(
        &'a self,
        counts: impl Fn(usize) -> bool + 'a,
        net: &'a Net,
    ) -> impl Iterator<Item = String> + 'a {
        let admitted =
            self.admitted.keys().filter(move |(conn, _)| counts(net.conns[*conn].nodes[DESTINATION]));
        admitted.map(|(conn, grant)| format!("connection {conn} still admits writes of {grant:?}"))
    }
}

impl Flight {
    /// Whether a rogue made it up.
    pub(super) fn is_unasked(&self) -> bool {
        self.tag == NOBODY
    }

    pub(super) fn conn(&self) -> usize {
        self.conn
    }
}

impl World {
    /// The node whose process a step needs; none for what hardware does.
    pub(super) fn process_of(&self, step: &Move) -> Option<usize> {
        let two_sided = self.setup.model == Model::TwoSided;
        let conn = |flight: usize| &self.net.conns[self.fabric.flights[flight].conn];
        match *step {
            Move::Begin { flight } | Move::End { flight } if two_sided => {
                Some(conn(flight).nodes[DESTINATION])
            }
            Move::Begin { .. } | Move::End { .. } => None,
            Move::Settle { flight, .. } => Some(conn(flight).nodes[SOURCE]),
            Move::Revoked { conn, .. } | Move::Vouch { conn } => {
                Some(self.net.conns[conn].nodes[DESTINATION])
            }
        }
    }

    /// Posts writes of a node, as far as windows allow; at times only some of them.
    pub(super) fn pull(&mut self, node: usize) {
        self.nodes[node].pulling = false;
        for at in 0..self.nodes[node].senders.len() {
            let links: Vec<_> =
                self.nodes[node].senders[at].session.receivers().map(|(link, _)| link).collect();
            for link in links {
                while self.nodes[node].senders[at].session.may_have_writes(link) {
                    if self.rng.percent(20) {
                        self.plan_pull(node, Duration::from_micros(300)); // the transport is full
                        break;
                    }
                    if !self.post(node, at, link) {
                        break;
                    }
                }
            }
        }
    }

    /// Posts the next write of a room, if there is one and the window has room for it.
    fn post(&mut self, node: usize, at: usize, link: LinkId) -> bool {
        let Some((conn, _)) = self.net.end_of(link) else { return false };
        let used = self.fabric.in_flight.get(&conn).copied().unwrap_or(0);
        let (window, model, now) = (self.setup.window_bytes, self.setup.model, self.instant());
        let room = &mut self.nodes[node].senders[at];
        let tag = room.tag;
        let Some(job) = room.session.next_write(now, link) else {
            self.sender(node, at, |_, _| ()); // it may have drawn conclusions
            return false;
        };
        if used > 0 && used + job.bytes > window {
            return false;
        }
        let mut flight = Flight {
            conn,
            grant: job.id,
            op: job.op,
            piece: job.piece.clone(),
            bytes: job.bytes,
            tag,
            source: Vec::new(),
            destination: Vec::new(),
            payload: Vec::new(),
            damaged: false,
            doubled: false,
            lost: false,
            told: false,
            settled: false,
        };
        let peer = self.net.conns[conn].nodes[DESTINATION];
        let fits = job.pairing.source_extents(job.piece, job.source, &mut flight.source);
        let mut destination = Vec::new();
        let lands = job.pairing.destination_extents(job.piece, job.destination, &mut destination);
        let bytes = job.bytes;
        let is_resolved = fits.is_ok() && (lands.is_ok() || model == Model::TwoSided);
        if !is_resolved && self.rogues.contains(&peer) {
            let fault = Fault::new(ErrorKind::Layout, format!("pages: {fits:?} here, {lands:?} there"));
            self.sender(node, at, |session, now| session.fail(now, fault));
            return false;
        }
        let is_whole = fits.as_ref() == Ok(&bytes) && lands.as_ref() == Ok(&bytes);
        if !is_whole && !self.rogues.contains(&peer) {
            self.watch.violated(format!("a write of {bytes} bytes is {fits:?} here, {lands:?} there"));
        }
        if model == Model::OneSided {
            flight.destination = destination;
        }
        self.launch(flight);
        self.sender(node, at, |session, now| session.posted(now, link));
        true
    }

    fn launch(&mut self, mut flight: Flight) {
        let (conn, number) = (flight.conn, self.fabric.flights.len());
        *self.fabric.in_flight.entry(conn).or_default() += flight.bytes;
        let two_sided = self.setup.model == Model::TwoSided;
        flight.damaged = two_sided && self.rng.percent(self.setup.damaged);
        flight.doubled = two_sided && !flight.damaged && self.rng.percent(self.setup.doubled);
        self.record(|| format!("  write {} of {:?} is posted as flight {number}", flight.op.0, flight.grant));
        let doubled = flight.doubled;
        self.fabric.flights.push(flight);
        if self.net.conns[conn].cut {
            self.fabric.flights[number].lost = true;
            return self.finish(number, How::Broken);
        }
        if self.net.conns[conn].dark {
            return;
        }
        let mut at = self.now + delay(&mut self.rng);
        if two_sided {
            let lane = self.fabric.lanes.entry((conn, self.rng.within(0..2))).or_default();
            at = at.max(*lane);
            *lane = at;
        } else if self.rng.percent(self.setup.late) {
            at += Duration::from_millis(self.rng.within(200..900));
        }
        self.plan(at, Event::Fabric(Move::Begin { flight: number }));
        if doubled {
            at += delay(&mut self.rng);
            self.plan(at, Event::Fabric(Move::Begin { flight: number }));
        }
        if self.setup.flaw == Some(Flaw::SettlesEarly) {
            self.finish(number, How::Landed);
        }
    }

    pub(super) fn moved(&mut self, step: Move) {
        match step {
            Move::Begin { flight } => self.begin(flight),
            Move::End { flight } => self.end(flight),
            Move::Settle { flight, how } => self.settled(flight, how),
            Move::Revoked { conn, grant } => self.revoked(conn, grant),
            Move::Vouch { conn } => self.vouch(conn),
        }
    }

    fn begin(&mut self, number: usize) {
        let flight = &self.fabric.flights[number];
        let (conn, grant) = (flight.conn, flight.grant);
        if flight.lost {
            return;
        }
        if self.setup.model == Model::TwoSided {
            let key = (conn, grant);
            let obeys = self.setup.flaw == Some(Flaw::ObeysRevoked);
            let Some(admitted) =
                self.fabric.admitted.get_mut(&key).filter(|admitted| !admitted.revoked || obeys)
            else {
                return self.finish(number, How::Landed); // read and thrown away
            };
            let mut destination = Vec::new();
            let found = admitted.admission.extents(&flight.piece, &mut destination);
            if found.as_ref() != Ok(&flight.bytes) {
                let what = format!("{:?} is not admitted: {found:?}", flight.piece);
                return self.refuse(number, &what);
            }
            admitted.applying += 1;
            self.fabric.flights[number].destination = destination;
        }
        if self.fabric.flights[number].payload.is_empty() {
            self.read_source(number);
        }
        self.apply(number, 0..self.fabric.flights[number].payload.len() / 2);
        let at = self.now + delay(&mut self.rng);
        self.plan(at, Event::Fabric(Move::End { flight: number }));
    }

    /// A write does not fit what was lent: it is thrown away, and the receiver hears of it.
    fn refuse(&mut self, number: usize, what: &str) {
        let Flight { conn, grant, .. } = self.fabric.flights[number];
        let nodes = self.net.conns[conn].nodes;
        if !nodes.iter().any(|node| self.rogues.contains(node)) {
            return self.watch.violated(what.into());
        }
        self.finish(number, How::Landed);
        let (node, link) = (nodes[DESTINATION], self.net.conns[conn].links[DESTINATION]);
        if let Some(at) = self.nodes[node].receivers.iter().position(|room| room.id == grant) {
            self.receiver_call(node, at, |session, now| session.refused(now, link, what));
        }
    }

    /// A rogue writes into a grant without being asked to.
    pub(super) fn write_unasked(&mut self, conn: usize, grant: GrantId, piece: Piece) {
        if self.setup.model == Model::OneSided {
            return; // who can reach the memory can write to it
        }
        let found = self.fabric.admitted.get(&(conn, grant));
        let lent = found.and_then(|admitted| admitted.admission.extents(&piece, &mut Vec::new()).ok());
        let bytes = lent.filter(|_| self.rng.percent(50)).unwrap_or(self.rng.within(1..40));
        let flight = Flight {
            conn,
            grant,
            op: OpId(self.rng.small(0..9)),
            piece,
            bytes,
            tag: NOBODY,
            source: Vec::new(),
            destination: Vec::new(),
            payload: vec![0x66; usize::try_from(bytes).unwrap_or(0)],
            damaged: false,
            doubled: false,
            lost: false,
            told: false,
            settled: false,
        };
        self.launch(flight);
    }

    fn end(&mut self, number: usize) {
        let flight = &self.fabric.flights[number];
        let (conn, grant, op, bytes) = (flight.conn, flight.grant, flight.op, flight.bytes);
        if self.setup.model == Model::OneSided {
            if !flight.lost {
                self.apply(number, flight.payload.len() / 2..flight.payload.len());
                self.watch.landings += 1;
                let how = if self.net.conns[conn].cut { How::Broken } else { How::Landed };
                self.finish(number, how);
            }
            return;
        }
        let damaged = flight.damaged;
        self.apply(number, flight.payload.len() / 2..flight.payload.len());
        let Some(admitted) = self.fabric.admitted.get_mut(&(conn, grant)) else { return };
        admitted.applying -= 1;
        let (revoked, idle) = (admitted.revoked, admitted.applying == 0);
        let told = !damaged && (!revoked || self.rng.percent(50));
        let ended = self.net.conns[conn].ends[DESTINATION].state == Seen::Down;
        let flight = &mut self.fabric.flights[number];
        if !(std::mem::take(&mut flight.doubled) && self.rng.percent(50)) {
            self.finish(number, if damaged { How::Damaged } else { How::Landed });
        }
        if told && !ended {
            self.watch.landings += 1;
            let [_, node] = self.net.conns[conn].nodes;
            let link = self.net.conns[conn].links[DESTINATION];
            if let Some(at) = self.nodes[node].receivers.iter().position(|room| room.id == grant) {
                self.receiver_call(node, at, |session, now| session.landed(now, link, op, bytes));
            }
        }
        if revoked && idle && self.setup.flaw != Some(Flaw::RevokedEarly) {
            self.plan(self.now, Event::Fabric(Move::Revoked { conn, grant }));
        }
    }

    fn read_source(&mut self, number: usize) {
        let flight = &mut self.fabric.flights[number];
        let node = self.net.conns[flight.conn].nodes[SOURCE];
        let mut payload = Vec::new();
        if let Err(trespass) = self.nodes[node].pool.read(flight.tag, &flight.source, &mut payload) {
            let Trespass { region, offset, owner } = trespass;
            self.watch.violated(format!(
                "write {} of {:?} reads byte {offset} of region {} after its source pages were released \
                 (lent to {owner:?} now)",
                flight.op.0, flight.grant, region.0
            ));
            payload.resize(usize::try_from(flight.bytes).unwrap_or(0), 0);
        }
        flight.payload = payload;
    }

    /// Puts part of a write's bytes into the destination's pages.
    fn apply(&mut self, number: usize, part: std::ops::Range<usize>) {
        let flight = &self.fabric.flights[number];
        let number = self.net.conns[flight.conn].nodes[DESTINATION];
        let source = self.net.conns[flight.conn].nodes[SOURCE];
        // A rogue's promises protect nothing where it alone moves the bytes.
        let is_trusted = self.setup.model == Model::OneSided;
        let is_rogue = self.rogues.contains(&number) || (is_trusted && self.rogues.contains(&source));
        let node = &mut self.nodes[number];
        if !node.alive {
            return;
        }
        let tag = Tag(u32::try_from(flight.grant.generation.0).unwrap_or(0));
        let damage = if flight.damaged { 0x55 } else { 0 };
        let bytes: Vec<_> = flight.payload.iter().map(|byte| byte ^ damage).collect();
        if let Err(trespass) = node.pool.write(tag, &flight.destination, &bytes, part)
            && !is_rogue
        {
            let Trespass { region, offset, owner } = trespass;
            self.watch.violated(format!(
                "write {} of {:?} changes byte {offset} of region {} after release (lent to {owner:?} now)",
                flight.op.0, flight.grant, region.0
            ));
        }
    }

    /// A write is over, unless that was said before.
    fn finish(&mut self, number: usize, how: How) {
        if !std::mem::replace(&mut self.fabric.flights[number].told, true) {
            self.settle(number, how);
        }
    }

    fn settle(&mut self, flight: usize, how: How) {
        let at = self.now + delay(&mut self.rng);
        self.plan(at, Event::Fabric(Move::Settle { flight, how }));
    }

    fn settled(&mut self, number: usize, how: How) {
        let flight = &mut self.fabric.flights[number];
        let (conn, op, grant, tag, bytes) = (flight.conn, flight.op, flight.grant, flight.tag, flight.bytes);
        if std::mem::replace(&mut flight.settled, true) {
            return self.watch.violated(format!("flight {number} settles twice"));
        }
        *self.fabric.in_flight.entry(conn).or_default() -= bytes;
        let settlement = match how {
            How::Landed => Settlement::Landed,
            How::Damaged => Settlement::Damaged,
            How::Broken => {
                Settlement::Broken(Fault::new(ErrorKind::PeerLost, format!("connection {conn} broke")))
            }
        };
        let (node, link) = (self.net.conns[conn].nodes[SOURCE], self.net.conns[conn].links[SOURCE]);
        match self.nodes[node].senders.iter().position(|room| room.tag == tag) {
            Some(at) => {
                let told = self.sender(node, at, |session, now| session.settled(now, link, op, settlement));
                if told != bytes {
                    self.watch.violated(format!("write {} of {grant:?} settles as {told} bytes", op.0));
                }
            }
            None if tag == NOBODY => {}
            None => self.watch.violated(format!("write {} of {grant:?} settles after release", op.0)),
        }
        for at in 0..self.nodes[node].senders.len() {
            let room = &self.nodes[node].senders[at];
            if room.session.state() == KVPoll::Transferring {
                self.plan_pull(node, Duration::ZERO); // the window has room again
            }
        }
    }

    pub(super) fn admit(&mut self, node: usize, link: LinkId, id: GrantId) {
        let Some((conn, _)) = self.net.end_of(link) else { return };
        let Some(room) = self.nodes[node].receivers.iter().find(|room| room.id == id) else { return };
        let (Some(lent), Some(share)) = (room.session.lent(), room.session.share(link)) else { return };
        if self.setup.model == Model::OneSided {
            return;
        }
        let Ok(pairing) = self.nodes[node].pairing(share) else { return };
        let admission = Admission::new(pairing, lent.tokens.clone(), lent.pages.clone());
        self.fabric.admitted.insert((conn, id), Admitted { admission, applying: 0, revoked: false });
    }

    pub(super) fn revoke(&mut self, conn: usize, grant: GrantId) {
        if self.setup.model == Model::OneSided {
            return self.watch.violated("a one-sided grant is revoked".into());
        }
        let admitted = self.fabric.admitted.get_mut(&(conn, grant));
        let busy = admitted.is_some_and(|admitted| {
            admitted.revoked = true;
            admitted.applying > 0
        });
        if !busy || self.setup.flaw == Some(Flaw::RevokedEarly) {
            let at = self.now + delay(&mut self.rng) / 8;
            self.plan(at, Event::Fabric(Move::Revoked { conn, grant }));
        }
    }

    fn revoked(&mut self, conn: usize, grant: GrantId) {
        let keeps = self.setup.flaw == Some(Flaw::ObeysRevoked);
        let idle = self.fabric.admitted.get(&(conn, grant)).is_some_and(|admitted| admitted.applying == 0);
        if idle && !keeps {
            self.fabric.admitted.remove(&(conn, grant));
        }
        let (node, link) = (self.net.conns[conn].nodes[DESTINATION], self.net.conns[conn].links[DESTINATION]);
        if let Some(at) = self.nodes[node].receivers.iter().position(|room| room.id == grant) {
            self.receiver_call(node, at, |session, now| session.revoked(now, link));
        }
    }

    /// Ends a connection. `vouch`: whether the transport knows at once that nothing comes any more; left to
    /// chance if not given.
    pub(super) fn cut(&mut self, conn: usize, vouch: Option<bool>) {
        let Some(heard) = self.net.cut(self.now, &mut self.rng, conn) else { return };
        let one_sided = self.setup.model == Model::OneSided;
        let vouch = vouch.unwrap_or_else(|| self.rng.percent(self.setup.vouched)) || !one_sided;
        for number in 0..self.fabric.flights.len() {
            let flight = &mut self.fabric.flights[number];
            if flight.conn != conn || flight.lost {
                continue;
            }
            let applying = !flight.payload.is_empty();
            if one_sided && (applying || self.rng.percent(60)) {
                if self.net.conns[conn].dark && !applying {
                    self.leave_dark(number);
                }
                continue; // it may land in spite of all
            }
            flight.lost = true;
            let how = if applying && self.rng.percent(50) { How::Landed } else { How::Broken };
            self.finish(number, how);
        }
        for (end, at) in heard.into_iter().enumerate() {
            self.plan(at, Event::Down { conn, end, quiesced: vouch });
        }
    }

    /// Ends a connection and sees to it that nothing comes over it any more, if that can be done.
    pub(super) fn fence(&mut self, conn: usize) {
        self.cut(conn, Some(false));
        if self.setup.model == Model::OneSided && self.setup.fences {
            let at = self.now + delay(&mut self.rng);
            self.plan(at, Event::Fabric(Move::Vouch { conn }));
        }
    }

    fn vouch(&mut self, conn: usize) {
        self.plan(self.now, Event::Down { conn, end: DESTINATION, quiesced: true });
    }

    /// What has not landed never will.
    pub(super) fn silence(&mut self, conn: usize) {
        for number in 0..self.fabric.flights.len() {
            let flight = &mut self.fabric.flights[number];
            if flight.conn == conn && self.setup.model == Model::OneSided {
                flight.lost = true;
                self.finish(number, How::Broken);
            }
        }
    }
}
