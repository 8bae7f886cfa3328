//! One outcome of a room on every rank of a group.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::peers::watched;
use kvferry::bootstrap::FixedDirectory;
use kvferry::{
    Config, Engine, ErrorKind, Grant, GroupSizes, KVPoll, KVReceiver, KVSender, KVTransferError, Member,
    Place, Rank, Release, Room, RoomOptions, Source, Sources, UsageError,
};
use std::sync::Arc;
use std::time::Duration;

const RANKS: u32 = 4;
const PAGES: [u32; 2] = [1, 2];
const LONG: Duration = Duration::from_secs(300);

/// Decode ranks of a group, each fed by a prefill rank of its own.
struct Squad {
    prefill: Vec<Node>,
    decode: Vec<Node>,
}

fn patient() -> Config {
    let mut config = Config::default();
    let deadlines = &mut config.deadlines;
    for limit in [
        &mut deadlines.discover,
        &mut deadlines.handshake,
        &mut deadlines.waiting_for_input,
        &mut deadlines.stall,
    ] {
        *limit = LONG;
    }
    config
}

fn whole() -> RoomOptions {
    RoomOptions::default().whole_group()
}

impl Squad {
    fn new(network: &Network, config: Config) -> Self {
        let directory = FixedDirectory::new();
        let node = |group: &str, tp: u32| {
            let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(RANKS));
            let builder = Engine::builder(place).model("test").config(config);
            let builder = builder.directory(Arc::new(directory.clone()));
            let transport = network.transport(&format!("{group} {tp}"));
            Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
        };
        let nodes = |group: &str| (0..RANKS).map(|tp| node(group, tp)).collect::<Vec<_>>();
        let squad = Self { prefill: nodes("prefill"), decode: nodes("decode") };
        squad.prefill.iter().for_each(|node| node.fill(7, &PAGES));
        squad
    }

    fn receiver(&self, tp: usize, room: u64, options: RoomOptions) -> KVReceiver {
        let decode = &self.decode[tp];
        let receiver = decode.engine.receiver(Room(room), Sources::group("prefill"), options).unwrap();
        let _ = receiver.grant(Grant::new(0..8).pages(decode.kv, &[3, 4]));
        receiver
    }

    fn receivers(&self, room: u64) -> Vec<KVReceiver> {
        (0..self.decode.len()).map(|tp| self.receiver(tp, room, whole())).collect()
    }

    fn senders(&self, room: u64) -> Vec<KVSender> {
        self.prefill.iter().map(|node| node.sender(room)).collect()
    }

    /// A prefill rank does all its work.
    fn send(&self, tp: usize, sender: &KVSender) {
        self.prefill[tp].send_all(sender, 8, 4, &PAGES);
    }

    fn succeed(&self, room: u64) {
        let (receivers, senders) = (self.receivers(room), self.senders(room));
        senders.iter().enumerate().for_each(|(tp, sender)| self.send(tp, sender));
        for receiver in &receivers {
            assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        }
        senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Success));
    }
}

/// The one cause of all these rooms, and on how many of them it is local.
fn agreed(receivers: &[KVReceiver]) -> (KVTransferError, usize) {
    for receiver in receivers {
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
        assert_eq!((receiver.release(), receiver.payload()), (Release::Safe, None));
    }
    let errors: Vec<_> = receivers.iter().map(|receiver| receiver.error().unwrap()).collect();
    let facts = |error: &KVTransferError| (error.kind, error.detail.clone(), error.party());
    assert!(errors.iter().all(|error| facts(error) == facts(&errors[0])), "{errors:#?}");
    let local = errors.iter().filter(|error| !error.is_from_another_rank()).count();
    (errors[0].clone(), local)
}

fn is_idle(squad: &Squad) -> bool {
    squad.prefill.iter().chain(&squad.decode).all(|node| {
        let stats = node.engine.stats();
        (stats.rooms, stats.ballots, stats.timers) == (0, 0, 0)
    })
}

pub(crate) fn a_group_succeeds_when_its_last_rank_has(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    for room in 0..4 {
        let (receivers, senders) = (squad.receivers(room), squad.senders(room));
        let last = room as usize;
        for tp in (0..4).filter(|tp| *tp != last) {
            squad.send(tp, &senders[tp]);
        }
        for tp in (0..4).filter(|tp| *tp != last) {
            // Ended here, and not yet for all.
            while receivers[tp].release() != Release::Safe {
                std::thread::yield_now();
            }
            assert_eq!(senders[tp].wait(PATIENCE), KVPoll::Success);
            assert!(!receivers[tp].poll().is_terminal());
            assert_eq!((receivers[tp].payload(), receivers[tp].error().is_some()), (None, false));
        }
        squad.send(last, &senders[last]);
        for (node, receiver) in squad.decode.iter().zip(&receivers) {
            assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
            assert_eq!(receiver.payload().unwrap(), "first token");
            assert_eq!(node.first_wrong(7, &[3, 4], 0..8), None);
        }
        senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Success));
    }
    assert!(is_idle(&squad));
    let stats = squad.decode[0].engine.stats();
    assert_eq!((stats.succeeded, stats.failed.len()), (4, 0));
}

