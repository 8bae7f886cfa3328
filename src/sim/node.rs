//! The driver of each process: one call to a session, then its actions until there are none.

use super::due::Pulse;
use super::net::{DESTINATION, SOURCE, Seen};
use super::pool::{Pool, Tag};
use super::rng::Rng;
use super::setup::{Flaw, Model, Setup};
use super::{Event, World};
use crate::error::{ErrorKind, Fault};
use crate::ids::{Attempt, GrantId, GroupId, Instance, LinkId, Party, Rank, Room, Side};
use crate::layout::{Mismatch, PageList, Pairing, PoolLayout, Share};
use crate::poll::{KVPoll, Release};
use crate::session::{
    Action, Answer, Intake, JoinedLink, Lobby, Parked, ReceiverSession, SenderSession, Session, SourceLink,
};
use crate::wire::{Cause, Frame, RoomFrame};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One process.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) party: Party,
    /// Where its users find it, as they would find the next process there.
    pub(super) address: usize,
    pub(super) pool: Pool,
    pub(super) lobby: Lobby,
    /// Of everything.
    whole: Arc<Pairing>,
    pub(super) senders: Vec<SenderRoom>,
    pub(super) receivers: Vec<ReceiverRoom>,
    pub(super) alive: bool,
    pub(super) frozen: Option<Duration>,
    timer: Option<Duration>,
    pub(super) pulling: bool,
    /// How often it does everything, for the flaw that grows.
    habit: usize,
}

/// One use of a room at a prefill node.
#[derive(Debug)]
pub(super) struct SenderRoom {
    pub(super) session: SenderSession,
    pub(super) room: Room,
    pub(super) attempt: Attempt,
    pub(super) tag: Tag,
    pub(super) salt: u64,
    pub(super) intake: Intake,
    /// Pages (or rows) of each group, from token 0 on.
    pub(super) tables: [Vec<u32>; 4],
    /// Chunks given, and whether they may be read.
    pub(super) chunks: Vec<(crate::session::Chunk, bool)>,
    pub(super) pulse: Pulse,
    pub(super) seen: Told,
    pub(super) freed: bool,
}

/// One use of a room at a decode node.
#[derive(Debug)]
pub(super) struct ReceiverRoom {
    pub(super) session: ReceiverSession,
    pub(super) id: GrantId,
    pub(super) salt: u64,
    pub(super) sources: Vec<(usize, Option<Share>)>,
    pub(super) pages: Vec<(GroupId, PageList)>,
    /// Bytes that sources told of, by link.
    pub(super) told: BTreeMap<LinkId, u64>,
    pub(super) pulse: Pulse,
    pub(super) seen: Told,
    pub(super) freed: bool,
    pub(super) dropped: bool,
}

/// What the user was told last.
pub(super) type Told = Option<(KVPoll, Release)>;

impl Node {
    pub(super) fn all(setup: &Setup, rng: &mut Rng) -> Vec<Self> {
        let (source, destination) = (Arc::new(setup.layout(rng)), Arc::new(setup.layout(rng)));
        let pairing = Pairing::new(source.clone(), destination.clone()).expect("the entries are the same");
        let pairing = Arc::new(pairing);
        let sides = [(Side::Prefill, setup.prefill, source), (Side::Decode, setup.decode, destination)];
        let mut nodes = Vec::new();
        for (side, ranks, layout) in sides {
            for rank in 0..ranks {
                let rank = Rank::tp(u32::try_from(rank).unwrap_or(u32::MAX));
                let party = Party { side, rank, instance: Instance(0) };
                nodes.push(Self::new(party, nodes.len(), layout.clone(), pairing.clone(), setup, rng));
            }
        }
        nodes
    }

    /// A process without a past, at the address of this one.
    pub(super) fn next(&self, setup: &Setup, rng: &mut Rng) -> Self {
        let (layout, whole) = (self.pool.layout.clone(), self.whole.clone());
        Self::new(self.party, self.address, layout, whole, setup, rng)
    }

