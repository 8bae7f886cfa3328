//! Network addresses as people write them, and what may be told to peers.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A host and a port, kept apart: nothing is ever glued to `host:port` and parsed again.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPort {
    host: Host,
    port: u16,
}

/// One end of the network: an address or a name.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "an address or a name")]
pub enum Host {
    /// An address of either family.
    Ip(IpAddr),
    /// A name to be resolved, in both families.
    #[non_exhaustive]
    Name(String),
}

/// The addresses that share their first bits, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// An address that cannot be used as written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// An IPv6 address without brackets where a port may follow.
    #[error("`{text}` is ambiguous: write an IPv6 address with a port as [address]:port")]
    Ambiguous {
        /// The text.
        text: String,
    },
    /// Not a host.
    #[error("`{text}` is not a host: {rule}")]
    Host {
        /// The text.
        text: String,
        /// What would be accepted.
        rule: &'static str,
    },
    /// No port was given.
    #[error("`{text}` has no port: write host:port")]
    MissingPort {
        /// The text.
        text: String,
    },
    /// Not a network.
    #[error("`{text}` is not a network: {rule}")]
    Network {
        /// The text.
        text: String,
        /// What would be accepted.
        rule: &'static str,
    },
    /// Not a port.
    #[error("`{text}` is not a port that can be used here")]
    Port {
        /// The text.
        text: String,
    },
    /// A name did not resolve.
    #[error("resolving {host} failed")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// Bound to every interface, with nothing said about which address peers shall use.
    #[error("bound to {bound}, which peers cannot connect to: give the address to advertise, or bind to one")]
    Unadvertised {
        /// The address bound to.
        bound: SocketAddr,
    },
    /// Not a URL that can be used here.
    #[error("`{text}` is not a usable URL: write http://host:port")]
    Url {
        /// The text.
        text: String,
    },
    /// A wildcard stands for no host.
    #[error("{advertise} stands for every interface of a host and cannot be advertised")]
    Wildcard {
        /// The address to be advertised.
        advertise: IpAddr,
    },
}

impl HostPort {
    /// A host written alone, an IPv6 address with or without brackets, and its port.
    ///
    /// # Errors
    /// `host` is neither an address nor a name.
    pub fn new(host: &str, port: u16) -> Result<Self, AddressError> {
        Ok(Self { host: host.parse()?, port })
    }

    /// What peers shall be told of a socket bound to `bound`: the host `advertise` if given, else the address
    /// bound to. A loopback address comes out only if the socket is bound to it or the caller asks for it.
    ///
    /// # Errors
    /// A wildcard is asked for or all there is, or `bound` has no port yet.
    ///
    /// # Examples
    /// ```
    /// use kvferry::HostPort;
    ///
    /// let everywhere = "0.0.0.0:4000".parse()?;
    /// let told = HostPort::advertised(everywhere, Some(&"192.0.2.10".parse()?))?;
    /// assert_eq!(told.to_string(), "192.0.2.10:4000");
    /// assert!(HostPort::advertised(everywhere, None).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advertised(bound: SocketAddr, advertise: Option<&Host>) -> Result<Self, AddressError> {
        let host = match advertise {
            Some(Host::Ip(ip)) if is_wildcard(*ip) => return Err(AddressError::Wildcard { advertise: *ip }),
            Some(host) => host.clone(),
            None if is_wildcard(bound.ip()) => return Err(AddressError::Unadvertised { bound }),
            None => Host::Ip(bound.ip()),
        };
        match bound.port() {
            0 => Err(AddressError::Port { text: "0".into() }),
            port => Ok(Self { host, port }),
        }
    }

    /// The host.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port; 0 asks the system to choose one when binding.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket addresses of both families; at least one. Blocks while a name is resolved.
    ///
    /// # Errors
    /// The name is not known.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, AddressError> {
        let name = match &self.host {
            Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name(name) => name,
        };
        let failed = |source| AddressError::Resolve { host: name.clone(), source };
        let found: Vec<_> = (name.as_str(), self.port).to_socket_addrs().map_err(failed)?.collect();
        match found.is_empty() {
            true => Err(failed(io::Error::from(io::ErrorKind::NotFound))),
            false => Ok(found),
        }
    }
}

