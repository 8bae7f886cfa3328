//! The rules of a room, one state machine a side. Pure: no I/O, no clock, no memory.
//!
//! A session is told what happened, one method an event, each with the time. What is to be done
//! about it is then taken from [`Session::next_action`] until that gives `None`; only then may the
//! next event be told. Writes are not actions: they are pulled, so that windows and fairness stay
//! with the driver (see [`SenderSession::next_write`]).
//!
//! - `mod.rs`: actions, and what both sessions share in shape
//! - `phase.rs`: the table of states
//! - `course.rs`: state, first cause and deadlines of one room
//! - `progress.rs`: tokens done, a layer at a time
//! - `work.rs`: what a sender was given to send
//! - `destination.rs`: one receiver of a sender
//! - `sender/`: the prefill side
//! - `source.rs`: one sender of a receiver
//! - `receiver.rs`: the decode side
//! - `lobby.rs`: receivers without a sender, before and after
//! - `member.rs`, `ballots.rs`: one outcome for the ranks of a group
#![forbid(unsafe_code)]

mod ballots;
mod course;
mod destination;
mod lobby;
mod member;
mod phase;
mod progress;
mod receiver;
mod sender;
mod source;
mod work;

pub use ballots::{Ballots, Told};
pub use lobby::{Adopted, Answer, Lobby, Parked};
pub use member::{Member, Outcome};
pub use phase::Trigger;
pub use progress::ProgressError;
pub use receiver::{Lent, ReceiverSession, SourceLink};
pub use sender::{JoinedLink, SenderSession, Settlement, WriteJob};
pub use work::{Chunk, Finish, Intake, WorkError};

use crate::error::{Fault, KVTransferError};
use crate::ids::{GrantId, LinkId, Rank};
use crate::poll::{KVPoll, Release};
use crate::wire::{Cause, RoomFrame};
use std::time::Instant;

/// What a session asks its driver to do.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Let the writer of this link fill the pages lent. Always before the `Grant` frame.
    Admit {
        /// The link.
        link: LinkId,
        /// The grant.
        id: GrantId,
    },
    /// End this link: its peer does not vouch for the pages it may still touch.
    Fence {
        /// The link.
        link: LinkId,
    },
    /// Connect this source again: its last word may have been lost with its link.
    /// [`ReceiverSession::source_up`] or [`ReceiverSession::unreachable`] answers.
    Reconnect {
        /// The source.
        rank: Rank,
    },
    /// Stop the writer of this link from touching the pages; [`ReceiverSession::revoked`] answers.
    Revoke {
        /// The link.
        link: LinkId,
        /// The grant.
        id: GrantId,
    },
    /// Send a frame.
    Send {
        /// The link.
        link: LinkId,
        /// The room it belongs to.
        id: GrantId,
        /// The frame.
        frame: RoomFrame,
    },
}

/// What both sides have in common; the engine and the simulator treat them alike.
pub trait Session {
    /// Ends the room from this side; nothing if it has ended.
    fn fail(&mut self, now: Instant, fault: Fault);
    /// Ends the room for the reason that another party gave; nothing if it has ended.
    fn fail_for(&mut self, now: Instant, cause: &Cause);
    /// A frame came from a party of this room.
    fn frame(&mut self, now: Instant, link: LinkId, id: GrantId, frame: &RoomFrame);
    /// A link has ended. `quiesced`: nothing its peer posted can still reach our memory.
    fn link_down(&mut self, now: Instant, link: LinkId, quiesced: bool, fault: Fault);
    /// Time has passed; call by [`Session::deadline`] at the latest.
    fn tick(&mut self, now: Instant);
    /// The next thing to do; drain after every other call.
    fn next_action(&mut self) -> Option<Action>;
    /// When to call `tick`.
    fn deadline(&self) -> Option<Instant>;
    /// Where the room stands.
    fn state(&self) -> KVPoll;
    /// Whether its pages are the caller's again.
    fn release(&self) -> Release;
    /// Ranks (and links) that keep `release` from being safe.
    fn waiting_for(&self) -> Vec<Rank>;
    /// Why it failed, as it is told to others.
    fn cause(&self) -> Option<Cause>;
    /// Why it failed.
    fn error(&self) -> Option<&KVTransferError>;
    /// When things happened, and how much moved.
    fn figures(&self) -> Figures;
}

/// When things happened in a room, and how much moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// The session was made.
    pub created: Instant,
    /// Every party was known and ready.
    pub known: Option<Instant>,
    /// Every grant was in (sender) or given (receiver).
    pub granted: Option<Instant>,
    /// The first write was posted (sender) or landed (receiver).
    pub first_byte: Option<Instant>,
    /// The last write settled or landed.
    pub last_byte: Option<Instant>,
    /// Bytes settled or landed.
    pub bytes: u64,
}