    fn new(
        mut party: Party,
        address: usize,
        layout: Arc<PoolLayout>,
        whole: Arc<Pairing>,
        setup: &Setup,
        rng: &mut Rng,
    ) -> Self {
        party.instance = Instance(u128::from(rng.number()) << 64 | u128::from(rng.number()));
        Self {
            party,
            address,
            pool: Pool::new(layout),
            lobby: Lobby::new(party, setup.deadlines.discover, setup.parked_bytes, MEMORIES),
            whole,
            senders: Vec::new(),
            receivers: Vec::new(),
            alive: true,
            frozen: None,
            timer: None,
            pulling: false,
            habit: 0,
        }
    }

    /// Of what a share names.
    pub(super) fn pairing(&self, share: &Share) -> Result<Arc<Pairing>, Mismatch> {
        let (source, destination) = (self.whole.source.clone(), self.whole.destination.clone());
        match share == self.whole.share() {
            true => Ok(self.whole.clone()),
            false => Pairing::of(source, destination, share).map(Arc::new),
        }
    }

    pub(super) fn session(&self, room: Room) -> Option<&dyn Session> {
        match self.party.side {
            Side::Prefill => {
                self.senders.iter().rev().find(|s| s.room == room).map(|s| &s.session as &dyn Session)
            }
            Side::Decode => {
                self.receivers.iter().rev().find(|r| r.id.room == room).map(|r| &r.session as &dyn Session)
            }
        }
    }
}

impl World {
    /// One call to a sender, then its actions.
    pub(super) fn sender<T>(
        &mut self,
        node: usize,
        at: usize,
        call: impl FnOnce(&mut SenderSession, Instant) -> T,
    ) -> T {
        let now = self.instant();
        let answer = call(&mut self.nodes[node].senders[at].session, now);
        self.check_sender(node, at);
        let mut actions = 0;
        while let Some(action) = self.nodes[node].senders[at].session.next_action() {
            actions += self.perform(node, action);
        }
        self.check_actions(node, actions);
        self.set_timer(node);
        let session = &self.nodes[node].senders[at].session;
        if session.receivers().any(|(link, _)| session.may_have_writes(link)) {
            self.plan_pull(node, Duration::ZERO);
        }
        answer
    }

    /// One call to a receiver, then its actions.
    pub(super) fn receiver_call(
        &mut self,
        node: usize,
        at: usize,
        call: impl FnOnce(&mut ReceiverSession, Instant),
    ) {
        let now = self.instant();
        call(&mut self.nodes[node].receivers[at].session, now);
        self.check_receiver(node, at);
        let mut actions = 0;
        while let Some(action) = self.nodes[node].receivers[at].session.next_action() {
            actions += self.perform(node, action);
        }
        self.check_actions(node, actions);
        self.set_timer(node);
    }

    /// Does what a session asks for; answers how many things that were.
    fn perform(&mut self, node: usize, action: Action) -> usize {
        if self.setup.flaw == Some(Flaw::RepeatsItself) {
            self.nodes[node].habit += 10;
            let times = self.nodes[node].habit;
            (0..times).for_each(|_| self.act(node, action.clone()));
            return times;
        }
        self.act(node, action);
        1
    }

    fn act(&mut self, node: usize, action: Action) {
        self.record(|| format!("  node {node} does {action:?}"));
        match action {
            Action::Admit { link, id } => self.admit(node, link, id),
            Action::Fence { link } => {
                if let Some((conn, _)) = self.net.end_of(link) {
                    self.fence(conn);
                }
            }
            // Whoever waits for a node connects again when a link to it ends.
            Action::Reconnect { .. } => {}
            Action::Revoke { link, id } => {
                if let Some((conn, _)) = self.net.end_of(link) {
                    self.revoke(conn, id);
                }
            }
            Action::Send { link, id, frame } => self.send(link, id, frame),
        }
    }

