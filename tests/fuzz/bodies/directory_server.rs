//! The directory's server: requests as text, and what it answers, read by a client.

use super::directory_client;
use kvferry::bootstrap::ServerConfig;
use kvferry::bootstrap::probe::Server;
use std::time::{Duration, Instant};

/// Takes each line of the input as a request: method, path and body, with a space between them. A line
/// `WAIT n` lets n seconds pass.
pub(crate) fn run(input: &[u8]) {
    let mut config = ServerConfig::default();
    (config.ranks, config.owners, config.table_bytes, config.record_bytes) = (8, 8, 8 << 10, 2 << 10);
    let server = Server::new(&config);
    let mut now = super::start();
    for line in input.split(|&byte| byte == b'\n').take(64) {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let method = words.next().map(String::from_utf8_lossy).unwrap_or_default();
        let uri = words.next().map(String::from_utf8_lossy).unwrap_or_default();
        if method == "WAIT" {
            now += Duration::from_secs(uri.parse::<u8>().unwrap_or(1).into());
            continue;
        }
        let body = words.next().unwrap_or_default();
        let Some((status, answer)) = server.request(&method, &uri, body, now) else { continue };
        assert!([200, 400, 404, 405, 409, 413, 507].contains(&status), "{status}");
        assert!(answer.len() <= 64 << 10, "an answer of {} bytes", answer.len());
        if status == 200 {
            understood(&method, &uri, &answer, now);
        }
    }
}

/// A client understands what the server says.
fn understood(method: &str, uri: &str, answer: &[u8], now: Instant) {
    let path = uri.split('?').next().unwrap_or_default();
    let parts: Vec<_> = path.split('/').collect();
    let ["", "v1", "groups", group] = parts[..] else { return };
    if method == "GET" && !group.contains('%') {
        let state = directory_client::ask(group, 200, answer, now);
        assert!(
            !matches!(state, kvferry::bootstrap::GroupState::Unreachable { .. }),
            "{state:?} from {}",
            String::from_utf8_lossy(answer)
        );
    }
}
