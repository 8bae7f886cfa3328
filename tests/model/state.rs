//! Everything that exists in one moment: parties, links, frames and writes under way.

use std::hash::{Hash, Hasher};

use crate::config::{Config, Faults, LINKS, OPS, RECEIVERS, SENDERS, USES};

/// Small numbers name senders, receivers, links, uses and writes; this makes one an index.
pub(crate) fn ix(number: u8) -> usize {
    usize::from(number)
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct State {
    pub(crate) senders: [Sender; SENDERS],
    pub(crate) receivers: [Receiver; RECEIVERS],
    /// `links[sender][receiver]`: the first link of that pair and the one after a reconnect.
    pub(crate) links: [[[Link; LINKS]; RECEIVERS]; SENDERS],
    pub(crate) left: Faults,
    /// Somebody failed, or something broke: from here on deadlines are counted.
    pub(crate) cause: bool,
    /// Something happened to the second use, so it need not succeed.
    pub(crate) second_use_hit: bool,
    /// The rule that the step into this state broke.
    pub(crate) broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Health {
    #[default]
    Well,
    Frozen,
    Dead,
}

/// How far a session of either side is. `Live` holds WaitingForInput and Transferring: no rule tells
/// them apart. `Closing` is a receiver that has everything and waits for `Revoked`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Phase {
    #[default]
    Unmade,
    Boot,
    Live,
    Closing,
    Success,
    Failed,
}

impl Phase {
    pub(crate) fn over(self) -> bool {
        matches!(self, Self::Success | Self::Failed)
    }

    pub(crate) fn running(self) -> bool {
        matches!(self, Self::Boot | Self::Live | Self::Closing)
    }
}

/// A sender process.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Sender {
    pub(crate) health: Health,
    /// One session per use of the room, named by its attempt.
    pub(crate) sessions: [SenderSession; USES],
    /// Joins without a sender: `parked[receiver][use]`.
    pub(crate) parked: [[Parked; USES]; RECEIVERS],
    /// Uses that a receiver aborted before a sender was there, as bits.
    pub(crate) tombstones: [u8; RECEIVERS],
}

/// A join, and perhaps its grant, that waits for a sender.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Parked {
    pub(crate) held: bool,
    pub(crate) link: u8,
    pub(crate) granted: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct SenderSession {
    pub(crate) phase: Phase,
    /// The destinations of the first join, as bits; 0 before it.
    pub(crate) list: u8,
    pub(crate) targets: [Target; RECEIVERS],
    pub(crate) safe: bool,
    /// Deadlines that fired although a cause was known somewhere.
    pub(crate) late: u8,
}

/// What a sender's session knows of one destination.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Target {
    pub(crate) joined: bool,
    /// Which use of the receiver joined: its generation.
    pub(crate) usage: u8,
    pub(crate) link: u8,
    pub(crate) granted: bool,
    /// Writes posted, and those of them that settled well, as bits.
    pub(crate) posted: u8,
    pub(crate) settled: u8,
    /// Posted and not settled.
    pub(crate) open: u8,
    pub(crate) done: bool,
    pub(crate) owes_failed: bool,
    pub(crate) owes_quiet: bool,
    /// It has been told of the failure, or told it to us.
    pub(crate) told: bool,
}

/// A receiver process.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Receiver {
    pub(crate) health: Health,
    /// One session per use of the room; its index is its generation.
    pub(crate) uses: [ReceiverSession; USES],
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct ReceiverSession {
    pub(crate) phase: Phase,
    pub(crate) sources: [Source; SENDERS],
    /// The pages were given back to the caller.
    pub(crate) safe: bool,
    pub(crate) late: u8,
}

/// What a receiver's session knows of one source.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Source {
    pub(crate) link: u8,
    pub(crate) granted: bool,
    pub(crate) done: bool,
    pub(crate) quiet: bool,
    pub(crate) down: bool,
    pub(crate) revoke: Revoke,
    pub(crate) fence: Fence,
    /// Writes that the transport reported as landed: distinct ones as bits, and every one.
    pub(crate) ops: u8,
    pub(crate) count: u8,
    /// What is in the pages in truth; no rule may look at it.
    pub(crate) truth: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Revoke {
    #[default]
    Admitted,
    Asked,
    Revoked,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Fence {
    #[default]
    Open,
    Asked,
    /// Nothing posted over the link can land any more.
    Proven,
    /// The transport cannot vouch; the pages stay with it.
    Refused,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Stage {
    #[default]
    Absent,
    Up,
    Broken,
}

/// One connection of a sender and a receiver. Each end learns that it broke in its own time, and may
/// before that still read what had arrived.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Link {
    pub(crate) stage: Stage,
    pub(crate) sender_knows: bool,
    pub(crate) receiver_knows: bool,
    /// One-sided: nothing posted over it reaches memory any more.
    pub(crate) cut: bool,
    pub(crate) to_sender: Queue,
    pub(crate) to_receiver: Queue,
    /// `writes[generation][op]`
    pub(crate) writes: [[Flight; OPS]; USES],
}

/// One write number of one grant on its way.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Flight {
    /// The sender's session whose bytes it carries.
    pub(crate) session: u8,
    /// Posted and not settled.
    pub(crate) open: u8,
    /// Copies that can still reach the pages (one-sided) or the receiver's transport (two-sided).
    pub(crate) copies: u8,
    /// Copies that the receiver's transport is writing right now.
    pub(crate) applying: u8,
    /// Good and bad answers on their way back.
    pub(crate) acks: u8,
    pub(crate) nacks: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum Kind {
    #[default]
    Join,
    Grant,
    Abort,
    Done,
    Failed,
    Quiet,
}

/// A control frame; `usage` stands for the attempt and the generation of the receiver's session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) usage: u8,
}

