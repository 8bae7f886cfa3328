//! One request to a directory server, within its limits of time and memory.

use crate::address::{Host, HostPort, Network};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest status line and headers of an answer.
const HEAD_BYTES: usize = 64 << 10;

/// Where requests go, and what an answer may cost.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) server: HostPort,
    /// Networks that may be connected to; any if `None`.
    pub(super) permitted: Option<Vec<Network>>,
    pub(super) connect_time: Duration,
    /// For the whole request, connecting included.
    pub(super) request_time: Duration,
    pub(super) answer_bytes: usize,
}

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
}

impl Target {
    /// Sends one request over a connection of its own. Redirects are answers like any other and proxies are
    /// not asked, so nothing but permitted addresses is ever connected to.
    pub(super) async fn send(&self, call: Call) -> Result<(StatusCode, Bytes), String> {
        match timeout(self.request_time, self.exchange(call)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("{} did not answer within {:?}", self.server, self.request_time)),
        }
    }

    async fn exchange(&self, call: Call) -> Result<(StatusCode, Bytes), String> {
        let stream = self.connect().await?;
        let server = &self.server;
        let broken = |error: hyper::Error| format!("{server} broke off: {error}");
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            // Vectored writes cannot ask for an error in place of SIGPIPE, which would end the host program.
            .writev(false)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // Aborted when this request ends, at its time limit too.
        let _driver = Driver(tokio::spawn(connection));
        let request = Request::builder()
            .method(call.method)
            .uri(call.path)
            .header(header::HOST, server.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(call.body))
            .map_err(|error| format!("making the request failed: {error}"))?;
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = Limited::new(body, self.answer_bytes).collect().await;
        let body = body.map_err(|error| format!("reading the answer of {server} failed: {error}"))?;
        Ok((head.status, body.to_bytes()))
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        let mut failure = None;
        for address in self.addresses().await? {
            match timeout(self.connect_time, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failure = Some(format!("connecting to {address} failed: {error}")),
                Err(_) => {
                    failure = Some(format!("connecting to {address} took over {:?}", self.connect_time))
                }
            }
        }
        Err(failure.unwrap_or_else(|| format!("{} has no address", self.server)))
    }

    /// The addresses that may be connected to.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let port = self.server.port();
        let all: Vec<_> = match self.server.host() {
            Host::Ip(ip) => vec![SocketAddr::new(*ip, port)],
            Host::Name(name) => {
                let found = tokio::net::lookup_host((name.as_str(), port)).await;
                found.map_err(|error| format!("resolving {name} failed: {error}"))?.collect()
            }
        };
        let Some(networks) = &self.permitted else { return Ok(all) };
        let is_permitted =
            |address: &SocketAddr| networks.iter().any(|network| network.contains(address.ip()));
        let (permitted, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(is_permitted);
        match (permitted.is_empty(), refused.first()) {
            (true, Some(address)) => Err(format!("{address} is outside the permitted networks")),
            _ => Ok(permitted),
        }
    }
}

/// A task that lives no longer than its owner.
struct Driver(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
