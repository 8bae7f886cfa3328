//! Every phase ends in time, and says what it waited for.

use crate::calls::{ROOM, both, chunk, fails, finish, grant, holds, ms, receiver, sender, world};
use kvferry::ErrorKind;
use kvferry::sim::{Call, Model, Setup};

/// The room fails at `node` for lack of time, in these words.
fn late(world: &mut kvferry::sim::World, node: usize, words: &[&str]) {
    holds(world);
    let error = world.error(node, ROOM).expect("it failed");
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    for word in words {
        assert!(error.detail.contains(word), "{word:?} is not in {:?}", error.detail);
    }
}

#[test]
fn a_sender_that_nobody_joins() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0));
    late(&mut world, 0, &["discover: 2.000s of 2s", "no receiver has joined"]);
}

#[test]
fn a_sender_that_one_rank_does_not_join() {
    let mut setup = Setup::new(Model::TwoSided, 1, 2);
    setup.deadlines.handshake = ms(1500);
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 2, 1)).call(grant(1, 0..4));
    late(&mut world, 0, &["handshake", "decode rank dp0 pp0 cp0 tp1"]);
    fails(&mut world, 0..2, ErrorKind::Timeout, 0);
}

#[test]
fn a_handshake_has_its_own_time_from_the_first_join() {
    let mut setup = Setup::new(Model::TwoSided, 1, 1);
    setup.deadlines.handshake = ms(700);
    let mut world = world(setup);
    world.call(sender(0)).after(ms(1900), receiver(1, 1, 1));
    late(&mut world, 0, &["handshake: 700.000ms of 700ms", "no grant from decode rank dp0 pp0 cp0 tp0"]);
    assert!(world.error(0, ROOM).unwrap().elapsed > ms(2600), "counted from the join");
}

#[test]
fn a_receiver_without_a_sender() {
    for model in both() {
        let mut setup = Setup::new(model, 1, 1);
        setup.deadlines.waiting_for_input = ms(9000);
        let mut world = world(setup);
        world.call(receiver(1, 1, 1)).call(grant(1, 0..4));
        late(&mut world, 1, &["discover: no sender for room 7 within 2s"]);
        assert_eq!(world.error(1, ROOM).unwrap().party(), world.party(0), "the lobby is the witness");
    }
}

#[test]
fn a_receiver_whose_source_cannot_be_reached() {
    let mut world = world(Setup::new(Model::TwoSided, 2, 1));
    world.call(Call::Freeze { node: 2, time: ms(0) }).call(Call::Crash { node: 1 });
    world.call(receiver(2, 1, 2));
    holds(&mut world);
    let error = world.error(2, ROOM).expect("it failed");
    assert!(matches!(error.kind, ErrorKind::PeerLost | ErrorKind::Timeout), "{error}");
}

#[test]
fn a_sender_that_is_given_nothing() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..4));
    late(&mut world, 0, &["waiting for input", "of 2s"]);
    late(&mut world, 1, &["waiting for input", "of 2s"]);
}

#[test]
fn a_receiver_that_is_given_no_pages() {
    let mut setup = Setup::new(Model::TwoSided, 1, 1);
    setup.deadlines.handshake = ms(9000);
    let mut world = world(setup);
    world.call(sender(0)).call(chunk(0, 0..4)).call(receiver(1, 1, 1));
    late(&mut world, 1, &["waiting for input", "waiting for pages from the caller"]);
    fails(&mut world, 0..2, ErrorKind::Timeout, 1);
}

#[test]
fn a_transfer_that_stands_still() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..8)).call(chunk(0, 0..4));
    late(&mut world, 1, &["stall", "of 1s"]);
}

#[test]
fn a_transfer_that_moves_does_not_stall() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..8));
    for at in 0..8_u32 {
        world.after(ms(800 * u64::from(at)), chunk(0, at..at + 1));
    }
    world.after(ms(5700), finish(0, 8));
    crate::calls::succeeds(&mut world, 0..2);
}

#[test]
fn a_room_that_lasts_too_long_as_a_whole() {
    let mut setup = Setup::new(Model::TwoSided, 1, 1);
    setup.deadlines.total = Some(ms(2500));
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..8));
    for at in 0..8_u32 {
        world.after(ms(800 * u64::from(at)), chunk(0, at..at + 1));
    }
    late(&mut world, 0, &["total: 2.500s of 2.5s"]);
}
