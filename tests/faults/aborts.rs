//! Ends asked for at every moment of a transfer, by either side, and by one rank of several.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::patient;
use crate::stranger::tapped_with;
use crate::tap::{Fate, Valve, Writes};
use kvferry::layout::Share;
use kvferry::wire::{Frame, RoomFrame};
use kvferry::{
    Chunk, Config, Engine, ErrorKind, Finish, GroupSizes, KVPoll, KVReceiver, KVSender, KVTransferError,
    Place, Rank, Release, Room, RoomOptions, Source, Sources,
};

on_each_network! {
    t06_pages_are_untouched_after_an_abort_by_decode_at_any_moment
    t07_an_abort_by_prefill_at_any_moment_reaches_decode_with_its_reason
    t11_every_rank_of_a_group_tells_the_same_first_cause
    t11_a_rank_that_is_lost_is_named_by_all_the_others
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Moment {
    Joined,
    Granted,
    MidChunk,
    /// Everything was posted and announced, and the last write has not come.
    LastWrite,
    /// Everything has landed, and the news of it has not come.
    Landed,
    Success,
}

/// Two engines, the prefill side's tap, and a room that was brought to some moment.
struct Scene {
    prefill: Node,
    decode: Node,
    valve: Valve,
    sender: KVSender,
    receiver: KVReceiver,
}

const PAGES: [u32; 6] = [0, 1, 2, 3, 4, 5];
/// One write for each chunk of a page.
const WRITES: usize = PAGES.len();
/// What the next owner of the pages has put there.
const OWNED: u8 = 0x5C;

fn is_done(frame: &Frame) -> bool {
    matches!(frame, Frame::Room { frame: RoomFrame::Done(_), .. })
}

impl Scene {
    fn at(network: &Network, moment: Moment) -> Self {
        let (prefill, valve) = tapped_with(network, "prefill", patient());
        let (decode, arriving) = tapped_with(network, "decode", patient());
        prefill.fill(1, &PAGES);
        let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
        match moment {
            Moment::MidChunk => valve.on_write(Writes::HoldAfter(WRITES / 2)),
            Moment::LastWrite => valve.on_write(Writes::HoldAfter(WRITES - 1)),
            Moment::Landed => valve.on_frame(|frame| if is_done(frame) { Fate::Hold } else { Fate::Pass }),
            _ => {}
        }
        if moment == Moment::Joined {
            while receiver.poll() == KVPoll::Bootstrapping {
                std::thread::yield_now();
            }
        } else {
            decode.lend(&receiver, 0..24, &PAGES);
            assert!(block_on(sender.wait_granted()).is_some());
        }
        if !matches!(moment, Moment::Joined | Moment::Granted) {
            prefill.send_all(&sender, 24, 4, &PAGES);
        }
        match moment {
            Moment::Joined | Moment::Granted => {}
            Moment::MidChunk => {
                arriving.until_landed(WRITES / 2);
                valve.until_held_writes(1);
            }
            Moment::LastWrite => {
                arriving.until_landed(WRITES - 1);
                valve.until_sent(is_done);
            }
            Moment::Landed => {
                arriving.until_landed(WRITES);
                valve.until_held(1);
            }
            Moment::Success => {
                assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
                assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
            }
        }
        Self { prefill, decode, valve, sender, receiver }
    }

    /// The pages get their next owner, and all that was held on the way goes on.
    fn pages_stay_untouched(&self) {
        for pool in &self.decode.pools {
            pool.fill(OWNED);
        }
        self.valve.open();
        assert!(self.sender.wait(PATIENCE).is_terminal());
        assert_eq!(self.sender.release(), Release::Safe);
        // What comes over the same link after it has come, so it has too.
        let (sender, receiver) = (self.prefill.sender(2), self.decode.receiver(2, &self.prefill));
        self.decode.lend(&receiver, 0..8, &[6, 7]);
        self.prefill.send_all(&sender, 8, 4, &[6, 7]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        for page in PAGES {
            assert!(self.decode.is_filled_with(OWNED, page), "page {page}");
        }
        assert_eq!(self.decode.engine.stats().rooms, 0);
    }
}

fn t06_pages_are_untouched_after_an_abort_by_decode_at_any_moment(network: &Network) {
    use Moment::{Granted, Joined, Landed, LastWrite, MidChunk, Success};
    for moment in [Joined, Granted, MidChunk, LastWrite, Landed, Success] {
        let scene = Scene::at(network, moment);
        scene.receiver.abort("client gone");
        let wanted = if moment == Success { KVPoll::Success } else { KVPoll::Failed };
        // No word of the sender is needed for that: its writes are still held.
        assert_eq!(scene.receiver.wait(PATIENCE), wanted, "{moment:?}");
        assert_eq!(scene.receiver.release(), Release::Safe, "{moment:?}");
        if !matches!(moment, Landed | Success) {
            let error = block_on(scene.sender.finished()).unwrap_err();
            assert_eq!((error.kind, &*error.detail), (ErrorKind::Aborted, "client gone"), "{moment:?}");
            assert!(error.is_from_another_rank(), "{error}");
        }
        scene.pages_stay_untouched();
    }
}

fn t07_an_abort_by_prefill_at_any_moment_reaches_decode_with_its_reason(network: &Network) {
    use Moment::{Granted, Joined, LastWrite, MidChunk, Success};
    for moment in [Joined, Granted, MidChunk, LastWrite, Success] {
        let scene = Scene::at(network, moment);
        scene.sender.abort("out of memory");
        let wanted = if moment == Success { KVPoll::Success } else { KVPoll::Failed };
        assert_eq!(scene.receiver.wait(PATIENCE), wanted, "{moment:?}");
        assert_eq!(scene.receiver.release(), Release::Safe, "{moment:?}");
        if moment == Success {
            assert_eq!((scene.sender.poll(), scene.sender.error().is_none()), (KVPoll::Success, true));
        } else {
            let told = scene.receiver.error().unwrap();
            assert_eq!((told.kind, &*told.detail), (ErrorKind::Aborted, "out of memory"), "{moment:?}");
            let own = block_on(scene.sender.finished()).unwrap_err();
            assert!(told.is_from_another_rank() && told.party() == own.party(), "{told}");
            // Its pages are read until the writes under way are over, and no longer.
            let is_held = matches!(moment, MidChunk | LastWrite);
            let wanted = if is_held { Release::Draining } else { Release::Safe };
            if !is_held {
                block_on(scene.sender.released());
            }
            assert_eq!(scene.sender.release(), wanted, "{moment:?}");
        }
        scene.pages_stay_untouched();
    }
}

/// Two prefill ranks of a pipeline, and a decode rank that both feed.
struct Group {
    stages: [Node; 2],
    decode: Node,
}

impl Group {
    fn new(network: &Network, name: &str, config: Config) -> Self {
        let sizes = GroupSizes { pp: 2, ..GroupSizes::ONE };
        let stages = [0, 1].map(|pp| {
            let place = Place::new("prefill", Rank { pp, ..Rank::default() }, sizes);
            let builder = Engine::builder(place).model("test").config(config);
            let transport = network.transport(&format!("{name}{pp}"));
            Node::with(builder.boxed_transport(transport).build().unwrap(), 8)
        });
        Self { stages, decode: network.node_with(&format!("{name} decode"), 8, config) }
    }

    fn start(&self, room: u64) -> ([KVSender; 2], KVReceiver) {
        let layers = [0..2, 2..3];
        let sources = self.stages.iter().zip(layers).map(|(stage, layers)| {
            let mut source = Source::new(stage.engine.place().rank, stage.engine.addresses());
            source.share = Some(Share::WHOLE.layers(layers));
            source
        });
        let senders = self.stages.each_ref().map(|stage| stage.sender(room));
        let sources = Sources::Ranks(sources.collect());
        let receiver = self.decode.engine.receiver(Room(room), sources, RoomOptions::default()).unwrap();
        self.decode.lend(&receiver, 0..8, &[0, 1]);
        for sender in &senders {
            assert!(block_on(sender.wait_granted()).is_some(), "{:?}", sender.error());
        }
        (senders, receiver)
    }
}

/// All the same cause, which arose on one of them only.
fn agree(errors: &[KVTransferError], detail: &str) {
    let first = &errors[0];
    for error in errors {
        assert_eq!((error.kind, &error.detail, error.party()), (first.kind, &first.detail, first.party()));
        assert!(error.detail.contains(detail), "{error}");
    }
    let local = errors.iter().filter(|error| !error.is_from_another_rank()).count();
    assert_eq!(local, 1, "{errors:?}");
}

fn t11_every_rank_of_a_group_tells_the_same_first_cause(network: &Network) {
    let group = Group::new(network, "stage", patient());
    for room in 0..40 {
        let ([first, second], receiver) = group.start(room);
        // While something moves, or before.
        if room % 2 == 0 {
            let Node { kv, .. } = group.stages[0];
            first.send(Chunk::new(0..4).pages(kv, &[0])).unwrap();
        }
        match room % 3 {
            0 => first.abort("first stage"),
            1 => second.abort("second stage"),
            _ => receiver.abort("decode"),
        }
        let ends = [first.wait(PATIENCE), second.wait(PATIENCE), receiver.wait(PATIENCE)];
        assert_eq!(ends, [KVPoll::Failed; 3]);
        let errors = [first.error(), second.error(), receiver.error()].map(Option::unwrap);
        agree(&errors, ["first stage", "second stage", "decode"][(room % 3) as usize]);
    }
    // And all of them go on working together.
    group.stages[0].fill(7, &[2, 3]);
    group.stages[1].fill(7, &[4, 5]);
    let ([first, second], receiver) = group.start(99);
    for (stage, sender, pages) in [(0, &first, [2, 3]), (1, &second, [4, 5])] {
        sender.send(Chunk::new(0..8).pages(group.stages[stage].kv, &pages)).unwrap();
        sender.finish(Finish::new(8)).unwrap();
    }
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(group.decode.first_wrong(7, &[0, 1], 0..8), None);
}

fn t11_a_rank_that_is_lost_is_named_by_all_the_others(network: &Network) {
    let group = Group::new(network, "lost", patient());
    let ([first, second], receiver) = group.start(1);
    group.stages[1].engine.close(PATIENCE);
    let ends = [first.wait(PATIENCE), second.wait(PATIENCE), receiver.wait(PATIENCE)];
    assert_eq!(ends, [KVPoll::Failed; 3]);
    let errors = [first.error(), second.error(), receiver.error()].map(Option::unwrap);
    agree(&errors, "closing");
    assert_eq!(errors[0].kind, ErrorKind::ShuttingDown);
    assert_eq!(errors[0].rank(), group.stages[1].engine.place().rank);
}
