//! The parts of the library that threads share without a lock around them, in every order in which their
//! threads may run and with every value that a load may then see.
//!
//! The files under test are the library's own, word for word: they take their primitives from
//! `crate::sync`, which is here a model that [`loom`] drives. What they name besides is included too if it
//! is small, and stands here in short if not. A lost wake-up shows as a deadlock.

#![allow(
    dead_code,
    unreachable_pub,
    unexpected_cfgs,
    unfulfilled_lint_expectations,
    reason = "the library's files are linted where they belong; here only a part of each is used"
)]
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

mod engine;
mod sync;
mod transport;

#[path = "../../../src/doorbell.rs"]
mod doorbell;
#[path = "../../../src/error.rs"]
mod error;
#[path = "../../../src/ids.rs"]
mod ids;
#[path = "../../../src/ops.rs"]
mod ops;
#[path = "../../../src/poll.rs"]
mod poll;

mod layout {
    #[derive(Debug)]
    pub(crate) struct Admission;
}

mod session {
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Figures;
}

mod wire {
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub(crate) struct Offer;
}

/// Runs a test in every order, and with every value that a load may see.
fn check(test: impl Fn() + Sync + Send + 'static) {
    loom::model(test);
}

/// The same, but with so many switches at most that no thread asked for: where all orders take too long.
/// `LOOM_MAX_PREEMPTIONS` sets another bound.
fn check_most(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(preemptions);
    model.check(test);
}
