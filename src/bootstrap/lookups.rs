//! What a client knows, and what it asks next. Pure: it is told the time and the answers.

use super::leases::Leases;
use super::owners::OwnerTable;
use super::retry::{FIRST_PAUSE, Retry};
use super::{GroupState, RankRecord};
use crate::ids::Room;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a question nobody repeats is asked on.
const INTEREST: Duration = Duration::from_secs(60);
/// Rooms in one request.
const BATCH: usize = 4096;
/// Groups known at once; the one asked for longest ago is forgotten first.
const GROUPS: usize = 256;
/// Rooms asked for, told and known at once, each.
const ROOMS: usize = 65_536;

/// When to ask again about what was known to be true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    pub(super) lease: Duration,
    pub(super) refresh: Duration,
    pub(super) owner: Duration,
}

/// What to ask next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Job {
    Lookup { group: String },
    Owners { group: String, rooms: Vec<u64> },
    Publish { group: String, owners: BTreeMap<u64, u32> },
    Put { id: u64, record: RankRecord },
    Remove { id: u64, record: RankRecord },
}

/// How a job ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Carried out; nothing to learn.
    Done,
    /// A group's state.
    Group(GroupState),
    /// Owners found.
    Owners(BTreeMap<u64, u32>),
    /// Refused for good, since another instance took the place.
    Replaced(String),
    /// Refused by the server.
    Refused(String),
    /// Not answered.
    Unreachable(String),
}

/// Whether watchers must look again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Changed,
    Same,
}

/// What is known and asked.
#[derive(Debug)]
pub(super) struct Lookups {
    ages: Ages,
    groups: BTreeMap<String, Group>,
    owners: OwnerTable<Instant>,
    asked: BTreeMap<String, Asked>,
    told: VecDeque<(String, Room, u32)>,
    telling: Retry,
    pub(super) leases: Leases,
}

#[derive(Debug)]
struct Group {
    state: GroupState,
    /// When the state was learned.
    learned: Option<Instant>,
    wanted: Instant,
    is_in_flight: bool,
    retry: Retry,
}

/// Rooms of a group whose owners are not known.
#[derive(Debug, Default)]
struct Asked {
    rooms: BTreeMap<Room, Instant>,
    /// Where the next batch starts, so that all rooms get their turn.
    from: Option<Room>,
    retry: Retry,
}

impl Outcome {
    /// What went wrong, if anything did.
    pub(super) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Refused(detail) | Self::Replaced(detail) | Self::Unreachable(detail) => Some(detail),
            Self::Done | Self::Group(_) | Self::Owners(_) => None,
        }
    }
}

impl Lookups {
    pub(super) fn new(ages: Ages) -> Self {
        Self {
            ages,
            groups: BTreeMap::new(),
            owners: OwnerTable::new(ROOMS),
            asked: BTreeMap::new(),
            told: VecDeque::new(),
            telling: Retry::default(),
            leases: Leases::new(ages.lease),
        }
    }

    pub(super) fn group(&mut self, name: &str, now: Instant) -> GroupState {
        if let Some(group) = self.groups.get_mut(name) {
            group.wanted = now;
            let is_old = group.learned.is_none_or(|learned| learned + self.ages.refresh <= now);
            if is_old && !group.is_in_flight {
                group.retry.start(now);
            }
            return group.state.clone();
        }
        if self.groups.len() >= GROUPS {
            let oldest = self.groups.iter().min_by_key(|(_, group)| group.wanted);
            let oldest = oldest.map(|(name, _)| name.clone()).unwrap_or_default();
            self.groups.remove(&oldest);
        }
        let retry = Retry::at(now);
        let state = GroupState::Unknown;
        let group = Group { state, learned: None, wanted: now, is_in_flight: false, retry };
        self.groups.insert(name.into(), group);
        GroupState::Unknown
    }

    pub(super) fn invalidate(&mut self, name: &str, now: Instant) {
        if let Some(group) = self.groups.get_mut(name) {
            // Not at once if it was just learned: what proves wrong again and again is asked with pauses.
            let soonest = group.learned.map_or(now, |learned| now.max(learned + FIRST_PAUSE));
            group.state = GroupState::Unknown;
            group.learned = None;
            group.wanted = now;
            group.retry = Retry::at(soonest);
        }
    }

