//! TCP alone: bytes that no peer of ours would send, limits, addresses, ports.

use crate::Tcp;
use crate::pair::{End, Factory, Pair, drive, frame, watched};
use crate::pool::Shape;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::transport::{Event, Transport, TransportError, Wait};
use kvferry::wire::{Crc32c, crc32c};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Where a transport of this file listens: an IPv4 address and a port.
fn place(transport: &dyn Transport) -> SocketAddr {
    let address = transport.local_address();
    let [4, a, b, c, d, low, high] = address[..] else { panic!("{address:?}") };
    (Ipv4Addr::new(a, b, c, d), u16::from_le_bytes([low, high])).into()
}

fn greeting(role: u8, lane: u8, lanes: u8, nonce: u128) -> Vec<u8> {
    let mut bytes = b"KVFT\x01".to_vec();
    bytes.extend([role, lane, lanes]);
    bytes.extend(nonce.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

/// Moves a room over the link, and checks it.
fn works(pair: &mut Pair, room: u64) {
    let job = pair.job(10, 0);
    pair.admit(&job, room);
    pair.receiver.pool.fill(crate::pool::CANARY);
    let settled = pair.sender.settled();
    let posted = pair.post_all(&job, room, 2000);
    pair.settle(settled + posted);
    pair.assert_arrived(&job);
}

/// Drives the pair while a stranger waits for its connection to be closed.
fn until_closed(pair: &mut Pair, stranger: &TcpStream) {
    stranger.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match (&*stranger).read(&mut bytes) {
            Ok(0) => return,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            _ => {}
        }
        pair.receiver.transport.progress(&mut pair.receiver.log);
        std::thread::yield_now();
    }
}

#[test]
fn garbage_of_any_length_changes_nothing_for_a_live_link() {
    watched("garbage", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let port = place(&*pair.receiver.transport);
        let good = greeting(0, 0, 2, 77);
        for len in 0..=80 {
            let mut wrong: Vec<u8> = good.iter().copied().cycle().take(len).collect();
            if let Some(last) = wrong.last_mut() {
                *last ^= 0x55;
            }
            for bytes in [vec![0; len], vec![0xff; len], wrong] {
                let mut stranger = TcpStream::connect(port).unwrap();
                stranger.write_all(&bytes).unwrap();
                stranger.shutdown(std::net::Shutdown::Write).unwrap();
                until_closed(&mut pair, &stranger);
            }
        }
        works(&mut pair, 1);
        assert_eq!((pair.sender.downs(), pair.receiver.downs(), pair.receiver.connected().len()), (0, 0, 1));
    });
}

/// Opens a link of one lane by hand: control connection and lane.
fn open_by_hand(pair: &mut Pair) -> (TcpStream, TcpStream) {
    let port = place(&*pair.receiver.transport);
    let before = pair.receiver.connected().len();
    let (mut control, mut lane) = (TcpStream::connect(port).unwrap(), TcpStream::connect(port).unwrap());
    let nonce = 1000 + before as u128;
    // The lane first: any order will do.
    lane.write_all(&greeting(1, 0, 1, nonce)).unwrap();
    control.write_all(&greeting(0, 0, 1, nonce)).unwrap();
    drive([&mut pair.receiver], |[receiver]| receiver.connected().len() > before);
    let mut answer = [0; 32];
    control.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], greeting(2, 0, 1, nonce));
    (control, lane)
}

#[test]
fn a_peer_that_breaks_the_format_loses_its_link_alone() {
    watched("format", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let mut huge_hello = frame(1, b"").to_vec();
        huge_hello[8..12].copy_from_slice(&(65 * 1024_u32).to_le_bytes());
        let mut huge_later = frame(3, b"").to_vec();
        huge_later[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let controls = [
            b"no frame at all, yet long enough".to_vec(),
            frame(3, b"ping before hello").to_vec(),
            huge_hello,
            [&frame(1, b"hello")[..], &huge_later].concat(),
            frame(200, b"").to_vec(),
        ];
        let mut head = frame(64, &[0; 56]).to_vec();
        head[70] = 9;
        let mut huge_payload = frame(64, &[&[0; 44][..], &u32::MAX.to_le_bytes(), &[0; 8]].concat()).to_vec();
        // Made anew, since the frame's checksum covers it: a payload of 4 GiB.
        let sum = Crc32c::new().update(&huge_payload[..12]).update(&huge_payload[16..]).finish();
        huge_payload[12..16].copy_from_slice(&sum.to_le_bytes());
        let note = [&b"KVFN\x01\0\0\0"[..], &5_u64.to_le_bytes(), &[0; 52]].concat();
        let note = [&note[..], &crc32c(&note).to_le_bytes()].concat();
        let lanes = [vec![0; 72], head, huge_payload, note, b"KVFN".repeat(18)];
        let cases = controls
            .into_iter()
            .map(|bytes| (true, bytes))
            .chain(lanes.into_iter().map(|bytes| (false, bytes)));
        for (number, (on_control, bytes)) in cases.enumerate() {
            let (mut control, mut lane) = open_by_hand(&mut pair);
            if on_control { &mut control } else { &mut lane }.write_all(&bytes).unwrap();
            // Its end is not waited for: the stranger keeps its connections open and silent.
            drive([&mut pair.receiver], |[receiver]| receiver.downs() == number + 1);
            let last = pair.receiver.log.iter().rev().find(|event| matches!(event, Event::LinkDown { .. }));
            let is_format =
                matches!(last, Some(Event::LinkDown { error: TransportError::Format { .. }, .. }));
            assert!(is_format, "case {number}: {last:?}");
        }
        works(&mut pair, 1);
        assert_eq!(pair.sender.downs(), 0);
    });
}

