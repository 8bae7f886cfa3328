//! Where bytes live: regions lent to the engine, and the only code that touches them.
//!
//! - `mod.rs`: regions
//! - `table.rs`: from a region's number to its memory, with every address checked
//! - `cursor.rs`: how far an operation has come in a list of extents
//! - `mark.rs`: readiness marks of the producer
//! - `alloc.rs`: page-aligned process memory for pools
//! - `shared.rs`: memory for pools that another process can map; `room.rs`: how much there may be of it
//! - `import.rs`: memory of a peer on this host; `fetch.rs`: copies from it; `stream.rs`: the copy itself
//! - `words.rs`: a few numbers that two processes share
//! - `mapping.rs`: a stretch of address space, unmapped with its last owner
//! - `host.rs`: ordinary process memory: copies
//! - `read.rs`: checksums of pages
//! - `socket.rs`: vectored socket calls straight from and into extents
//!
//! # Law
//! A region is lent by its owner through an `unsafe` call: it stays mapped until the engine reports
//! it deregistered. Its pages are written by others (a transport's thread, a peer, a device) while
//! they are lent, so nobody here makes a reference to them; bytes move by address and length, and
//! every address is checked against its region first. While a transfer holds source pages its owner
//! does not write them; while it holds destination pages its owner neither reads nor writes them.
#![allow(unsafe_code)]

mod alloc;
mod cursor;
#[cfg(feature = "shm")]
pub(crate) mod fetch;
pub(crate) mod host;
#[cfg(feature = "shm")]
pub(crate) mod import;
mod mapping;
mod mark;
#[cfg(feature = "tcp")]
pub(crate) mod read;
#[cfg(feature = "shm")]
mod room;
#[cfg(feature = "shm")]
mod shared;
#[cfg(feature = "tcp")]
mod socket;
#[cfg(feature = "shm")]
mod stream;
mod table;
#[cfg(feature = "shm")]
pub(crate) mod words;

pub use alloc::HostBuffer;
pub(crate) use cursor::{Body, Cursor};
pub use mark::{HostTrigger, Mark};
#[cfg(feature = "shm")]
pub use shared::{Pages, SharedBuffer};
#[cfg(feature = "tcp")]
pub(crate) use socket::{MAX_VECTORS, SocketError, Vectors};
pub(crate) use table::{RegionTable, Regions};

use crate::ids::RegionId;
use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What kind of memory a region is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary process memory.
    Host,
    /// Memory of a CUDA device.
    Cuda {
        /// The device's ordinal in this process.
        device: u32,
    },
}

/// A stretch of memory lent to an engine. Cheap to clone; clones keep the owner alive.
#[derive(Clone)]
pub struct Region {
    id: RegionId,
    kind: MemoryKind,
    base: NonNull<u8>,
    len: u64,
    descriptor: Option<Descriptor>,
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// What another process can map to see the bytes of a region.
#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    /// The memory's descriptor.
    pub(crate) fd: Arc<OwnedFd>,
    /// Where the region starts in it.
    pub(crate) offset: u64,
}

/// Memory that cannot be used as asked.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The operating system gives no memory.
    #[error("{bytes} bytes of memory refused: {}", std::io::Error::from_raw_os_error(*.code))]
    Allocation {
        /// What was asked for.
        bytes: u64,
        /// The error's number.
        code: i32,
    },
    /// More shared memory than there is room for. Nothing was taken.
    #[error("{bytes} bytes of shared memory asked for, {available} available")]
    NoRoom {
        /// What was asked for.
        bytes: u64,
        /// What is left, as far as the system tells.
        available: u64,
    },
    /// Bytes outside their region.
    #[error("{len} bytes at {offset} are outside a region of {size}")]
    OutOfRange {
        /// Where they start.
        offset: u64,
        /// How many.
        len: u64,
        /// The region's bytes.
        size: u64,
    },
    /// A region that was not registered.
    #[error("region {} is not registered", .0.0)]
    UnknownRegion(RegionId),
}

// SAFETY: an address and a length; the bytes are only touched by this module, under its law.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Process memory at `base..base + len`. `owner`, if given, is kept until the last clone is gone.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until every clone is gone, and its owner keeps
    /// the module's law about lent pages.
    pub unsafe fn host(
        id: RegionId,
        base: NonNull<u8>,
        len: u64,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self { id, kind: MemoryKind::Host, base, len, descriptor: None, _owner: owner }
    }

    /// Process memory that is a mapping of `fd` from `offset` on, so that peers on this host can map it
    /// too. They read it only, and only if it cannot shrink: a memory file needs the seal
    /// `F_SEAL_SHRINK`. What cannot be mapped by them is treated as ordinary process memory.
    ///
    /// # Safety
    /// As for [`host`](Self::host), and the mapping is shared and of this descriptor at this offset.
    pub unsafe fn shared(
        id: RegionId,
        base: NonNull<u8>,
        len: u64,
        (fd, offset): (Arc<OwnedFd>, u64),
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let descriptor = Some(Descriptor { fd, offset });
        Self { id, kind: MemoryKind::Host, base, len, descriptor, _owner: owner }
    }

    /// Its number in its engine.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// What memory it is.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Its first byte's address.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it is a mapping of, if that is known.
    #[cfg(feature = "shm")]
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_ref()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} {} {:p}+{})", self.id.0, self.kind, self.base, self.len)
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda { device } => write!(f, "cuda:{device}"),
        }
    }
}
