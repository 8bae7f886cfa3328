//! Peers this side has to reach: tried address by address, then again with a growing pause.
//!
//! A peer that was never there is waited for as long as its rooms have time: it may be starting. One that
//! was there and went is given [`GRACE`] to come back, then rooms that need it fail at once. It is tried
//! again as rooms come, and is as good as new when it answers.

use crate::ids::{GrantId, Instance, LinkId, Rank};
use crate::wire::Cause;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Addresses of one peer that this engine has a transport for, in order of preference.
pub(super) type Candidates = Vec<(usize, Bytes)>;

/// `W` names what waits for a peer.
#[derive(Debug)]
pub(super) struct Targets<W> {
    targets: BTreeMap<Candidates, Target<W>>,
    by_link: BTreeMap<LinkId, Candidates>,
    /// Who answered at an address last, and when.
    answered: BTreeMap<(usize, Bytes), (Instance, Instant)>,
    reconnects: u64,
}

#[derive(Debug)]
pub(super) struct Target<W> {
    pub(super) state: Reach,
    /// Rooms that wait for it, and since when.
    waiting: BTreeMap<W, Instant>,
    /// Which candidate is tried now.
    at: usize,
    /// Transports of those before it, and what went wrong with them.
    passed: Vec<(usize, String)>,
    failures: u32,
    /// What went wrong last.
    pub(super) last_error: Option<String>,
    /// Receivers that gave up while they waited: their senders have to hear of it.
    farewells: VecDeque<Farewell>,
    standing: Standing,
    /// When it was of use last.
    used: Instant,
}

/// What is known of a peer in this engine's life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// It was here and did not come back in time.
    Gone,
    /// It was here, and went.
    Lost,
    /// It never answered.
    New,
    /// It is here.
    Up,
}

/// A room that need not wait for its peer any longer.
#[derive(Debug)]
pub(super) struct Hopeless<W> {
    pub(super) room: W,
    pub(super) candidates: Candidates,
    /// What went wrong last.
    pub(super) error: String,
    /// When the peer is tried next, at the earliest; none while it is being tried.
    pub(super) next: Option<Duration>,
}

/// What is owed to the sender of a receiver that gave up before it was reached.
#[derive(Clone, Debug)]
pub(super) struct Farewell {
    pub(super) id: GrantId,
    pub(super) destinations: Vec<Rank>,
    pub(super) cause: Cause,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reach {
    /// A connection is being made, or made.
    Link(LinkId),
    /// To be tried at this time.
    Pause(Instant),
}

impl<W> Default for Targets<W> {
    fn default() -> Self {
        let (targets, by_link, answered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { targets, by_link, answered, reconnects: 0 }
    }
}

impl<W: Copy + Ord> Targets<W> {
    /// The target with these addresses; a new one is due at once.
    pub(super) fn want(&mut self, now: Instant, candidates: &Candidates, room: W) -> &Target<W> {
        if !self.targets.contains_key(candidates) {
            self.tidy(now);
        }
        let target = self.targets.entry(candidates.clone()).or_insert_with(|| Target {
            state: Reach::Pause(now),
            waiting: BTreeMap::new(),
            at: 0,
            passed: Vec::new(),
            failures: 0,
            last_error: None,
            farewells: VecDeque::new(),
            standing: Standing::New,
            used: now,
        });
        target.waiting.insert(room, now);
        target.used = now;
        target
    }

    /// A room has ended before its source was reached, and with what cause.
    pub(super) fn give_up(&mut self, candidates: &Candidates, farewell: Farewell) {
        let target = self.targets.get_mut(candidates);
        // Who went for good has nobody left to be told.
        if let Some(target) = target.filter(|target| target.standing != Standing::Gone) {
            if target.farewells.len() == MAX_FAREWELLS {
                target.farewells.pop_front(); // its sender has a deadline of its own
            }
            target.farewells.push_back(farewell);
        }
    }

    /// A room has ended or was served.
    pub(super) fn unwant(&mut self, candidates: &Candidates, room: W) {
        if let Some(target) = self.targets.get_mut(candidates) {
            target.waiting.remove(&room);
            let is_new = target.standing == Standing::New;
            if is_new && !target.is_wanted() && matches!(target.state, Reach::Pause(_)) {
                self.targets.remove(candidates);
            }
        }
    }

