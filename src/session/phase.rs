//! The table of states; the same for both sides.
//!
//! ```text
//!  Bootstrapping --Known--> WaitingForInput --Started--> Transferring --Delivered--> Success
//!        |                        |                           |
//!        +--------Broken----------+----------Broken-----------+------> Failed
//! ```

use crate::poll::KVPoll::{self, Bootstrapping, Failed, Success, Transferring, WaitingForInput};

/// What moves a room from one state to the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Trigger {
    /// A fault, from whatever side.
    Broken,
    /// Every byte is in place, and nobody will touch the pages again.
    Delivered,
    /// Every party is known and ready.
    Known,
    /// The first input was given (sender) or has come (receiver).
    Started,
}

impl KVPoll {
    /// The state after `trigger`; `None` where it changes nothing.
    pub fn on(self, trigger: Trigger) -> Option<Self> {
        match (self, trigger) {
            (Bootstrapping, Trigger::Known) => Some(WaitingForInput),
            (WaitingForInput, Trigger::Started) => Some(Transferring),
            (Transferring, Trigger::Delivered) => Some(Success),
            (Bootstrapping | WaitingForInput | Transferring, Trigger::Broken) => Some(Failed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_as_in_the_table() {
        let states = [Failed, Bootstrapping, WaitingForInput, Transferring, Success];
        let moves = [
            (Bootstrapping, Trigger::Known, WaitingForInput),
            (WaitingForInput, Trigger::Started, Transferring),
            (Transferring, Trigger::Delivered, Success),
            (Bootstrapping, Trigger::Broken, Failed),
            (WaitingForInput, Trigger::Broken, Failed),
            (Transferring, Trigger::Broken, Failed),
        ];
        for state in states {
            for trigger in [Trigger::Broken, Trigger::Delivered, Trigger::Known, Trigger::Started] {
                let wanted = moves.iter().find(|m| (m.0, m.1) == (state, trigger)).map(|m| m.2);
                assert_eq!(state.on(trigger), wanted, "{state:?} on {trigger:?}");
            }
        }
    }
}
