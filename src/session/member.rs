//! One outcome of a room for several ranks: the rules of each of them.

use crate::error::{ErrorKind, Fault, KVTransferError, Moment, Origin};
use crate::ids::{BallotId, LinkId, Party, Rank, Room};
use crate::poll::KVPoll;
use crate::wire::{Cause, GroupFrame};
use std::time::{Duration, Instant};

/// A rank's part in the outcome of a room that others share. Until the verdict, nobody is told how the room
/// has ended here but the coordinator.
#[derive(Debug)]
pub struct Member {
    id: BallotId,
    party: Party,
    members: Vec<Rank>,
    coordinator: Rank,
    /// How the coordinator knows of this rank.
    enrolled: Option<(LinkId, Party)>,
    /// Who it was, once it was reached.
    met: Option<Party>,
    /// How the room has ended here.
    vote: Option<Vote>,
    outcome: Option<Outcome>,
    discover: Duration,
    /// When the coordinator must have been reached.
    limit: Option<Instant>,
    hint: String,
}

#[derive(Debug)]
struct Vote {
    has_succeeded: bool,
    cause: Option<Cause>,
}

/// How a room has ended for all.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "two ends")]
pub enum Outcome {
    /// On one rank at least, it failed.
    Failed(Box<KVTransferError>),
    /// On every rank.
    Success,
}

impl Member {
    /// The part of `party` in a room that `members` share, this rank included; they are in order.
    pub fn new(now: Instant, id: BallotId, party: Party, members: Vec<Rank>, discover: Duration) -> Self {
        let coordinator = coordinator(id.room, &members).unwrap_or(party.rank);
        Self {
            id,
            party,
            members,
            coordinator,
            enrolled: None,
            met: None,
            vote: None,
            outcome: None,
            discover,
            limit: now.checked_add(discover),
            hint: String::new(),
        }
    }

    /// The coordinator is there: what it has to be told.
    pub fn enrol(&mut self, link: LinkId, coordinator: Party) -> Vec<GroupFrame> {
        if self.outcome.is_some() || self.enrolled.is_some() {
            return Vec::new();
        }
        self.enrolled = Some((link, coordinator));
        self.met = Some(coordinator);
        let enrol = GroupFrame::Enrol { members: self.members.clone() };
        let vote = self.vote.as_ref().map(|vote| GroupFrame::Vote { cause: vote.cause.clone() });
        [enrol].into_iter().chain(vote).collect()
    }

    /// The room has ended here, or its caller asks for the end after it had succeeded. Answers whether that
    /// has to be told to the coordinator.
    pub fn vote(&mut self, cause: Option<Cause>) -> bool {
        let is_news = match &self.vote {
            None => true,
            Some(vote) => vote.cause.is_none() && cause.is_some(),
        };
        if self.outcome.is_some() || !is_news {
            return false;
        }
        let has_succeeded = cause.is_none() || self.vote.is_some();
        self.vote = Some(Vote { has_succeeded, cause });
        true
    }

