//! The registrations a client keeps alive. Pure: it is told the time and the answers.

use super::lookups::{Change, Job, Outcome};
use super::retry::Retry;
use super::{RankRecord, RegistrationState};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Registrations of one client, renewed until they are dropped.
#[derive(Debug)]
pub(super) struct Leases {
    lease: Duration,
    entries: BTreeMap<u64, Registered>,
    next: u64,
}

/// One registration.
#[derive(Debug)]
struct Registered {
    record: RankRecord,
    state: RegistrationState,
    phase: Phase,
    retry: Retry,
}

/// What is to be done for a registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Keep it.
    Active,
    /// Take it back.
    Ending,
    /// Nothing: another has its place.
    Lost,
}

impl Leases {
    pub(super) const fn new(lease: Duration) -> Self {
        Self { lease, entries: BTreeMap::new(), next: 0 }
    }

    pub(super) fn register(&mut self, record: RankRecord, now: Instant) -> u64 {
        let same = |old: &RankRecord| old.group == record.group && old.rank == record.rank;
        for old in self.entries.values_mut() {
            if old.phase == Phase::Active && same(&old.record) {
                let detail = format!("rank {} was registered anew by this process", record.rank);
                old.lose(detail);
            }
        }
        let id = self.next;
        self.next += 1;
        let (state, phase) = (RegistrationState::Pending, Phase::Active);
        self.entries.insert(id, Registered { record, state, phase, retry: Retry::at(now) });
        id
    }

    /// Ends a registration; it is gone once `is_registered` says so.
    pub(super) fn remove(&mut self, id: u64, now: Instant) {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.phase == Phase::Active => {
                entry.phase = Phase::Ending;
                entry.retry = Retry::at(now);
            }
            // A place that another has taken is not ours to free.
            Some(entry) if entry.phase == Phase::Lost => {
                self.entries.remove(&id);
            }
            _ => {}
        }
    }

    pub(super) fn is_registered(&self, id: u64) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn registration(&self, id: u64) -> RegistrationState {
        self.entries.get(&id).map_or(RegistrationState::Pending, |entry| entry.state.clone())
    }

    /// The one that has waited longest, and since when it is due.
    pub(super) fn due(&self) -> Option<(Instant, u64)> {
        self.entries.iter().filter_map(|(&id, entry)| Some((entry.retry.due?, id))).min()
    }

    /// What is to be done for one that is due.
    pub(super) fn job(&self, id: u64) -> Option<Job> {
        let entry = self.entries.get(&id)?;
        let record = entry.record.clone();
        match entry.phase {
            Phase::Active => Some(Job::Put { id, record }),
            Phase::Ending => Some(Job::Remove { id, record }),
            Phase::Lost => None,
        }
    }

    /// Takes the outcome of a removal. It is not tried again: the lease ends by itself.
    pub(super) fn removed(&mut self, id: u64) -> Change {
        self.entries.remove(&id);
        Change::Same
    }

    /// Takes the outcome of a registration or renewal.
    pub(super) fn put(&mut self, id: u64, outcome: Outcome, now: Instant) -> Change {
        let Some(entry) = self.entries.get_mut(&id) else { return Change::Same };
        // Ended or replaced here while the request was on its way.
        if entry.phase != Phase::Active {
            return Change::Same;
        }
        let state = match outcome {
            Outcome::Replaced(detail) => {
                entry.lose(detail);
                return Change::Changed;
            }
            Outcome::Refused(detail) => {
                entry.retry.again(now);
                RegistrationState::Refused { detail }
            }
            Outcome::Unreachable(detail) => {
                entry.retry.again(now);
                RegistrationState::Unreachable { detail }
            }
            Outcome::Done | Outcome::Group(_) | Outcome::Owners(_) => {
                entry.retry = Retry::at(now + self.lease / 3);
                RegistrationState::Published
            }
        };
        match entry.state == state {
            true => Change::Same,
            false => {
                entry.state = state;
                Change::Changed
            }
        }
    }
}

impl Registered {
    fn lose(&mut self, detail: String) {
        self.phase = Phase::Lost;
        self.state = RegistrationState::Refused { detail };
        self.retry = Retry::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupSizes, Instance, Rank};
    use crate::layout::LayoutDigest;

    const LEASE: Duration = Duration::from_secs(15);

    fn start() -> (Leases, Instant) {
        (Leases::new(LEASE), super::super::clock::now())
    }

    fn record(instance: u128) -> RankRecord {
        RankRecord::new("p", GroupSizes::ONE, Rank::tp(0), Instance(instance), LayoutDigest([0; 16]))
    }

    /// The job that is due, or when there is one.
    fn job(leases: &Leases, now: Instant) -> Result<Job, Option<Instant>> {
        let (due, id) = leases.due().ok_or(None)?;
        if due > now { Err(Some(due)) } else { leases.job(id).ok_or(None) }
    }

    fn finish(leases: &mut Leases, job: Job, outcome: Outcome, now: Instant) -> Change {
        match job {
            Job::Put { id, .. } => leases.put(id, outcome, now),
            Job::Remove { id, .. } => leases.removed(id),
            other => panic!("{other:?} is none of its jobs"),
        }
    }

    fn run(leases: &mut Leases, outcome: Outcome, now: Instant) -> Change {
        let job = job(leases, now).expect("a job is due");
        finish(leases, job, outcome, now)
    }

    #[test]
    fn a_registration_is_renewed_at_a_third_of_its_lease() {
        let (mut leases, now) = start();
        let id = leases.register(record(1), now);
        assert_eq!(run(&mut leases, Outcome::Done, now), Change::Changed);
        assert_eq!(job(&leases, now), Err(Some(now + LEASE / 3)));
        let later = now + LEASE / 3;
        assert_eq!(run(&mut leases, Outcome::Done, later), Change::Same);
        leases.remove(id, later);
        assert_eq!(job(&leases, later), Ok(Job::Remove { id, record: record(1) }));
        run(&mut leases, Outcome::Unreachable("gone".into()), later);
        assert!(!leases.is_registered(id));
        assert_eq!(job(&leases, later), Err(None));
    }

    #[test]
    fn a_replaced_registration_asks_for_nothing_more() {
        let (mut leases, now) = start();
        let first = leases.register(record(1), now);
        let under_way = job(&leases, now).unwrap();
        // Replaced while its request is under way.
        let second = leases.register(record(2), now);
        assert_eq!(finish(&mut leases, under_way, Outcome::Done, now), Change::Same);
        assert!(matches!(leases.registration(first), RegistrationState::Refused { .. }));
        assert_eq!(job(&leases, now), Ok(Job::Put { id: second, record: record(2) }));
        run(&mut leases, Outcome::Replaced("by 3".into()), now);
        assert_eq!(job(&leases, now), Err(None));
        for id in [first, second] {
            leases.remove(id, now);
            assert!(!leases.is_registered(id));
        }
    }

    #[test]
    fn removing_while_a_renewal_is_under_way_still_removes() {
        let (mut leases, now) = start();
        let id = leases.register(record(1), now);
        let under_way = job(&leases, now).unwrap();
        leases.remove(id, now);
        finish(&mut leases, under_way, Outcome::Done, now);
        assert_eq!(job(&leases, now), Ok(Job::Remove { id, record: record(1) }));
    }
}
