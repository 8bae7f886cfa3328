//! Chunks cut into pieces.

use super::route::Route;
use super::{Pairing, place};
use std::ops::Range;

/// Bytes named without an address: these pairs, these positions. All pairs are of one group.
/// Positions are tokens for paged groups and places in the row list for row groups. Where tokens are
/// dealt out to ranks, those of them that both sides hold.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "two ranges of the wire format")]
pub struct Piece {
    /// Numbers of pairs.
    pub pairs: Range<u32>,
    /// Tokens or rows.
    pub positions: Range<u32>,
}

/// The pieces of a rectangle of pairs and positions, each of at most so many bytes. Cheap to keep
/// half done: a sender holds one per destination and chunk.
#[derive(Clone, Debug)]
pub struct Pieces {
    rectangle: Piece,
    /// Pairs that are cut at the same positions; those before are done.
    band: Range<u32>,
    next_position: u32,
}

impl Pieces {
    /// Everything in `rectangle`.
    pub fn new(rectangle: Piece) -> Self {
        let (pair, position) = (rectangle.pairs.start, rectangle.positions.start);
        Self { band: pair..pair, next_position: position, rectangle }
    }

    /// The next piece of at most `max_bytes`, but at least one unit of one pair: several whole pairs
    /// if they fit, else part of one, cut at the border of a page if one fits. Units are tokens where
    /// the order allows it, else pages. Pairs whose items follow one another are cut at the same
    /// positions, as many as fit with one page each. Equal calls give equal pieces.
    pub fn next(&mut self, pairing: &Pairing, max_bytes: u64) -> Option<Piece> {
        let Piece { pairs, positions } = self.rectangle.clone();
        loop {
            if self.band.start >= pairs.end || positions.is_empty() {
                return None;
            }
            let (first, rest) = (self.band.start, self.next_position..positions.end);
            let known = place(first)..place(pairs.end).min(pairing.routes.len());
            let routes = pairing.routes.get(known).filter(|routes| !routes.is_empty());
            let Some(routes) = routes else {
                // Pairs that do not exist are handed on in one piece, for whoever resolves it to refuse.
                self.go_to_pair(pairs.end);
                return Some(Piece { pairs: first..pairs.end, positions: rest });
            };
            if self.band.is_empty() {
                self.band.end = first + band(routes, max_bytes);
            }
            let (band, others) = routes.split_at(place(self.band.end - first).min(routes.len()));
            let mut bytes = bytes_of(band, &rest);
            if bytes > max_bytes {
                let (pairs, end) = (self.band.clone(), cut(band, &rest, max_bytes));
                self.next_position = end;
                if end == rest.end {
                    self.go_to_pair(pairs.end);
                }
                return Some(Piece { pairs, positions: rest.start..end });
            }
            let mut end = self.band.end;
            if rest.start == positions.start {
                for route in others {
                    bytes = bytes.saturating_add(route.bytes(&rest));
                    if bytes > max_bytes {
                        break;
                    }
                    end += 1;
                }
            }
            self.go_to_pair(end);
            // Of tokens dealt out to ranks, none may be here.
            if bytes > 0 {
                return Some(Piece { pairs: first..end, positions: rest });
            }
        }
    }

    fn go_to_pair(&mut self, pair: u32) {
        self.band = pair..pair;
        self.next_position = self.rectangle.positions.start;
    }
}

/// How many of the first pairs are cut together: those stacked, while a page of each fits.
fn band(routes: &[Route], max_bytes: u64) -> u32 {
    let mut pages = routes.first().map_or(0, Route::page_bytes);
    let stacked = routes.iter().skip(1).take_while(|route| {
        pages = pages.saturating_add(route.page_bytes());
        route.stacked && pages <= max_bytes
    });
    1 + u32::try_from(stacked.count()).unwrap_or(0)
}

fn bytes_of(routes: &[Route], positions: &Range<u32>) -> u64 {
    routes.iter().map(|route| route.bytes(positions)).fold(0, u64::saturating_add)
}

/// Where to end a piece of at most `max_bytes` that starts with `rest` and cannot take all of it.
fn cut(band: &[Route], rest: &Range<u32>, max_bytes: u64) -> u32 {
    let Some(route) = band.first() else { return rest.end };
    let unit_bytes = band.iter().map(Route::unit_bytes).fold(0, u64::saturating_add);
    // At least one unit, or nothing would ever move.
    let most = u32::try_from(max_bytes / unit_bytes.max(1)).unwrap_or(u32::MAX).max(1);
    let units = route.units(rest);
    let (reach, _) = route.deal.take(&units, most);
    let mut sides = [(&route.source, route.deal.source), (&route.destination, route.deal.destination)];
    sides.sort_by_key(|(grid, _)| std::cmp::Reverse(grid.page_units));
    // Both sides are cut least where the larger pages end.
    let borders = sides.into_iter().map(|(grid, shard)| {
        let held = shard.held_before(reach);
        shard.token_at(held - held % grid.page_units).min(reach)
    });
    let fits = |border: &u32| *border > units.start && route.deal.count(&(units.start..*border)) > 0;
    let end = borders.into_iter().find(fits).unwrap_or(reach);
    end.saturating_mul(route.unit_tokens).min(rest.end)
}