    /// Rooms that wait for a peer which was here, went, and did not come back in time.
    pub(super) fn hopeless(&mut self, now: Instant) -> Vec<Hopeless<W>> {
        let mut hopeless = Vec::new();
        for (candidates, target) in &mut self.targets {
            if target.waiting.is_empty() || !target.is_away() {
                continue;
            }
            if target.waiting.values().any(|since| now.saturating_duration_since(*since) >= GRACE) {
                target.standing = Standing::Gone;
            }
            let next = match target.state {
                Reach::Pause(at) => Some(at.saturating_duration_since(now)),
                Reach::Link(_) => None,
            };
            let just_failed = target.standing == Standing::Gone && next.is_some_and(|next| !next.is_zero());
            let error = target.last_error.as_deref().unwrap_or("no answer");
            target.waiting.retain(|&room, since| {
                let is_hopeless = just_failed || now.saturating_duration_since(*since) >= GRACE;
                if is_hopeless {
                    let (candidates, error) = (candidates.clone(), error.to_owned());
                    hopeless.push(Hopeless { room, candidates, error, next });
                }
                !is_hopeless
            });
        }
        hopeless
    }

    /// Notes who answers at the address that a link of ours went to; gives who answered there before, if
    /// that was another.
    pub(super) fn answered(&mut self, now: Instant, link: LinkId, instance: Instance) -> Option<Instance> {
        let candidates = self.by_link.get(&link)?;
        let address = candidates.get(self.targets.get(candidates)?.at)?.clone();
        let before = self.answered.insert(address, (instance, now));
        if self.answered.len() > MAX_REMEMBERED {
            let oldest = self.answered.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.answered.remove(&oldest);
            }
        }
        before.map(|(before, _)| before).filter(|before| *before != instance)
    }

    /// Who answered at one of these addresses last.
    pub(super) fn instance(&self, candidates: &Candidates) -> Option<Instance> {
        candidates.iter().find_map(|address| self.answered.get(address)).map(|(instance, _)| *instance)
    }

    /// What is to be tried now.
    pub(super) fn due(&self, now: Instant) -> Vec<(Candidates, usize, Bytes)> {
        let due = self.targets.iter().filter(|(_, target)| {
            target.is_wanted() && matches!(target.state, Reach::Pause(at) if at <= now)
        });
        due.filter_map(|(candidates, target)| {
            let (transport, address) = candidates.get(target.at)?.clone();
            Some((candidates.clone(), transport, address))
        })
        .collect()
    }

    /// A connection is being made.
    pub(super) fn connecting(&mut self, candidates: &Candidates, link: LinkId) {
        if let Some(target) = self.targets.get_mut(candidates) {
            target.state = Reach::Link(link);
            self.by_link.insert(link, candidates.clone());
        }
    }

    /// Better transports than this link's, in vain tried for the same peer just before.
    pub(super) fn passed_over(&self, link: LinkId) -> &[(usize, String)] {
        let target = self.by_link.get(&link).and_then(|candidates| self.targets.get(candidates));
        target.map_or(&[], |target| &target.passed)
    }

    /// Whether this link is the last way to reach its peer.
    pub(super) fn is_last(&self, link: LinkId) -> bool {
        let candidates = self.by_link.get(&link);
        let at = candidates.and_then(|candidates| Some((self.targets.get(candidates)?.at, candidates.len())));
        at.is_none_or(|(at, count)| at + 1 >= count)
    }

    /// The peer answered: the pauses start anew. Gives the rooms that wait for it, and those that waited.
    pub(super) fn up(&mut self, link: LinkId) -> Option<(Candidates, BTreeSet<W>, VecDeque<Farewell>)> {
        let candidates = self.by_link.get(&link)?;
        let target = self.targets.get_mut(candidates)?;
        self.reconnects += u64::from(target.is_away());
        (target.failures, target.last_error, target.standing) = (0, None, Standing::Up);
        let (waiting, farewells) =
            (std::mem::take(&mut target.waiting), std::mem::take(&mut target.farewells));
        Some((candidates.clone(), waiting.into_keys().collect(), farewells))
    }

    /// The link ended, or could not be made; answers the rooms that wait for this peer.
    pub(super) fn down(&mut self, now: Instant, link: LinkId, error: &str) -> BTreeSet<W> {
        let Some(candidates) = self.by_link.remove(&link) else { return BTreeSet::new() };
        let target = self.targets.get_mut(&candidates);
        let Some(target) = target.filter(|target| target.standing == Standing::Up) else {
            return self.failed(now, &candidates, error);
        };
        // Tried again at once, for whoever waits or comes.
        (target.standing, target.state, target.at) = (Standing::Lost, Reach::Pause(now), 0);
        (target.last_error, target.used) = (Some(error.to_owned()), now);
        target.passed.clear();
        target.farewells.clear();
        target.waiting.values_mut().for_each(|since| *since = now);
        target.waiting.keys().copied().collect()
    }

