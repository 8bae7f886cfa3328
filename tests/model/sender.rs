//! What a sender process does: adopts joins, answers frames, settles, reports.

use crate::config::{Attempts, Config, Mutation};
use crate::network;
use crate::state::{Health, Kind, Parked, Phase, State, ix};

/// How a posted write ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Settled {
    Good,
    /// Its payload arrived damaged; it may be posted again.
    Damaged,
    Lost,
}

/// Whether two uses of the room bear the same attempt number.
fn same_attempt(config: &Config, a: u8, b: u8) -> bool {
    config.attempts != Attempts::Numbered || a == b
}

/// The caller makes a sender for use `u`: it adopts what is parked for its attempt.
pub(crate) fn create(config: &Config, state: &mut State, s: u8, u: u8) {
    state.session(s, u).phase = Phase::Boot;
    for r in 0..config.receivers {
        for usage in 0..config.uses {
            let parked = state.senders[ix(s)].parked[ix(r)][ix(usage)];
            let wanted = same_attempt(config, u, usage) || config.has(Mutation::AnyAttempt);
            if !parked.held || !wanted {
                continue;
            }
            state.senders[ix(s)].parked[ix(r)][ix(usage)] = Parked::default();
            if state.session(s, u).phase.over() {
                state.target(s, u, r).told = true;
                refuse(config, state, s, r, parked.link, usage);
                continue;
            }
            join(config, state, s, u, r, parked.link, usage);
            let target = state.target(s, u, r);
            if target.joined && target.usage == usage {
                target.granted = parked.granted;
            }
        }
    }
    heed_tombstones(config, state, s, u);
    pump(config, state, s);
}

/// A destination that gave up before the sender was made ends it at once, unless it has joined anew.
fn heed_tombstones(config: &Config, state: &mut State, s: u8, u: u8) {
    for r in 0..config.receivers {
        for usage in (0..config.uses).filter(|&usage| same_attempt(config, u, usage)) {
            let tombstones = &mut state.senders[ix(s)].tombstones[ix(r)];
            let dead = *tombstones & (1 << usage) != 0;
            *tombstones &= !(1 << usage);
            let session = state.session(s, u);
            let joined = session.targets[ix(r)].joined;
            if dead && !joined && session.phase.running() && !config.has(Mutation::MuteTombstone) {
                state.target(s, u, r).told = true;
                fail(config, state, s, u, Some(r));
            }
        }
    }
}

/// The caller gives up, or a deadline passes.
pub(crate) fn give_up(config: &Config, state: &mut State, s: u8, u: u8) {
    fail(config, state, s, u, None);
    pump(config, state, s);
}

/// Reads the oldest frame of a link.
pub(crate) fn receive(config: &Config, state: &mut State, s: u8, r: u8, l: u8) {
    let Some(frame) = state.link(s, r, l).to_sender.pop() else { return };
    match frame.kind {
        Kind::Join => take_join(config, state, s, r, l, frame.usage),
        Kind::Grant => take_grant(config, state, s, r, l, frame.usage),
        Kind::Abort => take_abort(config, state, s, r, l, frame.usage),
        Kind::Done | Kind::Failed | Kind::Quiet => unreachable!("a sender's frame"),
    }
    pump(config, state, s);
}

fn take_join(config: &Config, state: &mut State, s: u8, r: u8, l: u8, usage: u8) {
    let running = running(config, state, s);
    if let Some(u) = running.filter(|&u| same_attempt(config, u, usage)) {
        join(config, state, s, u, r, l, usage);
        return;
    }
    if let Some(u) = ended(config, state, s, usage) {
        let target = state.target(s, u, r);
        let unheard = !target.joined && !target.told;
        if unheard || config.has(Mutation::EndlessTombstone) {
            target.told = true;
            refuse(config, state, s, r, l, usage);
            return;
        }
    }
    if running.is_some() && config.has(Mutation::RefuseOtherAttempt) {
        refuse(config, state, s, r, l, usage);
        return;
    }
    park(state, s, r, l, usage);
}

fn park(state: &mut State, s: u8, r: u8, l: u8, usage: u8) {
    state.senders[ix(s)].parked[ix(r)][ix(usage)] = Parked { held: true, link: l, granted: false };
}

