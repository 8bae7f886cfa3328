//! Whole engines in one process: handles, rooms, failures and ends, as a caller sees them.

mod bed;
mod driving;
mod failures;
mod rooms;
