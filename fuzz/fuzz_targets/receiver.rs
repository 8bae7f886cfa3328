//! See `tests/fuzz/bodies/receiver.rs`.
#![no_main]

#[path = "../../tests/fuzz/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bodies::receiver::run(input);
});
