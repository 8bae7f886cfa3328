//! Rooms whose outcome several ranks share: reaching the rank that counts, votes, verdicts.

use super::core::{CLOSING, Core, News};
use super::links::Link;
use super::outcome::Outcome;
use super::reach;
use super::rooms::{Key, Waiter};
use super::shared::Shared;
use super::sources;
use super::targets::{Candidates, Reach};
use crate::bootstrap::GroupState;
use crate::error::{ErrorKind, Fault};
use crate::ids::{BallotId, Instance, LinkId, Party, Rank};
use crate::poll::KVPoll;
use crate::session::{self, Member, Told};
use crate::wire::{Cause, Frame, GroupFrame};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A room's part in an outcome that others share.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) member: Member,
    /// Where the others are.
    outcome: Outcome,
    discover: Duration,
    /// Ranks that have to be reached or watched: the one that counts, or for that one all that have not come.
    mates: BTreeMap<Rank, Candidates>,
}

impl Shares {
    /// The part of `party` in a room that `ranks` share.
    pub(super) fn new(
        now: Instant,
        id: BallotId,
        party: Party,
        ranks: Vec<Rank>,
        outcome: Outcome,
        discover: Duration,
    ) -> Self {
        let member = Member::new(now, id, party, ranks, discover);
        Self { member, outcome, discover, mates: BTreeMap::new() }
    }

    /// The state to be shown of a room that stands at `own`, and was shown at `before`.
    pub(super) fn shown(&self, own: KVPoll, before: KVPoll) -> KVPoll {
        match self.member.outcome() {
            Some(session::Outcome::Failed(_)) => KVPoll::Failed,
            Some(session::Outcome::Success) => KVPoll::Success,
            None if own.is_terminal() => before,
            None => own,
        }
    }
}

impl Core {
    /// A room that was just made can take part in its group's vote. There may be a verdict already: it is heard
    /// by [`join_group`](Self::join_group), when the room's peers are known who have to be told.
    pub(super) fn open_ballot(&mut self, now: Instant, key: Key) -> Vec<Told> {
        let Some(shares) = self.rooms.shares(key) else { return Vec::new() };
        let (id, limit) = (shares.member.id(), shares.discover);
        if !shares.member.is_coordinator() {
            return Vec::new();
        }
        let members = shares.member.members().to_vec();
        self.ballots.open(now, id, &members, limit)
    }

    /// It hears the verdict, or looks for the ranks it shares its outcome with.
    pub(super) fn join_group(&mut self, shared: &Shared, now: Instant, key: Key, told: Vec<Told>) {
        self.tell(shared, now, told);
        self.find_mates(shared, now, key);
    }

    /// Finds out where the ranks are that this one has to reach, if that can be known now.
    pub(super) fn find_mates(&mut self, shared: &Shared, now: Instant, key: Key) {
        let Some(shares) = self.rooms.shares(key) else { return };
        let (id, is_coordinator) = (shares.member.id(), shares.member.is_coordinator());
        let mut wanted = vec![shares.member.coordinator()];
        if is_coordinator {
            wanted = self.ballots.missing(id);
        }
        if shares.member.outcome().is_some() {
            return;
        }
        let addresses: BTreeMap<_, _> = match (&shares.outcome, &shared.directory) {
            (Outcome::Members(members), _) => {
                members.iter().map(|member| (member.rank, member.addresses.clone())).collect()
            }
            (_, Some(directory)) => match directory.group(&shared.place.group) {
                GroupState::Ready(info) => {
                    info.ranks.iter().map(|record| (record.rank, record.addresses.clone())).collect()
                }
                _ => {
                    shares.member.still_missing(sources::missing(
                        &**directory,
                        &shared.place.group,
                        &shared.place,
                    ));
                    self.rooms.ungrouped.insert(key);
                    return;
                }
            },
            (_, None) => BTreeMap::new(),
        };
        self.rooms.ungrouped.remove(&key);
        for rank in wanted {
            let addresses = addresses.get(&rank).map(Vec::as_slice).unwrap_or_default();
            let candidates = match reach::candidates(&self.transports, addresses, shared.is_strict) {
                Ok(candidates) => candidates,
                Err(why) => {
                    let detail = format!("rank {rank} of the group {why}");
                    self.mate_unusable(shared, now, key, Fault::new(ErrorKind::Bootstrap, detail));
                    continue;
                }
            };
            if let Some(shares) = self.rooms.shares(key) {
                shares.mates.insert(rank, candidates.clone());
            }
            self.want_mate(shared, now, key, rank, &candidates);
        }
    }

