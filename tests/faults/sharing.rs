//! Memory shared between processes of a host: codes m04, m05 and m06, and peers that die or sleep.
#![expect(unsafe_code, reason = "only a call of the system gives a space of processes")]

use crate::bed::{CANARY, Node, PAGE_TOKENS, PATIENCE};
use crate::child::{Child, alone};
use crate::links::until;
use crate::patient;
use kvferry::layout::{PoolEntry, PoolLayout, Role};
use kvferry::memory::{MemoryError, SharedBuffer};
use kvferry::transport::shm::{Private, ShmConfig, ShmTransport};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    Chunk, Engine, ErrorKind, Finish, Grant, GroupId, KVPoll, KVReceiver, KVSender, Place, Release, Room,
    RoomOptions, Source, Sources,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// An engine with one pool, which peers can map, over shared memory and else TCP.
struct Side {
    engine: Engine,
    kv: GroupId,
    pool: SharedBuffer,
}

impl Side {
    fn new(name: &str, shm: ShmConfig) -> Self {
        let mut config = patient();
        config.deadlines.drain = Duration::from_secs(300);
        config.liveness.timeout = Duration::from_secs(300);
        let builder = Engine::builder(Place::alone(name)).model("test").config(config);
        let engine = builder.transport(ShmTransport::new(shm).unwrap()).build().unwrap();
        let pool = SharedBuffer::zeroed(PAGE * u64::from(PAGES)).unwrap();
        let region = engine.register(|id| pool.region(id)).unwrap();
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", PAGE_TOKENS, PAGES);
        layout.push(PoolEntry::new(kv, Role::Key, region, PAGE));
        engine.set_layout(layout).unwrap();
        Self { engine, kv, pool }
    }

    fn sender(&self, room: u64) -> KVSender {
        self.engine.sender(Room(room), RoomOptions::default()).unwrap()
    }

    /// A receiver that lends the first pages.
    fn receiver(&self, room: u64, pages: u32, from: &[u8]) -> KVReceiver {
        let addresses = vec![("shm".to_owned(), from.to_vec())];
        let sources = Sources::Ranks(vec![Source::new(self.engine.place().rank, addresses)]);
        let receiver = self.engine.receiver(Room(room), sources, RoomOptions::default()).unwrap();
        let lent: Vec<u32> = (0..pages).collect();
        receiver.grant(Grant::new(0..pages * PAGE_TOKENS).pages(self.kv, &lent)).unwrap();
        receiver
    }

    fn send(&self, sender: &KVSender, pages: u32) {
        let (tokens, named) = (pages * PAGE_TOKENS, (0..pages).collect::<Vec<_>>());
        sender.send(Chunk::new(0..tokens).pages(self.kv, &named)).unwrap();
        sender.finish(Finish::new(tokens)).unwrap();
    }
}

const PAGES: u32 = 64;
const PAGE: u64 = 64 << 10;

/// The end of a conversation between the processes of a test.
struct Talk(UnixStream);

impl Talk {
    fn pair() -> (Self, Self) {
        let (one, other) = UnixStream::pair().unwrap();
        (Self(one), Self(other))
    }

    fn say(&mut self, words: &[u8]) {
        self.0.write_all(&[u8::try_from(words.len()).unwrap()]).unwrap();
        self.0.write_all(words).unwrap();
    }

    fn hear(&mut self) -> Vec<u8> {
        let mut len = [0];
        self.0.read_exact(&mut len).unwrap();
        let mut words = vec![0; usize::from(len[0])];
        self.0.read_exact(&mut words).unwrap();
        words
    }

    /// Waits until the other process says that the test is over.
    fn end(&mut self) {
        assert_eq!(self.hear(), OVER);
    }
}

const OVER: &[u8] = b"over";

fn address(engine: &Engine) -> Vec<u8> {
    engine.addresses().into_iter().find(|(name, _)| name == "shm").unwrap().1
}

fn limit(what: rustix::process::Resource, bytes: u64) {
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(what, limit).unwrap();
}

