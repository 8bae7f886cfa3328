//! Two ends of a link, driven as an engine would: progress, and sleep on the descriptors only.

use crate::pool::{Job, Memory, Pool, Shape};
use bytes::Bytes;
use kvferry::layout::Piece;
use kvferry::transport::{Event, Transport, TransportError, Wait, Write};
use kvferry::wire::Crc32c;
use kvferry::{Attempt, Generation, GrantId, LinkId, OpId, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::mpsc;
use std::time::Duration;

/// Makes transports that can reach each other.
pub(crate) trait Factory {
    fn new() -> Self;
    fn transport(&self) -> Box<dyn Transport>;
    /// What its pools are made of.
    const MEMORY: Memory = Memory::Host;

    fn end(&self, shape: Shape) -> End
    where
        Self: Sized,
    {
        End::on(Self::MEMORY, self.transport(), shape)
    }
}

/// One end, and what it was told.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) pool: Pool,
    pub(crate) log: Vec<Event>,
}

/// A sending and a receiving end.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) sender: End,
    pub(crate) receiver: End,
    /// The link, as either end calls it.
    pub(crate) out: LinkId,
    pub(crate) back: LinkId,
}

pub(crate) fn grant(room: u64) -> GrantId {
    GrantId { room: Room(room), attempt: Attempt(0), generation: Generation(1) }
}

/// A control frame with a body of the test's own; kind 1 is `Hello`, 3 is `Ping`.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Bytes {
    let mut bytes = b"KVFY\x01".to_vec();
    bytes.extend([kind, 0, 0]);
    bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    let sum = Crc32c::new().update(&bytes).update(body).finish();
    bytes.extend(sum.to_le_bytes());
    bytes.extend(body);
    bytes.into()
}

/// Ends the process if a test hangs.
pub(crate) fn watched(name: &'static str, test: impl FnOnce()) {
    let (done, wait) = mpsc::channel::<()>();
    let dog = std::thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    test();
    drop(done);
    dog.join().unwrap();
}

/// Drives all ends until `done`. Sleeps whenever no end has work, so that a lost wake-up hangs.
pub(crate) fn drive<const N: usize>(
    mut ends: [&mut End; N],
    mut done: impl FnMut(&mut [&mut End; N]) -> bool,
) {
    while !done(&mut ends) {
        let mut news = 0;
        for end in &mut ends {
            news += end.transport.progress(&mut end.log);
        }
        if news == 0 {
            sleep(&mut ends);
        }
    }
}

fn sleep(ends: &mut [&mut End]) {
    let mut ready = true;
    for end in ends.iter_mut() {
        ready &= end.transport.prepare_wait() == Wait::Ready;
    }
    if !ready {
        return;
    }
    let fds: Vec<_> = ends.iter().map(|end| end.transport.wake_fd().expect("a descriptor")).collect();
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    let woken = poll(&mut polled, Some(&limit)).unwrap();
    assert_ne!(woken, 0, "nothing happens: {ends:#?}");
}

impl End {
    pub(crate) fn new(transport: Box<dyn Transport>, shape: Shape) -> Self {
        Self::on(Memory::Host, transport, shape)
    }

    pub(crate) fn on(memory: Memory, transport: Box<dyn Transport>, shape: Shape) -> Self {
        let mut transport = transport;
        let pool = Pool::new(shape, memory);
        pool.register(&mut *transport);
        Self { transport, pool, log: Vec::new() }
    }

