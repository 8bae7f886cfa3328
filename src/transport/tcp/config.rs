//! How a TCP transport is set up.

use crate::address::{Host, Network};
use crate::memory::MAX_VECTORS;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where a TCP transport listens and how it uses connections. The defaults suit one host or one network.
///
/// ```
/// use kvferry::transport::tcp::{TcpConfig, TcpTransport};
///
/// let transport = TcpTransport::new(TcpConfig::new().lanes(2))?;
/// # let _ = transport;
/// # Ok::<(), kvferry::transport::TransportError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TcpConfig {
    pub(super) bind: SocketAddr,
    pub(super) advertise: Option<Host>,
    pub(super) lanes: u8,
    pub(super) integrity: Integrity,
    pub(super) window: u64,
    pub(super) control_bytes: u64,
    pub(super) vectors: usize,
    pub(super) buffers: Option<usize>,
    pub(super) congestion: Option<String>,
    pub(super) arrivals: usize,
    pub(super) links: usize,
    pub(super) permitted: Option<Vec<Network>>,
    pub(super) hello: Duration,
    pub(super) fault: Fault,
}

/// Whether payloads carry a checksum.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Integrity {
    /// CRC-32C of every payload; what the peer sends with one is checked in any case.
    Crc32c,
    /// None.
    Off,
}

/// What goes wrong on purpose, to test what follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Fault {
    /// The write whose payload is damaged.
    pub(super) damage: Countdown,
    /// The write whose sending panics.
    pub(super) send: Countdown,
    /// The write whose receiving panics.
    pub(super) receive: Countdown,
}

/// Strikes once, in the nth call; never if not set.
#[derive(Clone, Debug, Default)]
pub(super) struct Countdown(Option<Arc<AtomicU64>>);

impl TcpConfig {
    /// Listens on a free port of the loopback interface.
    pub fn new() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            lanes: 2,
            integrity: Integrity::Crc32c,
            window: 16 << 20,
            control_bytes: 64 << 20,
            vectors: MAX_VECTORS,
            buffers: None,
            congestion: Some("cubic".into()),
            arrivals: 256,
            links: 4096,
            permitted: None,
            hello: Duration::from_secs(5),
            fault: Fault::default(),
        }
    }

    /// Listens here; port 0 takes a free one.
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = address;
        self
    }

    /// What peers are told to connect to; needed if `bind` is a wildcard.
    pub fn advertise(mut self, host: Host) -> Self {
        self.advertise = Some(host);
        self
    }

    /// Data connections of each link, and threads that serve them: from 1 to 16.
    pub fn lanes(mut self, lanes: u8) -> Self {
        self.lanes = lanes.clamp(1, MAX_LANES);
        self
    }

    /// Whether payloads carry a checksum.
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.integrity = integrity;
        self
    }

    /// Bytes of unsettled writes a link takes; one write may pass it.
    pub fn window(mut self, bytes: u64) -> Self {
        self.window = bytes;
        self
    }

    /// Bytes of control frames that may wait for a peer; beyond, its link is closed.
    pub fn control_bytes(mut self, bytes: u64) -> Self {
        self.control_bytes = bytes;
        self
    }

    /// Page runs moved by one system call: from 2 to 1024.
    pub fn vectors(mut self, vectors: usize) -> Self {
        self.vectors = vectors;
        self
    }

    /// Fixed kernel buffers of each connection, in bytes; the kernel chooses unless this is called.
    pub fn socket_buffers(mut self, bytes: usize) -> Self {
        self.buffers = Some(bytes);
        self
    }

    /// The kernel's congestion control by name, or its default. One that the kernel refuses is not used.
    pub fn congestion(mut self, name: Option<&str>) -> Self {
        self.congestion = name.map(str::to_owned);
        self
    }

    /// Accepted connections that are not yet part of a link, at most; the oldest goes first.
    pub fn arrivals(mut self, connections: usize) -> Self {
        self.arrivals = connections.max(1);
        self
    }

    /// Links at most; further peers are turned away.
    pub fn links(mut self, links: usize) -> Self {
        self.links = links;
        self
    }

    /// Networks that may be connected to; any unless this is called. Checked before each connection, after
    /// a name is resolved.
    pub fn permitted(mut self, networks: impl IntoIterator<Item = Network>) -> Self {
        self.permitted = Some(networks.into_iter().collect());
        self
    }

    /// Time in which connections, of either direction, must have become a link.
    pub fn hello(mut self, limit: Duration) -> Self {
        self.hello = limit;
        self
    }

    /// Damages the payload of the `nth` write sent, counted from 1.
    #[cfg(any(test, feature = "sim"))]
    pub fn damage_write(mut self, nth: u64) -> Self {
        self.fault.damage = Countdown::from(nth);
        self
    }

    /// Panics in the thread that sends the `nth` write, counted from 1.
    #[cfg(any(test, feature = "sim"))]
    pub fn panic_at_sending(mut self, nth: u64) -> Self {
        self.fault.send = Countdown::from(nth);
        self
    }

    /// Panics in the thread that receives the `nth` write, counted from 1, while it holds the pages.
    #[cfg(any(test, feature = "sim"))]
    pub fn panic_at_receiving(mut self, nth: u64) -> Self {
        self.fault.receive = Countdown::from(nth);
        self
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl Countdown {
    #[cfg(any(test, feature = "sim"))]
    fn from(nth: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(nth))))
    }

    /// Panics if this call is the one.
    pub(super) fn trip(&self) {
        assert!(!self.strikes(), "a defect made on purpose");
    }

    /// Whether this call is the one.
    pub(super) fn strikes(&self) -> bool {
        let Some(left) = &self.0 else { return false };
        // Relaxed: a count.
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        before == Ok(1)
    }
}

/// Lanes of a link at most; also what a peer may ask for.
pub(super) const MAX_LANES: u8 = 16;
