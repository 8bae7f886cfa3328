//! Making an engine.

use super::changes::Feed;
use super::core::Core;
use super::inbox::Inbox;
use super::live::Live;
use super::shared::Shared;
use super::stats::Counters;
use super::thread::Driver;
use super::usage::BuildError;
use super::{Engine, Inner, Place};
use crate::bootstrap::Directory;
use crate::config::{Config, ConfigError};
use crate::home::Home;
use crate::ids::{Instance, Party, Side};
use crate::layout::TokenShard;
use crate::transport::{Transport, registry};
use crate::wire::MAX_NAME;
use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Makes an [`Engine`].
#[derive(Debug)]
pub struct EngineBuilder {
    place: Place,
    model: String,
    any_model: bool,
    tokens: TokenShard,
    config: Config,
    directory: Option<Arc<dyn Directory>>,
    transports: Vec<Box<dyn Transport>>,
    named: Option<String>,
    is_manual: bool,
    is_strict: bool,
}

impl EngineBuilder {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            model: String::new(),
            any_model: false,
            tokens: TokenShard::WHOLE,
            config: Config::default(),
            directory: None,
            transports: Vec::new(),
            named: None,
            is_manual: false,
            is_strict: false,
        }
    }

    /// The model served; peers that name another are refused, unless [`any_model`](Self::any_model) is
    /// called.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Works with peers whatever model they name, if they do the same; pools are compared all the same.
    #[must_use]
    pub fn any_model(mut self) -> Self {
        self.any_model = true;
        self
    }

    /// Which tokens of each request this rank holds, where they are dealt out to the ranks of its group
    /// (context parallel decode, pages sharded over ranks). Its page lists count these only.
    #[must_use]
    pub fn tokens(mut self, tokens: TokenShard) -> Self {
        self.tokens = tokens;
        self
    }

    /// Deadlines and limits.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Where peers are found, and where this engine is published once it has a layout.
    #[must_use]
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Adds a transport, in order of preference: a peer is reached over the first one that both sides
    /// have and that works.
    #[must_use]
    pub fn transport(self, transport: impl Transport + 'static) -> Self {
        self.boxed_transport(Box::new(transport))
    }

    /// Adds a transport chosen at run time.
    #[must_use]
    pub fn boxed_transport(mut self, transport: Box<dyn Transport>) -> Self {
        self.transports.push(transport);
        self
    }

    /// Adds transports by a list of their names, such as `shm,tcp` or `auto`: see [`registry::open`]. They are
    /// opened by [`build`](Self::build). The environment variable `KVFERRY_TRANSPORTS`, if it is set, takes
    /// the place of the list.
    #[must_use]
    pub fn transports(mut self, list: impl Into<String>) -> Self {
        self.named = Some(list.into());
        self
    }

    /// Reaches peers over the first transport or not at all: a peer that has no address of it, or with
    /// which it does not work, fails the rooms that need it.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// The caller drives the engine: no thread is started, see [`Engine::progress`].
    #[must_use]
    pub fn manual_progress(mut self) -> Self {
        self.is_manual = true;
        self
    }

    /// Makes the engine and, unless the caller drives it, starts its progress thread.
    ///
    /// # Errors
    /// The configuration cannot work, there is no transport or one cannot be opened, or the system refuses a
    /// descriptor or thread.
    pub fn build(self) -> Result<Engine, BuildError> {
        let Self { place, model, any_model, tokens, config, directory, is_manual, is_strict, .. } = self;
        config.check()?;
        let mut transports = self.transports;
        if let Some(list) = self.named {
            transports.extend(registry::open(&std::env::var(registry::VARIABLE).unwrap_or(list))?);
        }
        if transports.is_empty() {
            return Err(BuildError::NoTransport);
        }
        for (what, name) in [("the group's name", &place.group), ("the model's name", &model)] {
            if name.len() > MAX_NAME {
                return Err(BuildError::NameTooLong { what, bytes: name.len(), limit: MAX_NAME });
            }
        }
        let largest = transports.iter().map(|transport| transport.caps().max_write).min();
        if let Some(largest) = largest.filter(|largest| config.limits.write_bytes > *largest) {
            let (field, value) = ("limits.write_bytes", config.limits.write_bytes);
            tracing::error!(largest, "writes are larger than a transport takes");
            return Err(ConfigError { field, value, rule: "at most what every transport takes" }.into());
        }
        if !place.sizes.holds(place.rank) {
            return Err(BuildError::Rank { rank: place.rank, sizes: place.sizes });
        }
        if !tokens.is_possible() {
            return Err(BuildError::Tokens(tokens));
        }
        let io = |what| move |source: io::Error| BuildError::Io { what, source };
        let instance = random_instance().map_err(io("getrandom"))?;
        let party = Party { side: Side::Prefill, rank: place.rank, instance };
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(transports, party, &config)),
            place,
            instance,
            model,
            any_model,
            config,
            directory,
            inbox: Arc::new(Inbox::new().map_err(io("eventfd"))?),
            feed: Feed::new().map_err(io("eventfd"))?,
            tokens,
            announced: RwLock::new(None),
            live: Live::default(),
            generations: AtomicU64::new(1),
            next_region: AtomicU32::new(0),
            counters: Counters::default(),
            close_limit: Mutex::new(Duration::ZERO),
            is_manual,
            is_strict,
            home: Home::here(),
        });
        if let Some(directory) = &shared.directory {
            let watcher = Arc::downgrade(&shared);
            directory.watch(Arc::new(move || changed(&watcher)));
        }
        let driver = Driver::start(&shared).map_err(io("starting the progress thread"))?;
        Ok(Engine { inner: Arc::new(Inner { shared, driver: Arc::new(driver) }) })
    }
}

fn changed(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade() {
        shared.inbox.note_directory();
    }
}

fn random_instance() -> io::Result<Instance> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(Instance(u128::from_le_bytes(bytes)))
}
