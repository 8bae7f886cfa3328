//! What is left of many rooms that ended in every way.

use crate::end::{End, until};
use crate::peer::{Peer, print_source};
use crate::plan::{Fabric, Plan};
use kvferry::{ErrorKind, KVPoll, Source, UsageError};
use std::ops::Range;
use std::time::Duration;

/// One side's part in these rooms: the receiver's if there is a source. A quarter each succeeds, is
/// aborted, runs into its deadline, and is opened twice; of the middle two, half by either side.
pub(crate) fn churn(end: &mut End, rooms: Range<u64>, from: Option<Source>) {
    let is_receiver = from.is_some();
    let soon = |room: u64| (room % 8 == if is_receiver { 2 } else { 6 }).then_some(Duration::from_millis(30));
    let open = |end: &mut End, room: u64| match &from {
        Some(source) => end.try_receive(room, vec![source.clone()], soon(room)),
        None => end.try_open(room, soon(room)),
    };
    for room in rooms.clone() {
        open(end, room).unwrap();
        if room % 4 == 3 {
            assert!(matches!(open(end, room), Err(UsageError::RoomInUse(_))));
        }
        match room % 8 {
            0 | 3 | 4 | 7 if is_receiver => end.grant(room, 16),
            0 | 3 | 4 | 7 => {
                end.send(room, 16);
                end.finish(room);
            }
            1 if is_receiver => end.abort(room),
            5 if !is_receiver => end.abort(room),
            _ => {}
        }
    }
    for room in rooms {
        let outcome = end.end(room);
        let kind = outcome.error.as_ref().map(|error| error.kind);
        let expected = match room % 4 {
            1 => Some(ErrorKind::Aborted),
            2 => Some(ErrorKind::Timeout),
            _ => None,
        };
        assert_eq!(kind, expected, "room {room}: {outcome:?}");
        assert_eq!(outcome.state == KVPoll::Success, expected.is_none(), "room {room}: {outcome:?}");
    }
}

#[test]
fn twenty_thousand_rooms_of_every_end_leave_nothing_behind() {
    let plan = |group| {
        let mut plan = Plan::new(Fabric::Tcp, group, 0);
        plan.pages = 256;
        plan.discover = Duration::from_secs(2);
        plan
    };
    let (mut prefill, mut decode) = (Peer::start(&plan("prefill")), Peer::start(&plan("decode")));
    let from = print_source(&prefill.source());
    let run = |rooms: Range<u64>, prefill: &mut Peer, decode: &mut Peer| {
        for start in rooms.step_by(200) {
            let rooms = format!("churn {start} {}", start + 200);
            decode.tell(&[format!("{rooms} {from}")]);
            prefill.obey(&[rooms]);
            decode.hear();
        }
    };
    run(0..200, &mut prefill, &mut decode);
    let descriptors = (prefill.descriptors(), decode.descriptors());
    run(200..5_000, &mut prefill, &mut decode);
    let before = (prefill.resident(), decode.resident());
    run(5_000..20_000, &mut prefill, &mut decode);
    let after = (prefill.resident(), decode.resident());
    println!("resident: {before:?} KiB after 5,000 rooms, {after:?} after 20,000");
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        assert!(after < before + (8 << 10), "{before} KiB, then {after}");
    }
    assert_eq!((prefill.descriptors(), decode.descriptors()), descriptors);
    for peer in [&mut prefill, &mut decode] {
        until("what is remembered to be forgotten", || peer.ask("tables") == "0 0 0 0");
        assert_eq!(peer.ask("stain"), "");
    }
}
