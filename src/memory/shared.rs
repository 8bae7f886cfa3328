//! Memory for pools that another process can map.
//!
//! A memory file without a name: nothing of it is left behind by a process that ends in whatever way. Its
//! space is taken when it is made, so that too little of it is an error then and never a bus error later.
//! It is sealed: nobody can shrink, grow or punch holes in it, and who is handed the descriptor can map it
//! for reading only.

use super::mapping::Mapping;
use super::{MemoryError, Region, room};
use crate::ids::RegionId;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Zeroed memory for pools, which peers on this host read where it lies. Cheap to clone; freed with the last
/// clone, the last [`Region`] of it and the last peer that has it mapped.
///
/// Bytes go in and out by copy, as with [`HostBuffer`](super::HostBuffer). A forked child sees the same
/// bytes, not a copy of them.
///
/// ```
/// use kvferry::RegionId;
/// use kvferry::memory::SharedBuffer;
///
/// let pool = SharedBuffer::zeroed(1 << 20)?;
/// pool.write_at(4096, b"keys");
/// assert_eq!(pool.to_vec(4096, 4), b"keys");
/// assert_eq!(pool.region(RegionId(0)).len(), 1 << 20);
/// # Ok::<(), kvferry::memory::MemoryError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    mapping: Arc<Mapping>,
    fd: Arc<OwnedFd>,
}

/// What a [`SharedBuffer`] is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the usual size.
    #[default]
    Small,
    /// Larger pages where the kernel has them at hand and allows it, else small ones.
    Transparent,
    /// Huge pages of the system's default size, which must have been set aside.
    Huge,
}

impl SharedBuffer {
    /// `len` zero bytes, at least one, on small pages.
    ///
    /// # Errors
    /// As [`with_pages`](Self::with_pages).
    pub fn zeroed(len: u64) -> Result<Self, MemoryError> {
        Self::with_pages(len, Pages::Small)
    }

    /// `len` zero bytes, at least one. All of them are backed by memory from the start.
    ///
    /// # Errors
    /// [`MemoryError::NoRoom`] if there is less memory, or the process may make no such file;
    /// [`MemoryError::Allocation`] if the system refuses for another reason.
    pub fn with_pages(len: u64, pages: Pages) -> Result<Self, MemoryError> {
        let len = len.max(1);
        let refused = |errno: Errno| MemoryError::Allocation { bytes: len, code: errno.raw_os_error() };
        let no_room = |available| MemoryError::NoRoom { bytes: len, available };
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let (mut available, mut page) = (room::available(), rustix::param::page_size() as u64);
        if pages == Pages::Huge {
            flags |= MemfdFlags::HUGETLB;
            let (free, size) = room::huge().ok_or(no_room(0))?;
            (available, page) = (Some(free), size);
        }
        let size = len.checked_next_multiple_of(page).ok_or(refused(Errno::NOMEM))?;
        let limits = available.into_iter().chain(room::largest_file());
        if let Some(limit) = limits.min().filter(|limit| size > *limit) {
            return Err(no_room(limit));
        }
        let fd = rustix::fs::memfd_create("kvferry", flags).map_err(refused)?;
        rustix::fs::ftruncate(&fd, size).map_err(refused)?;
        let place = (0, len, size);
        let mapping = Mapping::of(fd.as_fd(), place, ProtFlags::READ | ProtFlags::WRITE).map_err(
            |errno| match errno {
                Errno::NOMEM => no_room(available.unwrap_or(0)),
                errno => refused(errno),
            },
        )?;
        if pages == Pages::Transparent {
            // Both are wishes: what is missing afterwards is taken below, in small pages.
            let _ = mapping.advise(Advice::LinuxHugepage);
            let _ = mapping.advise(Advice::LinuxPopulateWrite);
        }
        reserve(&fd, size).map_err(|errno| match errno {
            Errno::NOMEM | Errno::NOSPC | Errno::FBIG => no_room(room::available().unwrap_or(0)),
            errno => refused(errno),
        })?;
        seal(&fd).map_err(refused)?;
        // Page tables for what is there already; without them the first touch of each page costs more.
        let _ = mapping.advise(Advice::LinuxPopulateWrite);
        Ok(Self { mapping: Arc::new(mapping), fd: Arc::new(fd) })
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
        let descriptor = (Arc::clone(&self.fd), 0);
        // SAFETY: the mapping is one of this descriptor from its start, readable and writable, and lives as
        // long as the region's owner; this type reads and writes it by copy only.
        unsafe { Region::shared(id, self.base(), self.len(), descriptor, Some(owner)) }
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

impl AsFd for SharedBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes the space of the whole file now.
fn reserve(fd: &OwnedFd, size: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size) {
            Err(Errno::INTR) => {}
            // Huge pages of a mapping are set aside with it.
            Err(Errno::OPNOTSUPP) => return Ok(()),
            other => return other,
        }
    }
}

