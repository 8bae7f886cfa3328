//! What a receiver process does: joins, grants, counts, revokes, fences, gives pages back.

use crate::config::{Config, Mutation};
use crate::state::{Fence, Kind, Phase, ReceiverSession, Revoke, Source, Stage, State, ix};

/// The newest link to a source that this side takes for usable.
pub(crate) fn usable_link(state: &State, r: u8, s: u8) -> Option<u8> {
    (0..2).rev().find(|&l| {
        let link = &state.links[ix(s)][ix(r)][ix(l)];
        link.stage != Stage::Absent && !link.receiver_knows
    })
}

/// The caller makes a receiver for use `u`: every source gets a `Join`.
pub(crate) fn create(config: &Config, state: &mut State, r: u8, u: u8) {
    state.usage(r, u).phase = Phase::Boot;
    for s in 0..config.senders {
        let l = usable_link(state, r, s).expect("creation waits for a link");
        state.source(r, u, s).link = l;
        if u > 0 && state.link(s, r, l).stage == Stage::Broken {
            state.second_use_hit = true;
        }
        state.send_to_sender(s, r, l, Kind::Join, u);
    }
}

/// The caller lends its pages.
pub(crate) fn grant(config: &Config, state: &mut State, r: u8, u: u8) {
    state.usage(r, u).phase = Phase::Live;
    for s in 0..config.senders {
        let source = state.source(r, u, s);
        source.granted = true;
        let l = source.link;
        state.send_to_sender(s, r, l, Kind::Grant, u);
    }
}

/// The caller gives up, or a deadline passes.
pub(crate) fn give_up(config: &Config, state: &mut State, r: u8, u: u8) {
    fail(config, state, r, u, None);
    pump(config, state, r, u);
}

/// Reads the oldest frame of a link.
pub(crate) fn receive(config: &Config, state: &mut State, r: u8, s: u8, l: u8) {
    let Some(frame) = state.link(s, r, l).to_receiver.pop() else { return };
    let u = frame.usage;
    let session = *state.usage(r, u);
    if session.phase == Phase::Unmade || session.sources[ix(s)].link != l {
        return;
    }
    match frame.kind {
        Kind::Done => {
            let source = state.source(r, u, s);
            source.done = true;
            source.quiet |= config.one_sided();
        }
        Kind::Failed => {
            if matches!(session.phase, Phase::Boot | Phase::Live) {
                fail(config, state, r, u, Some(s));
            }
        }
        Kind::Quiet => state.source(r, u, s).quiet |= config.one_sided(),
        Kind::Join | Kind::Grant | Kind::Abort => unreachable!("a receiver's frame"),
    }
    pump(config, state, r, u);
}

/// The transport reports the end of a link. `quiesced`: it vouches that nothing can land any more.
pub(crate) fn link_down(config: &Config, state: &mut State, r: u8, s: u8, l: u8, quiesced: bool) {
    let link = state.link(s, r, l);
    link.receiver_knows = true;
    link.to_receiver.clear();
    link.cut |= quiesced;
    for u in 0..config.uses {
        let session = *state.usage(r, u);
        if session.phase == Phase::Unmade || session.sources[ix(s)].link != l {
            continue;
        }
        let source = state.source(r, u, s);
        source.down = true;
        source.quiet |= config.one_sided() && (quiesced || config.has(Mutation::DownIsQuiet));
        let complete = complete(config, source);
        if matches!(session.phase, Phase::Boot | Phase::Live) && !complete {
            fail(config, state, r, u, Some(s));
        }
        pump(config, state, r, u);
    }
}

/// The drain deadline of use `u` passes: links whose writers have not become quiet are cut off.
pub(crate) fn fence(config: &Config, state: &mut State, r: u8, u: u8) {
    for s in 0..config.senders {
        let source = *state.source(r, u, s);
        if quiet(config, &source) {
            continue;
        }
        state.source(r, u, s).fence = Fence::Asked;
        // A fence hits every room of its link.
        state.second_use_hit |= state.second_use_exists();
        let link = state.link(s, r, source.link);
        link.stage = Stage::Broken;
        if !link.receiver_knows {
            link_down(config, state, r, s, source.link, false);
        }
    }
}

