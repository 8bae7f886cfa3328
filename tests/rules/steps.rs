//! A fault at every step of a transfer: given up by either side, killed, frozen, started anew, cut off.

use crate::calls::{ROOM, abort, both, closes, holds, ms, patient, start, whole};
use kvferry::sim::{Call, Model, World};
use kvferry::{ErrorKind, KVPoll};

/// Shapes, and how many steps of them are left out between two that are tried.
const SHAPES: [(usize, usize, u64); 4] = [(1, 1, 1), (2, 1, 5), (1, 2, 5), (2, 2, 17)];

fn clean(model: Model, prefill: usize, decode: usize) -> World {
    let mut setup = patient(model, prefill, decode);
    (setup.late, setup.doubled, setup.damaged, setup.retransmits) = (8, 10, 5, 30);
    let mut world = World::new(start(), 5, setup);
    whole(&mut world, 10);
    world
}

/// Tries `fault` at the steps of every shape; `check` looks at what becomes of it, told whether everybody
/// knew each other when it came.
fn at_every_step(faults: impl Fn(&World) -> Vec<Call>, check: impl Fn(&mut World, &Call, bool)) -> u64 {
    let mut tried = 0;
    for model in both() {
        for (prefill, decode, stride) in SHAPES {
            let mut world = clean(model, prefill, decode);
            holds(&mut world);
            let steps = (0..prefill + decode).all(|node| world.state(node, ROOM) == Some(KVPoll::Success));
            assert!(steps, "without a fault it succeeds");
            let steps = world.steps();
            for (offset, fault) in (0..).zip(faults(&world)) {
                for step in (offset % stride..steps).step_by(usize::try_from(stride).expect("small")) {
                    let mut world = clean(model, prefill, decode);
                    world.run_until(|world| world.steps() >= step).expect("rules hold");
                    let state = |node| world.state(node, ROOM);
                    let known = (0..prefill + decode).all(|node| state(node) != Some(KVPoll::Bootstrapping));
                    world.call(fault.clone());
                    check(&mut world, &fault, known);
                    closes(&mut world);
                    tried += 1;
                }
            }
        }
    }
    tried
}

fn nodes(world: &World) -> std::ops::Range<usize> {
    0..world.setup().prefill + world.setup().decode
}

fn ends_soon(world: &mut World, fault: &Call, known: bool) {
    world.run_for(ms(2000)).expect("rules hold");
    for node in nodes(world).filter(|_| known) {
        let state = world.state(node, ROOM);
        let is_over = state.is_none_or(|state| state.is_terminal());
        assert!(is_over || !world.is_alive(node), "{fault:?}: node {node} is {state:?} two seconds later");
    }
}

/// Nobody waits for a deadline while somebody knows why the room is over.
#[test]
fn whoever_gives_up_and_whenever_all_end_at_once_and_for_that_reason() {
    let faults = |world: &World| nodes(world).map(abort).collect();
    let tried = at_every_step(faults, |world, fault, known| {
        ends_soon(world, fault, known);
        let Call::Abort { node: origin, .. } = *fault else { return };
        holds(world);
        for node in nodes(world) {
            let Some(error) = world.error(node, ROOM) else { continue };
            assert_eq!((error.kind, error.party()), (ErrorKind::Aborted, world.party(origin)), "{error}");
        }
    });
    assert!(tried > 500, "{tried}");
}

#[test]
fn whichever_process_dies_and_whenever_the_others_end_at_once() {
    let faults = |world: &World| {
        let crash = nodes(world).map(|node| Call::Crash { node });
        crash.chain(nodes(world).map(|node| Call::Restart { node })).collect()
    };
    at_every_step(faults, ends_soon);
}

#[test]
fn whichever_link_is_cut_and_whenever_all_end_at_once() {
    let faults = |world: &World| {
        let (prefill, decode) = (world.setup().prefill, world.setup().decode);
        let pairs = (0..prefill).flat_map(|source| (0..decode).map(move |rank| (source, prefill + rank)));
        pairs.map(|(prefill, decode)| Call::Cut { prefill, decode }).collect()
    };
    at_every_step(faults, ends_soon);
}

#[test]
fn whichever_process_freezes_and_whenever_all_succeed_after_the_thaw() {
    let faults = |world: &World| nodes(world).map(|node| Call::Freeze { node, time: ms(900) }).collect();
    at_every_step(faults, |world, fault, _| {
        holds(world);
        for node in nodes(world) {
            let error = world.error(node, ROOM);
            assert_eq!(world.state(node, ROOM), Some(KVPoll::Success), "{fault:?}: node {node}, {error:?}");
        }
    });
}

/// One round trip is at most twice the longest delay.
#[test]
fn a_receiver_learns_within_a_round_trip_that_its_sender_gave_up_and_why() {
    let mut told = 0;
    for model in both() {
        let steps = {
            let mut world = clean(model, 1, 1);
            holds(&mut world);
            world.steps()
        };
        for step in 0..steps {
            let mut world = clean(model, 1, 1);
            world.run_until(|world| world.steps() >= step).expect("rules hold");
            let states = [world.state(0, ROOM), world.state(1, ROOM)];
            if states[1] == Some(KVPoll::Bootstrapping) || states[0] == Some(KVPoll::Success) {
                continue;
            }
            world.call(abort(0)).run_for(ms(250)).expect("rules hold");
            if world.state(1, ROOM) == Some(KVPoll::Success) {
                continue; // it counted everything by itself
            }
            let error = world.error(1, ROOM).unwrap_or_else(|| panic!("step {step}: nobody told"));
            assert_eq!((error.kind, error.party()), (ErrorKind::Aborted, world.party(0)), "{error}");
            assert!(error.detail.contains("gave up"), "{error}");
            told += 1;
        }
    }
    assert!(told > 50, "{told}");
}