    pub(super) fn send(&mut self, link: LinkId, id: GrantId, mut frame: RoomFrame) {
        let Some((conn, end)) = self.net.end_of(link) else { return };
        let confused = self.setup.flaw == Some(Flaw::GrantOutlivesLink);
        if self.net.conns[conn].ends[end].state == Seen::Down && !confused {
            self.watch.violated(format!("{frame:?} was sent over a link known to be down"));
        }
        if let RoomFrame::Abort(cause) | RoomFrame::Failed(cause) = &mut frame {
            if self.setup.flaw == Some(Flaw::TakesTheBlame) {
                cause.origin = self.nodes[self.net.conns[conn].nodes[end]].party;
            }
            let cause = cause.clone();
            self.check_cause(self.net.conns[conn].nodes[end], id, &cause);
        }
        self.dispatch(conn, 1 - end, &Frame::Room { id, frame });
    }

    pub(super) fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { link, id, frame, .. } in answers {
            self.record(|| format!("  lobby answers {frame:?} to {id:?}"));
            self.send(link, id, frame);
        }
    }

    pub(super) fn connected(&mut self, conn: usize, end: usize) {
        self.net.conns[conn].ends[end].state = Seen::Up;
        if end == DESTINATION {
            let [source, node] = self.net.conns[conn].nodes;
            for at in 0..self.nodes[node].receivers.len() {
                self.source_up(node, at, source, conn);
            }
        }
    }

    /// Connects a receiver to its sources, as far as they are not connected already.
    pub(super) fn reach_sources(&mut self, node: usize, at: usize) {
        let sources: Vec<_> =
            self.nodes[node].receivers[at].sources.iter().map(|(source, _)| self.living[*source]).collect();
        for source in sources {
            match self.net.find([source, node], DESTINATION) {
                Some(conn) if self.net.conns[conn].ends[DESTINATION].state == Seen::Up => {
                    self.source_up(node, at, source, conn);
                }
                Some(_) => {}
                None => self.connect(source, node),
            }
        }
    }

    fn connect(&mut self, source: usize, node: usize) {
        let (conn, up) = self.net.connect(self.now, &mut self.rng, [source, node]);
        for (end, at) in up.into_iter().enumerate() {
            self.plan(at, Event::Connected { conn, end });
        }
        if !self.nodes[source].alive {
            self.cut(conn, None);
        }
    }

    fn source_up(&mut self, node: usize, at: usize, source: usize, conn: usize) {
        let Node { party, address, .. } = self.nodes[source];
        if !self.nodes[node].receivers[at].sources.iter().any(|(owing, _)| *owing == address) {
            return;
        }
        let revocable = self.setup.model == Model::TwoSided;
        let link = self.net.conns[conn].links[DESTINATION];
        let link = SourceLink { link, party, revocable, epoch: 1, source_epoch: 1 };
        self.receiver_call(node, at, |session, now| session.source_up(now, party.rank, link));
    }

    /// A control frame is read at one end.
    pub(super) fn arrived(&mut self, conn: usize, end: usize, frame: u64) {
        let reached = &mut self.net.conns[conn].ends[end];
        let Some(bytes) = reached.inbox.remove(&frame).filter(|_| reached.state == Seen::Up) else { return };
        let node = self.net.conns[conn].nodes[end];
        match Frame::decode(&bytes) {
            Ok(Frame::Room { id, frame }) if end == SOURCE => {
                self.sender_frame(node, conn, id, frame, bytes.len());
            }
            Ok(Frame::Room { id, frame }) => self.receiver_frame(node, conn, id, &frame),
            other => self.watch.violated(format!("a frame that was sent is read as {other:?}")),
        }
    }

    fn receiver_frame(&mut self, node: usize, conn: usize, id: GrantId, frame: &RoomFrame) {
        self.record(|| format!("  node {node} reads {frame:?} for {id:?}"));
        let link = self.net.conns[conn].links[DESTINATION];
        match self.nodes[node].receivers.iter().position(|room| room.id == id) {
            Some(at) => {
                self.heard(node, at, link, frame);
                self.receiver_call(node, at, |session, now| session.frame(now, link, id, frame));
            }
            None if matches!(frame, RoomFrame::Query { .. }) => {
                let origin = self.nodes[node].party;
                let (kind, detail) = (ErrorKind::Aborted, "the receiver has ended".into());
                let cause = Cause { origin, state: KVPoll::Bootstrapping, kind, detail };
                self.send(link, id, RoomFrame::Abort(cause));
            }
            None if self.setup.flaw == Some(Flaw::AnswersAnswers) => {
                let (origin, state) = (self.nodes[node].party, KVPoll::Failed);
                let cause = Cause { origin, state, kind: ErrorKind::Protocol, detail: "unknown".into() };
                self.send(link, id, RoomFrame::Abort(cause));
            }
            None => self.watch.strays += 1,
        }
    }

    fn sender_frame(&mut self, node: usize, conn: usize, id: GrantId, frame: RoomFrame, bytes: usize) {
        self.record(|| format!("  node {node} reads {frame:?} for {id:?}"));
        let link = self.net.conns[conn].links[SOURCE];
        let party = self.nodes[self.net.conns[conn].nodes[DESTINATION]].party;
        let Some(at) = self.nodes[node]
            .senders
            .iter()
            .position(|room| (room.room, room.attempt) == (id.room, id.attempt))
        else {
            let now = self.instant();
            let answers = self.nodes[node].lobby.frame(now, link, party, id, frame, bytes);
            self.answer(answers);
            self.check_lobby(node);
            return self.set_timer(node);
        };
        self.tell_sender(node, at, link, party, id, frame);
    }

    fn tell_sender(
        &mut self,
        node: usize,
        at: usize,
        link: LinkId,
        party: Party,
        id: GrantId,
        frame: RoomFrame,
    ) {
        match frame {
            RoomFrame::Join { destinations } => {
                let peer_counts = self.setup.model == Model::TwoSided;
                let joined = JoinedLink { link, party, id, peer_counts };
                self.sender(node, at, |session, now| session.join(now, joined, &destinations));
            }
            RoomFrame::Grant(grant) => {
                let pairing = grant.share.as_ref().map(|share| self.nodes[node].pairing(share));
                let pairing = pairing.transpose();
                self.sender(node, at, |session, now| match pairing {
                    Ok(pairing) => session.grant(now, link, id, &grant, pairing),
                    Err(fault) => {
                        session.fail(now, Fault::caused_by(ErrorKind::Layout, "pools", fault));
                    }
                });
            }
            frame => self.sender(node, at, |session, now| session.frame(now, link, id, &frame)),
        }
    }

    /// A sender was made: it is told what was parked for it.
    pub(super) fn adopt(&mut self, node: usize, at: usize) {
        let SenderRoom { room, attempt, .. } = self.nodes[node].senders[at];
        let adopted = self.nodes[node].lobby.adopt(room, attempt);
        if let Some(cause) = adopted.aborted {
            self.sender(node, at, |session, now| session.left_early(now, adopted.left, &cause));
        }
        for Parked { link, party, id, frame, .. } in adopted.parked {
            let link = match self.setup.flaw {
                Some(Flaw::GrantOutlivesLink) => self.newest(link),
                _ => link,
            };
            self.tell_sender(node, at, link, party, id, frame);
        }
    }

    /// The link that came after this one, for the flaw that confuses them.
    fn newest(&self, link: LinkId) -> LinkId {
        let nodes = self.net.end_of(link).map(|(conn, _)| self.net.conns[conn].nodes);
        let conn = nodes.and_then(|nodes| self.net.find(nodes, SOURCE));
        conn.map_or(link, |conn| self.net.conns[conn].links[SOURCE])
    }

    /// An end hears that its link has ended.
    pub(super) fn went_down(&mut self, conn: usize, end: usize, quiesced: bool) {
        let own = &mut self.net.conns[conn];
        let was_up = own.ends[end].state == Seen::Up;
        own.ends[end].state = Seen::Down;
        own.ends[end].inbox.clear();
        let (node, other, link) = (own.nodes[end], own.nodes[1 - end], own.links[end]);
        let fault = || Fault::new(ErrorKind::PeerLost, format!("connection {conn} ended at end {end}"));
        if end == SOURCE {
            if self.setup.flaw != Some(Flaw::GrantOutlivesLink) {
                self.nodes[node].lobby.link_down(link);
            }
            for at in 0..self.nodes[node].senders.len() {
                self.sender(node, at, |session, now| session.link_down(now, link, quiesced, fault()));
            }
            return self.check_lobby(node);
        }
        if quiesced {
            self.silence(conn);
        }
        let quiesced = quiesced || self.setup.flaw == Some(Flaw::LinkDownIsQuiet);
        let rank = self.nodes[other].party.rank;
        for at in 0..self.nodes[node].receivers.len() {
            self.receiver_call(node, at, |session, now| {
                session.link_down(now, link, quiesced, fault());
                if !was_up {
                    session.unreachable(now, rank);
                }
            });
        }
        let address = self.nodes[other].address;
        let waits = |room: &ReceiverRoom| {
            !room.session.state().is_terminal() && room.sources.iter().any(|(source, _)| *source == address)
        };
        let next = self.living[address];
        if self.nodes[node].receivers.iter().any(waits) && self.net.find([next, node], DESTINATION).is_none()
        {
            self.connect(next, node);
        }
    }

    /// Forgets receivers whose handles were let go and whose pages are back.
    pub(super) fn tidy(&mut self) {
        if self.setup.flaw == Some(Flaw::KeepsRooms) {
            return;
        }
        let is_over = |room: &ReceiverRoom| {
            room.dropped && room.session.state().is_terminal() && room.session.release() == Release::Safe
        };
        self.nodes.iter_mut().for_each(|node| node.receivers.retain(|room| !is_over(room)));
    }

    /// Plans the next deadline of a node.
    pub(super) fn set_timer(&mut self, node: usize) {
        let own = &self.nodes[node];
        let senders = own.senders.iter().filter_map(|room| room.session.deadline());
        let receivers = own.receivers.iter().filter_map(|room| room.session.deadline());
        let lobby = own.lobby.deadline().filter(|_| self.setup.flaw != Some(Flaw::LobbyKeepsAll));
        let Some(due) = senders.chain(receivers).chain(lobby).min() else { return };
        let at = due.saturating_duration_since(self.start).max(self.now);
        let forgets = self.setup.flaw == Some(Flaw::ForgetsTimers) && own.timer.is_some();
        if !forgets && own.timer.is_none_or(|planned| at < planned || planned < self.now) {
            self.nodes[node].timer = Some(at);
            self.plan(at, Event::Timer { node });
        }
    }

    pub(super) fn timer(&mut self, node: usize) {
        if self.setup.flaw != Some(Flaw::ForgetsTimers) {
            self.nodes[node].timer = None;
        }
        let now = self.instant();
        if self.setup.flaw != Some(Flaw::LobbyKeepsAll) {
            let answers = self.nodes[node].lobby.tick(now);
            self.answer(answers);
        }
        for at in 0..self.nodes[node].senders.len() {
            if self.nodes[node].senders[at].session.deadline().is_some_and(|due| due <= now) {
                self.sender(node, at, |session, now| session.tick(now));
            }
        }
        for at in 0..self.nodes[node].receivers.len() {
            if self.nodes[node].receivers[at].session.deadline().is_some_and(|due| due <= now) {
                self.receiver_call(node, at, |session, now| session.tick(now));
            }
        }
        self.set_timer(node);
    }

    pub(super) fn plan_pull(&mut self, node: usize, wait: Duration) {
        if !self.nodes[node].pulling {
            self.nodes[node].pulling = true;
            self.plan(self.now + wait, Event::Pull { node });
        }
    }
}

/// Ends that a node without a sender remembers.
pub(super) const MEMORIES: usize = 64;
