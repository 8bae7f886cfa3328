//! An engine with nothing to do leaves the processors to others: code o07.

use crate::bed::{Node, PATIENCE};
use crate::child::{Child, alone, cpu};
use crate::links::{tcp, until};
use kvferry::{Config, KVPoll, KVReceiver, Rank, Room, RoomOptions, Source, Sources};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc;
use std::time::Duration;

/// Peers played by one process.
const PLAYED: u64 = 25;

/// A process that plays some peers of an engine in the parent.
struct Peers {
    child: Child,
    to: PipeWriter,
    from: PipeReader,
}

impl Peers {
    /// Forked while the process has no engine yet.
    fn fork(rooms: std::ops::Range<u64>) -> Self {
        let (mut ear, to) = std::io::pipe().unwrap();
        let (from, mut mouth) = std::io::pipe().unwrap();
        let child = Child::fork(|| {
            let address = hear(&mut ear);
            let nodes: Vec<_> = rooms.map(|room| (room, tcp("decode", 8, 1, Config::default()))).collect();
            for (room, node) in &nodes {
                assert_eq!(receive(node, *room, &address).wait(PATIENCE), KVPoll::Success);
            }
            say(&mut mouth, b"connected");
            let (room, node) = &nodes[0];
            let last = receive(node, LAST + room, &address);
            assert_eq!(hear(&mut ear), b"is it there?");
            assert_eq!(last.wait(PATIENCE), KVPoll::Success);
        });
        Self { child, to, from }
    }
}

fn receive(node: &Node, room: u64, address: &[u8]) -> KVReceiver {
    let from = Source::new(Rank::default(), vec![("tcp".into(), address.to_vec())]);
    let receiver =
        node.engine.receiver(Room(room), Sources::Ranks(vec![from]), RoomOptions::default()).unwrap();
    node.lend(&receiver, 0..4, &[0]);
    receiver
}

fn say(to: &mut PipeWriter, words: &[u8]) {
    to.write_all(&[words.len() as u8]).unwrap();
    to.write_all(words).unwrap();
}

fn hear(from: &mut PipeReader) -> Vec<u8> {
    let mut length = [0];
    from.read_exact(&mut length).unwrap();
    let mut words = vec![0; usize::from(length[0])];
    from.read_exact(&mut words).unwrap();
    words
}

/// The share of a processor that an engine with so many idle peers uses, in thousandths.
fn used_while_idle(peers: u64, seconds: u32) -> u128 {
    let firsts = (0..peers).step_by(PLAYED as usize);
    let mut processes: Vec<_> = firsts.map(|first| Peers::fork(first..peers.min(first + PLAYED))).collect();
    let prefill = tcp("prefill", 8, 2, Config::default());
    let address = prefill.engine.addresses().swap_remove(0).1;
    let send = |room| {
        let sender = prefill.sender(room);
        prefill.send_all(&sender, 4, 4, &[0]);
        sender
    };
    let senders: Vec<_> = (0..peers).map(send).collect();
    processes.iter_mut().for_each(|process| say(&mut process.to, &address));
    for sender in senders {
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    }
    processes.iter_mut().for_each(|process| assert_eq!(hear(&mut process.from), b"connected"));
    until(|| prefill.engine.stats().parked == 2 * processes.len()); // each waits for one more room
    let (before, time) = (cpu(), Duration::from_secs(seconds.into()));
    let (_keep, never) = mpsc::channel::<()>();
    let _ = never.recv_timeout(time); // time passes
    let used = cpu() - before;
    let stats = prefill.engine.stats();
    assert_eq!((stats.links as u64, stats.links_lost), (peers, 0), "pings kept them");
    let last: Vec<_> = (0..peers).step_by(PLAYED as usize).map(|first| send(LAST + first)).collect();
    for sender in last {
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    }
    for mut process in processes {
        say(&mut process.to, b"is it there?");
        process.child.succeed();
    }
    eprintln!("{peers} idle peers used {used:?} of {time:?}");
    used.as_micros() * 1000 / time.as_micros()
}

#[test]
fn o07_four_idle_peers_cost_less_than_a_hundredth_of_a_processor() {
    alone("idle::o07_four_idle_peers_cost_less_than_a_hundredth_of_a_processor", || {
        assert!(used_while_idle(4, 3) < 10);
    });
}

#[test]
fn o07_a_hundred_idle_peers_cost_less_than_a_hundredth_of_a_processor() {
    alone("idle::o07_a_hundred_idle_peers_cost_less_than_a_hundredth_of_a_processor", || {
        assert!(used_while_idle(100, 5) < 10);
    });
}

const LAST: u64 = 1000;
