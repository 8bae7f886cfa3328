//! Groups that are cut differently: a receiver made from a group joins the ranks that feed it.

use crate::bed::{Network, PATIENCE};
use kvferry::bootstrap::FixedDirectory;
use kvferry::layout::{HeadSpan, Holding, PoolEntry, PoolLayout, Role, Share, TokenShard};
use kvferry::memory::HostBuffer;
use kvferry::{
    Chunk, Engine, ErrorKind, Finish, Grant, GroupId, GroupSizes, KVPoll, KVReceiver, Place, Rank, Room,
    RoomOptions, Source, Sources,
};
use std::ops::Range;
use std::sync::Arc;

/// How a group is cut, and how its ranks lay out what they hold.
#[derive(Clone, Copy)]
struct Cut {
    sizes: GroupSizes,
    heads: Option<u32>,
    page_tokens: u32,
    by_heads: bool,
    tokens: fn(Rank) -> TokenShard,
    /// Each room says how its tokens are dealt out, the engine does not.
    is_by_room: bool,
}

/// One rank of a group.
struct Worker {
    engine: Engine,
    cut: Cut,
    holding: Holding,
    kv: GroupId,
    aux: GroupId,
    pools: Vec<(u32, HostBuffer)>,
    rows: HostBuffer,
}

pub(crate) fn ranks_that_are_cut_differently_feed_each_other(network: &Network) {
    let tp = |tp, heads| Cut { sizes: GroupSizes::tp(tp), ..alone(heads) };
    let stages = |pp, tp| Cut { sizes: GroupSizes { dp: 1, pp, cp: 1, tp }, ..alone(Some(2)) };
    let paged = |page_tokens, cut| Cut { page_tokens, ..cut };
    let wide = |cut| Cut { page_tokens: 8, by_heads: true, ..cut };
    for (name, prefill, decode) in [
        ("more prefill ranks", tp(4, Some(4)), wide(tp(2, Some(4)))),
        ("more decode ranks", wide(tp(1, Some(4))), tp(4, Some(4))),
        ("three to two", tp(3, Some(6)), tp(2, Some(6))),
        ("fewer heads than ranks", tp(4, Some(2)), tp(1, Some(2))),
        ("latent", tp(4, None), tp(2, None)),
        ("stages to one", stages(2, 1), stages(1, 2)),
        ("one to stages", stages(1, 2), stages(3, 1)),
        ("stages of four to one of two", stages(2, 4), tp(2, Some(2))),
        ("small pages to large", paged(16, tp(2, Some(2))), paged(64, tp(1, Some(2)))),
        ("large pages to tokens", paged(64, tp(1, Some(2))), paged(1, tp(2, Some(2)))),
    ] {
        Groups::new(network, name, prefill, decode).serve(name, 0..2);
    }
}

pub(crate) fn dealt_out_tokens_are_gathered_and_dealt_out_anew(network: &Network) {
    let sizes = GroupSizes { dp: 1, pp: 1, cp: 2, tp: 1 };
    let whole = Cut { sizes: GroupSizes::ONE, ..alone(None) };
    let pages = Cut { sizes, tokens: |rank| TokenShard { granule: 4, step: 2, phase: rank.cp }, ..whole };
    let every = Cut { sizes, tokens: |rank| TokenShard { granule: 1, step: 2, phase: rank.cp }, ..whole };
    for (name, prefill, decode) in [
        ("pages to one", pages, whole),
        ("one to every second token", whole, every),
        ("pages to tokens", pages, every),
    ] {
        Groups::new(network, name, prefill, decode).serve(name, 0..2);
    }
}

pub(crate) fn rooms_deal_out_their_tokens_in_their_own_way(network: &Network) {
    let sizes = GroupSizes { dp: 1, pp: 1, cp: 2, tp: 1 };
    let runs = |rank: Rank| TokenShard::run(TOKENS.end, 4, 2, rank.cp);
    let by_run = Cut { sizes, tokens: runs, is_by_room: true, ..alone(None) };
    let groups = Groups::new(network, "runs", by_run, alone(None));
    let (decode, row) = (&groups.decode[0], [0]);
    let receiver = |room, sent: fn(Rank) -> TokenShard| {
        let sources = groups.prefill.iter().map(|worker| {
            let rank = worker.engine.place().rank;
            let mut source = Source::new(rank, worker.engine.addresses());
            source.share = Some(Share::WHOLE.tokens(sent(rank), TokenShard::WHOLE));
            source
        });
        let sources = Sources::Ranks(sources.collect());
        let receiver = decode.engine.receiver(room, sources, RoomOptions::default()).unwrap();
        let pages = decode.pages(&TOKENS);
        receiver.grant(Grant::new(TOKENS).pages(decode.kv, &pages).rows(decode.aux, &row)).unwrap();
        receiver
    };
    decode.clear();
    let (senders, fed) = (groups.prefill.iter().map(|worker| worker.send(Room(0))), receiver(Room(0), runs));
    let senders: Vec<_> = senders.collect();
    assert_eq!(fed.wait(PATIENCE), KVPoll::Success, "{:?}", fed.error());
    senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Success));
    decode.check("runs", Room(0));

    let pages = |rank: Rank| TokenShard { granule: 4, step: 2, phase: rank.cp };
    let senders: Vec<_> = groups.prefill.iter().map(|worker| worker.send(Room(1))).collect();
    let misled = receiver(Room(1), pages);
    assert_eq!(misled.wait(PATIENCE), KVPoll::Failed);
    let error = misled.error().unwrap();
    let at = error.party().rank.cp; // whoever was asked first
    let held = |granule| format!("part {at} of 2, {granule} tokens at a time");
    let expected = format!("tokens held: {} here, {} in the grant", held(12), held(4));
    assert!(error.to_string().contains(&expected), "{error}");
    senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Failed));
}

