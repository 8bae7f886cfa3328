//! What happens in a random walk: requests, faults, mistakes of users, and peace at last.

use kvferry::layout::Share;
use kvferry::sim::{Broken, Call, Model, Rng, Setup, World};
use kvferry::{KVPoll, Release, Room};
use std::time::Duration;

pub(crate) fn setup(rng: &mut Rng) -> Setup {
    let model = if rng.percent(50) { Model::OneSided } else { Model::TwoSided };
    let shapes = [(1, 1), (2, 1), (1, 2), (2, 2)];
    let (prefill, decode) = match rng.percent(85) {
        true => shapes[rng.place(shapes.len())],
        false => (rng.place(4) + 1, rng.place(4) + 1),
    };
    let mut setup = Setup::new(model, prefill, decode);
    setup.page_tokens = rng.small(1..5);
    setup.layers = rng.small(1..4);
    setup.write_bytes = rng.within(1..60);
    setup.window_bytes = rng.within(20..200);
    setup.retransmits = rng.small(0..4);
    if rng.percent(40) {
        setup.damaged = rng.within(0..15);
        setup.doubled = rng.within(0..20);
        setup.late = rng.within(0..10);
    }
    if rng.percent(25) {
        (setup.lost, setup.held, setup.repeated) = (rng.within(0..6), rng.within(0..6), rng.within(0..10));
    }
    setup.parked_bytes = usize::try_from(rng.within(1000..20_000)).expect("small");
    setup.vouched = rng.within(0..101);
    setup.fences = rng.percent(90);
    setup
}

/// What one request looks like, before anything goes wrong.
struct Request {
    room: Room,
    attempt: u64,
    tokens: u32,
}

pub(crate) fn plan(world: &mut World, rng: &mut Rng) {
    let requests = rng.within(1..4);
    let mut at = Duration::ZERO;
    for number in 0..requests {
        let shared = number > 0 && rng.percent(40);
        let room = Room(if shared { 1 } else { number + 1 });
        let request = Request { room, attempt: number, tokens: rng.small(0..14) };
        plan_request(world, rng, &request, at);
        at += Duration::from_millis(rng.within(0..if shared { 300 } else { 40 }));
    }
    for _ in 0..(if rng.percent(50) { rng.within(1..4) } else { 0 }) {
        let call = fault(world, rng, requests);
        world.after(soon(rng), call);
    }
    for _ in 0..(if rng.percent(15) { rng.within(1..8) } else { 0 }) {
        let call = nonsense(world, rng, requests);
        world.after(soon(rng), call);
    }
    if rng.percent(15) {
        let node = any_node(world, rng);
        for _ in 0..rng.within(1..12) {
            world.after(soon(rng), Call::Babble { node });
        }
    }
}

/// As soon as everybody has ended and has their pages back, the first room is used again under the same
/// number, in the midst of whatever else happens.
pub(crate) fn again(world: &mut World, rng: &mut Rng) -> Result<(), Broken> {
    let nodes = world.setup().prefill + world.setup().decode;
    let is_over = |world: &World, node: usize| {
        let state = world.state(node, Room(1));
        state.is_none_or(|state| state.is_terminal())
            && world.release(node, Room(1)) != Some(Release::Draining)
    };
    world.run_until(|world| {
        let began = world.tally().rooms > 0;
        began && (0..nodes).all(|node| !world.is_alive(node) || is_over(world, node))
    })?;
    (0..nodes).for_each(|node| {
        world.call(Call::Drop { node, room: Room(1) });
    });
    plan_request(world, rng, &Request { room: Room(1), attempt: 0, tokens: 9 }, Duration::ZERO);
    Ok(())
}

/// In peace, with every process running, a request succeeds, whatever went before.
pub(crate) fn lives_on(world: &mut World, rng: &mut Rng) -> Result<(), String> {
    let told = |broken: Broken| broken.to_string();
    let (prefill, decode) = (world.setup().prefill, world.setup().decode);
    world.calm();
    world.run().map_err(told)?;
    world.run_for(Duration::from_secs(4)).map_err(told)?; // everybody is awake
    let room = Room(1);
    for node in 0..prefill + decode {
        if !world.is_alive(node) {
            world.call(Call::Restart { node });
        }
        for room in 1..5 {
            world.call(Call::Drop { node, room: Room(room) });
        }
    }
    // With a number of its own at once, with a used one when nothing is remembered of it.
    let (attempt, salt) = (if rng.percent(50) { 9 } else { 0 }, 77);
    if attempt == 0 {
        world.run().map_err(told)?;
    }
    for node in 0..prefill {
        // Before the others, that nobody is sent away for want of room to wait in.
        world.call(Call::Sender { node, room, attempt, salt });
        let (tokens, layers) = (0..6, None);
        world.after(Duration::from_millis(210), Call::Chunk { node, room, tokens, layers, ready: true });
        world.after(Duration::from_millis(220), Call::Finish { node, room, tokens: 6, payload: 3 });
    }
    for rank in 0..decode {
        let node = prefill + rank;
        let sources = (0..prefill).map(|source| (source, Some(Share::WHOLE))).collect();
        let destinations = (0..u32::try_from(decode).expect("few")).collect();
        let at = soon(rng);
        world.after(at, Call::Receiver { node, room, attempt, salt, destinations, sources });
        world.after(at, Call::Grant { node, room, tokens: 0..6, window: 6, rows: true });
    }
    world.run().map_err(told)?;
    let lost = (0..prefill + decode).find(|&node| world.state(node, room) != Some(KVPoll::Success));
    lost.map_or(Ok(()), |node| {
        let error = world.error(node, room).map(ToString::to_string);
        Err(format!("node {node} does not live on: it is {:?}, {error:?}", world.state(node, room)))
    })
}

