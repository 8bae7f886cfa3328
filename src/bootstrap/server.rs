//! The directory as a server: HTTP/1.1 with JSON bodies, on one thread of its own.

use super::table::{Refusal, Table, TableLimits, encode};
use super::{BootstrapError, clock, json};
use crate::address::{Host, HostPort};
use crate::home::Home;
use crate::ids::{Instance, Rank};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};

/// Longest request line and headers.
const HEAD_BYTES: usize = 16 << 10;
/// Longest name of a group, in bytes.
const GROUP_BYTES: usize = 256;
/// Pause after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a server, and what it calls itself.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The host that [`BootstrapServer::url`] names. Needed when bound to a wildcard.
    pub advertise: Option<Host>,
    /// Connections served at once; more wait in the system's queue.
    pub connections: usize,
    /// Time for one connection, from accepting it to the end of its answer.
    pub request_time: Duration,
    /// Bytes of the body of one request.
    pub body_bytes: usize,
    /// Bytes of one rank's record.
    pub record_bytes: usize,
    /// Ranks of all groups together.
    pub ranks: usize,
    /// Bytes of all records together.
    pub table_bytes: usize,
    /// Longest lease; longer ones are shortened to it.
    pub lease: Duration,
    /// Rooms whose owners are remembered; the oldest are forgotten first.
    pub owners: usize,
    /// How long an owner is remembered.
    pub owner_age: Duration,
}

/// A directory that other processes reach over HTTP. Dropping it closes it.
///
/// Each connection carries one request. Bodies are JSON; bytes are hexadecimal text; unknown fields are
/// ignored. `{group}` is percent-encoded.
///
/// | request | body | answer |
/// |---|---|---|
/// | `GET /health` | | `{"status": "ok"}` |
/// | `PUT /v1/groups/{group}/ranks/{dp}/{pp}/{cp}/{tp}` | `{"instance": hex, "sizes": {"dp": 1, "pp": 1, "cp": 1, "tp": 4}, "ttl_ms": 10000, "addresses": [{"transport": "tcp", "address": hex}], "layout": hex, "extra": {}}` | `{"status": "ok"}` |
/// | `DELETE` of the same, with `?instance=hex` | | `{"status": "ok"}` |
/// | `GET /v1/groups/{group}` | | `{"state": "ready", "sizes": ..., "ranks": [{"rank": {"dp": 0, ...}, "instance": ...}]}` or `{"state": "not_ready", "registered": 3, "announced": 4, "missing": [{"dp": 0, ...}]}` |
/// | `POST /v1/groups/{group}/owners` | `{"owners": {"room": dp}}` | `{"status": "ok"}` |
/// | `POST /v1/groups/{group}/owners/query` | `{"rooms": [room]}` | `{"owners": {"room": dp}}`, unknown rooms left out |
///
/// A rank stays until its lease of `ttl_ms` ends; the same `PUT` renews it. Another instance replaces it, and
/// then the replaced one is refused (409 `replaced`), as are sizes that differ from those of the group's other
/// ranks (409 `sizes_differ`). Whatever is refused is answered with `{"error": {"kind": ..., "detail": ...}}`:
/// 400 `malformed` or `outside`, 404 `not_found`, 405 `method`, 409, 413 `too_large`, 507 `full`.
///
/// There is no authentication: bind it to a network whose hosts are trusted.
///
/// # Examples
/// ```
/// use kvferry::bootstrap::{BootstrapServer, ServerConfig};
///
/// let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default())?;
/// assert_eq!(server.url(), format!("http://{}", server.address()));
/// server.close();
/// # Ok::<(), kvferry::bootstrap::BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct BootstrapServer {
    home: Home,
    address: SocketAddr,
    advertised: HostPort,
    stop: Arc<Notify>,
    running: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What every connection shares.
#[derive(Debug)]
pub(super) struct Service {
    table: Mutex<Table>,
    rejected: AtomicU64,
    body_bytes: usize,
    request_time: Duration,
}

/// Says that the listener has ended, however it did.
struct Running(Arc<AtomicBool>);

/// A request that is not carried out.
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    kind: &'static str,
    detail: String,
}

/// A path that is understood.
enum Route {
    Group { group: String },
    Health,
    Owners { group: String },
    OwnersQuery { group: String },
    Rank { group: String, rank: Rank },
}

impl BootstrapServer {
    /// Listens on `address`, written as `127.0.0.1:0`, `[::1]:8998` or `name:port`. Port 0 takes a free one.
    ///
    /// # Errors
    /// The address is malformed, taken or not this host's; or it is a wildcard and
    /// [`ServerConfig::advertise`] does not say how peers reach it.
    pub fn bind(address: &str, config: ServerConfig) -> Result<Self, BootstrapError> {
        Self::listen(&address.parse()?, config)
    }

