//! Transports by name, for configuration files and command lines.

#[cfg(feature = "shm")]
use super::shm::{self, ShmConfig, ShmTransport};
#[cfg(feature = "tcp")]
use super::tcp::{self, TcpConfig, TcpTransport};
use super::{Transport, TransportError};

/// Every transport of this build that needs no more than a name, best first; those that cannot work here
/// are left out.
pub const AUTO: &str = "auto";

/// The environment variable that takes the place of what a program names, for
/// [`EngineBuilder::transports`](crate::EngineBuilder::transports).
pub const VARIABLE: &str = "KVFERRY_TRANSPORTS";

/// A list of transports that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedError {
    /// No transport of this name is built in.
    #[error("no transport {name:?} in this build, which has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A transport is named more than once.
    #[error("transport {0:?} is named twice")]
    Twice(String),
    /// A transport has no such option, or not with this value.
    #[error("transport {name}: option {option:?} is not known, or its value cannot be; known are {known}")]
    Option {
        /// The transport.
        name: String,
        /// The option with its value.
        option: String,
        /// The options there are.
        known: &'static str,
    },
    /// A transport did not start.
    #[error(transparent)]
    Open(#[from] TransportError),
    /// `auto` found none that works.
    #[error("no transport of this build works here: {0}")]
    None(String),
}

type Opened = Result<Box<dyn Transport>, NamedError>;

/// A transport that can be named.
struct Named {
    name: &'static str,
    open: fn(&[(&str, &str)]) -> Opened,
}

/// Best first.
const NAMED: &[Named] = &[
    #[cfg(feature = "shm")]
    Named { name: shm::NAME, open: open_shm },
    #[cfg(feature = "tcp")]
    Named { name: tcp::NAME, open: open_tcp },
];

/// Opens transports by a list of their names, in order of preference: `shm,tcp`, or [`AUTO`]. A name may be
/// followed by options: `shm:copiers=2,tcp:bind=10.0.0.5:7000;lanes=4`.
///
/// | transport | options |
/// |---|---|
/// | `shm` | `copiers`, `name` |
/// | `tcp` | `bind` (address and port), `advertise` (a host), `lanes` |
///
/// # Errors
/// A name or option that is not known, one named twice, or a transport that cannot be opened.
pub fn open(list: &str) -> Result<Vec<Box<dyn Transport>>, NamedError> {
    if list.trim() == AUTO {
        return open_all();
    }
    let mut opened: Vec<Box<dyn Transport>> = Vec::new();
    for item in list.split(',').map(str::trim) {
        let (name, options) = item.split_once(':').unwrap_or((item, ""));
        let found = NAMED.iter().find(|known| known.name == name);
        let known = || NAMED.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
        let named = found.ok_or_else(|| NamedError::Unknown { name: name.to_owned(), known: known() })?;
        if opened.iter().any(|other| other.name() == name) {
            return Err(NamedError::Twice(name.to_owned()));
        }
        let options = options.split(';').filter(|option| !option.is_empty());
        let options: Vec<_> = options.map(|option| option.split_once('=').unwrap_or((option, ""))).collect();
        opened.push((named.open)(&options)?);
    }
    Ok(opened)
}

fn open_all() -> Result<Vec<Box<dyn Transport>>, NamedError> {
    let (mut opened, mut failed) = (Vec::new(), Vec::new());
    for named in NAMED {
        match (named.open)(&[]) {
            Ok(transport) => opened.push(transport),
            Err(error) => {
                tracing::warn!(transport = named.name, %error, "left out");
                failed.push(error.to_string());
            }
        }
    }
    if opened.is_empty() { Err(NamedError::None(failed.join("; "))) } else { Ok(opened) }
}

#[cfg(feature = "shm")]
fn open_shm(options: &[(&str, &str)]) -> Opened {
    let set = |config: ShmConfig, option: &str, value: &str| match option {
        "copiers" => Some(config.copiers(value.parse().ok()?)),
        "name" => Some(config.name(value)),
        _ => None,
    };
    let config = configured(shm::NAME, "copiers, name", options, ShmConfig::new(), set)?;
    Ok(Box::new(ShmTransport::new(config)?))
}

#[cfg(feature = "tcp")]
fn open_tcp(options: &[(&str, &str)]) -> Opened {
    let set = |config: TcpConfig, option: &str, value: &str| match option {
        "bind" => Some(config.bind(value.parse().ok()?)),
        "advertise" => Some(config.advertise(value.parse().ok()?)),
        "lanes" => Some(config.lanes(value.parse().ok()?)),
        _ => None,
    };
    let config = configured(tcp::NAME, "bind, advertise, lanes", options, TcpConfig::new(), set)?;
    Ok(Box::new(TcpTransport::new(config)?))
}

/// A configuration with these options set, by a function that knows the `known` ones and their values.
#[cfg(any(feature = "shm", feature = "tcp"))]
fn configured<C>(
    name: &str,
    known: &'static str,
    options: &[(&str, &str)],
    start: C,
    set: impl Fn(C, &str, &str) -> Option<C>,
) -> Result<C, NamedError> {
    options.iter().try_fold(start, |config, (option, value)| {
        let bad = || NamedError::Option { name: name.to_owned(), option: format!("{option}={value}"), known };
        set(config, option, value).ok_or_else(bad)
    })
}

#[cfg(all(test, feature = "shm", feature = "tcp"))]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        open(list).expect("transports that open").iter().map(|transport| transport.name()).collect()
    }

    #[test]
    fn lists_are_opened_in_their_order() {
        assert_eq!(names("shm,tcp"), ["shm", "tcp"]);
        assert_eq!(names(" tcp:bind=[::1]:0;lanes=1 , shm:copiers=2;name=kvferry-of-a-test"), ["tcp", "shm"]);
        assert_eq!(names("tcp:bind=0.0.0.0:0;advertise=localhost"), ["tcp"]);
        assert_eq!(names(AUTO), ["shm", "tcp"]);
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        for (list, words) in [
            ("", "no transport \"\" in this build, which has shm, tcp"),
            ("tcp,rdma", "no transport \"rdma\""),
            ("auto,tcp", "no transport \"auto\""),
            ("tcp,shm,tcp", "transport \"tcp\" is named twice"),
            ("tcp:lanes=many", "\"lanes=many\" is not known, or its value cannot be"),
            ("tcp:lane=2", "known are bind, advertise, lanes"),
            ("shm:window=7", "known are copiers, name"),
            ("tcp:bind=0.0.0.0:0", "tcp"),
        ] {
            let error = open(list).map(|opened| opened.len()).unwrap_err().to_string();
            assert!(error.contains(words), "{list:?}: {error}");
        }
    }
}
