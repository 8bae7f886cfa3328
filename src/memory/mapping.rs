//! A stretch of address space, unmapped with its last owner; its bytes are copied in and out.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// Mapped memory of a fixed size, at least one byte.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Bytes of address space, which may be more.
    mapped: usize,
}

// SAFETY: an address and a length; bytes are only copied in and out, no reference is handed out.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process, backed when first touched.
    pub(super) fn anonymous(len: u64) -> Result<Self, Errno> {
        let len = usize::try_from(len.max(1)).map_err(|_| Errno::NOMEM)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) };
        Self::new(mapped?, len, len)
    }

    /// `len` bytes of what `fd` stands for, shared with all who map it.
    #[cfg(feature = "shm")]
    pub(super) fn of(
        fd: std::os::fd::BorrowedFd<'_>,
        (offset, len, mapped): (u64, u64, u64),
        protection: ProtFlags,
    ) -> Result<Self, Errno> {
        let len = usize::try_from(len.max(1)).map_err(|_| Errno::NOMEM)?;
        let size = usize::try_from(mapped).map_err(|_| Errno::NOMEM)?.max(len);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), size, protection, MapFlags::SHARED, fd, offset) };
        Self::new(base?, len, size)
    }

    fn new(base: *mut c_void, len: usize, mapped: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, mapped })
    }

    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Advises the kernel about all of it.
    #[cfg(feature = "shm")]
    pub(super) fn advise(&self, advice: rustix::mm::Advice) -> Result<(), Errno> {
        self.advise_part(0, self.mapped, advice)
    }

    /// Advises the kernel about a part, whose start is that of a page.
    #[cfg(feature = "shm")]
    pub(super) fn advise_part(
        &self,
        start: usize,
        len: usize,
        advice: rustix::mm::Advice,
    ) -> Result<(), Errno> {
        let len = len.min(self.mapped.saturating_sub(start));
        let base = self.base.as_ptr().wrapping_add(start.min(self.mapped));
        // SAFETY: a part of this mapping; the kinds of advice used here change no bytes.
        unsafe { rustix::mm::madvise(base.cast(), len, advice) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// They do not fit.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8]) {
        let to = self.place(offset, bytes.len());
        // SAFETY: `place` checked the range against the mapping, which `bytes` cannot overlap, since
        // no reference to mapped bytes exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes from `offset` to `bytes`.
    ///
    /// # Panics
    /// There are fewer.
    pub(super) fn read_at(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.place(offset, bytes.len());
        // SAFETY: as in `write_at`.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// It is not inside the mapping.
    pub(super) fn to_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        self.place(offset, len);
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes);
        bytes
    }

    /// Sets every byte.
    pub(super) fn fill(&self, byte: u8) {
        // SAFETY: exactly the mapping, to which no reference exists.
        unsafe { ptr::write_bytes(self.base.as_ptr(), byte, self.len) };
    }

    fn place(&self, offset: u64, len: usize) -> *mut u8 {
        let size = self.len;
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| size.checked_sub(*start).is_some_and(|left| len <= left));
        let Some(start) = start else {
            panic!("{len} bytes at {offset} are outside a buffer of {size}");
        };
        self.base.as_ptr().wrapping_add(start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: exactly what was mapped; the last owner is going.
        let unmapped = unsafe { munmap(base, self.mapped) };
        debug_assert!(unmapped.is_ok(), "a mapping of this type can be unmapped");
    }
}
