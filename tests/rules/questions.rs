//! What a party asks when it hears nothing, and what is made good by that.

use crate::calls::{ROOM, both, chunk, fails, finish, grant, ms, receiver, sender, succeeds, world};
use kvferry::sim::{Call, Mishap, Model, Setup, World};
use kvferry::wire::Kind;
use kvferry::{ErrorKind, KVPoll};

const PREFILL: usize = 0;
const DECODE: usize = 1;

/// A room in which the next frame of a kind is lost on its way.
fn losing(model: Model, from: usize, kind: Kind) -> World {
    let mut world = world(Setup::new(model, 1, 1));
    world.call(Call::Disturb { from, to: 1 - from, kind, mishap: Mishap::Lose });
    world.call(sender(PREFILL)).call(receiver(DECODE, 1, 1)).call(grant(DECODE, 0..9));
    world
}

fn was_lost(world: &World) {
    assert!(world.log().iter().any(|line| line.contains("Lose befalls")), "nothing was lost");
}

#[test]
fn a_lost_join_grant_or_done_is_said_again() {
    for model in both() {
        for (from, kind) in [(DECODE, Kind::Join), (DECODE, Kind::Grant), (PREFILL, Kind::Done)] {
            let mut world = losing(model, from, kind);
            world.call(chunk(PREFILL, 0..9)).call(finish(PREFILL, 9));
            world.run_until(|world| world.state(DECODE, ROOM) == Some(KVPoll::Success)).unwrap();
            assert!(world.elapsed() < ms(900), "{kind:?}: no deadline was needed, {:?}", world.elapsed());
            succeeds(&mut world, 0..2);
            was_lost(&world);
        }
    }
}

#[test]
fn a_lost_abort_or_failure_is_heard_before_any_deadline() {
    for model in both() {
        for (origin, kind) in [(PREFILL, Kind::Failed), (DECODE, Kind::Abort)] {
            let mut world = losing(model, origin, kind);
            world.call(chunk(PREFILL, 0..4));
            world.run_for(ms(150)).unwrap();
            world.call(Call::Abort { node: origin, room: ROOM });
            world.call(Call::Drop { node: origin, room: ROOM });
            let other = 1 - origin;
            fails(&mut world, other..other + 1, ErrorKind::Aborted, origin);
            was_lost(&world);
            let error = world.error(other, ROOM).unwrap();
            assert!(error.elapsed < ms(900), "{kind:?}: {error}");
        }
    }
}

#[test]
fn a_done_that_was_lost_with_its_link_is_asked_for_over_the_next() {
    let mut world = losing(Model::TwoSided, PREFILL, Kind::Done);
    world.call(chunk(PREFILL, 0..9)).call(finish(PREFILL, 9));
    let all_came = |world: &World| world.receiver(DECODE, ROOM).is_some_and(|r| r.ready_tokens() == 9);
    world.run_until(|world| world.state(PREFILL, ROOM) == Some(KVPoll::Success) && all_came(world)).unwrap();
    world.call(Call::Cut { prefill: PREFILL, decode: DECODE });
    succeeds(&mut world, 0..2);
    was_lost(&world);
}

#[test]
fn a_link_that_takes_more_than_the_last_word_fails_the_receiver() {
    let mut world = losing(Model::TwoSided, PREFILL, Kind::Done);
    world.call(chunk(PREFILL, 0..9));
    world.run_until(|world| world.receiver(DECODE, ROOM).is_some_and(|r| r.ready_tokens() == 9)).unwrap();
    world.call(Call::Cut { prefill: PREFILL, decode: DECODE });
    fails(&mut world, DECODE..DECODE + 1, ErrorKind::PeerLost, PREFILL);
}

#[test]
fn a_source_that_restarts_between_its_last_word_and_the_question_fails_the_receiver() {
    let mut world = losing(Model::TwoSided, PREFILL, Kind::Done);
    world.call(chunk(PREFILL, 0..9)).call(finish(PREFILL, 9));
    world.run_until(|world| world.state(PREFILL, ROOM) == Some(KVPoll::Success)).unwrap();
    world.call(Call::Crash { node: PREFILL });
    fails(&mut world, DECODE..DECODE + 1, ErrorKind::PeerLost, PREFILL);
    let error = world.error(DECODE, ROOM).unwrap();
    assert!(error.elapsed < ms(900), "no deadline was needed: {error}");
}

#[test]
fn progress_that_only_the_writer_sees_keeps_a_one_sided_transfer_from_stalling() {
    let mut setup = Setup::new(Model::OneSided, 1, 1);
    (setup.write_bytes, setup.window_bytes) = (1, 1);
    setup.deadlines.stall = ms(300);
    let mut world = world(setup);
    world.call(sender(PREFILL)).call(receiver(DECODE, 1, 1)).call(grant(DECODE, 0..9));
    world.call(chunk(PREFILL, 0..9)).call(finish(PREFILL, 9));
    world.run_until(|world| world.state(DECODE, ROOM) == Some(KVPoll::Success)).unwrap();
    assert!(world.elapsed() > ms(600), "twice as long as a stall may last: {:?}", world.elapsed());
    succeeds(&mut world, 0..2);
}

#[test]
fn questions_become_rarer_while_nothing_happens() {
    let mut setup = Setup::new(Model::TwoSided, 1, 1);
    setup.deadlines.waiting_for_input = ms(60_000);
    let mut world = world(setup);
    world.call(sender(PREFILL)).call(receiver(DECODE, 1, 1)).call(grant(DECODE, 0..9));
    world.run_for(ms(59_000)).unwrap();
    let asked =
        world.log().iter().filter(|line| line.contains("does Send") && line.contains("Query")).count();
    assert!((10..60).contains(&asked), "{asked} questions in a minute of silence");
}
