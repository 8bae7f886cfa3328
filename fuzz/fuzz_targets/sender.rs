//! See `tests/fuzz/bodies/sender.rs`.
#![no_main]

#[path = "../../tests/fuzz/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bodies::sender::run(input);
});
