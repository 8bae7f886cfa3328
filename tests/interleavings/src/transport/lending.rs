//! Pages that are taken back while a peer copies from them.

use super::lease::{LEASES, Leases};
use crate::check;
use crate::ids::{Attempt, Generation, GrantId, Room};
use crate::sync::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use std::sync::Arc;

fn grant(room: u64) -> GrantId {
    GrantId { room: Room(room), attempt: Attempt(0), generation: Generation(1) }
}

/// What both processes see: the leases, and a page. Bytes are read and written without any order.
struct Shared {
    words: [AtomicU64; 2],
    page: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { words: [AtomicU64::new(0), AtomicU64::new(0)], page: AtomicU64::new(BEFORE) })
    }
}

const BEFORE: u64 = 1;
const AFTER: u64 = 2;

#[test]
fn what_is_written_after_a_recall_never_counts() {
    check(|| {
        let shared = Shared::new();
        let mut leases = Leases::default();
        let lease = leases.take(&shared.words, grant(1)).unwrap();
        let copier = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if !lease.holds(&shared.words) {
                    return None;
                }
                let copied = shared.page.load(Relaxed);
                lease.still_holds(&shared.words).then_some(copied)
            }
        });
        leases.recall(&shared.words, grant(1));
        shared.page.store(AFTER, Relaxed);
        let counted = copier.join().unwrap();
        assert!(counted.is_none_or(|copied| copied == BEFORE), "bytes of the next owner were counted");
    });
}

#[test]
fn an_end_of_the_link_takes_everything_back() {
    check(|| {
        let shared = Shared::new();
        let mut leases = Leases::default();
        let lent = [1, 2].map(|room| leases.take(&shared.words, grant(room)).unwrap());
        let copier = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let copied = shared.page.load(Relaxed);
                lent[1].still_holds(&shared.words).then_some(copied)
            }
        });
        leases.recall_all(&shared.words);
        shared.page.store(AFTER, Relaxed);
        assert!(copier.join().unwrap().is_none_or(|copied| copied == BEFORE));
        assert!(lent.iter().all(|lease| !lease.holds(&shared.words)));
    });
}

#[test]
fn a_lease_serves_one_grant_at_a_time_and_later_ones_are_not_recalled_with_it() {
    check(|| {
        let shared = Shared::new();
        let mut leases = Leases::default();
        let first = leases.take(&shared.words, grant(1)).unwrap();
        assert_eq!(leases.take(&shared.words, grant(1)), Some(first));
        let other = leases.take(&shared.words, grant(2)).unwrap();
        assert_ne!(other.slot, first.slot);
        assert_eq!(leases.take(&shared.words, grant(3)), None, "there are two");
        leases.recall(&shared.words, grant(1));
        assert!(!first.holds(&shared.words) && other.holds(&shared.words));
        (0..2).for_each(|_| leases.give_back(grant(1)));
        let next = leases.take(&shared.words, grant(3)).unwrap();
        assert_eq!(next.slot, first.slot);
        assert!(next.holds(&shared.words) && !first.holds(&shared.words));
        assert!(LEASES > shared.words.len());
    });
}