    /// An attempt failed before it had a link.
    pub(super) fn failed(&mut self, now: Instant, candidates: &Candidates, error: &str) -> BTreeSet<W> {
        let Some(target) = self.targets.get_mut(candidates) else { return BTreeSet::new() };
        if target.waiting.is_empty() {
            if target.standing == Standing::New {
                self.targets.remove(candidates);
                return BTreeSet::new();
            }
            target.farewells.clear();
        }
        target.last_error = Some(error.to_owned());
        target.passed.extend(candidates.get(target.at).map(|(transport, _)| (*transport, error.to_owned())));
        target.at += 1;
        let mut pause = Duration::ZERO; // the next address at once
        if target.at == candidates.len() {
            target.at = 0;
            target.passed.clear();
            pause = FIRST_PAUSE.saturating_mul(1 << target.failures.min(10)).min(LONGEST_PAUSE);
            target.failures += 1;
        }
        target.state = Reach::Pause(now + pause);
        target.waiting.keys().copied().collect()
    }

    /// An attempt could not be made for want of something here, which says nothing of the peer: the time
    /// it has to come back begins with the next one.
    pub(super) fn untried(&mut self, now: Instant, candidates: &Candidates, error: &str) -> BTreeSet<W> {
        let rooms = self.failed(now, candidates, error);
        if let Some(target) = self.targets.get_mut(candidates).filter(|target| target.is_away()) {
            target.standing = Standing::Lost;
            let next = if let Reach::Pause(next) = target.state { next } else { now };
            target.waiting.values_mut().for_each(|since| *since = next);
        }
        rooms
    }

    pub(super) fn last_error(&self, candidates: &Candidates) -> Option<&str> {
        self.targets.get(candidates)?.last_error.as_deref()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let times = self.targets.values().filter(|target| target.is_wanted()).filter_map(Target::deadline);
        times.min()
    }

    /// How often a peer that was lost was there again.
    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Peers known, and those of them that were here and are not.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let gone = self.targets.values().filter(|target| target.standing == Standing::Gone).count();
        (self.targets.len(), gone)
    }

    /// Forgets peers that nobody has asked for lately, and the longest unused of too many.
    fn tidy(&mut self, now: Instant) {
        let is_idle = |target: &Target<W>| !target.is_wanted() && matches!(target.state, Reach::Pause(_));
        self.targets.retain(|_, target| {
            !is_idle(target) || now.saturating_duration_since(target.used) < LONGEST_MEMORY
        });
        let idle = self.targets.iter().filter(|(_, target)| is_idle(target));
        let (count, oldest) =
            (idle.clone().count(), idle.min_by_key(|(_, target)| target.used).map(|(name, _)| name.clone()));
        if let Some(oldest) = oldest.filter(|_| count >= MAX_REMEMBERED) {
            self.targets.remove(&oldest);
        }
    }
}

impl<W: Ord> Target<W> {
    /// Whether it is to be tried, or kept trying.
    fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || !self.farewells.is_empty()
    }

    /// Whether it was here and is not.
    fn is_away(&self) -> bool {
        matches!(self.standing, Standing::Gone | Standing::Lost)
    }

    /// When it is to be looked at.
    fn deadline(&self) -> Option<Instant> {
        let next = match self.state {
            Reach::Pause(at) => Some(at),
            Reach::Link(_) => None,
        };
        let patience = self.waiting.values().min().filter(|_| self.is_away()).map(|since| *since + GRACE);
        next.into_iter().chain(patience).min()
    }
}

