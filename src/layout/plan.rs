//! Chunks cut into pieces, pieces turned into extents.

use super::{GroupKind, ItemOrder, PageList, Pairing, PoolEntry, PoolLayout, place};
use crate::ids::{RegionId, Side};
use std::ops::Range;

/// Bytes named without an address: these pairs, these positions. All pairs are of one group.
/// Positions are tokens for paged groups and places in the row list for row groups.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "two ranges of the wire format")]
pub struct Piece {
    /// Numbers of pairs.
    pub pairs: Range<u32>,
    /// Tokens or rows.
    pub positions: Range<u32>,
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

/// The pieces of a rectangle of pairs and positions, each of at most so many bytes. Cheap to keep
/// half done: a sender holds one per destination and chunk.
#[derive(Clone, Debug)]
pub struct Pieces {
    pub(crate) rectangle: Piece,
    pub(crate) next_pair: u32,
    pub(crate) next_position: u32,
}

/// How the bytes of one pair may be cut; the same on both sides. Row groups count as pages of one
/// position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    page_tokens: u32,
    item_bytes: u64,
    /// Positions that cannot be parted: 1, or those of a page.
    unit_tokens: u32,
    unit_bytes: u64,
    /// Runs that the positions of a partial page are spread over: 1, or one a head.
    rows: u32,
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
        /// Positions asked for.
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

impl Pieces {
    /// Everything in `rectangle`.
    pub fn new(rectangle: Piece) -> Self {
        Self { next_pair: rectangle.pairs.start, next_position: rectangle.positions.start, rectangle }
    }

    /// The next piece of at most `max_bytes`, but at least one unit of one pair: several whole pairs
    /// if they fit, else part of one, cut at the border of a page if one fits. Units are tokens where
    /// the order allows it, else pages. Equal calls give equal pieces.
    pub fn next(&mut self, pairing: &Pairing, max_bytes: u64) -> Option<Piece> {
        let Piece { pairs, positions } = &self.rectangle;
        if self.next_pair >= pairs.end || positions.is_empty() {
            return None;
        }
        let (first, rest) = (self.next_pair, self.next_position..positions.end);
        let Some(geometry) = pairing.geometry.get(place(first)) else {
            // Pairs that do not exist are handed on in one piece, for whoever resolves it to refuse.
            self.next_pair = pairs.end;
            return Some(Piece { pairs: first..pairs.end, positions: rest });
        };
        let mut bytes = geometry.bytes(&rest);
        if bytes > max_bytes {
            let end = geometry.cut(&rest, max_bytes);
            self.next_position = end;
            if end == rest.end {
                self.go_to_pair(first + 1);
            }
            return Some(Piece { pairs: first..first + 1, positions: rest.start..end });
        }
        let mut end = first + 1;
        if rest.start == positions.start {
            let others = place(end)..place(pairs.end).min(pairing.geometry.len());
            for geometry in pairing.geometry.get(others).unwrap_or_default() {
                bytes = bytes.saturating_add(geometry.bytes(&rest));
                if bytes > max_bytes {
                    break;
                }
                end += 1;
            }
        }
        self.go_to_pair(end);
        Some(Piece { pairs: first..end, positions: rest })
    }

    fn go_to_pair(&mut self, pair: u32) {
        self.next_pair = pair;
        self.next_position = self.rectangle.positions.start;
    }
}

impl Pairing {
    /// Bytes of a piece; the same on both sides. Pairs that do not exist have none.
    pub fn bytes(&self, piece: &Piece) -> u64 {
        let pairs = place(piece.pairs.start)..place(piece.pairs.end).min(self.geometry.len());
        let geometry = self.geometry.get(pairs).unwrap_or_default();
        geometry.iter().map(|geometry| geometry.bytes(&piece.positions)).fold(0, u64::saturating_add)
    }

