//! What the two sides print at the end.

use super::options::Common;
use super::shape::Shape;
use kvferry::{KVTransferError, Origin};
use serde_json::{Value, json};
use std::error::Error;
use std::time::Duration;

/// How the rooms of the prefill side ended.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) rooms: u32,
    pub(crate) bytes: u64,
    pub(crate) failed: Vec<KVTransferError>,
}

/// How the rounds of the decode side ended.
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes of a round.
    bytes: u64,
    /// Seconds of a round, and of copying as much over a plain socket.
    pub(crate) rounds: Vec<(Duration, Option<Duration>)>,
    pub(crate) failed: Vec<KVTransferError>,
}

impl Sent {
    /// # Errors
    /// Rooms failed.
    pub(crate) fn print(&self, common: &Common, shape: &Shape) -> Result<(), Box<dyn Error>> {
        let Self { rooms, bytes, failed } = self;
        if common.json {
            println!(
                "{}",
                summary("prefill", common, shape, failed, json!({ "rooms": rooms, "bytes": bytes }))
            );
        } else {
            println!("{rooms} rooms, {} of them failed; {:.1} MB sent", failed.len(), megabytes(*bytes));
        }
        check(failed)
    }
}

impl Received {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, rounds: Vec::new(), failed: Vec::new() }
    }

    /// # Errors
    /// Rooms failed.
    pub(crate) fn print(&self, common: &Common, shape: &Shape) -> Result<(), Box<dyn Error>> {
        let measured = &self.rounds[usize::from(self.rounds.len() > 1)..];
        let rate = median(measured.iter().map(|(seconds, _)| self.rate(*seconds)));
        let socket = median(measured.iter().filter_map(|(_, socket)| Some(self.rate((*socket)?))));
        let ratio = rate.zip(socket).map(|(rate, socket)| rate / socket);
        if common.json {
            let seconds: Vec<_> = self.rounds.iter().map(|(seconds, _)| seconds.as_secs_f64()).collect();
            let figures = json!({
                "bytes": self.bytes,
                "seconds": seconds,
                "verified": self.rounds.len(),
                "gigabytes_per_second": rate,
                "socket_gigabytes_per_second": socket,
                "ratio": ratio,
            });
            println!("{}", summary("decode", common, shape, &self.failed, figures));
        } else if let Some(rate) = rate {
            println!(
                "{} rounds of {} x {} tokens of {}, {:.1} MB each, every byte verified",
                self.rounds.len(),
                common.requests,
                common.tokens,
                shape.name,
                megabytes(self.bytes)
            );
            for (round, (seconds, socket)) in self.rounds.iter().enumerate() {
                let socket = socket.map(|socket| format!(", socket {:.3} s", socket.as_secs_f64()));
                let note = if round == 0 && self.rounds.len() > 1 { " (warm-up)" } else { "" };
                println!("  {:.3} s{}{note}", seconds.as_secs_f64(), socket.unwrap_or_default());
            }
            println!("kvferry over {}: {rate:.2} GB/s (median)", common.transport_name());
            if let Some((socket, ratio)) = socket.zip(ratio) {
                println!("plain socket: {socket:.2} GB/s (median); ratio kvferry / socket {ratio:.2}");
            }
        }
        check(&self.failed)
    }

    /// Gigabytes (10^9) a second.
    fn rate(&self, seconds: Duration) -> f64 {
        self.bytes as f64 / 1e9 / seconds.as_secs_f64()
    }
}

fn summary(side: &str, common: &Common, shape: &Shape, failed: &[KVTransferError], figures: Value) -> Value {
    let mut summary = json!({
        "side": side,
        "shape": shape.name,
        "transport": common.transport_name(),
        "tokens": common.tokens,
        "requests": common.requests,
        "failed": failed.iter().map(failure).collect::<Vec<_>>(),
    });
    if let (Some(summary), Value::Object(figures)) = (summary.as_object_mut(), figures) {
        summary.extend(figures);
    }
    summary
}

fn failure(error: &KVTransferError) -> Value {
    json!({
        "room": error.room.0,
        "kind": format!("{:?}", error.kind),
        "state": format!("{:?}", error.state),
        "origin": match error.origin { Origin::Local(_) => "local", Origin::Peer(_) => "peer" },
        "rank": error.rank().to_string(),
        "error": error.to_string(),
    })
}

fn check(failed: &[KVTransferError]) -> Result<(), Box<dyn Error>> {
    match failed {
        [] => Ok(()),
        [only] => Err(only.to_string().into()),
        [first, rest @ ..] => Err(format!("{first}; {} more rooms failed", rest.len()).into()),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
