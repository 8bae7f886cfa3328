//! Real processes: what a user of the two examples sees, and what is left when one of them, or a process
//! that holds one engine and does what it is told, dies, freezes or starts anew.

#![expect(clippy::disallowed_methods, reason = "processes have only the clock of their host in common")]
#![expect(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "test code, with small numbers")]

mod cuts;
mod dying;
mod end;
mod leaks;
mod missing;
mod moving;
mod peer;
mod plan;
mod program;
mod restarts;
mod rng;
mod rounds;
mod silence;
mod strangers;
