//! Pools whose every byte knows who may touch it.

use super::rng::mix;
use crate::ids::{GroupId, RegionId};
use crate::layout::{Extent, GroupKind, ItemOrder, Layers, PageList, PoolEntry, PoolLayout, Role};
use std::ops::Range;
use std::sync::Arc;

/// The memory of one node: bytes, and for each byte the use it is lent to.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) layout: Arc<PoolLayout>,
    regions: Vec<Region>,
    /// Unused pages of each group.
    free: Vec<Vec<u32>>,
}

#[derive(Debug)]
struct Region {
    bytes: Vec<u8>,
    owners: Vec<u32>,
}

/// One lending of bytes; 0 stands for nobody.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tag(pub(super) u32);

/// Nobody's.
pub(super) const NOBODY: Tag = Tag(0);

/// Touched by someone it is not lent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trespass {
    pub(super) region: RegionId,
    pub(super) offset: u64,
    pub(super) owner: Tag,
}

impl Pool {
    pub(super) fn new(layout: Arc<PoolLayout>) -> Self {
        let mut regions: Vec<Region> = Vec::new();
        for entry in &layout.entries {
            let items = u64::from(layout.groups[usize::from(entry.group.0)].items);
            let end = place(entry.offset + items * entry.item_stride);
            let at = place(entry.region.0.into());
            while regions.len() <= at {
                regions.push(Region { bytes: Vec::new(), owners: Vec::new() });
            }
            if regions[at].bytes.len() < end {
                regions[at].bytes.resize(end, 0);
                regions[at].owners.resize(end, 0);
            }
        }
        let free = layout.groups.iter().map(|group| (0..group.items).rev().collect()).collect();
        Self { layout, regions, free }
    }

    /// Takes an unused page (or row) of a group; `pick` chooses among them.
    pub(super) fn take(&mut self, group: GroupId, pick: impl FnOnce(usize) -> usize) -> Option<u32> {
        let free = &mut self.free[usize::from(group.0)];
        if free.is_empty() { None } else { Some(free.swap_remove(pick(free.len()))) }
    }

    /// Takes pages back, owned by nobody and full of rubbish.
    pub(super) fn give_back(&mut self, group: GroupId, pages: &[u32]) {
        let layout = self.layout.clone();
        for entry in layout.entries.iter().filter(|entry| entry.group == group) {
            for &page in pages {
                let start = place(entry.offset + u64::from(page) * entry.item_stride);
                let range = start..start + place(entry.item_bytes);
                let region = &mut self.regions[place(entry.region.0.into())];
                region.owners[range.clone()].fill(NOBODY.0);
                region.bytes[range].fill(RUBBISH);
            }
        }
        self.free[usize::from(group.0)].extend_from_slice(pages);
    }

    /// Lends the bytes of these positions of one group to `tag`.
    pub(super) fn lend(&mut self, tag: Tag, group: GroupId, list: &PageList, positions: Range<u32>) {
        self.each(group, list, positions, None, |region, at, _, _, _| region.owners[at] = tag.0);
    }

    /// Fills positions with what they hold for the request of this salt.
    pub(super) fn fill(
        &mut self,
        salt: u64,
        group: GroupId,
        list: &PageList,
        positions: Range<u32>,
        layers: Option<&Range<u32>>,
    ) {
        let layers = layers.cloned().map(Layers::from);
        self.each(group, list, positions, layers.as_ref(), |region, at, entry, position, byte| {
            region.bytes[at] = content(salt, entry, position, byte);
        });
    }

    /// The first position and entry that does not hold what the request of this salt should hold.
    pub(super) fn differs(
        &mut self,
        salt: u64,
        group: GroupId,
        list: &PageList,
        positions: Range<u32>,
        layers: Option<&Layers>,
    ) -> Option<(u32, Role, Option<u32>)> {
        let mut found = None;
        self.each(group, list, positions, layers, |region, at, entry, position, byte| {
            if found.is_none() && region.bytes[at] != content(salt, entry, position, byte) {
                found = Some((position, entry.role, entry.layer));
            }
        });
        found
    }

