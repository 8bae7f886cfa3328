//! Transfers that go well.

use crate::program::{Program, SMALL, path};
use std::process::Command;

#[test]
fn every_shape_arrives_byte_for_byte() {
    let shapes: [&[&str]; 4] = [
        &["--shape=llama-8b", "--layers=3", "--tokens=100"],
        &["--shape=llama-70b", "--layers=2", "--tokens=64"],
        &["--shape=deepseek-mla", "--layers=4", "--tokens=130"],
        &["--layers=2", "--kv-heads=3", "--head-dim=20", "--page-tokens=1", "--dtype-bytes=1", "--tokens=33"],
    ];
    for shape in shapes {
        let mut prefill = Program::prefill(&[shape, &["--repeat=2", "--chunk-tokens=24"]].concat());
        let decode = Program::decode(&prefill.url(), &[shape, &["--repeat=2"]].concat());
        let (received, sent) = (decode.succeed(), prefill.succeed());
        assert_eq!(received["verified"], 2, "{received}");
        assert_eq!((&sent["rooms"], &sent["failed"]), (&2.into(), &serde_json::json!([])), "{sent}");
        assert_eq!(sent["bytes"].as_u64(), received["bytes"].as_u64().map(|bytes| 2 * bytes), "{sent}");
    }
}

#[test]
fn several_requests_at_once_arrive_byte_for_byte() {
    let options = [SMALL, &["--requests=5", "--repeat=3"]].concat();
    let mut prefill = Program::prefill(&[&options[..], &["--chunk-tokens=7"]].concat());
    let decode = Program::decode(&prefill.url(), &options);
    assert_eq!(decode.succeed()["verified"], 3);
    assert_eq!(prefill.succeed()["rooms"], 15);
}

#[test]
#[cfg(feature = "shm")]
fn transports_are_chosen_on_the_command_line() {
    for (ours, theirs) in [("shm", "shm"), ("auto", "auto"), ("auto", "tcp"), ("shm", "auto")] {
        let mut prefill = Program::prefill(&[SMALL, &["--transport", ours]].concat());
        let decode = Program::decode(&prefill.url(), &[SMALL, &["--transport", theirs]].concat());
        let received = decode.succeed();
        assert!(received["verified"].as_u64().is_some_and(|rounds| rounds > 0), "{received}");
        prefill.succeed();
    }
}

#[test]
fn a_plain_socket_is_measured_in_the_same_run() {
    let mut prefill = Program::prefill(SMALL);
    let decode = Program::decode(&prefill.url(), &[SMALL, &["--compare-socket"]].concat());
    let received = decode.succeed();
    assert!(received["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{received}");
    prefill.succeed();
}

#[test]
fn processes_with_half_of_the_heads_each_feed_one_with_other_pages() {
    let run = Command::new(path("hetero")).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(said.trim_end(), "1000 tokens, 4 layers, 4 heads from 2 processes: 2048000 bytes, all right");
}
