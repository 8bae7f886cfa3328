//! The directory as a client of a [`BootstrapServer`](super::BootstrapServer), on one thread of its own.

use super::http::{Call, Target};
use super::lookups::{Ages, Change, Job, Lookups, Outcome};
use super::{
    BootstrapError, Directory, GroupState, RankRecord, Registration, RegistrationState, clock, json,
};
use crate::address::{AddressError, HostPort, Network};
use crate::home::Home;
use crate::ids::Room;
use bytes::Bytes;
use hyper::{Method, StatusCode};
use parking_lot::{Condvar, Mutex};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

/// Longest wait for the thread to end; it has nothing to wait for itself.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Limits and times of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Networks that may be connected to; any if `None`. Checked before each connection, after a name is
    /// resolved.
    pub permitted: Option<Vec<Network>>,
    /// Time for one connection attempt.
    pub connect_time: Duration,
    /// Time for one request, connecting included.
    pub request_time: Duration,
    /// Bytes of one answer.
    pub answer_bytes: usize,
    /// How long a registration outlives its process; it is renewed at a third of that.
    pub lease: Duration,
    /// Age at which a known group is looked up again, when it is asked for.
    pub refresh: Duration,
    /// How long the owner of a room is remembered.
    pub owner_age: Duration,
    /// How long dropping a registration waits for the server to remove it.
    pub removal_time: Duration,
}

/// Finds peers through a server. One thread does the asking; it sleeps while there is nothing to ask.
///
/// What is not known is asked for again after 50 ms, then longer, at most 1 s. A name adds a resolver thread
/// while it is being resolved. The thread ends once the directory and its registrations are dropped.
///
/// # Examples
/// ```no_run
/// use kvferry::bootstrap::{ClientConfig, Directory, HttpDirectory};
///
/// let directory = HttpDirectory::new("http://prefill-0:8998", ClientConfig::default())?;
/// println!("{:?}", directory.group("prefill"));
/// # Ok::<(), kvferry::bootstrap::BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct HttpDirectory(Arc<Handle>);

#[derive(Debug)]
struct HttpRegistration {
    /// None if a forked child asked.
    id: Option<u64>,
    handle: Arc<Handle>,
}

/// Keeps the thread.
struct Handle {
    home: Home,
    shared: Arc<Shared>,
    stop: Arc<Notify>,
    thread: ThreadId,
    removal_time: Duration,
}

struct Shared {
    target: Target,
    lease: Duration,
    book: Mutex<Book>,
    /// There is something new to do.
    work: Notify,
    /// A registration or the thread has ended.
    ended: Condvar,
    watchers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
}

struct Book {
    lookups: Lookups,
    has_ended: bool,
}

/// Says that the thread's work has ended, however it did.
struct Ended(Arc<Shared>);

impl HttpDirectory {
    /// A client of the server at `url`, written as `http://host:port`. Does not connect yet.
    ///
    /// # Errors
    /// The URL or a time in the configuration cannot be used, or the thread cannot be started.
    pub fn new(url: &str, config: ClientConfig) -> Result<Self, BootstrapError> {
        let refused = || AddressError::Url { text: url.into() };
        let rest = url.strip_prefix("http://").ok_or_else(refused)?;
        let server = rest.strip_suffix('/').unwrap_or(rest);
        if server.contains('/') {
            return Err(refused().into());
        }
        Self::at(server.parse()?, config)
    }

    /// The same for a host and port already apart.
    ///
    /// # Errors
    /// As [`new`](Self::new), but for the URL.
    pub fn at(server: HostPort, config: ClientConfig) -> Result<Self, BootstrapError> {
        if server.port() == 0 {
            return Err(AddressError::Port { text: server.to_string() }.into());
        }
        for (field, time) in [
            ("connect_time", config.connect_time),
            ("request_time", config.request_time),
            ("lease", config.lease / 3),
        ] {
            if time < Duration::from_millis(1) {
                return Err(BootstrapError::Config { field, rule: "longer" });
            }
        }
        let ages = Ages { lease: config.lease, refresh: config.refresh, owner: config.owner_age };
        let target = Target {
            server,
            permitted: config.permitted,
            connect_time: config.connect_time,
            request_time: config.request_time,
            answer_bytes: config.answer_bytes,
        };
        let shared = Arc::new(Shared {
            target,
            lease: config.lease,
            book: Mutex::new(Book { lookups: Lookups::new(ages), has_ended: false }),
            work: Notify::new(),
            ended: Condvar::new(),
            watchers: Mutex::default(),
        });
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .map_err(BootstrapError::Start)?;
        let stop = Arc::new(Notify::new());
        let (ended, stopped) = (Ended(Arc::clone(&shared)), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("kvferry-find".into())
            .spawn(move || run(runtime, ended, &stopped))
            .map_err(BootstrapError::Start)?;
        Ok(Self(Arc::new(Handle {
            home: Home::here(),
            shared,
            stop,
            thread: thread.thread().id(),
            removal_time: config.removal_time,
        })))
    }
}

impl Directory for HttpDirectory {
    fn register(&self, record: RankRecord) -> Box<dyn Registration> {
        let id = self.0.update(|lookups, now| lookups.leases.register(record, now));
        Box::new(HttpRegistration { id, handle: Arc::clone(&self.0) })
    }

