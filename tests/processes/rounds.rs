//! One side is killed or frozen, again and again, at moments that nobody chose.

use crate::end::{End, Outcome, PAGE_TOKENS};
use crate::peer::{Peer, print_source};
use crate::plan::{Fabric, Plan};
use crate::rng::Rng;
use kvferry::{KVPoll, Side};
use rustix::process::Signal;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

const VICTIM: u32 = 1;
const HEALTHY: u32 = 2;
/// Rooms of the victim in each round; the first `OPEN_ENDED` get no end, so that some always fail.
const ROOMS: u64 = 6;
const OPEN_ENDED: u64 = 2;

/// The side that stays, the side that suffers, and another peer to which nothing happens.
struct Bed {
    fabric: Fabric,
    /// The victim's part.
    side: Side,
    liveness: Option<(u64, u64)>,
    survivor: End,
    victim: Peer,
    healthy: Peer,
    next_room: u64,
    tally: Tally,
}

/// What was seen in all rounds.
#[derive(Debug, Default)]
struct Tally {
    killed: u32,
    frozen: u32,
    succeeded: u32,
    failed_before_bytes: u32,
    failed_in_transfer: u32,
    /// The longest time from the signal to the end of all rooms.
    slowest_kill: Duration,
    slowest_freeze: Duration,
}

impl Bed {
    fn new(fabric: Fabric, side: Side, liveness: Option<(u64, u64)>) -> Self {
        let survivor = End::new(&plan(fabric, other(side), 0, liveness));
        let victim = Peer::start(&plan(fabric, side, VICTIM, liveness));
        let healthy = Peer::start(&plan(fabric, side, HEALTHY, liveness));
        let mut bed =
            Self { fabric, side, liveness, survivor, victim, healthy, next_room: 0, tally: Tally::default() };
        bed.one_room_goes_well();
        bed
    }

    fn rooms(&mut self, count: u64) -> Range<u64> {
        let first = self.next_room;
        self.next_room += count;
        first..self.next_room
    }

    /// A link to the victim is up afterwards.
    fn one_room_goes_well(&mut self) {
        let room = self.rooms(1).start;
        let tokens = 2 * PAGE_TOKENS;
        match self.side {
            Side::Prefill => {
                self.survivor.receive(room, vec![self.victim.source()]);
                self.survivor.grant(room, tokens);
                self.victim.obey(&lines(room, &["open {}", "send {} 32", "finish {}"]));
            }
            Side::Decode => {
                self.survivor.open(room);
                let from = print_source(&self.survivor.source());
                self.victim.obey(&[format!("receive {room} {from}"), format!("grant {room} {tokens}")]);
                self.survivor.send(room, tokens);
                self.survivor.finish(room);
            }
        }
        let outcome = self.survivor.end(room);
        assert!(outcome.succeeded(), "{outcome:?}");
        let answer = self.victim.ask(&format!("end {room}"));
        assert!(answer.starts_with("Success"), "{answer}");
    }

    /// Rooms with both peers are under way; the victim gets the signal after so many microseconds.
    fn round(&mut self, signal: Signal, moment: u64) {
        let rooms = self.rooms(ROOMS);
        let untouched = self.rooms(1).start;
        match self.side {
            Side::Prefill => self.begin_receiving(&rooms, untouched),
            Side::Decode => self.begin_sending(&rooms, untouched),
        }
        // Which moment the fault hits, not a wait for anything.
        thread::sleep(Duration::from_micros(moment));
        let struck = Instant::now();
        self.victim.signal(signal);
        self.finish_untouched(untouched);

        for room in rooms.clone() {
            let outcome = self.survivor.end(room);
            assert!(!outcome.succeeded() || room >= rooms.start + OPEN_ENDED, "room {room} had no end");
            self.count(&outcome);
        }
        let took = struck.elapsed();
        let outcome = self.survivor.end(untouched);
        assert!(outcome.succeeded(), "a room of the other peer: {outcome:?}");
        let answer = self.healthy.ask(&format!("end {untouched}"));
        assert!(answer.starts_with("Success"), "a room of the other peer: {answer}");
        assert_eq!(self.survivor.stain(), None);

        if signal == Signal::STOP {
            self.tally.frozen += 1;
            self.tally.slowest_freeze = self.tally.slowest_freeze.max(took);
            self.victim.signal(Signal::CONT);
            self.clear_victim(rooms);
        } else {
            self.tally.killed += 1;
            self.tally.slowest_kill = self.tally.slowest_kill.max(took);
            let next = Peer::start(&plan(self.fabric, self.side, VICTIM, self.liveness));
            std::mem::replace(&mut self.victim, next).kill();
        }
        // Its next words come after all that it may still have had to say.
        self.one_room_goes_well();
        assert_eq!(self.survivor.stain(), None, "after the victim went on");
        assert_eq!(self.healthy.ask("stain"), "");
    }

