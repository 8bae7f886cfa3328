//! One outcome for a group: code t11, with links that are cut, ranks that are killed, and strangers.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::child::{Child, alone};
use crate::links::{until, watched};
use crate::patient;
use crate::stranger::Stranger;
use kvferry::bootstrap::FixedDirectory;
use kvferry::faults::ScriptedNetwork;
use kvferry::transport::WriteModel;
use kvferry::wire::{Frame, GroupFrame};
use kvferry::{
    Attempt, BallotId, Engine, ErrorKind, Generation, Grant, GroupSizes, KVPoll, KVSender, Member, Place,
    Rank, Room, RoomOptions, Side, Sources,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

on_each_network! {
    t11_a_stranger_has_no_vote
}

/// Whatever link is lost, at whatever moment: those who live agree, and are of use afterwards.
#[test]
fn t11_a_cut_link_leaves_no_two_outcomes() {
    watched(|| {
        let network = ScriptedNetwork::new(WriteModel::TwoSided);
        let directory = FixedDirectory::new();
        let node = |group: &str, tp: u32| {
            let place = Place::new(group, Rank::tp(tp), GroupSizes::tp(3));
            let builder = Engine::builder(place).model("test").config(patient());
            let builder = builder.directory(Arc::new(directory.clone()));
            let end = network.endpoint(&format!("{group} {tp}")).unwrap();
            Node::with(builder.transport(end).build().unwrap(), 8)
        };
        let ranks = |group: &str| (0..3).map(|tp| node(group, tp)).collect::<Vec<_>>();
        let (prefill, decode) = (ranks("prefill"), ranks("decode"));
        let mut outcomes = [0, 0];
        for room in 0..60_u64 {
            let receivers: Vec<_> = decode
                .iter()
                .map(|node| {
                    let options = RoomOptions::default().whole_group();
                    let from = Sources::group("prefill");
                    let receiver = node.engine.receiver(Room(room), from, options).unwrap();
                    let _ = receiver.grant(Grant::new(0..8).pages(node.kv, &[3, 4]));
                    receiver
                })
                .collect();
            let senders: Vec<_> = prefill.iter().map(|node| node.sender(room)).collect();
            let cut = (room / 3 % 3) as usize;
            for tp in 0..3 {
                if room % 5 == tp as u64 {
                    network.sever(&format!("decode {cut}"));
                }
                prefill[tp].send_all(&senders[tp], 8, 4, &[1, 2]);
            }
            if room % 5 == 3 {
                // About when the verdict is told.
                until(|| receivers.iter().any(|receiver| receiver.poll().is_terminal()));
                network.sever(&format!("decode {cut}"));
            }
            let ends: Vec<_> = receivers.iter().map(|receiver| receiver.wait(PATIENCE)).collect();
            assert_eq!(ends, [ends[0]; 3], "room {room}");
            if ends[0] == KVPoll::Failed {
                let errors: Vec<_> = receivers.iter().map(|receiver| receiver.error().unwrap()).collect();
                let facts: Vec<_> =
                    errors.iter().map(|error| (error.kind, error.party(), &error.detail)).collect();
                assert!(facts.iter().all(|fact| *fact == facts[0]), "room {room}: {errors:#?}");
                let local = errors.iter().filter(|error| !error.is_from_another_rank()).count();
                assert_eq!(local, usize::from(errors[0].party().side == Side::Decode), "{errors:#?}");
            }
            outcomes[usize::from(ends[0] == KVPoll::Success)] += 1;
        }
        assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
        let open: usize = decode.iter().map(|node| node.engine.stats().ballots).sum();
        assert_eq!(open, 0);
    });
}

/// Of another group, or one that nobody has named.
fn t11_a_stranger_has_no_vote(network: &Network) {
    let node = network.node_with("alone", 8, patient());
    let mut stranger = Stranger::connect(network, "stranger", &node.engine);
    stranger.introduce_as(|hello| hello.group = "another".into());
    let id = BallotId { side: Side::Decode, room: Room(0), attempt: Attempt(0), generation: Generation(1) };
    for frame in [
        GroupFrame::Enrol { members: vec![Rank::tp(0), Rank::tp(1)] },
        GroupFrame::Vote { cause: None },
        GroupFrame::Verdict { cause: None },
    ] {
        stranger.say(&Frame::Group { id, frame });
    }
    assert!(stranger.until_heard());
    let stats = node.engine.stats();
    assert_eq!((stats.ballots, stats.late), (0, 3));
    // One of the group that names it to be no member is told so, and nothing is kept.
    let mut member = Stranger::introduced(network, "member", &node.engine);
    for members in [vec![], vec![Rank::tp(1), Rank::tp(2)], (0..4096).map(Rank::tp).collect()] {
        let is_whole = members.len() > 2;
        let id = BallotId { room: Room(u64::from(!is_whole)), ..id };
        member.say(&Frame::Group { id, frame: GroupFrame::Enrol { members } });
        if !is_whole {
            let told = member.until(|frame| matches!(frame, Frame::Group { .. })).unwrap();
            let Frame::Group { frame: GroupFrame::Verdict { cause: Some(cause) }, .. } = told else {
                panic!("{told:?}")
            };
            assert_eq!(cause.kind, ErrorKind::Protocol);
        }
    }
    // It goes without a vote, and with it what it has begun.
    assert!(member.until_heard());
    assert_eq!(node.engine.stats().ballots, 1);
    drop(member);
    until(|| node.engine.stats().ballots == 0);
}

/// One rank of two, over TCP, each in a process of its own.
fn rank(tp: u32) -> Node {
    let place = Place::new("prefill", Rank::tp(tp), GroupSizes::tp(2));
    let builder = Engine::builder(place).model("test").config(patient());
    Node::with(builder.boxed_transport(Network::Tcp.transport("")).build().unwrap(), 8)
}

fn exchange(pipe: &mut UnixStream, own: &Node) -> Vec<Member> {
    let (name, address) = own.engine.addresses().swap_remove(0);
    pipe.write_all(&[u8::try_from(address.len()).unwrap()]).unwrap();
    pipe.write_all(&address).unwrap();
    let mut length = [0];
    pipe.read_exact(&mut length).unwrap();
    let mut other = vec![0; length[0].into()];
    pipe.read_exact(&mut other).unwrap();
    let tp = own.engine.place().rank.tp;
    vec![
        Member::new(Rank::tp(tp), vec![(name.clone(), address)]),
        Member::new(Rank::tp(1 - tp), vec![(name, other)]),
    ]
}

fn senders(node: &Node, members: &[Member], rooms: [u64; 2]) -> [KVSender; 2] {
    let options = RoomOptions::default().members(members.to_vec());
    rooms.map(|room| node.engine.sender(Room(room), options.clone()).unwrap())
}

#[test]
fn t11_a_rank_that_is_killed_fails_the_room_of_the_others() {
    alone("groups::t11_a_rank_that_is_killed_fails_the_room_of_the_others", || {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let child = Child::fork(|| {
            let node = rank(1);
            let members = exchange(&mut there, &node);
            let first = senders(&node, &members, [10, 11]);
            first.iter().for_each(|sender| sender.abort("a round before"));
            first.iter().for_each(|sender| assert_eq!(sender.wait(PATIENCE), KVPoll::Failed));
            let _second = senders(&node, &members, [0, 1]);
            there.write_all(&[1]).unwrap();
            std::thread::park();
        });
        let node = rank(0);
        let members = exchange(&mut here, &node);
        for sender in senders(&node, &members, [10, 11]) {
            let error = block_on(sender.finished()).unwrap_err();
            assert_eq!((&*error.detail, error.rank()), ("a round before", Rank::tp(1)));
        }
        let second = senders(&node, &members, [0, 1]);
        here.read_exact(&mut [0]).unwrap();
        child.signal(libc::SIGKILL);
        // Whoever counts, and long before any deadline.
        for sender in second {
            let error = block_on(sender.finished()).unwrap_err();
            assert_eq!((error.kind, error.rank()), (ErrorKind::PeerLost, Rank::tp(1)), "{error}");
            assert!(error.is_from_another_rank(), "{error}");
        }
    });
}