/// From now on its size stands and nobody else can get write access.
fn seal(fd: &OwnedFd) -> Result<(), Errno> {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    match rustix::fs::fcntl_add_seals(fd, size | SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        // Kernels before 5.1 do not know it; the descriptor is handed out for reading only.
        Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(fd, size | SealFlags::SEAL),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, mmap, munmap};

    #[test]
    fn bytes_come_back_and_neighbours_stay_zero() {
        for pages in [Pages::Small, Pages::Transparent] {
            let buffer = SharedBuffer::with_pages(10_000, pages).unwrap();
            buffer.write_at(5000, &[7; 100]);
            assert_eq!(buffer.to_vec(4999, 102), [&[0][..], &[7; 100], &[0]].concat());
            buffer.fill(9);
            assert_eq!((buffer.len(), buffer.to_vec(0, 10_000)), (10_000, vec![9; 10_000]));
        }
    }

    #[test]
    fn more_than_there_is_is_an_error_that_names_both_numbers() {
        let error = SharedBuffer::zeroed(1 << 50).unwrap_err();
        let MemoryError::NoRoom { bytes, available } = error else { panic!("{error}") };
        assert!(bytes == 1 << 50 && available > 0 && available < bytes, "{error}");
        assert!(matches!(SharedBuffer::zeroed(u64::MAX), Err(MemoryError::Allocation { .. })));
    }

    #[test]
    fn huge_pages_that_were_not_set_aside_are_an_error() {
        let (free, size) = room::huge().unwrap_or_default();
        let error = SharedBuffer::with_pages(free + size.max(1), Pages::Huge).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { available, .. } if available == free), "{error}");
    }

    #[test]
    fn it_can_neither_be_shrunk_nor_punched_nor_mapped_for_writing() {
        let buffer = SharedBuffer::zeroed(1 << 16).unwrap();
        assert_eq!(rustix::fs::ftruncate(&buffer, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&buffer, 1 << 20), Err(Errno::PERM));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&buffer, hole, 0, 4096), Err(Errno::PERM));
        let map = |protection| {
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            unsafe { mmap(std::ptr::null_mut(), 1 << 16, protection, MapFlags::SHARED, &buffer, 0) }
        };
        assert_eq!(map(ProtFlags::WRITE), Err(Errno::PERM));
        let seen = map(ProtFlags::READ).unwrap();
        buffer.write_at(3, &[42]);
        // SAFETY: inside the mapping made above, which nobody else touches now.
        assert_eq!(unsafe { seen.cast::<u8>().wrapping_add(3).read() }, 42);
        // SAFETY: exactly that mapping.
        unsafe { munmap(seen, 1 << 16) }.unwrap();
    }

    #[test]
    fn a_region_knows_what_it_is_a_mapping_of() {
        let buffer = SharedBuffer::zeroed(64).unwrap();
        let region = buffer.region(RegionId(1));
        drop(buffer);
        assert_eq!((region.len(), region.descriptor().map(|descriptor| descriptor.offset)), (64, Some(0)));
    }
}
