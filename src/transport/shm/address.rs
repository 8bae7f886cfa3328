//! Addresses as this transport publishes them: the host by its boot, and the name of a socket.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 16 | the boot of the host, as the kernel names it |
//! | 17 | 1 to 64 | a name in the abstract space of sockets, in UTF-8; drawn at random unless it is given |
//!
//! A name in that space belongs to a network namespace and ends with its last descriptor: no file is left
//! behind, and it is reached from every container that shares the namespace, such as those of a pod. From
//! elsewhere nobody answers to it, at once.

use super::{NAME, sockets};
use crate::transport::TransportError;
use bytes::Bytes;
use std::fs;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Address {
    pub(super) boot: [u8; 16],
    name: String,
}

impl Address {
    /// One on this host.
    pub(super) fn new(name: Option<&str>) -> Result<Self, TransportError> {
        let boot = boot()?;
        let name = match name {
            Some(name) => checked(name)?.to_owned(),
            None => format!("{:032x}", u128::from_le_bytes(sockets::random()?)),
        };
        Ok(Self { boot, name })
    }

    pub(super) fn encode(&self) -> Bytes {
        [&[VERSION][..], &self.boot, self.name.as_bytes()].concat().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, TransportError> {
        match bytes {
            [VERSION, rest @ ..] => {
                let cut = || bad(format!("{} bytes are not an address", bytes.len()));
                let (boot, name) = rest.split_first_chunk().ok_or_else(cut)?;
                let name = std::str::from_utf8(name).map_err(|_| bad("name is not UTF-8".into()))?;
                Ok(Self { boot: *boot, name: checked(name)?.to_owned() })
            }
            [version, ..] => Err(bad(format!("version {version} is unknown"))),
            [] => Err(bad("no bytes".into())),
        }
    }

    /// The socket's name, which tells other programs what it is for.
    pub(super) fn socket_name(&self) -> Vec<u8> {
        format!("kvferry-{}", self.name).into_bytes()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on the host booted as {:08x}", self.name, u128::from_be_bytes(self.boot) >> 96)
    }
}

fn checked(name: &str) -> Result<&str, TransportError> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(name);
    }
    Err(bad(format!("a name of {} bytes, not from 1 to {MAX_NAME}", name.len())))
}

fn bad(detail: String) -> TransportError {
    TransportError::Address { name: NAME, detail }
}

/// The boot of this host; another one after each start of it.
pub(super) fn boot() -> Result<[u8; 16], TransportError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path).map_err(|source| TransportError::Io {
        name: NAME,
        op: "reading the boot's name",
        source,
    })?;
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16)
        .map_err(|_| TransportError::Address { name: NAME, detail: format!("{path} holds no number") })?;
    Ok(number.to_be_bytes())
}

const VERSION: u8 = 1;
const MAX_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_differ() {
        let (one, other) = (Address::new(None).unwrap(), Address::new(None).unwrap());
        assert_eq!(Address::decode(&one.encode()).unwrap(), one);
        assert!(one.boot == other.boot && one.name != other.name);
        assert_eq!(Address::new(Some("decode 3")).unwrap().name, "decode 3");
    }

    #[test]
    fn cut_lengthened_and_unknown_ones_are_refused() {
        let bytes = Address::new(Some("n")).unwrap().encode();
        for len in 0..bytes.len() {
            assert!(Address::decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        assert!(Address::decode(&[&bytes[..], &[b'x'; MAX_NAME]].concat()).is_err());
        assert!(Address::decode(&[&bytes[..], &[0xff]].concat()).is_err());
        assert!(Address::decode(&[&[2], &bytes[1..]].concat()).is_err());
        assert!(Address::new(Some("")).is_err());
    }
}
