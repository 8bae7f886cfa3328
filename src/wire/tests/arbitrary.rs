//! Any frame that the limits allow, though not as long as they allow.

use crate::error::ErrorKind;
use crate::ids::{
    Attempt, BallotId, Generation, GrantId, GroupId, GroupSizes, Instance, OpId, Party, Rank, RegionId, Room,
    Side,
};
use crate::layout::{
    GroupKind, HeadSpan, ItemOrder, Layers, PageGroup, PageList, Piece, PoolEntry, PoolLayout, Role,
    Sharding, Share, TokenShard,
};
use crate::poll::KVPoll;
use crate::wire::{
    Cause, DataHeader, Done, Frame, Grant, GroupFrame, Hello, Layout, MAX_DETAIL, Offer, RoomFrame, Status,
};
use bytes::Bytes;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use std::ops::Range;

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        hello().prop_map(Frame::Hello),
        layout().prop_map(Frame::Layout),
        any::<u64>().prop_map(|token| Frame::Ping { token }),
        any::<u64>().prop_map(|token| Frame::Pong { token }),
        (error_kind(), detail()).prop_map(|(kind, detail)| Frame::Goodbye { kind, detail }),
        vec(region(), 0..8).prop_map(|regions| Frame::RegionsGone { regions }),
        vec(region(), 0..8).prop_map(|regions| Frame::RegionsClosed { regions }),
        (id(), room_frame()).prop_map(|(id, frame)| Frame::Room { id, frame }),
        (side(), id(), group_frame()).prop_map(|(side, id, frame)| {
            let GrantId { room, attempt, generation } = id;
            Frame::Group { id: BallotId { side, room, attempt, generation }, frame }
        }),
    ]
}

pub(super) fn data_header() -> impl Strategy<Value = DataHeader> {
    (id(), any::<u32>(), range(), range(), any::<u32>(), option::of(any::<u32>())).prop_map(
        |(grant, op, pairs, positions, payload_bytes, payload_crc)| DataHeader {
            grant,
            op: OpId(op),
            piece: Piece { pairs, positions },
            payload_bytes,
            payload_crc,
        },
    )
}

/// Page numbers as pools hand them out: runs and single pages in any order, even twice.
pub(super) fn page_list() -> impl Strategy<Value = PageList> {
    let run = (any::<u32>(), 0_u32..40).prop_map(|(start, more)| start..=start.saturating_add(more));
    let one = any::<u32>().prop_map(|page| page..=page);
    let near = (0_u32..50).prop_map(|page| page..=page);
    let last = (0_u32..4).prop_map(|more| u32::MAX - more..=u32::MAX);
    (any::<u32>(), vec(prop_oneof![run, one, near, last], 0..30))
        .prop_map(|(first, runs)| PageList::new(first, runs.into_iter().flatten().collect()))
}

fn room_frame() -> impl Strategy<Value = RoomFrame> {
    prop_oneof![
        vec(rank(), 0..8).prop_map(|destinations| RoomFrame::Join { destinations }),
        (option::of(any::<u32>()), any::<bool>(), payload())
            .prop_map(|(tokens, complete, payload)| RoomFrame::Offer(Offer { tokens, complete, payload })),
        grant().prop_map(RoomFrame::Grant),
        (range(), option::of(range())).prop_map(|(tokens, layers)| RoomFrame::ChunkDone { tokens, layers }),
        (any::<u32>(), any::<u32>(), any::<u64>(), payload()).prop_map(|(tokens, ops, bytes, payload)| {
            RoomFrame::Done(Done { tokens, ops, bytes, payload })
        }),
        cause().prop_map(RoomFrame::Failed),
        cause().prop_map(RoomFrame::Abort),
        Just(RoomFrame::Quiet),
        side().prop_map(|asked| RoomFrame::Query { asked }),
        (side(), any::<bool>(), any::<u64>(), option::of(poll())).prop_map(|(of, granted, bytes, state)| {
            RoomFrame::Status(Status { of, granted, bytes, state })
        }),
    ]
}

fn group_frame() -> impl Strategy<Value = GroupFrame> {
    prop_oneof![
        btree_set(rank(), 0..8)
            .prop_map(|members| GroupFrame::Enrol { members: members.into_iter().collect() }),
        option::of(cause()).prop_map(|cause| GroupFrame::Verdict { cause }),
        option::of(cause()).prop_map(|cause| GroupFrame::Vote { cause }),
    ]
}

fn grant() -> impl Strategy<Value = Grant> {
    let pages = vec((any::<u16>().prop_map(GroupId), page_list()), 0..4);
    (any::<u32>(), any::<u32>(), range(), option::of(share()), pages).prop_map(
        |(epoch, source_epoch, tokens, share, pages)| Grant { epoch, source_epoch, tokens, share, pages },
    )
}

fn share() -> impl Strategy<Value = Share> {
    (option::of(heads()), option::of(vec(any::<u32>(), 0..5)), shard(), shard()).prop_map(
        |(heads, layers, source, destination)| {
            let layers = layers.map(Layers::from_iter);
            Share { heads, layers, source, destination }
        },
    )
}

