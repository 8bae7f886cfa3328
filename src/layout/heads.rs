//! Which heads of an entry move, and how the two sides lay them out.

use super::entry::described;
use super::route::{Grid, Order, Route};
use super::shards::Deal;
use super::{GroupKind, HeadSpan, ItemOrder, Mismatch, PageGroup, PoolEntry, Sharding, Share};
use std::fmt::Display;

/// One entry as a side describes it.
#[derive(Clone, Copy)]
pub(super) struct Described<'a> {
    pub(super) entry: &'a PoolEntry,
    pub(super) group: &'a PageGroup,
}

/// The heads of an item: how many it has, and which of them move.
#[derive(Clone, Copy)]
struct Heads {
    held: u32,
    first: u32,
}

impl Route {
    /// How the bytes of two entries of one name travel, each of a checked layout.
    ///
    /// # Errors
    /// What cannot be converted, or heads owed that one side does not hold.
    pub(super) fn new(ours: Described<'_>, theirs: Described<'_>, share: &Share) -> Result<Self, Mismatch> {
        let (source, destination) = (ours.entry, theirs.entry);
        same(ours, "dtype", &source.dtype, &destination.dtype)?;
        let whole = whole_units(ours, theirs)?;
        let (heads, moved) = heads(ours, theirs, share)?;
        let (source_cell, destination_cell) = (cell(ours, whole, heads[0])?, cell(theirs, whole, heads[1])?);
        if source_cell != destination_cell {
            let field = if heads[0].held > 1 || heads[1].held > 1 { "bytes a head" } else { "bytes" };
            let unit = if whole { "a page" } else { "a token" };
            return Err(mismatch(ours, &format!("{field} of {unit}"), source_cell, destination_cell));
        }
        let unit_tokens = if whole { page_tokens(ours.group) } else { 1 };
        let is_by_heads = matches!(destination.order, ItemOrder::HeadMajor { .. });
        let order = if is_by_heads && moved > 1 && !whole { Order::Heads } else { Order::Units };
        Ok(Self {
            unit_tokens,
            cell: source_cell,
            heads: moved,
            order,
            deal: deal(ours, theirs, share, unit_tokens)?,
            source: grid(ours, unit_tokens, source_cell, heads[0]),
            destination: grid(theirs, unit_tokens, source_cell, heads[1]),
            stacked: false,
        })
    }
}

/// Whether items are moved whole, or in whole heads: then both sides must have the same pages.
fn whole_units(ours: Described<'_>, theirs: Described<'_>) -> Result<bool, Mismatch> {
    use ItemOrder::{HeadBlocks, HeadMajor, Opaque, TokenMajor};
    let orders = (&ours.entry.order, &theirs.entry.order);
    let tags = match orders {
        (TokenMajor | HeadMajor { .. }, TokenMajor | HeadMajor { .. }) => return Ok(false),
        (Opaque { tag }, Opaque { tag: other }) => tag == other,
        (HeadBlocks { tag, .. }, HeadBlocks { tag: other, .. }) => tag == other,
        _ => false,
    };
    if !tags {
        return Err(mismatch(ours, "order", orders.0, orders.1));
    }
    same(ours, "page_tokens", &page_tokens(ours.group), &page_tokens(theirs.group))?;
    Ok(true)
}