impl Network {
    /// The network of `address` whose first `prefix` bits are fixed.
    ///
    /// # Errors
    /// The prefix is longer than the address, or `address` has bits set behind it.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, AddressError> {
        let refused = |rule| AddressError::Network { text: format!("{address}/{prefix}"), rule };
        if prefix > width(address) {
            return Err(refused("the prefix is longer than the address"));
        }
        match leading(address, prefix) == bits(address) {
            true => Ok(Self { address, prefix }),
            false => Err(refused("the address has bits set behind the prefix")),
        }
    }

    /// Whether the address lies inside. An IPv4 address written as IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        [address, address.to_canonical()].into_iter().any(|candidate| {
            candidate.is_ipv4() == self.address.is_ipv4()
                && leading(candidate, self.prefix) == bits(self.address)
        })
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((inner, rest)) => {
                let port =
                    rest.strip_prefix(':').ok_or_else(|| AddressError::MissingPort { text: text.into() })?;
                let ip = inner.parse().map(IpAddr::V6);
                (ip.map(Host::Ip).map_err(|_| not_a_host(inner, "brackets hold an IPv6 address"))?, port)
            }
            None => {
                let (host, port) =
                    text.rsplit_once(':').ok_or_else(|| AddressError::MissingPort { text: text.into() })?;
                if host.contains(':') {
                    return Err(AddressError::Ambiguous { text: text.into() });
                }
                (host.parse()?, port)
            }
        };
        // `u16::from_str` would take a sign.
        let digits = port.bytes().all(|byte| byte.is_ascii_digit()).then_some(port);
        let port = digits.and_then(|digits| digits.parse().ok());
        Ok(Self { host, port: port.ok_or_else(|| AddressError::Port { text: text.into() })? })
    }
}

impl FromStr for Host {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bracketed {
            let ip = inner.parse().map(IpAddr::V6);
            return ip.map(Self::Ip).map_err(|_| not_a_host(text, "brackets hold an IPv6 address"));
        }
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        if text.contains('%') {
            return Err(not_a_host(text, "addresses with a zone are not supported"));
        }
        if text.contains(':') {
            return Err(AddressError::Ambiguous { text: text.into() });
        }
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() > 253 || !name.split('.').all(label) {
            return Err(not_a_host(text, "a name has labels of letters, digits, `-` and `_`, joined by `.`"));
        }
        // Resolvers read `127.1` and `0x7f.1` as addresses, so such a name would not mean what it says.
        if name.rsplit('.').next().is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit()))
        {
            return Err(not_a_host(text, "the last label of a name starts with a letter"));
        }
        Ok(Self::Name(text.into()))
    }
}

impl FromStr for Network {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refused = |rule| AddressError::Network { text: text.into(), rule };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| refused("write address/bits"))?;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| refused("the prefix is a number of bits"))?,
            None => width(address),
        };
        Self::new(address, prefix)
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip()), port: address.port() }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn not_a_host(text: &str, rule: &'static str) -> AddressError {
    AddressError::Host { text: text.into(), rule }
}

