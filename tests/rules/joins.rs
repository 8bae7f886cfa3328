//! Who may join, and what a node without a sender keeps: sessions and lobbies alone, frame by frame.

use crate::calls::{ROOM, ms, start};
use kvferry::layout::PageList;
use kvferry::session::{
    Action, Answer, JoinedLink, Lent, Lobby, ReceiverSession, SenderSession, Session, SourceLink,
};
use kvferry::sim::{Call, Model, Setup, World};
use kvferry::wire::{Cause, RoomFrame};
use kvferry::{
    Attempt, Deadlines, ErrorKind, Fault, Generation, GrantId, GroupId, Instance, KVPoll, LinkId, Party,
    Rank, Release, Room, Side,
};
use std::time::{Duration, Instant};

fn party(side: Side, tp: u32) -> Party {
    Party { side, rank: Rank::tp(tp), instance: Instance(u128::from(tp) + 1) }
}

fn id(generation: u64) -> GrantId {
    GrantId { room: ROOM, attempt: Attempt(0), generation: Generation(generation) }
}

fn sender(now: Instant) -> SenderSession {
    SenderSession::new(now, ROOM, party(Side::Prefill, 0), Deadlines::default(), 4096, 3)
}

fn joined(tp: u32, generation: u64) -> JoinedLink {
    JoinedLink {
        link: LinkId::allocate(),
        party: party(Side::Decode, tp),
        id: id(generation),
        peer_counts: true,
    }
}

/// What a session sends, by link.
fn sent(session: &mut dyn Session) -> Vec<(LinkId, RoomFrame)> {
    let actions = std::iter::from_fn(|| session.next_action());
    let frame = |action| match action {
        Action::Send { link, frame, .. } => Some((link, frame)),
        _ => None,
    };
    actions.filter_map(frame).collect()
}

/// Whether the answer is a refusal of this kind, and then quiet.
fn is_refused(frames: &[(LinkId, RoomFrame)], on: LinkId, words: &str) -> bool {
    match frames {
        [(first, RoomFrame::Failed(cause)), (second, RoomFrame::Quiet)] => {
            (*first, *second) == (on, on) && cause.kind == ErrorKind::Protocol && cause.detail.contains(words)
        }
        _ => false,
    }
}

#[test]
fn a_second_join_of_a_rank_is_refused_and_changes_nothing() {
    let now = start();
    let mut session = sender(now);
    let (first, second) = (joined(0, 1), joined(0, 2));
    session.join(now, first, &[Rank::tp(0)]);
    session.join(now, second, &[Rank::tp(0)]);
    assert!(is_refused(&sent(&mut session), second.link, "duplicate room"));
    assert_eq!(session.state(), KVPoll::Bootstrapping);
    assert_eq!(session.receivers().collect::<Vec<_>>(), [(first.link, first.id)]);
}

/// Quiet in answer to it would give pages back that are being written.
#[test]
fn a_join_said_twice_is_not_answered() {
    let now = start();
    let mut session = sender(now);
    let first = joined(0, 1);
    session.join(now, first, &[Rank::tp(0)]);
    session.join(now, first, &[Rank::tp(0)]);
    assert_eq!(sent(&mut session), []);
}

/// After the end least of all: writes to it may still be under way.
#[test]
fn a_join_said_again_after_the_end_is_not_answered() {
    let now = start();
    let mut session = sender(now);
    let first = joined(0, 1);
    session.join(now, first, &[Rank::tp(0), Rank::tp(1)]);
    session.fail(now, Fault::new(ErrorKind::Aborted, "enough"));
    assert_eq!(sent(&mut session).len(), 2);
    session.join(now, first, &[Rank::tp(0), Rank::tp(1)]);
    assert_eq!(sent(&mut session), []);
}

#[test]
fn a_stranger_does_not_decide_who_is_waited_for() {
    let now = start();
    let mut session = sender(now);
    let (stranger, first) = (joined(5, 1), joined(0, 2));
    session.join(now, stranger, &[Rank::tp(1), Rank::tp(2)]);
    assert!(is_refused(&sent(&mut session), stranger.link, "not one of the destinations"));
    session.join(now, first, &[Rank::tp(0)]);
    assert_eq!(sent(&mut session), []);
    assert_eq!(session.state(), KVPoll::Bootstrapping);
}

