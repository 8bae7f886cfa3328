//! The rules of a room on virtual time: real sessions, layouts and frames between simulated nodes, links
//! and memory. One seed gives one course of events, whatever the machine.
//!
//! - `mod.rs`: the world, its events and its clock
//! - `setup.rs`: what a world is made of
//! - `calls.rs`: what users may do
//! - `users.rs`: how they do it
//! - `faults.rs`: what befalls processes, links and single frames
//! - `rogue.rs`: peers that say what they should not
//! - `node.rs`: the driver of each process: one call to a session, then its actions
//! - `net.rs`: connections
//! - `transport.rs`: two ways in which bytes move, with all that may go wrong
//! - `pool.rs`: memory that knows who may touch it
//! - `check.rs`: what must hold after every step, and at the end
//! - `due.rs`: until when each room must have ended
//! - `rng.rs`: the dice
#![forbid(unsafe_code)]

mod calls;
mod check;
mod due;
mod faults;
mod net;
mod node;
mod pool;
mod rng;
mod rogue;
mod setup;
mod transport;
mod users;

pub use calls::Call;
pub use check::{Broken, Tally};
pub use faults::Mishap;
pub use rng::Rng;
pub use setup::{Flaw, Model, Setup};

use crate::error::KVTransferError;
use crate::ids::{GrantId, Party, Room};
use crate::poll::{KVPoll, Release};
use crate::session::ReceiverSession;
use bytes::Bytes;
use check::Watch;
use faults::Disturbance;
use net::Net;
use node::Node;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use transport::{Fabric, Move};

/// Nodes of both sides, all that connects them, and the time.
#[derive(Debug)]
pub struct World {
    start: Instant,
    now: Duration,
    agenda: BTreeMap<(Duration, u64), Event>,
    planned: u64,
    steps: u64,
    /// Events that had happened when a test last did something.
    called: u64,
    rng: Rng,
    setup: Setup,
    /// Every process there ever was.
    nodes: Vec<Node>,
    /// The process that lives at each address now.
    living: Vec<usize>,
    net: Net,
    fabric: Fabric,
    watch: Watch,
    disturbances: Vec<Disturbance>,
    /// Processes that say what they should not.
    rogues: BTreeSet<usize>,
    /// Receivers there were, and frames somebody sent: what a rogue can know.
    known: Vec<GrantId>,
    /// An attempt of a room was used twice, so that the same may be said of either use.
    reused: bool,
    overheard: VecDeque<Bytes>,
    tags: u32,
    generations: u64,
    log: Option<Vec<String>>,
}

#[derive(Clone, Debug)]
enum Event {
    /// A user does something.
    Call(Call),
    /// An end of a connection comes to know it.
    Connected { conn: usize, end: usize },
    /// A control frame arrives.
    Control { conn: usize, end: usize, frame: u64 },
    /// An end of a connection hears that it has ended.
    Down { conn: usize, end: usize, quiesced: bool },
    /// Bytes move.
    Fabric(Move),
    /// A sender's node may post writes.
    Pull { node: usize },
    /// A deadline of this node may have come.
    Timer { node: usize },
}

