//! What each end is told when something goes wrong.

use crate::bed::{CANARY, Network, Node, PATIENCE, block_on};
use kvferry::layout::{PoolEntry, PoolLayout, Role, TokenShard};
use kvferry::memory::{HostBuffer, Mark};
use kvferry::{
    Attempt, Chunk, Config, Engine, ErrorKind, Finish, KVPoll, Place, Release, Room, RoomOptions, Source,
    Sources, UsageError,
};
use std::time::Duration;

fn hasty() -> Config {
    let mut config = Config::default();
    config.deadlines.discover = Duration::from_millis(100);
    config.deadlines.handshake = Duration::from_millis(100);
    config.deadlines.waiting_for_input = Duration::from_millis(100);
    config.deadlines.stall = Duration::from_millis(100);
    config
}

pub(crate) fn a_sender_without_receiver_ends_by_itself_and_says_why(network: &Network) {
    let prefill = network.node_with("prefill", 8, hasty());
    let sender = prefill.sender(5);
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    let error = sender.error().unwrap();
    assert_eq!((error.kind, error.state, error.room), (ErrorKind::Timeout, KVPoll::Bootstrapping, Room(5)));
    assert!(error.detail.contains("of 100ms") && error.detail.contains("no receiver has joined"), "{error}");
}

pub(crate) fn a_receiver_that_comes_late_hears_that_the_sender_gave_up(network: &Network) {
    let (prefill, decode) = (network.node_with("prefill", 8, hasty()), network.node("decode", 8));
    let sender = prefill.sender(5);
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    let receiver = decode.receiver(5, &prefill);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!((error.kind, error.is_from_another_rank()), (ErrorKind::Timeout, true), "{error}");
}

pub(crate) fn a_receiver_that_gave_up_early_ends_the_sender_that_comes_late(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let receiver = decode.receiver(5, &prefill);
    while receiver.poll() == KVPoll::Bootstrapping {
        std::thread::yield_now();
    }
    receiver.abort("client gone");
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    while prefill.engine.stats().remembered == 0 {
        std::thread::yield_now();
    }
    let sender = prefill.sender(5);
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(&*sender.error().unwrap().detail, "client gone");
    // The room is as good as new.
    let (sender, receiver) = (prefill.sender(5), decode.receiver(5, &prefill));
    decode.lend(&receiver, 0..4, &[0]);
    prefill.send_all(&sender, 4, 4, &[0]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
}

pub(crate) fn a_refused_request_ends_its_receiver_at_once(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let receiver = decode.receiver(5, &prefill);
    prefill.engine.reject(Room(5), Attempt(0), "too long").unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!((error.kind, &*error.detail), (ErrorKind::Rejected, "too long"));
}

pub(crate) fn closing_one_end_fails_the_rooms_of_both(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let pairs: Vec<_> = (0..20).map(|room| (prefill.sender(room), decode.receiver(room, &prefill))).collect();
    for (_, receiver) in &pairs {
        decode.lend(receiver, 0..4, &[0]);
    }
    for (sender, _) in &pairs {
        assert!(block_on(sender.wait_granted()).is_some(), "{:?}", sender.error());
    }
    assert_eq!(prefill.engine.close(PATIENCE).unreleased, []);
    assert_eq!(prefill.engine.close(PATIENCE).unreleased, []);
    for (sender, receiver) in &pairs {
        assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
        assert_eq!(sender.error().unwrap().kind, ErrorKind::ShuttingDown);
        assert_eq!(receiver.error().unwrap().kind, ErrorKind::ShuttingDown);
    }
    let refused = prefill.engine.sender(Room(99), RoomOptions::default());
    assert_eq!(refused.unwrap_err(), UsageError::Closed);
    assert!(!prefill.engine.is_healthy() && decode.engine.is_healthy());
}

pub(crate) fn a_dropped_handle_ends_the_room(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    for room in 0..100 {
        let receiver = decode.receiver(room, &prefill);
        drop(prefill.sender(room));
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(receiver.error().unwrap().kind, ErrorKind::Aborted);
    }
}

pub(crate) fn no_byte_is_read_before_the_mark_is_ready(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..8, &[4, 5]);
    prefill.fill(1, &[0]);
    let (mark, trigger) = Mark::host();
    sender.send(Chunk::new(0..4).pages(prefill.kv, &[0])).unwrap();
    sender.send(Chunk::new(4..8).pages(prefill.kv, &[1]).ready(&mark)).unwrap();
    sender.finish(Finish::new(8)).unwrap();
    while receiver.ready_tokens() < 4 {
        std::thread::yield_now();
    }
    assert!(decode.is_filled_with(CANARY, 5));
    prefill.fill(2, &[7, 1]); // page 1 gets what seed 2 says of a prompt's second page
    trigger.signal();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(2, &[5], 4..8), None);
}

