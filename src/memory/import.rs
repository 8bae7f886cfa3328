//! Memory of a peer on this host, as it is read from here.
//!
//! # Law
//! What a peer hands out is mapped for reading only, after it is known that it cannot shrink: reading it
//! can then never fail. A place in the peer's own memory is a number here and is given to the kernel only.
//! Every run is checked against the region it is said to lie in, as with memory of ours. The peer may write
//! what is read at any moment: what came of it counts only once the lease is seen to be still good.

use super::MemoryError;
use super::mapping::Mapping;
use crate::ids::RegionId;
use crate::layout::Extent;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The regions of one peer, sorted by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Imports {
    sorted: Vec<(RegionId, Import)>,
}

/// One region of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    place: Place,
    len: u64,
}

#[derive(Clone, Debug)]
enum Place {
    /// Mapped here; the region starts so many bytes into it.
    Mapped(Arc<Mapping>, usize),
    /// At this address of the peer's own.
    Remote(u64),
}

/// Where the bytes of a run are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    Mapped(*const u8),
    Remote(u64),
}

/// A region that cannot be read from here.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ImportError {
    #[error("{len} bytes at {offset} are outside a file of {size}")]
    OutOfFile { offset: u64, len: u64, size: u64 },
    #[error("{len} bytes at {address:#x} are no memory")]
    OutOfSpace { address: u64, len: u64 },
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*.code))]
    System { call: &'static str, code: i32 },
    #[error("its file could shrink")]
    Unsealed,
}

impl Imports {
    /// Adds a region; one with the same number is replaced.
    pub(crate) fn insert(&mut self, id: RegionId, import: Import) {
        match self.sorted.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.sorted[at].1 = import,
            Err(at) => self.sorted.insert(at, (id, import)),
        }
    }

    pub(crate) fn remove(&mut self, id: RegionId) {
        self.sorted.retain(|(other, _)| *other != id);
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Import> {
        self.sorted.iter().map(|(_, import)| import)
    }

    pub(super) fn find(&self, id: RegionId) -> Result<&Import, MemoryError> {
        match self.sorted.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => Ok(&self.sorted[at].1),
            Err(_) => Err(MemoryError::UnknownRegion(id)),
        }
    }
}

impl Import {
    /// Maps `len` bytes at `offset` of a peer's descriptor.
    pub(crate) fn mapped(fd: &OwnedFd, offset: u64, len: u64) -> Result<Self, ImportError> {
        let (mapping, skip) = map(fd, offset, len)?;
        Ok(Self { place: Place::Mapped(Arc::new(mapping), skip), len })
    }

    /// `len` bytes at an address of the peer's.
    pub(crate) fn remote(address: u64, len: u64) -> Result<Self, ImportError> {
        match address.checked_add(len) {
            Some(end) if address > 0 && end <= i64::MAX as u64 => {
                Ok(Self { place: Place::Remote(address), len })
            }
            _ => Err(ImportError::OutOfSpace { address, len }),
        }
    }

    /// Sets up page tables for a part of it, so that copies need not; whether there is more to do.
    pub(crate) fn populate(&self, part: u64) -> bool {
        let Place::Mapped(mapping, _) = &self.place else { return false };
        let start = part.saturating_mul(POPULATED);
        let left = mapping.len().saturating_sub(start);
        let (Ok(at), Ok(len)) = (usize::try_from(start), usize::try_from(POPULATED)) else { return false };
        // Copies fault pages in where this is not done or not known to the kernel.
        left > 0 && mapping.advise_part(at, len, Advice::LinuxPopulateRead).is_ok() && left > POPULATED
    }

    /// Where `extent` goes on after `skip` bytes; all of it is checked.
    pub(super) fn run(&self, extent: &Extent, skip: u64) -> Result<Run, MemoryError> {
        let is_inside = extent.offset.checked_add(extent.len).is_some_and(|end| end <= self.len);
        let at = usize::try_from(extent.offset.wrapping_add(skip));
        match (&self.place, at) {
            (Place::Mapped(mapping, start), Ok(at)) if is_inside && skip <= extent.len => {
                Ok(Run::Mapped(mapping.base().as_ptr().wrapping_add(start + at)))
            }
            (Place::Remote(address), Ok(_)) if is_inside && skip <= extent.len => {
                Ok(Run::Remote(address + extent.offset + skip))
            }
            _ => Err(MemoryError::OutOfRange { offset: extent.offset, len: extent.len, size: self.len }),
        }
    }
}

