//! One side dies or freezes in mid-transfer.

use crate::program::{Program, SMALL};
use rustix::process::Signal;

/// A prefill process that stops in mid-transfer, and a decode process that has part of the first room.
fn in_mid_transfer(prefill: &[&str], decode: &[&str]) -> (Program, Program, String) {
    let options = [SMALL, &["--chunk-tokens=16", "--pause-after-chunks=2"], prefill].concat();
    let mut prefill = Program::prefill(&options);
    let url = prefill.url();
    let mut decode = Program::decode(&url, &[SMALL, decode].concat());
    decode.until("decode: room 0: 32 tokens");
    (prefill, decode, url)
}

#[test]
fn a_killed_prefill_process_is_named_by_decode() {
    let (prefill, decode, _) = in_mid_transfer(&[], &[]);
    prefill.signal(Signal::KILL);
    let failure = decode.end().failure();
    assert_eq!((&failure["kind"], &failure["room"]), (&"PeerLost".into(), &0.into()), "{failure}");
    assert_eq!(
        (&failure["origin"], &failure["rank"]),
        (&"peer".into(), &"dp0 pp0 cp0 tp0".into()),
        "{failure}"
    );
    assert!(failure["error"].as_str().unwrap().contains("prefill rank dp0 pp0 cp0 tp0"), "{failure}");
}

#[test]
fn a_frozen_prefill_process_is_lost_after_its_silence() {
    let (prefill, decode, _) = in_mid_transfer(&[], &["--liveness=0.5"]);
    prefill.signal(Signal::STOP);
    let failure = decode.end().failure();
    assert_eq!(failure["kind"], "PeerLost", "{failure}");
    assert!(failure["error"].as_str().unwrap().contains("no sign of life"), "{failure}");
}

#[test]
fn a_killed_decode_process_fails_its_room_and_the_next_one_is_served() {
    let (mut prefill, decode, url) = in_mid_transfer(&["--repeat=2"], &[]);
    decode.signal(Signal::KILL);
    prefill.resume();
    let next = Program::decode(&url, &[SMALL, &["--repeat=1", "--first-room=1"]].concat());
    assert_eq!(next.succeed()["verified"], 1);
    let ended = prefill.end();
    let failure = ended.failure();
    assert_eq!((&failure["kind"], &failure["room"]), (&"PeerLost".into(), &0.into()), "{failure}");
    assert!(failure["error"].as_str().unwrap().contains("decode rank dp0 pp0 cp0 tp0"), "{failure}");
    assert_eq!(ended.summary()["rooms"], 2);
}
