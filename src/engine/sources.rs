//! Where a receiver's KV comes from.

use super::Place;
use super::usage::UsageError;
use crate::bootstrap::{Directory, GroupState};
use crate::ids::{Instance, Rank};
use crate::layout::{Share, TokenShard};
use std::collections::BTreeSet;

/// Where a receiver's KV comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Sources {
    /// The ranks of a prefill group, as the directory knows it.
    Group {
        /// The group's name.
        name: String,
        /// Its data parallel rank that computes the room; asked of the directory if not given.
        dp: Option<u32>,
    },
    /// These ranks.
    Ranks(Vec<Source>),
}

/// One prefill rank that feeds a receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Source {
    /// Its place in its group.
    pub rank: Rank,
    /// Its process start, if it must be that one.
    pub instance: Option<Instance>,
    /// How to reach it: transport names and their addresses, in order of preference.
    pub addresses: Vec<(String, Vec<u8>)>,
    /// What it owes; nothing if none is named.
    pub share: Option<Share>,
    /// Decode ranks that join it for the same room; this rank alone if none are named.
    pub destinations: Vec<Rank>,
}

impl Sources {
    /// All KV from the group of this name.
    pub fn group(name: impl Into<String>) -> Self {
        Self::Group { name: name.into(), dp: None }
    }

    /// Whether they can feed a receiver of a rank that holds these tokens; of other rooms, it holds `usual`.
    pub(super) fn check(&self, tokens: TokenShard, usual: TokenShard) -> Result<(), UsageError> {
        let Self::Ranks(sources) = self else {
            // What the directory says is true of the usual rooms.
            return if tokens == usual { Ok(()) } else { Err(UsageError::TokensOfGroup(tokens)) };
        };
        if sources.is_empty() {
            return Err(UsageError::NoSources);
        }
        let mut ranks = BTreeSet::new();
        if let Some(twice) = sources.iter().find(|source| !ranks.insert(source.rank)) {
            return Err(UsageError::DuplicateSource(twice.rank));
        }
        let impossible = |source: &Source| match source.share.as_ref()? {
            share if share.destination != tokens => Some("tokens of the destination"),
            share => share.check().err(),
        };
        sources.iter().find_map(impossible).map_or(Ok(()), |part| Err(UsageError::Share(part)))
    }

    /// All KV from one data parallel rank of the group of this name.
    pub fn group_dp(name: impl Into<String>, dp: u32) -> Self {
        Self::Group { name: name.into(), dp: Some(dp) }
    }
}

impl Source {
    /// A rank that owes everything it holds.
    pub fn new(rank: Rank, addresses: Vec<(String, Vec<u8>)>) -> Self {
        Self { rank, instance: None, addresses, share: Some(Share::WHOLE), destinations: Vec::new() }
    }
}

/// What is missing, for the error of a room that waited for it in vain.
pub(super) fn missing(directory: &dyn Directory, name: &str, own: &Place) -> String {
    let of_group = |name: &str| match directory.group(name) {
        GroupState::Unknown => Some(format!("group {name:?} is not known yet")),
        GroupState::NotReady { registered, announced, missing } => {
            let missing: Vec<_> = missing.iter().map(Rank::to_string).collect();
            let missing = missing.join(", ");
            Some(format!(
                "group {name:?}: {registered} of {announced} ranks are registered, missing {missing}"
            ))
        }
        GroupState::Ready(_) => None,
        GroupState::Unreachable { detail } => Some(format!("directory: {detail}")),
    };
    let ours = || (own.sizes.ranks() > 1).then(|| of_group(&own.group)).flatten();
    let found = of_group(name).or_else(ours);
    found.unwrap_or_else(|| format!("the owner of the room in group {name:?} is not known"))
}