#[test]
fn destinations_that_differ_fail_the_room_for_everybody() {
    let now = start();
    let mut session = sender(now);
    let (first, second) = (joined(0, 1), joined(1, 2));
    session.join(now, first, &[Rank::tp(0), Rank::tp(1)]);
    session.join(now, second, &[Rank::tp(1)]);
    let frames = sent(&mut session);
    let causes: Vec<_> = frames
        .iter()
        .filter_map(|(link, frame)| match frame {
            RoomFrame::Failed(cause) => Some((*link, cause.origin, cause.state)),
            _ => None,
        })
        .collect();
    let (origin, state) = (second.party, KVPoll::Bootstrapping);
    assert_eq!(causes, [(first.link, origin, state), (second.link, origin, state)]);
    assert_eq!(session.error().unwrap().kind, ErrorKind::Protocol);
}

#[test]
fn those_told_after_the_end_count_as_told() {
    let now = start();
    let mut session = sender(now);
    session.fail(now, Fault::new(ErrorKind::Aborted, "enough"));
    let late = joined(0, 1);
    session.join(now, late, &[Rank::tp(0)]);
    assert_eq!(session.joined_early(), Some(vec![late.party]));
}

fn lobby(now: Instant, bytes: usize) -> (Lobby, Instant) {
    (Lobby::new(party(Side::Prefill, 0), Duration::from_secs(2), bytes, 100), now)
}

fn join() -> RoomFrame {
    RoomFrame::Join { destinations: vec![Rank::tp(0)] }
}

fn cause(detail: &str) -> Cause {
    let now = start();
    let mut session = sender(now);
    session.fail(now, Fault::new(ErrorKind::Rejected, detail));
    session.cause().expect("it failed")
}

fn abort(detail: &str) -> RoomFrame {
    RoomFrame::Abort(cause(detail))
}

fn says(answers: &[Answer], words: &str) -> bool {
    matches!(answers.first().map(|answer| &answer.frame), Some(RoomFrame::Failed(cause)) if cause.detail.contains(words))
}

#[test]
fn a_later_verdict_outlives_the_memory_of_an_earlier_one() {
    let (mut lobby, now) = lobby(start(), 4096);
    lobby.bury(now, ROOM, Attempt(0), cause("first"), Vec::new());
    lobby.bury(now + ms(1500), ROOM, Attempt(0), cause("second"), Vec::new());
    lobby.tick(now + ms(2100));
    let link = LinkId::allocate();
    let answers = lobby.frame(now + ms(2200), link, party(Side::Decode, 0), id(1), join(), 60);
    assert!(says(&answers, "second"), "{answers:?}");
    lobby.tick(now + ms(5000));
    assert_eq!(lobby.sizes(), (0, 0));
}

#[test]
fn a_later_abort_outlives_the_memory_of_an_earlier_one() {
    let (mut lobby, now) = lobby(start(), 4096);
    let link = LinkId::allocate();
    lobby.frame(now, link, party(Side::Decode, 0), id(1), abort("first"), 60);
    lobby.frame(now + ms(1500), link, party(Side::Decode, 0), id(2), abort("second"), 60);
    lobby.tick(now + ms(2100));
    let adopted = lobby.adopt(ROOM, Attempt(0));
    assert_eq!(adopted.aborted.map(|cause| cause.detail), Some("second".into()));
}

/// Both ends have ended by then: what comes next is another use of the room.
#[test]
fn a_receiver_that_gave_up_before_its_sender_does_not_inherit_that_when_it_comes_again() {
    let (mut lobby, now) = lobby(start(), 4096);
    let (link, who) = (LinkId::allocate(), party(Side::Decode, 0));
    lobby.frame(now, link, who, id(1), join(), 60);
    lobby.frame(now, link, who, id(1), abort("gone"), 60);
    let adopted = lobby.adopt(ROOM, Attempt(0));
    let mut session = sender(now);
    session.left_early(now, adopted.left, &adopted.aborted.expect("it gave up"));
    let heard = session.joined_early().expect("it failed early");
    lobby.bury(now, ROOM, Attempt(0), session.cause().expect("a failure"), heard);
    assert_eq!(lobby.frame(now, link, who, id(2), join(), 60), []);
    let other = lobby.frame(now, link, party(Side::Decode, 1), id(1), join(), 60);
    assert!(says(&other, "gone"), "{other:?}");
}

