//! Which data parallel rank owns a room: a bounded table that forgets the oldest first.

use crate::ids::Room;
use std::collections::{HashMap, VecDeque};

/// Owners of rooms, at most `capacity`, each with a stamp of type `S` from when it was last told.
#[derive(Debug)]
pub(super) struct OwnerTable<S> {
    capacity: usize,
    next: u64,
    owners: HashMap<(String, Room), Owner>,
    /// Every entry of `owners` by age, among entries told again since.
    order: VecDeque<((String, Room), u64, S)>,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    dp: u32,
    /// The number its entry in `order` carries.
    told: u64,
}

impl<S> OwnerTable<S> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, next: 0, owners: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, group: &str, room: Room, dp: u32, stamp: S) {
        let key = (group.to_owned(), room);
        let told = self.next;
        self.next += 1;
        self.owners.insert(key.clone(), Owner { dp, told });
        self.order.push_back((key, told, stamp));
        while self.owners.len() > self.capacity {
            self.forget_oldest();
        }
        if self.order.len() / 2 > self.capacity {
            let owners = &self.owners;
            self.order.retain(|(key, told, _)| owners.get(key).is_some_and(|owner| owner.told == *told));
        }
    }

    /// Forgets entries for whose stamp `is_old` says so, from the oldest on.
    #[cfg(any(test, feature = "bootstrap"))]
    pub(super) fn forget(&mut self, is_old: impl Fn(&S) -> bool) {
        while self.order.front().is_some_and(|(_, _, stamp)| is_old(stamp)) {
            self.forget_oldest();
        }
    }

    pub(super) fn owner(&self, group: &str, room: Room) -> Option<u32> {
        self.owners.get(&(group.to_owned(), room)).map(|owner| owner.dp)
    }

    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    fn forget_oldest(&mut self) {
        if let Some((key, told, _)) = self.order.pop_front()
            && self.owners.get(&key).is_some_and(|owner| owner.told == told)
        {
            self.owners.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut table = OwnerTable::new(2);
        table.insert("p", Room(1), 1, 10);
        table.insert("p", Room(2), 2, 11);
        table.insert("p", Room(1), 3, 12);
        table.insert("p", Room(3), 3, 13);
        assert_eq!([1, 2, 3].map(|room| table.owner("p", Room(room))), [Some(3), None, Some(3)]);
        table.forget(|&stamp| stamp <= 12);
        assert_eq!([1, 2, 3].map(|room| table.owner("p", Room(room))), [None, None, Some(3)]);
    }

    #[test]
    fn telling_the_same_again_takes_no_memory() {
        let mut table = OwnerTable::new(4);
        for stamp in 0..1000 {
            table.insert("p", Room(1), 0, stamp);
        }
        assert!(table.order.len() <= 10);
        assert_eq!(table.len(), 1);
    }
}
