//! How users do it.

use super::World;
use super::due::Pulse;
use super::node::{ReceiverRoom, SenderRoom};
use super::pool::Tag;
use super::setup::{AUX, Flaw, STATE, WHOLE, WINDOW, WINDOW_PAGE};
use crate::error::{ErrorKind, Fault};
use crate::ids::{Attempt, Generation, GrantId, GroupId, Rank, Room, Side};
use crate::layout::{PageList, Share};
use crate::poll::{KVPoll, Release};
use crate::session::{Chunk, Finish, Intake, Lent, ReceiverSession, SenderSession, Session};
use crate::wire::Cause;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

impl World {
    pub(super) fn abort(&mut self, node: usize, room: Room) -> Option<()> {
        let fault =
            Fault::new(ErrorKind::Aborted, format!("the user of node {node} gave up in step {}", self.steps));
        if self.nodes[node].party.side == Side::Prefill {
            let at = self.live_sender(node, room)?;
            self.sender(node, at, |session, now| session.fail(now, fault));
        } else {
            let at = self.live_receiver(node, room)?;
            self.receiver_call(node, at, |session, now| session.fail(now, fault));
        }
        Some(())
    }

    pub(super) fn open_sender(&mut self, node: usize, room: Room, attempt: Attempt, salt: u64) -> Option<()> {
        let own = &self.nodes[node];
        if own.party.side == Side::Decode || own.senders.iter().any(|other| other.room == room) {
            return None;
        }
        self.tags += 1;
        let (now, setup) = (self.instant(), &self.setup);
        let layers = (0..setup.layers).collect();
        let (bytes, retransmits) = (setup.write_bytes, setup.retransmits);
        let party = self.nodes[node].party;
        self.nodes[node].senders.push(SenderRoom {
            session: SenderSession::new(now, room, party, self.setup.deadlines, bytes, retransmits),
            room,
            attempt,
            tag: Tag(self.tags),
            salt,
            intake: Intake::new(layers, 64),
            tables: Default::default(),
            chunks: Vec::new(),
            pulse: Pulse::new(self.now),
            seen: None,
            freed: false,
        });
        self.set_timer(node);
        let at = self.nodes[node].senders.len() - 1;
        self.adopt(node, at);
        Some(())
    }

    pub(super) fn reject(&mut self, node: usize, room: Room, attempt: Attempt) -> Option<()> {
        let own = &self.nodes[node];
        if own.party.side == Side::Decode || own.senders.iter().any(|other| other.room == room) {
            return None;
        }
        let (origin, now) = (self.nodes[node].party, self.instant());
        let (state, kind, detail) = (KVPoll::Bootstrapping, ErrorKind::Rejected, "no".to_owned());
        let cause = Cause { origin, state, kind, detail };
        let answers = self.nodes[node].lobby.bury(now, room, attempt, cause, Vec::new());
        self.answer(answers);
        self.set_timer(node);
        Some(())
    }

    pub(super) fn chunk(
        &mut self,
        node: usize,
        room: Room,
        tokens: Range<u32>,
        layers: Option<Range<u32>>,
        ready: bool,
    ) -> Option<()> {
        let at = self.live_sender(node, room)?;
        self.nodes[node].senders[at].intake.chunk(&tokens, layers.as_ref()).ok()?;
        let page_tokens = self.setup.page_tokens;
        let mut chunk = Chunk::new(tokens.clone(), Vec::new());
        (chunk.layers, chunk.ready) = (layers, ready);
        for (group, page_tokens) in [(WHOLE, page_tokens), (WINDOW, WINDOW_PAGE)] {
            let (first, end) = (tokens.start / page_tokens, tokens.end.div_ceil(page_tokens));
            let table = self.table(node, at, group, end)?;
            let indices = table[first as usize..(end.max(first)) as usize].to_vec();
            let list = PageList::new(first * page_tokens, indices);
            let tag = self.nodes[node].senders[at].tag;
            self.nodes[node].pool.lend(tag, group, &list, tokens.clone());
            chunk.pages.push((group, list));
        }
        self.nodes[node].senders[at].chunks.push((chunk.clone(), false));
        if ready {
            self.fill(node, at, self.nodes[node].senders[at].chunks.len() - 1);
        }
        self.nodes[node].senders[at].pulse.stir(self.now);
        self.sender(node, at, |session, now| session.send(now, chunk));
        Some(())
    }

