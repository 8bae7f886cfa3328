//! What a receiver lets a writer touch.

use super::{Extent, GroupKind, PageList, Pairing, Piece, PlanError, place};
use crate::ids::GroupId;
use std::ops::Range;
use std::sync::Arc;

/// The part of a grant that one writer may fill, as its transport checks it.
#[derive(Clone, Debug)]
pub struct Admission {
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) tokens: Range<u32>,
    pub(crate) pages: Arc<[(GroupId, PageList)]>,
}

/// Why a write is not admitted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The grant lends no pages of the piece's group.
    #[error("no pages of this group are lent")]
    Group,
    /// Tokens that were not asked for.
    #[error("tokens {wanted:?} are outside the {lent:?} lent")]
    Tokens {
        /// Tokens of the piece.
        wanted: Range<u32>,
        /// Tokens of the grant.
        lent: Range<u32>,
    },
    /// A write of more or fewer bytes than its piece has.
    #[error("a write of {bytes} bytes names a piece of {piece}")]
    Size {
        /// Bytes of the write.
        bytes: u64,
        /// Bytes of the piece.
        piece: u64,
    },
    /// The piece does not fit the pages lent.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Admission {
    /// These tokens and pages (of the destination's groups), as far as the share of the pairing goes.
    pub fn new(pairing: Arc<Pairing>, tokens: Range<u32>, pages: Arc<[(GroupId, PageList)]>) -> Self {
        Self { pairing, tokens, pages }
    }

    /// Appends where a writer's piece goes, and returns its bytes. The extents are no more than its
    /// bytes: compare [`bytes`](Self::bytes) with what the writer announces before asking for them.
    ///
    /// # Errors
    /// The piece names something that was not lent; nothing is appended.
    pub fn extents(&self, piece: &Piece, out: &mut Vec<Extent>) -> Result<u64, Refusal> {
        let pages = self.pages_for(piece)?;
        Ok(self.pairing.destination_extents(piece, pages, out)?)
    }

    /// Finds where a write of `bytes` goes, as [`extents`](Self::extents) does, but never looks at more
    /// pages than the write has bytes.
    pub(crate) fn place_of(&self, piece: &Piece, bytes: u64, out: &mut Vec<Extent>) -> Result<(), Refusal> {
        let fits = |piece: u64| if piece == bytes { Ok(()) } else { Err(Refusal::Size { bytes, piece }) };
        fits(self.bytes(piece)?)?;
        fits(self.extents(piece, out)?)
    }

    /// Bytes of a writer's piece, without looking at each page.
    ///
    /// # Errors
    /// The piece names pairs or tokens that were not lent.
    pub fn bytes(&self, piece: &Piece) -> Result<u64, Refusal> {
        self.pages_for(piece)?;
        Ok(self.pairing.bytes(piece))
    }

    /// The pages lent for a piece whose pairs and tokens are lent.
    fn pages_for(&self, piece: &Piece) -> Result<&PageList, Refusal> {
        let Self { pairing, tokens, pages } = self;
        let Piece { pairs, positions } = piece;
        let first = pairing.pairs().get(place(pairs.start));
        let Some(first) = first.filter(|_| !pairs.is_empty()) else {
            return Err(PlanError::Pairs(pairs.clone()).into());
        };
        let of_group = pairing.pairs_of(first.source_group, None);
        if pairs.end > of_group.end {
            return Err(PlanError::Pairs(pairs.clone()).into());
        }
        let found = pages.iter().find(|(group, _)| *group == first.destination_group);
        let (_, list) = found.ok_or(Refusal::Group)?;
        let is_paged = matches!(pairing.kind(first.source_group), Some(GroupKind::Paged { .. }));
        if is_paged && (positions.start < tokens.start || positions.end > tokens.end) {
            return Err(Refusal::Tokens { wanted: positions.clone(), lent: tokens.clone() });
        }
        Ok(list)
    }
}
