//! Moving pages: codes d01 to d10.

use crate::bed::{CANARY, Network, Node, PATIENCE};
use crate::links::{relayed, scripted, tcp, until, watched};
use kvferry::faults::{Access, Direction, Fate, ScriptedNetwork};
use kvferry::layout::{HeadSpan, LayoutError, PoolEntry, PoolLayout, Role};
use kvferry::memory::{HostBuffer, Mark};
use kvferry::session::{Action, Lent, ReceiverSession, Session, SourceLink};
use kvferry::transport::WriteModel;
use kvferry::wire::{Done, Frame, RoomFrame};
use kvferry::{
    Attempt, Chunk, Config, Deadlines, Engine, Finish, Generation, Grant, GrantId, Instance, KVPoll, LinkId,
    OpId, Party, Place, Rank, RegionId, Release, Room, RoomOptions, Side, Sources, UsageError,
};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Three chunks of a page each, of which the one at `held` is filled late.
fn a_chunk_is_read_once_its_mark_is_ready(prefill: &Node, decode: &Node, held: usize, early: impl Fn()) {
    let room = held as u64;
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.pools.iter().for_each(|pool| pool.fill(CANARY));
    decode.lend(&receiver, 0..12, &[5, 6, 7]);
    prefill.fill(1, &[0, 1, 2]);
    let (mark, trigger) = Mark::host();
    for chunk in 0..3_u32 {
        let given = Chunk::new(chunk * 4..chunk * 4 + 4).pages(prefill.kv, std::slice::from_ref(&chunk));
        sender.send(if chunk as usize == held { given.ready(&mark) } else { given }).unwrap();
    }
    sender.finish(Finish::new(12)).unwrap();
    until(|| receiver.ready_tokens() as usize >= held * 4 && sender.poll() >= KVPoll::Transferring);
    assert!(decode.is_filled_with(CANARY, 5 + held as u32), "sent before it was computed");
    early();
    prefill.fill(2, &[0, 1, 2].map(|page| if page == held as u32 { page } else { 7 }));
    trigger.signal();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    let held = held as u32;
    for chunk in 0..3_u32 {
        let seed = if chunk == held { 2 } else { 1 };
        assert!(decode.holds(seed, chunk, 5 + chunk), "page {chunk}");
    }
}

#[test]
fn d01_each_chunk_is_read_after_its_mark_over_every_transport() {
    watched(|| {
        for network in [Network::local(), Network::Tcp] {
            let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
            (0..3).for_each(|held| a_chunk_is_read_once_its_mark_is_ready(&prefill, &decode, held, || ()));
        }
    });
}

#[test]
fn d01_no_transport_is_given_a_byte_before_its_mark_is_ready() {
    watched(|| {
        for model in [WriteModel::OneSided, WriteModel::TwoSided] {
            let network = ScriptedNetwork::new(model);
            let prefill = scripted(&network, "prefill", 8, Config::default());
            let decode = scripted(&network, "decode", 8, Config::default());
            for held in 0..3 {
                a_chunk_is_read_once_its_mark_is_ready(&prefill, &decode, held, || {
                    let page = Node::page_bytes(held as u32);
                    for touch in network.take_touches() {
                        let early = touch.access == Access::Read
                            && touch.extents.iter().any(|extent| {
                                extent.offset < page.end && page.start < extent.offset + extent.len
                            });
                        assert!(!early, "{touch:?}");
                    }
                });
                network.take_touches();
            }
        }
    });
}

