//! Page-aligned process memory, backed when first touched.

use super::{MemoryError, Region};
use crate::ids::RegionId;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
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

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; bytes are only copied in and out, no reference is handed out.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl HostBuffer {
    /// `len` zero bytes, at least one, aligned to a page; no memory is used until it is touched.
    ///
    /// # Errors
    /// [`MemoryError::Allocation`].
    pub fn zeroed(len: u64) -> Result<Self, MemoryError> {
        let refused = |source| MemoryError::Allocation { bytes: len, code: source };
        let size =
            usize::try_from(len.max(1)).map_err(|_| refused(rustix::io::Errno::NOMEM.raw_os_error()))?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), size, protection, flags) };
        let base = mapped.map_err(|errno| refused(errno.raw_os_error()))?.cast::<u8>();
        let base = NonNull::new(base).ok_or_else(|| refused(rustix::io::Errno::NOMEM.raw_os_error()))?;
        Ok(Self { mapping: Arc::new(Mapping { base, len: size }) })
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len as u64
    }

    /// Never: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.mapping.len == 0
    }

    /// Its first byte's address.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
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
        let to = self.place(offset, bytes.len());
        // SAFETY: `place` checked the range against the mapping, which `bytes` cannot overlap, since
        // no reference to mapped bytes exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes from `offset` to `bytes`.
    ///
    /// # Panics
    /// There are fewer.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.place(offset, bytes.len());
        // SAFETY: as in `write_at`.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// It is not inside the buffer.
    pub fn to_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        self.place(offset, len);
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes);
        bytes
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: exactly the mapping, to which no reference exists.
        unsafe { ptr::write_bytes(self.mapping.base.as_ptr(), byte, self.mapping.len) };
    }

    fn place(&self, offset: u64, len: usize) -> *mut u8 {
        let size = self.mapping.len;
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| size.checked_sub(*start).is_some_and(|left| len <= left));
        let Some(start) = start else {
            panic!("{len} bytes at {offset} are outside a buffer of {size}");
        };
        self.mapping.base.as_ptr().wrapping_add(start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: exactly what was mapped; the last owner is going.
        let unmapped = unsafe { munmap(base, self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of this type can be unmapped");
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
