//! What must hold after every step, and at the end.

use super::World;
use super::node::{MEMORIES, Node};
use super::setup::{Flaw, Model};
use crate::error::{ErrorKind, KVTransferError};
use crate::ids::{Attempt, GrantId, GroupId, Party, Room};
use crate::layout::GroupKind;
use crate::poll::{KVPoll, Release};
use crate::session::Session;
use crate::wire::Cause;
use std::collections::HashMap;
use std::fmt;

/// The first rule that did not hold.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Broken {
    /// What happened.
    pub what: String,
}

/// What was noticed so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    broken: Option<Broken>,
    pub(super) strays: u64,
    pub(super) landings: u64,
    /// Causes that were found or told, and the state they arose in.
    said: HashMap<Words, Option<KVPoll>>,
    pub(super) tally: Tally,
}

/// What became of the receivers of a world.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Receivers opened.
    pub rooms: u64,
    /// Those that succeeded.
    pub successes: u64,
    /// Why the others failed.
    pub failures: Vec<ErrorKind>,
    /// Bytes that landed in those that ended.
    pub bytes: u64,
}

/// What somebody says of a room's end.
#[derive(Debug, Eq, Hash, PartialEq)]
struct Words {
    room: Room,
    attempt: Attempt,
    origin: Party,
    kind: ErrorKind,
    detail: String,
}

impl Watch {
    pub(super) fn violated(&mut self, what: String) {
        self.broken.get_or_insert(Broken { what });
    }

    /// A rogue tells a cause of its own making.
    pub(super) fn invented(&mut self, id: GrantId, cause: &Cause) {
        let Cause { origin, kind, detail, .. } = cause.clone();
        self.said.entry(Words { room: id.room, attempt: id.attempt, origin, kind, detail }).or_insert(None);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.broken.is_none()
    }

    pub(super) fn verdict(&self) -> Result<(), Broken> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}

impl World {
    pub(super) fn check_sender(&mut self, node: usize, at: usize) {
        let time = self.now;
        let room = &mut self.nodes[node].senders[at];
        room.look(time);
        let now = (room.session.state(), room.session.release());
        let before = room.seen.replace(now);
        let reuse = self.setup.flaw == Some(Flaw::ReusesAtTheEnd) && now.0.is_terminal();
        let free = (now.1 == Release::Safe || reuse) && !room.freed;
        if free {
            room.freed = true;
            let tables = room.tables.clone();
            for (group, pages) in (0..).map(GroupId).zip(tables) {
                self.nodes[node].pool.give_back(group, &pages);
            }
        }
        if now.0 == KVPoll::Failed && before.is_none_or(|(state, _)| !state.is_terminal()) {
            let room = &self.nodes[node].senders[at];
            let (number, attempt, error) = (room.room, room.attempt, room.session.error().cloned());
            self.check_origin(node, number, attempt, error.as_ref());
        }
        self.check_course(node, before, now);
    }

    pub(super) fn check_receiver(&mut self, node: usize, at: usize) {
        let time = self.now;
        let room = &mut self.nodes[node].receivers[at];
        room.look(time);
        let now = (room.session.state(), room.session.release());
        let before = room.seen.replace(now);
        let ends = now.0.is_terminal() && before.is_none_or(|(state, _)| !state.is_terminal());
        if ends {
            let tally = &mut self.watch.tally;
            tally.bytes += room.session.figures().bytes;
            match room.session.error() {
                None => tally.successes += 1,
                Some(error) => tally.failures.push(error.kind),
            }
        }
        if ends && now.0 == KVPoll::Success {
            self.check_success(node, at);
        }
        let room = &mut self.nodes[node].receivers[at];
        let (id, error) = (room.id, room.session.error().cloned());
        if now.0 == KVPoll::Failed && ends {
            self.check_origin(node, id.room, id.attempt, error.as_ref());
        }
        let room = &mut self.nodes[node].receivers[at];
        if now.1 == Release::Safe && !room.freed {
            room.freed = true;
            for (group, list) in room.pages.clone() {
                self.nodes[node].pool.give_back(group, &list.indices);
            }
        }
        self.check_course(node, before, now);
    }

