//! What the fuzzed sessions share: parties, deadlines, pools and frames of a room.

use super::draw::Draw;
use bytes::Bytes;
use kvferry::layout::{
    HeadSpan, Mismatch, PageList, Pairing, PoolEntry, PoolLayout, Role, Share, TokenShard,
};
use kvferry::session::{Action, Session};
use kvferry::wire::{Cause, Done, Frame, Grant, Kind, Offer, RoomFrame, Status};
use kvferry::{
    Attempt, Deadlines, ErrorKind, Fault, Generation, GrantId, GroupId, Instance, KVPoll, LinkId, Party,
    Rank, RegionId, Release, Room, Side,
};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The room of every session here.
pub(crate) const ROOM: Room = Room(7);
/// Parties a session may hear of.
pub(crate) const PEERS: usize = 4;

/// One peer and the link to it, which ends at most once.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) link: LinkId,
    pub(crate) party: Party,
    pub(crate) is_down: bool,
}

/// Links to `PEERS` peers; the last is the first one's rank after a restart.
pub(crate) fn peers(side: Side) -> Vec<Peer> {
    let rank = |number: usize| Rank::tp(u32::try_from(number % (PEERS - 1)).unwrap_or(0));
    let party = |number: usize| Party { side, rank: rank(number), instance: Instance(number as u128) };
    (0..PEERS).map(|number| Peer { link: LinkId::allocate(), party: party(number), is_down: false }).collect()
}

pub(crate) fn id(draw: &mut Draw<'_>) -> GrantId {
    let other = u64::from(draw.below(8) == 0);
    let generation = Generation(draw.below(3).into());
    GrantId { room: Room(ROOM.0 + other), attempt: Attempt(0), generation }
}

/// Deadlines of seconds, each another.
pub(crate) fn deadlines(draw: &mut Draw<'_>) -> Deadlines {
    let mut deadlines = Deadlines::default();
    let mut next = |least: u64| Duration::from_secs(least + u64::from(draw.below(8)));
    deadlines.discover = next(1);
    deadlines.handshake = next(2);
    deadlines.waiting_for_input = next(1);
    deadlines.stall = next(2);
    deadlines.drain = next(1);
    let total = next(0);
    deadlines.total = (!total.is_zero()).then_some(total);
    deadlines
}

/// Longest time that may pass until a deadline has ended a room in which nothing happens.
pub(crate) fn patience(deadlines: &Deadlines) -> Duration {
    deadlines.discover.max(deadlines.handshake).max(deadlines.waiting_for_input).max(deadlines.stall)
}

/// Two pools: two layers of 4 tokens a page, and rows.
pub(crate) fn pairing(share: &Share) -> Result<Arc<Pairing>, Mismatch> {
    static POOL: OnceLock<Arc<PoolLayout>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", 4, 16);
        let aux = layout.rows("aux", 4);
        for layer in 0..2 {
            let region = RegionId(layer);
            layout.push(PoolEntry::token_major(kv, Role::Key, layer, region, 4, HeadSpan::all(1), 2));
        }
        layout.push(PoolEntry::new(aux, Role::Aux(0), RegionId(2), 8));
        Arc::new(layout)
    });
    Pairing::of(pool.clone(), pool.clone(), share).map(Arc::new)
}

pub(crate) fn fault(kind: ErrorKind) -> Fault {
    Fault::new(kind, "the fuzzer says so")
}

pub(crate) fn share(draw: &mut Draw<'_>) -> Option<Share> {
    let layers = match draw.below(8) {
        0 => return None,
        1 => Some(draw.list(3, Draw::u32).into_iter().collect()),
        2 => Some((0..1).into()),
        3 => Some([1].into()),
        _ => None,
    };
    let mut share = Share::WHOLE;
    share.layers = layers;
    if draw.below(32) == 0 {
        share.heads = Some(HeadSpan { first: draw.u32(), count: draw.u32(), total: draw.u32() });
    }
    for shard in [&mut share.source, &mut share.destination] {
        if draw.below(8) == 0 {
            *shard =
                TokenShard { granule: 1 + draw.u32() % 4, step: 1 + draw.u32() % 3, phase: draw.u32() % 3 };
        }
    }
    Some(share)
}

/// Pages for tokens, right for the most part.
pub(crate) fn pages(draw: &mut Draw<'_>, tokens: &std::ops::Range<u32>) -> Vec<(GroupId, PageList)> {
    if draw.below(8) == 0 {
        return draw.list(3, |draw| {
            (GroupId(u16::from(draw.below(4))), PageList::new(draw.u32(), draw.list(6, Draw::u32)))
        });
    }
    let (first, end) = (tokens.start / 4, tokens.end.min(64).div_ceil(4));
    let page = |_| u32::from(draw.below(16));
    let indices = (first..end).map(page).collect();
    let rows = (0..draw.below(3)).map(|_| u32::from(draw.below(4))).collect();
    vec![(GroupId(0), PageList::new(first.saturating_mul(4), indices)), (GroupId(1), PageList::new(0, rows))]
}

/// Tokens that make sense for the most part.
pub(crate) fn tokens(draw: &mut Draw<'_>) -> std::ops::Range<u32> {
    match draw.below(8) {
        0 => draw.range(),
        1 => 8..16,
        2 => 0..0,
        _ => 0..16,
    }
}

