//! Something panics: the last part of code x02.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::child::alone;
use crate::links::until;
use crate::patient;
use crate::tap::Tap;
use kvferry::bootstrap::{Directory, FixedDirectory, GroupState};
use kvferry::transport::shm::{ShmConfig, ShmTransport};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{Engine, ErrorKind, KVPoll, KVReceiver, KVSender, Place, Release, RoomOptions, UsageError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};

fn tcp(name: &str, config: TcpConfig) -> Node {
    let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
    Node::with(builder.transport(TcpTransport::new(config).unwrap()).build().unwrap(), 64)
}

/// Rooms of which each has moved its first page and waits for more.
fn in_flight(prefill: &Node, decode: &Node, rooms: std::ops::Range<u64>) -> Vec<(KVSender, KVReceiver)> {
    let begin = |room: u64| {
        let page = [room as u32 % 32 * 2, room as u32 % 32 * 2 + 1];
        let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
        decode.lend(&receiver, 0..8, &page);
        sender.send(kvferry::Chunk::new(0..4).pages(prefill.kv, &page[..1])).unwrap();
        assert!(block_on(receiver.wait_ready(4)), "{:?}", receiver.error());
        (sender, receiver)
    };
    rooms.map(begin).collect()
}

fn succeeds(prefill: &Node, decode: &Node, room: u64) {
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..4, &[1]);
    prefill.send_all(&sender, 4, 4, &[0]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
}

/// Everything that went over the link has failed on both sides, and its pages are back.
fn ends_all(rooms: &[(KVSender, KVReceiver)]) {
    for (sender, receiver) in rooms {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        assert_eq!((sender.release(), receiver.release()), (Release::Safe, Release::Safe));
    }
}

fn a_panicked_worker_fails_the_rooms_of_its_links(
    sending: TcpConfig,
    receiving: TcpConfig,
    at_prefill: bool,
) {
    let (prefill, decode, other) =
        (tcp("prefill", sending), tcp("decode", receiving), tcp("other", TcpConfig::new()));
    let rooms = in_flight(&prefill, &decode, 0..20);
    // These are fed by the worker's engine or feed it over another link.
    let (broken, whole) = if at_prefill { (&prefill, &decode) } else { (&decode, &prefill) };
    assert!(broken.engine.is_healthy() && whole.engine.is_healthy());
    rooms[0].0.send(kvferry::Chunk::new(4..8).pages(prefill.kv, &[1])).unwrap();
    ends_all(&rooms);
    assert!(!broken.engine.is_healthy() && whole.engine.is_healthy());
    assert_eq!((broken.engine.stats().panics, whole.engine.stats().panics), (1, 0));
    // What has nothing to do with it works, and so do new links of the same worker.
    succeeds(&other, whole, 100);
    succeeds(&prefill, &decode, 101);
    assert!(!broken.engine.is_healthy());
    assert_eq!((prefill.engine.stats().rooms, decode.engine.stats().rooms), (0, 0));
}

#[test]
fn x02_a_worker_that_panics_while_sending_fails_its_rooms_and_health() {
    let sending = TcpConfig::new().lanes(1).panic_at_sending(21);
    a_panicked_worker_fails_the_rooms_of_its_links(sending, TcpConfig::new(), true);
}

#[test]
fn x02_a_copier_that_panics_fails_the_rooms_of_its_link_and_health() {
    let node = |name: &str, config: ShmConfig| {
        let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
        Node::with(builder.transport(ShmTransport::new(config).unwrap()).build().unwrap(), 64)
    };
    let prefill = node("prefill", ShmConfig::new());
    let decode = node("decode", ShmConfig::new().panic_at_copying(u64::from(PIECES) * 20 + 1));
    let other = node("other", ShmConfig::new());
    let rooms = in_flight(&prefill, &decode, 0..20);
    assert!(decode.engine.is_healthy());
    rooms[0].0.send(kvferry::Chunk::new(4..8).pages(prefill.kv, &[1])).unwrap();
    ends_all(&rooms);
    assert_eq!((decode.engine.is_healthy(), prefill.engine.is_healthy()), (false, true));
    assert_eq!((decode.engine.stats().panics, prefill.engine.stats().panics), (1, 0));
    // What has nothing to do with it works, and so do new links of the same copier.
    succeeds(&other, &prefill, 100);
    succeeds(&prefill, &decode, 101);
    assert_eq!((prefill.engine.stats().rooms, decode.engine.stats().rooms), (0, 0));
}

/// Writes of the first page of a room.
const PIECES: u32 = 1;

#[test]
fn x02_a_worker_that_panics_while_receiving_fails_its_rooms_and_health() {
    let network = TcpConfig::new().lanes(1);
    let receiving = network.clone().panic_at_receiving(21);
    a_panicked_worker_fails_the_rooms_of_its_links(network, receiving, false);
}

struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        panic!("a waker's own defect");
    }
}

