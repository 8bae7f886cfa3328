//! What must hold after every step, and where nothing is left to happen.

use crate::config::Config;
use crate::state::{Fence, Health, Phase, State, ix};

/// Checks one step.
pub(crate) fn step(config: &Config, before: &State, after: &State) -> Result<(), String> {
    if let Some(rule) = after.broken {
        return Err(rule.to_owned());
    }
    for u in 0..config.uses {
        for s in 0..config.senders {
            sender(config, before, after, s, u)?;
        }
        for r in 0..config.receivers {
            receiver(config, before, after, r, u)?;
        }
    }
    Ok(())
}

fn sender(config: &Config, before: &State, after: &State, s: u8, u: u8) -> Result<(), String> {
    if after.senders[ix(s)].health == Health::Dead {
        return Ok(());
    }
    let was = &before.senders[ix(s)].sessions[ix(u)];
    let is = &after.senders[ix(s)].sessions[ix(u)];
    must(!was.phase.over() || was.phase == is.phase, || format!("S{s} changed its end in use {u}"))?;
    must(!was.safe || is.safe, || format!("S{s} took back its Safe in use {u}"))?;
    must(is.late <= config.late.0, || format!("S{s} needed {} deadlines in use {u}", is.late))?;
    for r in 0..config.receivers {
        let flights = after.links[ix(s)][ix(r)].iter().flat_map(|link| link.writes.as_flattened());
        let open: u8 = flights.filter(|flight| flight.session == u).map(|flight| flight.open).sum();
        must(!is.safe || open == 0, || format!("a write reads pages of S{s} that were given back"))?;
        let counted = is.targets[ix(r)].open;
        must(open == counted, || format!("S{s} waits for {counted} writes to R{r}, {open} are open"))?;
    }
    Ok(())
}

fn receiver(config: &Config, before: &State, after: &State, r: u8, u: u8) -> Result<(), String> {
    if after.receivers[ix(r)].health == Health::Dead {
        return Ok(());
    }
    let was = &before.receivers[ix(r)].uses[ix(u)];
    let is = &after.receivers[ix(r)].uses[ix(u)];
    must(!was.phase.over() || was.phase == is.phase, || format!("R{r} changed its end in use {u}"))?;
    must(!was.safe || is.safe, || format!("R{r} took back its Safe in use {u}"))?;
    must(is.late <= config.late.1, || format!("R{r} needed {} deadlines in use {u}", is.late))?;
    let full = is.sources[..ix(config.senders)].iter().all(|source| source.truth == config.all_ops());
    must(is.phase != Phase::Success || full, || format!("R{r} has Success in use {u} but not all bytes"))
}

/// Checks a state in which nothing is left to happen by itself: everybody alive is done.
pub(crate) fn end(config: &Config, state: &State) -> Result<(), String> {
    for u in 0..config.uses {
        for s in 0..config.senders {
            let sender = &state.senders[ix(s)];
            let session = &sender.sessions[ix(u)];
            let made = sender.health == Health::Well && session.phase != Phase::Unmade;
            must(!made || session.safe, || format!("S{s} never got its pages back in use {u}"))?;
            must(!made || session.phase.over(), || format!("S{s} is stuck in use {u}"))?;
        }
        for r in 0..config.receivers {
            let receiver = &state.receivers[ix(r)];
            let session = &receiver.uses[ix(u)];
            let made = receiver.health == Health::Well && session.phase != Phase::Unmade;
            let refused = session.sources.iter().any(|source| source.fence == Fence::Refused);
            must(!made || session.phase.over(), || format!("R{r} is stuck in use {u}"))?;
            must(!made || session.safe || refused, || format!("R{r} never got its pages back in use {u}"))?;
        }
    }
    second_use(config, state)
}

/// Whether the first use of the room has gone well for everybody.
pub(crate) fn succeeded(config: &Config, state: &State) -> bool {
    let senders = state.senders[..ix(config.senders)].iter().map(|sender| sender.sessions[0].phase);
    let receivers = state.receivers[..ix(config.receivers)].iter().map(|receiver| receiver.uses[0].phase);
    senders.chain(receivers).all(|phase| phase == Phase::Success)
}

/// What happened to the first use of a room must not reach the second.
fn second_use(config: &Config, state: &State) -> Result<(), String> {
    let phases: Vec<Phase> = state.second_use_phases(config).collect();
    let wanted = config.clean_second_use && !state.second_use_hit && !phases.contains(&Phase::Unmade);
    must(!wanted || phases.iter().all(|&phase| phase == Phase::Success), || {
        "a second use failed although nothing happened to it".to_owned()
    })
}

fn must(holds: bool, rule: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule()) }
}