    fn group(&self, name: &str) -> GroupState {
        if !self.0.home.is_here() {
            return GroupState::Unreachable { detail: self.0.forked() };
        }
        if self.0.shared.book.lock().has_ended {
            return GroupState::Unreachable { detail: "the directory's thread has ended".into() };
        }
        self.0.shared.update(|lookups, now| lookups.group(name, now))
    }

    fn invalidate(&self, name: &str) {
        self.0.update(|lookups, now| lookups.invalidate(name, now));
    }

    fn publish_owner(&self, group: &str, room: Room, dp: u32) {
        self.0.update(|lookups, now| lookups.publish_owner(group, room, dp, now));
    }

    fn owner(&self, group: &str, room: Room) -> Option<u32> {
        self.0.update(|lookups, now| lookups.owner(group, room, now)).flatten()
    }

    fn watch(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if self.0.home.is_here() {
            self.0.shared.watchers.lock().push(wake);
        }
    }
}

impl Registration for HttpRegistration {
    fn state(&self) -> RegistrationState {
        match self.id.filter(|_| self.handle.home.is_here()) {
            Some(id) => self.handle.shared.book.lock().lookups.leases.registration(id),
            None => RegistrationState::Refused { detail: self.handle.forked() },
        }
    }
}

impl Shared {
    /// Asks for what is due, one request after the other, and sleeps meanwhile.
    async fn work(self: Arc<Self>) {
        loop {
            let next = self.book.lock().lookups.next_job(clock::now());
            let job = match next {
                Ok(job) => job,
                Err(None) => {
                    self.work.notified().await;
                    continue;
                }
                Err(Some(due)) => {
                    // Either ends the sleep; what is due is asked for in any case.
                    let _ = tokio::time::timeout_at(due.into(), self.work.notified()).await;
                    continue;
                }
            };
            let outcome = self.carry_out(&job).await;
            let trouble = outcome.trouble().map(str::to_owned);
            let change = self.book.lock().lookups.finish(job, outcome, clock::now());
            self.ended.notify_all();
            if change == Change::Changed {
                if let Some(detail) = trouble {
                    tracing::warn!(server = %self.target.server, "{detail}");
                }
                self.wake();
            }
        }
    }

    async fn carry_out(&self, job: &Job) -> Outcome {
        let answer = match self.call(job) {
            Ok(call) => self.target.send(call).await,
            Err(error) => return Outcome::Refused(format!("making the request failed: {error}")),
        };
        match answer {
            Ok((status, body)) => understand(&self.target.server, job, status, &body),
            Err(detail) => Outcome::Unreachable(detail),
        }
    }