/// Each round takes as long as its slowest lane, so there are 40 and not 1000.
#[test]
fn d02_success_is_seen_after_every_byte_however_late_a_lane_is() {
    watched(|| {
        let mut config = Config::default();
        config.limits.write_bytes = 4096;
        let prefill = tcp("prefill", 80, 4, config);
        let decode = tcp("decode", 80, 4, config);
        let (relay, sources) = relayed(&prefill);
        let source: Vec<u32> = (0..64).collect();
        let destination: Vec<u32> = (0..64).rev().collect();
        let mut random = 7_u64;
        for round in 0..40 {
            for lane in 1..=4 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                relay.delay(lane, Duration::from_millis((random >> 33) % 51));
            }
            prefill.fill(round, &source);
            let sender = prefill.sender(round);
            let receiver =
                decode.engine.receiver(Room(round), sources.clone(), RoomOptions::default()).unwrap();
            decode.lend(&receiver, 0..256, &destination);
            prefill.send_all(&sender, 256, 40, &source);
            until(|| receiver.poll().is_terminal());
            let wrong = decode.first_wrong(round, &destination, 0..256);
            assert_eq!((receiver.poll(), wrong), (KVPoll::Success, None), "{:?}", receiver.error());
            assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
        }
        assert_eq!(relay.connections(), 5);
        assert!((1..=4).all(|lane| relay.passed(lane, Direction::Back) > 0), "a lane carried nothing");
    });
}

/// What one of four sources owes: two writes, and the word that there are no more.
#[derive(Clone, Copy, Debug)]
enum Part {
    Write(u32),
    Done,
}

#[test]
fn d03_success_comes_with_the_last_distinct_part_in_any_order() {
    let mut random = 3_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut done = a_done();
    (done.tokens, done.ops, done.bytes) = (4, 2, 20);
    for _ in 0..500 {
        let mut room = Parts::new(&done);
        let mut missing: Vec<(usize, Part)> = (0..4)
            .flat_map(|rank| [Part::Write(0), Part::Write(1), Part::Done].map(|part| (rank, part)))
            .collect();
        let mut delivered = vec![missing.swap_remove(next(12))];
        // One part many times over is still one part.
        for _ in 0..8 {
            assert_ne!(room.deliver(delivered[0]), KVPoll::Success);
        }
        while !missing.is_empty() {
            if next(2) == 0 {
                let again = delivered[next(delivered.len())];
                assert_ne!(room.deliver(again), KVPoll::Success, "{missing:?} is missing");
            }
            let part = missing.swap_remove(next(missing.len()));
            delivered.push(part);
            assert_eq!(room.deliver(part) == KVPoll::Success, missing.is_empty(), "{missing:?} is missing");
        }
    }
}

struct Parts {
    session: ReceiverSession,
    links: [LinkId; 4],
    done: Done,
    now: Instant,
}

impl Parts {
    fn new(done: &Done) -> Self {
        let (now, party) =
            (Instant::now(), |side, tp| Party { side, rank: Rank::tp(tp), instance: Instance(1) });
        let id = GrantId { room: Room(1), attempt: Attempt(0), generation: Generation(1) };
        let decode = party(Side::Decode, 0);
        let deadlines = Deadlines::default();
        let mut session = ReceiverSession::new(now, id, decode, deadlines, vec![decode.rank], vec![0]);
        let share = Some(kvferry::layout::Share::WHOLE);
        session.expect(now, (0..4).map(|tp| (Rank::tp(tp), share.clone())));
        session.grant(now, Lent { tokens: 0..4, pages: [].into() });
        let links = [0, 1, 2, 3].map(|tp| {
            let (link, party) = (LinkId::allocate(), party(Side::Prefill, tp));
            let up = SourceLink { link, party, revocable: true, epoch: 1, source_epoch: 1 };
            session.source_up(now, party.rank, up);
            link
        });
        Self { session, links, done: done.clone(), now }
    }

    fn deliver(&mut self, (rank, part): (usize, Part)) -> KVPoll {
        let (link, id) = (self.links[rank], self.session.id());
        match part {
            Part::Write(op) => self.session.landed(self.now, link, OpId(op), 10),
            Part::Done => {
                self.session.frame(self.now, link, id, &RoomFrame::Done(self.done.clone()));
            }
        }
        while let Some(action) = self.session.next_action() {
            if let Action::Revoke { link, .. } = action {
                self.session.revoked(self.now, link);
            }
        }
        self.session.state()
    }
}

