//! Calls that break the rules of an interface. Nothing has changed when one is returned.

use crate::config::ConfigError;
use crate::ids::{GroupId, Rank, RegionId, Room};
use crate::layout::{LayoutError, PagesError, TokenShard};
use crate::session::WorkError;
use crate::transport::TransportError;
use crate::transport::registry::NamedError;
use std::io;
use std::ops::Range;

/// The caller broke the rules of a call; nothing has changed, and no other room is touched.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A receiver grants once.
    #[error("already granted")]
    AlreadyGranted,
    /// The engine has been closed.
    #[error("the engine is closed")]
    Closed,
    /// The engine was made by the process this one was forked from.
    #[error("used after fork: the engine belongs to process {0}")]
    Forked(u32),
    /// The pools described do not hold together.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The engine drives itself; there is nothing for the caller to drive.
    #[error("the engine has a progress thread; ask for manual progress when building it")]
    NotManual,
    /// The ranks of the group cannot be found.
    #[error("the engine has no directory; name the members")]
    NoDirectory,
    /// Rooms need a layout first.
    #[error("the engine has no layout yet")]
    NoLayout,
    /// The engine's own rank has to share the outcome.
    #[error("rank {0} is not among the members")]
    NotAMember(Rank),
    /// A page number outside its group.
    #[error("group {}: {error}", group.0)]
    PageOutOfRange {
        /// The group.
        group: GroupId,
        /// Which number, and what would be accepted.
        error: PagesError,
    },
    /// Pages that hold fewer tokens than they should.
    #[error("group {}: pages cover tokens {covered:?}, {wanted:?} are wanted", group.0)]
    PagesDoNotCover {
        /// The group.
        group: GroupId,
        /// Tokens covered.
        covered: Range<u32>,
        /// Tokens that have to be.
        wanted: Range<u32>,
    },
    /// A list that starts inside a page.
    #[error("group {}: a page list starts at token {first}, not at a multiple of {page_tokens}", group.0)]
    PagesNotAligned {
        /// The group.
        group: GroupId,
        /// Where it starts.
        first: u32,
        /// Tokens a page.
        page_tokens: u32,
    },
    /// More of the caller's own bytes than allowed.
    #[error("payload of {bytes} bytes, at most {limit}")]
    PayloadTooLarge {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A panic in the engine's loop has ended it: a defect.
    #[error("the engine has ended by a panic")]
    Panicked,
    /// Memory that a transport cannot use.
    #[error("region not usable: {0}")]
    Region(String),
    /// Memory that the layout still names.
    #[error("region {} is part of the layout", .0.0)]
    RegionInUse(RegionId),
    /// Pools change only while no room is alive.
    #[error("{0} rooms are alive")]
    RoomsAlive(usize),
    /// The same side of this room is alive in this engine.
    #[error("duplicate room: room {0} is in use")]
    RoomInUse(Room),
    /// Two members of one rank.
    #[error("member {0} is named twice")]
    DuplicateMember(Rank),
    /// Two sources of one rank.
    #[error("prefill rank {0} is named twice")]
    DuplicateSource(Rank),
    /// A receiver needs a source.
    #[error("no sources")]
    NoSources,
    /// Memory that is not lent to the engine, or is being taken back.
    #[error("region {} is not lent", .0.0)]
    UnknownRegion(RegionId),
    /// A share that cannot be: heads outside the model, or no such part of tokens.
    #[error("the {0} of a share cannot be")]
    Share(&'static str),
    /// Tokens that cannot be dealt out so.
    #[error("there is no {0}")]
    Tokens(TokenShard),
    /// A group of sources does not know of a room whose tokens are dealt out in a way of its own.
    #[error("a room that holds {0} of its tokens needs its sources one by one, not a group")]
    TokensOfGroup(TokenShard),
    /// More ranks than can share an outcome.
    #[error("{members} ranks share an outcome, at most {limit} can")]
    TooManyMembers {
        /// Ranks named.
        members: u64,
        /// The limit.
        limit: usize,
    },
    /// More pages than one grant carries.
    #[error("{pages} pages in one grant, at most {limit}")]
    TooManyPages {
        /// Pages and rows given.
        pages: usize,
        /// The limit.
        limit: usize,
    },
    /// A range that ends before it starts.
    #[error("tokens {0:?} end before they start")]
    Reversed(Range<u32>),
    /// As many rooms as allowed are alive.
    #[error("{0} rooms are alive, no more are allowed")]
    TooManyRooms(usize),
    /// No such group, or one of another kind.
    #[error("group {} is no {wanted} group of the layout", group.0)]
    UnknownGroup {
        /// The group.
        group: GroupId,
        /// What kind the call needs.
        wanted: &'static str,
    },
    /// Work that does not continue what was given.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// What became of a call that broke no rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "the room lives or has ended")]
pub enum Accepted {
    /// Taken.
    Queued,
    /// The room has ended meanwhile; nothing was done, and nothing has to be.
    Ended,
}

/// Why an engine could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A limit or deadline cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A descriptor or thread could not be made.
    #[error("{what} failed")]
    Io {
        /// The call.
        what: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// There is no such part of the tokens.
    #[error("there is no {0}")]
    Tokens(TokenShard),
    /// A name that does not fit the wire format.
    #[error("{what} has {bytes} bytes, at most {limit}")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// No transport was given.
    #[error("no transport")]
    NoTransport,
    /// The rank lies outside its group.
    #[error("rank {rank} is outside a group of {sizes}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The group's sizes.
        sizes: crate::ids::GroupSizes,
    },
    /// A transport could not be opened by its name.
    #[error(transparent)]
    Named(#[from] NamedError),
    /// A transport could not be started.
    #[error(transparent)]
    Transport(#[from] TransportError),
}
