//! Which rank owes which rank what.
//!
//! Everything follows from what the ranks of both sides hold. Sources that hold the same are *replicas*
//! of each other; a destination is owed what it and a replica set have in common, by one replica of the
//! set. Which one turns with the room's number, and both sides compute the same:
//!
//! ```text
//!  replicas s0 s1 s2 s3, destinations d0 d1        room 0: s0 -> d0, s2 -> d1; s1, s3 owe nothing
//!                                                  room 2: s1 -> d0, s3 -> d1; s0, s2 owe nothing
//! ```

use super::{Holding, Share};
use crate::ids::{Rank, Room, Side};
use std::collections::BTreeMap;

/// Who owes what to whom, between the ranks of one data parallel rank of a prefill group and of one of a
/// decode group. Both sides make the same map of the same holdings.
#[derive(Clone, Debug)]
pub struct RankMap {
    sources: BTreeMap<Rank, Place>,
    destinations: BTreeMap<Rank, Holding>,
    sets: Vec<Replicas>,
}

/// Ranks that cannot feed each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A side without ranks.
    #[error("there are no ranks on the {0} side")]
    Empty(Side),
    /// A holding that cannot be.
    #[error("rank {rank} holds impossible {what}")]
    Impossible {
        /// The rank.
        rank: Rank,
        /// What of its holding.
        what: &'static str,
    },
    /// Heads that cannot be compared.
    #[error("prefill rank {source_rank} and decode rank {destination} count heads differently")]
    Heads {
        /// A prefill rank.
        source_rank: Rank,
        /// A decode rank.
        destination: Rank,
    },
    /// Two sources would both owe a part.
    #[error("prefill ranks {0} and {1} hold a part in common, but not the same")]
    Overlap(Rank, Rank),
    /// Layers that no share can name, because others lie between them.
    #[error("the layers that prefill rank {source_rank} owes decode rank {destination} are not contiguous")]
    Scattered {
        /// The prefill rank.
        source_rank: Rank,
        /// The decode rank.
        destination: Rank,
    },
    /// A part that no source holds.
    #[error("decode rank {0} holds heads, layers or tokens that no prefill rank has")]
    Missing(Rank),
}

/// Where a source is found.
#[derive(Clone, Copy, Debug)]
struct Place {
    set: usize,
    /// Its number among the replicas.
    replica: u64,
    /// Its number among all sources.
    number: u64,
}

/// Sources that hold the same.
#[derive(Clone, Debug)]
struct Replicas {
    holding: Holding,
    members: Vec<Rank>,
    /// Destinations that have something in common with them, with that.
    users: BTreeMap<Rank, (u64, Share)>,
}

impl RankMap {
    /// The map between these ranks.
    ///
    /// # Errors
    /// Some destination cannot be fed, or what it is owed is not clear.
    pub fn new(sources: &[(Rank, Holding)], destinations: &[(Rank, Holding)]) -> Result<Self, RanksError> {
        for (side, ranks) in [(Side::Prefill, sources), (Side::Decode, destinations)] {
            if ranks.is_empty() {
                return Err(RanksError::Empty(side));
            }
            let impossible = ranks.iter().find_map(|(rank, holding)| Some((*rank, holding.check().err()?)));
            if let Some((rank, what)) = impossible {
                return Err(RanksError::Impossible { rank, what });
            }
        }
        let sources: BTreeMap<_, _> = sources.iter().cloned().collect();
        let destinations: BTreeMap<_, _> = destinations.iter().cloned().collect();
        let mut numbers: BTreeMap<&Holding, usize> = BTreeMap::new();
        let (mut sets, mut places): (Vec<Replicas>, _) = (Vec::new(), BTreeMap::new());
        for (number, (&rank, holding)) in (0..).zip(&sources) {
            let set = *numbers.entry(holding).or_insert(sets.len());
            if set == sets.len() {
                let holding = holding.clone();
                sets.push(Replicas { holding, members: Vec::new(), users: BTreeMap::new() });
            }
            places.insert(rank, Place { set, replica: count(&sets[set].members), number });
            sets[set].members.push(rank);
        }
        check_apart(&sets)?;
        for (&rank, holding) in &destinations {
            check_fed(&sets, rank, holding)?;
            for set in &mut sets {
                set.add_user(rank, holding)?;
            }
        }
        Ok(Self { sources: places, destinations, sets })
    }

