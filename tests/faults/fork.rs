//! The host program forks: code m09.

use crate::bed::{Network, Node, PATIENCE};
use crate::child::{Child, Program, alone, at_once};
use crate::patient;
use crate::tap::Tap;
use kvferry::bootstrap::{
    BootstrapServer, ClientConfig, Directory, FixedDirectory, GroupState, HttpDirectory, RankRecord,
    Registration, RegistrationState, ServerConfig,
};
use kvferry::layout::{LayoutDigest, PoolLayout};
use kvferry::memory::{HostBuffer, Mark};
use kvferry::transport::local::LocalTransport;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    Attempt, Chunk, Engine, ErrorKind, Finish, Grant, GroupSizes, Instance, KVPoll, KVReceiver, KVSender,
    Offer, Place, Rank, Room, RoomOptions, UsageError,
};
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

/// All that a program may hold of this library, with a room in flight.
struct World {
    prefill: Node,
    decode: Node,
    manual: Engine,
    sender: KVSender,
    receiver: KVReceiver,
    directory: Arc<HttpDirectory>,
    registration: Box<dyn Registration>,
    fixed: FixedDirectory,
    _fixed_registration: Box<dyn Registration>,
    server: BootstrapServer,
    _unused: (TcpTransport, LocalTransport),
}

impl World {
    fn new(network: &Network) -> Self {
        let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
        let directory = Arc::new(HttpDirectory::new(&server.url(), ClientConfig::default()).unwrap());
        let node = |name: &str| {
            let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
            let builder = builder.directory(Arc::clone(&directory) as Arc<dyn Directory>);
            Node::with(builder.boxed_transport(network.transport(name)).build().unwrap(), 8)
        };
        let (prefill, decode) = (node("prefill"), node("decode"));
        let builder = Engine::builder(Place::alone("manual")).boxed_transport(network.transport("manual"));
        let manual = builder.manual_progress().build().unwrap();
        let (registration, fixed) = (directory.register(record("other")), FixedDirectory::new());
        let fixed_registration = fixed.register(record("fixed"));
        let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
        prefill.fill(1, &[0, 1]);
        decode.lend(&receiver, 0..8, &[6, 7]);
        sender.send(Chunk::new(0..4).pages(prefill.kv, &[0])).unwrap();
        assert!(crate::bed::block_on(receiver.wait_ready(4)));
        let tcp = TcpTransport::new(TcpConfig::new()).unwrap();
        let local = kvferry::transport::local::LocalNetwork::new().endpoint("unused").unwrap();
        let unused = (tcp, local);
        let world = Self {
            prefill,
            decode,
            manual,
            sender,
            receiver,
            directory,
            registration,
            fixed,
            _fixed_registration: fixed_registration,
            server,
            _unused: unused,
        };
        world.until_known(&["prefill", "decode", "other"]);
        world
    }

    /// Waits until a new client of the directory finds these.
    fn until_known(&self, names: &[&str]) {
        let directory = HttpDirectory::new(&self.server.url(), ClientConfig::default()).unwrap();
        let (wake, woken) = mpsc::channel();
        directory.watch(Arc::new(move || {
            // The test may be over.
            let _ = wake.send(());
        }));
        for name in names {
            while !matches!(directory.group(name), GroupState::Ready(_)) {
                woken.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{name} is not known"));
            }
        }
    }

    /// Nothing that a child did has come here: the room goes on over the same link, and everybody is
    /// where they were.
    fn goes_on(&self) {
        let (prefill, decode) = (&self.prefill, &self.decode);
        self.until_known(&["prefill", "decode", "other"]);
        assert!(matches!(self.fixed.group("fixed"), GroupState::Ready(_)));
        assert!(prefill.engine.is_healthy() && decode.engine.is_healthy() && self.server.is_running());
        assert_eq!((self.sender.poll(), self.receiver.poll()), (KVPoll::Transferring, KVPoll::Transferring));
        self.sender.send(Chunk::new(4..8).pages(prefill.kv, &[1])).unwrap();
        self.sender.finish(Finish::new(8)).unwrap();
        assert_eq!(self.receiver.wait(PATIENCE), KVPoll::Success, "{:?}", self.receiver.error());
        assert_eq!(self.sender.wait(PATIENCE), KVPoll::Success, "{:?}", self.sender.error());
        assert_eq!(decode.first_wrong(1, &[6, 7], 0..8), None);
        for stats in [prefill.engine.stats(), decode.engine.stats()] {
            assert_eq!((stats.links, stats.reconnects, stats.malformed), (1, 0, 0));
        }
    }
}

