//! What a receiver lets a writer touch.

use super::{Extent, PageList, Pairing, Piece, PlanError, Share};
use crate::ids::GroupId;
use std::ops::Range;
use std::sync::Arc;

/// The part of a grant that one writer may fill, as its transport checks it.
#[derive(Clone, Debug)]
pub struct Admission {
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) share: Share,
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
    /// The piece does not fit the pages lent.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Admission {
    /// What `share` of these tokens and pages (of the destination's groups) one writer may fill.
    pub fn new(
        pairing: Arc<Pairing>,
        share: Share,
        tokens: Range<u32>,
        pages: Arc<[(GroupId, PageList)]>,
    ) -> Self {
        Self { pairing, share, tokens, pages }
    }

    /// Appends where a writer's piece goes, and returns its bytes.
    ///
    /// # Errors
    /// The piece names something that was not lent; nothing is appended.
    pub fn extents(&self, _piece: &Piece, _out: &mut Vec<Extent>) -> Result<u64, Refusal> {
        todo!()
    }
}
