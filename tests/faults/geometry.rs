//! What the two sides may describe differently, and what not: codes r02, r04, r05, r06, t03 and t12.

use crate::bed::{Network, Node, PATIENCE};
use crate::links::until;
use crate::stranger::{Listener, Stranger};
use kvferry::bootstrap::FixedDirectory;
use kvferry::layout::{GroupKind, HeadSpan, ItemOrder, PoolEntry, PoolLayout, Role, Sharding};
use kvferry::memory::HostBuffer;
use kvferry::{
    Chunk, Engine, ErrorKind, Finish, Grant, GroupId, GroupSizes, KVPoll, KVTransferError, Place, Rank, Room,
    RoomOptions, Source, Sources,
};
use std::sync::Arc;

on_each_network! {
    r02_any_field_that_differs_fails_both_ends_by_name_and_no_other_peer
    r02_another_wire_version_fails_the_room_by_name
    r04_each_room_comes_from_the_rank_that_owns_it
    r05_state_windows_and_indices_are_paired_by_name
    r05_components_that_differ_or_are_missing_are_named
    r06_quantised_pages_travel_with_their_scales
    t12_a_component_that_may_be_missing_stops_nobody
}

/// An engine with one buffer for each entry of a layout.
struct Side {
    engine: Engine,
    layout: PoolLayout,
    buffers: Vec<HostBuffer>,
}

impl Side {
    fn new(network: &Network, name: &str, mut layout: PoolLayout) -> Self {
        let engine = network.engine(name, "test");
        let mut buffers = Vec::new();
        for entry in &mut layout.entries {
            let items = layout.groups[usize::from(entry.group.0)].items;
            let buffer = HostBuffer::zeroed(u64::from(items) * entry.item_bytes).unwrap();
            entry.region = engine.register(|id| buffer.region(id)).unwrap();
            buffers.push(buffer);
        }
        engine.set_layout(layout.clone()).unwrap();
        Self { engine, layout, buffers }
    }

    fn group(&self, name: &str) -> GroupId {
        let at = self.layout.groups.iter().position(|group| group.name == name).unwrap();
        GroupId(u16::try_from(at).unwrap())
    }

    /// The items of a group, by entry, in the order of these numbers.
    fn items(&self, name: &str, items: &[u32]) -> Vec<(Role, Option<u32>, Vec<u8>)> {
        let of_group = self.layout.entries.iter().zip(&self.buffers);
        let of_group = of_group.filter(|(entry, _)| entry.group == self.group(name));
        let read = |(entry, buffer): (&PoolEntry, &HostBuffer)| {
            let len = usize::try_from(entry.item_bytes).unwrap();
            let bytes = items.iter().flat_map(|item| buffer.to_vec(u64::from(*item) * entry.item_bytes, len));
            (entry.role, entry.layer, bytes.collect())
        };
        let mut all: Vec<_> = of_group.map(read).collect();
        all.sort_unstable_by_key(|(role, layer, _)| (*layer, *role));
        all
    }

    /// Every byte another one than that of the next buffer or item.
    fn fill(&self) {
        for (at, (entry, buffer)) in (1_u64..).zip(self.layout.entries.iter().zip(&self.buffers)) {
            let items = self.layout.groups[usize::from(entry.group.0)].items;
            let bytes: Vec<u8> = (0..u64::from(items) * entry.item_bytes)
                .map(|byte| ((byte + 1) * (2 * at + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6])
                .collect();
            buffer.write_at(0, &bytes);
        }
    }

    fn sources(&self) -> Sources {
        Sources::Ranks(vec![Source::new(self.engine.place().rank, self.engine.addresses())])
    }
}

/// How a pair of sides fails that cannot understand each other, in the same words on both.
fn refused(network: &Network, prefill: PoolLayout, decode: PoolLayout) -> String {
    let [prefill, decode] =
        [("prefill", prefill), ("decode", decode)].map(|(name, layout)| Side::new(network, name, layout));
    let sender = prefill.engine.sender(Room(1), RoomOptions::default()).unwrap();
    let receiver = decode.engine.receiver(Room(1), prefill.sources(), RoomOptions::default()).unwrap();
    assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
    let errors: [KVTransferError; 2] = [sender.error().unwrap(), receiver.error().unwrap()];
    assert_eq!(errors[0].kind, ErrorKind::Layout, "{}", errors[0]);
    assert_eq!((errors[0].kind, &errors[0].detail), (errors[1].kind, &errors[1].detail));
    errors[0].detail.to_string()
}

/// Two layers of keys and values, in pages of four tokens.
fn plain() -> PoolLayout {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 4, 8);
    for (layer, role) in [(0, Role::Key), (0, Role::Value), (1, Role::Key), (1, Role::Value)] {
        let region = kvferry::RegionId(0);
        layout.push(PoolEntry::token_major(kv, role, layer, region, 4, HeadSpan::all(2), 16).dtype("bf16"));
    }
    layout
}

