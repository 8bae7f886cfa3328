//! Claims of a frame take no memory before the bytes behind them are there.
#![allow(unsafe_code, reason = "a counting allocator")]

use super::sealed;
use bytes::Bytes;
use kvferry::wire::{Frame, Kind, MAX_PAGES, RoomFrame, WireError};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting what each thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System` unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + layout.size());
        // SAFETY: the caller's promises are those `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` by `alloc` above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What decoding gives, and the bytes it asked for.
fn decode(kind: Kind, body: &[u8]) -> (Result<Frame, WireError>, usize) {
    let frame = sealed(kind as u8, body);
    let before = ASKED.get();
    let decoded = Frame::decode(&frame);
    (decoded, ASKED.get() - before)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The body of a grant, up to the number of its page lists.
fn grant(lists: u32) -> Vec<u8> {
    [vec![0; 24], words(&[0, 0, 0, 64]), vec![0], words(&[lists])].concat()
}

#[test]
fn counts_without_values_take_no_memory() {
    let room = vec![0; 24];
    for claim in [1, 1000, 1024, 4096, 65_536, u32::MAX] {
        let bodies = [
            (Kind::Hello, [vec![0; 40], words(&[1, 1, 1, 1, claim])].concat()),
            (Kind::Layout, words(&[0, claim])),
            (Kind::Layout, words(&[0, 0, claim])),
            (Kind::Layout, words(&[0, 0, 0, claim])),
            (Kind::Layout, words(&[0, 0, 0, 1, 7, claim])),
            (Kind::Goodbye, [vec![1], words(&[claim])].concat()),
            (Kind::RegionsGone, words(&[claim])),
            (Kind::RegionsClosed, words(&[claim])),
            (Kind::Join, [room.clone(), words(&[claim])].concat()),
            (Kind::Grant, grant(claim)),
            (Kind::Grant, [grant(1), vec![0, 0], words(&[0, claim])].concat()),
            (Kind::Offer, [room.clone(), vec![0, 0, 1, 0x80], words(&[claim])].concat()),
        ];
        for (kind, body) in bodies {
            let (refused, asked) = decode(kind, &body);
            assert!(
                matches!(refused, Err(WireError::Truncated { .. } | WireError::TooLarge { .. })),
                "{kind:?} claims {claim}: {refused:?}"
            );
            assert!(asked < 256, "{kind:?} claims {claim}: {asked} bytes");
        }
    }
}

#[test]
fn a_body_that_is_only_claimed_takes_no_memory() {
    for claim in [9_u32, 1 << 20, u32::MAX] {
        let mut frame = sealed(Kind::Ping as u8, &[0; 8]).to_vec();
        frame[8..12].copy_from_slice(&claim.to_le_bytes());
        let frame = Bytes::from(frame);
        let before = ASKED.get();
        assert!(Frame::decode(&frame).is_err());
        assert_eq!(ASKED.get(), before);
    }
}

#[test]
fn runs_beyond_the_pages_of_a_grant_take_no_memory() {
    // 2^32 pages, the number of pages right or at its limit.
    let endless = [1, 0xfe, 0xff, 0xff, 0xff, 0x0f];
    let limit = u32::try_from(MAX_PAGES).unwrap();
    for count in [1, 2, 1000, limit] {
        let (refused, asked) =
            decode(Kind::Grant, &[grant(1), vec![0, 0], words(&[0, count]), endless.to_vec()].concat());
        assert!(matches!(refused, Err(WireError::TooLarge { field: "pages.run_length", .. })), "{refused:?}");
        assert!(asked < 256, "{count} pages: {asked} bytes");
    }
    let (refused, asked) = decode(Kind::Grant, &[grant(1), vec![0, 0], words(&[0, limit + 1])].concat());
    assert!(matches!(refused, Err(WireError::TooLarge { field: "pages.count", .. })), "{refused:?}");
    assert!(asked < 256, "{asked} bytes");
}

#[test]
fn runs_past_the_last_page_number_are_refused() {
    // A page from 2^32 - 1 on, then the next one; a page before 0; a run across the end.
    for (count, runs) in [
        (2, vec![0xfc, 0xff, 0xff, 0xff, 0x3f, 0]),
        (1, vec![2]),
        (2, vec![0xfd, 0xff, 0xff, 0xff, 0x3f, 0]),
        (1, vec![0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
    ] {
        let (refused, asked) =
            decode(Kind::Grant, &[grant(1), vec![0, 0], words(&[0, count]), runs].concat());
        assert!(matches!(refused, Err(WireError::Value { field: "pages.run", .. })), "{refused:?}");
        assert!(asked < 256, "{asked} bytes");
    }
}

#[test]
fn the_longest_run_takes_little_more_than_its_pages() {
    let run = [1, 0xfe, 0xff, 0x3f];
    let limit = u32::try_from(MAX_PAGES).unwrap();
    let (decoded, asked) =
        decode(Kind::Grant, &[grant(1), vec![0, 0], words(&[0, limit]), run.to_vec()].concat());
    let Ok(Frame::Room { frame: RoomFrame::Grant(grant), .. }) = decoded else { panic!("{decoded:?}") };
    assert!(grant.pages[0].1.indices.iter().copied().eq(0..limit));
    assert!(asked < 2 * 4 * MAX_PAGES, "{asked} bytes");
}
