//! Messages for a reader that is about to sleep.

use super::Wait;
use super::mailbox::Mailbox;
use crate::check_most;
use crate::sync::sleep;
use loom::thread;
use std::sync::Arc;

fn read(mailbox: &Mailbox<u32>, wanted: u32) {
    let mut got = 0;
    while got < wanted {
        if mailbox.arm() == Wait::Ready {
            sleep(mailbox.bell());
            mailbox.silence();
        }
        while mailbox.pop().is_some() {
            got += 1;
        }
    }
}

#[test]
fn a_sleeping_reader_gets_every_message() {
    check_most(5, || {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let writer = thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || (0..2).for_each(|number| mailbox.push(number))
        });
        read(&mailbox, 2);
        writer.join().unwrap();
    });
}

#[test]
fn messages_of_two_writers_all_arrive() {
    check_most(3, || {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let writers = [1, 2].map(|number| {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.push(number))
        });
        read(&mailbox, 2);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}
