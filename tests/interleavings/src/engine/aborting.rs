//! A handle that asks for the end of its room.

use super::inbox::Inbox;
use super::slot::Slot;
use crate::ids::{Generation, Room, Side};
use crate::sync::sleep;
use crate::transport::Wait;
use crate::{check, check_most};
use loom::thread;
use std::sync::Arc;

/// The driver's turns, until the room of `slot` was aborted: commands (one opens it), then wishes.
fn drive_to_the_end(inbox: &Inbox<()>, slot: &Slot, mut is_open: bool) {
    loop {
        while let Some(()) = inbox.pop_command() {
            is_open = true;
            if slot.wants_abort() {
                return;
            }
        }
        while let Some(wish) = inbox.pop_wish() {
            if is_open && wish.wants_abort() {
                return;
            }
        }
        if inbox.arm() == Wait::Ready {
            sleep(inbox.fd());
        }
    }
}

fn abort(inbox: &Inbox<()>, slot: &Arc<Slot>) {
    slot.abort_detail.lock().get_or_insert_with(|| "not wanted".into());
    inbox.look_at(slot, slot.wish_abort());
}

fn room() -> (Arc<Inbox<()>>, Arc<Slot>) {
    (Arc::new(Inbox::new().unwrap()), Slot::new(Side::Prefill, Room(1), Generation(0), 0))
}

#[test]
fn an_abort_is_never_lost() {
    check(|| {
        let (inbox, slot) = room();
        let handle = thread::spawn({
            let (inbox, slot) = (Arc::clone(&inbox), Arc::clone(&slot));
            move || abort(&inbox, &slot)
        });
        drive_to_the_end(&inbox, &slot, true);
        assert!(slot.abort_detail.lock().is_some(), "the detail comes with the abort");
        handle.join().unwrap();
    });
}

#[test]
fn two_who_abort_at_once_end_the_room() {
    check_most(3, || {
        let (inbox, slot) = room();
        let handles = [(), ()].map(|()| {
            let (inbox, slot) = (Arc::clone(&inbox), Arc::clone(&slot));
            thread::spawn(move || abort(&inbox, &slot))
        });
        drive_to_the_end(&inbox, &slot, true);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn an_abort_before_the_room_is_open_ends_it_when_it_opens() {
    check_most(4, || {
        let (inbox, slot) = room();
        let handle = thread::spawn({
            let (inbox, slot) = (Arc::clone(&inbox), Arc::clone(&slot));
            move || {
                inbox.command(());
                abort(&inbox, &slot);
            }
        });
        drive_to_the_end(&inbox, &slot, false);
        handle.join().unwrap();
    });
}
