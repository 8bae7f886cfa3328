//! Engines with several transports: which one a peer is reached over, and why.

use crate::bed::{Node, PATIENCE};
use kvferry::transport::Transport;
use kvferry::transport::shm::{Private, ShmConfig, ShmTransport};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    BuildError, Engine, EngineBuilder, ErrorKind, KVPoll, Place, Rank, Room, RoomOptions, Source, Sources,
};

fn shm() -> Box<dyn Transport> {
    Box::new(ShmTransport::new(ShmConfig::new()).unwrap())
}

fn tcp() -> Box<dyn Transport> {
    Box::new(TcpTransport::new(TcpConfig::new()).unwrap())
}

fn builder(name: &str, transports: Vec<Box<dyn Transport>>) -> EngineBuilder {
    let builder = Engine::builder(Place::alone(name)).model("test");
    transports.into_iter().fold(builder, EngineBuilder::boxed_transport)
}

fn node(name: &str, transports: Vec<Box<dyn Transport>>) -> Node {
    Node::with(builder(name, transports).build().unwrap(), 8)
}

/// Moves a page, and tells over which transport it went.
fn path(prefill: &Node, decode: &Node, room: u64) -> &'static str {
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    prefill.fill(room, &[3]);
    decode.lend(&receiver, 0..4, &[5]);
    prefill.send_all(&sender, 4, 4, &[3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(room, &[5], 0..4), None);
    receiver.stats().path.unwrap()
}

#[test]
fn the_best_transport_that_both_have_is_used_by_the_order_of_who_connects() {
    let prefill = node("prefill", vec![tcp(), shm()]);
    assert_eq!(path(&prefill, &node("decode", vec![shm(), tcp()]), 1), "shm");
    assert_eq!(path(&prefill, &node("decode", vec![tcp(), shm()]), 2), "tcp");
    assert_eq!(path(&prefill, &node("decode", vec![tcp()]), 3), "tcp");
}

#[test]
fn a_report_tells_how_a_peer_is_reached_and_why_not_in_a_better_way() {
    // The first has no shared memory; memory of the second is not to be read, and cannot be mapped.
    let plain = node("plain", vec![tcp()]);
    let closed = ShmTransport::new(ShmConfig::new().private(Private::Refuse)).unwrap();
    let closed = node("closed", vec![Box::new(closed), tcp()]);
    let decode = node("decode", vec![shm(), tcp()]);
    assert_eq!((path(&plain, &decode, 1), path(&closed, &decode, 2)), ("tcp", "tcp"));
    let report = decode.engine.report();
    let peer = |group: &str| report.peers.iter().find(|peer| peer.group == group).unwrap();
    let page = 4 * 2 * 16 * 2 * 3;
    for (group, why) in [("plain", "the peer has no address of it"), ("closed", "shm: ")] {
        let peer = peer(group);
        assert_eq!((peer.transport, peer.sent, peer.received), ("tcp", 0, page), "{peer}");
        assert_eq!(peer.passed_over.len(), 1);
        let (name, reason) = &peer.passed_over[0];
        assert!(*name == "shm" && reason.contains(why), "{peer}");
    }
    assert_eq!(plain.engine.report().peers[0].sent, page);

    // Rooms alive are in it, with whom they wait for.
    let waiting = decode.receiver(3, &plain);
    decode.lend(&waiting, 0..4, &[5]);
    while waiting.poll() == KVPoll::Bootstrapping {
        std::thread::yield_now();
    }
    let report = decode.engine.report();
    assert_eq!(report.rooms.len(), 1, "{report}");
    assert_eq!((report.rooms[0].room, report.rooms[0].state), (Room(3), KVPoll::WaitingForInput));
    let text = report.to_string();
    assert!(text.contains("over tcp") && text.contains("not shm: the peer has no address of it"), "{text}");
    assert!(text.contains("decode room 3"), "{text}");
}

#[test]
fn a_strict_engine_uses_its_best_transport_or_none() {
    let decode = Node::with(builder("decode", vec![shm(), tcp()]).strict().build().unwrap(), 8);
    assert_eq!(path(&node("both", vec![tcp(), shm()]), &decode, 1), "shm");
    let plain = node("plain", vec![tcp()]);
    let refused = decode.receiver(2, &plain);
    assert_eq!(refused.wait(PATIENCE), KVPoll::Failed);
    let error = refused.error().unwrap();
    assert_eq!(error.kind, ErrorKind::Bootstrap);
    assert!(error.detail.contains("which is not the best one here"), "{error}");
}

#[test]
fn an_address_where_nobody_is_any_more_leads_to_the_next_one() {
    let former = shm();
    let gone = former.local_address().to_vec();
    drop(former);
    let (prefill, decode) = (node("prefill", vec![tcp()]), node("decode", vec![shm(), tcp()]));
    let mut addresses = prefill.engine.addresses();
    addresses.insert(0, ("shm".to_owned(), gone));
    let sources = Sources::Ranks(vec![Source::new(Rank::default(), addresses)]);
    let receiver = decode.engine.receiver(Room(1), sources, RoomOptions::default()).unwrap();
    let sender = prefill.sender(1);
    prefill.fill(1, &[3]);
    decode.lend(&receiver, 0..4, &[5]);
    prefill.send_all(&sender, 4, 4, &[3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(receiver.stats().path, Some("tcp"));
}

#[test]
fn transports_can_be_named() {
    let named = |list: &str| Engine::builder(Place::alone("named")).model("test").transports(list).build();
    let (prefill, decode) = (Node::with(named("auto").unwrap(), 8), Node::with(named("tcp,shm").unwrap(), 8));
    assert_eq!(path(&prefill, &decode, 1), "tcp");
    let names: Vec<_> = prefill.engine.addresses().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["shm", "tcp"]);
    let error = named("shm,rdma").unwrap_err();
    assert!(matches!(error, BuildError::Named(_)), "{error}");
    assert!(error.to_string().contains("no transport \"rdma\" in this build"), "{error}");
}
