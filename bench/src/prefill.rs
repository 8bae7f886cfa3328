//! The prefill process: starts the decode process, sends, and gathers the figures of both.

use crate::case::Case;
use crate::decode::room;
use crate::options::Options;
use crate::pipe::{Landed, Order, Reply, hear, tell};
use crate::pool::payload;
use crate::report::{Micros, Peaks, Repetition, Report};
use crate::side::{Side, cpu, now, peak_rss, seconds};
use anyhow::{Context, Result, bail};
use kvferry::{Chunk, Finish, KVSender, RoomOptions};
use std::io::{BufReader, BufWriter};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The decode process.
#[derive(Debug)]
struct Decode {
    child: Child,
    orders: BufWriter<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

pub(crate) fn run(options: &Options, case: &Case) -> Result<Report> {
    let mut side = Side::new(options, case, "prefill")?;
    side.pool.fill();
    let mut decode = Decode::start(&options.arguments(case))?;
    tell(&mut decode.orders, &Order::Meet { addresses: side.engine.addresses() })?;
    let warmup = repeat(&side, &mut decode, case, 0)?;
    let mut peaks = Peaks::default();
    let mut reps = Vec::new();
    for number in 1..=options.reps {
        let (rep, receiver) = repeat(&side, &mut decode, case, number)?;
        peaks = Peaks { sender: peak_rss()?, receiver };
        reps.push(rep);
    }
    decode.end()?;
    Ok(Report {
        schema: "peerbench-1",
        runner: format!("kvferry-{}", options.label()),
        case: case.name,
        pool_bytes: case.pool_bytes(),
        warmup: warmup.0,
        reps,
        peak_rss: peaks,
    })
}

/// One repetition, and the most bytes resident at the other side.
fn repeat(side: &Side, decode: &mut Decode, case: &Case, number: u32) -> Result<(Repetition, u64)> {
    let senders = (0..case.requests).map(|request| {
        let options = RoomOptions::tag(request.into());
        side.engine.sender(room(case, number, request), options)
    });
    let senders = senders.collect::<Result<Vec<_>, _>>()?;
    tell(&mut decode.orders, &Order::Arm { repetition: number })?;
    let granted = || senders.iter().all(|sender| sender.granted().is_some() || sender.poll().is_terminal());
    let block = || {
        for sender in &senders {
            pollster::block_on(sender.wait_granted());
        }
    };
    side.until(granted, block)?;
    let Reply::Armed = decode.hear()? else { bail!("pages were not lent") };

    let plan = case.plan(number);
    let payloads: Vec<_> = (0..case.requests).map(|request| payload(number, request)).collect();
    let send = |request: u32, sender: &KVSender| -> Result<()> {
        let (pages, _) = plan.of(case, request);
        sender.send(Chunk::new(0..case.tokens()).pages(side.kv, pages))?;
        sender.finish(Finish::new(case.tokens()).payload(&payloads[request as usize]))?;
        Ok(())
    };
    let (before, start) = (cpu(), now());
    let mut starts = Vec::new();
    let mut rounds = Vec::new();
    for (request, sender) in (0_u32..).zip(&senders) {
        let begin = now();
        starts.push(if case.latency { begin } else { start });
        send(request, sender)?;
        if case.latency {
            end(side, sender)?;
            rounds.push(now() - begin);
        }
    }
    for sender in &senders {
        end(side, sender)?;
    }
    let cpu_sender = cpu() - before;
    let Reply::Landed(Landed { at, verified, cpu, peak_rss }) = decode.hear()? else {
        bail!("nothing was said of the end")
    };
    let last = at.iter().copied().max().unwrap_or_default();
    let one_way: Vec<u64> = at.iter().zip(&starts).map(|(at, start)| at.saturating_sub(*start)).collect();
    let repetition = Repetition {
        seconds: seconds(last.saturating_sub(start)),
        bytes: case.bytes(),
        verified,
        cpu_sender,
        cpu_receiver: cpu,
        round_us: case.latency.then(|| Micros::of(rounds)),
        oneway_us: case.latency.then(|| Micros::of(one_way.clone())),
        request_seconds: (!case.latency).then(|| one_way.into_iter().map(seconds).collect()),
    };
    Ok((repetition, peak_rss))
}

fn end(side: &Side, sender: &KVSender) -> Result<()> {
    side.until(
        || sender.poll().is_terminal(),
        || {
            sender.wait(Duration::MAX);
        },
    )?;
    match sender.error() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

impl Decode {
    fn start(arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting the decode process")?;
        let orders = child.stdin.take().context("its standard input")?;
        let replies = child.stdout.take().context("its standard output")?;
        Ok(Self { child, orders: BufWriter::new(orders), replies: BufReader::new(replies) })
    }

    fn hear(&mut self) -> Result<Reply> {
        hear(&mut self.replies)?.context("the decode process has ended")
    }

    fn end(self) -> Result<()> {
        let Self { mut child, orders, replies } = self;
        drop((orders, replies));
        let status = child.wait()?;
        if !status.success() {
            bail!("the decode process ended with {status}");
        }
        Ok(())
    }
}