    /// Final states stay final, and pages that were given back are not taken again.
    fn check_course(&mut self, node: usize, before: Option<(KVPoll, Release)>, now: (KVPoll, Release)) {
        let Some(before) = before else { return };
        if before != now {
            self.record(|| format!("  node {node} is {now:?}"));
        }
        let revived = before.0.is_terminal() && before.0 != now.0;
        let went_back = before.0 != KVPoll::Failed && now.0 != KVPoll::Failed && now.0 < before.0;
        if revived || went_back || now.1 < before.1 || (now.0 == KVPoll::Success && now.1 != Release::Safe) {
            self.watch.violated(format!("node {node} goes from {before:?} to {now:?}"));
        }
    }

    /// Success: every granted byte equals the source, and every source is done.
    fn check_success(&mut self, node: usize, at: usize) {
        let room = &self.nodes[node].receivers[at];
        let (id, salt, sources) = (room.id, room.salt, room.sources.clone());
        let rogue = |address: usize| self.rogues.iter().any(|&rogue| self.nodes[rogue].address == address);
        if rogue(self.nodes[node].address) || sources.iter().any(|(source, _)| rogue(*source)) {
            return; // who lies about its own bytes is not found out
        }
        let Some(lent) = room.session.lent().cloned() else {
            return self.watch.violated(format!("{id:?} succeeds without pages"));
        };
        let done = room.session.payloads().count();
        if done != sources.len() || room.session.ready_tokens() != lent.tokens.end {
            self.watch.violated(format!("{id:?} succeeds with {done} of {} sources done", sources.len()));
        }
        let layout = self.nodes[node].pool.layout.clone();
        for share in sources.iter().filter_map(|(_, share)| share.as_ref()) {
            for (group, list) in lent.pages.iter() {
                let positions = match layout.groups[usize::from(group.0)].kind {
                    GroupKind::Paged { page_tokens } => {
                        let covers = list.covers(page_tokens);
                        lent.tokens.start.max(covers.start)..lent.tokens.end.min(covers.end)
                    }
                    GroupKind::Rows => 0..u32::try_from(list.indices.len()).unwrap_or(0),
                };
                let pool = &mut self.nodes[node].pool;
                if let Some(wrong) = pool.differs(salt, *group, list, positions, share.layers.as_ref()) {
                    self.watch
                        .violated(format!("{id:?} succeeds with a wrong byte at {wrong:?} of {group:?}"));
                }
            }
        }
    }

    pub(super) fn check_lobby(&mut self, node: usize) {
        let (parked, memories) = self.nodes[node].lobby.sizes();
        if parked > 64 * self.net.conns.len() || memories > MEMORIES {
            self.watch.violated(format!("node {node} keeps {parked} frames and {memories} memories"));
        }
    }

