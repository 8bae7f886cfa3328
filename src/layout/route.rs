//! How the bytes of one pair are cut, and in which order they travel.
//!
//! An item is a table of *cells*: one cell is one head of one unit. A unit is what is never parted: a
//! token, or the tokens of a page where only whole items (or whole heads of them) can be moved. What moves
//! is a rectangle of units and heads, and each side has its own strides:
//!
//! ```text
//!  token-major page          head-major page          cells of heads 2..4, tokens 1..3,
//!  t0 | h0 h1 h2 h3          h0 | t0 t1 t2 t3          as a token-major destination
//!  t1 | h0 h1[h2 h3]         h1 | t0 t1 t2 t3          takes them:
//!  t2 | h0 h1[h2 h3]         h2 | t0[t1 t2]t3
//!  t3 | h0 h1 h2 h3          h3 | t0[t1 t2]t3            t1h2 t1h3 t2h2 t2h3
//! ```
//!
//! Both sides list the cells in one order, *that of the destination's memory*: there the bytes lie in the
//! fewest runs, and what is adjacent on both sides is adjacent in the list.

use super::place;
use super::shards::Deal;
use crate::ids::{RegionId, Side};
use std::ops::Range;

/// How the bytes of one pair are cut; both sides derive the same one. Row groups count as pages of one
/// token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// Tokens of a unit.
    pub(super) unit_tokens: u32,
    /// Bytes of one head of one unit.
    pub(super) cell: u64,
    /// Heads that move.
    pub(super) heads: u32,
    pub(super) order: Order,
    /// In units.
    pub(super) deal: Deal,
    pub(super) source: Grid,
    pub(super) destination: Grid,
    /// Its item follows that of the pair before on both sides, and travels with it page by page.
    pub(super) stacked: bool,
}

/// Which cells follow one another on the way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    /// Of each page of the destination, head by head.
    Heads,
    /// Unit by unit.
    Units,
}

/// Where the cells of one entry lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) region: RegionId,
    /// The first head that moves, of the first unit of item 0.
    pub(super) start: u64,
    pub(super) item_stride: u64,
    pub(super) page_units: u32,
    pub(super) unit_stride: u64,
    pub(super) head_stride: u64,
}

/// A run of bytes in one region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "an address and a length")]
pub struct Extent {
    /// The region.
    pub region: RegionId,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// Extents appended by one call, each joined to the one before where adjacent.
pub(super) struct Joined<'a> {
    pub(super) out: &'a mut Vec<Extent>,
    /// Extents that were there before; they are left alone.
    pub(super) start: usize,
}

/// Pages of one side as a route counts them.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pages: &'a [u32],
    /// The first unit of the first page.
    first: u32,
}