    /// The verdict has come, or there will be none. `own` is why the room failed here, if it did; otherwise
    /// it is shown in `state` and `elapsed` old. Answers whether this was the first.
    pub fn hear(
        &mut self,
        cause: Option<&Cause>,
        own: Option<&KVTransferError>,
        state: KVPoll,
        elapsed: Duration,
    ) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        let moment = Moment { room: self.id.room, state, elapsed };
        let outcome = match cause {
            Some(cause) => Outcome::Failed(Box::new(self.error(cause, own, moment))),
            None if self.vote.as_ref().is_some_and(|vote| vote.has_succeeded) => Outcome::Success,
            None => {
                let detail = "success was told before this rank had voted";
                let fault = Fault::new(ErrorKind::Protocol, detail);
                let origin = self.met.unwrap_or(self.party);
                Outcome::Failed(Box::new(fault.at(moment, Origin::Peer(origin))))
            }
        };
        self.outcome = Some(outcome);
        true
    }

    /// A link has ended. Answers whether the coordinator has to be reached anew, which it must be within
    /// `patience`: it may have told the outcome.
    pub fn link_down(&mut self, now: Instant, link: LinkId, patience: Duration) -> bool {
        if self.enrolled.is_none_or(|(enrolled, _)| enrolled != link) || self.outcome.is_some() {
            return false;
        }
        self.enrolled = None;
        self.limit = now.checked_add(patience);
        true
    }

    /// Why the coordinator is still missing, for the error if it stays so.
    pub fn still_missing(&mut self, hint: String) {
        self.hint = hint;
    }

    /// The cause of a room whose coordinator has gone, in words that are the same on every member: how
    /// each of them has found out is its own affair.
    pub fn lost(&self, coordinator: Option<Party>, kind: ErrorKind) -> Cause {
        let origin = self.met.or(coordinator).unwrap_or(self.party);
        let detail = format!("rank {}, which counts for the group, was lost", self.coordinator);
        Cause { origin, state: KVPoll::Bootstrapping, kind, detail }
    }

    /// The coordinator was not reached in time, or not again.
    pub fn overdue(&self, now: Instant) -> Option<Cause> {
        self.deadline().filter(|limit| *limit <= now)?;
        if self.has_met() {
            return Some(self.lost(None, ErrorKind::PeerLost));
        }
        let detail = format!(
            "discover: {:?} have passed; rank {}, which counts for the group, was not reached; {}",
            self.discover, self.coordinator, self.hint
        );
        let (origin, state) = (self.party, KVPoll::Bootstrapping);
        Some(Cause { origin, state, kind: ErrorKind::Timeout, detail })
    }

    /// When to ask whether it is overdue.
    pub fn deadline(&self) -> Option<Instant> {
        let is_reached = self.enrolled.is_some() || self.is_coordinator();
        self.limit.filter(|_| !is_reached && self.outcome.is_none())
    }

    /// Its use of the room.
    pub fn id(&self) -> BallotId {
        self.id
    }

    /// All who share the outcome.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Who counts.
    pub fn coordinator(&self) -> Rank {
        self.coordinator
    }

    /// Whether that is this rank.
    pub fn is_coordinator(&self) -> bool {
        self.coordinator == self.party.rank
    }

    /// Whether the coordinator was ever reached.
    pub fn has_met(&self) -> bool {
        self.met.is_some()
    }

    /// The link over which it enrolled.
    pub fn link(&self) -> Option<LinkId> {
        self.enrolled.map(|(link, _)| link)
    }

    /// How the room has ended for all, once that is known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// What failed here keeps the error it was found with.
    fn error(&self, cause: &Cause, own: Option<&KVTransferError>, moment: Moment) -> KVTransferError {
        let is_own = |own: &&KVTransferError| {
            (own.party(), own.kind, &*own.detail) == (cause.origin, cause.kind, &cause.detail)
        };
        if let Some(own) = own.filter(is_own) {
            return own.clone();
        }
        let Cause { origin, kind, detail, .. } = cause;
        let origin = if *origin == self.party { Origin::Local(*origin) } else { Origin::Peer(*origin) };
        Fault::new(*kind, detail.as_str()).at(moment, origin)
    }
}

/// Who counts the votes on a room: its number spreads the work.
pub(super) fn coordinator(room: Room, members: &[Rank]) -> Option<Rank> {
    let place = room.0.checked_rem(u64::try_from(members.len()).ok()?)?;
    members.get(usize::try_from(place).ok()?).copied()
}

/// Ranks in words, not all of very many.
pub(super) fn names(ranks: &[Rank]) -> String {
    let named: Vec<_> = ranks.iter().take(MAX_NAMED).map(Rank::to_string).collect();
    match ranks.len().checked_sub(MAX_NAMED) {
        None | Some(0) => named.join(", "),
        Some(more) => format!("{} and {more} more", named.join(", ")),
    }
}

const MAX_NAMED: usize = 8;
