//! Checked reading and writing of bodies, and the tail of optional fields.

use super::header::{HEADER_BYTES, Header, Kind};
use super::{MAX_DETAIL, WireError};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;

/// Something with a place in a body.
pub(super) trait Coded: Sized {
    /// The fewest bytes a value can have; never 0. A count of values is checked against it.
    const MIN_BYTES: usize;

    fn write(&self, w: &mut Writer);

    /// Reads a value; `field` names it in errors.
    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError>;
}

/// What is left of a body.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self, field: &'static str) -> Result<u128, WireError> {
        self.array(field).map(u128::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    pub(super) fn bit(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { field, value: other.into() }),
        }
    }

    /// A number of up to 64 bits, seven a byte, low ones first; the shortest form only.
    pub(super) fn varint(&mut self, field: &'static str) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            let placed = bits << shift;
            if placed >> shift != bits || (byte == 0 && shift > 0) {
                return Err(WireError::Value { field, value: byte.into() });
            }
            value |= placed;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Value { field, value })
    }

    /// A length and as many bytes.
    pub(super) fn blob(&mut self, field: &'static str, limit: usize) -> Result<&'a [u8], WireError> {
        let claimed = self.u32(field)?;
        let length = within(field, claimed, limit)?;
        self.bytes(field, length)
    }

    /// A length and as many bytes of UTF-8.
    pub(super) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let bytes = self.blob(field, limit)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Text { field })
    }

    /// A count of things of at least `min_bytes` each, no more than can still be there: memory for so
    /// many may be reserved.
    pub(super) fn count(
        &mut self,
        field: &'static str,
        limit: usize,
        min_bytes: usize,
    ) -> Result<usize, WireError> {
        let claimed = self.u32(field)?;
        let count = within(field, claimed, limit)?;
        let needed = count.saturating_mul(min_bytes);
        if needed > self.rest.len() {
            return Err(WireError::Truncated { field, needed: wide(needed), left: self.left() });
        }
        Ok(count)
    }

    /// A count and as many values.
    pub(super) fn list<T: Coded>(&mut self, field: &'static str, limit: usize) -> Result<Vec<T>, WireError> {
        let count = self.count(field, limit, T::MIN_BYTES)?;
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(T::read(self, field)?);
        }
        Ok(values)
    }

    /// A byte that is 0 or 1, and a value after a 1.
    pub(super) fn option<T: Coded>(&mut self, field: &'static str) -> Result<Option<T>, WireError> {
        if self.bit(field)? { T::read(self, field).map(Some) } else { Ok(None) }
    }

    /// The optional fields up to the end of the body: the values of the `known` ones, in their order.
    ///
    /// # Errors
    /// A known one is there twice, an unknown one may not be skipped, or the body ends inside one.
    pub(super) fn tail<const N: usize>(
        &mut self,
        known: [u16; N],
    ) -> Result<[Option<&'a [u8]>; N], WireError> {
        let mut found = [None; N];
        while !self.rest.is_empty() {
            let number = self.u16("tail.type")?;
            let value = self.blob("tail.length", usize::MAX)?;
            let name = number & !CRITICAL;
            let place = known.iter().zip(&mut found).find(|(known, _)| **known == name);
            match place {
                Some((_, Some(_))) => return Err(WireError::DuplicateField(name)),
                Some((_, slot)) => *slot = Some(value),
                None if number & CRITICAL != 0 => return Err(WireError::CriticalField(name)),
                None => {}
            }
        }
        Ok(found)
    }

    fn bytes(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], WireError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(WireError::Truncated { field, needed: wide(length), left: self.left() });
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(WireError::Truncated { field, needed: wide(N), left: self.left() });
        };
        self.rest = rest;
        Ok(*bytes)
    }

    fn left(&self) -> u64 {
        wide(self.rest.len())
    }
}

/// A frame being written.
///
/// A length or count too large for its field is written as the largest number there is. It is over the
/// limit of every such field, so the peer refuses the frame.
#[derive(Debug)]
pub(super) struct Writer {
    frame: BytesMut,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { frame: BytesMut::zeroed(HEADER_BYTES) }
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.frame.put_u8(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.frame.put_u16_le(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.frame.put_u32_le(value);
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.frame.put_u64_le(value);
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.frame.put_u128_le(value);
    }

    pub(super) fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(super) fn varint(&mut self, value: u64) {
        let mut rest = value;
        while rest > 0x7f {
            let [low, ..] = rest.to_le_bytes();
            self.u8(low | 0x80);
            rest >>= 7;
        }
        let [low, ..] = rest.to_le_bytes();
        self.u8(low);
    }

    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.frame.put_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    /// A failure's detail, cut between two characters.
    pub(super) fn detail(&mut self, detail: &str) {
        let end = detail.floor_char_boundary(MAX_DETAIL);
        self.blob(&detail.as_bytes()[..end]);
    }

    pub(super) fn list<T: Coded>(&mut self, values: &[T]) {
        self.length(values.len());
        for value in values {
            value.write(self);
        }
    }

    pub(super) fn option<T: Coded>(&mut self, value: Option<&T>) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            value.write(self);
        }
    }

    /// An optional field of the tail that no reader may skip.
    pub(super) fn critical(&mut self, number: u16, value: &[u8]) {
        self.u16(number | CRITICAL);
        self.blob(value);
    }

    /// The frame, header included.
    pub(super) fn finish(mut self, kind: Kind) -> Bytes {
        let (head, body) = self.frame.split_at_mut(HEADER_BYTES);
        let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        head.copy_from_slice(&Header::sealed(kind, 0, body_bytes, body).encode());
        self.frame.freeze()
    }
}

impl Coded for u32 {
    const MIN_BYTES: usize = 4;

    fn write(&self, w: &mut Writer) {
        w.u32(*self);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        r.u32(field)
    }
}

impl Coded for Range<u32> {
    const MIN_BYTES: usize = 8;

    fn write(&self, w: &mut Writer) {
        w.u32(self.start);
        w.u32(self.end);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let (start, end) = (r.u32(field)?, r.u32(field)?);
        if start > end {
            return Err(WireError::Range { field, start, end });
        }
        Ok(start..end)
    }
}

/// A length in 64 bits.
pub(super) fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn within(field: &'static str, claimed: u32, limit: usize) -> Result<usize, WireError> {
    usize::try_from(claimed).ok().filter(|length| *length <= limit).ok_or(WireError::TooLarge {
        field,
        value: claimed.into(),
        limit: wide(limit),
    })
}

/// Top bit of an optional field's type: who does not know it must refuse the frame.
const CRITICAL: u16 = 0x8000;