impl Route {
    /// Bytes of one unit.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.cell.saturating_mul(self.heads.into())
    }

    /// Bytes of the pages of one item that move.
    pub(super) fn page_bytes(&self) -> u64 {
        self.unit_bytes().saturating_mul(self.destination.page_units.into())
    }

    /// Bytes of these positions, those of a last unit in full.
    pub(super) fn bytes(&self, positions: &Range<u32>) -> u64 {
        u64::from(self.deal.count(&self.units(positions))).saturating_mul(self.unit_bytes())
    }

    /// The units of these positions, the last in full.
    pub(super) fn units(&self, positions: &Range<u32>) -> Range<u32> {
        let unit = self.unit_tokens;
        let start = positions.start / unit;
        if positions.is_empty() { start..start } else { start..positions.end.div_ceil(unit) }
    }

    pub(super) fn grid(&self, side: Side) -> &Grid {
        match side {
            Side::Decode => &self.destination,
            Side::Prefill => &self.source,
        }
    }

    /// Appends the extents of these units on one side, all of which its pages hold.
    ///
    /// No sum here can overflow: every page is below its group's `items`, and a pairing is made only of
    /// layouts whose items all end within 64 bits.
    pub(super) fn append(&self, side: Side, units: Range<u32>, held: Held<'_>, out: &mut Joined<'_>) {
        let grid = self.grid(side);
        let is_parallel = self.deal.is_all() && self.source.page_units == self.destination.page_units;
        match self.order {
            Order::Heads if !is_parallel => self.append_by_heads(side, units, held, out),
            _ if self.deal.is_all() => self.append_pages(grid, units, held, out),
            _ => {
                for stretch in self.deal.stretches(units) {
                    let own = self.own(side, &stretch);
                    grid.pages(own, held, |start, len| self.rectangle(grid, start, len, out));
                }
            }
        }
    }

    /// Page by page, full ones many at a time.
    fn append_pages(&self, grid: &Grid, units: Range<u32>, held: Held<'_>, out: &mut Joined<'_>) {
        let Some(run) = self.page_run(grid) else {
            return grid.pages(units, held, |start, len| self.rectangle(grid, start, len, out));
        };
        let (from, to) = (units.start - held.first, units.end - held.first);
        let (first, end) = (from.div_ceil(grid.page_units), to / grid.page_units);
        if first >= end {
            return grid.pages(units, held, |start, len| self.rectangle(grid, start, len, out));
        }
        let borders = [first, end].map(|page| page * grid.page_units + held.first);
        grid.pages(units.start..borders[0], held, |start, len| self.rectangle(grid, start, len, out));
        out.pages(grid, &held.pages[place(first)..place(end)], run);
        grid.pages(borders[1]..units.end, held, |start, len| self.rectangle(grid, start, len, out));
    }

    /// Head by head of each page of the destination, where its borders are not those of this side.
    fn append_by_heads(&self, side: Side, units: Range<u32>, held: Held<'_>, out: &mut Joined<'_>) {
        let (grid, shard) = (self.grid(side), self.deal.destination);
        let (page, there) = (self.destination.page_units, shard.held(&units));
        let mut at = there.start;
        while at < there.end {
            let end = (at - at % page).saturating_add(page).min(there.end);
            let window = shard.token_at(at)..shard.token_at(end - 1) + 1;
            for head in 0..self.heads {
                let shift = u64::from(head) * grid.head_stride;
                for stretch in self.deal.stretches(window.clone()) {
                    let own = self.own(side, &stretch);
                    grid.pages(own, held, |start, len| {
                        let cells = Rows { count: len, stride: grid.unit_stride };
                        out.rows(grid.region, start + shift, cells, self.cell);
                    });
                }
            }
            at = end;
        }
    }

    /// All heads of some units of one page.
    #[inline]
    fn rectangle(&self, grid: &Grid, start: u64, len: u32, out: &mut Joined<'_>) {
        let units = Rows { count: len, stride: grid.unit_stride };
        let heads = Rows { count: self.heads, stride: grid.head_stride };
        let (outer, inner) = match self.order {
            Order::Heads => (heads, units),
            Order::Units => (units, heads),
        };
        let Some(run) = inner.joined(self.cell) else {
            for row in 0..outer.count {
                out.rows(grid.region, start + u64::from(row) * outer.stride, inner, self.cell);
            }
            return;
        };
        match outer.joined(run) {
            Some(all) => out.push(grid.region, start, all),
            None => out.rows(grid.region, start, outer, run),
        }
    }

    /// Where a stretch that moves lies among what a side holds.
    fn own(&self, side: Side, stretch: &Range<u32>) -> Range<u32> {
        match side {
            Side::Decode => self.deal.destination.held(stretch),
            Side::Prefill => self.deal.source.held(stretch),
        }
    }

    /// Whether pages are moved whole, and lie in one run on both sides.
    pub(super) fn is_solid(&self) -> bool {
        let same_pages = self.source.page_units == self.destination.page_units;
        let is_run = |grid: &Grid| self.page_run(grid).is_some();
        self.deal.is_all() && same_pages && is_run(&self.source) && is_run(&self.destination)
    }

    /// Bytes of a page that move, if they lie in one run.
    fn page_run(&self, grid: &Grid) -> Option<u64> {
        let units = Rows { count: grid.page_units, stride: grid.unit_stride };
        let heads = Rows { count: self.heads, stride: grid.head_stride };
        let (outer, inner) = if self.order == Order::Heads { (heads, units) } else { (units, heads) };
        inner.joined(self.cell).and_then(|run| outer.joined(run))
    }

    /// Whether this pair's item begins where that of the pair before ends.
    pub(super) fn follows(&self, before: &Self) -> bool {
        let follows = |own: &Grid, other: &Grid| {
            own.region == other.region
                && own.item_stride == other.item_stride
                && own.page_units == other.page_units
                && other.start.checked_add(before.page_bytes()) == Some(own.start)
        };
        self.is_solid()
            && before.is_solid()
            && self.unit_tokens == before.unit_tokens
            && follows(&self.source, &before.source)
            && follows(&self.destination, &before.destination)
    }
}

