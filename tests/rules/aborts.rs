//! Requests that are given up, on either side and at every moment, and what everybody is told.

use crate::calls::{
    ROOM, abort, both, chunk, fails, finish, grant, holds, ms, receiver, sender, start, world,
};
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::{ErrorKind, KVPoll, Release};

/// Two of each side, all connected to all, in the middle of many writes.
fn crowd(model: Model, seed: u64) -> World {
    let mut setup = Setup::new(model, 2, 2);
    (setup.late, setup.doubled) = (5, 10);
    let mut world = World::new(start(), seed, setup);
    world.trace();
    for node in 0..2 {
        world.call(sender(node)).call(chunk(node, 0..6));
        world.after(ms(30), chunk(node, 6..12)).after(ms(60), finish(node, 12));
    }
    for node in 2..4 {
        world.call(receiver(node, 2, 2)).after(ms(10), grant(node, 0..12));
    }
    world
}

/// Whoever gives up, and whenever: pages come back, and all ranks that fail name the same origin.
#[test]
fn everybody_names_the_one_who_gave_up() {
    let (mut failed, mut succeeded) = (0, 0);
    for model in both() {
        for node in 0..4 {
            for at in 0..60 {
                let mut world = crowd(model, at);
                world.after(ms(140), Call::Abort { node: 9 % 4, room: kvferry::Room(1) }); // nobody's
                world.run_for(ms(2 * at + 8)).expect("rules hold");
                world.call(abort(node));
                holds(&mut world);
                for other in 0..4 {
                    assert_eq!(world.release(other, ROOM), Some(Release::Safe));
                    let Some(error) = world.error(other, ROOM) else {
                        succeeded += 1;
                        continue;
                    };
                    failed += 1;
                    // A sender that nobody could join has its own reason.
                    assert_eq!(error.kind, ErrorKind::Aborted, "{error}\n{}", world.log().join("\n"));
                    assert_eq!(error.party(), world.party(node));
                    assert!(error.detail.contains("gave up"));
                }
            }
        }
    }
    assert!(failed > 500 && succeeded > 100, "{failed} failed, {succeeded} succeeded");
}

#[test]
fn a_receiver_gives_up_before_any_grant() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 2));
        world.call(sender(0)).call(receiver(1, 2, 1)).call(receiver(2, 2, 1)).call(grant(2, 0..4));
        world.run_for(ms(400)).expect("rules hold");
        world.call(abort(1));
        world.run_for(ms(400)).expect("rules hold");
        crate::calls::fails_already(&world, 0..3, ErrorKind::Aborted, 1);
        holds(&mut world);
    }
}

#[test]
fn a_sender_that_failed_before_the_join_answers_it() {
    for model in both() {
        for drop in [false, true] {
            let mut world = world(Setup::new(model, 1, 1));
            world.call(sender(0)).call(abort(0));
            if drop {
                world.call(Call::Drop { node: 0, room: ROOM });
            }
            world.call(receiver(1, 1, 1)).call(grant(1, 0..4));
            world.run_for(ms(400)).expect("rules hold");
            crate::calls::fails_already(&world, 1..2, ErrorKind::Aborted, 0);
            holds(&mut world);
        }
    }
}

#[test]
fn a_receiver_that_gave_up_early_fails_the_sender_that_comes_late() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 1));
        world.call(receiver(1, 1, 1)).call(grant(1, 0..4));
        world.run_for(ms(200)).expect("rules hold");
        world.call(abort(1));
        world.run_for(ms(200)).expect("rules hold");
        assert_eq!(world.release(1, ROOM), Some(Release::Safe), "quiet came from a node without a sender");
        world.call(sender(0)).call(chunk(0, 0..4)).call(finish(0, 4));
        fails(&mut world, 0..2, ErrorKind::Aborted, 1);
    }
}

#[test]
fn a_rejected_room_fails_who_waits_and_who_comes() {
    for early in [false, true] {
        let mut world = world(Setup::new(Model::TwoSided, 1, 2));
        let reject = Call::Reject { node: 0, room: ROOM, attempt: 0 };
        if early {
            world.call(reject.clone());
        }
        world.call(receiver(1, 2, 1)).call(grant(1, 0..4));
        world.run_for(ms(300)).expect("rules hold");
        world.call(reject).call(receiver(2, 2, 1));
        world.run_for(ms(300)).expect("rules hold");
        crate::calls::fails_already(&world, 1..3, ErrorKind::Rejected, 0);
        holds(&mut world);
    }
}

#[test]
fn writes_under_way_hold_the_pages_of_both_sides() {
    let mut setup = Setup::new(Model::OneSided, 1, 1);
    setup.late = 100;
    setup.deadlines.drain = ms(5000);
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..4)).call(chunk(0, 0..4));
    world
        .run_until(|world| world.steps() > 10 && world.state(0, ROOM) == Some(KVPoll::Transferring))
        .unwrap();
    world.run_for(ms(100)).unwrap();
    world.call(abort(1));
    world.run_for(ms(60)).unwrap();
    assert_eq!(world.state(0, ROOM), Some(KVPoll::Failed));
    assert_eq!(world.release(0, ROOM), Some(Release::Draining));
    assert_eq!(world.release(1, ROOM), Some(Release::Draining));
    holds(&mut world);
    assert_eq!(world.release(1, ROOM), Some(Release::Safe));
}

#[test]
fn the_receiver_of_a_two_sided_link_needs_no_word_of_the_sender() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..12)).call(chunk(0, 0..12));
    world.run_until(|world| world.landings() > 2).unwrap();
    world.call(Call::Freeze { node: 0, time: ms(60_000) }).call(abort(1));
    world.run_until(|world| world.release(1, ROOM) == Some(Release::Safe)).unwrap();
    assert!(world.elapsed() < ms(1000), "released after {:?}", world.elapsed());
}

#[test]
fn a_late_abort_of_a_finished_receiver_is_answered_and_changes_nothing() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 1));
        world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..4));
        world.call(chunk(0, 0..4)).call(finish(0, 4));
        crate::calls::succeeds(&mut world, 0..2);
        let strays = world.strays();
        world.call(abort(1)).call(abort(0)); // refused: it is over
        crate::calls::succeeds(&mut world, 0..2);
        assert_eq!(world.strays(), strays);
    }
}

#[test]
fn a_write_that_arrives_damaged_again_and_again_fails_the_room() {
    let mut setup = Setup::new(Model::TwoSided, 1, 1);
    (setup.damaged, setup.retransmits) = (100, 2);
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..4));
    world.call(chunk(0, 0..4)).call(finish(0, 4));
    fails(&mut world, 0..2, ErrorKind::Corrupted, 0);
    assert!(world.error(1, ROOM).unwrap().detail.contains("damaged 3 times"));
}

#[test]
fn tokens_that_do_not_meet_fail_before_any_byte_moves() {
    for model in both() {
        for (lent, first, total) in [(0..8, 0, 7), (0..8, 0, 9), (2..8, 3, 8)] {
            let mut world = world(Setup::new(model, 1, 1));
            world.call(sender(0)).call(chunk(0, first..total)).call(finish(0, total));
            world.call(receiver(1, 1, 1)).call(grant(1, lent));
            fails(&mut world, 0..2, ErrorKind::Layout, 0);
            assert_eq!(world.landings(), 0);
        }
        let mut world = world(Setup::new(model, 1, 1));
        world.call(sender(0)).call(Call::Offer { node: 0, room: ROOM, tokens: Some(7) });
        world.call(receiver(1, 1, 1)).call(grant(1, 0..8));
        fails(&mut world, 0..2, ErrorKind::Layout, 0);
    }
}
