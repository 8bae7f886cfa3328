//! What happens in a scripted network, all of it under one lock.

use super::{Access, PendingWrite, Touch};
use crate::doorbell::Doorbell;
use crate::ids::{GrantId, LinkId, OpId, RegionId};
use crate::layout::{Admission, Extent, Piece};
use crate::memory::{Body, Cursor, RegionTable, Regions, host};
use crate::ops::OpSet;
use crate::transport::{Event, TransportError, WriteModel};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct World {
    pub(super) model: WriteModel,
    pub(super) holds_writes: bool,
    pub(super) holds_revoked: bool,
    pub(super) vouches: bool,
    pub(super) touches: Vec<Touch>,
    ends: BTreeMap<String, End>,
    halves: BTreeMap<LinkId, Half>,
    writes: BTreeMap<u64, Pending>,
    next: u64,
    /// Revocations that are not answered yet, with who asked.
    revoking: Vec<(String, LinkId, GrantId)>,
}

#[derive(Debug)]
pub(super) struct End {
    bell: Arc<Doorbell>,
    events: VecDeque<Event>,
    regions: RegionTable,
}

/// A link as one end sees it.
#[derive(Debug)]
struct Half {
    owner: String,
    peer: LinkId,
    grants: HashMap<GrantId, Admitted>,
    imported: HashSet<RegionId>,
    in_flight: u64,
}

#[derive(Debug)]
struct Admitted {
    admission: Arc<Admission>,
    ops: OpSet,
    is_revoking: bool,
}

/// A write as it is posted.
#[derive(Debug)]
pub(super) struct Posting<'a> {
    pub(super) link: LinkId,
    pub(super) grant: GrantId,
    pub(super) op: OpId,
    pub(super) piece: &'a Piece,
    pub(super) source: &'a [Extent],
    pub(super) destination: &'a [Extent],
}

#[derive(Debug)]
struct Pending {
    from: String,
    to: String,
    link: LinkId,
    there: LinkId,
    grant: GrantId,
    op: OpId,
    bytes: u64,
    source: Side,
    /// `None`: thrown away.
    target: Option<Side>,
    copied: u64,
    /// The link has ended, and nobody could stop this write.
    is_severed: bool,
}

#[derive(Debug)]
struct Side {
    regions: Arc<Regions>,
    extents: Vec<Extent>,
    cursor: Cursor,
}

impl World {
    pub(super) fn new(model: WriteModel) -> Self {
        Self {
            model,
            holds_writes: false,
            holds_revoked: false,
            vouches: true,
            touches: Vec::new(),
            ends: BTreeMap::new(),
            halves: BTreeMap::new(),
            writes: BTreeMap::new(),
            next: 0,
            revoking: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, name: &str, end: End) -> Result<(), TransportError> {
        if self.ends.contains_key(name) {
            return Err(TransportError::Address { name: NAME, detail: format!("`{name}` is in use") });
        }
        self.ends.insert(name.to_owned(), end);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.sever(name);
        self.ends.remove(name);
        self.revoking.retain(|(owner, ..)| owner != name);
    }

    pub(super) fn connect(&mut self, from: &str, to: &str) -> LinkId {
        let (here, there) = (LinkId::allocate(), LinkId::allocate());
        if self.ends.contains_key(to) {
            self.halves.insert(here, Half::new(from, there));
            self.halves.insert(there, Half::new(to, here));
            self.tell(from, Event::Connected { link: here });
            self.tell(to, Event::Connected { link: there });
        } else {
            self.tell(from, Event::LinkDown { link: here, quiesced: true, error: closed() });
        }
        here
    }

    /// Ends a link from one side.
    pub(super) fn close(&mut self, link: LinkId, error: TransportError) {
        let Some(half) = self.halves.remove(&link) else { return };
        let Some(other) = self.halves.remove(&half.peer) else { return };
        let ends = |pending: &Pending| pending.link == link || pending.there == link;
        let under_way: Vec<u64> =
            self.writes.iter().filter(|(_, pending)| ends(pending)).map(|(number, _)| *number).collect();
        let stopped = self.model == WriteModel::TwoSided || self.vouches;
        let quiesced = stopped || under_way.is_empty();
        for number in under_way {
            if stopped {
                self.fail(number, closed());
            } else if let Some(pending) = self.writes.get_mut(&number) {
                pending.is_severed = true;
            }
        }
        self.tell(&half.owner, Event::LinkDown { link, quiesced, error });
        self.tell(&other.owner, Event::LinkDown { link: half.peer, quiesced, error: closed() });
    }

    pub(super) fn sever(&mut self, name: &str) {
        let links = self.halves.iter().filter(|(_, half)| half.owner == name).map(|(link, _)| *link);
        let links: Vec<LinkId> = links.collect();
        links.into_iter().for_each(|link| self.close(link, closed()));
    }

    pub(super) fn import(&mut self, link: LinkId, region: RegionId) {
        if let Some(half) = self.halves.get_mut(&link) {
            half.imported.insert(region);
        }
    }

    pub(super) fn send(&mut self, link: LinkId, frame: &Bytes, times: usize) -> Result<(), TransportError> {
        let half = self.halves.get(&link).ok_or(TransportError::NotConnected(link))?;
        let peer = half.peer;
        let Some(owner) = self.halves.get(&peer).map(|half| half.owner.clone()) else { return Ok(()) };
        for _ in 0..times {
            self.tell(&owner, Event::Control { link: peer, frame: frame.clone() });
        }
        Ok(())
    }

    pub(super) fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        if let Some(half) = self.halves.get_mut(&link) {
            let admitted = Admitted { admission, ops: OpSet::default(), is_revoking: false };
            half.grants.entry(grant).or_insert(admitted);
        }
    }