fn record(group: &str) -> RankRecord {
    RankRecord::new(group, GroupSizes::ONE, Rank::tp(0), Instance(7), LayoutDigest([7; 16]))
}

/// Every call, in a forked child.
fn every_call_is_refused(world: &World) {
    let World { prefill, decode, manual, sender, receiver, directory, .. } = world;
    let forked = UsageError::Forked(std::os::unix::process::parent_id());
    let engine = &prefill.engine;
    let refused = |what: &str, result: Result<(), UsageError>| {
        assert_eq!(result.unwrap_err(), forked, "{what}");
    };
    at_once("a call of an engine", || {
        let buffer = HostBuffer::zeroed(64).unwrap();
        refused("register", engine.register(|id| buffer.region(id)).map(drop));
        refused("withdraw", engine.withdraw(kvferry::RegionId(0)).map(drop));
        refused("set_layout", engine.set_layout(PoolLayout::new()));
        refused("sender", engine.sender(Room(9), RoomOptions::default()).map(drop));
        refused("receiver", engine.receiver(Room(9), prefill.sources(), RoomOptions::default()).map(drop));
        refused("reject", engine.reject(Room(9), Attempt(0), "no"));
        refused("progress", manual.progress().map(drop));
        refused("driver_fd", manual.driver_fd().map(drop));
        refused("prepare_wait", manual.prepare_wait().map(drop));
        refused("progress_or_wait", manual.progress_or_wait(PATIENCE).map(drop));
        assert_eq!((engine.changes(&mut Vec::new()), manual.next_deadline()), (0, None));
        assert_eq!((engine.peer_group("decode"), engine.addresses()), (GroupState::Unknown, Vec::new()));
        assert!(!engine.is_healthy());
        assert_eq!((engine.stats(), manual.stats()), Default::default());
        engine.publish_owner(Room(1), 0);
        for engine in [engine, &decode.engine, manual] {
            assert!(!engine.close(PATIENCE).is_finished);
        }
    });
    at_once("a call of a sender", || {
        refused("offer", sender.offer(Offer::tokens(8)).map(drop));
        refused("send", sender.send(Chunk::new(4..8).pages(prefill.kv, &[1])).map(drop));
        refused("finish", sender.finish(Finish::new(8)).map(drop));
        sender.abort("by a child");
        assert_eq!((sender.poll(), sender.wait(PATIENCE)), (KVPoll::Transferring, KVPoll::Transferring));
        assert_eq!((sender.granted(), sender.stats().bytes), (None, 0));
        assert!(sender.error().is_none() && sender.waiting_for().is_empty());
        let error = crate::bed::block_on(sender.finished()).unwrap_err();
        assert!(error.kind == ErrorKind::Aborted && error.detail.contains("used after fork"), "{error}");
        assert_eq!(crate::bed::block_on(sender.wait_granted()), None);
    });
    at_once("a call of a receiver", || {
        refused("grant", receiver.grant(Grant::new(0..4).pages(decode.kv, &[1])).map(drop));
        refused("set_dp", receiver.set_dp(0).map(drop));
        receiver.abort("by a child");
        assert_eq!((receiver.poll(), receiver.wait(PATIENCE)), (KVPoll::Transferring, KVPoll::Transferring));
        assert_eq!((receiver.offered(), receiver.payload(), receiver.ready_tokens()), (None, None, 4));
        crate::bed::block_on(receiver.finished()).unwrap_err();
        assert_eq!(crate::bed::block_on(receiver.wait_offered()), None);
        assert!(!crate::bed::block_on(receiver.wait_ready(8)));
    });
    at_once("a call of a directory", || {
        let is_refused = |state: &RegistrationState| match state {
            RegistrationState::Refused { detail } => detail.contains("used after fork"),
            _ => false,
        };
        assert!(is_refused(&world.registration.state()));
        assert!(is_refused(&directory.register(record("child")).state()));
        let state = directory.group("decode");
        assert!(matches!(&state, GroupState::Unreachable { detail } if detail.contains("fork")), "{state:?}");
        directory.invalidate("decode");
        directory.publish_owner("decode", Room(1), 0);
        assert_eq!(directory.owner("decode", Room(1)), None);
        world.server.close();
    });
}