pub(crate) fn one_rank_that_fails_fails_those_that_had_succeeded(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    for room in 0..8 {
        let (receivers, senders) = (squad.receivers(room), squad.senders(room));
        let last = room as usize % 4;
        for tp in (0..4).filter(|tp| *tp != last) {
            squad.send(tp, &senders[tp]);
            while receivers[tp].release() != Release::Safe {
                std::thread::yield_now();
            }
        }
        // By the rank that has not succeeded, or by one that takes it back.
        let who = if room < 4 { last } else { (last + 1) % 4 };
        receivers[who].abort("client gone");
        let (error, local) = agreed(&receivers);
        assert_eq!((error.kind, &*error.detail, local), (ErrorKind::Aborted, "client gone", 1));
        assert_eq!(error.rank(), Rank::tp(who as u32));
        assert!(!receivers[who].error().unwrap().is_from_another_rank());
        // Its source hears of it as ever.
        assert_eq!(senders[last].wait(PATIENCE), KVPoll::Failed);
    }
    squad.succeed(100);
    assert!(is_idle(&squad));
    let stats = squad.decode[0].engine.stats();
    assert_eq!((stats.succeeded, stats.failed["aborted"], stats.failed_elsewhere["aborted"]), (1, 8, 6));
}

pub(crate) fn the_first_of_several_causes_is_that_of_all_ranks(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    for room in 0..40 {
        let receivers = squad.receivers(room);
        let senders = squad.senders(room);
        if room % 2 == 0 {
            assert!(block_on(senders[0].wait_granted()).is_some());
        }
        std::thread::scope(|scope| {
            for tp in 0..4 {
                let (receiver, sender) = (&receivers[tp], &senders[tp]);
                scope.spawn(move || {
                    if (room + tp as u64).is_multiple_of(3) {
                        sender.abort(&format!("by prefill {tp}"));
                    } else {
                        receiver.abort(&format!("by decode {tp}"));
                    }
                });
            }
        });
        let (error, local) = agreed(&receivers);
        assert_eq!(local, usize::from(error.detail.starts_with("by decode")), "{error}");
        senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Failed));
    }
    squad.succeed(100);
    assert!(is_idle(&squad));
}

pub(crate) fn senders_share_an_outcome_as_receivers_do(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    let senders: Vec<_> =
        squad.prefill.iter().map(|node| node.engine.sender(Room(1), whole()).unwrap()).collect();
    let receivers: Vec<_> = (0..4).map(|tp| squad.receiver(tp, 1, RoomOptions::default())).collect();
    for tp in 0..3 {
        squad.send(tp, &senders[tp]);
        assert_eq!(receivers[tp].wait(PATIENCE), KVPoll::Success);
        while senders[tp].release() != Release::Safe {
            std::thread::yield_now();
        }
        assert!(!senders[tp].poll().is_terminal());
    }
    senders[3].abort("out of memory");
    let mut local = 0;
    for sender in &senders {
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        let error = sender.error().unwrap();
        assert_eq!((&*error.detail, error.rank()), ("out of memory", Rank::tp(3)));
        local += usize::from(!error.is_from_another_rank());
    }
    assert_eq!((local, receivers[3].wait(PATIENCE)), (1, KVPoll::Failed));
    assert!(is_idle(&squad));
}

pub(crate) fn a_rank_that_closes_is_named_by_all_the_others(network: &Network) {
    let _dog = watched();
    for closing in 0..4 {
        let squad = Squad::new(network, patient());
        // The first round connects them all to the rank that counts.
        let receivers = squad.receivers(5);
        receivers[0].abort("a round before");
        assert_eq!(agreed(&receivers).1, 1);
        let receivers = squad.receivers(1);
        while receivers.iter().any(|receiver| receiver.poll() == KVPoll::Bootstrapping) {
            std::thread::yield_now();
        }
        let report = squad.decode[closing].engine.close(PATIENCE);
        assert!(report.is_finished && report.unreleased.is_empty(), "{report:?}");
        let (error, local) = agreed(&receivers);
        assert_eq!((error.kind, error.rank(), local), (ErrorKind::ShuttingDown, Rank::tp(closing as u32), 1));
    }
}

