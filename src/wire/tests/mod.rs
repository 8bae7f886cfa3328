//! Tests that make frames of their own; `tests/format` holds those that need only bytes.

mod arbitrary;
mod golden;
mod limits;
mod properties;
mod samples;
mod tail;
