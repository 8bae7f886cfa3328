//! Random courses of events: many seeds, each with users, delays and faults of its own.

use crate::calls::start;
use crate::requests::{again, lives_on, plan, setup};
use kvferry::ErrorKind;
use kvferry::sim::{Broken, Rng, Setup, World};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of an ordinary run; `KVF_SEEDS` asks for another number, `KVF_SEED` for one seed with a trace.
const SEEDS: u64 = 20_000;

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
    seeds: AtomicU64,
    rooms: AtomicU64,
    successes: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
    kinds: Mutex<BTreeMap<String, u64>>,
}

impl Seen {
    fn add(&self, world: &World) {
        // Relaxed: counted, and read after all threads have ended.
        let count = |counter: &AtomicU64, by| counter.fetch_add(by, Ordering::Relaxed);
        let tally = world.tally();
        count(&self.seeds, 1);
        count(&self.steps, world.steps());
        count(&self.rooms, tally.rooms);
        count(&self.successes, tally.successes);
        count(&self.bytes, tally.bytes);
        let mut kinds = self.kinds.lock().expect("nobody panics");
        for kind in &tally.failures {
            *kinds.entry(format!("{kind:?}")).or_default() += 1;
        }
    }

    fn is_varied(&self) {
        println!("{self:?}");
        let (rooms, successes) = (self.rooms.load(Ordering::Relaxed), self.successes.load(Ordering::Relaxed));
        assert!(successes * 100 > rooms * 25, "{successes} of {rooms} receivers succeed");
        let kinds = self.kinds.lock().expect("nobody panics");
        for kind in [
            ErrorKind::Aborted,
            ErrorKind::Busy,
            ErrorKind::Corrupted,
            ErrorKind::Layout,
            ErrorKind::PeerLost,
            ErrorKind::Protocol,
            ErrorKind::Rejected,
            ErrorKind::Timeout,
        ] {
            assert!(kinds.contains_key(&format!("{kind:?}")), "no room fails with {kind:?}");
        }
    }
}

/// The walk of a seed, in a world changed by `shape`: requests and faults; then, in peace, the same room
/// once more, which succeeds; then nothing is left.
pub(crate) fn walk(seed: u64, trace: bool, shape: impl Fn(&mut Setup)) -> (World, Result<(), String>) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut setup = setup(&mut rng);
    shape(&mut setup);
    let mut world = World::new(start(), seed, setup);
    if trace {
        world.trace();
    }
    plan(&mut world, &mut rng);
    let result = course(&mut world, &mut rng);
    (world, result)
}

fn course(world: &mut World, rng: &mut Rng) -> Result<(), String> {
    if rng.percent(25) {
        again(world, rng).map_err(told)?;
    }
    world.run().map_err(told)?;
    if world.setup().fences {
        lives_on(world, rng)?;
    }
    world.close().map_err(told)
}

fn told(broken: Broken) -> String {
    broken.to_string()
}
