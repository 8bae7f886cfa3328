//! A grant that is revoked while lanes apply writes under it.

use super::grants::{Begin, Grants, Revoking};
use crate::check;
use crate::ids::{Attempt, Generation, GrantId, OpId, Room};
use crate::layout::Admission;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

const GRANT: GrantId = GrantId { room: Room(1), attempt: Attempt(0), generation: Generation(1) };

/// Counters outside the model: they order nothing.
#[derive(Default)]
struct World {
    grants: Grants,
    inside: AtomicU32,
    is_revoking: AtomicBool,
    revoked: AtomicU32,
}

impl World {
    fn admitted() -> Arc<Self> {
        let world = Self::default();
        world.grants.admit(GRANT, Arc::new(Admission));
        Arc::new(world)
    }

    fn apply(&self) {
        if self.grants.enter(GRANT) {
            assert!(!self.is_revoking.load(SeqCst), "begun after the revocation");
            self.inside.fetch_add(1, SeqCst);
            self.grants.is_admitted(GRANT); // a place where others may run
            self.inside.fetch_sub(1, SeqCst);
            self.done(self.grants.leave(GRANT));
        }
    }

    fn done(&self, revokes: u32) {
        if revokes > 0 {
            assert_eq!(self.inside.load(SeqCst), 0, "somebody still moves bytes");
            self.revoked.fetch_add(revokes, SeqCst);
        }
    }
}

#[test]
fn a_revocation_is_done_once_and_when_nobody_applies() {
    check(|| {
        let world = World::admitted();
        let lanes = [(), ()].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.apply())
        });
        let revoking = world.grants.revoke(GRANT);
        world.is_revoking.store(true, SeqCst);
        world.done(u32::from(revoking == Revoking::Done));
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        assert_eq!(world.revoked.load(SeqCst), 1);
        assert!(!world.grants.enter(GRANT), "revoked for good");
    });
}

#[test]
fn a_write_that_comes_twice_is_applied_once() {
    check(|| {
        let world = World::admitted();
        let begin = |world: &World| matches!(world.grants.begin(GRANT, OpId(0)), Ok(Begin::Apply(_)));
        let other = thread::spawn({
            let world = Arc::clone(&world);
            move || begin(&world)
        });
        let own = begin(&world);
        assert_ne!(own, other.join().unwrap());
    });
}
