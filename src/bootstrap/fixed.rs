//! A directory that is a table in this process.

use super::owners::OwnerTable;
use super::{Directory, GroupState, RankRecord, Registration, RegistrationState, roster};
use crate::home::Home;
use crate::ids::{Rank, Room};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Owners of rooms kept; the oldest are forgotten first.
const OWNERS: usize = 65_536;

/// A directory given by the caller: for one process, for fixed clusters and for tests. Clones share the table.
///
/// # Examples
/// ```
/// use kvferry::bootstrap::{Directory, FixedDirectory, GroupState, RankRecord};
/// use kvferry::layout::LayoutDigest;
/// use kvferry::{GroupSizes, Instance, Rank};
///
/// let record = RankRecord::new("prefill", GroupSizes::ONE, Rank::tp(0), Instance(7), LayoutDigest([0; 16]));
/// let directory = FixedDirectory::new().rank(record.address("tcp", *b"..."));
/// assert!(matches!(directory.group("prefill"), GroupState::Ready(_)));
/// ```
#[derive(Clone)]
pub struct FixedDirectory(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    watchers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
}

struct Table {
    groups: BTreeMap<String, BTreeMap<Rank, Entry>>,
    owners: OwnerTable<()>,
    next: u64,
}

struct Entry {
    id: u64,
    record: RankRecord,
}

struct FixedRegistration {
    home: Home,
    shared: Arc<Shared>,
    group: String,
    rank: Rank,
    id: u64,
}

impl FixedDirectory {
    /// An empty table.
    pub fn new() -> Self {
        let table = Table { groups: BTreeMap::new(), owners: OwnerTable::new(OWNERS), next: 0 };
        Self(Arc::new(Shared { table: Mutex::new(table), watchers: Mutex::default() }))
    }

    /// Adds a rank for good.
    #[must_use]
    pub fn rank(self, record: RankRecord) -> Self {
        self.0.insert(record);
        self
    }

    /// Adds the owner of a room.
    #[must_use]
    pub fn room(self, group: &str, room: Room, dp: u32) -> Self {
        self.publish_owner(group, room, dp);
        self
    }
}

impl Default for FixedDirectory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory for FixedDirectory {
    fn register(&self, record: RankRecord) -> Box<dyn Registration> {
        let (group, rank) = (record.group.clone(), record.rank);
        let id = self.0.insert(record);
        Box::new(FixedRegistration { home: Home::here(), shared: Arc::clone(&self.0), group, rank, id })
    }

    fn group(&self, name: &str) -> GroupState {
        let table = self.0.table.lock();
        let records: Vec<_> = table.groups.get(name).into_iter().flatten().map(|(_, e)| &e.record).collect();
        let Some(first) = records.first() else { return roster::empty() };
        // Sizes that differ show as an error that names both.
        let odd =
            records.iter().find(|record| record.sizes != first.sizes || !record.sizes.holds(record.rank));
        match odd {
            None => roster::state(name, first.sizes, &records),
            Some(odd) => GroupState::Unreachable {
                detail: match odd.sizes == first.sizes {
                    true => super::RosterError::Outside { rank: odd.rank, sizes: odd.sizes },
                    false => super::RosterError::Sizes {
                        rank: odd.rank,
                        announced: odd.sizes,
                        registered: first.sizes,
                    },
                }
                .to_string(),
            },
        }
    }

    /// Does nothing: the table is what is true.
    fn invalidate(&self, _name: &str) {}

    fn publish_owner(&self, group: &str, room: Room, dp: u32) {
        self.0.table.lock().owners.insert(group, room, dp, ());
        self.0.wake();
    }

    fn owner(&self, group: &str, room: Room) -> Option<u32> {
        self.0.table.lock().owners.owner(group, room)
    }

    fn watch(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.0.watchers.lock().push(wake);
    }
}

