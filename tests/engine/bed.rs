//! Two engines, each with pools of its own, joined by some transport.

use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::transport::Transport;
use kvferry::transport::local::LocalNetwork;
#[cfg(feature = "shm")]
use kvferry::transport::shm::{ShmConfig, ShmTransport};
#[cfg(feature = "tcp")]
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    Chunk, Config, Engine, Finish, Grant, GroupId, KVReceiver, KVSender, Place, RegionId, Room, RoomOptions,
    Source, Sources,
};
pub(crate) use pollster::block_on;
use std::time::Duration;

pub(crate) const LAYERS: u32 = 3;
pub(crate) const PAGE_TOKENS: u32 = 4;
const TOKEN_BYTES: u64 = 2 * 16;
pub(crate) const PAGE_BYTES: u64 = PAGE_TOKENS as u64 * TOKEN_BYTES;
const ROW_BYTES: u64 = 24;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One engine and its pools.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) kv: GroupId,
    pub(crate) aux: GroupId,
    pub(crate) pools: Vec<HostBuffer>,
    pub(crate) rows: HostBuffer,
}

/// What joins the engines of a test.
pub(crate) enum Network {
    Local(LocalNetwork),
    #[cfg(feature = "shm")]
    Shm,
    #[cfg(feature = "tcp")]
    Tcp,
}

impl Network {
    pub(crate) fn local() -> Self {
        Self::Local(LocalNetwork::new())
    }

    pub(crate) fn node(&self, name: &str, pages: u32) -> Node {
        self.node_with(name, pages, Config::default())
    }

    pub(crate) fn node_with(&self, name: &str, pages: u32, config: Config) -> Node {
        let builder = Engine::builder(Place::alone(name)).model("test").config(config);
        Node::with(builder.boxed_transport(self.transport(name)).build().unwrap(), pages)
    }

    pub(crate) fn engine(&self, name: &str, model: &str) -> Engine {
        Engine::builder(Place::alone(name))
            .model(model)
            .boxed_transport(self.transport(name))
            .build()
            .unwrap()
    }

    pub(crate) fn transport(&self, name: &str) -> Box<dyn Transport> {
        match self {
            Self::Local(network) => Box::new(network.endpoint(name).unwrap()),
            #[cfg(feature = "shm")]
            Self::Shm => Box::new(ShmTransport::new(ShmConfig::new()).unwrap()),
            #[cfg(feature = "tcp")]
            Self::Tcp => Box::new(TcpTransport::new(TcpConfig::new()).unwrap()),
        }
    }

    /// A transport at an address that was in use before.
    pub(crate) fn transport_at(&self, address: &[u8]) -> Box<dyn Transport> {
        match self {
            Self::Local(network) => {
                Box::new(network.endpoint(std::str::from_utf8(address).unwrap()).unwrap())
            }
            #[cfg(feature = "shm")]
            Self::Shm => {
                // Version and host come before the name.
                let name = std::str::from_utf8(&address[17..]).unwrap();
                Box::new(ShmTransport::new(ShmConfig::new().name(name)).unwrap())
            }
            #[cfg(feature = "tcp")]
            Self::Tcp => {
                let bound = self.in_words(address).parse().unwrap();
                Box::new(TcpTransport::new(TcpConfig::new().bind(bound)).unwrap())
            }
        }
    }

    /// What errors say of an address.
    pub(crate) fn in_words(&self, address: &[u8]) -> String {
        self.transport("for words").describe(address)
    }

    /// The address of a peer that is not there.
    pub(crate) fn nobody(&self) -> (String, Vec<u8>) {
        let transport = self.transport("nobody");
        (transport.name().to_owned(), transport.local_address().to_vec())
    }
}

