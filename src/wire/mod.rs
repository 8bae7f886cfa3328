//! The KV chunk wire format: what two engines say to each other. Little-endian, versioned, written
//! by hand.
//!
//! Every frame starts with 16 bytes ([`Header`]): magic, version, kind, flags, body length, checksum.
//! Control frames ([`Frame`]) travel on a link's control connection, in order. Data frames
//! ([`DataHeader`]) travel on data lanes, in any order; their payload follows the frame.
//!
//! # Bodies
//!
//! The page of each type has the table of its bytes. In all of them:
//!
//! - numbers are little-endian and of fixed width, except for the varints of page lists
//! - `4 + n`: a length or count of 4 bytes, and as many bytes or values; text is UTF-8
//! - `1 (+ n)`: an optional value: 0, or 1 and the value
//! - a range is its start and its end, which is not before the start
//!
//! A page list (`src/wire/pages.rs`), a pool or a share (`src/wire/layout.rs`) is the same in every body.
//!
//! # Growth
//!
//! Behind the fields of a control body come optional ones, in any order, up to its end:
//!
//! | size | field |
//! |---|---|
//! | 2 | type; the top bit says that who does not know it must refuse the frame |
//! | 4 | bytes of the value |
//! | n | value |
//!
//! The other 15 bits name the field; each kind of frame counts its own. Unknown fields without the top
//! bit are skipped, a known field that is there twice is refused. So a later version adds fields that
//! older peers skip, kinds and features that are used after both sides named them in `Hello`, and changes
//! [`VERSION`] only if a table here changes.
//!
//! # Limits
//!
//! Whatever a peer sends, decoding ends, and takes no more memory than a small multiple of the frame plus
//! 4 bytes for each of at most [`MAX_PAGES`] pages. Encoding checks no limits: a frame over one is refused
//! by the peer.
//!
//! # Files
//!
//! - `header.rs`: the 16 bytes in front of every frame, and its checksum
//! - `codec.rs`: checked reading and writing of bodies, and the tail of optional fields
//! - `control.rs`: control frames whole
//! - `link.rs`: bodies of link frames
//! - `room.rs`: bodies of room frames
//! - `group.rs`: bodies of group frames
//! - `ids.rs`, `layout.rs`, `pages.rs`: what bodies are made of
//! - `data.rs`: the data frame of two-sided transports
//! - `error.rs`: why bytes are not a frame
#![forbid(unsafe_code)]

mod codec;
mod control;
mod data;
mod error;
mod group;
mod header;
mod ids;
mod layout;
mod link;
mod pages;
mod room;
#[cfg(test)]
mod tests;

pub use crate::checksum::{Crc32c, crc32c};
pub use control::Frame;
pub use data::DataHeader;
pub use error::WireError;
pub use group::GroupFrame;
pub use header::{HEADER_BYTES, Header, Kind, VERSION};
pub use link::{Hello, Layout};
pub use room::{Cause, Done, Grant, Offer, RoomFrame, Status};

/// Bytes of a control body before `Hello` at most.
pub const MAX_BODY_BEFORE_HELLO: u32 = 64 << 10;
/// Bytes of a control body at most.
pub const MAX_BODY: u32 = 16 << 20;
/// Pages of one grant at most, all groups together.
pub const MAX_PAGES: usize = 1 << 20;
/// Bytes of a name (group, model, dtype, tag) at most.
pub const MAX_NAME: usize = crate::layout::MAX_NAME_BYTES;
/// Bytes of a failure's detail at most; longer ones are cut.
pub const MAX_DETAIL: usize = 1024;
/// Bytes of an engine's own payload at most.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Destinations of one room at most.
pub const MAX_DESTINATIONS: usize = 4096;
/// Ranks that share one outcome at most.
pub const MAX_MEMBERS: usize = 4096;
/// Regions of one frame at most.
pub const MAX_REGIONS: usize = 65_536;
/// Bytes of a transport's key of a region at most.
pub const MAX_KEY: usize = 4096;
