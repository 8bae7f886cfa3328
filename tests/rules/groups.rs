//! Groups of ranks: one that fails, ranks that disagree, processes that start anew.

use crate::calls::{
    ROOM, abort, both, chunk, closes, fails, finish, grant, holds, ms, receiver, sender, start, whole,
};
use kvferry::layout::Share;
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::{ErrorKind, KVPoll, Release, Room};

/// Of eight ranks one gives up: all say the same, and only that one says it of itself.
#[test]
fn a_rank_of_a_group_of_four_fails_and_all_name_it() {
    let mut ended = 0;
    for model in both() {
        for origin in 0..8 {
            for at in [0, 8, 30, 60, 90] {
                let mut world = World::new(start(), at, Setup::new(model, 4, 4));
                whole(&mut world, 8);
                world.after(ms(at), abort(origin));
                holds(&mut world);
                let errors: Vec<_> = (0..8).filter_map(|node| world.error(node, ROOM)).collect();
                let Some(first) = errors.first() else { continue };
                ended += 1;
                for error in &errors {
                    assert_eq!((error.kind, error.party()), (ErrorKind::Aborted, world.party(origin)));
                    assert_eq!(error.detail, first.detail);
                }
                let own = errors.iter().filter(|error| !error.is_from_another_rank());
                assert_eq!(own.count(), 1);
                closes(&mut world);
            }
        }
    }
    assert!(ended > 40, "{ended}");
}

/// Two senders never speak to each other: the receiver tells the one why the other failed.
#[test]
fn a_cause_reaches_ranks_that_its_origin_never_speaks_to() {
    for model in both() {
        for lends in [false, true] {
            let mut world = World::new(start(), 2, Setup::new(model, 3, 1));
            (0..3).for_each(|node| {
                world.call(sender(node));
            });
            world.call(receiver(3, 1, 3));
            if lends {
                world.call(grant(3, 0..4));
            }
            world.run_for(ms(300)).expect("rules hold");
            world.call(abort(1)).run_for(ms(500)).expect("rules hold");
            crate::calls::fails_already(&world, 0..4, ErrorKind::Aborted, 1);
            closes(&mut world);
        }
    }
}

#[test]
fn ranks_that_disagree_on_the_destinations_all_fail_for_it() {
    for model in both() {
        let mut world = crate::calls::world(Setup::new(model, 1, 2));
        world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..4));
        world.run_for(ms(300)).expect("rules hold");
        world.call(receiver(2, 2, 1)).call(grant(2, 0..4));
        holds(&mut world);
        // The first one is enough for itself, and is done or not; the second one is refused.
        let error = world.error(2, ROOM).expect("refused");
        assert_eq!(
            (error.kind, world.release(2, ROOM)),
            (ErrorKind::Protocol, Some(Release::Safe)),
            "{error}"
        );
        closes(&mut world);
    }
    let mut world = crate::calls::world(Setup::new(Model::TwoSided, 1, 2));
    world.call(sender(0)).call(receiver(1, 2, 1)).call(grant(1, 0..4));
    world.run_for(ms(300)).expect("rules hold");
    let sources = vec![(0, Some(Share::WHOLE))];
    let destinations = vec![1];
    world.call(Call::Receiver { node: 2, room: ROOM, attempt: 0, salt: 0, destinations, sources });
    fails(&mut world, 0..3, ErrorKind::Protocol, 2);
}

/// Old rooms fail; new ones work at once over the same address.
#[test]
fn a_process_that_starts_anew_serves_new_rooms() {
    for model in both() {
        for node in 0..2 {
            for at in [0, 5, 12, 30, 60] {
                let mut world = World::new(start(), at, Setup::new(model, 1, 1));
                world.trace();
                whole(&mut world, 9);
                world.run_for(ms(at)).expect("rules hold");
                world.call(Call::Restart { node }).run_for(ms(130)).expect("rules hold"); // it is noticed
                let room = Room(50);
                let (attempt, salt, sources) = (0, 4, vec![(0, Some(Share::WHOLE))]);
                world.call(Call::Sender { node: 0, room, attempt, salt });
                world.call(Call::Receiver { node: 1, room, attempt, salt, destinations: vec![0], sources });
                world.call(Call::Grant { node: 1, room, tokens: 0..4, window: 4, rows: true });
                world.call(Call::Chunk { node: 0, room, tokens: 0..4, layers: None, ready: true });
                world.call(Call::Finish { node: 0, room, tokens: 4, payload: 2 });
                holds(&mut world);
                for node in 0..2 {
                    let state = world.state(node, room);
                    assert_eq!(state, Some(KVPoll::Success), "{}", world.log().join("\n"));
                }
                assert_ne!(world.state(1 - node, ROOM), Some(KVPoll::Bootstrapping));
                closes(&mut world);
            }
        }
    }
}

/// The end of the first link may be heard of when the second one is up already.
#[test]
fn the_late_end_of_a_link_does_not_touch_the_next_one() {
    for model in both() {
        for seed in 0..80 {
            let mut world = World::new(start(), seed, Setup::new(model, 1, 1));
            world.trace();
            whole(&mut world, 9);
            world.run_for(ms(15)).expect("rules hold");
            let down = |world: &World| world.log().iter().any(|line| line.contains("Down { conn: 0, end: 1"));
            world.call(Call::Cut { prefill: 0, decode: 1 }).run_until(down).expect("rules hold");
            let room = Room(50);
            let (attempt, salt, sources) = (0, 4, vec![(0, Some(Share::WHOLE))]);
            world.call(Call::Receiver { node: 1, room, attempt, salt, destinations: vec![0], sources });
            world.call(Call::Grant { node: 1, room, tokens: 0..4, window: 4, rows: true });
            world.call(Call::Sender { node: 0, room, attempt, salt });
            world.call(Call::Chunk { node: 0, room, tokens: 0..4, layers: None, ready: true });
            world.call(Call::Finish { node: 0, room, tokens: 4, payload: 2 });
            holds(&mut world);
            for node in 0..2 {
                assert_eq!(world.state(node, room), Some(KVPoll::Success), "{}", world.log().join("\n"));
            }
            closes(&mut world);
        }
    }
}

/// A process with a bad mind is worth no more than a lost one: rooms that it has no part in succeed.
#[test]
fn rooms_without_a_part_for_a_rogue_succeed_beside_it() {
    for model in both() {
        for seed in 0..60 {
            let mut world = World::new(start(), seed, Setup::new(model, 2, 2));
            world.trace();
            let rogue = 3;
            // It is connected with everybody by a room of its own.
            let (attempt, salt, sources) = (0, 4, vec![(0, Some(Share::WHOLE)), (1, Some(Share::WHOLE))]);
            world.call(Call::Receiver {
                node: rogue,
                room: Room(1),
                attempt,
                salt,
                destinations: vec![1],
                sources,
            });
            world.run_for(ms(150)).expect("rules hold");
            world.call(sender(0)).call(chunk(0, 0..5)).call(receiver(2, 1, 1)).call(grant(2, 0..5));
            world.run_until(|world| world.state(0, ROOM) == Some(KVPoll::Transferring)).expect("rules hold");
            for _ in 0..30 {
                world.call(Call::Babble { node: rogue }).run_for(ms(1)).expect("rules hold");
            }
            world.call(finish(0, 5));
            holds(&mut world);
            for node in [0, 2] {
                assert_eq!(world.state(node, ROOM), Some(KVPoll::Success), "{}", world.log().join("\n"));
            }
            closes(&mut world);
        }
    }
}
