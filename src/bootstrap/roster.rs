//! Whether the records of a group are complete and agree.

use super::{GroupInfo, GroupState, RankRecord};
use crate::ids::{GroupSizes, Rank};
use std::sync::Arc;

/// Missing ranks named in an answer.
pub(super) const NAMED_MISSING: usize = 16;

/// Records that do not make one group.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// Not every rank is there exactly once, or there is none.
    #[error("group {group} has {records} records for {ranks} ranks")]
    Count {
        /// The group.
        group: String,
        /// Different ranks found.
        records: u64,
        /// Ranks announced.
        ranks: u64,
    },
    /// A rank says it belongs elsewhere.
    #[error("a record of rank {rank} names group {named} instead of {group}")]
    Group {
        /// The group.
        group: String,
        /// The rank.
        rank: Rank,
        /// The group its record names.
        named: String,
    },
    /// A rank lies outside its group.
    #[error("rank {rank} is outside its group of {sizes}")]
    Outside {
        /// The rank.
        rank: Rank,
        /// The sizes.
        sizes: GroupSizes,
    },
    /// Two ranks of a group announce different sizes.
    #[error("rank {rank} announces {announced}, the group is registered as {registered}")]
    Sizes {
        /// The rank.
        rank: Rank,
        /// What it announces.
        announced: GroupSizes,
        /// What the others announced.
        registered: GroupSizes,
    },
}

impl GroupInfo {
    /// A complete group: each of its ranks once, in any order.
    ///
    /// # Errors
    /// A rank is missing, there twice or outside, or the records name other groups or sizes.
    pub fn new(name: &str, sizes: GroupSizes, mut ranks: Vec<RankRecord>) -> Result<Self, RosterError> {
        for record in &ranks {
            let rank = record.rank;
            if record.group != name {
                return Err(RosterError::Group { group: name.into(), rank, named: record.group.clone() });
            }
            if record.sizes != sizes {
                return Err(RosterError::Sizes { rank, announced: record.sizes, registered: sizes });
            }
            if !sizes.holds(rank) {
                return Err(RosterError::Outside { rank, sizes });
            }
        }
        let given = ranks.len();
        ranks.sort_by_key(|record| record.rank);
        ranks.dedup_by_key(|record| record.rank);
        let records = ranks.len() as u64;
        if records == 0 || records != sizes.ranks() || given != ranks.len() {
            return Err(RosterError::Count { group: name.into(), records, ranks: sizes.ranks() });
        }
        Ok(Self { name: name.into(), sizes, ranks })
    }
}

/// The state of a group of which `ranks`, sorted, all different and inside `sizes`, are registered.
pub(super) fn state(name: &str, sizes: GroupSizes, ranks: &[&RankRecord]) -> GroupState {
    let registered = ranks.len() as u64;
    if registered < sizes.ranks() {
        let missing = missing(sizes, |rank| ranks.binary_search_by_key(&rank, |record| record.rank).is_ok());
        return GroupState::NotReady { registered, announced: sizes.ranks(), missing };
    }
    match GroupInfo::new(name, sizes, ranks.iter().map(|&record| record.clone()).collect()) {
        Ok(info) => GroupState::Ready(Arc::new(info)),
        Err(error) => GroupState::Unreachable { detail: error.to_string() },
    }
}

/// The state of a group nobody has registered for.
pub(super) const fn empty() -> GroupState {
    GroupState::NotReady { registered: 0, announced: 0, missing: Vec::new() }
}

/// The first ranks that are not there. Looks at no more ranks than are there, plus those it names.
pub(super) fn missing(sizes: GroupSizes, is_there: impl Fn(Rank) -> bool) -> Vec<Rank> {
    let all = (0..sizes.dp).flat_map(move |dp| {
        (0..sizes.pp).flat_map(move |pp| {
            (0..sizes.cp).flat_map(move |cp| (0..sizes.tp).map(move |tp| Rank { dp, pp, cp, tp }))
        })
    });
    all.filter(|&rank| !is_there(rank)).take(NAMED_MISSING).collect()
}
