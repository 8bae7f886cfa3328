//! Shared memory alone: pages taken back, memory that cannot be read, peers that are not ours.

use crate::pair::{End, Factory, Pair, drive, frame, grant, watched};
use crate::pool::{CANARY, Memory, Shape};
use crate::{Shm, ShmRead};
use kvferry::memory::SharedBuffer;
use kvferry::transport::shm::{Private, ShmConfig, ShmTransport};
use kvferry::transport::{Event, Transport, TransportError};
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn end(config: ShmConfig, memory: Memory) -> End {
    End::on(memory, Box::new(ShmTransport::new(config).unwrap()), Shape::SMALL)
}

/// Moves a room over the link, and checks it.
fn works(pair: &mut Pair, room: u64) {
    let job = pair.job(10, 0);
    pair.admit(&job, room);
    pair.receiver.pool.fill(CANARY);
    let settled = pair.sender.settled();
    let posted = pair.post_all(&job, room, 2000);
    pair.settle(settled + posted);
    pair.assert_arrived(&job);
}

fn recalled(end: &End) -> usize {
    end.count(|event| matches!(event, Event::Settled { result: Err(TransportError::Recalled { .. }), .. }))
}

/// The last error with which a link of this end ended.
fn last_error(end: &End) -> Option<&TransportError> {
    end.log.iter().rev().find_map(|event| match event {
        Event::LinkDown { error, .. } => Some(error),
        _ => None,
    })
}

fn pages_are_back_while_the_peer_sleeps<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::LARGE);
    let (given_up, going_on) = (pair.job(60, 0), pair.job(60, 1));
    pair.admit(&given_up, 1);
    pair.admit(&going_on, 2);
    let mut posted = [0, 0];
    for piece in given_up.pieces(1 << 20) {
        pair.sender.post(pair.out, &given_up, 1, posted[0], &piece).unwrap();
        posted[0] += 1;
    }
    pair.sender.transport.progress(&mut pair.sender.log);
    pair.sender.transport.recall(pair.out, grant(1));
    // The receiver has not run: nothing of it was needed.
    drive([&mut pair.sender], |[sender]| sender.settled() == posted[0] as usize);
    assert_eq!(recalled(&pair.sender), posted[0] as usize);
    // The pages are the next owner's, who writes what must not arrive under the old name.
    pair.sender.pool.fill_with_pattern(8);
    for piece in going_on.pieces(1 << 20) {
        pair.post_when_free(&going_on, 2, posted[1], &piece);
        posted[1] += 1;
    }
    pair.drive(|sender, receiver| {
        sender.settled() == (posted[0] + posted[1]) as usize && receiver.landed() == posted[1] as usize
    });
    let of_first = |event: &Event| matches!(event, Event::Landed { grant: id, .. } if *id == grant(1));
    assert_eq!(pair.receiver.count(of_first), 0);
    assert_eq!((recalled(&pair.sender), pair.sender.downs()), (posted[0] as usize, 0));
}

#[test]
fn mapped_pages_are_back_while_the_peer_sleeps() {
    watched("recall", pages_are_back_while_the_peer_sleeps::<Shm>);
}

#[test]
fn read_pages_are_back_while_the_peer_sleeps() {
    watched("recall", pages_are_back_while_the_peer_sleeps::<ShmRead>);
}

/// However far the copies have come.
#[test]
fn nothing_that_was_taken_back_counts() {
    watched("taken back", || {
        for turns in 0..40 {
            let mut pair = Pair::new::<Shm>(Shape::LARGE);
            let job = pair.job(60, turns);
            pair.admit(&job, 1);
            let pieces = job.pieces(1 << 20);
            let before = pair.sender.pool.snapshot();
            for (op, piece) in (0..).zip(&pieces) {
                pair.sender.post(pair.out, &job, 1, op, piece).unwrap();
            }
            for _ in 0..turns {
                pair.sender.transport.progress(&mut pair.sender.log);
                pair.receiver.transport.progress(&mut pair.receiver.log);
            }
            pair.sender.transport.recall(pair.out, grant(1));
            pair.sender.pool.fill(0x11);
            pair.drive(|sender, _| sender.settled() == pieces.len());
            pair.sender.transport.send_control(pair.out, frame(1, b"")).unwrap();
            pair.drive(|_, receiver| receiver.frames().len() == 1);
            // What has landed holds what was there before the recall.
            for event in &pair.receiver.log {
                let Event::Landed { op, .. } = event else { continue };
                let piece = &pieces[op.0 as usize];
                let sent: Vec<u8> = job
                    .source_extents(piece)
                    .iter()
                    .flat_map(|extent| {
                        let start = usize::try_from(extent.offset).unwrap();
                        let len = usize::try_from(extent.len).unwrap();
                        before[extent.region.0 as usize][start..start + len].to_vec()
                    })
                    .collect();
                assert!(sent == pair.receiver.pool.read(&job.destination_extents(piece)), "turn {turns}");
            }
        }
    });
}