pub(crate) fn a_rank_that_never_opens_the_room_is_named_when_its_time_is_over(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    let mut short = patient().deadlines;
    short.discover = Duration::from_millis(300);
    // The rank that does not come counts the votes of room 2 itself: its engine waits as it is configured.
    for room in [0, 1, 3] {
        let receivers = [0, 1, 3].map(|tp| squad.receiver(tp, room, whole().deadlines(short)));
        let (error, local) = agreed(&receivers);
        assert_eq!((error.kind, local), (ErrorKind::Timeout, 1));
        assert_eq!(error.rank(), Rank::tp(room as u32 % 4));
        assert!(error.detail.contains("decode rank dp0 pp0 cp0 tp2 has not come"), "{error}");
        let counted =
            receivers.iter().filter_map(KVReceiver::error).find(|error| !error.is_from_another_rank());
        assert!(counted.unwrap().elapsed >= short.discover, "{error}");
        // When it comes, it hears how that has ended.
        let late = squad.receiver(2, room, whole());
        assert_eq!(late.wait(PATIENCE), KVPoll::Failed);
        assert_eq!(late.error().unwrap().detail, error.detail);
    }
    assert!(is_idle(&squad));
}

pub(crate) fn a_room_is_used_again_a_thousand_times_with_one_outcome_each(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    for round in 0..1000_u64 {
        let (receivers, senders) = (squad.receivers(5), squad.senders(5));
        {
            let fails = round % 3 == 0;
            for tp in 0..4 {
                if fails && tp as u64 == round % 4 {
                    receivers[tp].abort("this use");
                } else {
                    squad.send(tp, &senders[tp]);
                }
            }
            let ends: Vec<_> = receivers.iter().map(|receiver| receiver.wait(PATIENCE)).collect();
            if fails {
                let (error, local) = agreed(&receivers);
                assert_eq!((&*error.detail, local), ("this use", 1), "round {round}");
            } else {
                assert_eq!(ends, [KVPoll::Success; 4], "round {round}: {:?}", receivers[0].error());
            }
            senders.iter().for_each(|sender| assert!(sender.wait(PATIENCE).is_terminal()));
        }
    }
    assert!(is_idle(&squad));
}

pub(crate) fn attempts_have_outcomes_of_their_own(network: &Network) {
    let _dog = watched();
    let squad = Squad::new(network, patient());
    let receivers = |attempt: u64, ranks: std::ops::Range<usize>| -> Vec<_> {
        ranks.map(|tp| squad.receiver(tp, 6, whole().attempt(attempt))).collect()
    };
    let first = receivers(1, 0..3);
    first[1].abort("first attempt");
    assert_eq!(agreed(&first).1, 1);
    // The second begins before the last rank has been at the first.
    let mut second = receivers(2, 0..3);
    let late = squad.receiver(3, 6, whole().attempt(1));
    assert_eq!(late.wait(PATIENCE), KVPoll::Failed);
    assert_eq!(&*late.error().unwrap().detail, "first attempt");
    second.extend(receivers(2, 3..4));
    let options = RoomOptions::default().attempt(2);
    for (tp, node) in squad.prefill.iter().enumerate() {
        let sender = node.engine.sender(Room(6), options.clone()).unwrap();
        squad.send(tp, &sender);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    }
    second.iter().for_each(|receiver| assert_eq!(receiver.wait(PATIENCE), KVPoll::Success));
    assert!(is_idle(&squad));
}

