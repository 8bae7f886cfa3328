//! Finding each other: codes b01 to b06.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::patient;
use crate::tap::Tap;
use kvferry::bootstrap::{
    BootstrapServer, ClientConfig, Directory, FixedDirectory, GroupState, HttpDirectory, ServerConfig,
};
use kvferry::transport::TransportError;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::wire::Frame;
use kvferry::{
    Config, Engine, ErrorKind, GroupSizes, Host, HostPort, KVPoll, Place, Rank, Room, RoomOptions, Source,
    Sources, UsageError,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Duration;

on_each_network! {
    b01_a_room_has_one_transfer_whatever_its_number
    b02_a_receiver_waits_for_the_last_rank_of_its_group
    b02_a_rank_that_never_registers_is_named
    b06_a_receiver_whose_sender_never_comes_is_told
}

fn b01_a_room_has_one_transfer_whatever_its_number(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let other = network.node("other decode", 8);
    for room in [77, 0, u64::MAX] {
        prefill.fill(room, &[2, 3]);
        let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
        decode.lend(&receiver, 0..8, &[0, 1]);
        assert!(block_on(sender.wait_granted()).is_some(), "{:?}", sender.error());
        // The same process is told by the call, another one by its room.
        let again = prefill.engine.sender(Room(room), RoomOptions::default());
        assert_eq!(again.unwrap_err(), UsageError::RoomInUse(Room(room)));
        let again = decode.engine.receiver(Room(room), prefill.sources(), RoomOptions::default());
        assert_eq!(again.unwrap_err(), UsageError::RoomInUse(Room(room)));
        let second = other.receiver(room, &prefill);
        other.lend(&second, 0..8, &[0, 1]);
        assert_eq!(second.wait(PATIENCE), KVPoll::Failed);
        let error = second.error().unwrap();
        assert!(error.kind == ErrorKind::Protocol && error.detail.contains("duplicate room"), "{error}");
        prefill.send_all(&sender, 8, 4, &[2, 3]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
        assert_eq!(decode.first_wrong(room, &[0, 1], 0..8), None);
        drop((sender, receiver));
        // Who was refused may have it now.
        prefill.fill(room ^ 1, &[2, 3]);
        let (sender, receiver) = (prefill.sender(room), other.receiver(room, &prefill));
        other.lend(&receiver, 0..8, &[4, 5]);
        prefill.send_all(&sender, 8, 8, &[2, 3]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
        assert_eq!(other.first_wrong(room ^ 1, &[4, 5], 0..8), None);
    }
}

fn directory(server: &BootstrapServer) -> Arc<HttpDirectory> {
    Arc::new(HttpDirectory::new(&server.url(), ClientConfig::default()).unwrap())
}

/// A rank of a group of four that is found through a directory.
fn rank(network: &Network, server: &BootstrapServer, group: &str, tp: u32, config: Config) -> Node {
    let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(4));
    let builder = Engine::builder(place).model("test").config(config).directory(directory(server));
    Node::with(builder.boxed_transport(network.transport(&format!("{group}{tp}"))).build().unwrap(), 8)
}

/// Waits until a directory says that of a group.
fn until(directory: &dyn Directory, group: &str, is_so: impl Fn(&GroupState) -> bool) -> GroupState {
    let (wake, woken) = mpsc::channel();
    directory.watch(Arc::new(move || {
        // The test may be over.
        let _ = wake.send(());
    }));
    loop {
        let state = directory.group(group);
        if is_so(&state) {
            return state;
        }
        woken.recv_timeout(PATIENCE).expect("a change before the watchdog");
    }
}

fn is_three_of_four(state: &GroupState) -> bool {
    let missing = vec![Rank::tp(3)];
    *state == GroupState::NotReady { registered: 3, announced: 4, missing }
}

fn server() -> BootstrapServer {
    BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap()
}

fn b02_a_receiver_waits_for_the_last_rank_of_its_group(network: &Network) {
    let server = server();
    let ranks: Vec<_> = (0..3).map(|tp| rank(network, &server, "prefill", tp, patient())).collect();
    let decode = rank(network, &server, "decode", 0, patient());
    let receiver =
        decode.engine.receiver(Room(1), Sources::group("prefill"), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..4, &[1]);
    until(&*directory(&server), "prefill", is_three_of_four);
    assert_eq!(receiver.poll(), KVPoll::Bootstrapping, "{:?}", receiver.error());
    let _last = rank(network, &server, "prefill", 3, patient());
    ranks[0].fill(9, &[3]);
    let sender = ranks[0].sender(1);
    ranks[0].send_all(&sender, 4, 4, &[3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(9, &[1], 0..4), None);
    assert!(server.is_running());
}

fn b02_a_rank_that_never_registers_is_named(network: &Network) {
    let server = server();
    let _ranks: Vec<_> = (0..3).map(|tp| rank(network, &server, "prefill", tp, patient())).collect();
    let mut config = patient();
    config.deadlines.discover = Duration::from_millis(300);
    let known = directory(&server);
    let place = Place::new("decode", Rank::tp(0), GroupSizes::tp(4));
    let builder = Engine::builder(place).model("test").config(config).directory(known.clone());
    let decode = Node::with(builder.boxed_transport(network.transport("decode")).build().unwrap(), 8);
    until(&*known, "prefill", is_three_of_four);
    let receiver =
        decode.engine.receiver(Room(1), Sources::group("prefill"), RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!((error.kind, error.state), (ErrorKind::Timeout, KVPoll::Bootstrapping), "{error}");
    for said in ["of 300ms", "3 of 4 ranks", "missing dp0 pp0 cp0 tp3"] {
        assert!(error.detail.contains(said), "{error}");
    }
    assert!(error.elapsed >= Duration::from_millis(300), "{error}");
}

fn b06_a_receiver_whose_sender_never_comes_is_told(network: &Network) {
    let mut hasty = patient();
    hasty.deadlines.discover = Duration::from_millis(100);
    let (prefill, decode) =
        (network.node_with("prefill", 8, hasty), network.node_with("decode", 8, patient()));
    let receiver = decode.receiver(5, &prefill);
    decode.lend(&receiver, 0..4, &[1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!((error.kind, error.is_from_another_rank()), (ErrorKind::Timeout, true), "{error}");
    assert!(error.detail.contains("no sender for room 5 within 100ms"), "{error}");
    assert_eq!(prefill.engine.stats().parked, 0);
}

/// A transfer between two engines at `ip`, one of them advertised as `host`, which find each other
/// through a server at `ip` that clients know as `place` of its port.
fn finds(ip: IpAddr, host: Option<&Host>, place: impl Fn(u16) -> HttpDirectory) {
    let server = BootstrapServer::listen(&SocketAddr::new(ip, 0).into(), ServerConfig::default()).unwrap();
    let node = |name: &str| {
        let mut config = TcpConfig::new().bind(SocketAddr::new(ip, 0));
        if let Some(host) = host {
            config = config.advertise(host.clone());
        }
        let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
        let builder = builder.directory(Arc::new(place(server.address().port())));
        Node::with(builder.transport(TcpTransport::new(config).unwrap()).build().unwrap(), 8)
    };
    let (prefill, decode) = (node("prefill"), node("decode"));
    prefill.fill(4, &[2]);
    let receiver =
        decode.engine.receiver(Room(1), Sources::group("prefill"), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..4, &[1]);
    let sender = prefill.sender(1);
    prefill.send_all(&sender, 4, 4, &[2]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{ip} {host:?}: {:?}", receiver.error());
    assert_eq!(decode.first_wrong(4, &[1], 0..4), None);
}

/// The literal with its port in one text, the two apart, and a name.
fn finds_in_every_form(ip: IpAddr, together: &str, name: Option<&str>) {
    let at = |host: &str, port| {
        HttpDirectory::at(HostPort::new(host, port).unwrap(), ClientConfig::default()).unwrap()
    };
    finds(ip, None, |port| {
        HttpDirectory::new(&format!("http://{together}:{port}"), ClientConfig::default()).unwrap()
    });
    finds(ip, Some(&ip.into()), |port| at(&ip.to_string(), port));
    finds(ip, None, |port| at(together, port));
    if let Some(name) = name {
        finds(ip, Some(&name.parse().unwrap()), |port| at(name, port));
    }
}

#[test]
fn b03_every_form_of_address_works_over_ipv4() {
    finds_in_every_form(Ipv4Addr::LOCALHOST.into(), "127.0.0.1", Some("localhost"));
}

#[test]
fn b03_every_form_of_address_works_over_ipv6_alone() {
    if let Err(error) = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        eprintln!("skipped: this host has no IPv6 ({error})");
        return;
    }
    let is_v6_only = |name: &&str| {
        let found: Vec<_> = (*name, 1).to_socket_addrs().into_iter().flatten().collect();
        !found.is_empty() && found.iter().all(|address| address.ip() == IpAddr::V6(Ipv6Addr::LOCALHOST))
    };
    let name = ["ip6-localhost", "ip6-loopback", "localhost6"].into_iter().find(is_v6_only);
    if name.is_none() {
        eprintln!("skipped the name: this host has none for ::1 alone");
    }
    finds_in_every_form(Ipv6Addr::LOCALHOST.into(), "[::1]", name);
}

#[test]
fn b04_what_is_advertised_is_all_that_peers_are_told() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let fixed = FixedDirectory::new();
    let node = |name: &str, told: [u8; 4]| {
        let host = IpAddr::from(told).into();
        let transport = TcpTransport::new(TcpConfig::new().bind(everywhere).advertise(host)).unwrap();
        let (transport, valve) = Tap::on(Box::new(transport));
        let builder = Engine::builder(Place::alone(name)).model("test").directory(Arc::new(fixed.clone()));
        (Node::with(builder.boxed_transport(transport).build().unwrap(), 8), valve)
    };
    let (told, other) = ([192, 0, 2, 10], [192, 0, 2, 11]);
    let ((prefill, from_prefill), (decode, from_decode)) = (node("prefill", told), node("decode", other));
    let GroupState::Ready(info) = fixed.group("prefill") else { panic!("registered") };
    let [(transport, address)] = &info.ranks[0].addresses[..] else { panic!("{info:?}") };
    let [4, ip @ .., _, _] = &address[..] else { panic!("{address:?}") };
    assert_eq!((transport.as_str(), ip), ("tcp", &told[..]));
    // Beside it only what the rank holds.
    assert_eq!(info.ranks[0].extra.keys().collect::<Vec<_>>(), ["kvferry.holds"]);
    // Nobody is at that address here; the port is real.
    let here = [&[4, 127, 0, 0, 1], &address[5..]].concat();
    let source = Source::new(Rank::tp(0), vec![("tcp".into(), here)]);
    let receiver =
        decode.engine.receiver(Room(1), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..4, &[1]);
    let sender = prefill.sender(1);
    prefill.send_all(&sender, 4, 4, &[2]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    let frames: Vec<_> = from_prefill.sent().into_iter().chain(from_decode.sent()).collect();
    assert!(frames.iter().any(|(_, bytes)| matches!(Frame::decode(bytes), Ok(Frame::Hello(_)))));
    for (_, bytes) in frames {
        let mut found = bytes
            .windows(4)
            .filter(|four| [[127, 0, 0, 1], told, other].contains(&(*four).try_into().unwrap()));
        assert_eq!(found.next(), None, "an address in {bytes:?}");
    }
}

#[test]
fn b04_a_wildcard_is_refused_where_it_would_be_told() {
    for wildcard in ["0.0.0.0", "::"] {
        let config = TcpConfig::new().advertise(wildcard.parse().unwrap());
        let error = TcpTransport::new(config).unwrap_err();
        assert!(matches!(error, TransportError::Address { .. }), "{error}");
        assert!(error.to_string().contains(wildcard), "{error}");
        let bound = SocketAddr::new(wildcard.parse().unwrap(), 0);
        match TcpTransport::new(TcpConfig::new().bind(bound)) {
            Err(error @ TransportError::Address { .. }) => {
                // Or there is no IPv6 to bind to.
                let text = error.to_string();
                assert!(text.contains("advertise") || text.contains("binding [::]"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn b05_engines_of_one_process_have_ports_of_their_own_and_all_work() {
    let network = Network::Tcp;
    let decode = network.node("decode", 16);
    let nodes: Vec<_> = (0..16).map(|_| network.node("prefill", 8)).collect();
    let ports: BTreeSet<_> =
        nodes.iter().chain([&decode]).map(|node| node.engine.addresses()[0].1[5..].to_vec()).collect();
    assert_eq!(ports.len(), 17);
    assert!(!ports.contains(&vec![0, 0]));
    let rooms: Vec<_> = nodes
        .iter()
        .zip(0_u32..)
        .map(|(node, number)| {
            node.fill(number.into(), &[3]);
            let sender = node.sender(number.into());
            let receiver = decode.receiver(number.into(), node);
            decode.lend(&receiver, 0..4, &[number]);
            node.send_all(&sender, 4, 4, &[3]);
            (sender, receiver)
        })
        .collect();
    for ((_, receiver), number) in rooms.iter().zip(0_u32..) {
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(decode.first_wrong(number.into(), &[number], 0..4), None);
    }
}