/// Appends the extents of pairs whose items follow one another, page by page.
pub(super) fn append_stack(
    routes: &[Route],
    side: Side,
    units: Range<u32>,
    held: Held<'_>,
    out: &mut Joined<'_>,
) {
    let Some(first) = routes.first() else { return };
    let grid = first.grid(side);
    let bytes = routes.iter().map(Route::page_bytes).sum();
    grid.pages(units, held, |start, len| {
        if len == grid.page_units {
            return out.push(grid.region, start, bytes);
        }
        for route in routes {
            let own = route.grid(side);
            // Both lie in one item, this one behind the first.
            let skipped = start - grid.start;
            let shift = skipped % grid.item_stride / grid.unit_stride * own.unit_stride;
            let page = skipped / grid.item_stride * grid.item_stride;
            route.rectangle(own, own.start + page + shift, len, out);
        }
    });
}

impl Grid {
    /// Calls `each` with the start and the number of units of each run inside one page.
    #[inline]
    fn pages(&self, own: Range<u32>, held: Held<'_>, mut each: impl FnMut(u64, u32)) {
        let (from, to) = (own.start - held.first, own.end - held.first);
        let (mut left, mut slot) = (to - from, from % self.page_units);
        for &page in &held.pages[place(from / self.page_units)..] {
            if left == 0 {
                return;
            }
            let len = left.min(self.page_units - slot);
            let item = self.start + u64::from(page) * self.item_stride;
            each(item + u64::from(slot) * self.unit_stride, len);
            (left, slot) = (left - len, 0);
        }
    }
}

impl<'a> Held<'a> {
    /// Pages of which the first starts at token `first`, a multiple of their size.
    pub(super) fn new(pages: &'a [u32], first: u32, unit_tokens: u32) -> Self {
        Self { pages, first: first / unit_tokens }
    }
}

/// Runs of equal length, so far apart.
#[derive(Clone, Copy)]
struct Rows {
    count: u32,
    stride: u64,
}

impl Rows {
    /// Their length as one run, if each follows the one before.
    #[inline]
    fn joined(self, len: u64) -> Option<u64> {
        (self.count == 1 || self.stride == len).then(|| len * u64::from(self.count))
    }
}

impl Joined<'_> {
    #[inline]
    fn push(&mut self, region: RegionId, offset: u64, len: u64) {
        if self.out.len() > self.start
            && let Some(last) = self.out.last_mut()
            && last.region == region
            && last.offset + last.len == offset
        {
            last.len += len;
            return;
        }
        self.out.push(Extent { region, offset, len });
    }

    /// So many bytes from the start of each page on.
    fn pages(&mut self, grid: &Grid, pages: &[u32], run: u64) {
        let Grid { region, start, item_stride, .. } = *grid;
        let near = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
        let is_scattered = item_stride != run || !pages.windows(2).any(|two| near(&two[0], &two[1]));
        if is_scattered {
            let mut all = pages.iter().map(|page| start + u64::from(*page) * item_stride);
            if let Some(offset) = all.next() {
                self.push(region, offset, run);
            }
            return self.out.extend(all.map(|offset| Extent { region, offset, len: run }));
        }
        let mut runs = pages.chunk_by(near).map(|near| {
            let offset = start + u64::from(near[0]) * item_stride;
            // Fewer pages than a group has.
            Extent { region, offset, len: run * near.len() as u64 }
        });
        if let Some(Extent { offset, len, .. }) = runs.next() {
            self.push(region, offset, len);
        }
        // Pages that are not next to each other: nothing to join.
        self.out.extend(runs);
    }

    #[inline]
    fn rows(&mut self, region: RegionId, start: u64, rows: Rows, len: u64) {
        if let Some(all) = rows.joined(len) {
            return self.push(region, start, all);
        }
        self.push(region, start, len);
        let others = (1..rows.count).map(|row| {
            let offset = start + u64::from(row) * rows.stride;
            Extent { region, offset, len }
        });
        self.out.extend(others);
    }
}
