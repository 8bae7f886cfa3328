//! Peers this side has to reach: tried address by address, then again with a growing pause.

use crate::ids::{GrantId, LinkId, Rank, Room};
use crate::wire::Cause;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Addresses of one peer that this engine has a transport for, in order of preference.
pub(super) type Candidates = Vec<(usize, Bytes)>;

#[derive(Debug, Default)]
pub(super) struct Targets {
    targets: BTreeMap<Candidates, Target>,
    by_link: BTreeMap<LinkId, Candidates>,
}

#[derive(Debug)]
pub(super) struct Target {
    pub(super) state: Reach,
    /// Receivers that wait for it.
    pub(super) waiting: BTreeSet<Room>,
    /// Which candidate is tried now.
    at: usize,
    failures: u32,
    /// What went wrong last.
    pub(super) last_error: Option<String>,
    /// Receivers that gave up while they waited: their senders have to hear of it.
    farewells: VecDeque<Farewell>,
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

impl Targets {
    /// The target with these addresses; a new one is due at once.
    pub(super) fn want(&mut self, now: Instant, candidates: &Candidates, room: Room) -> &Target {
        let target = self.targets.entry(candidates.clone()).or_insert_with(|| Target {
            state: Reach::Pause(now),
            waiting: BTreeSet::new(),
            at: 0,
            failures: 0,
            last_error: None,
            farewells: VecDeque::new(),
        });
        target.waiting.insert(room);
        target
    }

    /// A room has ended before its source was reached, and with what cause.
    pub(super) fn give_up(&mut self, candidates: &Candidates, farewell: Farewell) {
        if let Some(target) = self.targets.get_mut(candidates) {
            if target.farewells.len() == MAX_FAREWELLS {
                target.farewells.pop_front(); // its sender has a deadline of its own
            }
            target.farewells.push_back(farewell);
        }
    }

    /// A room has ended or was served.
    pub(super) fn unwant(&mut self, candidates: &Candidates, room: Room) {
        if let Some(target) = self.targets.get_mut(candidates) {
            target.waiting.remove(&room);
            let is_idle = target.waiting.is_empty() && target.farewells.is_empty();
            if is_idle && matches!(target.state, Reach::Pause(_)) {
                self.targets.remove(candidates);
            }
        }
    }

    /// What is to be tried now.
    pub(super) fn due(&self, now: Instant) -> Vec<(Candidates, usize, Bytes)> {
        let due =
            self.targets.iter().filter(|(_, target)| matches!(target.state, Reach::Pause(at) if at <= now));
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

    /// The peer answered: the pauses start anew. Gives the rooms that wait for it, and those that waited.
    pub(super) fn up(&mut self, link: LinkId) -> Option<(Candidates, BTreeSet<Room>, VecDeque<Farewell>)> {
        let candidates = self.by_link.get(&link)?;
        let target = self.targets.get_mut(candidates)?;
        (target.failures, target.last_error) = (0, None);
        let (waiting, farewells) =
            (std::mem::take(&mut target.waiting), std::mem::take(&mut target.farewells));
        Some((candidates.clone(), waiting, farewells))
    }

    /// The link ended, or could not be made; answers the rooms that wait for this peer.
    pub(super) fn down(&mut self, now: Instant, link: LinkId, error: &str) -> BTreeSet<Room> {
        let Some(candidates) = self.by_link.remove(&link) else { return BTreeSet::new() };
        self.failed(now, &candidates, error)
    }

    /// An attempt failed before it had a link.
    pub(super) fn failed(&mut self, now: Instant, candidates: &Candidates, error: &str) -> BTreeSet<Room> {
        let Some(target) = self.targets.get_mut(candidates) else { return BTreeSet::new() };
        let waiting = target.waiting.clone();
        if waiting.is_empty() {
            self.targets.remove(candidates);
            return waiting;
        }
        target.last_error = Some(error.to_owned());
        target.at += 1;
        let mut pause = Duration::ZERO; // the next address at once
        if target.at == candidates.len() {
            target.at = 0;
            pause = FIRST_PAUSE.saturating_mul(1 << target.failures.min(10)).min(LONGEST_PAUSE);
            target.failures += 1;
        }
        target.state = Reach::Pause(now + pause);
        waiting
    }

    pub(super) fn last_error(&self, candidates: &Candidates) -> Option<&str> {
        self.targets.get(candidates)?.last_error.as_deref()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let pauses = self.targets.values().filter_map(|target| match target.state {
            Reach::Pause(at) => Some(at),
            Reach::Link(_) => None,
        });
        pauses.min()
    }
}

const MAX_FAREWELLS: usize = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
