//! The decode process: lends pages, waits until they are filled, checks them.

use crate::case::{Case, Plan};
use crate::options::Options;
use crate::pipe::{Landed, Order, Reply, hear, tell};
use crate::pool::payload;
use crate::side::{Side, cpu, now, peak_rss};
use anyhow::{Context, Result, bail};
use kvferry::{Change, Grant, KVPoll, KVReceiver, Rank, Room, RoomOptions, Source, Sources};
use std::io::{stdin, stdout};
use std::time::Duration;

pub(crate) fn run(options: &Options, case: &Case) -> Result<()> {
    let (mut orders, mut replies) = (stdin().lock(), stdout().lock());
    let mut side = Side::new(options, case, "decode")?;
    let Some(Order::Meet { addresses }) = hear(&mut orders)? else { bail!("no prefill process") };
    while let Some(order) = hear(&mut orders)? {
        let Order::Arm { repetition } = order else { bail!("met twice") };
        let plan = case.plan(repetition);
        side.pool.clear();
        let receivers = lend(&side, case, &plan, repetition, &addresses)?;
        let before = cpu();
        tell(&mut replies, &Reply::Armed)?;
        let at = wait(&side, case, &receivers)?;
        let cpu = cpu() - before;
        let payloads = (0_u32..).zip(&receivers);
        let verified = payloads.into_iter().all(|(request, receiver)| {
            receiver.payload().is_some_and(|bytes| *bytes == payload(repetition, request))
        });
        let verified = verified && side.pool.holds(&plan);
        tell(&mut replies, &Reply::Landed(Landed { at, verified, cpu, peak_rss: peak_rss()? }))?;
    }
    Ok(())
}

/// The room of a request. Each is used once.
pub(crate) fn room(case: &Case, repetition: u32, request: u32) -> Room {
    Room(u64::from(repetition) * u64::from(case.requests) + u64::from(request))
}

fn lend(
    side: &Side,
    case: &Case,
    plan: &Plan,
    repetition: u32,
    addresses: &[(String, Vec<u8>)],
) -> Result<Vec<KVReceiver>> {
    let mut receivers = Vec::new();
    for request in 0..case.requests {
        let sources = Sources::Ranks(vec![Source::new(Rank::default(), addresses.to_vec())]);
        let options = RoomOptions::tag(request.into());
        let receiver = side.engine.receiver(room(case, repetition, request), sources, options)?;
        let (_, pages) = plan.of(case, request);
        receiver.grant(Grant::new(0..case.tokens()).pages(side.kv, pages))?;
        receivers.push(receiver);
    }
    if side.engine.progress().is_ok() {
        // Driven here: nothing would leave before the other process waits for it.
        let granted = || receivers.iter().all(|receiver| receiver.poll() != KVPoll::Bootstrapping);
        side.until(granted, || ())?;
    }
    // What was told of the start is of no interest.
    side.engine.changes(&mut Vec::new());
    Ok(receivers)
}

/// When each request was known to be in place.
fn wait(side: &Side, case: &Case, receivers: &[KVReceiver]) -> Result<Vec<u64>> {
    let mut at = vec![0; receivers.len()];
    if case.latency || receivers.len() == 1 {
        for (receiver, at) in receivers.iter().zip(&mut at) {
            let is_done = || receiver.poll().is_terminal();
            side.until(is_done, || {
                receiver.wait(Duration::MAX);
            })?;
            *at = now();
            check(receiver)?;
        }
        return Ok(at);
    }
    let mut left = receivers.len();
    let mut changes = Vec::new();
    while left > 0 {
        side.changes(&mut changes)?;
        let time = now();
        for Change { tag, state, .. } in &changes {
            let request = usize::try_from(*tag)?;
            let known = at.get_mut(request).context("a change of no request")?;
            if state.is_terminal() && *known == 0 {
                *known = time;
                left -= 1;
                check(&receivers[request])?;
            }
        }
    }
    Ok(at)
}

fn check(receiver: &KVReceiver) -> Result<()> {
    match receiver.error() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}
