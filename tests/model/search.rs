//! Breadth-first search over all states that a scenario can reach.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::check;
use crate::config::Config;
use crate::state::State;
use crate::step::{self, Step};

/// What a search that found nothing wrong has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) states: usize,
    /// States in which nothing is left to happen by itself.
    pub(crate) ends: usize,
    /// Ends in which the first use has succeeded for everybody.
    pub(crate) successes: usize,
}

/// A broken rule and the shortest way to it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) rule: String,
    pub(crate) trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.rule)?;
        self.trace.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Visits every reachable state once. Only fingerprints of the states are kept, and for each the number
/// of the step that led there, so that the way can be walked again.
pub(crate) fn search(config: &Config) -> Result<Seen, Violation> {
    let start = State::start(config);
    let mut known: HashSet<u64, BuildHasherDefault<Identity>> = HashSet::default();
    known.insert(fingerprint(&start));
    let mut origins: Vec<(u32, u16)> = vec![(0, 0)];
    let mut frontier = vec![(start, 0_u32)];
    let (mut ends, mut successes) = (0, 0);
    let mut steps = Vec::new();
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (state, number) in frontier {
            step::steps(config, &state, &mut steps);
            if step::at_rest(&steps) {
                ends += 1;
                successes += usize::from(check::succeeded(config, &state));
                if let Err(rule) = check::end(config, &state) {
                    return Err(violation(config, &origins, number, None, &rule));
                }
            }
            for (choice, step) in (0_u16..).zip(&steps) {
                if let Err(rule) = check::step(config, &state, &step.next) {
                    return Err(violation(config, &origins, number, Some(step), &rule));
                }
                if known.insert(fingerprint(&step.next)) {
                    next.push((step.next, u32::try_from(origins.len()).expect("fewer than 2^32 states")));
                    origins.push((number, choice));
                }
            }
            assert!(origins.len() < MOST_STATES, "{config:?} is too large a scenario");
        }
        frontier = next;
    }
    Ok(Seen { states: origins.len(), ends, successes })
}

/// Walks from the start to state `number` again, naming each step.
fn violation(
    config: &Config,
    origins: &[(u32, u16)],
    number: u32,
    last: Option<&Step>,
    rule: &str,
) -> Violation {
    let mut choices = Vec::new();
    let mut at = number;
    while at != 0 {
        let (origin, choice) = origins[usize::try_from(at).expect("an index")];
        choices.push(choice);
        at = origin;
    }
    let mut state = State::start(config);
    let mut trace = Vec::new();
    let mut steps = Vec::new();
    for choice in choices.into_iter().rev() {
        step::steps(config, &state, &mut steps);
        let step = &steps[usize::from(choice)];
        trace.push(step.name.to_string());
        state = step.next;
    }
    trace.extend(last.map(|step| step.name.to_string()));
    Violation { rule: rule.to_owned(), trace }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = Mixer(0);
    state.hash(&mut hasher);
    hasher.finish()
}

/// Multiplies and rotates; 64 bits make a clash among some million states a matter of one in millions.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u8(byte);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(u64::try_from(value).expect("at most 64 bits"));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.unsigned_abs().try_into().expect("at most 64 bits"));
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

/// Keys are fingerprints already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Stops a scenario that has grown beyond a test's time and memory.
const MOST_STATES: usize = 6_000_000;