#[test]
fn who_waits_in_vain_is_told_and_takes_its_grant_along() {
    let (mut lobby, now) = lobby(start(), 4096);
    let (link, who) = (LinkId::allocate(), party(Side::Decode, 0));
    lobby.frame(now, link, who, id(1), join(), 60);
    lobby.frame(now + ms(1900), link, who, id(1), grant(), 60);
    assert_eq!(lobby.sizes().0, 2);
    let answers = lobby.tick(now + ms(2000));
    assert!(says(&answers, "no sender for room 7 within 2s"), "{answers:?}");
    assert_eq!((answers.len(), lobby.sizes().0), (2, 0));
}

fn grant() -> RoomFrame {
    grant_of(0)
}

/// Of so many pages in a row. Through the session, as a driver would get it.
fn grant_of(pages: u32) -> RoomFrame {
    let (mut session, link) = receiver(start());
    let pages = PageList::new(0, (0..pages).collect());
    session.grant(start(), Lent { tokens: 0..4, pages: [(GroupId(0), pages)].into() });
    let frames = sent(&mut session);
    let found = frames.into_iter().find(|(on, frame)| *on == link && matches!(frame, RoomFrame::Grant(_)));
    found.expect("it lends").1
}

#[test]
fn what_is_parked_is_bounded_by_link() {
    let (mut lobby, now) = lobby(start(), 1000);
    let (link, other, who) = (LinkId::allocate(), LinkId::allocate(), party(Side::Decode, 0));
    assert_eq!(lobby.frame(now, link, who, id(1), join(), 60), []);
    let answers = lobby.frame(now, link, who, id(2), join(), 60);
    assert!(says(&answers, "572 bytes wait"), "{answers:?}");
    assert_eq!(lobby.frame(now, other, who, id(3), join(), 60), []);
    lobby.link_down(link);
    assert_eq!(lobby.adopt(ROOM, Attempt(0)).parked.len(), 1, "what came over a dead link is forgotten");
    assert_eq!(lobby.frame(now, other, who, GrantId { room: Room(9), ..id(4) }, join(), 90), []);
}

#[test]
fn a_rank_sent_away_for_want_of_space_is_not_waited_for() {
    let (mut lobby, now) = lobby(start(), 1000);
    let link = LinkId::allocate();
    let [first, second] = [0, 1].map(|tp| party(Side::Decode, tp));
    assert_eq!(lobby.frame(now, link, first, id(1), join(), 60), []);
    assert!(says(&lobby.frame(now, link, second, id(2), join(), 60), "bytes wait"));
    let adopted = lobby.adopt(ROOM, Attempt(0));
    assert_eq!(adopted.parked.len(), 1);
    assert_eq!(adopted.aborted.map(|cause| cause.kind), Some(ErrorKind::Busy));
}

/// A million pages in a row are a few bytes on the wire.
#[test]
fn a_parked_grant_is_charged_for_each_page_it_lends() {
    let (mut lobby, now) = lobby(start(), 4 << 20);
    let (link, who) = (LinkId::allocate(), party(Side::Decode, 0));
    assert_eq!(lobby.frame(now, link, who, id(1), join(), 60), []);
    let answers = lobby.frame(now, link, who, id(1), grant_of(1 << 20), 101);
    assert!(says(&answers, "bytes wait for senders"), "{answers:?}");
    assert_eq!(lobby.sizes().0, 0, "its join goes too");
    assert_eq!(lobby.frame(now, link, who, id(2), join(), 60), []);
    assert_eq!(lobby.frame(now, link, who, id(2), grant_of(1 << 19), 101), []);
    assert_eq!(lobby.sizes().0, 2);
}

