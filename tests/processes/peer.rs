//! A process of its own for one end: this test program once more, told what to do line by line.

use crate::end::{End, PATIENCE};
use crate::plan::Plan;
use kvferry::{Rank, Source};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// A running peer process. Killed when dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    tp: u32,
    addresses: Vec<(String, Vec<u8>)>,
}

impl Peer {
    /// Starts it, and waits until it can be reached.
    pub(crate) fn start(plan: &Plan) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer::a_peer_does_what_it_is_told", "--nocapture", "--test-threads=1"])
            .env(PLAN, plan.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (answer, answers) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix(MARK) {
                    // The test may be over.
                    let _ = answer.send(text.to_owned());
                }
            }
        });
        let input = child.stdin.take().unwrap();
        let mut peer = Self { child, input, answers, tp: plan.tp, addresses: Vec::new() };
        peer.addresses = parse_addresses(&peer.hear());
        peer
    }

    /// Gives it lines to do; each is answered once.
    pub(crate) fn tell(&mut self, lines: &[String]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// The answer to the next line told.
    pub(crate) fn hear(&mut self) -> String {
        self.answers.recv_timeout(2 * PATIENCE).expect("an answer of the peer process")
    }

    /// Has lines done.
    pub(crate) fn obey(&mut self, lines: &[String]) {
        self.tell(lines);
        lines.iter().for_each(|_| drop(self.hear()));
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(&[line.to_owned()]);
        self.hear()
    }

    pub(crate) fn source(&self) -> Source {
        Source::new(Rank::tp(self.tp), self.addresses.clone())
    }

    /// Where its TCP transport listens, if `bind` is the address it was given.
    pub(crate) fn bound(&self, mut bind: SocketAddr) -> SocketAddr {
        // The port comes last in an address of this transport.
        let (_, address) = self.addresses.iter().find(|(name, _)| name == "tcp").unwrap();
        bind.set_port(u16::from_le_bytes(*address.last_chunk().unwrap()));
        bind
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it, and waits until nothing of it is left.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Memory it has in use, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Nothing can be done about a failure; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The peer process itself; nothing in an ordinary run.
#[test]
fn a_peer_does_what_it_is_told() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let mut end = End::new(&Plan::from_text(&plan));
    // The test harness has begun a line.
    println!();
    say(&print_addresses(&end.source()));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        say(&answer(&mut end, &line));
    }
    // Whoever told it has gone.
    std::process::exit(0);
}

fn answer(end: &mut End, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let small = |at: usize| words[at].parse::<u32>().unwrap();
    match words[0] {
        "abort" => end.abort(number(1)),
        "churn" => {
            crate::leaks::churn(end, number(1)..number(2), words.get(3).map(|from| parse_source(from)))
        }
        "end" => {
            let outcome = end.end(number(1));
            let error = outcome.error.map(|error| error.to_string()).unwrap_or_default();
            return format!("{:?} {error}", outcome.state);
        }
        "finish" => end.finish(number(1)),
        "grant" => end.grant(number(1), small(2)),
        "joined" => end.wait_joined(number(1)),
        "open" => end.open(number(1)),
        "receive" => end.receive(number(1), words[2..].iter().map(|from| parse_source(from)).collect()),
        "send" => end.send(number(1), small(2)),
        "stain" => return end.stain().unwrap_or_default(),
        "tables" => {
            let stats = end.engine.stats();
            return format!("{} {} {} {}", stats.rooms, stats.parked, stats.remembered, stats.unreachable);
        }
        other => panic!("{other} is unknown"),
    }
    String::new()
}

fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{MARK}{text}").unwrap();
    output.flush().unwrap();
}

/// A source as one word: its rank, then its addresses.
pub(crate) fn print_source(source: &Source) -> String {
    format!("{}@{}", source.rank.tp, print_addresses(source))
}

fn parse_source(word: &str) -> Source {
    let (tp, addresses) = word.split_once('@').unwrap();
    Source::new(Rank::tp(tp.parse().unwrap()), parse_addresses(addresses))
}

fn print_addresses(source: &Source) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let addresses = source.addresses.iter().map(|(name, bytes)| format!("{name}:{}", hex(bytes)));
    addresses.collect::<Vec<_>>().join(",")
}

fn parse_addresses(text: &str) -> Vec<(String, Vec<u8>)> {
    let bytes = |hex: &str| {
        let places = (0..hex.len()).step_by(2);
        places.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    text.split(',')
        .map(|word| word.split_once(':').unwrap())
        .map(|(n, hex)| (n.to_owned(), bytes(hex)))
        .collect()
}

/// Says that this is a peer process, and which.
const PLAN: &str = "KVFERRY_TEST_PEER";
/// Begins each answer, among what the test harness prints.
const MARK: &str = "= ";