impl Registration for FixedRegistration {
    fn state(&self) -> RegistrationState {
        match self.is_current() {
            true => RegistrationState::Published,
            false => RegistrationState::Refused { detail: format!("rank {} was registered anew", self.rank) },
        }
    }
}

impl FixedRegistration {
    fn is_current(&self) -> bool {
        let table = self.shared.table.lock();
        let entry = table.groups.get(&self.group).and_then(|group| group.get(&self.rank));
        entry.is_some_and(|entry| entry.id == self.id)
    }
}

impl Shared {
    fn insert(&self, record: RankRecord) -> u64 {
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        let group = table.groups.entry(record.group.clone()).or_default();
        group.insert(record.rank, Entry { id, record });
        drop(table);
        self.wake();
        id
    }

    fn wake(&self) {
        // Copied, so that a watcher may call the directory.
        let watchers = self.watchers.lock().clone();
        for wake in watchers {
            wake();
        }
    }
}

impl Drop for FixedRegistration {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        let mut table = self.shared.table.lock();
        if let Some(group) = table.groups.get_mut(&self.group)
            && group.get(&self.rank).is_some_and(|entry| entry.id == self.id)
        {
            group.remove(&self.rank);
            if group.is_empty() {
                table.groups.remove(&self.group);
            }
            drop(table);
            self.shared.wake();
        }
    }
}

impl fmt::Debug for FixedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.0.table.lock();
        let (groups, owners) = (table.groups.len(), table.owners.len());
        f.debug_struct("FixedDirectory").field("groups", &groups).field("owners", &owners).finish()
    }
}

impl fmt::Debug for FixedRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedRegistration").field("group", &self.group).field("rank", &self.rank).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{GroupSizes, Instance};
    use crate::layout::LayoutDigest;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn record(tp: u32, sizes: u32, instance: u128) -> RankRecord {
        RankRecord::new("p", GroupSizes::tp(sizes), Rank::tp(tp), Instance(instance), LayoutDigest([0; 16]))
    }

    #[test]
    fn a_group_is_ready_once_all_announced_ranks_are_in() {
        let directory = FixedDirectory::new();
        assert_eq!(directory.group("p"), roster::empty());
        let woken = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&woken);
        directory.watch(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let first = directory.register(record(1, 2, 1));
        let GroupState::NotReady { registered: 1, announced: 2, missing } = directory.group("p") else {
            panic!("not ready expected")
        };
        assert_eq!(missing, [Rank::tp(0)]);
        let _second = directory.register(record(0, 2, 2));
        let GroupState::Ready(info) = directory.group("p") else { panic!("ready expected") };
        assert_eq!(info.ranks.iter().map(|record| record.rank.tp).collect::<Vec<_>>(), [0, 1]);
        drop(first);
        assert!(matches!(directory.group("p"), GroupState::NotReady { registered: 1, .. }));
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_replaced_registration_removes_nothing() {
        let directory = FixedDirectory::new();
        let old = directory.register(record(0, 1, 1));
        let new = directory.register(record(0, 1, 2));
        assert!(matches!(old.state(), RegistrationState::Refused { .. }));
        drop(old);
        let GroupState::Ready(info) = directory.group("p") else { panic!("ready expected") };
        assert_eq!(info.ranks[0].instance, Instance(2));
        assert_eq!(new.state(), RegistrationState::Published);
    }

    #[test]
    fn differing_sizes_are_named() {
        let directory = FixedDirectory::new().rank(record(0, 2, 1)).rank(record(1, 4, 2));
        let GroupState::Unreachable { detail } = directory.group("p") else { panic!("refusal expected") };
        assert!(detail.contains("tp4") && detail.contains("tp2"), "{detail}");
    }

    #[test]
    fn owners_are_found_by_group_and_room() {
        let directory = FixedDirectory::new().room("p", Room(u64::MAX), 3);
        assert_eq!(directory.owner("p", Room(u64::MAX)), Some(3));
        assert_eq!(directory.owner("q", Room(u64::MAX)), None);
    }
}