    /// The pages of a sender's group, enough for `pages`.
    fn table(&mut self, node: usize, at: usize, group: GroupId, pages: u32) -> Option<Vec<u32>> {
        let Self { nodes, rng, .. } = self;
        let own = &mut nodes[node];
        let table = &mut own.senders[at].tables[usize::from(group.0)];
        while table.len() < pages as usize {
            table.push(own.pool.take(group, |len| rng.place(len))?);
        }
        Some(table.clone())
    }

    /// Writes what a chunk holds into its pages.
    fn fill(&mut self, node: usize, at: usize, chunk: usize) {
        let own = &mut self.nodes[node];
        let room = &mut own.senders[at];
        let (Chunk { tokens, layers, pages, .. }, filled) = &mut room.chunks[chunk];
        if !std::mem::replace(filled, true) {
            for (group, list) in pages {
                own.pool.fill(room.salt, *group, list, tokens.clone(), layers.as_ref());
            }
        }
    }

    pub(super) fn make_ready(&mut self, node: usize, room: Room, chunk: usize) -> Option<()> {
        let at = self.live_sender(node, room)?;
        self.nodes[node].senders[at].chunks.get(chunk).filter(|(_, filled)| !filled)?;
        self.fill(node, at, chunk);
        self.nodes[node].senders[at].pulse.stir(self.now);
        self.sender(node, at, |session, now| session.ready(now, chunk));
        Some(())
    }

    pub(super) fn end_chunks(&mut self, node: usize, room: Room, tokens: u32, payload: usize) -> Option<()> {
        let at = self.live_sender(node, room)?;
        self.nodes[node].senders[at].intake.finish(tokens).ok()?;
        let mut finish = Finish::new(tokens);
        finish.payload = Bytes::from(vec![7; payload]);
        for (group, rows) in [(STATE, 2), (AUX, 1)] {
            let list = PageList::new(0, self.table(node, at, group, rows)?);
            let own = &mut self.nodes[node];
            own.pool.lend(own.senders[at].tag, group, &list, 0..rows);
            own.pool.fill(own.senders[at].salt, group, &list, 0..rows, None);
            finish.rows.push((group, list));
        }
        self.nodes[node].senders[at].pulse.stir(self.now);
        self.sender(node, at, |session, now| session.finish(now, finish));
        Some(())
    }

    pub(super) fn open_receiver(
        &mut self,
        node: usize,
        room: Room,
        attempt: Attempt,
        salt: u64,
        destinations: &[u32],
        sources: Vec<(usize, Option<Share>)>,
    ) -> Option<()> {
        let held = |other: &ReceiverRoom| other.id.room == room && !other.dropped;
        let own = &self.nodes[node];
        if own.party.side == Side::Prefill || own.receivers.iter().any(held) {
            return None;
        }
        self.reused |= self.known.iter().any(|known| (known.room, known.attempt) == (room, attempt));
        self.generations += 1;
        let id = GrantId { room, attempt, generation: Generation(self.generations) };
        self.known.push(id);
        self.watch.tally.rooms += 1;
        let (now, party) = (self.instant(), self.nodes[node].party);
        let ranks = destinations.iter().map(|&rank| Rank::tp(rank)).collect();
        let layers = (0..self.setup.layers).collect();
        let session = ReceiverSession::new(now, id, party, self.setup.deadlines, ranks, layers);
        let expected: Vec<_> =
            sources.iter().map(|(source, share)| (self.party(*source).rank, share.clone())).collect();
        self.nodes[node].receivers.push(ReceiverRoom {
            session,
            id,
            salt,
            sources,
            pages: Vec::new(),
            told: BTreeMap::new(),
            pulse: Pulse::new(self.now),
            seen: None,
            freed: false,
            dropped: false,
        });
        let at = self.nodes[node].receivers.len() - 1;
        self.receiver_call(node, at, |session, now| session.expect(now, expected));
        self.reach_sources(node, at);
        Some(())
    }

