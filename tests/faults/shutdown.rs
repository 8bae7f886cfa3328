//! Closing an engine takes no longer than it may: code o06.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::child::{Child, alone, at_once};
use crate::links::until;
use crate::patient;
use kvferry::bootstrap::{BootstrapServer, ClientConfig, Directory, HttpDirectory, RankRecord, ServerConfig};
use kvferry::layout::LayoutDigest;
use kvferry::{
    Chunk, CloseReport, ErrorKind, GroupSizes, Instance, KVPoll, KVReceiver, KVSender, Rank, Release, Room,
    RoomOptions, Source, Sources, UsageError,
};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

on_each_network! {
    o06_an_idle_engine_closes_at_once_and_only_once
    o06_a_hundred_rooms_fail_on_both_sides_when_one_side_closes
    o06_dropping_the_last_engine_closes_it
    o06_an_engine_can_be_closed_by_a_waker_of_its_own
}

const ROOMS: u64 = 100;
/// What closing may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Rooms of which each has moved its first page.
fn in_flight(prefill: &Node, decode: &Node) -> Vec<(KVSender, KVReceiver)> {
    let begin = |room: u64| (prefill.sender(room), decode.receiver(room, prefill));
    let rooms: Vec<_> = (0..ROOMS).map(begin).collect();
    for (sender, receiver) in &rooms {
        decode.lend(receiver, 0..8, &[0, 1]);
        sender.send(Chunk::new(0..4).pages(prefill.kv, &[0])).unwrap();
    }
    for (_, receiver) in &rooms {
        assert!(block_on(receiver.wait_ready(4)), "{:?}", receiver.error());
    }
    rooms
}

/// Closes an engine within the limit, and gives its port away.
fn closes(network: &Network, node: &Node) -> CloseReport {
    closes_at(network, node, &node.engine.addresses().swap_remove(0).1)
}

fn closes_at(network: &Network, node: &Node, address: &[u8]) -> CloseReport {
    let start = Instant::now();
    let report = node.engine.close(LIMIT);
    // As much again for a machine that is busy.
    assert!(start.elapsed() < LIMIT * 2, "closing took {:?}", start.elapsed());
    drop(network.transport_at(address));
    assert_eq!(at_once("closing again", || node.engine.close(PATIENCE)), report);
    assert!(!node.engine.is_healthy());
    report
}

fn is_clean(report: &CloseReport) {
    assert!(report.is_finished && report.unreleased.is_empty() && report.unproved.is_empty(), "{report:?}");
}

fn o06_an_idle_engine_closes_at_once_and_only_once(network: &Network) {
    let node = network.node("idle", 8);
    is_clean(&at_once("closing an idle engine", || closes(network, &node)));
    let refused = node.engine.sender(Room(1), RoomOptions::default());
    assert_eq!(refused.unwrap_err(), UsageError::Closed);
}

fn all_are_told(rooms: &[(KVSender, KVReceiver)]) {
    for (sender, receiver) in rooms {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        for error in [sender.error().unwrap(), receiver.error().unwrap()] {
            assert_eq!(error.kind, ErrorKind::ShuttingDown, "{error}");
        }
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
    }
}

fn o06_a_hundred_rooms_fail_on_both_sides_when_one_side_closes(network: &Network) {
    for is_prefill in [true, false] {
        let node = |name| network.node_with(name, 8, patient());
        let (prefill, decode) = (node("prefill"), node("decode"));
        let rooms = in_flight(&prefill, &decode);
        is_clean(&closes(network, if is_prefill { &prefill } else { &decode }));
        all_are_told(&rooms);
    }
}

fn o06_dropping_the_last_engine_closes_it(network: &Network) {
    let node = |name| network.node_with(name, 8, patient());
    let (prefill, decode) = (node("prefill"), node("decode"));
    let rooms = in_flight(&prefill, &decode);
    let address = decode.engine.addresses().swap_remove(0).1;
    let clone = decode.engine.clone();
    drop(decode);
    assert!(clone.is_healthy());
    let start = Instant::now();
    drop(clone);
    assert!(start.elapsed() < LIMIT * 2, "dropping took {:?}", start.elapsed());
    drop(network.transport_at(&address));
    all_are_told(&rooms);
}

