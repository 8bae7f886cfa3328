//! One outcome of a room for several ranks: the rules of the rank that counts their votes.
//!
//! ```text
//!  member                         coordinator
//!    | Enrol {members} ------------> | all by `discover`, or the outcome is a failure
//!    | Vote {cause} ---------------> | the first failure decides, or every success together
//!    | <----------- Verdict {cause}  | to all that have enrolled; to the others when they do
//! ```

use super::member::{coordinator, names};
use crate::error::{ErrorKind, Fault};
use crate::ids::{Attempt, BallotId, Generation, Instance, LinkId, Party, Rank, Room, Side};
use crate::poll::KVPoll;
use crate::wire::Cause;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Counts the votes on rooms of one engine's group, in bounded space and time. Never waits for anything
/// that is not bound by a link or a deadline.
#[derive(Debug)]
pub struct Ballots {
    rank: Rank,
    instance: Instance,
    patience: Duration,
    max_bytes: usize,
    max_memories: usize,
    open: BTreeMap<Key, Ballot>,
    due: BTreeSet<(Instant, Key)>,
    links: BTreeMap<LinkId, OnLink>,
    /// In the order of decision, and so of expiry.
    decided: BTreeMap<u64, Decided>,
    /// Who knows which of them.
    heard: BTreeMap<(Key, Instance, Generation), u64>,
    /// The last failure of a room that ranks have not heard of.
    owed: BTreeMap<Key, u64>,
    decided_bytes: usize,
    decisions: u64,
    late: u64,
}

/// A verdict to be told.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Told {
    /// The member's link; none if that is this engine itself.
    pub link: Option<LinkId>,
    /// The member's use of the room.
    pub id: BallotId,
    /// Why the room failed for all; none if it succeeded for all.
    pub cause: Option<Cause>,
}

/// Of what is voted on.
type Key = (Side, Room, Attempt);

/// A vote under way.
#[derive(Debug)]
struct Ballot {
    members: Vec<Rank>,
    seats: BTreeMap<Rank, Seat>,
    /// When everybody must be there; none once they are.
    due: Option<Instant>,
    limit: Duration,
}

/// A member that has enrolled.
#[derive(Clone, Copy, Debug)]
struct Seat {
    link: Option<LinkId>,
    party: Party,
    generation: Generation,
    /// What its link is charged.
    bytes: usize,
    has_succeeded: bool,
}

/// What is charged to a link.
#[derive(Debug, Default)]
struct OnLink {
    seats: BTreeSet<(Key, Rank)>,
    bytes: usize,
}

#[derive(Debug)]
struct Decided {
    key: Key,
    since: Instant,
    cause: Option<Cause>,
    heard: Vec<(Instance, Generation)>,
    /// Members that have not enrolled.
    missing: BTreeSet<Rank>,
    bytes: usize,
}

impl Ballots {
    /// For the engine of this place. Members are waited for as long as `patience`, unless its own room says
    /// otherwise; what waits for them takes at most `max_bytes` a link; and `max_memories` verdicts are kept
    /// as long, in as many bytes.
    pub fn new(party: Party, patience: Duration, max_bytes: usize, max_memories: usize) -> Self {
        Self {
            rank: party.rank,
            instance: party.instance,
            patience,
            max_bytes,
            max_memories,
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            links: BTreeMap::new(),
            decided: BTreeMap::new(),
            heard: BTreeMap::new(),
            owed: BTreeMap::new(),
            decided_bytes: 0,
            decisions: 0,
            late: 0,
        }
    }

    /// This engine's own room is open, and waits as long as `limit` for the others.
    pub fn open(&mut self, now: Instant, id: BallotId, members: &[Rank], limit: Duration) -> Vec<Told> {
        let party = self.party(id.side);
        let seat = Seat { link: None, party, generation: id.generation, bytes: 0, has_succeeded: false };
        let told = self.seat(now, key(id), seat, members);
        if let Some(ballot) = self.open.get_mut(&key(id))
            && let Some(before) = ballot.due.take()
        {
            self.due.remove(&(before, key(id)));
            ballot.limit = limit;
            ballot.due = now.checked_add(limit);
            self.due.extend(ballot.due.map(|due| (due, key(id))));
        }
        told
    }