/// The last word of some sender, as it travelled.
fn a_done() -> Done {
    let network = ScriptedNetwork::new(WriteModel::TwoSided);
    let prefill = scripted(&network, "prefill", 8, Config::default());
    let decode = scripted(&network, "decode", 8, Config::default());
    let (tell, told) = mpsc::channel();
    network.filter_control(move |_, frame| {
        if let Frame::Room { frame: RoomFrame::Done(done), .. } = frame {
            let _ = tell.send(done.clone());
        }
        Fate::Pass
    });
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..4, &[0]);
    prefill.send_all(&sender, 4, 4, &[0]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    told.recv().unwrap()
}

/// Runs a room of so many tokens over every transport, sent by `send`; answers the bytes moved.
fn run(held: u32, tokens: u32, pages: &[u32], send: impl Fn(&Node, &kvferry::KVSender)) -> u64 {
    let mut moved = Vec::new();
    for network in [Network::local(), Network::Tcp] {
        let (prefill, decode) = (network.node("prefill", 16), network.node("decode", 16));
        prefill.fill(4, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let (sender, receiver) = (prefill.sender(0), decode.receiver(0, &prefill));
        decode.lend(&receiver, held..tokens, pages);
        send(&prefill, &sender);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
        assert_eq!(receiver.payload().as_deref(), Some(&b"metadata"[..]));
        for (at, page) in (held / 4..).zip(pages) {
            assert!(decode.holds(4, at, *page), "page {at}");
        }
        moved.push(receiver.stats().bytes);
    }
    assert_eq!(moved[0], moved[1]);
    moved[0]
}

fn finish(sender: &kvferry::KVSender, tokens: u32) {
    sender.finish(Finish::new(tokens).payload(b"metadata")).unwrap();
}

/// Pages one after the other from `first` on, as many as the tokens need.
fn chunk(prefill: &Node, sender: &kvferry::KVSender, tokens: std::ops::Range<u32>) {
    let pages: Vec<u32> = (tokens.start / 4..tokens.end.div_ceil(4)).collect();
    sender.send(Chunk::new(tokens).pages(prefill.kv, &pages)).unwrap();
}

#[test]
fn d04_a_room_without_pages_moves_its_metadata_and_ends_well() {
    watched(|| {
        let moved = run(40, 40, &[], |_, sender| finish(sender, 40));
        assert_eq!(moved, 0);
    });
}

#[test]
fn d04_b_an_empty_chunk_in_the_middle_changes_nothing() {
    watched(|| {
        let moved = run(0, 32, &[8, 7, 6, 5, 4, 3, 2, 1], |prefill, sender| {
            [0..16, 16..16, 16..32].into_iter().for_each(|tokens| chunk(prefill, sender, tokens));
            finish(sender, 32);
        });
        assert_eq!(moved, 8 * Node::PAGE);
    });
}

#[test]
fn d04_c_an_empty_last_chunk_changes_nothing() {
    watched(|| {
        let moved = run(0, 32, &[8, 7, 6, 5, 4, 3, 2, 1], |prefill, sender| {
            [0..32, 32..32].into_iter().for_each(|tokens| chunk(prefill, sender, tokens));
            finish(sender, 32);
        });
        assert_eq!(moved, 8 * Node::PAGE);
    });
}

fn three_chunks(prefill: &Node, sender: &kvferry::KVSender) {
    [0..12, 12..24, 24..40].into_iter().for_each(|tokens| chunk(prefill, sender, tokens));
    finish(sender, 40);
}

#[test]
fn d05_pages_behind_a_held_prefix_land_in_order() {
    watched(|| {
        let moved = run(16, 40, &[9, 2, 7, 4, 11, 0], three_chunks);
        assert_eq!(moved, 6 * Node::PAGE);
    });
}

#[test]
fn d05_too_few_pages_fail_both_ends_before_a_byte_is_written() {
    watched(|| {
        for network in [Network::local(), Network::Tcp] {
            let (prefill, decode) = (network.node("prefill", 16), network.node("decode", 16));
            let (sender, receiver) = (prefill.sender(0), decode.receiver(0, &prefill));
            let five: &[u32] = &[9, 2, 7, 4, 11];
            let short = receiver.grant(Grant::new(16..40).pages(decode.kv, five));
            assert!(matches!(short, Err(UsageError::PagesDoNotCover { .. })), "{short:?}");
            // The same as an honest grant of fewer tokens than the prompt has.
            decode.lend(&receiver, 16..36, five);
            three_chunks(&prefill, &sender);
            assert_eq!((receiver.wait(PATIENCE), sender.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
            assert!((0..16).all(|page| decode.is_filled_with(CANARY, page)), "a page was written");
        }
    });
}

const LARGE: u64 = 6 << 30;
const LARGE_PAGE: u64 = 64 << 10;

/// An engine with one region of 6 GiB, of which only touched pages use memory.
fn large(network: &Network, name: &str) -> (Engine, HostBuffer, kvferry::GroupId) {
    let transport = network.transport(name);
    let engine = Engine::builder(Place::alone(name)).boxed_transport(transport).build().unwrap();
    let buffer = HostBuffer::zeroed(LARGE).unwrap();
    let region = engine.register(|id| buffer.region(id)).unwrap();
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 16, (LARGE / LARGE_PAGE) as u32);
    layout.push(PoolEntry::token_major(kv, Role::Key, 0, region, 16, HeadSpan::all(8), 512).dtype("bf16"));
    engine.set_layout(layout).unwrap();
    (engine, buffer, kv)
}

#[test]
fn d08_pages_around_4_gib_land_exactly_and_alone() {
    watched(|| {
        let at = |page: u64| page * LARGE_PAGE;
        let middle = (4_u64 << 30) / LARGE_PAGE;
        let moved = [middle - 1, middle, middle + 1];
        for network in [Network::local(), Network::Tcp] {
            let (prefill, source, kv) = large(&network, "prefill");
            let (decode, destination, _) = large(&network, "decode");
            for page in moved {
                source.write_at(at(page), &vec![(page % 251) as u8 + 1; LARGE_PAGE as usize]);
            }
            let neighbours = [0, 1, 2, middle - 2, middle + 2];
            for page in neighbours {
                destination.write_at(at(page), &vec![CANARY; LARGE_PAGE as usize]);
            }
            let from = vec![kvferry::Source::new(Rank::default(), prefill.addresses())];
            let receiver = decode.receiver(Room(1), Sources::Ranks(from), RoomOptions::default()).unwrap();
            let sender = prefill.sender(Room(1), RoomOptions::default()).unwrap();
            let pages = moved.map(|page| page as u32);
            receiver.grant(Grant::new(0..48).pages(kv, &pages)).unwrap();
            sender.send(Chunk::new(0..48).pages(kv, &pages)).unwrap();
            sender.finish(Finish::new(48)).unwrap();
            assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
            for page in moved {
                let landed = destination.to_vec(at(page), LARGE_PAGE as usize);
                assert!(landed.iter().all(|byte| *byte == (page % 251) as u8 + 1), "page {page}");
            }
            for page in neighbours {
                let kept = destination.to_vec(at(page), LARGE_PAGE as usize);
                assert!(kept.iter().all(|byte| *byte == CANARY), "page {page} was touched");
            }
            let sender = prefill.sender(Room(2), RoomOptions::default()).unwrap();
            let behind = sender.send(Chunk::new(0..16).pages(kv, &[(LARGE / LARGE_PAGE) as u32]));
            assert!(behind.is_err(), "a page behind the region was taken");
        }
    });
}

#[test]
fn d08_lengths_above_4_gib_travel_and_products_above_64_bits_are_refused() {
    let described = |items, item_bytes| {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", 1, items);
        layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), item_bytes).layer(0).dtype("u8"));
        layout
    };
    let size = 3 * ((1_u64 << 32) + 1);
    let layout = described(3, (1 << 32) + 1);
    assert_eq!(layout.check(|_| Some(size)), Ok(()));
    let past = layout.check(|_| Some(size - 1));
    assert!(past.is_err(), "the last byte lies behind the region");
    let wraps: Result<(), LayoutError> = described(1 << 31, (1 << 33) + 1).check(|_| Some(u64::MAX));
    assert!(wraps.is_err(), "2^64 bytes and more");
    // What a peer hears of such a pool.
    let network = ScriptedNetwork::new(WriteModel::TwoSided);
    let engine = |name: &str| {
        let engine =
            Engine::builder(Place::alone(name)).transport(network.endpoint(name).unwrap()).build().unwrap();
        let buffer = HostBuffer::zeroed(size).unwrap();
        assert_eq!(engine.register(|id| buffer.region(id)).unwrap(), RegionId(0));
        engine.set_layout(layout.clone()).unwrap();
        engine
    };
    let (tell, told) = mpsc::channel();
    network.filter_control(move |_, frame| {
        if let Frame::Layout(heard) = frame {
            let _ = tell.send(heard.layout.clone());
        }
        Fate::Pass
    });
    let (prefill, decode) = (engine("prefill"), engine("decode"));
    let from = vec![kvferry::Source::new(Rank::default(), prefill.addresses())];
    let receiver = decode.receiver(Room(1), Sources::Ranks(from), RoomOptions::default()).unwrap();
    assert_eq!(told.recv().unwrap(), layout);
    drop(receiver);
}

