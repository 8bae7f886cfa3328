//! Bodies of link and room frames.

use super::{Frame, WireError};
use bytes::Bytes;

impl Frame {
    /// The whole frame, header included.
    pub fn encode(&self) -> Bytes {
        todo!()
    }

    /// Reads one whole frame, header included.
    ///
    /// # Errors
    /// The bytes are not a control frame of this version.
    pub fn decode(_bytes: &Bytes) -> Result<Self, WireError> {
        todo!()
    }
}
