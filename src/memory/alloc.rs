//! Page-aligned process memory, backed when first touched.

use super::mapping::Mapping;
use super::{MemoryError, Region};
use crate::ids::RegionId;
use std::ptr::NonNull;
use std::sync::Arc;

/// Zeroed process memory for pools. Cheap to clone; unmapped with the last clone and the last
/// [`Region`] of it.
///
/// Bytes go in and out by copy. While pages are lent to an engine the module's law holds for them:
/// what is read from, or written to, pages that a transfer writes is unspecified.
///
/// ```
/// use kvferry::RegionId;
/// use kvferry::memory::HostBuffer;
///
/// let pool = HostBuffer::zeroed(1 << 20)?;
/// pool.write_at(4096, b"keys");
/// let mut back = [0; 4];
/// pool.read_at(4096, &mut back);
/// assert_eq!(&back, b"keys");
/// assert_eq!(pool.region(RegionId(0)).len(), 1 << 20);
/// # Ok::<(), kvferry::memory::MemoryError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostBuffer {
    mapping: Arc<Mapping>,
}

impl HostBuffer {
    /// `len` zero bytes, at least one, aligned to a page; no memory is used until it is touched.
    ///
    /// # Errors
    /// [`MemoryError::Allocation`].
    pub fn zeroed(len: u64) -> Result<Self, MemoryError> {
        let refused =
            |errno: rustix::io::Errno| MemoryError::Allocation { bytes: len, code: errno.raw_os_error() };
        Ok(Self { mapping: Arc::new(Mapping::anonymous(len).map_err(refused)?) })
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Never: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.mapping.len() == 0
    }

    /// Its first byte's address.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// All of it as a region that keeps it mapped.
    pub fn region(&self, id: RegionId) -> Region {
        let owner = Arc::clone(&self.mapping);
        // SAFETY: the mapping is readable and writable and lives as long as the region's owner, and
        // this type reads and writes it by copy only.
        unsafe { Region::host(id, self.base(), self.len(), Some(owner)) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// They do not fit.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) {
        self.mapping.write_at(offset, bytes);
    }

    /// Copies bytes from `offset` to `bytes`.
    ///
    /// # Panics
    /// There are fewer.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        self.mapping.read_at(offset, bytes);
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// It is not inside the buffer.
    pub fn to_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        self.mapping.to_vec(offset, len)
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        self.mapping.fill(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_neighbours_stay_zero() {
        let buffer = HostBuffer::zeroed(10_000).unwrap();
        buffer.write_at(5000, &[7; 100]);
        assert_eq!(buffer.to_vec(4999, 102), [&[0][..], &[7; 100], &[0]].concat());
        buffer.fill(9);
        assert_eq!(buffer.to_vec(0, 10_000), vec![9; 10_000]);
    }

    #[test]
    fn a_region_keeps_the_memory_mapped() {
        let buffer = HostBuffer::zeroed(64).unwrap();
        let region = buffer.region(RegionId(1));
        drop(buffer);
        assert_eq!(region.len(), 64);
    }

    #[test]
    fn sizes_beyond_the_address_space_are_an_error() {
        assert!(matches!(HostBuffer::zeroed(u64::MAX), Err(MemoryError::Allocation { .. })));
    }

    #[test]
    #[should_panic(expected = "2 bytes at 9999 are outside a buffer of 10000")]
    fn writing_past_the_end_panics() {
        HostBuffer::zeroed(10_000).unwrap().write_at(9999, &[1, 2]);
    }
}
