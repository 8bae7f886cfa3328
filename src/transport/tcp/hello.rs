//! The first bytes of each connection, which tell what link it belongs to and as what.
//!
//! The connecting side opens all connections of a link and greets on each; once it has them all, the
//! accepting side answers on the control connection.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `KVFT` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | role: 0 control, 1 lane, 2 accepted |
//! | 6 | 1 | lane, 0 for other roles |
//! | 7 | 1 | lanes of the link |
//! | 8 | 16 | the link's number, drawn at random by the connecting side |
//! | 24 | 4 | 0, reserved |
//! | 28 | 4 | CRC-32C of bytes 0 to 27 |

use super::config::MAX_LANES;
use crate::checksum::crc32c;

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Greeting {
    pub(super) role: Role,
    pub(super) lanes: u8,
    pub(super) nonce: u128,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Accepted,
    Control,
    Lane(u8),
}

/// Bytes that are no greeting.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum GreetingError {
    #[error("checksum is {found:08x}, should be {wanted:08x}")]
    Checksum { found: u32, wanted: u32 },
    #[error("lane {lane} of {lanes}")]
    Lanes { lane: u8, lanes: u8 },
    #[error("no greeting of a peer of ours")]
    Magic,
    #[error("bytes that are 0 in this version are not")]
    Reserved,
    #[error("role {0} is unknown")]
    Role(u8),
    #[error("transport version {0}, this side speaks {VERSION}")]
    Version(u8),
}

impl Greeting {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let (role, lane) = match self.role {
            Role::Control => (0, 0),
            Role::Lane(lane) => (1, lane),
            Role::Accepted => (2, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, role, lane, self.lanes]);
        bytes[8..24].copy_from_slice(&self.nonce.to_le_bytes());
        let sum = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, GreetingError> {
        let Some((&[version, role, lane, lanes], _)) =
            bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk())
        else {
            return Err(GreetingError::Magic);
        };
        if version != VERSION {
            return Err(GreetingError::Version(version));
        }
        let mut number = [0; 16];
        number.copy_from_slice(&bytes[8..24]);
        let [.., a, b, c, d] = *bytes;
        let (found, wanted) = (u32::from_le_bytes([a, b, c, d]), crc32c(&bytes[..28]));
        if found != wanted {
            return Err(GreetingError::Checksum { found, wanted });
        }
        let role = match role {
            0 => Role::Control,
            1 => Role::Lane(lane),
            2 => Role::Accepted,
            other => return Err(GreetingError::Role(other)),
        };
        if !(1..=MAX_LANES).contains(&lanes) || lane >= lanes {
            return Err(GreetingError::Lanes { lane, lanes });
        }
        if bytes[24..28] != [0; 4] || (lane != 0 && !matches!(role, Role::Lane(_))) {
            return Err(GreetingError::Reserved);
        }
        Ok(Self { role, lanes, nonce: u128::from_le_bytes(number) })
    }
}

const MAGIC: &[u8] = b"KVFT";
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back() {
        for role in [Role::Control, Role::Lane(0), Role::Lane(3), Role::Accepted] {
            let greeting = Greeting { role, lanes: 4, nonce: 0x0123_4567_89ab_cdef_0011_2233_4455_6677 };
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let bytes = Greeting { role: Role::Lane(1), lanes: 2, nonce: 99 }.encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Greeting::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_greeting_has_one_encoding() {
        for (at, value) in [(24, 1), (27, 0x80), (6, 1)] {
            let mut bytes = Greeting { role: Role::Control, lanes: 2, nonce: 1 }.encode();
            bytes[at] = value;
            let sum = crc32c(&bytes[..28]);
            bytes[28..].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Greeting::decode(&bytes), Err(GreetingError::Reserved), "byte {at}");
        }
    }

    #[test]
    fn lanes_outside_the_limits_are_refused() {
        for (lane, lanes) in [(0, 0), (2, 2), (0, MAX_LANES + 1), (255, 255)] {
            let bytes = Greeting { role: Role::Lane(lane), lanes, nonce: 1 }.encode();
            assert_eq!(Greeting::decode(&bytes), Err(GreetingError::Lanes { lane, lanes }));
        }
    }
}
