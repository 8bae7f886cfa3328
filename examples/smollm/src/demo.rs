//! The demonstration: starts the directory and both sides, gives them requests and prints what they say.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use kvferry::Side;
use kvferry::bootstrap::{BootstrapServer, ServerConfig};

use kvferry_smollm::now;
use kvferry_smollm::protocol::{Command, Event, Request};

use crate::cli::Demo;
use crate::model_path;
use crate::report::{Outcome, Report};
use crate::worker;

/// Runs all requests split over two processes.
pub(crate) fn run(demo: &Demo) -> Result<Outcome> {
    let texts = demo.prompt.texts()?;
    let pages = |page_tokens| worker::pages(&texts, demo.run.tokens.get(), page_tokens);
    let sides: Vec<_> =
        (0..demo.prefill_tp).map(|rank| (Side::Prefill, rank)).chain([(Side::Decode, 0)]).collect();
    let page_tokens = |side| match (side, demo.decode_page_size) {
        (Side::Decode, Some(tokens)) => tokens.get(),
        _ => demo.run.page_tokens.get(),
    };
    // Before the processes start, so that they do not both fetch it.
    let model = model_path(&demo.run)?;
    let directory = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default())?;
    let pages = [Side::Prefill, Side::Decode].map(|side| (page_tokens(side), pages(page_tokens(side))));
    let requests: Vec<_> = texts.into_iter().map(|text| Request { room: random_room(), text }).collect();

    let (sender, heard) = mpsc::channel();
    let url = directory.url();
    let start = |(side, rank)| {
        let pages = pages[usize::from(side == Side::Decode)];
        Child::start((side, rank), demo, &model, &url, pages, sender.clone())
    };
    let mut children = sides.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    drop(sender);
    let processes: Vec<_> =
        children.iter().map(|child| format!("{} is process {}", child.side, child.process.id())).collect();
    eprintln!("{}, directory at {url}", processes.join(", "));
    wait_ready(&heard, children.len())?;

    for child in children.iter_mut().rev() {
        requests.iter().try_for_each(|request| child.tell(&Command::Run(request.clone())))?;
        child.tell(&Command::End)?;
    }
    let mut report = Report::new(&requests, None, demo.json);
    // Ends when both sides have: whatever happens to one, the other's rooms fail in bounded time.
    for Heard { side, at, said } in heard {
        match said {
            Said::Event(event) => report.take(at, side, event)?,
            Said::Strange(line) => bail!("{side} process wrote {line:?}"),
            Said::Ended => {}
        }
    }
    let outcome = report.finish()?;
    let have_ended_well = children.into_iter().map(Child::end).collect::<Result<Vec<_>>>()?;
    Ok(if have_ended_well.contains(&Outcome::Bad) { Outcome::Bad } else { outcome })
}

fn wait_ready(heard: &Receiver<Heard>, children: usize) -> Result<()> {
    let mut ready = 0;
    while ready < children {
        let Heard { side, said, .. } = heard.recv().context("all processes ended before they were ready")?;
        match said {
            Said::Event(Event::Ready) => ready += 1,
            Said::Ended => bail!("{side} process ended before it was ready"),
            Said::Event(event) => bail!("{side} process said {event:?} before it was ready"),
            Said::Strange(line) => bail!("{side} process wrote {line:?}"),
        }
    }
    Ok(())
}

/// One side, running. Dropping it ends it.
#[derive(Debug)]
struct Child {
    side: Side,
    process: process::Child,
    input: ChildStdin,
}

/// A line of a worker's output, and when it came.
#[derive(Debug)]
struct Heard {
    side: Side,
    at: Instant,
    said: Said,
}

#[derive(Debug)]
enum Said {
    Ended,
    Event(Event),
    Strange(String),
}

impl Child {
    fn start(
        (side, rank): (Side, u32),
        demo: &Demo,
        model: &Path,
        directory: &str,
        (page_tokens, pages): (usize, usize),
        heard: Sender<Heard>,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("finding the program's own path")?;
        let Demo { run, transport, .. } = demo;
        // Pages lie at other places on each side.
        let seed = run.seed.wrapping_add(u64::from(side == Side::Decode));
        let transport = transport.to_possible_value().context("a transport without a name")?;
        let mut command = process::Command::new(program);
        command.arg(side.to_string()).arg("--model").arg(model);
        command.args(["--directory", directory, "--transport", transport.get_name()]);
        for (name, value) in [
            ("--routed", pages),
            ("--tokens", run.tokens.get()),
            ("--page-tokens", page_tokens),
            ("--chunk-tokens", run.chunk_tokens.get()),
        ] {
            command.arg(name).arg(value.to_string());
        }
        command.arg("--seed").arg(seed.to_string());
        if side == Side::Prefill {
            command.args(["--tp", &demo.prefill_tp.to_string(), "--tp-rank", &rank.to_string()]);
        }
        for (name, is_set) in [("--past-end", run.past_end), ("--layerwise", run.layerwise)] {
            if is_set {
                command.arg(name);
            }
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the {side} process"))?;
        let input = process.stdin.take().context("a piped input")?;
        let output = process.stdout.take().context("a piped output")?;
        thread::spawn(move || listen(side, output, &heard));
        Ok(Self { side, process, input })
    }

    fn tell(&mut self, command: &Command) -> Result<()> {
        let line = serde_json::to_string(command)?;
        writeln!(self.input, "{line}").with_context(|| format!("{} process does not listen", self.side))
    }

    /// Waits for its end.
    fn end(mut self) -> Result<Outcome> {
        let status = self.process.wait().context("waiting for a process")?;
        if !status.success() {
            eprintln!("error: {} process ended with {status}", self.side);
            return Ok(Outcome::Bad);
        }
        Ok(Outcome::Good)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already, which is what both calls are for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes on what a worker says until it ends.
fn listen(side: Side, output: ChildStdout, heard: &Sender<Heard>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let said = serde_json::from_str(&line).map_or(Said::Strange(line), Said::Event);
        // Nobody hears once the demonstration has failed.
        drop(heard.send(Heard { side, at: now(), said }));
    }
    drop(heard.send(Heard { side, at: now(), said: Said::Ended }));
}

/// A number that no other request has.
fn random_room() -> u64 {
    // The standard library seeds it from the system for every call.
    RandomState::new().hash_one(process::id())
}
