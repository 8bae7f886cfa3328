//! A TCP transport whose peer says anything at all, on all connections of a link.

use super::draw::Draw;
use super::{data_header, sealed};
use kvferry::layout::{Admission, PageList, Pairing, PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::transport::{Event, Transport, Wait};
use kvferry::wire::{DataHeader, crc32c};
use kvferry::{Attempt, Generation, GrantId, GroupId, LinkId, OpId, RegionId, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The transport under test, kept from one input to the next, and what its peers may fill.
struct Bed {
    transport: TcpTransport,
    place: SocketAddr,
    memory: HostBuffer,
    pairing: Arc<Pairing>,
    events: Vec<Event>,
    nonce: u128,
}

/// Draws what a peer says, and checks what comes of it.
pub(crate) fn run(input: &[u8]) {
    static BED: Mutex<Option<Bed>> = Mutex::new(None);
    let mut bed = BED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    bed.get_or_insert_with(Bed::new).play(&mut Draw::new(input));
}

impl Bed {
    fn new() -> Self {
        // Ends that wait for a tick do not wait long; what greets does so before it is looked at.
        let config = TcpConfig::new().lanes(1).hello(Duration::from_millis(400));
        let mut transport = TcpTransport::new(config).expect("a free port");
        let [4, a, b, c, d, low, high] = transport.local_address()[..] else { panic!("an IPv4 address") };
        let memory = HostBuffer::zeroed(PAGES * PAGE_BYTES).expect("a little memory");
        transport.register(&memory.region(RegionId(0))).expect("host memory");
        let pool = || {
            let mut layout = PoolLayout::new();
            let kv = layout.paged("kv", PAGE_TOKENS, 8);
            layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), PAGE_BYTES));
            Arc::new(layout)
        };
        Self {
            transport,
            place: ([a, b, c, d], u16::from_le_bytes([low, high])).into(),
            memory,
            pairing: Arc::new(Pairing::new(pool(), pool()).expect("equal pools")),
            events: Vec::new(),
            nonce: 0,
        }
    }

    fn play(&mut self, draw: &mut Draw<'_>) {
        if draw.below(8) == 0 {
            return self.stranger(draw);
        }
        self.memory.fill(CANARY);
        let (mut control, mut lane, link) = self.link();
        let grant = GrantId { room: Room(7), attempt: Attempt(0), generation: Generation(1) };
        let lent: Arc<[_]> = [(GroupId(0), PageList::new(0, LENT.to_vec()))].into();
        let tokens = 0..PAGE_TOKENS * 3;
        let admission = Admission::new(self.pairing.clone(), tokens, lent);
        self.transport.admit(link, grant, Arc::new(admission));
        let (mut said, mut revokes) = (Vec::new(), 0);
        for _ in 0..32 {
            if draw.is_empty() {
                break;
            }
            match draw.below(8) {
                0 => say(&mut control, &raw(draw), Some(&mut said)),
                1 | 2 => {
                    let kind = draw.byte() % 48;
                    let body = raw(draw);
                    say(&mut control, &sealed(kind, &body), Some(&mut said));
                }
                3 => say(&mut lane, &raw(draw), None),
                4 => say(&mut lane, &note(draw), None),
                5 if draw.below(4) == 0 => {
                    revokes += 1;
                    self.transport.revoke(link, grant);
                }
                _ => say(&mut lane, &write(draw, grant), None),
            }
        }
        // The peer closes, or only says that it has said all.
        if draw.yes() {
            drop((control, lane));
        } else {
            let ended = [&control, &lane].map(|stream| stream.shutdown(Shutdown::Write));
            drop(ended);
            self.until(|events| events.iter().any(|event| is_down(event, link)));
        }
        self.until(|events| {
            events.iter().any(|event| is_down(event, link))
                && events.iter().filter(|event| matches!(event, Event::Revoked { .. })).count() == revokes
        });
        self.check(link, grant, &said);
    }

    /// A connection that does not become part of a link.
    fn stranger(&mut self, draw: &mut Draw<'_>) {
        let mut stream = TcpStream::connect(self.place).expect("a listener");
        let mut bytes = raw(draw);
        if draw.yes() && bytes.len() >= 32 {
            bytes[..5].copy_from_slice(b"KVFT\x01");
            let sum = crc32c(&bytes[..28]);
            bytes[28..32].copy_from_slice(&sum.to_le_bytes());
            bytes[6..8].copy_from_slice(&[0, 2]); // never whole
        }
        say(&mut stream, &bytes, None);
        let _ = stream.shutdown(Shutdown::Write);
        stream.set_nonblocking(true).expect("a connection");
        let mut answer = [0; 64];
        loop {
            match stream.read(&mut answer) {
                Ok(0) => break,
                Ok(count) => panic!("a stranger is answered with {count} bytes"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.progress(),
                Err(_) => break,
            }
        }
        assert!(self.events.is_empty(), "{:?}", self.events);
    }

    /// Opens a link of one lane by hand.
    fn link(&mut self) -> (TcpStream, TcpStream, LinkId) {
        self.nonce += 1;
        let mut streams = [(0, 1), (1, 1)].map(|(role, lanes)| {
            let mut stream = TcpStream::connect(self.place).expect("a listener");
            let mut hello = b"KVFT\x01".to_vec();
            hello.extend([role, 0, lanes]);
            hello.extend(self.nonce.to_le_bytes());
            hello.extend([0; 4]);
            hello.extend(crc32c(&hello).to_le_bytes());
            say(&mut stream, &hello, None);
            stream
        });
        self.until(|events| !events.is_empty());
        let Some(Event::Connected { link }) = self.events.pop() else { panic!("{:?}", self.events) };
        let mut answer = [0; 32];
        streams[0].read_exact(&mut answer).expect("an answer");
        let [control, lane] = streams;
        (control, lane, link)
    }

    fn until(&mut self, done: impl Fn(&[Event]) -> bool) {
        while !done(&self.events) {
            self.progress();
        }
    }

    /// Progress, or sleep until some can be made.
    fn progress(&mut self) {
        if self.transport.progress(&mut self.events) > 0 || self.transport.prepare_wait() == Wait::Busy {
            return;
        }
        let fd = self.transport.wake_fd().expect("a descriptor");
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
        assert_ne!(woken.ok(), Some(0), "nothing happens any more: {:?}", self.events);
    }

    fn check(&mut self, link: LinkId, grant: GrantId, said: &[u8]) {
        let (mut heard, mut landed) = (Vec::new(), BTreeSet::new());
        for event in self.events.drain(..) {
            match event {
                Event::Control { link: from, frame } => {
                    assert_eq!(from, link);
                    heard.extend_from_slice(&frame);
                }
                Event::Landed { grant: of, op, .. } => {
                    assert_eq!(of, grant, "a write under a grant that nobody gave");
                    assert!(landed.insert(op), "{op:?} landed twice");
                }
                Event::LinkDown { .. } | Event::Refused { .. } | Event::Revoked { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(said.starts_with(&heard), "frames that nobody sent: {heard:x?} of {said:x?}");
        let bytes = self.memory.to_vec(0, usize::try_from(self.memory.len()).expect("little"));
        for (page, bytes) in (0..).zip(bytes.chunks_exact(16)) {
            let is_kept = LENT.contains(&page) || bytes.iter().all(|&byte| byte == CANARY);
            assert!(is_kept, "page {page}, which was not lent, was written to");
        }
    }
}

fn is_down(event: &Event, wanted: LinkId) -> bool {
    matches!(event, Event::LinkDown { link, .. } if *link == wanted)
}

/// Says it, unless the other end has closed the connection.
fn say(stream: &mut TcpStream, bytes: &[u8], said: Option<&mut Vec<u8>>) {
    if let Some(said) = said {
        said.extend_from_slice(bytes);
    }
    let _ = stream.write_all(bytes);
}

fn raw(draw: &mut Draw<'_>) -> Vec<u8> {
    draw.list(100, Draw::byte)
}

fn note(draw: &mut Draw<'_>) -> Vec<u8> {
    let mut note = b"KVFN\x01".to_vec();
    note.extend([draw.below(8), 0, 0]);
    for _ in 0..7 {
        note.extend(draw.u64().to_le_bytes());
    }
    note.extend([0; 4]);
    note.extend(crc32c(&note).to_le_bytes());
    note
}

/// A data frame, most of it right.
fn write(draw: &mut Draw<'_>, grant: GrantId) -> Vec<u8> {
    let mut head = [0; DataHeader::BYTES];
    data_header::right(&mut head);
    let mut header = DataHeader::decode(&head).expect("zeros are a write of nothing");
    header.grant = grant;
    if draw.below(8) == 0 {
        header.grant.generation = Generation(draw.u64());
    }
    header.op = OpId(if draw.below(8) == 0 { draw.u32() } else { draw.below(4).into() });
    header.piece.pairs = if draw.below(8) == 0 { draw.range() } else { 0..1 };
    header.piece.positions = match draw.below(8) {
        0 => draw.range(),
        1 => 0..PAGE_TOKENS * 3,
        _ => 0..PAGE_TOKENS,
    };
    let piece = u64::from(header.piece.positions.end.saturating_sub(header.piece.positions.start));
    let bytes = if draw.below(8) == 0 { draw.u32() } else { u32::try_from(piece * 4).unwrap_or(u32::MAX) };
    header.payload_bytes = bytes;
    let payload = vec![draw.byte(); usize::try_from(bytes).unwrap_or(0).min(256)];
    let damage = u32::from(draw.below(8) == 0);
    header.payload_crc = draw.yes().then(|| crc32c(&payload) ^ damage);
    [&header.encode()[..], &payload].concat()
}

/// Tokens of a page, 4 bytes each.
const PAGE_TOKENS: u32 = 4;
const PAGE_BYTES: u64 = 16; // as `check` knows
const PAGES: u64 = 8;
const LENT: [u32; 3] = [2, 5, 3];
const CANARY: u8 = 0xc7;
