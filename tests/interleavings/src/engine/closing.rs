//! An engine that ends while handles are made and drivers sleep.

use super::inbox::Inbox;
use super::live::Live;
use super::publishing::{fail, slot, wake};
use super::usage::UsageError;
use crate::check;
use crate::ids::{Room, Side};
use crate::poll::{KVPoll, Release};
use crate::sync::sleep;
use crate::transport::Wait;
use loom::thread;
use std::sync::Arc;

#[test]
fn closing_is_never_slept_through() {
    check(|| {
        let (live, inbox) = (Arc::new(Live::default()), Arc::new(Inbox::<()>::new().unwrap()));
        let closer = thread::spawn({
            let (live, inbox) = (Arc::clone(&live), Arc::clone(&inbox));
            move || {
                live.close();
                inbox.ring();
            }
        });
        while !live.is_closing() {
            if inbox.arm() == Wait::Ready && !live.is_closing() {
                sleep(inbox.fd());
            }
        }
        closer.join().unwrap();
    });
}

#[test]
fn a_handle_made_while_the_engine_gives_up_does_not_wait_for_ever() {
    check(|| {
        let live = Arc::new(Live::default());
        let handle = thread::spawn({
            let live = Arc::clone(&live);
            move || match live.claim((Side::Decode, Room(1)), 1, || Ok((slot(), ()))) {
                Ok((slot, ())) => {
                    let ended = |slot: &super::slot::Slot| slot.poll().is_terminal().then(|| slot.poll());
                    assert_eq!(crate::sync::block_on(slot.wait_for(ended)), KVPoll::Failed);
                }
                Err(error) => assert!(matches!(error, UsageError::Closed)),
            }
        });
        live.close();
        for slot in live.all() {
            fail(&slot, Release::Draining);
            wake(&slot);
        }
        handle.join().unwrap();
    });
}

#[test]
fn a_room_has_one_handle() {
    check(|| {
        let live = Arc::new(Live::default());
        let claim = |live: &Live| live.claim((Side::Decode, Room(1)), 2, || Ok((slot(), ()))).is_ok();
        let other = thread::spawn({
            let live = Arc::clone(&live);
            move || claim(&live)
        });
        let own = claim(&live);
        assert_ne!(own, other.join().unwrap());
        assert_eq!(live.len(), 1);
    });
}
