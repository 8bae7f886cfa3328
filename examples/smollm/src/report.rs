//! What the workers say about each request, collected and printed.

use std::io::{self, Write as _};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kvferry::Side;

use kvferry_smollm::now;
use kvferry_smollm::protocol::{Event, Request};

use crate::table;

/// Whether all went well; what did not has been printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Bad,
    Good,
}

/// What is known of one request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) room: u64,
    pub(crate) prompt: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) chunks: usize,
    pub(crate) prefill: Option<Duration>,
    pub(crate) kv_bytes: u64,
    pub(crate) path: Option<String>,
    /// Bytes of the last chunk and the time they took.
    pub(crate) last_chunk: Option<(usize, Duration)>,
    pub(crate) first_step: Option<Duration>,
    pub(crate) generation: Option<Duration>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    /// What a single process generated.
    pub(crate) expected: Option<Vec<u32>>,
    pub(crate) errors: Vec<String>,
    prefilled_at: Option<Instant>,
    received_at: Option<Instant>,
}

/// All requests of one run.
#[derive(Debug)]
pub(crate) struct Report {
    answers: Vec<Answer>,
    /// The side that runs here, if it is not both.
    only: Option<Side>,
    is_json: bool,
    printing: Option<u64>,
}

/// Where the events of a worker go.
#[derive(Debug)]
pub(crate) struct Sink {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    target: Target,
    outcome: Outcome,
    /// The first error of writing; nothing is written after it.
    broken: Option<anyhow::Error>,
}

#[derive(Debug)]
enum Target {
    /// To the router, a line each.
    Lines,
    /// Printed here.
    Report(Report),
}

impl Answer {
    /// Time from the end of the prompt's computation until its KV cache was in place on the other side. Known
    /// where one clock sees both.
    pub(crate) fn transfer(&self) -> Option<Duration> {
        Some(self.received_at?.saturating_duration_since(self.prefilled_at?))
    }

    /// Whether the split run gave what a single process gives, if that is known.
    pub(crate) fn is_identical(&self) -> Option<bool> {
        self.expected.as_ref().map(|expected| *expected == self.tokens && !self.tokens.is_empty())
    }

    fn is_good(&self, only: Option<Side>) -> bool {
        let is_sent = self.last_chunk.is_some() || only == Some(Side::Decode);
        let is_answered = self.is_identical() == Some(true) || only == Some(Side::Prefill);
        self.errors.is_empty() && is_sent && is_answered
    }
}

impl Report {
    /// Begins the report of these requests.
    pub(crate) fn new(requests: &[Request], only: Option<Side>, is_json: bool) -> Self {
        let answer = |request: &Request| Answer {
            room: request.room,
            prompt: request.text.clone(),
            ..Answer::default()
        };
        Self { answers: requests.iter().map(answer).collect(), only, is_json, printing: None }
    }

