//! What lies between the processes: writes under way, links, and what can happen to them.

use crate::config::{Config, Mutation};
use crate::receiver;
use crate::sender::{self, Settled};
use crate::state::{Flight, Health, Receiver, Revoke, Sender, Stage, State, ix};

/// A link by its ends and its number.
pub(crate) type Wire = (u8, u8, u8);

/// The sender's transport accepts a write; it will settle once.
pub(crate) fn accept(config: &Config, state: &mut State, (s, r, l): Wire, usage: u8, op: u8, session: u8) {
    let link = state.link(s, r, l);
    // Over a link that is already broken a frame is lost, but a card may still carry a put.
    let leaves = link.stage == Stage::Up || (config.one_sided() && !link.cut);
    let flight = &mut link.writes[ix(usage)][ix(op)];
    flight.session = session;
    flight.open += 1;
    flight.copies += u8::from(leaves);
}

/// One-sided: the bytes reach the pages.
pub(crate) fn land(state: &mut State, wire: Wire, usage: u8, op: u8) {
    let flight = flight(state, wire, usage, op);
    flight.copies = 0;
    flight.acks += u8::from(flight.open > 0);
    touch(state, wire, usage, op);
    tidy(state, wire, usage, op);
}

/// Two-sided: the receiver's transport takes a frame from a lane and applies it or throws it away.
pub(crate) fn take(config: &Config, state: &mut State, wire: Wire, usage: u8, op: u8) {
    let (s, r, _) = wire;
    let source = state.source(r, usage, s);
    let admitted = source.granted && source.revoke == Revoke::Admitted;
    let landed = source.ops & (1 << op) != 0;
    let flight = flight(state, wire, usage, op);
    flight.copies -= 1;
    let fresh = config.has(Mutation::ApplyTwice) || (!landed && flight.applying == 0);
    if admitted && fresh {
        flight.applying += 1;
    } else if !admitted || landed {
        // A copy that meets another one being applied gets no answer: the other's end is the answer.
        answer(flight, Settled::Good);
        tidy(state, wire, usage, op);
    }
}

/// Two-sided: a frame in a lane of a broken link is lost.
pub(crate) fn lose(state: &mut State, wire: Wire, usage: u8, op: u8) {
    flight(state, wire, usage, op).copies -= 1;
    tidy(state, wire, usage, op);
}

/// Two-sided: the last byte of a frame is in the pages and its checksum is known.
pub(crate) fn applied(config: &Config, state: &mut State, wire: Wire, usage: u8, op: u8, end: Settled) {
    let (s, r, _) = wire;
    let flight = flight(state, wire, usage, op);
    flight.applying -= 1;
    answer(flight, end);
    touch(state, wire, usage, op);
    if end == Settled::Good {
        let source = state.source(r, usage, s);
        source.ops |= 1 << op;
        source.count += 1;
    } else {
        // What the frame overwrote is not the source's bytes until a good copy lands.
        state.source(r, usage, s).truth &= !(1 << op);
    }
    tidy(state, wire, usage, op);
    receiver::pump(config, state, r, usage);
}

/// A doubled frame gets no answer of its own: each accepted write settles once.
fn answer(flight: &mut Flight, end: Settled) {
    if flight.acks + flight.nacks < flight.open {
        match end {
            Settled::Good => flight.acks += 1,
            Settled::Damaged | Settled::Lost => flight.nacks += 1,
        }
    }
}

/// The sender's transport reports the end of a write.
pub(crate) fn settle(config: &Config, state: &mut State, wire: Wire, usage: u8, op: u8, end: Settled) {
    let (s, r, _) = wire;
    let flight = flight(state, wire, usage, op);
    flight.open -= 1;
    match end {
        Settled::Good => flight.acks -= 1,
        Settled::Damaged => flight.nacks -= 1,
        Settled::Lost => {
            flight.acks = flight.acks.min(flight.open);
            flight.nacks = flight.nacks.min(flight.open - flight.acks);
            if config.one_sided() {
                flight.copies = 0;
            }
        }
    }
    let session = flight.session;
    tidy(state, wire, usage, op);
    sender::settle(config, state, s, session, r, op, end);
}

/// Bytes of a write are stored in the pages of use `usage`.
fn touch(state: &mut State, wire: Wire, usage: u8, op: u8) {
    let (s, r, _) = wire;
    if state.receivers[ix(r)].health == Health::Dead {
        return;
    }
    let session = flight(state, wire, usage, op).session;
    if state.usage(r, usage).safe {
        state.broken = Some("a write landed in pages that were given back");
    } else if session != usage {
        state.broken = Some("pages got the bytes of another use of the room");
    }
    state.source(r, usage, s).truth |= 1 << op;
}

fn flight(state: &mut State, (s, r, l): Wire, usage: u8, op: u8) -> &mut Flight {
    &mut state.link(s, r, l).writes[ix(usage)][ix(op)]
}

/// A write that is over leaves nothing behind, so that equal situations are equal states.
fn tidy(state: &mut State, wire: Wire, usage: u8, op: u8) {
    let flight = flight(state, wire, usage, op);
    if flight.open == 0 && flight.copies == 0 && flight.applying == 0 {
        *flight = Flight::default();
    }
}

/// A link breaks while both processes live.
pub(crate) fn break_link(state: &mut State, (s, r, l): Wire) {
    state.left.breaks -= 1;
    state.hit();
    state.link(s, r, l).stage = Stage::Broken;
}

/// The receiver connects again. The sender may learn of the old link's end later than that.
pub(crate) fn reconnect(state: &mut State, s: u8, r: u8) {
    state.left.reconnects -= 1;
    state.link(s, r, 1).stage = Stage::Up;
}

/// A sender process ends. What it posted may still land; what it sent may still be read.
pub(crate) fn kill_sender(config: &Config, state: &mut State, s: u8) {
    state.left.sender_deaths -= 1;
    state.hit();
    state.senders[ix(s)] = Sender { health: Health::Dead, ..Sender::default() };
    for r in 0..config.receivers {
        for l in 0..2 {
            let link = state.link(s, r, l);
            if link.stage == Stage::Absent {
                continue;
            }
            link.stage = Stage::Broken;
            link.sender_knows = true;
            link.to_sender.clear();
            for flight in link.writes.as_flattened_mut() {
                flight.open = 0;
                flight.acks = 0;
                flight.nacks = 0;
            }
        }
    }
}

/// A receiver process ends, and its memory with it.
pub(crate) fn kill_receiver(config: &Config, state: &mut State, r: u8) {
    state.left.receiver_deaths -= 1;
    state.hit();
    state.receivers[ix(r)] = Receiver { health: Health::Dead, ..Receiver::default() };
    for s in 0..config.senders {
        for l in 0..2 {
            let link = state.link(s, r, l);
            if link.stage == Stage::Absent {
                continue;
            }
            link.stage = Stage::Broken;
            link.receiver_knows = true;
            link.cut = true;
            link.to_receiver.clear();
            for flight in link.writes.as_flattened_mut() {
                flight.copies = 0;
                flight.applying = 0;
            }
        }
    }
}
