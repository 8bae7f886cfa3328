//! One engine with its pools and rooms: a side of a test, in this process or in a peer's.

use crate::plan::Plan;
use kvferry::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::{
    Chunk, Deadlines, Engine, Finish, Grant, GroupId, GroupSizes, KVPoll, KVReceiver, KVSender,
    KVTransferError, Place, Rank, Release, Room, RoomOptions, Source, Sources, UsageError,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) const LAYERS: u32 = 3;
pub(crate) const PAGE_TOKENS: u32 = 16;
const HEADS: u32 = 4;
const HEAD_BYTES: u64 = 128;
const PAGE_BYTES: u64 = PAGE_TOKENS as u64 * HEADS as u64 * HEAD_BYTES;

/// What pages hold that are never lent.
const CANARY: u8 = 0xA5;
/// What pages hold that may be lent, while they are not.
const FREE: u8 = 0xEE;

/// Ends a hung test; nothing waits that long when all is well, and deadlines are far longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An engine, its pools, and its rooms by number. Every second page is never lent, nor is what lies
/// before and behind the pages of a pool.
pub(crate) struct End {
    pub(crate) engine: Engine,
    kv: GroupId,
    pools: Vec<HostBuffer>,
    free: Vec<u32>,
    rooms: BTreeMap<u64, Open>,
    /// Makes the bytes of a room's second use others than those of its first.
    pub(crate) salt: u64,
}

struct Open {
    handle: Handle,
    pages: Vec<u32>,
    tokens: u32,
}

enum Handle {
    Receiver(KVReceiver),
    Sender(KVSender),
}

/// How a room ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) state: KVPoll,
    pub(crate) release: Release,
    pub(crate) error: Option<KVTransferError>,
}

impl End {
    pub(crate) fn new(plan: &Plan) -> Self {
        let place = Place::new(plan.group.clone(), Rank::tp(plan.tp), GroupSizes::tp(8));
        let builder = Engine::builder(place).model("test").config(plan.config());
        let engine = builder.boxed_transport(plan.transport()).build().unwrap();
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", PAGE_TOKENS, plan.pages);
        let mut pools = Vec::new();
        for layer in 0..LAYERS {
            for role in [Role::Key, Role::Value] {
                let pool = HostBuffer::zeroed(PAGE_BYTES * (u64::from(plan.pages) + 2)).unwrap();
                pool.fill(CANARY);
                let region = engine.register(|id| pool.region(id)).unwrap();
                let heads = HeadSpan::all(HEADS);
                let entry = PoolEntry::token_major(kv, role, layer, region, PAGE_TOKENS, heads, HEAD_BYTES);
                layout.push(entry.offset(PAGE_BYTES).dtype("bf16"));
                pools.push(pool);
            }
        }
        engine.set_layout(layout).unwrap();
        let free: Vec<u32> = (0..plan.pages).filter(|page| page % 2 == 1).collect();
        let end = Self { engine, kv, pools, free, rooms: BTreeMap::new(), salt: plan.salt };
        end.refill(&end.free);
        end
    }

    /// How peers reach this end.
    pub(crate) fn source(&self) -> Source {
        Source::new(self.engine.place().rank, self.engine.addresses())
    }

    pub(crate) fn open(&mut self, room: u64) {
        self.try_open(room, None).unwrap();
    }

    pub(crate) fn receive(&mut self, room: u64, from: Vec<Source>) {
        self.try_receive(room, from, None).unwrap();
    }

    /// A sender, with this deadline in place of the engine's if one is given.
    pub(crate) fn try_open(&mut self, room: u64, within: Option<Duration>) -> Result<(), UsageError> {
        let sender = self.engine.sender(Room(room), options(within))?;
        self.keep(room, Handle::Sender(sender));
        Ok(())
    }