    pub(crate) fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.log.iter().filter(|event| is(event)).count()
    }

    pub(crate) fn landed(&self) -> usize {
        self.count(|event| matches!(event, Event::Landed { .. }))
    }

    pub(crate) fn settled(&self) -> usize {
        self.count(|event| matches!(event, Event::Settled { .. }))
    }

    pub(crate) fn downs(&self) -> usize {
        self.count(|event| matches!(event, Event::LinkDown { .. }))
    }

    pub(crate) fn revoked(&self, wanted: GrantId) -> usize {
        self.count(|event| matches!(event, Event::Revoked { grant, .. } if *grant == wanted))
    }

    /// Whose writes were refused, over which link.
    pub(crate) fn refused(&self) -> Vec<(LinkId, GrantId)> {
        let refused = |event: &Event| match event {
            Event::Refused { link, grant, .. } => Some((*link, *grant)),
            _ => None,
        };
        self.log.iter().filter_map(refused).collect()
    }

    pub(crate) fn frames(&self) -> Vec<Bytes> {
        let frame = |event: &Event| match event {
            Event::Control { frame, .. } => Some(frame.clone()),
            _ => None,
        };
        self.log.iter().filter_map(frame).collect()
    }

    pub(crate) fn connected(&self) -> Vec<LinkId> {
        let link = |event: &Event| match event {
            Event::Connected { link } => Some(*link),
            _ => None,
        };
        self.log.iter().filter_map(link).collect()
    }

    /// Posts one piece.
    pub(crate) fn post(
        &mut self,
        link: LinkId,
        job: &Job,
        room: u64,
        op: u32,
        piece: &Piece,
    ) -> Result<(), TransportError> {
        let source = job.source_extents(piece);
        let write = Write {
            op: OpId(op),
            grant: grant(room),
            piece: piece.clone(),
            source: &source,
            destination: &[],
        };
        self.transport.write(link, &write)
    }
}

impl Pair {
    pub(crate) fn new<F: Factory>(shape: Shape) -> Self {
        Self::of(&F::new(), shape)
    }

    pub(crate) fn of(factory: &impl Factory, shape: Shape) -> Self {
        let sender = factory.end(shape);
        let receiver = factory.end(shape);
        Self::connect(sender, receiver)
    }

    pub(crate) fn connect(mut sender: End, mut receiver: End) -> Self {
        sender.pool.fill_with_pattern(7);
        receiver.pool.fill(crate::pool::CANARY);
        let out = sender.transport.connect(&receiver.transport.local_address()).unwrap();
        drive([&mut sender, &mut receiver], |[a, b]| !a.connected().is_empty() && !b.connected().is_empty());
        assert_eq!(sender.connected(), [out]);
        let back = receiver.connected()[0];
        Self { sender, receiver, out, back }
    }

    pub(crate) fn job(&self, pages: u32, salt: u32) -> Job {
        Job::new(&self.sender.pool, &self.receiver.pool, pages, salt)
    }

    pub(crate) fn admit(&mut self, job: &Job, room: u64) {
        self.receiver.transport.admit(self.back, grant(room), job.admission());
    }

    /// Posts every piece of `job`, waiting whenever the queue is full. Returns how many.
    pub(crate) fn post_all(&mut self, job: &Job, room: u64, max_bytes: u64) -> usize {
        let pieces = job.pieces(max_bytes);
        for (op, piece) in (0..).zip(&pieces) {
            self.post_when_free(job, room, op, piece);
        }
        pieces.len()
    }

    pub(crate) fn post_when_free(&mut self, job: &Job, room: u64, op: u32, piece: &Piece) {
        loop {
            match self.sender.post(self.out, job, room, op, piece) {
                Ok(()) => return,
                Err(TransportError::Full) => {
                    let settled = self.sender.settled();
                    self.drive(|sender, _| sender.settled() > settled);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn drive(&mut self, mut done: impl FnMut(&End, &End) -> bool) {
        drive([&mut self.sender, &mut self.receiver], |[sender, receiver]| done(sender, receiver));
    }

    /// Drives until `count` writes have settled, then checks that all went well.
    pub(crate) fn settle(&mut self, count: usize) {
        self.drive(|sender, _| sender.settled() >= count);
        let failed = self.sender.count(|event| matches!(event, Event::Settled { result: Err(_), .. }));
        assert_eq!((self.sender.settled(), failed), (count, 0));
    }

    /// Checks that the bytes of `job` are in place and nothing else was touched.
    pub(crate) fn assert_arrived(&self, job: &Job) {
        self.assert_bytes(job);
        let written = job.destination_extents(&job.whole());
        assert_eq!(self.receiver.pool.spoiled_outside(&written), 0, "bytes outside the pages changed");
    }

    pub(crate) fn assert_bytes(&self, job: &Job) {
        let sent = self.sender.pool.read(&job.source_extents(&job.whole()));
        let landed = self.receiver.pool.read(&job.destination_extents(&job.whole()));
        assert!(sent == landed, "bytes differ");
    }
}
