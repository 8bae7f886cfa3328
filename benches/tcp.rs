//! Pages of 32 and 2 KiB over loopback TCP against a plain copy through one socket, in one run.
//!
//! `cargo bench --bench tcp` prints the ratio of each setting to the plain copy beside it; only ratios
//! mean anything on another machine.
#![expect(clippy::unwrap_used, reason = "a failed measurement ends")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::cast_precision_loss, reason = "rates are printed with three digits")]

use kvferry::layout::{Admission, Extent, PageList, Pairing, Piece, Pieces, PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::transport::tcp::{Integrity, TcpConfig, TcpTransport};
use kvferry::transport::{Event, Transport, TransportError, Wait, Write as Post};
use kvferry::{Attempt, Generation, GrantId, GroupId, LinkId, OpId, RegionId, Room};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes moved by one measurement.
const BYTES: u64 = 64 << 20;
const REGIONS: u32 = 8;
const PAGE_TOKENS: u32 = 16;
const ROUNDS: usize = 15;

struct Side {
    transport: TcpTransport,
    layout: Arc<PoolLayout>,
    events: Vec<Event>,
}

struct Setting {
    name: &'static str,
    page: u64,
    write: u64,
    config: fn(TcpConfig) -> TcpConfig,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "32 KiB pages, defaults", page: 32 << 10, write: 512 << 10, config: |c| c },
    Setting { name: "  1 lane", page: 32 << 10, write: 512 << 10, config: |c| c.lanes(1) },
    Setting { name: "  4 lanes", page: 32 << 10, write: 512 << 10, config: |c| c.lanes(4) },
    Setting {
        name: "  no checksum",
        page: 32 << 10,
        write: 512 << 10,
        config: |c| c.integrity(Integrity::Off),
    },
    Setting { name: "  64 vectors", page: 32 << 10, write: 512 << 10, config: |c| c.vectors(64) },
    Setting { name: "  2 vectors", page: 32 << 10, write: 512 << 10, config: |c| c.vectors(2) },
    Setting { name: "  writes of 128 KiB", page: 32 << 10, write: 128 << 10, config: |c| c },
    Setting { name: "  writes of 2 MiB", page: 32 << 10, write: 2 << 20, config: |c| c },
    Setting { name: "  window of 4 MiB", page: 32 << 10, write: 512 << 10, config: |c| c.window(4 << 20) },
    Setting {
        name: "  the kernel's congestion control",
        page: 32 << 10,
        write: 512 << 10,
        config: |c| c.congestion(None),
    },
    Setting {
        name: "  1 MiB socket buffers",
        page: 32 << 10,
        write: 512 << 10,
        config: |c| c.socket_buffers(1 << 20),
    },
    Setting { name: "2 KiB pages, defaults", page: 2 << 10, write: 512 << 10, config: |c| c },
    Setting { name: "  64 vectors", page: 2 << 10, write: 512 << 10, config: |c| c.vectors(64) },
    Setting {
        name: "  no checksum",
        page: 2 << 10,
        write: 512 << 10,
        config: |c| c.integrity(Integrity::Off),
    },
];

