//! One receiver of a sender: what it lent, what was written to it, what it still has to be told.

use super::sender::JoinedLink;
use super::work::{Chunk, Finish, Work};
use crate::error::{ErrorKind, Fault};
use crate::ids::{GroupId, OpId, Side};
use crate::layout::{GroupKind, PageList, Pairing, Piece, Pieces};
use crate::wire::{Done, Grant};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) joined: JoinedLink,
    pub(super) lent: Option<Lent>,
    /// The link has ended; what was posted still settles.
    pub(super) down: bool,
    /// It knows how the room ended (from us, or from itself).
    pub(super) told: bool,
    /// It is owed a `Quiet` once everything has settled.
    pub(super) owes_quiet: bool,
    /// It was told that nothing more comes.
    pub(super) done: Option<Done>,
    writes: Writes,
}

/// What a destination lent.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) tokens: Range<u32>,
    pages: Vec<(GroupId, PageList)>,
    /// What it is owed, if anything.
    pairing: Option<Arc<Pairing>>,
}

/// A write that was cut and not yet settled.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) stage: usize,
    pub(super) source: usize,
    pub(super) lent: usize,
    pub(super) piece: Piece,
    pub(super) bytes: u64,
    tries: u32,
}

/// Where the cutting of work into writes stands. Stages are the chunks in order, then the rows.
#[derive(Debug, Default)]
struct Writes {
    stages: usize,
    rows_cut: bool,
    tasks: Vec<Task>,
    next: Option<(OpId, Job)>,
    again: VecDeque<(OpId, Job)>,
    posted: BTreeMap<OpId, Job>,
    ops: u32,
    bytes: u64,
    /// Writes of each stage that have not settled.
    pending: Vec<u32>,
    /// Stages told as done.
    reported: usize,
}

#[derive(Debug)]
struct Task {
    source: usize,
    lent: usize,
    pieces: Pieces,
}

impl Lent {
    pub(super) fn new(grant: &Grant, pairing: Option<Arc<Pairing>>) -> Self {
        let Grant { tokens, pages, .. } = grant.clone();
        Self { tokens, pages, pairing }
    }

    pub(super) fn is_of(&self, grant: &Grant) -> bool {
        let share = self.pairing.as_ref().map(|pairing| pairing.share());
        (&self.tokens, share, &self.pages) == (&grant.tokens, grant.share.as_ref(), &grant.pages)
    }

    /// The rectangle of a paged group that `chunk` has and the destination wants, with its sources.
    fn tasks(&self, chunk: &Chunk) -> Result<Vec<Task>, Fault> {
        let mut tasks = Vec::new();
        let Some(pairing) = &self.pairing else { return Ok(tasks) };
        for (lent, (group, list)) in self.pages.iter().enumerate() {
            // The group may be one of other sources.
            let Some(source_group) = pairing.source_group(*group) else { continue };
            let Some(GroupKind::Paged { .. }) = pairing.kind(source_group) else { continue };
            let room = pairing.covers(Side::Decode, source_group, list);
            let wanted = meet(&meet(&chunk.tokens, &self.tokens), &room);
            let pairs = pairing.pairs_of(source_group, chunk.layers.as_ref());
            if pairs.is_empty() || !pairing.moves_any(&wanted) {
                continue;
            }
            let found = chunk.pages.iter().enumerate().find(|(_, (group, _))| *group == source_group);
            let covers = |(_, (_, list)): (_, &(_, _))| pairing.covers(Side::Prefill, source_group, list);
            let covered = found.map_or(0..0, covers);
            let Some((source, _)) = found.filter(|_| meet(&covered, &wanted) == wanted) else {
                let group = source_group.0;
                return Err(misfit(format!(
                    "the chunk's pages of group {group} cover tokens {covered:?}, {wanted:?} are wanted"
                )));
            };
            let pieces = Pieces::new(Piece { pairs, positions: wanted });
            tasks.push(Task { source, lent, pieces });
        }
        Ok(tasks)
    }

    /// The rows of `finish`, each with the rows lent for it.
    fn rows(&self, finish: &Finish) -> Result<Vec<Task>, Fault> {
        let mut tasks = Vec::new();
        let Some(pairing) = &self.pairing else { return Ok(tasks) };
        for (lent, (group, list)) in self.pages.iter().enumerate() {
            let Some(source_group) = pairing.source_group(*group) else { continue };
            let pairs = pairing.pairs_of(source_group, None);
            if pairing.kind(source_group) != Some(GroupKind::Rows) || pairs.is_empty() {
                continue;
            }
            let found = finish.rows.iter().position(|(group, _)| *group == source_group);
            let given = found.map_or(0, |at| finish.rows[at].1.indices.len());
            let wanted = list.indices.len();
            let Some(source) = found.filter(|_| given == wanted) else {
                let group = group.0;
                return Err(misfit(format!("{given} rows of group {group} were given, {wanted} were lent")));
            };
            let rows = u32::try_from(wanted).unwrap_or(u32::MAX);
            tasks.push(Task { source, lent, pieces: Pieces::new(Piece { pairs, positions: 0..rows }) });
        }
        Ok(tasks)
    }
}

impl Destination {
    pub(super) fn new(joined: JoinedLink) -> Self {
        Self {
            joined,
            lent: None,
            down: false,
            told: false,
            owes_quiet: false,
            done: None,
            writes: Writes::default(),
        }
    }

