//! Arbitrary sequences of what a lobby's driver may tell it.

use super::draw::Draw;
use super::rooms::{self, PEERS, Peer};
use kvferry::session::{Adopted, Answer, Lobby};
use kvferry::wire::{Frame, RoomFrame};
use kvferry::{Attempt, GrantId, Instance, LinkId, Party, Rank, Room, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What one receiver has said over one link, as far as it may still matter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Said {
    Joined,
    Granted,
}

/// What a driver knows.
#[derive(Debug, Default)]
struct Known {
    waiting: BTreeMap<(LinkId, GrantId), Said>,
    ever: BTreeSet<(LinkId, GrantId)>,
    /// Receivers that are known to have said something, over whatever link.
    heard: BTreeSet<(Instance, GrantId)>,
}

/// Draws a lobby and everything that happens to it.
pub(crate) fn run(input: &[u8]) {
    let mut draw = Draw::new(input);
    let mut now = super::start();
    let party = Party { side: Side::Prefill, rank: Rank::tp(0), instance: Instance(99) };
    let patience = Duration::from_secs(1 + u64::from(draw.below(4)));
    let parked_bytes = 1024 * (1 + draw.place(8));
    let memories = draw.place(8);
    let mut lobby = Lobby::new(party, patience, parked_bytes, memories);
    let (mut peers, mut known) = (rooms::peers(Side::Decode), Known::default());
    for _ in 0..256 {
        if draw.is_empty() {
            break;
        }
        let at = draw.place(PEERS);
        let peer = peers[at].clone();
        let parked = lobby.sizes().0;
        let mut id = rooms::id(&mut draw);
        id.attempt = Attempt(draw.below(2).into());
        let answers = match draw.below(8) {
            0..4 if !peer.is_down => {
                let frame = match draw.below(4) {
                    0 | 1 => RoomFrame::Join { destinations: vec![peer.party.rank] },
                    2 => RoomFrame::Grant(rooms::grant(&mut draw)),
                    _ => rooms::frame(&mut draw),
                };
                let bytes = Frame::Room { id, frame: frame.clone() }.encode().len();
                let answers = lobby.frame(now, peer.link, peer.party, id, frame.clone(), bytes);
                assert!(answers.len() <= 2, "{} answers to one frame", answers.len());
                let grown = lobby.sizes().0 - parked.min(lobby.sizes().0);
                known.hear(&peer, id, &frame, &answers, grown);
                answers
            }
            4 => {
                let adopted = lobby.adopt(id.room, id.attempt);
                known.adopt(id.room, id.attempt, &adopted);
                Vec::new()
            }
            5 => {
                let heard = draw.list(2, |draw| peers[draw.place(PEERS)].party);
                let cause = rooms::cause(&mut draw);
                let answers = lobby.bury(now, id.room, id.attempt, cause, heard);
                let waited = known.take(id.room, id.attempt).len();
                assert_eq!(answers.len(), 2 * waited, "each who waited is told, and nobody else");
                answers
            }
            6 => {
                match draw.below(4) {
                    // Another link takes the place of one that has ended.
                    0 => {
                        lobby.link_down(peer.link);
                        known.waiting.retain(|(link, _), _| *link != peer.link);
                        peers[at].link = LinkId::allocate();
                    }
                    1 => {
                        // Only receivers that a sender had are named, so none that waits.
                        let of_sender = !known.waiting.contains_key(&(peer.link, id));
                        let word = draw.maybe(|draw| RoomFrame::Failed(rooms::cause(draw)));
                        lobby.ended(now, of_sender.then_some((peer.party, id, word)));
                        known.heard.insert((peer.party.instance, id));
                    }
                    _ => {}
                }
                Vec::new()
            }
            _ => {
                now += Duration::from_millis(u64::from(draw.byte()) * 10);
                let answers = lobby.tick(now);
                assert!(answers.len() <= 2 * parked);
                for Answer { link, id, .. } in &answers {
                    known.waiting.remove(&(*link, *id));
                }
                answers
            }
        };
        check(&lobby, &known, &answers, memories);
    }
    // Everything is forgotten in the end.
    while let Some(deadline) = lobby.deadline() {
        now = deadline.max(now);
        let before = lobby.sizes();
        lobby.tick(now);
        assert!(lobby.sizes() != before || lobby.deadline() != Some(deadline), "a deadline without end");
    }
    assert_eq!(lobby.sizes(), (0, 0));
    for attempt in 0..2 {
        let Adopted { parked, aborted, .. } = lobby.adopt(rooms::ROOM, Attempt(attempt));
        assert!(parked.is_empty() && aborted.is_none(), "{parked:?}, {aborted:?}");
    }
}

fn check(lobby: &Lobby, known: &Known, answers: &[Answer], memories: usize) {
    let (parked, remembered) = lobby.sizes();
    assert!(remembered <= memories, "{remembered} of {memories} memories");
    let wanted: usize = known.waiting.values().map(|said| if *said == Said::Granted { 2 } else { 1 }).sum();
    assert_eq!(parked, wanted, "{known:?}");
    for Answer { link, id, frame, .. } in answers {
        assert!(known.ever.contains(&(*link, *id)), "an answer to nobody");
        let is_word = matches!(frame, RoomFrame::Failed(_) | RoomFrame::Quiet | RoomFrame::Status(_));
        assert!(is_word, "{frame:?}");
    }
    assert!(parked == 0 || lobby.deadline().is_some(), "frames that wait for ever");
}

impl Known {
    fn hear(&mut self, peer: &Peer, id: GrantId, frame: &RoomFrame, answers: &[Answer], grown: usize) {
        let key = (peer.link, id);
        self.ever.insert(key);
        let is_new = self.heard.insert((peer.party.instance, id));
        match frame {
            RoomFrame::Query { .. } => {}
            _ if !answers.is_empty() => {
                self.waiting.remove(&key);
            }
            RoomFrame::Join { .. } if grown > 0 => {
                assert_eq!(self.waiting.insert(key, Said::Joined), None, "parked twice");
            }
            // Said twice, or by one that was told the end.
            RoomFrame::Join { .. } => assert!(!is_new, "{key:?} was neither parked nor answered"),
            RoomFrame::Grant(_) if grown > 0 => {
                assert_eq!(self.waiting.insert(key, Said::Granted), Some(Said::Joined));
            }
            RoomFrame::Grant(_) => assert_ne!(self.waiting.get(&key), Some(&Said::Joined), "{key:?} is lost"),
            _ => {}
        }
        assert!(grown <= 1);
    }

    fn take(&mut self, room: Room, attempt: Attempt) -> Vec<((LinkId, GrantId), Said)> {
        let is_of = |id: &GrantId| (id.room, id.attempt) == (room, attempt);
        let taken = self.waiting.iter().filter(|((_, id), _)| is_of(id));
        let taken: Vec<_> = taken.map(|(key, said)| (*key, *said)).collect();
        self.waiting.retain(|(_, id), _| !is_of(id));
        taken
    }

    /// Everybody who waits is handed over, join before grant, and nobody else.
    fn adopt(&mut self, room: Room, attempt: Attempt, adopted: &Adopted) {
        let mut seen = BTreeMap::new();
        for parked in &adopted.parked {
            let key = (parked.link, parked.id);
            let before = match parked.frame {
                RoomFrame::Join { .. } => seen.insert(key, Said::Joined),
                RoomFrame::Grant(_) => {
                    assert_eq!(seen.insert(key, Said::Granted), Some(Said::Joined), "{parked:?}");
                    None
                }
                _ => panic!("{parked:?}"),
            };
            assert_eq!(before, None, "{parked:?} twice");
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), self.take(room, attempt));
    }
}