fn shard() -> impl Strategy<Value = TokenShard> {
    (1..=u32::MAX, 1..=u32::MAX, any::<u32>()).prop_map(|(granule, step, phase)| TokenShard {
        granule,
        step,
        phase: phase % step,
    })
}

fn heads() -> impl Strategy<Value = HeadSpan> {
    (0..1_u32 << 30, 0..1_u32 << 30, 0..1_u32 << 30).prop_map(|(first, count, more)| HeadSpan {
        first,
        count,
        total: first + count + more,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    let place = (1..=u32::MAX, any::<u32>()).prop_map(|(size, index)| (index % size, size));
    (any::<u64>(), instance(), text(), [place.clone(), place.clone(), place.clone(), place], text()).prop_map(
        |(features, instance, group, [dp, pp, cp, tp], model)| Hello {
            features,
            instance,
            group,
            rank: Rank { dp: dp.0, pp: pp.0, cp: cp.0, tp: tp.0 },
            sizes: GroupSizes { dp: dp.1, pp: pp.1, cp: cp.1, tp: tp.1 },
            model,
        },
    )
}

fn layout() -> impl Strategy<Value = Layout> {
    (any::<u32>(), vec(group(), 0..4), vec(entry(), 0..6), vec((region(), payload()), 0..4)).prop_map(
        |(epoch, groups, entries, keys)| Layout { epoch, layout: PoolLayout { groups, entries }, keys },
    )
}

fn group() -> impl Strategy<Value = PageGroup> {
    let kind = prop_oneof![
        any::<u32>().prop_map(|page_tokens| GroupKind::Paged { page_tokens }),
        Just(GroupKind::Rows)
    ];
    (text(), kind, any::<u32>(), any::<bool>()).prop_map(|(name, kind, items, is_optional)| PageGroup {
        name,
        kind,
        items,
        is_optional,
    })
}

fn entry() -> impl Strategy<Value = PoolEntry> {
    let role = prop_oneof![
        Just(Role::Key),
        Just(Role::Value),
        Just(Role::KeyValue),
        Just(Role::Latent),
        any::<u16>().prop_map(Role::Scale),
        any::<u16>().prop_map(Role::State),
        any::<u16>().prop_map(Role::Aux),
    ];
    let order = prop_oneof![
        Just(ItemOrder::TokenMajor),
        any::<u32>().prop_map(|heads| ItemOrder::HeadMajor { heads }),
        (any::<u32>(), text()).prop_map(|(heads, tag)| ItemOrder::HeadBlocks { heads, tag }),
        text().prop_map(|tag| ItemOrder::Opaque { tag }),
    ];
    let sharding = prop_oneof![Just(Sharding::Replicated), heads().prop_map(Sharding::Heads)];
    let sizes = (any::<u64>(), any::<u64>(), any::<u64>());
    (any::<u16>(), role, option::of(any::<u32>()), region(), sizes, text(), order, sharding).prop_map(
        |(group, role, layer, region, (offset, item_bytes, item_stride), dtype, order, sharding)| PoolEntry {
            group: GroupId(group),
            role,
            layer,
            region,
            offset,
            item_bytes,
            item_stride,
            dtype,
            order,
            sharding,
        },
    )
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Prefill), Just(Side::Decode)]
}

fn cause() -> impl Strategy<Value = Cause> {
    let origin =
        (side(), rank(), instance()).prop_map(|(side, rank, instance)| Party { side, rank, instance });
    (origin, poll(), error_kind(), detail()).prop_map(|(origin, state, kind, detail)| Cause {
        origin,
        state,
        kind,
        detail,
    })
}

fn id() -> impl Strategy<Value = GrantId> {
    any::<[u64; 3]>().prop_map(|[room, attempt, generation]| GrantId {
        room: Room(room),
        attempt: Attempt(attempt),
        generation: Generation(generation),
    })
}

fn rank() -> impl Strategy<Value = Rank> {
    any::<[u32; 4]>().prop_map(|[dp, pp, cp, tp]| Rank { dp, pp, cp, tp })
}

fn range() -> impl Strategy<Value = Range<u32>> {
    any::<[u32; 2]>().prop_map(|[a, b]| a.min(b)..a.max(b))
}

fn instance() -> impl Strategy<Value = Instance> {
    any::<u128>().prop_map(Instance)
}

fn region() -> impl Strategy<Value = RegionId> {
    any::<u32>().prop_map(RegionId)
}

fn poll() -> impl Strategy<Value = KVPoll> {
    (0_u8..=4).prop_map(|number| KVPoll::from_number(number).unwrap())
}

fn error_kind() -> impl Strategy<Value = ErrorKind> {
    (1_u8..=13).prop_map(|number| ErrorKind::from_number(number).unwrap())
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..100).prop_map(Bytes::from)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn detail() -> impl Strategy<Value = String> {
    prop_oneof![text(), (0..=MAX_DETAIL).prop_map(|length| "x".repeat(length))]
}
