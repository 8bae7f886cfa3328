//! Every end is reported once, and after it nothing moves.

use crate::pair::{Factory, Pair, drive, frame, grant};
use crate::pool::{CANARY, Shape};
use kvferry::transport::{Event, TransportError, Wait, Write};
use kvferry::{LinkId, OpId};

pub(crate) fn revoke_amid_writes_leaves_the_pages_untouched<F: Factory>() {
    // However far the writes have come when the grant goes.
    for turns in 0..40 {
        let mut pair = Pair::new::<F>(Shape::LARGE);
        let job = pair.job(60, turns);
        pair.admit(&job, 1);
        let mut posted = 0;
        for piece in job.pieces(1 << 20) {
            if pair.sender.post(pair.out, &job, 1, posted, &piece).is_ok() {
                posted += 1;
            }
        }
        for _ in 0..turns {
            pair.sender.transport.progress(&mut pair.sender.log);
            pair.receiver.transport.progress(&mut pair.receiver.log);
        }
        pair.receiver.transport.revoke(pair.back, grant(1));
        // Only the receiver runs: its answer must not need the sender.
        drive([&mut pair.receiver], |[receiver]| receiver.revoked(grant(1)) == 1);
        let landed = pair.receiver.landed();
        pair.receiver.pool.fill(CANARY);
        pair.settle(posted as usize);
        assert_eq!(pair.receiver.pool.spoiled_outside(&[]), 0, "written after the revocation");
        assert_eq!(pair.receiver.landed(), landed, "landed after the revocation");
        assert_eq!(pair.receiver.revoked(grant(1)), 1);
    }
}

pub(crate) fn revoke_is_answered_each_time<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(3, 0);
    pair.admit(&job, 1);
    for room in [1, 1, 2] {
        pair.receiver.transport.revoke(pair.back, grant(room));
    }
    pair.drive(|_, receiver| receiver.revoked(grant(1)) == 2 && receiver.revoked(grant(2)) == 1);
    pair.sender.transport.disconnect(pair.out);
    pair.drive(|sender, receiver| sender.downs() == 1 && receiver.downs() == 1);
    pair.receiver.transport.revoke(pair.back, grant(3));
    pair.receiver.transport.revoke(LinkId::allocate(), grant(4));
    pair.drive(|_, receiver| receiver.revoked(grant(3)) == 1 && receiver.revoked(grant(4)) == 1);
}

pub(crate) fn disconnect_by_the_sender_settles_every_write<F: Factory>() {
    ending::<F>(
        |pair| pair.sender.transport.disconnect(pair.out),
        |error| matches!(error, TransportError::Disconnected { .. }),
    );
}

pub(crate) fn disconnect_by_the_receiver_settles_every_write<F: Factory>() {
    ending::<F>(
        |pair| pair.receiver.transport.disconnect(pair.back),
        |error| matches!(error, TransportError::Closed { .. }),
    );
}

/// Ends a link amid writes, from wherever they have come to.
fn ending<F: Factory>(end: impl Fn(&mut Pair), is_expected: impl Fn(&TransportError) -> bool) {
    for turns in [0, 1, 2, 3, 5, 8, 13, 21] {
        let mut pair = Pair::new::<F>(Shape::LARGE);
        let job = pair.job(100, turns);
        pair.admit(&job, 1);
        let mut posted = 0;
        for piece in job.pieces(1 << 20) {
            if pair.sender.post(pair.out, &job, 1, posted, &piece).is_ok() {
                posted += 1;
            }
        }
        for _ in 0..turns {
            pair.sender.transport.progress(&mut pair.sender.log);
            pair.receiver.transport.progress(&mut pair.receiver.log);
        }
        end(&mut pair);
        // Ending it again changes nothing.
        end(&mut pair);
        pair.drive(|sender, receiver| sender.downs() == 1 && receiver.downs() == 1);
        pair.drive(|sender, _| sender.settled() == posted as usize);
        for event in &pair.sender.log {
            match event {
                Event::LinkDown { error, .. } => assert!(is_expected(error), "{error}"),
                Event::Settled { result: Err(error), .. } => {
                    let is_end =
                        matches!(error, TransportError::Closed { .. } | TransportError::Disconnected { .. });
                    assert!(is_end, "{error}");
                }
                _ => {}
            }
        }
        pair.receiver.transport.revoke(pair.back, grant(1));
        pair.drive(|_, receiver| receiver.revoked(grant(1)) == 1);
        pair.receiver.pool.fill(CANARY);
        assert_eq!(pair.sender.transport.progress(&mut pair.sender.log), 0);
        assert_eq!(pair.receiver.transport.progress(&mut pair.receiver.log), 0);
        assert_eq!(pair.receiver.pool.spoiled_outside(&[]), 0);
    }
}

