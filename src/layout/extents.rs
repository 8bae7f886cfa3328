//! Pieces turned into runs of memory, and runs of two sides into blocks.

use super::route::{Held, Joined, append_stack};
use super::{Extent, GroupKind, PageList, Pairing, Piece, place};
use crate::ids::{RegionId, Side};
use std::ops::Range;

/// A run of bytes that is contiguous on both sides, for one-sided transports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "two addresses and a length")]
pub struct Block {
    /// Source region.
    pub source: RegionId,
    /// Where it starts there.
    pub source_offset: u64,
    /// Destination region.
    pub destination: RegionId,
    /// Where it starts there.
    pub destination_offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// A piece that does not fit the pages it is resolved against.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No such pairs, or pairs of several groups.
    #[error("pairs {0:?} are not pairs of one group")]
    Pairs(Range<u32>),
    /// Positions outside the page list.
    #[error("positions {wanted:?} are outside the {covered:?} covered by the pages")]
    Positions {
        /// Positions asked for; where tokens are dealt out to ranks, places among those held.
        wanted: Range<u32>,
        /// Positions the pages cover.
        covered: Range<u32>,
    },
    /// A page number outside its group.
    #[error("page {page} is outside 0..{items}")]
    Page {
        /// The page number.
        page: u32,
        /// Pages in the group.
        items: u32,
    },
    /// A border inside bytes that can only be moved whole.
    #[error("token {at} lies inside a unit of {unit} tokens that is moved whole")]
    Unit {
        /// The border.
        at: u32,
        /// Tokens of the unit.
        unit: u32,
    },
}

impl Pairing {
    /// Bytes of a piece; the same on both sides. Pairs that do not exist have none.
    pub fn bytes(&self, piece: &Piece) -> u64 {
        let pairs = place(piece.pairs.start)..place(piece.pairs.end).min(self.routes.len());
        let routes = self.routes.get(pairs).unwrap_or_default();
        routes.iter().map(|route| route.bytes(&piece.positions)).fold(0, u64::saturating_add)
    }

    /// Appends where the bytes of `piece` lie at the source, joined where adjacent, and returns how many
    /// they are.
    ///
    /// The order of bytes is the same on both sides: pair by pair, then as they lie in the pages of the
    /// destination. Pairs whose items follow one another on both sides are taken page by page together.
    /// An end inside a page that is moved whole means all of that page.
    ///
    /// # Errors
    /// The piece does not fit the pages; nothing is appended.
    pub fn source_extents(
        &self,
        piece: &Piece,
        pages: &PageList,
        out: &mut Vec<Extent>,
    ) -> Result<u64, PlanError> {
        self.extents(Side::Prefill, piece, pages, out)
    }

    /// Appends where the bytes of `piece` lie at the destination, in the order of
    /// [`source_extents`](Self::source_extents).
    ///
    /// # Errors
    /// The piece does not fit the pages; nothing is appended.
    pub fn destination_extents(
        &self,
        piece: &Piece,
        pages: &PageList,
        out: &mut Vec<Extent>,
    ) -> Result<u64, PlanError> {
        self.extents(Side::Decode, piece, pages, out)
    }