    pub(super) fn publish_owner(&mut self, group: &str, room: Room, dp: u32, now: Instant) {
        self.owners.insert(group, room, dp, now);
        if self.told.len() >= ROOMS {
            self.told.pop_front();
        }
        self.told.push_back((group.into(), room, dp));
        self.telling.start(now);
    }

    pub(super) fn owner(&mut self, group: &str, room: Room, now: Instant) -> Option<u32> {
        let age = self.ages.owner;
        self.owners.forget(|&told| told + age <= now);
        let known = self.owners.owner(group, room);
        if known.is_none() && self.asked.values().map(|asked| asked.rooms.len()).sum::<usize>() < ROOMS {
            let asked = self.asked.entry(group.into()).or_default();
            // A room that is new is asked for at once, whatever the pause of those asked in vain.
            if asked.rooms.insert(room, now).is_none() {
                asked.from = Some(room);
                asked.retry = Retry::at(now);
            }
        }
        known
    }

    /// The job that has waited longest, or when to ask again for one.
    pub(super) fn next_job(&mut self, now: Instant) -> Result<Job, Option<Instant>> {
        let rank = self.leases.due().map(|(due, id)| (due, Pick::Rank(id)));
        let group =
            self.groups.iter().filter_map(|(name, g)| Some((g.retry.due?, Pick::Group(name.clone()))));
        let asked = self.asked.iter().filter_map(|(name, a)| Some((a.retry.due?, Pick::Asked(name.clone()))));
        let telling = self.telling.due.map(|due| (due, Pick::Telling));
        let first = rank.into_iter().chain(telling).chain(group).chain(asked).min_by_key(|(due, _)| *due);
        match first {
            Some((due, pick)) if due <= now => self.job(pick).ok_or(Some(now)),
            Some((due, _)) => Err(Some(due)),
            None => Err(None),
        }
    }

    /// Takes the outcome of a job.
    pub(super) fn finish(&mut self, job: Job, outcome: Outcome, now: Instant) -> Change {
        match job {
            Job::Lookup { group } => self.looked_up(&group, outcome, now),
            Job::Owners { group, rooms } => self.asked_for(&group, &rooms, outcome, now),
            Job::Publish { group, owners } => self.published(&group, &owners, &outcome, now),
            Job::Put { id, .. } => self.leases.put(id, outcome, now),
            Job::Remove { id, .. } => self.leases.removed(id),
        }
    }

    fn looked_up(&mut self, name: &str, outcome: Outcome, now: Instant) -> Change {
        let Some(group) = self.groups.get_mut(name) else { return Change::Same };
        let state = match outcome {
            Outcome::Group(state) => state,
            Outcome::Refused(detail) | Outcome::Replaced(detail) | Outcome::Unreachable(detail) => {
                GroupState::Unreachable { detail }
            }
            Outcome::Done | Outcome::Owners(_) => return Change::Same,
        };
        group.is_in_flight = false;
        if group.retry.due.is_some() {
            // Invalidated meanwhile: this answer may be the one that proved wrong.
            return Change::Same;
        }
        match (&group.state, &state) {
            (_, GroupState::Ready(_)) => {
                group.retry = Retry::default();
                group.learned = Some(now);
            }
            // The server may be gone while the group is well.
            (GroupState::Ready(_), GroupState::Unreachable { .. }) => {
                group.retry.again(now);
                if now >= group.wanted + INTEREST {
                    group.retry = Retry::default();
                }
                return Change::Same;
            }
            _ => {
                group.learned = Some(now);
                group.retry.again(now);
                if now >= group.wanted + INTEREST {
                    // Whoever waits asks again when woken.
                    self.groups.remove(name);
                    return Change::Changed;
                }
            }
        }
        match group.state == state {
            true => Change::Same,
            false => {
                group.state = state;
                Change::Changed
            }
        }
    }

    fn asked_for(&mut self, name: &str, rooms: &[u64], outcome: Outcome, now: Instant) -> Change {
        let mut change = Change::Same;
        let Some(asked) = self.asked.get_mut(name) else { return change };
        if let Outcome::Owners(found) = outcome {
            // Only what was asked for, whatever the server says.
            for room in rooms {
                if let Some(&dp) = found.get(room) {
                    asked.rooms.remove(&Room(*room));
                    self.owners.insert(name, Room(*room), dp, now);
                    change = Change::Changed;
                }
            }
        }
        let before = asked.rooms.len();
        asked.rooms.retain(|_, wanted| now < *wanted + INTEREST);
        if asked.rooms.len() != before {
            change = Change::Changed;
        }
        if asked.retry.due.is_none() {
            asked.retry.again(now);
        }
        if asked.rooms.is_empty() {
            self.asked.remove(name);
        }
        change
    }

