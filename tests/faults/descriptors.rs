//! The host program is out of descriptors: the last part of code d09.

use crate::bed::{Network, Node, PATIENCE};
use crate::child::{alone, cpu};
use crate::links::until;
use crate::patient;
use kvferry::bootstrap::{BootstrapServer, ClientConfig, Directory, GroupState, HttpDirectory, ServerConfig};
use kvferry::{ErrorKind, KVPoll, KVReceiver, Room, RoomOptions, Source, Sources};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// No descriptor is left while this lives.
struct Exhausted {
    before: Rlimit,
    files: Vec<File>,
}

impl Exhausted {
    /// Lowers the limit to 64, and takes what is left of that.
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
        let mut files = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        Self { before, files }
    }

    /// Gives so many back.
    fn leave(&mut self, descriptors: usize) {
        let left = self.files.len().checked_sub(descriptors).expect("enough were taken");
        self.files.truncate(left);
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

fn serves(prefill: &Node, decode: &Node, room: u64) {
    let receiver = decode.receiver(room, prefill);
    succeeds(prefill, decode, &receiver);
}

fn succeeds(prefill: &Node, decode: &Node, receiver: &KVReceiver) {
    let sender = prefill.sender(receiver.room().0);
    decode.lend(receiver, 0..4, &[1]);
    prefill.send_all(&sender, 4, 4, &[0]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
}

#[test]
fn d09_a_program_out_of_descriptors_says_so_and_marks_no_peer_lost() {
    alone("descriptors::d09_a_program_out_of_descriptors_says_so_and_marks_no_peer_lost", || {
        let prefill = Network::Tcp.node("prefill", 8);
        let other = Network::Tcp.node("other", 8);
        let decode = Network::Tcp.node_with("decode", 8, patient());
        serves(&other, &decode, 1);
        let exhausted = Exhausted::new();
        // A room that has time waits; one that has none says what it waited for.
        let waiting = decode.receiver(2, &prefill);
        let mut hasty = patient().deadlines;
        hasty.discover = Duration::from_millis(300);
        hasty.handshake = hasty.discover;
        let options = RoomOptions::default().deadlines(hasty);
        let from = Sources::Ranks(vec![Source::new(prefill.engine.place().rank, prefill.engine.addresses())]);
        let failing = decode.engine.receiver(Room(3), from, options).unwrap();
        assert_eq!(failing.wait(PATIENCE), KVPoll::Failed);
        let error = failing.error().unwrap();
        assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
        assert!(error.detail.contains("Too many open files"), "{error}");
        assert_eq!(waiting.poll(), KVPoll::Bootstrapping, "{:?}", waiting.error());
        // What is connected goes on.
        serves(&other, &decode, 4);
        let stats = decode.engine.stats();
        assert_eq!((stats.unreachable, stats.reconnects), (0, 0));
        drop(exhausted);
        succeeds(&prefill, &decode, &waiting);
    });
}

#[test]
fn d09_a_peer_known_before_is_not_lost_for_want_of_descriptors_here() {
    alone("descriptors::d09_a_peer_known_before_is_not_lost_for_want_of_descriptors_here", || {
        let address = Network::Tcp.nobody().1;
        let at = |address: &[u8]| {
            let place = kvferry::Place::alone("prefill");
            let builder = kvferry::Engine::builder(place).model("test");
            Node::with(builder.boxed_transport(Network::Tcp.transport_at(address)).build().unwrap(), 8)
        };
        let prefill = at(&address);
        let decode = Network::Tcp.node_with("decode", 8, patient());
        serves(&prefill, &decode, 1);
        drop(prefill);
        until(|| decode.engine.stats().links == 0);
        let prefill = at(&address);
        let exhausted = Exhausted::new();
        let waiting = decode.receiver(2, &prefill);
        // Longer than a peer that was there and cannot be reached is tried for the first rooms.
        let start = Instant::now();
        until(|| waiting.poll().is_terminal() || start.elapsed() > Duration::from_secs(2));
        drop(exhausted);
        assert_eq!(waiting.poll(), KVPoll::Bootstrapping, "{:?}", waiting.error());
        succeeds(&prefill, &decode, &waiting);
    });
}

#[test]
fn d09_a_listener_out_of_descriptors_sleeps_and_serves_when_there_are_some() {
    alone("descriptors::d09_a_listener_out_of_descriptors_sleeps_and_serves_when_there_are_some", || {
        let prefill = Network::Tcp.node("prefill", 8);
        let decode = Network::Tcp.node_with("decode", 8, patient());
        let mut exhausted = Exhausted::new();
        // As many as the connecting side needs: a control connection and two lanes.
        exhausted.leave(3);
        let receiver = decode.receiver(1, &prefill);
        let (before, start) = (cpu(), Instant::now());
        until_elapsed(start, Duration::from_secs(2));
        let used = cpu() - before;
        assert!(used < Duration::from_millis(200), "{used:?} of CPU in 2 s of waiting");
        assert_eq!(receiver.poll(), KVPoll::Bootstrapping, "{:?}", receiver.error());
        drop(exhausted);
        succeeds(&prefill, &decode, &receiver);
    });
}

#[test]
fn d09_a_directory_out_of_descriptors_sleeps_and_answers_when_there_are_some() {
    alone("descriptors::d09_a_directory_out_of_descriptors_sleeps_and_answers_when_there_are_some", || {
        let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
        let directory = HttpDirectory::new(&server.url(), ClientConfig::default()).unwrap();
        let (wake, woken) = mpsc::channel();
        directory.watch(Arc::new(move || {
            // The test may be over.
            let _ = wake.send(());
        }));
        let until = |is_so: &dyn Fn(&GroupState) -> bool| loop {
            let state = directory.group("any");
            if is_so(&state) {
                return state;
            }
            woken.recv_timeout(PATIENCE).expect("a change before the watchdog");
        };
        let mut exhausted = Exhausted::new();
        let state = until(&|state| matches!(state, GroupState::Unreachable { .. }));
        assert!(format!("{state:?}").contains("Too many open files"), "{state:?}");
        // One for a client; none for the server's end of it.
        exhausted.leave(1);
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let (before, start) = (cpu(), Instant::now());
        until_elapsed(start, Duration::from_secs(1));
        let used = cpu() - before;
        assert!(used < Duration::from_millis(100), "{used:?} of CPU in 1 s of waiting");
        drop(exhausted);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        until(&|state| matches!(state, GroupState::NotReady { .. }));
    });
}

/// Lets time pass in which the test itself does nothing.
fn until_elapsed(start: Instant, time: Duration) {
    let (_keep, never) = mpsc::channel::<()>();
    let _ = never.recv_timeout((start + time).saturating_duration_since(Instant::now()));
}
