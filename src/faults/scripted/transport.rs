//! What engines see of a scripted network.

use super::world::{End, MAX_WRITE, NAME, Posting};
use super::{Fate, ScriptedNetwork};
use crate::doorbell::Doorbell;
use crate::ids::{GrantId, LinkId, RegionId};
use crate::layout::Admission;
use crate::memory::{MemoryKind, Region, host};
use crate::transport::{Caps, Event, Transport, TransportError, Wait, Write, WriteModel};
use bytes::Bytes;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One end of a [`ScriptedNetwork`].
#[derive(Debug)]
pub struct ScriptedTransport {
    network: ScriptedNetwork,
    name: String,
    bell: Arc<Doorbell>,
}

impl ScriptedTransport {
    pub(super) fn new(network: &ScriptedNetwork, name: &str) -> Result<Self, TransportError> {
        let bell =
            Doorbell::new().map_err(|source| TransportError::Io { name: NAME, op: "eventfd", source })?;
        let bell = Arc::new(bell);
        network.world.lock().add(name, End::new(Arc::clone(&bell)))?;
        Ok(Self { network: network.clone(), name: name.to_owned(), bell })
    }
}

impl Transport for ScriptedTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        let write_model = self.network.world.lock().model;
        Caps { write_model, max_control: 32 << 20, max_write: MAX_WRITE }
    }

    fn supports(&self, kind: MemoryKind) -> bool {
        host::is_host(kind)
    }

    fn local_address(&self) -> Bytes {
        Bytes::copy_from_slice(self.name.as_bytes())
    }

    fn connect(&mut self, address: &[u8]) -> Result<LinkId, TransportError> {
        let peer = std::str::from_utf8(address)
            .map_err(|_| TransportError::Address { name: NAME, detail: "not UTF-8".into() })?;
        Ok(self.network.world.lock().connect(&self.name, peer))
    }

    fn disconnect(&mut self, link: LinkId) {
        self.network.world.lock().close(link, TransportError::Disconnected { name: NAME });
    }

    fn register(&mut self, region: &Region) -> Result<(), TransportError> {
        if !self.supports(region.kind()) {
            return Err(TransportError::Unsupported { name: NAME, kind: region.kind() });
        }
        self.network.world.lock().regions(&self.name).insert(region.clone());
        Ok(())
    }

    fn deregister(&mut self, region: RegionId) {
        self.network.world.lock().regions(&self.name).remove(region);
    }

    fn key_for(&mut self, _link: LinkId, region: RegionId) -> Bytes {
        match self.caps().write_model {
            WriteModel::OneSided => Bytes::copy_from_slice(&region.0.to_le_bytes()),
            WriteModel::TwoSided => Bytes::new(),
        }
    }

    fn import(&mut self, link: LinkId, region: RegionId, key: &[u8]) -> Result<(), TransportError> {
        if key != region.0.to_le_bytes() {
            let detail = format!("no key of region {}", region.0);
            return Err(TransportError::Format { name: NAME, detail });
        }
        self.network.world.lock().import(link, region);
        Ok(())
    }

    fn write(&mut self, link: LinkId, write: &Write<'_>) -> Result<(), TransportError> {
        let Write { op, grant, ref piece, source, destination } = *write;
        self.network.world.lock().post(Posting { link, grant, op, piece, source, destination })
    }

    fn send_control(&mut self, link: LinkId, frame: Bytes) -> Result<(), TransportError> {
        let times = match self.network.fate(&self.name, &frame) {
            Fate::Drop => 0,
            Fate::Pass => 1,
            Fate::Repeat => 2,
        };
        self.network.world.lock().send(link, &frame, times)
    }

    fn admit(&mut self, link: LinkId, grant: GrantId, admission: Arc<Admission>) {
        self.network.world.lock().admit(link, grant, admission);
    }

    fn revoke(&mut self, link: LinkId, grant: GrantId) {
        self.network.world.lock().revoke(&self.name, link, grant);
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> usize {
        self.bell.clear();
        let before = events.len();
        self.network.world.lock().take_events(&self.name, events);
        events.len() - before
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.fd())
    }

    fn prepare_wait(&mut self) -> Wait {
        self.bell.arm();
        if !self.network.world.lock().has_events(&self.name) {
            return Wait::Ready;
        }
        self.bell.disarm();
        Wait::Busy
    }
}

impl Drop for ScriptedTransport {
    fn drop(&mut self) {
        self.network.world.lock().remove(&self.name);
    }
}
