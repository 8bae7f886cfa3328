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
//!
//! Replica sets may have layers in common if they hold the same heads and tokens of them, as where every
//! pipeline stage has the layers of a draft model. Such layers come along with others that the set owes;
//! of several such sets one owes them, in turn.

use super::{Holding, Layers, Share};
use crate::ids::{Rank, Room, Side};
use std::collections::{BTreeMap, BTreeSet};

/// Who owes what to whom, between the ranks of one data parallel rank of a prefill group and of one of a
/// decode group. Both sides make the same map of the same holdings.
#[derive(Clone, Debug)]
pub struct RankMap {
    sources: BTreeMap<Rank, Place>,
    destinations: BTreeMap<Rank, Fed>,
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
    /// Destinations that they owe something, in some room at least, and their numbers among them.
    users: BTreeMap<Rank, u64>,
}

/// A destination, and how its layers are owed.
#[derive(Clone, Debug)]
struct Fed {
    holding: Holding,
    portions: Vec<Portion>,
}

/// Layers that one of these sets owes.
#[derive(Clone, Debug)]
struct Portion {
    layers: Layers,
    sets: Vec<usize>,
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
        let mut fed = BTreeMap::new();
        for (rank, holding) in destinations {
            let portions = portions(&sets, &holding);
            check_fed(&sets, rank, &holding, &portions)?;
            for set in portions.iter().flat_map(|portion| &portion.sets) {
                let number = count(&sets[*set].users);
                sets[*set].users.entry(rank).or_insert(number);
            }
            fed.insert(rank, Fed { holding, portions });
        }
        Ok(Self { sources: places, destinations: fed, sets })
    }

    /// What `source` owes `destination` in a room, if anything.
    pub fn owes(&self, room: Room, source: Rank, destination: Rank) -> Option<Share> {
        let (place, fed) = (self.sources.get(&source)?, self.destinations.get(&destination)?);
        let portions = self.portions_owed(room, place, destination);
        let layers = portions.flat_map(|portion| portion.layers.runs()).collect();
        self.sets[place.set].holding.share(&fed.holding, layers)
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
        let (Some(place), Some(fed)) = (self.sources.get(&source), self.destinations.get(&destination))
        else {
            return false;
        };
        let owes = |user: Rank| self.portions_owed(room, place, user).next().is_some();
        if owes(destination) {
            return true;
        }
        let set = &self.sets[place.set];
        let (replica, members) = (place.replica, count(&set.members));
        let users = count(&set.users);
        let ranks = count(&self.destinations);
        let number = count(self.destinations.range(..destination));
        let is_kept = match set.users.get(&destination) {
            Some(user) => *user == replica * users / members,
            None => users == 0 && number == place.number * ranks / count(&self.sources),
        };
        let is_company = place.number == number * count(&self.sources) / ranks;
        (is_kept && !set.users.keys().any(|user| owes(*user))) || (fed.portions.is_empty() && is_company)
    }

    /// What a source owes a destination in a room.
    fn portions_owed(&self, room: Room, place: &Place, destination: Rank) -> impl Iterator<Item = &Portion> {
        let set = &self.sets[place.set];
        let user = set.users.get(&destination);
        let serves = user.is_some_and(|user| set.chosen(room, *user) == place.replica);
        let portions = self.destinations.get(&destination).map_or(&[][..], |fed| &fed.portions);
        portions.iter().filter(move |portion| serves && portion.owing(room, &self.sets) == place.set)
    }
}

impl Replicas {
    /// Which replica serves this user: in as many rooms as there are replicas, each serves equally often,
    /// and of those next to the user's own number.
    fn chosen(&self, room: Room, user: u64) -> u64 {
        let members = count(&self.members);
        (user * members + room.0 % members) / count(&self.users)
    }
}

impl Portion {
    /// Which of the sets owes it: another one whenever all replicas have had their turn.
    fn owing(&self, room: Room, sets: &[Replicas]) -> usize {
        let turn = room.0 / count(&sets[self.sets[0]].members) % count(&self.sets);
        self.sets[usize::try_from(turn).unwrap_or(0)]
    }
}

/// Different sets hold nothing in common, or the same of the layers they have in common: each part of a
/// request is owed once.
fn check_apart(sets: &[Replicas]) -> Result<(), RanksError> {
    for (at, set) in sets.iter().enumerate() {
        let overlaps = |other: &&Replicas| {
            let (ours, theirs) = (&set.holding, &other.holding);
            !is_kin(ours, theirs) && ours.meets(theirs) && !ours.layers.common(&theirs.layers).is_empty()
        };
        if let Some(other) = sets[..at].iter().find(overlaps) {
            return Err(RanksError::Overlap(other.members[0], set.members[0]));
        }
    }
    Ok(())
}

fn is_kin(a: &Holding, b: &Holding) -> bool {
    (a.heads, a.tokens) == (b.heads, b.tokens)
}

/// The layers of a destination by the sets that could owe them.
fn portions(sets: &[Replicas], holding: &Holding) -> Vec<Portion> {
    let mut portions: Vec<Portion> = Vec::new();
    for (at, set) in sets.iter().enumerate().filter(|(_, set)| set.holding.meets(holding)) {
        let mut own = set.holding.layers.common(&holding.layers);
        let mut parted = Vec::new();
        for portion in &mut portions {
            if !is_kin(&sets[portion.sets[0]].holding, &set.holding) {
                continue;
            }
            let both = portion.layers.common(&own);
            own = own.without(&both);
            portion.layers = portion.layers.without(&both);
            parted.push(Portion { layers: both, sets: portion.sets.iter().copied().chain([at]).collect() });
        }
        portions.append(&mut parted);
        portions.push(Portion { layers: own, sets: vec![at] });
        portions.retain(|portion| !portion.layers.is_empty());
    }
    // Sets that nobody can stand in for are at work anyway.
    let needed: BTreeSet<_> = portions.iter().filter(|p| p.sets.len() == 1).map(|p| p.sets[0]).collect();
    for portion in &mut portions {
        if portion.sets.iter().any(|set| needed.contains(set)) {
            portion.sets.retain(|set| needed.contains(set));
        }
    }
    portions
}

/// As no part is owed twice, a destination is fed if what it is owed is as much as it holds.
fn check_fed(
    sets: &[Replicas],
    rank: Rank,
    holding: &Holding,
    portions: &[Portion],
) -> Result<(), RanksError> {
    let total = |holding: &Holding| holding.heads.map(|heads| heads.total);
    let differs = |set: &&Replicas| {
        total(&set.holding) != total(holding) && !set.holding.layers.common(&holding.layers).is_empty()
    };
    if let Some(set) = sets.iter().find(differs) {
        return Err(RanksError::Heads { source_rank: set.members[0], destination: rank });
    }
    let period = sets.iter().try_fold(1, |period: u128, set| {
        let other = set.holding.tokens.common_period(holding.tokens);
        (period / gcd(period, other)).checked_mul(other)
    });
    let missing = RanksError::Missing(rank);
    // Times heads and layers, of which there are at most 2^32 each.
    let Some(period) = period.filter(|&period| period < 1 << 60) else { return Err(missing) };
    let volume = |source: &Holding, layers: &Layers| {
        source.cells(holding, period).saturating_mul(layers.count().into())
    };
    let owed = portions.iter().map(|portion| volume(&sets[portion.sets[0]].holding, &portion.layers));
    if owed.sum::<u128>() == volume(holding, &holding.layers) { Ok(()) } else { Err(missing) }
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