    /// A receiver, with this deadline in place of the engine's if one is given.
    pub(crate) fn try_receive(
        &mut self,
        room: u64,
        from: Vec<Source>,
        within: Option<Duration>,
    ) -> Result<(), UsageError> {
        let receiver = self.engine.receiver(Room(room), Sources::Ranks(from), options(within))?;
        self.keep(room, Handle::Receiver(receiver));
        Ok(())
    }

    /// Lends pages for a prompt of so many tokens.
    pub(crate) fn grant(&mut self, room: u64, tokens: u32) {
        let pages = self.take_pages(tokens);
        let open = self.rooms.get_mut(&room).unwrap();
        let Handle::Receiver(receiver) = &open.handle else { panic!("room {room} is a sender's") };
        receiver.grant(Grant::new(0..tokens).pages(self.kv, &pages)).unwrap();
        (open.pages, open.tokens) = (pages, tokens);
    }

    /// Computes so many tokens more, whole pages of them, and sends them.
    pub(crate) fn send(&mut self, room: u64, tokens: u32) {
        let pages = self.take_pages(tokens);
        let start = self.rooms[&room].tokens;
        for (at, &page) in pages.iter().enumerate() {
            for (entry, pool) in self.pools.iter().enumerate() {
                let at = (start / PAGE_TOKENS) as usize + at;
                pool.write_at(place(page), &self.content(room, entry, at));
            }
        }
        let chunk = Chunk::new(start..start + tokens).pages(self.kv, &pages);
        self.sender(room).send(chunk).unwrap();
        let open = self.rooms.get_mut(&room).unwrap();
        open.pages.extend(pages);
        open.tokens += tokens;
    }

    pub(crate) fn finish(&self, room: u64) {
        self.sender(room).finish(Finish::new(self.rooms[&room].tokens)).unwrap();
    }

    pub(crate) fn abort(&self, room: u64) {
        match &self.rooms[&room].handle {
            Handle::Receiver(receiver) => receiver.abort("enough"),
            Handle::Sender(sender) => sender.abort("enough"),
        }
    }

    pub(crate) fn poll(&self, room: u64) -> KVPoll {
        match &self.rooms[&room].handle {
            Handle::Receiver(receiver) => receiver.poll(),
            Handle::Sender(sender) => sender.poll(),
        }
    }

    /// Waits until the room is past `Bootstrapping`: connected, or granted.
    pub(crate) fn wait_joined(&self, room: u64) {
        until("a room to be joined", || self.poll(room) != KVPoll::Bootstrapping);
    }

    /// Waits until a receiver has so many tokens.
    pub(crate) fn wait_ready(&self, room: u64, tokens: u32) {
        let Handle::Receiver(receiver) = &self.rooms[&room].handle else { panic!("no receiver") };
        until("tokens to arrive", || receiver.ready_tokens() >= tokens);
    }

    /// Waits for the end of a room and for its pages.
    pub(crate) fn wait(&self, room: u64) -> Outcome {
        match &self.rooms[&room].handle {
            Handle::Receiver(receiver) => {
                let state = receiver.wait(PATIENCE);
                Outcome { state, release: receiver.release(), error: receiver.error() }
            }
            Handle::Sender(sender) => {
                let state = sender.wait(PATIENCE);
                Outcome { state, release: sender.release(), error: sender.error() }
            }
        }
    }

    /// Waits for the end of a room; what succeeded must be exact. Its pages are free from now on, and hold
    /// what free pages hold.
    pub(crate) fn end(&mut self, room: u64) -> Outcome {
        let outcome = self.wait(room);
        assert!(outcome.state.is_terminal(), "room {room} has not ended: {outcome:?}");
        assert_eq!(outcome.release, Release::Safe, "room {room}: {outcome:?}");
        let Open { handle, pages, .. } = self.rooms.remove(&room).unwrap();
        if outcome.state == KVPoll::Success && matches!(handle, Handle::Receiver(_)) {
            self.check_exact(room, &pages);
        }
        self.refill(&pages);
        self.free.extend(pages);
        outcome
    }

