//! Aborts of many rooms, and of both ends at once.

use crate::bed::{CANARY, Network, Node, PATIENCE, block_on};
use kvferry::{Chunk, Config, ErrorKind, KVPoll, KVReceiver, KVSender, Release};
use std::sync::Barrier;
use std::time::Duration;

const ROOMS: u64 = 200;
/// Of each room: two, and the page behind them is never lent.
const PAGES: u32 = 3;

/// Deadlines that no test lives to see.
fn patient() -> Config {
    let mut config = Config::default();
    let long = Duration::from_secs(300);
    config.deadlines.discover = long;
    config.deadlines.handshake = long;
    config.deadlines.waiting_for_input = long;
    config.deadlines.stall = long;
    config
}

fn pages(room: u64) -> [u32; 2] {
    [room as u32 * PAGES, room as u32 * PAGES + 1]
}

/// Rooms that have come to every stage: joined, granted, in transfer.
fn rooms(prefill: &Node, decode: &Node) -> Vec<(KVSender, KVReceiver)> {
    let pairs: Vec<_> =
        (0..ROOMS).map(|room| (prefill.sender(room), decode.receiver(room, prefill))).collect();
    for (room, (sender, receiver)) in (0..).zip(&pairs) {
        if room % 3 > 0 {
            decode.lend(receiver, 0..8, &pages(room));
        }
        if room % 3 > 1 {
            sender.send(Chunk::new(0..4).pages(prefill.kv, &[pages(room)[0]])).unwrap();
            assert!(block_on(receiver.wait_ready(4)), "{:?}", receiver.error());
        }
    }
    pairs
}

/// Pages that are back get other bytes, which stay as they are while a later room comes over the same
/// link; and pages never lent are as they were.
fn assert_quiet(prefill: &Node, decode: &Node) {
    let page_bytes = decode.pools[0].len() / (ROOMS * u64::from(PAGES));
    let refill = |page: u32| {
        let at = u64::from(page) * page_bytes;
        decode.pools.iter().for_each(|pool| pool.write_at(at, &vec![0xEE; page_bytes as usize]));
    };
    (0..ROOMS).flat_map(pages).for_each(refill);
    let (sender, receiver) = (prefill.sender(ROOMS), decode.receiver(ROOMS, prefill));
    decode.lend(&receiver, 0..4, &[0]);
    prefill.send_all(&sender, 4, 4, &[0]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    refill(0);
    for page in 0..ROOMS as u32 * PAGES {
        let expected = if page % PAGES == PAGES - 1 { CANARY } else { 0xEE };
        assert!(decode.is_filled_with(expected, page), "page {page}");
    }
}

fn nodes(network: &Network) -> (Node, Node) {
    let node = |name| network.node_with(name, ROOMS as u32 * PAGES, patient());
    (node("prefill"), node("decode"))
}

pub(crate) fn a_storm_of_aborts_by_prefill_ends_every_room_of_decode(network: &Network) {
    let (prefill, decode) = nodes(network);
    let pairs = rooms(&prefill, &decode);
    pairs.iter().for_each(|(sender, _)| sender.abort("cancelled"));
    for (sender, receiver) in &pairs {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
        let error = receiver.error().unwrap();
        assert_eq!((error.kind, &*error.detail), (ErrorKind::Aborted, "cancelled"), "{error}");
        assert!(error.is_from_another_rank(), "{error}");
    }
    assert_quiet(&prefill, &decode);
}

pub(crate) fn a_storm_of_aborts_by_decode_ends_every_room_of_prefill(network: &Network) {
    let (prefill, decode) = nodes(network);
    let pairs = rooms(&prefill, &decode);
    pairs.iter().for_each(|(_, receiver)| receiver.abort("client gone"));
    for (sender, receiver) in &pairs {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
        let error = sender.error().unwrap();
        assert_eq!((error.kind, &*error.detail), (ErrorKind::Aborted, "client gone"), "{error}");
        assert!(error.is_from_another_rank(), "{error}");
    }
    assert_quiet(&prefill, &decode);
}

pub(crate) fn ends_that_abort_at_the_same_time_both_get_their_pages_back(network: &Network) {
    let (prefill, decode) = nodes(network);
    let pairs = rooms(&prefill, &decode);
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (sender, _) in &pairs {
                barrier.wait();
                sender.abort("cancelled");
            }
        });
        for (_, receiver) in &pairs {
            barrier.wait();
            receiver.abort("client gone");
        }
    });
    for (sender, receiver) in &pairs {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
        for error in [sender.error().unwrap(), receiver.error().unwrap()] {
            assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
        }
    }
    assert_quiet(&prefill, &decode);
}