    /// The next write that can be posted, cut from `work` now or kept from an earlier call.
    pub(super) fn next(&mut self, work: &Work, max_bytes: u64) -> Result<Option<&(OpId, Job)>, Fault> {
        let Some(lent) = &self.lent else { return Ok(None) };
        while self.writes.next.is_none() {
            let writes = &mut self.writes;
            if let Some(again) = writes.again.pop_front() {
                writes.next = Some(again);
            } else if let (Some(task), Some(pairing)) = (writes.tasks.last_mut(), &lent.pairing) {
                let Some(piece) = task.pieces.next(pairing, max_bytes) else {
                    writes.tasks.pop();
                    continue;
                };
                let stage = writes.stages - 1;
                let bytes = pairing.bytes(&piece);
                let job = Job { stage, source: task.source, lent: task.lent, piece, bytes, tries: 0 };
                let op = OpId(writes.ops);
                writes.ops =
                    writes.ops.checked_add(1).ok_or_else(|| misfit("more than 2^32 writes".into()))?;
                writes.bytes += bytes;
                writes.pending[stage] += 1;
                writes.next = Some((op, job));
            } else if let Some(chunk) = work.chunks.get(writes.stages) {
                if !chunk.ready {
                    break;
                }
                writes.tasks = lent.tasks(chunk)?;
                writes.stages += 1;
                writes.pending.push(0);
            } else if let Some(finish) =
                work.finish.as_ref().filter(|finish| finish.ready && !writes.rows_cut)
            {
                writes.tasks = lent.rows(finish)?;
                writes.stages += 1;
                writes.pending.push(0);
                writes.rows_cut = true;
            } else {
                break;
            }
        }
        Ok(self.writes.next.as_ref())
    }

    /// What `next` gave last, until it is posted.
    pub(super) fn current(&self) -> Option<&(OpId, Job)> {
        self.writes.next.as_ref()
    }

    /// The write that `next` gave is on its way.
    pub(super) fn posted(&mut self) {
        if let Some((op, job)) = self.writes.next.take() {
            self.writes.posted.insert(op, job);
        }
    }

    /// A posted write is over. Gives the job back; `None` for numbers never posted.
    pub(super) fn settled(&mut self, op: OpId) -> Option<Job> {
        self.writes.posted.remove(&op)
    }

    /// The job's bytes are in place.
    pub(super) fn landed(&mut self, job: &Job) {
        self.writes.pending[job.stage] -= 1;
    }

    /// Posts the job once more under its number; false if that was done `limit` times already.
    pub(super) fn repeat(&mut self, op: OpId, mut job: Job, limit: u32) -> bool {
        job.tries += 1;
        let allowed = job.tries <= limit;
        if allowed {
            self.writes.again.push_back((op, job));
        }
        allowed
    }

    /// Stages that are done and were not yet told, in order.
    pub(super) fn next_done_stage(&mut self) -> Option<usize> {
        let writes = &mut self.writes;
        let cut = writes.stages - usize::from(!writes.tasks.is_empty());
        let stage = writes.reported;
        if stage >= cut || writes.pending[stage] > 0 {
            return None;
        }
        writes.reported += 1;
        Some(stage)
    }

    /// Whether `next` would find something to cut or to repeat.
    pub(super) fn may_have_writes(&self, work: &Work) -> bool {
        let writes = &self.writes;
        self.lent.is_some()
            && !self.down
            && (writes.next.is_some()
                || !writes.again.is_empty()
                || !writes.tasks.is_empty()
                || work.chunks.get(writes.stages).is_some_and(|chunk| chunk.ready)
                || (writes.stages >= work.chunks.len()
                    && !writes.rows_cut
                    && work.finish.as_ref().is_some_and(|finish| finish.ready)))
    }

    /// Whether everything there will ever be has been posted.
    pub(super) fn is_all_posted(&self) -> bool {
        let writes = &self.writes;
        writes.rows_cut && writes.tasks.is_empty() && writes.next.is_none() && writes.again.is_empty()
    }

    /// Whether it was told that nothing more comes, and that is so: a write that arrived damaged after
    /// `Done` is still to be made again.
    pub(super) fn is_over(&self) -> bool {
        let writes = &self.writes;
        self.done.is_some() && writes.posted.is_empty() && writes.again.is_empty() && writes.next.is_none()
    }

    /// Whether nothing posted is unsettled.
    pub(super) fn is_settled(&self) -> bool {
        self.writes.posted.is_empty()
    }

    /// Whether it would be asked where it stands: not once it counts by itself.
    pub(super) fn is_asked(&self) -> bool {
        !self.down && !self.told && self.done.is_none()
    }

    /// Bytes of its writes that are in place.
    pub(super) fn settled_bytes(&self) -> u64 {
        let writes = &self.writes;
        let open = writes.next.iter().chain(&writes.again).map(|(_, job)| job.bytes);
        let open: u64 = open.chain(writes.posted.values().map(|job| job.bytes)).sum();
        writes.bytes - open
    }

    /// Writes made so far, and their bytes.
    pub(super) fn totals(&self) -> (u32, u64) {
        (self.writes.ops, self.writes.bytes)
    }

    /// The pages of a job on either side.
    pub(super) fn lists<'a>(&'a self, work: &'a Work, job: &Job) -> Option<(&'a PageList, &'a PageList)> {
        let (_, lent) = self.lent.as_ref()?.pages.get(job.lent)?;
        let source = match work.chunks.get(job.stage) {
            Some(chunk) => chunk.pages.get(job.source),
            None => work.finish.as_ref()?.rows.get(job.source),
        };
        Some((&source?.1, lent))
    }

    /// The pairing its grant was made with.
    pub(super) fn pairing(&self) -> Option<&Arc<Pairing>> {
        self.lent.as_ref()?.pairing.as_ref()
    }

    /// Whether it owes nothing: it is told at once that it gets nothing.
    pub(super) fn is_empty_share(&self) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.pairing.is_none())
    }
}

fn meet(a: &Range<u32>, b: &Range<u32>) -> Range<u32> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn misfit(detail: String) -> Fault {
    Fault::new(ErrorKind::Layout, detail)
}
