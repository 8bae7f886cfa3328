//! How rooms go on and end: codes s01 to s06.

use crate::bed::{CANARY, Network, Node, PATIENCE, block_on};
use crate::patient;
use crate::stranger::{Stranger, id, sample, tapped, tapped_with};
use crate::tap::Writes;
use kvferry::wire::Kind;
use kvferry::{
    Config, ErrorKind, Finish, Grant, KVPoll, KVReceiver, KVSender, Release, Room, RoomOptions, UsageError,
};
use std::sync::Barrier;
use std::time::{Duration, Instant};

on_each_network! {
    s01_a_broken_write_is_told_to_the_receiver_at_once
    s01_two_hundred_aborts_at_once_end_both_sides
    s02_a_transfer_without_progress_ends_though_nobody_polls
    s02_stuck_rooms_give_their_places_back_without_any_call
    s03_both_sides_may_abort_at_the_same_instant
    s04_an_abort_that_races_with_completion_leaves_one_end
    s04_late_frames_are_counted_and_create_nothing
    s05_no_use_of_a_room_sees_the_payload_of_another
}

fn granted(prefill: &Node, decode: &Node, room: u64) -> (KVSender, KVReceiver) {
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..8, &[0, 1]);
    assert!(block_on(sender.wait_granted()).is_some(), "{:?}", sender.error());
    (sender, receiver)
}

fn succeeds(prefill: &Node, decode: &Node, room: u64) {
    prefill.fill(room, &[2, 3]);
    let (sender, receiver) = granted(prefill, decode, room);
    prefill.send_all(&sender, 8, 4, &[2, 3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    assert_eq!(decode.first_wrong(room, &[0, 1], 0..8), None);
}

fn s01_a_broken_write_is_told_to_the_receiver_at_once(network: &Network) {
    let (prefill, valve) = tapped_with(network, "prefill", patient());
    let decode = network.node_with("decode", 8, patient());
    let (sender, receiver) = granted(&prefill, &decode, 1);
    valve.on_write(Writes::Break);
    prefill.send_all(&sender, 8, 4, &[0, 1]);
    assert_eq!((receiver.wait(PATIENCE), sender.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
    let (told, own) = (receiver.error().unwrap(), sender.error().unwrap());
    assert_eq!((told.kind, own.kind), (ErrorKind::Transport, ErrorKind::Transport), "{told}");
    assert_eq!((&told.detail, told.party()), (&own.detail, own.party()));
    assert!(told.is_from_another_rank() && !own.is_from_another_rank());
    // The link is as good as before.
    valve.open();
    succeeds(&prefill, &decode, 2);
    assert_eq!(decode.engine.stats().links, 1);
}

fn s01_two_hundred_aborts_at_once_end_both_sides(network: &Network) {
    let (prefill, decode) =
        (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()));
    let pairs: Vec<_> = (0..200).map(|room| granted(&prefill, &decode, room)).collect();
    for (at, (sender, receiver)) in pairs.iter().enumerate() {
        if at % 2 == 0 { sender.abort("cancelled") } else { receiver.abort("cancelled") }
    }
    for (sender, receiver) in &pairs {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        for error in [sender.error().unwrap(), receiver.error().unwrap()] {
            assert_eq!((error.kind, &*error.detail), (ErrorKind::Aborted, "cancelled"));
        }
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
    }
}

/// Transfers without progress end soon, everything else never.
fn stalling() -> Config {
    let mut config = patient();
    config.deadlines.stall = Duration::from_millis(100);
    config.deadlines.drain = Duration::from_millis(100);
    config
}

fn s02_a_transfer_without_progress_ends_though_nobody_polls(network: &Network) {
    let (prefill, valve) = tapped_with(network, "prefill", stalling());
    let decode = network.node_with("decode", 8, patient());
    valve.on_write(Writes::HoldAfter(0));
    let (sender, receiver) = granted(&prefill, &decode, 1);
    prefill.send_all(&sender, 8, 4, &[0, 1]);
    let (ours, theirs) = (sender.released(), receiver.released());
    block_on(ours);
    block_on(theirs);
    let (own, told) = (sender.error().unwrap(), receiver.error().unwrap());
    assert_eq!((own.kind, own.state), (ErrorKind::Timeout, KVPoll::Transferring), "{own}");
    assert!(own.detail.contains("of 100ms") && own.elapsed >= Duration::from_millis(100), "{own}");
    assert!(told.is_from_another_rank(), "{told}");
    assert!(decode.is_filled_with(CANARY, 0) && decode.is_filled_with(CANARY, 1));
}

fn s02_stuck_rooms_give_their_places_back_without_any_call(network: &Network) {
    let mut config = stalling();
    config.limits.rooms = 64;
    let (prefill, valve) = tapped_with(network, "prefill", config);
    let decode = network.node_with("decode", 8, patient());
    valve.on_write(Writes::HoldAfter(0));
    let stuck: Vec<_> = (0..64).map(|room| granted(&prefill, &decode, room)).collect();
    stuck.iter().for_each(|(sender, _)| prefill.send_all(sender, 8, 4, &[0, 1]));
    let refused = prefill.engine.sender(Room(64), RoomOptions::default());
    assert_eq!(refused.unwrap_err(), UsageError::TooManyRooms(64));
    let ends: Vec<_> = stuck.iter().map(|(sender, _)| sender.released()).collect();
    ends.into_iter().for_each(block_on);
    // The link was ended for their pages' sake; who joins over it before that is seen is lost with it.
    while decode.engine.stats().links > 0 {
        std::thread::yield_now();
    }
    valve.open();
    succeeds(&prefill, &decode, 64);
}

fn s03_both_sides_may_abort_at_the_same_instant(network: &Network) {
    let (prefill, decode) =
        (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()));
    for room in 0..200 {
        let (sender, receiver) = granted(&prefill, &decode, room);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                sender.abort("ours");
            });
            both.wait();
            receiver.abort("theirs");
        });
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        for error in [sender.error().unwrap(), receiver.error().unwrap()] {
            assert!(["ours", "theirs"].contains(&&*error.detail), "{error}");
        }
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
    }
    assert_eq!((prefill.engine.stats().rooms, decode.engine.stats().rooms), (0, 0));
}

