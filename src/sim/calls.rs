//! What users do.

use super::World;
use super::net::{DESTINATION, SOURCE};
use super::node::{ReceiverRoom, SenderRoom};
use super::pool::Tag;
use super::setup::{AUX, STATE, WHOLE, WINDOW, WINDOW_PAGE};
use crate::error::{ErrorKind, Fault};
use crate::ids::{Attempt, Generation, GrantId, GroupId, Rank, Room, Side};
use crate::layout::{PageList, Share};
use crate::poll::{KVPoll, Release};
use crate::session::{Chunk, Finish, Intake, Lent, ReceiverSession, SenderSession, Session};
use crate::wire::{Cause, Kind, Offer};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;

/// Something that the user of a node does, or that befalls it. What makes no sense at that moment is
/// refused and changes nothing.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "made by tests")]
pub enum Call {
    /// Ends a room from here.
    Abort {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
    },
    /// Gives the next chunk.
    Chunk {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Its tokens.
        tokens: Range<u32>,
        /// Its layers; all if none are named.
        layers: Option<Range<u32>>,
        /// Whether it may be read already.
        ready: bool,
    },
    /// A process ends without a word.
    Crash {
        /// The process.
        node: usize,
    },
    /// The connection between two nodes breaks.
    Cut {
        /// The prefill node.
        prefill: usize,
        /// The decode node.
        decode: usize,
    },
    /// Lets go of a handle; a sender's only once its pages are released.
    Drop {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
    },
    /// Ends the chunks.
    Finish {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens of the prompt.
        tokens: u32,
        /// Bytes of payload.
        payload: usize,
    },
    /// A process stops for a while.
    Freeze {
        /// The process.
        node: usize,
        /// How long.
        time: Duration,
    },
    /// Lends pages.
    Grant {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens wanted.
        tokens: Range<u32>,
        /// Tokens wanted of the window's group, counted from the end.
        window: u32,
        /// Whether rows are wanted.
        rows: bool,
    },
    /// The next control frame of this kind that one node sends the other is lost.
    Lose {
        /// The sending node.
        from: usize,
        /// The other one.
        to: usize,
        /// What is lost.
        kind: Kind,
    },
    /// Says what the request will be.
    Offer {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens of the prompt, if known.
        tokens: Option<u32>,
    },
    /// A chunk may be read from now on.
    Ready {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Its number.
        chunk: usize,
    },
    /// Opens a receiver.
    Receiver {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
        /// Tells the contents of requests apart.
        salt: u64,
        /// Decode ranks that receive.
        destinations: Vec<u32>,
        /// Prefill nodes and what each owes.
        sources: Vec<(usize, Option<Share>)>,
    },
    /// Says that a room will get no sender.
    Reject {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
    },
    /// Opens a sender.
    Sender {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
        /// Tells the contents of requests apart.
        salt: u64,
    },
}

impl World {
    pub(super) fn make(&mut self, call: Call) {
        let node = match call {
            Call::Cut { prefill, decode } => {
                if let Some(conn) = self.net.find([prefill, decode], DESTINATION) {
                    self.cut(conn, None);
                }
                return;
            }
            Call::Lose { from, to, kind } => return self.losses.push((from, to, kind)),
            Call::Abort { node, .. }
            | Call::Chunk { node, .. }
            | Call::Crash { node }
            | Call::Drop { node, .. }
            | Call::Finish { node, .. }
            | Call::Freeze { node, .. }
            | Call::Grant { node, .. }
            | Call::Offer { node, .. }
            | Call::Ready { node, .. }
            | Call::Receiver { node, .. }
            | Call::Reject { node, .. }
            | Call::Sender { node, .. } => node,
        };
        if self.nodes[node].alive && self.make_at(node, call).is_none() {
            self.record(|| "  refused".into());
        }
    }

    fn make_at(&mut self, node: usize, call: Call) -> Option<()> {
        match call {
            Call::Abort { room, .. } => self.abort(node, room),
            Call::Chunk { room, tokens, layers, ready, .. } => self.chunk(node, room, tokens, layers, ready),
            Call::Crash { .. } => self.crash(node),
            Call::Cut { .. } | Call::Lose { .. } => None,
            Call::Drop { room, .. } => self.drop_handle(node, room),
            Call::Finish { room, tokens, payload, .. } => self.end_chunks(node, room, tokens, payload),
            Call::Freeze { time, .. } => {
                self.nodes[node].frozen = Some(self.now + time);
                Some(())
            }
            Call::Grant { room, tokens, window, rows, .. } => self.lend(node, room, tokens, window, rows),
            Call::Offer { room, tokens, .. } => {
                let at = self.live_sender(node, room)?;
                let offer = Offer { tokens, complete: true, payload: Bytes::from_static(b"offer") };
                self.sender(node, at, |session, now| session.offer(now, offer));
                Some(())
            }
            Call::Ready { room, chunk, .. } => self.make_ready(node, room, chunk),
            Call::Receiver { room, attempt, salt, destinations, sources, .. } => {
                self.open_receiver(node, room, Attempt(attempt), salt, &destinations, sources)
            }
            Call::Reject { room, attempt, .. } => self.reject(node, room, Attempt(attempt)),
            Call::Sender { room, attempt, salt, .. } => self.open_sender(node, room, Attempt(attempt), salt),
        }
    }

