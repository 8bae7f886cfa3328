//! What the threads of a transport share.

#[path = "../../../../src/transport/grants.rs"]
mod grants;
#[path = "../../../../src/transport/shm/lease.rs"]
mod lease;
#[path = "../../../../src/transport/mailbox.rs"]
mod mailbox;

mod lending;
mod mailing;
mod revoking;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    Ready,
    Busy,
}
