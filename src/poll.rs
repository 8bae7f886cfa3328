//! The two answers a transfer gives: where it stands, and whether its pages are yours again.

/// Where a transfer stands. The numbers are part of the API: the minimum over ranks is the state
/// of the whole, as serving engines reduce it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_enums, reason = "serving engines match on exactly these five")]
#[repr(u8)]
pub enum KVPoll {
    /// It ended without success; the error says why. Final.
    Failed = 0,
    /// Peers are being found, connected and compared.
    Bootstrapping = 1,
    /// Everybody is known; no KV has come (or been given) yet.
    WaitingForInput = 2,
    /// KV is on its way.
    Transferring = 3,
    /// Every byte is in place. Final.
    Success = 4,
}

/// Whether the pages of a transfer belong to the caller again. Independent of how it ended, except
/// that `Success` implies `Safe`. The numbers are part of the API.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_enums, reason = "pages are lent, being returned, or returned")]
#[repr(u8)]
pub enum Release {
    /// The transfer runs; its pages are lent.
    Held = 0,
    /// It ended, but a posted read or write may still touch the pages.
    Draining = 1,
    /// Nothing will touch them any more.
    Safe = 2,
}

impl KVPoll {
    /// Whether the state is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Failed | Self::Success)
    }

    /// The state with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Failed,
            1 => Self::Bootstrapping,
            2 => Self::WaitingForInput,
            3 => Self::Transferring,
            4 => Self::Success,
            _ => return None,
        })
    }
}

impl Release {
    /// The release state with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Held,
            1 => Self::Draining,
            2 => Self::Safe,
            _ => return None,
        })
    }
}
