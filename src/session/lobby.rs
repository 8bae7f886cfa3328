//! Receivers that come to a room before its sender does, or after it has gone.

use crate::error::ErrorKind;
use crate::ids::{Attempt, Generation, GrantId, Instance, LinkId, Party, Room, Side};
use crate::poll::KVPoll;
use crate::wire::{Cause, Grant, RoomFrame, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Keeps what came for rooms without a sender, in bounded space and for a bounded time, and answers
/// for rooms whose sender has gone. Never creates a room by itself. A frame costs a logarithm of what
/// is kept, whatever room it names.
#[derive(Debug)]
pub struct Lobby {
    party: Party,
    patience: Duration,
    parked_bytes: usize,
    max_memories: usize,
    /// In the order of arrival, and so of expiry.
    waiting: BTreeMap<u64, Waiting>,
    /// The same by receiver, so that those of an attempt lie together.
    by_receiver: BTreeSet<(GrantId, u64)>,
    links: BTreeMap<LinkId, OnLink>,
    /// Receivers that were told the end, or told it themselves, and the last word to them: nothing of
    /// theirs is adopted.
    dead: BTreeMap<(Instance, GrantId), Option<RoomFrame>>,
    /// Bytes of last words.
    word_bytes: usize,
    /// Frames parked so far, and how many of them are here.
    arrivals: u64,
    frames: usize,
    verdicts: BTreeMap<(Room, Attempt), Verdict>,
    /// Who gave up before its sender came, and why, in order.
    aborted: BTreeMap<(Room, Attempt), VecDeque<GivenUp>>,
    memories: VecDeque<(Instant, Memory)>,
    late: u64,
}

/// A frame kept for a sender yet to come.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Parked {
    /// The link it came over.
    pub link: LinkId,
    /// Who sent it.
    pub party: Party,
    /// The receiver.
    pub id: GrantId,
    /// The frame: a `Join` or a `Grant`.
    pub frame: RoomFrame,
}

/// What waited for a sender.
#[derive(Debug)]
#[non_exhaustive]
pub struct Adopted {
    /// Frames of its receivers, in order.
    pub parked: Vec<Parked>,
    /// Why a receiver gave up already, or was sent away, that has not come again: the sender fails for the same reason.
    pub aborted: Option<Cause>,
    /// All who gave up already, or were sent away: they know of that end.
    pub left: Vec<Party>,
}

/// An answer to a receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The link to send it over.
    pub link: LinkId,
    /// The receiver.
    pub id: GrantId,
    /// The frame.
    pub frame: RoomFrame,
}

/// A receiver without a sender.
#[derive(Debug)]
struct Waiting {
    link: LinkId,
    party: Party,
    id: GrantId,
    since: Instant,
    /// What its frames are charged.
    bytes: usize,
    join: RoomFrame,
    /// And when it came.
    grant: Option<(u64, RoomFrame)>,
}

/// What came over one link.
#[derive(Debug, Default)]
struct OnLink {
    waiting: BTreeMap<GrantId, u64>,
    bytes: usize,
}

/// A receiver that gave up before its sender came, or was sent away.
#[derive(Debug)]
struct GivenUp {
    party: Party,
    cause: Cause,
    since: Instant,
}

/// How a room ended for receivers that had not joined it by then.
#[derive(Debug)]
struct Verdict {
    cause: Cause,
    since: Instant,
    /// Those who know; when they come again it is for a new use of the room.
    heard: BTreeSet<Party>,
}

#[derive(Debug)]
enum Memory {
    Aborted(Room, Attempt),
    Dead(Instance, GrantId),
    Verdict(Room, Attempt),
}

impl Lobby {
    /// Keeps frames for `patience`, at most `parked_bytes` of them a link as they are held here, and
    /// `max_memories` ends.
    pub fn new(party: Party, patience: Duration, parked_bytes: usize, max_memories: usize) -> Self {
        Self {
            party,
            patience,
            parked_bytes,
            max_memories,
            waiting: BTreeMap::new(),
            by_receiver: BTreeSet::new(),
            links: BTreeMap::new(),
            dead: BTreeMap::new(),
            word_bytes: 0,
            arrivals: 0,
            frames: 0,
            verdicts: BTreeMap::new(),
            aborted: BTreeMap::new(),
            memories: VecDeque::new(),
            late: 0,
        }
    }