/// The transport answers a fence.
pub(crate) fn fenced(config: &Config, state: &mut State, r: u8, u: u8, s: u8) {
    let l = state.source(r, u, s).link;
    if config.vouches {
        let link = state.link(s, r, l);
        link.cut = true;
        for flight in link.writes.as_flattened_mut() {
            flight.copies = 0;
        }
    }
    for other in 0..config.uses {
        let source = state.source(r, other, s);
        if source.link == l && (other == u || source.fence == Fence::Open) && source.granted {
            source.fence = if config.vouches { Fence::Proven } else { Fence::Refused };
        }
    }
    for other in 0..config.uses {
        pump(config, state, r, other);
    }
}

/// The transport reports that nothing applies writes of this grant any more.
pub(crate) fn revoked(config: &Config, state: &mut State, r: u8, u: u8, s: u8) {
    state.source(r, u, s).revoke = Revoke::Revoked;
    pump(config, state, r, u);
}

/// Whether a use of the room waits for somebody, and so has a deadline.
pub(crate) fn drains(config: &Config, session: &ReceiverSession) -> bool {
    let waits = |source: &Source| !quiet(config, source) && source.fence == Fence::Open;
    session.phase.over() && !session.safe && config.one_sided() && session.sources.iter().any(waits)
}

/// Nothing that the source posted can touch the pages.
fn quiet(config: &Config, source: &Source) -> bool {
    let proven = if config.one_sided() {
        source.quiet || source.fence == Fence::Proven
    } else {
        source.revoke == Revoke::Revoked
    };
    proven || !source.granted
}

/// Everything of this source is in.
fn complete(config: &Config, source: &Source) -> bool {
    let counted = match config.has(Mutation::CountEvery) {
        true => source.count >= config.writes,
        false => source.ops == config.all_ops(),
    };
    source.done && (config.one_sided() || counted)
}

/// Ends a use. `by` is the source that caused it: it has said `Failed`, and `Quiet` will follow, or its
/// link is gone.
fn fail(config: &Config, state: &mut State, r: u8, u: u8, by: Option<u8>) {
    state.cause = true;
    state.usage(r, u).phase = Phase::Failed;
    for s in 0..config.senders {
        let source = *state.source(r, u, s);
        let hidden = config.has(Mutation::NoAbortBeforeGrant) && !source.granted;
        if by != Some(s) && !source.down && !complete(config, &source) && !hidden {
            state.send_to_sender(s, r, source.link, Kind::Abort, u);
        }
    }
    revoke_all(config, state, r, u);
}

fn revoke_all(config: &Config, state: &mut State, r: u8, u: u8) {
    for s in 0..config.senders {
        let source = state.source(r, u, s);
        if !config.one_sided() && source.granted && source.revoke == Revoke::Admitted {
            source.revoke = match config.has(Mutation::RevokedAtOnce) {
                true => Revoke::Revoked,
                false => Revoke::Asked,
            };
        }
    }
}

/// Draws the conclusions after anything has changed.
pub(crate) fn pump(config: &Config, state: &mut State, r: u8, u: u8) {
    let sources = 0..usize::from(config.senders);
    if state.usage(r, u).phase == Phase::Live
        && state.usage(r, u).sources[sources.clone()].iter().all(|source| complete(config, source))
    {
        state.usage(r, u).phase = Phase::Closing;
        revoke_all(config, state, r, u);
    }
    let session = state.usage(r, u);
    let all_quiet = session.sources[sources].iter().all(|source| quiet(config, source));
    if session.phase == Phase::Closing && all_quiet {
        session.phase = Phase::Success;
    }
    if session.phase.over() && all_quiet {
        session.safe = true;
    }
}