    /// Takes what a worker said at this time; prints text as it comes.
    pub(crate) fn take(&mut self, at: Instant, from: Side, event: Event) -> Result<()> {
        let (Event::Checked { room, .. }
        | Event::Failed { room, .. }
        | Event::Generated { room, .. }
        | Event::Prefilled { room, .. }
        | Event::Received { room, .. }
        | Event::Sent { room, .. }
        | Event::Text { room, .. }) = event
        else {
            return Ok(());
        };
        let place = self.answers.iter().position(|answer| answer.room == room);
        let place = place.with_context(|| format!("{from} process names the unknown room {room}"))?;
        let answer = &mut self.answers[place];
        match event {
            Event::Checked { tokens, .. } => answer.expected = Some(tokens),
            Event::Failed { error, .. } => {
                eprintln!("error: {from}: {error}");
                answer.errors.push(format!("{from}: {error}"));
            }
            Event::Generated { tokens, first_step, seconds, .. } => {
                answer.tokens = tokens;
                answer.first_step = first_step.map(Duration::from_secs_f64);
                answer.generation = Some(Duration::from_secs_f64(seconds));
            }
            Event::Prefilled { prompt_tokens, chunks, seconds, .. } => {
                answer.prompt_tokens = prompt_tokens;
                answer.chunks = chunks;
                // Of several processes the last counts.
                answer.prefill = answer.prefill.max(Some(Duration::from_secs_f64(seconds)));
                answer.prefilled_at = Some(at);
            }
            Event::Received { prompt_tokens, bytes, path, .. } => {
                answer.prompt_tokens = prompt_tokens;
                answer.kv_bytes = bytes;
                answer.path = Some(path);
                answer.received_at = Some(at);
            }
            Event::Sent { bytes, last_bytes, last_seconds, .. } => {
                answer.kv_bytes = answer.kv_bytes.max(bytes);
                let (others, slowest) = answer.last_chunk.unwrap_or_default();
                let time = slowest.max(Duration::from_secs_f64(last_seconds));
                answer.last_chunk = Some((others + last_bytes, time));
            }
            Event::Text { text, .. } => {
                answer.text += &text;
                if !self.is_json {
                    self.print_text(place, &text)?;
                }
            }
            Event::Ready => {}
        }
        Ok(())
    }

    /// Prints what is left to be said.
    pub(crate) fn finish(&self) -> Result<Outcome> {
        let mut out = io::stdout().lock();
        if self.is_json {
            writeln!(out, "{}", table::json(&self.answers))?;
        } else {
            for (number, answer) in self.answers.iter().enumerate() {
                if self.answers.len() > 1 {
                    write!(out, "\n{}", self.heading(number))?;
                }
                write!(out, "\n{}", table::rows(answer))?;
            }
        }
        let is_good = self.answers.iter().all(|answer| answer.is_good(self.only));
        Ok(if is_good { Outcome::Good } else { Outcome::Bad })
    }

    fn print_text(&mut self, place: usize, text: &str) -> Result<()> {
        let room = self.answers[place].room;
        let mut out = io::stdout().lock();
        if self.printing != Some(room) && self.answers.len() > 1 {
            write!(out, "\n{}\n", self.heading(place))?;
        }
        self.printing = Some(room);
        write!(out, "{text}")?;
        Ok(out.flush()?)
    }

    fn heading(&self, place: usize) -> String {
        format!("== request {} of {}, room {}", place + 1, self.answers.len(), self.answers[place].room)
    }
}

impl Sink {
    /// Tells the router.
    pub(crate) fn lines() -> Self {
        Self::new(Target::Lines)
    }

    /// Tells whoever sits here.
    pub(crate) fn report(report: Report) -> Self {
        Self::new(Target::Report(report))
    }

    fn new(target: Target) -> Self {
        Self { state: Mutex::new(State { target, outcome: Outcome::Good, broken: None }) }
    }

    /// Passes an event on.
    pub(crate) fn tell(&self, from: Side, event: Event) {
        // Each call leaves the state whole, so a panic elsewhere does not spoil it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(event, Event::Failed { .. }) {
            state.outcome = Outcome::Bad;
        }
        if state.broken.is_none() {
            state.broken = state.target.take(from, event).err();
        }
    }

    /// Prints what is left to be said.
    ///
    /// # Errors
    /// Something could not be written.
    pub(crate) fn finish(self) -> Result<Outcome> {
        let State { target, outcome, broken } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (broken, target) {
            (Some(error), _) => Err(error).context("writing to stdout"),
            (None, Target::Lines) => Ok(outcome),
            (None, Target::Report(report)) => report.finish(),
        }
    }
}

impl Target {
    fn take(&mut self, from: Side, event: Event) -> Result<()> {
        match self {
            Self::Lines => Ok(writeln!(io::stdout(), "{}", serde_json::to_string(&event)?)?),
            Self::Report(report) => report.take(now(), from, event),
        }
    }
}