    fn extents(
        &self,
        side: Side,
        piece: &Piece,
        pages: &PageList,
        out: &mut Vec<Extent>,
    ) -> Result<u64, PlanError> {
        let range = place(piece.pairs.start)..place(piece.pairs.end);
        let (Some(pairs), Some(mut routes)) = (self.pairs.get(range.clone()), self.routes.get(range)) else {
            return Err(PlanError::Pairs(piece.pairs.clone()));
        };
        // Sorted by group: if the ends are of one group, so is what lies between them.
        let group = match (pairs.first(), pairs.last()) {
            (Some(first), Some(last)) if first.source_group == last.source_group => match side {
                Side::Decode => self.destination.group_of(first.destination_group),
                Side::Prefill => self.source.group_of(first.source_group),
            },
            _ => None,
        };
        let Some(group) = group else { return Err(PlanError::Pairs(piece.pairs.clone())) };
        let first = self.check_pages(side, group.kind, group.items, &piece.positions, pages)?;
        let parted = routes.iter().find(|route| !piece.positions.start.is_multiple_of(route.unit_tokens));
        if let Some(route) = parted {
            return Err(PlanError::Unit { at: piece.positions.start, unit: route.unit_tokens });
        }
        let mut joined = Joined { start: out.len(), out };
        while let Some((route, others)) = routes.split_first() {
            let units = route.units(&piece.positions);
            let held = Held::new(&pages.indices, first, route.unit_tokens);
            let stacked = others.iter().take_while(|route| route.stacked).count();
            match stacked {
                0 => route.append(side, units, held, &mut joined),
                _ => append_stack(&routes[..=stacked], side, units, held, &mut joined),
            }
            routes = &others[stacked..];
        }
        Ok(self.bytes(piece))
    }

    /// Whether pages hold these positions, as far as they move, and are pages of the group. Answers the
    /// first position they hold.
    fn check_pages(
        &self,
        side: Side,
        kind: GroupKind,
        items: u32,
        positions: &Range<u32>,
        pages: &PageList,
    ) -> Result<u32, PlanError> {
        let (page_tokens, covered, wanted) = match kind {
            GroupKind::Paged { page_tokens } => {
                (page_tokens, pages.covers(page_tokens), self.shard(side).held(positions))
            }
            // Rows are counted by their place in the list, wherever it claims to start.
            GroupKind::Rows => {
                (1, 0..u32::try_from(pages.indices.len()).unwrap_or(u32::MAX), positions.clone())
            }
        };
        if !covered.start.is_multiple_of(page_tokens) {
            return Err(PlanError::Unit { at: covered.start, unit: page_tokens });
        }
        let is_outside = wanted.start < covered.start || wanted.end > covered.end;
        if positions.is_empty() || (is_outside && !wanted.is_empty()) {
            return Err(PlanError::Positions { wanted, covered });
        }
        if wanted.is_empty() {
            return Ok(covered.start);
        }
        let [from, last] = [wanted.start, wanted.end - 1].map(|at| place((at - covered.start) / page_tokens));
        match pages.indices[from..=last].iter().find(|&&page| page >= items) {
            Some(&page) => Err(PlanError::Page { page, items }),
            None => Ok(covered.start),
        }
    }
}

/// Cuts two extent lists of the same bytes into blocks contiguous on both sides, appended to `out`.
/// If one list has fewer bytes than the other, the rest of the other is left out.
pub fn blocks(source: &[Extent], destination: &[Extent], out: &mut Vec<Block>) {
    out.reserve(source.len().max(destination.len()));
    // Most often both are cut alike.
    let is_alike = |(from, to): &(&Extent, &Extent)| from.len == to.len && from.len > 0;
    let alike = source.iter().zip(destination).take_while(is_alike).count();
    let (same_source, source) = source.split_at(alike);
    let (same_destination, destination) = destination.split_at(alike);
    out.extend(same_source.iter().zip(same_destination).map(|(from, to)| Block {
        source: from.region,
        source_offset: from.offset,
        destination: to.region,
        destination_offset: to.offset,
        len: from.len,
    }));
    let (mut sources, mut destinations) = (source.iter(), destination.iter());
    let (mut from, mut to) = (EMPTY, EMPTY);
    loop {
        while from.len == 0 {
            let Some(next) = sources.next() else { return };
            from = *next;
        }
        while to.len == 0 {
            let Some(next) = destinations.next() else { return };
            to = *next;
        }
        let len = from.len.min(to.len);
        out.push(Block {
            source: from.region,
            source_offset: from.offset,
            destination: to.region,
            destination_offset: to.offset,
            len,
        });
        for rest in [&mut from, &mut to] {
            rest.len -= len;
            rest.offset = rest.offset.saturating_add(len);
        }
    }
}

const EMPTY: Extent = Extent { region: RegionId(0), offset: 0, len: 0 };
