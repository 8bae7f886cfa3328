//! The one place where transports, sessions and pools meet: a turn takes events in and does what
//! follows from them.
//!
//! - `inbound.rs`: what comes from transports and peers
//! - `reach.rs`: finding and connecting peers
//! - `outbound.rs`: what sessions want done, and writes
//! - `groups.rs`: outcomes that several ranks share

use super::feeds::Feeds;
use super::layouts::Announced;
use super::links::{Link, Pools};
use super::liveness::Beat;
use super::regions::Withdrawals;
use super::rooms::{Key, Rooms, Waiter};
use super::shared::Shared;
use super::slot::Slot;
use super::targets::{Farewell, Targets};
use super::wake::WaitSet;
use super::warning::Warning;
use crate::bootstrap::Registration;
use crate::error::{ErrorKind, Fault};
use crate::ids::{LinkId, Party, Rank, RegionId, Side};
use crate::layout::Extent;
use crate::memory::{Mark, Region};
use crate::poll::{KVPoll, Release};
use crate::session::{Action, Ballots, Lobby, Session};
use crate::transport::{Event, Transport, Wait};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Instant;

/// Everything that moves. Behind the engine's one lock, which is never held over a copy or a system
/// call that waits.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) transports: Vec<Box<dyn Transport>>,
    pub(super) links: BTreeMap<LinkId, Link>,
    pub(super) feeds: Feeds,
    pub(super) targets: Targets<Waiter>,
    pub(super) rooms: Rooms,
    pub(super) lobby: Lobby,
    pub(super) ballots: Ballots,
    pub(super) regions: BTreeMap<RegionId, Region>,
    pub(super) withdrawals: Withdrawals,
    pub(super) announced: Option<Arc<Announced>>,
    pub(super) registration: Option<Box<dyn Registration>>,
    /// To be woken when the lock is free again.
    pub(super) woken: Vec<Waker>,
    /// Source and destination of the write in hand, kept for their capacity.
    pub(super) extents: (Vec<Extent>, Vec<Extent>),
    pub(super) pings: u64,
    /// Peers that broke the format.
    pub(super) malformed: Warning,
    /// Writes that arrived damaged.
    pub(super) damaged: Warning,
    pub(super) beat: Beat,
    is_closed: bool,
    events: Vec<Event>,
    actions: Vec<Action>,
}

/// How much of a room's view may have changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum News {
    /// Bytes moved.
    Bytes,
    /// Anything.
    All,
}