pub(crate) fn a_mark_that_will_never_be_ready_fails_the_room(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    let (mark, trigger) = Mark::host();
    sender.send(Chunk::new(0..4).pages(prefill.kv, &[0]).ready(&mark)).unwrap();
    drop(trigger);
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
}

pub(crate) fn pools_that_differ_fail_both_ends_and_name_the_field(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let buffer = HostBuffer::zeroed(4096).unwrap();
    let region = decode.engine.register(|id| buffer.region(id)).unwrap();
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 8, 4);
    layout.push(PoolEntry::new(kv, Role::Key, region, 256).layer(0).dtype("bf16"));
    decode.engine.set_layout(layout).unwrap();
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    assert_eq!((sender.wait(PATIENCE), receiver.wait(PATIENCE)), (KVPoll::Failed, KVPoll::Failed));
    for error in [sender.error().unwrap(), receiver.error().unwrap()] {
        assert_eq!(error.kind, ErrorKind::Layout, "{error}");
        assert!(error.detail.contains("on the prefill side"), "{error}");
    }
    assert!(prefill.engine.is_healthy() && decode.engine.is_healthy());
}

pub(crate) fn another_model_or_rank_is_refused_by_name(network: &Network) {
    let prefill = network.node("prefill", 8);
    let other = network.engine("other", "another model");
    let decode = Node::with(other, 8);
    let receiver = decode.receiver(1, &prefill);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert!(error.detail.contains("\"another model\"") && error.detail.contains("\"test\""), "{error}");

    let decode = network.node("decode", 8);
    let source = Source::new(kvferry::Rank::tp(3), prefill.engine.addresses());
    let receiver =
        decode.engine.receiver(Room(2), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert!(error.detail.contains("wrong rank"), "{error}");
}

pub(crate) fn another_model_is_served_if_both_sides_do_not_mind(network: &Network) {
    let node = |name, model| {
        let builder = Engine::builder(Place::alone(name)).model(model).any_model();
        Node::with(builder.boxed_transport(network.transport(name)).build().unwrap(), 8)
    };
    let (prefill, decode) = (node("prefill", "llama"), node("decode", "llama-finetuned"));
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    prefill.fill(1, &[3]);
    decode.lend(&receiver, 0..4, &[5]);
    prefill.send_all(&sender, 4, 4, &[3]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(1, &[5], 0..4), None);
    let strict = network.node("strict", 8);
    let refused = strict.receiver(2, &prefill);
    assert_eq!(refused.wait(PATIENCE), KVPoll::Failed);
    assert!(refused.error().unwrap().detail.contains("\"llama\""), "{:?}", refused.error());
}

pub(crate) fn a_peer_that_is_not_there_is_named_when_the_deadline_passes(network: &Network) {
    let decode = network.node_with("decode", 8, hasty());
    let source = Source::new(kvferry::Rank::tp(0), vec![network.nobody()]);
    let receiver =
        decode.engine.receiver(Room(2), Sources::Ranks(vec![source]), RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert!(error.detail.contains("tp0") && error.detail.contains("last try"), "{error}");
}

pub(crate) fn misuse_is_answered_at_once_and_touches_no_room(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    let kv = prefill.kv;
    assert!(matches!(
        sender.send(Chunk::new(0..4).pages(kv, &[-1_i32])),
        Err(UsageError::PageOutOfRange { .. })
    ));
    assert!(matches!(
        sender.send(Chunk::new(0..4).pages(kv, &[8_i64])),
        Err(UsageError::PageOutOfRange { .. })
    ));
    assert!(matches!(
        sender.send(Chunk::new(0..9).pages(kv, &[1, 2])),
        Err(UsageError::PagesDoNotCover { .. })
    ));
    assert!(matches!(
        sender.send(Chunk::new(0..4).pages(prefill.aux, &[1])),
        Err(UsageError::UnknownGroup { .. })
    ));
    sender.send(Chunk::new(0..4).pages(kv, &[1])).unwrap();
    assert!(matches!(sender.send(Chunk::new(5..8).pages(kv, &[1])), Err(UsageError::Work(_))));
    assert!(matches!(sender.finish(Finish::new(9)), Err(UsageError::Work(_))));
    // Before the transfer can end.
    decode.lend(&receiver, 0..4, &[1]);
    let again = receiver.grant(kvferry::Grant::new(0..4).pages(decode.kv, &[1]));
    assert_eq!(again.unwrap_err(), UsageError::AlreadyGranted);
    sender.finish(Finish::new(4)).unwrap();
    let repeated = sender.finish(Finish::new(4));
    assert!(matches!(repeated, Ok(kvferry::Accepted::Ended) | Err(UsageError::Work(_))), "{repeated:?}");
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    let bare =
        Engine::builder(Place::alone("bare")).boxed_transport(network.transport("bare")).build().unwrap();
    assert_eq!(bare.sender(Room(1), RoomOptions::default()).unwrap_err(), UsageError::NoLayout);
    assert_eq!(receiver.release(), Release::Safe);
}

pub(crate) fn a_receiver_that_gave_up_while_connecting_still_ends_its_sender(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let sender = prefill.sender(5);
    decode.receiver(5, &prefill).abort("client gone");
    assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(&*sender.error().unwrap().detail, "client gone");
}

pub(crate) fn sources_that_cannot_be_are_refused_at_once(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let receiver = |sources| decode.engine.receiver(Room(1), Sources::Ranks(sources), RoomOptions::default());
    let source = || Source::new(kvferry::Rank::tp(0), prefill.engine.addresses());
    assert_eq!(receiver(vec![]).unwrap_err(), UsageError::NoSources);
    assert_eq!(
        receiver(vec![source(), source()]).unwrap_err(),
        UsageError::DuplicateSource(kvferry::Rank::tp(0))
    );
    let mut part = source();
    part.share.as_mut().unwrap().source.granule = 0;
    assert_eq!(receiver(vec![part]).unwrap_err(), UsageError::Share("tokens of the source"));
    let second = TokenShard { granule: 1, step: 2, phase: 1 };
    let dealt =
        |sources, tokens| decode.engine.receiver(Room(1), sources, RoomOptions::default().tokens(tokens));
    let refused = dealt(Sources::group("prefill"), second).unwrap_err();
    assert_eq!(refused, UsageError::TokensOfGroup(second));
    let refused = dealt(Sources::Ranks(vec![source()]), second).unwrap_err();
    assert_eq!(refused, UsageError::Share("tokens of the destination"));
    let none = TokenShard { granule: 1, step: 2, phase: 2 };
    let refused = prefill.engine.sender(Room(1), RoomOptions::default().tokens(none)).unwrap_err();
    assert_eq!(refused, UsageError::Tokens(none));
    let receiver = receiver(vec![source()]).unwrap();
    let many = vec![0_u32; (1 << 20) + 1];
    let refused = receiver.grant(kvferry::Grant::new(0..4 << 20).pages(decode.kv, &many));
    assert!(matches!(refused, Err(UsageError::TooManyPages { .. })), "{refused:?}");
    let long =
        Engine::builder(Place::alone("x".repeat(257))).boxed_transport(network.transport("long")).build();
    assert!(matches!(long, Err(kvferry::BuildError::NameTooLong { .. })), "{long:?}");
}

pub(crate) fn a_peer_that_closes_ends_those_who_wait_for_it(network: &Network) {
    let mut config = Config::default();
    config.deadlines.discover = Duration::MAX;
    config.deadlines.handshake = Duration::MAX;
    let (prefill, decode) = (network.node("prefill", 8), network.node_with("decode", 8, config));
    // Two receivers of which only one has a sender: the other has joined and waits.
    let (sender, receiver, waiting) =
        (prefill.sender(1), decode.receiver(1, &prefill), decode.receiver(2, &prefill));
    decode.lend(&receiver, 0..4, &[0]);
    assert!(block_on(sender.wait_granted()).is_some());
    prefill.engine.close(PATIENCE);
    for receiver in [receiver, waiting] {
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert!(receiver.error().unwrap().is_retryable(), "{:?}", receiver.error());
    }
}
