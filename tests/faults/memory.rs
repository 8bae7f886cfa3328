//! Whose pages they are: codes m01, m02 and m09.

use crate::bed::{Network, Node, PATIENCE};
use crate::links::{rank, relayed, scripted, tcp, until, watched};
use kvferry::faults::{Access, Connections, Relay, ScriptedNetwork};
use kvferry::transport::{TransportError, WriteModel};
use kvferry::{Config, ErrorKind, KVPoll, KVReceiver, KVSender, Release, Room, RoomOptions, Source, Sources};
use std::time::Duration;

/// What the next owner of the pages writes there.
const NEXT: u8 = 0xEE;
const PAGES: [u32; 4] = [3, 1, 4, 2];

struct Busy {
    network: ScriptedNetwork,
    _prefill: Node,
    decode: Node,
    sender: KVSender,
    receiver: KVReceiver,
}

/// A room with writes under way, some bytes of which are in place.
fn busy(model: WriteModel, drain: Duration) -> Busy {
    let mut config = Config::default();
    config.deadlines.drain = drain;
    config.limits.write_bytes = 4096;
    let network = ScriptedNetwork::new(model);
    let prefill = scripted(&network, "prefill", 8, Config::default());
    let decode = scripted(&network, "decode", 8, config);
    prefill.fill(1, &PAGES);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    network.hold_writes();
    decode.lend(&receiver, 0..16, &PAGES);
    prefill.send_all(&sender, 16, 16, &PAGES);
    until(|| !network.pending().is_empty());
    let first = network.pending().remove(0);
    assert_eq!(network.copy(first.number, 10), 10);
    Busy { network, _prefill: prefill, decode, sender, receiver }
}

fn is_next_owners(decode: &Node) -> bool {
    (0..8).all(|page| decode.is_filled_with(NEXT, page))
}

fn give_to_next(decode: &Node) {
    decode.pools.iter().for_each(|pool| pool.fill(NEXT));
}

fn written(network: &ScriptedNetwork) -> usize {
    network.take_touches().iter().filter(|touch| touch.access == Access::Written).count()
}

#[test]
fn m01_pages_are_kept_while_the_own_side_still_applies_writes() {
    watched(|| {
        let busy = busy(WriteModel::TwoSided, Duration::from_secs(300));
        let Busy { network, decode, receiver, .. } = &busy;
        network.hold_revoked();
        receiver.abort("client gone");
        until(|| receiver.poll() == KVPoll::Failed);
        let write = network.pending().remove(0);
        assert_eq!(network.copy(write.number, 10), 10, "the writer is still busy");
        assert_eq!(receiver.release(), Release::Draining);
        network.release_revoked();
        receiver.wait(PATIENCE);
        assert_eq!(receiver.release(), Release::Safe);
        give_to_next(decode);
        written(network);
        network.release_writes();
        assert_eq!(written(network), 0);
        assert!(is_next_owners(decode));
    });
}

#[test]
fn m01_pages_are_kept_until_the_last_one_sided_write_is_over() {
    watched(|| {
        let busy = busy(WriteModel::OneSided, Duration::from_secs(300));
        let Busy { network, decode, sender, receiver, .. } = &busy;
        receiver.abort("client gone");
        until(|| receiver.poll() == KVPoll::Failed && sender.poll() == KVPoll::Failed);
        loop {
            assert_eq!((receiver.release(), sender.release()), (Release::Draining, Release::Draining));
            let pending = network.pending();
            network.complete(pending[0].number);
            if pending.len() == 1 {
                break;
            }
        }
        receiver.wait(PATIENCE);
        sender.wait(PATIENCE);
        assert_eq!((receiver.release(), sender.release()), (Release::Safe, Release::Safe));
        give_to_next(decode);
        network.release_writes();
        assert!(is_next_owners(decode));
    });
}

#[test]
fn m01_a_link_whose_end_stops_its_writes_gives_the_pages_back() {
    watched(|| {
        let busy = busy(WriteModel::OneSided, Duration::from_millis(50));
        let Busy { network, decode, receiver, .. } = &busy;
        receiver.abort("client gone");
        receiver.wait(PATIENCE);
        assert_eq!((receiver.poll(), receiver.release()), (KVPoll::Failed, Release::Safe));
        assert_eq!(decode.engine.stats().links, 0, "the link was not ended");
        give_to_next(decode);
        network.release_writes();
        assert!(is_next_owners(decode));
    });
}

#[test]
fn m01_pages_that_nobody_vouches_for_stay_kept_and_are_counted() {
    watched(|| {
        let busy = busy(WriteModel::OneSided, Duration::from_millis(50));
        let Busy { network, decode, receiver, .. } = &busy;
        network.vouch(false);
        receiver.abort("client gone");
        until(|| decode.engine.stats().links == 0);
        assert_eq!(receiver.wait(Duration::from_millis(200)), KVPoll::Failed);
        assert_eq!((receiver.release(), decode.engine.stats().rooms), (Release::Draining, 1));
        assert_eq!(receiver.waiting_for(), [kvferry::Rank::default()]);
        // The writer is indeed still there.
        written(network);
        network.release_writes();
        assert!(written(network) > 0);
        assert_eq!(receiver.release(), Release::Draining);
        assert_eq!(decode.engine.close(Duration::from_millis(50)).unreleased.len(), 1);
    });
}

