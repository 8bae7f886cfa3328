//! What a lane's receiver tells its sender: how many writes are over, and which arrived damaged.
//!
//! As long as the head of a data frame, so that a lane reads heads of one size.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `KVFN` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | number of `damaged` used |
//! | 6 | 2 | 0, reserved |
//! | 8 | 8 | writes of this lane that are over, from the start |
//! | 16 | 48 | `damaged`: places, among those, of writes to be sent again; 0 if not used |
//! | 64 | 4 | 0, reserved |
//! | 68 | 4 | CRC-32C of bytes 0 to 67 |

use crate::checksum::crc32c;
use crate::wire::DataHeader;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Note {
    pub(super) over: u64,
    pub(super) damaged: Vec<u64>,
}

impl Note {
    pub(super) const BYTES: usize = DataHeader::BYTES;
    /// Damaged writes that one note can name.
    pub(super) const MAX_DAMAGED: usize = 6;

    /// Whether these bytes claim to be a note.
    pub(super) fn is_note(bytes: &[u8; Self::BYTES]) -> bool {
        bytes.starts_with(MAGIC)
    }

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let named = &self.damaged[..self.damaged.len().min(Self::MAX_DAMAGED)];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[8..16].copy_from_slice(&self.over.to_le_bytes());
        for (place, number) in bytes[16..64].chunks_exact_mut(8).zip(named) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[5] = u8::try_from(named.len()).unwrap_or(0);
        let sum = crc32c(&bytes[..68]);
        bytes[68..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` for anything that is not exactly a note.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [.., a, b, c, d] = *bytes;
        let is_sound = bytes.starts_with(MAGIC)
            && bytes[4] == VERSION
            && bytes[6..8] == [0; 2]
            && bytes[64..68] == [0; 4]
            && u32::from_le_bytes([a, b, c, d]) == crc32c(&bytes[..68]);
        let count = usize::from(bytes[5]);
        if !is_sound || count > Self::MAX_DAMAGED {
            return None;
        }
        let mut numbers = bytes[8..64].chunks_exact(8).map(|chunk| {
            let mut number = [0; 8];
            number.copy_from_slice(chunk);
            u64::from_le_bytes(number)
        });
        let over = numbers.next()?;
        let damaged = numbers.by_ref().take(count).collect();
        numbers.all(|unused| unused == 0).then_some(Self { over, damaged })
    }
}

const MAGIC: &[u8] = b"KVFN";
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back() {
        for damaged in [vec![], vec![4], vec![0, 1, 2, 3, 4, 5]] {
            let note = Note { over: u64::MAX, damaged };
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let bytes = Note { over: 7, damaged: vec![3] }.encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Note::decode(&damaged), None, "bit {bit}");
        }
    }
}
