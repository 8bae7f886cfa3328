//! Links that end, processes that stop, and what is released when.

use crate::calls::{ROOM, both, chunk, finish, grant, holds, ms, receiver, sender, start, world};
use kvferry::layout::Share;
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::{ErrorKind, KVPoll, Release};

const CUT: Call = Call::Cut { prefill: 0, decode: 1 };

/// The link ends at every moment of a request; the same room succeeds over the next link, as another
/// attempt.
#[test]
fn a_link_ends_at_every_step_and_the_next_one_serves() {
    let mut cut_short = 0;
    for model in both() {
        for step in 0..140 {
            let mut setup = Setup::new(model, 1, 1);
            setup.late = 10;
            let mut world = World::new(start(), step, setup);
            world.call(sender(0)).call(receiver(1, 1, 1)).after(ms(1), grant(1, 0..9));
            world.call(chunk(0, 0..9)).after(ms(20), finish(0, 9));
            world.run_until(|world| world.steps() >= step).expect("rules hold");
            world.call(CUT);
            holds(&mut world);
            for node in 0..2 {
                let Some(error) = world.error(node, ROOM) else { continue };
                cut_short += 1;
                let lost =
                    matches!(error.kind, ErrorKind::PeerLost | ErrorKind::Transport | ErrorKind::Timeout);
                assert!(lost, "{error}");
            }
            for node in 0..2 {
                world.call(Call::Drop { node, room: ROOM });
            }
            let (attempt, salt, sources) = (1, 1, vec![(0, Some(Share::WHOLE))]);
            world.call(Call::Sender { node: 0, room: ROOM, attempt, salt });
            world.call(Call::Receiver { node: 1, room: ROOM, attempt, salt, destinations: vec![0], sources });
            world.call(grant(1, 0..9)).call(chunk(0, 0..9)).call(finish(0, 9));
            crate::calls::succeeds(&mut world, 0..2);
        }
    }
    assert!(cut_short > 100, "{cut_short} ends were cut short");
}

#[test]
fn a_frozen_one_sided_writer_is_fenced_before_its_pages_come_back() {
    let mut setup = Setup::new(Model::OneSided, 1, 1);
    setup.late = 100;
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..9)).call(chunk(0, 0..9));
    world.run_for(ms(150)).unwrap();
    world.call(Call::Freeze { node: 0, time: ms(60_000) });
    world.call(Call::Abort { node: 1, room: ROOM });
    let fenced = world.elapsed() + ms(300);
    world.run_until(|world| world.release(1, ROOM) == Some(Release::Safe)).unwrap();
    assert!(world.elapsed() >= fenced, "released after {:?}", world.elapsed());
    assert!(world.log().iter().any(|line| line.contains("does Fence")));
    holds(&mut world);
}

#[test]
fn pages_that_nobody_vouches_for_stay_draining() {
    let mut setup = Setup::new(Model::OneSided, 1, 1);
    (setup.vouched, setup.fences, setup.late) = (0, false, 100);
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..9)).call(chunk(0, 0..9));
    world.run_for(ms(150)).unwrap();
    world.call(Call::Crash { node: 0 });
    holds(&mut world);
    assert_eq!(world.state(1, ROOM), Some(KVPoll::Failed));
    assert_eq!(world.release(1, ROOM), Some(Release::Draining));
}

#[test]
fn a_crashed_sender_fails_its_receivers_and_holds_no_pages() {
    for model in both() {
        for at in 0..40 {
            let mut world = World::new(start(), at, Setup::new(model, 2, 2));
            for node in 0..2 {
                world.call(sender(node)).call(chunk(node, 0..9)).after(ms(40), finish(node, 9));
            }
            for node in 2..4 {
                world.call(receiver(node, 2, 2)).call(grant(node, 0..9));
            }
            world.after(ms(2 * at), Call::Crash { node: 0 });
            holds(&mut world);
            for node in 2..4 {
                assert_eq!(world.release(node, ROOM), Some(Release::Safe));
            }
        }
    }
}

#[test]
fn a_receiver_that_dies_fails_the_request_everywhere() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 2));
    world.call(sender(0)).call(chunk(0, 0..9));
    world.call(receiver(1, 2, 1)).call(grant(1, 0..9)).call(receiver(2, 2, 1)).call(grant(2, 0..9));
    world.run_until(|world| world.landings() > 1).unwrap();
    world.call(Call::Crash { node: 1 });
    holds(&mut world);
    for node in [0, 2] {
        let error = world.error(node, ROOM).expect("it failed");
        assert_eq!((error.kind, error.party()), (ErrorKind::PeerLost, world.party(1)), "{error}");
    }
}
