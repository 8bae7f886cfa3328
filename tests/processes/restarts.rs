//! A process dies and another takes its place, at the same address and with other memory.

use crate::end::{End, PAGE_TOKENS, until};
use crate::peer::{Peer, print_source};
use crate::plan::{Fabric, Plan};
use kvferry::{ErrorKind, KVPoll, Side};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const STARTS: u64 = 20;
/// In flight when the process dies; the first of them is the next room too.
const ROOMS: std::ops::Range<u64> = 1..5;
const TOKENS: u32 = 4 * PAGE_TOKENS;

/// The process that is started anew: where, and with other pools each time.
fn plan(fabric: Fabric, group: &str, bind: SocketAddr, start: u64) -> Plan {
    let mut plan = Plan::new(fabric, group, 1);
    plan.pages = 64 + 16 * (start as u32 % 5);
    (plan.bind, plan.salt) = (bind, start);
    plan
}

/// An address that nothing else of this host connects from: its port stays free until the next start.
fn quiet_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 77, high, low], 0))
}

#[test]
fn a_prefill_process_started_anew_serves_the_very_next_room() {
    let mut bind = quiet_address();
    let mut decode = End::new(&Plan::new(Fabric::Tcp, "decode", 0));
    let mut prefill = Peer::start(&plan(Fabric::Tcp, "prefill", bind, 0));
    bind = prefill.bound(bind);
    for start in 0..=STARTS {
        decode.salt = start;
        // The first is one that failed with the process before.
        serve_one(&mut prefill, &mut decode, ROOMS.start, start);
        if start == STARTS {
            break;
        }
        for room in ROOMS {
            decode.receive(room, vec![prefill.source()]);
            decode.grant(room, TOKENS);
            prefill.obey(&[format!("open {room}"), format!("send {room} 16")]);
        }
        ROOMS.for_each(|room| decode.wait_ready(room, PAGE_TOKENS));
        prefill.tell(&ROOMS.map(|room| format!("send {room} 48")).collect::<Vec<_>>());
        let was_at = prefill.source().addresses;
        prefill.kill();
        prefill = Peer::start(&plan(Fabric::Tcp, "prefill", bind, start + 1));
        assert_eq!(prefill.source().addresses, was_at);
        for room in ROOMS {
            decode.end(room).assert_lost(Side::Prefill, 1);
        }
        assert_eq!(decode.stain(), None);
    }
}

fn serve_one(prefill: &mut Peer, decode: &mut End, room: u64, start: u64) {
    decode.receive(room, vec![prefill.source()]);
    decode.grant(room, TOKENS);
    prefill.obey(&[format!("open {room}"), format!("send {room} 64"), format!("finish {room}")]);
    let outcome = decode.end(room);
    assert!(outcome.succeeded(), "start {start}: {outcome:?}");
    assert!(prefill.ask(&format!("end {room}")).starts_with("Success"));
    assert_eq!(decode.stain(), None, "start {start}");
    assert_eq!(prefill.ask("stain"), "", "start {start}");
}

#[test]
fn a_decode_process_started_anew_is_served_the_very_next_room() {
    let mut bind = quiet_address();
    let mut prefill = End::new(&Plan::new(Fabric::Tcp, "prefill", 0));
    let from = print_source(&prefill.source());
    let mut decode = Peer::start(&plan(Fabric::Tcp, "decode", bind, 0));
    bind = decode.bound(bind);
    let open = |decode: &mut Peer, prefill: &mut End, room: u64| {
        prefill.open(room);
        decode.obey(&[format!("receive {room} {from}"), format!("grant {room} {TOKENS}")]);
    };
    for start in 0..=STARTS {
        prefill.salt = start;
        // Opened in this order, a room is named exactly as it was by the process before.
        open(&mut decode, &mut prefill, ROOMS.start);
        prefill.send(ROOMS.start, TOKENS);
        prefill.finish(ROOMS.start);
        let answer = decode.ask(&format!("end {}", ROOMS.start));
        assert!(answer.starts_with("Success"), "start {start}: {answer}");
        let outcome = prefill.end(ROOMS.start);
        assert!(outcome.succeeded(), "start {start}: {outcome:?}");
        assert_eq!(decode.ask("stain"), "", "start {start}");
        if start == STARTS {
            break;
        }
        ROOMS.for_each(|room| open(&mut decode, &mut prefill, room));
        for room in ROOMS {
            prefill.wait_joined(room);
            prefill.send(room, PAGE_TOKENS);
        }
        let was_at = decode.source().addresses;
        decode.kill();
        decode = Peer::start(&plan(Fabric::Tcp, "decode", bind, start + 1));
        assert_eq!(decode.source().addresses, was_at);
        for room in ROOMS {
            prefill.end(room).assert_lost(Side::Decode, 1);
        }
        assert_eq!(prefill.stain(), None);
    }
}

#[test]
fn s06_a_stopped_process_fails_new_rooms_fast_and_is_served_again_once_it_is_back() {
    let mut bind = quiet_address();
    let mut decode = End::new(&Plan::new(Fabric::Tcp, "decode", 0));
    let mut prefill = Peer::start(&plan(Fabric::Tcp, "prefill", bind, 0));
    bind = prefill.bound(bind);
    serve_one(&mut prefill, &mut decode, 1, 0);
    let source = prefill.source();
    prefill.kill();
    let mut slowest = Duration::ZERO;
    for room in 2..12 {
        let opened = Instant::now();
        decode.receive(room, vec![source.clone()]);
        decode.grant(room, TOKENS);
        let outcome = decode.end(room);
        let error = outcome.error.unwrap();
        assert_eq!(error.kind, ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("prefill rank dp0 pp0 cp0 tp1"), "{error}");
        slowest = slowest.max(opened.elapsed());
    }
    println!("rooms of a stopped process took {slowest:?} at most");

    let mut prefill = Peer::start(&plan(Fabric::Tcp, "prefill", bind, 0));
    // Rooms are all it takes: one of them finds out.
    let mut room = 12;
    until("a room to be served again", || {
        decode.receive(room, vec![source.clone()]);
        decode.wait_joined(room);
        if decode.poll(room) != KVPoll::Failed {
            return true;
        }
        decode.end(room);
        room += 1;
        false
    });
    decode.grant(room, TOKENS);
    prefill.obey(&[format!("open {room}"), format!("send {room} {TOKENS}"), format!("finish {room}")]);
    let outcome = decode.end(room);
    assert!(outcome.succeeded(), "{outcome:?}");
    assert_eq!((decode.stain(), prefill.ask("stain")), (None, String::new()));
}
