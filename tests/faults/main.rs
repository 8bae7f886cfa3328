//! Faults seen in the field, each under its code: what must not happen here again.
#![expect(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "test code, with small numbers")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests compare what engines measure with a clock of their own"
)]

/// Each of these tests of a file, over each network.
macro_rules! on_each_network {
    ($($test:ident)*) => {
        mod local {
            $(#[test]
            fn $test() {
                super::$test(&crate::bed::Network::local());
            })*
        }

        mod tcp {
            $(#[test]
            fn $test() {
                super::$test(&crate::bed::Network::Tcp);
            })*
        }
    };
}

mod aborts;
#[allow(dead_code, unused_imports, reason = "shared with other suites, each of which uses a part of it")]
#[path = "../engine/bed.rs"]
mod bed;
mod bootstrap;
mod child;
mod data;
mod descriptors;
mod fork;
mod geometry;
mod groups;
mod idle;
mod links;
mod memory;
mod operations;
mod order;
mod panics;
mod relinks;
mod security;
mod sharing;
mod shutdown;
mod signals;
mod states;
mod stranger;
mod tap;

use kvferry::Config;
use std::time::Duration;

/// Deadlines that no test lives to see.
fn patient() -> Config {
    let mut config = Config::default();
    let forever = Duration::from_secs(300);
    (config.deadlines.discover, config.deadlines.handshake) = (forever, forever);
    (config.deadlines.waiting_for_input, config.deadlines.stall) = (forever, forever);
    config
}