fn r02_any_field_that_differs_fails_both_ends_by_name_and_no_other_peer(network: &Network) {
    let opaque = |tag: &str| {
        let mut layout = plain();
        let order = ItemOrder::Opaque { tag: tag.into() };
        layout.entries.iter_mut().for_each(|entry| {
            (entry.order, entry.sharding) = (order.clone(), Sharding::Replicated);
        });
        layout
    };
    let changed = |mut layout: PoolLayout, change: fn(&mut PoolLayout)| {
        change(&mut layout);
        layout
    };
    let cases: [(PoolLayout, PoolLayout, [&str; 3]); 8] = [
        (plain(), changed(plain(), |l| l.entries[1].dtype = "fp8".into()), ["dtype", "bf16", "fp8"]),
        (plain(), changed(plain(), |l| drop(l.entries.pop())), ["layer 1", "described", "missing"]),
        (
            plain(),
            changed(plain(), |l| {
                l.entries.iter_mut().for_each(|e| (e.item_bytes, e.item_stride) = (256, 256))
            }),
            ["bytes of a token", "32", "64"],
        ),
        (
            plain(),
            changed(plain(), |l| {
                l.entries.iter_mut().for_each(|e| e.sharding = Sharding::Heads(HeadSpan::all(4)));
            }),
            ["heads", "2", "4"],
        ),
        (
            plain(),
            changed(plain(), |l| l.groups[0].name = "latent".into()),
            ["\"kv\"", "described", "missing"],
        ),
        (
            plain(),
            changed(plain(), |l| {
                l.groups[0].kind = GroupKind::Rows;
                l.entries.iter_mut().for_each(|e| e.sharding = Sharding::Replicated);
            }),
            ["kind of group \"kv\"", "paged", "rows"],
        ),
        (opaque("swizzle-1"), opaque("swizzle-2"), ["order", "swizzle-1", "swizzle-2"]),
        (
            opaque("swizzle"),
            changed(opaque("swizzle"), |l| {
                l.groups[0].kind = GroupKind::Paged { page_tokens: 8 };
            }),
            ["page", "4", "8"],
        ),
    ];
    for (prefill, decode, words) in cases {
        let text = refused(network, prefill, decode);
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    }
    // A peer that fits is served by an engine that has refused another.
    let prefill = Side::new(network, "prefill", plain());
    let odd = Side::new(network, "odd", changed(plain(), |l| l.entries[0].dtype = "fp8".into()));
    let fits = Side::new(network, "fits", plain());
    let lost = odd.engine.receiver(Room(1), prefill.sources(), RoomOptions::default()).unwrap();
    assert_eq!(lost.wait(PATIENCE), KVPoll::Failed);
    prefill.fill();
    transfer(&prefill, &fits, 2, &[("kv", 0, &[5, 1], &[2, 7])], &[]);
    assert!(prefill.engine.is_healthy());
}

