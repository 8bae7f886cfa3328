//! One rank's end: where pools, sessions, transports and the directory meet.
//!
//! - `mod.rs`: [`Engine`], the calls that are not about one room
//! - `builder.rs`: making one
//! - `sender.rs`, `receiver.rs`, `handle.rs`: the handles of a room
//! - `work.rs`, `usage.rs`: what callers give, and what they may not
//! - `slot.rs`, `changes.rs`: what callers see of a room
//! - `core.rs`, `commands.rs`, `inbound.rs`, `reach.rs`, `outbound.rs`: the loop
//! - `rooms.rs`, `links.rs`, `targets.rs`, `layouts.rs`, `sources.rs`, `feeds.rs`: what the loop knows
//! - `outcome.rs`, `groups.rs`: outcomes that several ranks share
//! - `liveness.rs`: signs of life
//! - `regions.rs`: memory that is taken back
//! - `shared.rs`, `inbox.rs`, `live.rs`: what handles and the loop have in common; the lock order
//! - `wake.rs`, `thread.rs`, `clock.rs`: who runs the loop, and when
//! - `stats.rs`, `report.rs`: counters and figures, peers and rooms; `warning.rs`: warnings at a limited rate

mod builder;
mod changes;
mod clock;
mod commands;
mod core;
mod feeds;
mod groups;
mod handle;
mod inbound;
mod inbox;
mod layouts;
mod links;
mod live;
mod liveness;
mod outbound;
mod outcome;
mod reach;
mod receiver;
mod regions;
mod report;
mod rooms;
mod sender;
mod shared;
mod slot;
mod sources;
mod stats;
mod targets;
mod thread;
mod usage;
mod wake;
mod warning;
mod work;

pub use builder::EngineBuilder;
pub use changes::Change;
pub use outcome::{Member, Outcome};
pub use receiver::KVReceiver;
pub use regions::Withdrawal;
pub use report::{PeerReport, Report, RoomReport};
pub use sender::KVSender;
pub use slot::Granted;
pub use sources::{Source, Sources};
pub use stats::{Stats, TransferStats};
pub use thread::CloseReport;
pub use usage::{Accepted, BuildError, UsageError};
pub use work::{Chunk, Finish, Grant, Offer};

use crate::bootstrap::{GroupState, RankRecord};
use crate::config::Deadlines;
use crate::ids::{Attempt, GrantId, GroupSizes, Instance, Rank, RegionId, Room, Side};
use crate::layout::{PoolLayout, TokenShard};
use crate::memory::Region;
use crate::transport::Wait;
use feeds::HOLDS;
use layouts::Announced;
use shared::{Command, Shared};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thread::Driver;

/// One rank's end. Cheap to clone, callable from any thread. Plays either side, room by room.
///
/// Dropping the last clone closes the engine as [`Engine::close`] does, within two seconds.
///
/// It belongs to the process that made it. In a forked child, calls that would do something give
/// [`UsageError::Forked`], what is read is empty or as it was at the fork, and drops do nothing.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    driver: Arc<Driver>,
}

/// Where an engine stands in its cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Place {
    /// The group's name in the directory.
    pub group: String,
    /// Its place in the group.
    pub rank: Rank,
    /// Sizes of the group.
    pub sizes: GroupSizes,
}

/// What a room may have of its own.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct RoomOptions {
    /// The caller's number, given back by [`Engine::changes`].
    pub tag: u64,
    /// Which try of the room this is; both sides must name the same. A room may be used again without
    /// one only after both handles, of every rank that shares the outcome, have reported a final state and
    /// `Safe`.
    pub attempt: Attempt,
    /// Deadlines; the engine's if none are given.
    pub deadlines: Option<Deadlines>,
    /// Whose outcome it has: this rank's own, if nothing else is asked for.
    pub outcome: Outcome,
    /// How its tokens are dealt out to ranks, if not as those of every room of the engine are.
    pub tokens: Option<TokenShard>,
}

impl Place {
    /// Rank `rank` of a group of `sizes`.
    pub fn new(group: impl Into<String>, rank: Rank, sizes: GroupSizes) -> Self {
        Self { group: group.into(), rank, sizes }
    }

    /// The only rank of a group.
    pub fn alone(group: impl Into<String>) -> Self {
        Self::new(group, Rank::default(), GroupSizes::ONE)
    }
}

