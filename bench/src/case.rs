//! The workloads, and which pages of them move in which repetition.

/// Pages in several regions; those of a request have the same numbers in all of them, as one block table
/// serves every layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// One a layer and role.
    pub(crate) regions: u32,
    pub(crate) page_bytes: u64,
    pub(crate) page_tokens: u32,
    /// Pages of one request in each region.
    pub(crate) pages: u32,
    /// Pages of the pool in each region.
    pub(crate) pool_pages: u32,
    /// Requests at once; or, if `latency`, one after the other.
    pub(crate) requests: u32,
    pub(crate) latency: bool,
}

/// Page numbers of one repetition, request by request.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Vec<u32>,
    pub(crate) destination: Vec<u32>,
}

/// The workloads that have names: a large model in pages of 16 tokens and of one, a latent cache, single
/// pages one after the other, many requests at once, and a short one to see that all works.
pub(crate) const NAMED: [Case; 6] = [
    A,
    Case { name: "B", page_bytes: 2048, page_tokens: 1, pages: 1024, pool_pages: 2048, ..A },
    Case { name: "C", regions: 61, page_bytes: 73_728, page_tokens: 64, pages: 64, pool_pages: 128, ..A },
    Case {
        name: "D",
        regions: 1,
        page_bytes: 4096,
        pages: 1,
        pool_pages: 64,
        requests: 2000,
        latency: true,
        ..A
    },
    Case { name: "E", pages: 16, requests: 16, ..A },
    Case { name: "S", regions: 4, page_bytes: 4096, pages: 8, pool_pages: 16, requests: 2, ..A },
];

const A: Case = Case {
    name: "A",
    regions: 64,
    page_bytes: 32_768,
    page_tokens: 16,
    pages: 256,
    pool_pages: 512,
    requests: 1,
    latency: false,
};

impl Case {
    pub(crate) fn named(name: &str) -> Option<Self> {
        NAMED.into_iter().find(|case| case.name == name)
    }

    /// Tokens of one request.
    pub(crate) fn tokens(&self) -> u32 {
        self.pages * self.page_tokens
    }

    /// Bytes moved in one repetition.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.regions) * u64::from(self.pages) * self.page_bytes * u64::from(self.requests)
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        u64::from(self.pool_pages) * self.page_bytes
    }

    pub(crate) fn pool_bytes(&self) -> u64 {
        u64::from(self.regions) * self.region_bytes()
    }

    /// Random distinct pages of either side; repetition 0 is the warm-up.
    pub(crate) fn plan(&self, repetition: u32) -> Plan {
        let numbers = |seed: u64| {
            let pages = permutation(seed, self.pool_pages);
            // One after the other, requests may take pages again; at once they may not.
            pages.into_iter().cycle().take(self.moved()).collect()
        };
        let repetition = u64::from(repetition);
        Plan { source: numbers(2 * repetition + 1), destination: numbers(2 * repetition + 2) }
    }

    /// Pages of all requests of a repetition, in each region.
    fn moved(&self) -> usize {
        (self.pages * self.requests) as usize
    }
}

impl Plan {
    /// The page numbers of a request at the source and at the destination.
    pub(crate) fn of(&self, case: &Case, request: u32) -> (&[u32], &[u32]) {
        let (start, count) = ((request * case.pages) as usize, case.pages as usize);
        (&self.source[start..start + count], &self.destination[start..start + count])
    }
}

/// What a word of memory is made of: the output of the generator `splitmix64`.
pub(crate) const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 2^64 divided by the golden ratio.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// `0..count` in an order that depends on the seed (Fisher and Yates).
fn permutation(seed: u64, count: u32) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..count).collect();
    for at in (1..count).rev() {
        let other = mix((seed << 32) + u64::from(at)) % (u64::from(at) + 1);
        pages.swap(at as usize, usize::try_from(other).unwrap_or_default());
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs of the published generator for seed 0.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(GOLDEN), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn every_page_moves_at_most_once_in_a_repetition() {
        for case in NAMED.into_iter().filter(|case| !case.latency) {
            let Plan { source, destination } = case.plan(1);
            for mut pages in [source, destination] {
                pages.sort_unstable();
                pages.dedup();
                assert_eq!(pages.len(), case.moved(), "case {}", case.name);
                assert!(pages.iter().all(|page| *page < case.pool_pages));
            }
        }
    }

    #[test]
    fn cases_are_as_large_as_they_are_named_for() {
        let mib = |name| Case::named(name).map(|case| case.bytes() >> 20);
        assert_eq!((mib("A"), mib("B"), mib("C"), mib("E")), (Some(512), Some(128), Some(274), Some(512)));
        assert!(Case::named("F").is_none());
    }
}
