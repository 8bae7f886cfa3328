//! Receivers that come to a room before its sender does, or after it has gone.

use crate::error::ErrorKind;
use crate::ids::{Attempt, GrantId, LinkId, Party, Room};
use crate::wire::{Cause, RoomFrame};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Keeps what came for rooms without a sender, in bounded space and for a bounded time, and answers
/// for rooms whose sender has gone. Never creates a room by itself.
#[derive(Debug)]
pub struct Lobby {
    party: Party,
    patience: Duration,
    parked_bytes: usize,
    max_memories: usize,
    parked: BTreeMap<Room, Vec<Parked>>,
    parked_on: BTreeMap<LinkId, usize>,
    /// Receivers that were told the end, or told it themselves: nothing of theirs is adopted.
    dead: BTreeSet<(LinkId, GrantId)>,
    verdicts: BTreeMap<(Room, Attempt), Verdict>,
    /// Who gave up before its sender came, and why.
    aborted: BTreeMap<(Room, Attempt), Vec<GivenUp>>,
    memories: VecDeque<(Instant, Memory)>,
}

/// A frame kept for a sender yet to come.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Parked {
    /// The link it came over.
    pub link: LinkId,
    /// Who sent it.
    pub party: Party,
    /// The receiver.
    pub id: GrantId,
    /// The frame: a `Join` or a `Grant`.
    pub frame: RoomFrame,
    /// Its bytes on the wire.
    bytes: usize,
    since: Instant,
}

/// What waited for a sender.
#[derive(Debug)]
#[non_exhaustive]
pub struct Adopted {
    /// Frames of its receivers, in order.
    pub parked: Vec<Parked>,
    /// Why a receiver gave up already that has not come again: the sender fails for the same reason.
    pub aborted: Option<Cause>,
}

/// An answer to a receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The link to send it over.
    pub link: LinkId,
    /// The receiver.
    pub id: GrantId,
    /// The frame.
    pub frame: RoomFrame,
}

/// A receiver that gave up before its sender came.
#[derive(Debug)]
struct GivenUp {
    party: Party,
    cause: Cause,
    since: Instant,
}

/// How a room ended for receivers that had not joined it by then.
#[derive(Debug)]
struct Verdict {
    cause: Cause,
    since: Instant,
    /// Those who know; when they come again it is for a new use of the room.
    heard: Vec<Party>,
}

#[derive(Debug)]
enum Memory {
    Aborted(Room, Attempt),
    Dead(LinkId, GrantId),
    Verdict(Room, Attempt),
}

impl Lobby {
    /// Keeps frames for `patience`, at most `parked_bytes` of them a link, and `max_memories` ends.
    pub fn new(party: Party, patience: Duration, parked_bytes: usize, max_memories: usize) -> Self {
        Self {
            party,
            patience,
            parked_bytes,
            max_memories,
            parked: BTreeMap::new(),
            parked_on: BTreeMap::new(),
            dead: BTreeSet::new(),
            verdicts: BTreeMap::new(),
            aborted: BTreeMap::new(),
            memories: VecDeque::new(),
        }
    }

    /// A receiver's frame for a room that has no sender; `bytes` is its size on the wire.
    pub fn frame(
        &mut self,
        now: Instant,
        link: LinkId,
        party: Party,
        id: GrantId,
        frame: RoomFrame,
        bytes: usize,
    ) -> Vec<Answer> {
        match frame {
            RoomFrame::Abort(cause) => {
                self.take(id.room, |parked| (parked.link, parked.id) == (link, id));
                if self.remember_dead(now, link, id) {
                    let given_up = GivenUp { party, cause, since: now };
                    self.aborted.entry((id.room, id.attempt)).or_default().push(given_up);
                    self.remember(now, Memory::Aborted(id.room, id.attempt));
                }
                vec![Answer { link, id, frame: RoomFrame::Quiet }]
            }
            _ if self.dead.contains(&(link, id)) => Vec::new(),
            RoomFrame::Join { .. } => {
                if let Some(cause) = self.verdict(party, id) {
                    self.remember_dead(now, link, id);
                    return refusal(link, id, cause);
                }
                self.park(now, link, party, id, frame, bytes)
            }
            RoomFrame::Grant(_) if self.is_parked(link, id) => self.park(now, link, party, id, frame, bytes),
            // A grant whose join was answered, or was never sent.
            _ => Vec::new(),
        }
    }

