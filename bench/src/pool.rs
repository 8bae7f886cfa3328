//! One side's memory: what it is filled with, and whether it arrived.

use crate::case::{Case, GOLDEN, Plan, mix};
use crate::options::Memory;
use anyhow::Result;
use kvferry::RegionId;
use kvferry::memory::{HostBuffer, MemoryError, Region, SharedBuffer};

/// The memory of a region.
#[derive(Debug)]
enum Buffer {
    Private(HostBuffer),
    Shared(SharedBuffer),
}

impl Buffer {
    fn new(memory: Memory, bytes: u64) -> Result<Self, MemoryError> {
        Ok(match memory {
            Memory::Private => Self::Private(HostBuffer::zeroed(bytes)?),
            Memory::Shared => Self::Shared(SharedBuffer::zeroed(bytes)?),
        })
    }

    fn region(&self, id: RegionId) -> Region {
        match self {
            Self::Private(buffer) => buffer.region(id),
            Self::Shared(buffer) => buffer.region(id),
        }
    }

    fn write_at(&self, at: u64, bytes: &[u8]) {
        match self {
            Self::Private(buffer) => buffer.write_at(at, bytes),
            Self::Shared(buffer) => buffer.write_at(at, bytes),
        }
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) {
        match self {
            Self::Private(buffer) => buffer.read_at(at, bytes),
            Self::Shared(buffer) => buffer.read_at(at, bytes),
        }
    }

    fn fill(&self, byte: u8) {
        match self {
            Self::Private(buffer) => buffer.fill(byte),
            Self::Shared(buffer) => buffer.fill(byte),
        }
    }
}

/// A buffer for each region.
#[derive(Debug)]
pub(crate) struct Pool {
    case: Case,
    regions: Vec<Buffer>,
    /// A page in hand.
    page: Vec<u8>,
}

impl Pool {
    pub(crate) fn new(case: &Case, memory: Memory) -> Result<Self> {
        let regions = (0..case.regions).map(|_| Buffer::new(memory, case.region_bytes()));
        let page = vec![0; usize::try_from(case.page_bytes)?];
        Ok(Self { case: *case, regions: regions.collect::<Result<_, _>>()?, page })
    }

    pub(crate) fn region(&self, number: u32, id: RegionId) -> Region {
        self.regions[number as usize].region(id)
    }

    /// Every page gets content of its own.
    pub(crate) fn fill(&mut self) {
        for (number, region) in (0_u32..).zip(&self.regions) {
            for page in 0..self.case.pool_pages {
                write_page(&mut self.page, number, page);
                region.write_at(u64::from(page) * self.case.page_bytes, &self.page);
            }
        }
    }

    pub(crate) fn clear(&self) {
        self.regions.iter().for_each(|region| region.fill(UNTOUCHED));
    }

    /// Whether the pages of a plan, and nothing else, have come in place.
    pub(crate) fn holds(&mut self, plan: &Plan) -> bool {
        let untouched = vec![UNTOUCHED; self.page.len()];
        let mut landed = vec![0; self.page.len()];
        // The last one to a page counts.
        let mut sources = vec![None; self.case.pool_pages as usize];
        for (source, destination) in plan.source.iter().zip(&plan.destination) {
            sources[*destination as usize] = Some(*source);
        }
        for (number, region) in (0_u32..).zip(&self.regions) {
            for (page, source) in (0_u32..).zip(&sources) {
                region.read_at(u64::from(page) * self.case.page_bytes, &mut landed);
                let wanted = match source {
                    None => &untouched,
                    Some(source) => {
                        write_page(&mut self.page, number, *source);
                        &self.page
                    }
                };
                if &landed != wanted {
                    return false;
                }
            }
        }
        true
    }
}

/// The bytes that go along with a request.
pub(crate) fn payload(repetition: u32, request: u32) -> Vec<u8> {
    let byte = |at: u32| (at * 7 + repetition * 31 + request * 13 + 1).to_le_bytes()[0];
    (0..PAYLOAD_BYTES).map(byte).collect()
}

fn write_page(bytes: &mut [u8], region: u32, page: u32) {
    let mut word = mix((u64::from(region) << 32) + u64::from(page) + 1);
    for bytes in bytes.chunks_exact_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(GOLDEN);
    }
}

const UNTOUCHED: u8 = 0xA5;
const PAYLOAD_BYTES: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_arrive_or_went_too_far_is_noticed() {
        let case = Case::named("S").unwrap();
        let plan = case.plan(1);
        let mut pool = Pool::new(&case, Memory::Private).unwrap();
        pool.clear();
        assert!(!pool.holds(&plan), "nothing has come");
        for (source, destination) in plan.source.iter().zip(&plan.destination) {
            for region in 0..case.regions {
                write_page(&mut pool.page, region, *source);
                let at = u64::from(*destination) * case.page_bytes;
                pool.regions[region as usize].write_at(at, &pool.page);
            }
        }
        assert!(pool.holds(&plan));
        let mut last = [0];
        pool.regions[3].read_at(case.region_bytes() - 1, &mut last);
        pool.regions[3].write_at(case.region_bytes() - 1, &[last[0] ^ 1]);
        assert!(!pool.holds(&plan), "one bit of the last page is wrong");
    }
}