    /// A member's room is open.
    pub fn enrol(
        &mut self,
        now: Instant,
        link: LinkId,
        party: Party,
        id: BallotId,
        members: &[Rank],
    ) -> Vec<Told> {
        let bytes = SEAT_BYTES + size_of_val(members);
        let seat = Seat { link: Some(link), party, generation: id.generation, bytes, has_succeeded: false };
        self.seat(now, key(id), seat, members)
    }

    /// How the room has ended for a member, this engine included.
    pub fn vote(&mut self, now: Instant, party: Party, id: BallotId, cause: Option<Cause>) -> Vec<Told> {
        let seat = self.open.get_mut(&key(id)).and_then(|ballot| ballot.seats.get_mut(&party.rank));
        let Some(seat) = seat.filter(|seat| seat.is_of(party.instance, id.generation)) else {
            self.late += 1; // decided before, which it was told or hears when it enrols again
            return Vec::new();
        };
        if cause.is_some() {
            return self.decide(now, key(id), cause);
        }
        seat.has_succeeded = true;
        let is_unanimous = |ballot: &Ballot| {
            ballot.seats.len() == ballot.members.len() && ballot.seats.values().all(|seat| seat.has_succeeded)
        };
        if self.open.get(&key(id)).is_some_and(is_unanimous) {
            return self.decide(now, key(id), None);
        }
        Vec::new()
    }

    /// A link has ended, and with it whoever enrolled over it.
    pub fn link_down(&mut self, now: Instant, link: LinkId, fault: &Fault) -> Vec<Told> {
        let mut told = Vec::new();
        for (key, rank) in self.links.remove(&link).unwrap_or_default().seats {
            let seat = self.open.get(&key).and_then(|ballot| ballot.seats.get(&rank));
            if let Some(seat) = seat.filter(|seat| seat.link == Some(link)) {
                let cause = cause(seat.party, fault.kind, fault.detail.to_string());
                told.extend(self.decide(now, key, Some(cause)));
            }
        }
        told.retain(|told| told.link != Some(link));
        told
    }

    /// A member that has not enrolled was here and has gone.
    pub fn gone(
        &mut self,
        now: Instant,
        id: BallotId,
        rank: Rank,
        instance: Option<Instance>,
        fault: &Fault,
    ) -> Vec<Told> {
        if !self.missing(id).contains(&rank) {
            return Vec::new();
        }
        let origin = match instance {
            Some(instance) => Party { side: id.side, rank, instance },
            None => self.party(id.side),
        };
        self.decide(now, key(id), Some(cause(origin, fault.kind, fault.detail.to_string())))
    }

