//! Frames in another order, more than once, or with no sense; and one room number used without end.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::patient;
use crate::stranger::{Stranger, id, samples, sealed, tapped_with};
use crate::tap::Fate;
use kvferry::wire::{Frame, Kind, MAX_BODY};
use kvferry::{Accepted, ErrorKind, KVPoll, KVReceiver, KVSender, Release, Room, RoomOptions, UsageError};

on_each_network! {
    t05_a_grant_that_comes_before_its_sender_is_kept_for_it
    t05_frames_before_their_time_harm_nobody
    t05_frames_that_come_twice_leave_no_room_behind
    t10_a_room_is_used_again_ten_thousand_times_at_once
    t15_frames_of_a_finished_transfer_may_come_again
    t15_malformed_and_oversized_frames_end_their_link_alone
}

fn pair(network: &Network) -> (Node, Node) {
    (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()))
}

fn succeeds(prefill: &Node, decode: &Node, room: u64) {
    prefill.fill(room, &[2, 3]);
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..8, &[0, 1]);
    prefill.send_all(&sender, 8, 4, &[2, 3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    assert_eq!(decode.first_wrong(room, &[0, 1], 0..8), None);
}

fn t05_a_grant_that_comes_before_its_sender_is_kept_for_it(network: &Network) {
    let (prefill, decode) = pair(network);
    prefill.fill(5, &[2, 3]);
    let receiver = decode.receiver(1, &prefill);
    decode.lend(&receiver, 0..8, &[0, 1]);
    while prefill.engine.stats().parked < 2 {
        std::thread::yield_now();
    }
    let sender = prefill.sender(1);
    prefill.send_all(&sender, 8, 4, &[2, 3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(5, &[0, 1], 0..8), None);
    assert_eq!(prefill.engine.stats().parked, 0);
}

fn t05_frames_before_their_time_harm_nobody(network: &Network) {
    let (prefill, decode) = pair(network);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    let generation = receiver.generation().0;
    for (node, generation) in [(&prefill, generation + 100), (&decode, generation)] {
        for (kind, frame) in samples() {
            let is_hello = *kind == Kind::Hello as u8;
            // Before a hello nothing but a hello is heard.
            let mut early = Stranger::connect(network, "stranger", &node.engine);
            early.say(frame);
            if !is_hello {
                early.until_down();
            }
            drop(early);
            // After it, a stranger may say what it likes of rooms that are none of its own.
            let frame = match frame {
                Frame::Room { frame, .. } => Frame::Room { id: id(1, generation), frame: frame.clone() },
                // Who joins the room itself is a party of it.
                frame => frame.clone(),
            };
            if *kind != Kind::Join as u8 {
                let mut stranger = Stranger::introduced(network, "stranger", &node.engine);
                stranger.say(&frame);
                let goes = matches!(frame, Frame::Goodbye { .. });
                assert_eq!(stranger.until_heard(), !goes, "{frame:?}");
            }
        }
    }
    assert_eq!((sender.poll(), receiver.poll()), (KVPoll::Bootstrapping, KVPoll::WaitingForInput));
    prefill.fill(5, &[2, 3]);
    decode.lend(&receiver, 0..8, &[0, 1]);
    prefill.send_all(&sender, 8, 4, &[2, 3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(5, &[0, 1], 0..8), None);
}

fn t05_frames_that_come_twice_leave_no_room_behind(network: &Network) {
    let (prefill, sends) = tapped_with(network, "prefill", patient());
    let (decode, receives) = tapped_with(network, "decode", patient());
    succeeds(&prefill, &decode, 0); // hellos come once: links are opened by a transport
    let kinds = (Kind::Join as u8..=Kind::Quiet as u8).map(|kind| Kind::from_number(kind).unwrap());
    for (number, kind) in kinds.enumerate() {
        for valve in [&sends, &receives] {
            valve.on_frame(move |frame| if frame.kind() == kind { Fate::Twice } else { Fate::Pass });
        }
        for end in 0..3 {
            let room = 100 + 3 * number as u64 + end;
            let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
            prefill.fill(room, &[2, 3]);
            decode.lend(&receiver, 0..8, &[0, 1]);
            block_on(sender.wait_granted());
            match end {
                0 => prefill.send_all(&sender, 8, 4, &[2, 3]),
                1 => sender.abort("one end"),
                _ => receiver.abort("other end"),
            }
            let ends = (sender.wait(PATIENCE), receiver.wait(PATIENCE));
            assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
            // No link repeats frames: a second lending, or a chunk told again before all is done, breaks
            // the rules.
            if end == 0 && matches!(kind, Kind::Grant | Kind::ChunkDone) {
                let errors = [sender.error(), receiver.error()];
                assert!(errors.iter().flatten().all(|error| error.kind == ErrorKind::Protocol), "{errors:?}");
                continue;
            }
            let wanted = if end == 0 { KVPoll::Success } else { KVPoll::Failed };
            assert_eq!(ends, (wanted, wanted), "{kind:?} {end}: {:?}", receiver.error());
            if wanted == KVPoll::Success {
                assert_eq!(decode.first_wrong(room, &[0, 1], 0..8), None);
            }
        }
    }
    sends.open();
    receives.open();
    succeeds(&prefill, &decode, 1);
    for stats in [prefill.engine.stats(), decode.engine.stats()] {
        assert_eq!((stats.rooms, stats.parked, stats.links), (0, 0, 1));
    }
}

const USES: u64 = 10_000;

/// What the two sides do in one use of the room, known to both.
fn plan(attempt: u64) -> u64 {
    attempt.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61
}

/// A handle as soon as the use before has let go of the room.
fn claim<T>(make: impl Fn(RoomOptions) -> Result<T, UsageError>, attempt: u64) -> T {
    loop {
        match make(RoomOptions::default().attempt(attempt)) {
            Ok(handle) => return handle,
            Err(UsageError::RoomInUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn t10_a_room_is_used_again_ten_thousand_times_at_once(network: &Network) {
    let (prefill, decode) = pair(network);
    let room = Room(u64::MAX);
    let send = |attempt: u64| -> KVSender {
        let sender = claim(|options| prefill.engine.sender(room, options), attempt);
        if plan(attempt) == 0 {
            sender.abort("at once");
        }
        prefill.fill(attempt, &[2]);
        let sent = sender.send(kvferry::Chunk::new(0..4).pages(prefill.kv, &[2])).unwrap();
        if plan(attempt) == 1 && sent == Accepted::Queued {
            sender.abort("after a chunk");
        } else if sent == Accepted::Queued {
            let _ = sender.finish(kvferry::Finish::new(4).payload(&attempt.to_le_bytes())).unwrap();
        }
        sender
    };
    let receive = |attempt: u64| -> KVReceiver {
        let make = |options| decode.engine.receiver(room, prefill.sources(), options);
        let receiver = claim(make, attempt);
        decode.lend(&receiver, 0..4, &[1]);
        if plan(attempt) == 2 {
            receiver.abort("unwanted");
        }
        receiver
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for attempt in 0..USES {
                let sender = send(attempt);
                let end = sender.wait(PATIENCE);
                // The last chunk may have been on its way when its receiver gave up.
                let wanted = if plan(attempt) <= 2 { KVPoll::Failed } else { KVPoll::Success };
                assert!(end == wanted || plan(attempt) == 2, "{attempt}: {:?}", sender.error());
            }
        });
        for attempt in 0..USES {
            let receiver = receive(attempt);
            let end = receiver.wait(PATIENCE);
            if plan(attempt) > 2 {
                assert_eq!(end, KVPoll::Success, "{attempt}: {:?}", receiver.error());
                assert_eq!(decode.first_wrong(attempt, &[1], 0..4), None, "{attempt}");
                assert_eq!(receiver.payload().as_deref(), Some(&attempt.to_le_bytes()[..]));
            } else {
                let is_aborted = receiver.error().is_some_and(|error| error.kind == ErrorKind::Aborted);
                assert!(is_aborted || plan(attempt) == 2, "{attempt}: {:?}", receiver.error());
            }
        }
    });
    for stats in [prefill.engine.stats(), decode.engine.stats()] {
        assert_eq!((stats.rooms, stats.parked, stats.links), (0, 0, 1));
    }
}

fn t15_frames_of_a_finished_transfer_may_come_again(network: &Network) {
    let (prefill, sends) = tapped_with(network, "prefill", patient());
    let (decode, receives) = tapped_with(network, "decode", patient());
    succeeds(&prefill, &decode, 1);
    let (sender, receiver) = (prefill.sender(2), decode.receiver(2, &prefill));
    for valve in [&sends, &receives] {
        for _ in 0..3 {
            valve.sent().into_iter().for_each(|(link, frame)| valve.send(link, frame));
        }
    }
    decode.lend(&receiver, 0..8, &[4, 5]);
    prefill.send_all(&sender, 8, 4, &[2, 3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    succeeds(&prefill, &decode, 3);
    succeeds(&prefill, &decode, 1);
    for stats in [prefill.engine.stats(), decode.engine.stats()] {
        assert_eq!((stats.rooms, stats.parked, stats.links), (0, 0, 1));
    }
}

fn t15_malformed_and_oversized_frames_end_their_link_alone(network: &Network) {
    let (prefill, decode) = pair(network);
    succeeds(&prefill, &decode, 1);
    let claiming = |bytes: u32| {
        let mut frame = sealed(Kind::Ping as u8, &[0; 8]).to_vec();
        frame[8..12].copy_from_slice(&bytes.to_le_bytes());
        frame.into()
    };
    let mut damaged = sealed(Kind::Ping as u8, &[0; 8]).to_vec();
    damaged[20] ^= 1;
    let cases = [
        claiming(MAX_BODY + 1),
        claiming(u32::MAX),
        damaged.into(),
        sealed(200, b""),
        sealed(Kind::Data as u8, &[0; 56]),
        sealed(Kind::RegionsGone as u8, &u32::MAX.to_le_bytes()),
        sealed(Kind::Goodbye as u8, &[1, 1, 0, 0, 0, 0xFF]),
        b"no frame, yet longer than a header".to_vec().into(),
    ];
    let before = [&prefill, &decode].map(|node| node.engine.stats().malformed);
    for bytes in &cases {
        for node in [&prefill, &decode] {
            let mut stranger = Stranger::introduced(network, "stranger", &node.engine);
            assert!(stranger.until_heard());
            stranger.say_bytes(bytes.clone());
            stranger.until_down();
        }
    }
    succeeds(&prefill, &decode, 2);
    for (node, before) in [&prefill, &decode].into_iter().zip(before) {
        assert_eq!(node.engine.stats().malformed - before, cases.len() as u64);
        assert_eq!((node.engine.stats().links, node.engine.is_healthy()), (1, true));
    }
}