#[test]
fn an_ended_link_gives_pages_back_while_the_peer_sleeps() {
    watched("end", || {
        let mut pair = Pair::new::<Shm>(Shape::LARGE);
        let job = pair.job(60, 0);
        pair.admit(&job, 1);
        let posted = job.pieces(1 << 20).len();
        for (op, piece) in (0..).zip(job.pieces(1 << 20)) {
            pair.sender.post(pair.out, &job, 1, op, &piece).unwrap();
        }
        pair.sender.transport.progress(&mut pair.sender.log);
        pair.sender.transport.disconnect(pair.out);
        drive([&mut pair.sender], |[sender]| sender.settled() == posted && sender.downs() == 1);
        pair.sender.pool.fill(0x11);
        drive([&mut pair.receiver], |[receiver]| receiver.downs() == 1);
        assert_eq!(pair.receiver.landed(), 0);
    });
}

#[test]
fn memory_that_cannot_be_read_refuses_the_link_and_says_why() {
    watched("private", || {
        let refusing = || ShmConfig::new().private(Private::Refuse);
        for (theirs, ours) in [(refusing(), ShmConfig::new()), (ShmConfig::new(), refusing())] {
            // Whoever connects wants to read.
            let mut source = end(theirs, Memory::Host);
            let mut reader = end(ours, Memory::Host);
            let link = reader.transport.connect(&source.transport.local_address()).unwrap();
            drive([&mut source, &mut reader], |[_, reader]| reader.downs() == 1);
            let Some(TransportError::Unreachable { detail, .. }) = last_error(&reader) else {
                panic!("{:?}", reader.log);
            };
            assert!(detail.contains("private memory of process"), "{detail}");
            assert!(reader.connected().is_empty() && source.log.is_empty(), "{link:?}: {:?}", source.log);
        }
        // Into private memory there is no need to look.
        let mut pair = Pair::connect(end(refusing(), Memory::Host), end(refusing(), Memory::Shared));
        let back = pair.receiver.transport.connect(&pair.sender.transport.local_address()).unwrap();
        pair.drive(|_, receiver| receiver.downs() == 1);
        assert_eq!((pair.receiver.connected().contains(&back), pair.sender.downs()), (false, 0));
    });
}

#[test]
fn memory_that_comes_later_and_cannot_be_read_ends_the_link() {
    watched("later", || {
        let config = || ShmConfig::new().private(Private::Refuse);
        let (mut reader, mut source) = (end(config(), Memory::Host), end(config(), Memory::Shared));
        reader.transport.connect(&source.transport.local_address()).unwrap();
        drive([&mut reader, &mut source], |[reader, source]| {
            !reader.connected().is_empty() && !source.connected().is_empty()
        });
        let private = kvferry::memory::HostBuffer::zeroed(4096).unwrap();
        source.transport.register(&private.region(kvferry::RegionId(99))).unwrap();
        drive([&mut reader, &mut source], |[reader, source]| reader.downs() == 1 && source.downs() == 1);
        for end in [&reader, &source] {
            assert!(matches!(last_error(end), Some(TransportError::Unreachable { .. })), "{:?}", end.log);
        }
    });
}

#[test]
fn a_write_from_memory_that_the_peer_cannot_read_is_refused() {
    watched("unreadable", || {
        let config = ShmConfig::new().private(Private::Refuse);
        // The end that connects may have memory of any kind.
        let mut pair = Pair::connect(end(config.clone(), Memory::Host), end(config, Memory::Shared));
        let job = pair.job(3, 0);
        pair.admit(&job, 1);
        let refused = pair.sender.post(pair.out, &job, 1, 0, &job.whole());
        assert!(matches!(refused, Err(TransportError::Unreachable { .. })), "{refused:?}");
    });
}