fn plan_request(world: &mut World, rng: &mut Rng, request: &Request, base: Duration) {
    let Request { room, attempt, tokens } = *request;
    let setup = world.setup().clone();
    let (prefill, decode) = (setup.prefill, setup.decode);
    let by_layers = prefill > 1 && rng.percent(40) && setup.layers > 1;
    let border = rng.small(1..setup.layers.max(2));
    let replicated = prefill > 1 && !by_layers && rng.percent(50);
    let held = if rng.percent(40) { rng.small(0..tokens + 1) } else { 0 };
    let (window, rows) = (rng.small(0..10), rng.percent(70));
    for node in 0..prefill {
        let mut at = base + soon(rng);
        if rng.percent(6) {
            world.after(at, Call::Reject { node, room, attempt });
            continue;
        }
        world.after(at, Call::Sender { node, room, attempt, salt: attempt });
        if rng.percent(30) {
            let tokens = rng.percent(50).then_some(tokens);
            world.after(at + pause(rng), Call::Offer { node, room, tokens });
        }
        let mut from = if rng.percent(70) { 0 } else { rng.small(0..held + 1) };
        let mut chunks = 0;
        while from < tokens || rng.percent(10) {
            at += pause(rng);
            let to = rng.small(from..tokens + 1);
            let ranges = match rng.percent(25) && setup.layers > 1 {
                true => vec![Some(0..1), Some(1..setup.layers)],
                false => vec![None],
            };
            for layers in ranges {
                let ready = rng.percent(80);
                world.after(at, Call::Chunk { node, room, tokens: from..to, layers, ready });
                if !ready {
                    world.after(at + pause(rng), Call::Ready { node, room, chunk: chunks });
                }
                chunks += 1;
            }
            from = to;
        }
        let total = if rng.percent(4) { tokens + 1 } else { tokens };
        world.after(at + pause(rng), Call::Finish { node, room, tokens: total, payload: rng.place(20) });
        if rng.percent(60) {
            world.after(at + Duration::from_millis(rng.within(50..4000)), Call::Drop { node, room });
        }
    }
    for rank in 0..decode {
        let at = base + soon(rng);
        let node = prefill + rank;
        let share = |source: usize| match (by_layers, replicated, source) {
            (true, _, 0) => Some(layers(0..border)),
            (true, _, _) => Some(layers(border..setup.layers)),
            (_, true, 1) => None,
            _ => Some(Share::WHOLE),
        };
        let sources = (0..prefill).map(|source| (source, share(source))).collect();
        let known = if rng.percent(3) { 1 } else { decode };
        let destinations = (0..u32::try_from(known).expect("few")).collect();
        world.after(at, Call::Receiver { node, room, attempt, salt: attempt, destinations, sources });
        let granted = if rng.percent(4) { tokens + 1 } else { tokens };
        if rng.percent(97) {
            let tokens = held.min(granted)..granted;
            world.after(at + pause(rng), Call::Grant { node, room, tokens, window, rows });
        }
        if rng.percent(60) {
            world.after(at + Duration::from_millis(rng.within(50..4000)), Call::Drop { node, room });
        }
    }
}

fn layers(layers: std::ops::Range<u32>) -> Share {
    Share::WHOLE.layers(layers)
}

fn any_node(world: &World, rng: &mut Rng) -> usize {
    rng.place(world.setup().prefill + world.setup().decode)
}

fn fault(world: &World, rng: &mut Rng, requests: u64) -> Call {
    let (prefill, decode) = (world.setup().prefill, world.setup().decode);
    let node = any_node(world, rng);
    let (source, destination) = (rng.place(prefill), prefill + rng.place(decode));
    match rng.within(0..24) {
        0..10 => Call::Abort { node, room: Room(rng.within(1..requests + 1)) },
        10..16 => Call::Cut { prefill: source, decode: destination },
        16..18 => Call::Freeze { node, time: Duration::from_millis(rng.within(1..3000)) },
        18..20 => Call::Crash { node },
        20..22 => Call::Restart { node },
        _ => Call::Darken { prefill: source, decode: destination },
    }
}

/// What a user should not do.
fn nonsense(world: &World, rng: &mut Rng, requests: u64) -> Call {
    let node = any_node(world, rng);
    let (room, attempt) = (Room(rng.within(1..requests + 1)), rng.within(0..requests));
    let start = rng.small(0..14);
    let tokens = start..rng.small(0..16);
    match rng.within(0..9) {
        0 => Call::Chunk { node, room, tokens, layers: None, ready: rng.percent(50) },
        1 => Call::Chunk { node, room, tokens, layers: Some(start..start + 1), ready: true },
        2 => Call::Finish { node, room, tokens: start, payload: 1 },
        3 => Call::Grant { node, room, tokens, window: start, rows: false },
        4 => Call::Ready { node, room, chunk: rng.place(4) },
        5 => Call::Drop { node, room },
        6 => Call::Offer { node, room, tokens: Some(start) },
        7 => Call::Sender { node, room, attempt, salt: attempt },
        _ => {
            let sources = vec![(0, Some(Share::WHOLE))];
            let destinations = vec![start];
            Call::Receiver { node, room, attempt, salt: attempt, destinations, sources }
        }
    }
}

fn soon(rng: &mut Rng) -> Duration {
    let most = if rng.percent(80) { 20_000 } else { 200_000 };
    Duration::from_micros(rng.within(0..most))
}

fn pause(rng: &mut Rng) -> Duration {
    let most = if rng.percent(90) { 4_000 } else { 100_000 };
    Duration::from_micros(rng.within(0..most))
}