    pub(super) fn revoke(&mut self, owner: &str, link: LinkId, grant: GrantId) {
        if !self.holds_revoked {
            return self.revoked(owner, link, grant);
        }
        self.revoking.push((owner.to_owned(), link, grant));
        let admitted = self.halves.get_mut(&link).and_then(|half| half.grants.get_mut(&grant));
        if let Some(admitted) = admitted {
            admitted.is_revoking = true;
        }
    }

    pub(super) fn release_revoked(&mut self) {
        self.holds_revoked = false;
        for (owner, link, grant) in std::mem::take(&mut self.revoking) {
            self.revoked(&owner, link, grant);
        }
    }

    pub(super) fn post(&mut self, posting: Posting<'_>) -> Result<(), TransportError> {
        let Posting { link, grant, op, source, .. } = posting;
        let half = self.halves.get(&link).ok_or(TransportError::NotConnected(link))?;
        let (from, there) = (half.owner.clone(), half.peer);
        let Some(to) = self.halves.get(&there).map(|half| half.owner.clone()) else {
            return Err(TransportError::NotConnected(link));
        };
        let regions = self.regions(&from).snapshot();
        let bytes = regions.check(source)?;
        if bytes > MAX_WRITE {
            return Err(TransportError::TooLarge { name: NAME, bytes, limit: MAX_WRITE });
        }
        if half.in_flight > 0 && half.in_flight + bytes > WINDOW {
            return Err(TransportError::Full);
        }
        let extents = match self.model {
            WriteModel::OneSided => Some(self.reach(&posting, &to, bytes)?),
            WriteModel::TwoSided => self.arrive(&posting, there, bytes),
        };
        let there_regions = self.regions(&to).snapshot();
        let target = extents.map(|extents| Side::new(there_regions, extents));
        if let Some(half) = self.halves.get_mut(&link) {
            half.in_flight += bytes;
        }
        let number = self.next;
        self.next += 1;
        let source = Side::new(regions, source.to_vec());
        let pending =
            Pending { from, to, link, there, grant, op, bytes, source, target, copied: 0, is_severed: false };
        self.writes.insert(number, pending);
        if !self.holds_writes {
            self.complete(number);
        }
        Ok(())
    }

    /// Copies up to `limit` bytes of a write, if it may still be applied.
    pub(super) fn copy(&mut self, number: u64, limit: u64) -> u64 {
        let Some(pending) = self.writes.get_mut(&number) else { return 0 };
        if self.model == WriteModel::TwoSided {
            let half = self.halves.get(&pending.there);
            if half.is_none_or(|half| !half.grants.contains_key(&pending.grant)) {
                pending.target = None;
            }
        }
        let Some(target) = &mut pending.target else { return 0 };
        let moved = match host::copy(pending.source.body(), target.body(), limit) {
            Ok(moved) => moved,
            Err(error) => {
                tracing::warn!(%error, "pages are not registered any more, write dropped");
                pending.target = None;
                return 0;
            }
        };
        let Pending { grant, op, copied, .. } = *pending;
        pending.copied += moved;
        for (side, end, access) in
            [(&mut pending.source, &pending.from, Access::Read), (target, &pending.to, Access::Written)]
        {
            side.cursor.advance(&side.extents, moved);
            let extents = part(&side.extents, copied, moved);
            if moved > 0 {
                self.touches.push(Touch { end: end.clone(), access, grant, op, extents });
            }
        }
        moved
    }

    pub(super) fn complete(&mut self, number: u64) {
        self.copy(number, u64::MAX);
        let Some(pending) = self.writes.get(&number) else { return };
        let Pending { there, grant, op, bytes, is_severed, .. } = *pending;
        let landed = pending.target.is_some() && pending.copied == bytes;
        if landed && self.model == WriteModel::TwoSided {
            let to = pending.to.clone();
            self.tell(&to, Event::Landed { link: there, grant, op, bytes });
        }
        self.settle(number, if is_severed { Err(closed()) } else { Ok(()) });
    }

    pub(super) fn fail(&mut self, number: u64, error: TransportError) {
        let Some(pending) = self.writes.get(&number) else { return };
        // It has not landed, so it may come again under its number.
        let half = self.halves.get_mut(&pending.there);
        if let Some(admitted) = half.and_then(|half| half.grants.get_mut(&pending.grant)) {
            let _ = admitted.ops.remove(pending.op);
        }
        self.settle(number, Err(error));
    }

