//! Rooms from both ends.

use crate::bed::{CANARY, Network, Node, PAGE_BYTES, PATIENCE, block_on};
use kvferry::memory::Mark;
use kvferry::{
    Accepted, Chunk, Config, Engine, ErrorKind, Finish, Grant, KVPoll, Place, Release, UsageError,
};
use std::ops::Range;

pub(crate) fn a_chunked_prompt_arrives_byte_for_byte(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 64), network.node("decode", 64));
    let (source, destination) = ([9, 3, 40, 17, 2, 63], [50, 7, 8, 9, 30, 1]);
    prefill.fill(1, &source);
    let (sender, receiver) = (prefill.sender(7), decode.receiver(7, &prefill));
    decode.lend(&receiver, 0..22, &destination);
    prefill.send_all(&sender, 22, 5, &source);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    assert_eq!(decode.first_wrong(1, &destination, 0..22), None);
    assert_eq!((receiver.ready_tokens(), receiver.release()), (22, Release::Safe));
    assert_eq!(receiver.payload().as_deref(), Some(&b"first token"[..]));
    assert_eq!(receiver.stats().bytes, 22 * 32 * 6);
    assert_eq!(sender.stats().bytes, 22 * 32 * 6);
    assert_eq!(sender.send(Chunk::new(22..23)), Ok(Accepted::Ended));
}

pub(crate) fn held_tokens_are_not_moved_and_rows_are(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 64), network.node("decode", 64));
    let (source, destination) = ([1, 2, 3, 4, 5], [22, 21, 20]);
    prefill.fill(5, &source);
    prefill.rows.write_at(24 * 2, &[7; 24]);
    let (sender, receiver) = (prefill.sender(0), decode.receiver(0, &prefill));
    // 10 tokens are held: the first page lent holds tokens 8..12, of which 8 and 9 are shared.
    let grant = Grant::new(10..20).pages(decode.kv, &destination).rows(decode.aux, &[6_i64]);
    receiver.grant(grant).unwrap();
    sender.send(Chunk::new(0..20).pages(prefill.kv, &source)).unwrap();
    sender.finish(Finish::new(20).rows(prefill.aux, &[2_usize])).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.granted().unwrap().held_tokens, 10);
    assert_eq!(decode.rows.to_vec(24 * 6, 24), [7; 24]);
    let page = decode.pools[0].to_vec(22 * 128, 64);
    assert!(page.iter().all(|byte| *byte == CANARY), "the held half of a page was written");
    assert_eq!(decode.first_wrong(5, &[0, 1, 22, 21, 20][2..], 10..20), None);
}

pub(crate) fn layers_can_be_used_as_they_come_in_any_order(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    prefill.fill(3, &[4, 5]);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..8, &[0, 1]);
    let layers = |layers: Range<u32>| Chunk::new(0..8).layers(layers).pages(prefill.kv, &[4, 5]);
    sender.send(layers(2..3)).unwrap();
    let (mark, computed) = Mark::host();
    sender.send(layers(0..2).ready(&mark)).unwrap();
    assert!(block_on(receiver.wait_layers(2..3, 8)));
    assert_eq!(
        (receiver.ready_tokens_of(2), receiver.ready_tokens_of(0), receiver.ready_tokens()),
        (8, 0, 0)
    );
    assert_eq!(decode.pools[4].to_vec(0, 256), prefill.pools[4].to_vec(4 * PAGE_BYTES, 256));
    computed.signal();
    assert!(block_on(receiver.wait_layers(0..3, 8)));
    sender.finish(Finish::new(8)).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(3, &[0, 1], 0..8), None);
    let other = decode.receiver(2, &prefill);
    let never = other.wait_layers(0..1, 4);
    other.abort("nothing will come");
    assert!(!block_on(never));
}

pub(crate) fn a_fully_cached_prompt_moves_nothing_but_its_payload(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(u64::MAX), decode.receiver(u64::MAX, &prefill));
    receiver.grant(Grant::new(12..12)).unwrap();
    sender.finish(Finish::new(12).payload(b"x")).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success);
    assert_eq!((receiver.stats().bytes, receiver.payload().as_deref()), (0, Some(&b"x"[..])));
}

