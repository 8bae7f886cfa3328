//! What a world is made of.

use super::rng::Rng;
use crate::config::Deadlines;
use crate::ids::{GroupId, RegionId};
use crate::layout::{HeadSpan, PoolEntry, PoolLayout, Role};
use std::time::Duration;

/// Numbers of a world.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by tests")]
pub struct Setup {
    /// Prefill nodes.
    pub prefill: usize,
    /// Decode nodes.
    pub decode: usize,
    /// Who moves the bytes.
    pub model: Model,
    /// Tokens a page.
    pub page_tokens: u32,
    /// Layers of keys and values.
    pub layers: u32,
    /// Deadlines of every room.
    pub deadlines: Deadlines,
    /// Bytes of one write.
    pub write_bytes: u64,
    /// Bytes posted to one link and not settled.
    pub window_bytes: u64,
    /// Times a damaged write is made again.
    pub retransmits: u32,
    /// Bytes held by what is parked, a link.
    pub parked_bytes: usize,
    /// Control frames in a hundred that are lost on a living link.
    pub lost: u64,
    /// Control frames in a hundred that are overtaken by others.
    pub held: u64,
    /// Control frames in a hundred that arrive twice.
    pub repeated: u64,
    /// Writes in a hundred that arrive damaged.
    pub damaged: u64,
    /// Writes in a hundred that arrive twice.
    pub doubled: u64,
    /// Writes in a hundred that take very long (one-sided).
    pub late: u64,
    /// Ends of links in a hundred at which the transport vouches at once (one-sided).
    pub vouched: u64,
    /// Whether a fenced link is vouched for in the end (one-sided).
    pub fences: bool,
    /// What is built wrong, to see that it is noticed.
    pub flaw: Option<Flaw>,
}

/// Who moves bytes into the destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "either the source moves the bytes or the destination does")]
pub enum Model {
    /// The source reaches into destination memory.
    OneSided,
    /// The destination applies the bytes.
    TwoSided,
}

/// Something built wrong on purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Flaw {
    /// The prefill node keeps what is parked when its link ends, and obeys it over the next one.
    GrantOutlivesLink,
    /// The decode node takes the end of a link as proof that nothing comes over it.
    LinkDownIsQuiet,
    /// The transport of the prefill node reports writes as settled when they leave.
    SettlesEarly,
    /// The prefill node overwrites its pages when the room ends, not when they are released.
    ReusesAtTheEnd,
    /// The transport of the decode node reports grants as revoked while bytes are being applied.
    RevokedEarly,
    /// The driver waits for the first deadline of its rooms only.
    ForgetsTimers,
    /// A process that was frozen looks at its deadlines long after the thaw.
    OversleepsThaw,
    /// The driver never tells the lobby that time has passed.
    LobbyKeepsAll,
    /// The driver keeps a room whose handle was let go.
    KeepsRooms,
    /// A node that passes a cause on names itself as its origin.
    TakesTheBlame,
    /// A node answers frames for rooms it does not have, answers included.
    AnswersAnswers,
    /// The decode node applies writes of grants that it has revoked.
    ObeysRevoked,
    /// The driver does again what it did before, each time more of it.
    RepeatsItself,
}

impl Setup {
    /// Nodes without faults; deadlines far longer than any delay.
    pub fn new(model: Model, prefill: usize, decode: usize) -> Self {
        let deadlines = Deadlines {
            discover: Duration::from_secs(2),
            handshake: Duration::from_secs(2),
            waiting_for_input: Duration::from_secs(2),
            stall: Duration::from_secs(1),
            drain: Duration::from_millis(300),
            total: None,
            query: Duration::from_millis(200),
        };
        Self {
            prefill,
            decode,
            model,
            page_tokens: 4,
            layers: 2,
            deadlines,
            write_bytes: 24,
            window_bytes: 72,
            retransmits: 3,
            parked_bytes: 32 << 10,
            lost: 0,
            held: 0,
            repeated: 0,
            damaged: 0,
            doubled: 0,
            late: 0,
            vouched: 50,
            fences: true,
            flaw: None,
        }
    }

    /// One side's pools: the same entries everywhere, each time placed differently.
    pub(super) fn layout(&self, rng: &mut Rng) -> PoolLayout {
        let mut layout = PoolLayout::new();
        let (whole, window) = (layout.paged("kv", self.page_tokens, 48), layout.paged("window", 2, 40));
        let (state, aux) = (layout.rows("state", 12), layout.rows("aux", 6));
        let (heads, page) = (HeadSpan::all(2), self.page_tokens);
        let key = |layer| PoolEntry::token_major(whole, Role::Key, layer, RegionId(0), page, heads, 2);
        let value = |layer| PoolEntry::head_major(whole, Role::Value, layer, RegionId(1), page, heads, 2);
        let late = |layer| PoolEntry::token_major(window, Role::Key, layer, RegionId(2), 2, heads, 1);
        let row = |group: GroupId, role, bytes| PoolEntry::new(group, role, RegionId(3), bytes);
        let mut entries = vec![row(aux, Role::Aux(0), 5)];
        for layer in 0..self.layers {
            entries.extend([key(layer), value(layer), late(layer)]);
            entries.push(row(state, Role::State(0), 3).layer(layer));
        }
        let mut ends = [0_u64; 4];
        while !entries.is_empty() {
            let entry = entries.swap_remove(rng.place(entries.len()));
            let end = &mut ends[usize::try_from(entry.region.0).unwrap_or(0)];
            let offset = *end + rng.within(0..4);
            let stride = entry.item_bytes + rng.within(0..3);
            *end = offset + stride * u64::from(layout.groups[usize::from(entry.group.0)].items);
            layout.push(entry.offset(offset).stride(stride));
        }
        layout
    }
}

/// Groups of every pool, in order.
pub(super) const WHOLE: GroupId = GroupId(0);
/// Keys of the last tokens only.
pub(super) const WINDOW: GroupId = GroupId(1);
/// Tokens a page of it.
pub(super) const WINDOW_PAGE: u32 = 2;
/// A record a layer.
pub(super) const STATE: GroupId = GroupId(2);
/// A record a request.
pub(super) const AUX: GroupId = GroupId(3);