impl Node {
    pub(crate) fn with(engine: Engine, pages: u32) -> Self {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", PAGE_TOKENS, pages);
        let aux = layout.rows("aux", 8);
        let mut pools = Vec::new();
        for layer in 0..LAYERS {
            for role in [Role::Key, Role::Value] {
                let (pool, region) = register(&engine, PAGE_BYTES * u64::from(pages));
                pools.push(pool);
                let entry =
                    PoolEntry::token_major(kv, role, layer, region, PAGE_TOKENS, HeadSpan::all(2), 16);
                layout.push(entry.dtype("bf16"));
            }
        }
        let (rows, region) = register(&engine, ROW_BYTES * 8);
        layout.push(PoolEntry::new(aux, Role::Aux(0), region, ROW_BYTES).dtype("u8"));
        engine.set_layout(layout).unwrap();
        Self { engine, kv, aux, pools, rows }
    }

    /// Fills the tokens on these pages with what `seed` says they hold.
    pub(crate) fn fill(&self, seed: u64, pages: &[u32]) {
        for (entry, pool) in self.pools.iter().enumerate() {
            for (at, &page) in pages.iter().enumerate() {
                pool.write_at(u64::from(page) * PAGE_BYTES, &page_of(seed, entry, at));
            }
        }
    }

    /// The first token, if any, at which these pages do not hold what `seed` says.
    pub(crate) fn first_wrong(
        &self,
        seed: u64,
        pages: &[u32],
        tokens: std::ops::Range<u32>,
    ) -> Option<(usize, u32)> {
        for (entry, pool) in self.pools.iter().enumerate() {
            for token in tokens.clone() {
                let at = token / PAGE_TOKENS;
                let first = tokens.start / PAGE_TOKENS;
                let page = pages[(at - first) as usize];
                let inside = u64::from(token % PAGE_TOKENS) * TOKEN_BYTES;
                let found = pool.to_vec(u64::from(page) * PAGE_BYTES + inside, TOKEN_BYTES as usize);
                let wanted = &page_of(seed, entry, at as usize)[inside as usize..][..TOKEN_BYTES as usize];
                if found != wanted {
                    return Some((entry, token));
                }
            }
        }
        None
    }

    /// Whether the bytes of a page are all `byte`, in every layer.
    pub(crate) fn is_filled_with(&self, byte: u8, page: u32) -> bool {
        let page = |pool: &HostBuffer| pool.to_vec(u64::from(page) * PAGE_BYTES, PAGE_BYTES as usize);
        self.pools.iter().all(|pool| page(pool).iter().all(|found| *found == byte))
    }

    pub(crate) fn sources(&self) -> Sources {
        Sources::Ranks(vec![Source::new(self.engine.place().rank, self.engine.addresses())])
    }

    pub(crate) fn sender(&self, room: u64) -> KVSender {
        self.engine.sender(Room(room), RoomOptions::default()).unwrap()
    }

    pub(crate) fn receiver(&self, room: u64, from: &Self) -> KVReceiver {
        self.engine.receiver(Room(room), from.sources(), RoomOptions::default()).unwrap()
    }

    /// Lends pages for `tokens`.
    pub(crate) fn lend(&self, receiver: &KVReceiver, tokens: std::ops::Range<u32>, pages: &[u32]) {
        receiver.grant(Grant::new(tokens).pages(self.kv, pages)).unwrap();
    }

    /// Sends all of a prompt whose pages these are, in chunks of so many tokens.
    pub(crate) fn send_all(&self, sender: &KVSender, tokens: u32, chunk: u32, pages: &[u32]) {
        for start in (0..tokens).step_by(chunk as usize) {
            let end = (start + chunk).min(tokens);
            let named = &pages[(start / PAGE_TOKENS) as usize..end.div_ceil(PAGE_TOKENS) as usize];
            sender.send(Chunk::new(start..end).pages(self.kv, named)).unwrap();
        }
        sender.finish(Finish::new(tokens).payload(b"first token")).unwrap();
    }
}

fn register(engine: &Engine, bytes: u64) -> (HostBuffer, RegionId) {
    let buffer = HostBuffer::zeroed(bytes).unwrap();
    buffer.fill(CANARY);
    let region = engine.register(|id| buffer.region(id)).unwrap();
    (buffer, region)
}

fn page_of(seed: u64, entry: usize, at: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ((entry as u64) << 32) ^ at as u64;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..PAGE_BYTES).map(byte).collect()
}

pub(crate) const CANARY: u8 = 0xA5;
