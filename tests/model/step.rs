//! All that can happen next in a state.

use std::fmt;

use crate::config::{Attempts, Config};
use crate::network::{self, Wire};
use crate::receiver;
use crate::sender::{self, Settled};
use crate::state::{Fence, Frame, Health, Phase, Revoke, Stage, State, ix};

/// Whether a step must happen sooner or later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Will {
    /// It happens unless something else does first.
    Must,
    /// A fault or a caller's wish.
    May,
    /// Time runs out because nothing else was left to happen.
    Deadline,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: Name,
    pub(crate) will: Will,
    pub(crate) next: State,
}

/// A step in words, put together only when a trace is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    who: (char, u8),
    what: &'static str,
    usage: Option<u8>,
    frame: Option<Frame>,
    op: Option<u8>,
    wire: Option<Wire>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} {}", self.who.0, self.who.1, self.what)?;
        if let Some(frame) = self.frame {
            write!(f, " {:?} ({})", frame.kind, frame.usage)?;
        }
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        if let Some(usage) = self.usage {
            write!(f, " in use {usage}")?;
        }
        if let Some((s, r, l)) = self.wire {
            write!(f, " on link {l} of S{s} and R{r}")?;
        }
        Ok(())
    }
}

/// Whether nothing is left to happen by itself, not even a deadline.
pub(crate) fn at_rest(steps: &[Step]) -> bool {
    steps.iter().all(|step| step.will == Will::May)
}

/// Fills `out` with every step out of `state`. Deadlines are among them only if nothing else must happen:
/// whatever a deadline is needed for has then been lost for good.
pub(crate) fn steps(config: &Config, state: &State, out: &mut Vec<Step>) {
    out.clear();
    let mut steps = Steps { config, state, out };
    for s in 0..config.senders {
        steps.sender(s);
        steps.sender_faults(s);
    }
    for r in 0..config.receivers {
        steps.receiver(r);
    }
    for s in 0..config.senders {
        for r in 0..config.receivers {
            for l in 0..2 {
                steps.link((s, r, l));
            }
        }
    }
    if steps.out.iter().all(|step| step.will == Will::May) {
        steps.deadlines();
    }
}

struct Steps<'a> {
    config: &'a Config,
    state: &'a State,
    out: &'a mut Vec<Step>,
}