#[test]
fn a_frame_cut_at_any_byte_ends_only_its_own_link() {
    watched("cut", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let whole = [&frame(1, b"hello")[..], &frame(3, b"ping")].concat();
        for len in 0..whole.len() {
            let (mut control, lane) = open_by_hand(&mut pair);
            control.write_all(&whole[..len]).unwrap();
            drop((control, lane));
            drive([&mut pair.receiver], |[receiver]| receiver.downs() == len + 1);
        }
        works(&mut pair, 1);
    });
}

#[test]
fn connections_without_a_greeting_are_limited_in_number_and_time() {
    watched("arrivals", || {
        let config = TcpConfig::new().arrivals(8).hello(Duration::from_millis(200));
        let receiver = End::new(Box::new(TcpTransport::new(config).unwrap()), Shape::SMALL);
        let port = place(&*receiver.transport);
        let idle: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(port).unwrap()).collect();
        let mut half = TcpStream::connect(port).unwrap();
        half.write_all(&greeting(0, 0, 2, 5)).unwrap();
        // A peer of ours gets through all the same.
        let mut pair = Pair::connect(End::new(Tcp::new().transport(), Shape::SMALL), receiver);
        works(&mut pair, 1);
        for stranger in idle.iter().chain([&half]) {
            until_closed(&mut pair, stranger);
        }
        works(&mut pair, 2);
    });
}

#[test]
fn a_listener_that_never_answers_ends_the_link_in_time() {
    watched("silent", || {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let config = TcpConfig::new().hello(Duration::from_millis(100));
        let mut end = End::new(Box::new(TcpTransport::new(config).unwrap()), Shape::SMALL);
        let port = silent.local_addr().unwrap().port().to_le_bytes();
        let link = end.transport.connect(&[4, 127, 0, 0, 1, port[0], port[1]]).unwrap();
        drive([&mut end], |[end]| end.downs() == 1);
        let is_late = |event: &Event| matches!(event, Event::LinkDown { link: other, error: TransportError::TimedOut { .. }, .. } if *other == link);
        assert_eq!(end.count(is_late), 1);
        // Nothing ticks any more.
        while end.transport.prepare_wait() == Wait::Busy {
            end.transport.progress(&mut end.log);
        }
    });
}

#[test]
fn names_are_resolved_and_unknown_ones_end_the_link() {
    watched("names", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let port = place(&*pair.receiver.transport).port().to_le_bytes();
        let address = |name: &str| {
            let len = u8::try_from(name.len()).unwrap();
            [&[1, len][..], name.as_bytes(), &port].concat()
        };
        let link = pair.sender.transport.connect(&address("localhost")).unwrap();
        pair.drive(|sender, receiver| sender.connected().contains(&link) && receiver.connected().len() == 2);
        let lost = pair.sender.transport.connect(&address("no-such-host.invalid")).unwrap();
        pair.drive(|sender, _| sender.downs() == 1);
        let is_lost = |event: &Event| matches!(event, Event::LinkDown { link, .. } if *link == lost);
        assert_eq!(pair.sender.count(is_lost), 1);
    });
}

#[test]
fn a_dropped_transport_frees_its_port_at_once() {
    watched("port", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        works(&mut pair, 1);
        let port = place(&*pair.receiver.transport);
        let Pair { mut sender, receiver, .. } = pair;
        drop(receiver);
        let again = TcpTransport::new(TcpConfig::new().bind(port)).unwrap();
        assert_eq!(place(&again), port);
        drive([&mut sender], |[sender]| sender.downs() == 1);
        sender.log.clear();
        let mut pair = Pair::connect(sender, End::new(Box::new(again), Shape::SMALL));
        works(&mut pair, 1);
    });
}

