//! Memory that is taken back, and pages that come back late.

use crate::bed::{Network, Node, PATIENCE};
use crate::double::Doubles;
use kvferry::layout::PoolLayout;
use kvferry::{Config, Engine, KVPoll, Place, Rank, RegionId, Release, Room, RoomOptions, Side, UsageError};
use std::time::Duration;

fn one_room(prefill: &Node, decode: &Node, room: u64) {
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..4, &[1]);
    prefill.send_all(&sender, 4, 4, &[1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
}

pub(crate) fn pools_are_replaced_a_thousand_times_while_the_engine_lives(network: &Network) {
    let (prefill, mut decode) = (network.node("prefill", 2), network.node("decode", 2));
    one_room(&prefill, &decode, 0);
    let regions = u32::try_from(decode.engine.stats().regions).unwrap();
    assert_eq!(decode.engine.withdraw(RegionId(0)).unwrap_err(), UsageError::RegionInUse(RegionId(0)));
    for round in 1..=1000 {
        decode = Node::with(decode.engine.clone(), 2);
        one_room(&prefill, &decode, u64::from(round));
        for region in (round - 1) * regions..round * regions {
            let withdrawal = decode.engine.withdraw(RegionId(region)).unwrap();
            assert!(withdrawal.is_done(), "nobody else can reach it");
            let again = decode.engine.withdraw(RegionId(region));
            assert_eq!(again.unwrap_err(), UsageError::UnknownRegion(RegionId(region)));
        }
        let stats = decode.engine.stats();
        assert_eq!((stats.regions as u32, stats.withdrawals, stats.links), (regions, 0, 1));
    }
}

/// Two engines whose peers have keys of their memory; the prefill side is driven by the test.
fn keyed(doubles: &Doubles, config: Config) -> (Node, Node) {
    let engine = |name: &str| {
        Engine::builder(Place::alone(name)).model("test").config(config).transport(doubles.transport(name))
    };
    let prefill = Node::with(engine("prefill").manual_progress().build().unwrap(), 8);
    let decode = Node::with(engine("decode").build().unwrap(), 8);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..4, &[1]);
    prefill.send_all(&sender, 4, 4, &[1]);
    while !(sender.poll().is_terminal() && receiver.poll().is_terminal()) {
        prefill.engine.progress_or_wait(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    (prefill, decode)
}

#[test]
fn a_region_is_free_when_every_peer_has_let_go_of_it() {
    let doubles = Doubles::default();
    let (prefill, decode) = keyed(&doubles, Config::default());
    let region = RegionId(0);
    let is_lent = || doubles.regions.lock().unwrap().contains(&("decode".to_owned(), region));
    let imports = || doubles.imports.lock().unwrap().iter().filter(|(of, _)| of == "prefill").count();
    let before = imports();
    decode.engine.set_layout(PoolLayout::new()).unwrap();
    let withdrawal = decode.engine.withdraw(region).unwrap();
    assert_eq!((withdrawal.is_done(), withdrawal.waiting_for()), (false, vec![Rank::default()]));
    assert!(is_lent() && decode.engine.stats().withdrawals == 1);
    // The peer takes the word when it runs again.
    while !withdrawal.is_done() {
        prefill.engine.progress_or_wait(Duration::from_millis(10)).unwrap();
    }
    assert!(withdrawal.wait(PATIENCE) && withdrawal.waiting_for().is_empty());
    assert!(!is_lent() && decode.engine.stats().withdrawals == 0);
    assert_eq!(imports(), before - 1);
}

#[test]
fn a_region_whose_peer_has_gone_is_free_if_the_transport_vouches_for_it() {
    for vouches in [true, false] {
        let doubles = Doubles::default();
        let (prefill, decode) = keyed(&doubles, Config::default());
        decode.engine.set_layout(PoolLayout::new()).unwrap();
        doubles.cannot_vouch(!vouches);
        drop(prefill);
        while decode.engine.stats().links > 0 {
            std::thread::yield_now();
        }
        let withdrawal = decode.engine.withdraw(RegionId(0)).unwrap();
        assert_eq!(withdrawal.is_done(), vouches);
        let report = decode.engine.close(PATIENCE);
        let named = report.unproved.iter().find(|(region, _)| *region == RegionId(0));
        assert_eq!(named.is_none(), vouches, "{report:?}");
        assert_eq!((withdrawal.is_done(), report.is_finished), (vouches, true));
        if let Some((_, by)) = named {
            assert_eq!(by, &[Rank::default()]);
        }
    }
}

pub(crate) fn dropped_handles_give_their_pages_back_through_the_feed(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 64), network.node("decode", 64));
    let pages: Vec<u32> = (0..64).collect();
    let (mut of_prefill, mut of_decode) = (Vec::new(), Vec::new());
    prefill.engine.changes(&mut of_prefill);
    decode.engine.changes(&mut of_decode);
    for room in 0..100 {
        let options = RoomOptions::tag(room + 1);
        let sender = prefill.engine.sender(Room(room), options.clone()).unwrap();
        let receiver = decode.engine.receiver(Room(room), prefill.sources(), options).unwrap();
        decode.lend(&receiver, 0..256, &pages);
        prefill.send_all(&sender, 256, 16, &pages);
        // Somewhere amid the transfer: either end goes, or both.
        match room % 3 {
            0 => drop((sender, receiver)),
            1 => drop((receiver, sender)),
            _ => {
                while receiver.poll() < KVPoll::Transferring && !receiver.poll().is_terminal() {
                    std::thread::yield_now();
                }
                drop((receiver, sender));
            }
        }
        for (node, side, seen) in
            [(&prefill, Side::Prefill, &mut of_prefill), (&decode, Side::Decode, &mut of_decode)]
        {
            let is_safe =
                |change: &&kvferry::Change| change.tag == room + 1 && change.release == Release::Safe;
            while seen.iter().find(is_safe).is_none() {
                node.engine.changes(seen);
                std::thread::yield_now();
            }
            let mine: Vec<_> = seen.iter().filter(is_safe).collect();
            assert_eq!(mine.len(), 1, "{mine:?}");
            assert!(mine[0].side == side && mine[0].state.is_terminal());
        }
    }
    for (node, seen) in [(&prefill, &mut of_prefill), (&decode, &mut of_decode)] {
        node.engine.changes(seen);
        let safe = seen.iter().filter(|change| change.release == Release::Safe).count();
        assert_eq!(safe, 100, "some pages came back twice");
        assert_eq!(node.engine.stats().rooms, 0);
    }
}
