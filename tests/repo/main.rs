//! Rules of this repository that the compiler can't hold, each with a test that it can be broken.

mod guarantees;
mod layers;
mod manifest;
mod paths;
mod pure;
mod readme;
mod shape;
mod source;

/// Fails with one line for each breach.
#[track_caller]
fn assert_none(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}", breaches.join("\n  "));
}