/// Heads of either item, and how many of them move.
fn heads(ours: Described<'_>, theirs: Described<'_>, share: &Share) -> Result<([Heads; 2], u32), Mismatch> {
    let shardings = (ours.entry.sharding, theirs.entry.sharding);
    let differ = || mismatch(ours, "sharding", shardings.0, shardings.1);
    let whole = match shardings {
        (Sharding::Replicated, Sharding::Replicated) => None,
        (Sharding::Heads(held), Sharding::Heads(wanted)) => {
            let owed = share.heads.unwrap_or(wanted);
            // A share's heads are possible ones, and so are those of a checked layout.
            if held.meet(owed) != Some(owed) || wanted.meet(owed) != Some(owed) {
                return Err(differ());
            }
            (held != owed || wanted != owed).then_some((held, wanted, owed))
        }
        _ => return Err(differ()),
    };
    let in_order = |entry: &PoolEntry| match entry.order {
        ItemOrder::HeadMajor { heads } | ItemOrder::HeadBlocks { heads, .. } => Some(heads),
        ItemOrder::Opaque { .. } | ItemOrder::TokenMajor => None,
    };
    let (source, destination) = (in_order(ours.entry), in_order(theirs.entry));
    let Some((held, wanted, owed)) = whole else {
        // All that one side has is all that the other has; between two token-major sides heads are not seen.
        let count = source.or(destination).unwrap_or(1);
        same_order(ours, theirs, destination.is_none_or(|heads| heads == count))?;
        return Ok(([Heads { held: count, first: 0 }; 2], count));
    };
    let is_cut = !matches!(ours.entry.order, ItemOrder::Opaque { .. });
    let fits = |order: Option<u32>, span: HeadSpan| order.is_none_or(|heads| heads == span.count);
    same_order(ours, theirs, is_cut && fits(source, held) && fits(destination, wanted))
        .map_err(|order| if is_cut { order } else { differ() })?;
    let part = |span: HeadSpan| Heads { held: span.count, first: owed.first - span.first };
    Ok(([part(held), part(wanted)], owed.count))
}

/// Bytes of one head of one unit, which must be a whole number.
fn cell(side: Described<'_>, whole: bool, heads: Heads) -> Result<u64, Mismatch> {
    let units = if whole { 1 } else { page_tokens(side.group) };
    // Both factors come from 32 bits.
    let cells = u64::from(units) * u64::from(heads.held);
    let bytes = side.entry.item_bytes;
    match bytes.is_multiple_of(cells) {
        true => Ok(bytes / cells),
        false => Err(mismatch(side, "item_bytes", bytes, format!("a multiple of {cells}"))),
    }
}

fn grid(side: Described<'_>, unit_tokens: u32, cell: u64, heads: Heads) -> Grid {
    let PoolEntry { region, offset, item_stride, .. } = *side.entry;
    let page_units = page_tokens(side.group) / unit_tokens;
    let (unit_stride, head_stride) = match side.entry.order {
        ItemOrder::HeadMajor { .. } => (cell, cell * u64::from(page_units)),
        // The blocks of heads of the one unit of a page lie like the heads of a token.
        _ => (cell * u64::from(heads.held), cell),
    };
    // Inside the item, which ends within 64 bits.
    let start = offset + u64::from(heads.first) * head_stride;
    Grid { region, start, item_stride, page_units, unit_stride, head_stride }
}

fn deal(
    ours: Described<'_>,
    theirs: Described<'_>,
    share: &Share,
    unit_tokens: u32,
) -> Result<Deal, Mismatch> {
    if matches!(ours.group.kind, GroupKind::Rows) {
        return Ok(Deal::ALL);
    }
    match (share.source.in_units(unit_tokens), share.destination.in_units(unit_tokens)) {
        (Some(source), Some(destination)) => Ok(Deal { source, destination }),
        _ => {
            let granules = (share.source.granule, share.destination.granule);
            let field =
                format!("granule of dealt out tokens, in pages of {unit_tokens} that are moved whole,");
            let Described { entry, group } = theirs;
            let what = format!("{field} of {}", described(&group.name, entry.role, entry.layer));
            Err(Mismatch::new(what, granules.0, granules.1))
        }
    }
}

/// Tokens of a page; rows count as pages of one.
pub(super) fn page_tokens(group: &PageGroup) -> u32 {
    match group.kind {
        GroupKind::Paged { page_tokens } => page_tokens,
        GroupKind::Rows => 1,
    }
}

fn same_order(ours: Described<'_>, theirs: Described<'_>, holds: bool) -> Result<(), Mismatch> {
    if holds { Ok(()) } else { Err(mismatch(ours, "order", &ours.entry.order, &theirs.entry.order)) }
}

fn same<T: Display + PartialEq>(
    side: Described<'_>,
    field: &str,
    ours: &T,
    theirs: &T,
) -> Result<(), Mismatch> {
    if ours == theirs { Ok(()) } else { Err(mismatch(side, field, ours, theirs)) }
}

fn mismatch(side: Described<'_>, field: &str, ours: impl Display, theirs: impl Display) -> Mismatch {
    let Described { entry, group } = side;
    Mismatch::new(format!("{field} of {}", described(&group.name, entry.role, entry.layer)), ours, theirs)
}
