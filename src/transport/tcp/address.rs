//! Addresses as this transport publishes them: structured, never a text to be taken apart.
//!
//! One byte tells the kind of host (4 and 6: an IP address of that version; 1: a name, its length in the
//! next byte), then the host, then the port in two bytes, little-endian.

use super::NAME;
use crate::address::{Host, HostPort};
use crate::transport::TransportError;
use bytes::{BufMut, Bytes, BytesMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) fn encode(address: &HostPort) -> Result<Bytes, TransportError> {
    let mut bytes = BytesMut::new();
    match address.host() {
        Host::Ip(IpAddr::V4(ip)) => {
            bytes.put_u8(4);
            bytes.put_slice(&ip.octets());
        }
        Host::Ip(IpAddr::V6(ip)) => {
            bytes.put_u8(6);
            bytes.put_slice(&ip.octets());
        }
        Host::Name(name) => {
            let len = u8::try_from(name.len()).map_err(|_| bad(format!("name of {} bytes", name.len())))?;
            bytes.put_slice(&[1, len]);
            bytes.put_slice(name.as_bytes());
        }
    }
    bytes.put_u16_le(address.port());
    Ok(bytes.freeze())
}

pub(super) fn decode(bytes: &[u8]) -> Result<HostPort, TransportError> {
    let cut = || bad(format!("{} bytes are not an address", bytes.len()));
    let (&kind, rest) = bytes.split_first().ok_or_else(cut)?;
    let (host, rest) = match kind {
        4 => {
            let (octets, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            (Ipv4Addr::from(*octets).to_string(), rest)
        }
        6 => {
            let (octets, rest) = rest.split_first_chunk::<16>().ok_or_else(cut)?;
            (Ipv6Addr::from(*octets).to_string(), rest)
        }
        1 => {
            let (&len, rest) = rest.split_first().ok_or_else(cut)?;
            let (name, rest) = rest.split_at_checked(usize::from(len)).ok_or_else(cut)?;
            let name = std::str::from_utf8(name).map_err(|_| bad("name is not UTF-8".into()))?;
            (name.to_owned(), rest)
        }
        other => return Err(bad(format!("kind of host {other} is unknown"))),
    };
    let port = u16::from_le_bytes(rest.try_into().map_err(|_| cut())?);
    if port == 0 {
        return Err(bad("port 0".into()));
    }
    HostPort::new(&host, port).map_err(|error| bad(error.to_string()))
}

fn bad(detail: String) -> TransportError {
    TransportError::Address { name: NAME, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for (host, port) in [("127.0.0.1", 1), ("fd00::1", 65_535), ("decode-3.cluster.example", 4000)] {
            let address = HostPort::new(host, port).unwrap();
            assert_eq!(decode(&encode(&address).unwrap()).unwrap(), address);
        }
    }

    #[test]
    fn cut_and_lengthened_addresses_are_refused() {
        for host in ["10.0.0.1", "fd00::1", "name"] {
            let bytes = encode(&HostPort::new(host, 80).unwrap()).unwrap();
            for len in 0..bytes.len() {
                assert!(decode(&bytes[..len]).is_err(), "{host} cut to {len}");
            }
            assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert!(decode(&[4, 1, 2, 3, 4, 0, 0]).is_err(), "port 0");
    }
}