    /// A sender was made: gives what waited for this attempt of the room.
    pub fn adopt(&mut self, room: Room, attempt: Attempt) -> Adopted {
        self.verdicts.remove(&(room, attempt));
        let aborted = self.aborted.remove(&(room, attempt)).unwrap_or_default();
        let parked = self.take(room, |parked| parked.id.attempt == attempt);
        let has_come_again = |party: &Party| parked.iter().any(|parked| parked.party.rank == party.rank);
        let aborted =
            aborted.into_iter().find(|other| !has_come_again(&other.party)).map(|other| other.cause);
        Adopted { parked, aborted }
    }

    /// A room that had a sender has ended: late frames of these receivers change nothing.
    pub fn ended(&mut self, now: Instant, receivers: impl IntoIterator<Item = (LinkId, GrantId)>) {
        for (link, id) in receivers {
            self.remember_dead(now, link, id);
        }
    }

    /// A room will get no sender, or its sender failed before everybody had joined: those parked are
    /// told, and those yet to come will be, once each.
    pub fn bury(
        &mut self,
        now: Instant,
        room: Room,
        attempt: Attempt,
        cause: Cause,
        mut heard: Vec<Party>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        for parked in self.take(room, |parked| parked.id.attempt == attempt) {
            if matches!(parked.frame, RoomFrame::Join { .. }) {
                answers.extend(refusal(parked.link, parked.id, cause.clone()));
                self.remember_dead(now, parked.link, parked.id);
                heard.push(parked.party);
            }
        }
        self.verdicts.insert((room, attempt), Verdict { cause, since: now, heard });
        self.remember(now, Memory::Verdict(room, attempt));
        answers
    }

    /// A link has ended: what came over it is forgotten.
    pub fn link_down(&mut self, link: LinkId) {
        let rooms: Vec<_> = self.parked.keys().copied().collect();
        rooms.into_iter().for_each(|room| drop(self.take(room, |parked| parked.link == link)));
        self.dead.retain(|(on, _)| *on != link);
    }

    /// Forgets what is too old, and tells receivers that waited in vain.
    pub fn tick(&mut self, now: Instant) -> Vec<Answer> {
        let patience = self.patience;
        let is_old = |since: Instant| now.saturating_duration_since(since) >= patience;
        let mut answers = Vec::new();
        let rooms: Vec<_> = self.parked.keys().copied().collect();
        for room in rooms {
            // With a join goes the grant that came after it.
            let of_room = self.parked.get(&room).into_iter().flatten();
            let old: BTreeSet<_> = of_room
                .filter(|parked| is_old(parked.since))
                .map(|parked| (parked.link, parked.id))
                .collect();
            for parked in self.take(room, |parked| old.contains(&(parked.link, parked.id))) {
                if matches!(parked.frame, RoomFrame::Join { .. }) {
                    let detail = format!("bootstrap: no sender for room {room} within {patience:?}");
                    let cause = self.cause(ErrorKind::Timeout, detail);
                    answers.extend(refusal(parked.link, parked.id, cause));
                    self.remember_dead(now, parked.link, parked.id);
                }
            }
        }
        while self.memories.front().is_some_and(|(since, _)| is_old(*since)) {
            self.forget_oldest();
        }
        answers
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        let parked = self.parked.values().flatten().map(|parked| parked.since).min();
        let memory = self.memories.front().map(|(since, _)| *since);
        parked.into_iter().chain(memory).min().and_then(|since| since.checked_add(self.patience))
    }

