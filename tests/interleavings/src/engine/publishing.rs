//! What a handle sees of its room while the engine publishes.

use super::slot::{Details, Slot};
use crate::error::{ErrorKind, Fault, KVTransferError, Moment, Origin};
use crate::ids::{Generation, Instance, Party, Rank, Room, Side};
use crate::poll::{KVPoll, Release};
use crate::sync::{AtomicU32, Ordering, block_on};
use crate::{check, check_most};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn slot() -> Arc<Slot> {
    Slot::new(Side::Decode, Room(1), Generation(1), 7)
}

pub(super) fn error() -> KVTransferError {
    let moment = Moment { room: Room(1), state: KVPoll::Transferring, elapsed: Duration::ZERO };
    let party = Party { side: Side::Decode, rank: Rank::default(), instance: Instance(1) };
    Fault::new(ErrorKind::Internal, "test").at(moment, Origin::Local(party))
}

pub(super) fn succeed(slot: &Slot) -> bool {
    let details = Details { payloads: vec![(Rank::default(), "end".into())], ..Details::default() };
    slot.publish(KVPoll::Success, Release::Safe, None, 40, Some(details))
}

pub(super) fn fail(slot: &Slot, release: Release) -> bool {
    slot.publish(KVPoll::Failed, release, Some(&error()), 0, None)
}

pub(super) fn wake(slot: &Slot) {
    slot.take_wakers().into_iter().for_each(std::task::Waker::wake);
}

#[test]
fn success_is_never_seen_before_safe_tokens_and_details() {
    check(|| {
        let slot = slot();
        let engine = thread::spawn({
            let slot = Arc::clone(&slot);
            move || succeed(&slot)
        });
        if slot.poll() == KVPoll::Success {
            assert_eq!(slot.release(), Release::Safe);
            assert_eq!(slot.ready_tokens(), 40);
            assert_eq!(slot.details(|details| details.payloads.len()), 1);
        }
        assert!(engine.join().unwrap(), "a change");
    });
}

#[test]
fn bytes_are_visible_to_whoever_sees_their_tokens_or_that_they_are_safe() {
    check(|| {
        let (page, slot) = (Arc::new(AtomicU32::new(0)), slot());
        let engine = thread::spawn({
            let (page, slot) = (Arc::clone(&page), Arc::clone(&slot));
            move || {
                page.store(1, Ordering::Relaxed);
                slot.publish(KVPoll::Transferring, Release::Held, None, 40, None);
                page.store(2, Ordering::Relaxed);
                slot.publish(KVPoll::Failed, Release::Safe, Some(&error()), 40, None);
            }
        });
        if slot.release() == Release::Safe {
            assert_eq!(page.load(Ordering::Relaxed), 2);
        } else if slot.ready_tokens() == 40 {
            assert_ne!(page.load(Ordering::Relaxed), 0);
        }
        engine.join().unwrap();
    });
}

#[test]
fn failed_is_never_seen_without_its_error() {
    check(|| {
        let slot = slot();
        let engine = thread::spawn({
            let slot = Arc::clone(&slot);
            move || fail(&slot, Release::Draining)
        });
        if slot.poll() == KVPoll::Failed {
            assert_ne!(slot.release(), Release::Held);
            assert!(slot.error().is_some());
        }
        engine.join().unwrap();
    });
}

#[test]
fn whoever_waits_for_the_end_is_woken() {
    check(|| {
        let slot = slot();
        let engine = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                for release in [Release::Draining, Release::Safe] {
                    assert!(fail(&slot, release));
                    wake(&slot);
                }
            }
        });
        block_on(slot.wait_for(|slot| slot.is_over().then_some(())));
        engine.join().unwrap();
    });
}

#[test]
fn two_who_wait_are_both_woken() {
    check_most(4, || {
        let slot = slot();
        let waiter = thread::spawn({
            let slot = Arc::clone(&slot);
            move || block_on(slot.wait_for(|slot| slot.is_over().then_some(())))
        });
        let engine = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                succeed(&slot);
                wake(&slot);
            }
        });
        block_on(slot.wait_for(|slot| (slot.poll() == KVPoll::Success).then_some(())));
        waiter.join().unwrap();
        engine.join().unwrap();
    });
}
