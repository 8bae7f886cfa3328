//! What can be asked for.

use crate::case::{Case, NAMED};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Moves scattered KV pages from one process to another, checks every byte, and says how long it took.
///
/// Times count from the first call of the sender, with pages lent and connections there, to the moment at
/// which the receiver's process knows that all is in place.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Options {
    /// A: 512 MiB in pages of 32 KiB; B: 128 MiB in pages of 2 KiB; C: 274 MiB in pages of 72 KiB; D: one
    /// page of 4 KiB, 2000 times; E: 16 requests of 32 MiB at once; S: small. May be given several times
    #[arg(long = "case", default_value = "A", value_parser = named)]
    case: Vec<Case>,
    /// Measured repetitions, after one that warms up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) reps: u32,
    /// How the pages travel
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
    /// What the pools are made of
    #[arg(long, value_enum, default_value_t = Memory::Shared)]
    pub(crate) memory: Memory,
    /// Data connections of TCP
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: u8,
    /// Payloads of TCP carry no checksum
    #[arg(long)]
    pub(crate) no_checksum: bool,
    /// Who drives the engine: a thread of its own, or the thread that sends and receives
    #[arg(long, value_enum, default_value_t = Drive::Thread)]
    pub(crate) drive: Drive,
    /// Look for work for so many microseconds before sleeping; with `--drive caller`
    #[arg(long, default_value_t = 0)]
    pub(crate) spin: u64,
    /// Write the figures to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// What this process is; the decode process is started by the other one
    #[arg(long, value_enum, default_value_t = Role::Both)]
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Transport {
    /// Memory shared by processes of one host
    Shm,
    /// Sockets of the loopback interface
    Tcp,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Memory {
    /// Of each process alone: shared memory is read through the kernel
    Private,
    /// Memory files that the other side maps
    Shared,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Drive {
    /// The engine's own
    Thread,
    /// The caller's
    Caller,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Role {
    /// Starts the decode process
    Both,
    /// Is told by its standard input what to do
    Decode,
}

impl Options {
    pub(crate) fn cases(&self) -> Vec<Case> {
        self.case.clone()
    }

    /// What the decode process has to be told to do the same.
    pub(crate) fn arguments(&self, case: &Case) -> Vec<String> {
        let mut arguments = vec![
            format!("--case={}", case.name),
            format!("--transport={}", name(&self.transport)),
            format!("--memory={}", name(&self.memory)),
            format!("--lanes={}", self.lanes),
            format!("--drive={}", name(&self.drive)),
            format!("--spin={}", self.spin),
            format!("--role={}", name(&Role::Decode)),
        ];
        arguments.extend(self.no_checksum.then(|| "--no-checksum".to_owned()));
        arguments
    }

    /// The setting in a few words.
    pub(crate) fn label(&self) -> String {
        match (self.transport, self.memory) {
            (Transport::Shm, Memory::Private) => "shm-private".to_owned(),
            (transport, _) => name(&transport),
        }
    }
}

fn named(name: &str) -> Result<Case, String> {
    let names: Vec<_> = NAMED.iter().map(|case| case.name).collect();
    Case::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