pub(crate) fn an_abort_reaches_the_other_end_with_its_reason(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    for (room, sender_aborts) in [(1, true), (2, false)] {
        let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
        decode.lend(&receiver, 0..8, &[0, 1]);
        assert!(block_on(sender.wait_granted()).is_some());
        if sender_aborts {
            sender.abort("cancelled")
        } else {
            receiver.abort("cancelled")
        }
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        let (theirs, ours) = if sender_aborts {
            (receiver.error(), sender.error())
        } else {
            (sender.error(), receiver.error())
        };
        let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
        assert_eq!((theirs.kind, &*theirs.detail), (ErrorKind::Aborted, "cancelled"));
        assert!(theirs.is_from_another_rank() && !ours.is_from_another_rank());
        assert_eq!(theirs.party(), ours.party());
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
    }
}

pub(crate) fn a_room_number_has_one_live_use(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    for round in 0..50 {
        let (sender, receiver) = (prefill.sender(77), decode.receiver(77, &prefill));
        let again = prefill.engine.sender(kvferry::Room(77), kvferry::RoomOptions::default());
        assert_eq!(again.unwrap_err(), UsageError::RoomInUse(kvferry::Room(77)));
        prefill.fill(round, &[1, 2]);
        decode.lend(&receiver, 0..8, &[3, 4]);
        prefill.send_all(&sender, 8, 8, &[1, 2]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
        assert_eq!(decode.first_wrong(round, &[3, 4], 0..8), None);
    }
    assert_eq!(prefill.engine.stats().rooms, 0);
}

pub(crate) fn a_prompt_longer_than_what_was_lent_fails_both_ends_before_a_byte_moves(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(3), decode.receiver(3, &prefill));
    let short = Grant::new(0..12).pages(decode.kv, &[0, 1]);
    assert!(matches!(receiver.grant(short), Err(UsageError::PagesDoNotCover { .. })));
    decode.lend(&receiver, 0..8, &[0, 1]);
    sender.send(Chunk::new(0..12).pages(prefill.kv, &[0, 1, 2])).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(receiver.error().unwrap().kind, ErrorKind::Layout);
    assert!(decode.is_filled_with(CANARY, 0) && decode.is_filled_with(CANARY, 1));
}

pub(crate) fn a_small_room_does_not_wait_for_a_large_one(network: &Network) {
    let mut config = Config::default();
    config.limits.write_bytes = 16 << 10;
    config.limits.in_flight_bytes = 64 << 10;
    let pages = 20_000_u32;
    let builder = Engine::builder(Place::alone("prefill")).model("test").config(config).manual_progress();
    let prefill = Node::with(builder.boxed_transport(network.transport("prefill")).build().unwrap(), pages);
    let decode = network.node("decode", pages);
    let all: Vec<u32> = (0..pages - 1).rev().collect();
    let (large, small) = (prefill.sender(1), prefill.sender(2));
    let (to_large, to_small) = (decode.receiver(1, &prefill), decode.receiver(2, &prefill));
    decode.lend(&to_large, 0..(pages - 1) * 4, &all);
    decode.lend(&to_small, 0..4, &[pages - 1]);
    while large.granted().is_none() || small.granted().is_none() {
        prefill.engine.progress_or_wait(PATIENCE).unwrap();
    }
    // Nothing moves but in these turns, and each moves one window at most.
    prefill.send_all(&large, (pages - 1) * 4, (pages - 1) * 4, &all);
    prefill.send_all(&small, 4, 4, &[pages - 1]);
    while !small.poll().is_terminal() {
        prefill.engine.progress_or_wait(PATIENCE).unwrap();
    }
    assert_eq!(small.poll(), KVPoll::Success, "{:?}", small.error());
    assert_eq!(large.poll(), KVPoll::Transferring, "the large room was served first");
    while !large.poll().is_terminal() {
        prefill.engine.progress_or_wait(PATIENCE).unwrap();
    }
    assert_eq!(to_large.wait(PATIENCE), KVPoll::Success, "{:?}", to_large.error());
}
