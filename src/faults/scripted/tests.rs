//! The network alone, without engines.

use super::{Access, Fate, ScriptedNetwork, ScriptedTransport};
use crate::ids::{Attempt, Generation, GrantId, GroupId, LinkId, OpId, RegionId, Room};
use crate::layout::{Admission, Extent, PageList, Pairing, Piece, PoolEntry, PoolLayout, Role};
use crate::memory::HostBuffer;
use crate::transport::{Event, Transport, TransportError, Wait, Write, WriteModel};
use crate::wire::Frame;
use std::sync::Arc;

const BYTES: u64 = 400;

struct Pair {
    network: ScriptedNetwork,
    source: ScriptedTransport,
    target: ScriptedTransport,
    memory: [HostBuffer; 2],
    link: LinkId,
    back: LinkId,
}

fn grant() -> GrantId {
    GrantId { room: Room(1), attempt: Attempt(0), generation: Generation(1) }
}

fn extent() -> Extent {
    Extent { region: RegionId(0), offset: 100, len: 100 }
}

fn events(end: &mut ScriptedTransport) -> Vec<Event> {
    let mut events = Vec::new();
    end.progress(&mut events);
    events
}

impl Pair {
    fn new(model: WriteModel) -> Self {
        let network = ScriptedNetwork::new(model);
        let mut ends = ["source", "target"].map(|name| network.endpoint(name).unwrap());
        let memory = [1, 2].map(|byte| {
            let buffer = HostBuffer::zeroed(BYTES).unwrap();
            buffer.fill(byte);
            buffer
        });
        for (end, buffer) in ends.iter_mut().zip(&memory) {
            end.register(&buffer.region(RegionId(0))).unwrap();
        }
        let [mut source, mut target] = ends;
        let link = source.connect(&target.local_address()).unwrap();
        assert!(matches!(events(&mut source)[..], [Event::Connected { link: up }] if up == link));
        let [Event::Connected { link: back }] = events(&mut target)[..] else { panic!("no link") };
        let key = target.key_for(back, RegionId(0));
        if !key.is_empty() {
            source.import(link, RegionId(0), &key).unwrap();
        }
        Self { network, source, target, memory, link, back }
    }

    /// Lends the second of four pages.
    fn admit(&mut self) {
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", 1, 4);
        layout.push(PoolEntry::new(kv, Role::Key, RegionId(0), 100).layer(0).dtype("u8"));
        let layout = Arc::new(layout);
        let pairing = Arc::new(Pairing::new(Arc::clone(&layout), layout).unwrap());
        let pages = Arc::from([(GroupId(0), PageList::new(0, vec![1]))]);
        self.target.admit(self.back, grant(), Arc::new(Admission::new(pairing, 0..1, pages)));
    }

    fn post(&mut self, op: u32) -> Result<(), TransportError> {
        let extents = [extent()];
        let piece = Piece { pairs: 0..1, positions: 0..1 };
        let write = Write { op: OpId(op), grant: grant(), piece, source: &extents, destination: &extents };
        self.source.write(self.link, &write)
    }

    fn landed(&self) -> usize {
        self.memory[1].to_vec(0, 400).iter().filter(|byte| **byte == 1).count()
    }
}

#[test]
fn a_held_write_goes_part_by_part_and_every_byte_is_recorded() {
    for model in [WriteModel::OneSided, WriteModel::TwoSided] {
        let mut pair = Pair::new(model);
        pair.admit();
        pair.network.hold_writes();
        pair.post(0).unwrap();
        assert_eq!((pair.landed(), pair.network.pending().len()), (0, 1));
        assert_eq!((pair.network.copy(0, 30), pair.landed(), pair.network.pending()[0].copied), (30, 30, 30));
        pair.network.complete(0);
        assert_eq!(pair.memory[1].to_vec(100, 100), [1; 100]);
        assert!(matches!(events(&mut pair.source)[..], [Event::Settled { result: Ok(()), .. }]));
        let landed = events(&mut pair.target).len();
        assert_eq!(landed, usize::from(model == WriteModel::TwoSided));
        let touches = pair.network.take_touches();
        let written = touches.iter().filter(|touch| touch.access == Access::Written && touch.end == "target");
        let ranges: Vec<_> = written.map(|touch| (touch.extents[0].offset, touch.extents[0].len)).collect();
        assert_eq!(ranges, [(100, 30), (130, 70)]);
    }
}

