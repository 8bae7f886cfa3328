//! Why bytes are not a frame.

/// Bytes that are not a frame.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The body ends inside a field.
    #[error("{field}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The field.
        field: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Bytes left in the body.
        left: u64,
    },
    /// A value that the field cannot have.
    #[error("{field}: {value} is not allowed")]
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// A count or length beyond its limit.
    #[error("{field}: {value} is over the limit of {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A range that ends before it starts.
    #[error("{field}: {start}..{end} ends before it starts")]
    Range {
        /// The field.
        field: &'static str,
        /// Where it starts.
        start: u32,
        /// Where it ends.
        end: u32,
    },
    /// Text that is not UTF-8.
    #[error("{field}: not UTF-8")]
    Text {
        /// The field.
        field: &'static str,
    },
    /// The checksum does not match.
    #[error("checksum is {found:08x}, should be {wanted:08x}")]
    Checksum {
        /// As received.
        found: u32,
        /// As computed.
        wanted: u32,
    },
    /// Bytes behind the end of the body.
    #[error("{0} bytes behind the end")]
    Trailing(u64),
    /// An optional field that may not be skipped and is not known.
    #[error("critical field {0} is unknown")]
    CriticalField(u16),
    /// An optional field that is there twice.
    #[error("field {0} is there twice")]
    DuplicateField(u16),
    /// A version that is not spoken here.
    #[error("wire version {found}, this side speaks {spoken}")]
    Version {
        /// The peer's.
        found: u8,
        /// Ours.
        spoken: u8,
    },
}