/// Transfers of this size take less than half a millisecond where nothing else runs: later aborts would
/// meet none.
const LONGEST_SKEW: u64 = 500;

fn s04_an_abort_that_races_with_completion_leaves_one_end(network: &Network) {
    let (prefill, decode) =
        (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()));
    let mut random = 1_u64;
    let mut ends = [0_usize; 2];
    for round in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let skew = Duration::from_micros((random >> 33) % LONGEST_SKEW);
        prefill.fill(round, &[2, 3]);
        let (sender, receiver) = granted(&prefill, &decode, round % 7);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                match round % 10 {
                    0 => {}
                    1 => while !receiver.poll().is_terminal() {},
                    _ => {
                        let start = Instant::now();
                        while start.elapsed() < skew {
                            std::hint::spin_loop();
                        }
                    }
                }
                if round % 2 == 0 { sender.abort("raced") } else { receiver.abort("raced") }
            });
            if round % 10 > 0 {
                prefill.send_all(&sender, 8, 4, &[2, 3]);
            }
        });
        let found = (sender.wait(PATIENCE), receiver.wait(PATIENCE));
        let errors = (sender.error().is_some(), receiver.error().is_some());
        assert_eq!(errors, (found.0 == KVPoll::Failed, found.1 == KVPoll::Failed));
        if found.1 == KVPoll::Success {
            assert_eq!(decode.first_wrong(round, &[0, 1], 0..8), None, "round {round}");
        }
        for _ in 0..100 {
            assert_eq!((sender.poll(), receiver.poll()), found, "round {round}");
            assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
        }
        ends[usize::from(found.1 == KVPoll::Success)] += 1;
    }
    assert!(ends[0] >= 200 && ends[1] >= 200, "failed and successful: {ends:?}");
    let (ours, theirs) = (prefill.engine.stats(), decode.engine.stats());
    assert_eq!((ours.rooms, ours.parked, theirs.rooms, theirs.links), (0, 0, 0, 1));
}

