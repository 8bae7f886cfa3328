//! One room, used again and again.

use crate::calls::{ROOM, abort, both, closes, holds, ms, start};
use kvferry::layout::Share;
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::{ErrorKind, KVPoll, Release, Room};

fn small(model: Model) -> World {
    let mut setup = Setup::new(model, 1, 1);
    (setup.layers, setup.write_bytes, setup.window_bytes) = (1, 400, 4000);
    World::new(start(), 1, setup)
}

/// One use: both ends are opened, two tokens are lent and given.
fn request(world: &mut World, attempt: u64, salt: u64) {
    let (room, sources) = (ROOM, vec![(0, Some(Share::WHOLE))]);
    world.call(Call::Sender { node: 0, room, attempt, salt });
    world.call(Call::Receiver { node: 1, room, attempt, salt, destinations: vec![0], sources });
    world.call(Call::Grant { node: 1, room, tokens: 0..2, window: 0, rows: false });
    world.call(Call::Chunk { node: 0, room, tokens: 0..2, layers: None, ready: true });
    world.call(Call::Finish { node: 0, room, tokens: 2, payload: 0 });
}

/// Pages of both ends are let go of as soon as that is allowed.
fn let_go(world: &mut World) {
    world.call(Call::Drop { node: 1, room: ROOM });
    world.run_until(|world| world.release(0, ROOM) == Some(Release::Safe)).expect("rules hold");
    world.call(Call::Drop { node: 0, room: ROOM });
}

/// Every third use is given up in its middle, and the next one begins at once under its own number. Each
/// use has contents of its own: Success is checked byte by byte.
#[test]
fn one_room_is_used_ten_thousand_times() {
    for (model, uses) in [(Model::TwoSided, 10_000), (Model::OneSided, 2_000)] {
        let mut world = small(model);
        for attempt in 0..uses {
            request(&mut world, attempt, attempt);
            if attempt % 3 == 0 {
                let end = world.steps() + attempt % 23;
                world.run_until(|world| world.steps() >= end).expect("rules hold");
                world.call(abort(usize::from(attempt % 2 == 0)));
            } else {
                let is_over =
                    |world: &World, node| world.state(node, ROOM).is_some_and(|state| state.is_terminal());
                world.run_until(|world| (0..2).all(|node| is_over(world, node))).expect("rules hold");
                for node in 0..2 {
                    let error = world.error(node, ROOM).map(ToString::to_string);
                    assert_eq!(error, None, "{model:?}: node {node} in use {attempt}");
                }
            }
            let_go(&mut world);
        }
        closes(&mut world);
        let tally = world.tally();
        assert_eq!(tally.rooms, uses);
        assert!(tally.successes * 3 >= uses * 2, "{}", tally.successes);
    }
}

/// The documented condition: both ends have ended and have their pages back. The next use may inherit
/// an abort that was under way, but no byte of the use before.
#[test]
fn a_room_is_used_again_under_the_same_number_once_both_ends_are_safe() {
    for model in both() {
        let mut world = small(model);
        for salt in 0..600 {
            request(&mut world, 0, salt);
            if salt % 3 == 0 {
                let end = world.steps() + salt % 23;
                world.run_until(|world| world.steps() >= end).expect("rules hold");
                world.call(abort(usize::from(salt % 2 == 0)));
            }
            let is_over = |world: &World, node| world.release(node, ROOM) == Some(Release::Safe);
            world.run_until(|world| (0..2).all(|node| is_over(world, node))).expect("rules hold");
            if salt % 3 == 2 {
                holds(&mut world); // nothing is under way any more
            }
            let_go(&mut world);
        }
        closes(&mut world);
        assert!(world.tally().successes >= 400, "{}", world.tally().successes);
    }
}

#[test]
fn a_grant_of_an_earlier_attempt_is_not_adopted_by_the_next() {
    for model in both() {
        let mut world = World::new(start(), 1, Setup::new(model, 1, 1));
        let open = |attempt, salt| {
            let sources = vec![(0, Some(Share::WHOLE))];
            Call::Receiver { node: 1, room: ROOM, attempt, salt, destinations: vec![0], sources }
        };
        world.call(open(1, 1)).call(crate::calls::grant(1, 0..6));
        world.run_for(ms(300)).expect("rules hold");
        world.call(Call::Sender { node: 0, room: ROOM, attempt: 2, salt: 2 });
        world.call(crate::calls::chunk(0, 0..6)).call(crate::calls::finish(0, 6));
        world.run_for(ms(500)).expect("rules hold");
        assert_eq!(world.state(0, ROOM), Some(KVPoll::Bootstrapping));
        assert_eq!(world.landings(), 0);
        world.call(Call::Drop { node: 1, room: ROOM });
        world.call(open(2, 2)).call(crate::calls::grant(1, 0..6));
        crate::calls::succeeds(&mut world, 0..2);
        closes(&mut world);
    }
}

#[test]
fn the_end_of_one_attempt_does_not_touch_the_next() {
    for model in both() {
        let mut world = World::new(start(), 1, Setup::new(model, 1, 1));
        world.call(Call::Reject { node: 0, room: ROOM, attempt: 1 });
        let sources = vec![(0, Some(Share::WHOLE))];
        for attempt in [1, 2] {
            let sources = sources.clone();
            let (room, destinations) = (ROOM, vec![0]);
            world.call(Call::Drop { node: 1, room });
            world.call(Call::Receiver { node: 1, room, attempt, salt: 2, destinations, sources });
            world.call(crate::calls::grant(1, 0..6));
            world.run_for(ms(400)).expect("rules hold");
            let rejected = world.error(1, Room(7)).is_some_and(|error| error.kind == ErrorKind::Rejected);
            assert_eq!(rejected, attempt == 1);
        }
        world.call(Call::Sender { node: 0, room: ROOM, attempt: 2, salt: 2 });
        world.call(crate::calls::chunk(0, 0..6)).call(crate::calls::finish(0, 6));
        crate::calls::succeeds(&mut world, 0..2);
        closes(&mut world);
    }
}