#[test]
fn a_join_or_grant_said_twice_is_parked_once() {
    let (mut lobby, now) = lobby(start(), 4096);
    let (link, who) = (LinkId::allocate(), party(Side::Decode, 0));
    for frame in [join(), join(), grant(), grant(), join()] {
        assert_eq!(lobby.frame(now, link, who, id(1), frame, 60), []);
    }
    let parked = lobby.adopt(ROOM, Attempt(0)).parked;
    let frames: Vec<_> = parked.iter().map(|parked| &parked.frame).collect();
    assert!(matches!(frames[..], [RoomFrame::Join { .. }, RoomFrame::Grant(_)]), "{frames:?}");
    assert_eq!(lobby.sizes(), (0, 0));
}

#[test]
fn frames_are_adopted_in_the_order_they_came() {
    let (mut lobby, now) = lobby(start(), 1 << 20);
    let (link, other, who) = (LinkId::allocate(), LinkId::allocate(), party(Side::Decode, 0));
    let came = [(other, id(9)), (link, id(9)), (link, id(3)), (other, id(1))];
    for (link, id) in came {
        lobby.frame(now, link, who, id, join(), 60);
    }
    for (link, id) in came.into_iter().rev() {
        lobby.frame(now, link, who, id, grant(), 60);
    }
    lobby.frame(now, link, who, GrantId { attempt: Attempt(1), ..id(9) }, join(), 60);
    let adopted = lobby.adopt(ROOM, Attempt(0)).parked;
    let found: Vec<_> = adopted.iter().map(|parked| (parked.link, parked.id)).collect();
    assert_eq!(found, [came.to_vec(), came.iter().rev().copied().collect()].concat());
    assert_eq!(lobby.adopt(ROOM, Attempt(1)).parked.len(), 1);
}

/// If a frame cost as much as what its room keeps, this would not end.
#[test]
fn sixty_thousand_receivers_of_one_room_come_and_go() {
    let who = party(Side::Decode, 0);
    let mut lobby = Lobby::new(party(Side::Prefill, 0), Duration::from_secs(2), 64 << 20, 65_536);
    let (link, now) = (LinkId::allocate(), start());
    for generation in 0..60_000 {
        assert_eq!(lobby.frame(now, link, who, id(generation), join(), 60), []);
        assert!(lobby.deadline().is_some());
        lobby.tick(now);
    }
    for generation in 0..30_000 {
        let answers = lobby.frame(now, link, who, id(generation), abort("enough"), 60);
        assert!(matches!(&answers[..], [Answer { frame: RoomFrame::Quiet, .. }]), "{answers:?}");
    }
    assert_eq!(lobby.sizes().0, 30_000);
    assert_eq!(lobby.tick(now + Duration::from_secs(2)).len(), 60_000, "each is told, and then quiet");
    assert_eq!(lobby.sizes().0, 0);
    lobby.tick(now + Duration::from_secs(4));
    assert_eq!((lobby.sizes(), lobby.deadline()), ((0, 0), None));
}

fn receiver(now: Instant) -> (ReceiverSession, LinkId) {
    let who = party(Side::Decode, 0);
    let mut deadlines = Deadlines::default();
    deadlines.query = Duration::MAX;
    let mut session = ReceiverSession::new(now, id(1), who, deadlines, vec![Rank::tp(0)], vec![0, 1]);
    session.expect(now, [(Rank::tp(0), Some(kvferry::layout::Share::WHOLE))]);
    let link = LinkId::allocate();
    let party = party(Side::Prefill, 0);
    let source = SourceLink { link, party, revocable: true, epoch: 1, source_epoch: 1 };
    session.source_up(now, Rank::tp(0), source);
    (session, link)
}