#[test]
fn withdrawn_memory_is_let_go_of_and_the_link_goes_on() {
    watched("withdrawn", || {
        let mut pair = Pair::new::<Shm>(Shape::SMALL);
        works(&mut pair, 1);
        let extra = SharedBuffer::zeroed(1 << 16).unwrap();
        pair.sender.transport.register(&extra.region(kvferry::RegionId(50))).unwrap();
        pair.sender.transport.key_for(pair.out, kvferry::RegionId(50));
        pair.sender.transport.deregister(kvferry::RegionId(50));
        works(&mut pair, 2);
    });
}

#[test]
fn other_hosts_and_names_of_nobody_are_unreachable_at_once() {
    watched("elsewhere", || {
        let mut reader = end(ShmConfig::new(), Memory::Shared);
        let mut elsewhere = reader.transport.local_address().to_vec();
        elsewhere[5] ^= 1;
        let nobody = ShmTransport::address_of("nobody has this name").unwrap();
        for (number, (address, word)) in
            [(elsewhere, "another host"), (nobody.into(), "nobody")].iter().enumerate()
        {
            reader.transport.connect(address).unwrap();
            drive([&mut reader], |[reader]| reader.downs() == number + 1);
            let Some(TransportError::Unreachable { detail, .. }) = last_error(&reader) else {
                panic!("{:?}", reader.log);
            };
            assert!(detail.contains(word), "{detail}");
        }
    });
}

#[test]
fn processes_of_other_users_are_turned_away_by_either_side() {
    watched("users", || {
        let strict = || ShmConfig::new().users([u32::MAX - 1]);
        for (theirs, ours) in [(strict(), ShmConfig::new()), (ShmConfig::new(), strict())] {
            let mut source = end(theirs, Memory::Shared);
            let mut reader = end(ours, Memory::Shared);
            reader.transport.connect(&source.transport.local_address()).unwrap();
            drive([&mut source, &mut reader], |[_, reader]| reader.downs() == 1);
            assert!(reader.connected().is_empty() && source.log.is_empty());
        }
        let mut pair = Pair::connect(
            end(ShmConfig::new().any_user(), Memory::Shared),
            end(ShmConfig::new().users([rustix::process::geteuid().as_raw()]), Memory::Shared),
        );
        works(&mut pair, 1);
    });
}

#[test]
fn a_name_in_use_is_an_error_and_free_once_its_transport_is_gone() {
    let name = "the name of a test";
    let first = ShmTransport::new(ShmConfig::new().name(name)).unwrap();
    assert!(ShmTransport::new(ShmConfig::new().name(name)).is_err());
    assert_eq!(first.local_address(), ShmTransport::address_of(name).unwrap());
    let names = || std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(names().contains(name));
    drop(first);
    assert!(!names().contains(name), "something is left behind");
    ShmTransport::new(ShmConfig::new().name(name)).unwrap();
}

/// A peer made by hand.
struct Stranger(UnixStream);

impl Stranger {
    fn connect(address: &[u8]) -> Self {
        let name = [b"kvferry-", &address[17..]].concat();
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        net::connect(&socket, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
        Self(socket.into())
    }

    fn send(&mut self, kind: u8, body: &[u8], fd: Option<BorrowedFd<'_>>) {
        let mut bytes = b"KVFS\x01".to_vec();
        bytes.extend([kind, 0, 0]);
        bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = net::SendAncillaryBuffer::new(&mut space);
        let rights: Vec<_> = fd.into_iter().collect();
        if !rights.is_empty() {
            beside.push(net::SendAncillaryMessage::ScmRights(&rights));
        }
        net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL).unwrap();
    }

    /// Does all that makes a link; the leases are good for any write.
    fn greet(&mut self, receiver: &mut End) {
        let leases = leases(7);
        self.send(1, &hello(7), Some(leases.as_fd()));
        self.send(2, &[0; 4], None);
        let before = receiver.connected().len();
        drive([receiver], |[receiver]| receiver.connected().len() > before);
    }

    /// Drives the end until it has closed this connection.
    fn until_closed(&self, end: &mut End) {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        loop {
            match (&self.0).read(&mut bytes) {
                Ok(0) => return,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                _ => {}
            }
            end.transport.progress(&mut end.log);
            std::thread::yield_now();
        }
    }
}

fn leases(token: u8) -> SharedBuffer {
    let leases = SharedBuffer::zeroed(LEASE_BYTES).unwrap();
    leases.write_at(0, &[token]);
    leases
}

