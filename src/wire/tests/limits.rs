//! Sizes of page lists, and values over a limit.

use super::samples::ID;
use crate::error::ErrorKind;
use crate::ids::{BallotId, GroupId, GroupSizes, Instance, Rank, Side};
use crate::layout::{HeadSpan, PageList, Share, TokenShard};
use crate::wire::codec::{Reader, Writer};
use crate::wire::{
    Done, Frame, Grant, GroupFrame, HEADER_BYTES, Hello, MAX_BODY, MAX_DESTINATIONS, MAX_DETAIL, MAX_NAME,
    MAX_PAGES, MAX_PAYLOAD, RoomFrame, WireError, pages,
};
use bytes::Bytes;
use proptest::prelude::*;

fn list_bytes(indices: Vec<u32>) -> usize {
    let list = PageList::new(0, indices);
    let mut w = Writer::new();
    pages::write(&list, &mut w);
    let frame = w.finish(crate::wire::Kind::Quiet);
    let body = &frame[HEADER_BYTES..];
    assert_eq!(pages::read(&mut Reader::new(body), 0), Ok(list));
    body.len()
}

fn grant(pages: Vec<(GroupId, PageList)>) -> Grant {
    Grant { epoch: 0, source_epoch: 0, tokens: 0..1, share: None, pages }
}

fn decoded(frame: RoomFrame) -> Result<Frame, WireError> {
    Frame::decode(&Frame::Room { id: ID, frame }.encode())
}

/// Pages of a shuffled pool: a linear congruence of full period over 2^20, those over a million left out.
fn scattered(count: usize) -> Vec<u32> {
    let pages = std::iter::successors(Some(1_u32), |page| Some((page * 1_237 + 12_345) % (1 << 20)));
    pages.filter(|page| *page < 1_000_000).take(count).collect()
}

#[test]
fn scattered_pages_take_less_than_four_bytes_each() {
    let bytes = list_bytes(scattered(15_000));
    assert!(bytes < 60_000, "{bytes} bytes");
    let mut sorted = scattered(15_000);
    sorted.sort_unstable();
    let bytes = list_bytes(sorted);
    assert!(bytes < 30_000, "{bytes} bytes");
}

#[test]
fn a_run_of_any_length_is_a_few_bytes() {
    for pages in [0..1, 0..2, 5..1_000_000, 0..1 << 20, u32::MAX - 9..u32::MAX] {
        let bytes = list_bytes(pages.clone().collect());
        assert!(bytes < 32, "{pages:?}: {bytes} bytes");
    }
    assert!(list_bytes(vec![u32::MAX - 1, u32::MAX]) < 32);
}

#[test]
fn the_most_pages_of_a_grant_fit_a_body() {
    // As far apart as pages can be, so that no number is short.
    let indices = (0..MAX_PAGES).map(|place| if place % 2 == 0 { u32::MAX } else { 0 });
    let frame = Frame::Room {
        id: ID,
        frame: RoomFrame::Grant(grant(vec![(GroupId(0), PageList::new(0, indices.collect()))])),
    };
    assert!(frame.encode().len() < usize::try_from(MAX_BODY).unwrap());
    assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
}

#[test]
fn pages_of_all_groups_together_are_limited() {
    let half = || PageList::new(0, (0..1 << 19).collect());
    let mut pages = vec![(GroupId(0), half()), (GroupId(1), half())];
    assert!(decoded(RoomFrame::Grant(grant(pages.clone()))).is_ok());
    pages.push((GroupId(2), PageList::new(0, vec![0])));
    let refused = WireError::TooLarge { field: "pages.count", value: 1, limit: 0 };
    assert_eq!(decoded(RoomFrame::Grant(grant(pages))), Err(refused));
}

#[test]
fn long_details_are_cut_between_characters() {
    for detail in ["x".repeat(5000), format!("x{}", "ü".repeat(2000))] {
        let kind = ErrorKind::Timeout;
        let bytes = Frame::Goodbye { kind, detail: detail.clone() }.encode();
        let Ok(Frame::Goodbye { detail: cut, .. }) = Frame::decode(&bytes) else { panic!("not a goodbye") };
        assert!(detail.starts_with(&cut));
        assert!((MAX_DETAIL - 1..=MAX_DETAIL).contains(&cut.len()), "{} bytes", cut.len());
    }
}

