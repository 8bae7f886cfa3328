//! Options that both sides take, most of which must be the same on both.

use super::shape::ShapeOptions;
use clap::{Args, ValueEnum};
use kvferry::Config;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) shape: ShapeOptions,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,
    /// Requests under way at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: u32,
    /// Rounds of so many requests; the first warms up, if there are more
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// What moves the bytes
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
    /// Address that TCP listens on and peers connect to; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) bind: SocketAddr,
    /// Seconds to wait for the other side
    #[arg(long, default_value_t = 60.0)]
    pub(crate) patience: f64,
    /// Seconds of silence after which the other side counts as lost
    #[arg(long, default_value_t = 3.0)]
    pub(crate) liveness: f64,
    /// Print the summary as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Transport {
    /// Shared memory where both sides are on one host and it works, else TCP
    Auto,
    /// Shared memory
    Shm,
    Tcp,
}

impl Common {
    /// Deadlines and signs of life as asked for.
    pub(crate) fn config(&self) -> Result<Config, Box<dyn Error>> {
        let mut config = Config::default();
        config.deadlines.discover = Duration::try_from_secs_f64(self.patience)?;
        config.deadlines.handshake = Duration::try_from_secs_f64(self.patience)?;
        config.liveness.timeout = Duration::try_from_secs_f64(self.liveness)?;
        config.liveness.interval = config.liveness.interval.min(config.liveness.timeout / 4);
        Ok(config)
    }

    /// The transports asked for, as engines are told.
    pub(crate) fn transports(&self) -> String {
        let tcp = format!("tcp:bind={}", self.bind);
        match self.transport {
            Transport::Auto => format!("shm,{tcp}"),
            Transport::Shm => "shm".to_owned(),
            Transport::Tcp => tcp,
        }
    }

    /// The transport's name, for summaries.
    pub(crate) fn transport_name(&self) -> String {
        name(&self.transport)
    }
}

/// How a value is written on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Success, or the error on one line and a code that says so.
pub(crate) fn exit(side: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{side}: {error}");
            ExitCode::FAILURE
        }
    }
}
