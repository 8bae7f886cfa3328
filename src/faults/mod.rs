//! Faults on command, for tests of engines and of what is built on them.
//!
//! - [`Relay`]: a TCP relay between two ends that slows, delays, holds back, cuts and damages what passes
//! - [`ScriptedNetwork`]: transports of one process whose writes end when and how the test says
//!
//! Files: `relay.rs` what the test commands, `pump.rs` the connections, `edit.rs` damaged streams;
//! `scripted/` the transport.

mod edit;
mod pump;
mod relay;
mod scripted;

pub use edit::Edit;
pub use relay::{Connections, Direction, Ending, Relay};
pub use scripted::{Access, Fate, PendingWrite, ScriptedNetwork, ScriptedTransport, Touch};