    fn published(
        &mut self,
        group: &str,
        owners: &BTreeMap<u64, u32>,
        outcome: &Outcome,
        now: Instant,
    ) -> Change {
        if let Outcome::Unreachable(_) = outcome {
            for (&room, &dp) in owners.iter().rev() {
                if self.told.len() < ROOMS {
                    self.told.push_front((group.into(), Room(room), dp));
                }
            }
            self.telling.again(now);
        } else {
            self.telling = Retry::default();
            if !self.told.is_empty() {
                self.telling.start(now);
            }
        }
        Change::Same
    }

    fn job(&mut self, pick: Pick) -> Option<Job> {
        match pick {
            Pick::Asked(group) => {
                let asked = self.asked.get_mut(&group)?;
                asked.retry.due = None;
                let from = asked.from.unwrap_or(Room(0));
                let behind = asked.rooms.range(from..);
                let before = asked.rooms.range(..from);
                let mut rooms: Vec<_> =
                    behind.chain(before).map(|(room, _)| room.0).take(BATCH + 1).collect();
                // The first one left out starts the next batch.
                asked.from = (rooms.len() > BATCH).then(|| rooms.pop()).flatten().map(Room);
                Some(Job::Owners { group, rooms })
            }
            Pick::Group(group) => {
                let entry = self.groups.get_mut(&group)?;
                entry.is_in_flight = true;
                entry.retry.due = None;
                Some(Job::Lookup { group })
            }
            Pick::Rank(id) => self.leases.job(id),
            Pick::Telling => {
                self.telling.due = None;
                let group = self.told.front()?.0.clone();
                let mut owners = BTreeMap::new();
                while owners.len() < BATCH
                    && let Some((_, room, dp)) = self.told.pop_front_if(|(of, ..)| *of == group)
                {
                    owners.insert(room.0, dp);
                }
                Some(Job::Publish { group, owners })
            }
        }
    }
}

/// Which entry is due.
enum Pick {
    Asked(String),
    Group(String),
    Rank(u64),
    Telling,
}

#[cfg(test)]
mod tests {
    use super::super::retry::LAST_PAUSE;
    use super::*;
    use crate::ids::{GroupSizes, Instance, Rank};
    use crate::layout::LayoutDigest;

    const AGES: Ages = Ages {
        lease: Duration::from_secs(15),
        refresh: Duration::from_secs(30),
        owner: Duration::from_secs(120),
    };

    fn start() -> (Lookups, Instant) {
        (Lookups::new(AGES), super::super::clock::now())
    }

    fn record(instance: u128) -> RankRecord {
        RankRecord::new("p", GroupSizes::ONE, Rank::tp(0), Instance(instance), LayoutDigest([0; 16]))
    }

    fn lookup() -> Job {
        Job::Lookup { group: "p".into() }
    }

    fn ready() -> GroupState {
        super::super::roster::state("p", GroupSizes::ONE, &[&record(1)])
    }

    fn missing() -> GroupState {
        super::super::roster::empty()
    }

    /// Runs the job that must be due.
    fn run(lookups: &mut Lookups, outcome: Outcome, now: Instant) -> Change {
        let job = lookups.next_job(now).expect("a job is due");
        lookups.finish(job, outcome, now)
    }

    #[test]
    fn a_group_that_is_not_ready_is_asked_for_with_growing_pauses_while_it_is_of_interest() {
        let (mut lookups, begin) = start();
        assert_eq!(lookups.group("p", begin), GroupState::Unknown);
        let (mut now, mut pauses) = (begin, Vec::new());
        assert_eq!(run(&mut lookups, Outcome::Group(missing()), now), Change::Changed);
        while let Err(Some(due)) = lookups.next_job(now) {
            pauses.push(due - now);
            now = due;
            let change = run(&mut lookups, Outcome::Group(missing()), now);
            // Only forgetting it is a change.
            assert_eq!(change == Change::Changed, now >= begin + INTEREST);
        }
        assert_eq!(pauses[..6], [50, 100, 200, 400, 800, 1000].map(Duration::from_millis));
        assert!(pauses[6..].iter().all(|pause| *pause == LAST_PAUSE));
        assert_eq!(lookups.next_job(now), Err(None));
        assert_eq!(lookups.group("p", now), GroupState::Unknown);
    }