/// The newest session that has ended and bears the attempt of this use.
fn ended(config: &Config, state: &State, s: u8, usage: u8) -> Option<u8> {
    let over = |u: &u8| state.senders[ix(s)].sessions[ix(*u)].phase.over();
    (0..config.uses).rev().filter(over).find(|&u| same_attempt(config, u, usage))
}

/// A join for a running session: the first names the destinations, later ones must agree.
fn join(config: &Config, state: &mut State, s: u8, u: u8, r: u8, l: u8, usage: u8) {
    let list = config.lists[ix(r)];
    let named = list & (1 << r) != 0;
    let session = state.session(s, u);
    if named && session.list == 0 {
        session.list = list;
    }
    let expected = session.list & (1 << r) != 0 && !session.targets[ix(r)].joined;
    if named && expected && session.list == list {
        let target = state.target(s, u, r);
        target.joined = true;
        target.usage = usage;
        target.link = l;
        return;
    }
    refuse(config, state, s, r, l, usage);
    if expected && !config.has(Mutation::RefusalKeepsWaiting) {
        state.target(s, u, r).told = true;
        fail(config, state, s, u, None);
    }
}

/// Answers a join that no session takes: nothing was written and nothing will be.
fn refuse(config: &Config, state: &mut State, s: u8, r: u8, l: u8, usage: u8) {
    state.send_to_receiver(s, r, l, Kind::Failed, usage);
    if !config.has(Mutation::NoQuietAfterRefusal) {
        state.send_to_receiver(s, r, l, Kind::Quiet, usage);
    }
}

fn take_grant(config: &Config, state: &mut State, s: u8, r: u8, l: u8, usage: u8) {
    if let Some(u) = running(config, state, s) {
        let target = state.target(s, u, r);
        if target.joined && target.usage == usage && target.link == l {
            target.granted = true;
            return;
        }
    }
    let parked = &mut state.senders[ix(s)].parked[ix(r)][ix(usage)];
    if parked.held && parked.link == l {
        parked.granted = true;
    }
}

fn take_abort(config: &Config, state: &mut State, s: u8, r: u8, l: u8, usage: u8) {
    for u in 0..config.uses {
        let target = state.target(s, u, r);
        if target.joined && target.usage == usage && target.link == l {
            if state.session(s, u).phase.running() {
                fail(config, state, s, u, Some(r));
            } else if !state.target(s, u, r).told {
                let target = state.target(s, u, r);
                target.told = true;
                target.owes_quiet = true;
            }
            return;
        }
    }
    let answered = ended(config, state, s, usage).is_some();
    let parked = &mut state.senders[ix(s)].parked[ix(r)][ix(usage)];
    let held = parked.held && parked.link == l;
    if held && !config.has(Mutation::NoTombstone) {
        *parked = Parked::default();
    }
    // The join of a room that has ended was answered: a tombstone would only hit the next use.
    if held || !answered {
        state.senders[ix(s)].tombstones[ix(r)] |= 1 << usage;
    }
    state.send_to_receiver(s, r, l, Kind::Quiet, usage);
}

/// The transport reports the end of a link.
pub(crate) fn link_down(config: &Config, state: &mut State, s: u8, r: u8, l: u8) {
    let link = state.link(s, r, l);
    if link.sender_knows {
        return;
    }
    link.sender_knows = true;
    link.to_sender.clear();
    for usage in 0..config.uses {
        let parked = &mut state.senders[ix(s)].parked[ix(r)][ix(usage)];
        if parked.held && parked.link == l && !config.has(Mutation::ParkedOutlivesLink) {
            *parked = Parked::default();
        }
    }
    for u in 0..config.uses {
        let session = *state.session(s, u);
        let target = session.targets[ix(r)];
        let served = target.done && target.settled == config.all_ops();
        if session.phase.running() && target.joined && target.link == l && !served {
            fail(config, state, s, u, Some(r));
        }
    }
    pump(config, state, s);
}