impl World {
    /// A world whose time starts at `start` and whose chances are those of `seed`.
    pub fn new(start: Instant, seed: u64, setup: Setup) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = Node::all(&setup, &mut rng);
        Self {
            start,
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            planned: 0,
            steps: 0,
            called: 0,
            rng,
            living: (0..nodes.len()).collect(),
            nodes,
            net: Net::default(),
            fabric: Fabric::default(),
            watch: Watch::default(),
            disturbances: Vec::new(),
            rogues: BTreeSet::new(),
            known: Vec::new(),
            reused: false,
            overheard: VecDeque::new(),
            tags: 0,
            generations: 0,
            log: None,
            setup,
        }
    }

    /// Keeps a line for each event from now on.
    pub fn trace(&mut self) {
        self.log = Some(Vec::new());
    }

    /// The lines kept.
    pub fn log(&self) -> &[String] {
        self.log.as_deref().unwrap_or_default()
    }

    /// Lets a user do something now.
    pub fn call(&mut self, call: Call) -> &mut Self {
        self.called = self.steps;
        match self.held_up(&Event::Call(call.clone())) {
            HeldUp::Until(thaw) => self.plan(thaw, Event::Call(call)),
            _ => {
                self.record(|| format!("{call:?}"));
                self.make(call);
                self.tidy();
            }
        }
        self
    }

    /// Lets a user do something in a while.
    pub fn after(&mut self, wait: Duration, call: Call) -> &mut Self {
        self.plan(self.now + wait, Event::Call(call));
        self
    }

    /// Lets the next event happen; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(((at, _), event)) = self.agenda.pop_first() else { return false };
        self.now = at;
        self.steps += 1;
        if self.steps - self.called > MAX_STEPS {
            self.watch.violated(format!("no end {MAX_STEPS} steps after the last call"));
            self.agenda.clear();
            return false;
        }
        self.check_overdue();
        match self.held_up(&event) {
            HeldUp::Gone => {}
            HeldUp::Until(thaw) => self.plan(self.resumes(&event, thaw), event),
            HeldUp::No => {
                self.record(|| format!("{event:?}"));
                self.happen(event);
                self.tidy();
            }
        }
        true
    }

    /// Lets everything happen that will, then looks at the end.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn run(&mut self) -> Result<(), Broken> {
        while self.watch.is_whole() && self.step() {}
        if self.watch.is_whole() {
            self.check_end();
        }
        self.verdict()
    }

    /// Lets everything happen, lets go of every handle, and looks whether anything is left anywhere.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn close(&mut self) -> Result<(), Broken> {
        self.run()?;
        for node in 0..self.living.len() {
            let own = self.process(node);
            let senders = own.senders.iter().map(|room| room.room);
            let rooms: Vec<_> = senders.chain(own.receivers.iter().map(|room| room.id.room)).collect();
            for room in rooms {
                self.call(Call::Drop { node, room });
            }
        }
        self.run()?;
        self.check_empty();
        self.verdict()
    }

    /// Lets everything happen that happens within `time`.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Broken> {
        let end = self.now + time;
        while self.watch.is_whole() && self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            self.step();
        }
        self.now = end;
        self.verdict()
    }

    /// Lets things happen until `is_so`, or until nothing is left.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<(), Broken> {
        while self.watch.is_whole() && !is_so(self) && self.step() {}
        self.verdict()
    }

    /// What the checks have to say.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn verdict(&self) -> Result<(), Broken> {
        self.watch.verdict()
    }

    /// What the world is made of.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The node of a prefill rank.
    pub fn prefill(&self, rank: usize) -> usize {
        rank
    }

    /// The node of a decode rank.
    pub fn decode(&self, rank: usize) -> usize {
        self.setup.prefill + rank
    }

    /// Where the latest use of a room stands at a node.
    pub fn state(&self, node: usize, room: Room) -> Option<KVPoll> {
        self.process(node).session(room).map(|session| session.state())
    }

    /// Whether the pages of the latest use of a room are the caller's again.
    pub fn release(&self, node: usize, room: Room) -> Option<Release> {
        self.process(node).session(room).map(|session| session.release())
    }

    /// Why the latest use of a room failed at a node.
    pub fn error(&self, node: usize, room: Room) -> Option<&KVTransferError> {
        self.process(node).session(room)?.error()
    }

    /// The session of the latest use of a room at a decode node.
    pub fn receiver(&self, node: usize, room: Room) -> Option<&ReceiverSession> {
        self.process(node).receivers.iter().rev().find(|r| r.id.room == room).map(|r| &r.session)
    }

    /// Whether a node's process runs.
    pub fn is_alive(&self, node: usize) -> bool {
        self.process(node).alive
    }

    /// Who a node is.
    pub fn party(&self, node: usize) -> Party {
        self.process(node).party
    }

    /// What became of every receiver there was.
    pub fn tally(&self) -> &Tally {
        &self.watch.tally
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now
    }

    /// Events that have happened.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Frames dropped since no room wanted them.
    pub fn strays(&self) -> u64 {
        self.watch.strays
    }

    /// Writes that all bytes of arrived, duplicates counted.
    pub fn landings(&self) -> u64 {
        self.watch.landings
    }

    /// The process that lives at an address.
    fn process(&self, node: usize) -> &Node {
        &self.nodes[self.living[node]]
    }

    fn instant(&self) -> Instant {
        self.start + self.now
    }

    fn plan(&mut self, at: Duration, event: Event) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), event);
    }

    fn record(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>10.3?} {}", self.now, line()));
        }
    }

    /// Whether the process that an event happens in is stopped or gone.
    fn held_up(&self, event: &Event) -> HeldUp {
        let node = match event {
            Event::Call(call) => match call.process() {
                Some(node) => self.living[node],
                None => return HeldUp::No,
            },
            Event::Connected { conn, end }
            | Event::Control { conn, end, .. }
            | Event::Down { conn, end, .. } => self.net.conns[*conn].nodes[*end],
            Event::Fabric(step) => match self.process_of(step) {
                Some(node) => node,
                None => return HeldUp::No,
            },
            Event::Pull { node } | Event::Timer { node } => *node,
        };
        let node = &self.nodes[node];
        match node.frozen {
            _ if !node.alive => HeldUp::Gone,
            Some(until) if until > self.now => HeldUp::Until(until),
            _ => HeldUp::No,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Call(call) => self.make(call),
            Event::Connected { conn, end } => self.connected(conn, end),
            Event::Control { conn, end, frame } => self.arrived(conn, end, frame),
            Event::Down { conn, end, quiesced } => self.went_down(conn, end, quiesced),
            Event::Fabric(step) => self.moved(step),
            Event::Pull { node } => self.pull(node),
            Event::Timer { node } => self.timer(node),
        }
    }
}

enum HeldUp {
    No,
    Until(Duration),
    Gone,
}

/// Events after the last call at most; an honest world needs a few thousand.
const MAX_STEPS: u64 = 400_000;