    /// Frames parked and ends remembered.
    pub fn sizes(&self) -> (usize, usize) {
        (self.parked.values().map(Vec::len).sum(), self.memories.len())
    }

    fn verdict(&mut self, party: Party, id: GrantId) -> Option<Cause> {
        let verdict = self.verdicts.get_mut(&(id.room, id.attempt))?;
        if verdict.heard.contains(&party) {
            return None;
        }
        verdict.heard.push(party);
        Some(verdict.cause.clone())
    }

    fn park(
        &mut self,
        now: Instant,
        link: LinkId,
        party: Party,
        id: GrantId,
        frame: RoomFrame,
        bytes: usize,
    ) -> Vec<Answer> {
        let used = self.parked_on.get(&link).copied().unwrap_or(0);
        if used.saturating_add(bytes) > self.parked_bytes {
            let detail = format!("{used} bytes wait for senders on this link already");
            let cause = self.cause(ErrorKind::Busy, detail);
            self.take(id.room, |parked| (parked.link, parked.id) == (link, id));
            self.remember_dead(now, link, id);
            return refusal(link, id, cause);
        }
        self.parked_on.insert(link, used + bytes);
        self.parked.entry(id.room).or_default().push(Parked { link, party, id, frame, bytes, since: now });
        Vec::new()
    }

    fn is_parked(&self, link: LinkId, id: GrantId) -> bool {
        let parked = self.parked.get(&id.room);
        parked.is_some_and(|parked| parked.iter().any(|parked| (parked.link, parked.id) == (link, id)))
    }

    fn take(&mut self, room: Room, which: impl Fn(&Parked) -> bool) -> Vec<Parked> {
        let Some(parked) = self.parked.remove(&room) else { return Vec::new() };
        let (taken, kept): (Vec<_>, Vec<_>) = parked.into_iter().partition(|parked| which(parked));
        for Parked { link, bytes, .. } in &taken {
            if let Some(used) = self.parked_on.get_mut(link) {
                *used -= bytes;
                if *used == 0 {
                    self.parked_on.remove(link);
                }
            }
        }
        if !kept.is_empty() {
            self.parked.insert(room, kept);
        }
        taken
    }

    /// Answers whether this is news.
    fn remember_dead(&mut self, now: Instant, link: LinkId, id: GrantId) -> bool {
        let new = self.dead.insert((link, id));
        if new {
            self.remember(now, Memory::Dead(link, id));
        }
        new
    }

    fn remember(&mut self, now: Instant, memory: Memory) {
        self.memories.push_back((now, memory));
        if self.memories.len() > self.max_memories {
            self.forget_oldest();
        }
    }

    /// What was said of the same room since then is kept: it has a memory of its own.
    fn forget_oldest(&mut self) {
        let Some((then, memory)) = self.memories.pop_front() else { return };
        match memory {
            Memory::Aborted(room, attempt) => {
                if let Some(aborted) = self.aborted.get_mut(&(room, attempt)) {
                    aborted.retain(|other| other.since > then);
                    if aborted.is_empty() {
                        self.aborted.remove(&(room, attempt));
                    }
                }
            }
            Memory::Dead(link, id) => drop(self.dead.remove(&(link, id))),
            Memory::Verdict(room, attempt) => {
                if self.verdicts.get(&(room, attempt)).is_some_and(|verdict| verdict.since <= then) {
                    self.verdicts.remove(&(room, attempt));
                }
            }
        }
    }

    fn cause(&self, kind: ErrorKind, detail: String) -> Cause {
        Cause { origin: self.party, state: crate::poll::KVPoll::Bootstrapping, kind, detail }
    }
}

fn refusal(link: LinkId, id: GrantId, cause: Cause) -> Vec<Answer> {
    vec![Answer { link, id, frame: RoomFrame::Failed(cause) }, Answer { link, id, frame: RoomFrame::Quiet }]
}