    fn call(&self, job: &Job) -> Result<Call, serde_json::Error> {
        let group = |name: &str| format!("/v1/groups/{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
        let rank = |record: &RankRecord| {
            let (group, rank) = (group(&record.group), record.rank);
            format!("{group}/ranks/{}/{}/{}/{}", rank.dp, rank.pp, rank.cp, rank.tp)
        };
        let (method, path, body) = match job {
            Job::Lookup { group: name } => (Method::GET, group(name), Vec::new()),
            Job::Owners { group: name, rooms } => {
                let body = serde_json::to_vec(&json::Rooms { rooms: rooms.clone() })?;
                (Method::POST, format!("{}/owners/query", group(name)), body)
            }
            Job::Publish { group: name, owners } => {
                let body = serde_json::to_vec(&json::Owners { owners: owners.clone() })?;
                (Method::POST, format!("{}/owners", group(name)), body)
            }
            Job::Put { record, .. } => {
                let ttl = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
                (Method::PUT, rank(record), serde_json::to_vec(&json::Registering::new(record, ttl))?)
            }
            Job::Remove { record, .. } => {
                (Method::DELETE, format!("{}?instance={}", rank(record), record.instance), Vec::new())
            }
        };
        Ok(Call { method, path, body: Bytes::from(body) })
    }

    fn update<T>(&self, change: impl FnOnce(&mut Lookups, Instant) -> T) -> T {
        let answer = change(&mut self.book.lock().lookups, clock::now());
        self.work.notify_one();
        answer
    }

    fn wake(&self) {
        // Copied, so that a watcher may call the directory.
        let watchers = self.watchers.lock().clone();
        for wake in watchers {
            // A watcher's panic is reported by the panic hook and must not end the directory.
            let _ = catch_unwind(AssertUnwindSafe(|| wake()));
        }
    }
}

impl Handle {
    /// Nothing in a forked child, which has no thread to ask.
    fn update<T>(&self, change: impl FnOnce(&mut Lookups, Instant) -> T) -> Option<T> {
        self.home.is_here().then(|| self.shared.update(change))
    }

    fn forked(&self) -> String {
        format!("used after fork: the directory belongs to process {}", self.home.process())
    }

    /// Whether the caller is the directory's own thread, which must not wait for itself.
    fn is_current(&self) -> bool {
        thread::current().id() == self.thread
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            permitted: None,
            connect_time: Duration::from_secs(1),
            request_time: Duration::from_secs(3),
            answer_bytes: 16 << 20,
            lease: Duration::from_secs(15),
            refresh: Duration::from_secs(30),
            owner_age: Duration::from_secs(120),
            removal_time: Duration::from_secs(1),
        }
    }
}

impl Drop for HttpRegistration {
    fn drop(&mut self) {
        let shared = &self.handle.shared;
        let Some(id) = self.id.filter(|_| self.handle.home.is_here()) else { return };
        shared.update(|lookups, now| lookups.leases.remove(id, now));
        if !self.handle.is_current() {
            let mut book = shared.book.lock();
            let is_pending = |book: &mut Book| !book.has_ended && book.lookups.leases.is_registered(id);
            // If time runs out, the removal goes on while the directory lives, and then the lease ends.
            shared.ended.wait_while_for(&mut book, is_pending, self.handle.removal_time);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        self.stop.notify_one();
        if !self.is_current() {
            let mut book = self.shared.book.lock();
            self.shared.ended.wait_while_for(&mut book, |book| !book.has_ended, CLOSE_TIME);
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.book.lock().has_ended = true;
        self.0.ended.notify_all();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("server", &self.shared.target.server).finish_non_exhaustive()
    }
}

/// What an answer of `server` means.
pub(super) fn understand(server: &HostPort, job: &Job, status: StatusCode, body: &[u8]) -> Outcome {
    if status != StatusCode::OK {
        return refused(server, status, body);
    }
    let understood = match job {
        Job::Lookup { group } => {
            read::<json::Group>(server, body).and_then(|answer| answer.into_state(group)).map(Outcome::Group)
        }
        Job::Owners { .. } => read::<json::Owners>(server, body).map(|answer| Outcome::Owners(answer.owners)),
        Job::Publish { .. } | Job::Put { .. } | Job::Remove { .. } => {
            read::<json::Done>(server, body).map(|_| Outcome::Done)
        }
    };
    understood.unwrap_or_else(Outcome::Unreachable)
}

fn read<T: DeserializeOwned>(server: &HostPort, body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("{server} answered what is not understood: {error}"))
}

/// What an answer other than 200 means. Only a directory's own words are final.
fn refused(server: &HostPort, status: StatusCode, body: &[u8]) -> Outcome {
    match serde_json::from_slice::<json::Refused>(body) {
        Ok(json::Refused { error }) if error.kind == json::REPLACED => Outcome::Replaced(error.detail),
        Ok(json::Refused { error }) => Outcome::Refused(error.detail),
        Err(_) => Outcome::Unreachable(format!("{server} answered {status}")),
    }
}

/// The thread: works until told to stop. A name that is still being resolved is left behind.
fn run(runtime: Runtime, ended: Ended, stop: &Notify) {
    runtime.spawn(async move {
        Arc::clone(&ended.0).work().await;
        drop(ended);
    });
    runtime.block_on(stop.notified());
    // Ends the task, and `Ended` with it.
    runtime.shutdown_background();
}
