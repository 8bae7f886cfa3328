//! Where bytes live: regions lent to the engine, and the only code that touches them.
//!
//! - `mod.rs`: regions, and their table
//! - `mark.rs`: readiness marks of the producer
//! - `host.rs`: ordinary process memory: copies, checksums
//! - `socket.rs`: vectored socket calls straight from and into spans
//!
//! # Law
//! A region is lent by its owner through an `unsafe` call: it stays mapped until the engine reports
//! it deregistered. Its pages are written by others (a transport's thread, a peer, a device) while
//! they are lent, so nobody here makes a reference to them; bytes move by address and length, and
//! every address is checked against its region first. While a transfer holds source pages its owner
//! does not write them; while it holds destination pages its owner neither reads nor writes them.
#![allow(unsafe_code)]

use crate::ids::RegionId;
use std::any::Any;
use std::fmt;
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
    _owner: Option<Arc<dyn Any + Send + Sync>>,
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
        Self { id, kind: MemoryKind::Host, base, len, _owner: owner }
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