    fn want_mate(&mut self, shared: &Shared, now: Instant, key: Key, rank: Rank, candidates: &Candidates) {
        let target = self.targets.want(now, candidates, Waiter::Group(key));
        if let Reach::Link(link) = target.state
            && self.links.get(&link).is_some_and(Link::is_up)
        {
            self.mate_up(shared, now, key, rank, link);
        }
    }

    /// A link to a rank of the group is up that this room waits for.
    pub(super) fn mate_at(&mut self, shared: &Shared, now: Instant, key: Key, at: &Candidates, link: LinkId) {
        let Some(shares) = self.rooms.shares(key) else { return };
        let rank = shares.mates.iter().find(|(_, candidates)| *candidates == at).map(|(rank, _)| *rank);
        let Some(rank) = rank else { return };
        self.mate_up(shared, now, key, rank, link);
    }

    fn mate_up(&mut self, shared: &Shared, now: Instant, key: Key, rank: Rank, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (Some(party), Some(peer)) = (link.party(key.0), &link.peer) else { return };
        let Some(shares) = self.rooms.shares(key) else { return };
        let Some(candidates) = shares.mates.get(&rank) else { return };
        let place = &shared.place;
        if (peer.rank, &peer.group) != (rank, &place.group) {
            let (there, group, wanted) = (peer.rank, &peer.group, &place.group);
            let detail = format!(
                "wrong rank: {there} of group {group:?} answered where {rank} of {wanted:?} was expected"
            );
            self.targets.unwant(candidates, Waiter::Group(key));
            if let Some(directory) = &shared.directory {
                directory.invalidate(&place.group);
            }
            return self.mate_unusable(shared, now, key, Fault::new(ErrorKind::Bootstrap, detail));
        }
        if shares.member.is_coordinator() {
            // From now on it is watched, until it has enrolled.
            self.targets.want(now, candidates, Waiter::Group(key));
            return;
        }
        self.targets.unwant(candidates, Waiter::Group(key));
        link.rooms.insert(key);
        let ballot = shares.member.id();
        for frame in shares.member.enrol(id, party) {
            self.send(id, &Frame::Group { id: ballot, frame });
        }
    }

    /// A rank of the group cannot be reached as things are: the end, if it is the one that counts.
    fn mate_unusable(&mut self, shared: &Shared, now: Instant, key: Key, fault: Fault) {
        let Some(shares) = self.rooms.shares(key) else { return };
        if shares.member.is_coordinator() {
            return;
        }
        let party = shared.party(key.0);
        let cause = Cause {
            origin: party,
            state: KVPoll::Bootstrapping,
            kind: fault.kind,
            detail: fault.detail.to_string(),
        };
        self.hear_verdict(now, key, Some(&cause));
        self.follow_up(shared, now, key, News::All);
    }

    /// A rank of the group was here, went, and did not come back in time.
    pub(super) fn mate_gone(
        &mut self,
        shared: &Shared,
        now: Instant,
        key: Key,
        candidates: &Candidates,
        has_gone: &str,
        is_tried: bool,
    ) {
        let instance = self.targets.instance(candidates);
        let Some(shares) = self.rooms.shares(key) else { return };
        let rank = shares.mates.iter().find(|(_, at)| *at == candidates).map(|(rank, _)| *rank);
        let Some(rank) = rank else { return };
        let id = shares.member.id();
        let fault = Fault::new(ErrorKind::PeerLost, format!("{} rank {rank} {has_gone}", key.0));
        if shares.member.is_coordinator() {
            let told = self.ballots.gone(now, id, rank, instance, &fault);
            return self.tell(shared, now, told);
        }
        if shares.member.has_met() && is_tried {
            // It may just be slow, and has perhaps told others the outcome.
            return self.want_mate(shared, now, key, rank, candidates);
        }
        self.coordinator_lost(shared, now, key, instance, &fault);
    }

