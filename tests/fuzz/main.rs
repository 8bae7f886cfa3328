//! Fuzzing, briefly: the bodies that `fuzz/` gives to libFuzzer, on their corpus, on mutations of it and on
//! random bytes. The numbers are the same in every run; `KVF_FUZZ=100` makes a hundred times as many tries.
//!
//! `corpus/` holds one input a line, in hexadecimal: a small set found by libFuzzer that reaches what the
//! fuzzer reached, and the inputs that once failed, each with its reason.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

mod bodies;
mod corpus;
#[path = "../format/golden.rs"]
mod golden;
mod memory;
mod random;

use random::Random;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs `body` on the corpus of `target`, then on `tries` inputs made of it, none of which may take more
/// than `bytes` of memory. How many inputs were taken for what they should be.
fn fuzz(target: &str, tries: usize, bytes: usize, body: impl Fn(&[u8]) -> bool) -> usize {
    let mut corpus = corpus::read(target);
    if target == "frame" {
        corpus.extend(golden::all().into_iter().map(|(_, bytes)| bytes));
    }
    let mut random = Random::new(target);
    let tries = tries * env::var("KVF_FUZZ").map_or(1, |times| times.parse().unwrap());
    let mut taken = 0;
    let mut run = |input: &[u8]| {
        let before = memory::start();
        match catch_unwind(AssertUnwindSafe(|| body(input))) {
            Ok(is_taken) => taken += usize::from(is_taken),
            Err(panic) => {
                println!("input of {target}: {}", corpus::print(input));
                resume_unwind(panic);
            }
        }
        let peak = memory::peak(before);
        assert!(peak <= bytes, "{peak} bytes for {target}: {}", corpus::print(input));
    };
    corpus.iter().for_each(|input| run(input));
    for number in 0..tries {
        let input = match number % 4 {
            0 => random.bytes(120),
            _ => random.mutated(&corpus),
        };
        run(&input);
    }
    taken
}

/// A body that takes everything.
fn all(body: fn(&[u8])) -> impl Fn(&[u8]) -> bool {
    move |input| {
        body(input);
        true
    }
}

#[test]
fn control_frames_are_canonical_or_refused() {
    let taken = fuzz("frame", 180_000, MIB * 24, bodies::frame::run);
    assert!(taken > 9_000, "only {taken} inputs were frames: the mutations reach too little");
}

#[test]
fn data_headers_are_canonical_or_refused() {
    fuzz("data_header", 180_000, KIB, all(bodies::data_header::run));
}

#[test]
fn page_lists_stay_within_their_limit() {
    fuzz("page_list", 30_000, MIB * 24, all(bodies::page_list::run));
}

#[test]
fn pieces_stay_inside_what_was_lent_whatever_the_pools() {
    fuzz("layout", 45_000, MIB, all(bodies::layout::run));
}

#[test]
fn greetings_are_canonical_or_refused() {
    fuzz("tcp_hello", 90_000, KIB, all(bodies::tcp_hello::run));
}

#[test]
fn notes_are_canonical_or_refused() {
    fuzz("tcp_note", 90_000, KIB, all(bodies::tcp_note::run));
}

#[test]
fn addresses_come_back_or_are_refused() {
    fuzz("tcp_address", 90_000, 8 * KIB, all(bodies::tcp_address::run));
}

#[test]
fn a_peer_that_says_anything_fills_no_page_beyond_its_grant() {
    fuzz("tcp_stream", 200, MIB, all(bodies::tcp_stream::run));
}

#[test]
fn the_directory_answers_any_request_within_its_limits() {
    fuzz("directory_server", 12_000, MIB, all(bodies::directory_server::run));
}

#[test]
fn a_client_of_the_directory_survives_any_answer() {
    fuzz("directory_client", 12_000, MIB, all(bodies::directory_client::run));
}

#[test]
fn a_sender_ends_and_lets_go_whatever_it_is_told() {
    fuzz("sender", 18_000, MIB, all(bodies::sender::run));
}

#[test]
fn a_receiver_is_safe_exactly_when_no_writer_is_left() {
    fuzz("receiver", 18_000, MIB, all(bodies::receiver::run));
}

#[test]
fn a_lobby_answers_who_waits_and_forgets_in_the_end() {
    fuzz("lobby", 18_000, MIB, all(bodies::lobby::run));
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
