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

pub(crate) fn abort(node: usize) -> Call {
    Call::Abort { node, room: ROOM }
}

/// Every rank of both sides is opened and given all it needs for a request of so many tokens.
pub(crate) fn whole(world: &mut World, tokens: u32) {
    let (prefill, decode) = (world.setup().prefill, world.setup().decode);
    for node in 0..prefill {
        world.call(sender(node)).call(chunk(node, 0..tokens / 2));
        world.after(ms(20), chunk(node, tokens / 2..tokens)).after(ms(40), finish(node, tokens));
    }
    for node in prefill..prefill + decode {
        let destinations = u32::try_from(decode).expect("few");
        world.call(receiver(node, destinations, prefill)).after(ms(5), grant(node, 0..tokens));
    }
}

/// Everything ends, and nothing is left; a broken rule shows the whole course.
pub(crate) fn closes(world: &mut World) {
    if let Err(broken) = world.close() {
        panic!("{broken}\n{}", world.log().join("\n"));
    }
}

/// No deadline but that of draining is near.
pub(crate) fn patient(model: Model, prefill: usize, decode: usize) -> Setup {
    let mut setup = Setup::new(model, prefill, decode);
    let limits = &mut setup.deadlines;
    for limit in
        [&mut limits.discover, &mut limits.handshake, &mut limits.waiting_for_input, &mut limits.stall]
    {
        *limit = Duration::from_secs(300);
    }
    setup
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