    fn coordinator_lost(
        &mut self,
        shared: &Shared,
        now: Instant,
        key: Key,
        instance: Option<Instance>,
        fault: &Fault,
    ) {
        let Some(shares) = self.rooms.shares(key) else { return };
        let rank = shares.member.coordinator();
        let coordinator = instance.map(|instance| Party { side: key.0, rank, instance });
        let (room, detail) = (key.1, &*fault.detail);
        tracing::info!(%room, %rank, detail, "the rank that counts for the group was lost");
        let mut cause = shares.member.lost(coordinator, fault.kind);
        if fault.kind == ErrorKind::ShuttingDown {
            cause.detail = CLOSING.to_owned(); // as it tells those that have enrolled in time
        }
        self.hear_verdict(now, key, Some(&cause));
        self.follow_up(shared, now, key, News::All);
    }

    /// A link has ended over which a room may have enrolled. A peer that says why it goes is not waited for,
    /// nor one that was silent for too long.
    pub(super) fn mate_down(
        &mut self,
        shared: &Shared,
        now: Instant,
        key: Key,
        link: LinkId,
        fault: &Fault,
        is_final: bool,
    ) {
        let Some(shares) = self.rooms.shares(key) else { return };
        if !shares.member.link_down(now, link, shared.config.liveness.timeout) {
            return;
        }
        if is_final {
            return self.coordinator_lost(shared, now, key, None, fault);
        }
        let rank = shares.member.coordinator();
        if let Some(candidates) = shares.mates.get(&rank).cloned() {
            self.want_mate(shared, now, key, rank, &candidates);
        }
    }

    /// What the last try to reach a rank of the group said; `refusal` if it is of no use to try again.
    pub(super) fn mate_unreachable(
        &mut self,
        shared: &Shared,
        now: Instant,
        key: Key,
        refusal: Option<&Fault>,
    ) {
        let Some(shares) = self.rooms.shares(key) else { return };
        if shares.member.is_coordinator() {
            return;
        }
        if let Some(fault) = refusal {
            return self.coordinator_lost(shared, now, key, None, fault);
        }
        let candidates = shares.mates.get(&shares.member.coordinator());
        if let Some(error) = candidates.and_then(|candidates| self.targets.last_error(candidates)) {
            let hint = format!("last try: {error}");
            if let Some(shares) = self.rooms.shares(key) {
                shares.member.still_missing(hint);
            }
        }
    }

    pub(super) fn group_frame(
        &mut self,
        shared: &Shared,
        now: Instant,
        link: LinkId,
        id: BallotId,
        frame: GroupFrame,
    ) {
        let at = self.links.get(&link);
        let is_of_group =
            at.and_then(|link| link.peer.as_ref()).is_some_and(|peer| peer.group == shared.place.group);
        let party = at.and_then(|link| link.party(id.side)).filter(|_| is_of_group);
        let Some(party) = party else {
            return self.count_late(shared);
        };
        let key = (id.side, id.room);
        match frame {
            GroupFrame::Enrol { members } => {
                let told = self.ballots.enrol(now, link, party, id, &members);
                self.tell(shared, now, told);
                self.stop_watching(key, party.rank);
            }
            GroupFrame::Vote { cause } => {
                let told = self.ballots.vote(now, party, id, cause);
                self.tell(shared, now, told);
            }
            GroupFrame::Verdict { cause } => {
                let shares = self.rooms.shares(key);
                let is_awaited =
                    |shares: &mut Shares| shares.member.id() == id && shares.member.link() == Some(link);
                if !shares.is_some_and(is_awaited) || !self.hear_verdict(now, key, cause.as_ref()) {
                    return self.count_late(shared);
                }
                self.follow_up(shared, now, key, News::All);
            }
        }
    }

    /// Sends verdicts, and applies those on rooms of this engine.
    pub(super) fn tell(&mut self, shared: &Shared, now: Instant, told: Vec<Told>) {
        for Told { link, id, cause } in told {
            if let Some(link) = link {
                self.send(link, &Frame::Group { id, frame: GroupFrame::Verdict { cause } });
                continue;
            }
            let key = (id.side, id.room);
            let is_its = self.rooms.shares(key).is_some_and(|shares| shares.member.id() == id);
            if is_its && self.hear_verdict(now, key, cause.as_ref()) {
                self.follow_up(shared, now, key, News::All);
            }
        }
    }