const MAX_FAREWELLS: usize = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a room waits for a peer that was here before.
const GRACE: Duration = Duration::from_millis(500);
/// Peers kept in mind though nobody waits for them.
const MAX_REMEMBERED: usize = 1024;
const LONGEST_MEMORY: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock;
    use crate::ids::Room;

    fn peer(name: u32) -> Candidates {
        vec![(0, Bytes::from(name.to_string()))]
    }

    /// Peer 0 was here over this link.
    fn met(targets: &mut Targets<Room>, now: Instant) -> LinkId {
        let link = LinkId::allocate();
        targets.want(now, &peer(0), Room(0));
        targets.connecting(&peer(0), link);
        targets.up(link).unwrap();
        link
    }

    /// One try of peer 0, refused.
    fn refuse(targets: &mut Targets<Room>, now: Instant) {
        assert_eq!(targets.due(now).len(), 1);
        targets.failed(now, &peer(0), "refused");
    }

    #[test]
    fn a_peer_that_never_answered_is_waited_for() {
        let (mut targets, mut now) = (Targets::default(), clock::now());
        targets.want(now, &peer(0), Room(1));
        for _ in 0..100 {
            refuse(&mut targets, now);
            assert!(targets.hopeless(now).is_empty());
            now = targets.deadline().unwrap();
        }
    }

    #[test]
    fn a_peer_that_went_is_tried_for_the_grace_and_then_once_a_pause() {
        let (mut targets, start) = (Targets::default(), clock::now());
        let link = met(&mut targets, start);
        assert!(targets.down(start, link, "lost").is_empty());
        assert_eq!(targets.deadline(), None, "tried although nobody wants it");
        targets.want(start, &peer(0), Room(1));
        let (mut now, mut tries) = (start, 0);
        let first = loop {
            if !targets.due(now).is_empty() {
                refuse(&mut targets, now);
                tries += 1;
            }
            if let Some(hopeless) = targets.hopeless(now).pop() {
                break hopeless;
            }
            now = targets.deadline().unwrap();
        };
        assert_eq!((now - start, first.room, &*first.error), (GRACE, Room(1), "refused"));
        assert!(tries > 3, "{tries}");
        // Until the next try is due, rooms fail without one; then each fails after one.
        targets.want(now, &peer(0), Room(2));
        assert!(targets.due(now).is_empty());
        let second = targets.hopeless(now).pop().unwrap();
        assert_eq!((second.room, second.next), (Room(2), first.next));
        assert_eq!(targets.deadline(), None, "tried although nobody wants it");
        let mut next = second.next.unwrap();
        for room in 3..10 {
            assert!(next <= LONGEST_PAUSE);
            now += next;
            targets.want(now, &peer(0), Room(room));
            refuse(&mut targets, now);
            next = targets.hopeless(now).pop().unwrap().next.unwrap();
        }
        assert_eq!((next, targets.sizes()), (LONGEST_PAUSE, (1, 1)));
        now += next;
        targets.want(now, &peer(0), Room(20));
        let link = LinkId::allocate();
        targets.connecting(&peer(0), link);
        assert!(targets.hopeless(now).is_empty(), "it is being tried");
        assert_eq!(targets.up(link).unwrap().1, BTreeSet::from([Room(20)]));
        assert_eq!(targets.sizes(), (1, 0));
    }

    #[test]
    fn a_try_without_answer_does_not_hold_rooms_back() {
        let (mut targets, now) = (Targets::default(), clock::now());
        let link = met(&mut targets, now);
        targets.down(now, link, "lost");
        targets.want(now, &peer(0), Room(1));
        targets.connecting(&peer(0), LinkId::allocate());
        let end = targets.deadline().unwrap();
        assert_eq!(end, now + GRACE);
        let hopeless = targets.hopeless(end).pop().unwrap();
        assert_eq!((hopeless.room, hopeless.next), (Room(1), None));
    }

    #[test]
    fn rooms_that_wait_when_a_peer_goes_have_the_grace_from_then_on() {
        let (mut targets, start) = (Targets::default(), clock::now());
        let link = met(&mut targets, start);
        targets.want(start, &peer(0), Room(1));
        let now = start + GRACE * 5;
        assert_eq!(targets.down(now, link, "lost"), BTreeSet::from([Room(1)]));
        assert!(targets.hopeless(now).is_empty());
        assert_eq!(targets.due(now).len(), 1);
    }

    #[test]
    fn peers_nobody_asks_for_are_forgotten() {
        let (mut targets, start) = (Targets::default(), clock::now());
        let met_all = |targets: &mut Targets<Room>, names: std::ops::Range<u32>, now| {
            for name in names {
                let link = LinkId::allocate();
                targets.want(now, &peer(name), Room(1));
                targets.connecting(&peer(name), link);
                targets.answered(now, link, Instance(1));
                targets.up(link).unwrap();
                targets.down(now, link, "lost");
            }
        };
        met_all(&mut targets, 0..2000, start);
        assert_eq!((targets.targets.len(), targets.answered.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        met_all(&mut targets, 5000..5001, start + LONGEST_MEMORY);
        assert_eq!(targets.targets.len(), 1);
    }

    #[test]
    fn another_instance_at_the_same_address_is_told_once() {
        let (mut targets, now) = (Targets::default(), clock::now());
        let link = met(&mut targets, now);
        assert_eq!(targets.answered(now, link, Instance(1)), None);
        assert_eq!(targets.answered(now, link, Instance(1)), None);
        assert_eq!(targets.answered(now, link, Instance(2)), Some(Instance(1)));
        assert_eq!(targets.answered(now, link, Instance(2)), None);
    }
}
