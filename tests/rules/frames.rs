//! Single control frames that are lost, late or doubled on living links, and what comes in no usual order.

use crate::calls::{
    ROOM, abort, both, chunk, closes, finish, grant, holds, ms, receiver, sender, start, whole,
};
use kvferry::layout::Share;
use kvferry::sim::{Call, Mishap, Model, Setup, World};
use kvferry::wire::Kind;
use kvferry::{ErrorKind, KVPoll, Release, Room};

const KINDS: [Kind; 8] = [
    Kind::Join,
    Kind::Offer,
    Kind::Grant,
    Kind::ChunkDone,
    Kind::Done,
    Kind::Failed,
    Kind::Abort,
    Kind::Quiet,
];

fn disturb(world: &mut World, kind: Kind, mishap: Mishap) {
    let (from, to) = match kind {
        Kind::Join | Kind::Grant | Kind::Abort => (world.decode(0), 0),
        _ => (0, world.decode(0)),
    };
    world.call(Call::Disturb { from, to, kind, mishap });
}

/// Every room ends and every page comes back, whatever becomes of one frame.
#[test]
fn any_control_frame_may_be_lost_late_or_doubled() {
    let mishaps = [Mishap::Lose, Mishap::Repeat, Mishap::Hold(ms(50)), Mishap::Hold(ms(700))];
    let mut ended = 0;
    for model in both() {
        for (prefill, decode) in [(1, 1), (2, 1), (1, 2), (3, 4)] {
            for kind in KINDS {
                for mishap in mishaps {
                    for gives_up in [None, Some(0), Some(prefill)] {
                        let mut world = World::new(start(), 3, Setup::new(model, prefill, decode));
                        whole(&mut world, 9);
                        world.call(Call::Offer { node: 0, room: ROOM, tokens: Some(9) });
                        disturb(&mut world, kind, mishap);
                        if let Some(node) = gives_up {
                            world.after(ms(35), abort(node));
                        }
                        closes(&mut world);
                        ended += world.tally().rooms;
                    }
                }
            }
        }
    }
    assert!(ended > 1000, "{ended}");
}

#[test]
fn frames_that_say_nothing_new_change_nothing() {
    for model in both() {
        for kind in [Kind::Join, Kind::Offer, Kind::Done, Kind::Quiet] {
            let mut world = World::new(start(), 3, Setup::new(model, 1, 1));
            whole(&mut world, 9);
            world.call(Call::Offer { node: 0, room: ROOM, tokens: Some(9) });
            disturb(&mut world, kind, Mishap::Repeat);
            crate::calls::succeeds(&mut world, 0..2);
        }
    }
}

#[test]
fn users_may_come_in_any_order_and_slowly() {
    // Which of the next calls is the receiver's: two of five.
    for model in both() {
        for order in 0..32_u32 {
            if order.count_ones() != 2 {
                continue;
            }
            for pause in [0, 1, 250] {
                let mut world = crate::calls::world(Setup::new(model, 1, 1));
                let mut receiving = [receiver(1, 1, 1), grant(1, 0..6)].into_iter();
                let mut sending = [sender(0), chunk(0, 0..6), finish(0, 6)].into_iter();
                for turn in 0..5 {
                    let next = if order >> turn & 1 == 1 { receiving.next() } else { sending.next() };
                    world.after(ms(pause * turn), next.expect("two and three"));
                }
                crate::calls::succeeds(&mut world, 0..2);
                closes(&mut world);
            }
        }
    }
}

#[test]
fn a_lost_last_word_is_not_waited_for_for_ever() {
    for model in both() {
        let mut world = World::new(start(), 3, Setup::new(model, 1, 1));
        whole(&mut world, 9);
        disturb(&mut world, Kind::Done, Mishap::Lose);
        holds(&mut world);
        assert_eq!(world.state(0, ROOM), Some(KVPoll::Success));
        assert_eq!(world.release(1, ROOM), Some(Release::Safe));
        closes(&mut world);
    }
}

/// Writes are counted, so the frame that says how many there were may come before them.
#[test]
fn done_overtakes_the_writes_it_counts() {
    let mut overtaken = 0;
    for seed in 0..60 {
        let mut world = World::new(start(), seed, Setup::new(Model::TwoSided, 1, 1));
        whole(&mut world, 9);
        let is_told = |world: &World| world.receiver(1, ROOM).is_some_and(|own| own.payloads().count() == 1);
        world.run_until(is_told).expect("rules hold");
        overtaken += u32::from(world.state(1, ROOM) == Some(KVPoll::Transferring));
        crate::calls::succeeds(&mut world, 0..2);
    }
    assert!(overtaken > 10, "{overtaken}");
}

#[test]
fn damaged_writes_of_one_room_do_not_touch_others_of_its_link() {
    let mut failed = 0;
    for seed in 0..60 {
        let mut setup = Setup::new(Model::TwoSided, 1, 1);
        (setup.damaged, setup.retransmits) = (40, 1);
        let mut world = World::new(start(), seed, setup);
        whole(&mut world, 9);
        let room = Room(8);
        let sources = vec![(0, Some(Share::WHOLE))];
        world.call(Call::Sender { node: 0, room, attempt: 0, salt: 5 });
        world.call(Call::Receiver { node: 1, room, attempt: 0, salt: 5, destinations: vec![0], sources });
        world.call(Call::Grant { node: 1, room, tokens: 0..0, window: 0, rows: false });
        world.after(ms(400), Call::Finish { node: 0, room, tokens: 0, payload: 5 });
        holds(&mut world);
        assert_eq!(world.state(1, room), Some(KVPoll::Success), "seed {seed}");
        failed += u32::from(world.error(1, ROOM).is_some_and(|error| error.kind == ErrorKind::Corrupted));
        closes(&mut world);
    }
    assert!(failed > 10, "{failed}");
}

/// Copies on the other lane may still be applied when the last write has landed.
#[test]
fn success_waits_for_copies_that_are_being_applied() {
    for seed in 0..150 {
        let mut setup = Setup::new(Model::TwoSided, 1, 1);
        setup.doubled = 100;
        let mut world = World::new(start(), seed, setup);
        whole(&mut world, 9);
        crate::calls::succeeds(&mut world, 0..2);
        closes(&mut world);
    }
}

/// The stall deadline fires, nobody vouches for the pages, and they come back only behind a fence.
#[test]
fn a_dark_link_stalls_and_is_fenced_before_its_pages_come_back() {
    for model in both() {
        for seed in 0..40 {
            let mut world = World::new(start(), seed, Setup::new(model, 1, 1));
            world.trace();
            whole(&mut world, 9);
            world.after(ms(12), Call::Darken { prefill: 0, decode: 1 });
            let mut failed = None;
            while world.release(1, ROOM) != Some(Release::Safe) && world.step() {
                if failed.is_none() && world.state(1, ROOM) == Some(KVPoll::Failed) {
                    failed = Some(world.elapsed());
                }
            }
            let Some(failed) = failed else { continue };
            let error = world.error(1, ROOM).expect("it failed");
            if error.kind == ErrorKind::Timeout && model == Model::OneSided && world.landings() > 0 {
                let fenced = world.log().iter().any(|line| line.contains("node 1 does Fence"));
                let told = world.log().iter().any(|line| line.contains("node 1 reads Quiet"));
                assert!(fenced || told, "{}", world.log().join("\n"));
                assert!(world.elapsed() >= failed + ms(300) || told);
            }
            closes(&mut world);
        }
    }
}