    fn abort(&mut self, node: usize, room: Room) -> Option<()> {
        let fault = Fault::new(ErrorKind::Aborted, format!("the user of node {node} gave up"));
        if self.nodes[node].party.side == Side::Prefill {
            let at = self.live_sender(node, room)?;
            self.sender(node, at, |session, now| session.fail(now, fault));
        } else {
            let at = self.live_receiver(node, room)?;
            self.receiver_call(node, at, |session, now| session.fail(now, fault));
        }
        Some(())
    }

    fn open_sender(&mut self, node: usize, room: Room, attempt: Attempt, salt: u64) -> Option<()> {
        if self.nodes[node].senders.iter().any(|other| other.room == room) {
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
            seen: None,
            freed: false,
        });
        self.set_timer(node);
        let at = self.nodes[node].senders.len() - 1;
        self.adopt(node, at);
        Some(())
    }

    fn reject(&mut self, node: usize, room: Room, attempt: Attempt) -> Option<()> {
        if self.nodes[node].senders.iter().any(|other| other.room == room) {
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

    fn chunk(
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

    fn make_ready(&mut self, node: usize, room: Room, chunk: usize) -> Option<()> {
        let at = self.live_sender(node, room)?;
        self.nodes[node].senders[at].chunks.get(chunk).filter(|(_, filled)| !filled)?;
        self.fill(node, at, chunk);
        self.sender(node, at, |session, now| session.ready(now, chunk));
        Some(())
    }

    fn end_chunks(&mut self, node: usize, room: Room, tokens: u32, payload: usize) -> Option<()> {
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
        self.sender(node, at, |session, now| session.finish(now, finish));
        Some(())
    }

    fn open_receiver(
        &mut self,
        node: usize,
        room: Room,
        attempt: Attempt,
        salt: u64,
        destinations: &[u32],
        sources: Vec<(usize, Option<Share>)>,
    ) -> Option<()> {
        let held = |other: &ReceiverRoom| other.id.room == room && !other.dropped;
        if self.nodes[node].receivers.iter().any(held) {
            return None;
        }
        self.generations += 1;
        let id = GrantId { room, attempt, generation: Generation(self.generations) };
        let (now, party) = (self.instant(), self.nodes[node].party);
        let ranks = destinations.iter().map(|&rank| Rank::tp(rank)).collect();
        let layers = (0..self.setup.layers).collect();
        let session = ReceiverSession::new(now, id, party, self.setup.deadlines, ranks, layers);
        let expected: Vec<_> =
            sources.iter().map(|(source, share)| (self.nodes[*source].party.rank, share.clone())).collect();
        self.nodes[node].receivers.push(ReceiverRoom {
            session,
            id,
            salt,
            sources,
            pages: Vec::new(),
            seen: None,
            freed: false,
            dropped: false,
        });
        let at = self.nodes[node].receivers.len() - 1;
        self.receiver_call(node, at, |session, now| session.expect(now, expected));
        self.reach_sources(node, at);
        Some(())
    }

    fn lend(&mut self, node: usize, room: Room, tokens: Range<u32>, window: u32, rows: bool) -> Option<()> {
        let at = self.live_receiver(node, room)?;
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
        self.receiver_call(node, at, |session, now| session.grant(now, lent));
        Some(())
    }

    fn drop_handle(&mut self, node: usize, room: Room) -> Option<()> {
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
        let (ended, now) = (self.nodes[node].senders.remove(at), self.instant());
        self.nodes[node].lobby.ended(now, ended.session.last_words());
        if let (Some(cause), Some(heard)) = (ended.session.cause(), ended.session.joined_early()) {
            let answers = self.nodes[node].lobby.bury(now, room, ended.attempt, cause, heard);
            self.answer(answers);
        }
        self.set_timer(node);
        Some(())
    }

    fn crash(&mut self, node: usize) -> Option<()> {
        self.nodes[node].alive = false;
        let touched = |conn: &super::net::Conn| conn.nodes[SOURCE] == node || conn.nodes[DESTINATION] == node;
        let conns: Vec<_> =
            self.net.conns.iter().enumerate().filter(|(_, conn)| touched(conn)).map(|(at, _)| at).collect();
        conns.into_iter().for_each(|conn| self.cut(conn, None));
        Some(())
    }

    fn live_sender(&self, node: usize, room: Room) -> Option<usize> {
        let live = |other: &SenderRoom| other.room == room && !other.session.state().is_terminal();
        self.nodes[node].senders.iter().position(live)
    }

    fn live_receiver(&self, node: usize, room: Room) -> Option<usize> {
        let live = |other: &ReceiverRoom| other.id.room == room && !other.session.state().is_terminal();
        self.nodes[node].receivers.iter().position(live)
    }
}
