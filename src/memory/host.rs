//! Ordinary process memory: copies between extents.

use super::cursor::{Body, Next};
use super::table::Span;
use super::{MemoryError, MemoryKind};
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

/// Whether the functions of this file may touch memory of a kind.
pub(crate) fn is_host(kind: MemoryKind) -> bool {
    kind == MemoryKind::Host
}

fn move_bytes(from: Span, to: Span, len: usize) {
    // SAFETY: both spans lie inside regions kept mapped by their snapshots and are at least `len` long;
    // `copy` allows that they overlap, as two engines of one process may share a pool.
    unsafe { ptr::copy(from.start, to.start, len) };
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
