//! Which entry here is which entry there.

use super::{GroupKind, PoolLayout, Role};
use crate::ids::GroupId;
use std::ops::Range;
use std::sync::Arc;

/// Two layouts matched entry by entry. Both sides compute the same one from the same two layouts:
/// pairs are sorted by (group name, layer, role), so that a pair's number means the same on both.
#[derive(Clone, Debug)]
pub struct Pairing {
    pub(crate) source: Arc<PoolLayout>,
    pub(crate) destination: Arc<PoolLayout>,
    pub(crate) pairs: Vec<Pair>,
}

/// One entry of the source and the entry of the destination that holds the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Pair {
    /// Place in the source's entries.
    pub source: u32,
    /// Place in the destination's entries.
    pub destination: u32,
    /// Group of the source's entry.
    pub source_group: GroupId,
    /// Group of the destination's entry.
    pub destination_group: GroupId,
    /// What both hold.
    pub role: Role,
    /// Their layer.
    pub layer: Option<u32>,
}

/// What the two sides describe differently.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what}: {source_value} on the prefill side, {destination_value} on the decode side")]
#[non_exhaustive]
pub struct Mismatch {
    /// The field, with group, role and layer.
    pub what: String,
    /// Its value at the source.
    pub source_value: String,
    /// Its value at the destination.
    pub destination_value: String,
}

impl Pairing {
    /// Matches two layouts of equal geometry.
    ///
    /// # Errors
    /// The first field that matters and differs, or an entry only one side has.
    pub fn new(_source: Arc<PoolLayout>, _destination: Arc<PoolLayout>) -> Result<Self, Mismatch> {
        todo!()
    }

    /// The pairs, in the order both sides number them.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The group of the destination that pairs with this group of the source.
    pub fn destination_group(&self, _source: GroupId) -> Option<GroupId> {
        todo!()
    }

    /// The group of the source that pairs with this group of the destination.
    pub fn source_group(&self, _destination: GroupId) -> Option<GroupId> {
        todo!()
    }

    /// What a group of the source holds.
    pub fn kind(&self, _source: GroupId) -> Option<GroupKind> {
        todo!()
    }

    /// The pairs of a group of the source whose layer lies in `layers` (all layers, and pairs without
    /// one, if none are named). Contiguous, since pairs are sorted by group and layer.
    pub fn pairs_of(&self, _source: GroupId, _layers: Option<&Range<u32>>) -> Range<u32> {
        todo!()
    }
}