    #[test]
    fn a_known_group_is_asked_for_again_only_when_old_and_wanted() {
        let (mut lookups, now) = start();
        lookups.group("p", now);
        run(&mut lookups, Outcome::Group(ready()), now);
        assert_eq!(lookups.group("p", now), ready());
        assert_eq!(lookups.next_job(now + AGES.refresh * 2), Err(None));
        let later = now + AGES.refresh;
        assert_eq!(lookups.group("p", later), ready());
        // A server that is away takes nothing back.
        assert_eq!(run(&mut lookups, Outcome::Unreachable("gone".into()), later), Change::Same);
        assert_eq!(lookups.group("p", later), ready());
        let due = lookups.next_job(later).unwrap_err().unwrap();
        assert_eq!(run(&mut lookups, Outcome::Group(missing()), due), Change::Changed);
        assert_eq!(lookups.group("p", due), missing());
    }

    #[test]
    fn an_answer_that_was_under_way_when_the_group_was_invalidated_does_not_count() {
        let (mut lookups, now) = start();
        lookups.group("p", now);
        let job = lookups.next_job(now).unwrap();
        lookups.invalidate("p", now);
        assert_eq!(lookups.finish(job, Outcome::Group(ready()), now), Change::Same);
        assert_eq!(lookups.group("p", now), GroupState::Unknown);
        assert_eq!(run(&mut lookups, Outcome::Group(ready()), now), Change::Changed);
        // What proves wrong at once is not asked for in a loop.
        lookups.invalidate("p", now);
        assert_eq!(lookups.next_job(now), Err(Some(now + FIRST_PAUSE)));
        assert_eq!(lookups.next_job(now + FIRST_PAUSE), Ok(lookup()));
    }

    #[test]
    fn every_room_asked_for_gets_its_turn_and_none_stays_for_ever() {
        let (mut lookups, begin) = start();
        let rooms = BATCH as u64 * 2;
        for room in 0..rooms {
            assert_eq!(lookups.owner("p", Room(room), begin), None);
        }
        let (mut now, mut seen) = (begin, std::collections::BTreeSet::new());
        for _ in 0..3 {
            let Ok(Job::Owners { group, rooms }) = lookups.next_job(now) else { panic!("rooms are due") };
            seen.extend(rooms.iter().copied());
            lookups.finish(Job::Owners { group, rooms }, Outcome::Owners([(7, 3)].into()), now);
            now = lookups.next_job(now).unwrap_err().unwrap();
        }
        assert_eq!(seen.len() as u64, rooms);
        assert_eq!(lookups.owner("p", Room(7), now), Some(3));
        assert_eq!(lookups.owner("p", Room(7), now + AGES.owner * 2), None);
        run(&mut lookups, Outcome::Unreachable("gone".into()), now + AGES.owner * 2);
        run(&mut lookups, Outcome::Unreachable("gone".into()), now + AGES.owner * 2 + INTEREST);
        assert_eq!(lookups.next_job(now + AGES.owner * 4), Err(None));
    }

    #[test]
    fn owners_that_could_not_be_published_are_told_again() {
        let (mut lookups, now) = start();
        lookups.publish_owner("p", Room(1), 1, now);
        lookups.publish_owner("q", Room(2), 2, now);
        run(&mut lookups, Outcome::Unreachable("gone".into()), now);
        let due = lookups.next_job(now).unwrap_err().unwrap();
        let told = Job::Publish { group: "p".into(), owners: [(1, 1)].into() };
        assert_eq!(lookups.next_job(due), Ok(told.clone()));
        lookups.finish(told, Outcome::Done, due);
        assert_eq!(lookups.next_job(due), Ok(Job::Publish { group: "q".into(), owners: [(2, 2)].into() }));
        lookups.finish(Job::Publish { group: "q".into(), owners: [(2, 2)].into() }, Outcome::Done, due);
        assert_eq!(lookups.next_job(due), Err(None));
    }
}
