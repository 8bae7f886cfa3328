//! Page lists, as grants carry them.

use super::{frame, sealed};
use kvferry::layout::Pages;
use kvferry::wire::{Frame, Kind, MAX_PAGES, RoomFrame};

/// Takes the input, without its first two bytes, as the page lists of a grant; those say how many lists
/// and how many pages the groups have.
pub(crate) fn run(input: &[u8]) {
    let [lists, items, rest @ ..] = input else { return };
    let head = [&[0; 24][..], &[0; 16], &[0], &u32::from(lists % 5).to_le_bytes()].concat();
    let bytes = sealed(Kind::Grant as u8, &[&head, rest].concat());
    let Some(Frame::Room { frame: RoomFrame::Grant(grant), .. }) = frame::check(&bytes) else { return };
    let items = u32::MAX >> (items % 32);
    let mut pages = 0;
    for (_, list) in &grant.pages {
        pages += list.indices.len();
        let checked = Pages::from(list).checked(items);
        let first = list.indices.iter().position(|&page| page >= items);
        assert_eq!(checked.as_ref().err().map(|error| error.at), first);
        assert!(checked.is_err() || checked.as_ref() == Ok(&list.indices));
        let covered = list.covers(16);
        assert!(covered.start == list.first && covered.end >= list.first);
    }
    assert!(pages <= MAX_PAGES, "{pages} pages in one grant");
}