impl RoomOptions {
    /// With this tag.
    pub fn tag(tag: u64) -> Self {
        Self { tag, ..Self::default() }
    }

    /// As this try of the room.
    #[must_use]
    pub fn attempt(mut self, attempt: u64) -> Self {
        self.attempt = Attempt(attempt);
        self
    }

    /// With these deadlines.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = Some(deadlines);
        self
    }

    /// With tokens dealt out to ranks in a way of its own, as where each context parallel rank computes one
    /// run of the prompt ([`TokenShard::run`]). Both sides must say the same: a receiver of such a room, or
    /// from such a sender, names its sources one by one, each with its [`Share`](crate::layout::Share).
    #[must_use]
    pub fn tokens(mut self, tokens: TokenShard) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// With one outcome for all ranks of this engine's group that have its data parallel index: see
    /// [`Outcome`]. The directory must know the group.
    #[must_use]
    pub fn whole_group(mut self) -> Self {
        self.outcome = Outcome::Group;
        self
    }

    /// With one outcome for these ranks of this engine's group, which is one of them: see [`Outcome`].
    #[must_use]
    pub fn members(mut self, members: Vec<Member>) -> Self {
        self.outcome = Outcome::Members(members);
        self
    }

    /// How the room's tokens are dealt out.
    fn shard(&self, shared: &Shared) -> Result<TokenShard, UsageError> {
        let tokens = self.tokens.unwrap_or(shared.tokens);
        if tokens.is_possible() { Ok(tokens) } else { Err(UsageError::Tokens(tokens)) }
    }
}

impl Engine {
    /// Starts making an engine.
    pub fn builder(place: Place) -> EngineBuilder {
        EngineBuilder::new(place)
    }

    /// Lends memory to the engine. `make` is given the number the region will have, for instance
    /// `|id| buffer.region(id)`.
    ///
    /// # Errors
    /// A transport cannot use this memory; it is then lent to none.
    pub fn register(&self, make: impl FnOnce(RegionId) -> Region) -> Result<RegionId, UsageError> {
        let shared = self.open()?;
        let id = RegionId(shared.next_region.fetch_add(1, Ordering::Relaxed));
        let region = make(id);
        let mut core = shared.core.lock();
        for at in 0..core.transports.len() {
            if let Err(error) = core.transports[at].register(&region) {
                core.transports[..at].iter_mut().for_each(|transport| transport.deregister(id));
                return Err(UsageError::Region(error.to_string()));
            }
        }
        core.regions.insert(id, region);
        Ok(id)
    }

    /// Takes memory back, so that it can be freed or lent again: peers that can reach it are asked to let
    /// go of it. It is used until the withdrawal [is done](Withdrawal::is_done), which is at once where
    /// nobody else can reach it.
    ///
    /// # Errors
    /// The layout still names it, or it is not lent.
    pub fn withdraw(&self, region: RegionId) -> Result<Withdrawal, UsageError> {
        let shared = self.open()?;
        let mut core = shared.core.lock();
        let named =
            |announced: &Arc<Announced>| announced.layout.entries.iter().any(|entry| entry.region == region);
        if core.announced.as_ref().is_some_and(named) {
            return Err(UsageError::RegionInUse(region));
        }
        let withdrawal = core.withdraw(region).ok_or(UsageError::UnknownRegion(region));
        drop(core);
        shared.inbox.ring();
        withdrawal
    }

    /// Describes the pools, and announces them to peers and to the directory. Again when they change
    /// and no room is alive.
    ///
    /// # Errors
    /// The description does not hold together or with the regions, or rooms are alive.
    pub fn set_layout(&self, layout: PoolLayout) -> Result<(), UsageError> {
        let shared = self.open()?;
        let mut core = shared.core.lock();
        layout.check(|region| core.regions.get(&region).map(Region::len))?;
        let digest = layout.digest();
        let epoch = core.announced.as_ref().map_or(1, |announced| announced.epoch + 1);
        let announced = Arc::new(Announced::new(epoch, layout, shared.tokens));
        let held = announced.holding.to_string();
        shared.live.without_rooms(|| *shared.announced.write() = Some(Arc::clone(&announced)))?;
        core.announced = Some(announced);
        let links: Vec<_> = core.links.keys().copied().collect();
        links.into_iter().for_each(|link| core.announce(link));
        let mut former = None;
        if let Some(directory) = &shared.directory {
            let place = &shared.place;
            let addresses = core.addresses();
            former = core.registration.replace(directory.register(RankRecord {
                group: place.group.clone(),
                sizes: place.sizes,
                rank: place.rank,
                instance: shared.instance,
                addresses,
                layout: digest,
                extra: BTreeMap::from([(HOLDS.to_owned(), held)]),
            }));
        }
        drop(core);
        drop(former); // may wait for the directory; the new record has taken its place
        shared.inbox.ring();
        Ok(())
    }