#[test]
fn names_payloads_and_destinations_over_their_limit_are_refused() {
    let group = "g".repeat(MAX_NAME + 1);
    let hello = Hello {
        features: 0,
        instance: Instance(0),
        group,
        rank: Rank::tp(0),
        sizes: GroupSizes::ONE,
        model: String::new(),
    };
    let over = |field, limit| Err(WireError::TooLarge { field, value: limit + 1, limit });
    assert_eq!(Frame::decode(&Frame::Hello(hello).encode()), over("hello.group", 256));
    let payload = Bytes::from(vec![0; MAX_PAYLOAD + 1]);
    let done = RoomFrame::Done(Done { tokens: 0, ops: 0, bytes: 0, payload });
    assert_eq!(decoded(done), over("done.payload", 1 << 20));
    let join = RoomFrame::Join { destinations: vec![Rank::tp(0); MAX_DESTINATIONS + 1] };
    assert_eq!(decoded(join), over("join.destinations", 4096));
}

#[test]
fn ranks_outside_their_group_are_refused() {
    let hello = |rank, sizes| Hello {
        features: 0,
        instance: Instance(0),
        group: String::new(),
        rank,
        sizes,
        model: String::new(),
    };
    let bytes = Frame::Hello(hello(Rank::tp(4), GroupSizes::tp(4))).encode();
    assert_eq!(Frame::decode(&bytes), Err(WireError::Value { field: "hello.rank.tp", value: 4 }));
    let bytes = Frame::Hello(hello(Rank::tp(0), GroupSizes::tp(0))).encode();
    assert_eq!(Frame::decode(&bytes), Err(WireError::Value { field: "hello.sizes", value: 0 }));
}

#[test]
fn ranges_that_end_before_they_start_are_refused() {
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let tokens = 5..4;
    let refused = |field| Err(WireError::Range { field, start: 5, end: 4 });
    let chunk = |tokens, layers| decoded(RoomFrame::ChunkDone { tokens, layers });
    assert_eq!(chunk(tokens.clone(), None), refused("chunk_done.tokens"));
    assert_eq!(chunk(0..1, Some(tokens.clone())), refused("chunk_done.layers"));
    assert_eq!(decoded(RoomFrame::Grant(Grant { tokens, ..grant(vec![]) })), refused("grant.tokens"));
}

#[test]
fn members_have_one_order() {
    let id = BallotId { side: Side::Decode, room: ID.room, attempt: ID.attempt, generation: ID.generation };
    let decoded = |members: &[u32]| {
        let members = members.iter().copied().map(Rank::tp).collect();
        Frame::decode(&Frame::Group { id, frame: GroupFrame::Enrol { members } }.encode()).map(drop)
    };
    let refused = |value| Err(WireError::Value { field: "enrol.members", value });
    assert_eq!((decoded(&[]), decoded(&[7]), decoded(&[0, 1, 5])), (Ok(()), Ok(()), Ok(())));
    assert_eq!((decoded(&[1, 0]), decoded(&[0, 1, 1])), (refused(1), refused(2)));
    let many: Vec<u32> = (0..=4096).collect();
    let limit = WireError::TooLarge { field: "enrol.members", value: 4097, limit: 4096 };
    assert_eq!((decoded(&many[..4096]), decoded(&many)), (Ok(()), Err(limit)));
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let with = |share| decoded(RoomFrame::Grant(Grant { share: Some(share), ..grant(vec![]) }));
    let refused = |field, value| Err(WireError::Value { field, value });
    let source = TokenShard { granule: 1, step: 2, phase: 2 };
    assert_eq!(with(Share { source, ..Share::WHOLE }), refused("share.source", 2));
    let destination = TokenShard { granule: 0, step: 1, phase: 0 };
    assert_eq!(with(Share { destination, ..Share::WHOLE }), refused("share.destination", 0));
    let heads = Some(HeadSpan { first: u32::MAX, count: 1, total: u32::MAX });
    assert_eq!(with(Share { heads, ..Share::WHOLE }), refused("share.heads", 1));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn page_lists_come_back(list in super::arbitrary::page_list()) {
        list_bytes(list.indices);
    }

    #[test]
    fn varints_come_back_and_have_one_form(value: u64, shift in 0..64_u32) {
        let value = value >> shift;
        let mut w = Writer::new();
        w.varint(value);
        let frame = w.finish(crate::wire::Kind::Quiet);
        let mut bytes = frame[HEADER_BYTES..].to_vec();
        prop_assert_eq!(Reader::new(&bytes).varint("v"), Ok(value));
        *bytes.last_mut().unwrap() |= 0x80;
        bytes.push(0);
        prop_assert!(Reader::new(&bytes).varint("v").is_err());
    }
}
