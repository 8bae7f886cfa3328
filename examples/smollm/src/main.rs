//! Runs SmolLM2-135M-Instruct in two processes, its KV cache carried from one to the other by kvferry.

mod cli;
mod demo;
mod report;
mod single;
mod table;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Result, bail};
use clap::Parser as _;
use kvferry::bootstrap::{BootstrapServer, ServerConfig};

use kvferry_smollm::weights;

use crate::cli::{Cli, Command};
use crate::report::Outcome;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        // What went wrong has been printed.
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => demo::run(&cli.demo),
        Some(Command::Bootstrap(bootstrap)) => serve(bootstrap),
        Some(Command::Decode(worker)) => worker::decode(&worker),
        Some(Command::Prefill(worker)) => worker::prefill(&worker),
        Some(Command::Single(single)) => single::run(&single),
    }
}

fn serve(options: cli::Bootstrap) -> Result<Outcome> {
    let mut config = ServerConfig::default();
    config.advertise = options.advertise;
    let server = BootstrapServer::bind(&options.bind, config)?;
    println!("directory at {}", server.url());
    while server.is_running() {
        thread::park();
    }
    bail!("the directory has ended")
}

/// Returns the model file that the options name, or the published one.
fn model_path(run: &cli::Run) -> Result<PathBuf> {
    match &run.model {
        Some(path) if !path.exists() => bail!("no model file at {}", path.display()),
        Some(path) => Ok(path.clone()),
        None => weights::fetched(),
    }
}
