//! What a scenario contains: how many parties, which faults, and which rules are broken on purpose.

/// Most senders, most receivers, links of one pair, uses of the room, and writes per grant.
pub(crate) const SENDERS: usize = 2;
pub(crate) const RECEIVERS: usize = 2;
pub(crate) const LINKS: usize = 2;
pub(crate) const USES: usize = 2;
pub(crate) const OPS: usize = 2;

/// Who moves bytes into the receiver's pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WriteModel {
    OneSided,
    TwoSided,
}

/// One rule of the protocol that a scenario leaves out, to show that the checks see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mutation {
    /// `Done` of a one-sided link goes out before the writes have settled.
    EarlyDone,
    /// `Quiet` goes out before the writes have settled.
    EarlyQuiet,
    /// The end of a link counts as proof that its writer is quiet.
    DownIsQuiet,
    /// A write goes over the newest link to that receiver, not over its grant's.
    UnboundGrant,
    /// An `Abort` of a parked room is answered, but the parked join stays.
    NoTombstone,
    /// `Revoked` is assumed when `revoke` starts.
    RevokedAtOnce,
    /// The receiver counts landed writes instead of distinct ones.
    CountEvery,
    /// The receiver's transport applies a copy of a write that has landed or is being applied.
    ApplyTwice,
    /// The tombstone of an `Abort` does not end a sender that is made later: it waits.
    MuteTombstone,
    /// A sender adopts whatever is parked for its room, of any attempt.
    AnyAttempt,
    /// `Failed` that refuses or answers a join stands alone: no `Quiet` follows it.
    NoQuietAfterRefusal,
    /// A named destination that is refused leaves the sender's room waiting for it.
    RefusalKeepsWaiting,
    /// A live sender refuses the join of another attempt instead of parking it.
    RefuseOtherAttempt,
    /// A failed sender answers every later join, also of a rank that it has already told.
    EndlessTombstone,
    /// The sender reports its pages before its writes have settled.
    EagerSender,
    /// A cut or ended link takes with it only live rooms, not what is parked.
    ParkedOutlivesLink,
    /// `Failed` goes out only when the writes have settled and only to destinations that granted.
    NoFailedBeforeGrant,
    /// The receiver does not tell sources that it never granted to that it gave up.
    NoAbortBeforeGrant,
}

/// How two uses of the room are told apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attempts {
    /// Each use has an attempt number of its own.
    Numbered,
    /// Both have the same; the caller waits until both ends of the first are over and `Safe`.
    Same,
    /// Both have the same and the caller does not wait.
    Careless,
}

/// One scenario. Counts of faults are budgets: each may happen at any time, or never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) senders: u8,
    pub(crate) receivers: u8,
    pub(crate) writes: u8,
    pub(crate) uses: u8,
    pub(crate) attempts: Attempts,
    pub(crate) model: WriteModel,
    /// The destinations that each receiver names, as a set of bits.
    pub(crate) lists: [u8; RECEIVERS],
    /// Whether a fence ends in proof. Without it pages may stay `Draining` for ever.
    pub(crate) vouches: bool,
    /// The rules left out.
    pub(crate) mutations: &'static [Mutation],
    pub(crate) faults: Faults,
    /// A second use to which nothing happens must succeed.
    pub(crate) clean_second_use: bool,
    /// Deadlines that a sender's, and a receiver's session may need once a cause is known somewhere.
    pub(crate) late: (u8, u8),
}

/// How often each fault may still happen.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Faults {
    /// The caller of a sender aborts.
    pub(crate) sender_aborts: u8,
    /// The caller of a receiver aborts.
    pub(crate) receiver_aborts: u8,
    /// A link breaks while both processes live.
    pub(crate) breaks: u8,
    /// The receiver connects again.
    pub(crate) reconnects: u8,
    pub(crate) sender_deaths: u8,
    pub(crate) receiver_deaths: u8,
    /// A sender stops, as by `SIGSTOP`; it may or may not go on later.
    pub(crate) freezes: u8,
    /// A write of a one-sided link fails although the link is up.
    pub(crate) write_errors: u8,
    /// A data frame of a two-sided link arrives twice.
    pub(crate) doubles: u8,
    /// A payload arrives damaged and is posted again.
    pub(crate) damages: u8,
}

impl Config {
    pub(crate) fn new(model: WriteModel) -> Self {
        Self {
            senders: 1,
            receivers: 1,
            writes: 1,
            uses: 1,
            attempts: Attempts::Numbered,
            model,
            lists: [0b01, 0b01],
            vouches: true,
            mutations: &[],
            faults: Faults::default(),
            clean_second_use: true,
            late: (0, 0),
        }
    }

    /// One sender for two receivers that agree on the list.
    pub(crate) fn fan_out(model: WriteModel) -> Self {
        Self { receivers: 2, lists: [0b11, 0b11], ..Self::new(model) }
    }

    pub(crate) fn without(self, mutations: &'static [Mutation]) -> Self {
        Self { mutations, ..self }
    }

    pub(crate) fn has(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }

    pub(crate) fn one_sided(&self) -> bool {
        self.model == WriteModel::OneSided
    }

    /// The list of destinations that names every receiver.
    pub(crate) fn everybody(&self) -> u8 {
        (1 << self.receivers) - 1
    }

    /// The bits of all writes of one grant.
    pub(crate) fn all_ops(&self) -> u8 {
        (1 << self.writes) - 1
    }
}
