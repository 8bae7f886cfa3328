//! Arbitrary sequences of what a sender's driver may tell it.

use super::draw::Draw;
use super::rooms::{self, PEERS, Peer, ROOM, Watch};
use kvferry::session::{Action, Chunk, Finish, Intake, JoinedLink, SenderSession, Session, Settlement};
use kvferry::wire::{Frame, RoomFrame};
use kvferry::{ErrorKind, GrantId, Instance, KVPoll, LinkId, OpId, Party, Rank, Release, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a driver knows of one receiver.
#[derive(Debug, Default)]
struct Known {
    /// The receiver that has joined.
    id: Option<GrantId>,
    unsettled: BTreeSet<u32>,
    landed: BTreeSet<u32>,
    /// Tries of each write.
    tries: BTreeMap<u32, u32>,
    done: Option<(u32, u64)>,
    bytes: BTreeMap<u32, u64>,
    is_failed: bool,
    is_quiet: bool,
    is_down: bool,
}

struct Bed {
    session: SenderSession,
    watch: Watch,
    known: BTreeMap<LinkId, Known>,
    /// Chunks given: what one input may be told of.
    chunks: usize,
}

/// Draws a room and everything that happens to it.
pub(crate) fn run(input: &[u8]) {
    let mut draw = Draw::new(input);
    let mut now = super::start();
    let deadlines = rooms::deadlines(&mut draw);
    let party = Party { side: Side::Prefill, rank: Rank::tp(0), instance: Instance(99) };
    let write_bytes = draw.u64();
    let mut peers = rooms::peers(Side::Decode);
    let session = SenderSession::new(now, ROOM, party, deadlines, write_bytes, RETRANSMITS);
    let mut bed = Bed { session, watch: Watch::new(), known: BTreeMap::new(), chunks: 0 };
    let mut intake = Intake::new(vec![0, 1], 8);
    for _ in 0..256 {
        if draw.is_empty() {
            break;
        }
        let at = draw.place(PEERS);
        let Peer { link, party, is_down } = peers[at];
        let session = &mut bed.session;
        match draw.below(16) {
            0 | 1 if !is_down => {
                let id = rooms::id(&mut draw);
                let destinations = match draw.below(4) {
                    0 => draw.list(4, |draw| Rank::tp(draw.below(4).into())),
                    1 => vec![Rank::tp(0), Rank::tp(1)],
                    _ => vec![Rank::tp(0)],
                };
                session.join(
                    now,
                    JoinedLink { link, party, id, peer_counts: at.is_multiple_of(2) },
                    &destinations,
                );
                let joined = session.receivers().find(|(other, _)| *other == link);
                bed.known.entry(link).or_default().id = joined.map(|(_, id)| id);
            }
            2 | 3 if !is_down => {
                let grant = rooms::grant(&mut draw);
                let id = bed.id(&mut draw, link);
                // As it comes off the wire.
                let frame = RoomFrame::Grant(grant.clone());
                if Frame::decode(&Frame::Room { id, frame }.encode()).is_ok() {
                    match grant.share.as_ref().map(rooms::pairing).transpose() {
                        Ok(pairing) => bed.session.grant(now, link, id, &grant, pairing),
                        Err(_) => bed.session.fail(now, rooms::fault(ErrorKind::Layout)),
                    }
                }
            }
            4 if !is_down => {
                let frame = rooms::frame(&mut draw);
                let is_driven = matches!(frame, RoomFrame::Join { .. } | RoomFrame::Grant(_));
                let id = bed.id(&mut draw, link);
                if !is_driven {
                    bed.session.frame(now, link, id, &frame);
                }
            }
            5 => session.offer(now, rooms::offer(&mut draw)),
            6 | 7 => {
                let tokens = rooms::tokens(&mut draw);
                let layers = draw.maybe(|draw| if draw.yes() { 0..1 } else { draw.range() });
                if intake.chunk(&tokens, layers.as_ref()).is_ok() {
                    let mut chunk = Chunk::new(tokens.clone(), rooms::pages(&mut draw, &tokens));
                    (chunk.layers, chunk.ready) = (layers, draw.below(4) > 0);
                    bed.chunks += 1;
                    session.send(now, chunk);
                }
            }
            8 => {
                let total = if draw.below(8) == 0 { draw.u32() } else { 16 };
                if intake.finish(total).is_ok() {
                    let mut finish = Finish::new(total);
                    finish.rows = rooms::pages(&mut draw, &(0..0));
                    finish.ready = draw.below(4) > 0;
                    session.finish(now, finish);
                }
            }
            9 => session.ready(now, draw.place(9)),
            10 | 11 => bed.write(now, link, draw.yes()),
            12 | 13 => bed.settle_write(now, &mut draw, link),
            14 => match draw.below(4) {
                0 if !is_down => {
                    peers[at].is_down = true;
                    bed.known.entry(link).or_default().is_down = true;
                    session.link_down(now, link, draw.yes(), rooms::fault(ErrorKind::PeerLost));
                }
                1 => session.fail(now, rooms::fault(ErrorKind::Aborted)),
                2 => {
                    let cause = rooms::cause(&mut draw);
                    session.fail_for(now, &cause);
                }
                _ => session.tick(now),
            },
            _ => {
                now += Duration::from_millis(u64::from(draw.byte()) * 10);
                session.tick(now);
            }
        }
        bed.settle();
    }
    end(bed, now, &deadlines);
}

/// Whatever happened, time ends the room; and when all writes have settled, its pages are free.
fn end(mut bed: Bed, mut now: std::time::Instant, deadlines: &kvferry::Deadlines) {
    let limit = bed.limit();
    let Bed { session, watch, .. } = &mut bed;
    let mut all = Vec::new();
    rooms::run_out(session, &mut now, deadlines, |session| all.extend(watch.follow(session, limit)));
    bed.carry_out(all);
    let unsettled: Vec<_> = bed
        .known
        .iter()
        .flat_map(|(link, known)| known.unsettled.iter().map(|op| (*link, *op)).collect::<Vec<_>>())
        .collect();
    for (link, op) in unsettled {
        bed.known.entry(link).or_default().unsettled.remove(&op);
        bed.session.settled(now, link, OpId(op), Settlement::Landed);
        bed.settle();
    }
    assert_eq!(bed.session.release(), Release::Safe);
    for known in bed.known.values().filter(|known| known.id.is_some() && !known.is_down) {
        assert!(known.is_quiet || !known.is_failed, "a receiver waits for Quiet: {known:?}");
    }
}

impl Bed {
    /// Mostly the receiver that has joined over a link.
    fn id(&self, draw: &mut Draw<'_>, link: LinkId) -> GrantId {
        let joined = self.known.get(&link).and_then(|known| known.id);
        joined.filter(|_| draw.below(8) > 0).unwrap_or_else(|| rooms::id(draw))
    }

    /// Pulls a write, and posts it unless the transport is full.
    fn write(&mut self, now: std::time::Instant, link: LinkId, posts: bool) {
        let was_due = self.session.may_have_writes(link);
        let Some(job) = self.session.next_write(now, link) else { return };
        assert!(was_due, "a write comes though none was announced");
        let known = self.known.entry(link).or_default();
        let (op, bytes) = (job.op.0, job.bytes);
        assert_eq!(Some(job.id), known.id);
        assert!(!known.is_down && !known.is_quiet && !known.is_failed, "a write after the end: {known:?}");
        assert!(!known.unsettled.contains(&op) && !known.landed.contains(&op), "write {op} twice");
        assert!(known.done.is_none() || known.tries.contains_key(&op), "a new write after Done");
        for (pages, is_source) in [(job.source, true), (job.destination, false)] {
            let mut out = Vec::new();
            let found = match is_source {
                true => job.pairing.source_extents(job.piece, pages, &mut out),
                false => job.pairing.destination_extents(job.piece, pages, &mut out),
            };
            assert!(found.is_err() || found == Ok(bytes), "{found:?} of {bytes} bytes");
        }
        if posts {
            known.unsettled.insert(op);
            *known.tries.entry(op).or_default() += 1;
            known.bytes.insert(op, bytes);
            self.session.posted(now, link);
        }
    }

    /// A write that was posted is over; at times one that never was.
    fn settle_write(&mut self, now: std::time::Instant, draw: &mut Draw<'_>, link: LinkId) {
        let known = self.known.entry(link).or_default();
        let posted: Vec<_> = known.unsettled.iter().copied().collect();
        let op = if posted.is_empty() || draw.below(16) == 0 { draw.u32() } else { draw.pick(&posted) };
        let was_posted = known.unsettled.remove(&op);
        let settlement = match draw.below(8) {
            0 => Settlement::Damaged,
            1 => Settlement::Broken(rooms::fault(draw.pick(&[ErrorKind::PeerLost, ErrorKind::Transport]))),
            _ => Settlement::Landed,
        };
        if was_posted && matches!(settlement, Settlement::Landed) {
            known.landed.insert(op);
        }
        let wanted = if was_posted { known.bytes[&op] } else { 0 };
        assert_eq!(self.session.settled(now, link, OpId(op), settlement), wanted);
    }

    fn settle(&mut self) {
        let limit = self.limit();
        let actions = self.watch.follow(&mut self.session, limit);
        self.carry_out(actions);
    }

    /// Actions of one input: each receiver may be told of each chunk, of the end, and be refused.
    fn limit(&self) -> usize {
        (self.chunks + 4) * PEERS
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            let Action::Send { link, id, frame } = action else {
                assert!(matches!(action, Action::Fence { .. }), "a sender asks for {action:?}");
                continue;
            };
            let known = self.known.entry(link).or_default();
            if known.id != Some(id) {
                let is_news = matches!(
                    frame,
                    RoomFrame::ChunkDone { .. } | RoomFrame::Offer(_) | RoomFrame::Query { .. }
                );
                assert!(!is_news, "a stranger is told {frame:?}");
                continue;
            }
            match frame {
                RoomFrame::Failed(_) => {
                    assert!(self.session.state() == KVPoll::Failed || known.is_failed || known.id.is_some());
                    known.is_failed = true;
                }
                RoomFrame::Quiet => {
                    assert!(known.unsettled.is_empty(), "Quiet with writes under way: {known:?}");
                    known.is_quiet = true;
                }
                RoomFrame::Done(done) => {
                    // Who asks after the end is told again.
                    assert!(!known.is_quiet || known.done.is_some(), "{known:?}");
                    let word = (done.ops, done.bytes);
                    assert!(known.done.is_none_or(|before| before == word), "{known:?}, then {word:?}");
                    let ops = u32::try_from(known.tries.len()).ok();
                    assert_eq!((ops, known.bytes.values().sum()), (Some(done.ops), done.bytes));
                    known.done = Some(word);
                }
                RoomFrame::ChunkDone { .. } | RoomFrame::Offer(_) => {
                    assert!(known.done.is_none() && !known.is_quiet, "{known:?}");
                }
                RoomFrame::Query { .. } | RoomFrame::Status(_) => {}
                other => panic!("a sender sends {other:?}"),
            }
        }
        let is_settled = self.known.values().all(|known| known.unsettled.is_empty());
        let (state, release) = (self.session.state(), self.session.release());
        assert_eq!(release == Release::Safe, state.is_terminal() && is_settled, "{state:?}, {release:?}");
        if state == KVPoll::Success {
            for known in self.known.values().filter(|known| known.id.is_some()) {
                let landed = u32::try_from(known.landed.len()).ok();
                assert_eq!(landed, known.done.map(|(ops, _)| ops), "Success without every write: {known:?}");
            }
        }
    }
}

/// Times a damaged write is made again.
const RETRANSMITS: u32 = 2;
