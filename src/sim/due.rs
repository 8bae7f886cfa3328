//! Until when each room must have ended: counted from what can be seen of it from outside, not asked of
//! its session.

use super::World;
use super::node::{Node, ReceiverRoom, SenderRoom};
use crate::config::Deadlines;
use crate::ids::{LinkId, Room};
use crate::poll::KVPoll;
use crate::session::Session;
use crate::wire::RoomFrame;
use std::time::Duration;

/// What was seen of a room, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse {
    created: Duration,
    /// It is in its phase since then.
    since: Duration,
    /// Something useful happened last.
    news: Duration,
    seen: (KVPoll, bool, u64),
}

impl Pulse {
    pub(super) fn new(now: Duration) -> Self {
        Self { created: now, since: now, news: now, seen: (KVPoll::Bootstrapping, false, 0) }
    }

    /// Something useful happened to the room.
    pub(super) fn stir(&mut self, now: Duration) {
        self.news = now;
    }

    fn look(&mut self, now: Duration, state: KVPoll, is_discovered: bool, bytes: u64) {
        let seen = (state, is_discovered, bytes);
        if (seen.0, seen.1) != (self.seen.0, self.seen.1) {
            self.since = now;
        }
        if seen != self.seen {
            self.news = now;
        }
        self.seen = seen;
    }

    fn due(&self, limits: &Deadlines) -> Duration {
        let phase = match self.seen {
            (KVPoll::Bootstrapping, false, _) => self.since + limits.discover,
            (KVPoll::Bootstrapping, true, _) => self.since + limits.handshake,
            (KVPoll::WaitingForInput, ..) => self.news + limits.waiting_for_input,
            _ => self.news + limits.stall,
        };
        limits.total.map_or(phase, |total| phase.min(self.created + total))
    }
}

impl SenderRoom {
    pub(super) fn look(&mut self, now: Duration) {
        let is_discovered = self.session.receivers().next().is_some();
        self.pulse.look(now, self.session.state(), is_discovered, self.session.figures().bytes);
    }
}

impl ReceiverRoom {
    pub(super) fn look(&mut self, now: Duration) {
        // A source is done once, however often it says so.
        let done = self.session.payloads().count() as u64;
        self.pulse.look(now, self.session.state(), true, self.session.figures().bytes * 16 + done);
    }
}

impl Node {
    /// A room that should have ended before `now`, and when.
    fn overdue(&self, now: Duration, limits: &Deadlines) -> Option<(Room, Duration)> {
        let thawed = self.frozen.unwrap_or_default();
        let senders = self.senders.iter().map(|own| (own.room, own.session.state(), &own.pulse));
        let receivers = self.receivers.iter().map(|own| (own.id.room, own.session.state(), &own.pulse));
        let live = senders.chain(receivers).filter(|(_, state, _)| !state.is_terminal());
        let due = live.map(|(room, _, pulse)| (room, pulse.due(limits).max(thawed)));
        due.into_iter().find(|(_, due)| *due + GRACE < now)
    }
}

impl World {
    /// No room of a running process lives on past its deadline, nor past a thaw.
    pub(super) fn check_overdue(&mut self) {
        let (now, limits) = (self.now, &self.setup.deadlines);
        let running = |node: &&Node| node.alive && node.frozen.is_none_or(|thaw| thaw < now);
        let late =
            self.nodes.iter().filter(running).find_map(|node| Some((node, node.overdue(now, limits)?)));
        if let Some((node, (room, due))) = late {
            let what = format!("room {room} lives on at {} at {now:?}, due at {due:?}", node.party);
            self.watch.violated(what);
        }
    }

    /// A frame came for a receiver.
    pub(super) fn heard(&mut self, node: usize, at: usize, link: LinkId, frame: &RoomFrame) {
        let room = &mut self.nodes[node].receivers[at];
        let is_news = match frame {
            RoomFrame::ChunkDone { .. } | RoomFrame::Offer(_) => true,
            RoomFrame::Status(status) => {
                room.told.insert(link, status.bytes).is_none_or(|before| before < status.bytes)
            }
            _ => false,
        };
        if is_news {
            room.pulse.stir(self.now);
        }
    }
}

/// How late a deadline may be noticed.
const GRACE: Duration = Duration::from_millis(50);