#[test]
fn x02_a_waker_that_panics_harms_nobody_else() {
    for network in [Network::local(), Network::Tcp] {
        let (prefill, decode) = (network.node("prefill", 64), network.node("decode", 64));
        let rooms = in_flight(&prefill, &decode, 0..2);
        let panics = Arc::new(Panics(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&panics));
        let mut finished = pin!(rooms[0].1.finished());
        assert!(finished.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        rooms[0].0.abort("enough");
        until(|| panics.0.load(Ordering::SeqCst));
        assert_eq!(block_on(finished).unwrap_err().kind, ErrorKind::Aborted);
        rooms[1].0.send(kvferry::Chunk::new(4..8).pages(prefill.kv, &[1])).unwrap();
        rooms[1].0.finish(kvferry::Finish::new(8)).unwrap();
        assert_eq!(rooms[1].1.wait(PATIENCE), KVPoll::Success, "{:?}", rooms[1].1.error());
        assert!(prefill.engine.is_healthy() && decode.engine.is_healthy());
        assert_eq!(decode.engine.stats().panics, 0);
    }
}

/// An engine whose loop can be made to panic.
fn tapped(directory: &FixedDirectory, is_manual: bool) -> (Node, crate::tap::Valve) {
    let (tapped, valve) = Tap::on(Network::Tcp.transport("decode"));
    let builder = Engine::builder(Place::alone("decode")).model("test").config(patient());
    let builder = builder.directory(Arc::new(directory.clone())).boxed_transport(tapped);
    let builder = if is_manual { builder.manual_progress() } else { builder };
    (Node::with(builder.build().unwrap(), 64), valve)
}

/// Nothing of the engine is left but what its callers may still ask.
fn is_over(prefill: &Node, decode: &Node, rooms: &[(KVSender, KVReceiver)], directory: &FixedDirectory) {
    for (sender, receiver) in rooms {
        let error = block_on(receiver.finished()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{error}");
        // The peer sees its link end, long before a deadline.
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        assert_eq!((sender.error().unwrap().kind, sender.release()), (ErrorKind::PeerLost, Release::Safe));
        receiver.abort("changes nothing");
    }
    assert!(!decode.engine.is_healthy() && prefill.engine.is_healthy());
    assert_eq!(decode.engine.stats().panics, 1);
    let refused = decode.engine.sender(kvferry::Room(99), RoomOptions::default());
    assert_eq!(refused.unwrap_err(), UsageError::Panicked);
    until(|| !matches!(directory.group("decode"), GroupState::Ready(_)));
    // The pages were lent, and nobody drives what could vouch for them.
    let report = decode.engine.close(PATIENCE);
    assert_eq!((report.is_finished, report.unreleased.len()), (false, rooms.len()));
    assert_eq!(decode.engine.close(PATIENCE), report);
}

#[test]
fn x02_a_panic_in_the_engines_thread_ends_its_rooms_on_both_sides() {
    let directory = FixedDirectory::new();
    let prefill = Network::Tcp.node_with("prefill", 64, patient());
    let (decode, valve) = tapped(&directory, false);
    let rooms = in_flight(&prefill, &decode, 0..20);
    let address = decode.engine.addresses().swap_remove(0).1;
    valve.at_progress(|| panic!("a defect made on purpose"));
    is_over(&prefill, &decode, &rooms, &directory);
    drop(Network::Tcp.transport_at(&address)); // its port is free
}

#[test]
fn x02_a_panic_in_a_turn_by_hand_goes_on_to_the_caller_and_ends_all_rooms() {
    let directory = FixedDirectory::new();
    let prefill = Network::Tcp.node_with("prefill", 64, patient());
    let (decode, valve) = tapped(&directory, true);
    let (started, rooms) = mpsc::channel();
    let rooms = std::thread::scope(|scope| {
        scope.spawn(|| started.send(in_flight(&prefill, &decode, 0..3)).unwrap());
        loop {
            decode.engine.progress_or_wait(std::time::Duration::from_millis(20)).unwrap();
            if let Ok(rooms) = rooms.try_recv() {
                break rooms;
            }
        }
    });
    valve.at_progress(|| panic!("a defect made on purpose"));
    let panic = catch_unwind(AssertUnwindSafe(|| decode.engine.progress())).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"a defect made on purpose"));
    assert_eq!(decode.engine.progress(), Err(UsageError::Panicked));
    assert_eq!(decode.engine.progress_or_wait(PATIENCE), Err(UsageError::Panicked));
    is_over(&prefill, &decode, &rooms, &directory);
}

#[test]
fn x02_a_broken_engine_can_be_dropped() {
    alone("panics::x02_a_broken_engine_can_be_dropped", || {
        let (decode, valve) = tapped(&FixedDirectory::new(), false);
        let sender = decode.sender(1);
        valve.at_progress(|| panic!("a defect made on purpose"));
        assert_eq!(block_on(sender.finished()).unwrap_err().kind, ErrorKind::Internal);
        crate::child::at_once("dropping a broken engine", || drop((decode, sender)));
    });
}
