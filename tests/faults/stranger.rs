//! A peer that is driven by hand and says what it likes, over any transport.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::tap::Tap;
use bytes::Bytes;
use kvferry::transport::{Event, Transport, Wait};
use kvferry::wire::{Crc32c, Frame, GroupFrame, Hello, Kind, Layout, RoomFrame, Status};
use kvferry::{
    BallotId, Chunk, Engine, Finish, Generation, GrantId, Instance, LinkId, Offer, Place, Rank, Room, Side,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;

#[derive(Debug)]
pub(crate) struct Stranger {
    transport: Box<dyn Transport>,
    link: LinkId,
    heard: VecDeque<Frame>,
    hello: Option<Hello>,
    layout: Option<Layout>,
    is_connected: bool,
    is_down: bool,
}

impl Stranger {
    /// Connects, and hears who the engine is. Says nothing.
    pub(crate) fn connect(network: &Network, name: &str, to: &Engine) -> Self {
        let mut transport = network.transport(name);
        let link = transport.connect(&to.addresses()[0].1).unwrap();
        let heard = VecDeque::new();
        let (hello, layout) = (None, None);
        let mut stranger =
            Self { transport, link, heard, hello, layout, is_connected: false, is_down: false };
        stranger.drive(|stranger| stranger.hello.is_some() && stranger.layout.is_some());
        stranger
    }

    /// Connects and says hello, as a peer of the same model with the same pools.
    pub(crate) fn introduced(network: &Network, name: &str, to: &Engine) -> Self {
        let mut stranger = Self::connect(network, name, to);
        stranger.introduce();
        stranger
    }

    pub(crate) fn introduce(&mut self) {
        self.introduce_as(|_| ());
    }

    pub(crate) fn introduce_as(&mut self, change: impl FnOnce(&mut Hello)) {
        let mut hello = self.hello.clone().unwrap();
        hello.instance = Instance(hello.instance.0 ^ 0x5757_5757);
        change(&mut hello);
        self.say(&Frame::Hello(hello));
        self.say(&Frame::Layout(self.layout.clone().unwrap()));
    }

    /// Says hello as a peer of another version of the format.
    pub(crate) fn introduce_in_version(&mut self, version: u8) {
        let hello = Frame::Hello(self.hello.clone().unwrap());
        self.say_bytes(in_version(version, &hello));
    }

    pub(crate) fn say(&mut self, frame: &Frame) {
        self.say_bytes(frame.encode());
    }

    /// The engine may have ended the link.
    pub(crate) fn say_bytes(&mut self, bytes: Bytes) {
        let _ = self.transport.send_control(self.link, bytes);
    }

    /// What the engine says next that is such a frame; `None` if it ends the link before.
    pub(crate) fn until(&mut self, is_it: impl Fn(&Frame) -> bool) -> Option<Frame> {
        loop {
            while let Some(frame) = self.heard.pop_front() {
                if is_it(&frame) {
                    return Some(frame);
                }
            }
            if self.is_down {
                return None;
            }
            self.drive(|stranger| !stranger.heard.is_empty());
        }
    }

    /// Waits until the engine has taken all that was said before.
    pub(crate) fn until_heard(&mut self) -> bool {
        self.say(&Frame::Ping { token: 4242 });
        self.until(|frame| *frame == Frame::Pong { token: 4242 }).is_some()
    }

    /// Waits until the engine ends the link.
    pub(crate) fn until_down(&mut self) {
        self.drive(|stranger| stranger.is_down);
    }

    fn drive(&mut self, is_done: impl Fn(&Self) -> bool) {
        let mut events = Vec::new();
        while !is_done(self) && !self.is_down {
            progress_or_wait(&mut *self.transport, &mut events, "the engine says nothing");
            for event in events.drain(..) {
                match event {
                    Event::Connected { .. } => self.is_connected = true,
                    Event::Control { frame, .. } => match Frame::decode(&frame).unwrap() {
                        Frame::Hello(hello) => self.hello = Some(hello),
                        Frame::Layout(layout) => self.layout = Some(layout),
                        frame => self.heard.push_back(frame),
                    },
                    Event::LinkDown { .. } => self.is_down = true,
                    _ => {}
                }
            }
        }
        assert!(self.is_connected || self.is_down);
    }
}

/// A peer of another version of the format that waits to be connected to.
pub(crate) struct Listener {
    transport: Box<dyn Transport>,
    hello: Frame,
}

impl Listener {
    /// With the hello of this engine, but for its instance.
    pub(crate) fn new(network: &Network, name: &str, like: &Engine) -> Self {
        let mut hello = Stranger::connect(network, "curious", like).hello.unwrap();
        hello.instance = Instance(hello.instance.0 ^ 0x5757_5757);
        Self { transport: network.transport(name), hello: Frame::Hello(hello) }
    }

    pub(crate) fn addresses(&self) -> Vec<(String, Vec<u8>)> {
        vec![(self.transport.name().to_owned(), self.transport.local_address().to_vec())]
    }

    /// Says hello in this version to who connects, until that one has gone.
    pub(crate) fn answer_in_version(mut self, version: u8) {
        let mut events = Vec::new();
        loop {
            progress_or_wait(&mut *self.transport, &mut events, "nobody connects");
            for event in events.drain(..) {
                match event {
                    Event::Connected { link, .. } => {
                        let _ = self.transport.send_control(link, in_version(version, &self.hello));
                    }
                    Event::LinkDown { .. } => return,
                    _ => {}
                }
            }
        }
    }
}

/// Takes what has come, or waits for it; fails in these words if nothing does.
fn progress_or_wait(transport: &mut dyn Transport, events: &mut Vec<Event>, silence: &str) {
    if transport.progress(events) == 0 && transport.prepare_wait() == Wait::Ready {
        let fd = transport.wake_fd().unwrap();
        let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let woken = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap();
        assert_ne!(woken, 0, "{silence}");
    }
}

/// A frame as another version of the format would start it.
fn in_version(version: u8, frame: &Frame) -> Bytes {
    let mut bytes = frame.encode().to_vec();
    bytes[4] = version;
    let sum = Crc32c::new().update(&bytes[..12]).update(&bytes[16..]).finish();
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes.into()
}

/// A receiver nobody has.
pub(crate) fn id(room: u64, generation: u64) -> GrantId {
    GrantId { room: Room(room), attempt: Default::default(), generation: Generation(generation) }
}

/// A frame of a room.
pub(crate) fn of(id: GrantId, frame: RoomFrame) -> Frame {
    Frame::Room { id, frame }
}

/// A control frame of any kind with any body, well sealed.
pub(crate) fn sealed(kind: u8, body: &[u8]) -> Bytes {
    let mut bytes = b"KVFY\x01".to_vec();
    bytes.extend([kind, 0, 0]);
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    let sum = Crc32c::new().update(&bytes).update(body).finish();
    bytes.extend(sum.to_le_bytes());
    bytes.extend(body);
    bytes.into()
}

/// One frame of each kind, as engines of the bed send them.
pub(crate) fn samples() -> &'static BTreeMap<u8, Frame> {
    static SAMPLES: OnceLock<BTreeMap<u8, Frame>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let network = Network::local();
        let (prefill, sends) = tapped(&network, "prefill");
        let (decode, receives) = tapped(&network, "decode");
        let (sender, receiver) = (prefill.sender(1), decode.receiver(1, &prefill));
        sender.offer(Offer::tokens(8).payload(b"x")).unwrap();
        decode.lend(&receiver, 0..8, &[1, 2]);
        sender.send(Chunk::new(0..8).pages(prefill.kv, &[3, 4])).unwrap();
        assert!(block_on(receiver.wait_ready(8)));
        sender.finish(Finish::new(8).payload(b"rubbish")).unwrap();
        assert!(receiver.wait(PATIENCE).is_terminal() && sender.wait(PATIENCE).is_terminal());
        for (room, sender_aborts) in [(2, true), (3, false)] {
            let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
            decode.lend(&receiver, 0..8, &[1, 2]);
            assert!(block_on(sender.wait_granted()).is_some());
            if sender_aborts {
                sender.abort("sample")
            } else {
                receiver.abort("sample")
            }
            assert!(receiver.wait(PATIENCE).is_terminal() && sender.wait(PATIENCE).is_terminal());
        }
        let taken = sends.sent().into_iter().chain(receives.sent());
        let taken = taken.map(|(_, bytes)| Frame::decode(&bytes).unwrap());
        let GrantId { room, attempt, generation } = id(1, 0);
        let vote = |frame| {
            let id = BallotId { side: Side::Decode, room, attempt, generation };
            Frame::Group { id, frame }
        };
        let others = [
            Frame::Ping { token: 1 },
            Frame::Pong { token: 1 },
            Frame::Goodbye { kind: kvferry::ErrorKind::ShuttingDown, detail: "sample".into() },
            Frame::RegionsGone { regions: vec![kvferry::RegionId(0)] },
            Frame::RegionsClosed { regions: vec![kvferry::RegionId(0)] },
            of(id(1, 0), RoomFrame::Query { asked: Side::Prefill }),
            of(id(1, 0), RoomFrame::Status(Status::new(Side::Decode, None))),
            vote(GroupFrame::Enrol { members: vec![Rank::tp(0), Rank::tp(1)] }),
            vote(GroupFrame::Vote { cause: None }),
            vote(GroupFrame::Verdict { cause: None }),
        ];
        let samples: BTreeMap<_, _> = taken.chain(others).map(|frame| (frame.kind() as u8, frame)).collect();
        assert!(samples.len() >= 20, "kinds are missing: {:?}", samples.keys());
        samples
    })
}

/// The sample of a room frame, for another room.
pub(crate) fn sample(kind: Kind, id: GrantId) -> Frame {
    let Frame::Room { frame, .. } = samples()[&(kind as u8)].clone() else { panic!("{kind:?}") };
    of(id, frame)
}

/// A node whose transport is tapped.
pub(crate) fn tapped(network: &Network, name: &str) -> (Node, crate::tap::Valve) {
    tapped_with(network, name, kvferry::Config::default())
}

pub(crate) fn tapped_with(
    network: &Network,
    name: &str,
    config: kvferry::Config,
) -> (Node, crate::tap::Valve) {
    let (transport, valve) = Tap::on(network.transport(name));
    let builder = Engine::builder(Place::alone(name)).model("test").config(config);
    (Node::with(builder.boxed_transport(transport).build().unwrap(), 8), valve)
}