    pub(super) fn take_events(&mut self, name: &str, events: &mut Vec<Event>) {
        if let Some(end) = self.ends.get_mut(name) {
            events.extend(end.events.drain(..));
        }
    }

    pub(super) fn has_events(&self, name: &str) -> bool {
        self.ends.get(name).is_some_and(|end| !end.events.is_empty())
    }

    pub(super) fn regions(&self, name: &str) -> &RegionTable {
        &self.ends[name].regions
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.writes.keys().copied().collect()
    }

    pub(super) fn pending(&self) -> Vec<PendingWrite> {
        let pending = |(number, write): (&u64, &Pending)| PendingWrite {
            number: *number,
            from: write.from.clone(),
            to: write.to.clone(),
            grant: write.grant,
            op: write.op,
            bytes: write.bytes,
            copied: write.copied,
        };
        self.writes.iter().map(pending).collect()
    }

    /// One-sided: where the writer says, as far as the peer's keys allow.
    fn reach(&self, posting: &Posting<'_>, to: &str, bytes: u64) -> Result<Vec<Extent>, TransportError> {
        let imported = self.halves.get(&posting.link).map(|half| &half.imported);
        for extent in posting.destination {
            if imported.is_none_or(|imported| !imported.contains(&extent.region)) {
                let detail = format!("no key of region {} was imported", extent.region.0);
                return Err(TransportError::Format { name: NAME, detail });
            }
        }
        let there = self.regions(to).snapshot().check(posting.destination)?;
        if there != bytes {
            let detail = format!("{bytes} bytes to {there} bytes of memory");
            return Err(TransportError::Format { name: NAME, detail });
        }
        Ok(posting.destination.to_vec())
    }

    /// Two-sided: where the grant says; nowhere if it is not admitted or does not lend this.
    fn arrive(&mut self, posting: &Posting<'_>, there: LinkId, bytes: u64) -> Option<Vec<Extent>> {
        let half = self.halves.get_mut(&there)?;
        let admitted = half.grants.get_mut(&posting.grant).filter(|admitted| !admitted.is_revoking)?;
        if !admitted.ops.insert(posting.op).unwrap_or(false) {
            return None;
        }
        let mut extents = Vec::new();
        match admitted.admission.place_of(posting.piece, bytes, &mut extents) {
            Ok(()) => Some(extents),
            Err(refusal) => {
                let owner = half.owner.clone();
                let (grant, detail) = (posting.grant, refusal.to_string());
                self.tell(&owner, Event::Refused { link: there, grant, detail });
                None
            }
        }
    }

    fn settle(&mut self, number: u64, result: Result<(), TransportError>) {
        let Some(Pending { from, link, grant, op, bytes, .. }) = self.writes.remove(&number) else { return };
        if let Some(half) = self.halves.get_mut(&link) {
            half.in_flight -= bytes;
        }
        self.tell(&from, Event::Settled { link, grant, op, result });
    }

    fn revoked(&mut self, owner: &str, link: LinkId, grant: GrantId) {
        if let Some(half) = self.halves.get_mut(&link) {
            half.grants.remove(&grant);
        }
        self.tell(owner, Event::Revoked { link, grant });
    }

    fn tell(&mut self, name: &str, event: Event) {
        if let Some(end) = self.ends.get_mut(name) {
            end.events.push_back(event);
            end.bell.ring();
        }
    }
}

impl End {
    pub(super) fn new(bell: Arc<Doorbell>) -> Self {
        Self { bell, events: VecDeque::new(), regions: RegionTable::default() }
    }
}

impl Half {
    fn new(owner: &str, peer: LinkId) -> Self {
        let owner = owner.to_owned();
        Self { owner, peer, grants: HashMap::new(), imported: HashSet::new(), in_flight: 0 }
    }
}

impl Side {
    fn new(regions: Arc<Regions>, extents: Vec<Extent>) -> Self {
        Self { regions, extents, cursor: Cursor::default() }
    }

    fn body(&self) -> Body<'_> {
        Body { regions: &self.regions, extents: &self.extents, cursor: self.cursor }
    }
}

/// The `len` bytes behind the first `skip` of a list.
fn part(extents: &[Extent], skip: u64, len: u64) -> Vec<Extent> {
    let (mut skip, mut left) = (skip, len);
    let mut part = Vec::new();
    for extent in extents {
        let passed = skip.min(extent.len);
        skip -= passed;
        let taken = left.min(extent.len - passed);
        left -= taken;
        if taken > 0 {
            part.push(Extent { region: extent.region, offset: extent.offset + passed, len: taken });
        }
    }
    part
}

fn closed() -> TransportError {
    TransportError::Closed { name: NAME }
}

pub(super) const NAME: &str = "scripted";
pub(super) const MAX_WRITE: u64 = 16 << 20;
/// Bytes of unsettled writes on a link; one write may pass it.
const WINDOW: u64 = 16 << 20;