    /// What `source` owes `destination` in a room, if anything.
    pub fn owes(&self, room: Room, source: Rank, destination: Rank) -> Option<Share> {
        let place = self.sources.get(&source)?;
        let set = &self.sets[place.set];
        let (user, share) = set.users.get(&destination)?;
        (set.chosen(room, *user) == place.replica).then(|| share.clone())
    }

    /// All sources that a destination joins in a room, and what each owes it. Who owes nothing to anybody
    /// is joined by one destination all the same, so that it hears of the room; and who is owed nothing
    /// joins one source.
    pub fn sources(&self, room: Room, destination: Rank) -> Vec<(Rank, Option<Share>)> {
        let joined = |source: &Rank| self.is_joined(room, *source, destination);
        let all = self.sources.keys().copied().filter(joined);
        all.map(|source| (source, self.owes(room, source, destination))).collect()
    }

    /// All destinations that join a source in a room.
    pub fn destinations(&self, room: Room, source: Rank) -> Vec<Rank> {
        let all = self.destinations.keys().copied();
        all.filter(|&destination| self.is_joined(room, source, destination)).collect()
    }

    fn is_joined(&self, room: Room, source: Rank, destination: Rank) -> bool {
        let Some(place) = self.sources.get(&source) else { return false };
        if self.owes(room, source, destination).is_some() {
            return true;
        }
        let set = &self.sets[place.set];
        let (replica, members) = (place.replica, count(&set.members));
        let users = count(&set.users);
        let ranks = count(&self.destinations);
        let number = count(self.destinations.range(..destination));
        let is_idle = !(0..users).any(|user| set.chosen(room, user) == replica);
        let is_kept = match set.users.get(&destination) {
            Some((user, _)) => *user == replica * users / members,
            None => users == 0 && number == place.number * ranks / count(&self.sources),
        };
        let is_owed = self.sets.iter().any(|set| set.users.contains_key(&destination));
        let is_company = place.number == number * count(&self.sources) / ranks;
        (is_idle && is_kept) || (!is_owed && is_company)
    }
}

impl Replicas {
    /// Which replica serves this user: in as many rooms as there are replicas, each serves equally often,
    /// and of those next to the user's own number.
    fn chosen(&self, room: Room, user: u64) -> u64 {
        let members = count(&self.members);
        (user * members + room.0 % members) / count(&self.users)
    }

    fn add_user(&mut self, rank: Rank, holding: &Holding) -> Result<(), RanksError> {
        let source_rank = self.members[0];
        if self.holding.meets(holding) {
            let share = self.holding.share(holding);
            let share = share.ok_or(RanksError::Scattered { source_rank, destination: rank })?;
            self.users.insert(rank, (count(&self.users), share));
        }
        Ok(())
    }
}

/// Different sets hold nothing in common: each part of a request is owed once.
fn check_apart(sets: &[Replicas]) -> Result<(), RanksError> {
    for (at, set) in sets.iter().enumerate() {
        if let Some(other) = sets[..at].iter().find(|other| other.holding.meets(&set.holding)) {
            return Err(RanksError::Overlap(other.members[0], set.members[0]));
        }
    }
    Ok(())
}

/// As the sets hold nothing in common, a destination is fed if what they have in common with it is as
/// much as it holds.
fn check_fed(sets: &[Replicas], rank: Rank, holding: &Holding) -> Result<(), RanksError> {
    let total = |holding: &Holding| holding.heads.map(|heads| heads.total);
    let differs = |set: &&Replicas| {
        total(&set.holding) != total(holding) && set.holding.layers_in_common(holding).next().is_some()
    };
    if let Some(set) = sets.iter().find(differs) {
        return Err(RanksError::Heads { source_rank: set.members[0], destination: rank });
    }
    let period = sets.iter().try_fold(1, |period: u128, set| {
        let other = set.holding.tokens.common_period(holding.tokens);
        (period / gcd(period, other)).checked_mul(other)
    });
    let missing = RanksError::Missing(rank);
    let Some(period) = period.filter(|&period| period < 1 << 80) else { return Err(missing) };
    let fed: u128 = sets.iter().map(|set| set.holding.volume(holding, period)).sum();
    if fed == holding.volume(holding, period) { Ok(()) } else { Err(missing) }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

fn count(things: impl IntoIterator) -> u64 {
    u64::try_from(things.into_iter().count()).unwrap_or(u64::MAX)
}
