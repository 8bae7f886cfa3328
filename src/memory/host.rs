//! Ordinary process memory: copies between extents, checksums over extents.

use super::cursor::{Body, Next};
use super::table::Span;
use super::{MemoryError, MemoryKind};
use crate::checksum::Crc32c;
use std::ptr;

/// Copies at most `limit` bytes from what is left of one list to what is left of another; both must
/// be of host memory. Returns the bytes copied: the smallest of the three.
///
/// # Errors
/// An extent is not inside a known region; some bytes before it may have been copied.
pub(crate) fn copy(from: Body<'_>, to: Body<'_>, limit: u64) -> Result<u64, MemoryError> {
    let mut sources = Vec::new();
    from.spans(limit, |span| {
        sources.push(span);
        Next::Go
    })?;
    let mut sources = sources.into_iter();
    let mut source = sources.next();
    let mut copied = 0;
    to.spans(limit, |mut target| {
        while target.len > 0 {
            let Some(current) = &mut source else { return Next::Stop };
            let len = current.len.min(target.len);
            move_bytes(*current, target, len);
            copied += len as u64;
            target = target.after(len);
            *current = current.after(len);
            if current.len == 0 {
                source = sources.next();
            }
        }
        Next::Go
    })?;
    Ok(copied)
}

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

/// Whether the functions of this file may touch memory of a kind.
pub(crate) fn is_host(kind: MemoryKind) -> bool {
    kind == MemoryKind::Host
}

fn move_bytes(from: Span, to: Span, len: usize) {
    // SAFETY: both spans lie inside regions kept mapped by their snapshots and are at least `len` long;
    // `copy` allows that they overlap, as two engines of one process may share a pool.
    unsafe { ptr::copy(from.start, to.start, len) };
}

const PIECE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::crc32c;
    use crate::ids::RegionId;
    use crate::layout::Extent;
    use crate::memory::{Cursor, HostBuffer, RegionTable};

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent { region: RegionId(0), offset, len }).collect()
    }

    fn side(len: u64) -> (HostBuffer, RegionTable) {
        let buffer = HostBuffer::zeroed(len).unwrap();
        let table = RegionTable::default();
        table.insert(buffer.region(RegionId(0)));
        (buffer, table)
    }

    #[test]
    fn differently_cut_lists_copy_exactly_in_any_steps() {
        for step in [1, 3, 64, 1000] {
            let (source, from_table) = side(4096);
            let (target, to_table) = side(4096);
            let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
            source.write_at(0, &bytes);
            let (from, to) = (extents(&[(10, 100), (500, 1), (300, 99)]), extents(&[(0, 50), (1000, 150)]));
            let (mut at, mut done) = (Cursor::default(), Cursor::default());
            let mut total = 0;
            while total < 200 {
                let regions = (from_table.snapshot(), to_table.snapshot());
                let from = Body { regions: &regions.0, extents: &from, cursor: at };
                let to = Body { regions: &regions.1, extents: &to, cursor: done };
                let copied = copy(from, to, step).unwrap();
                assert!(copied > 0);
                at.advance(from.extents, copied);
                done.advance(to.extents, copied);
                total += copied;
            }
            let wanted = [&bytes[10..110], &bytes[500..501], &bytes[300..399]].concat();
            let landed = [target.to_vec(0, 50), target.to_vec(1000, 150)].concat();
            assert_eq!(landed, wanted, "step {step}");
            assert_eq!(target.to_vec(50, 950), vec![0; 950]);
        }
    }

    #[test]
    fn a_checksum_over_extents_is_that_of_their_bytes() {
        let (buffer, table) = side(20_000);
        let bytes: Vec<u8> = (0..=250).cycle().take(20_000).collect();
        buffer.write_at(0, &bytes);
        let list = extents(&[(5, 9000), (10_000, 3), (12_000, 7000)]);
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
