//! What befalls processes, links and single frames.

use super::net::{DESTINATION, SOURCE, delay};
use super::setup::Flaw;
use super::{Event, World};
use crate::wire::{Frame, Kind};
use std::time::Duration;

/// What happens to a control frame on a living link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "made by tests")]
pub enum Mishap {
    /// It arrives this much later, after others sent behind it.
    Hold(Duration),
    /// It does not arrive.
    Lose,
    /// It arrives twice.
    Repeat,
}

/// A frame to which something will happen.
#[derive(Debug)]
pub(super) struct Disturbance {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) kind: Kind,
    pub(super) mishap: Mishap,
}

impl World {
    /// Sends a frame to one end of a connection, as far as nothing happens to it.
    pub(super) fn dispatch(&mut self, conn: usize, to: usize, frame: &Frame) {
        let bytes = frame.encode();
        self.overheard.push_back(bytes.clone());
        if self.overheard.len() > OVERHEARD {
            self.overheard.pop_front();
        }
        let mishap = self.mishap(conn, to, frame.kind());
        if let Some(mishap) = mishap {
            self.record(|| format!("  {mishap:?} befalls {frame:?}"));
        }
        let (copies, held) = match mishap {
            Some(Mishap::Lose) => (0, Duration::ZERO),
            Some(Mishap::Hold(time)) => (1, time),
            Some(Mishap::Repeat) => (2, Duration::ZERO),
            None => (1, Duration::ZERO),
        };
        for _ in 0..copies {
            let sent = self.net.send(self.now, &mut self.rng, conn, to, bytes.clone(), held);
            if let Some((at, frame)) = sent {
                self.plan(at, Event::Control { conn, end: to, frame });
            }
        }
    }

    fn mishap(&mut self, conn: usize, to: usize, kind: Kind) -> Option<Mishap> {
        let address = |end: usize| self.nodes[self.net.conns[conn].nodes[end]].address;
        let (from, to) = (address(1 - to), address(to));
        let wanted = |d: &Disturbance| (d.from, d.to, d.kind) == (from, to, kind);
        if let Some(at) = self.disturbances.iter().position(wanted) {
            return Some(self.disturbances.remove(at).mishap);
        }
        let (setup, rng) = (&self.setup, &mut self.rng);
        if setup.lost + setup.held + setup.repeated == 0 {
            return None;
        }
        match rng.within(0..100) {
            chance if chance < setup.lost => Some(Mishap::Lose),
            chance if chance < setup.lost + setup.held => {
                Some(Mishap::Hold(Duration::from_micros(rng.within(100..400_000))))
            }
            chance if chance < setup.lost + setup.held + setup.repeated => Some(Mishap::Repeat),
            _ => None,
        }
    }

    pub(super) fn freeze(&mut self, node: usize, time: Duration) {
        let thaw = self.now + time;
        let own = &mut self.nodes[node];
        own.frozen = Some(own.frozen.map_or(thaw, |planned| planned.max(thaw)));
    }

    /// When a frozen process takes up what waited for it.
    pub(super) fn resumes(&self, event: &Event, thaw: Duration) -> Duration {
        let is_late = self.setup.flaw == Some(Flaw::OversleepsThaw) && matches!(event, Event::Timer { .. });
        if is_late { thaw + Duration::from_millis(400) } else { thaw }
    }

    pub(super) fn crash(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].alive, false) {
            return;
        }
        let touched = |conn: &super::net::Conn| conn.nodes[SOURCE] == node || conn.nodes[DESTINATION] == node;
        let conns: Vec<_> =
            self.net.conns.iter().enumerate().filter(|(_, conn)| touched(conn)).map(|(at, _)| at).collect();
        conns.into_iter().for_each(|conn| self.cut(conn, None));
    }

    /// A process ends, if it has not, and another one begins at its address.
    pub(super) fn restart(&mut self, node: usize) {
        self.crash(node);
        let next = self.nodes[node].next(&self.setup, &mut self.rng);
        self.living[next.address] = self.nodes.len();
        self.nodes.push(next);
    }

    /// From now on nothing befalls frames and writes; links through which nothing gets end.
    pub fn calm(&mut self) {
        let setup = &mut self.setup;
        (setup.lost, setup.held, setup.repeated) = (0, 0, 0);
        (setup.damaged, setup.doubled, setup.late) = (0, 0, 0);
        self.disturbances.clear();
        for conn in 0..self.net.conns.len() {
            if self.net.conns[conn].dark {
                self.cut(conn, None);
            }
        }
    }

    /// From now on nothing gets through between two nodes, and nobody is told.
    pub(super) fn darken(&mut self, prefill: usize, decode: usize) {
        if let Some(conn) = self.net.find([prefill, decode], DESTINATION) {
            self.net.conns[conn].dark = true;
        }
    }

    /// A dark link has ended: what was posted into the dark may come out of it all the same.
    pub(super) fn leave_dark(&mut self, flight: usize) {
        let at = self.now + delay(&mut self.rng) * 4;
        self.plan(at, Event::Fabric(super::transport::Move::Begin { flight }));
    }
}

/// Frames that a rogue can repeat.
const OVERHEARD: usize = 24;
