//! `kvferry-bench`: two processes, one moving scattered pages to the other, every byte checked.
//!
//! ```sh
//! cargo run --release -p kvferry-bench -- --case A --case B --reps 5
//! ```
//!
//! - `options.rs`: what can be asked for
//! - `case.rs`: the workloads, and which pages of them move in which repetition
//! - `pool.rs`: one side's memory: what it is filled with, and whether it arrived
//! - `side.rs`: an engine with a pool, and how it is waited for
//! - `prefill.rs`, `decode.rs`: the two processes
//! - `pipe.rs`: what they tell each other besides the transfer
//! - `report.rs`: what came out, as JSON and as a table

mod case;
mod decode;
mod options;
mod pipe;
mod pool;
mod prefill;
mod report;
mod side;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use options::{Options, Role};
use report::Report;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.role == Role::Decode {
        let [case] = options.cases()[..] else { anyhow::bail!("a decode process runs one case") };
        return decode::run(&options, &case);
    }
    let mut reports = Vec::new();
    for case in options.cases() {
        let report = prefill::run(&options, &case).with_context(|| format!("case {}", case.name))?;
        println!("{}", report.line(reports.is_empty()));
        reports.push(report);
    }
    if let Some(path) = &options.json {
        let text = match &reports[..] {
            [one] => serde_json::to_string_pretty(one)?,
            many => serde_json::to_string_pretty(many)?,
        };
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(reports.iter().all(Report::is_verified), "bytes arrived damaged or in the wrong place");
    Ok(())
}