/// A frame of either side.
pub(crate) fn frame(draw: &mut Draw<'_>) -> RoomFrame {
    match draw.below(12) {
        0 => RoomFrame::Join { destinations: draw.list(3, |draw| Rank::tp(draw.below(4).into())) },
        1 => RoomFrame::Offer(offer(draw)),
        2 => RoomFrame::Grant(grant(draw)),
        3 | 4 => RoomFrame::ChunkDone {
            tokens: if draw.yes() { tokens(draw) } else { draw.range() },
            layers: draw.maybe(|draw| if draw.yes() { draw.range() } else { 0..2 }),
        },
        5 | 6 => RoomFrame::Done(done(draw)),
        7 => RoomFrame::Failed(cause(draw)),
        8 => RoomFrame::Abort(cause(draw)),
        9 => RoomFrame::Query { asked: draw.pick(&[Side::Prefill, Side::Decode]) },
        10 => {
            let state = draw.maybe(|draw| KVPoll::from_number(draw.below(5))).flatten();
            let mut status = Status::new(draw.pick(&[Side::Prefill, Side::Decode]), state);
            (status.granted, status.bytes) = (draw.yes(), draw.u64());
            RoomFrame::Status(status)
        }
        _ => RoomFrame::Quiet,
    }
}

pub(crate) fn cause(draw: &mut Draw<'_>) -> Cause {
    let bytes = [&[draw.below(2)][..], &[0; 32], &[1 + draw.below(3), 1 + draw.below(13)], &[0; 4]].concat();
    match decoded(Kind::Abort, &bytes) {
        RoomFrame::Abort(cause) => cause,
        other => panic!("{other:?} is no abort"),
    }
}

pub(crate) fn offer(draw: &mut Draw<'_>) -> Offer {
    let RoomFrame::Offer(mut offer) = decoded(Kind::Offer, &[0; 2]) else { panic!("an offer") };
    offer.tokens = draw.maybe(|draw| if draw.yes() { 16 } else { draw.u32() });
    offer
}

pub(crate) fn done(draw: &mut Draw<'_>) -> Done {
    let RoomFrame::Done(mut done) = decoded(Kind::Done, &[0; 16]) else { panic!("a done") };
    done.tokens = if draw.yes() { 16 } else { draw.u32() };
    (done.ops, done.bytes) = match draw.below(4) {
        0 => (draw.u32(), draw.u64()),
        _ => {
            let ops = u32::from(draw.below(4));
            (ops, u64::from(ops) * WRITE_BYTES)
        }
    };
    done.payload = Bytes::from_static(b"payload");
    done
}

pub(crate) fn grant(draw: &mut Draw<'_>) -> Grant {
    let RoomFrame::Grant(mut grant) = decoded(Kind::Grant, &[0; 21]) else { panic!("a grant") };
    grant.tokens = tokens(draw);
    grant.share = share(draw);
    grant.pages = pages(draw, &grant.tokens);
    grant
}

/// A frame of these bytes; the only way to make one outside of the library.
fn decoded(kind: Kind, body: &[u8]) -> RoomFrame {
    let bytes = super::sealed(kind as u8, &[&[0; 24], body].concat());
    match Frame::decode(&bytes) {
        Ok(Frame::Room { frame, .. }) => frame,
        other => panic!("{kind:?}: {other:?}"),
    }
}

/// What never changes, whatever a session is told.
#[derive(Debug)]
pub(crate) struct Watch {
    state: KVPoll,
    release: Release,
    error: Option<String>,
    /// Actions taken.
    pub(crate) actions: usize,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { state: KVPoll::Bootstrapping, release: Release::Held, error: None, actions: 0 }
    }

    /// The actions that the last input has led to, no more than `limit`; the answers checked.
    pub(crate) fn follow(&mut self, session: &mut dyn Session, limit: usize) -> Vec<Action> {
        let actions: Vec<Action> = std::iter::from_fn(|| session.next_action()).take(limit + 1).collect();
        assert!(actions.len() <= limit, "one input gives more than {limit} actions: {actions:?}");
        let (state, release) = (session.state(), session.release());
        let error = session.error().map(|error| format!("{error:?}"));
        if self.state.is_terminal() {
            assert_eq!((state, &error), (self.state, &self.error), "an end that is not final");
            assert!(release >= self.release, "{release:?} after {:?}", self.release);
        } else if state != KVPoll::Failed {
            assert!(state >= self.state, "{state:?} after {:?}", self.state);
        }
        assert_eq!(error.is_some(), state == KVPoll::Failed);
        assert_eq!(release == Release::Held, !state.is_terminal());
        assert!(state != KVPoll::Success || release == Release::Safe, "Success, and {release:?}");
        assert!(state.is_terminal() || session.deadline().is_some(), "{state:?} without a deadline");
        assert_eq!(
            release != Release::Draining || session.waiting_for().is_empty(),
            release != Release::Draining
        );
        (self.state, self.release, self.error) = (state, release, error);
        self.actions += actions.len();
        actions
    }
}

/// Lets time pass from deadline to deadline until there is none, which must come to an end.
pub(crate) fn run_out(
    session: &mut dyn Session,
    now: &mut Instant,
    deadlines: &Deadlines,
    mut after: impl FnMut(&mut dyn Session),
) {
    let start = *now;
    for _ in 0..64 {
        let Some(deadline) = session.deadline() else { break };
        *now = deadline.max(*now);
        session.tick(*now);
        after(session);
    }
    let state = session.state();
    assert!(state.is_terminal(), "{state:?} outlives its deadlines");
    assert_eq!(session.deadline(), None, "a deadline without end");
    let limit = patience(deadlines) + deadlines.drain;
    assert!(*now - start <= limit, "it took {:?}, at most {limit:?} were set", *now - start);
}

/// Bytes of each write that lands here.
pub(crate) const WRITE_BYTES: u64 = 64;