    /// A receiver's frame for a room that has no sender; `bytes` is its size on the wire.
    pub fn frame(
        &mut self,
        now: Instant,
        link: LinkId,
        party: Party,
        id: GrantId,
        frame: RoomFrame,
        bytes: usize,
    ) -> Vec<Answer> {
        let is_dead = self.dead.contains_key(&(party.instance, id));
        match frame {
            RoomFrame::Query { asked: Side::Prefill } => self.status(link, party, id),
            RoomFrame::Abort(cause) => {
                let waited = self.find(link, id).and_then(|order| self.take(order));
                self.late += u64::from(waited.is_none());
                if self.remember_dead(now, party, id, None) {
                    self.give_up(now, party, id, cause);
                }
                vec![Answer { link, id, frame: RoomFrame::Quiet }]
            }
            _ if is_dead => self.too_late(),
            // Said twice: the first one counts.
            RoomFrame::Join { .. } if self.find(link, id).is_some() => self.too_late(),
            RoomFrame::Join { .. } => {
                if let Some(cause) = self.verdict(party, id) {
                    self.remember_dead(now, party, id, Some(RoomFrame::Failed(cause.clone())));
                    return refusal(link, id, cause);
                }
                let bytes = held(&frame, bytes);
                if let Err(busy) = self.charge(now, link, party, id, bytes) {
                    return busy;
                }
                let order = self.next();
                self.links.entry(link).or_default().waiting.insert(id, order);
                self.by_receiver.insert((id, order));
                let waiting = Waiting { link, party, id, since: now, bytes, join: frame, grant: None };
                self.waiting.insert(order, waiting);
                Vec::new()
            }
            RoomFrame::Grant(mut grant) => {
                // Nothing is kept of a grant whose join was answered, or was never sent, or of a second one.
                let Some(order) = self.find(link, id) else { return self.too_late() };
                if self.waiting.get(&order).is_none_or(|waiting| waiting.grant.is_some()) {
                    return self.too_late();
                }
                grant.pages.iter_mut().for_each(|(_, list)| list.indices.shrink_to_fit());
                let frame = RoomFrame::Grant(grant);
                let bytes = held(&frame, bytes);
                if let Err(busy) = self.charge(now, link, party, id, bytes) {
                    return busy;
                }
                let came = self.next();
                if let Some(waiting) = self.waiting.get_mut(&order) {
                    waiting.bytes += bytes;
                    waiting.grant = Some((came, frame));
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A sender was made: gives what waited for this attempt of the room.
    pub fn adopt(&mut self, room: Room, attempt: Attempt) -> Adopted {
        self.verdicts.remove(&(room, attempt));
        let aborted = self.aborted.remove(&(room, attempt)).unwrap_or_default();
        let waiting = self.take_attempt(room, attempt);
        let came_again: BTreeSet<_> = waiting.iter().map(|(_, waiting)| waiting.party.rank).collect();
        let left = aborted.iter().map(|other| other.party).collect();
        let given_up = aborted.into_iter().find(|other| !came_again.contains(&other.party.rank));
        let mut frames = Vec::with_capacity(waiting.len() * 2);
        for (order, Waiting { link, party, id, join, grant, .. }) in waiting {
            frames.push((order, Parked { link, party, id, frame: join }));
            frames.extend(grant.map(|(order, frame)| (order, Parked { link, party, id, frame })));
        }
        frames.sort_unstable_by_key(|(order, _)| *order);
        let parked = frames.into_iter().map(|(_, parked)| parked).collect();
        Adopted { parked, aborted: given_up.map(|other| other.cause), left }
    }

    /// A room that had a sender has ended: late frames of these receivers change nothing, and if they ask
    /// they hear the last word again.
    pub fn ended(
        &mut self,
        now: Instant,
        last_words: impl IntoIterator<Item = (Party, GrantId, Option<RoomFrame>)>,
    ) {
        for (party, id, word) in last_words {
            self.remember_dead(now, party, id, word);
        }
    }

    /// A room will get no sender, or its sender failed before everybody had joined: those parked are
    /// told, and those yet to come will be, once each.
    pub fn bury(
        &mut self,
        now: Instant,
        room: Room,
        attempt: Attempt,
        cause: Cause,
        heard: Vec<Party>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut heard: BTreeSet<_> = heard.into_iter().collect();
        for (_, Waiting { link, party, id, .. }) in self.take_attempt(room, attempt) {
            answers.extend(refusal(link, id, cause.clone()));
            self.remember_dead(now, party, id, Some(RoomFrame::Failed(cause.clone())));
            heard.insert(party);
        }
        self.verdicts.insert((room, attempt), Verdict { cause, since: now, heard });
        self.remember(now, Memory::Verdict(room, attempt));
        answers
    }

    /// A link has ended: what came over it is forgotten.
    pub fn link_down(&mut self, link: LinkId) {
        let Some(on) = self.links.remove(&link) else { return };
        for order in on.waiting.into_values() {
            self.take(order);
        }
    }

    /// Forgets what is too old, and tells receivers that waited in vain.
    pub fn tick(&mut self, now: Instant) -> Vec<Answer> {
        let patience = self.patience;
        let is_old = |since: Instant| now.saturating_duration_since(since) >= patience;
        let mut answers = Vec::new();
        // With a join goes the grant that came after it.
        while let Some((&order, oldest)) = self.waiting.first_key_value()
            && is_old(oldest.since)
            && let Some(Waiting { link, party, id, .. }) = self.take(order)
        {
            let detail = format!("discover: no sender for room {} within {patience:?}", id.room);
            let cause = self.cause(ErrorKind::Timeout, detail);
            answers.extend(refusal(link, id, cause.clone()));
            self.remember_dead(now, party, id, Some(RoomFrame::Failed(cause)));
        }
        while self.memories.front().is_some_and(|(since, _)| is_old(*since)) {
            self.forget_oldest();
        }
        answers
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        let after = |since: Instant, time: Duration| since.checked_add(time);
        let parked =
            self.waiting.first_key_value().and_then(|(_, oldest)| after(oldest.since, self.patience));
        // Nobody waits for a memory to go: many go at once.
        let late = self.patience.saturating_add(FORGET_TOGETHER);
        let memory = self.memories.front().and_then(|(since, _)| after(*since, late));
        parked.into_iter().chain(memory).min()
    }

    /// Frames parked and ends remembered.
    pub fn sizes(&self) -> (usize, usize) {
        (self.frames, self.memories.len())
    }

    /// Frames that came for nobody: late, repeated, or of a receiver that was never here.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn too_late(&mut self) -> Vec<Answer> {
        self.late += 1;
        Vec::new()
    }

    fn verdict(&mut self, party: Party, id: GrantId) -> Option<Cause> {
        let verdict = self.verdicts.get_mut(&(id.room, id.attempt))?;
        verdict.heard.insert(party).then(|| verdict.cause.clone())
    }

    /// Charges a frame to its link.
    ///
    /// # Errors
    /// The link has used up what it may: the receiver is sent away, with these answers.
    fn charge(
        &mut self,
        now: Instant,
        link: LinkId,
        party: Party,
        id: GrantId,
        bytes: usize,
    ) -> Result<(), Vec<Answer>> {
        let on = self.links.entry(link).or_default();
        let used = on.bytes;
        if used.saturating_add(bytes) <= self.parked_bytes {
            on.bytes += bytes;
            return Ok(());
        }
        let detail = format!("{used} bytes wait for senders on this link already");
        let cause = self.cause(ErrorKind::Busy, detail);
        self.find(link, id).and_then(|order| self.take(order));
        if self.remember_dead(now, party, id, Some(RoomFrame::Failed(cause.clone()))) {
            // It will not come, whatever others say: a sender made later need not wait for it.
            self.give_up(now, party, id, cause.clone());
        }
        Err(refusal(link, id, cause))
    }

    /// The place of a frame that is parked.
    fn next(&mut self) -> u64 {
        self.frames += 1;
        self.arrivals += 1;
        self.arrivals
    }

    fn find(&self, link: LinkId, id: GrantId) -> Option<u64> {
        self.links.get(&link)?.waiting.get(&id).copied()
    }

    fn take(&mut self, order: u64) -> Option<Waiting> {
        let taken = self.waiting.remove(&order)?;
        self.by_receiver.remove(&(taken.id, order));
        self.frames -= 1 + usize::from(taken.grant.is_some());
        if let Some(on) = self.links.get_mut(&taken.link) {
            on.waiting.remove(&taken.id);
            on.bytes -= taken.bytes;
        }
        self.tidy(taken.link);
        Some(taken)
    }

    /// Everybody who waits for this attempt of a room, in order.
    fn take_attempt(&mut self, room: Room, attempt: Attempt) -> Vec<(u64, Waiting)> {
        let receiver = |generation| GrantId { room, attempt, generation: Generation(generation) };
        let all = (receiver(0), 0)..=(receiver(u64::MAX), u64::MAX);
        let mut orders: Vec<_> = self.by_receiver.range(all).map(|(_, order)| *order).collect();
        orders.sort_unstable();
        orders.into_iter().filter_map(|order| Some((order, self.take(order)?))).collect()
    }

    fn tidy(&mut self, link: LinkId) {
        if self.links.get(&link).is_some_and(|on| on.waiting.is_empty()) {
            self.links.remove(&link);
        }
    }

    /// Answers whether this is news. Its last word is kept while all of them take no more than what may
    /// be parked by one link.
    fn remember_dead(&mut self, now: Instant, party: Party, id: GrantId, word: Option<RoomFrame>) -> bool {
        let key = (party.instance, id);
        if self.dead.contains_key(&key) {
            return false;
        }
        let word = word.filter(|word| self.word_bytes + bytes_of(word) <= self.parked_bytes);
        self.word_bytes += word.as_ref().map_or(0, bytes_of);
        self.dead.insert(key, word);
        self.remember(now, Memory::Dead(party.instance, id));
        true
    }

    /// A sender yet to come will fail for this, unless the receiver's rank joins anew.
    fn give_up(&mut self, now: Instant, party: Party, id: GrantId, cause: Cause) {
        let given_up = GivenUp { party, cause, since: now };
        self.aborted.entry((id.room, id.attempt)).or_default().push_back(given_up);
        self.remember(now, Memory::Aborted(id.room, id.attempt));
    }

    /// A receiver asks where its room stands.
    fn status(&self, link: LinkId, party: Party, id: GrantId) -> Vec<Answer> {
        let answer = |frame| Answer { link, id, frame };
        match self.dead.get(&(party.instance, id)) {
            Some(Some(word @ RoomFrame::Failed(_))) => vec![answer(word.clone()), answer(RoomFrame::Quiet)],
            Some(Some(word)) => vec![answer(word.clone())],
            Some(None) => refusal(link, id, self.cause(ErrorKind::Protocol, "the room has ended".into())),
            None => {
                let waiting = self.find(link, id).and_then(|order| self.waiting.get(&order));
                let mut status = Status::new(Side::Prefill, waiting.map(|_| KVPoll::Bootstrapping));
                status.granted = waiting.is_some_and(|waiting| waiting.grant.is_some());
                vec![answer(RoomFrame::Status(status))]
            }
        }
    }

    fn remember(&mut self, now: Instant, memory: Memory) {
        self.memories.push_back((now, memory));
        if self.memories.len() > self.max_memories {
            self.forget_oldest();
        }
    }

    /// What was said of the same room since then is kept: it has a memory of its own.
    fn forget_oldest(&mut self) {
        let Some((then, memory)) = self.memories.pop_front() else { return };
        match memory {
            Memory::Aborted(room, attempt) => {
                if let Some(aborted) = self.aborted.get_mut(&(room, attempt)) {
                    while aborted.front().is_some_and(|oldest| oldest.since <= then) {
                        aborted.pop_front();
                    }
                    if aborted.is_empty() {
                        self.aborted.remove(&(room, attempt));
                    }
                }
            }
            Memory::Dead(instance, id) => {
                let word = self.dead.remove(&(instance, id)).flatten();
                self.word_bytes -= word.as_ref().map_or(0, bytes_of);
            }
            Memory::Verdict(room, attempt) => {
                if self.verdicts.get(&(room, attempt)).is_some_and(|verdict| verdict.since <= then) {
                    self.verdicts.remove(&(room, attempt));
                }
            }
        }
    }

    fn cause(&self, kind: ErrorKind, detail: String) -> Cause {
        Cause { origin: self.party, state: KVPoll::Bootstrapping, kind, detail }
    }
}

fn refusal(link: LinkId, id: GrantId, cause: Cause) -> Vec<Answer> {
    vec![Answer { link, id, frame: RoomFrame::Failed(cause) }, Answer { link, id, frame: RoomFrame::Quiet }]
}

/// What a last word takes up besides its place.
fn bytes_of(word: &RoomFrame) -> usize {
    match word {
        RoomFrame::Done(done) => done.payload.len(),
        RoomFrame::Failed(cause) => cause.detail.len(),
        _ => 0,
    }
}

/// What a parked frame takes up here, at most: page lists travel as runs and are kept page by page.
fn held(frame: &RoomFrame, wire: usize) -> usize {
    let pages = match frame {
        RoomFrame::Grant(Grant { pages, .. }) => {
            let indices = pages.iter().map(|(_, list)| size_of_val(list.indices.as_slice()));
            indices.sum::<usize>() + size_of_val(pages.as_slice())
        }
        _ => 0,
    };
    FRAME_BYTES + wire + pages
}

const FORGET_TOGETHER: Duration = Duration::from_millis(500);

/// A parked frame without what it carries, and its places in the maps.
const FRAME_BYTES: usize = 512;
