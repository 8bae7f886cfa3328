//! What the two processes tell each other besides the transfer: lines of JSON over the pipes of the decode
//! process.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// From the prefill process.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Order {
    /// How it is reached.
    Meet { addresses: Vec<(String, Vec<u8>)> },
    /// Clear the pool and lend the pages of this repetition.
    Arm { repetition: u32 },
}

/// From the decode process.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Reply {
    /// Pages are lent.
    Armed,
    /// All has come, or was given up.
    Landed(Landed),
}

/// What the decode process saw of one repetition. Times are of the machine's monotonic clock.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Landed {
    /// When each request was known to be in place, in nanoseconds.
    pub(crate) at: Vec<u64>,
    /// Whether every byte was right.
    pub(crate) verified: bool,
    /// Seconds of processor time.
    pub(crate) cpu: f64,
    /// Most bytes resident so far.
    pub(crate) peak_rss: u64,
}

pub(crate) fn tell(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *to, message)?;
    to.write_all(b"\n")?;
    Ok(to.flush()?)
}

/// The next message; `None` at the end.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).with_context(|| format!("a message: {line}"))
}
