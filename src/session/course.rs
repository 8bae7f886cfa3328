//! State, first cause and deadlines of one room: what both sides keep in the same way.

use super::phase::Trigger;
use super::{Action, Figures};
use crate::config::Deadlines;
use crate::error::{ErrorKind, Fault, KVTransferError, Moment, Origin};
use crate::ids::{GrantId, LinkId, Party, Room};
use crate::poll::KVPoll;
use crate::wire::{Cause, RoomFrame};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Course {
    room: Room,
    party: Party,
    deadlines: Deadlines,
    state: KVPoll,
    error: Option<KVTransferError>,
    /// The first cause, in the words of its first witness.
    cause: Option<Cause>,
    entered: Instant,
    /// Somebody to shake hands with is known.
    is_discovered: bool,
    progressed: Instant,
    /// Questions since the last news.
    asked: u32,
    ask_at: Option<Instant>,
    fenced: bool,
    actions: VecDeque<Action>,
    pub(super) figures: Figures,
}

impl Course {
    pub(super) fn new(now: Instant, room: Room, party: Party, deadlines: Deadlines) -> Self {
        Self {
            room,
            party,
            deadlines,
            state: KVPoll::Bootstrapping,
            error: None,
            cause: None,
            entered: now,
            is_discovered: false,
            progressed: now,
            asked: 0,
            ask_at: now.checked_add(deadlines.query),
            fenced: false,
            actions: VecDeque::new(),
            figures: Figures {
                created: now,
                known: None,
                granted: None,
                first_byte: None,
                last_byte: None,
                bytes: 0,
            },
        }
    }

    pub(super) fn step(&mut self, now: Instant, trigger: Trigger) {
        if let Some(next) = self.state.on(trigger) {
            if trigger == Trigger::Known {
                self.figures.known = Some(now);
            }
            self.state = next;
            self.entered = now;
            self.progress(now);
        }
    }

    /// Somebody to shake hands with is known now.
    pub(super) fn discovered(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_discovered, true) && !self.state.is_terminal() {
            self.entered = now;
        }
        self.progress(now);
    }

    /// Something useful happened: the stall deadline starts anew.
    pub(super) fn progress(&mut self, now: Instant) {
        self.progressed = now;
        self.asked = 0;
        self.ask_at = now.checked_add(self.deadlines.query);
    }

    /// Whether it is time to ask peers where the room stands; true once, then again after a longer pause.
    pub(super) fn must_ask(&mut self, now: Instant) -> bool {
        let due = !self.state.is_terminal() && self.ask_at.is_some_and(|at| at <= now);
        if due {
            self.asked += 1;
            let pause = self.deadlines.query.saturating_mul(1 << self.asked.min(MAX_DOUBLINGS));
            self.ask_at = now.checked_add(pause);
        }
        due
    }

    pub(super) fn moved(&mut self, now: Instant, bytes: u64) {
        self.progress(now);
        self.figures.first_byte.get_or_insert(now);
        self.figures.last_byte = Some(now);
        self.figures.bytes += bytes;
    }

    /// Ends the room. The first cause is kept; later ones are its effects. Answers whether this was
    /// the first.
    pub(super) fn fail(&mut self, now: Instant, fault: Fault, origin: Origin) -> bool {
        if self.state.is_terminal() {
            return false;
        }
        let elapsed = now.saturating_duration_since(self.figures.created);
        let moment = Moment { room: self.room, state: self.state, elapsed };
        let error = fault.at(moment, origin);
        self.cause = Some(Cause {
            origin: error.party(),
            state: error.state,
            kind: error.kind,
            detail: error.detail.to_string(),
        });
        self.error = Some(error);
        self.step(now, Trigger::Broken);
        true
    }

    pub(super) fn fail_here(&mut self, now: Instant, fault: Fault) -> bool {
        self.fail(now, fault, Origin::Local(self.party))
    }

    /// Ends the room for the reason another party gave.
    pub(super) fn fail_for(&mut self, now: Instant, cause: &Cause) -> bool {
        // A cause that has come back to its origin stays local there.
        let origin =
            if cause.origin == self.party { Origin::Local(self.party) } else { Origin::Peer(cause.origin) };
        let first = self.fail(now, Fault::new(cause.kind, cause.detail.as_str()), origin);
        if first {
            self.cause = Some(cause.clone());
        }
        first
    }

    pub(super) fn send(&mut self, link: LinkId, id: GrantId, frame: RoomFrame) {
        self.actions.push_back(Action::Send { link, id, frame });
    }

    pub(super) fn ask(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The first cause, as it is told to others.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause.clone()
    }

    /// A cause of ours that does not end the room: the answer to one peer's broken rule.
    pub(super) fn refusal(&self, kind: ErrorKind, detail: String) -> Cause {
        Cause { origin: self.party, state: self.state, kind, detail }
    }

    pub(super) fn state(&self) -> KVPoll {
        self.state
    }

    pub(super) fn error(&self) -> Option<&KVTransferError> {
        self.error.as_ref()
    }

    /// When the next deadline fires; `draining` says whether pages are still out after the end, `asks`
    /// whether there is anybody to ask.
    pub(super) fn deadline(&self, draining: bool, asks: bool) -> Option<Instant> {
        if self.state.is_terminal() {
            let fence = self.entered.checked_add(self.deadlines.drain);
            return fence.filter(|_| draining && !self.fenced);
        }
        let (_, since, limit) = self.phase();
        let total = self.deadlines.total.and_then(|total| self.figures.created.checked_add(total));
        let ask = self.ask_at.filter(|_| asks);
        since.checked_add(limit).into_iter().chain(total).chain(ask).min()
    }

    /// The deadline that has passed, as a fault that names phase, elapsed time and limit; `missing`
    /// says who was waited for.
    pub(super) fn overdue(&self, now: Instant, missing: impl FnOnce() -> String) -> Option<Fault> {
        if self.state.is_terminal() {
            return None;
        }
        let (mut phase, mut since, mut limit) = self.phase();
        if let Some(total) = self.deadlines.total
            && now.saturating_duration_since(self.figures.created) >= total
        {
            (phase, since, limit) = ("total", self.figures.created, total);
        }
        let elapsed = now.saturating_duration_since(since);
        if elapsed < limit {
            return None;
        }
        let detail = format!("{phase}: {elapsed:.3?} of {limit:?} have passed; {}", missing());
        Some(Fault::new(ErrorKind::Timeout, detail))
    }

    /// Whether it is time to fence links that do not vouch; true once.
    pub(super) fn must_fence(&mut self, now: Instant) -> bool {
        let drained = now.saturating_duration_since(self.entered);
        let due = self.state.is_terminal() && !self.fenced && drained >= self.deadlines.drain;
        self.fenced |= due;
        due
    }

    fn phase(&self) -> (&'static str, Instant, Duration) {
        match self.state {
            KVPoll::Bootstrapping if self.is_discovered => {
                ("handshake", self.entered, self.deadlines.handshake)
            }
            KVPoll::Bootstrapping => ("discover", self.entered, self.deadlines.discover),
            KVPoll::WaitingForInput => {
                ("waiting for input", self.progressed, self.deadlines.waiting_for_input)
            }
            _ => ("stall", self.progressed, self.deadlines.stall),
        }
    }
}

const MAX_DOUBLINGS: u32 = 4;
