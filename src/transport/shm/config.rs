//! How a shared-memory transport is set up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Who may be a peer, and what may be used up. The defaults suit workers of one user on one host.
///
/// ```
/// use kvferry::transport::shm::{ShmConfig, ShmTransport};
///
/// let transport = ShmTransport::new(ShmConfig::new().copiers(2))?;
/// # let _ = transport;
/// # Ok::<(), kvferry::transport::TransportError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShmConfig {
    pub(super) name: Option<String>,
    pub(super) copiers: usize,
    pub(super) window: u64,
    pub(super) control_bytes: u64,
    pub(super) links: usize,
    pub(super) arrivals: usize,
    pub(super) users: Users,
    pub(super) private: Private,
    pub(super) hello: Duration,
    pub(super) fault: Countdown,
}

/// What is done about memory of ours that peers cannot map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Private {
    /// Peers that the kernel lets read it do so where it lies (`process_vm_readv`).
    Read,
    /// It is not offered over this transport, and nobody else's is read.
    Refuse,
}

#[derive(Clone, Debug)]
pub(super) enum Users {
    Own,
    Any,
    These(Vec<u32>),
}

/// Strikes once, in the nth call; never if not set.
#[derive(Clone, Debug, Default)]
pub(super) struct Countdown(Option<Arc<AtomicU64>>);

impl ShmConfig {
    /// The defaults.
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            name: None,
            copiers: cores.min(4),
            window: 64 << 20,
            control_bytes: 64 << 20,
            links: 4096,
            arrivals: 256,
            users: Users::Own,
            private: Private::Read,
            hello: Duration::from_secs(5),
            fault: Countdown::default(),
        }
    }

    /// Listens under this name, from 1 to 64 bytes, instead of one drawn at random: for tables of addresses
    /// that are made beforehand. Any process of the network namespace can take a name that is free; peers
    /// see whose process it is, as always.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Threads that copy what arrives, from 1 to 64; by default as many as there are cores, four at most.
    pub fn copiers(mut self, threads: usize) -> Self {
        self.copiers = threads.clamp(1, 64);
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

    /// Links at most; further peers are turned away.
    pub fn links(mut self, links: usize) -> Self {
        self.links = links;
        self
    }

    /// Accepted connections that are not yet a link, at most; the oldest goes first.
    pub fn arrivals(mut self, connections: usize) -> Self {
        self.arrivals = connections.max(1);
        self
    }

    /// Users whose processes may be peers, by number, besides none other; by default our own alone.
    pub fn users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.users = Users::These(users.into_iter().collect());
        self
    }

    /// Any process that can reach this one may be a peer.
    pub fn any_user(mut self) -> Self {
        self.users = Users::Any;
        self
    }

    /// What is done about memory that peers cannot map.
    pub fn private(mut self, private: Private) -> Self {
        self.private = private;
        self
    }

    /// Time in which connections, of either direction, must have become a link.
    pub fn hello(mut self, limit: Duration) -> Self {
        self.hello = limit;
        self
    }

    /// Panics in the thread that copies the `nth` write, counted from 1, while it holds the pages.
    #[cfg(any(test, feature = "sim"))]
    pub fn panic_at_copying(mut self, nth: u64) -> Self {
        self.fault = Countdown(Some(Arc::new(AtomicU64::new(nth))));
        self
    }

    pub(super) fn permits(&self, user: u32) -> bool {
        match &self.users {
            Users::Any => true,
            Users::Own => user == rustix::process::geteuid().as_raw(),
            Users::These(users) => users.contains(&user),
        }
    }
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl Countdown {
    pub(super) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Panics if this call is the one.
    pub(super) fn trip(&self) {
        let Some(left) = &self.0 else { return };
        // Relaxed: a count.
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(before != Ok(1), "a defect made on purpose");
    }
}
