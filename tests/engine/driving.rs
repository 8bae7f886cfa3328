//! Who drives an engine, and how callers learn of changes.

use crate::bed::{Network, Node, PATIENCE, block_on};
use kvferry::bootstrap::{FixedDirectory, GroupState};
use kvferry::memory::Mark;
use kvferry::transport::Wait;
use kvferry::{
    Chunk, Engine, GroupSizes, KVPoll, Offer, Place, Rank, Release, Room, RoomOptions, Side, Sources,
    UsageError,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

pub(crate) fn an_engine_without_thread_runs_on_its_descriptor_alone(network: &Network) {
    let prefill = network.node("prefill", 8);
    let builder =
        Engine::builder(Place::alone("decode")).model("test").boxed_transport(network.transport("decode"));
    let decode = Node::with(builder.manual_progress().build().unwrap(), 8);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    prefill.fill(3, &[1, 2]);
    decode.lend(&receiver, 0..8, &[5, 6]);
    prefill.send_all(&sender, 8, 4, &[1, 2]);
    while !receiver.poll().is_terminal() {
        if decode.engine.progress().unwrap() > 0 || decode.engine.prepare_wait().unwrap() == Wait::Busy {
            continue;
        }
        let fd = decode.engine.driver_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
    }
    assert_eq!(receiver.poll(), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(3, &[5, 6], 0..8), None);
    assert_eq!(prefill.engine.progress().unwrap_err(), UsageError::NotManual);
    assert_eq!(decode.engine.close(Duration::from_secs(1)).unreleased, []);
}

pub(crate) fn a_mark_signalled_just_before_the_driver_sleeps_is_not_slept_over(network: &Network) {
    let decode = network.node("decode", 8);
    let builder =
        Engine::builder(Place::alone("prefill")).model("test").boxed_transport(network.transport("prefill"));
    let prefill = Node::with(builder.manual_progress().build().unwrap(), 8);
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..4, &[1]);
    while sender.poll() != KVPoll::WaitingForInput {
        prefill.engine.progress_or_wait(PATIENCE).unwrap();
    }
    let (mark, trigger) = Mark::host();
    sender.send(Chunk::new(0..4).pages(prefill.kv, &[1]).ready(&mark)).unwrap();
    while prefill.engine.progress().unwrap() > 0 {}
    trigger.signal();
    assert_eq!(prefill.engine.prepare_wait().unwrap(), Wait::Busy);
}

pub(crate) fn the_change_feed_names_every_room_that_ended(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let fd = decode.engine.event_fd();
    let rooms = 200_u64;
    let mut handles = Vec::new();
    for room in 0..rooms {
        let receiver =
            decode.engine.receiver(Room(room), prefill.sources(), RoomOptions::tag(room + 1000)).unwrap();
        decode.lend(&receiver, 0..4, &[u32::try_from(room % 8).unwrap()]);
        let sender = prefill.sender(room);
        prefill.send_all(&sender, 4, 4, &[1]);
        handles.push((sender, receiver));
    }
    let (mut changes, mut ended) = (Vec::new(), std::collections::BTreeSet::new());
    while ended.len() < handles.len() {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
        decode.engine.changes(&mut changes);
        for change in changes.drain(..).filter(|change| change.state.is_terminal()) {
            assert_eq!(
                (change.state, change.release, change.side),
                (KVPoll::Success, Release::Safe, Side::Decode)
            );
            assert_eq!((change.tag, change.tokens_ready), (change.room.0 + 1000, 4));
            assert!(ended.insert(change.room), "{:?} ended twice", change.room);
        }
    }
    assert_eq!(decode.engine.stats().succeeded, rooms);
}

pub(crate) fn futures_tell_offers_grants_progress_and_ends(network: &Network) {
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    sender.offer(Offer::tokens(8).payload(b"eight")).unwrap();
    let offer = block_on(receiver.wait_offered()).unwrap();
    assert_eq!((offer.tokens, &offer.payload[..]), (Some(8), &b"eight"[..]));
    decode.lend(&receiver, 0..8, &[5, 6]);
    assert_eq!(block_on(sender.wait_granted()).unwrap().destinations, 1);
    sender.send(Chunk::new(0..6).pages(prefill.kv, &[1, 2])).unwrap();
    assert!(block_on(receiver.wait_ready(6)));
    assert_eq!(
        (receiver.ready_tokens(), receiver.ready_tokens_of(1), receiver.poll()),
        (6, 6, KVPoll::Transferring)
    );
    sender.send(Chunk::new(6..8).pages(prefill.kv, &[2])).unwrap();
    sender.finish(kvferry::Finish::new(8)).unwrap();
    block_on(receiver.finished()).unwrap();
    block_on(sender.finished()).unwrap();
    block_on(receiver.released());
}

