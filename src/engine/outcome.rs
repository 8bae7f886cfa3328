//! Whose outcome a room has.

use super::usage::UsageError;
use crate::ids::{GroupSizes, Rank};
use crate::wire::MAX_MEMBERS;
use std::collections::BTreeSet;

/// Whose outcome a room has.
///
/// Alone, each rank ends by itself. With others, no rank shows an end before it is known for all: the room
/// succeeds on every rank once it has succeeded on each, and fails on every rank for the first cause that
/// arose on any of them, with the same kind, detail and origin; the cause is local on the rank where it
/// arose only. What is done about a failure is not put off: sources are told, and
/// [`release`](super::KVReceiver::release) may be `Safe` before [`poll`](super::KVReceiver::poll) is final;
/// [`Engine::changes`](super::Engine::changes) tells of both with the outcome.
///
/// Votes travel between the engines of the group, over links of their own; the rank at
/// `room % number of ranks` counts them. Every rank must name the same ranks. One that does not open the
/// room within [`discover`](crate::Deadlines::discover), or whose link to the counting rank ends before the
/// outcome, fails the room for all. If the counting rank itself is lost, each rank that has not heard the
/// outcome fails for that: ranks that had heard it an instant before may then stand by another one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// This rank's own.
    #[default]
    Alone,
    /// That of all ranks of this engine's group with the same data parallel index, as the directory knows
    /// them.
    Group,
    /// That of these ranks of this engine's group, itself included.
    Members(Vec<Member>),
}

/// A rank that shares the outcome of a room.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Member {
    /// Its place in its group.
    pub rank: Rank,
    /// How to reach it: transport names and their addresses, in order of preference.
    pub addresses: Vec<(String, Vec<u8>)>,
}

impl Member {
    /// A rank at these addresses.
    pub fn new(rank: Rank, addresses: Vec<(String, Vec<u8>)>) -> Self {
        Self { rank, addresses }
    }
}

impl Outcome {
    /// The ranks that share it, in order, if there are others.
    ///
    /// # Errors
    /// They cannot be.
    pub(super) fn ranks(
        &self,
        own: Rank,
        sizes: GroupSizes,
        has_directory: bool,
    ) -> Result<Vec<Rank>, UsageError> {
        let ranks = match self {
            Self::Alone => return Ok(Vec::new()),
            Self::Group => {
                let GroupSizes { pp, cp, tp, .. } = sizes;
                let ranks = GroupSizes { dp: 1, ..sizes }.ranks();
                if ranks > MAX_MEMBERS as u64 {
                    return Err(UsageError::TooManyMembers { members: ranks, limit: MAX_MEMBERS });
                }
                if ranks > 1 && !has_directory {
                    return Err(UsageError::NoDirectory);
                }
                let at = |pp, cp| move |tp| Rank { dp: own.dp, pp, cp, tp };
                (0..pp).flat_map(|pp| (0..cp).flat_map(move |cp| (0..tp).map(at(pp, cp)))).collect()
            }
            Self::Members(members) => {
                if members.len() > MAX_MEMBERS {
                    let members = members.len() as u64;
                    return Err(UsageError::TooManyMembers { members, limit: MAX_MEMBERS });
                }
                let mut ranks = BTreeSet::new();
                if let Some(twice) = members.iter().find(|member| !ranks.insert(member.rank)) {
                    return Err(UsageError::DuplicateMember(twice.rank));
                }
                if !ranks.contains(&own) {
                    return Err(UsageError::NotAMember(own));
                }
                ranks.into_iter().collect::<Vec<_>>()
            }
        };
        Ok(if ranks.len() > 1 { ranks } else { Vec::new() })
    }
}