    /// Reads bytes lent to `tag`.
    pub(super) fn read(&self, tag: Tag, extents: &[Extent], out: &mut Vec<u8>) -> Result<(), Trespass> {
        for extent in extents {
            let range = self.checked(tag, extent)?;
            out.extend_from_slice(&self.regions[place(extent.region.0.into())].bytes[range]);
        }
        Ok(())
    }

    /// Writes the part `part` of `bytes`, which as a whole go to `extents`, all lent to `tag`.
    pub(super) fn write(
        &mut self,
        tag: Tag,
        extents: &[Extent],
        bytes: &[u8],
        part: Range<usize>,
    ) -> Result<(), Trespass> {
        let mut at = 0;
        for extent in extents {
            let end = at + place(extent.len);
            let (from, to) = (part.start.clamp(at, end), part.end.clamp(at, end));
            if from < to {
                let range = self.checked(tag, extent)?;
                let target = range.start + (from - at)..range.start + (to - at);
                self.regions[place(extent.region.0.into())].bytes[target].copy_from_slice(&bytes[from..to]);
            }
            at = end;
        }
        Ok(())
    }

    fn checked(&self, tag: Tag, extent: &Extent) -> Result<Range<usize>, Trespass> {
        let range = place(extent.offset)..place(extent.offset + extent.len);
        let owners = &self.regions[place(extent.region.0.into())].owners[range.clone()];
        match owners.iter().position(|&owner| owner != tag.0) {
            None => Ok(range),
            Some(at) => Err(Trespass {
                region: extent.region,
                offset: extent.offset + at as u64,
                owner: Tag(owners[at]),
            }),
        }
    }

    /// Visits every byte of these positions, by arithmetic of its own.
    fn each(
        &mut self,
        group: GroupId,
        list: &PageList,
        positions: Range<u32>,
        layers: Option<&Layers>,
        mut visit: impl FnMut(&mut Region, usize, &PoolEntry, u32, u64),
    ) {
        let layout = self.layout.clone();
        let page_tokens = match layout.groups[usize::from(group.0)].kind {
            GroupKind::Paged { page_tokens } => page_tokens,
            GroupKind::Rows => 1,
        };
        let of_group = layout.entries.iter().filter(|entry| entry.group == group);
        let owed = |entry: &&PoolEntry| match (layers, entry.layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => layers.contains(layer),
            (Some(_), None) => false,
        };
        for entry in of_group.filter(owed) {
            let heads = match entry.order {
                ItemOrder::HeadMajor { heads } => u64::from(heads),
                _ => 1,
            };
            let token_bytes = entry.item_bytes / u64::from(page_tokens);
            let head_bytes = token_bytes / heads;
            for position in positions.clone() {
                let (page, slot) =
                    ((position - list.first) / page_tokens, (position - list.first) % page_tokens);
                let page = u64::from(list.indices[place(page.into())]);
                for byte in 0..token_bytes {
                    let (head, inside) = (byte / head_bytes, byte % head_bytes);
                    let row = head * u64::from(page_tokens) + u64::from(slot);
                    let at = entry.offset + page * entry.item_stride + row * head_bytes + inside;
                    let region = &mut self.regions[place(entry.region.0.into())];
                    visit(region, place(at), entry, position, byte);
                }
            }
        }
    }
}

/// What a byte of a request holds, on either side.
fn content(salt: u64, entry: &PoolEntry, position: u32, byte: u64) -> u8 {
    let role = match entry.role {
        Role::Key => 1,
        Role::Value => 2,
        Role::State(number) => 100 + u64::from(number),
        Role::Aux(number) => 200 + u64::from(number),
        _ => 3,
    };
    let layer = entry.layer.map_or(0, |layer| u64::from(layer) + 1);
    let name = salt ^ (role << 56) ^ (layer << 48) ^ (u64::from(entry.group.0) << 40);
    let number = mix(name ^ (u64::from(position) << 16) ^ byte);
    u8::try_from(number >> 56).unwrap_or(0)
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

const RUBBISH: u8 = 0xdd;