    fn begin_receiving(&mut self, rooms: &Range<u64>, untouched: u64) {
        let mut told = Vec::new();
        for room in rooms.clone() {
            self.survivor.receive(room, vec![self.victim.source()]);
            self.survivor.grant(room, 4 * PAGE_TOKENS);
            told.extend(lines(room, &["open {}", "send {} 16", "send {} 48"]));
            if room >= rooms.start + OPEN_ENDED {
                told.push(format!("finish {room}"));
            }
        }
        self.survivor.receive(untouched, vec![self.healthy.source()]);
        self.survivor.grant(untouched, 2 * PAGE_TOKENS);
        self.healthy.obey(&lines(untouched, &["open {}", "send {} 16"]));
        // A peer that was never reached is waited for, which is another matter.
        rooms.clone().for_each(|room| self.survivor.wait_joined(room));
        self.victim.tell(&told);
    }

    fn begin_sending(&mut self, rooms: &Range<u64>, untouched: u64) {
        let from = print_source(&self.survivor.source());
        let mut told = Vec::new();
        for room in rooms.clone() {
            self.survivor.open(room);
            told.push(format!("receive {room} {from}"));
            told.push(format!("grant {room} 64"));
        }
        self.survivor.open(untouched);
        self.healthy.obey(&[format!("receive {untouched} {from}"), format!("grant {untouched} 32")]);
        self.survivor.send(untouched, PAGE_TOKENS);
        self.victim.obey(&told);
        rooms.clone().for_each(|room| self.survivor.wait_joined(room));
        for room in rooms.clone() {
            self.survivor.send(room, PAGE_TOKENS);
            self.survivor.send(room, 3 * PAGE_TOKENS);
            if room >= rooms.start + OPEN_ENDED {
                self.survivor.finish(room);
            }
        }
    }

    fn finish_untouched(&mut self, room: u64) {
        match self.side {
            Side::Prefill => self.healthy.obey(&lines(room, &["send {} 16", "finish {}"])),
            Side::Decode => {
                self.survivor.send(room, PAGE_TOKENS);
                self.survivor.finish(room);
            }
        }
    }

    /// The victim goes on: its own rooms end too, and what it received is exact.
    fn clear_victim(&mut self, rooms: Range<u64>) {
        if self.side == Side::Prefill {
            // It may have been told of rooms whose receiver has gone without a trace.
            let told = rooms.clone().count() * 3 + rooms.clone().count() - OPEN_ENDED as usize;
            (0..told).for_each(|_| drop(self.victim.hear()));
            let aborts: Vec<_> = rooms.clone().map(|room| format!("abort {room}")).collect();
            self.victim.obey(&aborts);
        }
        let ends: Vec<_> = rooms.map(|room| format!("end {room}")).collect();
        self.victim.obey(&ends);
        assert_eq!(self.victim.ask("stain"), "");
    }

    fn count(&mut self, outcome: &Outcome) {
        if outcome.succeeded() {
            self.tally.succeeded += 1;
            return;
        }
        outcome.assert_lost(self.side, VICTIM);
        let is_late = outcome.error.as_ref().is_some_and(|error| error.state == KVPoll::Transferring);
        *(if is_late { &mut self.tally.failed_in_transfer } else { &mut self.tally.failed_before_bytes }) +=
            1;
    }
}

fn rounds(fabric: Fabric, side: Side, count: u32) {
    let (mut rng, seed) = Rng::new();
    println!("{side} suffers, KVF_SEED={seed}");
    let mut bed = Bed::new(fabric, side, Some((100, 500)));
    for _ in 0..count {
        let signal = if rng.below(10) < 3 { Signal::STOP } else { Signal::KILL };
        // Mostly while bytes move, now and then when all is said.
        let moment = if rng.below(8) == 0 { 10_000 } else { rng.below(4000) };
        bed.round(signal, moment);
    }
    println!("{side} suffered: {:?}", bed.tally);
    assert!(bed.tally.killed > 0 && bed.tally.frozen > 0, "{:?}", bed.tally);
    assert!(bed.tally.failed_in_transfer > 0 && bed.tally.succeeded > 0, "{:?}", bed.tally);
}

fn plan(fabric: Fabric, side: Side, tp: u32, liveness: Option<(u64, u64)>) -> Plan {
    let plan = Plan::new(fabric, if side == Side::Prefill { "prefill" } else { "decode" }, tp);
    match liveness {
        Some((interval, timeout)) => plan.liveness(interval, timeout),
        None => plan,
    }
}

fn other(side: Side) -> Side {
    if side == Side::Prefill { Side::Decode } else { Side::Prefill }
}

fn lines(room: u64, forms: &[&str]) -> Vec<String> {
    forms.iter().map(|form| form.replace("{}", &room.to_string())).collect()
}

#[test]
fn a_prefill_process_that_dies_or_freezes_fails_its_rooms_only_and_writes_no_more() {
    rounds(Fabric::Tcp, Side::Prefill, 100);
}

#[test]
fn a_decode_process_that_dies_or_freezes_fails_its_rooms_only() {
    rounds(Fabric::Tcp, Side::Decode, 100);
}

#[test]
fn defaults_notice_a_frozen_process_on_either_side() {
    for side in [Side::Prefill, Side::Decode] {
        let mut bed = Bed::new(Fabric::Tcp, side, None);
        bed.round(Signal::STOP, 1000);
        println!("{side} was frozen: {:?}", bed.tally);
    }
}