fn pages_are_kept_until_all_four_sources_are_quiet(model: WriteModel) {
    let network = ScriptedNetwork::new(model);
    let ranks = [0, 1, 2, 3].map(|tp| rank(&network, tp, 4, 8));
    let mut config = Config::default();
    config.deadlines.drain = Duration::from_secs(300);
    let decode = scripted(&network, "decode", 8, config);
    network.hold_writes();
    network.hold_revoked();
    let senders: Vec<KVSender> = ranks.iter().map(|node| node.sender(1)).collect();
    let sources = ranks.iter().map(|node| Source::new(node.engine.place().rank, node.engine.addresses()));
    let receiver =
        decode.engine.receiver(Room(1), Sources::Ranks(sources.collect()), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..16, &PAGES);
    ranks.iter().zip(&senders).for_each(|(node, sender)| node.send_all(sender, 16, 16, &PAGES));
    let of = |tp: usize| {
        let name = format!("prefill {tp}");
        network.pending().into_iter().filter(move |write| write.from == name).collect::<Vec<_>>()
    };
    until(|| (0..4).all(|tp| !of(tp).is_empty()));
    for write in of(0) {
        network.fail(write.number, TransportError::Closed { name: "test" });
    }
    until(|| receiver.poll() == KVPoll::Failed && senders.iter().all(|sender| sender.poll().is_terminal()));
    for tp in 1..4 {
        for write in of(tp) {
            assert_eq!(receiver.release(), Release::Draining, "source {tp} is busy");
            assert!(network.copy(write.number, 1) == 1, "source {tp} has stopped");
            network.complete(write.number);
        }
    }
    if model == WriteModel::TwoSided {
        assert_eq!(receiver.release(), Release::Draining);
    }
    network.release_revoked();
    receiver.wait(PATIENCE);
    assert_eq!((receiver.poll(), receiver.release()), (KVPoll::Failed, Release::Safe));
    give_to_next(&decode);
    network.release_writes();
    assert!(is_next_owners(&decode));
}

#[test]
fn m02_pages_are_kept_until_all_four_sources_are_quiet() {
    watched(|| {
        pages_are_kept_until_all_four_sources_are_quiet(WriteModel::OneSided);
        pages_are_kept_until_all_four_sources_are_quiet(WriteModel::TwoSided);
    });
}

/// A room amid its transfer over a relay, and another peer of the same decode engine.
struct Held {
    prefill: Node,
    other: Node,
    decode: Node,
    relay: Relay,
    sender: KVSender,
    receiver: KVReceiver,
}

fn held_while_transferring(config: Config, which: &[Connections]) -> Held {
    let prefill = tcp("prefill", 4_096, 2, config);
    let other = Network::Tcp.node("other", 8);
    let decode = tcp("decode", 4_096, 2, config);
    let (relay, sources) = relayed(&prefill);
    relay.pace(Some(400_000));
    let pages: Vec<u32> = (0..4_096).collect();
    let sender = prefill.sender(1);
    let receiver = decode.engine.receiver(Room(1), sources, RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..16_384, &pages);
    prefill.send_all(&sender, 16_384, 1_024, &pages);
    until(|| receiver.poll() == KVPoll::Transferring);
    which.iter().for_each(|which| relay.hold(*which));
    Held { prefill, other, decode, relay, sender, receiver }
}

fn another_peer_is_served(decode: &Node, other: &Node, room: u64) {
    let (sender, receiver) = (other.sender(room), decode.receiver(room, other));
    other.fill(room, &[1, 2]);
    decode.lend(&receiver, 0..8, &[6, 7]);
    other.send_all(&sender, 8, 8, &[1, 2]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(room, &[6, 7], 0..8), None);
}

#[test]
fn m01_a_link_that_falls_silent_ends_both_sides_and_leaves_other_peers_alone() {
    watched(|| {
        let mut config = Config::default();
        config.liveness.interval = Duration::from_millis(250);
        config.liveness.timeout = Duration::from_secs(2);
        config.deadlines.stall = Duration::from_secs(300);
        let Held { prefill, other, decode, relay, sender, receiver } =
            held_while_transferring(config, &[Connections::All]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        for error in [receiver.error().unwrap(), sender.error().unwrap()] {
            assert_eq!((error.kind, error.state), (ErrorKind::PeerLost, KVPoll::Transferring), "{error}");
        }
        assert_eq!((receiver.release(), sender.release()), (Release::Safe, Release::Safe));
        give_to_next(&decode);
        // What was under way arrives now, at sockets that nobody reads any more.
        relay.resume(Connections::All);
        until(|| relay.open_connections() == 0);
        assert!(decode.pages().all(|page| decode.is_filled_with(NEXT, page)));
        another_peer_is_served(&decode, &other, 2);
        assert_eq!((prefill.engine.stats().rooms, decode.engine.stats().rooms), (0, 0));
    });
}

#[test]
fn m01_lanes_that_fall_silent_end_by_the_stall_deadline_while_control_is_alive() {
    watched(|| {
        let mut config = Config::default();
        config.liveness.timeout = Duration::from_secs(300);
        config.deadlines.stall = Duration::from_millis(500);
        config.deadlines.drain = Duration::from_millis(500);
        let lanes = [Connections::Nth(1), Connections::Nth(2)];
        let held = held_while_transferring(config, &lanes);
        let Held { other, decode, relay, sender, receiver, .. } = &held;
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        for error in [receiver.error().unwrap(), sender.error().unwrap()] {
            assert_eq!((error.kind, error.state), (ErrorKind::Timeout, KVPoll::Transferring), "{error}");
        }
        assert_eq!((receiver.release(), sender.release()), (Release::Safe, Release::Safe));
        give_to_next(decode);
        relay.resume(Connections::All);
        another_peer_is_served_from(decode, other);
    });
}

/// As above, but the pages of the next owner are looked at first.
fn another_peer_is_served_from(decode: &Node, other: &Node) {
    until(|| decode.engine.stats().links <= 1);
    assert!(decode.pages().all(|page| decode.is_filled_with(NEXT, page)));
    another_peer_is_served(decode, other, 3);
}
