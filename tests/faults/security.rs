//! What strangers send: codes x01 to x03.

use crate::bed::{Network, Node, PATIENCE};
use crate::patient;
use crate::stranger::{Stranger, samples, sealed};
use bytes::Bytes;
use kvferry::bootstrap::{ClientConfig, Directory, GroupState, HttpDirectory};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::wire::{HEADER_BYTES, Kind};
use kvferry::{Engine, KVPoll, Place, Rank, Room, RoomOptions, Source, Sources};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, mpsc};
use std::time::Duration;

on_each_network! {
    x02_messages_cut_at_every_byte_change_nothing_for_others
    x02_messages_with_wrong_counts_or_tails_change_nothing_for_others
}

/// An address of this host that others could reach, if it has one.
fn outside() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn x01_nothing_listens_beyond_loopback_unless_told_to() {
    let node = Network::Tcp.node("node", 8);
    let address = node.engine.addresses().remove(0).1;
    let [4, 127, 0, 0, 1, low, high] = address[..] else { panic!("{address:?}") };
    let port = u16::from_le_bytes([low, high]);
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    match outside() {
        None => eprintln!("skipped the connection from outside: this host has loopback alone"),
        Some(ip) => {
            let limit = Duration::from_secs(5);
            assert!(TcpStream::connect_timeout(&SocketAddr::new(ip, port), limit).is_err(), "{ip}:{port}");
        }
    }
}

fn succeeds(prefill: &Node, decode: &Node, room: u64) {
    prefill.fill(room, &[2]);
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..4, &[0]);
    prefill.send_all(&sender, 4, 4, &[2]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    assert_eq!(decode.first_wrong(room, &[0], 0..4), None);
}

/// Both engines hear each of these from somebody; after each a good transfer succeeds.
fn survive(network: &Network, messages: impl IntoIterator<Item = (u8, Bytes)>) {
    let (prefill, decode) =
        (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()));
    succeeds(&prefill, &decode, 0);
    for ((kind, bytes), number) in messages.into_iter().zip(1_u64..) {
        let node = if number % 2 == 0 { &prefill } else { &decode };
        let mut stranger = Stranger::connect(network, "stranger", &node.engine);
        if kind != Kind::Hello as u8 {
            stranger.introduce();
        }
        stranger.say_bytes(bytes);
        drop(stranger);
        succeeds(&prefill, &decode, 1_000_000 + number);
    }
    for node in [&prefill, &decode] {
        // Nothing is left of all those strangers.
        while node.engine.stats().links > 1 || node.engine.stats().parked > 0 {
            std::thread::yield_now();
        }
        assert!(node.engine.is_healthy() && node.engine.stats().rooms == 0);
    }
    // Cut messages are none over a transport that keeps frames whole.
    let is_counted = |node: &Node| node.engine.stats().malformed > 0;
    assert!(matches!(network, Network::Tcp) || is_counted(&prefill) && is_counted(&decode));
}

fn x02_messages_cut_at_every_byte_change_nothing_for_others(network: &Network) {
    survive(
        network,
        samples().iter().flat_map(|(kind, frame)| {
            let whole = frame.encode();
            (0..whole.len()).map(move |len| (*kind, whole.slice(..len)))
        }),
    );
}

fn x02_messages_with_wrong_counts_or_tails_change_nothing_for_others(network: &Network) {
    let mut messages = Vec::new();
    for (kind, frame) in samples() {
        let whole = frame.encode();
        let body = &whole[HEADER_BYTES..];
        for extra in [1, 2, 6, 9] {
            messages.push((*kind, sealed(*kind, &[body, &vec![0xFF; extra]].concat())));
            messages.push((*kind, [&whole[..], &vec![0xFF; extra]].concat().into()));
        }
        // Each four bytes may be a count.
        for at in (0..body.len().saturating_sub(3)).step_by(2) {
            let mut wrong = body.to_vec();
            wrong[at..at + 4].fill(0xFF);
            messages.push((*kind, sealed(*kind, &wrong)));
        }
        messages.push((*kind, sealed(*kind ^ 0x80, body)));
        messages.push((*kind, sealed(*kind, &[])));
    }
    survive(network, messages);
}

/// A server that reads each request and then acts, until the test ends with the process.
fn trap(act: impl Fn(TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The client is expected to break off.
            let _ = stream.read(&mut [0; 4096]).and_then(|_| act(stream));
        }
    });
    url
}

/// The failure of a room whose directory is at `url`.
fn failure_with(url: &str, config: ClientConfig) -> String {
    let directory = Arc::new(HttpDirectory::new(url, config).unwrap());
    let mut hasty = patient();
    hasty.deadlines.discover = Duration::from_millis(100);
    let builder = Engine::builder(Place::alone("decode")).model("test").config(hasty);
    let builder = builder.transport(TcpTransport::new(TcpConfig::new()).unwrap());
    let decode = Node::with(builder.directory(directory.clone()).build().unwrap(), 8);
    let (wake, woken) = mpsc::channel();
    directory.watch(Arc::new(move || {
        // The test may be over.
        let _ = wake.send(());
    }));
    while !matches!(directory.group("prefill"), GroupState::Unreachable { .. }) {
        woken.recv_timeout(PATIENCE).expect("an answer before the watchdog");
    }
    let sources = Sources::group("prefill");
    let receiver = decode.engine.receiver(Room(1), sources, RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    receiver.error().unwrap().to_string()
}

#[test]
fn x03_a_directory_that_redirects_or_never_ends_fails_the_room_at_its_limit() {
    let goal = TcpListener::bind("127.0.0.1:0").unwrap();
    goal.set_nonblocking(true).unwrap();
    let place = goal.local_addr().unwrap();
    let redirecting = trap(move |mut stream| {
        write!(stream, "HTTP/1.1 302 Found\r\nlocation: http://{place}/\r\ncontent-length: 0\r\n\r\n")
    });
    let error = failure_with(&redirecting, ClientConfig::default());
    assert!(error.contains("302"), "{error}");
    assert_eq!(goal.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let endless = trap(|mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        loop {
            stream.write_all(b"4\r\n    \r\n")?;
        }
    });
    let mut config = ClientConfig::default();
    config.answer_bytes = 64 << 10;
    let error = failure_with(&endless, config);
    assert!(error.contains("length limit"), "{error}");
}

#[test]
fn x03_nothing_outside_the_permitted_networks_is_ever_connected_to() {
    let listener = TcpListener::bind("127.0.0.9:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let place = listener.local_addr().unwrap();
    let permitted = || "127.0.0.0/30".parse().unwrap();
    let mut config = ClientConfig::default();
    config.permitted = Some(vec![permitted()]);
    let error = failure_with(&format!("http://{place}"), config);
    assert!(error.contains("outside the permitted networks"), "{error}");
    // Nor where a directory, or the request, says that a peer is.
    let mut hasty = patient();
    hasty.deadlines.handshake = Duration::from_millis(300);
    let transport = TcpTransport::new(TcpConfig::new().permitted([permitted()])).unwrap();
    let builder = Engine::builder(Place::alone("decode")).model("test").config(hasty);
    let decode = Node::with(builder.transport(transport).build().unwrap(), 8);
    let port = place.port().to_le_bytes();
    let source = Source::new(Rank::tp(0), vec![("tcp".into(), [&[4, 127, 0, 0, 9], &port[..]].concat())]);
    let receiver =
        decode.engine.receiver(Room(1), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert!(error.detail.contains("outside the permitted networks"), "{error}");
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    // What is permitted works.
    succeeds(&Network::Tcp.node("prefill", 8), &decode, 2);
}
