//! Worlds for tests, and the usual calls.

use kvferry::layout::Share;
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::{ErrorKind, KVPoll, Room};
use std::ops::Range;
use std::time::{Duration, Instant};

pub(crate) const ROOM: Room = Room(7);

/// When virtual time starts: any instant will do.
#[expect(
    clippy::disallowed_methods,
    reason = "only the start of virtual time, never compared with the clock"
)]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn world(setup: Setup) -> World {
    let mut world = World::new(start(), 1, setup);
    world.trace();
    world
}

pub(crate) fn both() -> [Model; 2] {
    [Model::OneSided, Model::TwoSided]
}

pub(crate) fn sender(node: usize) -> Call {
    Call::Sender { node, room: ROOM, attempt: 0, salt: 0 }
}

pub(crate) fn receiver(node: usize, destinations: u32, sources: usize) -> Call {
    let sources = (0..sources).map(|source| (source, Some(Share::WHOLE))).collect();
    Call::Receiver {
        node,
        room: ROOM,
        attempt: 0,
        salt: 0,
        destinations: (0..destinations).collect(),
        sources,
    }
}

pub(crate) fn grant(node: usize, tokens: Range<u32>) -> Call {
    Call::Grant { node, room: ROOM, tokens, window: u32::MAX, rows: true }
}

pub(crate) fn chunk(node: usize, tokens: Range<u32>) -> Call {
    Call::Chunk { node, room: ROOM, tokens, layers: None, ready: true }
}

pub(crate) fn finish(node: usize, tokens: u32) -> Call {
    Call::Finish { node, room: ROOM, tokens, payload: 9 }
}

pub(crate) fn succeeds(world: &mut World, nodes: Range<usize>) {
    holds(world);
    for node in nodes {
        assert_eq!(
            world.state(node, ROOM),
            Some(KVPoll::Success),
            "node {node}: {:?}\n{}",
            world.error(node, ROOM),
            world.log().join("\n")
        );
    }
}

/// Runs to the end; a broken rule shows the whole course.
pub(crate) fn holds(world: &mut World) {
    if let Err(broken) = world.run() {
        panic!("{broken}\n{}", world.log().join("\n"));
    }
}

pub(crate) fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Every node of these fails, for the same cause.
pub(crate) fn fails(world: &mut World, nodes: Range<usize>, kind: ErrorKind, origin: usize) {
    holds(world);
    fails_already(world, nodes, kind, origin);
}

/// As [`fails`], without waiting for anything.
pub(crate) fn fails_already(world: &World, nodes: Range<usize>, kind: ErrorKind, origin: usize) {
    let party = world.party(origin);
    for node in nodes {
        let error = world.error(node, ROOM).unwrap_or_else(|| {
            panic!("node {node} is {:?}\n{}", world.state(node, ROOM), world.log().join("\n"))
        });
        assert_eq!(
            (error.kind, error.party()),
            (kind, party),
            "node {node}: {error}\n{}",
            world.log().join("\n")
        );
    }
}
