//! Arbitrary sequences of what a receiver's driver may tell it.

use super::draw::Draw;
use super::rooms::{self, PEERS, ROOM, WRITE_BYTES, Watch};
use kvferry::session::{Action, Lent, ReceiverSession, Session, SourceLink};
use kvferry::wire::RoomFrame;
use kvferry::{
    Attempt, ErrorKind, Generation, GrantId, Instance, KVPoll, LinkId, OpId, Party, Rank, Release, Side,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a driver knows of one source.
#[derive(Debug, Default)]
struct Known {
    is_up: bool,
    revocable: bool,
    /// Its writer may touch the pages.
    touches: bool,
    is_asked: bool,
    is_down: bool,
    fences: usize,
    landed: BTreeSet<u32>,
    /// Writes that its first `Done` under a grant names.
    done: Option<u32>,
}

struct Bed {
    session: ReceiverSession,
    id: GrantId,
    watch: Watch,
    known: BTreeMap<LinkId, Known>,
}

/// Draws a room and everything that happens to it.
pub(crate) fn run(input: &[u8]) {
    let mut draw = Draw::new(input);
    let mut now = super::start();
    let id = GrantId { room: ROOM, attempt: Attempt(0), generation: Generation(1) };
    let party = Party { side: Side::Decode, rank: Rank::tp(0), instance: Instance(99) };
    let deadlines = rooms::deadlines(&mut draw);
    let peers = rooms::peers(Side::Prefill);
    let session = ReceiverSession::new(now, id, party, deadlines, vec![Rank::tp(0)], vec![0, 1]);
    let mut bed = Bed { session, id, watch: Watch::new(), known: BTreeMap::new() };
    let mut is_expected = false;
    for _ in 0..256 {
        if draw.is_empty() {
            break;
        }
        let peer = peers[draw.place(PEERS)].clone();
        let known = bed.known.entry(peer.link).or_default();
        let session = &mut bed.session;
        match draw.below(12) {
            0 if !is_expected => {
                is_expected = true;
                let count = 1 + u32::from(draw.below(3));
                let sources: Vec<_> =
                    (0..count).map(|rank| (Rank::tp(rank), rooms::share(&mut draw))).collect();
                session.expect(now, sources);
            }
            1 | 2 if is_expected && !known.is_up && !known.is_down => {
                known.revocable = draw.below(3) > 0;
                let link = SourceLink {
                    link: peer.link,
                    party: peer.party,
                    revocable: known.revocable,
                    epoch: 0,
                    source_epoch: 0,
                };
                session.source_up(now, peer.party.rank, link);
                // One source of a rank only is taken.
                let joins = |action: &Action| matches!(action, Action::Send { link, frame: RoomFrame::Join { .. }, .. } if *link == peer.link);
                let actions = bed.watch.follow(session, LIMIT);
                known.is_up = actions.iter().any(joins);
                bed.carry_out(actions);
                continue;
            }
            3 if draw.below(8) == 0 => session.unreachable(now, peer.party.rank),
            3 => {
                let mut tokens = rooms::tokens(&mut draw);
                tokens.end = tokens.end.max(tokens.start); // the engine refuses others
                let pages = rooms::pages(&mut draw, &tokens).into();
                session.grant(now, Lent { tokens, pages });
            }
            4 | 5 if known.is_up && known.revocable && known.touches && !known.is_down => {
                let op = if draw.below(8) == 0 { draw.u32() } else { draw.below(6).into() };
                known.landed.insert(op);
                session.landed(now, peer.link, OpId(op), WRITE_BYTES);
            }
            6 if known.is_asked && known.touches => {
                known.touches = false;
                session.revoked(now, peer.link);
            }
            7 | 8 => {
                let frame = rooms::frame(&mut draw);
                let id = if draw.below(8) == 0 { rooms::id(&mut draw) } else { id };
                if known.is_up && !known.is_down && id == bed.id {
                    let vouches = match &frame {
                        RoomFrame::Done(done) => {
                            known.done.get_or_insert(done.ops);
                            session.lent().is_some()
                        }
                        RoomFrame::Quiet => true,
                        _ => false,
                    };
                    known.touches &= known.revocable || !vouches;
                }
                if !known.is_down {
                    session.frame(now, peer.link, id, &frame);
                }
            }
            9 if !known.is_down => {
                let quiesced = draw.yes();
                known.is_down = true;
                known.touches &= known.revocable || !quiesced;
                session.link_down(now, peer.link, quiesced, rooms::fault(ErrorKind::PeerLost));
            }
            // After the end of a link its transport may still come to vouch.
            9 if !known.revocable && draw.yes() => {
                known.touches = false;
                session.link_down(now, peer.link, true, rooms::fault(ErrorKind::PeerLost));
            }
            10 => {
                now += Duration::from_millis(u64::from(draw.byte()) * 10);
                session.tick(now);
            }
            11 if draw.below(8) == 0 => session.fail(now, rooms::fault(ErrorKind::Aborted)),
            11 if known.is_up && known.touches && draw.below(4) == 0 => {
                session.refused(now, peer.link, "beyond");
            }
            _ => {}
        }
        bed.settle();
    }
    end(bed, now, &deadlines);
}

/// Whatever happened, time ends the room; and when all writers are stopped, its pages are free.
fn end(mut bed: Bed, mut now: std::time::Instant, deadlines: &kvferry::Deadlines) {
    let Bed { session, watch, known, .. } = &mut bed;
    let mut all = Vec::new();
    rooms::run_out(session, &mut now, deadlines, |session| all.extend(watch.follow(session, LIMIT)));
    for action in &all {
        if let Action::Fence { link } = action {
            known.entry(*link).or_default().fences += 1;
        }
    }
    assert!(known.values().all(|known| known.fences <= 1), "fenced twice: {known:?}");
    bed.carry_out(all);
    let links: Vec<_> = bed.known.keys().copied().collect();
    for link in links {
        let known = bed.known.entry(link).or_default();
        if !std::mem::take(&mut known.touches) {
            continue;
        }
        if known.revocable {
            assert!(known.is_asked, "an ended room leaves a writer be: {known:?}");
            bed.session.revoked(now, link);
        } else {
            let fault = rooms::fault(ErrorKind::PeerLost);
            bed.session.link_down(now, link, true, fault);
        }
        bed.settle();
    }
    assert_eq!(bed.session.release(), Release::Safe);
}

impl Bed {
    fn settle(&mut self) {
        let actions = self.watch.follow(&mut self.session, LIMIT);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Admit { link, id } => {
                    let known = self.known.entry(link).or_default();
                    assert!(known.is_up && !known.touches && id == self.id, "{known:?}");
                    // A link that has ended admits nobody; the driver does not get that far.
                    known.touches = true;
                }
                Action::Revoke { link, id } => {
                    let known = self.known.entry(link).or_default();
                    assert!(known.revocable && known.touches && !known.is_asked, "{known:?}");
                    assert_eq!(id, self.id);
                    known.is_asked = true;
                }
                Action::Send { link, id, frame } => {
                    assert_eq!(id, self.id);
                    let is_mine = matches!(
                        frame,
                        RoomFrame::Abort(_)
                            | RoomFrame::Grant(_)
                            | RoomFrame::Join { .. }
                            | RoomFrame::Query { .. }
                            | RoomFrame::Status(_)
                    );
                    assert!(is_mine && self.known.contains_key(&link), "a receiver sends {frame:?}");
                }
                _ => {}
            }
        }
        let touched = self.known.values().any(|known| known.touches);
        let (state, release) = (self.session.state(), self.session.release());
        assert_eq!(
            release == Release::Safe,
            state.is_terminal() && !touched,
            "{state:?}, {release:?}: {:?}",
            self.known
        );
        if state == KVPoll::Success {
            for known in self.known.values().filter(|known| known.is_up && known.revocable) {
                let landed = u32::try_from(known.landed.len()).ok();
                assert_eq!(landed, known.done, "Success without every write: {known:?}");
            }
        }
        assert!(self.session.ready_tokens() <= self.session.lent().map_or(0, |lent| lent.tokens.end));
        self.session.ready_by_layer();
    }
}

/// Actions of one input: what is told to each of the sources, and what is asked for each.
const LIMIT: usize = 4 * PEERS;
