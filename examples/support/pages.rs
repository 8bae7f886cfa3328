//! Which pages a request has, and what is in them: both sides can tell without asking each other.

use super::shape::Shape;
use kvferry::memory::HostBuffer;

/// What a page holds that nothing was written to.
pub(crate) const UNTOUCHED: u8 = 0xA5;

/// One side's pages, scattered anew in each round.
#[derive(Clone, Debug)]
pub(crate) struct Scatter {
    /// Pages of a request.
    each: usize,
    /// Pages of the pool: twice as many as all requests of a round need.
    pub(crate) pool_pages: u32,
    requests: u32,
}

impl Scatter {
    pub(crate) fn new(tokens: u32, page_tokens: u32, requests: u32) -> Result<Self, String> {
        let each = tokens.div_ceil(page_tokens);
        let pool_pages = each.checked_mul(requests).and_then(|pages| pages.checked_mul(2));
        let pool_pages = pool_pages.ok_or("more pages than a pool can have")?;
        Ok(Self { each: each as usize, pool_pages, requests })
    }

    /// The pages of a room on the prefill side, in the order of its tokens.
    pub(crate) fn source(&self, room: u32) -> Vec<u32> {
        self.pages(room, 1)
    }

    /// The pages of a room on the decode side.
    pub(crate) fn destination(&self, room: u32) -> Vec<u32> {
        self.pages(room, 2)
    }

    /// Compares every byte of a room with what the prefill side has.
    pub(crate) fn verify(
        &self,
        room: u32,
        pools: &[HostBuffer],
        shape: &Shape,
        tokens: u32,
    ) -> Result<(), String> {
        let page_bytes = shape.page_bytes();
        let (mut expected, mut found) = (vec![0; page_bytes], vec![0; page_bytes]);
        let places: Vec<_> = self.source(room).into_iter().zip(self.destination(room)).collect();
        for (number, pool) in pools.iter().enumerate() {
            let mut left = tokens;
            for &(source, destination) in &places {
                write_pattern(&mut expected, number, source.into());
                expected[shape.bytes_in_page(left.min(shape.page_tokens))..].fill(UNTOUCHED);
                left = left.saturating_sub(shape.page_tokens);
                pool.read_at(u64::from(destination) * page_bytes as u64, &mut found);
                if let Some(byte) =
                    found.iter().zip(&expected).position(|(found, expected)| found != expected)
                {
                    let (found, expected) = (found[byte], expected[byte]);
                    return Err(format!(
                        "room {room}, pool {number}, page {destination}, byte {byte}: {found:#04x} instead of \
                         {expected:#04x} of page {source}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn pages(&self, room: u32, side: u32) -> Vec<u32> {
        let (round, request) = (room / self.requests, room % self.requests);
        let shuffled = permutation(2 * u64::from(round) + u64::from(side), self.pool_pages);
        shuffled[request as usize * self.each..][..self.each].to_vec()
    }
}

/// Fills all pages of the pool with this number.
pub(crate) fn fill(pool: &HostBuffer, number: usize, page_bytes: usize) {
    let mut page = vec![0; page_bytes];
    for (index, offset) in (0..pool.len()).step_by(page_bytes).enumerate() {
        write_pattern(&mut page, number, index as u64);
        pool.write_at(offset, &page);
    }
}

/// 64-bit words of which no two pages of any pool have the same.
fn write_pattern(page: &mut [u8], number: usize, index: u64) {
    let mut word = mix64(((number as u64) << 32) + index + 1);
    for bytes in page.chunks_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        word = word.wrapping_add(GOLDEN);
    }
}

/// `0..pages` in an order that depends on the seed (Fisher-Yates).
fn permutation(seed: u64, pages: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..pages).collect();
    for last in (1..order.len()).rev() {
        let drawn = mix64((seed << 32).wrapping_add(last as u64)) % (last as u64 + 1);
        order.swap(last, usize::try_from(drawn).expect("at most `last`"));
    }
    order
}

/// The output function of splitmix64.
fn mix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