fn main() {
    let mut links: Vec<_> = SETTINGS.iter().map(connect).collect();
    let mut rates = vec![Vec::new(); SETTINGS.len()];
    let mut plain = Vec::new();
    // In turn, so that whatever else the machine does meets all of them. The first round touches fresh memory.
    for round in 0..=ROUNDS {
        plain.push(plain_copy());
        for ((setting, link), rates) in SETTINGS.iter().zip(&mut links).zip(&mut rates) {
            let (sender, receiver, out, back) = link;
            rates.push(transfer(setting, (sender, *out), (receiver, *back), round));
        }
    }
    let plain = median(&plain[1..]);
    println!("{:<36} {:>8} {:>7}", "", "GB/s", "ratio");
    println!("{:<36} {plain:>8.2} {:>7.2}", "plain copy, 1 connection", 1.0);
    for (setting, rates) in SETTINGS.iter().zip(&rates) {
        let ours = median(&rates[1..]);
        println!("{:<36} {ours:>8.2} {:>7.2}", setting.name, ours / plain);
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn connect(setting: &Setting) -> (Side, Side, LinkId, LinkId) {
    let (mut sender, mut receiver) = (side(setting), side(setting));
    let link = sender.transport.connect(&receiver.transport.local_address()).unwrap();
    let mut back = None;
    while sender.events.is_empty() || back.is_none() {
        sender.turn();
        receiver.turn();
        back = receiver.events.iter().find_map(|event| match event {
            Event::Connected { link } => Some(*link),
            _ => None,
        });
    }
    (sender, receiver, link, back.unwrap())
}

fn side(setting: &Setting) -> Side {
    let mut transport = TcpTransport::new((setting.config)(TcpConfig::new())).unwrap();
    let region_bytes = BYTES / u64::from(REGIONS);
    let mut layout = PoolLayout::new();
    let items = u32::try_from(region_bytes / setting.page).unwrap();
    let group = layout.paged("kv", PAGE_TOKENS, items);
    for number in 0..REGIONS {
        let buffer = HostBuffer::zeroed(region_bytes).unwrap();
        buffer.fill(u8::try_from(number).unwrap());
        transport.register(&buffer.region(RegionId(number))).unwrap();
        layout.push(PoolEntry::new(group, Role::Key, RegionId(number), setting.page).layer(number));
    }
    Side { transport, layout: Arc::new(layout), events: Vec::new() }
}

impl Side {
    fn turn(&mut self) -> usize {
        self.transport.progress(&mut self.events)
    }

    fn sleep(&mut self) {
        if self.transport.prepare_wait() == Wait::Ready {
            let fd = self.transport.wake_fd().unwrap();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        }
    }
}

/// Moves every page of a pool to another place in the other; returns GB/s.
fn transfer(setting: &Setting, out: (&mut Side, LinkId), back: (&mut Side, LinkId), round: usize) -> f64 {
    let (sender, link) = out;
    let (receiver, back) = back;
    let pairing = Arc::new(Pairing::new(Arc::clone(&sender.layout), Arc::clone(&receiver.layout)).unwrap());
    let items = sender.layout.groups[0].items;
    // Odd steps reach each of a power of two pages once.
    let scattered =
        |step: u32| PageList::new(0, (0..items).map(|page| page.wrapping_mul(step) % items).collect());
    let (from, to) = (scattered(613), scattered(357));
    let tokens = items * PAGE_TOKENS;
    let pages = Arc::from([(GroupId(0), to)]);
    let grant = GrantId { room: Room(round as u64), attempt: Attempt(0), generation: Generation(0) };
    let admission = Arc::new(Admission::new(Arc::clone(&pairing), 0..tokens, pages));
    receiver.transport.admit(back, grant, admission);
    let done = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut landed = 0;
            while landed < BYTES {
                receiver.events.clear();
                if receiver.turn() == 0 {
                    receiver.sleep();
                }
                for event in &receiver.events {
                    if let Event::Landed { bytes, .. } = event {
                        landed += bytes;
                    }
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut pieces = Pieces::new(Piece { pairs: 0..REGIONS, positions: 0..tokens });
        let mut source: Vec<Extent> = Vec::new();
        let (mut next, mut op, mut open) = (pieces.next(&pairing, setting.write), 0, 0);
        while next.is_some() || open > 0 {
            while let Some(piece) = &next {
                source.clear();
                pairing.source_extents(piece, &from, &mut source).unwrap();
                let post =
                    Post { op: OpId(op), grant, piece: piece.clone(), source: &source, destination: &[] };
                match sender.transport.write(link, &post) {
                    Ok(()) => (op, open) = (op + 1, open + 1),
                    Err(TransportError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
                next = pieces.next(&pairing, setting.write);
            }
            sender.events.clear();
            if sender.turn() == 0 {
                sender.sleep();
            }
            open -= sender.events.iter().filter(|event| matches!(event, Event::Settled { .. })).count();
        }
    });
    assert!(done.load(Ordering::Acquire));
    receiver.transport.revoke(back, grant);
    BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// As many bytes through one connection, a megabyte a call; returns GB/s.
fn plain_copy() -> f64 {
    let len = usize::try_from(BYTES).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut back, _) = listener.accept().unwrap();
    for stream in [&out, &back] {
        // As the transport does, where the kernel allows it.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, "cubic");
    }
    let source = vec![1_u8; len];
    let mut target = vec![2_u8; len];
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| source.chunks(1 << 20).for_each(|chunk| out.write_all(chunk).unwrap()));
        target.chunks_mut(1 << 20).for_each(|chunk| back.read_exact(chunk).unwrap());
    });
    BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}
