//! Requests that succeed, in every shape.

use crate::calls::{ROOM, both, chunk, finish, grant, holds, ms, receiver, sender, succeeds, world};
use kvferry::layout::Share;
use kvferry::session::Session;
use kvferry::sim::{Call, Model, Setup};
use kvferry::{KVPoll, Release};

/// One prefill and one decode node, opened and granted.
fn pair(setup: Setup, tokens: std::ops::Range<u32>) -> kvferry::sim::World {
    let mut world = world(setup);
    world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, tokens));
    world
}

#[test]
fn one_chunk_arrives_whole() {
    for model in both() {
        let mut world = pair(Setup::new(model, 1, 1), 0..10);
        world.call(chunk(0, 0..10)).call(finish(0, 10));
        succeeds(&mut world, 0..2);
        let session = world.receiver(1, ROOM).expect("it is there");
        assert_eq!(session.payloads().map(|(_, payload)| payload.len()).collect::<Vec<_>>(), [9]);
        assert_eq!(session.ready_tokens(), 10);
    }
}

#[test]
fn many_chunks_share_pages_at_their_borders() {
    for model in both() {
        for seed in 0..20 {
            let mut world = pair(Setup::new(model, 1, 1), 0..13);
            for (at, tokens) in [0..1, 1..6, 6..6, 6..11, 11..13].into_iter().enumerate() {
                world.after(ms(seed * at as u64), chunk(0, tokens));
            }
            world.after(ms(seed * 5), finish(0, 13));
            succeeds(&mut world, 0..2);
        }
    }
}

#[test]
fn an_empty_last_chunk_is_no_obstacle() {
    for model in both() {
        let mut world = pair(Setup::new(model, 1, 1), 0..6);
        world.call(chunk(0, 0..6)).after(ms(50), chunk(0, 6..6)).after(ms(60), finish(0, 6));
        succeeds(&mut world, 0..2);
    }
}

#[test]
fn a_payload_alone_needs_no_pages() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 1));
        let none = Call::Grant { node: 1, room: ROOM, tokens: 0..0, window: 0, rows: false };
        world.call(sender(0)).call(receiver(1, 1, 1)).call(none).call(finish(0, 0));
        succeeds(&mut world, 0..2);
        assert_eq!(world.landings(), 0);
    }
}

#[test]
fn a_prefix_held_already_is_not_written() {
    for model in both() {
        for held in [1, 4, 7, 10] {
            let mut world = pair(Setup::new(model, 1, 1), held..10);
            world.call(chunk(0, 0..5)).call(chunk(0, 5..10)).call(finish(0, 10));
            succeeds(&mut world, 0..2); // a write before `held` would be a trespass
        }
        let mut world = pair(Setup::new(model, 1, 1), 5..10);
        world.call(chunk(0, 5..10)).call(finish(0, 10));
        succeeds(&mut world, 0..2);
    }
}

#[test]
fn chunks_may_come_a_layer_at_a_time() {
    for model in both() {
        let mut setup = Setup::new(model, 1, 1);
        setup.layers = 3;
        let mut world = pair(setup, 0..8);
        for (at, tokens) in [0..5, 5..8].into_iter().enumerate() {
            for layer in 0..3 {
                let layers = Some(layer..layer + 1);
                let call = Call::Chunk { node: 0, room: ROOM, tokens: tokens.clone(), layers, ready: true };
                world.after(ms(40 * at as u64 + 10 * u64::from(layer)), call);
            }
        }
        world.run_until(|world| ready(world, 1, 2) == 5).expect("rules hold");
        assert_eq!(world.state(1, ROOM), Some(KVPoll::Transferring));
        world.after(ms(100), finish(0, 8));
        succeeds(&mut world, 0..2);
        assert_eq!(ready(&world, 1, 0), 8);
    }
}

