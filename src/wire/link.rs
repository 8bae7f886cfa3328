//! Bodies of link frames.

use super::codec::{Coded, Reader, Writer};
use super::{MAX_KEY, MAX_NAME, MAX_REGIONS, WireError};
use crate::ids::{GroupSizes, Instance, Rank, RegionId};
use crate::layout::PoolLayout;
use bytes::Bytes;

/// Who a process is.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | `features` |
/// | 8 | 16 | `instance` |
/// | 24 | 16 | `rank`: dp, pp, cp, tp |
/// | 40 | 16 | `sizes`: dp, pp, cp, tp; each above the rank's |
/// | 56 | 4 + n | `group` |
/// | | 4 + n | `model` |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Hello {
    /// Optional abilities, one bit each; both sides use those they share.
    pub features: u64,
    /// This start of the process.
    pub instance: Instance,
    /// The group's name, as in the directory.
    pub group: String,
    /// Place in the group.
    pub rank: Rank,
    /// Sizes of the group.
    pub sizes: GroupSizes,
    /// The model served; must be equal on both sides.
    pub model: String,
}

/// Pools, and the keys that let the peer write to them.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | `epoch` |
/// | 4 | 4 + n groups | `layout.groups` |
/// | | 4 + n entries | `layout.entries` |
/// | | 4 + n keys | `keys`: region (4), key (4 + n) of each |
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Layout {
    /// Counts the layouts of this instance; grants name it.
    pub epoch: u32,
    /// The pools. Decoding does not check that they make sense.
    pub layout: PoolLayout,
    /// A transport's keys of the regions, empty for two-sided transports.
    pub keys: Vec<(RegionId, Bytes)>,
}

impl Hello {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.features);
        self.instance.write(w);
        self.rank.write(w);
        self.sizes.write(w);
        w.text(&self.group);
        w.text(&self.model);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let features = r.u64("hello.features")?;
        let instance = Instance::read(r, "hello.instance")?;
        let rank = Rank::read(r, "hello.rank")?;
        let sizes = GroupSizes::read(r, "hello.sizes")?;
        let places = [
            ("hello.rank.dp", rank.dp, sizes.dp),
            ("hello.rank.pp", rank.pp, sizes.pp),
            ("hello.rank.cp", rank.cp, sizes.cp),
            ("hello.rank.tp", rank.tp, sizes.tp),
        ];
        if let Some((field, index, _)) = places.into_iter().find(|(_, index, size)| index >= size) {
            return Err(WireError::Value { field, value: index.into() });
        }
        let group = r.text("hello.group", MAX_NAME)?;
        let model = r.text("hello.model", MAX_NAME)?;
        Ok(Self { features, instance, group, rank, sizes, model })
    }
}

impl Layout {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u32(self.epoch);
        self.layout.write(w);
        w.length(self.keys.len());
        for (region, key) in &self.keys {
            region.write(w);
            w.blob(key);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, WireError> {
        let epoch = r.u32("layout.epoch")?;
        let layout = PoolLayout::read(r, "layout")?;
        let count = r.count("layout.keys", MAX_REGIONS, MIN_KEY_BYTES)?;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            let region = RegionId::read(r, "layout.key.region")?;
            keys.push((region, whole.slice_ref(r.blob("layout.key", MAX_KEY)?)));
        }
        Ok(Self { epoch, layout, keys })
    }
}

/// A region and the length of its key.
const MIN_KEY_BYTES: usize = 8;
