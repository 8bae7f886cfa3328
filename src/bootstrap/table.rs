//! What the server holds. Pure: it is told the time, and every part of it is bounded.

use super::json;
use super::owners::OwnerTable;
use super::{RankRecord, roster};
use crate::ids::{GroupSizes, Instance, Rank, Room};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Replaced instances remembered for each group, so that they cannot come back.
const REPLACED_KEPT: usize = 64;

/// Upper bounds, so that no client can make the server grow without end.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    /// Ranks of all groups.
    pub(super) ranks: usize,
    /// Bytes of all records.
    pub(super) bytes: usize,
    /// Bytes of one record.
    pub(super) record_bytes: usize,
    /// Longest lease; a longer one is shortened.
    pub(super) lease: Duration,
    /// Owners of all groups.
    pub(super) owners: usize,
    /// How long an owner is kept.
    pub(super) owner_age: Duration,
}

/// Groups of leased ranks, and owners of rooms.
#[derive(Debug)]
pub(super) struct Table {
    limits: TableLimits,
    groups: BTreeMap<String, Group>,
    ranks: usize,
    bytes: usize,
    /// No lease ends before; none exists if `None`.
    next_end: Option<Instant>,
    owners: OwnerTable<Instant>,
}

/// Ranks that agree on their sizes; at least one.
#[derive(Debug, Default)]
struct Group {
    ranks: BTreeMap<Rank, Lease>,
    replaced: VecDeque<(Rank, Instance)>,
    /// The answer to a lookup until a rank comes or goes, shared by all who ask.
    answer: Option<Bytes>,
}

#[derive(Debug)]
struct Lease {
    record: RankRecord,
    bytes: usize,
    until: Instant,
}

