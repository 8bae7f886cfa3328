//! The signals of the host program are its own: code o05.
#![expect(unsafe_code, reason = "signal actions are read and set by calls of the system")]

use crate::bed::{Network, Node, PATIENCE};
use crate::child::{Child, alone};
use crate::links::until;
use crate::patient;
use bytes::Bytes;
use kvferry::bootstrap::{BootstrapServer, ClientConfig, Directory, GroupState, HttpDirectory, ServerConfig};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::transport::{Event, Transport, TransportError};
use kvferry::wire::Frame;
use kvferry::{Engine, KVPoll, Place};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Two engines that find each other through a directory.
struct World {
    prefill: Node,
    decode: Node,
    server: BootstrapServer,
}

impl World {
    fn new(network: &Network) -> Self {
        let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
        let node = |name: &str| {
            let directory = HttpDirectory::new(&server.url(), ClientConfig::default()).unwrap();
            let builder = Engine::builder(Place::alone(name)).model("test").config(patient());
            let builder = builder.directory(Arc::new(directory)).boxed_transport(network.transport(name));
            Node::with(builder.build().unwrap(), 64)
        };
        let (prefill, decode) = (node("prefill"), node("decode"));
        Self { prefill, decode, server }
    }

    fn moves_a_page(&self, room: u64) {
        let (prefill, decode) = (&self.prefill, &self.decode);
        let from = kvferry::Sources::group("prefill");
        let sender = prefill.sender(room);
        let receiver = decode.engine.receiver(kvferry::Room(room), from, Default::default()).unwrap();
        receiver.set_dp(0).unwrap();
        prefill.fill(room, &[1, 2]);
        decode.lend(&receiver, 0..8, &[3, 4]);
        prefill.send_all(&sender, 8, 4, &[1, 2]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        assert_eq!(decode.first_wrong(room, &[3, 4], 0..8), None);
    }
}

/// What happens at each signal: its handler, and how that is called.
fn actions() -> Vec<(i32, usize, i32)> {
    let action = |signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: writes the action of a signal to memory for one, and changes none.
        let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: of zeros, or written; both are values of the type.
        let action = unsafe { action.assume_init() };
        (result, action.sa_sigaction, action.sa_flags)
    };
    (1..=64).map(action).collect()
}

/// The signals that a thread blocks, unless it has ended.
fn mask(status: impl AsRef<Path>) -> Option<String> {
    let status = std::fs::read_to_string(status).ok()?;
    status.lines().find(|line| line.starts_with("SigBlk")).map(str::to_owned)
}

#[test]
fn o05_actions_and_masks_stay_as_the_program_has_set_them() {
    alone("signals::o05_actions_and_masks_stay_as_the_program_has_set_them", || {
        let (before, mask_here) = (actions(), mask("/proc/thread-self/status").unwrap());
        for network in [Network::local(), Network::Tcp] {
            let world = World::new(&network);
            world.moves_a_page(1);
            assert_eq!(actions(), before);
            // Those of the library, too, once they run: a new thread may start with all signals blocked.
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            let statuses: Vec<_> = threads.map(|thread| thread.unwrap().path().join("status")).collect();
            assert!(statuses.len() > 5, "{statuses:?}");
            for status in statuses {
                until(|| mask(&status).is_none_or(|other| other == mask_here));
            }
            assert_eq!(mask("/proc/thread-self/status").unwrap(), mask_here);
            world.prefill.engine.close(PATIENCE);
            world.server.close();
            drop(world);
            assert_eq!(actions(), before);
        }
    });
}

