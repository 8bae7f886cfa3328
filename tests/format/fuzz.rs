//! Random and mutated bytes. `KVF_FUZZ` is the number of tries, 200,000 if it is not set.

use super::{golden, is_data, sealed};
use bytes::Bytes;
use kvferry::wire::{DataHeader, Frame, HEADER_BYTES, Kind, crc32c};
use std::env;

/// Decodes `input` as it is, and as the body of the kind its sixth byte names; what decodes must come
/// back from its encoding. Returns how many of the two were frames.
fn fuzz_frame(input: &[u8]) -> usize {
    let raw = Bytes::copy_from_slice(input);
    let kind = input.get(5).copied().unwrap_or_default();
    let body = input.get(HEADER_BYTES..).unwrap_or_default();
    let frames = [raw, sealed(kind, body)].map(|bytes| {
        let Ok(frame) = Frame::decode(&bytes) else { return 0 };
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame), "from {bytes:x?}");
        1
    });
    frames.iter().sum()
}

/// The same for data headers.
fn fuzz_data(input: &[u8]) -> usize {
    let mut raw = [0; DataHeader::BYTES];
    for (place, byte) in raw.iter_mut().zip(input) {
        *place = *byte;
    }
    let mut right = raw;
    right[..6].copy_from_slice(b"KVFY\x01\x40");
    right[8..12].copy_from_slice(&[56, 0, 0, 0]);
    let checksum = crc32c(&[&right[..12], &right[16..]].concat());
    right[12..16].copy_from_slice(&checksum.to_le_bytes());
    let headers = [raw, right].map(|bytes| {
        let Ok(header) = DataHeader::decode(&bytes) else { return 0 };
        assert_eq!(header.encode(), bytes);
        1
    });
    headers.iter().sum()
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(0x5eed);
    let kinds: Vec<u8> = (0..=u8::MAX).filter(|number| Kind::from_number(*number).is_some()).collect();
    for _ in 0..tries() / 2 {
        let length = random.below(120);
        let mut input: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        fuzz_data(&input);
        if let Some(kind) = input.get_mut(5) {
            *kind = kinds[random.below(kinds.len())];
        }
        fuzz_frame(&input);
    }
}

#[test]
fn mutated_frames_never_panic() {
    let mut random = Random(0xfeed);
    let (data, control): (Vec<_>, Vec<_>) =
        golden::all().into_iter().map(|(_, bytes)| bytes).partition(|bytes| is_data(bytes));
    let mut frames = 0;
    for _ in 0..tries() / 2 {
        let other = control[random.below(control.len())].clone();
        frames += fuzz_frame(&mutated(&control[random.below(control.len())], &other, &mut random));
        frames += fuzz_data(&mutated(&data[random.below(data.len())], &other, &mut random));
    }
    assert!(frames > tries() / 20, "only {frames} inputs were frames: the mutations reach too little");
}

/// `bytes` with up to four changes: bits, bytes, numbers at their ends, cuts, repeats, parts of `other`.
fn mutated(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(7) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.byte()),
            2 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
            3 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0),
            4 => bytes.truncate(at),
            5 => {
                let end = at + random.below(bytes.len() - at + 1);
                bytes.extend_from_within(at..end);
            }
            _ => {
                let start = random.below(other.len());
                let place = at..at + (other.len() - start).min(bytes.len() - at).min(8);
                let part = other[start..start + place.len()].to_vec();
                bytes.splice(place, part);
            }
        }
    }
    bytes
}

fn tries() -> usize {
    env::var("KVF_FUZZ").map_or(200_000, |tries| tries.parse().expect("KVF_FUZZ is a number"))
}

/// Numbers by splitmix64, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        let [low, high, ..] = self.next().to_le_bytes();
        usize::from(u16::from_le_bytes([low, high])) % limit
    }

    fn byte(&mut self) -> u8 {
        let [low, ..] = self.next().to_le_bytes();
        low
    }
}