    /// The same for a host and port already apart.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), but for the malformed address.
    pub fn listen(address: &HostPort, config: ServerConfig) -> Result<Self, BootstrapError> {
        for (field, value) in [("connections", config.connections), ("ranks", config.ranks)] {
            if value == 0 {
                return Err(BootstrapError::Config { field, rule: "at least 1" });
            }
        }
        let failed = |source| BootstrapError::Bind { address: address.to_string(), source };
        let listener = std::net::TcpListener::bind(&*address.resolve()?).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let advertised = HostPort::advertised(bound, config.advertise.as_ref())?;

        let runtime = Builder::new_current_thread().enable_all().build().map_err(BootstrapError::Start)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(BootstrapError::Start)?
        };
        let (stop, running) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(true)));
        let guard = Running(Arc::clone(&running));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("kvferry-dir".into())
            .spawn(move || serve(runtime, listener, config, guard, &stopped))
            .map_err(BootstrapError::Start)?;
        Ok(Self {
            home: Home::here(),
            address: bound,
            advertised,
            stop,
            running,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Stops listening, cuts the connections and frees the port. Returns when that is done; no request can
    /// delay it. Doing it again does nothing, nor does it in a forked child.
    pub fn close(&self) {
        if !self.home.is_here() {
            return;
        }
        // Held until the thread has ended, so that a second caller returns no earlier.
        let mut thread = self.thread.lock();
        self.stop.notify_one();
        if let Some(thread) = thread.take() {
            // It ends without a result; a panic of its own is in `is_running`.
            let _ = thread.join();
        }
    }

    /// The address bound to, with the real port.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it: the advertised host, and the real port.
    pub fn url(&self) -> String {
        format!("http://{}", self.advertised)
    }

    /// Whether it still listens: false once closed.
    pub fn is_running(&self) -> bool {
        // Acquire; pairs with the Release in `Running::drop`.
        self.running.load(Ordering::Acquire)
    }
}

impl Service {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let limits = TableLimits {
            ranks: config.ranks,
            bytes: config.table_bytes,
            record_bytes: config.record_bytes,
            lease: config.lease,
            owners: config.owners,
            owner_age: config.owner_age,
        };
        Self {
            table: Mutex::new(Table::new(limits)),
            rejected: AtomicU64::new(0),
            body_bytes: config.body_bytes,
            request_time: config.request_time,
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let limit = self.request_time;
        let service = service_fn(move |request| {
            let service = Arc::clone(&self);
            async move { Ok::<_, Infallible>(service.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .keep_alive(false)
            // A client that has sent all may say so and still be answered.
            .half_close(true)
            .max_buf_size(HEAD_BYTES)
            // Vectored writes cannot ask for an error in place of SIGPIPE, which would end the host program.
            .writev(false)
            // The whole connection has a time limit instead.
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(stream), service);
        // What the client did wrong ends its own connection and nothing else.
        let _ = tokio::time::timeout(limit, connection).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, body) = match self.carry_out(request).await {
            Ok(body) => (StatusCode::OK, body),
            Err(Rejection { status, kind, detail }) => {
                // Relaxed: only a count. Logged ever more rarely, so that no client fills a disk.
                let count = self.rejected.fetch_add(1, Ordering::Relaxed) + 1;
                if count.is_power_of_two() {
                    tracing::warn!(count, kind, %detail, "request refused");
                }
                let body = json::Refused { error: json::Error { kind: kind.into(), detail } };
                (status, encode(&body).unwrap_or_default())
            }
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }

    async fn carry_out(&self, request: Request<Incoming>) -> Result<Bytes, Rejection> {
        let (parts, body) = request.into_parts();
        // Before anything is refused: closing with unread bytes would cut off the answer.
        let body = self.read(body).await?;
        self.obey(&parts.method, &parts.uri, &body, clock::now())
    }

    /// Carries out a request that is here whole.
    pub(super) fn obey(
        &self,
        method: &Method,
        uri: &Uri,
        body: &[u8],
        now: Instant,
    ) -> Result<Bytes, Rejection> {
        let route = Route::parse(uri.path())?;
        match (route, method) {
            (Route::Health, &Method::GET) => done(),
            (Route::Group { group }, &Method::GET) => {
                self.table.lock().group(&group, now).map_err(Rejection::unencodable)
            }
            (Route::Rank { group, rank }, &Method::PUT) => {
                let put: json::Registering = parsed(body)?;
                let ttl = Duration::from_millis(put.ttl_ms);
                let record =
                    put.body.into_record(&group, put.sizes.into(), rank).map_err(Rejection::malformed)?;
                self.table.lock().put(record, ttl, now)?;
                done()
            }
            (Route::Rank { group, rank }, &Method::DELETE) => {
                let instance = instance(uri.query()).ok_or_else(|| {
                    Rejection::malformed("instance=, 32 hexadecimal digits, is needed in the query")
                })?;
                self.table.lock().remove(&group, rank, instance, now)?;
                done()
            }
            (Route::Owners { group }, &Method::POST) => {
                let published: json::Owners = parsed(body)?;
                self.table.lock().publish_owners(&group, published.owners, now);
                done()
            }
            (Route::OwnersQuery { group }, &Method::POST) => {
                let asked: json::Rooms = parsed(body)?;
                let owners = self.table.lock().owners(&group, &asked.rooms, now);
                reply(&json::Owners { owners })
            }
            (_, method) => Err(Rejection {
                status: StatusCode::METHOD_NOT_ALLOWED,
                kind: "method",
                detail: format!("{method} is not possible here"),
            }),
        }
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Rejection> {
        let body = Limited::new(body, self.body_bytes).collect().await.map_err(|error| match error
            .downcast_ref::<LengthLimitError>(
        ) {
            Some(_) => Rejection {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                kind: "too_large",
                detail: format!("the body has more than {} bytes", self.body_bytes),
            },
            None => Rejection::malformed(error),
        })?;
        Ok(body.to_bytes())
    }
}

impl Route {
    fn parse(path: &str) -> Result<Self, Rejection> {
        let not_found = || Rejection {
            status: StatusCode::NOT_FOUND,
            kind: "not_found",
            detail: "no such path; see the routes of version 1".into(),
        };
        let parts: Vec<_> = path.split('/').skip(1).take(9).collect();
        let named = |group: &str| {
            let group = percent_decode_str(group).decode_utf8().map_err(Rejection::malformed)?;
            match (1..=GROUP_BYTES).contains(&group.len()) && !group.contains(char::is_control) {
                true => Ok(group.into_owned()),
                false => Err(Rejection::malformed(format_args!(
                    "a group's name has 1 to {GROUP_BYTES} bytes without control characters"
                ))),
            }
        };
        let index = |text: &str| text.parse::<u32>().map_err(Rejection::malformed);
        match *parts {
            ["health"] => Ok(Self::Health),
            ["v1", "groups", group] => Ok(Self::Group { group: named(group)? }),
            ["v1", "groups", group, "owners"] => Ok(Self::Owners { group: named(group)? }),
            ["v1", "groups", group, "owners", "query"] => Ok(Self::OwnersQuery { group: named(group)? }),
            ["v1", "groups", group, "ranks", dp, pp, cp, tp] => {
                let rank = Rank { dp: index(dp)?, pp: index(pp)?, cp: index(cp)?, tp: index(tp)? };
                Ok(Self::Rank { group: named(group)?, rank })
            }
            _ => Err(not_found()),
        }
    }
}

impl Rejection {
    fn malformed(detail: impl ToString) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "malformed", detail: detail.to_string() }
    }

    fn unencodable(error: serde_json::Error) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, kind: "internal", detail: error.to_string() }
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        let (status, kind) = match refusal {
            Refusal::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, "full"),
            Refusal::Outside { .. } => (StatusCode::BAD_REQUEST, "outside"),
            Refusal::Replaced { .. } => (StatusCode::CONFLICT, json::REPLACED),
            Refusal::SizesDiffer { .. } => (StatusCode::CONFLICT, "sizes_differ"),
            Refusal::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        };
        Self { status, kind, detail: refusal.to_string() }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            advertise: None,
            connections: 256,
            request_time: Duration::from_secs(5),
            body_bytes: 256 << 10,
            record_bytes: 32 << 10,
            ranks: 16_384,
            table_bytes: 64 << 20,
            lease: Duration::from_secs(60),
            owners: 65_536,
            owner_age: Duration::from_secs(120),
        }
    }
}

