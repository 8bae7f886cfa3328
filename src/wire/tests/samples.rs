//! One value of each frame and variant, with the name of its golden file.

use crate::error::ErrorKind;
use crate::ids::{
    Attempt, BallotId, Generation, GrantId, GroupId, GroupSizes, Instance, OpId, Party, Rank, RegionId, Room,
    Side,
};
use crate::layout::{
    GroupKind, HeadSpan, ItemOrder, PageGroup, PageList, Piece, PoolEntry, PoolLayout, Role, Sharding, Share,
    TokenShard,
};
use crate::poll::KVPoll;
use crate::wire::{
    Cause, DataHeader, Done, Frame, Grant, GroupFrame, Hello, Layout, Offer, RoomFrame, Status,
};
use bytes::Bytes;

pub(super) const ID: GrantId =
    GrantId { room: Room(0x1122_3344_5566_7788), attempt: Attempt(3), generation: Generation(9) };

const BALLOT: BallotId =
    BallotId { side: Side::Decode, room: ID.room, attempt: ID.attempt, generation: Generation(11) };

pub(super) fn frames() -> Vec<(&'static str, Frame)> {
    let room = |frame| Frame::Room { id: ID, frame };
    let group = |side, frame| Frame::Group { id: BallotId { side, ..BALLOT }, frame };
    let regions = || vec![RegionId(0), RegionId(7), RegionId(u32::MAX)];
    vec![
        ("hello", Frame::Hello(hello())),
        ("layout", Frame::Layout(layout())),
        ("layout_empty", Frame::Layout(Layout { epoch: 0, layout: PoolLayout::default(), keys: vec![] })),
        ("ping", Frame::Ping { token: 0x0123_4567_89ab_cdef }),
        ("pong", Frame::Pong { token: 0x0123_4567_89ab_cdef }),
        ("goodbye", Frame::Goodbye { kind: ErrorKind::ShuttingDown, detail: "engine closed".into() }),
        ("regions_gone", Frame::RegionsGone { regions: regions() }),
        ("regions_closed", Frame::RegionsClosed { regions: regions() }),
        ("join", room(RoomFrame::Join { destinations: vec![Rank::tp(0), RANK] })),
        ("offer", room(RoomFrame::Offer(offer()))),
        (
            "offer_open",
            room(RoomFrame::Offer(Offer { tokens: None, complete: false, payload: Bytes::new() })),
        ),
        ("grant", room(RoomFrame::Grant(grant()))),
        ("grant_whole", room(RoomFrame::Grant(Grant { share: Some(Share::WHOLE), ..grant() }))),
        (
            "grant_nothing",
            room(RoomFrame::Grant(Grant { share: None, tokens: 64..64, pages: vec![], ..grant() })),
        ),
        ("chunk_done", room(RoomFrame::ChunkDone { tokens: 0..512, layers: None })),
        ("chunk_done_layers", room(RoomFrame::ChunkDone { tokens: 512..600, layers: Some(8..16) })),
        ("done", room(RoomFrame::Done(done(b"token 17")))),
        ("done_bare", room(RoomFrame::Done(done(b"")))),
        ("failed", room(RoomFrame::Failed(cause(Side::Prefill, "deadline of 30 s passed")))),
        ("abort", room(RoomFrame::Abort(cause(Side::Decode, "größer als der Pool")))),
        ("quiet", room(RoomFrame::Quiet)),
        ("query", room(RoomFrame::Query { asked: Side::Decode })),
        ("status_known", room(RoomFrame::Status(status(Some(KVPoll::Transferring))))),
        ("status_unknown", room(RoomFrame::Status(Status::new(Side::Prefill, None)))),
        ("enrol", group(Side::Decode, GroupFrame::Enrol { members: vec![Rank::tp(0), Rank::tp(1), RANK] })),
        ("vote_success", group(Side::Prefill, GroupFrame::Vote { cause: None })),
        (
            "vote_failed",
            group(Side::Decode, GroupFrame::Vote { cause: Some(cause(Side::Decode, "client gone")) }),
        ),
        ("verdict_success", group(Side::Decode, GroupFrame::Verdict { cause: None })),
        (
            "verdict_failed",
            group(Side::Decode, GroupFrame::Verdict { cause: Some(cause(Side::Prefill, "link lost")) }),
        ),
    ]
}

