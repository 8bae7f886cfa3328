//! One side as a process: takes requests, runs its part of each, says what happened.

use std::io::{self, BufRead as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{process, thread};

use anyhow::{Context as _, Result, ensure};
use kvferry::bootstrap::{ClientConfig, HttpDirectory};
use kvferry::{Config, Engine, EngineBuilder, GroupSizes, KVTransferError, Place, Rank, Room, Side, Sources};

use kvferry_smollm::decode::{Decode, Received};
use kvferry_smollm::model::Model;
use kvferry_smollm::now;
use kvferry_smollm::pool::PagePool;
use kvferry_smollm::prefill::Prefill;
use kvferry_smollm::protocol::{Command, Event, Request};
use kvferry_smollm::text::Text;
use kvferry_smollm::weights;

use crate::cli::{Link, Transport, Worker};
use crate::model_path;
use crate::report::{Outcome, Report, Sink};

/// Pages for these texts and the tokens that follow, twice: those in use are then truly scattered.
pub(crate) fn pages(texts: &[String], tokens: usize, page_tokens: usize) -> usize {
    // A token is a byte at least, and no model of this kind takes more tokens than that.
    let needed = |text: &String| (text.len() + tokens).min(LONGEST_CONTEXT).div_ceil(page_tokens);
    2 * texts.iter().map(needed).sum::<usize>()
}

/// Runs the prefill side until all requests are served.
pub(crate) fn prefill(options: &Worker) -> Result<Outcome> {
    let Setup { requests, sink, model, text, pool } = Setup::new(options, Side::Prefill)?;
    let place = Place::new(PREFILL, Rank::tp(options.tp_rank), GroupSizes::tp(options.tp));
    let side = Prefill::start(builder(place, &options.link)?, model, pool)?;
    let side = side.layer_by_layer(options.run.layerwise);
    let tell = |event| sink.tell(Side::Prefill, event);
    tell(Event::Ready);
    thread::scope(|scope| {
        // Rooms are open while others are computed, so that the decode side finds them all.
        let (rooms, opened) = mpsc::channel();
        let (side, text, tell) = (&side, &text, &tell);
        scope.spawn(move || {
            for Request { room, text: prompt } in requests {
                match text.encode(&prompt).and_then(|prompt| side.open(Room(room), prompt)) {
                    // The other end waits for the channel to close.
                    Ok(outgoing) => drop(rooms.send((room, outgoing))),
                    Err(error) => tell(Event::Failed { room, error: reason(&error) }),
                }
            }
        });
        for (room, mut outgoing) in opened {
            // An error ends the room, and waiting for its end tells it.
            if let Ok(computed) = side.compute(&mut outgoing, options.run.chunk_tokens) {
                tell(Event::Prefilled {
                    room,
                    prompt_tokens: computed.prompt_tokens,
                    chunks: computed.chunks,
                    seconds: computed.time.as_secs_f64(),
                });
            }
            scope.spawn(move || {
                tell(match outgoing.wait(PATIENCE) {
                    Ok(sent) => Event::Sent {
                        room,
                        bytes: sent.bytes,
                        last_bytes: sent.last_bytes,
                        last_seconds: sent.last_time.as_secs_f64(),
                    },
                    Err(error) => Event::Failed { room, error: reason(&error) },
                });
            });
        }
    });
    side.close(CLOSE_LIMIT);
    sink.finish()
}

/// Runs the decode side until all requests are served and held against a run without a transfer.
pub(crate) fn decode(options: &Worker) -> Result<Outcome> {
    let Setup { requests, sink, model, text, pool } = Setup::new(options, Side::Decode)?;
    let side = Decode::start(builder(Place::alone(DECODE), &options.link)?, model, pool)?;
    let tell = |event| sink.tell(Side::Decode, event);
    tell(Event::Ready);
    let (limit, end) = (options.run.tokens.get(), (!options.run.past_end).then_some(text.end()));
    let mut answered = Vec::new();
    thread::scope(|scope| {
        // Pages are lent while other requests are answered, so that their KV comes meanwhile.
        let (arrivals, arrived) = mpsc::channel();
        let (side, text, tell) = (&side, &text, &tell);
        scope.spawn(move || {
            for Request { room, text: prompt } in requests {
                let opened = text.encode(&prompt).and_then(|prompt| {
                    let incoming = side.open(Room(room), Sources::group(PREFILL), prompt.len(), limit)?;
                    Ok((prompt, incoming))
                });
                let (prompt, incoming) = match opened {
                    Ok(opened) => opened,
                    Err(error) => {
                        tell(Event::Failed { room, error: reason(&error) });
                        continue;
                    }
                };
                let arrivals = arrivals.clone();
                scope.spawn(move || match incoming.wait(PATIENCE) {
                    Ok(received) => {
                        tell(Event::Received {
                            room,
                            prompt_tokens: prompt.len(),
                            bytes: received.stats.bytes,
                            path: received.stats.path.unwrap_or("none").to_owned(),
                        });
                        // The other end waits for the channel to close.
                        drop(arrivals.send((room, prompt, received)));
                    }
                    Err(error) => tell(Event::Failed { room, error: reason(&error) }),
                });
            }
        });
        for (room, prompt, received) in arrived {
            match answer(side, text, room, received, limit, end, tell) {
                Ok(()) => answered.push((room, prompt)),
                Err(error) => tell(Event::Failed { room, error: reason(&error) }),
            }
        }
    });
    side.close(CLOSE_LIMIT);
    // Nothing is measured any more.
    for (room, prompt) in answered {
        tell(match side.alone(&prompt, options.run.chunk_tokens, limit, end) {
            Ok(tokens) => Event::Checked { room, tokens },
            Err(error) => Event::Failed { room, error: format!("single-process run: {error:#}") },
        });
    }
    sink.finish()
}

/// Generates, and tells the text as it comes.
fn answer(
    side: &Decode,
    text: &Text,
    room: u64,
    received: Received,
    limit: usize,
    end: Option<u32>,
    tell: &impl Fn(Event),
) -> Result<()> {
    let mut stream = text.stream();
    let start = now();
    let mut seen = 0;
    let mut first_step = None;
    let tokens = side.generate(received, limit, end, |token| {
        seen += 1;
        if seen == 2 {
            first_step = Some((now() - start).as_secs_f64());
        }
        let text = stream.push(token)?;
        if !text.is_empty() {
            tell(Event::Text { room, text });
        }
        Ok(())
    })?;
    let seconds = (now() - start).as_secs_f64();
    tell(Event::Text { room, text: stream.finish()? + "\n" });
    tell(Event::Generated { room, tokens, first_step, seconds });
    Ok(())
}

/// Says why a request failed. The error of a transfer repeats its cause in its own text.
fn reason(error: &anyhow::Error) -> String {
    let transfer = error.downcast_ref::<KVTransferError>();
    transfer.map_or_else(|| format!("{error:#}"), KVTransferError::to_string)
}

/// What both sides need.
struct Setup {
    requests: Receiver<Request>,
    sink: Sink,
    model: Arc<Model>,
    text: Text,
    pool: Arc<PagePool>,
}

impl Setup {
    fn new(options: &Worker, side: Side) -> Result<Self> {
        let Worker { prompt, run, room, routed, json, .. } = options;
        let page_tokens = run.page_tokens.get();
        let (pages, requests, sink) = match routed {
            Some(pages) => (*pages, routed_requests(), Sink::lines()),
            None => {
                let texts = prompt.texts()?;
                let pages = pages(&texts, run.tokens.get(), page_tokens);
                let requests: Vec<_> =
                    (*room..).zip(texts).map(|(room, text)| Request { room, text }).collect();
                let sink = Sink::report(Report::new(&requests, Some(side), *json));
                (pages, own_requests(requests), sink)
            }
        };
        let path: PathBuf = model_path(run)?;
        let (model, text) = weights::load(&path)?;
        let pages = u32::try_from(pages).context("too many pages")?;
        let mut geometry = model.config().geometry(page_tokens, pages);
        if side == Side::Prefill {
            let (part, parts) = (usize::try_from(options.tp_rank)?, usize::try_from(options.tp)?);
            ensure!(part < parts, "rank {part} of {parts}");
            geometry.kv_heads = model.config().kv_heads_of(part, parts).len();
            ensure!(geometry.kv_heads > 0, "{parts} processes share {} KV heads", model.config().kv_heads);
        }
        let pool = PagePool::new(geometry, run.seed)?;
        Ok(Self { requests, sink, model: Arc::new(model), text, pool })
    }
}

/// Begins an engine that finds others through the directory.
fn builder(place: Place, link: &Link) -> Result<EngineBuilder> {
    let directory = HttpDirectory::new(&link.directory, ClientConfig::default())?;
    let host = link.advertise.as_ref().map(|host| format!(";advertise={host}")).unwrap_or_default();
    let tcp = format!("tcp:bind={}{host}", link.bind);
    let transports = match link.transport {
        Transport::Auto => format!("shm,{tcp}"),
        Transport::Shm => "shm".to_owned(),
        Transport::Tcp => tcp,
    };
    let mut config = Config::default();
    config.deadlines.discover = link.patience;
    config.deadlines.handshake = link.patience;
    let builder = Engine::builder(place).model(MODEL).config(config);
    Ok(builder.directory(Arc::new(directory)).transports(transports))
}

fn own_requests(requests: Vec<Request>) -> Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    // The receiver is still here.
    requests.into_iter().for_each(|request| drop(sender.send(request)));
    receiver
}

/// Reads requests from stdin. When the router is gone, nobody wants the answers: the process ends.
fn routed_requests() -> Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut sender = Some(sender);
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match (serde_json::from_str(&line), &sender) {
                (Ok(Command::End), _) => sender = None,
                // Requests may still come while this side ends on an error of its own.
                (Ok(Command::Run(request)), Some(sender)) => drop(sender.send(request)),
                (Ok(Command::Run(_)), None) => {}
                (Err(error), _) => {
                    eprintln!("error: not a command: {error}");
                    break;
                }
            }
        }
        process::exit(1);
    });
    receiver
}

const PREFILL: &str = "prefill";
const DECODE: &str = "decode";
const MODEL: &str = "SmolLM2-135M-Instruct";
const LONGEST_CONTEXT: usize = 8192;
/// The engine's own deadlines end rooms long before.
const PATIENCE: Duration = Duration::from_secs(3600);
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