fn a_child_that_ends_leaves_its_parent_alone(network: &Network) {
    let mut world = Some(World::new(network));
    let (mark, trigger) = Mark::host();
    let mut triggers = Some(trigger);
    Child::fork(|| at_once("dropping everything", || drop((world.take(), triggers.take())))).succeed();
    assert!(!mark.is_abandoned());
    world.unwrap().goes_on();
}

fn calls_in_a_child_are_refused_at_once(network: &Network) {
    let world = World::new(network);
    world.prefill.engine.changes(&mut Vec::new()); // the feed is read from now on
    Child::fork(|| every_call_is_refused(&world)).succeed();
    world.goes_on();
    assert!(world.prefill.engine.changes(&mut Vec::new()) > 0, "a child has taken what was the parent's");
}

#[test]
fn m09_a_child_that_ends_leaves_its_parent_alone() {
    alone("fork::m09_a_child_that_ends_leaves_its_parent_alone", || {
        a_child_that_ends_leaves_its_parent_alone(&Network::Tcp);
        a_child_that_ends_leaves_its_parent_alone(&Network::local());
    });
}

#[test]
fn m09_calls_in_a_child_are_refused_at_once() {
    alone("fork::m09_calls_in_a_child_are_refused_at_once", || {
        calls_in_a_child_are_refused_at_once(&Network::Tcp);
        calls_in_a_child_are_refused_at_once(&Network::local());
    });
}

#[test]
fn m09_a_child_waits_for_no_lock_that_its_parent_held() {
    alone("fork::m09_a_child_waits_for_no_lock_that_its_parent_held", || {
        let (tapped, valve) = Tap::on(Network::Tcp.transport("tapped"));
        let builder = Engine::builder(Place::alone("tapped")).model("test").boxed_transport(tapped);
        let node = Node::with(builder.build().unwrap(), 8);
        let (engine, sender) = (node.engine.clone(), node.sender(1));
        let (forked, children) = mpsc::channel();
        // Within a turn of the engine, whose lock is held.
        valve.at_progress(move || {
            let mut all = Some((engine, sender));
            let child = Child::fork(|| {
                at_once("a child of a turn", || {
                    let (engine, sender) = all.take().unwrap();
                    assert_eq!((engine.stats(), engine.addresses()), Default::default());
                    assert!(!engine.is_healthy() && !engine.close(PATIENCE).is_finished);
                    assert!(sender.granted().is_none() && engine.next_deadline().is_none());
                    engine.register(|_| unreachable!("refused before it is made")).unwrap_err();
                    drop((engine, sender));
                });
            });
            forked.send((child, all)).unwrap();
        });
        let (child, _all) = children.recv_timeout(PATIENCE).unwrap();
        child.succeed();
        assert!(node.engine.is_healthy());
    });
}

#[test]
fn m09_descriptors_are_closed_on_exec_and_the_port_is_free_though_a_child_lives() {
    let name = "fork::m09_descriptors_are_closed_on_exec_and_the_port_is_free_though_a_child_lives";
    alone(name, || {
        let before = descriptors();
        let world = World::new(&Network::Tcp);
        let local = World::new(&Network::local());
        let new: Vec<_> = descriptors().difference(&before).copied().collect();
        assert!(new.len() > 40, "{new:?}");
        for descriptor in new {
            // Some, such as a request's to the directory, are gone again.
            let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")) else {
                continue;
            };
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            let what = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
            assert_ne!(flags & libc::O_CLOEXEC, 0, "{descriptor}, {what:?}, stays open on exec");
        }
        let address = world.prefill.engine.addresses().swap_remove(0).1;
        let bound = Network::Tcp.in_words(&address);
        let listens = world.server.address();
        let program = Program::start(std::process::Command::new("sleep").arg("1000"));
        drop((world, local));
        let directory = BootstrapServer::bind(&listens.to_string(), ServerConfig::default()).unwrap();
        let again = Network::Tcp.transport_at(&address);
        // Descriptors are the child's as well if it is no other program.
        let child = Child::fork(std::thread::park);
        drop(again);
        assert_eq!(Network::Tcp.in_words(&Network::Tcp.transport_at(&address).local_address()), bound);
        drop((child, program, directory));
    });
}

fn descriptors() -> BTreeSet<u32> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    files.map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}