fn r02_another_wire_version_fails_the_room_by_name(network: &Network) {
    let prefill = network.node("prefill", 8);
    let mut stranger = Stranger::connect(network, "stranger", &prefill.engine);
    stranger.introduce_in_version(2);
    stranger.until_down();
    // The link may be seen to end before it is counted.
    until(|| prefill.engine.stats().malformed > 0);
    assert_eq!(prefill.engine.stats().malformed, 1);

    let decode = network.node("decode", 8);
    let listener = Listener::new(network, "next version", &prefill.engine);
    let source = Source::new(Rank::default(), listener.addresses());
    let receiver =
        decode.engine.receiver(Room(1), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    let serving = std::thread::spawn(move || listener.answer_in_version(2));
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
    assert!(error.detail.contains("wire version 2, this side speaks 1"), "{error}");
    serving.join().unwrap();
    // Nobody else is the worse for it.
    let (sender, receiver) = (prefill.sender(2), decode.receiver(2, &prefill));
    prefill.fill(3, &[1]);
    decode.lend(&receiver, 0..4, &[6]);
    prefill.send_all(&sender, 4, 4, &[1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(3, &[6], 0..4), None);
}

fn r04_each_room_comes_from_the_rank_that_owns_it(network: &Network) {
    let directory = FixedDirectory::new();
    let node = |group: &str, dp: u32, dps: u32| {
        let (rank, sizes) = (Rank { dp, ..Rank::default() }, GroupSizes { dp: dps, ..GroupSizes::ONE });
        let builder = Engine::builder(Place::new(group, rank, sizes)).model("test");
        let builder = builder.boxed_transport(network.transport(&format!("{group}{dp}")));
        Node::with(builder.directory(Arc::new(directory.clone())).build().unwrap(), 8)
    };
    let (decode, prefill) = (node("decode", 0, 1), [0, 1, 2, 3].map(|dp| node("prefill", dp, 4)));
    let owner = |room: u64| u32::try_from((room * 7 + 3) % 16 / 4).unwrap();
    for room in 0..16_u64 {
        let dp = owner(room);
        // Told by the directory, by the caller at once, or by the caller later; before, nobody is asked.
        let from = match room % 3 {
            0 => Sources::group_dp("prefill", dp),
            _ => Sources::group("prefill"),
        };
        let receiver = decode.engine.receiver(Room(room), from, RoomOptions::default()).unwrap();
        decode.lend(&receiver, 0..4, &[1]);
        match room % 3 {
            0 => {}
            1 => prefill[0].engine.publish_owner(Room(room), dp),
            _ => {
                assert_eq!(receiver.poll(), KVPoll::Bootstrapping);
                receiver.set_dp(dp).unwrap();
            }
        }
        let node = &prefill[usize::try_from(dp).unwrap()];
        node.fill(room, &[3]);
        let sender = node.sender(room);
        node.send_all(&sender, 4, 4, &[3]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(decode.first_wrong(room, &[1], 0..4), None);
    }
    let links: Vec<_> = prefill.iter().map(|node| node.engine.stats().links).collect();
    assert_eq!(links, [1; 4]);
}

/// Pages of a group, from the token they start at; the same numbers mean other pages on each side.
type Given<'a> = (&'a str, u32, &'a [u32], &'a [u32]);

/// Moves tokens 0..8 of a room, and compares every item named.
fn transfer(prefill: &Side, decode: &Side, room: u64, pages: &[Given<'_>], rows: &[(&str, u32, u32)]) {
    let sender = prefill.engine.sender(Room(room), RoomOptions::default()).unwrap();
    let receiver = decode.engine.receiver(Room(room), prefill.sources(), RoomOptions::default()).unwrap();
    let (mut grant, mut chunk, mut finish) = (Grant::new(0..8), Chunk::new(0..8), Finish::new(8));
    for (name, first, ours, theirs) in pages {
        chunk = chunk.pages_from(prefill.group(name), *first, *ours);
        grant = grant.pages_from(decode.group(name), *first, *theirs);
    }
    let pairs: Vec<_> = rows.iter().map(|(name, ours, theirs)| (name, [*ours], [*theirs])).collect();
    for (name, ours, theirs) in &pairs {
        finish = finish.rows(prefill.group(name), ours);
        grant = grant.rows(decode.group(name), theirs);
    }
    receiver.grant(grant).unwrap();
    sender.send(chunk).unwrap();
    assert!(pollster::block_on(receiver.wait_ready(8)));
    assert_eq!(receiver.poll(), KVPoll::Transferring, "the rows have not come");
    sender.finish(finish).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success);
    for (name, _, ours, theirs) in pages {
        assert_eq!(decode.items(name, theirs), prefill.items(name, ours), "{name}");
    }
    for (name, ours, theirs) in &pairs {
        assert_eq!(decode.items(name, theirs), prefill.items(name, ours), "{name}");
    }
}

/// Attention, a sliding window, an index and recurrent state; in another order if `is_reversed`.
fn hybrid(is_reversed: bool) -> PoolLayout {
    let mut layout = PoolLayout::new();
    let mut names = ["kv", "window", "index", "ssm"];
    if is_reversed {
        names.reverse();
    }
    for name in names {
        let region = kvferry::RegionId(0);
        let entry = |group, role, layer: u32, bytes| PoolEntry::new(group, role, region, bytes).layer(layer);
        match name {
            "kv" => {
                let group = layout.paged(name, 4, 8);
                layout.extend([0, 2].map(|layer| entry(group, Role::KeyValue, layer, 64)));
            }
            "window" => {
                let group = layout.paged(name, 2, 8);
                layout.push(entry(group, Role::KeyValue, 1, 32));
            }
            "index" => {
                let group = layout.paged(name, 4, 8);
                layout.push(entry(group, Role::State(1), 2, 4));
            }
            _ => {
                let group = layout.rows(name, 8);
                layout.push(entry(group, Role::State(0), 3, 256).dtype("f32"));
                layout.push(entry(group, Role::State(1), 3, 40));
            }
        }
    }
    layout
}

fn r05_state_windows_and_indices_are_paired_by_name(network: &Network) {
    let (prefill, decode) =
        (Side::new(network, "prefill", hybrid(false)), Side::new(network, "decode", hybrid(true)));
    prefill.fill();
    for (room, state) in [(1, 2), (2, 7)] {
        // Of the window only the last four tokens are kept.
        let pages: [Given<'_>; 3] =
            [("kv", 0, &[6, 1], &[3, 4]), ("window", 4, &[7, 0], &[2, 5]), ("index", 0, &[1, 2], &[0, 7])];
        transfer(&prefill, &decode, room, &pages, &[("ssm", state, 5)]);
    }
}

fn r05_components_that_differ_or_are_missing_are_named(network: &Network) {
    let longer = |mut layout: PoolLayout, group: &str| {
        let at = layout.groups.iter().position(|known| known.name == group).unwrap();
        let of_group = |entry: &&mut PoolEntry| usize::from(entry.group.0) == at;
        let entry = layout.entries.iter_mut().find(of_group).unwrap();
        (entry.item_bytes, entry.item_stride) = (2 * entry.item_bytes, 2 * entry.item_bytes);
        layout
    };
    let without = |mut layout: PoolLayout, group: &str| {
        let at = layout.groups.iter().position(|known| known.name == group).unwrap();
        layout.entries.retain(|entry| usize::from(entry.group.0) != at);
        layout
    };
    let text = refused(network, hybrid(false), longer(hybrid(true), "ssm"));
    assert!(["ssm", "256", "512"].iter().all(|word| text.contains(word)), "{text}");
    for group in ["kv", "window", "index", "ssm"] {
        for is_ours in [false, true] {
            let (whole, part) = (hybrid(false), without(hybrid(true), group));
            let (prefill, decode) = if is_ours { (part, whole) } else { (whole, part) };
            let text = refused(network, prefill, decode);
            let told = format!("group {group:?}");
            assert!(text.contains(&told) && text.contains("missing"), "{group}: {text}");
        }
    }
}

fn t12_a_component_that_may_be_missing_stops_nobody(network: &Network) {
    let mut extended = hybrid(false);
    let draft = extended.paged("draft", 4, 8);
    extended.push(PoolEntry::new(draft, Role::KeyValue, kvferry::RegionId(0), 64).layer(4));
    let text = refused(network, extended.clone(), hybrid(true));
    assert!(text.contains("group \"draft\"") && text.contains("missing"), "{text}");
    extended.make_optional(draft);
    let (prefill, decode) =
        (Side::new(network, "prefill", extended), Side::new(network, "decode", hybrid(true)));
    prefill.fill();
    let pages: [Given<'_>; 3] =
        [("kv", 0, &[6, 1], &[3, 4]), ("window", 4, &[7, 0], &[2, 5]), ("index", 0, &[1, 2], &[0, 7])];
    transfer(&prefill, &decode, 1, &pages, &[("ssm", 1, 2)]);
}

/// Keys and values of one byte, and for each token a scale of four.
fn quantised(pages: u32) -> PoolLayout {
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, pages);
    for (role, bytes, dtype) in [
        (Role::Key, 16 * 64, "fp8_e4m3"),
        (Role::Value, 16 * 48, "fp8_e4m3"),
        (Role::Scale(0), 16 * 4, "f32"),
        (Role::Scale(1), 16 * 8, "f32"),
    ] {
        layout.push(PoolEntry::new(kv, role, kvferry::RegionId(0), bytes).layer(0).dtype(dtype));
    }
    layout
}

fn r06_quantised_pages_travel_with_their_scales(network: &Network) {
    let (prefill, decode) =
        (Side::new(network, "prefill", quantised(40)), Side::new(network, "decode", quantised(64)));
    prefill.fill();
    let ours: Vec<u32> = (0..37).map(|at| at * 11 % 40).collect();
    let theirs: Vec<u32> = (0..37).map(|at| at * 27 % 64).collect();
    let sender = prefill.engine.sender(Room(1), RoomOptions::default()).unwrap();
    let receiver = decode.engine.receiver(Room(1), prefill.sources(), RoomOptions::default()).unwrap();
    let tokens = 37 * 16;
    receiver.grant(Grant::new(0..tokens).pages(decode.group("kv"), &theirs)).unwrap();
    sender.send(Chunk::new(0..tokens).pages(prefill.group("kv"), &ours)).unwrap();
    sender.finish(Finish::new(tokens)).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.items("kv", &theirs), prefill.items("kv", &ours));
    drop((prefill, decode));
    let mut bare = quantised(40);
    bare.entries.pop();
    let text = refused(network, quantised(40), bare);
    assert!(text.contains("scale") && text.contains("missing"), "{text}");
}