pub(crate) fn replicas_take_turns_and_those_who_owe_nothing_succeed_too(network: &Network) {
    let groups = Groups::new(network, "turns", Cut { sizes: GroupSizes::tp(3), ..alone(None) }, alone(None));
    groups.serve("turns", 0..6);
    let sent: Vec<_> = groups.prefill.iter().map(|worker| worker.engine.stats().bytes).collect();
    assert!(sent.iter().all(|&bytes| bytes == sent[0] && bytes > 0), "{sent:?}");
}

pub(crate) fn groups_that_cannot_feed_each_other_are_refused_by_name(network: &Network) {
    let cut = |heads| Cut { sizes: GroupSizes::tp(2), ..alone(Some(heads)) };
    let groups = Groups::new(network, "heads", cut(4), cut(8));
    let receiver = groups.decode[0].receiver(Room(1), "heads");
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!(error.kind, ErrorKind::Layout);
    let expected = "prefill rank dp0 pp0 cp0 tp0 and decode rank dp0 pp0 cp0 tp0 count heads differently";
    assert!(error.to_string().contains(expected), "{error}");
}

struct Groups {
    prefill: Vec<Worker>,
    decode: Vec<Worker>,
}

impl Groups {
    fn new(network: &Network, name: &str, prefill: Cut, decode: Cut) -> Self {
        let directory = Arc::new(FixedDirectory::new());
        let group = |side: &str, cut: Cut| {
            let group = format!("{name}{side}");
            let worker = |rank: Rank| Worker::new(network, &directory, &group, rank, cut);
            let of_stage = |pp| {
                (0..cut.sizes.cp)
                    .flat_map(move |cp| (0..cut.sizes.tp).map(move |tp| Rank { dp: 0, pp, cp, tp }))
            };
            (0..cut.sizes.pp).flat_map(of_stage).map(worker).collect()
        };
        Self { prefill: group("", prefill), decode: group(" decode", decode) }
    }

    /// Moves a request in each of these rooms, and looks at every byte.
    fn serve(&self, name: &str, rooms: Range<u64>) {
        for room in rooms.map(Room) {
            let receivers: Vec<_> = self.decode.iter().map(|worker| worker.receiver(room, name)).collect();
            let senders: Vec<_> = self.prefill.iter().map(|worker| worker.send(room)).collect();
            for (worker, receiver) in self.decode.iter().zip(&receivers) {
                worker.clear();
                let (pages, row) = (worker.pages(&TOKENS), [u32::try_from(room.0).unwrap()]);
                receiver.grant(Grant::new(TOKENS).pages(worker.kv, &pages).rows(worker.aux, &row)).unwrap();
            }
            for receiver in &receivers {
                assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{name}: {:?}", receiver.error());
            }
            for sender in &senders {
                assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{name}: {:?}", sender.error());
            }
            for worker in &self.decode {
                worker.check(name, room);
            }
        }
    }
}

