//! Control frames: whole, in order, within limits, and never behind data.

use crate::pair::{Factory, Pair, frame};
use crate::pool::Shape;
use kvferry::transport::{Event, TransportError};

pub(crate) fn frames_keep_their_order_and_bytes<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let mut sent = vec![frame(1, b"hello")];
    for number in 0..200_u32 {
        let len = [0, 1, 15, 16, 17, 1000, 70_000, 300_000][number as usize % 8];
        let body: Vec<u8> = (0..len).map(|at: u32| (at ^ number).to_le_bytes()[0]).collect();
        sent.push(frame(3, &body));
    }
    for each in &sent {
        pair.sender.transport.send_control(pair.out, each.clone()).unwrap();
    }
    pair.receiver.transport.send_control(pair.back, frame(1, b"back")).unwrap();
    pair.drive(|a, b| a.frames().len() == 1 && b.frames().len() == sent.len());
    assert!(pair.receiver.frames() == sent, "frames differ");
    assert_eq!(pair.sender.frames(), [frame(1, b"back")]);
}

pub(crate) fn frames_over_the_limit_are_refused<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let limit = pair.sender.transport.caps().max_control as usize;
    pair.sender.transport.send_control(pair.out, frame(1, b"")).unwrap();
    let refused = pair.sender.transport.send_control(pair.out, frame(3, &vec![0; limit - 15]));
    assert!(matches!(refused, Err(TransportError::TooLarge { .. })), "{refused:?}");
    let largest = frame(3, &vec![7; limit - 16]);
    pair.sender.transport.send_control(pair.out, largest.clone()).unwrap();
    pair.drive(|_, receiver| receiver.frames().len() == 2);
    assert!(pair.receiver.frames()[1] == largest);
}

pub(crate) fn a_peer_that_does_not_read_ends_its_link<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let block = frame(3, &vec![0; 1 << 20]);
    // Far above any limit, were it kept.
    let refused = (0..1000).find_map(|_| pair.sender.transport.send_control(pair.out, block.clone()).err());
    assert!(matches!(refused, Some(TransportError::Stalled { .. })), "{refused:?}");
    pair.drive(|sender, receiver| sender.downs() == 1 && receiver.downs() == 1);
    let stalled =
        |event: &Event| matches!(event, Event::LinkDown { error: TransportError::Stalled { .. }, .. });
    assert_eq!(pair.sender.count(stalled), 1);
}

pub(crate) fn control_passes_while_data_is_under_way<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::LARGE);
    let job = pair.job(100, 0);
    pair.admit(&job, 1);
    pair.sender.transport.send_control(pair.out, frame(1, b"")).unwrap();
    pair.receiver.transport.send_control(pair.back, frame(1, b"")).unwrap();
    let mut op = 0;
    // As long as ten rounds of control take, the queue is kept full.
    for round in 0..10_u8 {
        pair.sender.transport.send_control(pair.out, frame(3, &[round])).unwrap();
        while pair.receiver.frames().len() < 2 + usize::from(round) {
            for piece in job.pieces(256 << 10) {
                if pair.sender.post(pair.out, &job, 1, op, &piece).is_ok() {
                    op += 1;
                }
            }
            pair.sender.transport.progress(&mut pair.sender.log);
            pair.receiver.transport.progress(&mut pair.receiver.log);
        }
        pair.receiver.transport.send_control(pair.back, frame(4, &[round])).unwrap();
        let wanted = 2 + usize::from(round);
        pair.drive(|sender, _| sender.frames().len() == wanted);
    }
    pair.settle(op as usize);
}