fn s04_late_frames_are_counted_and_create_nothing(network: &Network) {
    let (prefill, from_prefill) = tapped(network, "prefill");
    let (decode, from_decode) = tapped(network, "decode");
    succeeds(&prefill, &decode, 1);
    let (sender, receiver) = granted(&prefill, &decode, 2);
    let generation = receiver.generation().0;
    drop((sender, receiver));
    let (to_prefill, to_decode) = (from_decode.sent()[0].0, from_prefill.sent()[0].0);
    let ended = || prefill.engine.stats().rooms + decode.engine.stats().rooms == 0;
    while !ended() {
        std::thread::yield_now();
    }
    succeeds(&prefill, &decode, 4); // what was under way has come now
    let before = (prefill.engine.stats().late, decode.engine.stats().late);
    // Finished, cleared, never there.
    for id in [id(1, generation - 1), id(2, generation), id(99, 7)] {
        for kind in [Kind::Grant, Kind::Abort, Kind::Grant, Kind::Abort] {
            from_decode.send(to_prefill, sample(kind, id).encode());
        }
        for kind in [Kind::Offer, Kind::ChunkDone, Kind::Done, Kind::Failed, Kind::Quiet] {
            from_prefill.send(to_decode, sample(kind, id).encode());
        }
    }
    succeeds(&prefill, &decode, 3);
    succeeds(&prefill, &decode, 1);
    let (ours, theirs) = (prefill.engine.stats(), decode.engine.stats());
    // Each abort is answered, to a receiver that is not there either.
    assert_eq!((ours.late - before.0, theirs.late - before.1), (12, 15 + 6));
    assert_eq!((ours.rooms, ours.parked, theirs.rooms, theirs.parked), (0, 0, 0, 0));
    assert!(prefill.engine.is_healthy() && decode.engine.is_healthy());
}

fn s05_no_use_of_a_room_sees_the_payload_of_another(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let mut stranger = Stranger::introduced(network, "stranger", &decode.engine);
    let uses: [(u64, &[u8]); 4] = [(1, b"X"), (2, b"Y"), (1, b"Z"), (1, b"")];
    for (number, (room, payload)) in uses.into_iter().enumerate() {
        let receiver = decode.receiver(room, &prefill);
        receiver.grant(Grant::new(0..0).rows(decode.aux, &[0])).unwrap();
        let mark = number as u8 + 1;
        prefill.rows.write_at(24 * 5, &[mark; 24]);
        for turn in 0..20_000 {
            assert_eq!((receiver.payload(), receiver.offered()), (None, None), "use {number}");
            // Somebody who is no source of the room claims to be done with it.
            if turn == 10_000 {
                let late = decode.engine.stats().late;
                let id = id(room, receiver.generation().0);
                for kind in [Kind::Offer, Kind::ChunkDone, Kind::Done, Kind::Failed] {
                    stranger.say(&sample(kind, id));
                }
                assert!(stranger.until_heard());
                assert_eq!(decode.engine.stats().late - late, 4);
            }
        }
        let sender = prefill.sender(room);
        sender.finish(Finish::new(0).rows(prefill.aux, &[5]).payload(payload)).unwrap();
        while !receiver.poll().is_terminal() {
            assert!(receiver.payload().is_none_or(|found| found == payload), "use {number}");
        }
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(receiver.payload().unwrap_or_default(), payload);
        assert_eq!(decode.rows.to_vec(0, 24), [mark; 24]);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    }
}
