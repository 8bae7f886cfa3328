//! Peers that go, come back, or are replaced by another.

use crate::bed::{Network, Node, PATIENCE};
use crate::double::Doubles;
use kvferry::transport::Transport;
use kvferry::{
    Chunk, Config, Engine, ErrorKind, KVPoll, KVReceiver, Place, Room, RoomOptions, Source, Sources,
};
use std::sync::mpsc;
use std::time::Duration;

/// An engine whose rooms have five minutes for everything.
fn patient() -> Config {
    let mut config = Config::default();
    let deadlines = &mut config.deadlines;
    for limit in [&mut deadlines.discover, &mut deadlines.handshake, &mut deadlines.stall] {
        *limit = LONG;
    }
    config
}

/// A prefill engine at an address that was in use before.
fn again(network: &Network, sources: &[(String, Vec<u8>)]) -> Node {
    let builder = Engine::builder(Place::alone("prefill")).model("test");
    let transport: Box<dyn Transport> = network.transport_at(&sources[0].1);
    Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
}

fn receiver(decode: &Node, room: u64, addresses: &[(String, Vec<u8>)]) -> KVReceiver {
    let source = Source::new(kvferry::Rank::default(), addresses.to_vec());
    let receiver =
        decode.engine.receiver(Room(room), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..4, &[1]);
    receiver
}