/// Why the table does not take something.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("no room for more {what}: the limit is {limit}")]
    Full { what: &'static str, limit: usize },
    #[error("rank {rank} is outside its group of {sizes}")]
    Outside { rank: Rank, sizes: GroupSizes },
    #[error("rank {rank} was replaced by instance {by}")]
    Replaced { rank: Rank, by: Instance },
    #[error("rank {rank} announces {announced}, but the group is registered as {registered}")]
    SizesDiffer { rank: Rank, announced: GroupSizes, registered: GroupSizes },
    #[error("{field} has {bytes} bytes, the limit is {limit}")]
    TooLarge { field: &'static str, bytes: usize, limit: usize },
}

impl Table {
    pub(super) fn new(limits: TableLimits) -> Self {
        let owners = OwnerTable::new(limits.owners);
        Self { limits, groups: BTreeMap::new(), ranks: 0, bytes: 0, next_end: None, owners }
    }

    /// Takes or renews the lease of a rank. Doing it again changes nothing but the lease's end.
    pub(super) fn put(&mut self, record: RankRecord, ttl: Duration, now: Instant) -> Result<(), Refusal> {
        self.expire(now);
        let bytes = weight(&record);
        self.check(&record, bytes)?;
        let until = now + ttl.min(self.limits.lease);
        self.next_end = Some(self.next_end.map_or(until, |end| end.min(until)));
        let group = self.groups.entry(record.group.clone()).or_default();
        match group.ranks.get_mut(&record.rank) {
            Some(lease) if lease.record == record => lease.until = until,
            _ => {
                let (rank, instance) = (record.rank, record.instance);
                let old = group.ranks.insert(rank, Lease { record, bytes, until });
                group.answer = None;
                self.bytes += bytes;
                match old {
                    Some(old) => {
                        self.bytes -= old.bytes;
                        if old.record.instance != instance {
                            group.retire(rank, old.record.instance);
                        }
                    }
                    None => self.ranks += 1,
                }
            }
        }
        Ok(())
    }

    /// Ends the lease of a rank, if that instance holds it. A lease that ended already is no error.
    pub(super) fn remove(
        &mut self,
        name: &str,
        rank: Rank,
        instance: Instance,
        now: Instant,
    ) -> Result<(), Refusal> {
        self.expire(now);
        let Some(group) = self.groups.get_mut(name) else { return Ok(()) };
        match group.ranks.get(&rank).map(|lease| lease.record.instance) {
            Some(by) if by != instance => return Err(Refusal::Replaced { rank, by }),
            Some(_) => self.release(|leased, lease| leased == name && lease.record.rank == rank),
            None => {}
        }
        Ok(())
    }

    /// The answer to a lookup.
    pub(super) fn group(&mut self, name: &str, now: Instant) -> Result<Bytes, serde_json::Error> {
        self.expire(now);
        let Some(group) = self.groups.get_mut(name) else {
            return encode(&json::Group::of(&roster::empty()));
        };
        if let Some(answer) = &group.answer {
            return Ok(answer.clone());
        }
        let records: Vec<_> = group.ranks.values().map(|lease| &lease.record).collect();
        let sizes = records.first().map_or(GroupSizes::ONE, |record| record.sizes);
        let answer = encode(&json::Group::of(&roster::state(name, sizes, &records)))?;
        group.answer = Some(answer.clone());
        Ok(answer)
    }

    pub(super) fn publish_owners(&mut self, group: &str, owners: BTreeMap<u64, u32>, now: Instant) {
        for (room, dp) in owners {
            self.owners.insert(group, Room(room), dp, now);
        }
    }

    pub(super) fn owners(&mut self, group: &str, rooms: &[u64], now: Instant) -> BTreeMap<u64, u32> {
        let age = self.limits.owner_age;
        self.owners.forget(|&told| told + age <= now);
        let known = |&room: &u64| Some((room, self.owners.owner(group, Room(room))?));
        rooms.iter().filter_map(known).collect()
    }

    fn check(&self, record: &RankRecord, bytes: usize) -> Result<(), Refusal> {
        let (rank, sizes, limits) = (record.rank, record.sizes, &self.limits);
        if !sizes.holds(rank) {
            return Err(Refusal::Outside { rank, sizes });
        }
        if sizes.ranks() > limits.ranks as u64 {
            return Err(Refusal::Full { what: "ranks", limit: limits.ranks });
        }
        if bytes > limits.record_bytes {
            return Err(Refusal::TooLarge { field: "record", bytes, limit: limits.record_bytes });
        }
        let mut replaced_bytes = 0;
        let mut is_new = true;
        if let Some(group) = self.groups.get(&record.group) {
            // The rank that is replaced has no say in the sizes.
            let other = group.ranks.values().find(|lease| lease.record.rank != rank);
            if let Some(registered) = other.map(|lease| lease.record.sizes).filter(|&other| other != sizes) {
                return Err(Refusal::SizesDiffer { rank, announced: sizes, registered });
            }
            if let Some(lease) = group.ranks.get(&rank) {
                (replaced_bytes, is_new) = (lease.bytes, false);
                if group.replaced.contains(&(rank, record.instance)) {
                    return Err(Refusal::Replaced { rank, by: lease.record.instance });
                }
            }
        }
        if is_new && self.ranks >= limits.ranks {
            return Err(Refusal::Full { what: "ranks", limit: limits.ranks });
        }
        if self.bytes - replaced_bytes + bytes > limits.bytes {
            return Err(Refusal::Full { what: "bytes", limit: limits.bytes });
        }
        Ok(())
    }

    fn expire(&mut self, now: Instant) {
        if self.next_end.is_some_and(|end| end <= now) {
            self.release(|_, lease| lease.until <= now);
            let leases = self.groups.values().flat_map(|group| group.ranks.values());
            self.next_end = leases.map(|lease| lease.until).min();
        }
    }

    /// Forgets the leases that `is_over` picks, and groups left empty.
    fn release(&mut self, is_over: impl Fn(&str, &Lease) -> bool) {
        let Self { groups, ranks, bytes, .. } = self;
        groups.retain(|name, group| {
            let before = group.ranks.len();
            group.ranks.retain(|_, lease| {
                let over = is_over(name, lease);
                *bytes -= if over { lease.bytes } else { 0 };
                !over
            });
            if group.ranks.len() != before {
                *ranks -= before - group.ranks.len();
                group.answer = None;
            }
            !group.ranks.is_empty()
        });
    }
}

impl Group {
    fn retire(&mut self, rank: Rank, instance: Instance) {
        if self.replaced.len() == REPLACED_KEPT {
            self.replaced.pop_front();
        }
        self.replaced.push_back((rank, instance));
    }
}

pub(super) fn encode(body: &impl serde::Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(body).map(Bytes::from)
}

/// Bytes a record takes, entries of its lists included.
fn weight(record: &RankRecord) -> usize {
    let entry = size_of::<(String, Vec<u8>)>();
    let addresses = record.addresses.iter().map(|(name, address)| entry + name.len() + address.len());
    let extra = record.extra.iter().map(|(key, value)| entry + key.len() + value.len());
    size_of::<Lease>() + record.group.len() + addresses.chain(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LayoutDigest;

    const TTL: Duration = Duration::from_secs(10);

    fn table() -> Table {
        Table::new(TableLimits {
            ranks: 8,
            bytes: 100_000,
            record_bytes: 20_000,
            lease: Duration::from_secs(60),
            owners: 4,
            owner_age: Duration::from_secs(120),
        })
    }

    fn record(tp: u32, sizes: u32, instance: u128) -> RankRecord {
        RankRecord::new("p", GroupSizes::tp(sizes), Rank::tp(tp), Instance(instance), LayoutDigest([0; 16]))
    }

    fn look(table: &mut Table, now: Instant) -> serde_json::Value {
        serde_json::from_slice(&table.group("p", now).unwrap()).unwrap()
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends() {
        let (mut table, start) = (table(), super::super::clock::now());
        table.put(record(0, 2, 1), TTL, start).unwrap();
        table.put(record(1, 2, 2), TTL, start).unwrap();
        assert_eq!(look(&mut table, start)["state"], "ready");
        table.put(record(1, 2, 2), TTL, start + TTL / 2).unwrap();
        let answer = look(&mut table, start + TTL);
        assert_eq!((&answer["registered"], &answer["missing"][0]["tp"]), (&1.into(), &0.into()));
        assert_eq!(look(&mut table, start + TTL * 2)["announced"], 0);
        assert_eq!((table.ranks, table.bytes, table.groups.len()), (0, 0, 0));
    }

    #[test]
    fn a_replaced_instance_cannot_come_back() {
        let (mut table, now) = (table(), super::super::clock::now());
        table.put(record(0, 1, 1), TTL, now).unwrap();
        table.put(record(0, 1, 2), TTL, now).unwrap();
        let replaced = Refusal::Replaced { rank: Rank::tp(0), by: Instance(2) };
        assert_eq!(table.put(record(0, 1, 1), TTL, now), Err(replaced.clone()));
        assert_eq!(table.remove("p", Rank::tp(0), Instance(1), now), Err(replaced));
        assert_eq!(look(&mut table, now)["state"], "ready");
        table.remove("p", Rank::tp(0), Instance(2), now).unwrap();
        table.remove("p", Rank::tp(0), Instance(2), now).unwrap();
        assert_eq!((table.ranks, table.bytes), (0, 0));
        // The same process may register again.
        table.put(record(0, 1, 2), TTL, now).unwrap();
    }

    #[test]
    fn sizes_must_agree_among_live_ranks() {
        let (mut table, now) = (table(), super::super::clock::now());
        table.put(record(0, 2, 1), TTL, now).unwrap();
        let refusal = table.put(record(1, 4, 2), TTL, now).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("tp4") && text.contains("tp2"), "{text}");
        // The one rank there is may change its mind, and ended leases do not count.
        table.put(record(0, 4, 1), TTL, now).unwrap();
        table.put(record(1, 2, 2), TTL, now + TTL).unwrap();
        assert!(matches!(table.put(record(2, 2, 2), TTL, now + TTL), Err(Refusal::Outside { .. })));
        assert!(matches!(table.put(record(0, 0, 2), TTL, now + TTL), Err(Refusal::Outside { .. })));
    }

    #[test]
    fn nothing_grows_past_its_limit() {
        let (mut table, now) = (table(), super::super::clock::now());
        let too_many = record(0, u32::MAX, 1);
        assert!(matches!(table.put(too_many, TTL, now), Err(Refusal::Full { what: "ranks", .. })));
        let large = record(0, 8, 1).address("tcp", vec![0; 20_000]);
        assert!(matches!(table.put(large, TTL, now), Err(Refusal::TooLarge { .. })));
        for tp in 0..8 {
            let result = table.put(record(tp, 8, 1).address("tcp", vec![0; 15_000]), TTL, now);
            assert_eq!(result.is_ok(), tp < 6, "rank {tp}");
        }
        // Replacing frees what it replaces.
        table.put(record(5, 8, 2).address("tcp", vec![0; 16_000]), TTL, now).unwrap();
        let mut other = record(0, 1, 1);
        for name in 0..3 {
            other.group = name.to_string();
            assert_eq!(table.put(other.clone(), TTL, now).is_ok(), name < 2, "group {name}");
        }
        table.publish_owners("p", (0..10).map(|room| (room, 1)).collect(), now);
        let rooms: Vec<_> = (0..10).collect();
        assert_eq!(table.owners("p", &rooms, now).into_keys().collect::<Vec<_>>(), [6, 7, 8, 9]);
        assert!(table.owners("p", &rooms, now + Duration::from_secs(120)).is_empty());
    }
}
