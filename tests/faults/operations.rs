//! Running for months: codes o01 to o07.

use crate::bed::{Network, Node, PATIENCE, block_on};
use crate::patient;
use crate::stranger::{Stranger, id, sample, sealed, tapped_with};
use crate::tap::Writes;
use kvferry::layout::{PoolEntry, PoolLayout, Role};
use kvferry::memory::HostBuffer;
use kvferry::wire::Kind;
use kvferry::{Engine, ErrorKind, KVPoll, Place, Room, RoomOptions, UsageError};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span;

on_each_network! {
    o03_receivers_beyond_the_space_are_sent_away_with_one_line_in_the_log
    o03_rooms_beyond_the_limit_run_when_others_have_ended
    o04_every_cause_has_a_counter_of_its_own
    o04_waiting_is_not_counted_as_transferring
}

/// Keeps the warnings of the thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Line(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

fn o03_receivers_beyond_the_space_are_sent_away_with_one_line_in_the_log(network: &Network) {
    let mut config = patient();
    config.limits.parked_bytes = 1400; // one join and one small grant
    let builder = Engine::builder(Place::alone("prefill")).model("test").config(config).manual_progress();
    let prefill = Node::with(builder.boxed_transport(network.transport("prefill")).build().unwrap(), 8);
    let decode = network.node_with("decode", 8, patient());
    let (warnings, start) = (Warnings::default(), Instant::now());
    let drive = |is_done: &dyn Fn() -> bool| {
        tracing::subscriber::with_default(warnings.clone(), || {
            while !is_done() {
                prefill.engine.progress_or_wait(Duration::from_millis(20)).unwrap();
            }
        });
    };
    let receiver = |room: u64| {
        let receiver = decode.receiver(room, &prefill);
        decode.lend(&receiver, 0..4, &[0]);
        receiver
    };
    let first = receiver(0);
    drive(&|| prefill.engine.stats().parked == 2);
    let others: Vec<_> = (1..100).map(receiver).collect();
    drive(&|| others.iter().all(|other| other.poll().is_terminal()));
    for other in &others {
        let error = other.error().unwrap();
        assert_eq!((error.kind, error.is_retryable()), (ErrorKind::Busy, true), "{error}");
    }
    let lines = warnings.0.lock().unwrap().clone();
    assert!((1..=1 + start.elapsed().as_secs() as usize / 5).contains(&lines.len()), "{lines:#?}");
    assert!(lines[0].contains("count=1") && lines[0].contains("peer=decode"), "{lines:#?}");
    // What waits is served, and then there is space again.
    for (room, receiver) in [(0, first), (200, receiver(200))] {
        let sender = prefill.sender(room);
        prefill.send_all(&sender, 4, 4, &[0]);
        drive(&|| sender.poll().is_terminal() && receiver.poll().is_terminal());
        assert_eq!(receiver.poll(), KVPoll::Success, "{:?}", receiver.error());
    }
}