fn o06_an_engine_can_be_closed_by_a_waker_of_its_own(network: &Network) {
    struct Closes(kvferry::Engine, mpsc::Sender<CloseReport>);
    impl Wake for Closes {
        fn wake(self: Arc<Self>) {
            self.1.send(at_once("closing by a waker", || self.0.close(PATIENCE))).unwrap();
        }
    }
    let node = |name| network.node_with(name, 8, patient());
    let (prefill, decode) = (node("prefill"), node("decode"));
    let rooms = in_flight(&prefill, &decode);
    let address = decode.engine.addresses().swap_remove(0).1;
    let (closed, reports) = mpsc::channel();
    let waker = Waker::from(Arc::new(Closes(decode.engine.clone(), closed)));
    let mut finished = Box::pin(rooms[0].1.finished());
    assert!(finished.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    rooms[0].1.abort("enough");
    // The thread that it ran on has to go on first.
    assert!(!reports.recv_timeout(PATIENCE).unwrap().is_finished);
    is_clean(&closes_at(network, &decode, &address));
    all_are_told(&rooms[1..]);
    // Dropped by a waker, the last engine does not wait for itself either.
    let last = node("last");
    let receiver = last.receiver(1, &prefill);
    let (dropped, drops) = mpsc::channel();
    struct Drops(std::sync::Mutex<Option<Node>>, mpsc::Sender<()>);
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            let node = self.0.lock().unwrap().take();
            at_once("dropping by a waker", || drop(node));
            self.1.send(()).unwrap();
        }
    }
    let waker = Waker::from(Arc::new(Drops(std::sync::Mutex::new(Some(last)), dropped)));
    let mut finished = Box::pin(receiver.finished());
    assert!(finished.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    receiver.abort("enough");
    drops.recv_timeout(PATIENCE).unwrap();
}

/// A decode process whose rooms are in flight, fed by `prefill`.
struct Peer {
    child: Child,
    _ear: PipeReader,
}

impl Peer {
    /// Forked while the process has no engine yet.
    fn fork() -> (Self, PipeWriter) {
        let (mut ear, mouth) = std::io::pipe().unwrap();
        let (ready, mut done) = std::io::pipe().unwrap();
        let child = Child::fork(|| {
            let mut length = [0; 1];
            ear.read_exact(&mut length).unwrap();
            let mut address = vec![0; usize::from(length[0])];
            ear.read_exact(&mut address).unwrap();
            let decode = Network::Tcp.node_with("decode", 8, patient());
            let receiver = |room| {
                let source = Source::new(Rank::default(), vec![("tcp".into(), address.clone())]);
                let from = Sources::Ranks(vec![source]);
                let receiver = decode.engine.receiver(Room(room), from, RoomOptions::default()).unwrap();
                decode.lend(&receiver, 0..8, &[0, 1]);
                receiver
            };
            let rooms: Vec<_> = (0..ROOMS).map(receiver).collect();
            for receiver in &rooms {
                assert!(block_on(receiver.wait_ready(4)), "{:?}", receiver.error());
            }
            done.write_all(b"!").unwrap();
            loop {
                std::thread::park();
            }
        });
        (Self { child, _ear: ready }, mouth)
    }

    /// Feeds the first page of each room, and ends or stops the peer when all are there.
    fn meet(mut self, mut mouth: PipeWriter, prefill: &Node) -> (Self, Vec<KVSender>) {
        let address = prefill.engine.addresses().swap_remove(0).1;
        mouth.write_all(&[address.len() as u8]).unwrap();
        mouth.write_all(&address).unwrap();
        let senders: Vec<_> = (0..ROOMS).map(|room| prefill.sender(room)).collect();
        for sender in &senders {
            sender.send(Chunk::new(0..4).pages(prefill.kv, &[0])).unwrap();
        }
        self._ear.read_exact(&mut [0]).unwrap();
        (self, senders)
    }
}

fn have_failed(senders: &[KVSender], kinds: &[ErrorKind]) {
    for sender in senders {
        let error = sender.error().unwrap();
        assert!(sender.poll() == KVPoll::Failed && kinds.contains(&error.kind), "{error}");
        assert_eq!(sender.release(), Release::Safe);
    }
}