    /// Prefill: one request. Starts in `Bootstrapping`, until the decode side has lent pages.
    ///
    /// # Errors
    /// The room is in use, too many rooms are, the members cannot be, there is no layout yet, or the engine
    /// is closed.
    pub fn sender(&self, room: Room, options: RoomOptions) -> Result<KVSender, UsageError> {
        let shared = self.open()?;
        let tokens = options.shard(shared)?;
        let group = shared.group(Side::Prefill, room, options.attempt, options.outcome)?;
        let (slot, announced) = shared.claim(Side::Prefill, room, options.tag)?;
        let announced = announced.dealt(tokens);
        let deadlines = options.deadlines.unwrap_or(shared.config.deadlines);
        shared.inbox.command(Command::OpenSender {
            slot: Arc::clone(&slot),
            attempt: options.attempt,
            deadlines,
            tokens,
            group,
        });
        Ok(KVSender::new(Arc::clone(shared), slot, announced))
    }

    /// Decode: the same request, fed by `sources`.
    ///
    /// # Errors
    /// The room is in use, too many rooms are, the sources or members cannot be, there is no layout yet, or
    /// the engine is closed.
    pub fn receiver(
        &self,
        room: Room,
        sources: Sources,
        options: RoomOptions,
    ) -> Result<KVReceiver, UsageError> {
        let shared = self.open()?;
        let tokens = options.shard(shared)?;
        sources.check(tokens, shared.tokens)?;
        let group = shared.group(Side::Decode, room, options.attempt, options.outcome)?;
        let (slot, announced) = shared.claim(Side::Decode, room, options.tag)?;
        let announced = announced.dealt(tokens);
        let deadlines = options.deadlines.unwrap_or(shared.config.deadlines);
        let id = GrantId { room, attempt: options.attempt, generation: slot.generation };
        let layers = announced.holding.layers.iter().collect();
        shared.inbox.command(Command::OpenReceiver {
            slot: Arc::clone(&slot),
            id,
            from: sources,
            deadlines,
            layers,
            group,
        });
        Ok(KVReceiver::new(Arc::clone(shared), slot, announced))
    }

    /// Fails an attempt of a room that will get no sender here (a refused request), so that nobody waits
    /// for it. Nothing if it has one.
    ///
    /// # Errors
    /// [`UsageError::Closed`].
    pub fn reject(&self, room: Room, attempt: Attempt, detail: &str) -> Result<(), UsageError> {
        let detail = detail.to_owned();
        self.open()?.inbox.command(Command::Reject { room, attempt, detail });
        Ok(())
    }

    /// Appends the rooms that changed since last asked, each once, as they are now; answers how many.
    /// Rooms are reported from the first call of this or of [`event_fd`](Self::event_fd) on.
    pub fn changes(&self, out: &mut Vec<Change>) -> usize {
        let shared = &self.inner.shared;
        if shared.check_process().is_ok() { shared.feed.drain(out) } else { 0 }
    }

