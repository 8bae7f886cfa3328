//! The figures of a request as a table or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::report::Answer;

/// Returns what is known of a request, a line each.
pub(crate) fn rows(answer: &Answer) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:<21} {value}");
    };
    if answer.prompt_tokens > 0 {
        row("prompt tokens", answer.prompt_tokens.to_string());
    }
    if answer.kv_bytes > 0 {
        row("KV bytes", format!("{:.1} MB", megabytes(answer.kv_bytes as f64)));
    }
    if answer.chunks > 0 {
        row("chunks", answer.chunks.to_string());
    }
    if let Some(path) = &answer.path {
        row("transport", path.clone());
    }
    if let Some(total) = first_token(answer) {
        row("time to first token", seconds(total));
    }
    if let Some(prefill) = answer.prefill {
        row("  prefill", seconds(prefill));
    }
    if let Some(transfer) = answer.transfer() {
        row("  transfer", format!("{} not hidden by compute", seconds(transfer)));
    }
    if let Some(step) = answer.first_step {
        row("  first decode step", seconds(step));
    }
    if let Some((bytes, time)) = answer.last_chunk {
        let rate = rate(bytes, time);
        row("transfer rate", format!("{rate:.2} GB/s, last {:.1} MB", megabytes(bytes as f64)));
        if answer.kv_bytes > 0 {
            let early = 1.0 - bytes as f64 / answer.kv_bytes as f64;
            row("sent while computing", format!("{:.1}% of the KV", early * 100.0));
        }
    }
    if let Some(time) = answer.generation {
        let steps = answer.tokens.len().saturating_sub(1);
        row("generation", format!("{:.1} tokens/s", steps as f64 / time.as_secs_f64().max(1e-9)));
    }
    for error in &answer.errors {
        row("failed", error.clone());
    }
    if let Some(is_identical) = answer.is_identical() {
        let answer = match is_identical {
            true => format!("yes ({} tokens)", answer.tokens.len()),
            false => format!("NO ({})", difference(answer)),
        };
        let _ = writeln!(out, "tokens identical to single-process run: {answer}");
    }
    out
}

/// Returns what is known of all requests.
pub(crate) fn json(answers: &[Answer]) -> Value {
    let is_identical = answers.iter().all(|answer| answer.is_identical() == Some(true));
    json!({
        "identical": is_identical,
        "requests": answers.iter().map(request).collect::<Vec<_>>(),
    })
}

fn request(answer: &Answer) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    json!({
        "room": answer.room,
        "prompt": answer.prompt,
        "prompt_tokens": answer.prompt_tokens,
        "kv_bytes": answer.kv_bytes,
        "chunks": answer.chunks,
        "transport": answer.path,
        "first_token_seconds": seconds(first_token(answer)),
        "prefill_seconds": seconds(answer.prefill),
        "transfer_not_hidden_seconds": seconds(answer.transfer()),
        "first_step_seconds": seconds(answer.first_step),
        "generation_seconds": seconds(answer.generation),
        "last_chunk_bytes": answer.last_chunk.map(|(bytes, _)| bytes),
        "last_chunk_seconds": seconds(answer.last_chunk.map(|(_, time)| time)),
        "text": answer.text,
        "tokens": answer.tokens,
        "identical": answer.is_identical(),
        "errors": answer.errors,
    })
}

/// Time until the decode side had its first token of its own, where all parts of it are known.
fn first_token(answer: &Answer) -> Option<Duration> {
    Some(answer.prefill? + answer.transfer()? + answer.first_step?)
}

fn difference(answer: &Answer) -> String {
    let expected = answer.expected.as_deref().unwrap_or_default();
    let tokens = &answer.tokens;
    match tokens.iter().zip(expected).position(|(found, expected)| found != expected) {
        Some(at) => format!("token {at} is {}, expected {}", tokens[at], expected[at]),
        None => format!("{} tokens, expected {}", tokens.len(), expected.len()),
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        long if long >= 1.0 => format!("{long:.2} s"),
        short => format!("{:.1} ms", short * 1e3),
    }
}

fn megabytes(bytes: f64) -> f64 {
    bytes / 1e6
}

/// Returns GB/s.
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9)
}
