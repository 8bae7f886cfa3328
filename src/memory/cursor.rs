//! How far an operation has come in a list of extents.

use super::MemoryError;
use super::table::{Regions, Resolver, Span};
use crate::layout::Extent;

/// A place between two bytes of an extent list.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Cursor {
    extent: usize,
    pub(super) offset: u64,
}

/// What is left of an extent list, for the calls that move bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    /// Where the extents' regions are.
    pub(crate) regions: &'a Regions,
    /// The whole list.
    pub(crate) extents: &'a [Extent],
    /// What of it is done.
    pub(crate) cursor: Cursor,
}

impl Cursor {
    /// Moves on by `bytes`, at most to the end of `extents`.
    pub(crate) fn advance(&mut self, extents: &[Extent], bytes: u64) {
        let mut bytes = bytes;
        while let Some(extent) = extents.get(self.extent) {
            let left = extent.len - self.offset;
            if bytes < left {
                self.offset += bytes;
                return;
            }
            bytes -= left;
            self.extent += 1;
            self.offset = 0;
        }
    }

    /// The extent it stands in, the next one that has bytes.
    #[cfg(feature = "shm")]
    pub(super) fn current<'e>(&mut self, extents: &'e [Extent]) -> Option<&'e Extent> {
        loop {
            let extent = extents.get(self.extent)?;
            if self.offset < extent.len {
                return Some(extent);
            }
            self.extent += 1;
            self.offset = 0;
        }
    }

    /// Moves on by `bytes` of the current extent, which has them.
    #[cfg(feature = "shm")]
    pub(super) fn step(&mut self, current: &Extent, bytes: u64) {
        self.offset += bytes;
        if self.offset == current.len {
            self.extent += 1;
            self.offset = 0;
        }
    }
}

impl Body<'_> {
    /// Calls `each` with the memory of at most `limit` bytes, until it says stop.
    pub(super) fn spans(&self, limit: u64, mut each: impl FnMut(Span) -> Next) -> Result<(), MemoryError> {
        let mut resolver = Resolver::new(self.regions);
        let mut left = limit;
        let mut skip = self.cursor.offset;
        for extent in self.extents.get(self.cursor.extent..).unwrap_or_default() {
            let len = (extent.len - skip).min(left);
            if len > 0 && each(resolver.span(extent, skip, len)?) == Next::Stop {
                return Ok(());
            }
            left -= len;
            if left == 0 {
                return Ok(());
            }
            skip = 0;
        }
        Ok(())
    }
}

/// Whether a walk over memory goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    Go,
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;

    #[test]
    fn advancing_in_any_steps_ends_at_the_same_place() {
        let extents: Vec<Extent> = [3, 0, 1, 10, 0]
            .into_iter()
            .scan(0, |offset, len| {
                let extent = Extent { region: RegionId(0), offset: *offset, len };
                *offset += 100;
                Some(extent)
            })
            .collect();
        let mut end = Cursor::default();
        end.advance(&extents, 14);
        assert_eq!(end, Cursor { extent: 5, offset: 0 });
        for step in 1..=14 {
            let mut cursor = Cursor::default();
            let mut left = 14;
            while left > 0 {
                cursor.advance(&extents, step.min(left));
                left -= step.min(left);
            }
            assert_eq!(cursor, end, "step {step}");
        }
    }
}
