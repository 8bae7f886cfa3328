//! Memory that is taken back: it is its owner's again once no peer can reach it any more.
//!
//! Who was given a key of it is asked to let go of it (`RegionsGone`), and has when it says so
//! (`RegionsClosed`), or when its link has ended and the transport vouches for it. Where nobody has a key,
//! as on two-sided links, there is nobody to wait for.

use super::core::Core;
use super::handle::block_on;
use super::links::Link;
use crate::ids::{LinkId, Rank, RegionId};
use crate::memory::Region;
use crate::wire::Frame;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Memory on its way back to its owner; see [`Engine::withdraw`](super::Engine::withdraw). Dropping this
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    region: RegionId,
    leaving: Arc<Leaving>,
}

#[derive(Debug, Default)]
struct Leaving {
    is_done: AtomicBool,
    waiting_for: Mutex<Vec<Rank>>,
    wakers: Mutex<Vec<Waker>>,
}

#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    open: BTreeMap<RegionId, Open>,
    /// Who may reach a region still, although its link has ended.
    unproved: BTreeMap<RegionId, BTreeSet<Rank>>,
}

#[derive(Debug)]
struct Open {
    asked: BTreeMap<LinkId, Rank>,
    leaving: Arc<Leaving>,
    /// Kept until then.
    _region: Region,
}

impl Withdrawal {
    /// The region.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Whether the memory may be freed.
    pub fn is_done(&self) -> bool {
        // Acquire; pairs with the Release in `conclude_withdrawal`.
        self.leaving.is_done.load(Ordering::Acquire)
    }

    /// Ranks of peers that may still reach it.
    pub fn waiting_for(&self) -> Vec<Rank> {
        self.leaving.waiting_for.lock().clone()
    }

    /// Waits until it is done, for so long at most; answers whether it is.
    pub fn wait(&self, timeout: Duration) -> bool {
        block_on(self.done(), timeout);
        self.is_done()
    }

    /// Completes when it is done. That is never if a peer went whose transport cannot vouch for it: the
    /// memory must then stay as it is, and [`CloseReport::unproved`](super::CloseReport) names it.
    pub fn done(&self) -> impl Future<Output = ()> + Send + 'static {
        let this = self.clone();
        std::future::poll_fn(move |context| {
            let mut wakers = this.leaving.wakers.lock();
            if this.is_done() {
                return Poll::Ready(());
            }
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

impl Withdrawals {
    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl Core {
    /// Begins to take a region back; `None` if it is not lent.
    pub(super) fn withdraw(&mut self, region: RegionId) -> Option<Withdrawal> {
        let memory = self.regions.remove(&region)?;
        let has_key = self.links.iter().filter(|(_, link)| link.keyed.contains(&region));
        let asked: BTreeMap<_, _> = has_key.map(|(id, link)| (*id, link.rank())).collect();
        let leaving = Arc::new(Leaving::default());
        for &link in asked.keys() {
            self.send(link, &Frame::RegionsGone { regions: vec![region] });
        }
        let open = Open { asked, leaving: Arc::clone(&leaving), _region: memory };
        self.withdrawals.open.insert(region, open);
        self.conclude_withdrawal(region);
        Some(Withdrawal { region, leaving })
    }

    /// A peer has let go of regions.
    pub(super) fn regions_closed(&mut self, id: LinkId, regions: &[RegionId]) {
        for region in regions {
            let open = self.withdrawals.open.get_mut(region);
            if open.is_some_and(|open| open.asked.remove(&id).is_some()) {
                if let Some(link) = self.links.get_mut(&id) {
                    link.keyed.remove(region);
                }
                self.conclude_withdrawal(*region);
            }
        }
    }

    /// A link whose peer may have had keys has ended.
    pub(super) fn keys_ended(&mut self, id: LinkId, link: &Link, quiesced: bool) {
        for region in &link.keyed {
            if !quiesced {
                self.withdrawals.unproved.entry(*region).or_default().insert(link.rank());
            }
            if let Some(open) = self.withdrawals.open.get_mut(region) {
                open.asked.remove(&id);
                self.conclude_withdrawal(*region);
            }
        }
    }

    /// The engine has ended its links and let go of its transports: gives the regions that a peer may
    /// still reach; the others are done.
    pub(super) fn end_withdrawals(&mut self) -> Vec<(RegionId, Vec<Rank>)> {
        for (id, link) in std::mem::take(&mut self.links) {
            self.keys_ended(id, &link, false);
        }
        let open: Vec<_> = self.withdrawals.open.keys().copied().collect();
        open.into_iter().for_each(|region| self.conclude_withdrawal(region));
        let unproved = self.withdrawals.unproved.iter();
        unproved.map(|(region, ranks)| (*region, ranks.iter().copied().collect())).collect()
    }

    fn conclude_withdrawal(&mut self, region: RegionId) {
        let Some(open) = self.withdrawals.open.get(&region) else { return };
        let unproved = self.withdrawals.unproved.get(&region).into_iter().flatten();
        let waiting: BTreeSet<Rank> = open.asked.values().chain(unproved).copied().collect();
        *open.leaving.waiting_for.lock() = waiting.iter().copied().collect();
        if !waiting.is_empty() {
            return;
        }
        self.transports.iter_mut().for_each(|transport| transport.deregister(region));
        if let Some(open) = self.withdrawals.open.remove(&region) {
            let mut wakers = open.leaving.wakers.lock();
            // Release; pairs with the Acquire in `is_done`. Under the lock, under which wakers come.
            open.leaving.is_done.store(true, Ordering::Release);
            self.woken.append(&mut wakers);
        }
    }
}
