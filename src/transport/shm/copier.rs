//! Threads that copy what arrives, for all links of a transport.

use super::config::Countdown;
use super::inbound::{Arrival, Desk, News, panicked};
use crate::home::Home;
use crate::memory::RegionTable;
use crate::memory::fetch::Way;
use crate::memory::import::Imports;
use crate::transport::mailbox::Mailbox;
use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// What copiers are told. Copies are bounded by what a link may have posted.
#[derive(Debug)]
pub(super) enum Job {
    Copy(Box<Arrival>),
    /// Sets up page tables for what a peer has handed out.
    Populate(Arc<Imports>),
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct Copiers {
    home: Home,
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs that are not done.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Copier {
    jobs: Receiver<Job>,
    waiting: Arc<AtomicUsize>,
    table: Arc<RegionTable>,
    news: Arc<Mailbox<Vec<News>>>,
    desk: Desk,
    /// The write that is being copied.
    current: Option<Box<Arrival>>,
    /// Not yet told: told together, so that the engine is not woken for each.
    untold: Vec<News>,
    untold_bytes: u64,
    panics: Arc<AtomicU64>,
}

impl Copiers {
    pub(super) fn start(
        threads: usize,
        fault: &Countdown,
        table: &Arc<RegionTable>,
        news: &Arc<Mailbox<Vec<News>>>,
        panics: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (jobs, receiver) = unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut copiers =
            Self { home: Home::here(), jobs: Some(jobs), threads: Vec::new(), waiting: Arc::clone(&waiting) };
        for number in 0..threads {
            let copier = Copier {
                jobs: receiver.clone(),
                waiting: Arc::clone(&waiting),
                table: Arc::clone(table),
                news: Arc::clone(news),
                desk: Desk::new(fault),
                current: None,
                untold: Vec::new(),
                untold_bytes: 0,
                panics: Arc::clone(panics),
            };
            let thread = std::thread::Builder::new().name(format!("kvferry-shm-{number}"));
            copiers.threads.push(thread.spawn(|| copier.serve())?);
        }
        Ok(copiers)
    }

    pub(super) fn tell(&self, job: Job) {
        // Relaxed: a hint.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(jobs) = &self.jobs {
            // The threads hold the other end until this one is gone.
            let _ = jobs.send(job);
        }
    }

    /// Whether the threads have nothing to do.
    pub(super) fn are_idle(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A forked child has no such threads, and their handles may name others by now.
            std::mem::forget((self.jobs.take(), std::mem::take(&mut self.threads)));
            return;
        }
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // Soon: links were closed before, so what waits is thrown away. A panic was its own.
            let _ = thread.join();
        }
    }
}

impl Copier {
    /// Until the transport goes. A panic, which would be a defect of ours, ends the link it happened on and
    /// not the thread; it is counted before anybody can see what it did.
    fn serve(mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            // Release; pairs with the Acquire in `ShmTransport::panics`.
            self.panics.fetch_add(1, Ordering::Release);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(mut arrival) = self.current.take() {
                self.untold.push(News::Broken { link: arrival.inbound.link, error: panicked() });
                arrival.end(&mut |news| self.untold.push(news));
            }
            self.tell();
        }
    }

    fn run(&mut self) {
        loop {
            let job = match self.jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    self.tell();
                    let Ok(job) = self.jobs.recv() else { return };
                    job
                }
            };
            match job {
                Job::Populate(imports) => {
                    for import in imports.iter() {
                        let mut part = 0;
                        while import.populate(part) {
                            part += 1;
                        }
                    }
                }
                Job::Copy(arrival) => self.copy(arrival),
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn copy(&mut self, arrival: Box<Arrival>) {
        let bytes = u64::from(arrival.post.bytes);
        if self.untold_bytes + bytes > TOLD_TOGETHER {
            self.tell();
        }
        let way = if bytes >= AROUND { Way::Around } else { Way::Cached };
        let Self { desk, table, untold, .. } = self;
        let arrival = self.current.insert(arrival);
        let mut is_urgent = false;
        arrival.apply(desk, table, way, &mut |news| {
            is_urgent |= matches!(news, News::Revoked { .. } | News::Broken { .. });
            untold.push(news);
        });
        self.untold_bytes += bytes;
        self.current = None;
        if is_urgent || self.untold.len() >= NEWS_TOLD_TOGETHER {
            self.tell();
        }
    }

    fn tell(&mut self) {
        if !self.untold.is_empty() {
            self.news.push(std::mem::take(&mut self.untold));
        }
        self.untold_bytes = 0;
    }
}

/// Writes of so many bytes are copied past the cache: whoever reads them reads much more.
const AROUND: u64 = 128 << 10;
/// Bytes copied before the engine is told, as long as there is more to copy.
const TOLD_TOGETHER: u64 = 4 << 20;
const NEWS_TOLD_TOGETHER: usize = 256;
