//! Reading pages without a reference to them: checksums, and the first bytes.

use super::MemoryError;
use super::cursor::{Body, Next};
use crate::checksum::Crc32c;
use std::ptr;

/// Adds the next `bytes` of what is left of a list to `sum`.
///
/// # Errors
/// An extent is not inside a known region.
pub(crate) fn checksum(body: Body<'_>, bytes: u64, sum: &mut Crc32c) -> Result<(), MemoryError> {
    // Copied out piece by piece into the first-level cache: pages may be written by others at any
    // moment, so no slice of them may exist, and the copy costs far less than the memory read.
    let mut piece = [0_u8; PIECE];
    body.spans(bytes, |mut span| {
        while span.len > 0 {
            let len = span.len.min(PIECE);
            // SAFETY: `span` lies inside a region kept mapped by the snapshot in `body`; `piece` is ours.
            unsafe { ptr::copy_nonoverlapping(span.start, piece.as_mut_ptr(), len) };
            sum.update(&piece[..len]);
            span = span.after(len);
        }
        Next::Go
    })
}

/// Copies the first of what is left of a list into `bytes`; returns how many there were.
///
/// # Errors
/// An extent is not inside a known region.
pub(crate) fn peek(body: Body<'_>, bytes: &mut [u8]) -> Result<usize, MemoryError> {
    let mut filled = 0;
    body.spans(bytes.len() as u64, |span| {
        // SAFETY: `span` lies inside a region kept mapped by the snapshot, and the walk gives at most
        // as many bytes as `bytes` has, which nobody else sees.
        unsafe { ptr::copy_nonoverlapping(span.start, bytes[filled..].as_mut_ptr(), span.len) };
        filled += span.len;
        Next::Go
    })?;
    Ok(filled)
}

const PIECE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::crc32c;
    use crate::ids::RegionId;
    use crate::layout::Extent;
    use crate::memory::{Cursor, HostBuffer, RegionTable};

    #[test]
    fn a_checksum_over_extents_is_that_of_their_bytes() {
        let buffer = HostBuffer::zeroed(20_000).unwrap();
        let table = RegionTable::default();
        table.insert(buffer.region(RegionId(0)));
        let bytes: Vec<u8> = (0..=250).cycle().take(20_000).collect();
        buffer.write_at(0, &bytes);
        let extent = |(offset, len)| Extent { region: RegionId(0), offset, len };
        let list = [(5, 9000), (10_000, 3), (12_000, 7000)].map(extent);
        let regions = table.snapshot();
        let mut sum = Crc32c::new();
        let mut cursor = Cursor::default();
        for step in [1, 8999, 2, 7001] {
            checksum(Body { regions: &regions, extents: &list, cursor }, step, &mut sum).unwrap();
            cursor.advance(&list, step);
        }
        let wanted = [&bytes[5..9005], &bytes[10_000..10_003], &bytes[12_000..19_000]].concat();
        assert_eq!(sum.finish(), crc32c(&wanted));
    }
}