impl Worker {
    fn new(network: &Network, directory: &Arc<FixedDirectory>, group: &str, rank: Rank, cut: Cut) -> Self {
        let tokens = (cut.tokens)(rank);
        let engine = Engine::builder(Place::new(group, rank, cut.sizes))
            .tokens(if cut.is_by_room { TokenShard::WHOLE } else { tokens })
            .directory(Arc::clone(directory) as _)
            .boxed_transport(network.transport(&format!("{group} {rank}")))
            .build()
            .unwrap();
        let holding = Holding::even(cut.sizes, rank, cut.heads, LAYERS).tokens(tokens);
        let mut layout = PoolLayout::new();
        let (kv, aux) = (layout.paged("kv", cut.page_tokens, PAGES), layout.rows("aux", 8));
        let mut pools = Vec::new();
        let heads = holding.heads.unwrap_or(HeadSpan::all(1));
        let item_bytes = u64::from(cut.page_tokens * heads.count) * HEAD_BYTES;
        let register = |bytes| {
            let buffer = HostBuffer::zeroed(bytes).unwrap();
            let region = engine.register(|id| buffer.region(id)).unwrap();
            (buffer, region)
        };
        for layer in holding.layers.iter() {
            let (buffer, region) = register(u64::from(PAGES) * item_bytes);
            pools.push((layer, buffer));
            let (page, role) = (cut.page_tokens, Role::KeyValue);
            layout.push(match (holding.heads, cut.by_heads) {
                (None, _) => PoolEntry::new(kv, Role::Latent, region, item_bytes).layer(layer),
                (_, true) => PoolEntry::head_major(kv, role, layer, region, page, heads, HEAD_BYTES),
                (_, false) => PoolEntry::token_major(kv, role, layer, region, page, heads, HEAD_BYTES),
            });
        }
        let (rows, region) = register(8 * 8);
        layout.push(PoolEntry::new(aux, Role::Aux(0), region, 8));
        engine.set_layout(layout).unwrap();
        let worker = Self { engine, cut, holding, kv, aux, pools, rows };
        worker.each(|name, buffer, offset| buffer.write_at(offset, &value(name).to_le_bytes()));
        (0..8).for_each(|row| worker.rows.write_at(8 * row, &row.to_le_bytes()));
        worker
    }

    fn receiver(&self, room: Room, from: &str) -> KVReceiver {
        self.engine.receiver(room, Sources::group(from), RoomOptions::default()).unwrap()
    }

    fn send(&self, room: Room) -> kvferry::KVSender {
        let usual = RoomOptions::default();
        let options = if self.cut.is_by_room { usual.tokens(self.holding.tokens) } else { usual };
        let sender = self.engine.sender(room, options).unwrap();
        for tokens in [TOKENS.start..9, 9..TOKENS.end] {
            sender.send(Chunk::new(tokens.clone()).pages(self.kv, &self.pages(&tokens))).unwrap();
        }
        let row = [u32::try_from(room.0).unwrap()];
        sender.finish(Finish::new(TOKENS.end).rows(self.aux, &row)).unwrap();
        sender
    }

    /// The pages of these tokens: of page `n` of the request, page `PAGES - 1 - n`.
    fn pages(&self, tokens: &Range<u32>) -> Vec<u32> {
        let held = self.holding.tokens.held(tokens);
        let (first, end) = (held.start / self.cut.page_tokens, held.end.div_ceil(self.cut.page_tokens));
        (first..end.max(first)).map(|page| PAGES - 1 - page).collect()
    }

    fn clear(&self) {
        self.pools.iter().for_each(|(_, buffer)| buffer.fill(0));
        self.rows.fill(0xff);
    }

    fn check(&self, name: &str, room: Room) {
        let rank = self.engine.place().rank;
        self.each(|cell, buffer, offset| {
            let found = buffer.to_vec(offset, HEAD_BYTES.try_into().unwrap());
            assert_eq!(found, value(cell).to_le_bytes(), "{name}: {cell:?} at {rank}");
        });
        assert_eq!(self.rows.to_vec(8 * room.0, 8), room.0.to_le_bytes(), "{name}: the row at {rank}");
    }

    /// Every head of every token that it holds: layer, token and head, and where they lie.
    fn each(&self, visit: impl Fn((u32, u32, u32), &HostBuffer, u64)) {
        let (page_tokens, heads) = (self.cut.page_tokens, self.holding.heads.unwrap_or(HeadSpan::all(1)));
        for (layer, buffer) in &self.pools {
            for token in TOKENS.filter(|token| self.holding.tokens.holds(*token)) {
                let local = self.holding.tokens.held_before(token);
                let (page, slot) = (PAGES - 1 - local / page_tokens, local % page_tokens);
                for head in 0..heads.count {
                    let cell =
                        if self.cut.by_heads { head * page_tokens + slot } else { slot * heads.count + head };
                    let cells = u64::from(page * page_tokens * heads.count + cell);
                    visit((*layer, token, heads.first + head), buffer, cells * HEAD_BYTES);
                }
            }
        }
    }
}

fn alone(heads: Option<u32>) -> Cut {
    Cut {
        sizes: GroupSizes::ONE,
        heads,
        page_tokens: 4,
        by_heads: false,
        tokens: |_| TokenShard::WHOLE,
        is_by_room: false,
    }
}

fn value((layer, token, head): (u32, u32, u32)) -> u64 {
    let name = u64::from(layer) << 48 | u64::from(token) << 16 | u64::from(head);
    (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const TOKENS: Range<u32> = 0..21;
const LAYERS: u32 = 3;
const PAGES: u32 = 24;
const HEAD_BYTES: u64 = 8;