fn o03_rooms_beyond_the_limit_run_when_others_have_ended(network: &Network) {
    let mut config = patient();
    config.limits.rooms = 1;
    let (prefill, decode) = (network.node("prefill", 8), network.node_with("decode", 8, config));
    for room in 0..5 {
        let receiver = decode.receiver(room, &prefill);
        let other = decode.engine.receiver(Room(100), prefill.sources(), RoomOptions::default());
        assert_eq!(other.unwrap_err(), UsageError::TooManyRooms(1));
        decode.lend(&receiver, 0..4, &[0]);
        let sender = prefill.sender(room);
        prefill.send_all(&sender, 4, 4, &[0]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    }
}

fn o04_every_cause_has_a_counter_of_its_own(network: &Network) {
    let (prefill, valve) = tapped_with(network, "prefill", patient());
    let decode = network.node_with("decode", 8, patient());
    let granted = |room| {
        let (sender, receiver) = (prefill.sender(room), decode.receiver(room, &prefill));
        decode.lend(&receiver, 0..4, &[0]);
        assert!(block_on(sender.wait_granted()).is_some(), "{:?}", sender.error());
        (sender, receiver)
    };
    let (broken, _receiver) = granted(1);
    valve.on_write(Writes::Break);
    prefill.send_all(&broken, 4, 4, &[0]);
    assert_eq!(broken.wait(PATIENCE), KVPoll::Failed);
    valve.open();

    let other = network.node_with("other", 8, patient());
    let buffer = HostBuffer::zeroed(4096).unwrap();
    let region = other.engine.register(|id| buffer.region(id)).unwrap();
    let mut layout = PoolLayout::new();
    let kv = layout.paged("kv", 8, 4);
    layout.push(PoolEntry::new(kv, Role::Key, region, 256).layer(0).dtype("bf16"));
    other.engine.set_layout(layout).unwrap();
    let (misfit, _receiver) = (prefill.sender(2), other.receiver(2, &prefill));
    assert_eq!(misfit.wait(PATIENCE), KVPoll::Failed);

    let mut stranger = Stranger::introduced(network, "stranger", &prefill.engine);
    stranger.say(&sample(Kind::Join, id(3, 1)));
    assert!(stranger.until_heard());
    let lost = prefill.sender(3);
    while prefill.engine.stats().parked > 0 {
        std::thread::yield_now();
    }
    drop(stranger);
    assert_eq!(lost.wait(PATIENCE), KVPoll::Failed);

    let mut deadlines = patient().deadlines;
    deadlines.discover = Duration::from_millis(20);
    let late = prefill.engine.sender(Room(4), RoomOptions::default().deadlines(deadlines)).unwrap();
    assert_eq!(late.wait(PATIENCE), KVPoll::Failed);

    let (aborting, _receiver) = granted(5);
    aborting.abort("here");
    assert_eq!(aborting.wait(PATIENCE), KVPoll::Failed);
    let (aborted, receiver) = granted(6);
    receiver.abort("there");
    assert_eq!(aborted.wait(PATIENCE), KVPoll::Failed);

    let mut stranger = Stranger::introduced(network, "stranger", &prefill.engine);
    assert!(stranger.until_heard());
    stranger.say_bytes(sealed(Kind::Ping as u8, b"short"));
    stranger.until_down();

    let stats = prefill.engine.stats();
    let all = [("aborted", 2), ("layout", 1), ("peer lost", 1), ("timeout", 1), ("transport", 1)];
    assert_eq!(stats.failed, all.into());
    // The aborts are one of each side, therefore.
    assert_eq!(stats.failed_elsewhere, [("aborted", 1), ("layout", 1), ("peer lost", 1)].into());
    assert_eq!((stats.malformed, stats.succeeded, stats.rooms), (1, 0, 0));
}

fn o04_waiting_is_not_counted_as_transferring(network: &Network) {
    let (prefill, decode) =
        (network.node_with("prefill", 8, patient()), network.node_with("decode", 8, patient()));
    let pause = Duration::from_millis(150);
    // Rooms count from when the engine hears of them.
    let least = pause / 2;
    let start = Instant::now();
    let sender = prefill.sender(1);
    sender.wait(pause);
    let receiver = decode.receiver(1, &prefill);
    decode.lend(&receiver, 0..8, &[0, 1]);
    block_on(sender.wait_granted());
    sender.wait(pause);
    prefill.send_all(&sender, 8, 4, &[0, 1]);
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    let all = start.elapsed();
    let (sent, received) = (sender.stats(), receiver.stats());
    assert_eq!((sent.bytes, received.bytes), (8 * 32 * 6, 8 * 32 * 6));
    assert!(sent.bootstrap_wait().unwrap() >= least, "{sent:?}");
    for stats in [sent, received] {
        assert!(stats.queue_time().unwrap() >= least, "{stats:?}");
        let parts = [stats.bootstrap_wait(), stats.queue_time(), stats.transfer_time()];
        // Each moment is part of one of them: nothing that waits is in the last.
        assert!(parts.into_iter().map(Option::unwrap).sum::<Duration>() <= all, "{stats:?} of {all:?}");
    }
    assert!(received.bootstrap_wait().unwrap() + least <= all, "{received:?} of {all:?}");
}
