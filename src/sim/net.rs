//! Connections between nodes: control frames in order each way, cuts, and reconnects under new names.

use super::rng::Rng;
use crate::ids::LinkId;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// All connections there ever were; a connection is named by its place.
#[derive(Debug, Default)]
pub(super) struct Net {
    pub(super) conns: Vec<Conn>,
    /// Frames sent so far.
    sent: u64,
}

/// One connection between a prefill and a decode node.
#[derive(Debug)]
pub(super) struct Conn {
    /// The node at the prefill end and that at the decode end.
    pub(super) nodes: [usize; 2],
    /// Each end's own name for it.
    pub(super) links: [LinkId; 2],
    pub(super) ends: [End; 2],
    /// Nothing new gets through any more.
    pub(super) cut: bool,
    /// Nothing new gets through, and nobody is told.
    pub(super) dark: bool,
}

/// What one end of a connection still gets to see.
#[derive(Debug)]
pub(super) struct End {
    pub(super) state: Seen,
    /// What is under way to it, by number.
    pub(super) inbox: BTreeMap<u64, Bytes>,
    /// When the last of what is under way to this end arrives.
    last: Duration,
}

/// How much of a connection's life an end has seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    Nothing,
    Up,
    Down,
}

/// The prefill end.
pub(super) const SOURCE: usize = 0;
/// The decode end.
pub(super) const DESTINATION: usize = 1;

impl Net {
    /// Starts a connection; gives its place and when each end comes to know it.
    pub(super) fn connect(
        &mut self,
        now: Duration,
        rng: &mut Rng,
        nodes: [usize; 2],
    ) -> (usize, [Duration; 2]) {
        let up = [now + delay(rng), now + delay(rng)];
        let end = |last| End { state: Seen::Nothing, inbox: BTreeMap::new(), last };
        self.conns.push(Conn {
            nodes,
            links: [LinkId::allocate(), LinkId::allocate()],
            ends: [end(up[SOURCE]), end(up[DESTINATION])],
            cut: false,
            dark: false,
        });
        (self.conns.len() - 1, up)
    }

    /// The usable connection between two nodes, or the one being made, as this end sees it.
    pub(super) fn find(&self, nodes: [usize; 2], end: usize) -> Option<usize> {
        self.conns.iter().rposition(|conn| conn.nodes == nodes && conn.ends[end].state != Seen::Down)
    }

    /// The connection and the end that a link names.
    pub(super) fn end_of(&self, link: LinkId) -> Option<(usize, usize)> {
        self.conns
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, conn)| conn.links.iter().position(|&own| own == link).map(|end| (at, end)))
    }

    /// Sends a frame to an end; gives when it arrives and under which number, unless it is lost. A frame
    /// held back is overtaken by those after it.
    pub(super) fn send(
        &mut self,
        now: Duration,
        rng: &mut Rng,
        conn: usize,
        to: usize,
        frame: Bytes,
        held: Duration,
    ) -> Option<(Duration, u64)> {
        let conn = &mut self.conns[conn];
        if conn.cut || conn.dark {
            return None;
        }
        let end = &mut conn.ends[to];
        self.sent += 1;
        end.inbox.insert(self.sent, frame);
        let at = end.last.max(now + delay(rng));
        if held.is_zero() {
            end.last = at;
        }
        Some((at + held, self.sent))
    }

    /// Cuts a connection. Of the frames under way to each end, a beginning still arrives. Gives when
    /// each end hears of it; `None` if it was cut before.
    pub(super) fn cut(&mut self, now: Duration, rng: &mut Rng, conn: usize) -> Option<[Duration; 2]> {
        let conn = &mut self.conns[conn];
        if conn.cut {
            return None;
        }
        conn.cut = true;
        let mut heard = [now; 2];
        for (end, heard) in conn.ends.iter_mut().zip(&mut heard) {
            let kept = rng.place(end.inbox.len() + 1);
            while end.inbox.len() > kept {
                end.inbox.pop_last();
            }
            end.last = end.last.max(now + delay(rng));
            *heard = end.last;
        }
        Some(heard)
    }
}

/// How long something takes: mostly short, at times much longer.
pub(super) fn delay(rng: &mut Rng) -> Duration {
    let micros = if rng.percent(4) { rng.within(5_000..120_000) } else { rng.within(20..4_000) };
    Duration::from_micros(micros)
}