#[test]
fn a_port_in_use_is_named() {
    let first = TcpTransport::new(TcpConfig::new()).unwrap();
    let port = place(&first);
    let error = TcpTransport::new(TcpConfig::new().bind(port)).unwrap_err();
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[test]
fn a_wildcard_is_never_published() {
    let everywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    assert!(matches!(
        TcpTransport::new(TcpConfig::new().bind(everywhere)),
        Err(TransportError::Address { .. })
    ));
    let told = TcpConfig::new().bind(everywhere).advertise("127.0.0.1".parse().unwrap());
    let transport = TcpTransport::new(told).unwrap();
    assert_eq!(place(&transport).ip(), Ipv4Addr::LOCALHOST);
}

#[test]
fn links_over_ipv6_work() {
    // Hosts without IPv6 exist.
    let Ok(receiver) = TcpTransport::new(TcpConfig::new().bind((Ipv6Addr::LOCALHOST, 0).into())) else {
        return;
    };
    watched("ipv6", || {
        let receiver = End::new(Box::new(receiver), Shape::SMALL);
        let mut pair = Pair::connect(End::new(Tcp::new().transport(), Shape::SMALL), receiver);
        works(&mut pair, 1);
    });
}

/// Else a receiver would believe what a peer says of writes that were thrown away.
#[test]
fn a_refusal_comes_before_what_is_said_after_its_settlement() {
    watched("refusal", || {
        for round in 0..20 {
            let mut pair = Pair::new::<Tcp>(Shape::SMALL);
            let (lent, asked) = (pair.job(5, 0), pair.job(10, 0));
            pair.admit(&lent, 1);
            pair.sender.post(pair.out, &asked, 1, round, &asked.whole()).unwrap();
            drive([&mut pair.sender], |[sender]| sender.settled() == 1);
            pair.sender.transport.send_control(pair.out, frame(1, b"done")).unwrap();
            pair.drive(|_, receiver| receiver.frames().len() == 1);
            let told = |event: &&Event| matches!(event, Event::Refused { .. } | Event::Control { .. });
            let first = pair.receiver.log.iter().find(told);
            assert!(matches!(first, Some(Event::Refused { .. })), "{first:?}");
        }
    });
}

#[test]
fn ends_with_different_numbers_of_lanes_work_together() {
    watched("lanes", || {
        for (out, back) in [(1, 3), (5, 1), (16, 2)] {
            let end = |lanes| {
                let transport = TcpTransport::new(TcpConfig::new().lanes(lanes)).unwrap();
                End::new(Box::new(transport), Shape::SMALL)
            };
            let mut pair = Pair::connect(end(out), end(back));
            works(&mut pair, 1);
        }
    });
}

#[cfg(feature = "sim")]
#[test]
fn a_damaged_payload_is_reported_and_may_come_again() {
    watched("damaged", || {
        let sender = TcpTransport::new(TcpConfig::new().damage_write(3)).unwrap();
        let mut pair = Pair::connect(
            End::new(Box::new(sender), Shape::SMALL),
            End::new(Tcp::new().transport(), Shape::SMALL),
        );
        let job = pair.job(20, 0);
        pair.admit(&job, 1);
        let posted = pair.post_all(&job, 1, 1000);
        pair.drive(|sender, _| sender.settled() == posted);
        let damaged = pair.sender.log.iter().find_map(|event| match event {
            Event::Settled { op, result: Err(TransportError::Corrupted), .. } => Some(op.0),
            _ => None,
        });
        let op = damaged.expect("one write was damaged");
        assert_eq!(pair.receiver.landed(), posted - 1);
        pair.sender.post(pair.out, &job, 1, op, &job.pieces(1000)[op as usize]).unwrap();
        pair.drive(|sender, receiver| sender.settled() == posted + 1 && receiver.landed() == posted);
        pair.assert_arrived(&job);
    });
}

#[test]
fn parts_of_a_large_frame_are_signs_of_life() {
    watched("parts", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let (mut control, _lane) = open_by_hand(&mut pair);
        control.write_all(&frame(1, b"hello")).unwrap();
        let large = frame(3, &[7; 100_000]);
        let alive = |end: &End| end.count(|event| matches!(event, Event::Alive { .. }));
        let mut parts = large.chunks(10_000).peekable();
        while let Some(part) = parts.next() {
            let before = alive(&pair.receiver);
            control.write_all(part).unwrap();
            if parts.peek().is_some() {
                drive([&mut pair.receiver], |[receiver]| alive(receiver) > before);
            }
        }
        drive([&mut pair.receiver], |[receiver]| receiver.frames().len() == 2);
        assert_eq!(pair.receiver.frames()[1], large);
    });
}

#[test]
fn a_peer_that_reads_on_is_a_sign_of_life() {
    watched("reading", || {
        let mut pair = Pair::new::<Tcp>(Shape::SMALL);
        let (mut control, _lane) = open_by_hand(&mut pair);
        let link = *pair.receiver.connected().last().unwrap();
        let large = frame(3, &vec![7; 15 << 20]);
        pair.receiver.transport.send_control(link, large.clone()).unwrap();
        let alive = |end: &End| end.count(|event| matches!(event, Event::Alive { .. }));
        pair.receiver.transport.progress(&mut pair.receiver.log);
        let mut read = vec![0; large.len()];
        let reader = std::thread::spawn(move || control.read_exact(&mut read).map(|()| read));
        drive([&mut pair.receiver], |[receiver]| alive(receiver) > 0);
        while !reader.is_finished() {
            pair.receiver.transport.progress(&mut pair.receiver.log);
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap().unwrap() == large);
    });
}
