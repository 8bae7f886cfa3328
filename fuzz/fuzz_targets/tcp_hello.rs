//! See `tests/fuzz/bodies/tcp_hello.rs`.
#![no_main]

#[path = "../../tests/fuzz/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bodies::tcp_hello::run(input);
});
