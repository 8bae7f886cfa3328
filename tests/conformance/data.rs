//! Bytes arrive exactly, once, and only where they are let.

use crate::pair::{End, Factory, Pair, drive, frame, grant};
use crate::pool::{CANARY, Job, Shape};
use kvferry::layout::{Extent, Piece};
use kvferry::transport::{Event, TransportError, Write};
use kvferry::{GrantId, LinkId, OpId, RegionId};
use std::collections::BTreeSet;

pub(crate) fn scattered_pages_arrive_exactly<F: Factory>() {
    for max_bytes in [1, 37 * 5, 1000, 1 << 20] {
        let mut pair = Pair::new::<F>(Shape::SMALL);
        let job = pair.job(23, 0);
        pair.admit(&job, 1);
        let posted = pair.post_all(&job, 1, max_bytes);
        pair.settle(posted);
        pair.drive(|_, receiver| receiver.landed() == posted);
        pair.assert_arrived(&job);
        let landed: BTreeSet<u32> = pair.receiver.log.iter().filter_map(op_landed).collect();
        assert_eq!(landed.len(), posted, "an op landed twice");
    }
}

pub(crate) fn large_pages_arrive_exactly_through_a_full_queue<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::LARGE);
    let job = pair.job(128, 0);
    pair.admit(&job, 1);
    let mut posted = 0;
    let mut was_full = false;
    // Three times over what a link takes at once.
    for _ in 0..12 {
        for piece in job.pieces(512 << 10) {
            let tried = pair.sender.post(pair.out, &job, 1, posted, &piece);
            if matches!(tried, Err(TransportError::Full)) {
                was_full = true;
                pair.post_when_free(&job, 1, posted, &piece);
            }
            posted += 1;
        }
    }
    assert!(was_full, "nothing ever waited");
    let posted = posted as usize;
    pair.settle(posted);
    pair.drive(|_, receiver| receiver.landed() == posted);
    pair.assert_arrived(&job);
}

pub(crate) fn a_write_of_many_thousand_extents_arrives_exactly<F: Factory>() {
    let shape = Shape { layers: 64, pages: 40, page_bytes: 4 * 3, gap: 1 };
    let mut pair = Pair::new::<F>(shape);
    let job = pair.job(40, 0);
    assert!(job.source_extents(&job.whole()).len() > 5000);
    pair.admit(&job, 1);
    pair.sender.post(pair.out, &job, 1, 0, &job.whole()).unwrap();
    pair.settle(1);
    pair.assert_arrived(&job);
}

pub(crate) fn both_directions_at_once<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::LARGE);
    let mut there = pair.job(60, 0);
    let mut back = Job::new(&pair.receiver.pool, &pair.sender.pool, 50, 100);
    // Even pages go there and odd ones back: what is being sent must not change meanwhile.
    for (job, odd) in [(&mut there, 0), (&mut back, 1)] {
        for page in job.source.indices.iter_mut().chain(&mut job.destination.indices) {
            *page = *page * 2 % Shape::LARGE.pages + odd;
        }
    }
    pair.receiver.pool.fill_with_pattern(99);
    pair.admit(&there, 1);
    pair.sender.transport.admit(pair.out, grant(2), back.admission());
    let pieces = (there.pieces(300_000), back.pieces(300_000));
    for (op, piece) in (0..).zip(&pieces.0) {
        pair.post_when_free(&there, 1, op, piece);
    }
    for (op, piece) in (0..).zip(&pieces.1) {
        while let Err(error) = pair.receiver.post(pair.back, &back, 2, op, piece) {
            assert!(matches!(error, TransportError::Full), "{error}");
            let settled = pair.receiver.settled();
            pair.drive(|_, receiver| receiver.settled() > settled);
        }
    }
    pair.drive(|a, b| a.settled() == pieces.0.len() && b.settled() == pieces.1.len());
    pair.drive(|a, b| a.landed() == pieces.1.len() && b.landed() == pieces.0.len());
    pair.assert_bytes(&there);
    let sent = pair.receiver.pool.read(&back.source_extents(&back.whole()));
    assert!(sent == pair.sender.pool.read(&back.destination_extents(&back.whole())));
}

pub(crate) fn an_op_sent_twice_lands_once<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(10, 0);
    pair.admit(&job, 1);
    for op in [0, 0, 1, 1, 0] {
        pair.sender.post(pair.out, &job, 1, op, &job.whole()).unwrap();
        let settled = pair.sender.settled();
        pair.settle(settled + 1);
    }
    pair.settle(5);
    assert_eq!(pair.receiver.landed(), 2);
    pair.assert_arrived(&job);
}

pub(crate) fn writes_without_a_grant_settle_and_touch_nothing<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(10, 0);
    pair.admit(&job, 1);
    let posted = pair.post_all(&job, 2, 500);
    pair.settle(posted);
    assert_eq!(pair.receiver.landed(), 0);
    assert_eq!(pair.receiver.pool.spoiled_outside(&[]), 0);
}

