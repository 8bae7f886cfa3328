//! Bodies of group frames: how the ranks of one side come to one outcome of a room.

use super::codec::{Reader, Writer, wide};
use super::{Cause, Kind, MAX_MEMBERS, WireError};
use crate::ids::Rank;

/// What ranks of one group say to each other about a room. One of them, the *coordinator*, counts the
/// votes of all. Offsets count from the end of the id, 25 bytes into the body.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum GroupFrame {
    /// Member to coordinator: my room is open; these ranks share its outcome. Said again over a later link
    /// if there was no verdict.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 4 + 16 n | `members`: dp (4), pp (4), cp (4), tp (4) of each, in order, none twice |
    Enrol {
        /// Every rank, the two that talk included.
        members: Vec<Rank>,
    },
    /// Coordinator to member, once: how the room has ended for all.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 1 (+ n) | `cause`, optional: as in `Failed`; none means success |
    Verdict {
        /// Why it failed, if it did.
        cause: Option<Cause>,
    },
    /// Member to coordinator: how the room has ended here. A success may be taken back, a failure not.
    ///
    /// | offset | size | field |
    /// |---|---|---|
    /// | 0 | 1 (+ n) | `cause`, optional: as in `Failed`; none means success |
    Vote {
        /// Why it failed, if it did.
        cause: Option<Cause>,
    },
}

impl GroupFrame {
    /// Reads the body of a group frame behind its id.
    pub(super) fn read(kind: Kind, r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            Kind::Enrol => Self::Enrol { members: read_members(r)? },
            Kind::Verdict => Self::Verdict { cause: r.option("verdict.cause")? },
            Kind::Vote => Self::Vote { cause: r.option("vote.cause")? },
            other => return Err(WireError::Value { field: "header.kind", value: (other as u8).into() }),
        })
    }

    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::Enrol { members } => w.list(members),
            Self::Verdict { cause } | Self::Vote { cause } => w.option(cause.as_ref()),
        }
    }

    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Enrol { .. } => Kind::Enrol,
            Self::Verdict { .. } => Kind::Verdict,
            Self::Vote { .. } => Kind::Vote,
        }
    }
}

/// One order for one set of ranks.
fn read_members(r: &mut Reader<'_>) -> Result<Vec<Rank>, WireError> {
    const FIELD: &str = "enrol.members";
    let members: Vec<Rank> = r.list(FIELD, MAX_MEMBERS)?;
    match members.windows(2).position(|pair| pair[0] >= pair[1]) {
        Some(place) => Err(WireError::Value { field: FIELD, value: wide(place + 1) }),
        None => Ok(members),
    }
}
