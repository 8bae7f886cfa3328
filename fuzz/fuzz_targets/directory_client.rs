//! See `tests/fuzz/bodies/directory_client.rs`.
#![no_main]

#[path = "../../tests/fuzz/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bodies::directory_client::run(input);
});