fn hello(token: u8) -> Vec<u8> {
    [&[token][..], &[0; 15], &4096_u64.to_le_bytes(), &4096_u32.to_le_bytes(), &[0; 4]].concat()
}

/// A write of `bytes` for the first page of `grant(1)`, from these extents.
fn post(bytes: u32, extents: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut body = Vec::new();
    for number in [1_u64, 0, 1] {
        body.extend(number.to_le_bytes());
    }
    for number in [0, 0, 1, 0, 4, bytes, 0, u32::try_from(extents.len()).unwrap(), 0, 0] {
        body.extend(number.to_le_bytes());
    }
    for (offset, region, len) in extents {
        body.extend(offset.to_le_bytes());
        body.extend(region.to_le_bytes());
        body.extend(len.to_le_bytes());
    }
    body
}

fn export(region: u32, kind: u32, at: u64, len: u64) -> Vec<u8> {
    [&region.to_le_bytes()[..], &kind.to_le_bytes(), &at.to_le_bytes(), &len.to_le_bytes()].concat()
}

const LEASE_BYTES: u64 = (4096 + 2) * 8;
const PAGE: u32 = 4 * 37;

#[test]
fn x02_garbage_of_any_length_changes_nothing_for_a_live_link() {
    watched("garbage", || {
        let mut pair = Pair::new::<Shm>(Shape::SMALL);
        let address = pair.receiver.transport.local_address();
        for len in 0..=60 {
            let mut wrong: Vec<u8> =
                b"KVFS\x01\x01\0\0\x20\0\0\0\0\0\0\0".iter().copied().cycle().take(len).collect();
            if let Some(last) = wrong.last_mut() {
                *last ^= 0x55;
            }
            for bytes in [vec![0; len], vec![0xff; len], wrong] {
                let mut stranger = Stranger::connect(&address);
                stranger.0.write_all(&bytes).unwrap();
                stranger.0.shutdown(std::net::Shutdown::Write).unwrap();
                stranger.until_closed(&mut pair.receiver);
            }
        }
        works(&mut pair, 1);
        assert_eq!((pair.sender.downs(), pair.receiver.downs(), pair.receiver.connected().len()), (0, 0, 1));
    });
}

#[test]
fn x02_a_greeting_that_is_not_one_is_turned_away() {
    watched("greeting", || {
        let mut pair = Pair::new::<Shm>(Shape::SMALL);
        let address = pair.receiver.transport.local_address();
        let growing = || -> OwnedFd {
            let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, LEASE_BYTES).unwrap();
            fd
        };
        let small = SharedBuffer::zeroed(4096).unwrap();
        let tries: [&dyn Fn(&mut Stranger); 7] = [
            &|stranger| stranger.send(1, &hello(7), None),
            &|stranger| stranger.send(1, &hello(8), Some(leases(7).as_fd())),
            &|stranger| stranger.send(1, &hello(0), Some(growing().as_fd())),
            &|stranger| stranger.send(1, &hello(0), Some(small.as_fd())),
            &|stranger| stranger.send(2, &[0; 4], None),
            &|stranger| stranger.send(7, &post(0, &[]), None),
            &|stranger| stranger.0.write_all(&frame(1, b"hello")).unwrap(),
        ];
        for each in tries {
            let mut stranger = Stranger::connect(&address);
            each(&mut stranger);
            stranger.until_closed(&mut pair.receiver);
        }
        works(&mut pair, 1);
        assert_eq!((pair.receiver.downs(), pair.receiver.connected().len()), (0, 1));
    });
}