pub(crate) fn a_dropped_peer_settles_every_write<F: Factory>() {
    for turns in [0, 1, 5, 20] {
        let mut pair = Pair::new::<F>(Shape::LARGE);
        let job = pair.job(100, 0);
        pair.admit(&job, 1);
        let mut posted = 0;
        for piece in job.pieces(1 << 20) {
            if pair.sender.post(pair.out, &job, 1, posted, &piece).is_ok() {
                posted += 1;
            }
        }
        for _ in 0..turns {
            pair.sender.transport.progress(&mut pair.sender.log);
            pair.receiver.transport.progress(&mut pair.receiver.log);
        }
        let Pair { mut sender, receiver, .. } = pair;
        drop(receiver);
        drive([&mut sender], |[sender]| sender.downs() == 1 && sender.settled() == posted as usize);
        assert_eq!(sender.transport.progress(&mut sender.log), 0);
        assert_eq!(sender.transport.prepare_wait(), Wait::Ready);
    }
}

pub(crate) fn last_words_arrive_before_the_end<F: Factory>() {
    for _ in 0..20 {
        let mut pair = Pair::new::<F>(Shape::SMALL);
        pair.sender.transport.send_control(pair.out, frame(1, b"hello")).unwrap();
        pair.sender.transport.send_control(pair.out, frame(5, b"goodbye")).unwrap();
        pair.sender.transport.disconnect(pair.out);
        pair.drive(|_, receiver| receiver.downs() == 1);
        assert_eq!(pair.receiver.frames(), [frame(1, b"hello"), frame(5, b"goodbye")]);
        assert!(matches!(pair.receiver.log.last(), Some(Event::LinkDown { .. })));
    }
}

pub(crate) fn nothing_works_on_an_ended_link<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(2, 0);
    pair.sender.transport.disconnect(pair.out);
    let refused = pair.sender.post(pair.out, &job, 1, 0, &job.whole());
    assert!(matches!(refused, Err(TransportError::NotConnected(_))), "{refused:?}");
    pair.drive(|sender, receiver| sender.downs() == 1 && receiver.downs() == 1);
    let never = LinkId::allocate();
    for link in [pair.out, never] {
        let source = job.source_extents(&job.whole());
        let write =
            Write { op: OpId(0), grant: grant(1), piece: job.whole(), source: &source, destination: &[] };
        let refused = pair.sender.transport.write(link, &write);
        assert!(matches!(refused, Err(TransportError::NotConnected(_))), "{refused:?}");
        let refused = pair.sender.transport.send_control(link, frame(1, b""));
        assert!(matches!(refused, Err(TransportError::NotConnected(_))), "{refused:?}");
        pair.sender.transport.disconnect(link);
        pair.sender.transport.admit(link, grant(1), job.admission());
    }
    assert_eq!(pair.sender.transport.progress(&mut pair.sender.log), 0);
}

pub(crate) fn connecting_to_nobody_ends_the_link<F: Factory>() {
    let factory = F::new();
    let mut pair = Pair::of(&factory, Shape::SMALL);
    let gone = factory.transport();
    let address = gone.local_address();
    drop(gone);
    let link = pair.sender.transport.connect(&address).unwrap();
    pair.drive(|sender, _| sender.downs() == 1);
    let down = |event: &Event| matches!(event, Event::LinkDown { link: other, .. } if *other == link);
    assert_eq!(pair.sender.count(down), 1);
}

pub(crate) fn a_malformed_address_is_refused<F: Factory>() {
    let mut transport = F::new().transport();
    for address in [&b"\xff\xfe"[..], &[0xff; 300]] {
        let refused = transport.connect(address);
        assert!(matches!(refused, Err(TransportError::Address { .. })), "{refused:?}");
    }
}