/// Tokens of a layer that are in place at a node.
fn ready(world: &kvferry::sim::World, node: usize, layer: u32) -> u32 {
    world.receiver(node, ROOM).map_or(0, |session| {
        session
            .ready_by_layer()
            .into_iter()
            .find(|(found, _)| *found == layer)
            .map_or(0, |(_, tokens)| tokens)
    })
}

#[test]
fn bytes_are_not_read_before_they_are_ready() {
    for model in both() {
        let mut world = pair(Setup::new(model, 1, 1), 0..8);
        world.call(Call::Chunk { node: 0, room: ROOM, tokens: 0..8, layers: None, ready: false });
        world.call(finish(0, 8));
        world.run_for(ms(200)).expect("rules hold");
        assert_eq!(world.state(0, ROOM), Some(KVPoll::Transferring));
        assert_eq!(world.receiver(1, ROOM).expect("there").figures().bytes, 0);
        world.call(Call::Ready { node: 0, room: ROOM, chunk: 0 });
        succeeds(&mut world, 0..2);
    }
}

#[test]
fn a_window_that_starts_late_takes_its_tokens_only() {
    for model in both() {
        for window in [0, 1, 3, 6] {
            let mut world = world(Setup::new(model, 1, 1));
            let part = Call::Grant { node: 1, room: ROOM, tokens: 2..11, window, rows: true };
            world.call(sender(0)).call(receiver(1, 1, 1)).call(part);
            world.call(chunk(0, 0..6)).call(chunk(0, 6..11)).call(finish(0, 11));
            succeeds(&mut world, 0..2);
        }
    }
}

#[test]
fn an_offer_comes_before_the_pages() {
    let mut world = world(Setup::new(Model::TwoSided, 1, 1));
    world.call(sender(0)).call(receiver(1, 1, 1));
    world.call(Call::Offer { node: 0, room: ROOM, tokens: Some(6) });
    let offered = |world: &kvferry::sim::World| {
        world.receiver(1, ROOM).and_then(|session| session.offered()).and_then(|offer| offer.tokens)
    };
    world.run_until(|world| offered(world).is_some()).expect("rules hold");
    assert_eq!(offered(&world), Some(6));
    world.call(grant(1, 0..6)).call(chunk(0, 0..6)).call(finish(0, 6));
    succeeds(&mut world, 0..2);
}

#[test]
fn two_senders_feed_one_receiver() {
    for model in both() {
        let mut world = world(Setup::new(model, 2, 1));
        let layers = |layers| Some(Share::WHOLE.layers(layers));
        let sources = vec![(0, layers(0..1)), (1, layers(1..2))];
        world.call(Call::Receiver {
            node: 2,
            room: ROOM,
            attempt: 0,
            salt: 0,
            destinations: vec![0],
            sources,
        });
        world.call(grant(2, 0..9));
        for node in 0..2 {
            world.after(ms(node as u64 * 700), sender(node));
            world.after(ms(node as u64 * 700 + 1), chunk(node, 0..9));
            world.after(ms(node as u64 * 700 + 1), finish(node, 9));
        }
        world.run_until(|world| world.state(0, ROOM) == Some(KVPoll::Success)).expect("rules hold");
        world.run_for(ms(20)).expect("rules hold");
        assert_eq!(world.state(2, ROOM), Some(KVPoll::Transferring), "one source is not enough");
        succeeds(&mut world, 0..3);
    }
}

#[test]
fn layers_that_alternate_come_one_at_a_time_from_who_owes_them() {
    for model in both() {
        let mut setup = Setup::new(model, 2, 1);
        setup.layers = 4;
        let mut world = world(setup);
        let sources = [[0, 2], [1, 3]].map(|layers| Some(Share::WHOLE.layers(layers)));
        let sources = (0..).zip(sources).collect();
        let destinations = vec![0];
        world.call(Call::Receiver { node: 2, room: ROOM, attempt: 0, salt: 0, destinations, sources });
        world.call(grant(2, 0..9));
        for node in 0..2 {
            world.call(sender(node));
            for layer in 0..4 {
                let layers = Some(layer..layer + 1);
                let call = Call::Chunk { node, room: ROOM, tokens: 0..9, layers, ready: true };
                world.after(ms(10 * u64::from(layer)), call);
            }
        }
        world.run_until(|world| ready(world, 2, 1) == 9).expect("rules hold");
        assert_eq!(world.state(2, ROOM), Some(KVPoll::Transferring));
        for node in 0..2 {
            world.after(ms(50), finish(node, 9));
        }
        succeeds(&mut world, 0..3);
    }
}

