//! The directory over HTTP: server and client, as other processes and strangers meet them.

#![expect(clippy::unwrap_used, reason = "what the helpers of a test cannot do fails the test")]

mod finding;
mod hostile;
mod listening;

use kvferry::bootstrap::{
    BootstrapServer, ClientConfig, Directory, GroupState, HttpDirectory, RankRecord, Registration,
    RegistrationState, ServerConfig,
};
use kvferry::layout::LayoutDigest;
use kvferry::{GroupSizes, Instance, Rank};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Ends a hung test; nothing waits that long when all is well.
const WATCHDOG: Duration = Duration::from_secs(30);

/// A directory whose changes can be waited for.
struct Watched {
    directory: HttpDirectory,
    woken: Receiver<()>,
}

impl Watched {
    fn new(url: &str, config: ClientConfig) -> Self {
        Self::watch(HttpDirectory::new(url, config).unwrap())
    }

    fn watch(directory: HttpDirectory) -> Self {
        let (wake, woken) = mpsc::channel();
        directory.watch(Arc::new(move || {
            // The test may be over.
            let _ = wake.send(());
        }));
        Self { directory, woken }
    }

    /// Looks after each wake-up until `found` finds something.
    fn until<T>(&self, mut found: impl FnMut(&HttpDirectory) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(&self.directory) {
                return found;
            }
            self.woken.recv_timeout(WATCHDOG).expect("a wake-up before the watchdog");
        }
    }

    fn until_ready(&self, group: &str) -> Arc<kvferry::bootstrap::GroupInfo> {
        self.until(|directory| match directory.group(group) {
            GroupState::Ready(info) => Some(info),
            _ => None,
        })
    }

    fn until_unreachable(&self, group: &str) -> String {
        self.until(|directory| match directory.group(group) {
            GroupState::Unreachable { detail } => Some(detail),
            _ => None,
        })
    }

    fn until_state(
        &self,
        registration: &dyn Registration,
        is_right: impl Fn(&RegistrationState) -> bool,
    ) -> RegistrationState {
        self.until(|_| Some(registration.state()).filter(&is_right))
    }

    /// Looks up anew, again and again, until `found` finds something.
    fn until_fresh<T>(&self, group: &str, found: impl Fn(GroupState) -> Option<T>) -> T {
        loop {
            self.directory.invalidate(group);
            let state = self.until(|directory| match directory.group(group) {
                GroupState::Unknown => None,
                state => Some(state),
            });
            if let Some(found) = found(state) {
                return found;
            }
        }
    }
}

fn server() -> BootstrapServer {
    BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap()
}

fn record(tp: u32, sizes: u32, instance: u128) -> RankRecord {
    let sizes = GroupSizes::tp(sizes);
    RankRecord::new("a/b c", sizes, Rank::tp(tp), Instance(instance), LayoutDigest([7; 16]))
        .address("tcp", [0, 255, 17])
        .extra("http_port", "30000")
}

fn is_published(state: &RegistrationState) -> bool {
    *state == RegistrationState::Published
}

/// Sends bytes as they are and reads what comes until the end; empty if the connection was cut.
fn send(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    // The server may have answered and closed before all is written.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("no answer before the watchdog")
        }
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

fn message(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Status and JSON body of the answer to one request.
fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let answer = send(address, message(method, path, body).as_bytes());
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let json = answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
    (
        status.unwrap_or_else(|| panic!("no status for {method} {path} {body:.80}: {answer:?}")),
        json.unwrap_or_else(|| panic!("no JSON in {answer:?}")),
    )
}

/// The body of a `PUT` of a rank.
fn put_body(sizes: u32, instance: u128, ttl_ms: u64) -> String {
    format!(
        r#"{{"sizes":{{"dp":1,"pp":1,"cp":1,"tp":{sizes}}},"instance":"{instance:032x}","ttl_ms":{ttl_ms},
        "addresses":[{{"transport":"tcp","address":"00ff"}}],"layout":"{:032x}","news":[1]}}"#,
        0
    )
}