#[test]
fn m04_nothing_is_pinned_so_a_low_limit_of_locked_memory_does_no_harm() {
    alone("sharing::m04_nothing_is_pinned_so_a_low_limit_of_locked_memory_does_no_harm", || {
        // Root may lock what it likes: what counts is that nothing is.
        limit(rustix::process::Resource::Memlock, 64 << 10);
        let (prefill, decode) =
            (Side::new("prefill", ShmConfig::new()), Side::new("decode", ShmConfig::new()));
        prefill.pool.fill(7);
        let sender = prefill.sender(1);
        let receiver = decode.receiver(1, PAGES, &address(&prefill.engine));
        prefill.send(&sender, PAGES);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(decode.pool.to_vec(0, 1 << 20), vec![7; 1 << 20]);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
        assert_eq!(locked.split_whitespace().nth(1), Some("0"), "{locked}");
    });
}

#[test]
fn m05_too_little_room_is_told_with_both_numbers_and_ends_nobody() {
    alone("sharing::m05_too_little_room_is_told_with_both_numbers_and_ends_nobody", || {
        limit(rustix::process::Resource::Fsize, 1 << 20);
        let error = SharedBuffer::zeroed(16 << 20).unwrap_err();
        assert_eq!(error, MemoryError::NoRoom { bytes: 16 << 20, available: 1 << 20 });
        // Nothing was taken, and what there is room for can be had.
        let small = SharedBuffer::zeroed(1 << 20).unwrap();
        small.fill(1);
    });
}

/// A node whose pools cannot be mapped, over shared memory and else TCP.
fn private(name: &str, config: ShmConfig) -> Node {
    let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
    let builder = builder.transport(ShmTransport::new(config).unwrap());
    Node::with(builder.transport(TcpTransport::new(TcpConfig::new()).unwrap()).build().unwrap(), 8)
}

fn is_taken(path: &str, prefill: &Node, decode: &Node) {
    prefill.fill(3, &[0, 1]);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, prefill));
    decode.lend(&receiver, 0..8, &[5, 2]);
    prefill.send_all(&sender, 8, 8, &[0, 1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(3, &[5, 2], 0..8), None);
    assert_eq!(receiver.stats().path, Some(path));
    assert!(decode.is_filled_with(CANARY, 0));
}

#[test]
fn m05_where_memory_cannot_be_shared_the_pair_uses_tcp() {
    let refusing = || ShmConfig::new().private(Private::Refuse);
    is_taken("tcp", &private("prefill", refusing()), &private("decode", ShmConfig::new()));
    is_taken("tcp", &private("prefill", ShmConfig::new()), &private("decode", refusing()));
    is_taken("shm", &private("prefill", ShmConfig::new()), &private("decode", ShmConfig::new()));
}

/// From now on children of this process are in a space of processes of their own.
fn split() -> bool {
    // SAFETY: changes nothing but where the next child finds itself.
    unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
}

/// A child that is process 1 of a space of its own.
fn in_own_space(act: impl FnOnce()) -> Child {
    Child::fork(|| {
        assert!(split());
        let first = Child::fork(|| {
            assert_eq!(std::process::id(), 1);
            act();
        });
        first.succeed();
    })
}

/// Two containers: either is process 1 and does not see the other.
fn m06(prefill: impl FnOnce(Talk), decode: impl FnOnce(Vec<u8>, Vec<u8>)) {
    if Child::fork(|| assert!(split())).ended() != 0 {
        eprintln!("skipped: spaces of processes are not allowed here");
        return;
    }
    let (mut here, there) = Talk::pair();
    let source = in_own_space(move || prefill(there));
    let (shm, tcp) = (here.hear(), here.hear());
    in_own_space(move || decode(shm, tcp)).succeed();
    here.say(OVER);
    source.succeed();
}

#[test]
fn m06_processes_of_two_containers_with_one_number_share_what_can_be_mapped() {
    alone("sharing::m06_processes_of_two_containers_with_one_number_share_what_can_be_mapped", || {
        let source = |mut talk: Talk| {
            let side = Side::new("prefill", ShmConfig::new());
            side.pool.fill(9);
            talk.say(&address(&side.engine));
            talk.say(b"");
            let sender = side.sender(1);
            side.send(&sender, PAGES);
            assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
            talk.end();
        };
        m06(source, |from, _| {
            let side = Side::new("decode", ShmConfig::new());
            let receiver = side.receiver(1, PAGES, &from);
            assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
            let bytes = usize::try_from(PAGE * u64::from(PAGES)).unwrap();
            assert!(side.pool.to_vec(0, bytes).iter().all(|byte| *byte == 9));
        });
    });
}

