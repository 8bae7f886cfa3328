//! An engine with a pool, and how it is waited for.

use crate::case::Case;
use crate::options::{Drive, Options, Transport};
use crate::pool::Pool;
use anyhow::Result;
use kvferry::layout::{PoolEntry, PoolLayout, Role};
use kvferry::transport::shm::{ShmConfig, ShmTransport};
use kvferry::transport::tcp::{Integrity, TcpConfig, TcpTransport};
use kvferry::{Change, Config, Engine, GroupId, Place, RegionId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) pool: Pool,
    pub(crate) kv: GroupId,
    /// How long to look for work before sleeping, in nanoseconds; `None`: a thread does.
    spin: Option<u64>,
}

impl Side {
    pub(crate) fn new(options: &Options, case: &Case, name: &str) -> Result<Self> {
        let mut config = Config::default();
        // A side that checks a pool does not drive its engine meanwhile.
        config.liveness.timeout = Duration::from_secs(120);
        config.limits.rooms = config.limits.rooms.max(case.requests as usize);
        let mut builder = Engine::builder(Place::alone(name)).model("bench").config(config);
        match options.transport {
            Transport::Shm => builder = builder.transport(ShmTransport::new(ShmConfig::new())?),
            Transport::Tcp => {
                let integrity = if options.no_checksum { Integrity::Off } else { Integrity::Crc32c };
                let config = TcpConfig::new().lanes(options.lanes).integrity(integrity);
                builder = builder.transport(TcpTransport::new(config)?);
            }
        }
        let spin = (options.drive == Drive::Caller).then_some(options.spin * 1000);
        if spin.is_some() {
            builder = builder.manual_progress();
        }
        let engine = builder.build()?;
        let pool = Pool::new(case, options.memory)?;
        let mut layout = PoolLayout::new();
        let kv = layout.paged("kv", case.page_tokens, case.pool_pages);
        for number in 0..case.regions {
            let region: RegionId = engine.register(|id| pool.region(number, id))?;
            // Keys and values of a layer where there is an even number, else one latent a layer.
            let (role, layer) = match (case.regions.is_multiple_of(2), number % 2) {
                (false, _) => (Role::Latent, number),
                (true, 0) => (Role::Key, number / 2),
                (true, _) => (Role::Value, number / 2),
            };
            layout.push(PoolEntry::new(kv, role, region, case.page_bytes).layer(layer).dtype("bf16"));
        }
        engine.set_layout(layout)?;
        Ok(Self { engine, pool, kv, spin })
    }

    /// Waits until `is_done`; `block` does so where a thread drives the engine.
    pub(crate) fn until(&self, is_done: impl Fn() -> bool, block: impl FnOnce()) -> Result<()> {
        let Some(spin) = self.spin else {
            block();
            return Ok(());
        };
        let mut idle_since = now();
        while !is_done() {
            if self.engine.progress()? > 0 {
                idle_since = now();
            } else if now() - idle_since >= spin {
                self.engine.progress_or_wait(LONGEST_SLEEP)?;
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// What changed in rooms, once something has.
    pub(crate) fn changes(&self, changes: &mut Vec<Change>) -> Result<()> {
        changes.clear();
        while self.engine.changes(changes) == 0 {
            if self.spin.is_some() {
                self.engine.progress_or_wait(LONGEST_SLEEP)?;
            } else {
                let fd = self.engine.event_fd();
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds of a clock that both processes read.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Seconds of processor time that this process has used.
pub(crate) fn cpu() -> f64 {
    seconds(nanoseconds(ClockId::ProcessCPUTime))
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Most bytes that were resident so far.
pub(crate) fn peak_rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.unwrap_or("0").trim().parse::<u64>()? * 1024)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}

const LONGEST_SLEEP: Duration = Duration::from_secs(1);