/// As in a program that is not written in Rust.
fn let_broken_pipes_kill() {
    // SAFETY: the default action is one.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// A link of a transport of which nothing is driven any more, and whose peer has gone.
fn abandoned() -> (TcpTransport, kvferry::LinkId) {
    let new = || TcpTransport::new(TcpConfig::new().lanes(1)).unwrap();
    let (mut here, mut there) = (new(), new());
    let link = here.connect(&there.local_address()).unwrap();
    let (mut events, mut ignored) = (Vec::new(), Vec::new());
    while !events.iter().any(|event| matches!(event, Event::Connected { .. })) {
        here.progress(&mut events);
        there.progress(&mut ignored);
    }
    (here, link)
}

#[test]
fn o05_a_peer_that_closes_during_a_write_ends_no_program() {
    alone("signals::o05_a_peer_that_closes_during_a_write_ends_no_program", || {
        let_broken_pipes_kill();
        let (mut here, link) = abandoned();
        let frame: Bytes = Frame::Ping { token: 1 }.encode();
        // The first is answered by a reset, the next meets a broken pipe.
        let error = loop {
            if let Err(error) = here.send_control(link, frame.clone()) {
                break error;
            }
        };
        assert!(matches!(error, TransportError::NotConnected(_)), "{error}");
        // The same for pages, which another thread writes, as often as it takes to meet every order.
        for room in 0..50 {
            let (prefill, decode) = (Network::Tcp.node("prefill", 512), Network::Tcp.node("decode", 512));
            let pages: Vec<u32> = (0..512).collect();
            let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
            decode.lend(&receiver, 0..2048, &pages);
            prefill.send_all(&sender, 2048, 16, &pages);
            while receiver.ready_tokens() == 0 && !receiver.poll().is_terminal() {
                std::thread::yield_now();
            }
            drop((receiver, decode));
            assert!(sender.wait(PATIENCE).is_terminal());
        }
    });
}

#[test]
fn o05_a_client_or_server_of_a_directory_that_closes_ends_no_program() {
    alone("signals::o05_a_client_or_server_of_a_directory_that_closes_ends_no_program", || {
        let_broken_pipes_kill();
        let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
        for _ in 0..300 {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(request).unwrap();
            gone(stream);
        }
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || listener.incoming().for_each(|stream| gone(stream.unwrap())));
        for _ in 0..300 {
            let directory = HttpDirectory::new(&url, ClientConfig::default()).unwrap();
            let (wake, woken) = mpsc::channel();
            directory.watch(Arc::new(move || {
                // The test may have seen enough.
                let _ = wake.send(());
            }));
            while !matches!(directory.group("any"), GroupState::Unreachable { .. }) {
                woken.recv_timeout(PATIENCE).unwrap();
            }
        }
    });
}

/// Ends a connection in both directions: what the other side writes from now on meets a broken pipe.
fn gone(stream: TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn o05_the_signal_to_terminate_ends_a_program_with_rooms_in_flight() {
    alone("signals::o05_the_signal_to_terminate_ends_a_program_with_rooms_in_flight", || {
        let (mut ready, mut told) = std::io::pipe().unwrap();
        let child = Child::fork(|| {
            let world = World::new(&Network::Tcp);
            world.moves_a_page(1);
            let _sender = world.prefill.sender(2);
            told.write_all(b"!").unwrap();
            loop {
                std::thread::park();
            }
        });
        ready.read_exact(&mut [0]).unwrap();
        child.signal(libc::SIGTERM);
        assert_eq!(child.ended(), libc::SIGTERM);
    });
}

static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn o05_signals_that_interrupt_every_call_disturb_no_transfer() {
    alone("signals::o05_signals_that_interrupt_every_call_disturb_no_transfer", || {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: of zeros, which is a value of the type.
        let mut action = unsafe { action.assume_init_mut() }.to_owned();
        action.sa_sigaction = interrupted as *const () as usize; // and no SA_RESTART
        // SAFETY: the handler touches nothing but an atomic.
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
        let over = AtomicBool::new(false);
        let process = std::process::id();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
                        let thread: i32 = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
                        // SAFETY: sends a signal that is handled; the thread may have ended, which is an error.
                        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
                    }
                }
            });
            let world = World::new(&Network::Tcp);
            (0..100).for_each(|room| world.moves_a_page(room));
            drop(world);
            over.store(true, Ordering::Relaxed);
        });
        assert!(INTERRUPTIONS.load(Ordering::Relaxed) > 100);
    });
}