#[test]
fn a_source_that_owes_nothing_still_says_so() {
    for model in both() {
        let mut world = world(Setup::new(model, 2, 1));
        let sources = vec![(0, Some(Share::WHOLE)), (1, None)];
        world.call(Call::Receiver {
            node: 2,
            room: ROOM,
            attempt: 0,
            salt: 0,
            destinations: vec![0],
            sources,
        });
        world.call(grant(2, 0..9)).call(sender(0)).call(chunk(0, 0..9)).call(finish(0, 9));
        world.run_for(ms(400)).expect("rules hold");
        assert_eq!(world.state(2, ROOM), Some(KVPoll::Transferring));
        world.call(sender(1)).call(chunk(1, 0..9)).call(finish(1, 9));
        succeeds(&mut world, 0..3);
        if model == Model::TwoSided {
            let bytes = world.receiver(2, ROOM).expect("there").figures().bytes;
            assert_eq!(bytes, 9 * 2 * (4 + 4 + 2) + 2 * 2 * 3 + 5, "each byte once");
        }
    }
}

#[test]
fn two_receivers_are_fed_by_one_sender() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 2));
        world.call(sender(0)).call(chunk(0, 0..7)).call(finish(0, 7));
        world.call(receiver(1, 2, 1)).call(grant(1, 0..7));
        world.run_for(ms(300)).expect("rules hold");
        assert_eq!(world.state(0, ROOM), Some(KVPoll::Bootstrapping), "the second has not granted");
        assert_eq!(world.landings(), 0);
        world.call(receiver(2, 2, 1)).call(grant(2, 3..7));
        succeeds(&mut world, 0..3);
    }
}

#[test]
fn a_join_waits_for_its_sender() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 1));
        world.call(receiver(1, 1, 1)).call(grant(1, 0..5));
        world.run_for(ms(800)).expect("rules hold");
        world.call(sender(0)).call(chunk(0, 0..5)).call(finish(0, 5));
        succeeds(&mut world, 0..2);
    }
}

#[test]
fn doubled_and_damaged_writes_change_nothing() {
    for seed in 0..200 {
        let mut setup = Setup::new(Model::TwoSided, 1, 1);
        (setup.damaged, setup.doubled, setup.retransmits) = (25, 25, 30);
        let mut world = kvferry::sim::World::new(crate::calls::start(), seed, setup);
        world.call(sender(0)).call(receiver(1, 1, 1)).call(grant(1, 0..12));
        world.call(chunk(0, 0..7)).call(chunk(0, 7..12)).call(finish(0, 12));
        succeeds(&mut world, 0..2);
    }
}

#[test]
fn a_room_is_used_again_after_both_ends_are_done() {
    for model in both() {
        let mut world = world(Setup::new(model, 1, 1));
        for attempt in 0..5 {
            let salt = 100 + attempt;
            world.call(Call::Sender { node: 0, room: ROOM, attempt, salt });
            let sources = vec![(0, Some(Share::WHOLE))];
            world.call(Call::Receiver { node: 1, room: ROOM, attempt, salt, destinations: vec![0], sources });
            world.call(grant(1, 0..5)).call(chunk(0, 0..5)).call(finish(0, 5));
            holds(&mut world);
            for node in 0..2 {
                assert_eq!(world.state(node, ROOM), Some(KVPoll::Success), "attempt {attempt}");
                assert_eq!(world.release(node, ROOM), Some(Release::Safe));
                world.call(Call::Drop { node, room: ROOM });
            }
        }
    }
}