impl Core {
    pub(super) fn new(
        transports: Vec<Box<dyn Transport>>,
        party: Party,
        config: &crate::config::Config,
    ) -> Self {
        let limits = &config.limits;
        let patience = config.deadlines.discover;
        Self {
            transports,
            links: BTreeMap::new(),
            feeds: Feeds::default(),
            targets: Targets::default(),
            rooms: Rooms::default(),
            lobby: Lobby::new(party, patience, limits.parked_bytes, limits.tombstones),
            ballots: Ballots::new(party, patience, limits.parked_bytes, limits.tombstones),
            regions: BTreeMap::new(),
            withdrawals: Withdrawals::default(),
            announced: None,
            registration: None,
            woken: Vec::new(),
            extents: (Vec::new(), Vec::new()),
            pings: 0,
            malformed: Warning::default(),
            damaged: Warning::default(),
            beat: Beat::default(),
            is_closed: false,
            events: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Does all that can be done now and answers how much that was.
    pub(super) fn turn(&mut self, shared: &Shared, now: Instant) -> usize {
        shared.inbox.take_nudge(); // before looking: a later one comes again
        if self.is_closed {
            shared.inbox.discard();
            return 0;
        }
        let mut did = self.take_commands(shared, now);
        did += self.take_wishes(shared, now);
        did += self.take_events(shared, now);
        self.check_marks(shared, now);
        self.reach(shared, now);
        while let Some(key) = self.rooms.due(now) {
            if let Some(session) = self.rooms.session(key) {
                session.tick(now);
                let is_overdue = session.state().is_terminal() && session.deadline().is_none();
                if is_overdue && session.release() == Release::Draining && self.rooms.quarantined.insert(key)
                {
                    shared.counters.quarantines.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.tick_group(now, key);
            self.follow_up(shared, now, key, News::All);
        }
        if self.ballots.deadline().is_some_and(|at| at <= now) {
            let told = self.ballots.tick(now);
            self.tell(shared, now, told);
        }
        if self.lobby.deadline().is_some_and(|at| at <= now) {
            let answers = self.lobby.tick(now);
            self.answer(answers);
        }
        self.beat(shared, now);
        did + self.pump(shared, now)
    }

    /// When `turn` has to be called at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let (rooms, targets) = (self.rooms.deadline(), self.targets.deadline());
        let (lobby, ballots) = (self.lobby.deadline(), self.ballots.deadline());
        let deadlines = [rooms, targets, lobby, ballots, self.beat.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Arms every transport's descriptor; `Busy` if one found work meanwhile.
    pub(super) fn prepare_wait(&mut self) -> Wait {
        let busy = self.transports.iter_mut().any(|transport| transport.prepare_wait() == Wait::Busy);
        if busy { Wait::Busy } else { Wait::Ready }
    }

    pub(super) fn wait_set(&self, shared: &Shared) -> io::Result<WaitSet> {
        let transports = self.transports.iter().filter_map(|transport| transport.wake_fd());
        WaitSet::new(transports.chain([shared.inbox.fd()]))
    }

    /// A session was told something: does what it asks, shows what changed, sets its timer, and takes
    /// it away once it is over.
    pub(super) fn follow_up(&mut self, shared: &Shared, now: Instant, key: Key, news: News) {
        let Some((mut state, mut release)) = self.do_actions(key) else { return };
        if state.is_terminal()
            && self.take_part(shared, now, key)
            && let Some(own) = self.do_actions(key)
        {
            (state, release) = own;
        }
        if state == KVPoll::Failed && release != Release::Safe {
            self.recall(key);
        }
        self.enqueue_writes(key);
        self.rooms.arm(key);
        let Some(view) = self.rooms.standing(key) else { return };
        let shown = self.rooms.slot(key).map(|slot| (slot.poll(), slot.release()));
        let full = news == News::All || shown != Some(view);
        if view.1 == Release::Safe && view.0.is_terminal() {
            self.take_away(shared, now, key);
        } else if self.rooms.publish(key, full)
            && let Some(slot) = self.rooms.slot(key)
        {
            shared.feed.note(slot);
            self.woken.append(&mut slot.take_wakers());
        }
    }

    /// Does what a session asks; gives where it stands.
    fn do_actions(&mut self, key: Key) -> Option<(KVPoll, Release)> {
        let mut actions = std::mem::take(&mut self.actions);
        let session = self.rooms.session(key)?;
        let standing = (session.state(), session.release());
        actions.extend(std::iter::from_fn(|| session.next_action()));
        for action in actions.drain(..) {
            self.act(key, action);
        }
        self.actions = actions;
        Some(standing)
    }

    /// The engine ends: every room fails, on both ends.
    pub(super) fn fail_all(&mut self, shared: &Shared, now: Instant) {
        for key in self.rooms.keys() {
            self.end_room(shared, now, key, Fault::new(ErrorKind::ShuttingDown, CLOSING));
            self.follow_up(shared, now, key, News::All);
        }
    }

    /// Ends every link, saying so.
    pub(super) fn say_goodbye(&mut self) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            self.end_link(link, Fault::new(ErrorKind::ShuttingDown, "the peer has closed its engine"));
        }
    }

    /// Whether peers may have keys of our regions.
    pub(super) fn has_keyed_links(&self) -> bool {
        self.links.values().any(|link| !link.keyed.is_empty())
    }

    /// Lets go of every descriptor and of all memory lent; gives the regions that a peer may still reach.
    pub(super) fn let_go(&mut self) -> Vec<(RegionId, Vec<Rank>)> {
        self.is_closed = true;
        self.transports.clear();
        self.regions.clear();
        self.end_withdrawals()
    }

    /// How peers reach this engine.
    pub(super) fn addresses(&self) -> Vec<(String, Vec<u8>)> {
        let transports = self.transports.iter();
        transports.map(|t| (t.name().to_owned(), t.local_address().to_vec())).collect()
    }

    pub(super) fn our_pools(&self) -> Option<Pools> {
        let announced = self.announced.as_ref()?;
        Some(Pools { epoch: announced.epoch, layout: Arc::clone(&announced.layout) })
    }

    fn take_wishes(&mut self, shared: &Shared, now: Instant) -> usize {
        let mut did = 0;
        while let Some(slot) = shared.inbox.pop_wish() {
            self.grant_wish(shared, now, &slot);
            did += 1;
        }
        did
    }

    /// Ends the room if its handle has asked for that.
    pub(super) fn grant_wish(&mut self, shared: &Shared, now: Instant, slot: &Arc<Slot>) {
        let key = (slot.side, slot.room);
        if !slot.wants_abort() || self.rooms.slot(key).is_none_or(|owner| !Arc::ptr_eq(owner, slot)) {
            return; // a room not opened yet is looked at when it is
        }
        let given = slot.abort_detail.lock().take();
        let detail = given.unwrap_or_else(|| "the handle was dropped".into());
        self.end_room(shared, now, key, Fault::new(ErrorKind::Aborted, detail));
        self.follow_up(shared, now, key, News::All);
    }

    fn take_events(&mut self, shared: &Shared, now: Instant) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let (mut did, mut panics) = (0, 0);
        for transport in 0..self.transports.len() {
            self.transports[transport].progress(&mut events);
            panics += self.transports[transport].panics();
            // Before what follows can be seen. Release; pairs with the Acquire in `Counters::panics`.
            shared.counters.worker_panics.store(panics, Ordering::Release);
            did += events.len();
            for event in events.drain(..) {
                self.event(shared, now, transport, event);
            }
        }
        self.events = events;
        did
    }

    /// Chunks whose marks are ready may be read from now on.
    fn check_marks(&mut self, shared: &Shared, now: Instant) {
        let marked: Vec<_> = self.rooms.marked.iter().copied().collect();
        for room in marked {
            let Some(sender) = self.rooms.senders.get_mut(&room) else { continue };
            let (before, mut is_abandoned) = (sender.marks.len(), false);
            sender.marks.retain(|(chunk, marks)| {
                is_abandoned |= marks.iter().any(Mark::is_abandoned);
                let is_ready = marks.iter().all(Mark::is_ready);
                if is_ready {
                    sender.session.ready(now, *chunk);
                }
                !is_ready
            });
            if is_abandoned {
                let detail = "a readiness mark was dropped before it was signalled";
                sender.session.fail(now, Fault::new(ErrorKind::Aborted, detail));
                sender.marks.clear();
            }
            let is_news = sender.marks.len() < before;
            if sender.marks.is_empty() {
                self.rooms.marked.remove(&room);
            }
            if is_news {
                self.follow_up(shared, now, (Side::Prefill, room), News::All);
            }
        }
    }

    /// The room is over: nothing of it is left but what late frames have to be told.
    fn take_away(&mut self, shared: &Shared, now: Instant, key: Key) {
        self.links.values_mut().for_each(|link| {
            link.rooms.remove(&key);
        });
        self.leave_mates(key);
        // Before the end is seen: whoever sees it may take the number, and the place, at once.
        if let Some(slot) = self.rooms.slot(key) {
            shared.live.forget(slot);
        }
        self.rooms.publish(key, true);
        let slot = match key.0 {
            Side::Prefill => {
                let Some(sender) = self.rooms.remove_sender(key.1) else { return };
                self.lobby.ended(now, sender.session.last_words());
                if let (Some(heard), Some(cause)) = (sender.session.joined_early(), sender.session.cause()) {
                    let answers = self.lobby.bury(now, key.1, sender.attempt, cause, heard);
                    self.answer(answers);
                }
                shared.counters.ended(sender.session.figures().bytes, sender.slot.error().as_ref());
                sender.slot
            }
            Side::Decode => {
                let Some(receiver) = self.rooms.remove_receiver(key.1) else { return };
                for (rank, wanted) in &receiver.wanted {
                    // One that was joined and is asked for its last word is over with its link: nobody
                    // is left there who waits for this rank, but perhaps the next use of the room.
                    if let Some(cause) =
                        receiver.session.cause().filter(|_| !receiver.session.has_joined(*rank))
                    {
                        let (id, destinations) =
                            (receiver.session.id(), receiver.session.destinations(*rank).to_vec());
                        self.targets.give_up(&wanted.candidates, Farewell { id, destinations, cause });
                    }
                    self.targets.unwant(&wanted.candidates, Waiter::Receiver(key.1));
                }
                shared.counters.ended(receiver.session.figures().bytes, receiver.slot.error().as_ref());
                receiver.slot
            }
        };
        shared.feed.note(&slot);
        self.woken.append(&mut slot.take_wakers());
    }
}

/// Why rooms fail whose engine ends.
pub(super) const CLOSING: &str = "the engine is closing";
