//! What must be equal on both sides, in 16 bytes.

use super::PoolLayout;

/// A digest of everything about a layout that a peer compares: equal digests pair, unequal ones may.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "16 bytes of the wire format")]
pub struct LayoutDigest(pub [u8; 16]);

impl PoolLayout {
    /// The digest of this layout.
    pub fn digest(&self) -> LayoutDigest {
        todo!()
    }
}