    /// The first page, if any, that is not lent and was written all the same.
    pub(crate) fn stain(&self) -> Option<String> {
        let mut expected = vec![CANARY; (self.pools[0].len() / PAGE_BYTES) as usize];
        let lent = self.rooms.values().flat_map(|open| &open.pages);
        self.free.iter().for_each(|&page| expected[page as usize + 1] = FREE);
        let skipped: Vec<usize> = lent.map(|&page| page as usize + 1).collect();
        let mut bytes = vec![0; PAGE_BYTES as usize];
        for (entry, pool) in self.pools.iter().enumerate() {
            for (at, byte) in expected.iter().enumerate().filter(|(at, _)| !skipped.contains(at)) {
                pool.read_at(at as u64 * PAGE_BYTES, &mut bytes);
                if bytes != [*byte; PAGE_BYTES as usize] {
                    return Some(format!("page {at} of pool {entry} does not hold {byte:#x} any more"));
                }
            }
        }
        None
    }

    fn check_exact(&self, room: u64, pages: &[u32]) {
        for (entry, pool) in self.pools.iter().enumerate() {
            for (at, &page) in pages.iter().enumerate() {
                let found = pool.to_vec(place(page), PAGE_BYTES as usize);
                assert!(
                    found == self.content(room, entry, at),
                    "room {room}: pool {entry}, page {at} is wrong"
                );
            }
        }
    }

    /// What page `at` of a room's prompt holds in one pool.
    fn content(&self, room: u64, entry: usize, at: usize) -> Vec<u8> {
        let mut state = (room ^ (self.salt << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ ((entry as u64) << 32)
            ^ at as u64;
        let words = (0..PAGE_BYTES / 8).flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state ^ (state >> 29)).to_le_bytes()
        });
        words.collect()
    }

    fn sender(&self, room: u64) -> &KVSender {
        let Handle::Sender(sender) = &self.rooms[&room].handle else { panic!("room {room} is a receiver's") };
        sender
    }

    fn keep(&mut self, room: u64, handle: Handle) {
        self.rooms.insert(room, Open { handle, pages: Vec::new(), tokens: 0 });
    }

    fn take_pages(&mut self, tokens: u32) -> Vec<u32> {
        let left = self.free.len().checked_sub(tokens.div_ceil(PAGE_TOKENS) as usize).expect("free pages");
        // The oldest first would never reuse a page soon; the newest first always does.
        self.free.split_off(left)
    }

    fn refill(&self, pages: &[u32]) {
        for pool in &self.pools {
            pages.iter().for_each(|&page| pool.write_at(place(page), &[FREE; PAGE_BYTES as usize]));
        }
    }
}

/// Waits for what another thread or process does.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Deadlines that no test lives to see, or this one for everything.
pub(crate) fn deadlines(within: Duration) -> Deadlines {
    let mut deadlines = Deadlines::default();
    deadlines.discover = within;
    deadlines.handshake = within;
    deadlines.waiting_for_input = within;
    deadlines.stall = within;
    deadlines.drain = within;
    deadlines
}

fn options(within: Option<Duration>) -> RoomOptions {
    let options = RoomOptions::default();
    match within {
        Some(within) => options.deadlines(deadlines(within)),
        None => options,
    }
}

fn place(page: u32) -> u64 {
    (u64::from(page) + 1) * PAGE_BYTES
}

impl Outcome {
    pub(crate) fn succeeded(&self) -> bool {
        self.state == KVPoll::Success
    }

    /// Fails unless the room failed because this peer was lost.
    pub(crate) fn assert_lost(&self, side: kvferry::Side, tp: u32) {
        let error = self.error.as_ref().unwrap_or_else(|| panic!("failed for the lost peer: {self:?}"));
        assert_eq!(error.kind, kvferry::ErrorKind::PeerLost, "{error}");
        assert!(error.is_from_another_rank(), "{error}");
        assert_eq!((error.party().side, error.rank()), (side, Rank::tp(tp)), "{error}");
    }
}