    /// Ends what has waited too long, and forgets what is too old.
    pub fn tick(&mut self, now: Instant) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(&(_, key)) = self.due.first().filter(|(due, _)| *due <= now) {
            let Some(ballot) = self.open.get(&key) else { break };
            let missing = ballot.members.iter().filter(|rank| !ballot.seats.contains_key(rank));
            let missing: Vec<_> = missing.map(Rank::to_string).collect();
            let (limit, missing) = (ballot.limit, missing.join(", "));
            let detail = format!("discover: {} rank {missing} has not come within {limit:?}", key.0);
            let cause = cause(self.party(key.0), ErrorKind::Timeout, detail);
            told.extend(self.decide(now, key, Some(cause)));
        }
        let patience = self.patience;
        let is_old = |decided: &Decided| now.saturating_duration_since(decided.since) >= patience;
        while self.decided.first_key_value().is_some_and(|(_, oldest)| is_old(oldest)) {
            let Some((order, oldest)) = self.decided.pop_first() else { break };
            self.forget(order, &oldest);
        }
        told
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self.due.first().map(|(due, _)| *due);
        let late = self.patience.saturating_add(FORGET_TOGETHER);
        let memory = self.decided.first_key_value().and_then(|(_, oldest)| oldest.since.checked_add(late));
        due.into_iter().chain(memory).min()
    }

    /// Members that an open vote still waits for.
    pub fn missing(&self, id: BallotId) -> Vec<Rank> {
        let Some(ballot) = self.open.get(&key(id)) else { return Vec::new() };
        ballot.members.iter().filter(|rank| !ballot.seats.contains_key(rank)).copied().collect()
    }

    /// Votes under way and verdicts remembered.
    pub fn sizes(&self) -> (usize, usize) {
        (self.open.len(), self.decided.len())
    }

    /// Votes that came for nothing.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn seat(&mut self, now: Instant, key: Key, seat: Seat, members: &[Rank]) -> Vec<Told> {
        let rank = seat.party.rank;
        // It did not get the answer: its link had ended.
        let known = self.heard.get(&(key, seat.party.instance, seat.generation));
        if let Some(decided) = known.and_then(|order| self.decided.get(order)) {
            return vec![seat.told(key, decided.cause.clone())];
        }
        if let Some(detail) = self.misled(key.1, rank, members) {
            return vec![seat.told(key, Some(cause(self.party(key.0), ErrorKind::Protocol, detail)))];
        }
        let mut told = Vec::new();
        let ballot = self.open.get(&key);
        if let Some(before) = ballot.and_then(|ballot| ballot.seats.get(&rank)).copied() {
            if before.is_of(seat.party.instance, seat.generation) && before.link == seat.link {
                self.late += 1;
                return told;
            }
            // Its former link has ended without our knowing, or it has: that use is over for all.
            let detail = format!("{} has come again before the outcome", before.party);
            told = self.decide(now, key, Some(cause(before.party, ErrorKind::PeerLost, detail)));
            told.retain(|told| told.link != before.link);
            told.extend(self.seat(now, key, seat, members));
            return told;
        }
        if ballot.is_none() {
            if let Some(cause) = self.owed_to(key, &seat) {
                return vec![seat.told(key, Some(cause))];
            }
            let due = now.checked_add(self.patience);
            let limit = self.patience;
            let ballot = Ballot { members: members.to_vec(), seats: BTreeMap::new(), due, limit };
            self.open.insert(key, ballot);
            self.due.extend(due.map(|due| (due, key)));
            self.owed.remove(&key);
        }
        let is_affordable = self.charge(key, &seat);
        let Some(ballot) = self.open.get_mut(&key) else { return told };
        ballot.seats.insert(rank, seat);
        let failure = if ballot.members != members {
            let detail =
                format!("members: {} for rank {rank}, {} for others", names(members), names(&ballot.members));
            Some((ErrorKind::Protocol, detail))
        } else if !is_affordable {
            Some((ErrorKind::Busy, "too much waits for other ranks on this link already".into()))
        } else {
            None
        };
        if ballot.seats.len() == ballot.members.len()
            && let Some(due) = ballot.due.take()
        {
            self.due.remove(&(due, key));
        }
        if let Some((kind, detail)) = failure {
            let cause = cause(self.party(key.0), kind, detail);
            told.extend(self.decide(now, key, Some(cause)));
        }
        told
    }

    /// Why this rank is not the one to ask for the outcome of `members`.
    fn misled(&self, room: Room, rank: Rank, members: &[Rank]) -> Option<String> {
        let ours = self.rank;
        if !members.contains(&rank) || !members.contains(&ours) {
            return Some(format!("members: {}, without rank {rank} or rank {ours}", names(members)));
        }
        let is_ours = coordinator(room, members) == Some(ours);
        (!is_ours).then(|| format!("members: rank {ours} does not count for room {room}"))
    }

    /// The end of the last use, for a member that was missing then.
    fn owed_to(&mut self, key: Key, seat: &Seat) -> Option<Cause> {
        let order = *self.owed.get(&key)?;
        let decided = self.decided.get_mut(&order)?;
        if !decided.missing.remove(&seat.party.rank) {
            return None;
        }
        let name = (seat.party.instance, seat.generation);
        decided.heard.push(name);
        self.heard.insert((key, name.0, name.1), order);
        decided.cause.clone()
    }

    /// Answers whether the link may have one more seat.
    fn charge(&mut self, key: Key, seat: &Seat) -> bool {
        let Some(link) = seat.link else { return true };
        let on = self.links.entry(link).or_default();
        on.seats.insert((key, seat.party.rank));
        on.bytes += seat.bytes;
        on.bytes <= self.max_bytes
    }

    /// Ends a vote: tells all that have enrolled, and remembers.
    fn decide(&mut self, now: Instant, key: Key, cause: Option<Cause>) -> Vec<Told> {
        let Some(ballot) = self.open.remove(&key) else { return Vec::new() };
        if let Some(due) = ballot.due {
            self.due.remove(&(due, key));
        }
        self.decisions += 1;
        let order = self.decisions;
        let mut heard = Vec::with_capacity(ballot.members.len());
        for (rank, seat) in &ballot.seats {
            heard.push((seat.party.instance, seat.generation));
            self.heard.insert((key, seat.party.instance, seat.generation), order);
            if let Some(link) = seat.link
                && let Some(on) = self.links.get_mut(&link)
                && on.seats.remove(&(key, *rank))
            {
                on.bytes -= seat.bytes;
                if on.seats.is_empty() {
                    self.links.remove(&link);
                }
            }
        }
        let missing = ballot.members.iter().filter(|rank| !ballot.seats.contains_key(rank));
        let missing: BTreeSet<_> = missing.copied().collect();
        if missing.is_empty() {
            self.owed.remove(&key);
        } else {
            self.owed.insert(key, order);
        }
        let told = ballot.seats.values().map(|seat| seat.told(key, cause.clone())).collect();
        let detail = cause.as_ref().map_or(0, |cause| cause.detail.len());
        let bytes = SEAT_BYTES * ballot.members.len() + detail;
        self.decided_bytes += bytes;
        self.decided.insert(order, Decided { key, since: now, cause, heard, missing, bytes });
        while self.decided.len() > self.max_memories
            || (self.decided_bytes > self.max_bytes && self.decided.len() > 1)
        {
            let Some((order, oldest)) = self.decided.pop_first() else { break };
            self.forget(order, &oldest);
        }
        told
    }

    fn forget(&mut self, order: u64, decided: &Decided) {
        self.decided_bytes -= decided.bytes;
        for (instance, generation) in &decided.heard {
            let name = (decided.key, *instance, *generation);
            if self.heard.get(&name) == Some(&order) {
                self.heard.remove(&name);
            }
        }
        if self.owed.get(&decided.key) == Some(&order) {
            self.owed.remove(&decided.key);
        }
    }

    fn party(&self, side: Side) -> Party {
        Party { side, rank: self.rank, instance: self.instance }
    }
}

impl Seat {
    fn is_of(&self, instance: Instance, generation: Generation) -> bool {
        (self.party.instance, self.generation) == (instance, generation)
    }

    fn told(&self, (side, room, attempt): Key, cause: Option<Cause>) -> Told {
        Told { link: self.link, id: BallotId { side, room, attempt, generation: self.generation }, cause }
    }
}

fn key(id: BallotId) -> Key {
    (id.side, id.room, id.attempt)
}

/// The state it arose in is not known here; each member has its own.
fn cause(origin: Party, kind: ErrorKind, detail: String) -> Cause {
    Cause { origin, state: KVPoll::Bootstrapping, kind, detail }
}

const FORGET_TOGETHER: Duration = Duration::from_millis(500);

/// A member in a vote or in the memory of one, with its places in the maps.
const SEAT_BYTES: usize = 256;
