//! The change feed.

use super::changes::Feed;
use super::publishing::{fail, slot, succeed};
use crate::poll::{KVPoll, Release};
use crate::sync::sleep;
use crate::{check, check_most};
use loom::thread;
use std::sync::Arc;

fn feed() -> Arc<Feed> {
    let feed = Arc::new(Feed::new().unwrap());
    feed.fd(); // from now on somebody reads
    feed
}

#[test]
fn no_change_is_lost_and_none_is_told_twice() {
    check_most(4, || {
        let (feed, slot) = (feed(), slot());
        let engine = thread::spawn({
            let (feed, slot) = (Arc::clone(&feed), Arc::clone(&slot));
            move || {
                for release in [Release::Draining, Release::Safe] {
                    assert!(fail(&slot, release));
                    feed.note(&slot);
                }
            }
        });
        let mut told = Vec::new();
        while told.last().is_none_or(|change: &super::changes::Change| change.release != Release::Safe) {
            sleep(feed.fd());
            feed.drain(&mut told);
        }
        engine.join().unwrap();
        assert_eq!(feed.drain(&mut told), 0, "told already: {told:?}");
        assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{told:?}");
    });
}

#[test]
fn rooms_that_change_at_once_are_all_told() {
    check(|| {
        let (feed, slots) = (feed(), [slot(), slot()]);
        let engine = thread::spawn({
            let (feed, slots) = (Arc::clone(&feed), slots.clone());
            move || {
                for slot in &slots {
                    succeed(slot);
                    feed.note(slot);
                }
            }
        });
        let mut told = Vec::new();
        while told.len() < slots.len() {
            sleep(feed.fd());
            feed.drain(&mut told);
        }
        assert!(told.iter().all(|change| change.state == KVPoll::Success));
        engine.join().unwrap();
    });
}
