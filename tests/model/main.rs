//! Exhaustive model of the release protocol of `ARCHITECTURE.md`: who may still touch which pages, and who
//! learns of what. It shares no code with the crate.
//!
//! Each test is one scenario: some parties, some faults, and every order in which their steps can happen.
//! A search visits each state once and checks the promises in `check`. Deadlines fire only where nothing
//! else is left to happen, so a signal that is missing shows as a deadline too many. The tests of the second
//! half leave out one rule each and show that the checks notice.

mod check;
mod config;
mod network;
mod receiver;
mod search;
mod sender;
mod state;
mod step;

mod holds;
mod mutations;