/// Maps `len` bytes at `offset` of a file that cannot shrink, for reading; and where in the mapping they
/// start.
pub(super) fn map(fd: &OwnedFd, offset: u64, len: u64) -> Result<(Mapping, usize), ImportError> {
    let failed = |call| move |errno: Errno| ImportError::System { call, code: errno.raw_os_error() };
    if !is_sealed(fd) {
        return Err(ImportError::Unsealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(failed("fstat"))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let out_of_file = ImportError::OutOfFile { offset, len, size };
    if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(out_of_file);
    }
    let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(rustix::param::page_size() as u64);
    let start = offset - offset % page;
    let skip = usize::try_from(offset - start).map_err(|_| out_of_file.clone())?;
    let len = offset - start + len;
    let rounded = len.checked_next_multiple_of(page).unwrap_or(len).min(size - start);
    let mapping = Mapping::of(fd.as_fd(), (start, len, rounded), ProtFlags::READ).map_err(failed("mmap"))?;
    Ok((mapping, skip))
}

/// Whether a file will stay as large as it is.
pub(crate) fn is_sealed(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Bytes whose page tables are set up in one go.
const POPULATED: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedBuffer;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn descriptor(buffer: &SharedBuffer) -> OwnedFd {
        buffer.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_could_shrink_or_is_too_short_is_refused() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 8192).unwrap();
        assert_eq!(Import::mapped(&fd, 0, 4096).unwrap_err(), ImportError::Unsealed);
        let fd = descriptor(&SharedBuffer::zeroed(8192).unwrap());
        for (offset, len) in [(0, 8193), (8192, 1), (4096, 4097), (u64::MAX, 2), (1, u64::MAX), (0, 0)] {
            let refused = Import::mapped(&fd, offset, len).unwrap_err();
            assert_eq!(refused, ImportError::OutOfFile { offset, len, size: 8192 });
        }
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(Import::mapped(&socket.into(), 0, 1).unwrap_err(), ImportError::Unsealed);
    }

    #[test]
    fn runs_outside_their_region_are_refused() {
        let buffer = SharedBuffer::zeroed(3 * 4096).unwrap();
        buffer.write_at(5000, b"keys");
        let mapped = Import::mapped(&descriptor(&buffer), 4996, 5000).unwrap();
        let remote = Import::remote(4096, 5000).unwrap();
        for import in [mapped, remote] {
            let extent = |offset, len| Extent { region: RegionId(0), offset, len };
            assert!(import.run(&extent(0, 5000), 5000).is_ok());
            for (offset, len, skip) in
                [(0, 5001, 0), (5000, 1, 0), (4999, 2, 0), (u64::MAX, 2, 0), (0, 10, 11), (1, u64::MAX, 0)]
            {
                assert!(import.run(&extent(offset, len), skip).is_err(), "{offset} {len} {skip}");
            }
            if let Ok(Run::Mapped(start)) = import.run(&extent(3, 3), 1) {
                // SAFETY: one byte inside the mapping, which nobody writes now.
                assert_eq!(unsafe { start.read() }, b'k');
            }
        }
    }

    #[test]
    fn addresses_that_wrap_are_refused() {
        for (address, len) in [(0, 1), (u64::MAX, 1), (1 << 63, 1), (4096, u64::MAX)] {
            assert_eq!(Import::remote(address, len).unwrap_err(), ImportError::OutOfSpace { address, len });
        }
    }

    #[test]
    fn populating_ends_with_the_mapping() {
        let import = Import::mapped(&descriptor(&SharedBuffer::zeroed(20 << 20).unwrap()), 0, 20 << 20);
        let import = import.unwrap();
        assert!(import.populate(0), "16 MiB of 20");
        assert!(!import.populate(1) && !import.populate(2) && !import.populate(u64::MAX));
    }
}