/// Control frames of one direction, oldest first.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Queue {
    frames: [Frame; 8],
    len: u8,
}

impl Queue {
    pub(crate) fn push(&mut self, frame: Frame) {
        self.frames[ix(self.len)] = frame;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Frame> {
        let first = self.first()?;
        self.len -= 1;
        self.frames.copy_within(1.., 0);
        self.frames[ix(self.len)] = Frame::default();
        Some(first)
    }

    pub(crate) fn first(&self) -> Option<Frame> {
        (self.len > 0).then_some(self.frames[0])
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

// Hashing is most of a search's work, and most queues are empty, most writes idle, most links absent.

impl Hash for Link {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.stage.hash(state);
        if self.stage != Stage::Absent {
            (self.sender_knows, self.receiver_knows, self.cut).hash(state);
            self.to_sender.hash(state);
            self.to_receiver.hash(state);
            self.writes.as_flattened().iter().for_each(|flight| flight.hash(state));
        }
    }
}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.len);
        self.frames[..ix(self.len)].iter().for_each(|frame| frame.hash(state));
    }
}

impl Hash for Flight {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let fields = [self.session, self.open, self.copies, self.applying, self.acks, self.nacks, 0, 0];
        state.write_u64(u64::from_le_bytes(fields));
    }
}

impl State {
    /// All links up, nobody has called anything.
    pub(crate) fn start(config: &Config) -> Self {
        let mut state = Self { left: config.faults, ..Self::default() };
        for s in 0..config.senders {
            for r in 0..config.receivers {
                state.link(s, r, 0).stage = Stage::Up;
            }
        }
        state
    }

    pub(crate) fn link(&mut self, s: u8, r: u8, l: u8) -> &mut Link {
        &mut self.links[ix(s)][ix(r)][ix(l)]
    }

    pub(crate) fn session(&mut self, s: u8, u: u8) -> &mut SenderSession {
        &mut self.senders[ix(s)].sessions[ix(u)]
    }

    pub(crate) fn target(&mut self, s: u8, u: u8, r: u8) -> &mut Target {
        &mut self.session(s, u).targets[ix(r)]
    }

    pub(crate) fn usage(&mut self, r: u8, u: u8) -> &mut ReceiverSession {
        &mut self.receivers[ix(r)].uses[ix(u)]
    }

    pub(crate) fn source(&mut self, r: u8, u: u8, s: u8) -> &mut Source {
        &mut self.usage(r, u).sources[ix(s)]
    }

    pub(crate) fn send_to_sender(&mut self, s: u8, r: u8, l: u8, kind: Kind, usage: u8) {
        let link = self.link(s, r, l);
        if link.stage == Stage::Up {
            link.to_sender.push(Frame { kind, usage });
        }
    }

    pub(crate) fn send_to_receiver(&mut self, s: u8, r: u8, l: u8, kind: Kind, usage: u8) {
        let link = self.link(s, r, l);
        if link.stage == Stage::Up && !link.sender_knows {
            link.to_receiver.push(Frame { kind, usage });
        }
    }

    /// The phases of all parties of the second use.
    pub(crate) fn second_use_phases(&self, config: &Config) -> impl Iterator<Item = Phase> {
        let senders = self.senders[..ix(config.senders)].iter().map(|sender| sender.sessions[1].phase);
        let receivers = self.receivers[..ix(config.receivers)].iter().map(|receiver| receiver.uses[1].phase);
        senders.chain(receivers)
    }

    /// The second use has begun on some side.
    pub(crate) fn second_use_exists(&self) -> bool {
        self.senders.iter().any(|sender| sender.sessions[1].phase != Phase::Unmade)
            || self.receivers.iter().any(|receiver| receiver.uses[1].phase != Phase::Unmade)
    }

    /// Notes a fault that reaches whatever exists.
    pub(crate) fn hit(&mut self) {
        self.cause = true;
        if self.second_use_exists() {
            self.second_use_hit = true;
        }
    }
}