/// One room from beginning to end.
fn succeed(prefill: &Node, decode: &Node, room: u64) {
    let receiver = receiver(decode, room, &prefill.engine.addresses());
    let sender = prefill.sender(room);
    prefill.send_all(&sender, 4, 4, &[1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
}

pub(crate) fn a_peer_that_went_fails_new_rooms_fast_and_serves_again_when_it_is_back(network: &Network) {
    let _dog = watched();
    let decode = network.node_with("decode", 8, patient());
    let prefill = network.node("prefill", 8);
    let addresses = prefill.engine.addresses();
    succeed(&prefill, &decode, 1);
    drop(prefill);
    while decode.engine.stats().links > 0 {
        std::thread::yield_now();
    }
    for room in 10..20 {
        let receiver = receiver(&decode, room, &addresses);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        let error = receiver.error().unwrap();
        assert!(error.elapsed < LONG / 10, "{error}");
        assert_eq!(error.kind, ErrorKind::PeerLost, "{error}");
        assert!(error.detail.contains("last try") && error.detail.contains("next try in"), "{error}");
        assert!(error.detail.contains(&network.in_words(&addresses[0].1)), "{error}");
        assert!(error.is_retryable());
    }
    let stats = decode.engine.stats();
    assert_eq!((stats.targets, stats.unreachable), (1, 1));
    let prefill = again(network, &addresses);
    let mut room = 100;
    loop {
        let (sender, receiver) = (prefill.sender(room), receiver(&decode, room, &addresses));
        prefill.send_all(&sender, 4, 4, &[1]);
        if receiver.wait(PATIENCE) == KVPoll::Success {
            break;
        }
        assert_eq!(receiver.error().unwrap().kind, ErrorKind::PeerLost);
        room += 1;
    }
    succeed(&prefill, &decode, room + 1);
    assert_eq!(decode.engine.stats().unreachable, 0);
}

pub(crate) fn a_room_that_waits_outlives_a_short_restart_of_its_peer(network: &Network) {
    let _dog = watched();
    let decode = network.node_with("decode", 8, patient());
    let mut prefill = network.node("prefill", 8);
    let addresses = prefill.engine.addresses();
    // A restart may take longer than rooms wait on a busy machine: then again.
    for room in 0..100 {
        succeed(&prefill, &decode, 1000 + room);
        drop(prefill);
        let receiver = receiver(&decode, room, &addresses);
        while decode.engine.stats().links > 0 {
            std::thread::yield_now();
        }
        prefill = again(network, &addresses);
        let sender = prefill.sender(room);
        prefill.send_all(&sender, 4, 4, &[1]);
        if receiver.wait(PATIENCE) == KVPoll::Success {
            return;
        }
        // Back to where it began.
        for room in 2000 + room * 100_000.. {
            let (sender, receiver) = (prefill.sender(room), self::receiver(&decode, room, &addresses));
            prefill.send_all(&sender, 4, 4, &[1]);
            if receiver.wait(PATIENCE) == KVPoll::Success {
                break;
            }
        }
    }
    panic!("no room that waited has seen its peer come back");
}

pub(crate) fn a_frozen_peer_is_lost_when_the_silence_is_too_long_and_a_busy_one_is_not(network: &Network) {
    let _dog = watched();
    let mut config = patient();
    config.liveness.interval = Duration::from_millis(100);
    config.liveness.timeout = Duration::from_millis(1500);
    let decode = network.node_with("decode", 8, config);
    let builder = Engine::builder(Place::alone("frozen")).model("test").manual_progress();
    let frozen = Node::with(builder.boxed_transport(network.transport("frozen")).build().unwrap(), 8);
    let busy = network.node("busy", 8);
    let (lost, kept) = (receiver(&decode, 1, &frozen.engine.addresses()), decode.receiver(2, &busy));
    let sender = frozen.sender(1);
    while sender.granted().is_none() {
        frozen.engine.progress_or_wait(PATIENCE).unwrap();
    }
    // From here on nobody drives it.
    assert_eq!(lost.wait(PATIENCE), KVPoll::Failed);
    let error = lost.error().unwrap();
    assert!(error.kind == ErrorKind::PeerLost && error.detail.contains("no sign of life"), "{error}");
    assert!(error.elapsed >= config.liveness.timeout && error.elapsed < LONG / 10, "{error}");
    assert_eq!(kept.poll(), KVPoll::WaitingForInput, "{:?}", kept.error());
    // It comes back, hears of its end, and is of use again.
    while sender.poll() != KVPoll::Failed {
        frozen.engine.progress_or_wait(PATIENCE).unwrap();
    }
}

pub(crate) fn a_peer_that_freezes_before_its_last_word_is_the_one_that_is_lost(network: &Network) {
    let _dog = watched();
    let mut config = patient();
    config.liveness.interval = Duration::from_millis(100);
    config.liveness.timeout = Duration::from_millis(500);
    let decode = network.node_with("decode", 8, config);
    let builder = Engine::builder(Place::alone("frozen")).model("test").manual_progress();
    let frozen = Node::with(builder.boxed_transport(network.transport("frozen")).build().unwrap(), 8);
    let lost = receiver(&decode, 1, &frozen.engine.addresses());
    let sender = frozen.sender(1);
    sender.send(Chunk::new(0..4).pages(frozen.kv, &[1])).unwrap();
    while lost.ready_tokens() < 4 {
        frozen.engine.progress_or_wait(Duration::from_millis(10)).unwrap();
    }
    // From here on nobody drives it.
    assert_eq!(lost.wait(PATIENCE), KVPoll::Failed);
    // It was not tried once more.
    assert_eq!(decode.engine.stats().links, 0);
    let error = lost.error().unwrap();
    assert!(error.kind == ErrorKind::PeerLost && error.is_from_another_rank(), "{error}");
    assert!(error.detail.contains("no sign of life"), "{error}");
}

/// Decode processes that nobody gave a place of their own.
pub(crate) fn two_processes_of_one_name_do_not_disturb_each_other(network: &Network) {
    let _dog = watched();
    let prefill = network.node_with("prefill", 8, patient());
    let node = |name: &str| {
        let builder = Engine::builder(Place::alone("decode")).model("test").config(patient());
        Node::with(builder.boxed_transport(network.transport(name)).build().unwrap(), 8)
    };
    let (one, two) = (node("one"), node("two"));
    let (first, its) = (receiver(&one, 1, &prefill.engine.addresses()), prefill.sender(1));
    while its.granted().is_none() {
        std::thread::yield_now();
    }
    succeed(&prefill, &two, 2);
    prefill.send_all(&its, 4, 4, &[1]);
    assert_eq!(first.wait(PATIENCE), KVPoll::Success, "{:?}", first.error());
}

#[test]
fn another_instance_at_an_address_ends_all_links_of_the_former() {
    let _dog = watched();
    let doubles = Doubles::default();
    let node = |group: &str, name: &str| {
        let builder = Engine::builder(Place::alone(group)).model("test").config(patient());
        Node::with(builder.transport(doubles.transport(name)).build().unwrap(), 8)
    };
    let address = |name: &str| ("double".to_owned(), name.as_bytes().to_vec());
    let (decode, old) = (node("decode", "decode"), node("prefill", "old"));
    doubles.route("service", "old");
    let (sender, waiting) = (old.sender(1), receiver(&decode, 1, &[address("service")]));
    while sender.granted().is_none() {
        std::thread::yield_now();
    }
    // The process behind the address is another now, and nothing has told us so.
    let new = node("prefill", "new");
    doubles.route("service", "new");
    let (its, moved) = (new.sender(2), receiver(&decode, 2, &[address("service"), address("spare")]));
    new.send_all(&its, 4, 4, &[1]);
    assert_eq!(moved.wait(PATIENCE), KVPoll::Success, "{:?}", moved.error());
    assert_eq!(waiting.wait(PATIENCE), KVPoll::Failed);
    let error = waiting.error().unwrap();
    assert!(error.kind == ErrorKind::PeerLost && error.detail.contains("was restarted"), "{error}");
    for instance in [old.engine.instance(), new.engine.instance()] {
        assert!(error.detail.contains(&instance.to_string()), "{error}");
    }
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    // What led to the former leads to the new one at once.
    let (its, moved) = (new.sender(3), receiver(&decode, 3, &[address("service")]));
    new.send_all(&its, 4, 4, &[1]);
    assert_eq!(moved.wait(PATIENCE), KVPoll::Success, "{:?}", moved.error());
}

/// Ends the process if a test hangs.
pub(crate) fn watched() -> mpsc::Sender<()> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        if wait.recv_timeout(PATIENCE * 4) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a test of peers hangs");
            std::process::abort();
        }
    });
    done
}

const LONG: Duration = Duration::from_secs(300);