#[test]
fn x02_a_peer_that_says_what_cannot_be_loses_its_link_alone() {
    watched("hostile", || {
        let mut pair = Pair::new::<Shm>(Shape::SMALL);
        let address = pair.receiver.transport.local_address();
        let job = pair.job(1, 0);
        let good = SharedBuffer::zeroed(1 << 16).unwrap();
        let open = || -> OwnedFd {
            let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
            fd
        };
        let share = |stranger: &mut Stranger, at, len| {
            stranger.send(5, &export(3, 1, at, len), Some(good.as_fd()));
        };
        let tries: [&dyn Fn(&mut Stranger); 16] = [
            // Memory that is not there, or not for sure.
            &|stranger| share(stranger, 0, (1 << 16) + 1),
            &|stranger| share(stranger, u64::MAX, 4096),
            &|stranger| share(stranger, 1, u64::MAX),
            &|stranger| stranger.send(5, &export(3, 1, 0, 1 << 16), Some(open().as_fd())),
            &|stranger| stranger.send(5, &export(3, 1, 0, 1 << 16), None),
            &|stranger| stranger.send(5, &export(3, 2, 4096, 1 << 16), None),
            &|stranger| stranger.send(5, &export(3, 9, 0, 1 << 16), None),
            // Writes from elsewhere, or of another size than they say.
            &|stranger| stranger.send(7, &post(PAGE, &[(0, 3, PAGE)]), None),
            &|stranger| {
                share(stranger, 0, 4096);
                stranger.send(7, &post(PAGE, &[(4096 - 100, 3, PAGE)]), None);
            },
            &|stranger| {
                share(stranger, 0, 1 << 16);
                stranger.send(7, &post(PAGE, &[(u64::MAX, 3, PAGE)]), None);
            },
            &|stranger| {
                share(stranger, 0, 1 << 16);
                stranger.send(7, &post(PAGE, &[(0, 3, PAGE - 1)]), None);
            },
            &|stranger| stranger.send(7, &post(PAGE, &[])[..60], None),
            // What nobody was asked for.
            &|stranger| stranger.send(8, &1_u64.to_le_bytes(), None),
            &|stranger| stranger.send(1, &hello(7), Some(good.as_fd())),
            &|stranger| stranger.send(99, &[], None),
            &|stranger| stranger.0.write_all(&frame(3, b"ping before hello")).unwrap(),
        ];
        for (number, each) in tries.iter().enumerate() {
            let mut stranger = Stranger::connect(&address);
            stranger.greet(&mut pair.receiver);
            let link = *pair.receiver.connected().last().unwrap();
            pair.receiver.pool.fill(CANARY);
            pair.receiver.transport.admit(link, grant(1), job.admission());
            each(&mut stranger);
            drive([&mut pair.receiver], |[receiver]| receiver.downs() == number + 1);
            let error = last_error(&pair.receiver).unwrap();
            let is_told = matches!(error, TransportError::Format { .. } | TransportError::Unreachable { .. });
            assert!(is_told, "try {number}: {error}");
            assert_eq!((pair.receiver.landed(), pair.receiver.pool.spoiled_outside(&[])), (0, 0), "{number}");
        }
        works(&mut pair, 1);
        assert_eq!(pair.sender.downs(), 0);
    });
}

#[test]
fn writes_of_a_stranger_go_where_its_grant_lets_them_and_nowhere_else() {
    watched("stranger", || {
        let mut pair = Pair::new::<Shm>(Shape::SMALL);
        let mut stranger = Stranger::connect(&pair.receiver.transport.local_address());
        stranger.greet(&mut pair.receiver);
        let link = *pair.receiver.connected().last().unwrap();
        let job = pair.job(1, 0);
        pair.receiver.transport.admit(link, grant(1), job.admission());
        let memory = SharedBuffer::zeroed(1 << 16).unwrap();
        memory.fill(0x77);
        stranger.send(5, &export(3, 1, 0, 1 << 16), Some(memory.as_fd()));
        // Taken back before it came: nothing of it counts.
        let mut stale = post(PAGE, &[(0, 3, PAGE)]);
        stale[56] = 1;
        stranger.send(7, &stale, None);
        stranger.send(7, &post(PAGE, &[(100, 3, 8), (5, 3, PAGE - 8)]), None);
        drive([&mut pair.receiver], |[receiver]| receiver.landed() == 1);
        let first = kvferry::layout::Piece { pairs: 0..1, positions: 0..4 };
        let written = job.destination_extents(&first);
        assert!(pair.receiver.pool.read(&written).iter().all(|byte| *byte == 0x77));
        assert_eq!(pair.receiver.pool.spoiled_outside(&written), 0);
    });
}

#[test]
fn connections_without_a_greeting_are_limited_in_number_and_time() {
    watched("arrivals", || {
        let config = ShmConfig::new().arrivals(8).hello(Duration::from_millis(200));
        let receiver = end(config, Memory::Shared);
        let address = receiver.transport.local_address();
        let idle: Vec<Stranger> = (0..30).map(|_| Stranger::connect(&address)).collect();
        // A peer of ours gets through all the same.
        let mut pair = Pair::connect(end(ShmConfig::new(), Memory::Shared), receiver);
        works(&mut pair, 1);
        for stranger in &idle {
            stranger.until_closed(&mut pair.receiver);
        }
        works(&mut pair, 2);
    });
}
