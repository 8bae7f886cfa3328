//! What every two-sided transport must do; the same tests for each.
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

mod control;
mod data;
mod ending;
mod hostile;
mod pair;
mod pool;
mod sharing;

use kvferry::transport::Transport;
use kvferry::transport::local::LocalNetwork;
use kvferry::transport::shm::{Private, ShmConfig, ShmTransport};
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use pair::Factory;
use pool::Memory;
use std::cell::Cell;

struct Local {
    network: LocalNetwork,
    made: Cell<u32>,
}

impl Factory for Local {
    fn new() -> Self {
        Self { network: LocalNetwork::new(), made: Cell::new(0) }
    }

    fn transport(&self) -> Box<dyn Transport> {
        self.made.set(self.made.get() + 1);
        Box::new(self.network.endpoint(&format!("end {}", self.made.get())).unwrap())
    }
}

/// From memory that the receiver maps.
struct Shm;

impl Factory for Shm {
    const MEMORY: Memory = Memory::Shared;

    fn new() -> Self {
        Self
    }

    fn transport(&self) -> Box<dyn Transport> {
        Box::new(ShmTransport::new(ShmConfig::new().private(Private::Refuse)).unwrap())
    }
}

/// From memory that the receiver reads through the kernel.
struct ShmRead;

impl Factory for ShmRead {
    fn new() -> Self {
        Self
    }

    fn transport(&self) -> Box<dyn Transport> {
        Box::new(ShmTransport::new(ShmConfig::new()).unwrap())
    }
}

struct Tcp;
//TCP
impl Factory for Tcp {
    fn new() -> Self {
        Self
    }
    //TCP
    fn transport(&self) -> Box<dyn Transport> {
        Box::new(TcpTransport::new(TcpConfig::new()).unwrap())
    }
}
//TCP
macro_rules! conformance {
    ($($module:ident: $($test:ident)*;)*) => {
        mod local {
            $($(#[test]
            fn $test() {
                crate::pair::watched(stringify!($test), crate::$module::$test::<crate::Local>);
            })*)*
        }

        mod shm {
            $($(#[test]
            fn $test() {
                crate::pair::watched(stringify!($test), crate::$module::$test::<crate::Shm>);
            })*)*
        }

        mod shm_read {
            $($(#[test]
            fn $test() {
                crate::pair::watched(stringify!($test), crate::$module::$test::<crate::ShmRead>);
            })*)*
        }

        mod tcp {
            $($(#[test]
            fn $test() {
                crate::pair::watched(stringify!($test), crate::$module::$test::<crate::Tcp>);
            })*)*
        }
    };
}

conformance! {
    data:
        scattered_pages_arrive_exactly
        large_pages_arrive_exactly_through_a_full_queue
        a_write_of_many_thousand_extents_arrives_exactly
        both_directions_at_once
        an_op_sent_twice_lands_once
        writes_without_a_grant_settle_and_touch_nothing
        writes_outside_the_grant_settle_touch_nothing_and_are_reported
        a_write_of_the_wrong_size_is_reported_once
        late_writes_outside_the_grant_are_not_reported
        writes_from_unknown_memory_are_refused
        many_links_do_not_mix
        a_grant_admitted_late_takes_only_what_comes_later;
    control:
        frames_keep_their_order_and_bytes
        frames_over_the_limit_are_refused
        a_peer_that_does_not_read_ends_its_link
        control_passes_while_data_is_under_way;
    ending:
        revoke_amid_writes_leaves_the_pages_untouched
        revoke_is_answered_each_time
        disconnect_by_the_sender_settles_every_write
        disconnect_by_the_receiver_settles_every_write
        a_dropped_peer_settles_every_write
        last_words_arrive_before_the_end
        nothing_works_on_an_ended_link
        connecting_to_nobody_ends_the_link
        a_malformed_address_is_refused;
}