    /// Nothing is left to happen: everybody has ended and has their pages back, and each accepted write
    /// has settled.
    pub(super) fn check_end(&mut self) {
        let mut found = Vec::new();
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let sessions = node.senders.iter().map(|room| &room.session as &dyn Session);
            for session in sessions.chain(node.receivers.iter().map(|room| &room.session as &dyn Session)) {
                let safe = session.release() == Release::Safe;
                let excused = !self.setup.fences && self.setup.model == Model::OneSided;
                if !session.state().is_terminal() || !(safe || excused) {
                    let (state, release, ranks) = (session.state(), session.release(), session.waiting_for());
                    found.push(format!("node {number} stays {state:?}, {release:?}, waiting for {ranks:?}"));
                }
            }
        }
        for (number, flight) in self.fabric.flights.iter().enumerate() {
            let conn = flight.conn();
            let source = self.net.conns[conn].nodes[0];
            if !flight.settled
                && !flight.is_unasked()
                && self.nodes[source].alive
                && (self.setup.fences || self.net.conns[conn].cut)
            {
                found.push(format!("flight {number} of {:?} never settles", flight.grant));
            }
        }
        if let Some(what) = found.into_iter().next() {
            self.watch.violated(what);
        }
    }

    /// Every handle was let go and nothing is left to happen: nothing is kept of any room, unless its pages
    /// are still out.
    pub(super) fn check_empty(&mut self) {
        let mut found = Vec::new();
        let held = |node: &Node| {
            let senders = node.senders.iter().map(|room| room.session.release());
            let mut all = senders.chain(node.receivers.iter().map(|room| room.session.release()));
            all.any(|release| release != Release::Safe)
        };
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let (senders, receivers) = (node.senders.len(), node.receivers.len());
            if senders + receivers > 0 && !held(node) {
                found.push(format!("node {number} keeps {senders} senders and {receivers} receivers"));
            }
            let (frames, memories) = node.lobby.sizes();
            if frames + memories > 0 {
                found.push(format!("node {number} keeps {frames} parked frames and {memories} memories"));
            }
        }
        if self.setup.flaw != Some(Flaw::ObeysRevoked) {
            found.extend(
                self.fabric.left(|node| self.nodes[node].alive && !held(&self.nodes[node]), &self.net),
            );
        }
        if let Some(what) = found.into_iter().next() {
            self.watch.violated(what);
        }
    }

    /// One event asks for a few actions, whatever happened before.
    pub(super) fn check_actions(&mut self, node: usize, actions: usize) {
        if actions > MAX_ACTIONS {
            self.watch.violated(format!("node {node} does {actions} things at once"));
        }
    }

    /// A cause goes out: whoever it comes from, it says what was said first.
    pub(super) fn check_cause(&mut self, node: usize, id: GrantId, cause: &Cause) {
        let Cause { origin, kind, detail, .. } = cause.clone();
        let own = &self.nodes[node];
        let senders = own.senders.iter().map(|own| ((own.room, own.attempt), own.session.error()));
        let receivers = own.receivers.iter().map(|own| ((own.id.room, own.id.attempt), own.session.error()));
        let mut errors = senders.chain(receivers).filter(|(of, _)| *of == (id.room, id.attempt));
        let is_changed = |error: &KVTransferError| {
            (error.kind, &*error.detail) == (kind, detail.as_str()) && error.party() != origin
        };
        if errors.any(|(_, error)| error.is_some_and(is_changed)) {
            self.watch.violated(format!("node {node} says that {cause:?}, which it heard of another"));
        }
        let words = Words { room: id.room, attempt: id.attempt, origin, kind, detail };
        match self.watch.said.insert(words, Some(cause.state)) {
            // Refusals are answers to one peer each, and may sound alike.
            Some(Some(state))
                if state != cause.state && cause.kind != ErrorKind::Protocol && !self.reused =>
            {
                self.watch
                    .violated(format!("{cause:?} of {id:?} was said to have arisen in {state:?} before"));
            }
            _ => {}
        }
    }

    /// Causes travel unchanged: who names another party as the origin repeats what that party said
    /// itself, word for word, or accuses it of something that shows from outside.
    fn check_origin(&mut self, node: usize, room: Room, attempt: Attempt, error: Option<&KVTransferError>) {
        let Some(error) = error else {
            return self.watch.violated(format!("room {room} failed at node {node} without a cause"));
        };
        let (origin, kind, detail) = (error.party(), error.kind, error.detail.to_string());
        let words = Words { room, attempt, origin, kind, detail };
        let shows = matches!(error.kind, ErrorKind::Layout | ErrorKind::PeerLost | ErrorKind::Protocol);
        if !error.is_from_another_rank() || shows {
            self.watch.said.entry(words).or_insert(None);
        } else if !self.watch.said.contains_key(&words) {
            self.watch.violated(format!("node {node} repeats what nobody said: {error}"));
        }
        let own = self.nodes[node].party == error.party();
        if own == error.is_from_another_rank() {
            self.watch.violated(format!("node {node} does not know itself: {error}"));
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// For each of four peers: what was held back of many chunks, and the end.
const MAX_ACTIONS: usize = 4 * 40;
