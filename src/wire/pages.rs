//! Page lists, as runs of adjacent pages.
//!
//! A list is the token of its first page (4 bytes), the number of its pages (4 bytes), and runs until
//! there are as many. A run is one number, and a second one if it is longer than a page:
//!
//! ```text
//! varint: zigzag(first page - page behind the run before) * 2 + (1 if longer than one page)
//! varint: pages - 2, only if longer than one page
//! ```
//!
//! The page behind the run before is 0 for the first run; zigzag puts 0, -1, 1, -2 ... at 0, 1, 2, 3 ...
//! A varint holds seven bits a byte, low ones first, in its shortest form.

use super::codec::{Reader, Writer, wide};
use super::{MAX_PAGES, WireError};
use crate::layout::PageList;

/// The fewest bytes of a list.
pub(super) const MIN_LIST_BYTES: usize = 8;

pub(super) fn write(list: &PageList, w: &mut Writer) {
    w.u32(list.first);
    w.length(list.indices.len());
    let mut behind = 0_i64;
    for run in list.indices.chunk_by(|page, next| page.checked_add(1) == Some(*next)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let (first, last) = (i64::from(*first), i64::from(*last));
        let place = zigzag(first - behind) << 1;
        match wide(run.len()).checked_sub(2) {
            None => w.varint(place),
            Some(more) => {
                w.varint(place | 1);
                w.varint(more);
            }
        }
        behind = last + 1;
    }
}

/// Reads a list of at most `MAX_PAGES` less `before` pages. Memory is taken a run at a time, after the
/// run was checked.
pub(super) fn read(r: &mut Reader<'_>, before: usize) -> Result<PageList, WireError> {
    let first = r.u32("pages.first")?;
    let left = MAX_PAGES.saturating_sub(before);
    // Not reserved: a run of any length is a few bytes, so the count alone promises nothing.
    let count = r.count("pages.count", left, 0)?;
    let mut indices = Vec::new();
    let mut behind = 0_i64;
    while indices.len() < count {
        let run = read_run(r, behind, wide(count - indices.len()))?;
        behind = i64::from(run.start) + i64::from(run.len);
        indices.extend((0..run.len).map(|page| run.start + page));
    }
    Ok(PageList::new(first, indices))
}

/// Adjacent pages, the last of which has a number.
struct Run {
    start: u32,
    len: u32,
}

fn read_run(r: &mut Reader<'_>, behind: i64, limit: u64) -> Result<Run, WireError> {
    let place = r.varint("pages.run")?;
    let len = if place & 1 == 0 { 1 } else { r.varint("pages.run_length")?.saturating_add(2) };
    if len > limit {
        return Err(WireError::TooLarge { field: "pages.run_length", value: len, limit });
    }
    let outside = WireError::Value { field: "pages.run", value: place };
    let start = behind.checked_add(unzigzag(place >> 1)).and_then(|start| u32::try_from(start).ok());
    let (Some(start), Ok(len)) = (start, u32::try_from(len)) else { return Err(outside) };
    match start.checked_add(len - 1) {
        Some(_) => Ok(Run { start, len }),
        None => Err(outside),
    }
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}