#[test]
fn o06_a_peer_that_is_frozen_does_not_hold_up_the_end() {
    alone("shutdown::o06_a_peer_that_is_frozen_does_not_hold_up_the_end", || {
        let (peer, mouth) = Peer::fork();
        let mut config = patient();
        config.liveness.timeout = Duration::from_secs(300);
        let prefill = Network::Tcp.node_with("prefill", 8, config);
        let (peer, senders) = peer.meet(mouth, &prefill);
        peer.child.signal(libc::SIGSTOP);
        // These writes are under way and nobody says that they are over.
        for sender in &senders {
            sender.send(Chunk::new(4..8).pages(prefill.kv, &[1])).unwrap();
        }
        is_clean(&closes(&Network::Tcp, &prefill));
        have_failed(&senders, &[ErrorKind::ShuttingDown]);
    });
}

#[test]
fn o06_a_peer_that_is_gone_does_not_hold_up_the_end() {
    alone("shutdown::o06_a_peer_that_is_gone_does_not_hold_up_the_end", || {
        let (peer, mouth) = Peer::fork();
        let prefill = Network::Tcp.node_with("prefill", 8, patient());
        let (peer, senders) = peer.meet(mouth, &prefill);
        drop(peer);
        is_clean(&closes(&Network::Tcp, &prefill));
        have_failed(&senders, &[ErrorKind::ShuttingDown, ErrorKind::PeerLost]);
    });
}

/// A listener that says nothing to anybody.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

#[test]
fn o06_a_silent_directory_does_not_hold_up_the_end() {
    let (_listener, url) = silent();
    let mut config = ClientConfig::default();
    (config.connect_time, config.request_time) = (Duration::from_secs(3600), Duration::from_secs(3600));
    let new = || HttpDirectory::new(&url, config.clone()).unwrap();
    let start = Instant::now();
    let directory = new();
    let record = RankRecord::new("p", GroupSizes::ONE, Rank::default(), Instance(7), LayoutDigest([7; 16]));
    let registration = directory.register(record);
    directory.group("any");
    drop((registration, directory));
    assert!(start.elapsed() < PATIENCE, "dropping took {:?}", start.elapsed());
    // The same of an engine that is registered there.
    let builder = kvferry::Engine::builder(kvferry::Place::alone("decode")).model("test");
    let builder = builder.boxed_transport(Network::Tcp.transport("decode")).directory(Arc::new(new()));
    let decode = Node::with(builder.build().unwrap(), 8);
    let waiting = decode.engine.receiver(Room(1), Sources::group("any"), RoomOptions::default()).unwrap();
    let report = closes(&Network::Tcp, &decode);
    assert!(report.unreleased.is_empty(), "{report:?}");
    assert_eq!(waiting.error().unwrap().kind, ErrorKind::ShuttingDown);
}

#[test]
fn o06_silent_clients_do_not_hold_up_the_end_of_a_directory() {
    let mut config = ServerConfig::default();
    config.request_time = Duration::from_secs(3600);
    let server = BootstrapServer::bind("127.0.0.1:0", config.clone()).unwrap();
    let address = server.address();
    let clients: Vec<_> = (0..10)
        .map(|bytes| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&b"GET /health HTTP/1.1\r\n"[..bytes]).unwrap();
            stream
        })
        .collect();
    at_once("dropping a directory", || drop(server));
    drop(BootstrapServer::bind(&address.to_string(), config).unwrap());
    drop(clients);
}

#[test]
fn o06_a_thread_that_drives_by_hand_is_woken_by_the_end() {
    let builder = kvferry::Engine::builder(kvferry::Place::alone("manual")).model("test");
    let builder = builder.boxed_transport(Network::Tcp.transport("manual")).manual_progress();
    let node = Node::with(builder.build().unwrap(), 8);
    std::thread::scope(|scope| {
        let driver = scope.spawn(|| {
            while node.engine.is_healthy() {
                node.engine.progress_or_wait(Duration::from_secs(3600)).unwrap();
            }
        });
        let sender = node.sender(1);
        until(|| node.engine.stats().senders == 1);
        is_clean(&node.engine.close(LIMIT));
        assert_eq!(sender.error().unwrap().kind, ErrorKind::ShuttingDown);
        driver.join().unwrap();
    });
}
