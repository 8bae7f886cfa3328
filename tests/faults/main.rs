//! Faults seen in the field, each under its code: what must not happen here again.
#![expect(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "test code, with small numbers")]

#[allow(dead_code, unused_imports, reason = "shared with other suites, each of which uses a part of it")]
#[path = "../engine/bed.rs"]
mod bed;
mod bootstrap;
mod data;
mod memory;
mod operations;
mod security;
mod states;