    /// Appends where the bytes of `piece` lie at the source, joined where adjacent, and returns how
    /// many they are. The order is pair by pair, then page by page, then (part of a head-major page)
    /// head by head. An end inside a page that is moved whole means all of that page.
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
        let (Some(pairs), Some(geometry)) = (self.pairs.get(range.clone()), self.geometry.get(range)) else {
            return Err(PlanError::Pairs(piece.pairs.clone()));
        };
        // Sorted by group: if the ends are of one group, so is what lies between them.
        let group = match (pairs.first(), pairs.last()) {
            (Some(first), Some(last)) if first.source_group == last.source_group => first.source_group,
            _ => return Err(PlanError::Pairs(piece.pairs.clone())),
        };
        let layout = self.layout(side);
        let entries = pairs.iter().map(|pair| match side {
            Side::Decode => &layout.entries[place(pair.destination)],
            Side::Prefill => &layout.entries[place(pair.source)],
        });
        let kind = self.source.groups[usize::from(group.0)].kind;
        let items =
            entries.clone().next().and_then(|entry| layout.group_of(entry.group)).map_or(0, |g| g.items);

        let window = Window::new(kind, &piece.positions, pages)?;
        if let Some(&page) = window.pages.iter().find(|&&page| page >= items) {
            return Err(PlanError::Page { page, items });
        }
        if let Some(geometry) = geometry.iter().find(|geometry| window.skip % geometry.unit_tokens != 0) {
            return Err(PlanError::Unit { at: piece.positions.start, unit: geometry.unit_tokens });
        }
        let mut joined = Joined { start: out.len(), out };
        for (entry, geometry) in entries.zip(geometry) {
            window.append(entry, geometry, &mut joined);
        }
        Ok(self.bytes(piece))
    }

    fn layout(&self, side: Side) -> &PoolLayout {
        match side {
            Side::Decode => &self.destination,
            Side::Prefill => &self.source,
        }
    }
}

impl Geometry {
    /// Of an entry that has passed [`PoolLayout::check_shape`], so every division below is exact.
    pub(super) fn new(kind: GroupKind, entry: &PoolEntry) -> Self {
        let page_tokens = page_tokens(kind);
        let item_bytes = entry.item_bytes;
        let whole =
            Self { page_tokens, item_bytes, unit_tokens: page_tokens, unit_bytes: item_bytes, rows: 1 };
        let token_bytes = item_bytes / u64::from(page_tokens);
        match (kind, &entry.order) {
            (GroupKind::Rows, _) | (_, ItemOrder::HeadBlocks { .. } | ItemOrder::Opaque { .. }) => whole,
            (_, ItemOrder::TokenMajor) => Self { unit_tokens: 1, unit_bytes: token_bytes, ..whole },
            (_, &ItemOrder::HeadMajor { heads }) => {
                Self { unit_tokens: 1, unit_bytes: token_bytes, rows: heads, ..whole }
            }
        }
    }

    /// Bytes of these positions, those of a last unit in full.
    fn bytes(&self, positions: &Range<u32>) -> u64 {
        if positions.is_empty() {
            return 0;
        }
        let units = positions.end.div_ceil(self.unit_tokens) - positions.start / self.unit_tokens;
        u64::from(units).saturating_mul(self.unit_bytes)
    }

    /// Where to end a piece of at most `max_bytes` that starts with `rest` and cannot take all of it.
    fn cut(&self, rest: &Range<u32>, max_bytes: u64) -> u32 {
        let (unit, page) = (u64::from(self.unit_tokens), u64::from(self.page_tokens));
        let start = u64::from(rest.start);
        // At least one unit, or nothing would ever move.
        let units = (max_bytes / self.unit_bytes).max(1);
        let reach = (start / unit).saturating_add(units).saturating_mul(unit);
        let border = reach / page * page;
        let end = if border > start { border } else { reach };
        u32::try_from(end).unwrap_or(u32::MAX).min(rest.end)
    }
}

/// The pages of a piece's positions.
struct Window<'a> {
    pages: &'a [u32],
    page_tokens: u32,
    /// Positions of the first page that are before the piece.
    skip: u32,
    /// Positions of the last page before the end of the piece.
    last: u32,
}