    /// A room has ended here: votes, once. Answers whether that has brought the outcome.
    pub(super) fn take_part(&mut self, shared: &Shared, now: Instant, key: Key) -> bool {
        let Some((session, _)) = self.rooms.shared_room(key) else { return false };
        let cause = session.cause();
        self.cast(shared, now, key, cause)
    }

    /// Ends a room from this side, also one that has ended here and waits for others.
    pub(super) fn end_room(&mut self, shared: &Shared, now: Instant, key: Key, fault: Fault) {
        let Some(session) = self.rooms.session(key) else { return };
        let has_succeeded = session.state() == KVPoll::Success;
        session.fail(now, fault.clone());
        if has_succeeded && self.rooms.shares(key).is_some() {
            let (kind, detail) = (fault.kind, fault.detail.to_string());
            let cause = Cause { origin: shared.party(key.0), state: KVPoll::Transferring, kind, detail };
            self.cast(shared, now, key, Some(cause));
        }
    }

    /// The engine ends: rooms that nobody has told their outcome end for their own cause.
    pub(super) fn leave_groups(&mut self, shared: &Shared, now: Instant) {
        for key in self.rooms.keys() {
            let Some((session, _)) = self.rooms.shared_room(key) else { continue };
            let detail = "the engine has closed before the outcome was known";
            let cause = session.cause();
            let cause = cause.unwrap_or_else(|| shared.cause(key.0, ErrorKind::ShuttingDown, detail.into()));
            if self.hear_verdict(now, key, Some(&cause)) {
                self.follow_up(shared, now, key, News::All);
            }
        }
    }

    /// Nothing is waited for any more on behalf of a room.
    pub(super) fn leave_mates(&mut self, key: Key) {
        self.rooms.ungrouped.remove(&key);
        let mates = self.rooms.shares(key).map(|shares| std::mem::take(&mut shares.mates));
        for candidates in mates.unwrap_or_default().into_values() {
            self.targets.unwant(&candidates, Waiter::Group(key));
        }
    }

    /// Ends a room whose coordinator was not reached in time.
    pub(super) fn tick_group(&mut self, now: Instant, key: Key) {
        let cause = self.rooms.shares(key).and_then(|shares| shares.member.overdue(now));
        if let Some(cause) = cause {
            self.hear_verdict(now, key, Some(&cause));
        }
    }

    fn cast(&mut self, shared: &Shared, now: Instant, key: Key, cause: Option<Cause>) -> bool {
        let Some(shares) = self.rooms.shares(key) else { return false };
        let (id, link) = (shares.member.id(), shares.member.link());
        let is_coordinator = shares.member.is_coordinator();
        if !shares.member.vote(cause.clone()) {
            return false;
        }
        if is_coordinator {
            let (own, others): (Vec<_>, Vec<_>) = self
                .ballots
                .vote(now, shared.party(id.side), id, cause)
                .into_iter()
                .partition(|told| told.id == id && told.link.is_none());
            self.tell(shared, now, others);
            return own.into_iter().any(|told| self.hear_verdict(now, key, told.cause.as_ref()));
        }
        if let Some(link) = link {
            self.send(link, &Frame::Group { id, frame: GroupFrame::Vote { cause } });
        }
        false
    }

    /// Applies a verdict; answers whether it was news. What follows is for [`Core::follow_up`].
    fn hear_verdict(&mut self, now: Instant, key: Key, cause: Option<&Cause>) -> bool {
        let Some(slot) = self.rooms.slot(key).map(|slot| slot.poll()) else { return false };
        let Some((session, shares)) = self.rooms.shared_room(key) else { return false };
        let elapsed = now.saturating_duration_since(session.figures().created);
        let is_news = shares.member.hear(cause, session.error(), slot, elapsed);
        if is_news && let Some(session::Outcome::Failed(error)) = shares.member.outcome() {
            let (origin, detail) = (error.party(), error.detail.to_string());
            session.fail_for(now, &Cause { origin, state: error.state, kind: error.kind, detail });
        }
        is_news
    }

    /// A rank has enrolled: from now on its own link stands for it.
    fn stop_watching(&mut self, key: Key, rank: Rank) {
        let mate = self.rooms.shares(key).and_then(|shares| shares.mates.remove(&rank));
        if let Some(candidates) = mate {
            self.targets.unwant(&candidates, Waiter::Group(key));
        }
    }

    fn count_late(&self, shared: &Shared) {
        shared.counters.late.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