impl Steps<'_> {
    fn add(&mut self, will: Will, name: Name, change: impl FnOnce(&Config, &mut State)) {
        let mut next = *self.state;
        change(self.config, &mut next);
        self.out.push(Step { name, will, next });
    }

    fn sender(&mut self, s: u8) {
        let sender = &self.state.senders[ix(s)];
        if sender.health != Health::Well {
            return;
        }
        for u in 0..self.config.uses {
            let session = sender.sessions[ix(u)];
            if session.phase == Phase::Unmade && self.may_create_sender(s, u) {
                self.add(Will::May, named(('S', s), "is created").usage(u), |c, next| {
                    sender::create(c, next, s, u);
                });
            }
            if session.phase.running() && self.state.left.sender_aborts > 0 {
                self.add(Will::May, named(('S', s), "is aborted").usage(u), |c, next| {
                    next.left.sender_aborts -= 1;
                    next.second_use_hit |= u > 0;
                    sender::give_up(c, next, s, u);
                });
            }
            if session.phase != Phase::Live {
                continue;
            }
            for r in 0..self.config.receivers {
                let target = session.targets[ix(r)];
                let unposted = (0..self.config.writes).find(|op| target.posted & (1 << op) == 0);
                if let (true, Some(op)) = (target.granted, unposted) {
                    let name = named(('S', s), "posts write").op(op).usage(u).wire((s, r, target.link));
                    self.add(Will::Must, name, |c, next| sender::post(c, next, s, u, r, op));
                }
            }
        }
    }

    fn may_create_sender(&self, s: u8, u: u8) -> bool {
        let sessions = &self.state.senders[ix(s)].sessions;
        let later = sessions[ix(u)..].iter().any(|session| session.phase != Phase::Unmade);
        let running = sessions.iter().any(|session| session.phase.running());
        !later && !running && (u == 0 || self.first_use_is_over())
    }

    /// What a caller that reuses an attempt number must wait for.
    fn first_use_is_over(&self) -> bool {
        let config = self.config;
        config.attempts != Attempts::Same
            || (0..config.senders).all(|s| {
                let sender = &self.state.senders[ix(s)];
                sender.health == Health::Dead || sender.sessions[0].safe
            }) && (0..config.receivers).all(|r| {
                let receiver = &self.state.receivers[ix(r)];
                receiver.health == Health::Dead || receiver.uses[0].safe
            })
    }

    fn sender_faults(&mut self, s: u8) {
        let health = self.state.senders[ix(s)].health;
        if health == Health::Well && self.state.left.freezes > 0 {
            self.add(Will::May, named(('S', s), "freezes"), |_, next| {
                next.left.freezes -= 1;
                if next.second_use_exists() {
                    next.second_use_hit = true;
                }
                next.senders[ix(s)].health = Health::Frozen;
            });
        }
        if health == Health::Frozen {
            self.add(Will::May, named(('S', s), "goes on"), |_, next| {
                next.senders[ix(s)].health = Health::Well;
            });
        }
        if health != Health::Dead && self.state.left.sender_deaths > 0 {
            self.add(Will::May, named(('S', s), "dies"), |c, next| network::kill_sender(c, next, s));
        }
    }

    fn receiver(&mut self, r: u8) {
        let receiver = &self.state.receivers[ix(r)];
        if receiver.health != Health::Well {
            return;
        }
        let who = ('R', r);
        for u in 0..self.config.uses {
            let session = receiver.uses[ix(u)];
            if session.phase == Phase::Unmade && self.may_create_receiver(r, u) {
                self.add(Will::May, named(who, "is created").usage(u), |c, next| {
                    receiver::create(c, next, r, u);
                });
            }
            if session.phase == Phase::Boot {
                self.add(Will::Must, named(who, "grants the pages").usage(u), |c, next| {
                    receiver::grant(c, next, r, u);
                });
            }
            if session.phase.running() && self.state.left.receiver_aborts > 0 {
                self.add(Will::May, named(who, "is aborted").usage(u), |c, next| {
                    next.left.receiver_aborts -= 1;
                    next.second_use_hit |= u > 0;
                    receiver::give_up(c, next, r, u);
                });
            }
            for s in 0..self.config.senders {
                let source = session.sources[ix(s)];
                let writes = &self.state.links[ix(s)][ix(r)][ix(source.link)].writes[ix(u)];
                let applying = writes.iter().any(|flight| flight.applying > 0);
                let wire = (s, r, source.link);
                if source.revoke == Revoke::Asked && !applying {
                    let name = named(who, "is told Revoked").usage(u).wire(wire);
                    self.add(Will::Must, name, |c, next| receiver::revoked(c, next, r, u, s));
                }
                if source.fence == Fence::Asked {
                    let name = named(who, "has its fence answered").usage(u).wire(wire);
                    self.add(Will::Must, name, |c, next| receiver::fenced(c, next, r, u, s));
                }
            }
        }
        if self.state.left.receiver_deaths > 0 {
            self.add(Will::May, named(who, "dies"), |c, next| network::kill_receiver(c, next, r));
        }
    }

    fn may_create_receiver(&self, r: u8, u: u8) -> bool {
        let uses = &self.state.receivers[ix(r)].uses;
        let running = uses.iter().any(|session| session.phase.running());
        let first = u == 0 || (uses[0].phase.over() && self.first_use_is_over());
        let connected = |s| receiver::usable_link(self.state, r, s).is_some();
        !running && first && (0..self.config.senders).all(connected)
    }

    fn link(&mut self, wire: Wire) {
        let (s, r, l) = wire;
        let link = &self.state.links[ix(s)][ix(r)][ix(l)];
        let sender = self.state.senders[ix(s)].health;
        let receiver = self.state.receivers[ix(r)].health;
        if let (Health::Well, Some(frame)) = (sender, link.to_sender.first()) {
            let name = named(('S', s), "reads").frame(frame).wire(wire);
            self.add(Will::Must, name, |c, next| sender::receive(c, next, s, r, l));
        }
        if let (Health::Well, Some(frame)) = (receiver, link.to_receiver.first()) {
            let name = named(('R', r), "reads").frame(frame).wire(wire);
            self.add(Will::Must, name, |c, next| receiver::receive(c, next, r, s, l));
        }
        let alive = sender != Health::Dead && receiver != Health::Dead;
        if link.stage == Stage::Up && alive && self.state.left.breaks > 0 {
            self.add(Will::May, named(('R', r), "loses").wire(wire), |_, next| {
                network::break_link(next, wire);
            });
        }
        let again = l == 0
            && link.receiver_knows
            && self.state.links[ix(s)][ix(r)][1].stage == Stage::Absent
            && self.state.left.reconnects > 0;
        if again && alive {
            let name = named(('R', r), "connects again").wire((s, r, 1));
            self.add(Will::May, name, |_, next| network::reconnect(next, s, r));
        }
        if link.stage == Stage::Broken && !link.sender_knows && sender == Health::Well {
            let name = named(('S', s), "is told LinkDown").wire(wire);
            self.add(Will::Must, name, |c, next| sender::link_down(c, next, s, r, l));
        }
        if link.stage == Stage::Broken && !link.receiver_knows && receiver == Health::Well {
            let flying = link.writes.as_flattened().iter().any(|flight| flight.copies > 0);
            if self.config.one_sided() && !flying {
                let name = named(('R', r), "is told LinkDown, quiesced,").wire(wire);
                self.add(Will::Must, name, |c, next| receiver::link_down(c, next, r, s, l, true));
            }
            let name = named(('R', r), "is told LinkDown, not quiesced,").wire(wire);
            self.add(Will::Must, name, |c, next| receiver::link_down(c, next, r, s, l, false));
        }
        for usage in 0..self.config.uses {
            for op in 0..self.config.writes {
                self.write(wire, usage, op);
            }
        }
    }

    fn write(&mut self, wire: Wire, usage: u8, op: u8) {
        let (s, r, l) = wire;
        let link = &self.state.links[ix(s)][ix(r)][ix(l)];
        let flight = link.writes[ix(usage)][ix(op)];
        let broken = link.stage == Stage::Broken;
        let left = self.state.left;
        let named = |what| named(('R', r), what).op(op).usage(usage).wire(wire);
        if self.config.one_sided() {
            if flight.copies > 0 && !link.cut {
                self.add(Will::Must, named("gets write"), |_, next| network::land(next, wire, usage, op));
            }
        } else {
            if flight.copies > 0 {
                let name = named("takes from a lane write");
                self.add(Will::Must, name, |c, next| network::take(c, next, wire, usage, op));
            }
            if flight.copies > 0 && broken {
                self.add(Will::Must, named("never sees write"), |_, next| {
                    network::lose(next, wire, usage, op);
                });
            }
            if flight.copies == 1 && left.doubles > 0 {
                self.add(Will::May, named("will see twice write"), |_, next| {
                    next.left.doubles -= 1;
                    next.link(s, r, l).writes[ix(usage)][ix(op)].copies += 1;
                });
            }
            if flight.applying > 0 {
                let name = named("has applied write");
                self.add(Will::Must, name, |c, next| {
                    network::applied(c, next, wire, usage, op, Settled::Good);
                });
            }
            if flight.applying > 0 && left.damages > 0 {
                let name = named("has found damaged write");
                self.add(Will::May, name, |c, next| {
                    next.left.damages -= 1;
                    network::applied(c, next, wire, usage, op, Settled::Damaged);
                });
            }
        }
        if self.state.senders[ix(s)].health != Health::Well || flight.open == 0 {
            return;
        }
        let ends = [
            (flight.acks > 0, Settled::Good, "lets settle well write"),
            (flight.nacks > 0, Settled::Damaged, "lets settle as damaged write"),
            (broken, Settled::Lost, "lets settle as lost write"),
        ];
        for (due, end, what) in ends {
            if due {
                self.add(Will::Must, named(what), |c, next| network::settle(c, next, wire, usage, op, end));
            }
        }
        if !broken && left.write_errors > 0 {
            self.add(Will::May, named("lets fail write"), |c, next| {
                next.left.write_errors -= 1;
                next.hit();
                network::settle(c, next, wire, usage, op, Settled::Lost);
            });
        }
    }

    fn misses_a_party(&self, u: u8) -> bool {
        let senders = self.state.senders[..ix(self.config.senders)].iter();
        let receivers = self.state.receivers[..ix(self.config.receivers)].iter();
        let mut senders = senders.map(|sender| (sender.health, sender.sessions[ix(u)].phase));
        let mut receivers = receivers.map(|receiver| (receiver.health, receiver.uses[ix(u)].phase));
        let missing = |(health, phase)| match health {
            Health::Well => phase == Phase::Unmade,
            Health::Frozen => true,
            Health::Dead => false,
        };
        senders.any(missing) || receivers.any(missing)
    }

    fn deadlines(&mut self) {
        for u in 0..self.config.uses {
            // A use that misses a party, or has a frozen one, may run out of time; no other may.
            let excused = self.misses_a_party(u);
            for s in 0..self.config.senders {
                let sender = self.state.senders[ix(s)];
                if sender.health == Health::Well && sender.sessions[ix(u)].phase.running() {
                    let name = named(('S', s), "runs out of time").usage(u);
                    self.add(Will::Deadline, name, |c, next| {
                        next.session(s, u).late += u8::from(next.cause && !excused);
                        next.second_use_hit |= u > 0 && excused;
                        sender::give_up(c, next, s, u);
                    });
                }
            }
            for r in 0..self.config.receivers {
                let receiver = self.state.receivers[ix(r)];
                let session = receiver.uses[ix(u)];
                if receiver.health == Health::Well && session.phase.running() {
                    let name = named(('R', r), "runs out of time").usage(u);
                    self.add(Will::Deadline, name, |c, next| {
                        next.usage(r, u).late += u8::from(next.cause && !excused);
                        next.second_use_hit |= u > 0 && excused;
                        receiver::give_up(c, next, r, u);
                    });
                }
                if receiver.health == Health::Well && receiver::drains(self.config, &session) {
                    let name = named(('R', r), "has drained for too long").usage(u);
                    self.add(Will::Deadline, name, |c, next| {
                        next.usage(r, u).late += u8::from(next.cause);
                        receiver::fence(c, next, r, u);
                    });
                }
            }
        }
    }
}

fn named(who: (char, u8), what: &'static str) -> Name {
    Name { who, what, usage: None, frame: None, op: None, wire: None }
}

impl Name {
    fn usage(self, usage: u8) -> Self {
        Self { usage: Some(usage), ..self }
    }

    fn frame(self, frame: Frame) -> Self {
        Self { frame: Some(frame), ..self }
    }

    fn op(self, op: u8) -> Self {
        Self { op: Some(op), ..self }
    }

    fn wire(self, wire: Wire) -> Self {
        Self { wire: Some(wire), ..self }
    }
}
