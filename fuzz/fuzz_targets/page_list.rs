//! See `tests/fuzz/bodies/page_list.rs`.
#![no_main]

#[path = "../../tests/fuzz/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bodies::page_list::run(input);
});
