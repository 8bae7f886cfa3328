//! What users do.

use super::World;
use super::faults::{Disturbance, Mishap};
use super::net::DESTINATION;
use crate::ids::{Attempt, Room};
use crate::layout::Share;
use crate::wire::{Kind, Offer};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;

/// Something that the user of a node does, or that befalls it. What makes no sense at that moment is
/// refused and changes nothing.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "made by tests")]
pub enum Call {
    /// Ends a room from here.
    Abort {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
    },
    /// A process says something it should not to a process it is connected with.
    Babble {
        /// The process.
        node: usize,
    },
    /// Gives the next chunk.
    Chunk {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Its tokens.
        tokens: Range<u32>,
        /// Its layers; all if none are named.
        layers: Option<Range<u32>>,
        /// Whether it may be read already.
        ready: bool,
    },
    /// A process ends without a word.
    Crash {
        /// The process.
        node: usize,
    },
    /// The connection between two nodes breaks.
    Cut {
        /// The prefill node.
        prefill: usize,
        /// The decode node.
        decode: usize,
    },
    /// From now on nothing gets through on the connection between two nodes, and nobody is told.
    Darken {
        /// The prefill node.
        prefill: usize,
        /// The decode node.
        decode: usize,
    },
    /// Something happens to the next control frame of a kind.
    Disturb {
        /// Sent by this node.
        from: usize,
        /// To this one.
        to: usize,
        /// The kind.
        kind: Kind,
        /// What happens to it.
        mishap: Mishap,
    },
    /// Lets go of a handle; a sender's only once its pages are released.
    Drop {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
    },
    /// Ends the chunks.
    Finish {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens of the prompt.
        tokens: u32,
        /// Bytes of payload.
        payload: usize,
    },
    /// A process stops for a while.
    Freeze {
        /// The process.
        node: usize,
        /// How long.
        time: Duration,
    },
    /// Lends pages.
    Grant {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens wanted.
        tokens: Range<u32>,
        /// Tokens wanted of the window's group, counted from the end.
        window: u32,
        /// Whether rows are wanted.
        rows: bool,
    },
    /// Says what the request will be.
    Offer {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Tokens of the prompt, if known.
        tokens: Option<u32>,
    },
    /// A chunk may be read from now on.
    Ready {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// Its number.
        chunk: usize,
    },
    /// Opens a receiver.
    Receiver {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
        /// Tells the contents of requests apart.
        salt: u64,
        /// Decode ranks that receive.
        destinations: Vec<u32>,
        /// Prefill nodes and what each owes.
        sources: Vec<(usize, Option<Share>)>,
    },
    /// Says that a room will get no sender.
    Reject {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
    },
    /// A process ends without a word, if it has not, and another one begins in its place.
    Restart {
        /// The process.
        node: usize,
    },
    /// Opens a sender.
    Sender {
        /// At this node.
        node: usize,
        /// The room.
        room: Room,
        /// The attempt.
        attempt: u64,
        /// Tells the contents of requests apart.
        salt: u64,
    },
}

impl Call {
    /// The address of the process that must run for this to happen.
    pub(super) fn process(&self) -> Option<usize> {
        match self {
            Self::Crash { .. }
            | Self::Cut { .. }
            | Self::Darken { .. }
            | Self::Disturb { .. }
            | Self::Freeze { .. }
            | Self::Restart { .. } => None,
            Self::Abort { node, .. }
            | Self::Babble { node }
            | Self::Chunk { node, .. }
            | Self::Drop { node, .. }
            | Self::Finish { node, .. }
            | Self::Grant { node, .. }
            | Self::Offer { node, .. }
            | Self::Ready { node, .. }
            | Self::Receiver { node, .. }
            | Self::Reject { node, .. }
            | Self::Sender { node, .. } => Some(*node),
        }
    }
}

impl World {
    pub(super) fn make(&mut self, call: Call) {
        let made = match call.process() {
            None => {
                self.befall(call);
                return;
            }
            Some(address) => {
                let node = self.living[address];
                self.nodes[node].alive.then(|| self.make_at(node, call)).flatten()
            }
        };
        if made.is_none() {
            self.record(|| "  refused".into());
        }
    }

    fn befall(&mut self, call: Call) {
        match call {
            Call::Crash { node } => self.crash(self.living[node]),
            Call::Cut { prefill, decode } => {
                let nodes = [self.living[prefill], self.living[decode]];
                if let Some(conn) = self.net.find(nodes, DESTINATION) {
                    self.cut(conn, None);
                }
            }
            Call::Darken { prefill, decode } => self.darken(self.living[prefill], self.living[decode]),
            Call::Disturb { from, to, kind, mishap } => {
                self.disturbances.push(Disturbance { from, to, kind, mishap });
            }
            Call::Freeze { node, time } => self.freeze(self.living[node], time),
            Call::Restart { node } => self.restart(self.living[node]),
            _ => {}
        }
    }

    fn make_at(&mut self, node: usize, call: Call) -> Option<()> {
        match call {
            Call::Abort { room, .. } => self.abort(node, room),
            Call::Chunk { room, tokens, layers, ready, .. } => self.chunk(node, room, tokens, layers, ready),
            Call::Babble { .. } => self.babble(node),
            Call::Crash { .. }
            | Call::Cut { .. }
            | Call::Darken { .. }
            | Call::Disturb { .. }
            | Call::Freeze { .. }
            | Call::Restart { .. } => None,
            Call::Drop { room, .. } => self.drop_handle(node, room),
            Call::Finish { room, tokens, payload, .. } => self.end_chunks(node, room, tokens, payload),
            Call::Grant { room, tokens, window, rows, .. } => self.lend(node, room, tokens, window, rows),
            Call::Offer { room, tokens, .. } => {
                let at = self.live_sender(node, room)?;
                let offer = Offer { tokens, complete: true, payload: Bytes::from_static(b"offer") };
                self.sender(node, at, |session, now| session.offer(now, offer));
                Some(())
            }
            Call::Ready { room, chunk, .. } => self.make_ready(node, room, chunk),
            Call::Receiver { room, attempt, salt, destinations, sources, .. } => {
                self.open_receiver(node, room, Attempt(attempt), salt, &destinations, sources)
            }
            Call::Reject { room, attempt, .. } => self.reject(node, room, Attempt(attempt)),
            Call::Sender { room, attempt, salt, .. } => self.open_sender(node, room, Attempt(attempt), salt),
        }
    }
}