pub(crate) fn a_receiver_waits_until_its_group_and_the_owner_of_its_room_are_known(network: &Network) {
    let directory = FixedDirectory::new();
    let node = |group: &str, dp: u32| {
        let (rank, sizes) = (Rank { dp, ..Rank::default() }, GroupSizes { dp: 2, ..GroupSizes::ONE });
        let builder = Engine::builder(Place::new(group, rank, sizes)).model("test");
        let builder = builder.boxed_transport(network.transport(&format!("{group}{dp}")));
        Node::with(builder.directory(Arc::new(directory.clone())).build().unwrap(), 8)
    };
    let (decode, first) = (node("decode", 0), node("prefill", 0));
    let receiver =
        decode.engine.receiver(Room(1), Sources::group("prefill"), RoomOptions::default()).unwrap();
    decode.lend(&receiver, 0..4, &[1]);
    assert!(matches!(
        decode.engine.peer_group("prefill"),
        GroupState::NotReady { registered: 1, announced: 2, .. }
    ));
    let second = node("prefill", 1);
    second.fill(9, &[3]);
    let sender = second.sender(1);
    second.send_all(&sender, 4, 4, &[3]);
    assert!(matches!(decode.engine.peer_group("prefill"), GroupState::Ready(_)));
    assert_eq!(receiver.poll(), KVPoll::Bootstrapping, "nobody has said who owns the room");
    second.engine.publish_owner(Room(1), 1);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(decode.first_wrong(9, &[1], 0..4), None);
    assert_eq!(first.engine.stats().links, 0);
}

pub(crate) fn a_wrong_owner_is_refused_by_name(network: &Network) {
    let directory = FixedDirectory::new();
    let builder =
        Engine::builder(Place::alone("prefill")).model("test").boxed_transport(network.transport("prefill"));
    let _prefill = Node::with(builder.directory(Arc::new(directory.clone())).build().unwrap(), 8);
    let builder =
        Engine::builder(Place::alone("decode")).model("test").boxed_transport(network.transport("decode"));
    let decode = Node::with(builder.directory(Arc::new(directory)).build().unwrap(), 8);
    let from = Sources::group_dp("prefill", 4);
    let receiver = decode.engine.receiver(Room(1), from, RoomOptions::default()).unwrap();
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    assert!(receiver.error().unwrap().detail.contains("wrong rank: dp4"), "{:?}", receiver.error());
}

pub(crate) fn a_caller_that_drives_by_hand_can_sleep_after_a_ring(network: &Network) {
    let builder =
        Engine::builder(Place::alone("decode")).model("test").boxed_transport(network.transport("decode"));
    let decode = Node::with(builder.manual_progress().build().unwrap(), 8);
    let fd = decode.engine.driver_fd().unwrap();
    assert_eq!(decode.engine.prepare_wait().unwrap(), Wait::Ready);
    decode.engine.reject(Room(3), kvferry::Attempt(0), "rings the bell").unwrap();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
    while decode.engine.progress().unwrap() > 0 || decode.engine.prepare_wait().unwrap() == Wait::Busy {}
    let nothing = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let readable = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&nothing)).unwrap();
    assert_eq!(readable, 0, "the descriptor stays readable although there is nothing to do");
}

pub(crate) fn driving_a_closed_engine_does_nothing(network: &Network) {
    let prefill = network.node("prefill", 8);
    let builder =
        Engine::builder(Place::alone("decode")).model("test").boxed_transport(network.transport("decode"));
    let decode = Node::with(builder.manual_progress().build().unwrap(), 8);
    let receiver = decode.receiver(1, &prefill);
    let nowhere = kvferry::Source::new(Rank::tp(0), vec![network.nobody()]);
    let lost =
        decode.engine.receiver(Room(2), Sources::Ranks(vec![nowhere]), RoomOptions::default()).unwrap();
    decode.engine.progress().unwrap();
    let report = decode.engine.close(Duration::MAX);
    assert!(report.is_finished && report.unreleased.is_empty(), "{report:?}");
    assert_eq!((receiver.poll(), lost.poll()), (KVPoll::Failed, KVPoll::Failed));
    receiver.abort("nobody will look at this");
    assert_eq!(decode.engine.progress().unwrap(), 0);
    assert_eq!(decode.engine.prepare_wait().unwrap(), Wait::Ready);
    assert_eq!(decode.engine.progress().unwrap(), 0);
    assert_eq!(decode.engine.next_deadline(), None);
}

pub(crate) fn a_room_in_which_nothing_happens_wakes_nobody(network: &Network) {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (prefill, decode) = (network.node("prefill", 8), network.node("decode", 8));
    let (mark, _trigger) = Mark::host();
    let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
    decode.lend(&receiver, 0..4, &[1]);
    block_on(sender.wait_granted());
    sender.send(Chunk::new(0..4).pages(prefill.kv, &[1]).ready(&mark)).unwrap();
    let run = |rooms: std::ops::Range<u64>| {
        for room in rooms {
            let (other, its) = (prefill.sender(room), decode.receiver(room, &prefill));
            decode.lend(&its, 0..4, &[2]);
            prefill.send_all(&other, 4, 4, &[2]);
            assert_eq!(other.wait(PATIENCE), KVPoll::Success, "{:?}", other.error());
        }
    };
    run(100..101); // by then the chunk has been taken
    let wakes = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Arc::clone(&wakes).into();
    let mut finished = pin!(sender.finished());
    assert!(finished.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    run(101..200);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    drop(receiver);
    assert_eq!(block_on(finished).unwrap_err().kind, kvferry::ErrorKind::Aborted);
}
