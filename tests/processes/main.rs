//! The two examples as real processes: what a user sees, and what happens when one of them dies.

#![expect(clippy::unwrap_used, reason = "what the helpers of a test cannot do fails the test")]

mod dying;
mod missing;
mod moving;
mod program;
mod strangers;
