//! A transport whose names lead where the test says, and which has keys of regions; bytes move as in
//! process.

use bytes::Bytes;
use kvferry::layout::Admission;
use kvferry::memory::{MemoryKind, Region};
use kvferry::transport::local::{LocalNetwork, LocalTransport};
use kvferry::transport::{Caps, Event, Transport, TransportError, Wait, Write};
use kvferry::{GrantId, LinkId, RegionId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What the test sees and says of the transports of a network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubles {
    network: LocalNetwork,
    /// Where a name leads.
    pub(crate) routes: Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
    /// Keys of peers' regions in use, by whose they are to use.
    pub(crate) imports: Arc<Mutex<Imports>>,
    /// Regions lent to a transport.
    pub(crate) regions: Arc<Mutex<BTreeSet<(String, RegionId)>>>,
    cannot_vouch: Arc<AtomicBool>,
}

type Imports = BTreeSet<(String, (LinkId, RegionId))>;

#[derive(Debug)]
pub(crate) struct Double {
    name: String,
    inner: LocalTransport,
    doubles: Doubles,
}

impl Doubles {
    pub(crate) fn transport(&self, name: &str) -> Double {
        Double { name: name.into(), inner: self.network.endpoint(name).unwrap(), doubles: self.clone() }
    }

    /// Whether links end without proof that their peers write no more.
    pub(crate) fn cannot_vouch(&self, cannot: bool) {
        self.cannot_vouch.store(cannot, Ordering::Relaxed);
    }

    pub(crate) fn route(&self, name: &str, to: &str) {
        self.routes.lock().unwrap().insert(name.into(), to.into());
    }
}

impl Transport for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        self.inner.supports(kind)
    }

    fn local_address(&self) -> Bytes {
        self.inner.local_address()
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        let to = self.doubles.routes.lock().unwrap().get(address).cloned();
        self.inner.connect(to.as_deref().unwrap_or(address))
    }

    fn disconnect(&mut self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        self.doubles.regions.lock().unwrap().insert((self.name.clone(), region.id()));
        self.inner.register(region)
    }

    fn deregister(&mut self, region: RegionId) {
        self.doubles.regions.lock().unwrap().remove(&(self.name.clone(), region));
        self.inner.deregister(region);
    }

    fn key_for(&mut self, _link: LinkId, region: RegionId) -> Bytes {
        region.0.to_le_bytes().to_vec().into()
    }

    fn import(&mut self, link: LinkId, region: RegionId, _key: &[u8]) -> Result<(), TransportError> {
        self.doubles.imports.lock().unwrap().insert((self.name.clone(), (link, region)));
        Ok(())
    }

    fn forget_import(&mut self, link: LinkId, region: RegionId) {
        self.doubles.imports.lock().unwrap().remove(&(self.name.clone(), (link, region)));
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        self.inner.write(link, write)
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        self.inner.send_control(link, frame)
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        self.inner.admit(link, grant, admission);
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        self.inner.revoke(link, grant);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        let did = self.inner.progress(events);
        if self.doubles.cannot_vouch.load(Ordering::Relaxed) {
            for event in events {
                if let Event::LinkDown { quiesced, .. } = event {
                    *quiesced = false;
                }
            }
        }
        did
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn prepare_wait(&mut self) -> Wait {
        self.inner.prepare_wait()
    }
}
