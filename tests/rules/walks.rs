//! Random courses of events: many seeds, each with users, delays and faults of its own.

use crate::calls::start;
use kvferry::Room;
use kvferry::layout::Share;
use kvferry::session::Session;
use kvferry::sim::{Broken, Call, Model, Rng, Setup, World};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seeds of an ordinary run; `KVF_SEEDS` asks for another number, `KVF_SEED` for one seed with a trace.
const SEEDS: u64 = 10_000;

#[test]
fn every_rule_holds_on_every_walk() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("KVF_SEED") {
        let (world, result) = walk(seed, true, |_| ());
        println!("{}", world.log().join("\n"));
        return result.expect("a rule is broken");
    }
    let seeds = number("KVF_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let seen = Seen::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let search = || {
        loop {
            // Relaxed: a ticket, nothing else.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return None;
            }
            let (world, result) = walk(seed, false, |_| ());
            if let Err(broken) = result {
                return Some((seed, broken));
            }
            seen.add(&world);
        }
    };
    let found = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(search)).collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("no walk panics")).min_by_key(|f| f.0)
    });
    if let Some((seed, broken)) = found {
        panic!("seed {seed}: {broken}; KVF_SEED={seed} shows the whole course");
    }
    seen.is_varied();
}

/// What the walks came to: a suite that only ever fails early would prove little.
#[derive(Debug, Default)]
struct Seen {
    rooms: AtomicU64,
    successes: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
    kinds: [AtomicU64; 16],
}

impl Seen {
    fn add(&self, world: &World) {
        // Relaxed: counted, and read after all threads have ended.
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        count(&self.steps, world.steps());
        for receiver in world.receivers() {
            count(&self.rooms, 1);
            count(&self.bytes, receiver.figures().bytes);
            match receiver.error() {
                None => count(&self.successes, 1),
                Some(error) => count(&self.kinds[error.kind as usize], 1),
            };
        }
    }

    fn is_varied(&self) {
        println!("{self:?}");
        let (rooms, successes) = (self.rooms.load(Ordering::Relaxed), self.successes.load(Ordering::Relaxed));
        assert!(successes * 100 > rooms * 25, "{successes} of {rooms} receivers succeed");
    }
}

/// The walk of a seed, in a world changed by `shape`.
pub(crate) fn walk(seed: u64, trace: bool, shape: impl Fn(&mut Setup)) -> (World, Result<(), Broken>) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut setup = setup(&mut rng);
    shape(&mut setup);
    let mut world = World::new(start(), seed, setup);
    if trace {
        world.trace();
    }
    plan(&mut world, &mut rng);
    let result = world.run();
    (world, result)
}

fn setup(rng: &mut Rng) -> Setup {
    let model = if rng.percent(50) { Model::OneSided } else { Model::TwoSided };
    let shapes = [(1, 1), (2, 1), (1, 2), (2, 2)];
    let (prefill, decode) = shapes[rng.place(shapes.len())];
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

fn plan(world: &mut World, rng: &mut Rng) {
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
    let mut share = Share::WHOLE;
    share.layers = Some(layers);
    share
}

fn fault(world: &World, rng: &mut Rng, requests: u64) -> Call {
    let (prefill, decode) = (world.setup().prefill, world.setup().decode);
    let node = rng.place(prefill + decode);
    match rng.within(0..10) {
        0..5 => Call::Abort { node, room: Room(rng.within(1..requests + 1)) },
        5..8 => Call::Cut { prefill: rng.place(prefill), decode: prefill + rng.place(decode) },
        8 => Call::Freeze { node, time: Duration::from_millis(rng.within(1..3000)) },
        _ => Call::Crash { node },
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
