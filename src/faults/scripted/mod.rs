//! Transports of one process whose writes end when and how a test says.
//!
//! Files: `mod.rs` what the test commands, `transport.rs` what engines see, `world.rs` what happens.

#[cfg(test)]
mod tests;
mod transport;
mod world;

pub use transport::ScriptedTransport;

use crate::ids::{GrantId, OpId};
use crate::layout::Extent;
use crate::transport::{TransportError, WriteModel};
use crate::wire::Frame;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use world::World;

/// Transports that reach each other by name, and their script. Cheap to clone: keep one clone in the test
/// while engines own the ends.
///
/// Unless told otherwise a write is done at once. Held writes wait until the test copies a part of them,
/// completes or fails them, in any order; never, if it does nothing.
///
/// # Examples
/// ```
/// use kvferry::faults::ScriptedNetwork;
/// use kvferry::transport::WriteModel;
/// use kvferry::{Engine, Place};
///
/// let network = ScriptedNetwork::new(WriteModel::TwoSided);
/// let prefill = Engine::builder(Place::alone("prefill")).transport(network.endpoint("prefill")?).build()?;
/// network.hold_writes();
/// // ... a room is transferred; then, for each write:
/// for write in network.pending() {
///     network.copy(write.number, 100); // the first bytes only
///     network.complete(write.number);
/// }
/// # let _ = prefill;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedNetwork {
    world: Arc<Mutex<World>>,
    filter: Arc<Mutex<Filter>>,
}

/// What becomes of a control frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fate {
    /// It is lost.
    Drop,
    /// It arrives.
    Pass,
    /// It arrives twice.
    Repeat,
}

/// A write that was posted and is not over.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PendingWrite {
    /// Its number in the network.
    pub number: u64,
    /// The end that posted it.
    pub from: String,
    /// The end it goes to.
    pub to: String,
    /// The grant it was made under.
    pub grant: GrantId,
    /// Its number under the grant.
    pub op: OpId,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes copied so far.
    pub copied: u64,
}

/// What was done to bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "memory is read or written")]
pub enum Access {
    /// Read, at the end that posted the write.
    Read,
    /// Written, at the other.
    Written,
}

/// Bytes that a write touched at one end.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Touch {
    /// The end whose memory it was.
    pub end: String,
    /// What was done.
    pub access: Access,
    /// For which grant.
    pub grant: GrantId,
    /// For which write.
    pub op: OpId,
    /// The bytes, in the write's order.
    pub extents: Vec<Extent>,
}

/// Decides about frames of an end.
type Decide = Box<dyn FnMut(&str, &Frame) -> Fate + Send>;

#[derive(Default)]
struct Filter(Option<Decide>);

impl ScriptedNetwork {
    /// A network without ends, in which bytes are moved by either side.
    pub fn new(model: WriteModel) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(model))), filter: Arc::default() }
    }

    /// A new end, reached by `name`.
    ///
    /// # Errors
    /// The name is in use, or no descriptor is left.
    pub fn endpoint(&self, name: &str) -> Result<ScriptedTransport, TransportError> {
        ScriptedTransport::new(self, name)
    }

    /// From now on writes wait for the test.
    pub fn hold_writes(&self) {
        self.world.lock().holds_writes = true;
    }

    /// Completes all writes that wait, the oldest first, and from now on each at once.
    pub fn release_writes(&self) {
        let mut world = self.world.lock();
        world.holds_writes = false;
        world.numbers().into_iter().for_each(|number| world.complete(number));
    }

    /// Writes that wait, the oldest first.
    pub fn pending(&self) -> Vec<PendingWrite> {
        self.world.lock().pending()
    }

    /// Copies up to so many further bytes of a write that waits. Returns how many: fewer once the grant is
    /// revoked or the link has ended.
    pub fn copy(&self, number: u64, bytes: u64) -> u64 {
        self.world.lock().copy(number, bytes)
    }

    /// Copies what is left of a write that waits, and settles it. Nothing if it does not wait any more.
    pub fn complete(&self, number: u64) {
        self.world.lock().complete(number);
    }

    /// Ends a write that waits with an error; what was copied of it stays.
    pub fn fail(&self, number: u64, error: TransportError) {
        self.world.lock().fail(number, error);
    }

    /// From now on revocations are not answered, and writes begun before go on touching pages.
    pub fn hold_revoked(&self) {
        self.world.lock().holds_revoked = true;
    }

    /// Answers the revocations that wait, and from now on each at once.
    pub fn release_revoked(&self) {
        self.world.lock().release_revoked();
    }

    /// Whether the end of a link stops the one-sided writes under way over it (so at first), or these go on
    /// after it, as those of a card that nobody can stop.
    pub fn vouch(&self, vouches: bool) {
        self.world.lock().vouches = vouches;
    }

    /// Decides about every control frame from now on, with the name of the end that sends it. Runs on that
    /// end's thread.
    pub fn filter_control(&self, filter: impl FnMut(&str, &Frame) -> Fate + Send + 'static) {
        self.filter.lock().0 = Some(Box::new(filter));
    }

    /// Ends every link of an end, as a crash of its process would.
    pub fn sever(&self, name: &str) {
        self.world.lock().sever(name);
    }

    /// What was touched since this was last asked.
    pub fn take_touches(&self) -> Vec<Touch> {
        std::mem::take(&mut self.world.lock().touches)
    }

    fn fate(&self, sender: &str, frame: &[u8]) -> Fate {
        let mut filter = self.filter.lock();
        match (&mut filter.0, Frame::decode(&bytes::Bytes::copy_from_slice(frame))) {
            (Some(filter), Ok(frame)) => filter(sender, &frame),
            _ => Fate::Pass,
        }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Filter(set)" } else { "Filter(none)" })
    }
}
