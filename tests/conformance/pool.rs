//! A small pool on each side: scattered pages of an awkward size, with gaps that nobody may write.

use kvferry::layout::{Admission, Extent, PageList, Pairing, Piece, PoolEntry, PoolLayout, Role};
use kvferry::memory::{HostBuffer, Region, SharedBuffer};
use kvferry::transport::Transport;
use kvferry::{GroupId, RegionId};
use std::sync::Arc;

/// One side's pool: keys and values of each layer, one region each.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) layout: Arc<PoolLayout>,
    pub(crate) buffers: Vec<Buffer>,
}

/// What pools are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    Host,
    Shared,
}

#[derive(Debug)]
pub(crate) enum Buffer {
    Host(HostBuffer),
    Shared(SharedBuffer),
}

/// Geometry shared by both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) pages: u32,
    pub(crate) page_bytes: u64,
    /// Bytes between pages.
    pub(crate) gap: u64,
}

/// One transfer: the same tokens in pages of either side.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) source: PageList,
    pub(crate) destination: PageList,
}

pub(crate) const PAGE_TOKENS: u32 = 4;
pub(crate) const CANARY: u8 = 0xC7;

impl Shape {
    /// Nothing about it is a power of two.
    pub(crate) const SMALL: Self = Self { layers: 3, pages: 40, page_bytes: 4 * 37, gap: 5 };
    /// 32 KiB pages, 16 MiB a side.
    pub(crate) const LARGE: Self = Self { layers: 2, pages: 128, page_bytes: 32 << 10, gap: 0 };
}

impl Buffer {
    fn new(memory: Memory, len: u64) -> Self {
        match memory {
            Memory::Host => Self::Host(HostBuffer::zeroed(len).unwrap()),
            Memory::Shared => Self::Shared(SharedBuffer::zeroed(len).unwrap()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Host(buffer) => buffer.len(),
            Self::Shared(buffer) => buffer.len(),
        }
    }

    pub(crate) fn region(&self, id: RegionId) -> Region {
        match self {
            Self::Host(buffer) => buffer.region(id),
            Self::Shared(buffer) => buffer.region(id),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) {
        match self {
            Self::Host(buffer) => buffer.write_at(offset, bytes),
            Self::Shared(buffer) => buffer.write_at(offset, bytes),
        }
    }

    fn to_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        match self {
            Self::Host(buffer) => buffer.to_vec(offset, len),
            Self::Shared(buffer) => buffer.to_vec(offset, len),
        }
    }

    fn fill(&self, byte: u8) {
        match self {
            Self::Host(buffer) => buffer.fill(byte),
            Self::Shared(buffer) => buffer.fill(byte),
        }
    }
}

impl Pool {
    pub(crate) fn new(shape: Shape, memory: Memory) -> Self {
        let mut layout = PoolLayout::new();
        let group = layout.paged("kv", PAGE_TOKENS, shape.pages);
        let stride = shape.page_bytes + shape.gap;
        let mut buffers = Vec::new();
        for layer in 0..shape.layers {
            for role in [Role::Key, Role::Value] {
                let region = RegionId(u32::try_from(buffers.len()).unwrap());
                let entry = PoolEntry::new(group, role, region, shape.page_bytes);
                layout.push(entry.layer(layer).stride(stride).offset(shape.gap));
                buffers.push(Buffer::new(memory, u64::from(shape.pages) * stride + shape.gap));
            }
        }
        let sizes: Vec<u64> = buffers.iter().map(Buffer::len).collect();
        layout.check(|region| sizes.get(region.0 as usize).copied()).unwrap();
        Self { layout: Arc::new(layout), buffers }
    }

    pub(crate) fn register(&self, transport: &mut dyn Transport) {
        for (number, buffer) in (0..).zip(&self.buffers) {
            transport.register(&buffer.region(RegionId(number))).unwrap();
        }
    }

    /// Bytes that differ everywhere and from run to run of `salt`.
    pub(crate) fn fill_with_pattern(&self, salt: u64) {
        let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for buffer in &self.buffers {
            let mut bytes = vec![0; usize::try_from(buffer.len()).unwrap()];
            for chunk in bytes.chunks_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
            }
            buffer.write_at(0, &bytes);
        }
    }

    pub(crate) fn fill(&self, byte: u8) {
        self.buffers.iter().for_each(|buffer| buffer.fill(byte));
    }

    pub(crate) fn read(&self, extents: &[Extent]) -> Vec<u8> {
        let read = |extent: &Extent| {
            let buffer = &self.buffers[extent.region.0 as usize];
            buffer.to_vec(extent.offset, usize::try_from(extent.len).unwrap())
        };
        extents.iter().flat_map(read).collect()
    }

    pub(crate) fn snapshot(&self) -> Vec<Vec<u8>> {
        self.buffers.iter().map(|buffer| buffer.to_vec(0, usize::try_from(buffer.len()).unwrap())).collect()
    }

    /// How many bytes outside `extents` are not the canary.
    pub(crate) fn spoiled_outside(&self, extents: &[Extent]) -> usize {
        let mut bytes = self.snapshot();
        for Extent { region, offset, len } in extents {
            let start = usize::try_from(*offset).unwrap();
            bytes[region.0 as usize][start..][..usize::try_from(*len).unwrap()].fill(CANARY);
        }
        bytes.iter().flatten().filter(|byte| **byte != CANARY).count()
    }
}

impl Job {
    /// `pages` pages, scattered differently on each side; `salt` varies where.
    pub(crate) fn new(source: &Pool, destination: &Pool, pages: u32, salt: u32) -> Self {
        let items = source.layout.groups[0].items;
        let scattered = |step: u32, start: u32| {
            PageList::new(0, (0..pages).map(|i| (start + i * step) % items).collect())
        };
        let pairing = Pairing::new(Arc::clone(&source.layout), Arc::clone(&destination.layout)).unwrap();
        // Steps coprime to 40 and 128, so that no page comes twice.
        Self {
            pairing: Arc::new(pairing),
            source: scattered(7, 3 + salt),
            destination: scattered(11, 5 + salt),
        }
    }

    pub(crate) fn admission(&self) -> Arc<Admission> {
        let tokens = 0..self.tokens();
        let pages = Arc::from([(GroupId(0), self.destination.clone())]);
        Arc::new(Admission::new(Arc::clone(&self.pairing), tokens, pages))
    }

    pub(crate) fn tokens(&self) -> u32 {
        u32::try_from(self.source.indices.len()).unwrap() * PAGE_TOKENS
    }

    /// Everything.
    pub(crate) fn whole(&self) -> Piece {
        Piece { pairs: 0..u32::try_from(self.pairing.pairs().len()).unwrap(), positions: 0..self.tokens() }
    }

    pub(crate) fn pieces(&self, max_bytes: u64) -> Vec<Piece> {
        let mut pieces = kvferry::layout::Pieces::new(self.whole());
        std::iter::from_fn(|| pieces.next(&self.pairing, max_bytes)).collect()
    }

    pub(crate) fn source_extents(&self, piece: &Piece) -> Vec<Extent> {
        let mut extents = Vec::new();
        self.pairing.source_extents(piece, &self.source, &mut extents).unwrap();
        extents
    }

    pub(crate) fn destination_extents(&self, piece: &Piece) -> Vec<Extent> {
        let mut extents = Vec::new();
        self.pairing.destination_extents(piece, &self.destination, &mut extents).unwrap();
        extents
    }
}