/// Sockets of this machine in one state of `/proc/net/tcp` that have this port at either end.
fn sockets(port: u16, state: &str) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let is = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[3] == state && (fields[1].ends_with(&port) || fields[2].ends_with(&port))
    };
    table.lines().skip(1).filter(is).count()
}

#[test]
fn d09_five_thousand_rooms_use_the_connections_of_the_first() {
    watched(|| {
        let prefill = tcp("prefill", 64, 2, Config::default());
        let decode = tcp("decode", 64, 2, Config::default());
        let (relay, sources) = relayed(&prefill);
        let mut first = None;
        for batch in 0..5_000 / 32 + 1 {
            let rooms = batch * 32..(batch * 32 + 32).min(5_000);
            let begun: Vec<_> = rooms
                .map(|room| {
                    let page = [(room % 32) as u32];
                    let sender = prefill.sender(room);
                    let from = sources.clone();
                    let receiver = decode.engine.receiver(Room(room), from, RoomOptions::default()).unwrap();
                    decode.lend(&receiver, 0..4, &page);
                    prefill.send_all(&sender, 4, 4, &page);
                    (sender, receiver)
                })
                .collect();
            for (sender, receiver) in begun {
                assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
                assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
            }
            let port = relay.address().port();
            let now = (relay.connections(), sockets(port, "01"), sockets(port, "06"));
            assert_eq!(*first.get_or_insert(now), now, "connections, established, in TIME_WAIT");
        }
        // One for control, and the lanes.
        assert_eq!(first, Some((3, 6, 0)));
        let stats = (prefill.engine.stats(), decode.engine.stats());
        assert_eq!(
            (stats.0.succeeded, stats.1.succeeded, stats.0.rooms, stats.1.rooms),
            (5_000, 5_000, 0, 0)
        );
    });
}

/// That rooms are served in turn is tested with the engine; this is the same of lanes.
#[test]
fn d10_every_lane_carries_its_part_of_a_room() {
    watched(|| {
        let mut config = Config::default();
        config.limits.write_bytes = 4096;
        let prefill = tcp("prefill", 4_096, 4, config);
        let decode = tcp("decode", 4_096, 4, config);
        let (relay, sources) = relayed(&prefill);
        let pages: Vec<u32> = (0..4_096).collect();
        let sender = prefill.sender(0);
        let receiver = decode.engine.receiver(Room(0), sources, RoomOptions::default()).unwrap();
        decode.lend(&receiver, 0..16_384, &pages);
        prefill.send_all(&sender, 16_384, 16_384, &pages);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        let carried: Vec<u64> = (1..=4).map(|lane| relay.passed(lane, Direction::Back)).collect();
        let all: u64 = carried.iter().sum();
        assert!(carried.iter().all(|bytes| *bytes > all / 20), "{carried:?}");
    });
}
