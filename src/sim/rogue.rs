//! Peers that say what they should not: frames for rooms of others, in no order, said before by
//! somebody else, or made up. All of them can be decoded.

use super::World;
use super::net::{DESTINATION, SOURCE, Seen};
use crate::error::ErrorKind;
use crate::ids::{Attempt, Generation, GrantId, GroupId, Party, Rank, Room, Side};
use crate::layout::{PageList, Piece, Share};
use crate::poll::KVPoll;
use crate::wire::{Cause, Done, Frame, Grant, Offer, RoomFrame, Status};
use bytes::Bytes;
use std::ops::Range;

impl World {
    /// A process says something it should not to one it is connected with, or (two-sided) writes what
    /// it should not.
    pub(super) fn babble(&mut self, node: usize) -> Option<()> {
        self.rogues.insert(node);
        let side = self.nodes[node].party.side;
        let end = if side == Side::Prefill { SOURCE } else { DESTINATION };
        let conns = self.net.conns.iter().enumerate();
        let own = conns.filter(|(_, conn)| conn.nodes[end] == node && conn.ends[end].state == Seen::Up);
        let own: Vec<_> = own.map(|(at, _)| at).collect();
        let conn = *own.get(self.rng.place(own.len()))?;
        if end == SOURCE && self.rng.percent(25) {
            let (grant, piece) = (self.some_id(), self.some_piece());
            self.write_unasked(conn, grant, piece);
            return Some(());
        }
        let frame = match self.overheard.get(self.rng.place(self.overheard.len())) {
            Some(bytes) if self.rng.percent(40) => Frame::decode(bytes).ok()?,
            _ => Frame::Room { id: self.some_id(), frame: self.some_frame(node) },
        };
        if let Frame::Room { id, frame: RoomFrame::Abort(cause) | RoomFrame::Failed(cause) } = &frame {
            self.watch.invented(*id, cause);
        }
        self.record(|| format!("  a rogue says {frame:?}"));
        self.dispatch(conn, 1 - end, &frame);
        Some(())
    }

    fn some_id(&mut self) -> GrantId {
        let known = self.known.get(self.rng.place(self.known.len())).copied();
        let chance = self.rng.within(0..10);
        match known {
            Some(known) if chance < 7 => known,
            Some(known) if chance == 7 => GrantId { generation: Generation(self.rng.number()), ..known },
            Some(known) if chance == 8 => GrantId { attempt: Attempt(self.rng.within(0..4)), ..known },
            _ => GrantId {
                room: Room(self.rng.within(0..5)),
                attempt: Attempt(self.rng.within(0..3)),
                generation: Generation(self.rng.number()),
            },
        }
    }

    fn some_range(&mut self, most: u32) -> Range<u32> {
        let start = self.rng.small(0..most);
        start..self.rng.small(start..most + 1)
    }

    fn some_piece(&mut self) -> Piece {
        Piece { pairs: self.some_range(9), positions: self.some_range(20) }
    }

    fn some_pages(&mut self) -> Vec<(GroupId, PageList)> {
        let lists = self.rng.within(0..5);
        let mut pages = Vec::new();
        for number in 0..lists {
            let group = if self.rng.percent(80) { number } else { self.rng.within(0..9) };
            let count = self.rng.within(0..9);
            let indices = (0..count).map(|_| self.rng.small(0..60)).collect();
            let first = if self.rng.percent(60) { 0 } else { self.rng.small(0..12) };
            pages.push((GroupId(u16::try_from(group).unwrap_or(0)), PageList::new(first, indices)));
        }
        pages
    }

    fn some_party(&mut self) -> Party {
        self.nodes[self.rng.place(self.nodes.len())].party
    }

    fn some_cause(&mut self) -> Cause {
        let states = [KVPoll::Bootstrapping, KVPoll::WaitingForInput, KVPoll::Transferring, KVPoll::Failed];
        let kinds = [ErrorKind::Aborted, ErrorKind::Timeout, ErrorKind::Protocol, ErrorKind::Internal];
        let (state, kind) = (states[self.rng.place(4)], kinds[self.rng.place(4)]);
        let detail = format!("made up: {}", self.rng.number());
        Cause { origin: self.some_party(), state, kind, detail }
    }

    fn some_frame(&mut self, node: usize) -> RoomFrame {
        let payload = Bytes::from(vec![1; self.rng.place(5)]);
        // Mostly what its own side would say, at times what the other one would.
        let receiver = (self.nodes[node].party.side == Side::Decode) != self.rng.percent(15);
        let side = if receiver { Side::Decode } else { Side::Prefill };
        match self.rng.within(0..7) {
            5 => RoomFrame::Query { asked: if receiver { Side::Prefill } else { Side::Decode } },
            6 => {
                let states = [None, Some(KVPoll::Transferring), Some(KVPoll::Success), Some(KVPoll::Failed)];
                let mut status = Status::new(side, states[self.rng.place(4)]);
                (status.granted, status.bytes) = (self.rng.percent(50), self.rng.within(0..200));
                RoomFrame::Status(status)
            }
            0 if receiver => {
                let ranks = self.rng.within(0..4);
                let own = self.nodes[node].party.rank;
                let mut destinations: Vec<_> = (0..ranks).map(|_| Rank::tp(self.rng.small(0..5))).collect();
                if self.rng.percent(60) {
                    destinations.push(own);
                }
                RoomFrame::Join { destinations }
            }
            1 if receiver => {
                let share = self.rng.percent(80).then_some(Share::WHOLE);
                let (tokens, pages) = (self.some_range(15), self.some_pages());
                RoomFrame::Grant(Grant { epoch: 1, source_epoch: 1, tokens, share, pages })
            }
            _ if receiver => RoomFrame::Abort(self.some_cause()),
            0 => {
                let layers = self.rng.percent(30).then(|| self.some_range(5));
                RoomFrame::ChunkDone { tokens: self.some_range(15), layers }
            }
            1 => RoomFrame::Offer(Offer { tokens: Some(self.rng.small(0..15)), complete: true, payload }),
            2 => {
                let (tokens, ops) = (self.rng.small(0..15), self.rng.small(0..9));
                RoomFrame::Done(Done { tokens, ops, bytes: self.rng.within(0..300), payload })
            }
            3 => RoomFrame::Failed(self.some_cause()),
            _ => RoomFrame::Quiet,
        }
    }
}
