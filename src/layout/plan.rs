//! Chunks cut into pieces, pieces turned into extents.

use super::{PageList, Pairing};
use crate::ids::RegionId;
use std::ops::Range;

/// Bytes named without an address: these pairs, these positions. All pairs are of one group.
/// Positions are tokens for paged groups and places in the row list for row groups.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "two ranges of the wire format")]
pub struct Piece {
    /// Numbers of pairs.
    pub pairs: Range<u32>,
    /// Tokens or rows.
    pub positions: Range<u32>,
}

/// A run of bytes in one region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "an address and a length")]
pub struct Extent {
    /// The region.
    pub region: RegionId,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// A run of bytes that is contiguous on both sides, for one-sided transports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "two addresses and a length")]
pub struct Block {
    /// Source region.
    pub source: RegionId,
    /// Where it starts there.
    pub source_offset: u64,
    /// Destination region.
    pub destination: RegionId,
    /// Where it starts there.
    pub destination_offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// The pieces of a rectangle of pairs and positions, each of at most so many bytes. Cheap to keep
/// half done: a sender holds one per destination and chunk.
#[derive(Clone, Debug)]
pub struct Pieces {
    pub(crate) rectangle: Piece,
    pub(crate) next_pair: u32,
    pub(crate) next_position: u32,
}

/// A piece that does not fit the pages it is resolved against.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No such pairs, or pairs of several groups.
    #[error("pairs {0:?} are not pairs of one group")]
    Pairs(Range<u32>),
    /// Positions outside the page list.
    #[error("positions {wanted:?} are outside the {covered:?} covered by the pages")]
    Positions {
        /// Positions asked for.
        wanted: Range<u32>,
        /// Positions the pages cover.
        covered: Range<u32>,
    },
    /// A page number outside its group.
    #[error("page {page} is outside 0..{items}")]
    Page {
        /// The page number.
        page: u32,
        /// Pages in the group.
        items: u32,
    },
    /// A border inside bytes that can only be moved whole.
    #[error("token {at} lies inside a unit of {unit} tokens that is moved whole")]
    Unit {
        /// The border.
        at: u32,
        /// Tokens of the unit.
        unit: u32,
    },
}

impl Pieces {
    /// Everything in `rectangle`.
    pub fn new(rectangle: Piece) -> Self {
        Self { next_pair: rectangle.pairs.start, next_position: rectangle.positions.start, rectangle }
    }

    /// The next piece of at most `max_bytes`, but at least one unit of one pair.
    pub fn next(&mut self, _pairing: &Pairing, _max_bytes: u64) -> Option<Piece> {
        todo!()
    }
}

impl Pairing {
    /// Bytes of a piece; the same on both sides.
    pub fn bytes(&self, _piece: &Piece) -> u64 {
        todo!()
    }

    /// Appends where the bytes of `piece` lie at the source, joined where adjacent.
    ///
    /// # Errors
    /// The piece does not fit the pages.
    pub fn source_extents(
        &self,
        _piece: &Piece,
        _pages: &PageList,
        _out: &mut Vec<Extent>,
    ) -> Result<u64, PlanError> {
        todo!()
    }

    /// Appends where the bytes of `piece` lie at the destination, joined where adjacent.
    ///
    /// # Errors
    /// The piece does not fit the pages.
    pub fn destination_extents(
        &self,
        _piece: &Piece,
        _pages: &PageList,
        _out: &mut Vec<Extent>,
    ) -> Result<u64, PlanError> {
        todo!()
    }
}

/// Cuts two extent lists of the same bytes into blocks contiguous on both sides.
pub fn blocks(_source: &[Extent], _destination: &[Extent], _out: &mut Vec<Block>) {
    todo!()
}