pub(super) fn data_headers() -> Vec<(&'static str, DataHeader)> {
    let header = DataHeader {
        grant: ID,
        op: OpId(5),
        piece: Piece { pairs: 4..6, positions: 32..64 },
        payload_bytes: 65_536,
        payload_crc: Some(0xdead_beef),
    };
    vec![("data", header.clone()), ("data_unchecked", DataHeader { payload_crc: None, ..header })]
}

fn hello() -> Hello {
    Hello {
        features: 0b101,
        instance: INSTANCE,
        group: "prefill-a".into(),
        rank: RANK,
        sizes: GroupSizes { dp: 2, pp: 2, cp: 4, tp: 8 },
        model: "llama-8b".into(),
    }
}

fn layout() -> Layout {
    let group = |name: &str, kind, items| PageGroup { name: name.into(), kind, items, is_optional: false };
    let tag = || String::from("swizzle-2");
    let entries = [
        (Role::Key, ItemOrder::TokenMajor, Sharding::Replicated),
        (Role::Value, ItemOrder::HeadMajor { heads: 8 }, Sharding::Heads(HEADS)),
        (Role::KeyValue, ItemOrder::HeadBlocks { heads: 8, tag: tag() }, Sharding::Heads(HEADS)),
        (Role::Latent, ItemOrder::Opaque { tag: tag() }, Sharding::Replicated),
        (Role::Scale(1), ItemOrder::TokenMajor, Sharding::Replicated),
        (Role::State(2), ItemOrder::TokenMajor, Sharding::Replicated),
        (Role::Aux(3), ItemOrder::TokenMajor, Sharding::Replicated),
    ];
    let entries = (0_u32..).zip(entries).map(|(place, (role, order, sharding))| PoolEntry {
        group: GroupId(u16::from(place > 4)),
        role,
        layer: (place < 4).then_some(place),
        region: RegionId(place),
        offset: 4096 * u64::from(place),
        item_bytes: 32_768,
        item_stride: 65_536,
        dtype: "bf16".into(),
        order,
        sharding,
    });
    Layout {
        epoch: 2,
        layout: PoolLayout {
            groups: vec![
                group("kv", GroupKind::Paged { page_tokens: 16 }, 100_000),
                group("state", GroupKind::Rows, 256),
            ],
            entries: entries.collect(),
        },
        keys: vec![(RegionId(0), Bytes::from_static(b"key of 0")), (RegionId(1), Bytes::new())],
    }
}

fn offer() -> Offer {
    Offer { tokens: Some(4096), complete: true, payload: Bytes::from_static(b"hints") }
}

fn grant() -> Grant {
    let share = Share {
        heads: Some(HEADS),
        layers: Some([0, 1, 2, 3, 16, 20, 21].into()),
        source: TokenShard { granule: 16, step: 4, phase: 1 },
        destination: TokenShard::WHOLE,
    };
    Grant {
        epoch: 2,
        source_epoch: 1,
        tokens: 64..4096,
        share: Some(share),
        pages: vec![
            // Alone, a run, backwards, the last there can be.
            (GroupId(0), PageList::new(64, vec![700, 10, 11, 12, 13, 9, 8, u32::MAX - 1, u32::MAX])),
            (GroupId(1), PageList::new(0, vec![3])),
            (GroupId(2), PageList::new(0, vec![])),
        ],
    }
}

fn done(payload: &'static [u8]) -> Done {
    Done { tokens: 4096, ops: 96, bytes: 536_870_912, payload: Bytes::from_static(payload) }
}

fn status(state: Option<KVPoll>) -> Status {
    Status { of: Side::Decode, granted: true, bytes: 536_870_912, state }
}

fn cause(side: Side, detail: &str) -> Cause {
    Cause {
        origin: Party { side, rank: RANK, instance: INSTANCE },
        state: KVPoll::Transferring,
        kind: ErrorKind::Timeout,
        detail: detail.into(),
    }
}

const RANK: Rank = Rank { dp: 1, pp: 0, cp: 3, tp: 5 };
const INSTANCE: Instance = Instance(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const HEADS: HeadSpan = HeadSpan { first: 8, count: 8, total: 32 };
