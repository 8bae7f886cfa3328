//! Who is lost, who is not, and whose rooms that ends.

use crate::end::{End, LAYERS, PAGE_TOKENS};
use crate::peer::{Peer, print_source};
use crate::plan::{Fabric, Plan};
use kvferry::layout::Share;
use kvferry::{Release, Side, Source};
use rustix::process::Signal;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn s03_a_decode_process_killed_after_it_granted_holds_no_pages_of_prefill() {
    let mut prefill = End::new(&Plan::new(Fabric::Tcp, "prefill", 0));
    let mut decode = Peer::start(&Plan::new(Fabric::Tcp, "decode", 1));
    let from = print_source(&prefill.source());
    // One waits for input, one is in mid-transfer.
    for room in [1, 2] {
        prefill.open(room);
        decode.obey(&[format!("receive {room} {from}"), format!("grant {room} 64")]);
        prefill.wait_joined(room);
    }
    prefill.send(2, PAGE_TOKENS);
    let killed = Instant::now();
    decode.kill();
    for room in [1, 2] {
        let outcome = prefill.end(room);
        outcome.assert_lost(Side::Decode, 1);
        assert_eq!(outcome.release, Release::Safe);
    }
    println!("a killed decode process was missed after {:?}", killed.elapsed());
    assert_eq!(prefill.stain(), None);
}

/// Stops and continues a receiver again and again, always for less than the bound, for ten bounds in
/// which it moves something each time. Answers the longest time for which it was stopped.
fn hobble(prefill: &mut End, decode: &Peer, room: u64, bound: Duration) -> Duration {
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut pages_left = 60_u32;
    while begun.elapsed() < 10 * bound {
        let stopped = Instant::now();
        decode.signal(Signal::STOP);
        if pages_left > 1 {
            prefill.send(room, PAGE_TOKENS);
            pages_left -= 1;
        }
        thread::sleep(bound / 5);
        decode.signal(Signal::CONT);
        longest = longest.max(stopped.elapsed());
        thread::sleep(bound / 20);
    }
    prefill.send(room, pages_left * PAGE_TOKENS);
    prefill.finish(room);
    longest
}

#[test]
fn s03_a_slow_but_living_receiver_is_not_dropped_in_ten_bounds() {
    let bound = Duration::from_millis(400);
    // A stop that this host's other work drew out proves nothing: once more.
    for _ in 0..5 {
        let plan = |group, tp| Plan::new(Fabric::Tcp, group, tp).liveness(100, 400);
        let mut prefill = End::new(&plan("prefill", 0));
        let mut decode = Peer::start(&plan("decode", 1));
        prefill.open(1);
        let from = print_source(&prefill.source());
        decode.obey(&[format!("receive 1 {from}"), format!("grant 1 {}", 60 * PAGE_TOKENS)]);
        prefill.wait_joined(1);
        let longest = hobble(&mut prefill, &decode, 1, bound);
        let (sent, received) = (prefill.end(1), decode.ask("end 1"));
        if sent.succeeded() {
            assert!(received.starts_with("Success"), "{received}");
            return;
        }
        assert!(longest > bound / 2, "stopped for {longest:?} at most: {sent:?}, {received}");
    }
    panic!("this host is too busy to stop a process for a short time");
}

#[test]
fn a_lost_prefill_rank_fails_only_the_rooms_that_need_it() {
    let mut decode = End::new(&Plan::new(Fabric::Tcp, "decode", 0));
    let plan = |tp| Plan::new(Fabric::Tcp, "prefill", tp);
    let mut prefill: Vec<Peer> = (1..=LAYERS).map(|tp| Peer::start(&plan(tp))).collect();
    // Each rank owes one layer, or the only one all of them.
    let all: Vec<Source> =
        prefill.iter().zip(0..).map(|(peer, layer)| part(peer, layer..layer + 1)).collect();
    let two = vec![part(&prefill[0], 0..1), part(&prefill[2], 1..LAYERS)];
    let rooms = [(1, all.clone()), (2, two.clone()), (3, vec![prefill[0].source()]), (4, all), (5, two)];
    for (room, from) in &rooms {
        decode.receive(*room, from.clone());
        decode.grant(*room, 4 * PAGE_TOKENS);
        for source in from {
            let peer = &mut prefill[source.rank.tp as usize - 1];
            peer.obey(&[format!("open {room}"), format!("send {room} 32")]);
        }
        decode.wait_ready(*room, 2 * PAGE_TOKENS);
    }
    prefill.remove(1).kill();
    for room in [1, 4] {
        decode.end(room).assert_lost(Side::Prefill, 2);
        // Those that live are told who was lost.
        for peer in &mut prefill {
            let answer = peer.ask(&format!("end {room}"));
            assert!(
                answer.starts_with("Failed") && answer.contains("prefill rank dp0 pp0 cp0 tp2"),
                "{answer}"
            );
        }
    }
    assert_eq!(decode.stain(), None);
    for (room, from) in [(2, 2), (3, 1), (5, 2)] {
        for peer in &mut prefill[..from] {
            peer.obey(&[format!("send {room} 32"), format!("finish {room}")]);
        }
        let outcome = decode.end(room);
        assert!(outcome.succeeded(), "{outcome:?}");
        for peer in &mut prefill[..from] {
            assert!(peer.ask(&format!("end {room}")).starts_with("Success"));
        }
    }
    assert_eq!(decode.stain(), None);
}

/// A source that owes these layers.
fn part(peer: &Peer, layers: std::ops::Range<u32>) -> Source {
    let mut source = peer.source();
    source.share = Some(Share::WHOLE.layers(layers));
    source
}
