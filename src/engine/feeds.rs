//! Which ranks of a group feed a receiver of another.

use super::shared::Shared;
use super::sources::Source;
use crate::bootstrap::{Directory, GroupInfo, GroupState, RankRecord};
use crate::error::{ErrorKind, Fault};
use crate::ids::{Rank, Room};
use crate::layout::{Holding, LayoutDigest, RankMap, RanksError, Share};
use std::sync::Arc;

/// The maps made last, since rooms come from few pairs of groups.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    kept: Vec<Kept>,
}

/// A map, as long as the records it was made of are those in the directory.
#[derive(Debug)]
struct Kept {
    theirs: Arc<GroupInfo>,
    dp: u32,
    ours: Arc<GroupInfo>,
    map: Result<Arc<RankMap>, Fault>,
}

/// The entry of a rank's record that says what the rank holds.
pub(super) const HOLDS: &str = "kvferry.holds";

impl Feeds {
    /// The ranks of `name` that feed a room of this rank, or why they are not known: `Ok(None)` means not
    /// yet. `own` is what this rank holds.
    pub(super) fn resolve(
        &mut self,
        shared: &Shared,
        directory: &dyn Directory,
        (name, dp): (&str, Option<u32>),
        room: Room,
        own: &Holding,
    ) -> Result<Option<Vec<Source>>, Fault> {
        let GroupState::Ready(theirs) = directory.group(name) else { return Ok(None) };
        let dp = match dp {
            Some(dp) => dp,
            None if theirs.sizes.dp == 1 => 0,
            None => match directory.owner(name, room) {
                Some(dp) => dp,
                None => return Ok(None),
            },
        };
        if dp >= theirs.sizes.dp {
            let has = theirs.sizes.dp;
            let detail = format!("wrong rank: dp{dp} of group {name:?}, which has {has} data parallel ranks");
            return Err(Fault::new(ErrorKind::Bootstrap, detail));
        }
        let place = &shared.place;
        let (ours, sizes) = (place.sizes, theirs.sizes);
        let twin = Rank { dp, ..place.rank };
        let is_alike = (sizes.pp, sizes.cp, sizes.tp) == (ours.pp, ours.cp, ours.tp);
        // Of groups that are cut alike, and of those that do not say what they hold.
        if is_alike && record_of(&theirs, twin)?.extra.get(HOLDS).is_none_or(|held| *held == own.to_string())
        {
            return Ok(Some(vec![source(&theirs, twin, Some(Share::WHOLE.tokens(own.tokens, own.tokens)))?]));
        }
        let ours = match directory.group(&place.group) {
            _ if (ours.pp, ours.cp, ours.tp) == (1, 1, 1) => Arc::new(alone(shared, own)),
            GroupState::Ready(info) => info,
            _ => return Ok(None),
        };
        let map = self.map(&theirs, dp, &ours, place.rank.dp)?;
        let fed = map.sources(room, place.rank).into_iter().map(|(rank, share)| {
            let destinations = map.destinations(room, rank);
            Ok(Source { destinations, ..source(&theirs, rank, share)? })
        });
        fed.collect::<Result<_, _>>().map(Some)
    }

    fn map(
        &mut self,
        theirs: &Arc<GroupInfo>,
        dp: u32,
        ours: &Arc<GroupInfo>,
        own_dp: u32,
    ) -> Result<Arc<RankMap>, Fault> {
        let is_it = |kept: &Kept| kept.dp == dp && kept.theirs == *theirs && kept.ours == *ours;
        let at = self.kept.iter().position(is_it).unwrap_or_else(|| {
            self.kept.truncate(MAPS - 1);
            let map = mapped(theirs, dp, ours, own_dp).map(Arc::new);
            self.kept.push(Kept { theirs: Arc::clone(theirs), dp, ours: Arc::clone(ours), map });
            self.kept.len() - 1
        });
        self.kept[..=at].rotate_right(1);
        self.kept[0].map.clone()
    }
}

fn mapped(theirs: &GroupInfo, dp: u32, ours: &GroupInfo, own_dp: u32) -> Result<RankMap, Fault> {
    let (sources, destinations) = (holdings(theirs, dp)?, holdings(ours, own_dp)?);
    RankMap::new(&sources, &destinations).map_err(|error: RanksError| {
        let sides = format!("{} on the prefill side, {} on the decode side", theirs.sizes, ours.sizes);
        Fault::caused_by(ErrorKind::Layout, &format!("parallel sizes: {sides}"), error)
    })
}

/// What each rank of a data parallel rank says that it holds.
fn holdings(info: &GroupInfo, dp: u32) -> Result<Vec<(Rank, Holding)>, Fault> {
    let of_dp = info.ranks.iter().filter(|record| record.rank.dp == dp);
    let holding = |record: &RankRecord| {
        let (name, rank) = (&info.name, record.rank);
        let Some(text) = record.extra.get(HOLDS) else {
            let detail =
                format!("rank {rank} of group {name:?} does not say what it holds; name the sources");
            return Err(Fault::new(ErrorKind::Layout, detail));
        };
        let holding = text.parse::<Holding>().map_err(|error| {
            Fault::caused_by(ErrorKind::Layout, &format!("rank {rank} of group {name:?}"), error)
        });
        Ok((rank, holding?))
    };
    of_dp.map(holding).collect()
}

/// A group of which this rank is all that belongs to a request.
fn alone(shared: &Shared, own: &Holding) -> GroupInfo {
    let place = &shared.place;
    let record =
        RankRecord::new(place.group.clone(), place.sizes, place.rank, shared.instance, LayoutDigest([0; 16]));
    let ranks = vec![record.extra(HOLDS, own.to_string())];
    GroupInfo { name: place.group.clone(), sizes: place.sizes, ranks }
}

fn source(info: &GroupInfo, rank: Rank, share: Option<Share>) -> Result<Source, Fault> {
    let record = record_of(info, rank)?;
    let mut source = Source::new(rank, record.addresses.clone());
    (source.instance, source.share) = (Some(record.instance), share);
    Ok(source)
}

fn record_of(info: &GroupInfo, rank: Rank) -> Result<&RankRecord, Fault> {
    let missing = || Fault::new(ErrorKind::Bootstrap, format!("group {:?} has no rank {rank}", info.name));
    info.ranks.iter().find(|record| record.rank == rank).ok_or_else(missing)
}

const MAPS: usize = 16;