    /// Readable when [`changes`](Self::changes) has something. For the caller's epoll, in every mode.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.shared.feed.fd()
    }

    /// What the directory knows of a group; starts a lookup when nothing is known.
    pub fn peer_group(&self, name: &str) -> GroupState {
        let shared = &self.inner.shared;
        let directory = shared.directory.as_ref().filter(|_| shared.check_process().is_ok());
        directory.map_or(GroupState::Unknown, |directory| directory.group(name))
    }

    /// Says that data parallel rank `dp` of this engine's group computes a room.
    pub fn publish_owner(&self, room: Room, dp: u32) {
        let shared = &self.inner.shared;
        if let Some(directory) = shared.directory.as_ref().filter(|_| shared.check_process().is_ok()) {
            directory.publish_owner(&shared.place.group, room, dp);
        }
    }

    /// How peers reach this engine: transport names and addresses, in order of preference.
    pub fn addresses(&self) -> Vec<(String, Vec<u8>)> {
        let shared = &self.inner.shared;
        if shared.check_process().is_ok() { shared.core.lock().addresses() } else { Vec::new() }
    }

    /// This start of the process, as peers see it.
    pub fn instance(&self) -> Instance {
        self.inner.shared.instance
    }

    /// Where it stands.
    pub fn place(&self) -> &Place {
        &self.inner.shared.place
    }

    /// Whether all is well: not after `close`, nor after a panic in the loop or in a thread of a transport.
    /// Such a thread goes on with new links, but something is wrong with this process.
    pub fn is_healthy(&self) -> bool {
        let shared = &self.inner.shared;
        shared.check_open().is_ok() && shared.counters.panics() == 0
    }

    /// Counters and table sizes.
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        if shared.check_process().is_err() {
            return Stats::default();
        }
        // The lock first: a room whose end can be seen has left every table when the turn is over.
        shared.core.lock().stats(shared)
    }

    /// How each peer is reached, and where each room stands.
    pub fn report(&self) -> Report {
        let shared = &self.inner.shared;
        if shared.check_process().is_err() {
            return Report::default();
        }
        shared.core.lock().report(clock::now())
    }

    /// Manual mode: does all that can be done now; 0 means idle. One thread works at a time, others get 0.
    ///
    /// # Errors
    /// [`UsageError::NotManual`]; [`UsageError::Panicked`] after a panic.
    ///
    /// # Panics
    /// Only if there is a defect, once: every room has failed then.
    pub fn progress(&self) -> Result<usize, UsageError> {
        let shared = self.manual()?;
        self.inner.driver.turn(shared)
    }

    /// Manual mode: readable when [`progress`](Self::progress) has work, provided
    /// [`prepare_wait`](Self::prepare_wait) last said `Ready`.
    ///
    /// # Errors
    /// [`UsageError::NotManual`].
    pub fn driver_fd(&self) -> Result<BorrowedFd<'_>, UsageError> {
        self.manual()?;
        self.inner.driver.fd().ok_or(UsageError::NotManual)
    }

    /// Manual mode: call before sleeping on [`driver_fd`](Self::driver_fd), and sleep only on `Ready`, no
    /// longer than until [`next_deadline`](Self::next_deadline).
    ///
    /// # Errors
    /// [`UsageError::NotManual`].
    pub fn prepare_wait(&self) -> Result<Wait, UsageError> {
        let shared = self.manual()?;
        Ok(thread::prepare_wait(shared, &mut shared.core.lock()))
    }

    /// Manual mode: when `progress` has to be called at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let shared = &self.inner.shared;
        if shared.check_process().is_ok() { shared.core.lock().deadline() } else { None }
    }

    /// Manual mode: progress, and if there is nothing to do, sleep until there is or the time is over.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn progress_or_wait(&self, timeout: Duration) -> Result<usize, UsageError> {
        let did = self.progress()?;
        if did == 0 {
            self.inner.driver.sleep(&self.inner.shared, timeout);
            return self.progress();
        }
        Ok(did)
    }

    /// Ends everything: rooms fail with `ShuttingDown` on both ends, peers are told, descriptors are
    /// closed. Blocks for at most about `limit`; a second call does nothing.
    pub fn close(&self, limit: Duration) -> CloseReport {
        self.inner.driver.close(&self.inner.shared, limit)
    }

    fn open(&self) -> Result<&Arc<Shared>, UsageError> {
        self.inner.shared.check_open()?;
        Ok(&self.inner.shared)
    }

    fn manual(&self) -> Result<&Arc<Shared>, UsageError> {
        let shared = &self.inner.shared;
        shared.check_process()?;
        if shared.is_manual { Ok(shared) } else { Err(UsageError::NotManual) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shared.check_process().is_err() {
            // A forked child: the thread and the sockets are the parent's. Nothing here may be run down.
            std::mem::forget((Arc::clone(&self.shared), Arc::clone(&self.driver)));
            return;
        }
        self.driver.close(&self.shared, CLOSE_LIMIT);
    }
}

const CLOSE_LIMIT: Duration = Duration::from_secs(2);