pub(crate) fn writes_outside_the_grant_settle_touch_nothing_and_are_reported<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let (lent, asked) = (pair.job(5, 0), pair.job(10, 0));
    pair.admit(&lent, 1);
    let tokens = asked.tokens();
    let pieces = [
        asked.whole(),
        Piece { pairs: 0..1, positions: lent.tokens()..lent.tokens() + 1 },
        Piece { pairs: 5..6, positions: tokens - 1..tokens },
    ];
    for (op, piece) in (0..).zip(&pieces) {
        pair.sender.post(pair.out, &asked, 1, op, piece).unwrap();
    }
    pair.settle(pieces.len());
    pair.drive(|_, receiver| receiver.refused().len() == pieces.len());
    let about = |(link, id): &(LinkId, GrantId)| (*link, *id) == (pair.back, grant(1));
    assert!(pair.receiver.refused().iter().all(about), "{:?}", pair.receiver.log);
    assert_eq!(pair.receiver.landed(), 0);
    assert_eq!(pair.receiver.pool.spoiled_outside(&[]), 0);
}

pub(crate) fn a_write_of_the_wrong_size_is_reported_once<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(5, 0);
    pair.admit(&job, 1);
    let whole = job.whole();
    let less = job.source_extents(&Piece { positions: 0..4, ..whole.clone() });
    let write = Write { op: OpId(0), grant: grant(1), piece: whole, source: &less, destination: &[] };
    // The second is a copy of what was thrown away.
    for _ in 0..2 {
        pair.sender.transport.write(pair.out, &write).unwrap();
    }
    pair.settle(2);
    pair.drive(|_, receiver| receiver.refused().len() == 1);
    assert_eq!((pair.receiver.landed(), pair.receiver.pool.spoiled_outside(&[])), (0, 0));
}

pub(crate) fn late_writes_outside_the_grant_are_not_reported<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let (lent, asked) = (pair.job(5, 0), pair.job(10, 0));
    pair.admit(&lent, 1);
    pair.receiver.transport.revoke(pair.back, grant(1));
    pair.drive(|_, receiver| receiver.revoked(grant(1)) == 1);
    for room in [1, 2] {
        pair.sender.post(pair.out, &asked, room, 0, &asked.whole()).unwrap();
    }
    pair.settle(2);
    // What was reported of them would come before this.
    pair.sender.transport.send_control(pair.out, frame(1, b"")).unwrap();
    pair.drive(|_, receiver| receiver.frames().len() == 1);
    assert_eq!(pair.receiver.refused(), []);
}

pub(crate) fn writes_from_unknown_memory_are_refused<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(1, 0);
    let size = pair.sender.pool.buffers[0].len();
    for (region, offset, len) in
        [(99, 0, 1), (0, size, 1), (0, size - 1, 2), (0, u64::MAX, 2), (0, 1, u64::MAX)]
    {
        let source = [Extent { region: RegionId(region), offset, len }];
        let write =
            Write { op: OpId(0), grant: grant(1), piece: job.whole(), source: &source, destination: &[] };
        let refused = pair.sender.transport.write(pair.out, &write);
        assert!(matches!(refused, Err(TransportError::Memory(_))), "{refused:?}");
    }
}

pub(crate) fn many_links_do_not_mix<F: Factory>() {
    let factory = F::new();
    let mut hub = factory.end(Shape::SMALL);
    hub.pool.fill(CANARY);
    let mut ends: Vec<End> = Vec::new();
    let mut jobs = Vec::new();
    for number in 0..8_u32 {
        let mut end = factory.end(Shape::SMALL);
        end.pool.fill_with_pattern(u64::from(number) + 1);
        let out = end.transport.connect(&hub.transport.local_address()).unwrap();
        let before = hub.connected().len();
        drive([&mut end, &mut hub], |[end, hub]| {
            !end.connected().is_empty() && hub.connected().len() > before
        });
        let back = hub.connected()[before];
        // Five pages each, of the forty.
        let mut job = Job::new(&end.pool, &hub.pool, 5, 0);
        job.destination.indices = (number * 5..number * 5 + 5).collect();
        // The same grant number on every link: a grant belongs to its link.
        hub.transport.admit(back, grant(1), job.admission());
        jobs.push((out, job));
        ends.push(end);
    }
    for (end, (out, job)) in ends.iter_mut().zip(&jobs) {
        for (op, piece) in (0..).zip(job.pieces(100)) {
            end.post(*out, job, 1, op, &piece).unwrap();
        }
    }
    for (end, (_, job)) in ends.iter_mut().zip(&jobs) {
        let posted = job.pieces(100).len();
        drive([end, &mut hub], |[end, _]| end.settled() == posted);
        let sent = end.pool.read(&job.source_extents(&job.whole()));
        assert!(sent == hub.pool.read(&job.destination_extents(&job.whole())));
    }
}

pub(crate) fn a_grant_admitted_late_takes_only_what_comes_later<F: Factory>() {
    let mut pair = Pair::new::<F>(Shape::SMALL);
    let job = pair.job(4, 0);
    pair.sender.post(pair.out, &job, 1, 0, &job.whole()).unwrap();
    pair.settle(1);
    assert_eq!(pair.receiver.landed(), 0);
    pair.admit(&job, 1);
    pair.sender.post(pair.out, &job, 1, 0, &job.whole()).unwrap();
    pair.settle(2);
    pair.drive(|_, receiver| receiver.landed() == 1);
    pair.assert_arrived(&job);
}

fn op_landed(event: &Event) -> Option<u32> {
    match event {
        Event::Landed { op, .. } => Some(op.0),
        _ => None,
    }
}