#[test]
fn a_failed_write_may_come_again_and_a_second_copy_lands_nothing() {
    let mut pair = Pair::new(WriteModel::TwoSided);
    pair.admit();
    pair.network.hold_writes();
    pair.post(0).unwrap();
    pair.network.fail(0, TransportError::Corrupted);
    let settled = events(&mut pair.source);
    assert!(matches!(settled[..], [Event::Settled { result: Err(TransportError::Corrupted), .. }]));
    pair.network.release_writes();
    pair.post(0).unwrap();
    pair.post(0).unwrap();
    assert_eq!((events(&mut pair.source).len(), events(&mut pair.target).len()), (2, 1));
}

#[test]
fn writes_touch_pages_until_their_revocation_is_answered() {
    let mut pair = Pair::new(WriteModel::TwoSided);
    pair.admit();
    pair.network.hold_writes();
    pair.network.hold_revoked();
    pair.post(0).unwrap();
    pair.target.revoke(pair.back, grant());
    assert_eq!((pair.network.copy(0, 10), events(&mut pair.target).len()), (10, 0));
    pair.network.release_revoked();
    assert!(matches!(events(&mut pair.target)[..], [Event::Revoked { .. }]));
    assert_eq!((pair.network.copy(0, 10), pair.landed()), (0, 10));
    pair.network.release_writes();
    assert!(matches!(events(&mut pair.source)[..], [Event::Settled { result: Ok(()), .. }]));
    assert_eq!(pair.landed(), 10);
}

#[test]
fn a_write_that_no_end_stops_goes_on_behind_its_link() {
    for vouches in [true, false] {
        let mut pair = Pair::new(WriteModel::OneSided);
        pair.network.hold_writes();
        pair.network.vouch(vouches);
        pair.post(0).unwrap();
        pair.target.disconnect(pair.back);
        let down = events(&mut pair.target);
        assert!(matches!(down[..], [Event::LinkDown { quiesced, .. }] if quiesced == vouches));
        let settled = usize::from(vouches);
        assert_eq!(events(&mut pair.source).len(), 1 + settled);
        pair.network.release_writes();
        assert_eq!(
            (pair.landed(), events(&mut pair.source).len()),
            (if vouches { 0 } else { 100 }, 1 - settled)
        );
        assert!(matches!(pair.post(1), Err(TransportError::NotConnected(_))));
    }
}

#[test]
fn one_sided_writes_need_a_key() {
    let mut pair = Pair::new(WriteModel::OneSided);
    let other = pair.network.endpoint("other").unwrap();
    pair.link = pair.source.connect(&other.local_address()).unwrap();
    assert!(matches!(pair.post(0), Err(TransportError::Format { .. })));
}

#[test]
fn control_frames_are_lost_and_repeated_as_told() {
    let mut pair = Pair::new(WriteModel::TwoSided);
    pair.network.filter_control(|sender, frame| match frame {
        Frame::Ping { token: 1 } => Fate::Drop,
        Frame::Ping { .. } if sender == "source" => Fate::Repeat,
        _ => Fate::Pass,
    });
    assert_eq!(pair.target.prepare_wait(), Wait::Ready);
    for token in 1..3 {
        pair.source.send_control(pair.link, Frame::Ping { token }.encode()).unwrap();
    }
    assert_eq!(pair.target.prepare_wait(), Wait::Busy);
    assert_eq!(events(&mut pair.target).len(), 2);
}

#[test]
fn a_dropped_end_ends_its_links_and_frees_its_name() {
    let mut pair = Pair::new(WriteModel::TwoSided);
    drop(pair.target);
    assert!(matches!(events(&mut pair.source)[..], [Event::LinkDown { quiesced: true, .. }]));
    assert!(pair.network.endpoint("target").is_ok());
}
