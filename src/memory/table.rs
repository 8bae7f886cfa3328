//! From a region's number to its memory, with every address checked.

use super::{MemoryError, Region};
use crate::ids::RegionId;
use crate::layout::Extent;
use parking_lot::RwLock;
use std::sync::Arc;

/// The regions of one transport. Readers take a snapshot, so that threads which move bytes hold no
/// lock and keep what they use alive.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    current: RwLock<Arc<Regions>>,
}

/// Regions at one moment, sorted by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    sorted: Vec<Region>,
}

/// Checked memory: `len` bytes from `start` lie inside a region that the snapshot keeps mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) len: usize,
}

/// Looks extents up; remembers the last region, since neighbours mostly share one.
#[derive(Debug)]
pub(super) struct Resolver<'a> {
    regions: &'a Regions,
    last: Option<&'a Region>,
}

impl RegionTable {
    /// Adds a region; one with the same number is replaced.
    pub(crate) fn insert(&self, region: Region) {
        let mut current = self.current.write();
        let sorted = &mut Arc::make_mut(&mut current).sorted;
        match sorted.binary_search_by_key(&region.id(), Region::id) {
            Ok(at) => sorted[at] = region,
            Err(at) => sorted.insert(at, region),
        }
    }

    /// Forgets a region.
    pub(crate) fn remove(&self, id: RegionId) {
        let mut current = self.current.write();
        if let Ok(at) = current.sorted.binary_search_by_key(&id, Region::id) {
            Arc::make_mut(&mut current).sorted.remove(at);
        }
    }

    /// The regions as they are now.
    pub(crate) fn snapshot(&self) -> Arc<Regions> {
        Arc::clone(&self.current.read())
    }
}

impl Regions {
    /// The region with this number.
    #[cfg(feature = "shm")]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Region> {
        let found = self.sorted.binary_search_by_key(&id, Region::id);
        found.ok().and_then(|at| self.sorted.get(at))
    }

    /// All of them.
    #[cfg(feature = "shm")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.sorted.iter()
    }

    /// Checks every extent and returns their bytes.
    ///
    /// # Errors
    /// The first extent that is not inside a known region.
    pub(crate) fn check(&self, extents: &[Extent]) -> Result<u64, MemoryError> {
        let mut resolver = Resolver::new(self);
        let mut bytes = 0_u64;
        for extent in extents {
            resolver.span(extent, 0, extent.len)?;
            // Each length is at most an address space; only absurdly many could overflow.
            bytes = bytes.saturating_add(extent.len);
        }
        Ok(bytes)
    }
}

impl Span {
    /// What follows the first `bytes`, which must be inside.
    pub(super) fn after(self, bytes: usize) -> Self {
        Self { start: self.start.wrapping_add(bytes), len: self.len - bytes }
    }
}

impl<'a> Resolver<'a> {
    pub(super) fn new(regions: &'a Regions) -> Self {
        Self { regions, last: None }
    }

    /// The memory of `len` bytes from `skip` on in `extent`; the whole extent is checked.
    pub(super) fn span(&mut self, extent: &Extent, skip: u64, len: u64) -> Result<Span, MemoryError> {
        let region = match self.last {
            Some(region) if region.id() == extent.region => region,
            _ => self.find(extent.region)?,
        };
        self.last = Some(region);
        let out_of_range =
            MemoryError::OutOfRange { offset: extent.offset, len: extent.len, size: region.len() };
        let inside = extent.offset.checked_add(extent.len).is_some_and(|end| end <= region.len())
            && skip.checked_add(len).is_some_and(|end| end <= extent.len);
        let offset = usize::try_from(extent.offset.wrapping_add(skip)).ok();
        match (inside, offset, usize::try_from(len)) {
            (true, Some(offset), Ok(len)) => {
                Ok(Span { start: region.base().as_ptr().wrapping_add(offset), len })
            }
            _ => Err(out_of_range),
        }
    }

    fn find(&self, id: RegionId) -> Result<&'a Region, MemoryError> {
        let sorted = &self.regions.sorted;
        match sorted.binary_search_by_key(&id, Region::id) {
            Ok(at) => Ok(&sorted[at]),
            Err(_) => Err(MemoryError::UnknownRegion(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostBuffer;

    fn table(regions: &[(u32, u64)]) -> RegionTable {
        let table = RegionTable::default();
        for &(id, len) in regions {
            table.insert(HostBuffer::zeroed(len).unwrap().region(RegionId(id)));
        }
        table
    }

    fn extent(region: u32, offset: u64, len: u64) -> Extent {
        Extent { region: RegionId(region), offset, len }
    }

    #[test]
    fn extents_inside_their_regions_are_summed() {
        let table = table(&[(7, 4096), (1, 100)]);
        let extents = [extent(7, 0, 4096), extent(1, 99, 1), extent(1, 100, 0)];
        assert_eq!(table.snapshot().check(&extents), Ok(4097));
    }

    #[test]
    fn extents_outside_are_refused_by_name_and_size() {
        let table = table(&[(7, 4096)]);
        let regions = table.snapshot();
        assert_eq!(regions.check(&[extent(8, 0, 1)]), Err(MemoryError::UnknownRegion(RegionId(8))));
        for (offset, len) in [(4096, 1), (4095, 2), (u64::MAX, 2), (1, u64::MAX), (0, 1 << 32)] {
            let wanted = MemoryError::OutOfRange { offset, len, size: 4096 };
            assert_eq!(regions.check(&[extent(7, offset, len)]), Err(wanted));
        }
    }

    #[test]
    fn offsets_above_4_gib_resolve() {
        let table = table(&[(0, (4 << 30) + 8192)]);
        assert_eq!(table.snapshot().check(&[extent(0, (4 << 30) - 4096, 8192)]), Ok(8192));
        assert!(table.snapshot().check(&[extent(0, (4 << 30) + 4096, 4097)]).is_err());
    }

    #[test]
    fn a_snapshot_outlives_removal() {
        let table = table(&[(3, 64)]);
        let before = table.snapshot();
        table.remove(RegionId(3));
        assert_eq!(before.check(&[extent(3, 0, 64)]), Ok(64));
        assert!(table.snapshot().check(&[extent(3, 0, 64)]).is_err());
    }
}
