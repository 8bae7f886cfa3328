//! Engines joined by a relay, or by a network that does as it is told.

use crate::bed::{LAYERS, Node, PAGE_BYTES, PAGE_TOKENS};
use kvferry::faults::{Relay, ScriptedNetwork};
use kvferry::transport::Transport;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{Config, Engine, GroupSizes, Place, Rank, Source, Sources};
use std::sync::mpsc;
use std::time::Duration;

impl Node {
    /// Bytes of a page, in all entries together.
    pub(crate) const PAGE: u64 = PAGE_BYTES * 2 * LAYERS as u64;

    /// Whether a page holds what `seed` says of the page at this place of a prompt.
    pub(crate) fn holds(&self, seed: u64, at: u32, page: u32) -> bool {
        self.first_wrong(seed, &[page], at * PAGE_TOKENS..(at + 1) * PAGE_TOKENS).is_none()
    }

    /// Where the bytes of a page lie in each pool.
    pub(crate) fn page_bytes(page: u32) -> std::ops::Range<u64> {
        let start = u64::from(page) * PAGE_BYTES;
        start..start + PAGE_BYTES
    }

    /// All its pages.
    pub(crate) fn pages(&self) -> std::ops::Range<u32> {
        0..(self.pools[0].len() / PAGE_BYTES) as u32
    }
}

/// A relay in front of an engine, and how the engine is reached through it.
pub(crate) fn relayed(node: &Node) -> (Relay, Sources) {
    let (name, address) = node.engine.addresses().swap_remove(0);
    let target = TcpTransport::decode_address(&address).unwrap().resolve().unwrap()[0];
    let relay = Relay::new(target).unwrap();
    let through = TcpTransport::encode_address(&relay.address().into()).unwrap();
    let source = Source::new(node.engine.place().rank, vec![(name, through.to_vec())]);
    (relay, Sources::Ranks(vec![source]))
}

/// An engine with pools, over TCP with so many lanes.
pub(crate) fn tcp(name: &str, pages: u32, lanes: u8, config: Config) -> Node {
    let transport = TcpTransport::new(TcpConfig::new().lanes(lanes)).unwrap();
    node(Place::alone(name), Box::new(transport), pages, config)
}

/// An engine with pools, at an end of a scripted network.
pub(crate) fn scripted(network: &ScriptedNetwork, name: &str, pages: u32, config: Config) -> Node {
    node(Place::alone(name), Box::new(network.endpoint(name).unwrap()), pages, config)
}

/// One of several prefill ranks at ends of a scripted network.
pub(crate) fn rank(network: &ScriptedNetwork, tp: u32, of: u32, pages: u32) -> Node {
    let place = Place::new("prefill", Rank::tp(tp), GroupSizes::tp(of));
    let transport = network.endpoint(&format!("prefill {tp}")).unwrap();
    node(place, Box::new(transport), pages, Config::default())
}

/// Waits for what another thread is about to do.
pub(crate) fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Ends the process if a test hangs.
pub(crate) fn watched(test: impl FnOnce()) {
    let (done, wait) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let dog = std::thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(180)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    test();
    drop(done);
    dog.join().unwrap();
}

fn node(place: Place, transport: Box<dyn Transport>, pages: u32, config: Config) -> Node {
    let builder = Engine::builder(place).model("test").config(config).boxed_transport(transport);
    Node::with(builder.build().unwrap(), pages)
}