fn is_wildcard(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The first `prefix` bits, the others 0.
fn leading(address: IpAddr, prefix: u8) -> u128 {
    let behind = u32::from(width(address).saturating_sub(prefix));
    let kept = bits(address).checked_shr(behind).unwrap_or(0);
    kept.checked_shl(behind).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        text.parse::<HostPort>().unwrap().to_string()
    }

    #[test]
    fn both_families_and_names_are_read_and_written_alike() {
        for text in ["127.0.0.1:0", "[::1]:8998", "prefill-0.pod_a.svc:65535", "localhost:1"] {
            assert_eq!(parsed(text), text);
        }
        assert_eq!(HostPort::new("::1", 8998).unwrap(), "[::1]:8998".parse().unwrap());
        assert_eq!(HostPort::new("[::1]", 8998).unwrap(), "[::1]:8998".parse().unwrap());
        assert_eq!(HostPort::new("127.0.0.1", 1).unwrap().to_string(), "127.0.0.1:1");
        assert_eq!(HostPort::new("name", 1).unwrap().to_string(), "name:1");
    }

    #[test]
    fn ambiguous_text_is_refused() {
        assert!(matches!("::1:8998".parse::<HostPort>(), Err(AddressError::Ambiguous { .. })));
        assert!(matches!("::1".parse::<HostPort>(), Err(AddressError::Ambiguous { .. })));
        assert!(matches!("[::1]".parse::<HostPort>(), Err(AddressError::MissingPort { .. })));
        assert!(matches!("name".parse::<HostPort>(), Err(AddressError::MissingPort { .. })));
        assert!(matches!(HostPort::new("a:1", 2), Err(AddressError::Ambiguous { .. })));
        for text in ["name:", "name:+1", "name:65536", "name:1x", "[::1]:"] {
            assert!(matches!(text.parse::<HostPort>(), Err(AddressError::Port { .. })), "{text}");
        }
        for text in [
            ":1",
            "a b:1",
            "a..b:1",
            "*:1",
            "user@name:1",
            "127.1:1",
            "0x7f.0x1:1",
            "1.2.3.4.5:1",
            "[name]:1",
        ] {
            assert!(matches!(text.parse::<HostPort>(), Err(AddressError::Host { .. })), "{text}");
        }
        assert!(matches!(HostPort::new("fe80::1%eth0", 1), Err(AddressError::Host { .. })));
    }

    #[test]
    fn a_wildcard_is_never_advertised() {
        for bound in ["0.0.0.0:7", "[::]:7", "[::ffff:0.0.0.0]:7"] {
            let bound: SocketAddr = bound.parse().unwrap();
            let error = HostPort::advertised(bound, None).unwrap_err();
            assert!(matches!(error, AddressError::Unadvertised { .. }), "{error}");
            let told = HostPort::advertised(bound, Some(&"192.0.2.10".parse().unwrap())).unwrap();
            assert_eq!(told.to_string(), "192.0.2.10:7");
        }
        for wildcard in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            let error =
                HostPort::advertised("127.0.0.1:7".parse().unwrap(), Some(&wildcard.parse().unwrap()));
            assert!(matches!(error, Err(AddressError::Wildcard { .. })), "{wildcard}");
        }
    }

    #[test]
    fn loopback_is_advertised_only_when_bound_to_or_asked_for() {
        let told = HostPort::advertised("127.0.0.1:7".parse().unwrap(), None).unwrap();
        assert_eq!(told.to_string(), "127.0.0.1:7");
        let told = HostPort::advertised("0.0.0.0:7".parse().unwrap(), Some(&"::1".parse().unwrap())).unwrap();
        assert_eq!(told.to_string(), "[::1]:7");
        assert!(HostPort::advertised("127.0.0.1:0".parse().unwrap(), None).is_err());
    }

    #[test]
    fn a_network_holds_exactly_its_addresses() {
        let network: Network = "127.0.0.0/30".parse().unwrap();
        assert!(network.contains("127.0.0.3".parse().unwrap()));
        assert!(network.contains("::ffff:127.0.0.3".parse().unwrap()));
        assert!(!network.contains("127.0.0.9".parse().unwrap()));
        assert!(!network.contains("::1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Network>().unwrap().contains("9.9.9.9".parse().unwrap()));
        assert!("::/0".parse::<Network>().unwrap().contains("2001:db8::1".parse().unwrap()));
        assert!("::1".parse::<Network>().unwrap().contains("::1".parse().unwrap()));
        for text in ["10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "name/8", "::/129"] {
            assert!(matches!(text.parse::<Network>(), Err(AddressError::Network { .. })), "{text}");
        }
    }
}
