//! A few numbers that two processes share: one writes them, the other reads.

use super::import::{self, ImportError};
use super::mapping::Mapping;
use super::{MemoryError, SharedBuffer};
use crate::sync::AtomicU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Numbers of ours that a peer can read.
#[derive(Debug)]
pub(crate) struct Words {
    memory: SharedBuffer,
    count: usize,
}

/// Numbers of a peer.
#[derive(Debug)]
pub(crate) struct PeerWords {
    mapping: Arc<Mapping>,
    first: usize,
    count: usize,
}

impl Words {
    /// `count` zeroes.
    pub(crate) fn new(count: usize) -> Result<Self, MemoryError> {
        let bytes = count as u64 * BYTES;
        Ok(Self { memory: SharedBuffer::zeroed(bytes)?, count })
    }

    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: a page-aligned mapping of at least so many words that lives as long as `self`; all who
        // have it mapped use it as atomic words only.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().cast(), self.count) }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl PeerWords {
    /// Maps `count` words of a peer.
    pub(crate) fn map(fd: &OwnedFd, count: usize) -> Result<Self, ImportError> {
        let mapping = import::map(fd, 0, count as u64 * BYTES)?.0;
        Ok(Self { mapping: Arc::new(mapping), first: 0, count })
    }

    /// All but the first `words`, at most all.
    pub(crate) fn skip(self, words: usize) -> Self {
        let words = words.min(self.count);
        Self { first: self.first + words, count: self.count - words, ..self }
    }

    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: as in `Words`; the mapping can only be read, and so it is. Its size is sealed.
        unsafe {
            std::slice::from_raw_parts(
                self.mapping.base().as_ptr().cast::<AtomicU64>().wrapping_add(self.first),
                self.count,
            )
        }
    }
}

const BYTES: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering::SeqCst;

    #[test]
    fn a_peer_sees_what_is_stored() {
        let words = Words::new(1000).unwrap();
        let fd = words.as_fd().try_clone_to_owned().unwrap();
        let seen = PeerWords::map(&fd, 1000).unwrap();
        words.as_slice()[999].store(7, SeqCst);
        assert_eq!(seen.as_slice()[999].load(SeqCst), 7);
        assert!(PeerWords::map(&fd, 1025).is_err(), "more than there are");
    }
}
