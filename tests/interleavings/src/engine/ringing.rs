//! What is left for a driver that is about to sleep.

use super::inbox::Inbox;
use crate::sync::{AtomicBool, Ordering, sleep};
use crate::transport::Wait;
use crate::{check, check_most};
use loom::thread;
use std::sync::Arc;

/// Drives until `look` has found what it waits for.
fn drive<C>(inbox: &Inbox<C>, mut look: impl FnMut() -> bool) {
    while !look() {
        if inbox.arm() == Wait::Ready {
            sleep(inbox.fd());
        }
    }
}

fn inbox() -> Arc<Inbox<u32>> {
    Arc::new(Inbox::new().unwrap())
}

#[test]
fn a_command_never_waits_for_a_sleeping_driver() {
    check_most(5, || {
        let inbox = inbox();
        let handle = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || (0..2).for_each(|number| inbox.command(number))
        });
        let mut next = 0;
        drive(&inbox, || {
            while let Some(number) = inbox.pop_command() {
                assert_eq!(number, next, "order of one handle");
                next += 1;
            }
            next == 2
        });
        handle.join().unwrap();
    });
}

#[test]
fn commands_of_two_handles_both_arrive() {
    check_most(3, || {
        let inbox = inbox();
        let handles = [1, 2].map(|number| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || inbox.command(number))
        });
        let mut sum = 0;
        drive(&inbox, || {
            while let Some(number) = inbox.pop_command() {
                sum += number;
            }
            sum == 3
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn news_of_the_directory_never_wait_for_a_sleeping_driver() {
    check(|| {
        let inbox = inbox();
        let watcher = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || inbox.note_directory()
        });
        drive(&inbox, || inbox.take_directory());
        watcher.join().unwrap();
    });
}

#[test]
fn a_nudge_never_waits_for_a_sleeping_driver() {
    check(|| {
        let (inbox, is_ready) = (inbox(), Arc::new(AtomicBool::new(false)));
        let owner = thread::spawn({
            let (inbox, is_ready) = (Arc::clone(&inbox), Arc::clone(&is_ready));
            move || {
                is_ready.store(true, Ordering::Relaxed);
                inbox.nudge();
            }
        });
        drive(&inbox, || {
            inbox.take_nudge();
            is_ready.load(Ordering::Relaxed)
        });
        owner.join().unwrap();
    });
}