impl Drop for BootstrapServer {
    fn drop(&mut self) {
        self.close();
        // Only left in a forked child, where the handle may name another thread by now.
        std::mem::forget(self.thread.get_mut().take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Release; pairs with the Acquire in `BootstrapServer::is_running`.
        self.0.store(false, Ordering::Release);
    }
}

/// The thread: serves until told to stop. Ending the runtime drops the listener and every connection.
fn serve(runtime: Runtime, listener: TcpListener, config: ServerConfig, running: Running, stop: &Notify) {
    let service = Arc::new(Service::new(&config));
    let slots = Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS)));
    runtime.spawn(accept(listener, service, slots, running));
    runtime.block_on(stop.notified());
}

async fn accept(listener: TcpListener, service: Arc<Service>, slots: Arc<Semaphore>, _running: Running) {
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = Arc::clone(&service).connection(stream);
                // A panic of one connection ends with its task.
                tokio::spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            // The connection was gone already, or the process is out of descriptors.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

fn done() -> Result<Bytes, Rejection> {
    reply(&json::Done { status: "ok".into() })
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    serde_json::from_slice(body).map_err(Rejection::malformed)
}

fn reply(body: &impl Serialize) -> Result<Bytes, Rejection> {
    encode(body).map_err(Rejection::unencodable)
}

/// The instance named in a query.
fn instance(query: Option<&str>) -> Option<Instance> {
    let digits = query?.split('&').find_map(|pair| pair.strip_prefix("instance="))?;
    let bytes = json::parse_hex(digits).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())?;
    Some(Instance(u128::from_be_bytes(bytes)))
}
