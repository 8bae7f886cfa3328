//! The directory's client: what a server, a good one or not, answers to its questions.

use kvferry::bootstrap::probe::Client;
use kvferry::bootstrap::{GroupState, RankRecord};
use kvferry::layout::LayoutDigest;
use kvferry::{GroupSizes, HostPort, Instance, Rank, Room};
use std::time::{Duration, Instant};

/// Takes each line of the input as an answer: status and body, with a space between them, to whatever is
/// asked next. A letter before the status makes the question: a group, an owner, or nothing new.
pub(crate) fn run(input: &[u8]) {
    let mut now = super::start();
    let mut client = client();
    let (sizes, digest) = (GroupSizes::tp(2), LayoutDigest([7; 16]));
    client.register(RankRecord::new("g", sizes, Rank::tp(1), Instance(5), digest), now);
    for line in input.split(|&byte| byte == b'\n').take(64) {
        let (status, body) = match line.iter().position(|&byte| byte == b' ') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        let (question, status) = status.split_at(status.len().min(1));
        match question {
            b"g" => drop(client.group("g", now)),
            b"o" => drop(client.owner("g", Room(body.len() as u64), now)),
            b"p" => client.publish_owner("g", Room(7), 1, now),
            _ => now += Duration::from_secs(1),
        }
        let status = std::str::from_utf8(status).ok().and_then(|text| text.parse().ok()).unwrap_or(200);
        client.answer(status, body, now);
        check(&client.group("g", now));
    }
}

/// What a new client makes of the answer to a lookup.
pub(crate) fn ask(group: &str, status: u16, body: &[u8], now: Instant) -> GroupState {
    let mut client = client();
    client.group(group, now);
    assert!(client.answer(status, body, now), "a lookup is due at once");
    let state = client.group(group, now);
    check(&state);
    state
}

fn client() -> Client {
    Client::new(HostPort::new("127.0.0.1", 1).expect("a host and a port"))
}

/// A group that is ready has each of its ranks once.
fn check(state: &GroupState) {
    match state {
        GroupState::Ready(info) => {
            assert!(!info.ranks.is_empty(), "a group of nobody is ready");
            assert_eq!(info.ranks.len() as u64, info.sizes.ranks());
            assert!(info.ranks.windows(2).all(|pair| pair[0].rank < pair[1].rank));
            assert!(info.ranks.iter().all(|record| info.sizes.holds(record.rank)));
        }
        GroupState::NotReady { missing, .. } => assert!(missing.len() <= 16, "{} are named", missing.len()),
        _ => {}
    }
}
