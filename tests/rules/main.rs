//! The rules of a room, tried on virtual time with seeded chance.

mod aborts;
mod calls;
mod deadlines;
mod flaws;
mod joins;
mod links;
mod questions;
mod transfers;
mod walks;
