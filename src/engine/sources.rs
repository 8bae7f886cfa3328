//! Where a receiver's KV comes from.

use super::usage::UsageError;
use crate::bootstrap::{Directory, GroupInfo, GroupState};
use crate::error::{ErrorKind, Fault};
use crate::ids::{GroupSizes, Instance, Rank, Room};
use crate::layout::Share;
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
}

impl Sources {
    /// All KV from the group of this name.
    pub fn group(name: impl Into<String>) -> Self {
        Self::Group { name: name.into(), dp: None }
    }

    /// Whether a receiver can be made of them.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let Self::Ranks(sources) = self else { return Ok(()) };
        if sources.is_empty() {
            return Err(UsageError::NoSources);
        }
        let mut ranks = BTreeSet::new();
        if let Some(twice) = sources.iter().find(|source| !ranks.insert(source.rank)) {
            return Err(UsageError::DuplicateSource(twice.rank));
        }
        let impossible = |source: &Source| source.share.as_ref()?.check().err();
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
        Self { rank, instance: None, addresses, share: Some(Share::WHOLE) }
    }
}

/// The ranks that feed `rank` of a group of `sizes`, or why they are not known: `Ok(None)` means not yet.
pub(super) fn resolve(
    directory: &dyn Directory,
    name: &str,
    dp: Option<u32>,
    room: Room,
    rank: Rank,
    sizes: GroupSizes,
) -> Result<Option<Vec<Source>>, Fault> {
    let GroupState::Ready(info) = directory.group(name) else { return Ok(None) };
    let dp = match dp {
        Some(dp) => dp,
        None if info.sizes.dp == 1 => 0,
        None => match directory.owner(name, room) {
            Some(dp) => dp,
            None => return Ok(None),
        },
    };
    feeding(&info, dp, rank, sizes).map(Some)
}

/// What is missing, for the error of a room that waited for it in vain.
pub(super) fn missing(directory: &dyn Directory, name: &str) -> String {
    match directory.group(name) {
        GroupState::Unknown => format!("group {name:?} is not known yet"),
        GroupState::NotReady { registered, announced, missing } => {
            let missing: Vec<_> = missing.iter().map(Rank::to_string).collect();
            format!(
                "group {name:?}: {registered} of {announced} ranks are registered, missing {}",
                missing.join(", ")
            )
        }
        GroupState::Ready(_) => format!("the owner of the room in group {name:?} is not known"),
        GroupState::Unreachable { detail } => format!("directory: {detail}"),
    }
}

/// Equal sizes on the three axes that cut a request: each rank is fed by its twin.
fn feeding(info: &GroupInfo, dp: u32, rank: Rank, sizes: GroupSizes) -> Result<Vec<Source>, Fault> {
    let GroupInfo { name, sizes: theirs, .. } = info;
    if dp >= theirs.dp {
        let detail =
            format!("wrong rank: dp{dp} of group {name:?}, which has {} data parallel ranks", theirs.dp);
        return Err(Fault::new(ErrorKind::Bootstrap, detail));
    }
    if (theirs.pp, theirs.cp, theirs.tp) != (sizes.pp, sizes.cp, sizes.tp) {
        let detail = format!(
            "parallel sizes: {theirs} on the prefill side, {sizes} on the decode side; name the sources"
        );
        return Err(Fault::new(ErrorKind::Layout, detail));
    }
    let twin = Rank { dp, ..rank };
    let record = info.ranks.iter().find(|record| record.rank == twin);
    let record = record
        .ok_or_else(|| Fault::new(ErrorKind::Bootstrap, format!("group {name:?} has no rank {twin}")))?;
    let mut source = Source::new(twin, record.addresses.clone());
    source.instance = Some(record.instance);
    Ok(vec![source])
}