/// It was here, and went before it opened the room: nobody waits for its deadline.
pub(crate) fn a_rank_that_went_before_fails_the_next_rooms_fast(network: &Network) {
    let _dog = watched();
    let node = |tp: u32| {
        let place = Place::new("prefill", Rank::tp(tp), GroupSizes::tp(3));
        let builder = Engine::builder(place).model("test").config(patient());
        let transport = network.transport(&format!("prefill {tp}"));
        Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
    };
    let mut nodes: Vec<_> = (0..3).map(node).collect();
    let member = |node: &Node| Member::new(node.engine.place().rank, node.engine.addresses());
    let members: Vec<_> = nodes.iter().map(member).collect();
    let start = |nodes: &[Node], room: u64| -> Vec<_> {
        let options = RoomOptions::default().members(members.clone());
        nodes.iter().map(|node| node.engine.sender(Room(room), options.clone()).unwrap()).collect()
    };
    // Each rank has counted once, and so has met all the others.
    for room in 0..3 {
        let senders = start(&nodes, room);
        while nodes.iter().map(|node| node.engine.stats().links).sum::<usize>() < 4 * (room as usize + 1) {
            std::thread::yield_now();
        }
        senders[0].abort("a round before");
        senders.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Failed));
    }
    let gone = nodes.pop().unwrap();
    let instance = gone.engine.instance();
    // It is watched while the others wait for it.
    let waiting = start(&nodes, 6);
    while nodes[0].engine.stats().ballots == 0 {
        std::thread::yield_now();
    }
    drop(gone);
    for sender in &waiting {
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
        let error = sender.error().unwrap();
        assert_eq!((error.kind, error.party().instance), (ErrorKind::PeerLost, instance), "{error}");
    }
    // Counted by ranks that live, and by the one that does not.
    for room in [9, 10, 11] {
        let senders = start(&nodes, room);
        for sender in &senders {
            assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
            let error = sender.error().unwrap();
            assert_eq!((error.kind, error.party().instance), (ErrorKind::PeerLost, instance), "{error}");
            assert!(error.rank() == Rank::tp(2) && error.elapsed < LONG / 10, "{error}");
        }
        assert_eq!(senders[0].error().unwrap().detail, senders[1].error().unwrap().detail);
    }
}

pub(crate) fn a_frozen_rank_fails_the_room_of_its_group_whoever_counts(network: &Network) {
    let _dog = watched();
    let mut config = patient();
    config.liveness.interval = Duration::from_millis(100);
    config.liveness.timeout = Duration::from_millis(1500);
    let directory = FixedDirectory::new();
    let node = |group: &str, tp: u32, is_manual: bool| {
        let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(3));
        let builder = Engine::builder(place).model("test").config(config);
        let builder = builder.directory(Arc::new(directory.clone()));
        let builder = builder.boxed_transport(network.transport(&format!("{group} {tp}")));
        let builder = if is_manual { builder.manual_progress() } else { builder };
        Node::with(builder.build().unwrap(), 8)
    };
    let ranks = [node("decode", 0, false), node("decode", 1, false), node("decode", 2, true)];
    let frozen = &ranks[2].engine;
    let drive = || frozen.progress_or_wait(Duration::from_millis(5)).unwrap();
    for room in 0..3 {
        // Senders need no other side to wait for each other.
        let senders: Vec<_> =
            ranks.iter().map(|node| node.engine.sender(Room(room), whole()).unwrap()).collect();
        // A room that ends for all shows that they have links to the same rank that counts.
        let first: Vec<_> =
            ranks.iter().map(|node| node.engine.sender(Room(room + 9), whole()).unwrap()).collect();
        first[0].abort("a round before");
        while first.iter().any(|sender| sender.poll() != KVPoll::Failed) {
            drive();
        }
        // From here on nobody drives it.
        for sender in &senders[..2] {
            assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
            let error = sender.error().unwrap();
            assert_eq!((error.kind, error.rank()), (ErrorKind::PeerLost, Rank::tp(2)), "{error}");
            assert!(error.is_from_another_rank() && error.elapsed < LONG / 10, "{error}");
        }
        assert_eq!(senders[0].error().unwrap().detail, senders[1].error().unwrap().detail);
        // It comes back, and hears of its end.
        while senders[2].poll() != KVPoll::Failed {
            drive();
        }
        let error = senders[2].error().unwrap();
        assert_eq!(error.kind, ErrorKind::PeerLost, "{error}");
    }
}