/// Posts write `op` of use `u` to receiver `r`.
pub(crate) fn post(config: &Config, state: &mut State, s: u8, u: u8, r: u8, op: u8) {
    let target = state.target(s, u, r);
    target.posted |= 1 << op;
    target.open += 1;
    let target = *target;
    let newest = (0..2).rev().find(|&l| state.link(s, r, l).stage == crate::state::Stage::Up);
    let link = match newest {
        Some(newest) if config.has(Mutation::UnboundGrant) => newest,
        _ => target.link,
    };
    network::accept(config, state, (s, r, link), target.usage, op, u);
    pump(config, state, s);
}

/// A write of use `u` to receiver `r` is over.
pub(crate) fn settle(config: &Config, state: &mut State, s: u8, u: u8, r: u8, op: u8, end: Settled) {
    let running = state.session(s, u).phase.running();
    let target = state.target(s, u, r);
    target.open -= 1;
    match end {
        Settled::Good => target.settled |= 1 << op,
        Settled::Damaged => target.posted &= !(1 << op),
        Settled::Lost if running && target.settled & (1 << op) == 0 => fail(config, state, s, u, None),
        Settled::Lost => {}
    }
    pump(config, state, s);
}

/// The session of this process that still runs; there is at most one a room.
fn running(config: &Config, state: &State, s: u8) -> Option<u8> {
    (0..config.uses).find(|&u| state.senders[ix(s)].sessions[ix(u)].phase.running())
}

/// Ends a session. `by` is the destination that caused it and needs no telling.
fn fail(config: &Config, state: &mut State, s: u8, u: u8, by: Option<u8>) {
    state.cause = true;
    let session = state.session(s, u);
    session.phase = Phase::Failed;
    for r in 0..config.receivers {
        let target = &mut session.targets[ix(r)];
        let served = target.done && target.settled == config.all_ops();
        let hidden = config.has(Mutation::NoFailedBeforeGrant) && !target.granted;
        let due = target.joined && !target.told && !hidden;
        if due && (!served || by == Some(r)) {
            target.told = true;
            target.owes_failed = by != Some(r);
            target.owes_quiet = true;
        }
    }
}

/// Sends what is due and draws the conclusions, after anything has changed.
pub(crate) fn pump(config: &Config, state: &mut State, s: u8) {
    if state.senders[ix(s)].health != Health::Well {
        return;
    }
    for u in 0..config.uses {
        let session = state.session(s, u);
        let list = session.list;
        let listed = |r: &u8| list & (1 << r) != 0;
        if session.phase == Phase::Boot
            && list != 0
            && (0..config.receivers).filter(listed).all(|r| session.targets[ix(r)].granted)
        {
            session.phase = Phase::Live;
        }
        if state.session(s, u).phase == Phase::Live {
            for r in (0..config.receivers).filter(listed) {
                let target = *state.target(s, u, r);
                let settled = target.settled == config.all_ops();
                let posted = target.posted == config.all_ops();
                if !target.done
                    && posted
                    && (settled || config.has(Mutation::EarlyDone) || !config.one_sided())
                {
                    state.target(s, u, r).done = true;
                    state.send_to_receiver(s, r, target.link, Kind::Done, target.usage);
                }
            }
            let session = state.session(s, u);
            let served = |r| {
                let target = &session.targets[ix(r)];
                target.done && target.settled == config.all_ops() && target.open == 0
            };
            if (0..config.receivers).filter(listed).all(served) {
                session.phase = Phase::Success;
            }
        }
        for r in 0..config.receivers {
            let target = *state.target(s, u, r);
            if target.owes_failed {
                state.target(s, u, r).owes_failed = false;
                state.send_to_receiver(s, r, target.link, Kind::Failed, target.usage);
            }
            if target.owes_quiet && (target.open == 0 || config.has(Mutation::EarlyQuiet)) {
                state.target(s, u, r).owes_quiet = false;
                state.send_to_receiver(s, r, target.link, Kind::Quiet, target.usage);
            }
        }
        let session = state.session(s, u);
        let settled = session.targets.iter().all(|target| target.open == 0);
        if session.phase.over() && (settled || config.has(Mutation::EagerSender)) {
            session.safe = true;
        }
    }
}