impl<'a> Window<'a> {
    fn new(kind: GroupKind, positions: &Range<u32>, pages: &'a PageList) -> Result<Self, PlanError> {
        let page_tokens = page_tokens(kind);
        let covered = match kind {
            GroupKind::Paged { .. } => pages.covers(page_tokens),
            // Rows are counted by their place in the list, wherever it claims to start.
            GroupKind::Rows => 0..u32::try_from(pages.indices.len()).unwrap_or(u32::MAX),
        };
        if !covered.start.is_multiple_of(page_tokens) {
            return Err(PlanError::Unit { at: covered.start, unit: page_tokens });
        }
        if positions.is_empty() || positions.start < covered.start || positions.end > covered.end {
            return Err(PlanError::Positions { wanted: positions.clone(), covered });
        }
        // Page borders are multiples of the page size on both sides, so both cut at the same tokens.
        let (from, last) = (positions.start - covered.start, positions.end - 1 - covered.start);
        let pages = &pages.indices[place(from / page_tokens)..=place(last / page_tokens)];
        Ok(Self { pages, page_tokens, skip: from % page_tokens, last: last % page_tokens + 1 })
    }

    /// Appends the extents of one entry.
    ///
    /// No sum here can overflow: every page is below its group's `items`, and `Pairing::new` has
    /// checked that the last item of each entry ends within 64 bits.
    fn append(&self, entry: &PoolEntry, geometry: &Geometry, out: &mut Joined<'_>) {
        let full = self.page_tokens;
        // A page that is moved whole is moved to its end.
        let last = if geometry.unit_tokens == full { full } else { self.last };
        let mut whole = self.pages;
        if self.skip > 0
            && let Some((&page, others)) = whole.split_first()
        {
            let end = if others.is_empty() { last } else { full };
            part(entry, geometry, page, self.skip..end, out);
            whole = others;
        }
        let mut tail = None;
        if last < full
            && let Some((&page, others)) = whole.split_last()
        {
            tail = Some(page);
            whole = others;
        }
        for &page in whole {
            out.push(entry.region, item_offset(entry, page), geometry.item_bytes);
        }
        if let Some(page) = tail {
            part(entry, geometry, page, 0..last, out);
        }
    }
}

/// Part of a page: one run, or one a head.
fn part(entry: &PoolEntry, geometry: &Geometry, page: u32, tokens: Range<u32>, out: &mut Joined<'_>) {
    let rows = u64::from(geometry.rows);
    let (row_bytes, token_bytes) = (geometry.item_bytes / rows, geometry.unit_bytes / rows);
    let start = item_offset(entry, page) + u64::from(tokens.start) * token_bytes;
    let len = u64::from(tokens.end - tokens.start) * token_bytes;
    for row in 0..rows {
        out.push(entry.region, start + row * row_bytes, len);
    }
}

fn item_offset(entry: &PoolEntry, page: u32) -> u64 {
    entry.offset + u64::from(page) * entry.item_stride
}

fn page_tokens(kind: GroupKind) -> u32 {
    match kind {
        GroupKind::Paged { page_tokens } => page_tokens,
        GroupKind::Rows => 1,
    }
}

/// Extents appended by one call, each joined to the one before where adjacent.
struct Joined<'a> {
    out: &'a mut Vec<Extent>,
    /// Extents that were there before; they are left alone.
    start: usize,
}

impl Joined<'_> {
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
}

/// Cuts two extent lists of the same bytes into blocks contiguous on both sides, appended to `out`.
/// If one list has fewer bytes than the other, the rest of the other is left out.
pub fn blocks(source: &[Extent], destination: &[Extent], out: &mut Vec<Block>) {
    let (mut sources, mut destinations) = (source.iter().copied(), destination.iter().copied());
    let (mut from, mut to) = (sources.next(), destinations.next());
    while let (Some(source), Some(destination)) = (from, to) {
        let len = source.len.min(destination.len);
        if len > 0 {
            out.push(Block {
                source: source.region,
                source_offset: source.offset,
                destination: destination.region,
                destination_offset: destination.offset,
                len,
            });
        }
        from = rest(source, len).or_else(|| sources.next());
        to = rest(destination, len).or_else(|| destinations.next());
    }
}

/// What is left of an extent behind its first `len` bytes.
fn rest(extent: Extent, len: u64) -> Option<Extent> {
    let left = extent.len.checked_sub(len).filter(|&left| left > 0)?;
    Some(Extent { offset: extent.offset.checked_add(len)?, len: left, ..extent })
}