/// Without a directory; and each must name the same.
pub(crate) fn members_are_named_with_their_addresses(network: &Network) {
    let _dog = watched();
    let node = |group: &str, tp: u32| {
        let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(RANKS));
        let builder = Engine::builder(place).model("test").config(patient());
        let transport = network.transport(&format!("{group} {tp}"));
        Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
    };
    let (prefill, decode) =
        ([node("prefill", 0), node("prefill", 1)], [node("decode", 0), node("decode", 1)]);
    let member = |node: &Node| Member::new(node.engine.place().rank, node.engine.addresses());
    let both: Vec<_> = decode.iter().map(member).collect();
    let receiver = |tp: usize, room: u64, members: Vec<Member>| {
        let source = Source::new(Rank::tp(tp as u32), prefill[tp].engine.addresses());
        let options = RoomOptions::default().members(members);
        let receiver = decode[tp].engine.receiver(Room(room), Sources::Ranks(vec![source]), options)?;
        let _ = receiver.grant(Grant::new(0..8).pages(decode[tp].kv, &[3, 4]));
        Ok::<_, UsageError>(receiver)
    };
    let pair = |room: u64| [0, 1].map(|tp| receiver(tp, room, both.clone()).unwrap());
    let receivers = pair(1);
    for tp in 0..2 {
        let sender = prefill[tp].sender(1);
        assert!(!receivers[tp].poll().is_terminal());
        prefill[tp].send_all(&sender, 8, 4, &PAGES);
        assert_eq!(sender.wait(PATIENCE), KVPoll::Success);
    }
    receivers.iter().for_each(|receiver| assert_eq!(receiver.wait(PATIENCE), KVPoll::Success));
    // Others than the first named.
    let third = Member::new(Rank::tp(2), vec![network.nobody()]);
    let differ = [receiver(0, 6, both.clone()).unwrap(), {
        let three = both.iter().cloned().chain([third]).collect();
        receiver(1, 6, three).unwrap()
    }];
    let (error, _) = agreed(&differ);
    assert!(error.kind == ErrorKind::Protocol && error.detail.contains("members"), "{error}");
    // Ranks that are not where they should be.
    let swapped = vec![both[1].clone(), both[0].clone()];
    let wrong: Vec<_> = [Rank::tp(0), Rank::tp(1)]
        .into_iter()
        .zip(swapped)
        .map(|(rank, member)| Member::new(rank, member.addresses))
        .collect();
    let lost = receiver(1, 8, wrong).unwrap();
    assert_eq!(lost.wait(PATIENCE), KVPoll::Failed);
    let error = lost.error().unwrap();
    assert!(error.kind == ErrorKind::Bootstrap && error.detail.contains("wrong rank"), "{error}");
    // What cannot be.
    let refused = |members: Vec<Member>| receiver(0, 9, members).map(drop).unwrap_err();
    assert_eq!(refused(vec![both[0].clone(), both[0].clone()]), UsageError::DuplicateMember(Rank::tp(0)));
    assert_eq!(refused(vec![both[1].clone()]), UsageError::NotAMember(Rank::tp(0)));
    assert_eq!(decode[0].engine.sender(Room(9), whole()).map(drop), Err(UsageError::NoDirectory));
    let many: Vec<_> = (0..4097).map(|tp| Member::new(Rank::tp(tp), Vec::new())).collect();
    assert_eq!(refused(many), UsageError::TooManyMembers { members: 4097, limit: 4096 });
    // A group of one is no group.
    let alone = receiver(0, 10, vec![both[0].clone()]).unwrap();
    alone.abort("alone");
    assert_eq!(alone.wait(PATIENCE), KVPoll::Failed);
}

/// What one rank of the group does is told to the others by their source, too, at the same time.
pub(crate) fn ranks_with_a_common_source_name_the_same_cause(network: &Network) {
    let _dog = watched();
    let directory = FixedDirectory::new();
    let node = |group: &str, tp: u32, of: u32| {
        let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(of));
        let builder = Engine::builder(place).model("test").config(patient());
        let builder = builder.directory(Arc::new(directory.clone()));
        let transport = network.transport(&format!("{group} {tp}"));
        Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
    };
    let (prefill, decode) = (node("prefill", 0, 1), [0, 1, 2].map(|tp| node("decode", tp, 3)));
    for room in 0..60 {
        let receivers = decode.each_ref().map(|node| {
            let mut source = Source::new(Rank::tp(0), prefill.engine.addresses());
            source.destinations = (0..3).map(Rank::tp).collect();
            let from = Sources::Ranks(vec![source]);
            let receiver = node.engine.receiver(Room(room), from, whole()).unwrap();
            let _ = receiver.grant(Grant::new(0..8).pages(node.kv, &[3, 4]));
            receiver
        });
        let sender = prefill.sender(room);
        if room % 3 == 0 {
            assert!(block_on(sender.wait_granted()).is_some());
        }
        std::thread::scope(|scope| {
            for (tp, receiver) in receivers.iter().enumerate().filter(|(tp, _)| room % 3 != *tp as u64) {
                scope.spawn(move || receiver.abort(&format!("by decode {tp}")));
            }
            if room % 4 == 0 {
                sender.abort("by prefill");
            }
        });
        let (error, local) = agreed(&receivers);
        assert_eq!(local, usize::from(error.detail.starts_with("by decode")), "{error}");
        assert_eq!(sender.wait(PATIENCE), KVPoll::Failed);
    }
    let open: usize = decode.iter().map(|node| node.engine.stats().ballots).sum();
    assert_eq!(open, 0);
}
