//! The rules of a room, tried on virtual time with seeded chance.

mod aborts;
mod ballots;
mod calls;
mod deadlines;
mod flaws;
mod frames;
mod groups;
mod joins;
mod links;
mod questions;
mod requests;
mod reuse;
mod steps;
mod transfers;
mod walks;