#[test]
fn m06_what_the_probe_cannot_read_goes_over_tcp() {
    alone("sharing::m06_what_the_probe_cannot_read_goes_over_tcp", || {
        let source = |mut talk: Talk| {
            let node = private("prefill", ShmConfig::new());
            node.fill(3, &[0, 1]);
            talk.say(&address(&node.engine));
            talk.say(&node.engine.addresses().into_iter().find(|(name, _)| name == "tcp").unwrap().1);
            let sender = node.sender(1);
            node.send_all(&sender, 8, 8, &[0, 1]);
            assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
            talk.end();
        };
        m06(source, |shm, tcp| {
            // By its number the peer would be this process itself, whose memory can be read.
            let node = private("decode", ShmConfig::new());
            let addresses = vec![("shm".to_owned(), shm), ("tcp".to_owned(), tcp)];
            let sources = Sources::Ranks(vec![Source::new(node.engine.place().rank, addresses)]);
            let receiver = node.engine.receiver(Room(1), sources, RoomOptions::default()).unwrap();
            node.lend(&receiver, 0..8, &[5, 2]);
            assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
            assert_eq!((node.first_wrong(3, &[5, 2], 0..8), receiver.stats().path), (None, Some("tcp")));
        });
    });
}

/// A receiver waits in this process; its source is another one, of which a child holds the connection.
#[test]
fn a_dead_sender_whose_child_lives_on_fails_its_rooms_at_once() {
    alone("sharing::a_dead_sender_whose_child_lives_on_fails_its_rooms_at_once", || {
        let (mut here, mut there) = Talk::pair();
        let source = Child::fork(move || {
            let side = Side::new("prefill", ShmConfig::new());
            there.say(&address(&side.engine));
            let sender = side.sender(1);
            until(|| sender.poll() == KVPoll::WaitingForInput);
            let mut kept = Talk(there.0.try_clone().unwrap());
            // It keeps every descriptor that its parent has, until this test is over.
            let child = Child::fork(move || kept.end());
            there.say(b"forked");
            std::mem::forget(child);
            loop {
                std::thread::park();
            }
        });
        let side = Side::new("decode", ShmConfig::new());
        let from = here.hear();
        let receiver = side.receiver(1, 4, &from);
        assert_eq!(here.hear(), b"forked");
        source.signal(libc::SIGKILL);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(receiver.error().unwrap().kind, ErrorKind::PeerLost);
        until(|| receiver.release() == Release::Safe);
        here.say(OVER);
    });
}

/// The receiver sleeps with the sender's writes before it; the sender gives up and has its pages back, long
/// before any deadline.
#[test]
fn m01_a_sender_has_its_pages_back_at_once_while_its_receiver_sleeps() {
    alone("sharing::m01_a_sender_has_its_pages_back_at_once_while_its_receiver_sleeps", || {
        let (mut here, mut there) = Talk::pair();
        let sink = Child::fork(move || {
            let from = there.hear();
            let side = Side::new("decode", ShmConfig::new());
            let receiver = side.receiver(1, PAGES, &from);
            there.say(b"lent");
            until(|| receiver.poll() == KVPoll::Failed && receiver.release() == Release::Safe);
        });
        let side = Side::new("prefill", ShmConfig::new());
        here.say(&address(&side.engine));
        assert_eq!(here.hear(), b"lent");
        let sender = side.sender(1);
        until(|| sender.poll() == KVPoll::WaitingForInput);
        sink.freeze();
        side.send(&sender, PAGES);
        until(|| sender.stats().first_byte.is_some());
        sender.abort("client gone");
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        until(|| sender.release() == Release::Safe);
        side.pool.fill(0xEE);
        sink.signal(libc::SIGCONT);
        sink.succeed();
    });
}