#[test]
fn a_write_outside_of_what_was_lent_fails_the_room_on_its_writers_account() {
    let now = start();
    let (mut session, link) = receiver(now);
    session.grant(now, Lent { tokens: 0..4, pages: [].into() });
    session.refused(now, LinkId::allocate(), "of somebody else");
    assert!(session.error().is_none());
    session.refused(now, link, "page 9");
    let error = session.error().expect("it failed");
    assert_eq!((error.kind, error.party()), (ErrorKind::Protocol, party(Side::Prefill, 0)));
    assert!(error.detail.contains("page 9"), "{error}");
    let actions: Vec<_> = std::iter::from_fn(|| session.next_action()).collect();
    let tells = |action: &Action| matches!(action, Action::Send { frame: RoomFrame::Abort(_), .. });
    assert!(actions.iter().any(tells), "{actions:?}");
    assert_eq!(session.release(), Release::Draining);
    session.revoked(now, link);
    assert_eq!(session.release(), Release::Safe);
}

#[test]
fn a_sender_that_reports_before_pages_are_lent_breaks_the_rules() {
    let now = start();
    let (mut session, link) = receiver(now);
    session.frame(now, link, id(1), &RoomFrame::ChunkDone { tokens: 0..4, layers: None });
    let error = session.error().expect("it failed");
    assert_eq!((error.kind, error.party()), (ErrorKind::Protocol, party(Side::Prefill, 0)));
    assert_eq!(session.release(), Release::Safe);
}

#[test]
fn words_without_bytes_do_not_keep_deadlines_away() {
    let now = start();
    let (mut session, link) = receiver(now);
    let offer = offer();
    session.frame(now, link, id(1), &offer);
    session.frame(now + Duration::from_secs(200), link, id(1), &offer);
    assert_eq!(session.deadline(), Some(now + Deadlines::default().waiting_for_input));
    session.grant(now, Lent { tokens: 0..4, pages: [].into() });
    let empty = RoomFrame::ChunkDone { tokens: 0..0, layers: None };
    session.frame(now, link, id(1), &empty);
    session.frame(now + Duration::from_secs(20), link, id(1), &empty);
    assert_eq!(session.deadline(), Some(now + Deadlines::default().stall));
}

/// As a driver would get it: through the session of a sender.
fn offer() -> RoomFrame {
    let now = start();
    let mut world = World::new(now, 1, Setup::new(Model::TwoSided, 1, 1));
    world.call(Call::Sender { node: 0, room: ROOM, attempt: 0, salt: 0 });
    world.call(crate::calls::receiver(1, 1, 1)).call(Call::Offer { node: 0, room: ROOM, tokens: Some(4) });
    let offered = |world: &World| world.receiver(1, ROOM).and_then(|session| session.offered().cloned());
    world.run_until(|world| offered(world).is_some()).expect("rules hold");
    RoomFrame::Offer(offered(&world).expect("it was offered"))
}

#[test]
fn a_receiver_that_failed_early_tells_the_source_that_comes_late() {
    let now = start();
    let who = party(Side::Decode, 0);
    let ranks = vec![Rank::tp(0), Rank::tp(1)];
    let mut session = ReceiverSession::new(now, id(1), who, Deadlines::default(), ranks, vec![0]);
    session.expect(now, [(Rank::tp(0), Some(kvferry::layout::Share::WHOLE))]);
    session.fail(now, Fault::new(ErrorKind::Aborted, "enough"));
    assert_eq!(sent(&mut session), []);
    let link = LinkId::allocate();
    let party = party(Side::Prefill, 0);
    let source = SourceLink { link, party, revocable: false, epoch: 1, source_epoch: 1 };
    session.source_up(now, Rank::tp(0), source);
    let frames = sent(&mut session);
    assert!(matches!(frames[..], [(_, RoomFrame::Join { .. }), (_, RoomFrame::Abort(_))]), "{frames:?}");
    assert_eq!(session.release(), Release::Safe);
}

#[test]
fn deadlines_beyond_the_end_of_time_never_fire() {
    let now = start();
    let mut deadlines = Deadlines::default();
    (deadlines.discover, deadlines.total) = (Duration::MAX, Some(Duration::MAX));
    deadlines.drain = Duration::MAX;
    let mut session = SenderSession::new(now, ROOM, party(Side::Prefill, 0), deadlines, 4096, 3);
    assert_eq!(session.deadline(), None);
    session.tick(now + Duration::from_secs(1 << 30));
    assert_eq!(session.state(), KVPoll::Bootstrapping);
}