    pub(super) fn lend(
        &mut self,
        node: usize,
        room: Room,
        tokens: Range<u32>,
        window: u32,
        rows: bool,
    ) -> Option<()> {
        let at = self.live_receiver(node, room)?;
        if tokens.end < tokens.start {
            return None;
        }
        let Self { nodes, rng, setup, .. } = self;
        let own = &mut nodes[node];
        if !own.receivers[at].pages.is_empty() || own.receivers[at].session.lent().is_some() {
            return None;
        }
        let tag = Tag(u32::try_from(own.receivers[at].id.generation.0).unwrap_or(0));
        // Pages are lent whole, as far as their tokens are wanted.
        let from = tokens.end.saturating_sub(window) / WINDOW_PAGE * WINDOW_PAGE;
        let from = if window == 0 { tokens.end } else { from.max(tokens.start) };
        let mut wanted = vec![(WHOLE, setup.page_tokens, tokens.clone())];
        wanted.push((WINDOW, WINDOW_PAGE, from..tokens.end));
        if rows {
            wanted.extend([(STATE, 1, 0..2), (AUX, 1, 0..1)]);
        }
        let mut pages = Vec::new();
        for (group, page_tokens, positions) in wanted {
            let end = positions.end.div_ceil(page_tokens);
            let first = if positions.is_empty() { end } else { positions.start / page_tokens };
            let list = (first..end).map(|_| own.pool.take(group, |len| rng.place(len)));
            let list = PageList::new(first * page_tokens, list.collect::<Option<_>>()?);
            own.pool.lend(tag, group, &list, positions);
            pages.push((group, list));
        }
        own.receivers[at].pages.clone_from(&pages);
        let lent = Lent { tokens, pages: pages.into() };
        self.nodes[node].receivers[at].pulse.stir(self.now);
        self.receiver_call(node, at, |session, now| session.grant(now, lent));
        Some(())
    }

    pub(super) fn drop_handle(&mut self, node: usize, room: Room) -> Option<()> {
        if self.nodes[node].party.side == Side::Decode {
            let _ = self.abort(node, room);
            let held = |other: &&mut ReceiverRoom| other.id.room == room && !other.dropped;
            self.nodes[node].receivers.iter_mut().find(held)?.dropped = true;
            return Some(());
        }
        let at = self.nodes[node].senders.iter().position(|other| other.room == room)?;
        if self.nodes[node].senders[at].session.release() != Release::Safe {
            return None;
        }
        if self.setup.flaw == Some(Flaw::KeepsRooms) {
            return Some(());
        }
        let (ended, now) = (self.nodes[node].senders.remove(at), self.instant());
        self.nodes[node].lobby.ended(now, ended.session.last_words());
        if let (Some(cause), Some(heard)) = (ended.session.cause(), ended.session.joined_early()) {
            let answers = self.nodes[node].lobby.bury(now, room, ended.attempt, cause, heard);
            self.answer(answers);
        }
        self.set_timer(node);
        Some(())
    }

    pub(super) fn live_sender(&self, node: usize, room: Room) -> Option<usize> {
        let live = |other: &SenderRoom| other.room == room && !other.session.state().is_terminal();
        self.nodes[node].senders.iter().position(live)
    }

    fn live_receiver(&self, node: usize, room: Room) -> Option<usize> {
        let live = |other: &ReceiverRoom| other.id.room == room && !other.session.state().is_terminal();
        self.nodes[node].receivers.iter().position(live)
    }
}
